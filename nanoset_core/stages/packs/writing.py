"""Write packs: their tokens in order, a .idx of sequences of one length, and the table of pieces.

Source: what Megatron-LM's `_IndexWriter` writes for documents of one sequence each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS
from nanoset_core.sampling.packing.assignment import Pieces, assign, carried, document_lengths
from nanoset_core.sampling.packing.plan import Cut, Histogram, PackPlan, Tail, plan_packs
from nanoset_core.stages.packs.pieces import piece_table

WINDOW_TOKENS = 1 << 24
"""Tokens that are read and written together, about; decides no byte."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Rules:
    """How documents are packed."""

    cut: Cut
    tail: Tail
    pad_id: int
    seed: int


@dataclass(slots=True)
class PackCounts:
    """What packs hold, and what the same documents would lose if they were cut into samples in a row."""

    documents: int
    """With tokens."""
    cut_documents: int
    """That do not lie in one pack whole."""
    cut_tokens: int
    """Tokens of them that are in another pack than their beginning."""
    dropped_tokens: int
    """Left out of documents longer than a pack."""
    concatenated: dict[str, int]
    """The same counts for samples of a pack's length that are cut from shuffled documents in a row."""
    packs: int
    pieces: int
    padding: int
    """Tokens that fill packs up."""


@dataclass(slots=True)
class PackWriter:
    """Writes the packs of one dataset."""

    dataset: MMapIndexedDataset
    rules: Rules
    name: str
    """Of the packs, for progress."""
    listener: ProgressCallback = silent
    counts: PackCounts = field(init=False)

    def blocks(self, table: Path) -> Iterator[bytes]:
        """Yield the bytes of the .bin, and write the table of pieces meanwhile; then `counts` are known."""
        dataset, rules = self.dataset, self.rules
        lengths, length = document_lengths(dataset.sequence_lengths, dataset.document_indices), rules.cut.length
        counts, plan = planned(lengths, rules)
        self.counts, counts.pieces = counts, 0
        meter = Meter(self.listener, "packs", self.name, counts.packs * length * dataset.dtype.itemsize)
        windows, first = assign(lengths, rules.cut, plan, rules.seed), 0
        with piece_table(table) as add:
            for window in carried(windows, length) if rules.tail == "carry" else windows:
                add(first, window)
                packs = len(window.bounds) - 1
                first += packs
                step = max(1, WINDOW_TOKENS // length)
                for begin in range(0, packs, step):
                    block = self.tokens(window.slice(begin, min(begin + step, packs)))
                    yield block.tobytes()
                    meter.advance(block.nbytes)
                counts.pieces += len(window.documents)
                # behind a cut where a pack ended, of documents that were not cut, and counted, before
                again = (window.firsts > 0) & (lengths[window.documents] <= length)
                counts.cut_documents += int(again.sum())
                counts.cut_tokens += int(window.lengths[again].sum())

    def tokens(self, packs: Pieces) -> NDArray[Any]:
        """Return the tokens of some packs: read by place in the .bin, a chunk of them at a time."""
        dataset, length, size = self.dataset, self.rules.cut.length, self.dataset.dtype.itemsize
        tokens = np.full((len(packs.bounds) - 1) * length, self.rules.pad_id, dataset.dtype)
        first = dataset.document_indices[packs.documents]
        begins = dataset.sequence_pointers[first] // size + packs.firsts
        order = np.argsort(begins)
        begins, lengths, targets = begins[order], packs.lengths[order], (packs.owners * length + packs.begins)[order]
        ends = np.cumsum(lengths)
        for _ in dataset.spans(1, 1):
            source = dataset.tokens_for(begins * size, (begins + lengths) * size)
            low = 0
            while low < len(ends):
                done = int(ends[low - 1]) if low else 0
                high = max(low + 1, int(np.searchsorted(ends, done + CHUNK_TOKENS, side="right")))
                some = slice(low, high)
                _copy(source, begins[some], tokens, targets[some], lengths[some])
                low = high
        return tokens


def _copy(
    source: NDArray[Any],
    begins: NDArray[np.int64],
    target: NDArray[Any],
    places: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> None:
    """Copy ranges of tokens."""
    if len(begins) == 1:
        target[places[0] : places[0] + lengths[0]] = source[begins[0] : begins[0] + lengths[0]]
        return
    before = np.cumsum(lengths) - lengths
    numbers = np.arange(int(lengths.sum()))
    target[np.repeat(places - before, lengths) + numbers] = source[np.repeat(begins - before, lengths) + numbers]


def planned(lengths: NDArray[Any], rules: Rules) -> tuple[PackCounts, PackPlan]:
    """Return what packs of documents of these lengths will hold, and the packs.

    What `tail: carry` cuts, where packs end, is not counted yet.
    """
    histogram, length = Histogram.of(lengths), rules.cut.length
    plan = plan_packs(histogram.pieces(rules.cut), length)
    longer, behind = histogram.cut(length)
    kept, dropped = (behind, 0) if rules.cut.long == "fragment" else (0, behind)
    apart = dict(zip(("cut_documents", "cut_tokens"), histogram.concatenated(length), strict=True))
    held = histogram.tokens - dropped
    packs = -(-held // length) if rules.tail == "carry" else plan.packs
    pieces = int(plan.counts @ np.diff(plan.begins))
    return PackCounts(histogram.documents, longer, kept, dropped, apart, packs, pieces, packs * length - held), plan


def write_pack_idx(path: Path, dtype: np.dtype, packs: int, length: int) -> None:
    """Write the .idx of packs that lie back to back, each one document of one sequence."""
    size = np.dtype(dtype).itemsize
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), packs, packs + 1))
        for begin in range(0, packs, _CHUNK):
            file.write(np.full(min(_CHUNK, packs - begin), length, "<i4").tobytes())
        for begin in range(0, packs, _CHUNK):
            file.write((np.arange(begin, min(begin + _CHUNK, packs), dtype="<i8") * (length * size)).tobytes())
        for begin in range(0, packs + 1, _CHUNK):
            file.write(np.arange(begin, min(begin + _CHUNK, packs + 1), dtype="<i8").tobytes())
