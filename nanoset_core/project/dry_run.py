"""Plan a build without building or writing anything: its steps, its text, and its disk space.

For example, after a file was added to the corpus `web`, the plan has the row of `web` with the
steps inventory, shards and dataset, and the rows of what is made from `web`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.project.disk import disk_need, free_bytes, text_bytes
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.planned_views import PlannedView, planned_views
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
    views: Mapping[str, PlannedView]
    """Views that would be made → what they would choose; without those that cannot be told yet."""

    @property
    def step_count(self) -> int:
        """How many steps the build would take."""
        return sum(len(row.steps) for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the plan of the build as plain values, for JSON.

        Returns:
            Totals, such as {"steps": 12, "text_bytes": 3200000000, …}, with their details:
            `corpora`, `disk`, `views` and `outputs`.
        """
        return {
            "steps": self.step_count,
            "text_bytes": sum(self.text_bytes.values()),
            "corpora": dict(self.text_bytes),
            "disk_bytes": sum(self.disk_bytes.values()),
            "disk": dict(self.disk_bytes),
            "free_bytes": self.free_bytes,
            "root": self.place,
            "views": {name: view.to_json() for name, view in self.views.items()},
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

    Args:
        survey: The project's outputs, and the corpora that cannot be read.
        selected: The outputs that are to be built.
        label_of: Returns what the build calls the step that makes an output.
        force: Whether to rebuild the selected outputs even if they are up to date.

    Returns:
        The plan. It does not know of outputs whose last check failed in Dagster, which a build
        makes as well.

    Raises:
        StorageError: The disk of the outputs cannot be queried.
    """
    project = survey.graph.project
    due = _due_nodes(survey.graph, selected, force=force)

    # Outputs of a corpus that cannot be read would fail. They need neither text nor disk space.
    blocked = {node for node in due if _is_blocked(survey.graph, node, survey.failures)}
    possible = due - blocked
    return DryRun(
        rows=tuple(_planned_rows(survey, due, blocked, label_of)),
        text_bytes=text_bytes(project, possible),
        disk_bytes=_disk_bytes(project, possible),
        free_bytes=free_bytes(project),
        place=_place(project),  # where the outputs are, such as a bucket
        views=planned_views(survey.graph, due),  # which documents new views would select
    )


def _due_nodes(graph: Graph, selected: Iterable[Node], *, force: bool) -> set[Node]:
    """Return what a build would make: selected outputs that are stale, and their stale inputs.

    Args:
        graph: The project's outputs, with the reasons why they are stale.
        selected: The outputs that are to be built.
        force: Whether to include the selected outputs that are up to date.
    """

    def is_stale(node: Node) -> bool:
        """Return whether an output has to be made."""
        return bool(graph.stale_reasons(node))

    def inputs_of(node: Node) -> list[Node]:
        """Return the outputs that an output is made directly from."""
        return node.direct_inputs(graph.project.config)

    selected_due = {node for node in selected if force or is_stale(node)}
    return add_stale_inputs(selected_due, inputs_of=inputs_of, is_stale=is_stale)


def _disk_bytes(project: Project, nodes: Collection[Node]) -> dict[str, int]:
    """Estimate how much disk space some outputs take.

    Args:
        project: The project, whose raw folder is listed.
        nodes: The outputs.

    Returns:
        Kind of output, such as "shards" → bytes; kinds that are not made are left out.
    """
    if not nodes:
        return {}
    return {kind: size for kind, size in disk_need(project, nodes).items() if size}


def _planned_rows(
    survey: ProjectSurvey,
    due: Collection[Node],
    blocked: Collection[Node],
    label_of: Callable[[Node], str],
) -> Iterator[PlannedRow]:
    """Yield the rows of `nanoset status` that have outputs to make.

    A row is the outputs that are shown in one line, such as the shards and dataset of a corpus.

    Args:
        survey: The project's outputs, and the corpora that cannot be read.
        due: The outputs that are to be made.
        blocked: The outputs in `due` that cannot be made, because a corpus cannot be read.
        label_of: Returns the label of an output's step.
    """
    budget = ReadingBudget(PLANNED_BYTES)  # shared by all rows
    for row_nodes in survey.graph.rows():
        due_nodes = [node for node in row_nodes if node in due]
        if not due_nodes:
            continue
        findings = CorpusFindings(failure=_corpus_failure(survey, row_nodes))
        row = status_row(survey.graph, row_nodes, budget, findings)

        # The outputs of a row are made from each other: if one cannot be made, the build fails, and
        # makes none of them.
        state = row.state
        steps = [label_of(node) for node in due_nodes]
        if any(node in blocked for node in due_nodes):
            state = "failing"
            steps = []
        yield PlannedRow(
            kind=row.kind,
            name=row.name,
            part=row.part,
            state=state,
            why=row.why or (FORCED,),  # without a reason, the user has asked for a rebuild
            steps=tuple(steps),
        )


def _corpus_failure(survey: ProjectSurvey, row_nodes: Sequence[Node]) -> str | None:
    """Return why a corpus cannot be read if a row is that of the corpus, or None.

    Args:
        survey: The project's outputs, and the corpora that cannot be read.
        row_nodes: The outputs of the row. That of a corpus has its inventory, a list of its files.
    """
    subject = row_nodes[0].key.subject
    is_row_of_corpus = inventory_node(subject) in row_nodes
    return survey.failures.get(subject) if is_row_of_corpus else None


def _is_blocked(graph: Graph, node: Node, failures: Mapping[str, str]) -> bool:
    """Return whether an output is made, directly or not, from a corpus that cannot be read.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output.
        failures: Each corpus that cannot be read → why.
    """
    unreadable = {inventory_node(corpus) for corpus in failures}
    visited_nodes = {node}
    unexamined = [node]
    while unexamined:
        current = unexamined.pop()
        if current in unreadable:
            return True
        new_inputs = set(graph.inputs(current).values()) - visited_nodes
        visited_nodes |= new_inputs
        unexamined.extend(new_inputs)
    return False


def _place(project: Project) -> str:
    """Return the folder or URL of the outputs, for messages.

    Args:
        project: The project, whose setting `root` names it.
    """
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()
