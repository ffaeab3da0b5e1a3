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
- A *step* is the work of making one node, with its digest and the reasons for making it; see
  `project/runs.py`.

The recipes of all outputs follow from those of the inventories, which list the files of the raw
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nanoset_core.errors import one_line
from nanoset_core.outputs.current import CurrentVersion, Reason, differences
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
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
    "by another nanoset.yaml with this root, or by this one with other settings"
)
_TEXT_OF_CHANGED_INPUT = {"inventory": "files changed since it was built"}
"""Name of an input → the reason that is shown if it changed, in place of `<name> changed`."""


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
        """Describe the outputs of a project.

        Args:
            project: Its nanoset.yaml requests the outputs, and its root contains their versions.
            known: Output → its recipe, which decides its bytes, for outputs without inputs: the
                inventories, which list the files of each corpus. `set_recipe` adds more.
            corpora: The corpora of the raw folder; by default those with a known inventory.
        """
        if corpora is None:
            corpora = [node.key.subject for node in known if node.stage is INVENTORY]
        self.project = project
        self.corpora = tuple(corpora)
        self._recipes = dict(known)
        self._reasons: dict[Node, Sequence[Reason]] = {}
        self._current: dict[Node, CurrentVersion] = {}
        self._project_by_folder: dict[str, Project] = {}

    def set_recipe(self, node: Node, recipe: Recipe) -> None:
        """Set the recipe of an output, instead of deriving it from its inputs.

        Args:
            node: The output, such as the inventory of a corpus.
            recipe: What it should be made from. Recipes of outputs that are made from it follow.
        """
        self._recipes[node] = recipe

    def set_reason(self, node: Node, text: str) -> None:
        """Set the only reason why an output is stale, instead of comparing recipes.

        Args:
            node: The output.
            text: The reason as a clause, such as "1 file added (c.jsonl)".
        """
        self._reasons[node] = [Reason(text)]

    def set_failures(self, failures: Mapping[Node, Exception]) -> None:
        """Mark outputs as stale because making them failed.

        Args:
            failures: Output → the error.
        """
        for node, error in failures.items():
            self.set_reason(node, one_line(error))

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
        """Return the work of making each output, for outputs whose recipe is known.

        Returns:
            A step for each of these outputs, also for one that is up to date. A step follows those
            that make its inputs.
        """
        steps = []
        for node in self.nodes():
            recipe = self.recipe(node)
            if recipe is None:
                continue
            step = Step(
                node=node,
                digest=digest_of_node(node, recipe),
                reasons=tuple(reason.text for reason in self.stale_reasons(node)),
                needs=tuple(node.direct_inputs(self.project.config)),
            )
            steps.append(step)
        return steps

    def blocked(self) -> list[Node]:
        """Return the outputs that have no step, because they depend on an unknown inventory."""
        return [node for node in self.nodes() if self.recipe(node) is None]

    def inputs(self, node: Node) -> Mapping[str, Node]:
        """Return the outputs that an output is made from, or has to be made after.

        Args:
            node: The output.

        Returns:
            Name of the input in the recipe → the output, such as "shards" → the shards of a corpus.
        """
        return node.inputs(self.project.config)

    def recipe(self, node: Node) -> Recipe | None:
        """Return the recipe by which an output would be made now: settings and digests of inputs.

        Args:
            node: The output.

        Returns:
            The recipe; None if it depends on an inventory, a list of raw files, that was not given
            to the graph.
        """
        if node in self._recipes:
            return self._recipes[node]

        input_digests = self._input_digests(node)
        if input_digests is None:
            return None  # the recipe of an input is not known
        if not input_digests:
            return (
                None  # an inventory: its recipe lists raw files, and has to be given to the graph
            )

        recipe = node.stage.recipe(self.project, node.key, input_digests)
        self._recipes[node] = recipe
        return recipe

    def _input_digests(self, node: Node) -> dict[str, str] | None:
        """Return what the recipe of an output says about its inputs: name → digest, such as 3f9c….

        Args:
            node: The output.

        Returns:
            The digests that the inputs would have if they were made now; empty for an output that
            is made from raw text. None if the recipe of an input is not known.
        """
        digests: dict[str, str] = {}
        for name, input_node in self.inputs(node).items():
            recipe = self.recipe(input_node)
            if recipe is None:
                return None  # a build cannot make the output, since it makes all inputs first
            # If the name begins with AFTER, the input only has to be made before the output, which
            # does not read it. Then it decides no byte of the output, and is not in the recipe.
            is_read = not name.startswith(AFTER)
            if is_read:
                digests[name] = digest_of_node(input_node, recipe)
        return digests

    def project_of(self, node: Node) -> Project:
        """Return the project, with a cached listing of the folder that an output is in.

        If the root is a bucket, one listing then answers for all outputs in the same folder, in
        place of a request for each of them.

        Args:
            node: The output. Outputs of all corpora share the folder of their stage; others have
                the folder of their nanoset or webdataset.
        """
        folder = node.stage.layout.folder
        if not node.is_of_corpus:
            folder = f"{folder}/{node.key.subject}"
        if folder not in self._project_by_folder:
            self._project_by_folder[folder] = self.project.with_listing(folder)
        return self._project_by_folder[folder]

    def current(self, node: Node) -> CurrentVersion:
        """Return the current version of an output, from memory if it was requested before.

        Args:
            node: The output.

        Returns:
            The version that other stages read, or the reason why there is no usable one.
        """
        if node in self._current:
            return self._current[node]

        project = self.project_of(node)
        if node.is_of_corpus and project.outputs.access.takes_requests:
            # The outputs are in a bucket. Callers usually ask about all corpora in turn, so request
            # and remember this output of each corpus at once, in parallel.
            self._current |= self._current_of_all_corpora(node.stage, project)
        if node not in self._current:  # such as that of a corpus which the graph does not list
            self._current[node] = current_version(project, node.stage, node.key)
        return self._current[node]

    def _current_of_all_corpora(self, stage: Stage, project: Project) -> dict[Node, CurrentVersion]:
        """Return the current versions of a stage's outputs for all corpora, by parallel requests.

        Args:
            stage: A stage that makes an output of each corpus, such as its dataset.
            project: The project, with a listing of the stage's folder.

        Returns:
            Output → its current version. Those that are remembered already are left out.
        """
        nodes = [Node(stage, key) for key in stage.keys(project.config, self.corpora)]
        unknown_nodes = [node for node in nodes if node not in self._current]
        names = [node.name for node in unknown_nodes]
        versions = project.outputs.current_versions(stage.layout.folder, names)
        return dict(zip(unknown_nodes, versions, strict=True))

    def stale_reasons(self, node: Node) -> Sequence[Reason]:
        """Return why an output has to be rebuilt: what changed, is missing, or is damaged.

        Args:
            node: The output.

        Returns:
            The reasons, such as "dataset changed"; empty if the current version is up to
            date and intact.
        """
        if node in self._reasons:
            return self._reasons[node]

        recipe = self.recipe(node)
        if recipe is None:
            # It is not known from which files the output should be made. These reasons are not
            # remembered, since `set_recipe` may say so later.
            return self._reasons_of_unknown_inputs(node)
        reasons = reasons_to_build(self.project_of(node), node, recipe, self.current(node))
        self._reasons[node] = reasons
        return reasons

    def changes(self, node: Node) -> Sequence[Reason]:
        """Return which inputs and settings changed since the current version of an output was made.

        Unlike `stale_reasons`, this does not report damaged files.

        Args:
            node: The output.

        Returns:
            The changes; empty if the version was made by the output's recipe. If there is nothing
            to compare, the reasons of `stale_reasons`, such as that the output was never built.
        """
        recipe = self.recipe(node)
        manifest = self.current(node).manifest
        if recipe is None or manifest is None:
            return self.stale_reasons(node)
        if manifest.digest == recipe.digest:
            return []
        recipe_changes = differences(manifest.recipe, recipe)
        return _with_clear_texts(recipe_changes)

    def _reasons_of_unknown_inputs(self, node: Node) -> list[Reason]:
        """Return a reason for each input whose recipe is not known, such as "web is not up to
        date".

        Args:
            node: An output that such inputs are needed for.
        """
        reasons = []
        for name, parent in self.inputs(node).items():
            for unknown in self._unknown_inputs(parent):
                reasons.append(Reason(f"{unknown.key.subject} is not up to date", name))
        return reasons

    def _unknown_inputs(self, node: Node) -> Iterator[Node]:
        """Yield the outputs of corpora because of which the recipe of an output is not known.

        For example, the blend of a nanoset leads to its index mappings, and these lead to the
        dataset of the corpus `web`. Users know corpora by name, so the search ends there.

        Args:
            node: The output. If it belongs to a corpus, or has no inputs, it is yielded itself.
        """
        is_known = self.recipe(node) is not None
        if is_known:
            return
        inputs = self.inputs(node)
        if node.is_of_corpus or not inputs:
            yield node
            return
        # A recipe is unknown if that of an input is: continue with the inputs.
        for input_node in inputs.values():
            yield from self._unknown_inputs(input_node)

    def forget(self, built_nodes: Iterable[Node]) -> None:
        """Forget what was read about outputs that were built since, and what is made from them.

        Their current versions, and the reasons why they are stale, are read again when they are
        needed. What they should be made from is remembered, since a build does not change it.

        Args:
            built_nodes: The outputs that were built.
        """
        changed = set(built_nodes)
        if not changed:
            return
        self._project_by_folder.clear()  # these have listings of folders from before the build

        # `nodes` has inputs before what is made from them, so one pass finds what is made from
        # changed outputs directly or indirectly.
        for node in self.nodes():
            inputs = self.inputs(node).values()
            if node in changed or not changed.isdisjoint(inputs):
                changed.add(node)
                self._current.pop(node, None)
                self._reasons.pop(node, None)


def inventory_node(corpus: str) -> Node:
    """Return the inventory of a corpus, which is its first output: the list of its files.

    This is the only stage that the graph names, because its recipe is not derived from inputs, but
    from the files of the raw folder.

    Args:
        corpus: Name of the corpus, such as web.
    """
    return Node(INVENTORY, Key(corpus))


def graph_over(
    project: Project, inventories: Mapping[str, Recipe], corpora: Iterable[str] | None = None
) -> Graph:
    """Return the graph of a project whose corpora have these inventories.

    Args:
        project: Its nanoset.yaml requests the outputs of the graph.
        inventories: Name of a corpus → recipe of its inventory, the list of its files.
        corpora: Names of the corpora of the raw folder; by default those with an inventory.
    """
    known = {inventory_node(corpus): recipe for corpus, recipe in inventories.items()}
    return Graph(project, known, corpora)


def requested_nodes(config: ProjectConfig, corpora: Collection[str] = ()) -> list[Node]:
    """Return every output that nanoset.yaml requests, and those of every corpus in `corpora`.

    Args:
        config: The settings of nanoset.yaml.
        corpora: Names of corpora. All of them have an inventory, shards and a dataset.

    Returns:
        The outputs, in the order of the stages.
    """
    nodes = []
    for stage in stages():
        nodes += [Node(stage, key) for key in stage.keys(config, corpora)]
    return nodes


def digest_of_node(node: Node, recipe: Recipe) -> str:
    """Return the digest of the output that a recipe makes; Dagster records it as data version.

    Args:
        node: The output. A group of tars, which is one part of a webdataset, has the digest of the
            webdataset's plan.
        recipe: Its recipe.
    """
    if isinstance(node.stage, InParts):
        return node.stage.part_digest(recipe)
    return recipe.digest


def reasons_to_build(
    project: Project, node: Node, recipe: Recipe, current: CurrentVersion
) -> Sequence[Reason]:
    """Return why an output has to be built.

    Args:
        project: The project, whose root has the versions of the output.
        node: The output.
        recipe: The recipe by which it should be made now.
        current: Its current version, if it has one.

    Returns:
        The reasons; empty if the current version was made by this recipe and is intact.
    """
    stage = node.stage
    if isinstance(stage, InParts):
        # A part of an output, such as one group of tars, is no version: it has no manifest that
        # could be compared with the recipe. Its stage looks at the files instead.
        part_reason = stage.part_problem(project, node.key, recipe)
        return [] if part_reason is None else [part_reason]

    stale_reasons = _with_clear_texts(current.stale_reasons(recipe))
    if not stale_reasons:
        # The version is the right one. But files in other folders that it needs may be missing.
        return _faults_in_other_folders(project, node, current)

    # If a version by the right recipe exists, but is not current, add a hint to the reasons.
    if current.other_settings(recipe) and project.outputs.find(recipe) is not None:
        stale_reasons.append(Reason(ANOTHER_IS_CURRENT))
    return stale_reasons


def _faults_in_other_folders(project: Project, node: Node, current: CurrentVersion) -> list[Reason]:
    """Return what is wrong with files that an output needs, but that are not in its own folder.

    For example, the set of shards of a corpus is a list, and needs the files of the shards.

    Args:
        project: Its output root has the files.
        node: The output.
        current: Its current version.

    Returns:
        One reason, or none. None also if the output needs no such files.
    """
    stage = node.stage
    if current.manifest is None or not isinstance(stage, OutsideFiles):
        return []
    fault = stage.fault(project, node.key, current.manifest)
    return [] if fault is None else [Reason(fault)]


def stale_reasons(project: Project, stage: Stage, key: Key) -> list[str]:
    """Return why an output is stale, taking its inputs of other corpora and nanosets as they are.

    For example, a nanoset is not stale because the text of a corpus changed since the dataset of
    the corpus was built. Damaged files are not reported.

    Args:
        project: The project, whose root has the versions of the output.
        stage: The stage of the output.
        key: Which of the stage's outputs it is, such as the split `train` of `pretrain`.

    Returns:
        The reasons, each once; empty if the output is up to date with its inputs as they are.
    """
    graph = Graph(project, known={})
    node = Node(stage, key)
    # A recipe is what decides the bytes of an output. Normally, the graph derives that of an input
    # from the raw files of today. Set the recipe by which the input was made, so that it counts as
    # up to date.
    for input_node in _inputs_of_other_subjects(graph, node):
        manifest = graph.current(input_node).manifest
        if manifest is not None:
            recipe_of_current = from_plain(Recipe, manifest.recipe)
            graph.set_recipe(input_node, recipe_of_current)
    return list(dict.fromkeys(_root_causes(graph, node)))


def _inputs_of_other_subjects(graph: Graph, node: Node) -> list[Node]:
    """Return the nearest inputs of an output that belong to another corpus, nanoset and so on.

    From the blend of a nanoset, for example, this leads through the nanoset's index mappings to the
    datasets of its corpora.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output.

    Returns:
        The inputs, each once. For an output of a corpus, this is the corpus's inventory, which has
        no inputs, so that the search ends there.
    """
    nearest_inputs = []
    visited_nodes = {node}
    nodes_to_visit = [node]
    while nodes_to_visit:
        for input_node in graph.inputs(nodes_to_visit.pop()).values():
            if input_node in visited_nodes:
                continue
            visited_nodes.add(input_node)
            leads_further = bool(graph.inputs(input_node))
            if leads_further and _have_same_subject(input_node, node):
                nodes_to_visit.append(input_node)
            else:
                nearest_inputs.append(input_node)
    return nearest_inputs


def _root_causes(graph: Graph, node: Node) -> Iterator[str]:
    """Yield why an output is stale; if an input of the same subject changed, why that is stale.

    For example, the blend of a nanoset is stale because its index mappings changed, and these
    because of a setting. Then only the setting is reported.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output. Its subject is its corpus, nanoset, webdataset or export.
    """
    inputs = graph.inputs(node)
    for reason in graph.changes(node):
        # If the reason is that an input changed, find out why that one is stale.
        causes: list[str] = []
        changed_input = None if reason.input is None else inputs.get(reason.input)
        if changed_input is not None and _have_same_subject(changed_input, node):
            causes = list(_root_causes(graph, changed_input))

        if causes:
            yield from causes
        else:
            yield reason.text


def _with_clear_texts(reasons: Iterable[Reason]) -> list[Reason]:
    """Replace the texts of reasons that mention an input which users may not know.

    Users do not see inventories, the lists of raw files: "inventory changed" becomes "files changed
    since it was built".

    Args:
        reasons: Why an output is stale.
    """
    clear_reasons: list[Reason] = []
    for reason in reasons:
        text = reason.text
        if reason.input in _TEXT_OF_CHANGED_INPUT:
            text = _TEXT_OF_CHANGED_INPUT[reason.input]
        clear_reasons.append(Reason(text, reason.input))
    return clear_reasons


def _have_same_subject(node: Node, other: Node) -> bool:
    """Return whether two outputs are of the same corpus, nanoset, webdataset or export."""
    return (node.stage.kind, node.key.subject) == (other.stage.kind, other.key.subject)


def _in_order(config: ProjectConfig, nodes: Iterable[Node]) -> list[Node]:
    """Return outputs in the order in which `nanoset status` shows them.

    They are ordered by kind (corpus, nanoset …), and then by name. Of the same corpus or nanoset,
    each output follows its inputs.

    Args:
        config: The settings of the project, which say what each output is made from.
        nodes: The outputs, in the order of the stages.
    """
    ordered: dict[Node, None] = {}  # an ordered set of nodes: only the keys count
    for node in _by_kind_and_subject(nodes):
        _add_after_inputs(config, node, ordered)
    return list(ordered)


def _by_kind_and_subject(nodes: Iterable[Node]) -> list[Node]:
    """Return outputs by kind, then by subject, and then by part.

    For example: all outputs of corpora before those of nanosets, of these the nanoset `pretrain`
    before `finetune`, and of `pretrain` the split `train` before `valid`.

    Args:
        nodes: The outputs. Subjects, and the parts of one, keep the order in which they are first
            mentioned; kinds get the order of the stages.
    """
    # Group from the inside out, since each step keeps the order within its groups. For example,
    # with p for the nanoset `pretrain` and f for `finetune`:
    #   nodes        p/train  f/train  p/valid  p/train
    #   by part      p/train  p/train  f/train  p/valid
    #   by subject   p/train  p/train  p/valid  f/train
    by_part = _grouped(nodes, lambda node: (node.stage.kind, node.key.subject, node.key.part))
    by_subject = _grouped(by_part, lambda node: (node.stage.kind, node.key.subject))
    kinds = list(dict.fromkeys(stage.kind for stage in stages()))
    return sorted(by_subject, key=lambda node: kinds.index(node.stage.kind))


def _grouped(nodes: Iterable[Node], group_of: Callable[[Node], Hashable]) -> list[Node]:
    """Return the same nodes, with those of one group next to each other.

    For example, nodes of the groups A, B, A become A, A, B: groups are in the order of their first
    nodes, and the nodes of a group keep their order.

    Args:
        nodes: The nodes.
        group_of: Returns the group that a node belongs to.
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in nodes:
        groups.setdefault(group_of(node), []).append(node)
    return list(chain.from_iterable(groups.values()))


def _add_after_inputs(config: ProjectConfig, node: Node, ordered: dict[Node, None]) -> None:
    """Add a node to `ordered`, after its inputs of the same corpus, nanoset or webdataset.

    Args:
        config: The settings of the project.
        node: The node.
        ordered: A dict whose keys are the nodes so far, since a dict keeps their order. The inputs
            and the node become its next keys; those that are in it already keep their place.
    """
    if node in ordered:
        return
    for input_node in node.inputs(config).values():
        if _have_same_subject(input_node, node):
            _add_after_inputs(config, input_node, ordered)
    ordered[node] = None
