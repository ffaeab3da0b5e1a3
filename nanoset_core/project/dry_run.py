"""Plan a build without building or writing anything: its steps, its text, and its disk space."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanoset_core.project.disk import disk_need, free_bytes, text_bytes
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.runs import add_stale_inputs
from nanoset_core.project.status import PLANNED_BYTES, status_row
from nanoset_core.project.survey import CorpusFindings, ProjectSurvey
from nanoset_core.stages.stage import Node, ReadingBudget, RowName

FORCED = "it is rebuilt, because of --force"
"""Why a build makes an output that is up to date."""


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """The steps that a build would take for one row of `nanoset status`.

    A row is the outputs that are shown together: those of a corpus, of a split of a nanoset, or of
    a webdataset. A step is the work of making one output.
    """

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
        """Return the row as plain values, for JSON."""
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
    """Each corpus that outputs would be made of → stored size of its text in bytes."""
    disk_bytes: Mapping[str, int]
    """Kind of files that would be made, such as shards → their estimated size in bytes."""
    free_bytes: int | None
    """How many bytes of the outputs' disk are free; None if they are in a bucket."""
    place: str
    """Where the outputs are: a folder, or a URL of a bucket."""

    @property
    def step_count(self) -> int:
        """How many steps the build would take."""
        return sum(len(row.steps) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the plan of the build as plain values, for JSON."""
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

    A build also rebuilds outputs whose last check failed in Dagster. A dry run does not read
    Dagster's history, so it leaves these out.

    Args:
        survey: The project's outputs, and the corpora that cannot be read.
        selected: The outputs that are to be built.
        label_of: Returns what the build calls the step that makes an output.
        force: Whether to rebuild the selected outputs even if they are up to date.
    """
    graph = survey.graph
    project = graph.project

    def is_stale(node: Node) -> bool:
        """Return whether an output has to be made."""
        return bool(graph.stale_reasons(node))

    def inputs_of(node: Node) -> list[Node]:
        """Return the outputs that an output is made directly from."""
        return node.direct_inputs(project.config)

    # What a build would make: selected outputs that are stale, and the stale inputs of these.
    selected_due = {node for node in selected if force or is_stale(node)}
    due = add_stale_inputs(selected_due, inputs_of=inputs_of, is_stale=is_stale)

    # Outputs of a corpus that cannot be read would fail. They need neither text nor disk space.
    blocked = {node for node in due if _is_blocked(graph, node, survey.failures)}
    possible = due - blocked
    disk_bytes: dict[str, int] = {}
    if possible:
        estimated_bytes = disk_need(project, possible)
        disk_bytes = {kind: size for kind, size in estimated_bytes.items() if size}
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
    """Yield the rows of `nanoset status` that have outputs to make.

    Args:
        survey: The project's outputs, and the corpora that cannot be read.
        due: The outputs that are to be made.
        blocked: The outputs in `due` that cannot be made, because a corpus cannot be read.
        label_of: Returns the label of an output's step.
    """
    graph = survey.graph
    budget = ReadingBudget(PLANNED_BYTES)  # shared by all rows
    for row_nodes in graph.rows():
        due_nodes = [node for node in row_nodes if node in due]
        if not due_nodes:
            continue

        # The row of a corpus is the one that contains its inventory.
        subject = row_nodes[0].key.subject
        failure = None
        if inventory_node(subject) in row_nodes:
            failure = survey.failures.get(subject)
        row = status_row(graph, row_nodes, budget, CorpusFindings(failure))

        # A build takes none of the steps of a row that is blocked.
        state: str = row.state
        steps = tuple(label_of(node) for node in due_nodes)
        is_blocked = any(node in blocked for node in due_nodes)
        if is_blocked:
            state = "failing"
            steps = ()
        yield PlannedRow(
            kind=row.kind,
            name=row.name,
            part=row.part,
            state=state,
            why=row.why or (FORCED,),
            steps=steps,
        )


def _is_blocked(graph: Graph, node: Node, failures: Mapping[str, str]) -> bool:
    """Return whether an output is made, directly or not, from a corpus that cannot be read.

    Args:
        graph: The project's outputs.
        node: The output.
        failures: Each corpus that cannot be read → why.
    """
    unreadable = {inventory_node(corpus) for corpus in failures}
    seen = {node}
    unexamined = [node]
    while unexamined:
        current = unexamined.pop()
        if current in unreadable:
            return True
        new_inputs = set(graph.inputs(current).values()) - seen
        seen |= new_inputs
        unexamined.extend(new_inputs)
    return False


def _place(project: Project) -> str:
    """Return the folder or URL of the outputs, for messages."""
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()
