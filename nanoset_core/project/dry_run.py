"""What `nanoset build` would make, from how much text, on how much disk: found out without building or writing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.disk import disk_need, text_bytes
from nanoset_core.project.graph import Graph, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.status import PLANNED_BYTES, READ_BYTES, row_of, survey_known
from nanoset_core.stages.stage import Node, ReadingBudget

FORCED = "it is made again, by --force"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Steps that a build would take on one corpus, split of a nanoset, or webdataset."""

    kind: str
    """Corpus, nanoset, webdataset and so on."""
    name: str
    """Of the corpus, nanoset or webdataset."""
    part: str | None
    """Of a nanoset: a split, or handoff."""
    state: str
    """Missing, stale, or failing if the steps would fail or cannot be taken; up to date if they are forced."""
    why: tuple[str, ...]
    """Why the steps would be taken, or why they would fail."""
    steps: tuple[str, ...]
    """Labels of the steps, in order; none if they cannot be taken."""

    @property
    def label(self) -> str:
        """Kind and name, as one."""
        return f"{self.kind} {self.name}" + (f" {self.part}" if self.part else "")

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
    """What would be made, or would be but for an error, in the order of the build."""
    text_bytes: Mapping[str, int]
    """Corpus → bytes of its text as stored, of the corpora that would be worked on."""
    disk_bytes: Mapping[str, int]
    """What would be made → bytes that it would take, by estimate."""
    free_bytes: int | None
    """Free bytes of the disk of the outputs; None in a bucket."""
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


@dataclass(frozen=True, slots=True)
class Survey:
    """The outputs of a project, as far as they are known without reading text."""

    graph: Graph
    failures: Mapping[Node, str]
    """Inventory of each corpus that cannot be read → what is wrong."""


def survey(project: Project, corpora: Collection[str]) -> Survey:
    """Look at the files of corpora by size and time, as `nanoset status` does."""
    known: dict[Node, Recipe] = {}
    graph = Graph(project, known, corpora)
    reading = ReadingBudget(READ_BYTES)
    failures: dict[Node, str] = {}
    for corpus in corpora:
        root = inventory_node(corpus)
        failure, _ = survey_known(graph, known, root, reading)
        if failure is not None:
            failures[root] = failure
    return Survey(graph, failures)


def plan(found: Survey, selected: Collection[Node], label_of: Callable[[Node], str], *, force: bool = False) -> DryRun:
    """Return what a build of the selected outputs, and of what they need, would make.

    Checks that failed in Dagster's history are not known here; a build makes such outputs again, too.

    Args:
        found: The project's outputs.
        selected: The outputs that are to be built.
        label_of: What a step is called.
        force: Whether they are made again even if they are up to date.
    """
    graph = found.graph
    project = graph.project
    due = _with_stale_needs(graph, {node for node in selected if force or graph.stale_reasons(node)})
    blocked = {node for node in due if _is_blocked(graph, node, found.failures)}

    rows = []
    planning = ReadingBudget(PLANNED_BYTES)
    for nodes in graph.rows():
        due_nodes = [node for node in nodes if node in due]
        if not due_nodes:
            continue
        root = inventory_node(nodes[0].key.subject)
        row = row_of(graph, nodes, planning, found.failures.get(root) if root in nodes else None)
        is_blocked = not blocked.isdisjoint(due_nodes)
        rows.append(
            PlannedRow(
                kind=row.kind,
                name=row.name,
                part=row.part,
                state="failing" if is_blocked else row.state,
                why=row.why or (FORCED,),
                steps=() if is_blocked else tuple(label_of(node) for node in due_nodes),
            )
        )

    possible = due - blocked
    return DryRun(
        rows=tuple(rows),
        text_bytes=text_bytes(project, possible),
        disk_bytes={what: size for what, size in disk_need(project, possible).items() if size} if possible else {},
        free_bytes=_free_bytes(project),
        place=_place(project),
    )


def _with_stale_needs(graph: Graph, nodes: Collection[Node]) -> set[Node]:
    """Return outputs together with everything that they need, directly or not, and that is missing or stale."""
    due = set(nodes)
    waiting = list(nodes)
    while waiting:
        for need in waiting.pop().direct_inputs(graph.project.config):
            if need not in due and graph.stale_reasons(need):
                due.add(need)
                waiting.append(need)
    return due


def _is_blocked(graph: Graph, node: Node, failures: Mapping[Node, str]) -> bool:
    """Return whether an output is, or is made from, a corpus that cannot be read."""
    seen = {node}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current in failures:
            return True
        inputs = set(current.inputs(graph.project.config).values()) - seen
        seen |= inputs
        waiting.extend(inputs)
    return False


def _place(project: Project) -> str:
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()


def _free_bytes(project: Project) -> int | None:
    if project.config.root_place is not None:
        return None
    folder = Path(project.outputs.folder)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        return shutil.disk_usage(existing).free
    except OSError as error:
        raise StorageError("the disk of the outputs cannot be looked at", where=existing, found=error) from error
