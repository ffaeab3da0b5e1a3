"""Find the documents that a context of a webdataset comes from, and back, by its plan; no tar is
read.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError, SampleIndexError, one_of, remedy_for_name
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, token_starts
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.lineage.explain import PieceOrigin, n_tokens, piece_origins
from nanoset_core.lineage.positions import Appearance, DocumentPlaces, covered_tokens, unseen
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.order import ranks, ranks_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.tars import shard_stem

_BUILD = "run `nanoset build`"
_KEY = re.compile(r"(?:.*/)?([0-9]+)_([0-9]+)(?:\.npy|\.json\.gz)?")
_TAR = re.compile(r"(?:.*/)?(?:shard-)?([0-9]+)(?:\.tar)?")


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
    """1 if a BOS token precedes it."""
    tokens: int
    """Tokens of the corpora in it."""
    pad_tokens: int
    """Tokens that fill it up."""
    pieces: tuple[PieceOrigin, ...]
    """In order; documents without tokens have none."""


@dataclass(frozen=True, slots=True, order=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context of a tar; `sample` is its number over all tars."""

    tar: str
    """Name of the tar."""
    key: str
    """Its `__key__`."""


class SourceSpan(NamedTuple):
    """Consecutive tokens of one source of a webdataset."""

    source: int
    """Number of the source."""
    start: int
    """Position of the first token among the source's tokens."""
    stop: int
    """Position after the last token."""


class _StoredPiece(NamedTuple):
    """Consecutive tokens of a document among the tokens of a source."""

    span: SourceSpan
    first: int
    """Position of the first token in the document."""


@dataclass(frozen=True)
class Tars:
    """The current version of a webdataset, with the plan and the datasets that it was made from."""

    name: str
    """Of the webdataset."""
    plan: ShufflePlan
    """Which context is where."""
    datasets: tuple[Dataset, ...]
    """In the order of the plan's sources."""

    @staticmethod
    def of(context: InspectionContext, name: str) -> Tars:
        """Open a webdataset.

        Raises:
            MissingError: There is none with this name, or its plan or one of its datasets was
                deleted.
        """
        outputs = context.outputs
        current = outputs.live(shuffling.STAGE, name)
        if current is None:
            folder = outputs.folder / shuffling.STAGE
            names = sorted(outputs.access.names(folder))
            remedy = f"{_BUILD}, or correct the name; for a nanoset name a split as well: train, valid or test"
            raise MissingError(
                "no such webdataset",
                where=outputs.access.url(folder / name),
                expected=one_of(names, "one that was built; there is none yet"),
                remedy=remedy_for_name(name, names, remedy),
            )

        gone = "what the webdataset was made from is gone"
        manifest = outputs.version(
            shuffling.PLANS, name, current.recipe["parents"]["plan"], gone, _BUILD
        )
        plan = manifest.load(shuffling.PLAN_FILE, ShufflePlan.from_json)
        digests = manifest.recipe["parents"]
        source_names = [source.name for source in plan.table.sources]
        datasets = [
            context.datasets.version(source, digests[source], gone, _BUILD)
            for source in source_names
        ]
        return Tars(name, plan, tuple(datasets))

    @cached_property
    def streams(self) -> tuple[Stream | None, ...]:
        """The tokens of each dataset in the order of its sequences; None for those whose `.bin` has
        that order.
        """
        streams: list[Stream | None] = []
        for dataset in self.datasets:
            streams.append(None if dataset.has_bin_order else Stream(dataset.sequences))
        return tuple(streams)

    @property
    def bos_tokens(self) -> int:
        """BOS tokens at the start of every context, 0 or 1."""
        return self.plan.sequence_length - self.plan.settings.row_tokens

    def position(self, place: str, sample: int | None = None) -> int:
        """Return the number over all tars of a context.

        Args:
            place: A key or member (`00000003_00000017.npy`), or that number itself; with `sample`,
                a tar or its number.
            sample: Number within the tar.

        Raises:
            ConfigError: This is neither a key nor a number.
            SampleIndexError: There is no such context.
        """
        plan = self.plan
        text = place if sample is None else f"{place} {sample}"
        key = _KEY.fullmatch(place)
        tar = _TAR.fullmatch(place)
        if sample is not None and tar is not None:
            shard = int(tar[1])
        elif sample is None and key is not None:
            shard = int(key[1])
            sample = int(key[2])
        elif sample is None and place.isascii() and place.isdigit():
            shard, sample = divmod(int(place), plan.shard_size)
        else:
            ways = f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0"
            raise ConfigError(
                "this names no context of a webdataset",
                where=self.name,
                found=text,
                expected=f"{ways}, or a number over all tars",
            )

        start = 0
        stop = 0
        if shard < plan.shards:
            start, stop = plan.shard_ranks(shard)
        if not 0 <= sample < stop - start:
            raise SampleIndexError(
                "no such context in the webdataset",
                where=self.name,
                found=text,
                expected=f"{plan.contexts:,} contexts, of {plan.shard_size:,} in each of {plan.shards:,} tars",
            )
        return start + sample

    def tar(self, position: int) -> str:
        """Return the name of the tar at a position."""
        return f"{shard_stem(position // self.plan.shard_size)}.tar"

    def key(self, position: int) -> str:
        """Return the key of the context at a position."""
        shard, sample = divmod(position, self.plan.shard_size)
        return f"{shard:08d}_{sample:08d}"

    def spans(self, context: int) -> Iterator[SourceSpan]:
        """Yield the tokens of a context. With the tail `carry`, a context may have tokens of
        several sources.
        """
        sources, starts, lengths = self.plan.table.locate(np.array([context], dtype=np.int64))
        source = int(sources[0])
        start = int(starts[0])
        remaining = int(lengths[0])
        while remaining > 0:
            stop = min(start + remaining, self.plan.table.sources[source].tokens)
            if stop > start:
                yield SourceSpan(source, start, stop)
            # The rest is at the start of the next source.
            remaining -= stop - start
            source += 1
            start = 0

    def places(self, source: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return where a document is in the tars, and why a part of it is nowhere.

        Args:
            source: Number of the document's dataset in `datasets`.
            origin: The document.
        """
        pieces = self._pieces(source, origin.dataset_document)
        n_held = sum(piece.span.stop - piece.span.start for piece in pieces)
        if not n_held:
            return DocumentPlaces(origin, (), 0, "never seen: it has no tokens")

        appearances: list[TarAppearance] = []
        n_planned = 0
        for piece in pieces:
            planned = self._appearances(piece)
            n_planned += covered_tokens([appearance.document_tokens for appearance in planned])
            # The last contexts of the order are in no tar, if all tars have the same number of
            # contexts.
            appearances += [
                appearance for appearance in planned if appearance.sample < self.plan.contexts
            ]
        appearances.sort()

        n_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        why = self._why_unseen(source, origin, n_held, n_planned, n_seen)
        reason = None if why is None else f"{unseen(n_seen, origin.tokens)}, because {why}"
        return DocumentPlaces(origin, tuple(appearances), n_seen, reason)

    def _why_unseen(
        self, source: int, origin: DocumentOrigin, n_held: int, n_planned: int, n_seen: int
    ) -> str | None:
        """Return why some tokens of a document are in no tar, or None if all are.

        Args:
            source: Number of the document's dataset.
            origin: The document.
            n_held: Tokens of it in the dataset.
            n_planned: Tokens of it in contexts of the plan.
            n_seen: Tokens of it in contexts of the tars.
        """
        if n_seen < n_planned:
            return "they lie in contexts that are left out so that all tars are equal (even)"
        if n_seen == origin.tokens:
            return None
        if n_seen == n_held:
            return "packing left them out"
        tail = "they lie in a tail that does not fill a context"
        if self.plan.table.sources[source].frequency < 1:
            return f"not all contexts of this corpus are taken, or {tail}"
        return tail

    def _pieces(self, source: int, document: int) -> list[_StoredPiece]:
        """Return where the tokens of a document are among those of a source."""
        pieces = self.datasets[source].pieces_of(document)
        sequences = np.array([piece.sequence for piece in pieces], np.int64)
        stream = self.streams[source]
        if stream is None:
            sequence_starts = token_starts(self.datasets[source].sequences, sequences).tolist()
        else:
            sequence_starts = stream.starts(sequences).tolist()

        stored: list[_StoredPiece] = []
        for piece, sequence_start in zip(pieces, sequence_starts, strict=True):
            span = SourceSpan(source, sequence_start + piece.start, sequence_start + piece.stop)
            stored.append(_StoredPiece(span, piece.first))
        return stored

    def _appearances(self, piece: _StoredPiece) -> list[TarAppearance]:
        """Return where tokens of a source are in the contexts of the plan, those that no tar holds
        included.
        """
        plan = self.plan
        wanted = piece.span
        # (n_contexts,) before the shuffle
        contexts = plan.table.containing(wanted.source, wanted.start, wanted.stop)
        # (n_contexts,) over all tars
        positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)
        to_document = piece.first - wanted.start
        appearances: list[TarAppearance] = []
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True):
            offset = self.bos_tokens
            for span in self.spans(context):
                start = max(span.start, wanted.start)
                stop = min(span.stop, wanted.stop)
                if span.source == wanted.source and start < stop:
                    to_sample = offset - span.start
                    appearances.append(
                        TarAppearance(
                            sample=position,
                            sample_tokens=(start + to_sample, stop + to_sample),
                            document_tokens=(start + to_document, stop + to_document),
                            tar=self.tar(position),
                            key=self.key(position),
                        )
                    )
                offset += span.stop - span.start
        return appearances


def explain_context(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    place: str | int,
    sample: int | None = None,
) -> ContextOrigin:
    """Return the documents that the tokens of a context in a webdataset's tars come from.

    Args:
        project_or_root: A project, or its output root alone; then no raw text is read, and nothing
            decoded.
        name: Name of a webdataset; its current version counts.
        place: Key or member, or number over all tars, from 0; with `sample` a tar or its number.
        sample: Number within that tar, from 0.

    Raises:
        MissingError: As `Tars.of`.
        ConfigError, SampleIndexError: As `Tars.position`.
    """
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection, name)
    plan = tars.plan
    position = tars.position(str(place), sample)
    context = int(ranks(plan.table.contexts, plan.settings.seed, position, position + 1)[0])

    pieces: list[PieceOrigin] = []
    offset = tars.bos_tokens
    for span in tars.spans(context):
        dataset = tars.datasets[span.source]
        spans = _sequence_spans(dataset.sequences, tars.streams[span.source], span.start, span.stop)
        pieces += chain.from_iterable(piece_origins(inspection, dataset, spans, offset))
        offset += span.stop - span.start

    tokens = n_tokens(pieces)
    first_source = int(np.searchsorted(plan.table.first_contexts, context, side="right")) - 1
    return ContextOrigin(
        name=name,
        tar=tars.tar(position),
        key=tars.key(position),
        position=position,
        context=context,
        corpus=plan.table.sources[first_source].name,
        bos_tokens=tars.bos_tokens,
        tokens=tokens,
        pad_tokens=plan.settings.row_tokens - tokens,
        pieces=tuple(pieces),
    )


def _sequence_spans(
    dataset: MMapIndexedDataset, stream: Stream | None, start: int, stop: int
) -> NDArray[np.int64]:
    """Return the parts of sequences that are the tokens [start, stop) of a dataset.

    Args:
        dataset: The dataset.
        stream: Its tokens in the order of its sequences, if its `.bin` does not have that order.
        start: Position of the first token.
        stop: Position after the last token.

    Returns:
        Sequence, first token in it and stop, int64, shape (n_parts, 3), none of them empty.
    """
    # The sequences that may hold these tokens, and where each begins: (n_sequences,).
    if stream is None:
        itemsize = dataset.dtype.itemsize
        first = bisect_right(dataset.sequence_pointers, start * itemsize) - 1
        last = bisect_left(dataset.sequence_pointers, stop * itemsize)
        sequence_starts = dataset.sequence_pointers[first:last] // itemsize
    else:
        all_starts = stream.starts(np.arange(len(dataset)))
        first = bisect_right(all_starts, start) - 1
        last = bisect_left(all_starts, stop)
        sequence_starts = all_starts[first:last]
    sequence_stops = sequence_starts + dataset.sequence_lengths[first:last]

    starts = np.maximum(start, sequence_starts) - sequence_starts
    stops = np.minimum(stop, sequence_stops) - sequence_starts
    has_tokens = stops > starts  # sequences of documents without tokens have none
    spans = np.stack([np.arange(first, last), starts, stops], axis=1)  # (n_sequences, 3)
    filled_spans: NDArray[np.int64] = spans[has_tokens].astype(np.int64)
    return filled_spans
