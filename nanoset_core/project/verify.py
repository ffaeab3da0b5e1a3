"""`nanoset verify`: check every output of a project, here or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import silent
from nanoset_core.project.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.verify import verify_raw_folder
from nanoset_core.stages.registry import stages
from nanoset_core.stages.report import Parts, Report, Run, look_at, run_here
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
        """Verify the outputs; `run` has the parts of deep work done, here or elsewhere."""
        reports: list[Report] = []
        for node in self.nodes:
            report = node.stage.verify(self.project, node.key, deep=deep, run=run)
            reports.append(report)
            if not report.passed and self._is_missing(node):
                break  # of what is not built, the first output is named alone

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
    """Return what the report on several outputs is called, such as corpora/web or
    mapping/pretrain/train.
    """
    _, subject, part = nodes[-1].row
    folder = (
        "corpora" if isinstance(nodes[-1].stage, CorpusStage) else nodes[-1].stage.layout.folder
    )
    return "/".join(filter(None, (folder, subject, part)))


def _target_name(node: Node) -> str:
    kind, _, part = node.row
    first = node.name.partition("/")[0]
    if kind in _PLAIN_KINDS:
        return first
    return f"{first}/{part}" if kind == "nanoset" else f"{first}/{kind}"


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List everything that nanoset.yaml requests, or what patterns select.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    # targets are sent to other machines, which a listener cannot be
    quiet = replace(project, listener=silent)
    number_of = {stage: number for number, stage in enumerate(stages())}
    listed: list[Target] = []
    for row in Graph(project, {}, corpus_names(project)).rows():
        # Parts are verified with the output that they belong to.
        nodes = [node for node in row if not isinstance(node.stage, InParts)]
        outputs = tuple((number_of[node.stage], node.key) for node in nodes)
        listed.append(Target(_target_name(nodes[-1]), quiet, outputs))

    for pattern in select:
        if not any(target.matches(pattern) for target in listed):
            names = [target.name for target in listed]
            subjects = [name.partition("/")[0] for name in names]
            remedy = "name one of these, or a pattern that some of them match, such as pre*"
            raise ConfigError(
                "this selects nothing",
                where="--select",
                found=repr(pattern),
                expected=f"corpora, nanosets or webdatasets: {', '.join(names)}",
                remedy=remedy_for_name(pattern, [*subjects, *names], remedy),
            )
    if not select:
        return listed
    return [target for target in listed if any(target.matches(pattern) for pattern in select)]


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
    """Verify the outputs of a project in turn, or deeply all at once if the project has an
    executor.

    If everything is verified, the first report names what is in the raw folder without being read,
    if anything.
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


def verify_by(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Verify deeply by an executor; yield the reports in the order of their targets.

    First all targets are verified without what can be done in parts, then the parts of all of them.
    """
    first: dict[int, tuple[Report, list[tuple[str, Parts]]]] = {
        number: (target.verify(True), [])
        for number, target in enumerate(chosen)
        if target.is_bound_to_machine
    }
    others = [number for number in range(len(chosen)) if number not in first]
    for task, outcome in executor.run(_verify_without_parts, [chosen[number] for number in others]):
        first[others[task]] = outcome
    works = [
        (parts, dict[int, Any]()) for number in range(len(chosen)) for _, parts in first[number][1]
    ]
    places = [(outcomes, part) for parts, outcomes in works for part in range(len(parts.parts))]
    tasks = ((parts.look, parts.project, part) for parts, _ in works for part in parts.parts)
    results, following = executor.run(look_at, tasks), iter(works)
    for number in range(len(chosen)):
        report, later = first.pop(number)
        for output, _ in later:
            parts, outcomes = next(following)
            while len(outcomes) < len(parts.parts):
                task, outcome = next(results)
                places[task][0][places[task][1]] = outcome
            found = Report(output)
            parts.note(found, [outcomes.pop(part) for part in range(len(parts.parts))])
            report.include(found)
        yield report
    next(results, None)  # so that it ends


def _verify_without_parts(target: Target) -> tuple[Report, list[tuple[str, Parts]]]:
    later: list[tuple[str, Parts]] = []
    with target.project.in_task() as own:
        report = replace(target, project=own).verify(
            True, lambda report, parts: later.append((report.output, parts))
        )
    return report, [
        (output, replace(parts, project=parts.project and target.project))
        for output, parts in later
    ]
