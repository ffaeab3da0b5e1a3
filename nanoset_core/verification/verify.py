"""Verification of what a project built, or of one .bin/.idx pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import silent
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.corpus import verify_corpus, verify_indexed, verify_inventory, verify_raw, verify_shards
from nanoset_core.verification.dataset import verify_dataset
from nanoset_core.verification.handoff import verify_handoff
from nanoset_core.verification.nanoset import verify_blend, verify_mappings, verify_nanoset
from nanoset_core.verification.packed import verify_packed
from nanoset_core.verification.parts import Deferred, Later, Runner, done_by, done_here
from nanoset_core.verification.report import Report
from nanoset_core.verification.tokens import Promise
from nanoset_core.verification.webdataset import verify_webdataset

__all__ = [
    "Promise",
    "Report",
    "Target",
    "targets",
    "verify_blend",
    "verify_corpus",
    "verify_dataset",
    "verify_handoff",
    "verify_indexed",
    "verify_inventory",
    "verify_mappings",
    "verify_nanoset",
    "verify_packed",
    "verify_project",
    "verify_shards",
    "verify_webdataset",
]


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be verified."""

    name: str
    """A corpus, corpus/packed, nanoset/split, nanoset/handoff or webdataset."""
    project: Project
    """What it is part of."""
    check: Callable[..., Report]
    """Verifies it; takes the project, the arguments, and whether deeply."""
    arguments: tuple[str, ...]
    """That name it."""
    in_parts: bool = False
    """Whether the check takes a Runner, too, which has the larger part of deep work done."""

    def run(self, deep: bool, run: Runner = done_here) -> Report:
        """Verify it."""
        return self.check(self.project, *self.arguments, deep, **({"run": run} if self.in_parts else {}))

    def matches(self, pattern: str) -> bool:
        """Whether a pattern names it, or what it is a part of: web, pretrain, pretrain/train, pre*."""
        return fnmatchcase(self.name, pattern) or fnmatchcase(self.name.partition("/")[0], pattern)


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """All that a project's configuration asks for, or what the patterns select.

    Raises:
        ConfigError: a pattern selects nothing.
    """
    quiet = replace(project, listener=silent)  # targets travel to other machines, which a listener may not
    config = project.config
    found = [Target(corpus, quiet, verify_corpus, (corpus,), in_parts=True) for corpus in raw.corpora(project)]
    found += [
        Target(f"{name}/{split}", quiet, verify_nanoset, (name, split)) for name in config.nanosets for split in SPLITS
    ]
    found += [Target(f"{name}/handoff", quiet, verify_handoff, (name,)) for name in config.nanosets]
    found += [Target(name, quiet, verify_webdataset, (name,), in_parts=True) for name in config.webdatasets]
    found += [Target(f"{corpus}/packed", quiet, verify_packed, (corpus,), in_parts=True) for corpus in config.packed]
    for pattern in select:
        if not any(target.matches(pattern) for target in found):
            raise ConfigError(
                "this selects nothing",
                where="--select",
                found=repr(pattern),
                expected=f"corpora, nanosets or webdatasets: {', '.join(target.name for target in found)}",
                remedy="name one of these, or a pattern that some of them match, such as pre*",
            )
    return [target for target in found if not select or any(target.matches(pattern) for pattern in select)]


def verify_project(project: Project, select: Sequence[str] = (), deep: bool = False) -> Iterator[Report]:
    """Verify one output after the other, or deeply all at once where the project has an executor for its work.

    See `targets` for what is selected, and in which order reports come. What lies in the raw folder without being
    read comes first, where everything is verified and there is such a thing.
    """
    if not select and (aside := verify_raw(project)).findings:
        yield aside
    chosen, executor = targets(project, select), project.executor
    if deep and executor is not None:
        yield from _verify_elsewhere(executor, chosen)
        return
    for target in chosen:
        yield target.run(deep)


def _verify_elsewhere(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Reports in the order of their targets, each as soon as those before it are there.

    All targets come first, without what can be done in parts; then the parts of all of them.
    """
    # What trainers are started with names files of this machine, and is quickly looked through.
    here = [number for number, target in enumerate(chosen) if target.check is verify_handoff]
    there = [number for number in range(len(chosen)) if number not in here]
    reports = {number: chosen[number].run(True) for number in here}
    left, noted = dict.fromkeys(reports, 0), list[tuple[int, Deferred]]()
    given = 0

    def whole() -> Iterator[Report]:
        nonlocal given
        while given in reports and not left[given]:
            yield reports.pop(given)
            given += 1

    yield from whole()
    for place, (report, deferred) in executor.run(_verify_deeply, [chosen[number] for number in there]):
        number = there[place]
        reports[number], left[number] = report, len(deferred)
        noted += ((number, one) for one in deferred)
        yield from whole()
    for (number, _), part in zip(noted, done_by(executor, [one for _, one in noted]), strict=True):
        reports[number].include(part)
        left[number] -= 1
        yield from whole()


def _verify_deeply(target: Target) -> tuple[Report, list[Deferred]]:
    later = Later(target.project)
    with target.project.in_task() as project:
        report = replace(target, project=project).run(True, later)
    return report, later.noted
