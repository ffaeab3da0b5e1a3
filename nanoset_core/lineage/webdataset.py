"""Find the documents that a context of a webdataset comes from, and back, by its plan; no tar is read."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.explain import PieceOrigin, piece_origins
from nanoset_core.lineage.find import (
    Appearance,
    DocumentPlaces,
    WantedDocument,
    covered_tokens,
    find_at,
    find_origins,
    unseen,
)
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import indexed, shuffling
from nanoset_core.pipeline.project import Project
from nanoset_core.shuffling.order import ranks, ranks_of
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import shard_stem

_BUILD = "run `nanoset build`"
_TAIL = "they lie in a tail that does not fill a context"
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
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context; `sample` is its number over all tars."""

    tar: str
    """Name of the tar that holds it."""
    key: str
    """Its `__key__`."""


@dataclass(frozen=True)
class Tars:
    """The current version of a webdataset, with the plan and the datasets that it was made from."""

    name: str
    plan: ShufflePlan
    datasets: tuple[Manifest, ...]
    """In the order of the plan's sources."""

    @staticmethod
    def of(outputs: OutputRoot, name: str) -> Tars:
        """Open a webdataset; raise MissingError where there is none, or its plan or a dataset of it is gone."""
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
        """Return the number over all tars of a context.

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
            found = place if sample is None else f"{place} {sample}"
            expected = (
                f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0, or a number over all tars"
            )
            raise ConfigError("this names no context of a webdataset", where=self.name, found=found, expected=expected)
        if int(place) >= self.plan.contexts:
            expected = f"0 to {self.plan.contexts - 1:,}, in {self.plan.shards:,} tars"
            raise SampleIndexError("no such context in the webdataset", where=self.name, found=place, expected=expected)
        return int(place)

    def _in_tar(self, shard: int, sample: int) -> int:
        if shard >= self.plan.shards:
            found, expected = (
                f"{shard_stem(shard)}.tar",
                f"{shard_stem(0)}.tar to {shard_stem(self.plan.shards - 1)}.tar",
            )
            raise SampleIndexError("no such tar in the webdataset", where=self.name, found=found, expected=expected)
        begin, end = self.plan.shard_ranks(shard)
        if not 0 <= sample < end - begin:
            where, expected = f"{self.name}: {shard_stem(shard)}.tar", f"0 to {end - begin - 1:,}"
            raise SampleIndexError("no such context in the tar", where=where, found=sample, expected=expected)
        return begin + sample

    def tar(self, position: int) -> str:
        """Return the name of the tar at a position."""
        return f"{shard_stem(position // self.plan.shard_size)}.tar"

    def key(self, position: int) -> str:
        """Return the key of the context at a position."""
        shard, sample = divmod(position, self.plan.shard_size)
        return f"{shard:08d}_{sample:08d}"

    def spans(self, context: int) -> Iterator[tuple[int, int, int]]:
        """Yield (source, first token within it, end excl) of a context's tokens; a carried one has several sources."""
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
    """Return the documents that the tokens of a context in a webdataset's tars come from.

    Args:
        project_or_root: a project, or its output root alone; then no raw text is read, and nothing decoded.
        name: of a webdataset; its current version counts.
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
    """Return (sequence, first token, end excl) of the sequences that hold a dataset's tokens [begin, end excl)."""
    itemsize = dataset.dtype.itemsize
    low = bisect_right(dataset.sequence_pointers, begin * itemsize) - 1
    high = bisect_right(dataset.sequence_pointers, (end - 1) * itemsize)
    starts = dataset.sequence_pointers[low:high] // itemsize
    stops = starts + dataset.sequence_lengths[low:high]
    firsts, ends = np.maximum(begin, starts) - starts, np.minimum(end, stops) - starts
    filled = ends > firsts  # others are of documents without tokens
    spans: NDArray[np.int64] = np.stack([np.arange(low, high), firsts, ends], axis=1)[filled].astype(np.int64)
    return spans


def find_in_tars(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    *,
    identity: str | None = None,
    file: str | None = None,
    line: int | None = None,
    number: int | None = None,
    corpus: str | None = None,
) -> list[DocumentPlaces]:
    """Return which contexts of a webdataset's tars hold a document; its appearances are `TarAppearance`s.

    name: of a webdataset, whose current version counts. Other arguments and errors as for `find_document`.
    """
    wanted = WantedDocument(identity, file, line, number)
    context = InspectionContext.of(project_or_root)
    tars = Tars.of(context.outputs, name)
    found = find_origins(context, tars.datasets, wanted, corpus, name)
    return [_places(tars, source, origin) for source, origin in found]


def find_place_in_tars(
    project: Project, name: str, place: str, line: int | None = None, corpus: str | None = None
) -> list[DocumentPlaces]:
    """Return what `find_in_tars` finds by file and line; arguments and errors as for `find_place`."""
    find = partial(find_in_tars, project, name)
    return find_at(project.config, project.webdataset(name).names, find, place, line, corpus)


def _places(tars: Tars, source: int, origin: DocumentOrigin) -> DocumentPlaces:
    plan, dataset = tars.plan, tars.opened[source]
    first, last = dataset.document_indices[origin.document : origin.document + 2].tolist()
    tokens = int(dataset.sequence_lengths[first:last].sum())
    if not tokens:
        return DocumentPlaces(origin, (), 0, "never seen: it has no tokens")
    begin = int(dataset.sequence_pointers[first]) // dataset.dtype.itemsize
    contexts = plan.table.holding(source, begin, begin + tokens)
    positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)
    found = [
        (position, sample_tokens, document_tokens)
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True)
        for sample_tokens, document_tokens in _overlaps(tars, context, source, begin, begin + tokens)
    ]
    appearances = tuple(
        TarAppearance(position, into, own, tars.tar(position), tars.key(position))
        for position, into, own in sorted(found)
        if position < plan.contexts
    )
    seen = covered_tokens([appearance.document_tokens for appearance in appearances])
    reason = None
    if seen < covered_tokens([own for _, _, own in found]):
        reason = (
            f"{unseen(seen, tokens)}, because they lie in contexts that are left out so that all tars are equal (even)"
        )
    elif seen < tokens:
        some = "not all contexts of this corpus are taken, or " if plan.table.sources[source].frequency < 1 else ""
        reason = f"{unseen(seen, tokens)}, because {some}{_TAIL}"
    return DocumentPlaces(origin, appearances, seen, reason)


def _overlaps(
    tars: Tars, context: int, source: int, begin: int, end: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield (tokens of the context, tokens of the document) of a document that is [begin, end excl) of a source."""
    position = tars.bos
    for number, first, last in tars.spans(context):
        low, high = max(first, begin), min(last, end)
        if number == source and low < high:
            into = position + low - first
            yield (into, into + high - low), (low - begin, high - begin)
        position += last - first


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
    expected = f"one of {', '.join(built) or 'none: nothing was built here'}"
    remedy = f"{_BUILD}, or correct the name; for a nanoset name a split as well: train, valid or test"
    return MissingError("no such webdataset", where=stage / name, expected=expected, remedy=remedy)
