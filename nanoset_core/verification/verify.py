"""Verification of what a project built: the checks of its outputs, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import silent
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.indexed import DATASET
from nanoset_core.pipeline.mapping import BLENDED, INDEX_MAPPINGS
from nanoset_core.pipeline.packed import PACKED
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.shuffling import WEBDATASET
from nanoset_core.pipeline.stage import Stage
from nanoset_core.pipeline.tokenization import TOKENIZED
from nanoset_core.verification.corpus import verify_corpus, verify_indexed, verify_inventory, verify_raw, verify_shards
from nanoset_core.verification.nanoset import verify_blend, verify_handoff, verify_mappings, verify_nanoset
from nanoset_core.verification.packed import verify_packed
from nanoset_core.verification.report import Report
from nanoset_core.verification.tasks import DeepCheck, Deferred, Run, concluded, look_at, run_here
from nanoset_core.verification.webdataset import verify_webdataset

CHECKS: dict[Stage, tuple[Callable[..., Report], str]] = {
    raw.INVENTORY: (verify_inventory, "Warns of files that are not read, empty, unfinished, or smaller than before."),
    TOKENIZED: (
        verify_shards,
        "Every line is a document, skipped or rejected; no more rejects than allowed; the shards are whole.",
    ),
    DATASET: (
        verify_indexed,
        "Counts, lengths, pointers and type of the .idx; ids within the vocabulary; end-of-document tokens; "
        "sampled documents give the same tokens when their source lines are tokenized again.",
    ),
    INDEX_MAPPINGS: (
        verify_mappings,
        "Every file that the trainer will look for is there, fresh against its .idx; sampled ones can be read.",
    ),
    BLENDED: (
        verify_blend,
        "The blend's files are there, belong to the index mappings, and name corpora and samples that exist.",
    ),
    PACKED: (
        verify_packed,
        "The .pbin is whole: its index covers the tokens exactly, and documents and tokens are the dataset's.",
    ),
    WEBDATASET: (verify_webdataset, "Every tar is there and listed; opened ones hold the contexts of their plan."),
}
"""Stages whose faults would spoil what is made of their outputs → the check of one output, and what it looks at.

A check takes the project, the subject of the output, and its part where it has one."""
_IN_PARTS = (verify_corpus, verify_packed, verify_webdataset)
"""Checks that also take a Run, for the larger part of deep work."""


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

    def run(self, deep: bool, run: Run = run_here) -> Report:
        """Verify it."""
        more = {"run": run} if self.check in _IN_PARTS else {}
        return self.check(self.project, *self.arguments, deep, **more)

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern names it, or what it is a part of: web, pretrain, pretrain/train, pre*."""
        return fnmatchcase(self.name, pattern) or fnmatchcase(self.name.partition("/")[0], pattern)


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List all that a project's configuration asks for, or what the patterns select.

    Raises:
        ConfigError: A pattern selects nothing.
    """
    quiet = replace(project, listener=silent)  # targets travel to other machines, which a listener may not
    config = project.config
    found = [Target(corpus, quiet, verify_corpus, (corpus,)) for corpus in raw.corpora(project)]
    found += [
        Target(f"{name}/{split}", quiet, verify_nanoset, (name, split)) for name in config.nanosets for split in SPLITS
    ]
    found += [Target(f"{name}/handoff", quiet, verify_handoff, (name,)) for name in config.nanosets]
    found += [Target(name, quiet, verify_webdataset, (name,)) for name in config.webdatasets]
    found += [Target(f"{corpus}/packed", quiet, verify_packed, (corpus,)) for corpus in config.packed]
    chosen = set[int]()
    for pattern in select:
        matching = {number for number, target in enumerate(found) if target.matches(pattern)}
        if not matching:
            raise ConfigError(
                "this selects nothing",
                where="--select",
                found=repr(pattern),
                expected=f"corpora, nanosets or webdatasets: {', '.join(target.name for target in found)}",
                remedy="name one of these, or a pattern that some of them match, such as pre*",
            )
        chosen |= matching
    return [found[number] for number in sorted(chosen)] if select else found


def verify_project(project: Project, select: Sequence[str] = (), deep: bool = False) -> Iterator[Report]:
    """Verify one output after the other, or deeply all at once where the project has an executor for its work.

    See `targets` for what is selected, and in which order reports come. What lies in the raw folder without being
    read comes first, where everything is verified and there is such a thing.
    """
    if not select and (unread := verify_raw(project)).findings:
        yield unread
    chosen, executor = targets(project, select), project.executor
    if deep and executor is not None:
        yield from verify_by(executor, chosen)
    else:
        yield from (target.run(deep) for target in chosen)


def verify_by(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Verify deeply by an executor; yield the reports in the order of their targets.

    First all targets are verified without what can be done in parts, then the parts of all of them.
    """
    # A handoff names files of this machine, and is checked quickly.
    reports = {number: one.run(True) for number, one in enumerate(chosen) if one.check is verify_handoff}
    others = [number for number in range(len(chosen)) if number not in reports]
    left: dict[int, list[tuple[DeepCheck[Any, Any], Sequence[Any]]]] = {}
    for task, (report, checks) in executor.run(_verify_deferring, [chosen[number] for number in others]):
        reports[others[task]], left[others[task]] = report, checks
    deferred = [(number, check, parts) for number in others for check, parts in left[number]]
    places = [(check, part) for check, (_, _, parts) in enumerate(deferred) for part in range(len(parts))]
    outcomes: list[dict[int, Any]] = [{} for _ in deferred]
    done, given = 0, 0

    def complete() -> Iterator[Report]:
        """Conclude the checks whose parts are all done, in their order; yield the reports that need no other."""
        nonlocal done, given
        while done < len(deferred) and len(outcomes[done]) == len(deferred[done][2]):
            number, check, parts = deferred[done]
            reports[number].include(concluded(check, [outcomes[done].pop(part) for part in range(len(parts))]))
            done += 1
        ready = deferred[done][0] if done < len(deferred) else len(chosen)
        for number in range(given, ready):
            yield reports.pop(number)
        given = ready

    yield from complete()
    tasks = ((deferred[check][1], deferred[check][2][part]) for check, part in places)
    for task, outcome in executor.run(look_at, tasks):
        check, part = places[task]
        outcomes[check][part] = outcome
        yield from complete()


def _verify_deferring(target: Target) -> tuple[Report, list[tuple[DeepCheck[Any, Any], Sequence[Any]]]]:
    later = Deferred(target.project)
    with target.project.in_task() as project:
        report = replace(target, project=project).run(True, later)
    return report, later.checks
