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

from nanoset_core.errors import ConfigError, NanosetError, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import SILENT
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.permission import check_built_is_allowed
from nanoset_core.project.project import Project
from nanoset_core.stages.check_records import record_outcome
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.verify import verify_raw_folder
from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS
from nanoset_core.stages.report import (
    BUILD,
    CheckRunner,
    DividedCheck,
    PartTask,
    Report,
    check_part_task,
    run_here,
)
from nanoset_core.stages.stage import (
    BoundToMachine,
    InParts,
    Node,
    current_version,
)
from nanoset_core.stages.webdataset.stage import WEBDATASET


@dataclass(frozen=True, slots=True)
class Target:
    """The outputs of one row of `nanoset status`, verified together; it pickles, for workers."""

    name: str
    """What it is called in `--select`: web, web/columns, pretrain/train, pretrain/handoff, …"""
    project: Project
    """The project; on a worker, its copy."""
    nodes: tuple[Node, ...]
    """The outputs that are verified, in the order of the pipeline."""
    parts: tuple[Node, ...] = ()
    """Outputs that are only parts of these, such as groups of tars. They are verified with the
    outputs whose parts they are.
    """

    @staticmethod
    def of(project: Project, row: Iterable[Node]) -> Target:
        """Return the target of the outputs of one row of `nanoset status`.

        Args:
            project: The project.
            row: The outputs, in the order of the pipeline.
        """
        nodes: list[Node] = []
        parts: list[Node] = []
        for node in row:
            members = parts if isinstance(node.stage, InParts) else nodes
            members.append(node)
        # The last output is made from the others, and gives them the name.
        name = target_name(nodes[-1])
        return Target(name, project, tuple(nodes), tuple(parts))

    @property
    def is_bound_to_machine(self) -> bool:
        """Whether it can only be verified on this machine, since it has paths of this machine."""
        return any(isinstance(node.stage, BoundToMachine) for node in self.nodes)

    def verify(self, *, deep: bool, run: CheckRunner = run_here) -> Report:
        """Check outputs that belong together, and return one report on what is wrong with them.

        For example, those of a text collection are the list of its files, its tokens, and its
        dataset.

        Args:
            deep: Whether to read every byte. Otherwise, sizes and samples are checked.
            run: What to do with checks that take long: do them now, or note them for other
                machines.
        """
        reports: list[Report] = []
        for node in self.nodes:
            report = self._verify_node(node, deep=deep, run=run)
            reports.append(report)
            # The next outputs are made from this one. If it was never built, they were not either,
            # and one error is enough.
            if not report.passed and self._is_missing(node):
                break

        if len(reports) == 1:
            return reports[0]
        combined_report = Report(_row_label(self.nodes))
        for report in reports:
            combined_report.include(report)
        return combined_report

    def _verify_node(self, node: Node, *, deep: bool, run: CheckRunner) -> Report:
        """Check one output, and that the settings, which may have been changed, still allow it.

        Args:
            node: The output. Its stage is the code that made it.
            deep: Whether to read every byte.
            run: What to do with checks that take long.
        """
        report = node.stage.verify(self.project, node.key, deep=deep, run=run)
        self._check_link(node, report)
        with report.catching():
            check_built_is_allowed(self.project, node)
        return report

    def _check_link(self, node: Node, report: Report) -> None:
        """Check that the link `current` leads to the current version of an output.

        Args:
            node: The output.
            report: The report on it, to which an error is added if the link is wrong.
        """
        outputs = self.project.outputs
        if outputs.access.takes_requests:
            return  # a bucket has no links
        manifest = current_version(self.project, node.stage, node.key).manifest
        if manifest is None:
            return  # other checks report this
        with report.catching(remedy=BUILD):
            outputs.check_link(manifest)

    def record_outcome(self, report: Report, failed_checks: FailedChecks, *, deep: bool) -> None:
        """Record errors below the root, or remove the records of errors that were fixed.

        As long as an error is recorded, builds use nothing of the output, and repair it.

        Args:
            report: The report on the outputs. If the outcome cannot be recorded, for example
                because the root is read-only for this user, a warning is added. If a part fails its
                own check again, its errors are added.
            failed_checks: The records of all outputs.
            deep: Whether every byte was read.
        """
        try:
            if report.passed:
                self._record_success(report, failed_checks, deep=deep)
            else:
                self._record_failure(report, deep=deep)
        except (NanosetError, OSError) as error:
            report.warn(
                "this result cannot be recorded, so `nanoset status` and builds do not know it",
                found=error,
                remedy="let a user verify it who may write to the root",
            )

    def _record_success(self, report: Report, failed_checks: FailedChecks, *, deep: bool) -> None:
        """Remove the records of earlier checks that failed, since all outputs have passed now.

        Args:
            report: The report on the outputs, to which the errors of a part are added.
            failed_checks: The records of all outputs.
            deep: Whether every byte was read.
        """
        for node in [*self.nodes, *self.parts]:
            has_failed = failed_checks.includes_output(node.stage.layout.folder, node.name)
            if not has_failed or not self._passes_again(node, report):
                continue
            passed = Report(node.stage.report_name(node.key))
            is_still_recorded = record_outcome(self.project, node, passed, is_deep=deep)
            if is_still_recorded:
                report.warn(
                    "an earlier deep check has found an error, which this quick check may miss",
                    where=node.stage.report_name(node.key),
                    remedy=f"{BUILD}, which makes it again; or run `nanoset verify --deep`",
                )

    def _record_failure(self, report: Report, *, deep: bool) -> None:
        """Record which outputs have errors, so that the next build makes them again.

        Errors are not recorded if another output may be wrong instead: from a damaged dataset, the
        build would make wrong tars, for example.

        Args:
            report: The report on the outputs. Each error names the output that has it.
            deep: Whether every byte was read.
        """
        for node in self.nodes:
            name = node.stage.report_name(node.key)
            errors = [error for error in report.errors if error.output == name and error.is_certain]
            report_on_node = Report(name, errors)
            is_recorded = record_outcome(self.project, node, report_on_node, is_deep=deep)
            if is_recorded and node == self.nodes[-1]:
                self._record_failure_of_parts(report_on_node, deep=deep)

    def _record_failure_of_parts(self, report: Report, *, deep: bool) -> None:
        """Record which parts of a damaged output have to be made again, such as groups of tars.

        The check of a part is quick. If no part fails it, any of them may have the damage, so all
        are recorded.

        Args:
            report: The report on the whole output, which has an error.
            deep: Whether every byte was read.
        """
        report_by_part = {}
        for part in self.parts:
            report_by_part[part] = part.stage.verify(self.project, part.key)
        is_located = any(part_report.has_damage for part_report in report_by_part.values())
        for part, part_report in report_by_part.items():
            if not is_located:
                record_outcome(self.project, part, report, is_deep=deep)
            elif part_report.has_damage:
                record_outcome(self.project, part, part_report, is_deep=False)

    def _passes_again(self, node: Node, report: Report) -> bool:
        """Return whether an output that failed a check earlier is certainly fine now.

        Only a part of an output is checked once more, such as a group of tars. A quick check of all
        tars opens only some of them, and the damaged tar may not be among these.

        Args:
            node: The output, which has passed the present check.
            report: The report on it, to which the errors of a part are added.
        """
        if not isinstance(node.stage, InParts):
            return True
        part_report = node.stage.verify(self.project, node.key)
        if not part_report.passed:
            report.findings.extend(part_report.findings)
        return part_report.passed

    def _is_missing(self, node: Node) -> bool:
        """Return whether an output has not been built."""
        return not current_version(self.project, node.stage, node.key).is_built

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern selects these outputs, as in `nanoset verify --select 'pre*'`.

        For the training data of a mixture of texts named `pretrain`, these patterns do:

            pretrain/train       the name
            pretrain             the first part of the name
            pretrain/nanosets    the first part, and the folder of the outputs
            pre*                 a pattern for one of these

        A view `clean` of `web` is also selected by `web/views` and `web/clean`, as in a build.

        Users may also copy a name from the table of `nanoset verify`, such as views/clean. Patterns
        of such names begin with the whole folder, as in `views/*`: so `web*` selects outputs whose
        names begin with `web`, and not all `webdatasets`.

        Args:
            pattern: The pattern, with `*` for any text.
        """
        if any(fnmatchcase(name, pattern) for name in self._selectable_names()):
            return True
        for name in self._report_names():
            folder, _, _ = name.partition("/")
            if pattern.startswith(f"{folder}/") and fnmatchcase(name, pattern):
                return True
        return False

    def _report_names(self) -> list[str]:
        """Return the names that the report on these outputs may have.

        The outputs of a text collection have a report in common, "corpora/web". If the first of
        them is missing, only this one is reported: "inventories/web".
        """
        names = [node.stage.report_name(node.key) for node in self.nodes]
        return [_row_label(self.nodes), *names]

    def _selectable_names(self) -> list[str]:
        """Return the names by which users may select these outputs. For example:

            training data    pretrain/train, pretrain, pretrain/nanosets
            a view           clean, clean/views, web/views, web/clean

        Here, `nanosets` and `views` are the folders of the outputs, and web is the text collection
        that the view `clean` selects from.
        """
        last_node = self.nodes[-1]  # the others are only made on the way to this one
        folder = last_node.stage.layout.folder
        first_part = self.name.partition("/")[0]  # "pretrain" or "clean"
        names = [self.name, first_part, f"{first_part}/{folder}"]

        is_view_or_similar = last_node.stage.layout.is_named_by_part
        if is_view_or_similar:
            corpus = last_node.key.subject
            view = last_node.key.part
            names += [f"{corpus}/{folder}", f"{corpus}/{view}"]
        return names


def _row_label(nodes: Sequence[Node]) -> str:
    """Return the name of a report on several outputs that belong together.

    It looks like a path: "corpora/web" for the outputs of the text collection `web`, and
    "nanosets/pretrain/train" for those of a training.

    Args:
        nodes: The outputs, in the order in which they are made from each other.
    """
    last_node = nodes[-1]
    row = last_node.row  # what `nanoset status` shows of these outputs
    if row.is_corpus:
        folder = "corpora"  # there is no such folder: each of these outputs is in another one
    else:
        folder = last_node.stage.layout.folder  # such as nanosets
    label = f"{folder}/{row.subject}"  # such as nanosets/pretrain
    if row.part:
        label = f"{label}/{row.part}"  # nanosets/pretrain/train
    return label


def target_name(node: Node) -> str:
    """Return the name by which users select an output, as in `nanoset verify --select web`.

        web               a text collection (corpus), or a set of tars (webdataset)
        web/columns       the columns of this collection
        clean/view        a selection of its documents
        pretrain/train    the training data of a mixture of texts (nanoset)

    Args:
        node: The output.
    """
    subject, _, _ = node.name.partition("/")  # "pretrain" of pretrain/train/blend
    row = node.row  # what `nanoset status` shows of the output
    if row.is_corpus or row.kind == WEBDATASET.kind:
        return subject
    if row.kind == INDEX_MAPPINGS.kind:
        return f"{subject}/{row.part}"
    return f"{subject}/{row.kind}"


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List what `nanoset verify` checks: all outputs of a project, or those that the user selects.

    For example, `--select 'pre*/train'` selects `pretrain/train`, the training data of a mixture of
    texts, and `--select web` selects the text collection `web` and its columns.

    Args:
        project: The project, whose nanoset.yaml and folder of raw text request outputs.
        select: Patterns of names. An empty sequence selects everything.

    Returns:
        A target for each name: outputs that are checked together, such as the tokenized pieces and
        the dataset of `web`.

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
    """Return everything that `nanoset verify` can check, grouped as `nanoset status` shows it.

    Args:
        project: The project, whose nanoset.yaml and folder of raw text request the outputs.

    Returns:
        Groups of outputs, called targets, such as the list of files, the tokens and the dataset of
        the text collection `web`.
    """
    graph = Graph(project, known={}, corpora=corpus_names(project))  # all outputs
    quiet_project = replace(project, progress=SILENT)  # a check shows no progress
    all_targets: list[Target] = []
    for row in graph.rows():
        all_targets.append(Target.of(quiet_project, row))
    return all_targets


def _selects_nothing(pattern: str, all_targets: Sequence[Target]) -> ConfigError:
    """Return the error for a pattern of `nanoset verify --select` that selects nothing.

    It lists the names that exist. If one is similar, it asks, such as for `pretrian`: "did you mean
    pretrain?"

    Args:
        pattern: The pattern, such as pretrian or pre*/tain.
        all_targets: Everything that could have been selected.
    """
    names = [target.name for target in all_targets]  # such as pretrain/train, pretrain/valid
    first_names = [name.partition("/")[0] for name in names]  # pretrain, which selects both
    remedy = "name one of these, or a pattern that some of them match, such as pre*"
    return ConfigError(
        "this selects nothing",
        where="--select",
        found=repr(pattern),
        expected=f"corpora, nanosets or webdatasets: {', '.join(names)}",
        # A question with the similar name, or `remedy` if none is similar.
        remedy=remedy_for_name(pattern, [*first_names, *names], remedy),
    )


def verify_project(
    project: Project, select: Sequence[str] = (), deep: bool = False
) -> Iterator[Report]:
    """Check all outputs of a project, or some: the command `nanoset verify`.

    For example, this finds files that are missing, or that somebody changed.

    Args:
        project: The project. If it has a cluster, a deep check runs there, in parallel.
        select: Patterns of names, such as `web` (a text collection) or `pre*/train` (the training
            data of mixtures). An empty sequence selects everything.
        deep: Whether to read every byte. Otherwise, sizes and samples are checked.

    Yields:
        A report on each output that users know by a name. If everything is checked, the first
        report lists files in the folder of raw text that nothing reads, if there are any.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    if not select:
        raw_folder_report = verify_raw_folder(project)
        if raw_folder_report.findings:
            yield raw_folder_report

    # If the outputs are in a bucket, reports name local copies of files, such as
    # /home/me/outputs/web.bin. Replace that by the address s3://bucket/outputs/web.bin.
    access = project.outputs.access
    address = access.url(access.folder)
    chosen = targets(project, select)
    failed_checks = FailedChecks.read(project.outputs)  # usually none
    for target, report in zip(chosen, _reports(project, chosen, deep=deep), strict=True):
        target.record_outcome(report, failed_checks, deep=deep)
        yield report.with_places(access.folder, address)


def _reports(project: Project, chosen: Sequence[Target], *, deep: bool) -> Iterator[Report]:
    """Check outputs one after another here, or in parallel on a cluster if the project has one.

    Reading every byte is worth a cluster. Quick checks are always done here, and each only when the
    caller asks for its report.

    Args:
        project: The project.
        chosen: What to check.
        deep: Whether to read every byte.
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
    """Check outputs on the workers of a cluster, reading every byte.

    One output may be much larger than all others. If one worker checked it alone, the others would
    wait. So large checks, such as to compare all tokens of a dataset, are divided into parts. For
    example, with the outputs `web` (large) and `code`:

        round 1    one task for `web` and one for `code`: do small checks, list parts of large ones
        round 2    a task for each part: parts 0, 1 and 2 of `web`, and part 0 of `code`

    In round 2, the parts are done in any order. This waits for the parts of `web`:

        outcome of      web 2    code 0             web 0    web 1
        what is done    note     note for `code`    note     note, and yield the report on `web`

    Args:
        executor: Runs tasks on the workers.
        chosen: What to check. A target is several outputs that belong together.

    Yields:
        The report on each target, in their order, as soon as it is complete.
    """
    # Round 1. There is a report on each target, with a list of the large checks that it still lacks
    # (deferred checks).
    partial_reports = _verify_without_parts(executor, chosen)

    # Round 2. Put the parts of all checks into one list: [web 0, web 1, web 2, code 0]. `outcomes`
    # yields the outcome of each as soon as a worker has done it, with its position in this list.
    parts = _parts_of_checks(partial_reports)
    outcomes = executor.run(check_part_task, (part.task for part in parts))
    for partial in partial_reports:
        for deferred in partial.deferred_checks:
            # Wait until all parts of this check are done. Outcomes of other checks, which arrive
            # meanwhile, are noted with their own check, so that it may be complete already when its
            # turn comes.
            while not deferred.is_complete:
                position, outcome = next(outcomes)
                part = parts[position]
                part.deferred.outcomes[part.number] = outcome
            partial.report.include(deferred.report())
        yield partial.report

    # All outcomes have arrived. Asking for another one lets the executor end.
    next(outcomes, None)


def _parts_of_checks(partial_reports: Iterable[_PartialReport]) -> list[_PartOfCheck]:
    """Return the parts of all large checks that still have to be done, in the order of the reports.

    For example, comparing all tokens of a dataset is divided into 3 parts, and of another into 2.
    The result has 5 parts, which workers do in parallel.

    Args:
        partial_reports: The reports so far, each with the checks that it still lacks.
    """
    parts: list[_PartOfCheck] = []
    for partial in partial_reports:
        for deferred in partial.deferred_checks:
            n_parts = len(deferred.check.parts)
            parts += [_PartOfCheck(deferred, number) for number in range(n_parts)]
    return parts


def _verify_without_parts(executor: Executor, chosen: Sequence[Target]) -> list[_PartialReport]:
    """Check outputs on the workers of a cluster, except for checks that take long.

    Those are only noted. Later, each is divided into parts, so that many workers share it.

    Args:
        executor: Runs tasks on the workers.
        chosen: What to check. A target is several outputs that belong together.

    Returns:
        For each target, in their order, the report so far, and the checks that it still lacks.
    """
    report_by_number = _verify_bound_to_machine(chosen)
    numbers_for_workers = [n for n in range(len(chosen)) if n not in report_by_number]

    # Task 0 is the first target for the workers, and so on. Results come in any order.
    tasks = [chosen[number] for number in numbers_for_workers]
    for task_number, partial in executor.run(_verify_target_without_parts, tasks):
        report_by_number[numbers_for_workers[task_number]] = partial
    return [report_by_number[number] for number in range(len(chosen))]


def _verify_bound_to_machine(chosen: Sequence[Target]) -> dict[int, _PartialReport]:
    """Check outputs whose files contain paths of this machine, which workers may not see.

    Args:
        chosen: All outputs to check. Others are left out.

    Returns:
        Place of each such output in `chosen` → its report, which lacks nothing.
    """
    report_by_number: dict[int, _PartialReport] = {}
    for number, target in enumerate(chosen):
        if target.is_bound_to_machine:
            report = target.verify(deep=True)
            report_by_number[number] = _PartialReport(report, deferred_checks=[])
    return report_by_number


def _verify_target_without_parts(target: Target) -> _PartialReport:
    """Check outputs on a worker of a cluster, but only note the checks that take long.

    A check such as comparing all tokens of a dataset is divided into parts. Later, the parts are
    sent to several workers. For example, for a text collection:

        list of its files    checked here
        dataset              sizes are checked here; "compare all tokens" is noted

    Args:
        target: Some outputs that belong together.

    Returns:
        The report so far, and the checks that it still lacks.
    """
    deferred_checks: list[_DeferredCheck] = []

    def note(report: Report, check: DividedCheck) -> None:
        """Note a check that takes long, instead of doing it: called by `verify`."""
        portable_check = _for_other_workers(check, target.project)
        deferred_checks.append(_DeferredCheck(report.output, portable_check))

    # A worker may have its own copies of files. `in_task` yields the project with their paths.
    with target.project.in_task() as project_of_worker:
        target_of_worker = replace(target, project=project_of_worker)
        report = target_of_worker.verify(deep=True, run=note)
    return _PartialReport(report, deferred_checks)


def _for_other_workers(check: DividedCheck, project: Project) -> DividedCheck:
    """Return a check that any worker can do, without paths that exist only on this one.

    Args:
        check: The check. If it needs files, it has the project with the paths of this worker.
        project: The project with paths that are the same for all workers.
    """
    if check.project is None:
        return check
    return replace(check, project=project)
