"""Find the documents in a context of a webdataset, and the contexts that contain a document.

A webdataset cuts the tokens of its sources, which are datasets, into contexts of one length,
shuffles the contexts, and writes them to tars in this order. The shuffle is a function of a seed,
so the plan of the webdataset is enough to compute which context is where. No tar is read:

    tar and number in it = position ↔ context before the shuffle ↔ tokens of a source ↔ document
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
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan
from nanoset_core.stages.webdataset.recipes import PLANS
from nanoset_core.stages.webdataset.recipes import STAGE as WEBDATASETS
from nanoset_core.stages.webdataset.tars import shard_stem

_BUILD = "run `nanoset build`"
_KEY = re.compile(r"(?:.*/)?([0-9]+)_([0-9]+)(?:\.npy|\.json\.gz)?")
"""A key or a member of a tar, such as 00000003_00000017.npy: number of the tar, number in it."""
_TAR = re.compile(r"(?:.*/)?(?:shard-)?([0-9]+)(?:\.tar)?")
"""Name or path of a tar, or its number alone."""


@dataclass(frozen=True, slots=True)
class ContextOrigin:
    """The documents that the tokens of one context come from."""

    name: str
    """Name of the webdataset."""
    tar: str
    """Name of the tar that contains it."""
    key: str
    """Its `__key__`: the name of its member in the tar, without the ending."""
    position: int
    """Its number over all tars, from 0."""
    context: int
    """Its number before the shuffle, from 0."""
    corpus: str
    """Name of the dataset that its first token is from."""
    bos_tokens: int
    """1 if it begins with a BOS token, otherwise 0."""
    tokens: int
    """How many tokens of the sources it has."""
    pad_tokens: int
    """How many tokens of padding it has."""
    pieces: tuple[PieceOrigin, ...]
    """The documents in it, in order; those without tokens are left out."""


@dataclass(frozen=True, slots=True, order=True)
class TarAppearance(Appearance):
    """Tokens of a document in one context; `sample` is the context's number over all tars."""

    tar: str
    """Name of the tar."""
    key: str
    """The `__key__` of the context."""


class SourceSpan(NamedTuple):
    """Consecutive tokens of one source of a webdataset."""

    source: int
    """Number of the source in the plan."""
    start: int
    """Position of the first token among the source's tokens."""
    stop: int
    """Position after the last token."""


class _StoredPiece(NamedTuple):
    """Consecutive tokens of a document, and where they are among the tokens of a source."""

    span: SourceSpan
    """Where they are."""
    first: int
    """Position of the first of them in the document."""


@dataclass(frozen=True)
class Tars:
    """The current version of a webdataset, with the plan and the datasets that it was made from."""

    name: str
    """Name of the webdataset."""
    plan: ShufflePlan
    """Says which tokens form a context, and which context is where."""
    datasets: tuple[Dataset, ...]
    """The sources, in the order of the plan."""

    @staticmethod
    def of(context: InspectionContext, name: str) -> Tars:
        """Open a webdataset.

        Args:
            context: The project or output root.
            name: Name of the webdataset.

        Raises:
            MissingError: There is none with this name; or its plan, or one of its datasets, was
                deleted.
        """
        # The complete webdataset, which names its plan.
        outputs = context.outputs
        current = outputs.live(WEBDATASETS, name)
        if current is None:
            folder = outputs.folder / WEBDATASETS
            names = sorted(outputs.access.names(folder))
            remedy = (
                f"{_BUILD}, or correct the name; "
                "for a nanoset name a split as well: train, valid or test"
            )
            raise MissingError(
                "no such webdataset",
                where=outputs.access.url(folder / name),
                expected=one_of(names, "one that was built; there is none yet"),
                remedy=remedy_for_name(name, names, remedy),
            )

        # Open the versions that it was made from, which may not be the current ones.
        missing = "an output that the webdataset was made from was deleted"
        manifest = outputs.version(PLANS, name, current.recipe["parents"]["plan"], missing, _BUILD)
        plan = manifest.load(shuffling.PLAN_FILE, StoredShufflePlan).plan()
        digest_by_source = manifest.recipe["parents"]
        datasets: list[Dataset] = []
        for source in plan.table.sources:
            digest = digest_by_source[source.name]
            datasets.append(context.datasets.version(source.name, digest, missing, _BUILD))
        return Tars(name, plan, tuple(datasets))

    @cached_property
    def streams(self) -> tuple[Stream | None, ...]:
        """The tokens of each source in the order in which they are cut into contexts.

        This is the order of its sequences. None for a source whose `.bin` has the same order.
        """
        streams: list[Stream | None] = []
        for dataset in self.datasets:
            streams.append(None if dataset.has_bin_order else Stream(dataset.sequences))
        return tuple(streams)

    @property
    def bos_tokens(self) -> int:
        """How many BOS tokens are at the start of every context, 0 or 1."""
        return self.plan.sequence_length - self.plan.settings.row_tokens

    def position(self, place: str, sample: int | None = None) -> int:
        """Return a context's number over all tars, given the way in which a user names it.

        A context is a sample of a tar: a fixed number of tokens.

        Args:
            place: Without `sample`, the key or member of the context (`00000003_00000017.npy`), or
                its number over all tars. With `sample`, the tar or its number.
            sample: Number of the context within the tar, from 0.

        Raises:
            ConfigError: This names no context.
            SampleIndexError: There is no such context.
        """
        plan = self.plan
        tar, number = self._tar_and_number(place, sample)

        # The contexts of the tar, [start, stop) over all tars. The last tar may have fewer contexts
        # than the others, and a tar that does not exist has none.
        start = 0
        stop = 0
        if tar < plan.shards:
            start, stop = plan.shard_ranks(tar)
        if not 0 <= number < stop - start:
            raise SampleIndexError(
                "no such context in the webdataset",
                where=self.name,
                found=place if sample is None else f"{place} {sample}",
                expected=(
                    f"{plan.contexts:,} contexts, of {plan.shard_size:,} "
                    f"in each of {plan.shards:,} tars"
                ),
            )
        return start + number

    def _tar_and_number(self, place: str, sample: int | None) -> tuple[int, int]:
        """Return the number of a tar, and of a context within it, that a user named.

        Args:
            place: Without `sample`, the key or member of the context (`00000003_00000017.npy`), or
                its number over all tars. With `sample`, the tar or its number.
            sample: Number of the context within the tar, from 0.

        Raises:
            ConfigError: This names no context.
        """
        key = _KEY.fullmatch(place)
        tar = _TAR.fullmatch(place)
        if sample is not None and tar is not None:
            return int(tar[1]), sample
        if sample is None and key is not None:
            return int(key[1]), int(key[2])
        if sample is None and place.isascii() and place.isdigit():
            return divmod(int(place), self.plan.shard_size)

        ways = f"a key such as {self.key(0)}, a tar and a number such as {self.tar(0)} 0"
        raise ConfigError(
            "this names no context of a webdataset",
            where=self.name,
            found=place if sample is None else f"{place} {sample}",
            expected=f"{ways}, or a number over all tars",
        )

    def tar(self, position: int) -> str:
        """Return the name of the tar that contains the context at a position."""
        return f"{shard_stem(position // self.plan.shard_size)}.tar"

    def key(self, position: int) -> str:
        """Return the key of the context at a position, such as `00000003_00000017`."""
        shard, sample = divmod(position, self.plan.shard_size)
        return f"{shard:08d}_{sample:08d}"

    def spans(self, context: int) -> Iterator[SourceSpan]:
        """Yield the tokens of the sources that form a context, in order.

        With the tail `carry`, the last tokens of a source are completed by the first tokens of the
        next one, so that a context may have several spans.

        Args:
            context: Number of the context before the shuffle.
        """
        # The source in which the context begins, its first token there, and how many tokens it has.
        # `locate` takes and returns arrays for many contexts; these have one.
        sources, starts, lengths = self.plan.table.locate(np.array([context], dtype=np.int64))
        source = int(sources[0])
        start = int(starts[0])
        remaining = int(lengths[0])

        # Take tokens up to the end of the source, and continue with the next one.
        while remaining > 0:
            stop = min(start + remaining, self.plan.table.sources[source].tokens)
            if stop > start:
                yield SourceSpan(source, start, stop)
            remaining -= stop - start
            source += 1
            start = 0

    def places(self, source: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return which contexts of the tars contain a document, and why a part of it is in none.

        A context is a sample of a tar: a fixed number of tokens.

        Args:
            source: Number of the document's dataset in `datasets`.
            origin: The document.
        """
        # Its tokens in the dataset, which may be in several pieces if they were packed.
        pieces = self._pieces(source, origin.dataset_document)
        n_in_dataset = sum(piece.span.stop - piece.span.start for piece in pieces)
        if not n_in_dataset:
            return DocumentPlaces(origin, (), 0, "never seen: it has no tokens")

        # Its tokens in contexts.
        appearances: list[TarAppearance] = []
        n_planned = 0
        for piece in pieces:
            planned = self._appearances(piece)
            n_planned += covered_tokens([appearance.document_tokens for appearance in planned])
            # The plan may have more contexts than the tars: those beyond the last one were left out
            # because all tars must have the same number of contexts.
            for appearance in planned:
                if appearance.sample < self.plan.contexts:
                    appearances.append(appearance)
        appearances.sort()

        # Count each token once, even if several contexts have it.
        n_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        why = self._why_unseen(source, origin, n_in_dataset, n_planned, n_seen)
        reason = None
        if why is not None:
            reason = f"{unseen(n_seen, origin.tokens)}, because {why}"
        return DocumentPlaces(origin, tuple(appearances), n_seen, reason)

    def _why_unseen(
        self, source: int, origin: DocumentOrigin, n_in_dataset: int, n_planned: int, n_seen: int
    ) -> str | None:
        """Return why some tokens of a document are in no tar, or None if all are.

        Args:
            source: Number of the document's dataset.
            origin: The document.
            n_in_dataset: How many of its tokens are in the dataset.
            n_planned: How many of its tokens are in contexts of the plan.
            n_seen: How many of its tokens are in contexts of the tars.
        """
        # Find the step from the document to the tars in which tokens were lost, the last one first.
        if n_seen < n_planned:
            return "they are in contexts that are left out so that all tars are equal (even)"
        if n_seen == origin.tokens:
            return None
        if n_seen == n_in_dataset:
            return "packing left them out"

        # The rest of a source, which is shorter than a context, is left out of the plan.
        tail = "they lie in a tail that does not fill a context"
        # Of a source with a frequency below 1, only some contexts are in the tars.
        if self.plan.table.sources[source].frequency < 1:
            return f"not all contexts of this corpus are taken, or {tail}"
        return tail

    def _pieces(self, source: int, document: int) -> list[_StoredPiece]:
        """Return where the tokens of a document are among all tokens of its dataset.

        Args:
            source: Index of the dataset among those that the webdataset is made from.
            document: Number of the document in that dataset.

        Returns:
            One range of tokens for each piece of the document. A packed document may be cut into
            several pieces; a document without tokens has none.
        """
        dataset = self.datasets[source]
        pieces = dataset.pieces_of(document)
        sequences = np.array([piece.sequence for piece in pieces], np.int64)

        # The position of the first token of each of these sequences. The tars were written from the
        # tokens as the .bin stores them. Only if the .bin has another order than the sequences, as
        # that of a view may have, they were written in the order of the sequences.
        stream_in_sequence_order = self.streams[source]
        if stream_in_sequence_order is None:
            sequence_starts = token_starts(dataset.sequences, sequences).tolist()
        else:
            sequence_starts = stream_in_sequence_order.starts(sequences).tolist()

        stored: list[_StoredPiece] = []
        for piece, sequence_start in zip(pieces, sequence_starts, strict=True):
            span = SourceSpan(source, sequence_start + piece.start, sequence_start + piece.stop)
            stored.append(_StoredPiece(span, piece.first))
        return stored

    def _appearances(self, piece: _StoredPiece) -> list[TarAppearance]:
        """Return which contexts of the plan contain tokens of a piece of a document.

        Contexts that are in no tar are included: their position is beyond the last one of the tars.

        Args:
            piece: The piece.
        """
        # Find the contexts. The plan numbers them before the shuffle, and a hash of the number and
        # the seed decides where each is in the tars.
        plan = self.plan
        piece_span = piece.span
        # (n_contexts,) numbers before the shuffle
        contexts = plan.table.containing(piece_span.source, piece_span.start, piece_span.stop)
        # (n_contexts,) numbers over all tars
        positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)

        # Find the tokens that a context and the piece share. To convert a position among the
        # source's tokens, add `to_document` for the position in the document, and `to_sample` for
        # that in the context.
        to_document = piece.first - piece_span.start
        appearances: list[TarAppearance] = []
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True):
            offset = self.bos_tokens
            for span in self.spans(context):
                start = max(span.start, piece_span.start)
                stop = min(span.stop, piece_span.stop)
                if span.source == piece_span.source and start < stop:
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
    """Return the documents that the tokens of a context of a webdataset come from.

    Args:
        project_or_root: A project; or its output root alone, without whose settings no raw text is
            read, and no tokens are decoded.
        name: Name of a webdataset. Its current version is read.
        place: Without `sample`, the key or member of the context, or its number over all tars, from
            0. With `sample`, the tar or its number.
        sample: Number of the context within the tar, from 0.

    Raises:
        MissingError: There is no such webdataset; or its plan, or a dataset of it, was deleted.
        ConfigError: `place` and `sample` do not name a context.
        SampleIndexError: There is no such context.
    """
    # Find the context. A hash of its number before the shuffle decided its position in the tars.
    inspection = InspectionContext.of(project_or_root)
    tars = Tars.of(inspection, name)
    plan = tars.plan
    position = tars.position(str(place), sample)
    context = int(ranks(plan.table.contexts, plan.settings.seed, position, position + 1)[0])

    # Follow its tokens to sequences of the datasets, and these to documents.
    pieces: list[PieceOrigin] = []
    offset = tars.bos_tokens  # position in the context of the next token
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
    """Return which tokens of which sequences a range of a dataset's tokens consists of.

    Args:
        dataset: The dataset.
        stream: Its tokens in the order of its sequences; None if its `.bin` has that order.
        start: Position of the first token.
        stop: Position after the last token.

    Returns:
        Sequence, first token in it and stop, int64, shape (n_parts, 3). No part is empty.
    """
    # Find the sequences that may have these tokens, from `first_sequence` up to, but without,
    # `stop_sequence`, and where each begins among the tokens of the dataset: (n_sequences,).
    if stream is None:
        # The .idx stores the byte of the .bin at which each sequence begins.
        itemsize = dataset.dtype.itemsize
        start_bytes = dataset.sequence_pointers
        first_sequence = bisect_right(start_bytes, start * itemsize) - 1
        stop_sequence = bisect_left(start_bytes, stop * itemsize)
        sequence_starts = start_bytes[first_sequence:stop_sequence] // itemsize
    else:
        all_starts = stream.starts(np.arange(len(dataset)))
        first_sequence = bisect_right(all_starts, start) - 1
        stop_sequence = bisect_left(all_starts, stop)
        sequence_starts = all_starts[first_sequence:stop_sequence]
    sequence_lengths = dataset.sequence_lengths[first_sequence:stop_sequence]
    sequence_stops = sequence_starts + sequence_lengths

    # Cut each sequence to the range. Sequences without tokens are left out.
    starts = np.maximum(start, sequence_starts) - sequence_starts
    stops = np.minimum(stop, sequence_stops) - sequence_starts
    has_tokens = stops > starts
    sequences = np.arange(first_sequence, stop_sequence)
    spans = np.stack([sequences, starts, stops], axis=1)  # (n_sequences, 3)
    filled_spans: NDArray[np.int64] = spans[has_tokens].astype(np.int64)
    return filled_spans
