"""Member of a tar → documents: which text a context of a webdataset comes from, by its plan; no tar is read."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.explain import PieceOrigin, piece_origins
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import indexed, shuffling
from nanoset_core.pipeline.project import Project
from nanoset_core.shuffling.order import ranks
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import shard_stem

_BUILD = "run `nanoset build`"
_KEY = re.compile(r"(?:.*/)?([0-9]+)_([0-9]+)(?:\.npy|\.json\.gz)?")
_SHARD = re.compile(r"(?:.*/)?(?:shard-)?([0-9]+)(?:\.tar)?")


@dataclass(frozen=True, slots=True)
class ContextOrigin:
    """Where the tokens of one context come from."""

    name: str
    """Of the webdataset."""
    tar: str
    """Name of the tar that holds it."""
    key: str
    """Its `__key__`: the member's name without its ending."""
    position: int
    """Its number over all tars, from 0."""
    context: int
    """Its number before the shuffle, from 0."""
    corpus: str
    """In which it begins."""
    bos_tokens: int
    """1 where a BOS token stands in front of it."""
    tokens: int
    """Tokens of the corpora in it."""
    pad_tokens: int
    """Tokens that fill it up."""
    pieces: tuple[PieceOrigin, ...]
    """In order; documents without tokens have none."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Tars:
    """The live version of a webdataset, with the plan and the datasets that it was made from."""

    name: str
    plan: ShufflePlan
    datasets: tuple[Manifest, ...]
    """In the order of the plan's sources."""

    @staticmethod
    def of(outputs: OutputRoot, name: str) -> Tars:
        """Raises MissingError where there is no such webdataset, or its plan or a dataset of it is gone."""
        live = outputs.live(shuffling.STAGE, name)
        if live is None:
            raise _no_such(outputs, name)
        plan = _version(outputs, shuffling.PLANS, name, live.recipe["parents"]["plan"])
        table = plan.load(shuffling.PLAN_FILE, ShufflePlan.from_json)
        datasets = plan.recipe["parents"]
        found = (_version(outputs, indexed.STAGE, each.name, datasets[each.name]) for each in table.table.sources)
        return Tars(name, table, tuple(found))

    @cached_property
    def opened(self) -> tuple[MMapIndexedDataset, ...]:
        """The datasets, in the same order."""
        return tuple(
            MMapIndexedDataset.below(manifest.access, str(manifest.folder / manifest.facts["prefix"]))
            for manifest in self.datasets
        )

    @property
    def bos(self) -> int:
        """BOS tokens in front of every context, 0 or 1."""
        return self.plan.sequence_length - self.plan.settings.row_tokens

    def position(self, place: str, sample: int | None = None) -> int:
        """The number over all tars that a context is named by.

        Args:
            place: a key or member (`00000003_00000017.npy`), that number itself; with `sample`, a tar or its number.
            sample: number within that tar.

        Raises:
            ConfigError: this names no context.
            SampleIndexError: there is no such tar or context.
        """
        key, number = _KEY.fullmatch(place), _SHARD.fullmatch(place)
        if key is not None and sample is None:
            return self._in_tar(int(key[1]), int(key[2]))
        if number is not None and sample is not None:
            return self._in_tar(int(number[1]), sample)
        if not (place.isascii() and place.isdigit()) or sample is not None:
            raise ConfigError(
                "this names no context of a webdataset",
                where=self.name,
                found=place if sample is None else f"{place} {sample}",
                expected=f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0, or a number over "
                f"all tars below {self.plan.contexts:,}",
            )
        if int(place) >= self.plan.contexts:
            raise SampleIndexError(
                "no such context in the webdataset",
                where=self.name,
                found=int(place),
                expected=f"0 to {self.plan.contexts - 1:,}, in {self.plan.shards:,} tars",
            )
        return int(place)

    def _in_tar(self, shard: int, sample: int) -> int:
        if shard >= self.plan.shards:
            raise SampleIndexError(
                "no such tar in the webdataset",
                where=self.name,
                found=f"{shard_stem(shard)}.tar",
                expected=f"{shard_stem(0)}.tar to {shard_stem(self.plan.shards - 1)}.tar",
            )
        begin, end = self.plan.shard_ranks(shard)
        if not 0 <= sample < end - begin:
            raise SampleIndexError(
                "no such context in the tar",
                where=f"{self.name}: {shard_stem(shard)}.tar",
                found=sample,
                expected=f"0 to {end - begin - 1:,}",
            )
        return begin + sample

    def tar(self, position: int) -> str:
        """Name of the tar at a position."""
        return f"{shard_stem(position // self.plan.shard_size)}.tar"

    def key(self, position: int) -> str:
        """Key of the context at a position."""
        shard, sample = divmod(position, self.plan.shard_size)
        return f"{shard:08d}_{sample:08d}"

    def spans(self, context: int) -> Iterator[tuple[int, int, int]]:
        """(source, first token within it, end excl) of a context's tokens: of one source, carried ones of several."""
        places = self.plan.table.locate(np.array([context], dtype=np.int64))
        source, begin, left = (int(values[0]) for values in places)
        while left > 0:
            end = min(begin + left, self.plan.table.sources[source].tokens)
            if end > begin:
                yield source, begin, end
            left -= end - begin
            source, begin = source + 1, 0


def explain_context(
    project_or_root: Project | str | os.PathLike[str], name: str, place: str | int, sample: int | None = None
) -> ContextOrigin:
    """Which documents the tokens of a context in a webdataset's tars come from.

    Args:
        project_or_root: a project, or its output root alone; then nothing is decoded, and no raw file looked at.
        name: of a webdataset; its live version counts.
        place: key or member, or number over all tars, from 0; with `sample` a tar or its number.
        sample: number within that tar, from 0.

    Raises:
        MissingError: there is no such webdataset, or what it was made from is gone.
        ConfigError: this names no context.
        SampleIndexError: there is no such tar or context.
        FormatError: a plan or a shard's table cannot be read.
    """
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection.outputs, name)
    plan, position = tars.plan, tars.position(str(place), sample)
    context = int(ranks(plan.table.contexts, plan.settings.seed, position, position + 1)[0])
    pieces: list[PieceOrigin] = []
    filled = 0
    for source, begin, end in tars.spans(context):
        sequences = _sequences(tars.opened[source], begin, end)
        pieces += piece_origins(inspection, tars.opened[source], sequences, tars.bos + filled)
        filled += end - begin
    first = int(np.searchsorted(plan.table.first_contexts, context, side="right")) - 1
    return ContextOrigin(
        name=name,
        tar=tars.tar(position),
        key=tars.key(position),
        position=position,
        context=context,
        corpus=plan.table.sources[first].name,
        bos_tokens=tars.bos,
        tokens=filled,
        pad_tokens=plan.settings.row_tokens - filled,
        pieces=tuple(pieces),
    )


def _sequences(dataset: MMapIndexedDataset, begin: int, end: int) -> NDArray[np.int64]:
    """Spans of sequences, (sequence, first token, end excl), that make a dataset's tokens [begin, end excl)."""
    itemsize = dataset.dtype.itemsize
    low = bisect_right(dataset.sequence_pointers, begin * itemsize) - 1
    high = bisect_right(dataset.sequence_pointers, (end - 1) * itemsize)
    starts = dataset.sequence_pointers[low:high] // itemsize
    stops = starts + dataset.sequence_lengths[low:high]
    firsts, ends = np.maximum(begin, starts) - starts, np.minimum(end, stops) - starts
    filled = ends > firsts  # others are of documents without tokens
    spans: NDArray[np.int64] = np.stack([np.arange(low, high), firsts, ends], axis=1)[filled].astype(np.int64)
    return spans


def _version(outputs: OutputRoot, stage: str, name: str, digest: str) -> Manifest:
    folder = outputs.folder / stage / name / digest
    manifest = outputs.manifest_at(folder)
    if manifest is None:
        raise MissingError("what the webdataset was made from is gone", where=folder, remedy=_BUILD)
    return manifest


def _no_such(outputs: OutputRoot, name: str) -> MissingError:
    stage = outputs.folder / shuffling.STAGE
    outputs.access.fetch_all(stage, MANIFEST)
    built = sorted({path.parent.parent.name for path in stage.glob(f"*/*/{MANIFEST}")})
    return MissingError(
        "no such webdataset",
        where=stage / name,
        expected=f"one of {', '.join(built) or 'none: nothing was built here'}",
        remedy="run `nanoset build`, or correct the name; for a nanoset name a split as well: train, valid or test",
    )
