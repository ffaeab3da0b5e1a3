"""`nanoset verify`: check every output of a project, here or on the workers of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import silent
from nanoset_core.project.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.verify import verify_raw_folder
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import Parts, PartTask, Report, Run, look_at, run_here
from nanoset_core.stages.stage import (
    BoundToMachine,
    CorpusStage,
    InParts,
    Key,
    Node,
    current_version,
)

_PLAIN_KINDS = ("corpus", "webdataset")
"""Kinds of rows that are selected by the name of their subject alone."""


@dataclass(frozen=True, slots=True)
class Target:
    """The outputs of one row of `nanoset status`, verified together; it pickles."""

    name: str
    """What it is called in `--select`: web, web/columns, pretrain/train, pretrain/handoff, …"""
    project: Project
    outputs: tuple[tuple[int, Key], ...]
    """(number of the stage in the registry, key) of each output."""

    @property
    def nodes(self) -> list[Node]:
        """The outputs that are verified, in the order of the pipeline."""
        return [Node(stages()[number], key) for number, key in self.outputs]

    @property
    def is_bound_to_machine(self) -> bool:
        """Whether it can only be verified on this machine."""
        return any(isinstance(node.stage, BoundToMachine) for node in self.nodes)

    def verify(self, deep: bool, run: Run = run_here) -> Report:
        """Verify the outputs, and return one report on all of them.

        Args:
            deep: Whether to read every byte.
            run: Does deep work that can be done in parts, here or elsewhere.
        """
        reports: list[Report] = []
        for node in self.nodes:
            report = node.stage.verify(self.project, node.key, deep=deep, run=run)
            reports.append(report)
            if not report.passed and self._is_missing(node):
                break  # later outputs of the row are missing as well: one error is enough

        if len(reports) == 1:
            return reports[0]
        whole = Report(_row_label(self.nodes))
        for report in reports:
            whole.include(report)
        return whole

    def _is_missing(self, node: Node) -> bool:
        return not current_version(self.project, node.stage, node.key).exists

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern selects it or what it belongs to.

        Examples of patterns: `web`, `pretrain/train`, `pre*`, `web/packed`.
        """
        subject = self.name.partition("/")[0]
        by_folder = f"{subject}/{self.nodes[-1].stage.layout.folder}"
        return any(fnmatchcase(name, pattern) for name in (self.name, subject, by_folder))


def _row_label(nodes: Sequence[Node]) -> str:
    """Return what the report on several outputs is called, such as corpora/web."""
    stage = nodes[-1].stage
    folder = "corpora" if isinstance(stage, CorpusStage) else stage.layout.folder
    row = nodes[-1].row
    label = f"{folder}/{row.subject}"
    return f"{label}/{row.part}" if row.part else label


def _target_name(node: Node) -> str:
    """Return what a row of outputs is called in `--select`, such as web, web/columns or
    pretrain/train.
    """
    subject = node.name.partition("/")[0]
    if node.row.kind in _PLAIN_KINDS:
        return subject
    if node.row.kind == "nanoset":
        return f"{subject}/{node.row.part}"
    return f"{subject}/{node.row.kind}"


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List everything that nanoset.yaml requests, or what patterns select.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    # Targets are sent to other machines; a listener cannot be.
    quiet_project = replace(project, listener=silent)
    stage_numbers = {stage: number for number, stage in enumerate(stages())}
    all_targets: list[Target] = []
    for row in Graph(project, {}, corpus_names(project)).rows():
        # Parts are verified with the output that they belong to.
        nodes = [node for node in row if not isinstance(node.stage, InParts)]
        outputs = tuple((stage_numbers[node.stage], node.key) for node in nodes)
        all_targets.append(Target(_target_name(nodes[-1]), quiet_project, outputs))
    if not select:
        return all_targets

    selected_names: set[str] = set()
    for pattern in select:
        names = [target.name for target in all_targets if target.matches(pattern)]
        if not names:
            raise _selects_nothing(pattern, all_targets)
        selected_names.update(names)
    return [target for target in all_targets if target.name in selected_names]


def _selects_nothing(pattern: str, all_targets: Sequence[Target]) -> ConfigError:
    names = [target.name for target in all_targets]
    subjects = [name.partition("/")[0] for name in names]
    remedy = "name one of these, or a pattern that some of them match, such as pre*"
    return ConfigError(
        "this selects nothing",
        where="--select",
        found=repr(pattern),
        expected=f"corpora, nanosets or webdatasets: {', '.join(names)}",
        remedy=remedy_for_name(pattern, [*subjects, *names], remedy),
    )


def verify_output(project: Project, name: str, deep: bool = False) -> Report:
    """Verify the outputs that are called `name` in `--select`, such as web, web/columns or
    pretrain/train.

    Raises:
        ConfigError: nanoset.yaml requests no such outputs.
    """
    (target,) = [target for target in targets(project, [name]) if target.name == name]
    return target.verify(deep)


def verify_project(
    project: Project, select: Sequence[str] = (), deep: bool = False
) -> Iterator[Report]:
    """Verify the outputs of a project; yield a report on each row of `nanoset status`.

    If the project has an executor, a deep verification runs there, and verifies outputs in
    parallel. If everything is verified, the first report lists what the raw folder holds that is
    not read; if there is nothing, this report is left out.
    """
    if not select:
        unread = verify_raw_folder(project)
        if unread.findings:
            yield unread

    chosen = targets(project, select)
    executor = project.executor
    if deep and executor is not None:
        reports: Iterator[Report] = verify_by(executor, chosen)
    else:
        reports = (target.verify(deep) for target in chosen)
    access = project.outputs.access
    for report in reports:
        yield report.with_places(access.folder, access.url(access.folder))


@dataclass(slots=True)
class _DeferredWork:
    """Deep work on one output, done by the executor in parts, and the outcomes so far."""

    output: str
    """What the report is about, such as datasets/web."""
    parts: Parts
    outcomes: dict[int, Any] = field(default_factory=dict)
    """Number of each part that is done → its outcome."""

    @property
    def is_complete(self) -> bool:
        """Whether all parts are done."""
        return len(self.outcomes) == len(self.parts.parts)

    def report(self) -> Report:
        """Return the report on all parts, and forget their outcomes, which may be large."""
        outcomes = [self.outcomes.pop(number) for number in range(len(self.parts.parts))]
        report = Report(self.output)
        self.parts.note(report, outcomes)
        return report


class _PartialReport(NamedTuple):
    """The report on a target, except for work that is done in parts; it pickles."""

    report: Report
    deferred: list[_DeferredWork]


def verify_by(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Verify targets deeply by an executor; yield the reports in the order of the targets.

    The work has two rounds. In the first, a task verifies one target, and puts off whatever can be
    done in parts. In the second, a task is one such part of any target, so that all workers are
    busy even if one target is much larger than the others.
    """
    partial_reports = _verify_without_parts(executor, chosen)

    # One run for the parts of all targets. `owners` says for each task whose part it is.
    all_deferred: list[_DeferredWork] = []
    for partial in partial_reports:
        all_deferred += partial.deferred
    owners: list[tuple[_DeferredWork, int]] = []
    for work in all_deferred:
        owners += [(work, number) for number in range(len(work.parts.parts))]
    results = executor.run(look_at, _part_tasks(all_deferred))

    # Parts end in any order: take results until the next target is complete.
    while partial_reports:
        partial = partial_reports.popleft()
        for work in partial.deferred:
            while not work.is_complete:
                task, outcome = next(results)
                owner, number = owners[task]
                owner.outcomes[number] = outcome
            partial.report.include(work.report())
        yield partial.report
    next(results, None)  # all results were taken: this lets the executor end the run


def _verify_without_parts(executor: Executor, chosen: Sequence[Target]) -> deque[_PartialReport]:
    """Verify targets, except for what can be done in parts; return the reports in their order."""
    by_number: dict[int, _PartialReport] = {}
    numbers_for_workers: list[int] = []
    for number, target in enumerate(chosen):
        if target.is_bound_to_machine:
            by_number[number] = _PartialReport(target.verify(True), [])
        else:
            numbers_for_workers.append(number)

    tasks = [chosen[number] for number in numbers_for_workers]
    for task, partial in executor.run(_verify_target_without_parts, tasks):
        by_number[numbers_for_workers[task]] = partial
    return deque(by_number[number] for number in range(len(chosen)))


def _verify_target_without_parts(target: Target) -> _PartialReport:
    """Verify a target in a worker, and return the work that can be done in parts."""
    deferred: list[_DeferredWork] = []

    def defer(report: Report, parts: Parts) -> None:
        # The worker's copy of the project ends with this task: other workers make their own.
        if parts.project is not None:
            parts = replace(parts, project=target.project)
        deferred.append(_DeferredWork(report.output, parts))

    with target.project.in_task() as project:
        report = replace(target, project=project).verify(True, defer)
    return _PartialReport(report, deferred)


def _part_tasks(
    all_deferred: Sequence[_DeferredWork],
) -> Iterator[PartTask]:
    """Yield a task for each part of deferred work, as `look_at` takes it."""
    for work in all_deferred:
        for part in work.parts.parts:
            yield PartTask(work.parts.look, work.parts.project, part)
