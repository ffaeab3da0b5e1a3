"""Find the documents that a context of a webdataset comes from, and back, by its plan; no tar is read."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError, one_of, remedy_for_name
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, token_starts
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.lineage.explain import PieceOrigin, piece_origins
from nanoset_core.lineage.pieces import parts_of
from nanoset_core.lineage.positions import Appearance, DocumentPlaces, covered_tokens, unseen
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.datasets import is_packs
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.views.choosing import STAGE as VIEWS
from nanoset_core.stages.views.stage import is_view
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.order import ranks, ranks_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.tars import shard_stem

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


@dataclass(frozen=True, slots=True, order=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context of a tar; `sample` is its number over all tars, `key` its `__key__`."""

    tar: str
    key: str


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
        live, stage = outputs.live(shuffling.STAGE, name), outputs.folder / shuffling.STAGE
        if live is None:
            names = sorted(outputs.access.names(stage))
            expected = one_of(names, "one that was built; there is none yet")
            remedy = f"{_BUILD}, or correct the name; for a nanoset name a split as well: train, valid or test"
            remedy = remedy_for_name(name, names, remedy)
            raise MissingError(
                "no such webdataset", where=outputs.access.url(stage / name), expected=expected, remedy=remedy
            )

        def version(stage: str, name: str, digest: str) -> Manifest:
            return outputs.version(stage, name, digest, "what the webdataset was made from is gone", _BUILD)

        manifest = version(shuffling.PLANS, name, live.recipe["parents"]["plan"])
        plan = manifest.load(shuffling.PLAN_FILE, ShufflePlan.from_json)
        digests = manifest.recipe["parents"]

        def stage_of(source: str) -> str:
            places = ((kind, outputs.folder / kind / source / digests[source]) for kind in (VIEWS, PACKS.layout.folder))
            return next((kind for kind, place in places if outputs.manifest_at(place)), DATASET.layout.folder)

        names = [source.name for source in plan.table.sources]
        return Tars(name, plan, tuple(version(stage_of(one), one, digests[one]) for one in names))

    @cached_property
    def opened(self) -> tuple[MMapIndexedDataset, ...]:
        """The datasets, in the same order."""
        return tuple(
            MMapIndexedDataset.below(manifest.access, str(manifest.folder / manifest.facts["prefix"]))
            for manifest in self.datasets
        )

    @cached_property
    def streams(self) -> tuple[Stream | None, ...]:
        """Of each dataset that is a view, where the tokens of its stream lie."""
        both = zip(self.datasets, self.opened, strict=True)
        return tuple(Stream(dataset) if is_view(manifest) else None for manifest, dataset in both)

    @property
    def bos(self) -> int:
        """BOS tokens in front of every context, 0 or 1."""
        return self.plan.sequence_length - self.plan.settings.row_tokens

    def position(self, place: str, sample: int | None = None) -> int:
        """Return the number over all tars of a context; raises ConfigError or SampleIndexError where there is none.

        `place` is a key or member (`00000003_00000017.npy`), or that number itself; with `sample`, the number within
        a tar, that tar or its number.
        """
        plan, named = self.plan, (_KEY if sample is None else _SHARD).fullmatch(place)
        found = place if sample is None else f"{place} {sample}"
        if named is not None:
            shard, sample = int(named[1]), int(named[2]) if sample is None else sample
        elif sample is None and place.isascii() and place.isdigit():
            shard, sample = divmod(int(place), plan.shard_size)
        else:
            wish = f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0, or a number over all tars"
            raise ConfigError("this names no context of a webdataset", where=self.name, found=found, expected=wish)
        begin, end = plan.shard_ranks(shard) if shard < plan.shards else (0, 0)
        if not 0 <= sample < end - begin:
            wish = f"{plan.contexts:,} contexts, of {plan.shard_size:,} in each of {plan.shards:,} tars"
            raise SampleIndexError("no such context in the webdataset", where=self.name, found=found, expected=wish)
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

    def places(self, source: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return where a document of a source, by the source's number, is in the tars, and why a part is nowhere."""
        plan = self.plan
        spans, planned, appearances = self._spans(source, origin.dataset_document), 0, list[TarAppearance]()
        held = sum(count for _, count, _ in spans)
        if not held:
            return DocumentPlaces(origin, (), 0, "never seen: it has no tokens")
        for begin, count, first in spans:
            end = begin + count
            contexts = plan.table.containing(source, begin, end)
            positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)
            found = [
                TarAppearance(position, into, own, self.tar(position), self.key(position))
                for position, context in zip(positions.tolist(), contexts.tolist(), strict=True)
                for into, own in self._overlaps(context, source, begin, end, first)
            ]
            planned += covered_tokens([one.document_tokens for one in found])
            appearances += [one for one in found if one.sample < plan.contexts]
        appearances, tokens = sorted(appearances), origin.tokens
        seen = covered_tokens([one.document_tokens for one in appearances])
        why = None
        if seen < planned:
            why = "they lie in contexts that are left out so that all tars are equal (even)"
        elif seen < tokens:
            some = "not all contexts of this corpus are taken, or " if plan.table.sources[source].frequency < 1 else ""
            why = f"{some}they lie in a tail that does not fill a context"
            why = "they are left out of packs" if seen == held else why
        return DocumentPlaces(origin, tuple(appearances), seen, why and f"{unseen(seen, tokens)}, because {why}")

    def _spans(self, source: int, document: int) -> list[tuple[int, int, int]]:
        """Return (first token within the source, tokens, first token within the document) of all its pieces."""
        dataset, stream, manifest = self.opened[source], self.streams[source], self.datasets[source]
        if is_packs(manifest):
            length, parts = manifest.facts["length"], parts_of(manifest, dataset, document)
            return [(part.sequence * length + part.begin, part.end - part.begin, part.first) for part in parts]
        bounds = dataset.document_indices[document : document + 2]
        begin, end = (token_starts(dataset, bounds) if stream is None else stream.starts(bounds)).tolist()
        return [(begin, end - begin, 0)]

    def _overlaps(
        self, context: int, source: int, begin: int, end: int, own: int
    ) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        position = self.bos
        for number, first, last in self.spans(context):
            low, high = max(first, begin), min(last, end)
            if number == source and low < high:
                into = position + low - first
                yield (into, into + high - low), (low - begin + own, high - begin + own)
            position += last - first


def explain_context(
    project_or_root: Project | str | os.PathLike[str], name: str, place: str | int, sample: int | None = None
) -> ContextOrigin:
    """Return the documents that the tokens of a context in a webdataset's tars come from; errors as of `Tars`.

    Args:
        project_or_root: a project, or its output root alone; then no raw text is read, and nothing decoded.
        name: of a webdataset; its current version counts.
        place: key or member, or number over all tars, from 0; with `sample` a tar or its number.
        sample: number within that tar, from 0.
    """
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection.outputs, name)
    plan, position = tars.plan, tars.position(str(place), sample)
    context = int(ranks(plan.table.contexts, plan.settings.seed, position, position + 1)[0])
    pieces: list[PieceOrigin] = []
    filled = 0
    for source, begin, end in tars.spans(context):
        sequences = _sequences(tars.opened[source], tars.streams[source], begin, end)
        pieces += chain.from_iterable(piece_origins(inspection, tars.opened[source], sequences, tars.bos + filled))
        filled += end - begin
    tokens = sum(piece.sample_tokens[1] - piece.sample_tokens[0] for piece in pieces)
    first = int(np.searchsorted(plan.table.first_contexts, context, side="right")) - 1
    return ContextOrigin(
        name=name,
        tar=tars.tar(position),
        key=tars.key(position),
        position=position,
        context=context,
        corpus=plan.table.sources[first].name,
        bos_tokens=tars.bos,
        tokens=tokens,
        pad_tokens=plan.settings.row_tokens - tokens,
        pieces=tuple(pieces),
    )


def _sequences(dataset: MMapIndexedDataset, stream: Stream | None, begin: int, end: int) -> NDArray[np.int64]:
    """Return (sequence, first token, end excl) of the sequences that hold tokens [begin, end excl)."""
    itemsize = dataset.dtype.itemsize
    if stream is None:
        low = bisect_right(dataset.sequence_pointers, begin * itemsize) - 1
        high = bisect_right(dataset.sequence_pointers, (end - 1) * itemsize)
        starts = dataset.sequence_pointers[low:high] // itemsize
    else:
        all_starts = stream.starts(np.arange(len(dataset)))
        low, high = bisect_right(all_starts, begin) - 1, bisect_right(all_starts, end - 1)
        starts = all_starts[low:high]
    stops = starts + dataset.sequence_lengths[low:high]
    firsts, ends = np.maximum(begin, starts) - starts, np.minimum(end, stops) - starts
    filled = ends > firsts  # others are of documents without tokens
    spans: NDArray[np.int64] = np.stack([np.arange(low, high), firsts, ends], axis=1)[filled].astype(np.int64)
    return spans
