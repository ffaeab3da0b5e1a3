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
from nanoset_core.stages.webdataset.make import PLAN_FILE
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


class _TokenCounts(NamedTuple):
    """How many tokens of a document remain after each step to the tars.

    Tokens that are in several contexts count once.
    """

    document: int
    """Tokens of the document."""
    dataset: int
    """Tokens in the dataset that the webdataset is made from; packing may leave some out."""
    planned: int
    """Tokens in contexts of the plan."""
    written: int
    """Tokens in contexts of the tars."""


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
            # The user may have meant a nanoset: the same command explains its samples.
            remedy = (
                f"{_BUILD}, or correct the name; "
                "if it is a nanoset, name a split as well: train, valid or test"
            )
            raise MissingError(
                "no such webdataset",
                where=outputs.access.url(folder / name),
                expected=one_of(names, "one that was built; there is none yet"),
                remedy=remedy_for_name(name, names, remedy),
            )

        # Open the plan that it was made from, which may not be the current one.
        missing = "an output that the webdataset was made from was deleted"  # message of errors
        plan_digest = current.recipe["parents"]["plan"]
        manifest = outputs.version(
            PLANS,
            name,
            plan_digest,
            missing,
            remedy=_BUILD,
        )
        stored_plan = manifest.load(PLAN_FILE, StoredShufflePlan)
        plan = stored_plan.plan()

        # Open the versions of the datasets that the plan was made from.
        digest_by_source = manifest.recipe["parents"]
        datasets: list[Dataset] = []
        for source in plan.table.sources:
            digest = digest_by_source[source.name]
            dataset = context.datasets.version(source.name, digest, missing, remedy=_BUILD)
            datasets.append(dataset)
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

        A user may name a context in three ways:

            place                     sample    result
            `shard-00000003.tar`      17        (3, 17)        a tar, and a number in it
            `00000003_00000017.npy`   None      (3, 17)        a member of a tar, or its key
            `317`                     None      (3, 17)        a number over all tars, if each has
                                                               100 contexts

        Raises:
            ConfigError: This names no context.
        """
        tar = _TAR.fullmatch(place)
        if sample is not None and tar is not None:
            return int(tar[1]), sample
        key = _KEY.fullmatch(place)
        if sample is None and key is not None:
            return int(key[1]), int(key[2])
        is_number = place.isascii() and place.isdigit()
        if sample is None and is_number:
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

        # Its tokens in contexts of the plan. Count each token once, even if several contexts have
        # it. Pieces have no tokens in common, so their counts can be added.
        planned: list[TarAppearance] = []
        n_planned = 0
        for piece in pieces:
            in_piece = self._appearances(piece)
            n_planned += covered_tokens([appearance.document_tokens for appearance in in_piece])
            planned += in_piece

        # Its tokens in contexts of the tars. The plan may have a few contexts more: if all tars
        # must have the same number of contexts, those that do not fill a tar are written to none.
        n_written_contexts = self.plan.contexts
        written = [appearance for appearance in planned if appearance.sample < n_written_contexts]
        written.sort()
        n_written = covered_tokens([appearance.document_tokens for appearance in written])

        # If some of its tokens are in no tar, say why.
        counts = _TokenCounts(
            document=origin.tokens,
            dataset=n_in_dataset,
            planned=n_planned,
            written=n_written,
        )
        reason = None
        why = self._why_unseen(source, counts)
        if why is not None:
            reason = f"{unseen(n_written, origin.tokens)}, because {why}"
        return DocumentPlaces(origin, tuple(written), n_written, reason)

    def _why_unseen(self, source: int, counts: _TokenCounts) -> str | None:
        """Return why some tokens of a document are in no tar, or None if all are.

        Args:
            source: Number of the document's dataset.
            counts: How many tokens remain after each step from the document to the tars.
        """
        if counts.written == counts.document and counts.written == counts.planned:
            return None

        # Tokens may be lost in several steps. The reason is the last of these steps.
        if counts.written < counts.planned:
            return "they are in contexts that are left out so that all tars are equal (even)"
        if counts.planned == counts.dataset:
            return "packing left them out"

        # The end of a source is shorter than a context, and is left out of the plan.
        tail = "they lie in a tail that does not fill a context"
        # Of a source with a frequency below 1, only some contexts are planned. This may be the
        # cause as well.
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

        # (n_pieces,) how many tokens of the dataset are before the sequence of each piece. The
        # tokens are counted in the order in which they were cut into contexts.
        stream = self.streams[source]
        if stream is None:
            # This is the order of the .bin file, as for most datasets.
            sequence_starts = token_starts(dataset.sequences, sequences)
        else:
            # The .bin of a view may have another order than its sequences. Then the tokens were
            # taken in the order of the sequences.
            sequence_starts = stream.starts(sequences)

        # Convert positions in a sequence to positions among all tokens of the dataset.
        stored: list[_StoredPiece] = []
        for piece, sequence_start in zip(pieces, sequence_starts.tolist(), strict=True):
            span = SourceSpan(
                source=source,
                start=sequence_start + piece.start,
                stop=sequence_start + piece.stop,
            )
            # `piece.first` is the position in the document of the piece's first token.
            stored.append(_StoredPiece(span, piece.first))
        return stored

    def _appearances(self, piece: _StoredPiece) -> list[TarAppearance]:
        """Return which contexts of the plan contain tokens of a piece of a document.

        The plan may have a few contexts that were written to no tar. They are included; their
        number is larger than those of all contexts in tars.

        Args:
            piece: The piece.
        """
        # Find the contexts. The plan numbers them before the shuffle, and a hash of the number and
        # the seed decides where each is in the tars.
        plan = self.plan
        source, start, stop = piece.span
        contexts = plan.table.containing(source, start, stop)  # numbers before the shuffle
        # (n_contexts,) numbers over all tars
        positions = ranks_of(contexts, plan.table.contexts, plan.settings.seed)

        appearances: list[TarAppearance] = []
        for position, context in zip(positions.tolist(), contexts.tolist(), strict=True):
            # A context consists of spans of tokens, after a BOS token if there is one.
            tokens_before_span = self.bos_tokens
            for span in self.spans(context):
                # The tokens that the span and the piece have in common, as a range of the source.
                common_start = max(span.start, start)
                common_stop = min(span.stop, stop)
                if span.source == source and common_start < common_stop:
                    n_common = common_stop - common_start
                    start_in_context = tokens_before_span + common_start - span.start
                    start_in_document = piece.first + common_start - start
                    appearance = TarAppearance(
                        sample=position,
                        sample_tokens=(start_in_context, start_in_context + n_common),
                        document_tokens=(start_in_document, start_in_document + n_common),
                        tar=self.tar(position),
                        key=self.key(position),
                    )
                    appearances.append(appearance)
                tokens_before_span += span.stop - span.start
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
    """Divide a range of a dataset's tokens into the parts that are in different sequences.

    For example, if sequences 0, 1 and 2 have 4, 3 and 5 tokens, the tokens 2 to 9 of the dataset
    are tokens 2 to 4 of sequence 0, 0 to 3 of sequence 1, and 0 to 2 of sequence 2.

    Args:
        dataset: The dataset.
        stream: Its tokens in the order of its sequences; None if its `.bin` has that order.
        start: Position of the first token.
        stop: Position after the last token.

    Returns:
        Sequence, first token in it and stop, int64, shape (n_parts, 3). No part is empty.
    """
    # Find the sequences with these tokens: from the last one that begins at `start` or before it,
    # up to the first one that begins at `stop` or after it.
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
    # (n_sequences,) positions of these sequences among the tokens of the dataset
    sequence_stops = sequence_starts + dataset.sequence_lengths[first_sequence:stop_sequence]

    # Cut each sequence to the range, and count its tokens from its own start.
    starts = np.maximum(start, sequence_starts) - sequence_starts
    stops = np.minimum(stop, sequence_stops) - sequence_starts
    sequences = np.arange(first_sequence, stop_sequence)
    parts = np.stack([sequences, starts, stops], axis=1)  # (n_sequences, 3)

    # Sequences without tokens may be among them: leave these out.
    has_tokens = stops > starts
    filled_parts: NDArray[np.int64] = parts[has_tokens].astype(np.int64)
    return filled_parts
