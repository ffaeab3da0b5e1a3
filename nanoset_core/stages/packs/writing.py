"""Write packs: a .bin of their tokens, a .idx of sequences of one length, and the table of pieces.

The .idx is what Megatron-LM's `_IndexWriter` writes for documents of one sequence each
(megatron/core/datasets/indexed_dataset.py), so that trainers read a pack as a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.blocks import divide_into_blocks
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, positions_in
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS
from nanoset_core.rounding import ceil_division
from nanoset_core.sampling.packing.assignment import assign, document_lengths
from nanoset_core.sampling.packing.carry import carry_room
from nanoset_core.sampling.packing.pieces import FilledPacks, PieceArrays
from nanoset_core.sampling.packing.plan import (
    LengthHistogram,
    PackPlan,
    PieceRule,
    Tail,
    plan_packs,
)
from nanoset_core.stages.packs.pieces import PieceTableWriter

_WINDOW_TOKENS = 1 << 24
"""About how many tokens are read and written together. It does not affect the output."""
_CHUNK_PACKS = 1 << 20


@dataclass(frozen=True, slots=True)
class PackingRules:
    """How documents are packed."""

    pieces: PieceRule
    """Tokens of a pack, and whether longer documents are cut or truncated."""
    tail: Tail
    """What fills the room at the end of a pack: padding, or the start of the next document."""
    pad_id: int
    """Token that is used as padding."""
    seed: int
    """Seed of the order of packs."""

    @staticmethod
    def of(options: Mapping[str, Any]) -> PackingRules:
        """Return the rules that the options of a recipe describe.

        Args:
            options: Such as `{"length": 2048, "long": "fragment", "tail": "pad", "pad": 0, "seed":
                1234}`.
        """
        pieces = PieceRule(options["length"], options["long"])
        return PackingRules(pieces, options["tail"], options["pad"], options["seed"])


@dataclass(slots=True)
class PackCounts:
    """What packs contain. The names of the fields are facts in manifests."""

    documents: int
    """Documents with tokens."""
    cut_documents: int
    """Documents that are not in one pack as a whole."""
    cut_tokens: int
    """Tokens of these that are in another pack than the document's first token."""
    dropped_tokens: int
    """Tokens of documents longer than a pack that were truncated."""
    concatenated: dict[str, int]
    """`cut_documents` and `cut_tokens` of samples that are taken from the concatenated documents
    instead.
    """
    packs: int
    """Number of packs."""
    pieces: int
    """Number of pieces of documents in all packs; a document that is not cut is one piece."""
    padding: int
    """Padding tokens."""


class PlannedPacks(NamedTuple):
    """Packs that can be made of documents, before any document was assigned to a pack."""

    counts: PackCounts
    """What the packs will contain."""
    plan: PackPlan
    """Which lengths are combined in packs, such as 4 + 5 tokens."""


def plan_counts(lengths: NDArray[Any], rules: PackingRules) -> PlannedPacks:
    """Plan how documents are combined in packs, and count what the packs will contain.

    Packs are samples of one length. A document is only cut if it is longer than a pack. For
    example, two documents of 4 and 25 tokens are put into packs of 10 tokens:

        pack 0    first 10 tokens of document 1
        pack 1    next 10 tokens of document 1
        pack 2    last 5 tokens of document 1, all 4 tokens of document 0, and 1 token of padding

    So there are 3 packs and 4 pieces, and 15 tokens were cut off from the first piece of their
    document. (The packs are shuffled later.)

    With `tail: carry`, only the last pack has padding: documents are also cut at the ends of packs.
    How many tokens that cuts off depends on the order of the packs, so it is not counted here.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        rules: How documents are packed.

    Returns:
        What the packs will contain, and which lengths are combined in packs, such as 5 + 4.
    """
    # Count the documents of each length, and decide which lengths share a pack.
    length = rules.pieces.length  # 10
    histogram = LengthHistogram.of(lengths)
    plan = plan_packs(histogram.pieces(rules.pieces), length)

    # A document may have more tokens than a pack. These go to further pieces, or are dropped.
    n_longer, excess_tokens = histogram.beyond(length)  # 1 document, 15 tokens
    if rules.pieces.long == "fragment":
        cut_tokens = excess_tokens
        dropped_tokens = 0
    else:  # the document is truncated
        cut_tokens = 0
        dropped_tokens = excess_tokens
    n_tokens = histogram.tokens - dropped_tokens  # 29

    n_packs = plan.packs  # 3
    if rules.tail == "carry":
        # Packs are filled up with the start of the next document: only the last one can have room.
        n_packs = ceil_division(n_tokens, length)

    counts = PackCounts(
        documents=histogram.documents,
        cut_documents=n_longer,
        cut_tokens=cut_tokens,
        dropped_tokens=dropped_tokens,
        concatenated=_cut_if_concatenated(histogram, length),
        packs=n_packs,
        pieces=plan.pieces,
        padding=n_packs * length - n_tokens,  # 3 * 10 - 29 is 1
    )
    return PlannedPacks(counts, plan)


def _cut_if_concatenated(histogram: LengthHistogram, length: int) -> dict[str, int]:
    """Return how many documents would be cut without packs, which users see for comparison.

    Most trainers concatenate documents, and cut the result into samples of one length. So a
    document that crosses the end of a sample is cut. For example, documents of 4 and 8 tokens, and
    samples of 10 tokens: the second document is cut after its first 6 tokens, and 2 tokens are cut
    off.

    Args:
        histogram: How many documents there are of each length.
        length: Tokens of a sample.

    Returns:
        Expected numbers of documents that are cut, and of tokens that are cut off, such as
        `{"cut_documents": 812, "cut_tokens": 401337}`.
    """
    cut_documents, cut_tokens = histogram.cut_if_concatenated(length)
    return {"cut_documents": cut_documents, "cut_tokens": cut_tokens}


def lay_out(lengths: NDArray[Any], plan: PackPlan, rules: PackingRules) -> Iterator[FilledPacks]:
    """Decide which documents are put into which pack (a sample of fixed length).

    Documents that fit together share a pack. The room at the end of a pack is padding, or with
    `tail: carry`, the start of the next document. For example, packs of 10 tokens:

        documents             6, 2, 7 and 9 tokens
        packs                 6 + 2          7          9          (and padding)
        with `tail: carry`    6 + 2 + 2      5 + 5      4          7 is cut to 2 + 5, 9 to 5 + 4

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        plan: Which lengths are combined in packs, as `plan_counts` returns it for these documents.
        rules: How documents are packed.

    Yields:
        All packs in their order, some at a time, each with its pieces of documents.
    """
    batches = assign(lengths, rules.pieces, plan, rules.seed)
    if rules.tail == "carry":
        batches = carry_room(batches, rules.pieces.length)
    return batches


@dataclass(slots=True)
class PackWriter:
    """Packs the documents of one dataset."""

    dataset: MMapIndexedDataset
    """The dataset whose documents are packed."""
    rules: PackingRules
    """How they are packed."""
    name: str
    """Name of the packs, for progress."""
    progress: Progress = SILENT
    """Shows how many bytes of the .bin are written."""
    counts: PackCounts = field(init=False)
    """What the packs contain; complete after `blocks` is exhausted."""

    def blocks(self, table_path: Path) -> Iterator[bytes]:
        """Yield the tokens of all packs as bytes, and write a table of what is in them.

        A pack is a sample of fixed length, filled with documents or pieces of them. After the last
        block, the table is complete, and so are `self.counts`.

        Args:
            table_path: Path of the table, which says which pieces of documents each pack has.
        """
        document_tokens = document_lengths(
            self.dataset.sequence_lengths, self.dataset.document_indices
        )
        planned = plan_counts(document_tokens, self.rules)
        self.counts = replace(planned.counts, pieces=0)  # these are counted as they are written

        work = self.progress.work("packs", self.name, self._bin_bytes())
        with PieceTableWriter(table_path) as table:
            for batch in lay_out(document_tokens, planned.plan, self.rules):  # some packs each
                table.append(batch)
                self._count_pieces(batch.pieces, document_tokens)
                for block in self._blocks_of(batch):
                    yield block.tobytes()
                    work.advance(block.nbytes)

    def _bin_bytes(self) -> int:
        """Return the size of the .bin: all packs have the same number of tokens."""
        n_tokens = self.counts.packs * self.rules.pieces.length
        return n_tokens * self.dataset.dtype.itemsize

    def _blocks_of(self, packs: FilledPacks) -> Iterator[NDArray[Any]]:
        """Yield the tokens of packs, some packs at a time, to limit memory.

        Args:
            packs: The pieces of documents in each pack.
        """
        packs_per_block = max(1, _WINDOW_TOKENS // self.rules.pieces.length)
        for start in range(0, packs.n_packs, packs_per_block):
            stop = min(start + packs_per_block, packs.n_packs)
            yield self.tokens(packs.slice(start, stop))

    def _count_pieces(self, pieces: PieceArrays, document_tokens: NDArray[Any]) -> None:
        """Count pieces of documents that were not counted when packs were planned.

        Args:
            pieces: The pieces of some packs.
            document_tokens: Tokens of each document of the dataset, shape (n_documents,).
        """
        self.counts.pieces += len(pieces.documents)
        if self.rules.tail == "carry":
            self._count_carried(pieces, document_tokens)

    def _count_carried(self, pieces: PieceArrays, document_tokens: NDArray[Any]) -> None:
        """Count the documents that were cut to fill up a pack, although they fit into one.

        With `tail: carry`, the room at the end of a pack is filled with the start of the next
        document. The rest of this document is in the next pack. For example, packs of 10 tokens:

            pieces                         tokens    first token in the document
            a document of 8 tokens         8         0
            start of one of 7 tokens       2         0
            its rest                       5         2      counted: 1 document, 5 tokens cut off

        Documents that are longer than a pack are cut, too. They were counted when packs were
        planned.

        Args:
            pieces: Some pieces of documents.
            document_tokens: Tokens of each document of the dataset, shape (n_documents,).
        """
        # A document that fits has at most one rest, so each rest stands for one document.
        is_rest = pieces.firsts > 0  # (n_pieces,) [False, False, True]
        fits_into_pack = document_tokens[pieces.documents] <= self.rules.pieces.length
        is_carried_rest = is_rest & fits_into_pack
        self.counts.cut_documents += int(is_carried_rest.sum())
        self.counts.cut_tokens += int(pieces.lengths[is_carried_rest].sum())

    def tokens(self, packs: FilledPacks) -> NDArray[Any]:
        """Return the tokens of some packs, concatenated, with padding.

        Packs are samples of one length, filled with pieces of documents. For example, for packs of
        5 tokens:

            pack 0    a document of 3 tokens    11 12 13 0 0
            pack 1    a document of 4 tokens    21 22 23 24 0        (0 is padding)

        Args:
            packs: The pieces of documents in each pack.

        Returns:
            Shape (n_packs * length,), in the dataset's dtype.
        """
        length = self.rules.pieces.length
        pack_tokens = np.full(packs.n_packs * length, self.rules.pad_id, self.dataset.dtype)

        # Copy the pieces in the order of the .bin, so that it is read from start to end.
        ranges = self._ranges_of(packs).in_order_of_source()
        ranges.copy(source=self._bin_tokens(ranges), target=pack_tokens)
        self.dataset.trim_downloads()  # if the .bin is in a bucket
        return pack_tokens

    def _ranges_of(self, packs: FilledPacks) -> _TokenRanges:
        """Return where each piece of some packs is in the .bin, and in the tokens of the packs.

        For example, for packs of 10 tokens, a piece 4 tokens into pack 3 starts at token 34.

        Args:
            packs: The pieces of documents in each pack.
        """
        return _TokenRanges(
            source_starts=self._starts_in_bin(packs.pieces),
            target_starts=packs.pack_numbers * self.rules.pieces.length + packs.begins,
            lengths=packs.pieces.lengths,
        )

    def _bin_tokens(self, ranges: _TokenRanges) -> NDArray[Any]:
        """Return an array of all tokens of the dataset, of which the caller reads some ranges.

        It is the file of tokens, mapped into memory. If the file is in a bucket (cloud storage),
        only these ranges are downloaded, and other parts of the array may be zeros.

        Args:
            ranges: The ranges that the caller is going to read, in the order of the file.
        """
        # Ranges are downloaded by bytes: tokens 100 to 109 of 2 bytes are the bytes 200 to 219.
        token_bytes = self.dataset.dtype.itemsize
        byte_starts = ranges.source_starts * token_bytes
        byte_stops = byte_starts + ranges.lengths * token_bytes
        return self.dataset.tokens_for(byte_starts, byte_stops)

    def _starts_in_bin(self, pieces: PieceArrays) -> NDArray[np.int64]:
        """Return where each piece of a document starts in the .bin, the file of all tokens.

        For example, a document starts at token 700 of the .bin. A piece of it that starts with the
        document's token 10 starts at token 710.

        Args:
            pieces: The pieces.

        Returns:
            Numbers of tokens, shape (n_pieces,).
        """
        # A document consists of one or more sequences. The index of the dataset has the first
        # sequence of each document, and the first byte of each sequence.
        first_sequences = self.dataset.document_indices[pieces.documents]  # (n_pieces,)
        first_bytes = self.dataset.sequence_pointers[first_sequences]
        document_starts = first_bytes // self.dataset.dtype.itemsize  # in tokens, such as 700
        return document_starts + pieces.firsts  # 710


class _TokenRanges(NamedTuple):
    """Ranges of tokens that are copied from one array to another; each of shape (n_ranges,)."""

    source_starts: NDArray[np.int64]
    """Position of each range's first token in the array that is read."""
    target_starts: NDArray[np.int64]
    """Position of each range's first token in the array that is written."""
    lengths: NDArray[np.int64]
    """Tokens of each range."""

    def select(self, indices: NDArray[np.int64] | slice) -> _TokenRanges:
        """Return some of the ranges.

        Args:
            indices: Which ones, in the order in which they are returned: an array such as [2, 0],
                or a slice.
        """
        return _TokenRanges(*[column[indices] for column in self])

    def in_order_of_source(self) -> _TokenRanges:
        """Return the ranges in the order in which they start in the array that is read."""
        return self.select(np.argsort(self.source_starts))

    def copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy ranges of tokens from one array to another.

        For example, the first of these ranges copies the tokens 100 to 102 to the positions 0 to 2:

            start in the source    100    50
            start in the target    0      8
            length                 3      2

        Args:
            source: The array that is read, shape (n_source_tokens,).
            target: The array that is written, shape (n_target_tokens,).
        """
        # Copy about CHUNK_TOKENS tokens at a time, since this takes memory for their positions.
        tokens_before = np.concatenate([[0], np.cumsum(self.lengths)])  # (n_ranges + 1,)
        for chunk in divide_into_blocks(tokens_before, CHUNK_TOKENS):  # slices of the ranges
            self.select(chunk)._copy_at_once(source, target)

    def _copy_at_once(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy these ranges from one array to another in a single step, see `copy`."""
        if len(self.lengths) == 1:  # a long range: a slice is faster than positions
            source_start = self.source_starts[0]
            target_start = self.target_starts[0]
            source_stop = source_start + self.lengths[0]
            target_stop = target_start + self.lengths[0]
            target[target_start:target_stop] = source[source_start:source_stop]
        else:
            # The positions of all tokens, such as [100, 101, 102, 50, 51] and [0, 1, 2, 8, 9]
            source_positions = positions_in(self.source_starts, self.lengths)  # (n_tokens,)
            target_positions = positions_in(self.target_starts, self.lengths)  # (n_tokens,)
            target[target_positions] = source[source_positions]


def write_pack_idx(path: Path, dtype: np.dtype[Any], packs: int, length: int) -> None:
    """Write the index file of packs, in the format in which Megatron-LM finds documents in a .bin.

    The .bin has the tokens of all packs, one after another. Each pack is a document of its own,
    with one sequence of tokens. For 3 packs of 10 tokens, of 2 bytes each, the index has

        length of each sequence                         10  10  10
        first byte of each sequence in the .bin         0   20  40
        first sequence of each document, and the end    0   1   2   3

    Args:
        path: Path of the file, which must not exist.
        dtype: Type of the tokens.
        packs: Number of packs.
        length: Tokens of a pack.
    """
    pack_bytes = length * np.dtype(dtype).itemsize  # 20
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), packs, packs + 1))

        # There may be billions of packs, so write some at a time, with the numbers 0, 1, 2, …
        for numbers in _chunks(packs):  # the lengths, int32: 10, 10, 10
            file.write(np.full(len(numbers), length, "<i4").tobytes())
        for numbers in _chunks(packs):  # the first bytes, int64: 0, 20, 40
            file.write((numbers * pack_bytes).tobytes())
        for numbers in _chunks(packs + 1):  # the first sequences, int64: 0, 1, 2, 3
            file.write(numbers.tobytes())


def _chunks(count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers from 0 up to `count`, in arrays that are not too large; int64."""
    for start in range(0, count, _CHUNK_PACKS):
        stop = min(start + _CHUNK_PACKS, count)
        yield np.arange(start, stop, dtype="<i8")
