"""Verification of what a project built: the checks of its outputs, and which of them are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import silent
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.attributes.stage import ATTRIBUTES
from nanoset_core.stages.columns.stage import COLUMNS
from nanoset_core.stages.columns.verify import verify_attributes, verify_columns
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.exports.verify import verify_export
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.held_out.stage import HELD_OUT
from nanoset_core.stages.held_out.verify import verify_contamination, verify_held_out
from nanoset_core.stages.inventory import stage as raw
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS
from nanoset_core.stages.mappings.verify import verify_blend, verify_handoff, verify_mappings, verify_nanoset
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.packs.verify import verify_packs
from nanoset_core.stages.pbin.stage import PACKED
from nanoset_core.stages.pbin.verify import verify_packed
from nanoset_core.stages.report import Parts, Report, Run, look_at, run_here
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.shards.verify import verify_corpus, verify_indexed, verify_inventory, verify_raw, verify_shards
from nanoset_core.stages.stage import Stage
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.verify import verify_view
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, SHUFFLED_TARS, WEBDATASET
from nanoset_core.stages.webdataset.verify import verify_group, verify_plan, verify_webdataset

CHECKS: dict[Stage, tuple[Callable[..., Report], str]] = {
    raw.INVENTORY: (verify_inventory, "Warns of files that are not read, empty, unfinished, or smaller than before."),
    TOKENIZED: (
        verify_shards,
        "Every line is a document, skipped or rejected; no more rejects than allowed; the shards are whole.",
    ),
    DATASET: (
        verify_indexed,
        "The .idx fits its .bin; every id is in the vocabulary; sampled lines give the same tokens again.",
    ),
    COLUMNS: (partial(verify_columns, COLUMNS), "The table of every shard has a row for each of its documents."),
    ATTRIBUTES: (
        verify_attributes,
        "Every document has the values of the row with its id; policies are kept.",
    ),
    CONTAMINATION: (
        verify_contamination,
        "With policy: block, training reads no document that holds texts of evaluations.",
    ),
    VIEW: (
        verify_view,
        "The view holds the documents that its rules choose, as often as they say, and no others.",
    ),
    PACKS: (
        verify_packs,
        "Packs hold the tokens of their dataset's documents; packed again, where that is quick, they are the same.",
    ),
    HELD_OUT: (verify_held_out, "With held_out: block, train reads no document of valid and test, and no copy of one."),
    INDEX_MAPPINGS: (
        verify_mappings,
        "Every file that the trainer looks for is there, fresh against its .idx; sampled ones can be read.",
    ),
    BLENDED: (
        verify_blend,
        "The blend's files are there, belong to the index mappings, and name corpora and samples that exist.",
    ),
    TRAINER_FILES: (verify_handoff, "The trainer's files are there, and hold what was written, byte for byte."),
    PACKED: (
        verify_packed,
        "The index of the .pbin covers its tokens exactly; documents and tokens are the dataset's.",
    ),
    SHUFFLE_PLAN: (verify_plan, "The plan holds what was written; the order is as even as chance gives."),
    SHUFFLED_TARS: (
        verify_group,
        "Every tar of the group is there, of the size written; the first holds the contexts of its plan.",
    ),
    EXPORT: (verify_export, "The export's tokens are its dataset's, and its documents end where they do there."),
    WEBDATASET: (verify_webdataset, "Every tar is there and listed; opened ones hold the contexts of their plan."),
}
"""Stages whose faults would spoil what is made of their outputs → the check of one output, and what it looks at.

A check takes the project, the subject of the output, and its part where it has one."""


class Target(NamedTuple):
    """Something that can be verified."""

    name: str
    """A corpus, corpus/columns, corpus/attributes, corpus/packed, view/view, packs/packs, export/export,
    section/contamination, nanoset/split, nanoset/held_out, nanoset/handoff or webdataset."""
    project: Project
    """What it is part of."""
    check: Callable[..., Report]
    """Verifies it; takes the project, the arguments, and whether deeply."""
    arguments: tuple[Any, ...]
    """That name it."""

    def run(self, deep: bool, run: Run = run_here) -> Report:
        """Verify it; `run` has the larger part of deep work done, where it can be done in parts."""
        in_parts = self.check in (verify_corpus, verify_packed, verify_webdataset)
        return self.check(self.project, *self.arguments, deep, *([run] if in_parts else []))

    def matches(self, pattern: str) -> bool:
        """Return whether a pattern names it, or what it is a part of: web, pretrain, pretrain/train, pre*."""
        return any(fnmatchcase(name, pattern) for name in (self.name, self.name.partition("/")[0]))


def targets(project: Project, select: Sequence[str] = ()) -> list[Target]:
    """List all that nanoset.yaml asks for, or what patterns select; ConfigError where one selects nothing."""
    quiet = replace(project, listener=silent)  # targets travel to other machines, which a listener may not
    config = project.config
    found = [Target(corpus, quiet, verify_corpus, (corpus,)) for corpus in raw.corpora(project)]
    found += [
        Target(f"{key.subject}/{stage.folder}", quiet, CHECKS[stage][0], (key.subject,))
        for stage in (COLUMNS, ATTRIBUTES)
        for key in stage.keys(config, raw.corpora(project))
    ]
    for stage, kind in ((VIEW, "view"), (PACKS, "packs")):
        own = ((key.subject, key.part) for key in stage.keys(config, ()))
        found += [Target(f"{name[1]}/{kind}", quiet, CHECKS[stage][0], name) for name in own]
    for key in CONTAMINATION.keys(config, ()):
        found.append(Target(f"{key.subject}/contamination", quiet, verify_contamination, (key.subject, key.part)))
    for key in HELD_OUT.keys(config, ()):
        found.append(Target(f"{key.subject}/held_out", quiet, verify_held_out, (key.subject,)))
    splits = ((name, split) for name in config.nanosets for split in SPLITS)
    found += [Target(f"{name}/{split}", quiet, verify_nanoset, (name, split)) for name, split in splits]
    found += [Target(f"{name}/handoff", quiet, verify_handoff, (name,)) for name in config.nanosets]
    found += [Target(name, quiet, verify_webdataset, (name,)) for name in config.webdatasets]
    found += [Target(f"{name}/export", quiet, verify_export, (name,)) for name in config.exports]
    found += [Target(f"{corpus}/packed", quiet, verify_packed, (corpus,)) for corpus in config.packed]
    for pattern in select:
        if not any(target.matches(pattern) for target in found):
            names = [target.name for target in found]
            subjects = [name.partition("/")[0] for name in names]
            remedy = "name one of these, or a pattern that some of them match, such as pre*"
            raise ConfigError(
                "this selects nothing",
                where="--select",
                found=repr(pattern),
                expected=f"corpora, nanosets or webdatasets: {', '.join(names)}",
                remedy=remedy_for_name(pattern, [*subjects, *names], remedy),
            )
    return [target for target in found if not select or any(map(target.matches, select))]


def verify_project(project: Project, select: Sequence[str] = (), deep: bool = False) -> Iterator[Report]:
    """Verify one output after the other, or deeply all at once where the project has an executor for its work.

    What lies in the raw folder without being read comes first, where everything is verified and there is such a thing.
    """
    if not select and (unread := verify_raw(project)).findings:
        yield unread
    chosen, executor = targets(project, select), project.executor
    reports = verify_by(executor, chosen) if deep and executor is not None else (one.run(deep) for one in chosen)
    access = project.outputs.access
    yield from (report.with_places(access.folder, access.url(access.folder)) for report in reports)


def verify_by(executor: Executor, chosen: Sequence[Target]) -> Iterator[Report]:
    """Verify deeply by an executor; yield the reports in the order of their targets.

    First all targets are verified without what can be done in parts, then the parts of all of them.
    """
    # A handoff names files of this machine, and is checked quickly.
    first: dict[int, tuple[Report, list[tuple[str, Parts]]]] = {
        number: (one.run(True), []) for number, one in enumerate(chosen) if one.check is verify_handoff
    }
    others = [number for number in range(len(chosen)) if number not in first]
    for task, outcome in executor.run(_verify_without_parts, [chosen[number] for number in others]):
        first[others[task]] = outcome
    works = [(parts, dict[int, Any]()) for number in range(len(chosen)) for _, parts in first[number][1]]
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
        report = target._replace(project=own).run(True, lambda report, parts: later.append((report.output, parts)))
    return report, [(output, replace(parts, project=parts.project and target.project)) for output, parts in later]
