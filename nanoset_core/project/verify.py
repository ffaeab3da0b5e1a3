"""`nanoset verify`: check every output of a project, here or on the workers of a cluster.

A *target* is the outputs of one row of `nanoset status`, which are verified together and give one
report: for example, `pretrain/train` is the index mappings and the blend of this split. On a
cluster, large checks are divided into parts, such as ranges of tokens, which any worker checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import SILENT
from nanoset_core.project.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.verify import verify_raw_folder
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import (
    DividedCheck,
    PartTask,
    Report,
    Run,
    check_part_task,
    run_here,
)
from nanoset_core.stages.stage import (
    BoundToMachine,
    CorpusStage,
    InParts,
    Key,
    Node,
    current_version,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The outputs of one row of `nanoset status`, verified together; it pickles."""

    name: str
    """What it is called in `--select`: web, web/columns, pretrain/train, pretrain/handoff, …"""
    project: Project
    """The project; on a worker, its copy."""
    outputs: tuple[tuple[int, Key], ...]
    """(number of the stage in the registry, key) of each output.

    It has numbers because stages are compared by identity, which they would lose if they were
    pickled.
    """

    @property
    def nodes(self) -> list[Node]:
        """The outputs that are verified, in the order of the pipeline."""
        return [Node(stages()[number], key) for number, key in self.outputs]

    @property
    def is_bound_to_machine(self) -> bool:
        """Whether it can only be verified on this machine, since it has paths of this machine."""
        return any(isinstance(node.stage, BoundToMachine) for node in self.nodes)

    def verify(self, *, deep: bool, run: Run = run_here) -> Report:
        """Verify the outputs, and return one report on all of them.

        Args:
            deep: Whether to read every byte.
            run: Does the large checks, which are divided into parts: in this process, or later on
                other machines.
        """
        reports: list[Report] = []
        for node in self.nodes:
            report = node.stage.verify(self.project, node.key, deep=deep, run=run)
            reports.append(report)
            # If an output was never built, neither were those that are made from it.
            if not report.passed and self._is_missing(node):
                break

        if len(reports) == 1:
            return reports[0]
        # Combine the reports under the name of the row, such as corpora/web.
        row_report = Report(_row_label(self.nodes))
        for report in reports:
            row_report.include(report)
        return row_report

    def _is_missing(self, node: Node) -> bool:
        """Return whether an output has not been built."""
        return not current_version(self.project, node.stage, node.key).exists

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern of `--select` selects these outputs.

        Args:
            pattern: A pattern like those of a shell, such as `pre*`. It is compared with the name
                of the target (`pretrain/train`), with that of its corpus or nanoset (`pretrain`),
                and with this followed by the folder of the outputs (`web/packed`).
        """
        subject = self.name.partition("/")[0]
        name_by_folder = f"{subject}/{self.nodes[-1].stage.layout.folder}"
        names = (self.name, subject, name_by_folder)
        return any(fnmatchcase(name, pattern) for name in names)


def _row_label(nodes: Sequence[Node]) -> str:
    """Return what the report on a row of `nanoset status` is called.

    Args:
        nodes: The outputs of the row, in the order of the pipeline.

    Returns:
        Such as corpora/web, or nanosets/pretrain/train.
    """
    last_node = nodes[-1]
    if isinstance(last_node.stage, CorpusStage):
        folder = "corpora"  # the outputs of a corpus are in several folders: shards, datasets …
    else:
        folder = last_node.stage.layout.folder
    row = last_node.row
    label = f"{folder}/{row.subject}"  # the subject is the name of the corpus, nanoset and so on
    if row.part:  # such as the split `train` of a nanoset
        label = f"{label}/{row.part}"
    return label


def _target_name(node: Node) -> str:
    """Return the name in `--select` of a row of outputs.

    Args:
        node: The last output of the row.

    Returns:
        Such as web for a corpus, pretrain/train for a split of a nanoset, web/columns for the
        columns of a corpus.
    """
    subject, _, _ = node.name.partition("/")  # "pretrain" of the output pretrain/train/blend
    kind = node.row.kind
    if kind in ("corpus", "webdataset"):
        return subject
    if kind == "nanoset":
        return f"{subject}/{node.row.part}"
    return f"{subject}/{kind}"


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List the outputs that nanoset.yaml requests, or those that patterns select.

    Args:
        project: Its nanoset.yaml and raw folder request the outputs.
        select: Patterns of names, such as `web` or `pre*/train`. An empty sequence selects
            everything.

    Returns:
        A target for each row of `nanoset status`, in the order of the rows.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    all_targets = _all_targets(project)
    if not select:
        return all_targets

    selected_names: set[str] = set()
    for pattern in select:
        names = [target.name for target in all_targets if target.matches(pattern)]
        if not names:
            raise _selects_nothing(pattern, all_targets)
        selected_names.update(names)
    return [target for target in all_targets if target.name in selected_names]


def _all_targets(project: Project) -> list[Target]:
    """Return a target for each row of `nanoset status`, whose outputs are verified together.

    For example, the row of the corpus `web` has its inventory, shards and dataset, and is called
    `web`.

    Args:
        project: Its nanoset.yaml and raw folder request the outputs.
    """
    quiet_project = replace(project, progress=SILENT)  # a verification shows no progress
    # Only the names of the outputs matter here, so the graph needs to know nothing of the files.
    graph = Graph(project, known={}, corpora=corpus_names(project))
    all_targets: list[Target] = []
    for row in graph.rows():
        # The stage of a whole output also verifies its parts, such as groups of tars.
        whole_outputs = [node for node in row if not isinstance(node.stage, InParts)]
        # The last output is made from the others, and is the one that users know by its name.
        name = _target_name(whole_outputs[-1])
        # Name stages by their numbers, since workers get pickled copies of the target.
        outputs = tuple((stages().index(node.stage), node.key) for node in whole_outputs)
        all_targets.append(Target(name, quiet_project, outputs))
    return all_targets


def _selects_nothing(pattern: str, all_targets: Sequence[Target]) -> ConfigError:
    """Return the error for a pattern that selects nothing, which lists the existing names.

    Args:
        pattern: The pattern.
        all_targets: All outputs that could have been selected.
    """
    names = [target.name for target in all_targets]  # such as pretrain/train
    subjects = [name.partition("/")[0] for name in names]  # such as pretrain, which also selects
    remedy = "name one of these, or a pattern that some of them match, such as pre*"
    return ConfigError(
        "this selects nothing",
        where="--select",
        found=repr(pattern),
        expected=f"corpora, nanosets or webdatasets: {', '.join(names)}",
        # If a name is similar: did you mean it?
        remedy=remedy_for_name(pattern, [*subjects, *names], remedy),
    )


def verify_output(project: Project, name: str, deep: bool = False) -> Report:
    """Verify the outputs of one row of `nanoset status`, given its name in `--select`.

    Args:
        project: The project, whose nanoset.yaml must request the outputs.
        name: The exact name, such as web, web/columns or pretrain/train.
        deep: Whether to read every byte.

    Raises:
        ConfigError: nanoset.yaml requests no such outputs.
    """
    # As a pattern, the name may also select other rows: `web` selects `web` and `web/columns`.
    selected = targets(project, [name])
    (target,) = [target for target in selected if target.name == name]
    return target.verify(deep=deep)


def verify_project(
    project: Project, select: Sequence[str] = (), deep: bool = False
) -> Iterator[Report]:
    """Verify the outputs of a project, and yield a report on each row of `nanoset status`.

    Args:
        project: The project. If it has an executor, such as a Dask cluster, a deep verification
            runs there, and verifies outputs in parallel.
        select: Patterns of names, such as `web` or `pre*/train`. An empty sequence selects
            everything.
        deep: Whether to read every byte.

    Yields:
        The reports, in the order of the rows. Without a selection, the first one lists files in the
        raw folder that are not read, if any.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    if not select:
        report_on_raw_folder = verify_raw_folder(project)
        if report_on_raw_folder.findings:
            yield report_on_raw_folder

    # For outputs in a bucket, show its address in place of the folder with local copies.
    access = project.outputs.access
    address = access.url(access.folder)
    for report in _reports(project, targets(project, select), deep=deep):
        yield report.with_places(access.folder, address)


def _reports(project: Project, chosen: Sequence[Target], *, deep: bool) -> Iterator[Report]:
    """Verify outputs on the cluster of a project, or here as soon as each report is requested.

    Args:
        project: The project, which may have a cluster.
        chosen: The outputs.
        deep: Whether to read every byte. Only that is worth a cluster.
    """
    if deep and project.executor is not None:
        return verify_by(project.executor, chosen)
    return (target.verify(deep=deep) for target in chosen)


@dataclass(slots=True)
class _DeferredCheck:
    """A divided check of one output, which the executor does later, and its outcomes so far."""

    output: str
    """Path of the output below the root, such as datasets/web."""
    check: DividedCheck
    """The check and its parts."""
    outcomes: dict[int, Any] = field(default_factory=dict)
    """Number of each part that is done → its outcome."""

    @property
    def is_complete(self) -> bool:
        """Whether all parts are done."""
        return len(self.outcomes) == len(self.check.parts)

    def report(self) -> Report:
        """Return the report on all parts, and forget their outcomes, which may be large."""
        outcomes = [self.outcomes.pop(number) for number in range(len(self.check.parts))]
        report = Report(self.output)
        self.check.conclude(report, outcomes)
        return report


class _PartialReport(NamedTuple):
    """A report on a target that still lacks the outcomes of divided checks; it pickles."""

    report: Report
    """The findings so far."""
    deferred_checks: list[_DeferredCheck]
    """The divided checks."""


class _PartOfCheck(NamedTuple):
    """One part of a deferred check."""

    deferred: _DeferredCheck
    """The check, which gets the outcome."""
    number: int
    """Number of the part."""

    @property
    def task(self) -> PartTask:
        """The task of checking this part, for `check_part_task`."""
        check = self.deferred.check
        return PartTask(check.check_part, check.project, check.parts[self.number])


def verify_by(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Verify targets deeply on the workers of an executor, such as a cluster.

    A large check of an output, such as comparing all of its tokens, is divided into parts. So the
    work has two rounds:

    1. A task verifies one target, but leaves out the checks that are divided into parts.
    2. A task checks one part, of any target. All workers are busy until the end, even if one target
       is much larger than the others.

    Args:
        executor: Runs tasks in other processes.
        chosen: The targets.

    Yields:
        The report on each target, in their order, as soon as it is complete.
    """
    partial_reports = _verify_without_parts(executor, chosen)
    parts = _parts_of_checks(partial_reports)
    # Yields (position in the list of parts, outcome), in the order in which the tasks end.
    outcomes = executor.run(check_part_task, (part.task for part in parts))

    for partial in partial_reports:
        for deferred in partial.deferred_checks:
            # Take outcomes, also of later checks, until all parts of this check are done.
            while not deferred.is_complete:
                position, outcome = next(outcomes)
                part = parts[position]
                part.deferred.outcomes[part.number] = outcome
            partial.report.include(deferred.report())
        yield partial.report

    # All outcomes were taken. Asking for another one lets the executor end the run.
    next(outcomes, None)


def _parts_of_checks(partial_reports: Iterable[_PartialReport]) -> list[_PartOfCheck]:
    """Return all parts of the checks that reports still lack, in the order of the reports.

    Args:
        partial_reports: The reports, each with its deferred checks.
    """
    parts: list[_PartOfCheck] = []
    for partial in partial_reports:
        for deferred in partial.deferred_checks:
            n_parts = len(deferred.check.parts)
            parts += [_PartOfCheck(deferred, number) for number in range(n_parts)]
    return parts


def _verify_without_parts(executor: Executor, chosen: Sequence[Target]) -> list[_PartialReport]:
    """Verify targets, but leave out the checks that are divided into parts.

    Args:
        executor: Runs tasks in other processes, such as workers of a cluster.
        chosen: The targets. All must be verified deeply: every byte is read.

    Returns:
        The reports so far, in the order of the targets. Each has a list of the checks that were
        left out.
    """
    # The files of some outputs contain paths of this machine, which workers may not see. Verify
    # these outputs here, completely: nothing is left out.
    report_by_number: dict[int, _PartialReport] = {}
    numbers_for_workers: list[int] = []
    for number, target in enumerate(chosen):
        if target.is_bound_to_machine:
            complete_report = target.verify(deep=True)
            report_by_number[number] = _PartialReport(complete_report, deferred_checks=[])
        else:
            numbers_for_workers.append(number)

    # Workers verify the others. Their results come in any order.
    tasks = [chosen[number] for number in numbers_for_workers]
    for task_number, partial in executor.run(_verify_target_without_parts, tasks):
        report_by_number[numbers_for_workers[task_number]] = partial
    return [report_by_number[number] for number in range(len(chosen))]


def _verify_target_without_parts(target: Target) -> _PartialReport:
    """Verify a target in a worker process, but leave out the checks that are divided into parts.

    Args:
        target: The outputs of one row of `nanoset status`.

    Returns:
        The findings so far, and the checks that were left out. Workers do their parts later, in
        parallel.
    """
    deferred_checks: list[_DeferredCheck] = []

    def defer(report: Report, check: DividedCheck) -> None:
        """Note a check for later, instead of doing it now."""
        # Its project has the paths of this worker, which mean nothing to the workers that will do
        # the parts. Give it the original project. (Some checks need no project.)
        if check.project is not None:
            check = replace(check, project=target.project)
        deferred_checks.append(_DeferredCheck(report.output, check))

    # `verify` calls `defer` in place of doing a divided check.
    with target.project.in_task() as project_of_worker:
        target_of_worker = replace(target, project=project_of_worker)
        report = target_of_worker.verify(deep=True, run=defer)
    return _PartialReport(report, deferred_checks)
