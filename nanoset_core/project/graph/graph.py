"""The graph of a project's outputs: what each should be made from, and why it is stale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nanoset_core.errors import ForbiddenError, one_line
from nanoset_core.outputs.differences import Reason, differences
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.current_versions import CurrentVersions
from nanoset_core.project.graph.nodes import digest_of_node, inventory_node, requested_nodes
from nanoset_core.project.graph.order import in_order
from nanoset_core.project.graph.reasons_to_build import reasons_to_build, with_clear_texts
from nanoset_core.project.graph.recipes import Recipes
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node, RowName


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
        self.recipes = Recipes(project, known)  # what each output should be made from
        self.versions = CurrentVersions(project, self.corpora)  # those that were built

        # Output → why it has to be rebuilt, as far as it is known; `forget` removes entries.
        self._reasons: dict[Node, Sequence[Reason]] = {}
        # The same for outputs that depend on raw files which were not listed. It is only true until
        # more becomes known, and is cleared then.
        self._reasons_so_far: dict[Node, Sequence[Reason]] = {}

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
        self.recipes.add(node, recipe)
        # Reasons of outputs that are made from this one, such as "corpus web is not up to date",
        # were only preliminary.
        self._reasons_so_far.clear()
        self._forbidden_inputs.clear()

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
        return in_order(config, requested_nodes(config, self.corpora))

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
            recipe = self.recipes.of(node)  # what the output should be made from
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
        return [node for node in self.nodes() if self.recipes.of(node) is None]

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
        elif self.recipes.of(node) is None:
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
            manifest = self.versions.of(search).manifest
            if manifest is None:
                continue
            try:
                stage.check_allowed(self.versions.project_of(search), search.key, manifest)
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
        recipe = self.recipes.of(node)  # what the output should be made from
        if recipe is None:
            # Raw files that the output depends on were not listed yet, or cannot be.
            return self._reasons_of_unknown_inputs(node)
        return reasons_to_build(
            self.versions.project_of(node),
            node,
            recipe,
            self.versions.of(node),
            self.versions.failed_checks,
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

    def changes_since_made(self, node: Node) -> Sequence[Reason]:
        """Return what has changed since an output was made, such as "seed: 7 → 8".

        Unlike `stale_reasons`, this does not report damaged files.

        Args:
            node: The output.

        Returns:
            Changes of settings and inputs; none if the output would be made in the same way now. If
            there is nothing to compare, the reason why, such as that it was never built.
        """
        recipe = self.recipes.of(node)  # what it should be made from
        manifest = self.versions.of(node).manifest  # says what it was made from
        if recipe is None or manifest is None:
            return self.stale_reasons(node)
        if manifest.digest == recipe.digest:
            return []
        recipe_changes = differences(manifest.recipe, recipe)
        return with_clear_texts(recipe_changes)

    def _reasons_of_unknown_inputs(self, node: Node) -> list[Reason]:
        """Explain why it is not known what an output should be made from now.

        It depends on text collections whose files have changed, or were not listed yet. For each of
        them, the reason is such as "corpus web is not up to date".

        Args:
            node: The output.
        """
        reasons = []
        for name, input_node in self.inputs(node).items():
            for corpus in self.recipes.corpora_with_unknown_files(input_node):
                text = f"corpus {corpus} is not up to date"
                reasons.append(Reason(text, input=name))
        return reasons

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

        # `nodes` returns inputs before what is made from them. So when a node comes, it is known
        # whether any of its inputs has changed, directly or through other outputs.
        for node in self.nodes():
            input_nodes = set(self.inputs(node).values())
            has_changed_input = not changed_nodes.isdisjoint(input_nodes)
            if node in changed_nodes or has_changed_input:
                changed_nodes.add(node)
                self._reasons.pop(node, None)  # nothing happens if they were never computed
        self.versions.forget(changed_nodes)


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
