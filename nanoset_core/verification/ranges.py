"""Checks of the tokens of a .bin, read where it is stored, in ranges that any machine may look at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import available_processors
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import HEADER, Tokens, idx_path
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.store import THREADS, Store
from nanoset_core.verification import duplicates
from nanoset_core.verification.duplicates import CHUNK_TOKENS, SequenceHashes, duplicate_share, hash_limit
from nanoset_core.verification.report import Report
from nanoset_core.verification.tasks import PART_BYTES, runs

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
QUICK_TOKENS = 1 << 24
"""Datasets of no more tokens are always read whole."""
_QUICK_SEQUENCES = 1 << 16
"""Sequences of larger ones whose ends are read, where these lie on this machine."""
_QUICK_PLACES = 256
_READ_BYTES = 8 << 20
_BLOCK_SEQUENCES = 1 << 18
"""Sequences whose lengths are in memory at once."""
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
    foreign: Fault | None
    """The first token that is not in the vocabulary."""
    unframed: Fault | None
    """The first sequence that does not begin and end with the tokens that it should."""
    unframed_sequences: int
    hashes: duplicates.Sample
    """Of its sequences."""
    altered: str | None = None
    """How its bytes differ from their digests."""


def _together(parts: Sequence[RangeFacts], altered: str | None = None) -> RangeFacts:
    """Add up ranges that lie behind one another."""
    return RangeFacts(
        sum(part.tokens for part in parts),
        max((part.greatest for part in parts), default=-1),
        next((part.foreign for part in parts if part.foreign), None),
        next((part.unframed for part in parts if part.unframed), None),
        sum(part.unframed_sequences for part in parts),
        duplicates.joined([part.hashes for part in parts]),
        altered,
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
        """Read numbers [first, end).

        Raises:
            SourceChangedError, MissingError, StorageError: See `Store.read_range`.
        """
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
        return _together(found, None if pieces is None else pieces.fault())

    def _look(self, part: TokenRange, lengths: NDArray[np.int32], pieces: PieceCheck | None) -> RangeFacts:
        ends, limit = np.cumsum(lengths, dtype=np.int64), self.expected.max_id
        framing = _Framing.of(self.expected, lengths, ends)
        hashes = SequenceHashes(lengths if self.hash_limit else lengths[:0], self.hash_limit)
        begin, greatest, foreign, unframed = 0, -1, None, [framing.short]
        for chunk in self._chunks(part, pieces):
            low, high = int(chunk.min()), int(chunk.max())
            if foreign is None and (low < 0 or (limit is not None and high > limit)):
                at = int(np.argmax((chunk < 0) | (chunk > (high if limit is None else limit))))
                # Behind the last sequence there may be bytes that are none of it.
                within = min(int(np.searchsorted(ends, begin + at, side="right")), max(len(ends) - 1, 0))
                byte = part.begin + self.tokens.byte(begin + at)
                foreign = Fault(byte, part.first + within, f"id {chunk[at]}")
            unframed.append(framing.wrong_in(chunk, begin))
            hashes.add(chunk)
            begin, greatest = begin + len(chunk), max(greatest, high)
        wrong = np.unique(np.concatenate(unframed))
        fault = None
        if len(wrong):
            fault = self._unframed(part.first + int(wrong[0]), part.begin, ends[wrong[0]], lengths[wrong[0]])
        return RangeFacts(begin, greatest, foreign, fault, len(wrong), hashes.sample())

    def _chunks(self, part: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """Read the range's tokens, some at a time."""
        size = self.tokens.dtype.itemsize
        step, end = _READ_BYTES // size, part.end // size
        for begin in range(part.begin // size, end, step):
            block = self.tokens.read(begin, min(begin + step, end))
            if pieces is not None:
                pieces.add(block.view(np.uint8).data)
            yield from (block[place : place + CHUNK_TOKENS] for place in range(0, len(block), CHUNK_TOKENS))

    def _unframed(self, sequence: int, origin: int, end: np.int64, length: np.int32) -> Fault:
        """Return the fault of a sequence that ends at token `end` behind the byte `origin`."""
        last = origin // self.tokens.dtype.itemsize + int(end)
        first = last - int(length)
        head = self.tokens.read(first, min(first + len(self.expected.before), last)).tolist()
        tail = self.tokens.read(max(last - len(self.expected.after), first), last).tolist()
        return Fault(self.tokens.byte(first), sequence, f"{head} … {tail}")

    def conclude(self, report: Report, outcomes: Sequence[RangeFacts]) -> None:
        """Note figures and faults of all ranges."""
        found, limit = _together(outcomes), self.expected.max_id
        report.figures |= {"tokens_read": found.tokens, "greatest_id": found.greatest}
        if self.hash_limit:
            report.figures["duplicate_documents"] = round(duplicate_share(found.hashes), 6)
        if altered := [outcome.altered for outcome in outcomes if outcome.altered is not None]:
            report.error(
                "a file has other bytes than when it was written",
                self.tokens.url,
                altered[0] + (f", and {len(altered) - 1:,} more" if len(altered) > 1 else ""),
                "the digests of the pieces that it was joined of",
                "delete the manifest.json beside it, and run `nanoset build`",
            )
        if (foreign := found.foreign) is not None:
            report.error(
                "a token is not in the vocabulary",
                f"{self.tokens.url}, byte {foreign.byte} (sequence {foreign.sequence})",
                foreign.found,
                "0 or more" if limit is None else f"0 to {limit}",
                f"build again with the tokenizer that made the data, or {REMEDY}",
            )
        if found.unframed is not None:
            self._note_unframed(report, found.unframed, found.unframed_sequences)

    def check_ends(self, report: Report, dataset: MMapIndexedDataset) -> None:
        """Check the first and last tokens of up to 65,536 spread sequences; in a bucket of the first and the last."""
        rows, size = spread_rows(len(dataset), _QUICK_SEQUENCES if dataset.is_here else 2), dataset.dtype.itemsize
        lengths = dataset.sequence_lengths[rows]
        ends = dataset.sequence_pointers[rows] // size + lengths
        framing = _Framing.of(self.expected, lengths, ends)
        found = dataset.tokens_for(framing.places * size, (framing.places + 1) * size)[framing.places]
        wrong = np.unique(np.concatenate([framing.short, framing.sequences_of(np.flatnonzero(found != framing.ids))]))
        if len(wrong):
            first = wrong[0]
            self._note_unframed(report, self._unframed(int(rows[first]), 0, ends[first], lengths[first]), len(wrong))

    def _note_unframed(self, report: Report, first: Fault, count: int) -> None:
        more = f", and {count - 1:,} more" if count > 1 else ""
        report.error(
            "a sequence does not begin and end with the tokens that it should",
            f"{self.tokens.url}, byte {first.byte} (sequence {first.sequence}{more})",
            first.found,
            f"{list(self.expected.before)} … {list(self.expected.after)}",
            f"{REMEDY}, with the end-of-document token (append_eod)",
        )


class _Framing(NamedTuple):
    """Where some sequences must hold which ids."""

    places: NDArray[np.int64]
    """Numbers of tokens, ascending."""
    ids: NDArray[np.int64]
    """That each must have."""
    sequences: NDArray[np.int64]
    """Numbers of the sequences that are long enough; each has as many places."""
    short: NDArray[np.int64]
    """Numbers of those that are not."""

    @staticmethod
    def of(expected: Expected, lengths: NDArray[np.int32], ends: NDArray[np.int64]) -> _Framing:
        before, after = len(expected.before), len(expected.after)
        fits = lengths >= before + after
        last = ends[fits, None]
        heads = last - lengths[fits, None] + np.arange(before)
        places = np.concatenate([heads, last - np.arange(after, 0, -1)], axis=1).ravel()
        ids = np.resize(np.array([*expected.before, *expected.after], np.int64), len(places))
        return _Framing(places, ids, np.flatnonzero(fits), np.flatnonzero(~fits))

    def wrong_in(self, chunk: Tokens, begin: int) -> NDArray[np.int64]:
        """Return the sequences with other ids in a chunk of tokens, whose first has the number `begin`."""
        low, high = np.searchsorted(self.places, [begin, begin + len(chunk)])
        found = chunk[self.places[low:high] - begin]
        return self.sequences_of(low + np.flatnonzero(found != self.ids[low:high]))

    def sequences_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.sequences[places * len(self.sequences) // max(len(self.places), 1)]


def token_ranges(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()) -> list[TokenRange]:
    """Cut all of a dataset, whose index is sound, into ranges of about 128 MiB.

    Args:
        dataset: The dataset.
        pieces: What the .bin was joined of, all of it, where that is known: then ranges end where pieces do.
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
    size = QUICK_TOKENS // _QUICK_PLACES
    for place in range(_QUICK_PLACES):
        begin = (total - size) * place // (_QUICK_PLACES - 1)
        yield begin, begin + size


def spread_rows(count: int, wanted: int) -> NDArray[np.int64]:
    """Choose at most `wanted` of `count` rows, evenly spread, the first and the last among them."""
    if count <= wanted:
        return np.arange(count, dtype=np.int64)
    return np.arange(wanted, dtype=np.int64) * (count - 1) // max(wanted - 1, 1)
