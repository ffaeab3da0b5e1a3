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
    """Plan packs (sequences of one length, each of whole documents if possible) and count them.

    For example, packs have 10 tokens, and there are documents of 4 and 25 tokens. The second is cut
    into pieces of 10, 10 and 5 tokens, so 15 of its tokens are in other packs than its first one.
    There are 3 packs, since the pieces of 4 and 5 tokens share one, with 1 token of padding.

    With `tail: carry`, documents are also cut at the ends of packs. These cuts are not counted yet:
    they depend on the order of the packs.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        rules: How documents are packed.

    Returns:
        What the packs will contain, and which lengths are combined in packs.
    """
    length = rules.pieces.length
    histogram = LengthHistogram.of(lengths)
    plan = plan_packs(histogram.pieces(rules.pieces), length)

    # Tokens that a document has in excess of a pack go to further pieces, or are dropped.
    n_longer, excess_tokens = histogram.beyond(length)
    is_cut = rules.pieces.long == "fragment"
    dropped_tokens = 0 if is_cut else excess_tokens
    n_tokens = histogram.tokens - dropped_tokens

    n_packs = plan.packs
    if rules.tail == "carry":
        # Packs are filled up with the start of the next document: only the last one can have room.
        n_packs = (n_tokens + length - 1) // length  # rounded up

    counts = PackCounts(
        documents=histogram.documents,
        cut_documents=n_longer,
        cut_tokens=excess_tokens if is_cut else 0,
        dropped_tokens=dropped_tokens,
        concatenated=_cut_if_concatenated(histogram, length),
        packs=n_packs,
        pieces=plan.pieces,
        padding=n_packs * length - n_tokens,
    )
    return PlannedPacks(counts, plan)


def _cut_if_concatenated(histogram: LengthHistogram, length: int) -> dict[str, int]:
    """Return what would be cut if documents were concatenated, and the result cut into sequences.

    This is what most trainers do without packs, so users see it for comparison.

    Args:
        histogram: How many documents there are of each length.
        length: Tokens of a sequence.

    Returns:
        Such as `{"cut_documents": 812, "cut_tokens": 401337}`.
    """
    cut_documents, cut_tokens = histogram.cut_if_concatenated(length)
    return {"cut_documents": cut_documents, "cut_tokens": cut_tokens}


def lay_out(lengths: NDArray[Any], plan: PackPlan, rules: PackingRules) -> Iterator[FilledPacks]:
    """Decide which documents, or pieces of long documents, are in each pack.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        plan: Which lengths are combined in packs, as `plan_counts` returns it for these documents.
        rules: How documents are packed.

    Yields:
        All packs in their order, some at a time, each with its pieces of documents.
    """
    # For example, packs of 10 tokens have documents of 6 + 2, of 7, and of 9 tokens. There is room
    # for 2, 3 and 1 tokens more, which will be padding.
    batches = assign(lengths, rules.pieces, plan, rules.seed)

    # With `tail: carry`, documents are cut to fill the room: the packs are 6 + 2 + 2, 5 + 5 and 4.
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
        """Yield the bytes of the .bin of packs, and meanwhile write the table of pieces.

        The table and `self.counts` are complete once the last bytes were yielded.

        Args:
            table_path: Path of the table of pieces. It says for each pack which tokens of which
                documents it has.
        """
        document_tokens = document_lengths(
            self.dataset.sequence_lengths, self.dataset.document_indices
        )
        # The plan says how many packs there are. It does not say how many pieces `tail: carry` will
        # cut documents into, so pieces are counted below.
        planned = plan_counts(document_tokens, self.rules)
        self.counts = replace(planned.counts, pieces=0)

        work = self.progress.work("packs", self.name, self._bin_bytes())
        first_pack = 0  # number of the first pack of a batch
        with PieceTableWriter(table_path) as table:
            for batch in lay_out(document_tokens, planned.plan, self.rules):
                table.append(first_pack, batch)
                first_pack += batch.n_packs
                self.counts.pieces += len(batch.pieces.documents)
                self._count_carried(batch.pieces, document_tokens)
                for block in self._blocks_of(batch):
                    yield block.tobytes()
                    work.advance(block.nbytes)

    def _bin_bytes(self) -> int:
        """Return the size of the .bin: all packs have the same number of tokens."""
        n_tokens = self.counts.packs * self.rules.pieces.length
        return n_tokens * self.dataset.dtype.itemsize

    def _blocks_of(self, packs: FilledPacks) -> Iterator[NDArray[Any]]:
        """Yield the tokens of packs in blocks, to limit memory.

        Args:
            packs: The pieces of documents in each pack.
        """
        packs_per_block = max(1, _WINDOW_TOKENS // self.rules.pieces.length)
        for start in range(0, packs.n_packs, packs_per_block):
            stop = min(start + packs_per_block, packs.n_packs)
            yield self.tokens(packs.slice(start, stop))

    def _count_carried(self, pieces: PieceArrays, document_tokens: NDArray[Any]) -> None:
        """Add documents to the counts that `tail: carry` has cut, although they fit into a pack.

        A longer document is always cut, so `plan_counts` has counted it.

        Args:
            pieces: Pieces of documents that are written to packs.
            document_tokens: Tokens of each document of the dataset, shape (n_documents,).
        """
        # A document that was cut has a piece that does not begin with its first token.
        lacks_start = pieces.firsts > 0  # (n_pieces,)
        fits_into_pack = document_tokens[pieces.documents] <= self.rules.pieces.length
        is_carried = lacks_start & fits_into_pack
        self.counts.cut_documents += int(is_carried.sum())
        self.counts.cut_tokens += int(pieces.lengths[is_carried].sum())

    def tokens(self, packs: FilledPacks) -> NDArray[Any]:
        """Return the tokens of some packs, concatenated, with padding.

        For example, packs of 5 tokens with a document of 3 and one of 4 tokens, and the padding 0,
        give 11 12 13 0 0 21 22 23 24 0.

        Args:
            packs: The pieces of documents in each pack.

        Returns:
            Shape (n_packs * length,), in the dataset's dtype.
        """
        # Start with packs of padding only.
        n_tokens = packs.n_packs * self.rules.pieces.length
        pack_tokens = np.full(n_tokens, self.rules.pad_id, self.dataset.dtype)

        # Each piece is a range of tokens in the dataset's .bin. Copy it to its place in the packs.
        # Some ranges at a time, since the positions of all their tokens are held in memory.
        ranges = self._ranges_to_copy(packs)
        bin_tokens = self._bin_with(ranges)
        borders = np.concatenate([[0], np.cumsum(ranges.lengths)])  # (n_pieces + 1,)
        for chunk in divide_into_blocks(borders, CHUNK_TOKENS):
            ranges.select(chunk).copy(source=bin_tokens, target=pack_tokens)

        # If the .bin is in a bucket, its tokens were downloaded. Do not keep all of them.
        self.dataset.trim_downloads()
        return pack_tokens

    def _bin_with(self, ranges: _TokenRanges) -> NDArray[Any]:
        """Return all tokens of the dataset's .bin, of which only some ranges will be read.

        From a bucket, the tokens of these ranges are downloaded together.

        Args:
            ranges: The ranges, by their starts in the .bin.
        """
        token_bytes = self.dataset.dtype.itemsize
        byte_starts = ranges.source_starts * token_bytes
        byte_stops = byte_starts + ranges.lengths * token_bytes
        return self.dataset.tokens_for(byte_starts, byte_stops)

    def _ranges_to_copy(self, packs: FilledPacks) -> _TokenRanges:
        """Return where each piece is in the dataset's .bin, and where it goes in the packs.

        Args:
            packs: The pieces of documents in each pack. The first token of pack 0 has position 0.

        Returns:
            A range for each piece, in the order of the .bin.
        """
        # Find the first token of each piece's document in the .bin. The index has the first byte of
        # each sequence, and documents consist of sequences.
        first_sequences = self.dataset.document_indices[packs.pieces.documents]  # (n_pieces,)
        first_bytes = self.dataset.sequence_pointers[first_sequences]
        document_starts = first_bytes // self.dataset.dtype.itemsize

        # A piece begins at token `firsts` of its document, and at token `begins` of its pack.
        source_starts = document_starts + packs.pieces.firsts
        pack_starts = packs.pack_numbers * self.rules.pieces.length
        ranges = _TokenRanges(
            source_starts=source_starts,
            target_starts=pack_starts + packs.begins,
            lengths=packs.pieces.lengths,
        )
        return ranges.select(np.argsort(source_starts))


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
            indices: Their indices, in the order in which they are returned.
        """
        return _TokenRanges(*[column[indices] for column in self])

    def copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy the tokens of all ranges.

        For example, the range with the starts 100 and 0 and the length 3 copies the tokens 100 to
        102 to the positions 0 to 2.

        Args:
            source: The array that is read, shape (n_source_tokens,).
            target: The array that is written, shape (n_target_tokens,).
        """
        if len(self.lengths) == 1:  # a long piece: a slice is faster than indices
            length = self.lengths[0]
            source_start = self.source_starts[0]
            target_start = self.target_starts[0]
            target[target_start : target_start + length] = source[
                source_start : source_start + length
            ]
        else:
            source_positions = positions_in(self.source_starts, self.lengths)  # (n_tokens,)
            target_positions = positions_in(self.target_starts, self.lengths)  # (n_tokens,)
            target[target_positions] = source[source_positions]


def write_pack_idx(path: Path, dtype: np.dtype[Any], packs: int, length: int) -> None:
    """Write the .idx of packs, in which each pack is a document of one sequence.

    For 3 packs of 10 tokens of 2 bytes, it has a header and the numbers 10 10 10, 0 20 40, 0 1 2 3.

    Args:
        path: Path of the file, which must not exist.
        dtype: Type of the tokens.
        packs: Number of packs, which are stored in sequence.
        length: Tokens of a pack.
    """
    pack_bytes = length * np.dtype(dtype).itemsize
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), packs, packs + 1))

        # Length of each sequence, int32
        for numbers in _chunks(packs):
            file.write(np.full(len(numbers), length, "<i4").tobytes())
        # First byte of each sequence in the .bin, int64
        for numbers in _chunks(packs):
            file.write((numbers * pack_bytes).tobytes())
        # First sequence of each document, and at the end the number of sequences, int64
        for numbers in _chunks(packs + 1):
            file.write(numbers.tobytes())


def _chunks(count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers from 0 up to `count`, in arrays that are not too large; int64."""
    for start in range(0, count, _CHUNK_PACKS):
        stop = min(start + _CHUNK_PACKS, count)
        yield np.arange(start, stop, dtype="<i8")
