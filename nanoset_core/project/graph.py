"""The graph of a project's outputs: what each should be made from, and why it is stale.

Every command, sensor and schedule uses this graph to decide whether an output is up to date, so
that all of them agree.

- A *node* is one output of one stage, as `nanoset.yaml` and the raw folder request it: for example
  the dataset of the corpus `web`, which is made from the shards of `web`.
- A *recipe* is everything that decides the bytes of an output: settings, and the digests of its
  inputs. An output is up to date if its current version was made by its recipe, and *stale*
  otherwise.
- A *row* is the nodes that `nanoset status` shows together, such as the inventory, shards and
  dataset of a corpus.
- A *step* is the work of making one node, with its digest and the reasons for making it.

The recipes of all outputs follow from those of the inventories, which list the files of the raw
folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nanoset_core.errors import ForbiddenError, StorageError, one_line
from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.differences import Reason, differences
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import (
    AFTER,
    InParts,
    Key,
    Node,
    OutsideFiles,
    RowName,
    Stage,
    current_version,
)

ANOTHER_IS_CURRENT = (
    "the requested version exists, but another one was made current: "
    "by another nanoset.yaml with this root, by this one with other settings, "
    "or by another version of nanoset"
)
_INVENTORY_INPUT = "inventory"
"""Name of the input that lists the files of a corpus."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of making one output from the project's present inputs."""

    node: Node
    """The output."""
    digest: str
    """Digest of the output that should be current."""
    reasons: tuple[str, ...]
    """Why the current version is not that output; empty if it is, and whole."""
    needs: tuple[Node, ...]
    """The outputs that it is made directly from."""
    deciding: tuple[Node, ...] = ()
    """The searches among them that may forbid to make it."""

    @property
    def attempt_digest(self) -> str:
        """Digest of what decides whether the output can be made, and not only of its bytes.

        By default, it is the digest of the output. If the settings let searches forbid the output,
        as `policy: block` does, it is another one: without them, it may be made.
        """
        if not self.deciding:
            return self.digest
        labels = [node.row.label for node in self.deciding]  # such as "contamination evals web"
        return digest_of([self.digest, labels])

    @property
    def is_up_to_date(self) -> bool:
        """Whether the output is complete and current."""
        return not self.reasons


class Graph:
    """Every output of a project: what it should be made from, and whether it is up to date.

    Outputs are the nodes of the graph. The current version of each output is read once and
    remembered, until `forget` is called for it.
    """

    def __init__(
        self, project: Project, known: Mapping[Node, Recipe], corpora: Iterable[str] | None = None
    ) -> None:
        """Describe the outputs of a project, and what they are made from.

        An output has a recipe: the settings that decide its bytes, and a hash of each output that
        it is made from. The first output of each corpus (collection of texts) is its inventory, a
        list of its files. All others are made from inventories, directly or through others:

            inventory of web  →  shards of web  →  dataset of web  →  index of a training

        So only the recipes of inventories have to be given. The graph derives those of all others.

        Args:
            project: Its nanoset.yaml requests the outputs, and its output folder has those that
                were built.
            known: Inventory → its recipe. `set_recipe` adds more.
            corpora: Names of the corpora of the raw folder; by default those with a known
                inventory.
        """
        if corpora is None:
            corpora = [node.key.subject for node in known if node.stage is INVENTORY]
        self.project = project
        self.corpora = tuple(corpora)
        # Output → what it should be made from. Derived recipes are added when they are needed.
        self._recipes = dict(known)

        # What was found out so far about the outputs that exist; `forget` removes entries.
        self._current: dict[Node, CurrentVersion] = {}  # output → its current version
        self._reasons: dict[Node, Sequence[Reason]] = {}  # output → why it has to be rebuilt
        # The same for outputs that depend on raw files which were not listed. It is only true until
        # more becomes known, and is cleared then.
        self._reasons_so_far: dict[Node, Sequence[Reason]] = {}
        # The outputs whose last check has found an error; None until they are read.
        self._failed_checks: FailedChecks | None = None
        # Folder, such as datasets → the project with a list of the files in it; see `project_of`.
        self._project_by_folder: dict[str, Project] = {}

        # Output → the output that the settings forbid and that it is made from, or None.
        self._forbidden_inputs: dict[Node, Node | None] = {}
        # Output → the error with which a build in this process has failed to make it.
        self._build_errors: dict[Node, str] = {}
        # Output that cannot be built, or has to wait for such an output → the row of
        # `nanoset status` that shows the failure, such as "corpus news".
        self._failing_rows: dict[Node, str] = {}

    def set_recipe(self, node: Node, recipe: Recipe) -> None:
        """Say what an output should be made from, so that the graph need not derive it.

        This is needed for the first output of each text collection, the list of its files, which is
        made from no other output. What all further outputs should be made from follows from these
        lists.

        Args:
            node: The output.
            recipe: What it should be made from: settings, and digests (hashes) of the inputs.
        """
        self._recipes[node] = recipe
        # Reasons of outputs that are made from this one, such as "corpus web is not up to date",
        # were only preliminary.
        self._reasons_so_far.clear()
        self._forbidden_inputs.clear()

    def stale_reasons_as_built(self, node: Node) -> list[str]:
        """Return what the function `stale_reasons` returns, which describes it.

        Call this to ask a graph without known inventories about several outputs.

        A recipe says what an output should be made from. Usually a graph derives all recipes from
        the raw files. Here, the inputs have the recipes by which they were built:

            dataset of web       as it was built
            nanoset pretrain     should be made from this dataset

        Args:
            node: The output, such as the nanoset.
        """
        for input_node in inputs_of_other_subjects(self, node):
            manifest = self.current(input_node).manifest  # says what the input was made from
            if manifest is not None:
                self.set_recipe(input_node, from_plain(Recipe, manifest.recipe))
        reasons = _root_causes(self, node)
        return list(dict.fromkeys(reasons))  # each once, in their order

    def set_reason(self, node: Node, text: str) -> None:
        """Set the only reason why an output is stale, instead of comparing recipes.

        Args:
            node: The output.
            text: The reason as a clause, such as "1 file added (c.jsonl)".
        """
        self._reasons[node] = [Reason(text)]
        self._reasons_so_far.clear()
        self._forbidden_inputs.clear()

    def set_failures(self, failures: Mapping[Node, Exception]) -> None:
        """Remember which outputs the last build could not make. They are stale for this reason.

        Args:
            failures: Output → the error.
        """
        for node, error in failures.items():
            self.set_reason(node, one_line(error))
            self._build_errors[node] = one_line(error)

    def failure(self, nodes: Iterable[Node]) -> str | None:
        """Return why a build could not make one of some outputs, or None.

        Only failures of a build in this process are known.

        Args:
            nodes: The outputs.
        """
        for node in nodes:
            if node in self._build_errors:
                return self._build_errors[node]
        return None

    def set_failing(self, nodes: Iterable[Node], label: str) -> None:
        """Record that some outputs cannot be built, so that others have to wait for them.

        For example, a new file of the corpus `news` is damaged, so that its dataset cannot be
        built. A view (a selection of documents) is made from the dataset. This call changes the
        result of `stale_reasons(view)`:

            before    "dataset changed"
            after     "waits for corpus news, which fails"

        Args:
            nodes: The outputs that cannot be built, such as the dataset of `news`. Nobody must have
                asked before why the outputs that are made from them are stale: the answers are
                remembered.
            label: The row of `nanoset status` that shows them: "corpus news".
        """
        for node in nodes:
            self._failing_rows[node] = label
        # These were computed before all raw files were listed. They may be different now.
        self._reasons_so_far.clear()

    def waits(self, node: Node) -> bool:
        """Return whether an output cannot be made before another one, which fails, is repaired.

        Call `set_failing` for what fails first, and `stale_reasons` for this output.

        Args:
            node: The output. If it fails itself, the result is False.
        """
        failing_row = self._failing_rows.get(node)
        return failing_row is not None and failing_row != node.row.label

    def nodes(self) -> list[Node]:
        """Return every output, each after those that it is made from."""
        config = self.project.config
        return _in_order(config, requested_nodes(config, self.corpora))

    def rows(self) -> list[list[Node]]:
        """Return the outputs grouped as `nanoset status` shows them, in the order of `nodes`."""
        rows: dict[RowName, list[Node]] = {}
        for node in self.nodes():
            rows.setdefault(node.row, []).append(node)
        return list(rows.values())

    def steps(self) -> list[Step]:
        """Return what a build would do: a step for each output, with the reasons to make it.

        For example:

            files of web      up to date
            shards of web     seed: 7 → 8         (tokenized pieces of text)
            dataset of web    shards changed      (needs the shards)

        Returns:
            The steps, each after the steps of what the output is made from. Outputs that depend on
            raw files which were not listed yet have none.
        """
        config = self.project.config
        steps = []
        for node in self.nodes():
            recipe = self.recipe(node)  # what the output should be made from
            if recipe is None:
                continue  # this is not known
            step = Step(
                node=node,
                digest=digest_of_node(node, recipe),
                reasons=tuple(reason.text for reason in self.stale_reasons(node)),
                needs=tuple(node.direct_inputs(config)),
                deciding=tuple(search for search, _ in node.deciding_inputs(config)),
            )
            steps.append(step)
        return steps

    def blocked(self) -> list[Node]:
        """Return the outputs that have no step, because they depend on an unknown inventory."""
        return [node for node in self.nodes() if self.recipe(node) is None]

    def inputs(self, node: Node) -> Mapping[str, Node]:
        """Return the outputs that an output is made from, or has to be made after.

        For example, the dataset of the text collection `web` has the input {"shards": shards of
        web}, which are the tokenized pieces of the text.

        Args:
            node: The output.

        Returns:
            Name of the input → the output that it is.
        """
        return node.inputs(self.project.config)

    def recipe(self, node: Node) -> Recipe | None:
        """Return what an output would be made from if it were built now: its recipe.

        A recipe has the settings that decide the bytes of an output, such as dtype: uint16, and a
        digest (hash) of each input. If it differs from the recipe of the existing output, that has
        to be rebuilt.

        Args:
            node: The output.

        Returns:
            The recipe. None if it is not known, because it depends on raw files that the caller has
            not listed.
        """
        if node in self._recipes:
            return self._recipes[node]

        # An output without inputs is a list of raw files, from which all others are made. Its
        # recipe has to be given to the graph.
        if not self.inputs(node):
            return None
        input_digests = self._input_digests(node)
        if input_digests is None:
            return None  # the recipe of an input is not known

        recipe = node.stage.recipe(self.project, node.key, input_digests)
        self._recipes[node] = recipe
        return recipe

    def _input_digests(self, node: Node) -> dict[str, str] | None:
        """Return the digests (hashes) of what an output would be made from if it were built now.

        Args:
            node: The output, such as a dataset.

        Returns:
            Name of each input → its digest, such as {"shards": "3f9c…"}. None if one of the digests
            is not known yet.
        """
        digests: dict[str, str] = {}
        for name, input_node in self.inputs(node).items():
            input_recipe = self.recipe(input_node)
            if input_recipe is None:
                return None

            # Some inputs only have to be built earlier, and are not read: their names begin with
            # AFTER ("after "). They have no influence on the output.
            is_read = not name.startswith(AFTER)
            if is_read:
                digests[name] = digest_of_node(input_node, input_recipe)
        return digests

    def project_of(self, node: Node) -> Project:
        """Return the project, prepared to look at an output and similar ones with a single request.

        If the outputs are in a bucket, each look at a file is a request, which takes some time, and
        there may be thousands of files. The returned project lists a whole folder by one request
        when it is first used, and then answers from that list. Listings are remembered:

            asked for the dataset of web     lists datasets
            asked for the dataset of code    uses the same list
            asked for the index of pretrain  lists nanosets/pretrain

        Args:
            node: The output.
        """
        folder = self._folder_to_list(node)
        if folder not in self._project_by_folder:
            self._project_by_folder[folder] = self.project.with_listing(folder)
        return self._project_by_folder[folder]

    def _folder_to_list(self, node: Node) -> str:
        """Return which folder to list in order to look at an output, and at similar ones.

            dataset of the corpus web        "datasets", which has the datasets of all corpora
            index of the nanoset pretrain    "nanosets/pretrain"
            some tars of a webdataset        the folder of the plan, which says what is in the tars

        Args:
            node: The output.
        """
        folder = node.stage.layout.folder
        if isinstance(node.stage, InParts) and node.stage.listed_folder is not None:
            folder = node.stage.listed_folder
        if node.is_of_corpus:
            return folder
        return f"{folder}/{node.key.subject}"

    def current(self, node: Node) -> CurrentVersion:
        """Return the current version of an output: the build that other programs read now.

        It is looked up once, and then remembered.

        Args:
            node: The output.

        Returns:
            The version, or the reason why there is no usable one.
        """
        if node in self._current:
            return self._current[node]

        project = self.project_of(node)
        is_in_bucket = project.outputs.access.takes_requests
        if node.is_of_corpus and is_in_bucket:
            # A request takes long. Callers usually ask about all text collections in turn. So
            # request this kind of output of all of them at the same time.
            self._current.update(self._current_of_all_corpora(node.stage, project))

        if node not in self._current:
            self._current[node] = current_version(project, node.stage, node.key)
        return self._current[node]

    def _current_of_all_corpora(self, stage: Stage, project: Project) -> dict[Node, CurrentVersion]:
        """Return the current versions of one kind of output, such as the datasets, of all corpora.

        They are requested from a bucket at the same time, since one request after another would
        take long.

        Args:
            stage: What makes the outputs, such as the stage that makes datasets.
            project: The project, with a listing of the folder with these outputs.

        Returns:
            Output → its current version, without those that are known from earlier calls.
        """
        nodes = [Node(stage, key) for key in stage.keys(project.config, self.corpora)]
        unknown_nodes = [node for node in nodes if node not in self._current]
        names = [node.name for node in unknown_nodes]  # the text collections: ["web", "code"]
        versions = project.outputs.current_versions(stage.layout.folder, names)
        return dict(zip(unknown_nodes, versions, strict=True))

    @property
    def failed_checks(self) -> FailedChecks:
        """The outputs whose last check has found an error. They are read once, and remembered."""
        if self._failed_checks is None:
            self._failed_checks = FailedChecks.read(self.project.outputs)
        return self._failed_checks

    def stale_reasons(self, node: Node) -> Sequence[Reason]:
        """Return why an output has to be rebuilt, if it has to be.

        `nanoset status` shows these reasons, and a build makes the outputs that have any. Examples:

            not built yet
            files changed since it was built
            seed: 7 → 8                          (a setting was changed)
            a shard is missing or damaged        (a piece of tokenized text)
            waits for corpus news, which fails   (instead of all other reasons: until this is
                                                 solved, a build cannot make the output)
            2 documents that training reads hold texts of evals   (the settings forbid that)
            corpus web is not up to date         (the raw files of web have to be read first)

        Args:
            node: The output.

        Returns:
            The reasons. There is none if the existing output is up to date and not damaged.
        """
        if node in self._reasons:
            return self._reasons[node]  # from an earlier call
        if node in self._reasons_so_far:
            return self._reasons_so_far[node]

        # What the settings forbid is not up to date, even if a build made it when it was allowed.
        prohibition = self.prohibition(node)
        if prohibition is not None:
            self._reasons[node] = [Reason(one_line(prohibition))]
            return self._reasons[node]

        reasons = self._reasons_without_waiting(node)
        forbidden_input = self._forbidden_input(node)
        if forbidden_input is None:
            failing_row = self._failing_row_of_inputs(node, reasons)  # such as "corpus news"
        else:
            failing_row = forbidden_input.row.label
        if failing_row is not None:
            reasons = [Reason(f"waits for {failing_row}, which fails")]
            self._failing_rows[node] = failing_row  # what is made from it has to wait, too
            self._reasons[node] = reasons
        elif self.recipe(node) is None:
            # The reasons change when `set_recipe` says what the output should be made from.
            self._reasons_so_far[node] = reasons
        else:
            self._reasons[node] = reasons
        return reasons

    def prohibition(self, node: Node) -> ForbiddenError | None:
        """Return the error that the present settings forbid an output, or None if they allow it.

        For example, a search has found texts of an evaluation in the corpus `web`, and the settings
        forbid that a training run reads them:

            index files of a nanoset that reads `web`     an error that names a document
            index files of one that reads a clean view    None

        Args:
            node: The output, whether or not it was built.

        Returns:
            The error. None as well if the search that decides is not up to date: a build makes it
            first, and then asks again.
        """
        for search, stage in node.deciding_inputs(self.project.config):
            if self.stale_reasons(search):
                continue
            manifest = self.current(search).manifest
            if manifest is None:
                continue
            try:
                stage.check_allowed(self.project_of(search), search.key, manifest)
            except ForbiddenError as error:
                return error
        return None

    def _forbidden_input(self, node: Node) -> Node | None:
        """Return a forbidden output that an output is made from, directly or through others.

        Args:
            node: The output, such as the files with which a trainer is started.

        Returns:
            The forbidden output, such as the index files of train; None if there is none.
        """
        if node in self._forbidden_inputs:
            return self._forbidden_inputs[node]

        result: Node | None = None
        for input_node in node.read_inputs(self.project.config):
            if self.prohibition(input_node) is not None:
                result = input_node
            else:
                result = self._forbidden_input(input_node)
            if result is not None:
                break
        self._forbidden_inputs[node] = result
        return result

    def _reasons_without_waiting(self, node: Node) -> Sequence[Reason]:
        """Return why an output has to be rebuilt, whether a build could make its inputs or not.

        Args:
            node: The output.
        """
        recipe = self.recipe(node)  # what the output should be made from
        if recipe is None:
            # Raw files that the output depends on were not listed yet, or cannot be.
            return self._reasons_of_unknown_inputs(node)
        return reasons_to_build(
            self.project_of(node), node, recipe, self.current(node), self.failed_checks
        )

    def nodes_to_write(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the outputs for which a build writes files, and so needs space on the disk.

        For others, it only sets a link to their files, such as datasets/web/current. For example,
        these links are missing after all outputs were copied from a bucket:

            dataset of web     "the link `current` is missing"    left out
            dataset of code    "seed: 7 → 8"                      returned

        Args:
            nodes: Outputs that a build makes.
        """
        return [node for node in nodes if not self._lacks_only_link(node)]

    def _lacks_only_link(self, node: Node) -> bool:
        """Return whether an output is complete, except that the link to its files is wrong."""
        reasons = self.stale_reasons(node)
        return len(reasons) > 0 and all(reason.is_of_link for reason in reasons)

    def _failing_row_of_inputs(self, node: Node, reasons: Iterable[Reason]) -> str | None:
        """Return the row of `nanoset status` that fails, so that an output has to wait for it.

        For example, a view (a selection of documents) of the corpus `news` is made from its
        dataset. A file of `news` is damaged, so nothing of this corpus can be built:

            why the view is out of date     result
            "dataset changed"               "corpus news": the dataset has to be built first
            "seed: 7 → 8", a setting        None: the dataset is as it was, and can be read

        Args:
            node: The output, such as the view.
            reasons: Why it is out of date.
        """
        if not self._failing_rows:
            # Nothing fails, so nothing has to wait. Do not look at the inputs, since that may read
            # files.
            return None

        inputs = self.inputs(node)
        for reason in reasons:
            changed_input = reason.changed_input(inputs)
            if changed_input is None:
                continue  # such as a changed setting
            # Perhaps the input has to wait itself. Then this call adds it to `_failing_rows`, in
            # which `set_failing` has put the outputs that fail themselves.
            self.stale_reasons(changed_input)
            if changed_input in self._failing_rows:
                return self._failing_rows[changed_input]
        return None

    def changes(self, node: Node) -> Sequence[Reason]:
        """Return what has changed since an output was made, such as "seed: 7 → 8".

        Unlike `stale_reasons`, this does not report damaged files.

        Args:
            node: The output.

        Returns:
            Changes of settings and inputs; none if the output would be made in the same way now. If
            there is nothing to compare, the reason why, such as that it was never built.
        """
        recipe = self.recipe(node)  # what it should be made from
        manifest = self.current(node).manifest  # says what it was made from
        if recipe is None or manifest is None:
            return self.stale_reasons(node)
        if manifest.digest == recipe.digest:
            return []
        recipe_changes = differences(manifest.recipe, recipe)
        return _with_clear_texts(recipe_changes)

    def _reasons_of_unknown_inputs(self, node: Node) -> list[Reason]:
        """Explain why it is not known what an output should be made from now.

        It depends on text collections whose files have changed, or were not listed yet. For each of
        them, the reason is such as "corpus web is not up to date".

        Args:
            node: The output.
        """
        reasons = []
        for name, input_node in self.inputs(node).items():
            for corpus in self._corpora_with_unknown_files(input_node):
                text = f"corpus {corpus} is not up to date"
                reasons.append(Reason(text, input=name))
        return reasons

    def _corpora_with_unknown_files(self, node: Node) -> list[str]:
        """Return the text collections (corpora) of an output whose raw files were not listed.

        As long as they are not, nobody can say what the output should be made from. For example, an
        index is made from the datasets of `web` and `news`, and the files of `news` are not known:

            dataset of web     []
            dataset of news    ["news"]
            index              ["news"], from its inputs

        Args:
            node: The output, such as the index.

        Returns:
            Names of corpora, each once.
        """

        def is_of_one_corpus(node: Node) -> bool:
            """Return whether an output needs the files of a single corpus, as a dataset does.

            An index belongs to a nanoset, and is made from outputs of several corpora.
            """
            return node.is_of_corpus or not self.inputs(node)

        def unknown_inputs(node: Node) -> list[Node]:
            """Return the inputs of an output of several corpora whose recipes are not known."""
            if is_of_one_corpus(node):
                return []  # it is known which corpus lacks the files: that of the output
            inputs = self.inputs(node).values()
            return [input_node for input_node in inputs if self.recipe(input_node) is None]

        recipe_is_known = self.recipe(node) is not None
        if recipe_is_known:
            return []
        unknown_nodes = [node, *walk_inputs([node], unknown_inputs)]
        corpora = [unknown.key.subject for unknown in unknown_nodes if is_of_one_corpus(unknown)]
        return list(dict.fromkeys(corpora))  # each once, in order

    def forget(self, built_nodes: Iterable[Node]) -> None:
        """Forget the state of outputs that were just built, and of all that is made from them.

        The graph remembers which version of each output exists, and why the output has to be
        rebuilt. A build makes that wrong. For example, with inputs to the left of what is made from
        them:

            shards  →  dataset  →  view

        Shards are tokenized pieces of text, and a view is a selection of documents. If the dataset
        was built, the states of the dataset and of the view are forgotten, and read again when
        somebody asks for them.

        Args:
            built_nodes: The outputs that were built.
        """
        changed_nodes = set(built_nodes)
        if not changed_nodes:
            return
        self._reasons_so_far.clear()
        self._forbidden_inputs.clear()
        self._failed_checks = None
        self._project_by_folder.clear()  # these have listings of folders from before the build

        # `nodes` returns inputs before what is made from them. So when a node comes, it is known
        # whether any of its inputs has changed, directly or through other outputs.
        for node in self.nodes():
            input_nodes = set(self.inputs(node).values())
            has_changed_input = not changed_nodes.isdisjoint(input_nodes)
            if node in changed_nodes or has_changed_input:
                changed_nodes.add(node)
                self._current.pop(node, None)  # nothing happens if it was never read
                self._reasons.pop(node, None)


def inventory_node(corpus: str) -> Node:
    """Return the first output of a text collection (corpus): its inventory, a list of its files.

    All other outputs of a corpus are made from it. Functions of this module can name it because it
    is the only output that is made from raw files, and not from other outputs.

    Args:
        corpus: Name of the corpus, such as web.
    """
    return Node(INVENTORY, Key(corpus))


def graph_over(
    project: Project, inventories: Mapping[str, Recipe], corpora: Iterable[str] | None = None
) -> Graph:
    """Return a graph of all outputs of a project, which says what each should be made from.

    A recipe says what an output should be made from: settings, and hashes of its inputs. The first
    output of each text collection is an inventory, a list of its raw files. From the recipes of the
    inventories, the graph derives those of all other outputs:

        inventory of web  →  shards of web  →  dataset of web  →  …

    Args:
        project: The project, whose nanoset.yaml requests the outputs.
        inventories: Text collection → recipe of its inventory, such as {"web": …}.
        corpora: Names of all text collections; by default those of `inventories`. If another one is
            among them, the recipes of its outputs are not known.
    """
    known = {inventory_node(corpus): recipe for corpus, recipe in inventories.items()}
    return Graph(project, known, corpora)


def requested_nodes(config: ProjectConfig, corpora: Collection[str] = ()) -> list[Node]:
    """Return every output that a project should have, built or not.

    Some outputs exist for each corpus (collection of texts) in the raw folder, such as its dataset.
    Others are requested by the settings, such as a nanoset, which is a mixture of corpora.

    Args:
        config: The settings of nanoset.yaml.
        corpora: Names of the corpora in the raw folder.

    Returns:
        The outputs, in the order in which the pipeline makes them: first the lists of raw files of
        all corpora, then their tokenized shards, and so on.
    """
    nodes = []
    for stage in stages():  # a stage makes outputs of one kind, such as datasets
        nodes += [Node(stage, key) for key in stage.keys(config, corpora)]
    return nodes


def is_requested(config: ProjectConfig, node: Node) -> bool:
    """Return whether a project should have an output, built or not.

    Outputs that exist for each corpus are requested, whether or not the raw folder has the corpus.

    Args:
        config: The settings of nanoset.yaml.
        node: The output.
    """
    corpora = [node.key.subject]
    return node.key in node.stage.keys(config, corpora)


def walk_inputs(
    outputs: Collection[Node], inputs_of: Callable[[Node], Iterable[Node]]
) -> Iterator[Node]:
    """Yield what some outputs are made from, directly or through other outputs, each once.

    For example, an index is made from a view and a dataset, and the view from the same dataset:

        outputs to start from     index
        yielded                   view, dataset

    Args:
        outputs: The outputs to start from, which are not yielded.
        inputs_of: Returns the inputs of an output that are to be visited. To end the walk at some
            outputs, it returns no inputs for these.
    """
    visited_nodes = set(outputs)
    nodes_to_visit = deque(outputs)
    while nodes_to_visit:
        node = nodes_to_visit.popleft()
        for input_node in inputs_of(node):
            if input_node not in visited_nodes:
                visited_nodes.add(input_node)
                nodes_to_visit.append(input_node)
                yield input_node


def add_stale_inputs(
    outputs: Collection[Node],
    *,
    inputs_of: Callable[[Node], Iterable[Node]],
    is_stale: Callable[[Node], bool],
) -> set[Node]:
    """Add to some outputs what has to be made for them: those of their inputs that are out of date.

    For example, a dataset is to be made. It is made from shards (tokenized pieces of text), and
    these from a list of files:

        list of files      up to date       not added
        shards             out of date      added
        dataset            to be made

    So the result is the shards and the dataset.

    Args:
        outputs: The outputs that are to be made, here the dataset.
        inputs_of: Returns the outputs that an output is made directly from.
        is_stale: Returns whether an output is out of date.
    """

    def stale_inputs(node: Node) -> list[Node]:
        """Return the inputs that are out of date. The inputs of others need not be looked at."""
        return [input_node for input_node in inputs_of(node) if is_stale(input_node)]

    return {*outputs, *walk_inputs(outputs, stale_inputs)}


def digest_of_node(node: Node, recipe: Recipe) -> str:
    """Return the digest that an output gets: a hash of everything that decides its content.

    The same inputs and settings always give the same digest. For example:

        dataset of web        3f9c…    the hash of its recipe, and the name of its folder
        100 of 1,000 tars     81aa…    a hash by the stage, since they have no folder of their own

    Args:
        node: The output.
        recipe: What it is made from: the settings, and the digests of its inputs.
    """
    stage = node.stage  # the code that makes the output
    if isinstance(stage, InParts):  # it makes parts of a larger output, such as some tars
        return stage.part_digest(recipe)
    return recipe.digest


def reasons_to_build(
    project: Project,
    node: Node,
    recipe: Recipe,
    current: CurrentVersion,
    failed_checks: FailedChecks,
) -> Sequence[Reason]:
    """Return why an output has to be built, such as "not built yet" or "seed: 7 → 8".

    It has to be built if its current version was made by another recipe or is damaged. Even if not,
    a file that it needs in another folder may be missing.

    Args:
        project: The project, whose root folder has the outputs.
        node: The output.
        recipe: What it should be made from now: settings, and digests (hashes) of its inputs.
        current: Its current version, which names what it was made from.
        failed_checks: The outputs whose last check has found an error.

    Returns:
        The reasons; none if the current version was made from the same, and no file is damaged.
    """
    reasons = _visible_reasons(project, node, recipe, current)
    # Damaged files with the right sizes are only noticed by a check.
    digest = digest_of_node(node, recipe)
    if not reasons and failed_checks.includes(node.stage.layout.folder, node.name, digest):
        return [Reason(check_failed_reason(node))]
    return reasons


def check_failed_reason(node: Node) -> str:
    """Return why an output is made or checked again although its recipe and its sizes are right.

    Args:
        node: The output.
    """
    output = node.stage.report_name(node.key)  # such as datasets/web: a row has several outputs
    return f"the last check of {output} found an error, which `nanoset verify` shows"


def _visible_reasons(
    project: Project, node: Node, recipe: Recipe, current: CurrentVersion
) -> Sequence[Reason]:
    """Return why an output has to be built, as far as recipes, sizes and links show.

    Args:
        project: The project, whose root folder has the outputs.
        node: The output.
        recipe: What it should be made from now.
        current: Its current version.
    """
    stage = node.stage  # the code that makes the output
    if isinstance(stage, InParts):
        # The output is one of the parts in which a large output is written. These have no version
        # of their own, so the stage has to look at the files.
        part_reason = stage.part_problem(project, node.key, recipe)
        return [] if part_reason is None else [part_reason]

    # Compare the current version with the recipe.
    stale_reasons = _with_clear_texts(current.stale_reasons(recipe))
    if stale_reasons:
        return stale_reasons + _hint_at_stored_version(project, recipe, current)

    # The version and its own files are fine. It may also need files in other folders, and the link
    # that leads to it may be wrong.
    return _faults_in_other_folders(project, node, current) + _faults_of_link(project, current)


def _hint_at_stored_version(
    project: Project, recipe: Recipe, current: CurrentVersion
) -> list[Reason]:
    """Return a hint if the output that should be built is stored already, but is not in use.

    For example, the user has changed a setting, has built, and has changed it back. Then the output
    by the present settings is still stored next to the current one.

    Args:
        project: The project, whose root folder has the outputs.
        recipe: What the output should be made from now.
        current: Its current version, which was not made by this recipe, or is damaged.

    Returns:
        The hint, as a further reason to build; otherwise nothing.
    """
    is_by_other_settings = current.other_settings(recipe)
    if is_by_other_settings and project.outputs.find(recipe) is not None:
        return [Reason(ANOTHER_IS_CURRENT)]
    return []


def _faults_in_other_folders(project: Project, node: Node, current: CurrentVersion) -> list[Reason]:
    """Check the files that an output needs, but that are stored in folders of other outputs.

    For example, a text collection is tokenized in pieces, the shards, each of which has a folder.
    The output `tokenized` is only a list of them:

        tokenized/web/3f9c…/          the list of shards: itself intact
        shards/web/81aa…/tokens.bin   tokens of one shard: this file may be missing

    Args:
        project: The project, whose root folder has all these files.
        node: The output, such as the list.
        current: Its current version.

    Returns:
        One reason to rebuild the output, if a file is missing or damaged; otherwise none.
    """
    stage = node.stage
    if not isinstance(stage, OutsideFiles):
        return []  # it needs no such files
    if current.manifest is None:
        return []  # it does not exist
    fault = stage.fault(project, node.key, current.manifest)
    if fault is None:
        return []
    return [Reason(fault)]


def _faults_of_link(project: Project, current: CurrentVersion) -> list[Reason]:
    """Check the link `current` of an output, which other programs follow to its current version.

    A build of the output sets the link again, and makes nothing else.

    Args:
        project: The project, whose root folder has the output.
        current: The current version of the output.

    Returns:
        One reason to build the output, such as "the link `current` is missing"; otherwise none.
    """
    if current.manifest is None:
        return []  # it does not exist
    try:
        project.outputs.check_link(current.manifest)
    except StorageError as error:
        return [Reason(error.what, is_of_link=True)]
    return []


def stale_reasons(project: Project, stage: Stage, key: Key) -> list[str]:
    """Return why an output is out of date, compared with its inputs as they were built last.

    For example, a nanoset is made from the dataset of `web`:

        since the nanoset was built           result
        the dataset was rebuilt               "dataset changed"
        only raw files of web were changed    nothing: raw files are not looked at

    Args:
        project: The project, whose root folder has the outputs.
        stage: What makes the output, such as the stage that makes nanosets.
        key: Which output of the stage it is, such as the nanoset `pretrain`.

    Returns:
        The reasons, each once, such as "dataset changed"; none if the output is up to date. Damaged
        files are not reported.
    """
    graph = Graph(project, known={})  # raw files are not known
    return graph.stale_reasons_as_built(Node(stage, key))


def inputs_of_other_subjects(graph: Graph, node: Node) -> list[Node]:
    """Return what an output and its siblings are made from, where siblings have the same subject.

    The subject is what an output belongs to, such as the nanoset `pretrain` or the corpus `web`:

        dataset (web)  →  index (pretrain)  →  blend (pretrain)

    For the blend, the index is a sibling, and the result is the dataset.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output, such as the blend.

    Returns:
        Inputs of other subjects, each once; and those of the same subject that have no inputs
        themselves, such as the list of the raw files of a corpus.
    """

    def is_sibling(other: Node) -> bool:
        """Return whether an output is looked through, as the index is."""
        has_inputs = len(graph.inputs(other)) > 0
        return has_inputs and _have_same_subject(other, node)

    def inputs_of_sibling(other: Node) -> Iterable[Node]:
        """Return the inputs of the output itself or of a sibling. The walk ends at all others."""
        if other == node or is_sibling(other):
            return graph.inputs(other).values()
        return ()

    all_inputs = walk_inputs([node], inputs_of_sibling)
    return [input_node for input_node in all_inputs if not is_sibling(input_node)]


def _root_causes(graph: Graph, node: Node) -> list[str]:
    """Return why an output is out of date, with causes instead of what merely follows from them.

    For example, a training has an index, whose settings were changed ("seed: 7 → 8"), and a blend,
    which is made from the index. Of the blend, the cause is "seed: 7 → 8", and not "index changed".

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output, such as the blend.
    """
    causes: list[str] = []
    inputs = graph.inputs(node)  # name → output, such as "index" → the index
    for reason in graph.changes(node):
        causes_of_input: list[str] = []
        changed_input = reason.changed_input(inputs)
        # An input that belongs to something else, such as another training, is only named.
        if changed_input is not None and _have_same_subject(changed_input, node):
            causes_of_input = _root_causes(graph, changed_input)

        if causes_of_input:
            causes += causes_of_input
        else:
            causes.append(reason.text)
    return causes


def _with_clear_texts(reasons: Iterable[Reason]) -> list[Reason]:
    """Replace messages about an internal input by messages that users understand.

    The first output of each corpus (collection of texts) is its inventory, a list of its files.
    Users never see inventories:

        before   "inventory changed"
        after    "files changed since it was built"

    Args:
        reasons: Why an output has to be rebuilt.

    Returns:
        The same reasons, in the same order. Only the texts of some are replaced.
    """
    clear_reasons: list[Reason] = []
    for reason in reasons:
        if reason.input == _INVENTORY_INPUT:  # None if the reason is not a changed input
            clear_reasons.append(replace(reason, text="files changed since it was built"))
        else:
            clear_reasons.append(reason)
    return clear_reasons


def _have_same_subject(node: Node, other: Node) -> bool:
    """Return whether two outputs are of the same corpus, nanoset, webdataset or export."""
    is_same_kind = node.stage.kind == other.stage.kind
    return is_same_kind and node.key.subject == other.key.subject


def _in_order(config: ProjectConfig, nodes: Iterable[Node]) -> list[Node]:
    """Return outputs in the order in which `nanoset status` lists them.

    They are grouped by what they belong to. Within a group, inputs come before what is made from
    them:

        corpus web         files, shards (tokenized pieces), dataset
        corpus code        files, shards, dataset
        nanoset pretrain   index, blend

    Args:
        config: The settings of the project, which say what each output is made from.
        nodes: The outputs, in the order of the pipeline: the files of all corpora come first.
    """
    ordered: dict[Node, None] = {}  # used as a set that remembers the order
    for node in _by_kind_and_subject(nodes):
        _add_after_inputs(config, node, ordered)  # does nothing if it was added as an input
    return list(ordered)


def _by_kind_and_subject(nodes: Iterable[Node]) -> list[Node]:
    """Group outputs by kind, then by name, and then by part, such as the data for training.

        before                        after
        nanoset pretrain, train       corpus  web
        nanoset finetune, train       nanoset pretrain, train
        nanoset pretrain, valid       nanoset pretrain, train
        nanoset pretrain, train       nanoset pretrain, valid
        corpus  web                   nanoset finetune, train

    Kinds have a fixed order. Names, and the parts of one name, are in the order in which they first
    occur.

    Args:
        nodes: The outputs.
    """
    # Kind → name → part → outputs, such as groups["nanoset"]["pretrain"]["train"]. A dict keeps its
    # keys in the order in which they were added, so begin with the kinds in their fixed order.
    groups: dict[str, dict[str, dict[str | None, list[Node]]]]
    groups = {stage.kind: {} for stage in stages()}
    for node in nodes:
        parts_of_name = groups[node.stage.kind].setdefault(node.key.subject, {})
        parts_of_name.setdefault(node.key.part, []).append(node)

    grouped_nodes: list[Node] = []
    for names_of_kind in groups.values():
        for parts_of_name in names_of_kind.values():
            for nodes_of_part in parts_of_name.values():
                grouped_nodes += nodes_of_part
    return grouped_nodes


def _add_after_inputs(config: ProjectConfig, node: Node, ordered: dict[Node, None]) -> None:
    """Add an output to a list, after those of its inputs that belong to the same thing as itself.

    For example, a nanoset (a mixture of texts for training) has a blend, which is made from an
    index. If the blend is to be added, the index is added before it.

    Args:
        config: The settings of the project, which say what each output is made from.
        node: The output. If it is in the list already, nothing is done.
        ordered: The list, to which outputs are added: a dict is used as a set in order.
    """
    if node in ordered:
        return
    for input_node in node.inputs(config).values():
        if _have_same_subject(input_node, node):
            _add_after_inputs(config, input_node, ordered)
    ordered[node] = None
