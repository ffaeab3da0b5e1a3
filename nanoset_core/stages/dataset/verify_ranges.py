"""Checks of the tokens of a .bin, read where it is stored, in ranges that any machine may look at.

How many documents are copies of another is found by a hash of their tokens: the sum, modulo 2^64, of a mixing of each
token with its place in the document. It is added up over chunks of the flat token array: there is no loop over
documents, and no copy of them. Memory stays bounded by keeping only the hashes below a limit: all copies of one
document have one hash, so the share of copies among those kept is an unbiased estimate, and exact where all are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import available_processors
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import HEADER, Tokens, idx_path
from nanoset_core.stages.report import PART_BYTES, Report, runs
from nanoset_core.stages.shards.repeats import LOOK, repeats_text
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import THREADS, PieceCheck, PieceDigest, Store

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
QUICK_TOKENS = 1 << 24
"""Datasets of no more tokens are always read whole."""
QUICK_PLACES = 256
MOST_HASHES = 1 << 22
CHUNK_TOKENS = 1 << 19
_READ_BYTES = 8 << 20
_BLOCK_SEQUENCES = 1 << 18
"""Sequences whose lengths are in memory at once."""
_PLACE_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MOST = (1 << 64) - 1
AT_ONCE = min(2 * available_processors(), THREADS)
"""Ranges that one process looks at together."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a dataset's tokens beforehand; None where nothing is."""

    max_id: int | None = None
    """Greatest id of the vocabulary."""
    dtype: str | None = None
    """Of the .bin."""
    before: tuple[int, ...] = ()
    """Ids at the beginning of every sequence."""
    after: tuple[int, ...] = ()
    """Ids at the end of every sequence, such as the end-of-document token."""
    documents: int | None = None
    sequences: int | None = None
    tokens: int | None = None
    duplicates: float = 1.0
    """Share of documents that may repeat others."""
    duplicates_key: str = ""
    """Of nanoset.yaml, which sets it."""

    @staticmethod
    def of(options: Mapping[str, Any], facts: Mapping[str, Any], max_id: int | None = None) -> Expected:
        """Return what the options of a recipe and the facts of what was written say."""
        before, after = (tuple(options.get("framing", {}).get(end, ())) for end in ("before", "after"))
        documents, sequences, tokens = (facts.get(name) for name in ("documents", "sequences", "tokens"))
        return Expected(max_id, options.get("dtype"), before, after, documents, sequences, tokens)

    @property
    def least(self) -> int:
        """Tokens that a sequence has at least."""
        return len(self.before) + len(self.after)

    @property
    def ends(self) -> str:
        """First and last ids of a sequence, for messages."""
        return f"{list(self.before)} … {list(self.after)}"


class TokenRange(NamedTuple):
    """Sequences that lie behind one another, or tokens within one sequence."""

    first: int
    """Of the sequences."""
    last: int
    """Excluded; the first where no sequence is whole."""
    begin: int
    """First byte in the .bin."""
    end: int
    """Excluded."""
    pieces: tuple[PieceDigest, ...] = ()
    """Digests of what the bytes were joined of, where they are known."""


class Fault(NamedTuple):
    """The first of some faults in the tokens of a .bin."""

    byte: int
    """Of the .bin."""
    sequence: int
    found: str


class RangeFacts(NamedTuple):
    """What one range holds."""

    tokens: int
    greatest: int
    """Id; -1 where there are no tokens."""
    foreign: Sequence[Fault]
    """The first token that is not in the vocabulary, if there is one."""
    unframed: Sequence[Fault]
    """The first sequence that does not begin and end with the tokens that it should, if there is one."""
    unframed_sequences: int
    hashes: NDArray[np.uint64]
    """Those of its sequences that are kept, each once, ascending."""
    hashed: int
    """How many there are with their repetitions."""
    altered: Sequence[str] = ()
    """How its bytes differ from their digests."""


def _together(parts: Sequence[RangeFacts]) -> RangeFacts:
    return RangeFacts(
        sum(part.tokens for part in parts),
        max((part.greatest for part in parts), default=-1),
        [fault for part in parts for fault in part.foreign][:1],
        [fault for part in parts for fault in part.unframed][:1],
        sum(part.unframed_sequences for part in parts),
        np.unique(np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in parts)])),
        sum(part.hashed for part in parts),
        [text for part in parts for text in part.altered],
    )


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Numbers that lie back to back in a file, read from its store."""

    store: Store
    name: str
    """Of the file in the store."""
    dtype: np.dtype
    begin: int = 0
    """Byte of the first number."""
    mark: str | None = None
    """Of the file, so that no other one is read in its place; None where readers may see another mark."""

    @property
    def url(self) -> str:
        return self.store.url(self.name)

    def read(self, first: int, end: int) -> Tokens:
        """Read numbers [first, end); raises as `Store.read_range`."""
        data = self.store.read_range(self.name, self.byte(first), self.byte(end), self.mark) if first < end else b""
        return np.frombuffer(data, self.dtype)

    def byte(self, number: int) -> int:
        """Return the byte at which a number begins."""
        return self.begin + number * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Ids of the vocabulary, expected first and last tokens of sequences, digests of pieces, and duplicates."""

    tokens: StoredArray
    """All of the .bin, of an integer type."""
    lengths: StoredArray
    """Of the sequences: int32."""
    expected: Expected
    hash_limit: int
    """Greatest hash of a sequence that is kept; 0: duplicates are not counted."""

    @staticmethod
    def of(dataset: MMapIndexedDataset, expected: Expected, *, deep: bool) -> TokenCheck:
        """Make the check of an open dataset, whose index is sound.

        Unless it is deep, copies of this machine are read where they are here, and the index always.
        """
        store, prefix = dataset.stored(as_copies=not deep)
        found = None if isinstance(store, LocalStore) else store.stat(f"{prefix}.bin")
        tokens = StoredArray(store, f"{prefix}.bin", dataset.dtype, mark=None if found is None else found.mark)
        idx = Path(idx_path(dataset.prefix)).absolute()
        index, name = (store, f"{prefix}.idx") if deep else (LocalStore(idx.parent), idx.name)
        limit = hash_limit(len(dataset)) if deep or dataset.token_count <= QUICK_TOKENS else 0
        return TokenCheck(tokens, StoredArray(index, name, np.dtype("<i4"), HEADER.size), expected, limit)

    def look(self, part: TokenRange) -> RangeFacts:
        """Look at one range, some sequences at a time."""
        pieces = PieceCheck(part.pieces, part.begin) if part.pieces else None
        found, first, begin = list[RangeFacts](), part.first, part.begin
        while begin < part.end or first < part.last:
            last = min(first + _BLOCK_SEQUENCES, part.last)
            lengths = self.lengths.read(first, last).astype(np.int32, copy=False)
            size = int(lengths.sum(dtype=np.int64)) * self.tokens.dtype.itemsize
            end = part.end if last == part.last else begin + size
            found.append(self._look(TokenRange(first, last, begin, end), lengths, pieces))
            first, begin = last, end
        fault = None if pieces is None else pieces.fault()
        return _together(found)._replace(altered=[] if fault is None else [fault])

    def _look(self, part: TokenRange, lengths: NDArray[np.int32], pieces: PieceCheck | None) -> RangeFacts:
        ends, limit = np.cumsum(lengths, dtype=np.int64), self.expected.max_id
        before, after = self.expected.before, self.expected.after
        hashes = SequenceHashes(lengths if self.hash_limit else lengths[:0], self.hash_limit)
        numbers = np.flatnonzero(lengths >= self.expected.least)
        lasts = ends[numbers]
        firsts = lasts - lengths[numbers]
        # (tokens of the sequences, how far behind them, the id there)
        framing = [(firsts, place, token) for place, token in enumerate(before)]
        framing += [(lasts, place, token) for place, token in enumerate(after, -len(after))]
        begin, greatest, foreign, unframed = 0, -1, list[Fault](), [np.flatnonzero(lengths < self.expected.least)]
        for chunk in self._chunks(part, pieces):
            low, high = int(chunk.min()), int(chunk.max())
            if not foreign and (low < 0 or (limit is not None and high > limit)):
                at = int(np.argmax((chunk < 0) | (chunk > (high if limit is None else limit))))
                sequence = part.first + int(np.searchsorted(ends, begin + at, side="right"))
                foreign.append(Fault(part.begin + self.tokens.byte(begin + at), sequence, f"id {chunk[at]}"))
            for anchors, place, token in framing:
                found = slice(*np.searchsorted(anchors, [begin - place, begin - place + len(chunk)]))
                unframed.append(numbers[found][chunk[anchors[found] + (place - begin)] != token])
            hashes.add(chunk)
            begin, greatest = begin + len(chunk), max(greatest, high)
        wrong = np.unique(np.concatenate(unframed))
        origin, faults = part.begin // self.tokens.dtype.itemsize, list[Fault]()
        for one in wrong[:1].tolist():
            faults.append(self._ends(part.first + one, origin + int(ends[one] - lengths[one]), int(lengths[one])))
        return RangeFacts(begin, greatest, foreign, faults, len(wrong), *hashes.kept())

    def _chunks(self, part: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        size = self.tokens.dtype.itemsize
        step, end = _READ_BYTES // size, part.end // size
        for begin in range(part.begin // size, end, step):
            block = self.tokens.read(begin, min(begin + step, end))
            if pieces is not None:
                pieces.add(block.view(np.uint8).data)
            yield from (block[place : place + CHUNK_TOKENS] for place in range(0, len(block), CHUNK_TOKENS))

    def _ends(self, sequence: int, first: int, length: int) -> Fault:
        last = first + length
        head = self.tokens.read(first, min(first + len(self.expected.before), last)).tolist()
        tail = self.tokens.read(max(last - len(self.expected.after), first), last).tolist()
        return Fault(self.tokens.byte(first), sequence, f"{head} … {tail}")

    def check_ends(self, report: Report, dataset: MMapIndexedDataset) -> None:
        """Check the first and last tokens of 256 spread sequences; in a bucket of the first and the last."""
        for row in spread_rows(len(dataset), QUICK_PLACES if dataset.is_here else 2).tolist():
            length = int(dataset.sequence_lengths[row])
            found = self._ends(row, int(dataset.sequence_pointers[row]) // dataset.dtype.itemsize, length)
            if found.found != self.expected.ends or length < self.expected.least:
                return self._note_unframed(report, found, 1)

    def conclude(self, report: Report, outcomes: Sequence[RangeFacts]) -> None:
        """Note figures and faults of all ranges."""
        found, limit = _together(outcomes), self.expected.max_id
        report.figures |= {"tokens_read": found.tokens, "greatest_id": found.greatest}
        if self.hash_limit:
            share = 1.0 - len(found.hashes) / found.hashed if found.hashed else 0.0
            report.figures["duplicate_documents"] = round(share, 6)
            if text := repeats_text(share, self.expected.duplicates, self.expected.duplicates_key):
                report.warn(text, self.tokens.url, None, None, LOOK)
        for text in found.altered[:1]:
            report.error(
                "a file has other bytes than when it was written",
                self.tokens.url,
                text + _more(len(found.altered)),
                "the digests of the pieces that it was joined of",
                "delete the manifest.json beside it, and run `nanoset build`",
            )
        for fault in found.foreign:
            report.error(
                "a token is not in the vocabulary",
                f"{self.tokens.url}, byte {fault.byte} (sequence {fault.sequence})",
                fault.found,
                "0 or more" if limit is None else f"0 to {limit}",
                f"build again with the tokenizer that made the data, or {REMEDY}",
            )
        for fault in found.unframed:
            self._note_unframed(report, fault, found.unframed_sequences)

    def _note_unframed(self, report: Report, first: Fault, count: int) -> None:
        report.error(
            "a sequence does not begin and end with the tokens that it should",
            f"{self.tokens.url}, byte {first.byte} (sequence {first.sequence}{_more(count)})",
            first.found,
            self.expected.ends,
            f"{REMEDY}, with the end-of-document token (append_eod)",
        )


def _more(count: int) -> str:
    return f", and {count - 1:,} more" if count > 1 else ""


def token_ranges(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()) -> list[TokenRange]:
    """Cut all of a dataset, whose index is sound, into ranges of about 128 MiB.

    Where it is known which pieces the .bin was joined of, all of it, ranges end where pieces do.
    """
    pointers, count, total = dataset.sequence_pointers, len(dataset), dataset.bin_bytes
    sizes, cuts = [piece.size for piece in pieces], {(0, 0): None}
    ends = [*accumulate(sizes)]
    for byte in (ends[run[-1]] for run in runs(sizes)) if pieces else range(PART_BYTES, total, PART_BYTES):
        sequence = bisect_left(pointers, byte)  # numpy would copy pointers that are not aligned
        # In a file of this project a sequence begins where a piece does; in another one, the range goes on.
        if sequence < count and (not pieces or pointers[sequence] == byte):
            cuts[sequence, int(pointers[sequence])] = None
    return [
        TokenRange(first, last, begin, end, tuple(pieces[bisect_right(ends, begin) : bisect_right(ends, end)]))
        for (first, begin), (last, end) in pairwise([*cuts, (count, total)])
        if first < last or begin < end
    ]


def spread_ranges(dataset: MMapIndexedDataset) -> Iterator[TokenRange]:
    """Yield 256 evenly spread ranges of a dataset of more than 16 Mi tokens: whole sequences, or some tokens of one."""
    pointers, size, total = dataset.sequence_pointers, dataset.dtype.itemsize, dataset.bin_bytes
    for begin, end in ((begin * size, end * size) for begin, end in spread_chunks(dataset.token_count)):
        first, last = bisect_left(pointers, begin), bisect_right(pointers, end) - 1
        if end == total:
            last = len(dataset)
        if first < last:
            yield TokenRange(first, last, int(pointers[first]), total if end == total else int(pointers[last]))
        else:
            within = bisect_right(pointers, begin) - 1
            yield TokenRange(within, within, begin, end)


def spread_chunks(total: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end excluded) of 256 evenly spread runs of tokens, the first and the last among them."""
    size = QUICK_TOKENS // QUICK_PLACES
    for place in range(QUICK_PLACES):
        begin = (total - size) * place // (QUICK_PLACES - 1)
        yield begin, begin + size


def spread_rows(count: int, wanted: int) -> NDArray[np.int64]:
    """Choose at most `wanted` of `count` rows, evenly spread, the first and the last among them."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * (count - 1) // max(wanted - 1, 1)


class SequenceHashes:
    """Hashes up to a limit of the sequences that have tokens, which are given one chunk after the other."""

    def __init__(self, lengths: NDArray[np.int32], limit: int, chunk_tokens: int = CHUNK_TOKENS) -> None:
        filled = lengths[lengths > 0]
        self._ends = np.cumsum(filled, dtype=np.int64)
        self._begins = self._ends - filled
        self._ramp = _ramp(chunk_tokens)
        self._limit, self._kept = np.uint64(limit), [np.empty(0, np.uint64)]
        self._begin, self._carried = 0, np.zeros(1, np.uint64)

    def add(self, tokens: Tokens) -> None:
        """Add the next tokens."""
        begin, end = self._begin, self._begin + len(tokens)
        first, whole = np.searchsorted(self._ends, [begin, end], side="right")
        begins = self._begins[first : np.searchsorted(self._begins, end)]
        if not len(begins):
            return
        starts = np.maximum(begins - begin, 0)
        values = tokens.astype(np.uint64)
        # Token k of the chunk is token k + (begin - begins[i]) of its sequence i.
        values += self._ramp[: len(tokens)]
        values += np.repeat((begin - begins).astype(np.uint64) * _PLACE_FACTOR, np.diff(starts, append=len(tokens)))
        for shift, factor in ((32, 0xBF58476D1CE4E5B9), (29, 0x94D049BB133111EB)):  # splitmix64
            values ^= values >> np.uint64(shift)
            values *= np.uint64(factor)
        values ^= values >> np.uint64(32)
        sums = np.add.reduceat(values, starts)
        sums[:1] += self._carried
        hashes, self._carried = sums[: whole - first], sums[whole - first :]
        if not len(self._carried):
            self._carried = np.zeros(1, np.uint64)
        self._kept.append(hashes[hashes <= self._limit])
        self._begin = end

    def kept(self) -> tuple[NDArray[np.uint64], int]:
        """Return (the hashes below the limit, each once, ascending; how many there are with their repetitions)."""
        kept = np.concatenate(self._kept)
        return np.unique(kept), len(kept)


@cache
def _ramp(tokens: int) -> NDArray[np.uint64]:
    return np.arange(tokens, dtype=np.uint64) * _PLACE_FACTOR


def hash_limit(sequences: int, most_hashes: int = MOST_HASHES) -> int:
    """Return the greatest hash to keep, so that about `most_hashes` of the sequences' hashes are kept, or all."""
    return _MOST if sequences <= most_hashes else _MOST * most_hashes // sequences
