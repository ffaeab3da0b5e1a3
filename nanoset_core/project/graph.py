"""The graph of all outputs of a project: what each should be made from, why the current one is stale, what can be made.

Every command, sensor and schedule asks here whether an output is up to date and can be made now, and so they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.outputs.current import CurrentVersion, Reason, differences
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import AFTER, InParts, Key, Node, OutsideFiles, Stage, current_version
from nanoset_core.text.endings import ACCEPTED


@dataclass(frozen=True, slots=True)
class Step:
    """One output, as it should be made from the project's inputs now."""

    node: Node
    digest: str
    """Of the wanted output."""
    reasons: tuple[str, ...]
    """Why the wanted output is not the current one; empty where it is, and whole."""
    needs: tuple[Node, ...]
    """What comes right before it."""

    @property
    def done(self) -> bool:
        """Whether the output is complete and current."""
        return not self.reasons


class Graph:
    """Every output of a project, and what it should be made from.

    Args:
        project: the project.
        known: recipes that are taken as given, above all of the corpora's inventories. More may be added later; what is
            made of an unknown inventory has no recipe.
        corpora: those of the raw folder; default: of the known inventories.
    """

    def __init__(self, project: Project, known: Mapping[Node, Recipe], corpora: Iterable[str] | None = None) -> None:
        self.project, self.known = project, known
        names = [node.key.subject for node in known if node.stage is INVENTORY] if corpora is None else corpora
        self.corpora = tuple(names)
        self.reasons: dict[Node, Sequence[Reason]] = {}
        self._recipes: dict[Node, Recipe] = {}
        self._current: dict[Node, CurrentVersion] = {}
        self._listed: dict[str, Project] = {}

    def nodes(self) -> list[Node]:
        """Return every output, each after what it needs."""
        return list(_ordered(self.project.config, asked_nodes(self.project.config, self.corpora)))

    def rows(self) -> list[list[Node]]:
        """Return the outputs row by row, as `nanoset status` shows them; in the order of `nodes`."""
        rows: dict[tuple[str, str, str | None], list[Node]] = {}
        for node in self.nodes():
            rows.setdefault(node.row, []).append(node)
        return list(rows.values())

    def recipe(self, node: Node) -> Recipe | None:
        """Return what an output should be made from; None where that depends on an unknown inventory."""
        if node in self.known:
            return self.known[node]
        if node not in self._recipes:
            parents: dict[str, str] = {}
            for name, parent in node.inputs(self.project.config).items():
                recipe = self.recipe(parent)
                if recipe is None:
                    return None
                if not name.startswith(AFTER):
                    parents[name] = digest_of_node(parent, recipe)
            if not parents:
                return None
            self._recipes[node] = node.stage.recipe(self.project, node.key, parents)
        return self._recipes[node]

    def listed(self, node: Node) -> Project:
        """Return the project through which to look at an output: a bucket is listed once for all outputs next to it."""
        folder = node.stage.layout.folder
        place = folder if node.is_of_corpus else f"{folder}/{node.key.subject}"
        if place not in self._listed:
            self._listed[place] = self.project.with_listing(place)
        return self._listed[place]

    def current(self, node: Node) -> CurrentVersion:
        """Return the current version of an output, as it was when first requested."""
        if node not in self._current:
            project = self.listed(node)
            if node.is_of_corpus and project.outputs.access.has_copies:
                self._look_up_all_corpora(node.stage, project)
            if node not in self._current:
                self._current[node] = current_version(project, node.stage, node.key)
        return self._current[node]

    def _look_up_all_corpora(self, stage: Stage, project: Project) -> None:
        """Look up the current versions of a stage for all corpora at once: in a bucket, each costs a request."""
        nodes = [Node(stage, key) for key in stage.keys(project.config, self.corpora)]
        nodes = [node for node in nodes if node not in self._current]
        names = [node.name for node in nodes]
        self._current |= zip(nodes, project.outputs.current_versions(stage.layout.folder, names), strict=True)

    def stale_reasons(self, node: Node) -> Sequence[Reason]:
        """Return why an output is not the wanted one; none where it is, and whole."""
        if node not in self.reasons:
            wanted = self.recipe(node)
            if wanted is None:
                return [
                    Reason(f"{root.key.subject} is not up to date", name)
                    for name, parent in node.inputs(self.project.config).items()
                    for root in self._unknown(parent)
                ]
            self.reasons[node] = reasons_to_build(self.listed(node), node, wanted, self.current(node))
        return self.reasons[node]

    def look_again(self, nodes: Iterable[Node]) -> None:
        """Forget what is known of some outputs, and of all that is made from them, after these were built."""
        changed = {node: None for node in nodes}
        if changed:
            self._listed.clear()
        for node in self.nodes() if changed else ():
            if not changed.keys().isdisjoint((node, *node.inputs(self.project.config).values())):
                changed[node] = None
                self._current.pop(node, None)
                self.reasons.pop(node, None)

    def changes(self, node: Node) -> Sequence[Reason]:
        """Return why an output has not the wanted recipe; its files are not looked at."""
        wanted, manifest = self.recipe(node), self.current(node).manifest
        if wanted is None or manifest is None:
            return self.stale_reasons(node)
        return [] if manifest.digest == wanted.digest else _in_words(differences(manifest.recipe, wanted))

    def _unknown(self, node: Node) -> Iterator[Node]:
        """Yield the nearest inputs of other rows whose recipes are not known."""
        if self.recipe(node) is None:
            inputs = node.inputs(self.project.config).values()
            if not inputs or node.is_of_corpus:
                yield node
            for parent in inputs if not node.is_of_corpus else ():
                yield from self._unknown(parent)

    def steps(self) -> list[Step]:
        """Return every output whose recipe is known, as a step; in the order of `nodes`."""
        found = []
        for node in self.nodes():
            if (recipe := self.recipe(node)) is not None:
                reasons = tuple(reason.text for reason in self.stale_reasons(node))
                needs = tuple(node.direct_inputs(self.project.config))
                found.append(Step(node, digest_of_node(node, recipe), reasons, needs))
        return found

    def blocked(self) -> list[Node]:
        """Return outputs that have no step, since they depend on an unknown inventory."""
        return [node for node in self.nodes() if self.recipe(node) is None]


REPLACED = (
    "the requested version exists, but another one was made current: by another nanoset.yaml with this root, or by "
    "this one with other settings"
)
_CHANGED_INPUTS = {"inventory": "files changed since it was built"}
"""Name of an input → the reason shown if it changed, where `<name> changed` would not say enough."""


def digest_of_node(node: Node, recipe: Recipe) -> str:
    """Return the digest that an output made by a recipe is known by: what Dagster records as its data version."""
    if isinstance(node.stage, InParts):
        return node.stage.part_digest(recipe)
    return recipe.digest


def reasons_to_build(project: Project, node: Node, wanted: Recipe, current: CurrentVersion) -> Sequence[Reason]:
    """Return why the current version of an output is not the wanted one; none if it is, and whole."""
    stage = node.stage
    if isinstance(stage, InParts):
        problem = stage.part_problem(project, node.key, wanted)
        return [] if problem is None else [problem]

    reasons = _in_words(current.stale_reasons(wanted))
    if not reasons and current.manifest is not None and isinstance(stage, OutsideFiles):
        fault = stage.fault(project, node.key, current.manifest)
        return [] if fault is None else [Reason(fault)]
    if current.other_settings(wanted) and project.outputs.find(wanted) is not None:
        reasons.append(Reason(REPLACED))
    return reasons


def _in_words(reasons: Iterable[Reason]) -> list[Reason]:
    return [Reason(_CHANGED_INPUTS.get(reason.input or "", reason.text), reason.input) for reason in reasons]


def inventory_node(corpus: str) -> Node:
    """Return the inventory of a corpus."""
    return Node(INVENTORY, Key(corpus))


def graph_over(project: Project, inventories: Mapping[str, Recipe], corpora: Iterable[str] | None = None) -> Graph:
    """Return the graph of a project in which corpora have these inventories: corpus → recipe."""
    known = {inventory_node(corpus): recipe for corpus, recipe in inventories.items()}
    return Graph(project, known, corpora)


def stale_reasons(project: Project, stage: Stage, key: Key) -> list[str]:
    """Return why a current version is not made from its settings and its present inputs.

    Outputs of other subjects count as they are even where they are stale. Files are not looked at.
    """
    node = Node(stage, key)
    known: dict[Node, Recipe] = {}
    graph = Graph(project, known)
    waiting, seen = [node], {node}
    while waiting:
        for parent in waiting.pop().inputs(project.config).values():
            if parent in seen:
                continue
            seen.add(parent)
            if _belongs(parent, node) and parent.inputs(project.config):
                waiting.append(parent)
            elif (manifest := graph.current(parent).manifest) is not None:
                known[parent] = Recipe(**manifest.recipe)
    return list(dict.fromkeys(_from_the_root(graph, node)))


def _from_the_root(graph: Graph, node: Node) -> Iterator[str]:
    """Yield reasons in words; where an input of the same subject differs, that one's own reasons."""
    inputs = node.inputs(graph.project.config)
    for reason in graph.changes(node):
        parent = inputs.get(reason.input or "")
        earlier = list(_from_the_root(graph, parent)) if parent is not None and _belongs(parent, node) else []
        yield from earlier or [reason.text]


def _belongs(node: Node, other: Node) -> bool:
    return (node.stage.kind, node.key.subject) == (other.stage.kind, other.key.subject)


def asked_nodes(config: ProjectConfig, corpora: Collection[str] = ()) -> list[Node]:
    """Return every output that a configuration asks for, and those of every corpus of `corpora`."""
    return [Node(stage, key) for stage in stages() for key in stage.keys(config, corpora)]


def _ordered(config: ProjectConfig, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes by kind, subject and part, each after those of its subject that it needs."""
    groups: dict[tuple[str, str], dict[str | None, list[Node]]] = {}
    kinds = dict.fromkeys(stage.kind for stage in stages())
    for node in nodes:
        groups.setdefault((node.stage.kind, node.key.subject), {}).setdefault(node.key.part, []).append(node)
    given: set[Node] = set()

    def visit(node: Node) -> Iterator[Node]:
        if node not in given:
            given.add(node)
            for parent in node.inputs(config).values():
                if _belongs(parent, node):
                    yield from visit(parent)
            yield node

    for kind in kinds:
        for (other, _), parts in groups.items():
            if other == kind:
                for node in (node for part in parts.values() for node in part):
                    yield from visit(node)


def named_corpora(config: ProjectConfig) -> set[str]:
    """Return the corpora that nanoset.yaml names."""
    return {corpus for _, corpus in _named(config)}


def check_corpora(config: ProjectConfig, known: Collection[str]) -> None:
    """Raise ConfigError where a configuration names a corpus that is not one of `known`, those of the raw folder."""
    for name in config.derived:
        if name in known:
            key, one = ("views", "a view") if name in config.views else ("packs", "packs")
            what, remedy = f"{one} and a corpus share a name", f"rename {one.replace('a view', 'the view')}"
            raise ConfigError(what, where=f"{config.file}: {key}.{name}", found=name, remedy=remedy)
    for path, corpus in _named(config):
        if corpus not in known:
            folder = config.corpus_folder(corpus)
            empty = folder.is_dir()
            remedy = f"put its files ({ACCEPTED}) into {folder}, or take it out of {config.file.name}"
            raise ConfigError(
                "this corpus has no text that could be read" if empty else "this corpus is not in the raw folder",
                where=f"{config.file}: {path}.{corpus}",
                found=f"{', '.join(known) or 'no corpora'} in {config.raw_folder}",
                remedy=remedy if empty else remedy_for_name(corpus, [*known, *config.derived], remedy),
            )


def _named(config: ProjectConfig) -> Iterator[tuple[str, str]]:
    """Yield (where in nanoset.yaml, corpus named there)."""
    yield from (("corpora", corpus) for corpus in config.corpora)
    for node in asked_nodes(config):
        for parent in node.inputs(config).values():
            if parent.is_of_corpus:
                yield node.key.requested_at, parent.key.subject


@dataclass(frozen=True, slots=True)
class GraphState:
    """Every step of a project at one moment, with what a history of runs knows of it."""

    steps: Mapping[Node, Step]
    """In an order in which each step comes after those it needs."""
    unverified: frozenset[Node] = frozenset()
    """Steps whose last check found errors, or did not end."""
    forced: frozenset[Node] = frozenset()
    """Steps to make again though they are up to date."""

    def is_fresh(self, node: Node) -> bool:
        """Return whether a step's output is current, whole, and not known to be faulty."""
        return node in self.steps and self.steps[node].done and node not in self.unverified

    def needs_run(self, node: Node) -> bool:
        """Return whether a step is missing, stale, faulty, or forced."""
        return node in self.steps and (not self.is_fresh(node) or node in self.forced)


def runnable(
    state: GraphState,
    select: Callable[[Step], bool],
    run_of: Callable[[Step], Hashable],
    *,
    in_sequence: bool = False,
) -> list[list[Step]]:
    """Return the runs that can start now: the steps of each in order, runs in the order of the pipeline.

    A step is taken when it needs a run, everything it needs is fresh or made before it, and `select`, called in order,
    accepts it. The steps of a run (`run_of`) are made one after the other, so one may need another; with `in_sequence`
    also one of an earlier run.
    """
    runs: dict[Hashable, list[Step]] = {}
    taken: dict[Node, Hashable] = {}
    for node, step in state.steps.items():
        if not state.needs_run(node):
            continue
        run = run_of(step)
        made = {need for need in step.needs if need in taken and (in_sequence or taken[need] == run)}
        if all(need in made or state.is_fresh(need) for need in step.needs) and select(step):
            runs.setdefault(run, []).append(step)
            taken[node] = run
    return list(runs.values())


def with_stale_needs(state: GraphState, nodes: Collection[Node]) -> set[Node]:
    """Return steps together with everything they need, directly or not, that is not fresh."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for need in state.steps[waiting.pop()].needs:
            if need in state.steps and need not in found and not state.is_fresh(need):
                found.add(need)
                waiting.append(need)
    return found
