"""Plan a build without building or writing anything: its steps, its text, and its disk space.

For example, after a file was added to the corpus `web`, the plan has the row of `web` with the
steps inventory, shards and dataset, and the rows of what is made from `web`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.project.disk import disk_need, free_bytes, text_bytes
from nanoset_core.project.graph import Graph, add_stale_inputs, inventory_node
from nanoset_core.project.planned_views import PlannedView, planned_views
from nanoset_core.project.project import Project
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
        """Return what a build would make together, and why, as plain values for JSON.

        For example, for the text collection `web`, with the steps of the build in order:

            {"kind": "corpus", "name": "web", "part": None,
             "state": "stale", "why": ["1 file added (c.jsonl)"],
             "steps": ["files", "tokens", "dataset"]}

        A split of training data has its name as `part`, such as "train".
        """
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
        """Return what a build would do as plain values, for `nanoset build --dry-run --json`.

        Some keys are totals, and the next key has their details. For example:

            "steps": 3                        outputs that the build would make, in order
            "text_bytes": 3200000000          text that these are made from, in all
            "corpora": {"web": 3200000000}    the same for each corpus (collection of texts)
            "disk_bytes": 600000000           disk space that they would take, in all
            "disk": {"shards": 600000000}     the same for each kind of output
            "free_bytes": 900000000000        free space of the disk
            "root": "/data/outputs"           where the outputs are, a folder or a URL
            "views": {"best": {…}}            how many documents new selections would have
            "outputs": [{…}]                  what is made together, with the reasons and steps
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
    """Return what a build would make, without making it: `nanoset build --dry-run`.

    For example, if a file was added to the text collection `web`, its dataset has to be made again,
    and so has the mixture (nanoset) that is made from it:

        corpus web                 1 file added (c.jsonl)    3 steps
        nanoset pretrain train     dataset changed           2 steps

    Args:
        survey: The project's outputs, with the reasons why some are not up to date; and the text
            collections that cannot be read.
        selected: The outputs that are to be built. What they are made from is built, too.
        label_of: Returns what the build calls the step that makes an output.
        force: Whether to rebuild the selected outputs even if they are up to date.

    Returns:
        The plan. A build may do more: it also makes outputs again of which the last check in
        Dagster, the program that runs builds, has failed.

    Raises:
        StorageError: The disk of the outputs cannot be queried.
    """
    project = survey.graph.project
    due = _due_nodes(survey.graph, selected, force=force)

    # What is made from a collection that cannot be read will not be made, and needs no space.
    blocked = {node for node in due if _is_blocked(survey.graph, node, survey.failures)}
    possible = due - blocked
    # Of some outputs, only the link `current` is missing: setting it again needs no disk space.
    written = possible if force else survey.graph.nodes_to_write(possible)
    return DryRun(
        rows=tuple(_planned_rows(survey, due, blocked, label_of)),
        text_bytes=text_bytes(project, possible),
        disk_bytes=_disk_bytes(project, written),
        free_bytes=free_bytes(project),
        place=_place(project),  # the folder of the outputs, or the address in a bucket
        views=planned_views(survey.graph, due),  # the documents that views would have
    )


def _due_nodes(graph: Graph, selected: Iterable[Node], *, force: bool) -> set[Node]:
    """Return what a build would make: the outputs that the user wants, and what these need.

    Only what is not up to date is made. For example, the user wants `pretrain`, a mixture of texts
    for training, which is made from two datasets:

        dataset of web     a file of raw text was added      made
        dataset of code    up to date                        not made
        pretrain           made from both, so out of date    made

    Args:
        graph: The project's outputs, with the reasons why they are not up to date.
        selected: The outputs that the user wants, here `pretrain`.
        force: Whether to make these even if they are up to date. What they need is still made only
            if it is not.
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
    """Estimate how much disk space some outputs take, such as {"shards": 600000000}.

    Args:
        project: The project, whose folder of raw text is listed.
        nodes: The outputs.

    Returns:
        Kind of output → bytes; kinds that are not made are left out.
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
    """Yield what a dry run of a build prints: the outputs that would be made, and why.

    Outputs that belong together share a row. For example:

        web         stale        1 file added (c.jsonl)           steps: files, tokens, dataset
        news        failing      a.jsonl is not UTF-8             no steps
        pretrain    up to date   it is rebuilt, because of --force

    Args:
        survey: The project's outputs, and the text collections that cannot be read.
        due: The outputs that are to be made.
        blocked: Those of them that cannot be made, because a text collection cannot be read.
        label_of: Returns what the step that makes an output is called.
    """
    # For some outputs, tables are read to find out whether a build would fail. That must not take
    # long: the rows may read PLANNED_BYTES together.
    budget = ReadingBudget(PLANNED_BYTES)
    for row_nodes in survey.graph.rows():
        due_nodes = [node for node in row_nodes if node in due]
        if not due_nodes:
            continue
        findings = CorpusFindings(failure=_corpus_failure(survey, row_nodes))
        status = status_row(survey.graph, row_nodes, budget, findings)

        # The outputs of a row are made from each other. If one of them cannot be made, none is.
        is_blocked = any(node in blocked for node in due_nodes)
        if is_blocked:
            state = "failing"
            steps = []
        else:
            state = status.state
            steps = [label_of(node) for node in due_nodes]

        reasons = status.why
        if not reasons:
            reasons = (FORCED,)  # nothing changed, so the user has asked for it
        yield PlannedRow(
            kind=status.kind,
            name=status.name,
            part=status.part,
            state=state,
            why=reasons,
            steps=tuple(steps),
        )


def _corpus_failure(survey: ProjectSurvey, row_nodes: Sequence[Node]) -> str | None:
    """Return why the files of a text collection cannot be read, for a row of a dry run of a build.

    Args:
        survey: Has the collections that cannot be read, such as {"news": "a.jsonl is not UTF-8"}.
        row_nodes: The outputs of the row, such as those of `news`.

    Returns:
        The reason; None if they can be read, or if this is not the row of a text collection.
    """
    subject = row_nodes[0].key.subject  # what the outputs belong to, such as "news"
    # Only the outputs of a text collection begin with a list of its files, the inventory.
    is_text_collection = inventory_node(subject) in row_nodes
    if not is_text_collection:
        return None
    return survey.failures.get(subject)


def _is_blocked(graph: Graph, node: Node, failures: Mapping[str, str]) -> bool:
    """Return whether an output cannot be made, because it depends on text that cannot be read.

    For example, a file of the text collection `news` is damaged:

        files of news  →  dataset of news  →  nanoset (a mixture of texts)

    Then the nanoset is blocked. The search goes from it to its inputs, the inputs of these, and so
    on, until it finds the files.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output.
        failures: Text collections that cannot be read, such as {"news": "a.jsonl is not UTF-8"}.
    """
    unreadable_nodes = {inventory_node(corpus) for corpus in failures}  # their lists of files
    visited_nodes = {node}
    nodes_to_examine = [node]
    while nodes_to_examine:
        examined_node = nodes_to_examine.pop()
        if examined_node in unreadable_nodes:
            return True
        new_inputs = set(graph.inputs(examined_node).values()) - visited_nodes
        visited_nodes |= new_inputs
        nodes_to_examine.extend(new_inputs)
    return False


def _place(project: Project) -> str:
    """Return the folder or URL of the outputs, for messages.

    Args:
        project: The project, whose setting `root` names it.
    """
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()
