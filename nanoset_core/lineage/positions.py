"""Search the index arrays of a split for the samples that contain a document.

A document's tokens are in sequences of a dataset. From a sequence, the search follows the arrays of
the split backwards:

    document index     entry → sequence              `positions_of`
    sample index       sample → entry, offset        `spans_of`
    shuffle index      position → sample             `renumbered`
    blend              position → dataset, position  `renumbered`

For example, a document is sequence 1 of its dataset. Entry 2 of the document index is this
sequence, sample 1 begins in this entry, and the shuffle index has a 1 at position 0: so sample 0 of
the split contains the document. The arrays are memory-mapped and read in chunks, so that the memory
stays small however many samples a split has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
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
from nanoset_core.stages.handoff.steps import Dealer

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
        # Where the spans begin in their samples. A span that begins later in the sequence also
        # begins later in the sample.
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


class _LostTokens(NamedTuple):
    """How many tokens of a document get lost at each step from its dataset to training.

    Tokens that are in several samples count once.
    """

    at_cut: int
    """When samples are cut from the dataset: the last tokens may not fill a sample."""
    at_shuffle: int
    """When the samples are shuffled: not all of them may be used."""
    at_blend: int
    """When the run takes samples, or mixes those of several datasets: fewer may be needed than were
    prepared.
    """

    @property
    def total(self) -> int:
        """How many tokens are never seen in training."""
        return self.at_cut + self.at_shuffle + self.at_blend


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
    stop: int | None = None
    """Number after the last sample that the run reads; None if it may read any of them."""

    @staticmethod
    def of(
        context: InspectionContext,
        name: str,
        split: str,
        loaded: Nanoset | BlendedNanoset | None = None,
    ) -> Split:
        """Open the training samples of a split, with the datasets that they are taken from.

        Args:
            context: The opened outputs, and the settings of the project if they are known.
            name: Name of the nanoset: training samples from one dataset, or a mixture of samples
                from several datasets (a `BlendedNanoset`).
            split: `train`, `valid` or `test`: the part of its samples.
            loaded: The samples, if they are loaded already.

        Raises:
            NanosetError: There is no such nanoset, it has not been built, or a file is damaged.
        """
        if loaded is None:
            loaded = load_nanoset(context.outputs, name, split)

        # The samples of each dataset, before they are mixed.
        samples_by_dataset = _one_member_per_dataset(loaded)

        # The datasets, which know their documents. Each is found by the path of its files, without
        # their ending.
        datasets: list[Dataset] = []
        for nanoset in samples_by_dataset:
            path = nanoset.member.prefix
            datasets.append(context.datasets.at(path, nanoset.dataset))

        return Split(
            context=context,
            name=name,
            loaded=loaded,
            members=samples_by_dataset,
            datasets=tuple(datasets),
            stop=_stop_of_run(loaded),  # the run may need fewer samples than were built
        )

    def documents_within(self, number: int, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of some documents of a dataset belong to this split.

        Train, valid and test may share a dataset: each has a range of its sequences.

        Args:
            number: Which dataset of the split has the documents: its index in `datasets`.
            documents: Numbers of documents of this dataset, shape (n_documents,).

        Returns:
            Shape (n_documents_within,), in the same order.
        """
        start, stop = self.members[number].member.rows
        return self.datasets[number].documents_within(documents, start, stop)

    def places(self, number: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Find the training samples that contain a document.

        For example, a document of 90 tokens is in two samples. Its last 7 tokens are in none:

            sample 7     tokens 0 to 50 of the document
            sample 8     tokens 50 to 83
            reason       "7 of its 90 tokens are never seen, because they lie in the tail, …"

        Args:
            number: Which dataset of the split has the document: its index in `datasets`.
            origin: The document: its number, file and line.

        Returns:
            The samples. If some tokens of the document are in none, `reason` says why.
        """
        # The dataset stores the document in one piece, or a long one in several.
        samples_of_dataset = self.members[number]
        pieces = self.datasets[number].pieces_of(origin.dataset_document)
        n_tokens = _tokens_in_messages(pieces, origin.tokens)  # 90
        placed_pieces = [self._place_piece(samples_of_dataset, piece, n_tokens) for piece in pieces]

        appearances = _sorted_appearances(placed_pieces)
        tokens_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        reasons = _reasons_in_split(placed_pieces, n_tokens, samples_of_dataset.member.split)
        reasons += _reasons_before_split(pieces, origin.tokens)
        return DocumentPlaces(origin, tuple(appearances), tokens_seen, _joined(reasons))

    def _place_piece(
        self, nanoset: Nanoset, piece: DocumentPiece, document_tokens: int
    ) -> _PlacedPiece:
        """Find the training samples that contain a piece of a document.

        Samples are cut from a dataset, shuffled, and mixed with those of other datasets. Follow the
        tokens of the piece through these three steps, and count how many get lost at each.

        Args:
            nanoset: The samples of the dataset.
            piece: Consecutive tokens of the document in one sequence of the dataset.
            document_tokens: Tokens of the whole document, for the message about lost ones.

        Returns:
            The samples, and why some tokens are in none.
        """
        cut = spans_of(nanoset, piece.sequence).clipped(piece.start, piece.stop)
        shuffled = _shuffled_spans(nanoset, cut)  # some samples may never be used
        mixed = self._mixed_and_read(nanoset, shuffled)

        n_tokens = piece.stop - piece.start
        lost = _LostTokens(
            at_cut=n_tokens - cut.covered(),
            at_shuffle=cut.covered() - shuffled.covered(),
            at_blend=shuffled.covered() - mixed.covered(),
        )
        cause = None
        if document_tokens == 0:
            cause = "it has no tokens"
        elif lost.total > 0:
            is_whole = n_tokens == document_tokens
            cause = self._why_unseen(nanoset, piece, lost, is_whole=is_whole)
        return _PlacedPiece(_appearances(piece, mixed), lost.total, cause)

    def _mixed_and_read(self, nanoset: Nanoset, spans: Spans) -> Spans:
        """Return the tokens of a dataset's samples that remain when these are mixed and read.

        If the split has several datasets, their samples are mixed, and get other numbers. And there
        may be more samples than the run reads.

        Args:
            nanoset: The samples of the dataset.
            spans: Tokens of these samples, which are numbered before they are mixed.
        """
        mixed = spans
        if isinstance(self.loaded, BlendedNanoset):
            dataset_number = self.loaded.datasets.index(nanoset)
            mixed = renumbered(spans, samples_of_dataset(self.loaded, dataset_number))
        if self.stop is None:
            return mixed
        return mixed.select(mixed.samples < self.stop)

    def _why_unseen(
        self, nanoset: Nanoset, piece: DocumentPiece, lost: _LostTokens, *, is_whole: bool
    ) -> str:
        """Return why training never sees some tokens of a document, such as "it belongs to valid".

        The sequences of a dataset are divided among train, valid and test. The one with these
        tokens may belong to another split. Otherwise, they were lost on the way to the samples.

        Args:
            nanoset: The samples that were cut from the document's dataset for this split.
            piece: The document, or a part of it: consecutive tokens in one sequence of the dataset.
            lost: How many of its tokens got lost at each step from the dataset to training.
            is_whole: Whether the piece is the whole document.

        Returns:
            The end of a sentence, which follows "because".
        """
        plan = nanoset.member
        start_sequence, stop_sequence = plan.rows  # the sequences of this split
        is_in_this_split = start_sequence <= piece.sequence < stop_sequence
        if not is_in_this_split:
            split = self._split_with(plan.prefix, piece.sequence)
            return f"it belongs to {split}" if is_whole else f"they belong to {split}"

        takes_from_several = isinstance(self.loaded, BlendedNanoset)
        # If the settings were changed during the training, a new phase began. Its plan has an
        # `order`, which leaves out the samples that earlier phases have read.
        has_earlier_phases = plan.order is not None
        return _why_lost(
            lost,
            taker="blend" if takes_from_several else "run",
            has_earlier_phases=has_earlier_phases,
        )

    def _split_with(self, prefix: str, sequence: int) -> str:
        """Return which split reads a sequence of a dataset, such as "the valid split".

        Args:
            prefix: Path of the dataset's files, without their ending.
            sequence: Number of the sequence in the dataset.

        Returns:
            The end of a sentence, which follows "it belongs to".
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
    n_lost: int
    """How many of its tokens are in no sample."""
    cause: str | None
    """Why they are not, the end of a sentence after "because"; None if all are in samples."""


def _sorted_appearances(placed_pieces: Iterable[_PlacedPiece]) -> list[Appearance]:
    """Return where the tokens of all pieces are in samples, ordered by sample.

    Args:
        placed_pieces: The pieces of a document, in their order in the document.
    """
    appearances: list[Appearance] = []
    for placed in placed_pieces:
        appearances += placed.appearances
    return sorted(appearances, key=lambda appearance: (appearance.sample, appearance.sample_tokens))


def _reasons_in_split(
    placed_pieces: Sequence[_PlacedPiece], n_tokens: int, split: str
) -> list[str]:
    """Return a clause for each reason why tokens of a document are in no sample of a split.

    For example, two pieces lie in the tail of the data, and have lost 3 and 4 tokens there. These
    are counted together: "7 of its 90 tokens are never seen in train, because they lie in …".

    Args:
        placed_pieces: The pieces of the document, with the tokens that each has lost.
        n_tokens: Tokens of the document.
        split: Name of the split, such as `train`.
    """
    lost_by_cause: Counter[str] = Counter()  # {"they lie in the tail, …": 7}
    for placed in placed_pieces:
        if placed.cause is not None:
            lost_by_cause[placed.cause] += placed.n_lost
    reasons: list[str] = []
    for cause, n_lost in lost_by_cause.items():
        reasons.append(f"{unseen(n_lost, n_tokens)} in {split}, because {cause}")
    return reasons


def _tokens_in_messages(pieces: Sequence[DocumentPiece], n_tokens: int) -> int:
    """Return the size of a document for messages such as "7 of its 90 tokens are never seen".

    Usually, this is the number of its tokens. But packing, which fills sequences of one length with
    documents, may have truncated the document. A truncated document is one piece:

        tokens of the document    pieces in the dataset    result
        100                       100 tokens               100
        100                       90 tokens                90     truncated: 10 tokens are left out
        100                       60 and 40 tokens         100    cut, since it is too long

    That 10 tokens were left out is the subject of another message.

    Args:
        pieces: The pieces of the document that the dataset has.
        n_tokens: Tokens of the document.
    """
    if len(pieces) == 1:
        piece = pieces[0]
        return piece.stop - piece.start
    return n_tokens


def _joined(reasons: Sequence[str]) -> str | None:
    """Return different reasons as one text, such as `reason A; reason B`; None without reasons."""
    different_reasons = dict.fromkeys(reasons)
    return "; ".join(different_reasons) or None


def _reasons_before_split(pieces: Sequence[DocumentPiece], n_tokens: int) -> list[str]:
    """Return why some tokens of a document are not even in the dataset.

    Packing, which fills sequences of one length with documents, may leave out the end of a
    document: "packing left out 10 of its 100 tokens".

    Args:
        pieces: The pieces of the document that the dataset has.
        n_tokens: Tokens of the document.

    Returns:
        A list with the reason; an empty one if all tokens are in the dataset.
    """
    if not pieces:
        return ["never seen: it has no tokens, and so no sequence in the dataset"]
    n_left_out = n_tokens - sum(piece.stop - piece.start for piece in pieces)
    if n_left_out > 0:
        return [f"packing left out {n_left_out:,} of its {n_tokens:,} tokens"]
    return []


def _why_lost(lost: _LostTokens, taker: str, *, has_earlier_phases: bool) -> str:
    """Return why tokens of a document are in no training sample, for the end of a sentence.

    For example, "they lie in the tail, which does not fill a sample".

    Args:
        lost: How many of its tokens got lost at each of three steps.
        taker: What takes samples of the corpus: "blend" or "run".
        has_earlier_phases: Whether the training consists of several phases, of which this is not
            the first. A phase does not read the samples of earlier phases again.
    """
    # The last step that lost some is the most important: begin with it.
    if lost.at_blend > 0:
        reasons = [f"the {taker} takes fewer samples of this corpus than were built"]
        if lost.at_shuffle > 0 and has_earlier_phases:
            reasons.append("earlier phases of the run read some")
        if lost.at_cut > 0:
            reasons.append("some lie in the tail, which does not fill a sample")
        return ", and ".join(reasons)
    if lost.at_shuffle > 0:
        if has_earlier_phases:
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


def _stop_of_run(loaded: Nanoset | BlendedNanoset) -> int | None:
    """Return the number after the last sample of a split that a training run reads.

    Index files are built for whole epochs, so there may be more samples than the run needs:

        built    needed     the trainer reads them     result
        1,000    400        in order                   400: samples 0 to 399 are read
        1,000    400        shuffled                   None: any sample may be read
        1,000    all        in order or shuffled       None

    Args:
        loaded: The samples of the split.
    """
    if not _may_be_read_in_order(loaded):
        return None
    # All samples are of the same split, so the plan for any of the datasets names it.
    first_member, *_ = _members(loaded)
    split = first_member.member.split  # "train"
    return loaded.config.samples(split)  # 400; None if all are needed


def _may_be_read_in_order(loaded: Nanoset | BlendedNanoset) -> bool:
    """Return whether a trainer with its usual data loader reads the samples of a split in order.

    A run may also choose a data loader that shuffles them. That is not known here: it is an
    argument of the trainer.

    Args:
        loaded: The samples of the split.
    """
    config = loaded.config
    dealer = Dealer.of(
        preset=config.preset,  # the trainer
        # The default of Megatron-LM. Some other trainers shuffle the samples even then.
        dataloader_type="single",
        total=len(loaded),
        random_seed=config.random_seed,
    )
    return dealer.reads_in_order


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


def _shuffled_spans(nanoset: Nanoset, spans: Spans) -> Spans:
    """Renumber training samples from the order of the dataset to the order of reading.

    The shuffle index lists the samples in the order of reading. For example, it is [2, 0]: sample 2
    is read first, so its new number is 0. Sample 0 gets the number 1, and sample 1 is never read.

    Args:
        nanoset: The samples of a dataset.
        spans: Which tokens of a document are in which samples, in the order of the dataset.

    Returns:
        The same with new numbers of samples, without the samples that are not read.
    """
    shuffled = renumbered(spans, _chunks_of(nanoset.shuffle_index))

    # A training that is continued with other settings begins in the middle of the order.
    begin = nanoset.member.begin  # 0 at the start of a training
    return shuffled.select(shuffled.samples >= begin)


def _appearances(piece: DocumentPiece, spans: Spans) -> list[Appearance]:
    """Return which tokens of a document are in which training samples.

    The spans count tokens from the start of a sequence, which may have several documents. The
    result counts them from the start of the document.

    Args:
        piece: Where the document is in the sequence. For example, it begins at token 200.
        spans: Which tokens of the sequence are in which samples, such as 250 to 300 in sample 7.

    Returns:
        Such as the document's tokens 50 to 100 in sample 7.
    """
    appearances = []
    for sample, sample_start, start, stop in spans.rows():
        n_tokens = stop - start
        # `first` is 0, unless the beginning of the document is in an earlier sequence.
        document_start = piece.first + start - piece.start
        appearance = Appearance(
            sample=sample,
            sample_tokens=(sample_start, sample_start + n_tokens),
            document_tokens=(document_start, document_start + n_tokens),
        )
        appearances.append(appearance)
    return appearances


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
        The tokens of the sequence in each of these samples. Samples have the numbers from before
        they are shuffled.
    """
    # The document index is the order of the sequences. If the dataset is read several times, it has
    # a sequence several times.
    entries = positions_of(nanoset.document_index, sequence).tolist()
    return Spans.concatenate([_spans_of_entry(nanoset, entry) for entry in entries])


def _samples_with_entry(sample_index: NDArray[Any], entry: int) -> range:
    """Return the training samples that may have tokens of one text sequence.

    Sequences are put one after another, in a shuffled order whose entries are numbered, and then
    cut into samples. A sample begins in an entry, and ends where the next sample begins:

        row of the sample index    0    1    2    3 (only says where sample 2 ends)
        begins in entry            4    6    6    8

    For entry 6, the result is 0, 1 and 2: samples 1 and 2 begin in it, and sample 0 may end in it.

    Args:
        sample_index: The entry in which each sample begins, and the token there; shape
            (n_samples + 1, 2), ascending.
        entry: Number of the sequence in this order.
    """
    first_entries = sample_index[:, 0]  # (n_samples + 1,) 4 6 6 8
    start = bisect_left(first_entries, entry)  # 1, the first row that begins in the entry
    stop = bisect_right(first_entries, entry)  # 3, the row after the last one

    # The sample before these may end in the entry, or contain all of it.
    start_with_previous = max(start - 1, 0)
    n_samples = len(sample_index) - 1
    return range(start_with_previous, min(stop, n_samples))  # the last row is no sample


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
    """Return how many tokens of a training sample precede one of the text sequences in it.

    For example, a sample begins with token 7 of a sequence of 10 tokens. It has the last 3 of them,
    all 5 of the next sequence, and then the sequence in question: 8 tokens precede it.

    Args:
        nanoset: The samples of a dataset.
        sample: Number of the sample before the shuffle.
        entry: Position of the sequence in the document index, which is the order of sequences from
            which samples are cut.
    """
    start_entry, start_offset = nanoset.sample_index[sample].tolist()
    if start_entry == entry:
        return 0
    sequences_before = nanoset.document_index[start_entry:entry]
    lengths = nanoset.dataset.sequence_lengths[sequences_before]  # [10, 5]
    # The sample has not the tokens of the first sequence that precede its start, here 7.
    return int(lengths.sum(dtype=np.int64)) - int(start_offset)


def samples_of_dataset(loaded: BlendedNanoset, number: int) -> Iterator[NDArray[np.int64]]:
    """Yield which sample of a dataset each sample of a blend is, or -1 if it is of another one.

    A blend takes its samples from several datasets in turn. For example:

        sample of the blend    0           1           2             3
        is                     0 of web    1 of web    0 of books    2 of web
        result for web         0           1           -1            2

    Args:
        loaded: The blend.
        number: Number of the dataset in the blend.

    Yields:
        Consecutive parts of the result, shape (n,).
    """
    n_samples = len(loaded.datasets[number])
    chunks_of_datasets = _chunks_of(loaded.dataset_index)
    chunks_of_samples = _chunks_of(loaded.dataset_sample_index)
    for datasets, samples in zip(chunks_of_datasets, chunks_of_samples, strict=True):
        is_of_dataset = datasets == number
        samples_of_chunk = np.where(is_of_dataset, samples, -1)
        if loaded.config.rules.wraps == "read":
            # After its last sample, this trainer starts with the first one again: of 10 samples,
            # number 12 is sample 2.
            samples_of_chunk[is_of_dataset] %= n_samples
        yield samples_of_chunk


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

    spans = spans.select(np.argsort(spans.samples, kind="stable"))  # 3, 5, 7
    parts: list[Spans] = []
    chunk_start = 0  # position of the chunk in the list
    for chunk in samples_in_chunks:
        parts.append(_renumbered_by_chunk(spans, chunk, chunk_start))
        chunk_start += len(chunk)
    return Spans.concatenate(parts)


def _renumbered_by_chunk(spans: Spans, chunk: NDArray[np.int64], chunk_start: int) -> Spans:
    """Return a copy of a span for each position at which a part of a list names its sample.

    Args:
        spans: The spans, sorted by sample, so that those of one sample are neighbours: of the
            samples 3, 5 and 7.
        chunk: The part of the list, shape (n_samples,): 7 3 7.
        chunk_start: Position of this part in the list.

    Returns:
        The copies, ordered by sample. Their samples are the positions in the list: 0, 1 and 2.
    """
    # At which positions in the chunk are samples that have spans? These are usually few.
    hits = np.flatnonzero(np.isin(chunk, spans.samples))  # (n_hits,) 0 1 2

    # The spans of the sample at each of these positions are a range: for the samples 7 3 7, from
    # span 2 to 3, from 0 to 1, and again from 2 to 3.
    first_spans = np.searchsorted(spans.samples, chunk[hits], side="left")  # 2 0 2
    stop_spans = np.searchsorted(spans.samples, chunk[hits], side="right")  # 3 1 3
    span_counts = stop_spans - first_spans  # 1 1 1
    copies = spans.select(positions_in(first_spans, span_counts))
    return copies._replace(samples=np.repeat(chunk_start + hits, span_counts))
