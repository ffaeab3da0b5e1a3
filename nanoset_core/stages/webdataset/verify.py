"""Verify a webdataset: its plan and tars are as they were written, and the tars hold the contexts
of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.samples import iterate_token_members
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.checking import check_current
from nanoset_core.stages.dataset.token_ranges import spread_rows
from nanoset_core.stages.datasets import current_dataset, dataset_of
from nanoset_core.stages.report import (
    AGAIN,
    BUILD,
    PART_BYTES,
    Parts,
    Report,
    Run,
    check_file,
    run_here,
    runs,
)
from nanoset_core.stages.stage import Key
from nanoset_core.stages.webdataset.gathering import gather
from nanoset_core.stages.webdataset.make import STAGE, current_plan, group_facts
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stage import SHUFFLE_PLAN, WEBDATASET
from nanoset_core.stages.webdataset.tars import shard_stem

_REMOVE = f"delete the tar, and {BUILD}"
_TARS_OPENED = 8
"""Tars that the quick check opens."""
_TILE = 256
"""Contexts that are compared at once."""
_MAX_PARTS = 64
"""Most parts of deep work: each part reads the plan, which grows with the tars."""


def verify_webdataset(
    project: Project,
    name: str,
    deep: bool = False,
    run: Run = run_here,
) -> Report:
    """Check the current version of a webdataset.

    All tars must exist and have the size written, and the lists that name them the sha256 written.
    Some tars, spread evenly, are opened: their members are counted, and the first and last are
    compared with the contexts of the plan. With `deep`, all tars are read, and all members
    compared; if the datasets are in a bucket and no copy may stay here, only the first and last of
    each tar.

    Args:
        project: The project.
        name: Of the webdataset.
        deep: Read every byte.
        run: Has the parts of deep work done.
    """

    def check(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        plan, _ = current_plan(project, name)
        # If the plan is another one, the webdataset is reported as stale already.
        if plan.digest == manifest.recipe["parents"]["plan"]:
            _check_evenness(report, plan)
        manifest = replace(manifest, stored=manifest.sizes())
        intact = _intact_files(report, manifest)
        if deep:
            parts = _deep_parts(manifest, intact)
        elif len(intact) == len(manifest.files):
            n_tars = len(manifest.facts["shards_written"])
            parts = [spread_rows(n_tars, _TARS_OPENED).tolist()]
        else:
            parts = []
        check_part = partial(_check_part, name=name, digest=manifest.digest, deep=deep)
        run_parts = run if deep else run_here
        run_parts(report, Parts(check_part, parts, project=project))

    figures = ("shards", "sequences", "tokens", "pad_tokens", "tokens_dropped")
    return check_current(project, WEBDATASET, Key(name), check, *figures)


def _intact_files(report: Report, manifest: Manifest) -> set[str]:
    """Return the files that exist and have the size written; lists must have the sha256 written,
    too.
    """
    tars = {_tar_name(row) for row in manifest.facts["shards_written"]}
    intact: set[str] = set()
    for name in manifest.files:
        if check_file(report, manifest, name, name not in tars, AGAIN):
            intact.add(name)
    return intact


def _deep_parts(manifest: Manifest, intact: set[str]) -> list[list[int]]:
    """Divide the tars that can be read into parts of similar size, each a list of numbers of tars."""
    rows = manifest.facts["shards_written"]
    numbers = [number for number, row in enumerate(rows) if _tar_name(row) in intact]
    sizes = [rows[number]["size_bytes"] for number in numbers]
    part_bytes = max(PART_BYTES, sum(sizes) // _MAX_PARTS)
    return [numbers[part.start : part.stop] for part in runs(sizes, part_bytes)]


def verify_plan(project: Project, name: str) -> Report:
    """Check that the current plan of a webdataset is as it was written, and as even as chance
    gives.
    """

    def check(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        for file in manifest.files:
            check_file(report, manifest, file, True, AGAIN)
        _check_evenness(report, manifest)

    return check_current(project, SHUFFLE_PLAN, Key(name), check)


def verify_group(project: Project, name: str, group: str) -> Report:
    """Check one group of a webdataset's tars, whether the webdataset is complete or not.

    All its tars must exist and have the sizes written. The first is opened, as in
    `verify_webdataset`.
    """
    report = Report(f"{STAGE}/{name}/tars {group}")
    with report.catching(BUILD):
        access = project.outputs.access
        facts_by_tar = group_facts(project, name, int(group))
        for tar, facts in facts_by_tar.items():
            if facts is None:
                report.error(
                    "a tar is missing, or has another size than when it was written",
                    access.url(tar),
                    None,
                    None,
                    BUILD,
                )
        report.figures["shards"] = len(facts_by_tar)
        report.count("contexts_read", 0)

        plan, _ = current_plan(project, name)
        # Opening one tar shows whether the group was written from the plan.
        first_tar = next(iter(facts_by_tar), None)
        if first_tar is not None:
            facts = facts_by_tar[first_tar]
            if facts is not None:
                with report.catching(_REMOVE):
                    path = access.fetch(first_tar)
                    expected = _expected_contexts(project, plan, plan.digest, deep=False)
                    _check_tar(report, path, asdict(facts), expected, deep=False)
                access.drop([first_tar])
    return report


def _check_part(
    project: Project,
    part: Sequence[int],
    name: str,
    digest: str,
    deep: bool,
) -> Report:
    """Check some tars of a webdataset, given by their numbers, in any process."""
    report = Report(f"{STAGE}/{name}")
    manifest = project.outputs.version(
        STAGE, name, digest, "the webdataset was removed meanwhile", "verify again"
    )
    expected = _expected_contexts(project, manifest, manifest.recipe["parents"]["plan"], deep)
    report.count("contexts_read", 0)
    for number in part:
        row = manifest.facts["shards_written"][number]
        tar = manifest.folder / _tar_name(row)
        with report.catching(_REMOVE):
            # A tar that is fetched from a bucket is compared with its sha256 on the way.
            is_here = not manifest.access.has_copies or tar.is_file()
            is_intact = True
            if deep and is_here:
                is_intact = check_file(report, manifest, tar.name, deep, AGAIN)
            if is_intact:
                _check_tar(report, manifest.path(tar.name), row, expected, deep)
        manifest.access.drop([tar])
        for source in expected.sources:
            source.evict()
    return report


def _check_evenness(report: Report, plan: Manifest) -> None:
    """Check that an order is as even as chance gives, by the measures that were taken when it was
    planned.
    """
    quality = plan.facts["quality"]
    report.figures["rank_correlation"] = round(quality["rank_correlation"], 6)
    if quality["even"]:
        return
    measures = (
        f"rank correlation {quality['rank_correlation']:.4f} "
        f"(by chance 0 ± {quality['rank_correlation_error']:.4f}), "
        f"a source's neighbour is of the same source {quality['same_source']:.4f} of the time "
        f"(by chance {quality['same_source_expected']:.4f})"
    )
    report.warn(
        "the contexts are not shuffled as evenly as chance would have it",
        plan.folder,
        measures,
        "measures within four standard errors of chance, as all but one seed in thousands gives",
        f"set another webdatasets.{plan.name}.seed",
    )


def _tar_name(row: Mapping[str, Any]) -> str:
    """Return the file name of a tar, by its row in a manifest's facts."""
    return f"{shard_stem(row['shard'])}.tar"


@dataclass(frozen=True, slots=True)
class _ExpectedContexts:
    """What the contexts of tars must be."""

    length: int
    greatest_id: int
    """Greatest id that may occur."""
    plan: ShufflePlan | None = None
    """The plan, if it is still the current one and its datasets still exist."""
    sources: tuple[TokenSource, ...] = ()
    """Of the plan."""


def _expected_contexts(
    project: Project,
    manifest: Manifest,
    plan_digest: str,
    deep: bool,
) -> _ExpectedContexts:
    """Return what contexts must be, by the manifest of a webdataset or of its plan."""
    expected = _ExpectedContexts(manifest.facts["sequence_length"], project.tokenizer.max_id)
    try:
        current, plan = current_plan(project, manifest.name)
        if current.digest != plan_digest:
            return expected
        # The preset tokshuf pads with an id of its own.
        greatest_id = max(expected.greatest_id, plan.settings.pad_id or 0)
        expected = replace(expected, greatest_id=greatest_id)
        sources = [_source(project, source.name, deep) for source in plan.table.sources]
        plan.check_sources(sources)
    except NanosetError:  # length and ids can be checked without the datasets
        return expected
    return replace(expected, plan=plan, sources=tuple(sources))


def _check_tar(
    report: Report,
    path: Path,
    row: Mapping[str, Any],
    expected: _ExpectedContexts,
    deep: bool,
) -> None:
    """Check one tar up to the first context that is not as it must be, and count the contexts that
    were read.
    """
    archive = map_archive(path)
    members = list(iterate_token_members(archive, path))
    what = "a tar has another number of members than it should"
    if not report.compare(what, path, len(members), row["sequences"], _REMOVE):
        return

    # A mistake of order or of cutting shows at the ends of a tar, too.
    numbers = list(range(len(members)))
    if not deep:
        numbers = sorted({0, len(members) - 1})
    for begin in range(0, len(numbers), _TILE):
        tile = numbers[begin : begin + _TILE]
        planned = _planned_contexts(expected, row["shard"], tile)
        for number in tile:
            context = read_member(archive, members[number], path)
            difference = _difference(context, expected, planned.get(number))
            if difference is not None:
                what = f"context {number} of a tar is not what it must be"
                report.error(what, path, difference.found, difference.expected, _REMOVE)
                return
        report.count("contexts_read", len(tile))


@dataclass(frozen=True, slots=True)
class _ContextDifference:
    """What a context is, and what it must be."""

    found: str
    expected: str


def _difference(
    context: NDArray[np.integer[Any]],
    expected: _ExpectedContexts,
    planned: NDArray[np.integer[Any]] | None,
) -> _ContextDifference | None:
    """Return how a context differs from what is expected, and, if given, from what is planned; None
    if it does not.
    """
    if len(context) != expected.length:
        return _ContextDifference(f"{len(context):,} tokens", f"{expected.length:,} tokens")
    least = context.min()
    greatest = context.max()
    if least < 0 or greatest > expected.greatest_id:
        return _ContextDifference(f"ids {least} to {greatest}", f"ids 0 to {expected.greatest_id}")
    if planned is not None and not np.array_equal(context, planned):
        first_tokens = context[:8].tolist()
        planned_tokens = planned[:8].tolist()
        return _ContextDifference(f"{first_tokens} …", f"{planned_tokens} …, by the plan")
    return None


def _planned_contexts(
    expected: _ExpectedContexts,
    shard: int,
    numbers: Sequence[int],
) -> dict[int, NDArray[np.integer[Any]]]:
    """Return the tokens of the contexts of a shard that are compared, by their number."""
    if expected.plan is None:
        return {}
    contexts = expected.plan.shard_contexts(shard)
    if any(source.access is not None for source in expected.sources):
        # The tokens of all others are scattered over datasets in a bucket, which are not copied.
        numbers = [number for number in numbers if number in (0, len(contexts) - 1)]
    if not numbers:
        return {}
    tokens = gather(expected.sources, expected.plan.table, contexts[list(numbers)])
    return dict(zip(numbers, tokens, strict=True))


def _source(project: Project, corpus: str, deep: bool) -> TokenSource:
    """Open a corpus's tokens, which are fetched as they are needed if no copy is here, nor may be
    made.
    """
    # The deep check reads all tokens, so copying them once is cheaper, if the disk may hold them.
    dataset = current_dataset(project, corpus)
    access = dataset.access
    is_here = (dataset.folder / f"{dataset.facts['prefix']}.bin").is_file()
    may_be_copied = deep and access.capacity is None
    is_stored = access.has_copies and not is_here and not may_be_copied
    return TokenSource.of_output(dataset_of(project.outputs, dataset), is_stored=is_stored)
