"""Checks of the tokens of a .bin, read where it is stored, in ranges that any machine may look at."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import available_processors
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import HEADER, Tokens, bin_path, idx_path
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.pieces import PieceCheck, PieceDigest
from nanoset_core.storage.store import THREADS, Store
from nanoset_core.verification import duplicates
from nanoset_core.verification.duplicates import CHUNK_TOKENS, SequenceHashes, duplicate_share, hash_limit
from nanoset_core.verification.report import Report
from nanoset_core.verification.tasks import PART_BYTES, DeepCheck, runs

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
QUICK_TOKENS = 1 << 24
"""Datasets of no more tokens are always read whole."""
QUICK_SEQUENCES = 1 << 16
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


class OutOfVocabulary(NamedTuple):
    """A token that is not in the vocabulary."""

    byte: int
    """Of the .bin."""
    sequence: int
    id: int


class MissingBosEos(NamedTuple):
    """A sequence that does not begin and end with the tokens that it should."""

    byte: int
    """Of the .bin."""
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
    foreign: OutOfVocabulary | None
    unframed: MissingBosEos | None
    hashes: duplicates.Sample
    """Of its sequences."""
    altered: str | None = None
    """How its bytes differ from their digests."""


def _together(parts: Sequence[RangeFacts], altered: str | None = None) -> RangeFacts:
    """Add up ranges that lie behind one another."""
    unframed = [part.unframed for part in parts if part.unframed is not None]
    return RangeFacts(
        tokens=sum(part.tokens for part in parts),
        greatest=max((part.greatest for part in parts), default=-1),
        foreign=next((part.foreign for part in parts if part.foreign is not None), None),
        unframed=unframed[0]._replace(sequences=sum(one.sequences for one in unframed)) if unframed else None,
        hashes=duplicates.joined([part.hashes for part in parts]),
        altered=altered,
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
class TokenCheck(DeepCheck[TokenRange, RangeFacts]):
    """Ids of the vocabulary, expected first and last tokens of sequences, digests of pieces, and duplicates."""

    output: str
    """How the report names the dataset."""
    where: str
    """Of the .bin, for messages."""
    tokens: StoredArray
    """All of the .bin, of an integer type."""
    lengths: StoredArray
    """Of the sequences: int32."""
    expected: Expected
    hash_limit: int
    """Greatest hash of a sequence that is kept; 0: duplicates are not counted."""
    at_once: ClassVar[int] = AT_ONCE

    @staticmethod
    def of(dataset: MMapIndexedDataset, expected: Expected, output: str, *, deep: bool) -> TokenCheck:
        """Make the check of an open dataset, whose index is sound.

        Unless it is deep, copies of this machine are read where they are here, and the index always.
        """
        store, prefix = dataset.stored(as_copies=not deep)
        found = None if isinstance(store, LocalStore) else store.stat(f"{prefix}.bin")
        tokens = StoredArray(store, f"{prefix}.bin", dataset.dtype, mark=None if found is None else found.mark)
        where = str(bin_path(dataset.prefix)) if isinstance(store, LocalStore) else store.url(tokens.name)
        idx = Path(idx_path(dataset.prefix)).absolute()
        index, name = (store, f"{prefix}.idx") if deep else (LocalStore(idx.parent), idx.name)
        lengths = StoredArray(index, name, np.dtype("<i4"), HEADER.size)
        is_whole = deep or dataset.token_count <= QUICK_TOKENS
        limit = hash_limit(len(dataset)) if is_whole else 0
        return TokenCheck(output, where, tokens, lengths, expected, limit)

    def look(self, part: TokenRange) -> RangeFacts:
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
        ends = np.cumsum(lengths, dtype=np.int64)
        ids, framing = _Ids(self.expected.max_id), _Framing(self.expected, lengths, ends)
        hashes = SequenceHashes(lengths if self.hash_limit else lengths[:0], self.hash_limit)
        for chunk in self._chunks(part, pieces):
            ids.add(chunk)
            framing.add(chunk)
            hashes.add(chunk)
        return RangeFacts(
            tokens=ids.tokens,
            greatest=ids.greatest,
            foreign=self._foreign(part, ends, ids.foreign),
            unframed=self._unframed(
                part.first, lengths, part.begin // self.tokens.dtype.itemsize + ends, framing.wrong()
            ),
            hashes=hashes.sample(),
        )

    def _chunks(self, part: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """Read the range's tokens, some at a time."""
        size = self.tokens.dtype.itemsize
        step, first, end = _READ_BYTES // size, part.begin // size, part.end // size
        for begin in range(first, end, step):
            block = self.tokens.read(begin, min(begin + step, end))
            if pieces is not None:
                pieces.add(block.view(np.uint8).data)
            yield from (block[place : place + CHUNK_TOKENS] for place in range(0, len(block), CHUNK_TOKENS))

    def _foreign(
        self, part: TokenRange, ends: NDArray[np.int64], found: tuple[int, int] | None
    ) -> OutOfVocabulary | None:
        if found is None:
            return None
        token, token_id = found
        # Behind the last sequence there may be bytes that are none of it.
        sequence = part.first + min(int(np.searchsorted(ends, token, side="right")), max(len(ends) - 1, 0))
        return OutOfVocabulary(part.begin + self.tokens.byte(token), sequence, token_id)

    def _unframed(
        self, first: int, lengths: NDArray[np.int32], ends: NDArray[np.int64], wrong: NDArray[np.int64]
    ) -> MissingBosEos | None:
        if not len(wrong):
            return None
        sequence = int(wrong[0])
        end = int(ends[sequence])
        begin = end - int(lengths[sequence])
        head = self.tokens.read(begin, min(begin + len(self.expected.before), end)).tolist()
        tail = self.tokens.read(max(end - len(self.expected.after), begin), end).tolist()
        return MissingBosEos(self.tokens.byte(begin), first + sequence, f"{head} … {tail}", len(wrong))

    def conclude(self, outcomes: Sequence[RangeFacts]) -> Report:
        report, where, found = Report(self.output), self.where, _together(outcomes)
        report.figures |= {"tokens_read": found.tokens, "greatest_id": found.greatest}
        if self.hash_limit:
            report.figures["duplicate_documents"] = round(duplicate_share(found.hashes), 6)
        _report_altered(report, where, [outcome.altered for outcome in outcomes])
        if (foreign := found.foreign) is not None:
            report.error(
                "a token is not in the vocabulary",
                where=f"{where}, byte {foreign.byte} (sequence {foreign.sequence})",
                found=f"id {foreign.id}",
                expected="0 or more" if self.expected.max_id is None else f"0 to {self.expected.max_id}",
                remedy="build again with the tokenizer that made the data, or " + REMEDY,
            )
        self._report_unframed(report, found.unframed)
        return report

    def check_ends(self, report: Report, dataset: MMapIndexedDataset) -> None:
        """Check the first and last tokens of up to 65,536 spread sequences of a dataset that lies on this machine."""
        before, after, tokens = self.expected.before, self.expected.after, dataset.tokens
        rows = spread_rows(len(dataset), QUICK_SEQUENCES)
        lengths = dataset.sequence_lengths[rows]
        begins = dataset.sequence_pointers[rows] // dataset.dtype.itemsize
        ends = begins + lengths
        wrong = lengths < len(before) + len(after)
        whole = np.flatnonzero(~wrong)
        for place, token in enumerate(before):
            wrong[whole] |= tokens[begins[whole] + place] != token
        for place, token in enumerate(reversed(after), 1):
            wrong[whole] |= tokens[ends[whole] - place] != token
        if (unframed := self._unframed(0, lengths, ends, np.flatnonzero(wrong))) is not None:
            self._report_unframed(report, unframed._replace(sequence=int(rows[unframed.sequence])))

    def _report_unframed(self, report: Report, unframed: MissingBosEos | None) -> None:
        if unframed is not None:
            more = f", and {unframed.sequences - 1:,} more" if unframed.sequences > 1 else ""
            report.error(
                "a sequence does not begin and end with the tokens that it should",
                where=f"{self.where}, byte {unframed.byte} (sequence {unframed.sequence}{more})",
                found=unframed.found,
                expected=f"{list(self.expected.before)} … {list(self.expected.after)}",
                remedy=REMEDY + ", with the end-of-document token (append_eod)",
            )


@dataclass(frozen=True, slots=True)
class ByteCheck(DeepCheck[TokenRange, str | None]):
    """Digests of the pieces of a .bin whose index cannot be read."""

    output: str
    store: Store
    name: str
    """Of the .bin in the store."""
    at_once: ClassVar[int] = AT_ONCE

    def look(self, part: TokenRange) -> str | None:
        check = PieceCheck(part.pieces, part.begin)
        for begin in range(part.begin, part.end, _READ_BYTES):
            check.add(self.store.read_range(self.name, begin, min(begin + _READ_BYTES, part.end)))
        return check.fault()

    def conclude(self, outcomes: Sequence[str | None]) -> Report:
        report = Report(self.output)
        _report_altered(report, self.store.url(self.name), outcomes)
        return report


class _Ids:
    """The ids of the tokens of a range, given one chunk after the other."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.tokens, self.greatest = 0, -1
        self.foreign: tuple[int, int] | None = None
        """(number of the token, id) of the first that is not in the vocabulary."""

    def add(self, chunk: Tokens) -> None:
        low, high = int(chunk.min()), int(chunk.max())
        limit = high if self._limit is None else self._limit
        if self.foreign is None and (low < 0 or high > limit):
            at = int(np.argmax((chunk < 0) | (chunk > limit)))
            self.foreign = self.tokens + at, int(chunk[at])
        self.tokens += len(chunk)
        self.greatest = max(self.greatest, high)


class _Framing:
    """Whether sequences begin and end with the expected tokens; their tokens are given one chunk after the other."""

    def __init__(self, expected: Expected, lengths: NDArray[np.int32], ends: NDArray[np.int64]) -> None:
        before, after = expected.before, expected.after
        extra = len(before) + len(after)
        self._begin = 0
        self._wrong = [np.flatnonzero(lengths < extra)]
        self._sequences = np.flatnonzero(lengths >= extra) if extra else np.empty(0, np.int64)
        last = ends[self._sequences]
        first = last - lengths[self._sequences]
        # (int64[sequences], ascending: numbers of the tokens; the id that each must have)
        self._expected = [(first + place, token) for place, token in enumerate(before)]
        self._expected += [(last - len(after) + place, token) for place, token in enumerate(after)]

    def add(self, chunk: Tokens) -> None:
        for places, token in self._expected:
            begin, end = np.searchsorted(places, [self._begin, self._begin + len(chunk)])
            wrong = chunk[places[begin:end] - self._begin] != token
            if wrong.any():
                self._wrong.append(self._sequences[begin:end][wrong])
        self._begin += len(chunk)

    def wrong(self) -> NDArray[np.int64]:
        """Return the numbers of the sequences that are not as they should be, ascending."""
        return np.unique(np.concatenate(self._wrong))


def _report_altered(report: Report, where: str, faults: Sequence[str | None]) -> None:
    """Note that bytes are not those of their digests; each range has one fault, or none."""
    if altered := [fault for fault in faults if fault is not None]:
        report.error(
            "a file has other bytes than when it was written",
            where=where,
            found=altered[0] + (f", and {len(altered) - 1:,} more" if len(altered) > 1 else ""),
            expected="the digests of the pieces that it was joined of",
            remedy="delete the manifest.json beside it, and run `nanoset build`",
        )


def token_ranges(dataset: MMapIndexedDataset, pieces: Sequence[PieceDigest] = ()) -> list[TokenRange]:
    """Cut all of a dataset, whose index is sound, into ranges of about 128 MiB.

    Args:
        dataset: The dataset.
        pieces: What the .bin was joined of, all of it, where that is known: then ranges end where pieces do.
    """
    cuts = _ends_of_pieces(dataset, pieces) if pieces else _spread_cuts(dataset)
    ranges, before = [], (0, 0, 0)
    for sequence, byte, piece in cuts:
        ranges.append(TokenRange(before[0], sequence, before[1], byte, tuple(pieces[before[2] : piece])))
        before = sequence, byte, piece
    return ranges


def spread_ranges(dataset: MMapIndexedDataset) -> Iterator[TokenRange]:
    """Yield 256 evenly spread ranges of a dataset of more than 16 Mi tokens: whole sequences, or some tokens of one.

    The first and the last sequence are whole where one request reads them.
    """
    pointers, size, total = dataset.sequence_pointers, dataset.dtype.itemsize, dataset.bin_bytes
    first_end = int(pointers[1]) if len(pointers) > 1 else total
    for begin, end in ((begin * size, end * size) for begin, end in spread_chunks(dataset.token_count)):
        if begin == 0 and end < first_end <= _READ_BYTES:
            yield TokenRange(0, 1, 0, first_end)
            continue
        if end == total and begin > pointers[-1] >= total - _READ_BYTES:
            yield TokenRange(len(pointers) - 1, len(pointers), int(pointers[-1]), total)
            continue
        within = bisect_right(pointers, begin) - 1
        # The sequence that holds the first token is read from its beginning, unless that is far away.
        near = int(pointers[within]) if begin - int(pointers[within]) <= end - begin else begin
        first = bisect_left(pointers, near)
        last = len(dataset) if end == dataset.bin_bytes else bisect_right(pointers, end) - 1
        stop = end if last == len(dataset) else int(pointers[last])
        if first < last and int(pointers[first]) < stop:
            yield TokenRange(first, last, int(pointers[first]), stop)
        else:
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


def byte_ranges(pieces: Sequence[PieceDigest]) -> list[TokenRange]:
    """Cut pieces into ranges for `ByteCheck`."""
    ends = [0, *accumulate(piece.size for piece in pieces)]
    return [
        TokenRange(0, 0, ends[run.start], ends[run.stop], tuple(pieces[run.start : run.stop]))
        for run in runs([piece.size for piece in pieces])
    ]


def _spread_cuts(dataset: MMapIndexedDataset) -> Iterator[tuple[int, int, int]]:
    """Yield (sequence, byte, 0) where each range ends."""
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
    """Yield (sequence, byte, piece) where each range ends, all excluded."""
    pointers, count = dataset.sequence_pointers, len(dataset)
    ends = [*accumulate(piece.size for piece in pieces)]
    for run in runs([piece.size for piece in pieces]):
        byte = ends[run[-1]]
        sequence = bisect_left(pointers, byte)
        # In a file of this project a sequence begins there; in another one, the range goes on to where that is so.
        if run[-1] + 1 == len(pieces):
            yield count, byte, len(pieces)
        elif sequence < count and int(pointers[sequence]) == byte:
            yield sequence, byte, run[-1] + 1
