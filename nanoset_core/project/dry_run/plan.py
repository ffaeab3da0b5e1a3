"""Plan a build without building or writing anything: its steps, its text, and its disk space.

For example, after a file was added to the corpus `web`, the plan has the row of `web` with the
steps inventory, shards and dataset, and the rows of what is made from `web`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanoset_core.project.dry_run.disk import disk_need, free_bytes, is_refused
from nanoset_core.project.dry_run.nanosets import datasets_of_nanoset, failing_nanosets
from nanoset_core.project.dry_run.text_to_read import text_bytes
from nanoset_core.project.dry_run.views import PlannedView, planned_views
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import add_stale_inputs
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.project.status import PLANNED_BYTES, ExaminedRow, NamedRow, examined_rows
from nanoset_core.project.survey import ProjectSurvey
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.inventory.known_files import KnownFiles
from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS
from nanoset_core.stages.stage import (
    Estimated,
    Node,
    ReadingBudget,
    WarnsBeforeReplacing,
)

FORCED = "it is rebuilt, because of --force"
"""Why a build makes an output that is up to date."""


@dataclass(frozen=True, slots=True)
class PlannedRow(NamedRow):
    """The steps that a build would take for one row of `nanoset status`.

    A row is the outputs that are shown together: those of a corpus, of a split of a nanoset, or of
    a webdataset. A step is the work of making one output.
    """

    state: str
    """The state that `nanoset status` shows; `up to date` if the steps are only forced."""
    why: tuple[str, ...]
    """Why the steps would be taken, why they would fail, or which failing output they wait for."""
    steps: tuple[str, ...]
    """Labels of the steps, in order; none if they cannot be taken."""

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
    """Each corpus whose raw text would be read → stored size in bytes of the files to read."""
    disk_bytes: Mapping[str, int]
    """Kind of files that would be made, such as shards → their estimated size in bytes."""
    not_estimated: tuple[str, ...]
    """Kinds of outputs that would be made and are not in `disk_bytes`, such as view."""
    free_bytes: int | None
    """How many bytes of the outputs' disk are free; None if they are in a bucket."""
    place: str
    """Where the outputs are: a folder, or a URL of a bucket."""
    views: Mapping[str, PlannedView]
    """Views that would be made → what they would choose; without those that cannot be told yet."""
    failures: tuple[str, ...] = ()
    """Why outputs would fail because of views that would be empty or too small."""
    warnings: tuple[str, ...] = ()
    """What a user should know before the build, such as that a run may have begun with a version
    that would be replaced.
    """

    @property
    def step_count(self) -> int:
        """How many steps the build would take."""
        return sum(len(row.steps) for row in self.rows)

    @property
    def would_fail(self) -> bool:
        """Whether the build would certainly end with an error."""
        has_failing_row = any(row.state == "failing" for row in self.rows)
        lacks_space = is_refused(sum(self.disk_bytes.values()), self.free_bytes)
        return has_failing_row or bool(self.failures) or lacks_space

    def to_json(self) -> dict[str, Any]:
        """Return what a build would do as plain values, for `nanoset build --dry-run --json`.

        Some keys are totals, and the next key has their details. For example:

            "steps": 3                        outputs that the build would make, in order
            "text_bytes": 3200000000          raw text of the corpora that are read, in all
            "corpora": {"web": 3200000000}    the same for each corpus (collection of texts)
            "disk_bytes": 600000000           disk space that they would take, in all
            "disk": {"shards": 600000000}     the same for each kind of output
            "not_estimated": ["view"]         kinds of outputs whose disk space is not included
            "free_bytes": 900000000000        free space of the disk
            "root": "/data/outputs"           where the outputs are, a folder or a URL
            "views": {"best": {…}}            how many documents new selections would have
            "failures": ["…"]                 why outputs would fail that read such selections
            "warnings": ["…"]                 what a user should know before the build
            "outputs": [{…}]                  what is made together, with the reasons and steps
        """
        return {
            "steps": self.step_count,
            "text_bytes": sum(self.text_bytes.values()),
            "corpora": dict(self.text_bytes),
            "disk_bytes": sum(self.disk_bytes.values()),
            "disk": dict(self.disk_bytes),
            "not_estimated": list(self.not_estimated),
            "free_bytes": self.free_bytes,
            "root": self.place,
            "views": {name: view.to_json() for name, view in self.views.items()},
            "failures": list(self.failures),
            "warnings": list(self.warnings),
            "outputs": [row.to_json() for row in self.rows],
        }


def plan(
    survey: ProjectSurvey,
    selected: Collection[Node],
    label_of: Callable[[Node], str],
    *,
    rebuild: bool = False,
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
        rebuild: Whether to rebuild the selected outputs even if they are up to date.

    Returns:
        The plan. A build may do more: it repeats checks that were interrupted, which only the
        history of Dagster, the program that runs builds, knows.

    Raises:
        StorageError: The disk of the outputs cannot be queried.
    """
    graph = survey.graph
    project = graph.project

    # Find out the states first: the reasons to make an output depend on which other ones fail.
    rows = list(examined_rows(graph, survey.findings))
    due = _due_nodes(graph, selected, rebuild=rebuild)

    # A build fails if a collection cannot be read, even one that is not selected.
    unreadable_nodes = _outputs_of_unreadable_corpora(survey)
    due |= unreadable_nodes

    # Neither these outputs nor those that wait for failing ones will be made, or need space.
    waiting_nodes = {node for node in due if graph.waits(node)}
    blocked = unreadable_nodes | waiting_nodes
    possible = due - blocked
    # Of some outputs, only the link `current` is missing: setting it again needs no disk space.
    written = possible if rebuild else graph.nodes_to_write(possible)

    # Choose the documents that views would have, and plan the nanosets that read these views.
    reader = LengthReader(project.outputs.access)
    budget = ReadingBudget(PLANNED_BYTES)
    views_of_nanosets = _datasets_of_nanosets(project.config, possible)
    views = planned_views(graph, due, views_of_nanosets, reader, budget)
    failures = list(_failures_of_empty_views(project.config, possible, views))
    if not failures:
        planned_datasets = {
            name: view.manifest for name, view in views.items() if view.manifest is not None
        }
        failures += failing_nanosets(graph, possible, planned_datasets, reader, budget)
    return DryRun(
        rows=tuple(_planned_rows(rows, due, blocked, label_of)),
        text_bytes=text_bytes(project, written, known_files=_listed_files(survey), rebuild=rebuild),
        disk_bytes=disk_need(project, written),
        not_estimated=_kinds_without_estimate(written),
        free_bytes=free_bytes(project),
        place=_place(project),  # the folder of the outputs, or the address in a bucket
        views=views,
        failures=tuple(failures),
        warnings=tuple(_replacement_warnings(graph, possible)),
    )


def _listed_files(survey: ProjectSurvey) -> dict[str, KnownFiles]:
    """Return the files that a survey has listed, so that they are not listed again.

    Args:
        survey: The survey. It has no files of corpora that cannot be read.
    """
    files_by_corpus: dict[str, KnownFiles] = {}
    for corpus, findings in survey.findings.items():
        if findings.files is not None:
            files_by_corpus[corpus] = findings.files
    return files_by_corpus


def _due_nodes(graph: Graph, selected: Iterable[Node], *, rebuild: bool) -> set[Node]:
    """Return what a build would make: the outputs that the user wants, and what these need.

    Only what is not up to date is made. For example, the user wants `pretrain`, a mixture of texts
    for training, which is made from two datasets:

        dataset of web     a file of raw text was added      made
        dataset of code    up to date                        not made
        pretrain           made from both, so out of date    made

    Args:
        graph: The project's outputs, with the reasons why they are not up to date.
        selected: The outputs that the user wants, here `pretrain`.
        rebuild: Whether to make these even if they are up to date. What they need is still made
            only if it is not.
    """

    def is_stale(node: Node) -> bool:
        """Return whether an output has to be made."""
        return bool(graph.stale_reasons(node))

    def inputs_of(node: Node) -> list[Node]:
        """Return the outputs that an output is made directly from."""
        return node.direct_inputs(graph.project.config)

    selected_due = {node for node in selected if rebuild or is_stale(node)}
    return add_stale_inputs(selected_due, inputs_of=inputs_of, is_stale=is_stale)


def _replacement_warnings(graph: Graph, nodes: Collection[Node]) -> Iterator[str]:
    """Yield a warning for each output that a build would replace although it may be in use.

    For example, a trainer is started with a *handoff*, a folder of arguments. A run may have begun
    with the handoff of the nanoset `pretrain`, whose name (digest) begins with 3125. Then text was
    added, and a build would order the samples in another way:

        nanoset pretrain handoff: its handoff 3125 would be replaced, and the samples may get
        another order. …

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs that the build would make.
    """
    for node in graph.nodes():
        stage = node.stage  # the code that makes the output
        if node not in nodes or not isinstance(stage, WarnsBeforeReplacing):
            continue
        current_manifest = graph.versions.of(node).manifest
        if current_manifest is None:
            continue  # nothing exists yet that could be in use

        # The stage decides whether somebody may depend on the present version.
        changed_inputs = _inputs_to_change(graph, node, nodes)  # such as ["blend"]
        warning = stage.replacement_warning(graph.project, current_manifest, changed_inputs)
        if warning is not None:
            yield f"{node.row.label}: {warning}"


def _inputs_to_change(graph: Graph, node: Node, nodes: Collection[Node]) -> list[str]:
    """Return which inputs of an output would be different after a build.

    For example, the arguments of a trainer are made from two outputs:

        train    the build makes it, since text was added     returned
        valid    the build makes it, since it is damaged      left out: it gets the same bytes

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output.
        nodes: The outputs that the build would make.

    Returns:
        Names of the inputs.
    """
    names = []
    for name, input_node in graph.inputs(node).items():
        if input_node in nodes and graph.changes_since_made(input_node):
            names.append(name)
    return names


def _datasets_of_nanosets(config: ProjectConfig, nodes: Iterable[Node]) -> set[str]:
    """Return the datasets that decide what some nanosets read.

    Args:
        config: The settings of nanoset.yaml.
        nodes: The outputs that the build would make. Those of other kinds are ignored.
    """
    datasets: set[str] = set()
    for name in {node.key.subject for node in nodes if node.row.kind == INDEX_MAPPINGS.kind}:
        datasets |= datasets_of_nanoset(config, name)
    return datasets


def _failures_of_empty_views(
    config: ProjectConfig, nodes: Iterable[Node], views: Mapping[str, PlannedView]
) -> Iterator[str]:
    """Yield a line for each nanoset that would fail, since views of its mixture are empty.

    For example, a value of `values: [news, sience]` is misspelt, so that no document has it:

        nanoset pretrain would fail: no tokens in topics-sience, a part of its mixture

    Args:
        config: The settings of nanoset.yaml.
        nodes: The outputs that the build would make.
        views: Views that would be made → what they would choose.
    """
    due_names = {node.key.subject for node in nodes if node.row.kind == INDEX_MAPPINGS.kind}
    for name, nanoset in config.nanosets.items():
        if name not in due_names or nanoset.mixture is None:
            continue
        empty_views = []
        for corpus in nanoset.mixture.corpora:
            if corpus in views and views[corpus].tokens == 0:
                empty_views.append(corpus)
        if empty_views:
            parts = "a part" if len(empty_views) == 1 else "parts"
            names = ", ".join(empty_views)
            yield f"nanoset {name} would fail: no tokens in {names}, {parts} of its mixture"


def _kinds_without_estimate(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the kinds of some outputs whose disk space `disk_need` does not estimate.

    Most of them are small, such as views and index files. For example, of the dataset of `web`, a
    view of it, and the index files of the nanoset `pretrain`: ("nanoset", "view").

    Args:
        nodes: The outputs.

    Returns:
        The kinds, as `nanoset status` calls them, sorted. A kind is left out if only its small
        files are not estimated: the list of files of a corpus, next to its tokens.
    """
    estimated_kinds: set[str] = set()
    other_kinds: set[str] = set()
    for node in nodes:
        kinds = estimated_kinds if isinstance(node.stage, Estimated) else other_kinds
        kinds.add(node.row.kind)
    return tuple(sorted(other_kinds - estimated_kinds))


def _planned_rows(
    rows: Iterable[ExaminedRow],
    due: Collection[Node],
    blocked: Collection[Node],
    label_of: Callable[[Node], str],
) -> Iterator[PlannedRow]:
    """Yield what a dry run of a build prints: the outputs that would be made, and why.

    Outputs that belong together share a row. For example:

        web         stale        1 file added (c.jsonl)             steps: files, tokens, dataset
        news        failing      a.jsonl is not UTF-8               no steps
        headlines   missing      waits for corpus news, which fails no steps
        pretrain    up to date   it is rebuilt, because of --force  steps: index, blend

    Args:
        rows: All outputs of the project, with their states.
        due: The outputs that are to be made.
        blocked: Those of them that cannot be made, because text cannot be read, or because what
            they are made from fails.
        label_of: Returns what the step that makes an output is called.
    """
    for examined_row in rows:
        due_nodes = [node for node in examined_row.nodes if node in due]
        if not due_nodes:
            continue

        # The outputs of a row are made from each other. If one of them cannot be made, none is.
        is_blocked = any(node in blocked for node in due_nodes)
        steps = [] if is_blocked else [label_of(node) for node in due_nodes]

        status = examined_row.row
        yield PlannedRow(
            kind=status.kind,
            name=status.name,
            part=status.part,
            state=status.state,
            why=status.why or (FORCED,),  # if nothing changed, the user has asked for it
            steps=tuple(steps),
        )


def _outputs_of_unreadable_corpora(survey: ProjectSurvey) -> set[Node]:
    """Return the lists of files, tokens and datasets of corpora whose text cannot be read.

    Args:
        survey: The project's outputs, and what was found in the files of each corpus.
    """
    nodes: set[Node] = set()
    for node in survey.graph.nodes():
        if node.row.is_corpus and survey.findings[node.key.subject].failure is not None:
            nodes.add(node)
    return nodes


def _place(project: Project) -> str:
    """Return the folder or URL of the outputs, for messages.

    Args:
        project: The project, whose setting `root` names it.
    """
    place = project.config.root_place
    return str(project.config.root_folder) if place is None else place.url()
