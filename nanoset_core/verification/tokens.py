"""Every token of a .bin, read once where it is stored, in ranges of whole sequences that any machine may look at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import available_processors
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import HEADER, Tokens, bin_path
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.store import THREADS, Store
from nanoset_core.verification.duplicates import (
    CHUNK_TOKENS,
    Sample,
    duplicate_share,
    hash_limit,
    sampled,
    sequence_hashes,
)
from nanoset_core.verification.parts import PART_BYTES, DeepCheck, runs
from nanoset_core.verification.report import Report

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
_READ_BYTES = 8 << 20
_BLOCK_SEQUENCES = 1 << 18
"""Sequences whose lengths are in memory at once."""


@dataclass(frozen=True, slots=True)
class Promise:
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
    """Sequences that lie behind one another."""

    first: int
    """Of the sequences."""
    last: int
    """Excluded."""
    begin: int
    """First byte in the .bin."""
    end: int
    """Excluded."""
    pieces: tuple[PieceDigest, ...] = ()
    """Digests of what the bytes were joined of, where they are known."""


class Stranger(NamedTuple):
    """A token that is not in the vocabulary."""

    place: int
    """Byte of the .bin."""
    sequence: int
    id: int


class Unframed(NamedTuple):
    """A sequence that does not begin and end as all should."""

    place: int
    """Byte of the .bin."""
    sequence: int
    found: str
    """Its first and last tokens."""
    sequences: int
    """How many are like that."""


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What one range holds."""

    tokens: int
    greatest: int
    """Id; -1 where there are no tokens."""
    stranger: Stranger | None
    unframed: Unframed | None
    hashes: Sample
    """Of its sequences."""
    altered: str | None = None
    """How its bytes differ from their digests."""


def _together(parts: Sequence[RangeFacts], altered: str | None) -> RangeFacts:
    """What ranges that lie behind one another hold."""
    unframed = [part.unframed for part in parts if part.unframed is not None]
    unique = np.unique(np.concatenate([np.empty(0, np.uint64), *(part.hashes.unique for part in parts)]))
    return RangeFacts(
        tokens=sum(part.tokens for part in parts),
        greatest=max((part.greatest for part in parts), default=-1),
        stranger=next((part.stranger for part in parts if part.stranger is not None), None),
        unframed=unframed[0]._replace(sequences=sum(one.sequences for one in unframed)) if unframed else None,
        hashes=Sample(unique, sum(part.hashes.kept for part in parts)),
        altered=altered,
    )


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """Tokens that lie back to back in a file, to be read from wherever its store can be reached."""

    store: Store
    name: str
    """Of the file in the store."""
    dtype: np.dtype
    begin: int = 0
    """Byte at which the first token begins."""
    mark: str | None = None
    """Of the file, so that no other one is read in its place; None where whoever reads may see another mark."""

    def read(self, first: int, end: int) -> Tokens:
        """Tokens [first, end).

        Raises:
            SourceChangedError, MissingError, StorageError: see `Store.read_range`.
        """
        data = self.store.read_range(self.name, self.place(first), self.place(end), self.mark) if first < end else b""
        return np.frombuffer(data, self.dtype)

    def place(self, token: int) -> int:
        """The byte at which a token begins."""
        return self.begin + token * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TokenCheck(DeepCheck[TokenRange, RangeFacts]):
    """Ids of the vocabulary, sequences framed as promised, digests of pieces, and copies of documents."""

    output: str
    """How the report names the dataset."""
    where: str
    """Of the .bin, for messages."""
    tokens: StoredTokens
    """All of the .bin, of an integer type."""
    idx: str
    """Name of the .idx in the same store, of which the sequences' lengths are read."""
    promise: Promise
    hash_limit: int
    """Greatest hash of a sequence that is kept."""
    at_once: ClassVar[int] = min(2 * available_processors(), THREADS)

    @staticmethod
    def of(dataset: MMapIndexedDataset, promise: Promise, output: str, *, as_copies: bool) -> TokenCheck:
        """The check of an open dataset, whose index is sound; `as_copies` as for its `stored`."""
        store, prefix = dataset.stored(as_copies=as_copies)
        found = None if isinstance(store, LocalStore) else store.stat(f"{prefix}.bin")
        tokens = StoredTokens(store, f"{prefix}.bin", dataset.dtype, mark=None if found is None else found.mark)
        where = str(bin_path(dataset.prefix)) if isinstance(store, LocalStore) else store.url(tokens.name)
        return TokenCheck(output, where, tokens, f"{prefix}.idx", promise, hash_limit(len(dataset)))

    def look(self, part: TokenRange) -> RangeFacts:
        pieces = PieceCheck(part.pieces, part.begin) if part.pieces else None
        found, first, begin = list[RangeFacts](), part.first, part.begin
        while begin < part.end or first < part.last:
            last = min(first + _BLOCK_SEQUENCES, part.last)
            lengths = self._lengths(first, last)
            size = int(lengths.sum(dtype=np.int64)) * self.tokens.dtype.itemsize
            end = part.end if last == part.last else begin + size
            found.append(self._look(TokenRange(first, last, begin, end), lengths, pieces))
            first, begin = last, end
        return _together(found, None if pieces is None else pieces.fault())

    def _look(self, part: TokenRange, lengths: NDArray[np.int32], pieces: PieceCheck | None) -> RangeFacts:
        ends = np.cumsum(lengths, dtype=np.int64)
        ids = _Ids(self.promise.max_id)
        framing = _Framing(self.promise, lengths, ends)

        def chunks() -> Iterator[Tokens]:
            place = 0
            for chunk in self._chunks(part, pieces):
                ids.add(place, chunk)
                framing.add(place, chunk)
                place += len(chunk)
                yield chunk

        hashes = sampled(sequence_hashes(chunks(), lengths), self.hash_limit)
        return RangeFacts(
            tokens=ids.tokens,
            greatest=ids.greatest,
            stranger=self._stranger(part, ends, ids.stranger),
            unframed=self._unframed(part, lengths, ends, framing.wrong()),
            hashes=hashes,
        )

    def _lengths(self, first: int, last: int) -> NDArray[np.int32]:
        begin, end = (HEADER.size + 4 * sequence for sequence in (first, last))
        return np.frombuffer(self.tokens.store.read_range(self.idx, begin, end) if begin < end else b"", "<i4")

    def _chunks(self, part: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """The range's tokens, some at a time."""
        size = self.tokens.dtype.itemsize
        step, first, end = _READ_BYTES // size, part.begin // size, part.end // size
        for begin in range(first, end, step):
            block = self.tokens.read(begin, min(begin + step, end))
            if pieces is not None:
                pieces.add(block.view(np.uint8).data)
            yield from (block[place : place + CHUNK_TOKENS] for place in range(0, len(block), CHUNK_TOKENS))

    def _stranger(self, part: TokenRange, ends: NDArray[np.int64], stranger: tuple[int, int] | None) -> Stranger | None:
        if stranger is None:
            return None
        token, found = stranger
        # Behind the last sequence there may be bytes that are none of it.
        sequence = part.first + min(int(np.searchsorted(ends, token, side="right")), max(len(ends) - 1, 0))
        return Stranger(part.begin + self.tokens.place(token), sequence, found)

    def _unframed(
        self, part: TokenRange, lengths: NDArray[np.int32], ends: NDArray[np.int64], wrong: NDArray[np.int64]
    ) -> Unframed | None:
        if not len(wrong):
            return None
        sequence = int(wrong[0])
        end = part.begin // self.tokens.dtype.itemsize + int(ends[sequence])
        begin = end - int(lengths[sequence])
        head = self.tokens.read(begin, min(begin + len(self.promise.before), end)).tolist()
        tail = self.tokens.read(max(end - len(self.promise.after), begin), end).tolist()
        return Unframed(self.tokens.place(begin), part.first + sequence, f"{head} … {tail}", len(wrong))

    def conclude(self, outcomes: Sequence[RangeFacts]) -> Report:
        report, where = Report(self.output), self.where
        found = _together(outcomes, None)
        report.figures["tokens_read"] = found.tokens
        report.figures["greatest_id"] = found.greatest
        report.figures["duplicate_documents"] = round(duplicate_share([found.hashes]), 6)
        report_altered(report, where, [outcome.altered for outcome in outcomes])
        if found.stranger is not None:
            report_stranger(report, where, found.stranger, self.promise)
        if found.unframed is not None:
            report_unframed(report, where, found.unframed, self.promise)
        return report


@dataclass(frozen=True, slots=True)
class ByteCheck(DeepCheck[TokenRange, str | None]):
    """Digests of the pieces of a .bin whose index tells nothing of it."""

    output: str
    store: Store
    name: str
    """Of the .bin in the store."""
    at_once: ClassVar[int] = TokenCheck.at_once

    def look(self, part: TokenRange) -> str | None:
        check = PieceCheck(part.pieces, part.begin)
        for begin in range(part.begin, part.end, _READ_BYTES):
            check.add(self.store.read_range(self.name, begin, min(begin + _READ_BYTES, part.end)))
        return check.fault()

    def conclude(self, outcomes: Sequence[str | None]) -> Report:
        report = Report(self.output)
        report_altered(report, self.store.url(self.name), outcomes)
        return report


class _Ids:
    """The ids of tokens that come by."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.tokens, self.greatest = 0, -1
        self.stranger: tuple[int, int] | None = None
        """(number of the token, id) of the first that is not in the vocabulary."""

    def add(self, place: int, tokens: Tokens) -> None:
        """Take the next tokens into account, the first of which has this number."""
        self.tokens += len(tokens)
        low, high = int(tokens.min()), int(tokens.max())
        self.greatest = max(self.greatest, high)
        at = None if self.stranger is not None else first_stranger(tokens, low, high, self._limit)
        if at is not None:
            self.stranger = place + at, int(tokens[at])


def first_stranger(tokens: Tokens, low: int, high: int, limit: int | None) -> int | None:
    """Where the first of some tokens, whose ids go from `low` to `high`, is that is not in the vocabulary."""
    if low >= 0 and (limit is None or high <= limit):
        return None
    return int(np.argmax((tokens < 0) | (tokens > (high if limit is None else limit))))


class _Framing:
    """Whether sequences begin and end with the tokens that they should, as their tokens come by."""

    def __init__(self, promise: Promise, lengths: NDArray[np.int32], ends: NDArray[np.int64]) -> None:
        extra = len(promise.before) + len(promise.after)
        self._wrong = [np.flatnonzero(lengths < extra)] if extra else []
        self._sequences = np.flatnonzero(lengths >= extra) if extra else np.empty(0, np.int64)
        last = ends[self._sequences]
        first = last - lengths[self._sequences]
        # (int64[sequences], ascending: numbers of the tokens; the id that each must have)
        self._expected = [(first + place, token) for place, token in enumerate(promise.before)]
        self._expected += [(last - len(promise.after) + place, token) for place, token in enumerate(promise.after)]

    def add(self, place: int, tokens: Tokens) -> None:
        """Take the next tokens into account, the first of which has this number."""
        for places, token in self._expected:
            begin, end = np.searchsorted(places, [place, place + len(tokens)])
            wrong = tokens[places[begin:end] - place] != token
            if wrong.any():
                self._wrong.append(self._sequences[begin:end][wrong])

    def wrong(self) -> NDArray[np.int64]:
        """Numbers of the sequences that are not as they should be, ascending."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._wrong]))


def report_altered(report: Report, where: str, faults: Sequence[str | None]) -> None:
    """Note that bytes are not those of their digests, of which each range tells one fault, or none."""
    if altered := [fault for fault in faults if fault is not None]:
        report.error(
            "a file has other bytes than when it was written",
            where=where,
            found=altered[0] + (f", and {len(altered) - 1:,} more" if len(altered) > 1 else ""),
            expected="the digests of the pieces that it was joined of",
            remedy="delete the manifest.json beside it, and run `nanoset build`",
        )


def report_stranger(report: Report, where: str, stranger: Stranger, promise: Promise) -> None:
    """Note a token that is not in the vocabulary."""
    report.error(
        "a token is not in the vocabulary",
        where=f"{where}, byte {stranger.place} (sequence {stranger.sequence})",
        found=f"id {stranger.id}",
        expected="0 or more" if promise.max_id is None else f"0 to {promise.max_id}",
        remedy="build again with the tokenizer that made the data, or " + REMEDY,
    )


def report_unframed(report: Report, where: str, unframed: Unframed, promise: Promise) -> None:
    """Note sequences that do not begin and end as they should."""
    more = f", and {unframed.sequences - 1:,} more" if unframed.sequences > 1 else ""
    report.error(
        "a sequence does not begin and end with the tokens that it should",
        where=f"{where}, byte {unframed.place} (sequence {unframed.sequence}{more})",
        found=unframed.found,
        expected=f"{list(promise.before)} … {list(promise.after)}",
        remedy=REMEDY + ", with the end-of-document token (append_eod)",
    )


def token_ranges(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()) -> list[TokenRange]:
    """All of a dataset, whose sequences lie back to back, in ranges of about 128 MiB.

    Args:
        dataset: its index is sound.
        pieces: what the .bin was joined of, all of it, where that is known: then ranges end where pieces do.
    """
    cuts = _ends_of_pieces(dataset, pieces) if pieces else _spread_cuts(dataset)
    ranges, before = [], (0, 0, 0)
    for sequence, byte, piece in cuts:
        ranges.append(TokenRange(before[0], sequence, before[1], byte, tuple(pieces[before[2] : piece])))
        before = sequence, byte, piece
    return ranges


def byte_ranges(pieces: Sequence[PieceDigest]) -> list[TokenRange]:
    """The same of pieces alone, for `ByteCheck`."""
    ends = [0, *accumulate(piece.size for piece in pieces)]
    return [
        TokenRange(0, 0, ends[run.start], ends[run.stop], tuple(pieces[run.start : run.stop]))
        for run in runs([piece.size for piece in pieces])
    ]


def _spread_cuts(dataset: MMapIndexedDataset) -> Iterator[tuple[int, int, int]]:
    """(sequence, byte, 0) where each range ends."""
    pointers, count = dataset.sequence_pointers, len(dataset)
    sequence = 0
    while sequence < count:
        # numpy would copy pointers that are not aligned
        sequence = max(bisect_left(pointers, int(pointers[sequence]) + PART_BYTES, sequence), sequence + 1)
        if sequence < count:
            yield sequence, int(pointers[sequence]), 0
    if count or dataset.bin_bytes:
        yield count, dataset.bin_bytes, 0


def _ends_of_pieces(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest]) -> Iterator[tuple[int, int, int]]:
    """(sequence, byte, piece) where each range ends, all excluded."""
    pointers, count = dataset.sequence_pointers, len(dataset)
    ends = np.cumsum([piece.size for piece in pieces], dtype=np.int64)
    for run in runs([piece.size for piece in pieces]):
        byte = int(ends[run[-1]])
        sequence = bisect_left(pointers, byte)
        # Of a file that is ours a sequence begins there; of another one, the range goes on to where that is so.
        if run[-1] + 1 == len(pieces):
            yield count, byte, len(pieces)
        elif sequence < count and int(pointers[sequence]) == byte:
            yield sequence, byte, run[-1] + 1
