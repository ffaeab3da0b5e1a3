"""The graph of a project's outputs: what each should be made from, and why it is stale.

Every command, sensor and schedule uses this graph to decide whether an output is up to date, so
that all of them agree.

- A *node* is one output of one stage, as `nanoset.yaml` and the raw folder request it.
- A *row* is the nodes that `nanoset status` shows together, such as the inventory, shards and
  dataset of a corpus.
- A *step* is the work of making one node, with its digest and the reasons for making it; see
  `project/runs.py`.

A node's recipe is derived from the recipes of its inputs: it contains their digests. So the recipes
of all outputs follow from those of the inventories, which list the files of the raw folder. An
output is up to date if its current version was made by its recipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    remembered, until `look_again` forgets it.
    """

    def __init__(
        self, project: Project, known: Mapping[Node, Recipe], corpora: Iterable[str] | None = None
    ) -> None:
        """Describe the outputs of a project.

        A recipe contains everything that decides the bytes of an output, and the digests of its
        inputs.

        Args:
            project: The project.
            known: Output → its recipe, for outputs whose recipes are not derived from inputs: above
                all the inventories, which list the files of each corpus. `set_recipe` adds more. An
                output that is made from an inventory without a recipe has no recipe either.
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
        """Set the recipe of an output, instead of deriving it from its inputs."""
        self._recipes[node] = recipe

    def set_reason(self, node: Node, text: str) -> None:
        """Set the only reason why an output is stale, instead of comparing recipes."""
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
        """Return a step for every output whose recipe is known, in the order of `nodes`."""
        steps = []
        for node in self.nodes():
            recipe = self.recipe(node)
            if recipe is None:
                continue
            reasons = tuple(reason.text for reason in self.stale_reasons(node))
            needs = tuple(node.direct_inputs(self.project.config))
            steps.append(Step(node, digest_of_node(node, recipe), reasons, needs))
        return steps

    def blocked(self) -> list[Node]:
        """Return the outputs that have no step, because they depend on an unknown inventory."""
        return [node for node in self.nodes() if self.recipe(node) is None]

    def inputs(self, node: Node) -> Mapping[str, Node]:
        """Return the outputs that an output is made from, or has to be made after, by name."""
        return node.inputs(self.project.config)

    def recipe(self, node: Node) -> Recipe | None:
        """Return the recipe by which an output would be made now.

        A recipe contains the digests of the output's inputs, so the recipes of these are needed
        first. Inventories, which list the files of corpora, are the only outputs without inputs.

        Args:
            node: The output.

        Returns:
            The recipe; None if the output is made, directly or indirectly, from an inventory whose
            recipe is not known.
        """
        if node in self._recipes:
            return self._recipes[node]

        # Inputs whose names begin with AFTER have to be made before the output, but decide none of
        # its bytes, so they are not part of the recipe.
        parents: dict[str, str] = {}
        for name, parent in self.inputs(node).items():
            parent_recipe = self.recipe(parent)
            if parent_recipe is None:
                return None
            if not name.startswith(AFTER):
                parents[name] = digest_of_node(parent, parent_recipe)
        if not parents:
            return None

        recipe = node.stage.recipe(self.project, node.key, parents)
        self._recipes[node] = recipe
        return recipe

    def project_of(self, node: Node) -> Project:
        """Return the project, with a listing of the folder that an output is in.

        If the root is a bucket, one listing then answers for all outputs in the same folder, in
        place of a request for each of them.
        """
        folder = node.stage.layout.folder
        if not node.is_of_corpus:
            folder = f"{folder}/{node.key.subject}"
        if folder not in self._project_by_folder:
            self._project_by_folder[folder] = self.project.with_listing(folder)
        return self._project_by_folder[folder]

    def current(self, node: Node) -> CurrentVersion:
        """Return the current version of an output, from memory if it was requested before."""
        if node in self._current:
            return self._current[node]

        project = self.project_of(node)
        if node.is_of_corpus and project.outputs.access.has_copies:
            self._look_up_all_corpora(node.stage, project)
        if node not in self._current:
            self._current[node] = current_version(project, node.stage, node.key)
        return self._current[node]

    def _look_up_all_corpora(self, stage: Stage, project: Project) -> None:
        """Look up and remember the current versions of a stage's outputs for all corpora at once.

        In a bucket, each costs a request, and these are made in parallel.

        Args:
            stage: A stage that makes an output of each corpus.
            project: The project, with a listing of the stage's folder.
        """
        nodes = [Node(stage, key) for key in stage.keys(project.config, self.corpora)]
        unknown = [node for node in nodes if node not in self._current]
        names = [node.name for node in unknown]
        versions = project.outputs.current_versions(stage.layout.folder, names)
        self._current.update(zip(unknown, versions, strict=True))

    def stale_reasons(self, node: Node) -> Sequence[Reason]:
        """Return why the current version of an output is stale or damaged; empty if it is fresh."""
        if node in self._reasons:
            return self._reasons[node]

        recipe = self.recipe(node)
        if recipe is None:
            # These reasons are not remembered, because the recipe may become known.
            return self._reasons_of_unknown_inputs(node)
        reasons = reasons_to_build(self.project_of(node), node, recipe, self.current(node))
        self._reasons[node] = reasons
        return reasons

    def changes(self, node: Node) -> Sequence[Reason]:
        """Return how the recipe of an output differs from that of its current version.

        In contrast to `stale_reasons`, damage to files is not looked for. If there is no current
        version, or the recipe is not known, the reasons are those of `stale_reasons`.
        """
        recipe = self.recipe(node)
        manifest = self.current(node).manifest
        if recipe is None or manifest is None:
            return self.stale_reasons(node)
        if manifest.digest == recipe.digest:
            return []
        return _with_clear_texts(differences(manifest.recipe, recipe))

    def _reasons_of_unknown_inputs(self, node: Node) -> list[Reason]:
        """Return a reason for each input whose recipe is not known."""
        reasons = []
        for name, parent in self.inputs(node).items():
            for unknown in self._unknown_inputs(parent):
                reasons.append(Reason(f"{unknown.key.subject} is not up to date", name))
        return reasons

    def _unknown_inputs(self, node: Node) -> Iterator[Node]:
        """Yield the outputs because of which the recipe of a node is not known.

        They are its nearest inputs that belong to a corpus and have no known recipe, or the node
        itself if it belongs to a corpus.
        """
        if self.recipe(node) is not None:
            return
        inputs = self.inputs(node).values()
        if not inputs or node.is_of_corpus:
            yield node
            return
        for parent in inputs:
            yield from self._unknown_inputs(parent)

    def look_again(self, nodes: Iterable[Node]) -> None:
        """Forget what was read about outputs that were built, and about what is made from them.

        Args:
            nodes: The outputs that were built.
        """
        changed = set(nodes)
        if not changed:
            return
        self._project_by_folder.clear()
        # Inputs precede what is made from them, so one pass finds indirect outputs as well.
        for node in self.nodes():
            if node in changed or not changed.isdisjoint(self.inputs(node).values()):
                changed.add(node)
                self._current.pop(node, None)
                self._reasons.pop(node, None)


def inventory_node(corpus: str) -> Node:
    """Return the node of a corpus's inventory, which is the first output of the corpus.

    This is the only stage that the graph names, because its recipe is not derived from inputs: it
    lists the files of the raw folder.
    """
    return Node(INVENTORY, Key(corpus))


def graph_over(
    project: Project, inventories: Mapping[str, Recipe], corpora: Iterable[str] | None = None
) -> Graph:
    """Return the graph of a project whose corpora have these inventories.

    Args:
        project: The project.
        inventories: Corpus → recipe of its inventory.
        corpora: The corpora of the raw folder; by default those with an inventory.
    """
    known = {inventory_node(corpus): recipe for corpus, recipe in inventories.items()}
    return Graph(project, known, corpora)


def requested_nodes(config: ProjectConfig, corpora: Collection[str] = ()) -> list[Node]:
    """Return every output that nanoset.yaml requests, and those of every corpus in `corpora`."""
    nodes = []
    for stage in stages():
        nodes += [Node(stage, key) for key in stage.keys(config, corpora)]
    return nodes


def digest_of_node(node: Node, recipe: Recipe) -> str:
    """Return the digest of the output that a recipe makes; Dagster records it as data version.

    A group of tars, which is one part of a webdataset, has the digest of the webdataset's plan.
    """
    if isinstance(node.stage, InParts):
        return node.stage.part_digest(recipe)
    return recipe.digest


def reasons_to_build(
    project: Project, node: Node, recipe: Recipe, current: CurrentVersion
) -> Sequence[Reason]:
    """Return why an output has to be built.

    Args:
        project: The project.
        node: The output.
        recipe: The recipe by which it should be made now.
        current: Its current version, if it has one.

    Returns:
        The reasons; empty if the current version was made by this recipe and is intact.
    """
    # A part of an output, such as a group of tars, has no manifest of its own that says by which
    # recipe it was made. Its stage has to find out.
    stage = node.stage
    if isinstance(stage, InParts):
        part_reason = stage.part_problem(project, node.key, recipe)
        return [] if part_reason is None else [part_reason]

    reasons = _with_clear_texts(current.stale_reasons(recipe))

    # The current version was made by this recipe. But it may need files in other folders, which
    # only its stage knows.
    if not reasons and current.manifest is not None and isinstance(stage, OutsideFiles):
        outside_fault = stage.fault(project, node.key, current.manifest)
        if outside_fault is not None:
            reasons.append(Reason(outside_fault))
        return reasons

    # The current version was made by another recipe, although a version by this one exists.
    if current.other_settings(recipe) and project.outputs.find(recipe) is not None:
        reasons.append(Reason(ANOTHER_IS_CURRENT))
    return reasons


def stale_reasons(project: Project, stage: Stage, key: Key) -> list[str]:
    """Return why an output's current version was not made from its settings and current inputs.

    Only outputs of the same subject, such as one nanoset, are compared with their settings. Outputs
    of other subjects, such as the corpora that it reads, are taken as they are, even if they are
    stale. Damage to files is not looked for.

    Args:
        project: The project.
        stage: The stage of the output.
        key: Which of its outputs it is.
    """
    graph = Graph(project, {})
    node = Node(stage, key)

    # Walk to the nearest outputs of other subjects.
    seen = {node}
    waiting = [node]
    while waiting:
        for parent in graph.inputs(waiting.pop()).values():
            if parent in seen:
                continue
            seen.add(parent)
            if _have_same_subject(parent, node) and graph.inputs(parent):
                waiting.append(parent)
                continue
            # The output should be made from whatever is current there.
            manifest = graph.current(parent).manifest
            if manifest is not None:
                graph.set_recipe(parent, from_plain(Recipe, manifest.recipe))
    return list(dict.fromkeys(_root_causes(graph, node)))


def _root_causes(graph: Graph, node: Node) -> Iterator[str]:
    """Yield why an output is stale; if an input of the same subject changed, why that is stale.

    For example, the blend of a nanoset is stale because its index mappings changed, and these
    because of a setting. Then only the setting is reported.

    Args:
        graph: The graph of the project's outputs.
        node: The output.
    """
    inputs = graph.inputs(node)
    for reason in graph.changes(node):
        causes: list[str] = []
        parent = inputs.get(reason.input or "")
        if parent is not None and _have_same_subject(parent, node):
            causes = list(_root_causes(graph, parent))
        if causes:
            yield from causes
        else:
            yield reason.text


def _with_clear_texts(reasons: Iterable[Reason]) -> list[Reason]:
    """Return reasons with texts that mention no input which users may not know.

    Users do not see inventories, so "inventory changed" becomes "files changed since it was built".
    """
    clear_reasons: list[Reason] = []
    for reason in reasons:
        text = _TEXT_OF_CHANGED_INPUT.get(reason.input or "", reason.text)
        clear_reasons.append(Reason(text, reason.input))
    return clear_reasons


def _have_same_subject(node: Node, other: Node) -> bool:
    """Return whether two outputs are of the same corpus, nanoset, webdataset or export."""
    return (node.stage.kind, node.key.subject) == (other.stage.kind, other.key.subject)


def _in_order(config: ProjectConfig, nodes: Iterable[Node]) -> list[Node]:
    """Return outputs in the order in which `nanoset status` shows them.

    They are ordered by kind (corpora, nanosets …), subject (web, pretrain …) and part (train …),
    and each follows its inputs of the same subject.

    Args:
        config: The settings of the project.
        nodes: The outputs, in the order of the stages.
    """
    # Within a kind, subjects and parts keep the order in which the stages first name them.
    parts_by_subject: dict[tuple[str, str], dict[str | None, list[Node]]] = {}
    for node in nodes:
        parts = parts_by_subject.setdefault((node.stage.kind, node.key.subject), {})
        parts.setdefault(node.key.part, []).append(node)

    ordered: dict[Node, None] = {}
    for kind in dict.fromkeys(stage.kind for stage in stages()):
        for (subject_kind, _), parts in parts_by_subject.items():
            if subject_kind != kind:
                continue
            for part_nodes in parts.values():
                for node in part_nodes:
                    _add_after_inputs(config, node, ordered)
    return list(ordered)


def _add_after_inputs(config: ProjectConfig, node: Node, ordered: dict[Node, None]) -> None:
    """Add an output to others, after its inputs of the same corpus, nanoset or webdataset.

    Args:
        config: The settings of the project.
        node: The output.
        ordered: The outputs so far, as keys: a dict keeps their order. The output and its inputs
            are added, unless they are in it.
    """
    if node in ordered:
        return
    for parent in node.inputs(config).values():
        if _have_same_subject(parent, node):
            _add_after_inputs(config, parent, ordered)
    ordered[node] = None
