"""Are a webdataset's tars there, and do they hold the contexts of their plan?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import indexed, shuffling
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key
from nanoset_core.shuffling.members import decode_member
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import shard_stem
from nanoset_core.shuffling.sources import TokenSource, gather
from nanoset_core.shuffling.tar import iterate_members, map_archive
from nanoset_core.shuffling.webdataset import EXP_DATA_NAME, MANIFEST_NAME, WIDS_NAME
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.verification.files import AGAIN, BUILD, check_file, check_freshness, live_manifest
from nanoset_core.verification.ranges import spread_rows
from nanoset_core.verification.report import Report
from nanoset_core.verification.tasks import PART_BYTES, ProjectCheck, Run, run_here, runs

_REMOVE = f"delete the tar, and {BUILD}"
_TARS_OPENED = 8
_TILE = 256
_MOST_PARTS = 64


def verify_webdataset(project: Project, name: str, deep: bool = False, run: Run = run_here) -> Report:
    """Check the current version of a webdataset.

    Every tar is there, of the size written (`deep`: sha256), the three lists name just these tars with these counts;
    in 8 tars, spread evenly (`deep`: all), the members are counted, their first and last (`deep`: all) have one length,
    tokens of the vocabulary, and no pad tokens but at their end. They are those that the plan names; where the datasets
    lie in a bucket and no copy may stay here, the first and last of each tar are compared.
    """
    report = Report(f"{shuffling.STAGE}/{name}")
    with report.catching(BUILD):
        manifest = live_manifest(project.outputs, shuffling.STAGE, name)
        check_freshness(report, project, shuffling.WEBDATASET, Key(name), manifest)
        _check_shuffle(report, project, manifest)
        names = ("shards", "sequences", "tokens", "pad_tokens", "tokens_dropped")
        report.figures.update({figure: manifest.facts[figure] for figure in names})
        manifest = replace(manifest, stored=manifest.sizes())
        rows = list(manifest.facts["shards_written"])
        tars = {_tar(row) for row in rows}
        sound = {
            file: check_file(
                report, manifest, file, fact.size, fact.sha256 if deep and file not in tars else None, AGAIN
            )
            for file, fact in manifest.files.items()
        }
        _check_lists(report, manifest)
        check = TarCheck(project, report.output, name, manifest.digest, deep)
        if deep:
            numbers = [number for number, row in enumerate(rows) if sound[_tar(row)]]
            sizes = [rows[number]["size_bytes"] for number in numbers]
            # Each part reads the plan, which grows with the tars.
            some = runs(sizes, max(PART_BYTES, sum(sizes) // _MOST_PARTS))
            report.include(run(check, [tuple(numbers[part.start : part.stop]) for part in some]))
        elif all(sound.values()):
            report.include(run_here(check, [tuple(spread_rows(len(rows), _TARS_OPENED).tolist())]))
    return report


@dataclass(frozen=True, slots=True)
class TarCheck(ProjectCheck[tuple[int, ...]]):
    """Some tars of a webdataset, by the numbers of their rows: what their members hold is what the plan says."""

    name: str
    digest: str
    """Of the version."""
    deep: bool

    def look_within(self, project: Project, part: tuple[int, ...]) -> Report:
        report = Report(self.output)
        folder = project.outputs.folder / shuffling.STAGE / self.name / self.digest
        manifest = project.outputs.manifest_at(folder)
        if manifest is None:
            raise MissingError("the webdataset was removed meanwhile", where=folder, remedy="verify again")
        rows, expect, read = manifest.facts["shards_written"], _Expectation.of(project, manifest, self.deep), 0
        for number in part:
            row = rows[number]
            tar = _tar(row)
            with report.catching(_REMOVE):
                fact = manifest.files[tar]
                if not self.deep or check_file(report, manifest, tar, fact.size, fact.sha256, AGAIN):
                    read += _check_tar(report, manifest.path(tar), row, expect, self.deep)
            manifest.access.drop([manifest.folder / tar])
            expect.forget()
        report.figures["contexts_read"] = read
        return report


def _check_shuffle(report: Report, project: Project, manifest: Manifest) -> None:
    """Check that the order is as even as chance gives, by the measures that were taken when it was planned."""
    found, _ = shuffling.current_plan(project, manifest.name)
    if found.digest != manifest.recipe["parents"]["plan"]:
        return  # of another version: a finding already
    quality = found.facts["quality"]
    report.figures["rank_correlation"] = round(quality["rank_correlation"], 6)
    if not quality["even"]:
        report.warn(
            "the contexts are not shuffled as evenly as chance would have it",
            where=found.folder,
            found=f"rank correlation {quality['rank_correlation']:.4f} (by chance 0 ± "
            f"{quality['rank_correlation_error']:.4f}), a source's neighbour is of the same source "
            f"{quality['same_source']:.4f} of the time (by chance {quality['same_source_expected']:.4f})",
            expected="measures within four standard errors of chance, as all but one seed in thousands gives",
            remedy=f"set another webdatasets.{manifest.name}.seed",
        )


def _check_lists(report: Report, manifest: Manifest) -> None:
    """Check that manifest.jsonl, index.json and exp_data.json say of the tars what was written."""
    if not all(manifest.path(name).is_file() for name in (MANIFEST_NAME, WIDS_NAME, EXP_DATA_NAME)):
        return  # a finding already
    text = read_regular(manifest.path(MANIFEST_NAME))
    written = {_tar(row): (row["sequences"], row["size_bytes"]) for row in manifest.facts["shards_written"]}
    try:
        rows = [json.loads(line) for line in text.splitlines()]
        listed = {f"{row['shard']}.tar": (row["num_sequences"], row["bytes"]) for row in rows}
        wids = json.loads(read_regular(manifest.path(WIDS_NAME)))["shardlist"]
        indexed_shards = {row["url"]: (row["nsamples"], row["filesize"]) for row in wids}
        described = json.loads(read_regular(manifest.path(EXP_DATA_NAME)))["num_sequences"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        report.error("a list of the tars cannot be read", where=manifest.folder, found=repr(error), remedy=BUILD)
        return
    for name, found in ((MANIFEST_NAME, listed), (WIDS_NAME, indexed_shards)):
        wrong = sorted(key for key in {*found, *written} if found.get(key) != written.get(key))
        if wrong:
            report.error(
                "a list does not name the tars that were written",
                where=manifest.path(name),
                found=f"{len(found):,} tars; wrong or missing: {', '.join(wrong[:5])}",
                expected=f"{len(written):,} tars",
                remedy=AGAIN,
            )
    if described != manifest.facts["sequences"] or not text.endswith(b"\n"):
        report.error(
            "a list does not say how many sequences there are, or ends without a line end, where OpenLM drops a shard",
            where=manifest.folder,
            found=f"{described:,} sequences, {text[-20:]!r}",
            expected=f"{manifest.facts['sequences']:,} sequences",
            remedy=AGAIN,
        )


def _tar(row: Mapping[str, Any]) -> str:
    """Return a tar's name, from its facts."""
    return f"{shard_stem(row['shard'])}.tar"


def _check_tar(report: Report, path: Path, row: Mapping[str, Any], expect: _Expectation, deep: bool) -> int:
    """Check one tar; return how many contexts were read."""
    archive = map_archive(path)
    members = list(iterate_members(archive, path))
    what = "a tar has another number of members than it should"
    if not report.compare(what, path, len(members), row["sequences"], _REMOVE):
        return 0
    chosen = range(len(members)) if deep else sorted({0, len(members) - 1})
    for begin in range(0, len(chosen), _TILE):
        tile = list(chosen[begin : begin + _TILE])
        contexts = [
            decode_member(
                member.name,
                archive[member.offset : member.offset + member.size_bytes],
                f"{path}, offset {member.offset}",
            )
            for member in (members[number] for number in tile)
        ]
        if not expect.check(report, path, row["shard"], tile, contexts):
            return begin
    return len(chosen)


@dataclass(frozen=True, slots=True)
class _Expectation:
    """What the contexts of a webdataset must be."""

    length: int
    greatest: int
    """Greatest id that may occur."""
    plan: ShufflePlan | None
    """Where it is still the live one, on the datasets that it was made from."""
    sources: tuple[TokenSource, ...]
    ends_alone: bool = False
    """Whether only the first and last context of a tar are compared with the plan: the others' tokens lie scattered
    over datasets in a bucket, of which no copies are made."""

    @staticmethod
    def of(project: Project, manifest: Manifest, deep: bool) -> _Expectation:
        greatest = project.tokenizer.max_id
        length = manifest.facts["sequence_length"]
        try:
            found, plan = shuffling.current_plan(project, manifest.name)
            if found.digest != manifest.recipe["parents"]["plan"]:
                return _Expectation(length, greatest, None, ())
            greatest = max(greatest, plan.settings.pad_id or 0)  # the preset tokshuf pads with an id of its own
            sources = tuple(_source(project, source.name, deep) for source in plan.table.sources)
            plan.check_sources(sources)
        except NanosetError:
            return _Expectation(length, greatest, None, ())
        return _Expectation(length, greatest, plan, sources, any(source.access is not None for source in sources))

    def forget(self) -> None:
        """Free the memory of tokens that were fetched."""
        for source in self.sources:
            source.evict()

    def _of_plan(self, shard: int, numbers: Sequence[int]) -> dict[int, NDArray[Any]]:
        """Return number → tokens of those contexts of a shard that are compared."""
        if self.plan is None:
            return {}
        planned = self.plan.shard_contexts(shard)
        compared = [number for number in numbers if not self.ends_alone or number in (0, len(planned) - 1)]
        if not compared:
            return {}
        return dict(zip(compared, gather(self.sources, self.plan.table, planned[np.asarray(compared)]), strict=True))

    def check(
        self, report: Report, path: Path, shard: int, numbers: Sequence[int], contexts: Sequence[NDArray[Any]]
    ) -> bool:
        """Check some contexts of a shard; note the first that is not as it must be."""
        expected = self._of_plan(shard, numbers)
        for number, context in zip(numbers, contexts, strict=True):
            found = None
            if len(context) != self.length:
                found, wish = f"{len(context):,} tokens", f"{self.length:,} tokens"
            elif context.min() < 0 or context.max() > self.greatest:
                found, wish = f"ids {context.min()} to {context.max()}", f"ids 0 to {self.greatest}"
            elif number in expected and not np.array_equal(context, expected[number]):
                found, wish = f"{context[:8].tolist()} …", f"{expected[number][:8].tolist()} …, by the plan"
            if found is not None:
                report.error(
                    f"context {number} of a tar is not what it must be",
                    where=path,
                    found=found,
                    expected=wish,
                    remedy=_REMOVE,
                )
                return False
        return True


def _source(project: Project, corpus: str, deep: bool) -> TokenSource:
    """Open a corpus's tokens, which are fetched as they are needed where no copy is here, nor may be made."""
    dataset = indexed.current_dataset(project, corpus)
    path, access = dataset.folder / f"{dataset.facts['prefix']}.bin", dataset.access
    if access.has_copies and not path.is_file() and (not deep or access.capacity is not None):
        return TokenSource(corpus, path, dataset.facts["dtype"], dataset.facts["tokens"], access)
    return TokenSource.of_dataset(corpus, dataset.path(dataset.facts["prefix"]), validate=False)
