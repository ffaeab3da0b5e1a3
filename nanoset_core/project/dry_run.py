"""Plan a build without building or writing anything: its steps, its text, and its disk space."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanoset_core.project.disk import disk_need, free_bytes, text_bytes
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.status import PLANNED_BYTES, status_row
from nanoset_core.project.survey import CorpusFindings, ProjectSurvey
from nanoset_core.stages.stage import Node, ReadingBudget, RowName

FORCED = "it is made again, by --force"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Steps that a build would take on one corpus, split of a nanoset, or webdataset."""

    kind: str
    """Corpus, nanoset, webdataset and so on."""
    name: str
    """Name of the corpus, nanoset or webdataset."""
    part: str | None
    """A split of a nanoset, or its handoff; None for subjects with one row."""
    state: str
    """`missing` or `stale`; `failing` if the steps would fail or cannot be taken; `up to date` if
    they are only forced.
    """
    why: tuple[str, ...]
    """Why the steps would be taken, or why they would fail."""
    steps: tuple[str, ...]
    """Labels of the steps, in order; none if they cannot be taken."""

    @property
    def label(self) -> str:
        """Kind, name and part, separated by spaces."""
        return RowName(self.kind, self.name, self.part).label

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "part": self.part,
            "state": self.state,
            "why": list(self.why),
            "steps": list(self.steps),
        }


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a build would do."""

    rows: tuple[PlannedRow, ...]
    """The rows with outputs that would be made, or cannot be made, in the order of the build."""
    text_bytes: Mapping[str, int]
    """Corpus that would be worked on → stored size of its text in bytes."""
    disk_bytes: Mapping[str, int]
    """Name of what would be made, such as shards → estimated size in bytes."""
    free_bytes: int | None
    """How many bytes of the outputs' disk are free; None if they are in a bucket."""
    place: str
    """Where the outputs are: a folder, or a URL of a bucket."""

    @property
    def step_count(self) -> int:
        """How many steps the build would take."""
        return sum(len(row.steps) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "steps": self.step_count,
            "text_bytes": sum(self.text_bytes.values()),
            "corpora": dict(self.text_bytes),
            "disk_bytes": sum(self.disk_bytes.values()),
            "disk": dict(self.disk_bytes),
            "free_bytes": self.free_bytes,
            "root": self.place,
            "outputs": [row.to_json() for row in self.rows],
        }


def plan(
    survey: ProjectSurvey,
    selected: Collection[Node],
    label_of: Callable[[Node], str],
    *,
    force: bool = False,
) -> DryRun:
    """Return what a build of the selected outputs, and of what they need, would make.

    A build also rebuilds outputs whose last check failed in Dagster. These are not known here.

    Args:
        survey: The project's outputs.
        selected: The outputs that are to be built.
        label_of: Returns the label of a step.
        force: Whether to rebuild the selected outputs even if they are up to date.
    """
    graph = survey.graph
    project = graph.project
    stale = {node for node in selected if force or graph.stale_reasons(node)}
    due = _with_stale_needs(graph, stale)
    blocked = {node for node in due if _is_blocked(graph, node, survey.failures)}
    possible = due - blocked

    disk_bytes: dict[str, int] = {}
    if possible:
        disk_bytes = {what: size for what, size in disk_need(project, possible).items() if size}
    return DryRun(
        rows=tuple(_planned_rows(survey, due, blocked, label_of)),
        text_bytes=text_bytes(project, possible),
        disk_bytes=disk_bytes,
        free_bytes=free_bytes(project),
        place=_place(project),
    )


def _planned_rows(
    survey: ProjectSurvey,
    due: Collection[Node],
    blocked: Collection[Node],
    label_of: Callable[[Node], str],
) -> Iterator[PlannedRow]:
    """Yield the rows that have outputs to make.

    Args:
        survey: The project's outputs.
        due: The outputs that are to be made.
        blocked: Those of them that cannot be made, because a corpus cannot be read.
        label_of: Returns the label of a step.
    """
    graph = survey.graph
    planning = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        due_nodes = [node for node in nodes if node in due]
        if not due_nodes:
            continue

        corpus = nodes[0].key.subject
        failure = survey.failures.get(corpus) if inventory_node(corpus) in nodes else None
        row = status_row(graph, nodes, planning, CorpusFindings(failure))
        is_blocked = any(node in blocked for node in due_nodes)
        yield PlannedRow(
            kind=row.kind,
            name=row.name,
            part=row.part,
            state="failing" if is_blocked else row.state,
            why=row.why or (FORCED,),
            steps=() if is_blocked else tuple(map(label_of, due_nodes)),
        )


def _with_stale_needs(graph: Graph, nodes: Collection[Node]) -> set[Node]:
    """Return outputs, and everything that they need, directly or not, and that is stale."""
    due = set(nodes)
    waiting = list(nodes)
    while waiting:
        for need in waiting.pop().direct_inputs(graph.project.config):
            if need not in due and graph.stale_reasons(need):
                due.add(need)
                waiting.append(need)
    return due


def _is_blocked(graph: Graph, node: Node, failures: Mapping[str, str]) -> bool:
    """Return whether an output belongs to, or is made from, a corpus that cannot be read."""
    unreadable = {inventory_node(corpus) for corpus in failures}
    seen = {node}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in unreadable:
            return True
        inputs = set(graph.inputs(current).values()) - seen
        seen |= inputs
        waiting.extend(inputs)
    return False


def _place(project: Project) -> str:
    """Return the folder or URL of the outputs, for messages."""
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()
