"""Are a webdataset's plan and tars there, and do the tars hold the contexts of the plan?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.report import AGAIN, BUILD, PART_BYTES, Parts, Report, Run, check_file, run_here, runs
from nanoset_core.stages.stage import Key
from nanoset_core.stages.views.stage import is_view
from nanoset_core.stages.webdataset import stage as shuffling
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.shards import shard_stem
from nanoset_core.stages.webdataset.sources import TokenSource, gather

_REMOVE = f"delete the tar, and {BUILD}"
_TARS_OPENED = 8
_TILE = 256
_MOST_PARTS = 64


def verify_webdataset(project: Project, name: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current version of a webdataset.

    Every tar is there, of the size written (`deep`: sha256), and so are the lists that name them, by sha256; in 8 tars,
    spread evenly (`deep`: all), the members are counted, their first and last (`deep`: all) have one length, tokens of
    the vocabulary, and no pad tokens but at their end. They are those that the plan names; where the datasets lie in a
    bucket and no copy may stay here, the first and last of each tar are compared.
    """

    def check(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        plan, _ = shuffling.current_plan(project, name)
        if plan.digest == manifest.recipe["parents"]["plan"]:  # or it is of another version: a finding already
            _check_evenness(report, plan)
        manifest = replace(manifest, stored=manifest.sizes())
        rows = manifest.facts["shards_written"]
        tars = {_tar(row): number for number, row in enumerate(rows)}
        whole = {file for file in manifest.files if check_file(report, manifest, file, file not in tars, AGAIN)}
        numbers = [number for tar, number in tars.items() if tar in whole]
        # Each part reads the plan, which grows with the tars.
        sizes = [rows[number]["size_bytes"] for number in numbers]
        parts = [numbers[part.start : part.stop] for part in runs(sizes, max(PART_BYTES, sum(sizes) // _MOST_PARTS))]
        if not deep:
            parts = [spread_rows(len(rows), _TARS_OPENED).tolist()] if len(whole) == len(manifest.files) else []
        look = partial(_look, name=name, digest=manifest.digest, deep=deep)
        (run if deep else run_here)(report, Parts(look, parts, project=project))

    names = ("shards", "sequences", "tokens", "pad_tokens", "tokens_dropped")
    return check_current(project, shuffling.WEBDATASET, Key(name), check, *names)


def verify_plan(project: Project, name: str) -> Report:
    """Check that the current plan of a webdataset is as it was written, and as even as chance gives."""

    def look(report: Report, manifest: Manifest, is_fresh: bool) -> None:
        for file in manifest.files:
            check_file(report, manifest, file, True, AGAIN)
        _check_evenness(report, manifest)

    return check_current(project, shuffling.SHUFFLE_PLAN, Key(name), look)


def verify_group(project: Project, name: str, group: str) -> Report:
    """Check one group of a webdataset's tars, complete or not: all are there, of the sizes written; the first holds the
    contexts of its plan, as in `verify_webdataset`."""
    report = Report(f"{shuffling.STAGE}/{name}/tars {group}")
    with report.catching(BUILD):
        access, facts = project.outputs.access, shuffling.group_facts(project, name, int(group))
        for tar, fact in facts.items():
            if fact is None:
                what = "a tar is missing, or has another size than when it was written"
                report.error(what, access.url(tar), None, None, BUILD)
        report.figures["shards"] = len(facts)
        report.count("contexts_read", 0)
        plan, _ = shuffling.current_plan(project, name)
        for tar, fact in list(facts.items())[:1]:
            if fact is not None:
                with report.catching(_REMOVE):
                    _check_tar(
                        report, access.fetch(tar), asdict(fact), _wanted(project, plan, plan.digest, False), False
                    )
                access.drop([tar])
    return report


def _look(project: Project, part: Sequence[int], name: str, digest: str, deep: bool) -> Report:
    report, gone = Report(f"{shuffling.STAGE}/{name}"), "the webdataset was removed meanwhile"
    manifest = project.outputs.version(shuffling.STAGE, name, digest, gone, "verify again")
    wanted = _wanted(project, manifest, manifest.recipe["parents"]["plan"], deep)
    report.count("contexts_read", 0)
    for row in (manifest.facts["shards_written"][number] for number in part):
        with report.catching(_REMOVE):
            # What is fetched is compared with its sha256 on the way.
            is_here = not manifest.access.has_copies or (manifest.folder / _tar(row)).is_file()
            if not (deep and is_here) or check_file(report, manifest, _tar(row), deep, AGAIN):
                _check_tar(report, manifest.path(_tar(row)), row, wanted, deep)
        manifest.access.drop([manifest.folder / _tar(row)])
        for source in wanted.sources:
            source.evict()
    return report


def _check_evenness(report: Report, plan: Manifest) -> None:
    """Check that an order is as even as chance gives, by the measures that were taken when it was planned."""
    quality = plan.facts["quality"]
    report.figures["rank_correlation"] = round(quality["rank_correlation"], 6)
    if not quality["even"]:
        report.warn(
            "the contexts are not shuffled as evenly as chance would have it",
            plan.folder,
            f"rank correlation {quality['rank_correlation']:.4f} (by chance 0 ± "
            f"{quality['rank_correlation_error']:.4f}), a source's neighbour is of the same source "
            f"{quality['same_source']:.4f} of the time (by chance {quality['same_source_expected']:.4f})",
            "measures within four standard errors of chance, as all but one seed in thousands gives",
            f"set another webdatasets.{plan.name}.seed",
        )


def _tar(row: Mapping[str, Any]) -> str:
    return f"{shard_stem(row['shard'])}.tar"


def _check_tar(report: Report, path: Path, row: Mapping[str, Any], wanted: _Wanted, deep: bool) -> None:
    """Check one tar up to the first context that is not as it must be, and count the contexts that were read."""
    archive = map_archive(path)
    members = list(iterate_token_members(archive, path))
    what = "a tar has another number of members than it should"
    if not report.compare(what, path, len(members), row["sequences"], _REMOVE):
        return
    chosen = range(len(members)) if deep else sorted({0, len(members) - 1})
    for begin in range(0, len(chosen), _TILE):
        tile = chosen[begin : begin + _TILE]
        planned = _planned(wanted, row["shard"], tile)
        for number in tile:
            context = read_member(archive, members[number], path)
            if len(context) != wanted.length:
                wrong = f"{len(context):,} tokens", f"{wanted.length:,} tokens"
            elif context.min() < 0 or context.max() > wanted.greatest:
                wrong = f"ids {context.min()} to {context.max()}", f"ids 0 to {wanted.greatest}"
            elif number in planned and not np.array_equal(context, planned[number]):
                wrong = f"{context[:8].tolist()} …", f"{planned[number][:8].tolist()} …, by the plan"
            else:
                continue
            report.error(f"context {number} of a tar is not what it must be", path, *wrong, _REMOVE)
            return
        report.count("contexts_read", len(tile))


class _Wanted(NamedTuple):
    length: int
    greatest: int
    """Greatest id that may occur."""
    plan: ShufflePlan | None = None
    """Where it is still the live one, on the datasets that it was made from."""
    sources: tuple[TokenSource, ...] = ()


def _wanted(project: Project, manifest: Manifest, digest: str, deep: bool) -> _Wanted:
    """Return what contexts must be, by the manifest of a webdataset or of its plan, and the plan of this digest."""
    unplanned = _Wanted(manifest.facts["sequence_length"], project.tokenizer.max_id)
    try:
        found, plan = shuffling.current_plan(project, manifest.name)
        if found.digest != digest:
            return unplanned
        # The preset tokshuf pads with an id of its own.
        unplanned = unplanned._replace(greatest=max(unplanned.greatest, plan.settings.pad_id or 0))
        sources = tuple(_source(project, source.name, deep) for source in plan.table.sources)
        plan.check_sources(sources)
    except NanosetError:
        return unplanned
    return unplanned._replace(plan=plan, sources=sources)


def _planned(wanted: _Wanted, shard: int, numbers: Sequence[int]) -> dict[int, NDArray[Any]]:
    """Return number → tokens of those contexts of a shard that are compared."""
    if wanted.plan is None:
        return {}
    planned = wanted.plan.shard_contexts(shard)
    if any(source.access is not None for source in wanted.sources):
        # The others' tokens lie scattered over datasets in a bucket, of which no copies are made.
        numbers = [number for number in numbers if number in (0, len(planned) - 1)]
    contexts = gather(wanted.sources, wanted.plan.table, planned[list(numbers)]) if numbers else ()
    return dict(zip(numbers, contexts, strict=True))


def _source(project: Project, corpus: str, deep: bool) -> TokenSource:
    """Open a corpus's tokens, which are fetched as they are needed where no copy is here, nor may be made."""
    dataset = current_dataset(project, corpus)
    access, is_here = dataset.access, (dataset.folder / f"{dataset.facts['prefix']}.bin").is_file()
    is_stored = access.has_copies and not is_here and (not deep or access.capacity is not None)
    return TokenSource.of_output(corpus, dataset, is_stored=is_stored, is_chosen=is_view(dataset))
