"""Search the index arrays of a split for the samples that contain a document.

A document's tokens are in sequences of a dataset. From a sequence, the search follows the arrays of
the split backwards:

    document index     entry → sequence              `positions_of`
    sample index       sample → entry, offset        `spans_of`
    shuffle index      position → sample             `renumbered`
    blend              position → dataset, position  `blended`

For example, a document is sequence 1 of its dataset. Entry 2 of the document index is this
sequence, sample 1 begins in this entry, and the shuffle index has a 1 at position 0: so sample 0 of
the split contains the document. The arrays are memory-mapped and read in chunks, so that the memory
stays small however many samples a split has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece

CHUNK = 1 << 20
"""How many entries of an array are read at once."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """Tokens of a document in one sample."""

    sample: int
    """Number of the sample in the split, from 0."""
    sample_tokens: tuple[int, int]
    """Their range (start, stop) within the sample."""
    document_tokens: tuple[int, int]
    """Their range (start, stop) within the document."""


@dataclass(frozen=True, slots=True)
class DocumentPlaces:
    """The samples of a split or webdataset that contain a document."""

    origin: DocumentOrigin
    """The document."""
    appearances: tuple[Appearance, ...]
    """Its tokens in samples, ordered by sample; none if it is never seen."""
    tokens_seen: int
    """How many of its tokens are in a sample; tokens that are in several samples count once."""
    reason: str | None
    """Why it, or a part of it, is never seen; None if all of it is seen."""


class Spans(NamedTuple):
    """Runs of tokens of one sequence in samples; each array is int64, shape (n_spans,)."""

    samples: NDArray[np.int64]
    """The sample of each span. Each step of the search numbers samples differently: as a row of the
    sample index, as a position in a dataset, or as a position in the split.
    """
    offsets: NDArray[np.int64]
    """Position in the sample at which the span begins."""
    starts: NDArray[np.int64]
    """Position in the sequence of its first token."""
    stops: NDArray[np.int64]
    """Position in the sequence after its last token."""

    @staticmethod
    def of_rows(rows: Sequence[tuple[int, int, int, int]]) -> Spans:
        """Return spans, given the values (sample, offset, start, stop) of each."""
        columns = np.array(rows, np.int64).reshape(-1, 4).T  # (4, n_spans)
        return Spans(*columns)

    @staticmethod
    def concatenate(parts: Sequence[Spans]) -> Spans:
        """Return the spans of all parts, in order; without parts, no spans.

        Args:
            parts: Spans of one sequence, or of one document.
        """
        empty = np.empty(0, np.int64)
        no_spans = Spans(empty, empty, empty, empty)  # sets the dtype if there are no parts
        columns = zip(no_spans, *parts, strict=True)  # `samples` of all parts, `offsets` of all …
        return Spans(*[np.concatenate(column) for column in columns])

    def select(self, rows: NDArray[Any]) -> Spans:
        """Return some of the spans.

        Args:
            rows: A mask, boolean of shape (n_spans,), or indices of spans.
        """
        return Spans(*[column[rows] for column in self])

    def rows(self) -> list[list[int]]:
        """Return the spans as Python numbers, a list [sample, offset, start, stop] for each."""
        rows: list[list[int]] = np.stack(self, axis=1).tolist()  # (n_spans, 4)
        return rows

    def clipped(self, start: int, stop: int) -> Spans:
        """Cut spans of tokens to a range, and leave out those that are outside of it.

        A span says which tokens of a sequence are in a training sample. For the range 10 to 20:

            span    tokens of the sequence    after clipping
            0       0 to 12                   10 to 12
            1       12 to 30                  12 to 20
            2       30 to 40                  left out

        Args:
            start: First token of the range, in the sequence.
            stop: Token after its last one.
        """
        starts = np.maximum(self.starts, start)
        stops = np.minimum(self.stops, stop)
        offsets = self.offsets + starts - self.starts
        has_tokens = stops > starts
        return Spans(self.samples, offsets, starts, stops).select(has_tokens)

    def covered(self) -> int:
        """Return how many tokens of the sequence are in a span; those in several count once."""
        ranges = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return covered_tokens(list(ranges))


def covered_tokens(ranges: Sequence[tuple[int, int]]) -> int:
    """Return how many tokens are in at least one of some ranges.

    For example, the ranges 0 to 4 and 2 to 6 have 6 tokens: those that are in both count once.

    Args:
        ranges: Pairs (start, stop) in any order, without the token at stop. They may overlap.
    """
    total = 0
    covered_stop = 0  # all tokens of the ranges before this one have been counted
    for start, stop in sorted(ranges):
        total += max(stop - max(start, covered_stop), 0)
        covered_stop = max(covered_stop, stop)
    return total


def unseen(n_unseen: int, n_tokens: int) -> str:
    """Return a clause that says how many tokens of a document training never sees.

    Args:
        n_unseen: How many of its tokens are in no sample.
        n_tokens: How many tokens it has.

    Returns:
        The clause, such as `never seen` or `7 of its 90 tokens are never seen`.
    """
    if n_unseen == n_tokens:
        return "never seen"
    return f"{n_unseen:,} of its {n_tokens:,} tokens are never seen"


class _PieceCounts(NamedTuple):
    """How many tokens of a piece of a document remain after each step to the samples of a split.

    Tokens that are in several samples count once. For example, of a piece of 90 tokens, 83 are in
    the sample index, since the last 7 do not fill a sample. If all its samples are drawn and
    blended, `drawn` and `seen` are 83, too.
    """

    tokens: int
    """Tokens of the piece."""
    document_tokens: int
    """Tokens of the whole document, which the message is about."""
    in_sample_index: int
    """Tokens in rows of the sample index."""
    drawn: int
    """Tokens in samples that the dataset contributes."""
    seen: int
    """Tokens in samples of the split."""

    @property
    def unseen(self) -> int:
        """Tokens of the piece that are in no sample of the split."""
        return self.tokens - self.seen


class Split(NamedTuple):
    """An open split of a nanoset, with the datasets that its samples are taken from."""

    context: InspectionContext
    """The project or output root."""
    name: str
    """Name of the nanoset."""
    loaded: Nanoset | BlendedNanoset
    """The samples of the split."""
    members: tuple[Nanoset, ...]
    """The samples of each dataset of its blend."""
    datasets: tuple[Dataset, ...]
    """The datasets, in the same order."""

    @staticmethod
    def of(
        context: InspectionContext,
        name: str,
        split: str,
        loaded: Nanoset | BlendedNanoset | None = None,
    ) -> Split:
        """Open the training samples of a split, with the datasets that they are taken from.

        A nanoset is a mixture of datasets, whose samples are divided into train, valid and test,
        the splits. Opening takes no time, since the samples were prepared by a build.

        Args:
            context: The opened outputs, and the settings of the project if they are known.
            name: Name of the nanoset.
            split: `train`, `valid` or `test`.
            loaded: Its samples, if they are loaded already.

        Raises:
            NanosetError: There is no such nanoset, it has not been built, or a file is damaged.
        """
        if loaded is None:
            loaded = load_nanoset(context.outputs, name, split)
        members = _one_member_per_dataset(loaded)
        datasets = [
            context.datasets.at(nanoset.member.prefix, nanoset.dataset) for nanoset in members
        ]
        return Split(context, name, loaded, members, tuple(datasets))

    def places(self, number: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return in which training samples a document is, and why a part of it is in none.

        For example, the document in line 12 of `a.jsonl` has 90 tokens. Samples are cut from the
        dataset, and the document is in two of them. The last 7 tokens did not fill a sample:

            sample 7 of train    tokens 0 to 50 of the document     an *appearance*
            sample 8 of train    tokens 50 to 83                    another one
            reason               "7 of its 90 tokens are never seen, because they lie in the …"

        Args:
            number: Which dataset of the split has the document: its index in `datasets`.
            origin: The document: its number, file and line.

        Returns:
            The samples; none if training never sees the document. `reason` then says why.
        """
        # The document is one piece, unless it was cut, or packed into sequences of fixed length.
        pieces = self.datasets[number].pieces_of(origin.dataset_document)
        document_tokens = _tokens_in_messages(pieces, origin)

        # Look for each piece in the samples, and collect the reasons for tokens that are in none.
        appearances: list[Appearance] = []
        reasons: list[str | None] = []
        for piece in pieces:
            placed = self._place_piece(self.members[number], piece, document_tokens)
            appearances += placed.appearances
            reasons.append(placed.reason)
        reasons.append(_why_not_in_dataset(pieces, origin.tokens))

        appearances.sort(key=lambda appearance: (appearance.sample, appearance.sample_tokens))
        tokens_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        return DocumentPlaces(origin, tuple(appearances), tokens_seen, _joined(reasons))

    def _place_piece(
        self, nanoset: Nanoset, piece: DocumentPiece, document_tokens: int
    ) -> _PlacedPiece:
        """Find the training samples that have tokens of a piece of a document.

        On the way from the dataset to the samples of a split, tokens may get lost at three steps.
        At each step, the tokens are *spans*: which tokens of the piece are in which sample. The
        samples get other numbers at each step:

            step                                       samples      tokens of 90 that remain
            cut samples from the sequences             40 and 41    83: the last 7 do not fill one
            shuffle the samples, and draw some         7 and 3      83
            mix samples of several datasets (blend)    15 and 6     83

        Args:
            nanoset: The samples of the document's dataset.
            piece: The piece: consecutive tokens of the document in one sequence of the dataset.
            document_tokens: Tokens of the whole document.

        Returns:
            The samples, and the reason why some tokens are in none.
        """
        # Samples are cut from the sequences of the dataset: find those with tokens of the piece.
        in_sample_index = spans_of(nanoset, piece.sequence).clipped(piece.start, piece.stop)
        # The samples are shuffled, and not all of them may be drawn.
        drawn = _drawn_spans(nanoset, in_sample_index)
        # If the split is a blend of several datasets, it takes samples of each in turn.
        seen = self._spans_in_split(nanoset, drawn)

        # Count how many tokens remain after each step, which shows where the others were lost.
        counts = _PieceCounts(
            tokens=piece.stop - piece.start,
            document_tokens=document_tokens,
            in_sample_index=in_sample_index.covered(),
            drawn=drawn.covered(),
            seen=seen.covered(),
        )
        reason = self._reason(nanoset, piece, counts)
        return _PlacedPiece(list(_appearances(piece, seen)), reason)

    def _spans_in_split(self, nanoset: Nanoset, spans: Spans) -> Spans:
        """Replace numbers of samples in a dataset by numbers of samples in a split, such as train.

        A split may be a blend, which takes samples of several datasets in turn. So samples get new
        numbers, and the blend may take a sample twice, or never:

            sample of the dataset    0      1          2
            sample of the blend      1      3 and 6    none

        Args:
            nanoset: The samples of one dataset of the split.
            spans: Which tokens of a document are in which of these samples.

        Returns:
            The same tokens in samples of the split.
        """
        if isinstance(self.loaded, Nanoset):
            return spans  # the only dataset of the split: its samples are those of the split
        dataset_number = self.loaded.datasets.index(nanoset)
        return blended(self.loaded, dataset_number, spans)

    def _reason(self, nanoset: Nanoset, piece: DocumentPiece, counts: _PieceCounts) -> str | None:
        """Return the sentence that says why training never sees some tokens of a document.

        For example, "7 of its 90 tokens are never seen in train, because they lie in the tail,
        which does not fill a sample". This function looks at one piece of the document, and so
        counts the missing tokens of this piece alone.

        Args:
            nanoset: The samples of the document's dataset.
            piece: Consecutive tokens of the document, in one sequence of the dataset.
            counts: How many tokens of the piece remain after each step to the samples of the split.

        Returns:
            The sentence, without a full stop; None if all tokens of the piece are seen.
        """
        split = nanoset.member.split
        if counts.tokens == 0:
            return f"never seen in {split}: it has no tokens"
        if counts.unseen == 0:
            return None
        clause = unseen(counts.unseen, counts.document_tokens)
        return f"{clause} in {split}, because {self._why_unseen(nanoset, piece, counts)}"

    def _why_unseen(self, nanoset: Nanoset, piece: DocumentPiece, counts: _PieceCounts) -> str:
        """Return why some tokens of a document are in no training sample: the end of a sentence.

        The tokens are one piece of the document. There are two kinds of reasons:

            the split does not read them    "it belongs to the valid split"; or "that part …" if the
                                            document has other pieces
            they were lost on the way       "they lie in the tail, which does not fill a sample"
            to its samples

        Args:
            nanoset: The samples of the document's dataset.
            piece: Consecutive tokens of the document in one sequence of the dataset.
            counts: How many of its tokens remain after each step.
        """
        plan = nanoset.member  # which sequences and samples of the dataset the split reads
        start, stop = plan.rows
        is_in_split = start <= piece.sequence < stop
        if not is_in_split:
            is_whole_document = counts.tokens == counts.document_tokens
            subject = "it" if is_whole_document else "that part"
            return f"{subject} belongs to {self._split_with(plan.prefix, piece.sequence)}"

        # A run may be divided into phases, which read the dataset in turn. Only the plan of a later
        # phase has an `order`: it says what the earlier phases have read.
        is_later_phase = plan.order is not None
        return _step_that_lost(counts, is_phase=is_later_phase)

    def _split_with(self, prefix: str, sequence: int) -> str:
        """Return which split of the nanoset reads a sequence of a dataset, to end a sentence.

        For example, "the valid split".

        Args:
            prefix: Path of the dataset's files, without their ending.
            sequence: Number of the sequence in the dataset.
        """
        for split in SPLITS:
            # Skip splits that have not been built, or have no share of the dataset.
            with suppress(NanosetError):
                loaded = load_nanoset(self.context.outputs, self.name, split)
                if _reads_sequence(loaded, prefix, sequence):
                    return f"the {split} split"
        return "no split that was built"


class _PlacedPiece(NamedTuple):
    """Where the tokens of a piece of a document are in the samples of a split."""

    appearances: list[Appearance]
    reason: str | None
    """Why some of its tokens are in no sample; None if all are in samples."""


def _tokens_in_messages(pieces: Sequence[DocumentPiece], origin: DocumentOrigin) -> int:
    """Return how many tokens a document has, for messages such as "7 of its 90 tokens are never
    seen".

    Usually a document is one piece of a dataset. But packing, which fills sequences of one length
    with documents, may cut a document into several pieces, and may leave out some tokens. Messages
    are about one piece. So, for a document of 100 tokens, 10 of which were left out by packing:

        pieces        result    message
        90            90        "7 of its 90 tokens": the piece is all that is left of the document
        50, 40        100       "7 of its 100 tokens": the piece is only a part of the document

    Args:
        pieces: The pieces of the document in the dataset.
        origin: The document: its number, file and line.
    """
    if len(pieces) == 1:
        return pieces[0].stop - pieces[0].start
    return origin.tokens


def _joined(reasons: Sequence[str | None]) -> str | None:
    """Return different reasons as one text, such as `reason A; reason B`; None without reasons."""
    different_reasons = dict.fromkeys(reason for reason in reasons if reason is not None)
    return "; ".join(different_reasons) or None


def _why_not_in_dataset(pieces: Sequence[DocumentPiece], n_tokens: int) -> str | None:
    """Return why some tokens of a document are not even in the dataset; None if all are.

    Packing, which fills sequences of one length with documents, may leave out the end of a
    document: "packing left out 10 of its 100 tokens".

    Args:
        pieces: The pieces of the document that the dataset has.
        n_tokens: Tokens of the document.
    """
    if not pieces:
        return "never seen: it has no tokens, and so no sequence in the dataset"
    n_left_out = n_tokens - sum(piece.stop - piece.start for piece in pieces)
    if n_left_out > 0:
        return f"packing left out {n_left_out:,} of its {n_tokens:,} tokens"
    return None


def _step_that_lost(counts: _PieceCounts, *, is_phase: bool) -> str:
    """Return the end of a sentence that says how tokens of a document got lost before training.

    There are three steps from a dataset to the samples that are read. Each may lose tokens:

        1. the dataset is cut into samples     the last tokens may not fill one
        2. the samples are shuffled            not all of them may be needed
        3. the blend mixes several datasets    it may take fewer samples than were prepared

    If several steps lost tokens, the last of them decides:

        lost at step 1 alone          names step 1
        lost at 2, and perhaps at 1   names step 2 alone
        lost at 3, and perhaps at     names step 3, and then step 1 if it lost some; step 2 only if
        others                        earlier phases have read the samples

    Args:
        counts: How many tokens of a piece of the document remain after each step.
        is_phase: Whether the split is a later phase of a run, which does not read the samples again
            that earlier phases have read.

    Returns:
        A clause that follows after "because".
    """
    is_lost_in_tail = counts.in_sample_index < counts.tokens
    is_lost_in_draw = counts.drawn < counts.in_sample_index
    is_lost_in_blend = counts.seen < counts.drawn

    if is_lost_in_blend:
        why = "the blend takes fewer samples of this corpus than were built"
        if is_lost_in_draw and is_phase:
            why += ", and earlier phases of the run read some"
        if is_lost_in_tail:
            why += ", and some lie in the tail, which does not fill a sample"
        return why
    if is_lost_in_draw:
        if is_phase:
            return "earlier phases of the run read the samples that hold them"
        return "the samples that hold them are not drawn"
    return "they lie in the tail, which does not fill a sample"


def _reads_sequence(loaded: Nanoset | BlendedNanoset, prefix: str, sequence: int) -> bool:
    """Return whether a split, such as train, reads a sequence of a dataset.

    The sequences of a dataset are divided among the splits: for example, train reads 0 to 979,
    valid 980 to 989, and test the others.

    Args:
        loaded: The samples of the split.
        prefix: Path of the dataset's files, without their ending.
        sequence: Number of the sequence in the dataset.
    """
    for nanoset in _members(loaded):
        plan = nanoset.member  # which sequences of which dataset the split reads
        start, stop = plan.rows
        if plan.prefix == prefix and start <= sequence < stop:
            return True
    return False


def _members(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    """Return the samples of each dataset of a split; a split that is not a blend has one.

    Args:
        loaded: The samples of the split.
    """
    if isinstance(loaded, Nanoset):
        return (loaded,)
    return loaded.datasets


def _one_member_per_dataset(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    """Return the samples of each dataset of a split, once if it is blended several times.

    Args:
        loaded: The samples of the split.
    """
    nanoset_by_prefix: dict[str, Nanoset] = {}
    for nanoset in _members(loaded):
        prefix = nanoset.member.prefix  # path of the dataset's files, without their ending
        nanoset_by_prefix[prefix] = nanoset
    return tuple(nanoset_by_prefix.values())


def _drawn_spans(nanoset: Nanoset, spans: Spans) -> Spans:
    """Keep the tokens whose training samples are read, with numbers in the order of reading.

    Samples are cut from a dataset first, and then shuffled. For example, there are three samples,
    and the shuffle index is [2, 0]: sample 2 is read first, and then sample 0.

        sample before the shuffle    0    1          2
        number in the order          1    not read   0

    A run may be divided into phases, which read on in the same order. A phase that begins at number
    1 does not read sample 2, which an earlier phase has read.

    Args:
        nanoset: The samples of the dataset.
        spans: Which tokens of a document are in which samples, numbered before the shuffle.

    Returns:
        Those in samples that are read, with numbers in the order of reading.
    """
    drawn = renumbered(spans, _chunks_of(nanoset.shuffle_index))

    # Leave out what earlier phases have read: the numbers before `begin`, which is usually 0.
    return drawn.select(drawn.samples >= nanoset.member.begin)


def _appearances(piece: DocumentPiece, spans: Spans) -> Iterator[Appearance]:
    """Yield which tokens of a document are in which training samples.

    A document is usually a sequence of its own. But a sequence may also have several documents, or
    a part of one. So positions in the sequence are converted to positions in the document:

        tokens of the sequence    200 to 250 are tokens 100 to 150 of the document
        in sample 7               its tokens 0 to 50

    Args:
        piece: A piece of the document: consecutive tokens of it that are in one sequence.
        spans: Runs of tokens of this piece, with the samples that have them.

    Yields:
        One appearance for each run: sample 7, its tokens (0, 50), the document's tokens (100, 150).
    """
    # Token i of the sequence is token i + shift of the document.
    shift = piece.first - piece.start
    for sample, sample_start, sequence_start, sequence_stop in spans.rows():
        n_tokens = sequence_stop - sequence_start
        yield Appearance(
            sample=sample,
            sample_tokens=(sample_start, sample_start + n_tokens),
            document_tokens=(sequence_start + shift, sequence_stop + shift),
        )


def positions_of(values: NDArray[np.integer[Any]], value: int) -> NDArray[np.int64]:
    """Return the positions at which an array has a value, for arrays that do not fit into memory.

    Args:
        values: The array, usually a memory-mapped file, shape (n_values,). It is read in chunks.
        value: The value to look for.

    Returns:
        Shape (n_positions,), ascending: [0, 2] for the value 7 in [7, 3, 7].
    """
    parts = [np.empty(0, np.int64)]  # the dtype of the result if the array is empty
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        parts.append(start + np.flatnonzero(chunk == value))
    return np.concatenate(parts)


def spans_of(nanoset: Nanoset, sequence: int) -> Spans:
    """Find the training samples that contain tokens of one sequence of a dataset.

    A dataset consists of sequences, each usually a document. They are put one after another, in a
    shuffled order, and cut into samples of one length. So a long sequence is in several samples:

        sequences    A A A B B B B B B C
        samples      0 0 0 0 1 1 1 1 2 2        B is in the samples 0, 1 and 2

    Args:
        nanoset: The samples of a dataset.
        sequence: Number of a sequence of the dataset.

    Returns:
        The tokens of the sequence in each of these samples. If it is read in several epochs, it is
        in more samples. Samples have the numbers from before they are shuffled.
    """
    # The document index lists a sequence once for each epoch that reads it.
    entries = positions_of(nanoset.document_index, sequence).tolist()
    return Spans.concatenate([_spans_of_entry(nanoset, entry) for entry in entries])


def _samples_with_entry(sample_index: NDArray[Any], entry: int) -> range:
    """Return the samples that contain an entry of the document index, or begin or end in it.

    Samples are cut from the documents in a shuffled order, the document index. For example, it has
    8 entries, and there are three samples:

        sample    begins in entry    has the entries
        0         4                  4, 5, and the start of 6
        1         6                  a part of 6
        2         6                  the rest of 6, and 7

    Which samples have tokens of entry 6? Samples 1 and 2, which begin in it, and the last sample
    that begins before it, sample 0. Of entry 5, only sample 0: none begins in it.

    Args:
        sample_index: Row j has the entry in which sample j begins, and an offset; ascending, shape
            (n_samples + 1, 2). The last row says where the last sample ends.
        entry: Position in the document index.
    """
    n_samples = len(sample_index) - 1
    start_entries = sample_index[:, 0]

    # How many samples begin before the entry (1 for entry 6), and how many in it or before it (3).
    n_before = bisect_left(start_entries, entry)
    n_before_or_in = bisect_right(start_entries, entry)

    # Begin with the last one that begins before the entry, if there is one. The last row of the
    # sample index may have been counted, but is no sample.
    first = max(n_before - 1, 0)
    stop = min(n_before_or_in, n_samples)
    return range(first, stop)


def _spans_of_entry(nanoset: Nanoset, entry: int) -> Spans:
    """Find the training samples with tokens of a sequence, for one reading of the sequence.

    The *document index* lists the sequences of a dataset (usually its documents) in the order in
    which they are read. An entry of it is one reading. Samples are cut from this order. The *sample
    index* says where each one starts: at which entry, and at which token of the sequence there. For
    example:

        sample    entry    token
        0         4        7
        1         6        2        so sample 0 ends before token 2 of entry 6
        2         6        9        so sample 1 ends before token 9 of entry 6

    So of the sequence of entry 6, the tokens 0 and 1 are in sample 0, and the tokens 2 to 8 in
    sample 1.

    Args:
        nanoset: The samples of a dataset.
        entry: Position in its document index.

    Returns:
        The spans: sample, position in the sample, and the first and last token of the sequence.
        Samples have the numbers from before they are shuffled.
    """
    sequence = nanoset.document_index[entry]
    length = int(nanoset.dataset.sequence_lengths[sequence])
    # Samples may overlap by a token: the label of one is the first input of the next.
    overlap = nanoset.config.overlap

    rows: list[tuple[int, int, int, int]] = []
    for sample in _samples_with_entry(nanoset.sample_index, entry):
        start_entry, start_offset = nanoset.sample_index[sample].tolist()
        stop_entry, stop_offset = nanoset.sample_index[sample + 1].tolist()

        # A sample that begins in an earlier entry has the sequence from its first token on, and one
        # that ends in a later entry has it up to its last token.
        start = start_offset if start_entry == entry else 0
        stop = stop_offset + overlap if stop_entry == entry else length
        if start < stop:
            offset = _tokens_before_entry(nanoset, sample, entry)
            rows.append((sample, offset, start, stop))
    return Spans.of_rows(rows)


def _tokens_before_entry(nanoset: Nanoset, sample: int, entry: int) -> int:
    """Return how many tokens a training sample has before one of the sequences in it.

    The sample starts within a sequence, and continues with the next ones. For example, it starts
    with token 7 of a sequence of 10, and continues with one of 5:

        entry in the order of the sequences    4     5    6
        tokens of the sequence                 10    5    …
        tokens in the sample                   3     5    …     8 tokens before entry 6

    Args:
        nanoset: The samples of the dataset.
        sample: Number of the sample before the shuffle.
        entry: Position in the document index, the order of the sequences. The sample begins in this
            entry, or before it.
    """
    start_entry, start_offset = nanoset.sample_index[sample].tolist()
    if start_entry == entry:
        return 0
    sequences = nanoset.document_index[start_entry:entry]
    lengths = nanoset.dataset.sequence_lengths[sequences]  # 10, 5 in the example
    # Tokens of the first sequence, 7 in the example, are in earlier samples.
    n_in_earlier_samples = int(start_offset)
    return int(lengths.sum(dtype=np.int64)) - n_in_earlier_samples


def blended(loaded: BlendedNanoset, number: int, spans: Spans) -> Spans:
    """Find which samples of a blend have the tokens of a document.

    A blend takes its samples from several datasets in turn. It is known already which samples of
    one dataset have the tokens. For example, sample 3 of web may be sample 7 of the blend. If the
    blend takes it twice, its tokens are returned twice, and if the blend never takes it, they are
    left out.

    Args:
        loaded: The blend.
        number: Number of the dataset in the blend.
        spans: Runs of a document's tokens. Their `samples` are numbers of samples of this dataset.

    Returns:
        The spans, whose `samples` are now numbers of samples of the blend.
    """
    return renumbered(spans, _samples_of_dataset(loaded, number))


def _samples_of_dataset(loaded: BlendedNanoset, number: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each sample of a blend, which sample of one dataset it is; -1 if it is of another.

    A blend takes its samples from several datasets in turn. For example:

        sample of the blend            0        1        2          3
        is sample                      0 of web 1 of web 0 of books 2 of web
        result for web                 0        1        -1         2

    Args:
        loaded: The blend.
        number: Number of the dataset in the blend.

    Yields:
        Consecutive parts of this list, shape (n,).
    """
    n_samples = len(loaded.datasets[number])
    chunks_of_datasets = _chunks_of(loaded.dataset_index)
    chunks_of_samples = _chunks_of(loaded.dataset_sample_index)
    for datasets, samples in zip(chunks_of_datasets, chunks_of_samples, strict=True):
        # Some trainers read a dataset from its start again once all its samples are read: of 10
        # samples, number 12 is sample 2 again.
        if loaded.config.rules.wraps == "read":
            samples %= n_samples
        yield np.where(datasets == number, samples, -1)


def _chunks_of(values: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.int64]]:
    """Yield copies of consecutive parts of an array, which may be too large for memory.

    Args:
        values: The array, usually a memory-mapped file, shape (n_values,).
    """
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK].astype(np.int64)


def renumbered(spans: Spans, samples_in_chunks: Iterable[NDArray[np.int64]]) -> Spans:
    """Replace the sample of each span by the places at which a list names this sample.

    A span says which tokens of a document are in which training sample. Samples get new numbers
    when they are shuffled, or mixed with samples of other data. The list says which sample has each
    new number. For example, the list 7 3 7 says that the new sample 0 is the old sample 7, the new
    sample 1 is the old sample 3, and the new sample 2 is the old sample 7 again:

        span of sample    becomes
        3                 a span of sample 1
        5                 nothing: the sample is not in the list
        7                 two spans, of the samples 0 and 2

    Args:
        spans: The spans.
        samples_in_chunks: The list, in consecutive parts: numbers of samples, or -1 for none.

    Returns:
        The new spans, ordered by sample.
    """
    if not len(spans.samples):
        return spans  # without reading the list, which may be long

    # Sort the spans, so that those of one sample are neighbours: 3, 5, 7 in the example.
    spans = spans.select(np.argsort(spans.samples, kind="stable"))

    parts: list[Spans] = []
    chunk_start = 0  # position of the chunk in the list
    for chunk in samples_in_chunks:
        # At which positions in the chunk are samples that have spans? These are usually few.
        hits = np.flatnonzero(np.isin(chunk, spans.samples))  # (n_hits,) 0 1 2

        # The spans are sorted, so those of the sample at each of these positions are a range: for
        # the samples 7 3 7, the ranges from span 2 to 3, from 0 to 1, and again from 2 to 3.
        first_spans = np.searchsorted(spans.samples, chunk[hits], side="left")  # 2 0 2
        stop_spans = np.searchsorted(spans.samples, chunk[hits], side="right")  # 3 1 3
        span_counts = stop_spans - first_spans  # 1 1 1

        # Copy these ranges of spans, and give them their new numbers: the positions in the list.
        copies = spans.select(positions_in(first_spans, span_counts))
        parts.append(copies._replace(samples=np.repeat(chunk_start + hits, span_counts)))
        chunk_start += len(chunk)
    return Spans.concatenate(parts)
