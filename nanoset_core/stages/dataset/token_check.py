"""Check the tokens of a .bin, in ranges that different machines can check independently.

Four things are checked:

- every id is in the vocabulary;
- every sequence begins and ends with the special tokens that are added to documents;
- the bytes have not changed since they were written;
- few documents repeat others.

`TokenCheck.look` checks one range, and `TokenCheck.conclude` reports on all ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.resources import available_processors
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import HEADER, Tokens, idx_path
from nanoset_core.sampling.token_hashes import SequenceHasher
from nanoset_core.stages.dataset.token_ranges import (
    QUICK_PLACES,
    QUICK_TOKENS,
    TokenRange,
    spread_rows,
)
from nanoset_core.stages.report import Report
from nanoset_core.stages.shards.repeats import LOOK, repeats_text
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import THREADS, PieceCheck, Store

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
"""Remedy for a dataset with wrong tokens."""
AT_ONCE = min(2 * available_processors(), THREADS)
"""Number of ranges that one process checks at the same time."""
_READ_BYTES = 8 << 20
"""Bytes of tokens that are read together."""
_BLOCK_SEQUENCES = 1 << 18
"""Number of sequences whose lengths are in memory at once."""
_CHUNK_BYTES = 1 << 20
"""Bytes of tokens that are checked together: so few that they stay in a processor's cache."""
_MAX_HASHES = 1 << 22
"""About how many hashes of a dataset's sequences are kept: 32 MiB."""
_MAX_HASH = 2**64 - 1


def hash_limit(n_sequences: int, max_hashes: int = _MAX_HASHES) -> int:
    """Return the greatest hash to keep, so that at most about `max_hashes` hashes are kept.

    Only hashes up to this limit are kept, so that memory is bounded. All copies of a sequence have
    the same hash, so either all or none of them are kept. The share of repeated sequences among
    those kept is therefore an unbiased estimate of the share among all, and exact if all are kept.
    """
    if n_sequences <= max_hashes:
        return _MAX_HASH
    return _MAX_HASH * max_hashes // n_sequences


@dataclass(frozen=True, slots=True)
class Expected:
    """The properties that the tokens of a dataset must have; None for unknown ones."""

    max_id: int | None = None
    """Greatest id of the vocabulary."""
    dtype: str | None = None
    """Type of the tokens in the .bin."""
    before: tuple[int, ...] = ()
    """Ids at the beginning of every sequence."""
    after: tuple[int, ...] = ()
    """Ids at the end of every sequence, such as the end-of-document token."""
    documents: int | None = None
    """Number of documents."""
    sequences: int | None = None
    """Number of sequences."""
    tokens: int | None = None
    """Number of tokens."""
    duplicates: float = 1.0
    """Largest share of documents that may repeat others."""
    duplicates_key: str = ""
    """Key of nanoset.yaml that sets this share; "" if no key does."""

    @staticmethod
    def of(
        options: Mapping[str, Any], facts: Mapping[str, Any], max_id: int | None = None
    ) -> Expected:
        """Return what is expected of a dataset by its recipe and manifest.

        Args:
            options: Options of the recipe.
            facts: Facts in the manifest.
            max_id: Greatest id of the vocabulary, if it is known.
        """
        framing = options.get("framing", {})
        return Expected(
            max_id=max_id,
            dtype=options.get("dtype"),
            before=tuple(framing.get("before", ())),
            after=tuple(framing.get("after", ())),
            documents=facts.get("documents"),
            sequences=facts.get("sequences"),
            tokens=facts.get("tokens"),
        )

    @property
    def min_length(self) -> int:
        """Smallest number of tokens of a sequence: that of its first and last special tokens."""
        return len(self.before) + len(self.after)

    @property
    def ends(self) -> str:
        """The first and last ids of a sequence, for messages."""
        return f"{list(self.before)} … {list(self.after)}"


class TokenFault(NamedTuple):
    """The first of several faults of one kind in the tokens of a .bin."""

    byte: int
    """Position in the .bin."""
    sequence: int
    """Number of the sequence."""
    found: str
    """The wrong tokens, for messages."""


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """The outcome of checking one or more ranges."""

    tokens: int
    """Number of tokens."""
    max_id: int
    """Greatest id; -1 if there are no tokens."""
    foreign: TokenFault | None
    """The first token that is not in the vocabulary."""
    unframed: TokenFault | None
    """The first sequence that does not begin and end with the expected tokens."""
    unframed_sequences: int
    """Number of such sequences."""
    hashes: NDArray[np.uint64]
    """Distinct hashes of sequences up to the limit, ascending."""
    hashed: int
    """Number of sequences that have these hashes."""
    altered: tuple[str, ...] = ()
    """A clause for each range whose bytes differ from their digest."""


def _first_fault(faults: Sequence[TokenFault | None]) -> TokenFault | None:
    """Return the first fault in the results of consecutive ranges, or None."""
    for fault in faults:
        if fault is not None:
            return fault
    return None


def _combined(parts: Sequence[RangeFacts]) -> RangeFacts:
    """Combine the results of checking consecutive ranges of a .bin.

    Args:
        parts: The result of each range, in the order of the ranges.
    """
    # Hashes that are in several parts are kept once.
    no_hashes = np.empty(0, np.uint64)
    hashes = np.concatenate([no_hashes, *(part.hashes for part in parts)])
    altered: list[str] = []
    for part in parts:
        altered += part.altered
    return RangeFacts(
        tokens=sum(part.tokens for part in parts),
        max_id=max((part.max_id for part in parts), default=-1),
        foreign=_first_fault([part.foreign for part in parts]),
        unframed=_first_fault([part.unframed for part in parts]),
        unframed_sequences=sum(part.unframed_sequences for part in parts),
        hashes=np.unique(hashes),
        hashed=sum(part.hashed for part in parts),
        altered=tuple(altered),
    )


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A one-dimensional array in a file, which is read in ranges."""

    store: Store
    """Contains the file."""
    name: str
    """Name of the file in the store."""
    dtype: np.dtype
    """Type of the numbers."""
    begin: int = 0
    """Byte of the file at which the array begins."""
    mark: str | None = None
    """Version of the file, to notice if it is replaced.

    None for files on a disk, whose marks may differ between machines.
    """

    @property
    def url(self) -> str:
        """Path or address of the file."""
        return self.store.url(self.name)

    def read(self, start: int, stop: int) -> Tokens:
        """Read consecutive numbers of the array.

        Args:
            start: Index of the first number.
            stop: Index after the last number.

        Raises:
            SourceChangedError: The file was replaced, or ends before `stop`.
            MissingError: The file was deleted.
        """
        data = b""
        if start < stop:
            data = self.store.read_range(self.name, self.byte(start), self.byte(stop), self.mark)
        return np.frombuffer(data, self.dtype)

    def byte(self, number: int) -> int:
        """Return the byte of the file at which a number of the array begins."""
        return self.begin + number * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Checks the tokens of one dataset, range by range; it pickles."""

    tokens: StoredArray
    """All tokens of the .bin, integers."""
    lengths: StoredArray
    """Number of tokens of each sequence, int32."""
    expected: Expected
    """The properties that the tokens must have."""
    hash_limit: int
    """Greatest hash of a sequence that is kept; 0 if duplicates are not counted."""

    @staticmethod
    def of(dataset: MMapIndexedDataset, expected: Expected, *, deep: bool) -> TokenCheck:
        """Return the check of a dataset.

        Args:
            dataset: The dataset. Its index must be valid.
            expected: The properties that its tokens must have.
            deep: Read the files in the bucket, which other machines can also do. Otherwise the
                local copy of the index is read, and that of the tokens if it exists.
        """
        # The tokens are the whole .bin. If it is an object in a bucket, its mark is its version.
        store, prefix = dataset.stored(as_copies=not deep)
        mark = None
        if not isinstance(store, LocalStore):
            stored = store.stat(f"{prefix}.bin")
            mark = None if stored is None else stored.mark
        tokens = StoredArray(store, f"{prefix}.bin", dataset.dtype, mark=mark)

        # The lengths of the sequences are the first array after the header of the .idx.
        index_store: Store = store
        index_name = f"{prefix}.idx"
        if not deep:
            path = Path(idx_path(dataset.prefix)).absolute()
            index_store = LocalStore(path.parent)
            index_name = path.name
        lengths = StoredArray(index_store, index_name, np.dtype("<i4"), HEADER.size)

        # Samples do not show how many documents repeat others.
        is_read_whole = deep or dataset.token_count <= QUICK_TOKENS
        limit = hash_limit(len(dataset)) if is_read_whole else 0
        return TokenCheck(tokens, lengths, expected, limit)

    def look(self, token_range: TokenRange) -> RangeFacts:
        """Check the tokens of one range of the .bin.

        Args:
            token_range: Consecutive sequences, or tokens within one sequence.

        Returns:
            The counts and the first faults, for `conclude`.

        Raises:
            SourceChangedError, MissingError: A file was replaced or deleted.
            StorageError: A file cannot be read.
        """
        # Compares the bytes with digests that were recorded when the .bin was joined from pieces.
        pieces: PieceCheck | None = None
        if token_range.pieces:
            pieces = PieceCheck(token_range.pieces, token_range.begin)

        block_facts: list[RangeFacts] = []
        for block, lengths in self._blocks(token_range):
            block_facts.append(self._check_block(block, lengths, pieces))
        facts = _combined(block_facts)

        changed_bytes = None if pieces is None else pieces.fault()
        if changed_bytes is not None:
            facts = replace(facts, altered=(changed_bytes,))
        return facts

    def _blocks(self, token_range: TokenRange) -> Iterator[tuple[TokenRange, NDArray[np.int32]]]:
        """Divide a range into blocks of sequences, so that few lengths are in memory at once.

        Args:
            token_range: Consecutive sequences, or tokens within one sequence. The latter are one
                block without any whole sequence.

        Yields:
            (block, tokens of each sequence of the block). The lengths have shape (n_sequences,).
        """
        n_sequences = token_range.last - token_range.first
        if n_sequences == 0:
            yield token_range, np.empty(0, np.int32)
            return

        start_byte = token_range.begin
        for first_sequence in range(token_range.first, token_range.last, _BLOCK_SEQUENCES):
            stop_sequence = min(first_sequence + _BLOCK_SEQUENCES, token_range.last)
            stored_lengths = self.lengths.read(first_sequence, stop_sequence)
            lengths = stored_lengths.astype(np.int32, copy=False)

            # The .bin may have bytes after its last sequence. They belong to the last block.
            n_tokens = int(lengths.sum(dtype=np.int64))
            stop_byte = start_byte + n_tokens * self.tokens.dtype.itemsize
            if stop_sequence == token_range.last:
                stop_byte = token_range.end

            yield TokenRange(first_sequence, stop_sequence, start_byte, stop_byte), lengths
            start_byte = stop_byte

    def _check_block(
        self, block: TokenRange, lengths: NDArray[np.int32], pieces: PieceCheck | None
    ) -> RangeFacts:
        """Check the tokens of some sequences, a chunk at a time.

        Args:
            block: The sequences; or tokens within one sequence, for which `lengths` is empty.
            lengths: Tokens of each sequence, shape (n_sequences,).
            pieces: Compares all bytes with the digests of pieces; None if these are not known.
        """
        # (n_sequences,) end of each sequence, in tokens from the start of the block
        stops = np.cumsum(lengths, dtype=np.int64)

        # Hashes show which sequences repeat others. They are only computed if these are counted.
        counts_duplicates = self.hash_limit > 0
        hasher = SequenceHasher(lengths if counts_duplicates else lengths[:0])
        kept_hashes = [np.empty(0, np.uint64)]

        framing = _FramingCheck(lengths, stops, self.expected)
        n_tokens = 0
        max_id = -1
        foreign: TokenFault | None = None  # the first token that is not in the vocabulary
        for chunk in self._chunks(block, pieces):
            low = int(chunk.min())
            high = int(chunk.max())
            max_id = max(max_id, high)
            if foreign is None and not self._is_in_vocabulary(low, high):
                foreign = self._foreign_token(chunk, n_tokens, block, stops)
            framing.add(chunk, n_tokens)
            hashes = hasher.add(chunk)
            kept_hashes.append(hashes[hashes <= self.hash_limit])
            n_tokens += len(chunk)

        unframed_sequences = framing.unframed()
        unframed: TokenFault | None = None
        if len(unframed_sequences):
            unframed = self._describe_unframed(int(unframed_sequences[0]), block, lengths, stops)
        all_kept_hashes = np.concatenate(kept_hashes)
        return RangeFacts(
            tokens=n_tokens,
            max_id=max_id,
            foreign=foreign,
            unframed=unframed,
            unframed_sequences=len(unframed_sequences),
            hashes=np.unique(all_kept_hashes),
            hashed=len(all_kept_hashes),
        )

    def _describe_unframed(
        self,
        number: int,
        block: TokenRange,
        lengths: NDArray[np.int32],
        stops: NDArray[np.int64],
    ) -> TokenFault:
        """Read a sequence with unexpected first or last tokens again, to show these in a message.

        Args:
            number: Number of the sequence within the block.
            block: The block.
            lengths: Tokens of each sequence of the block, shape (n_sequences,).
            stops: End of each, in tokens from the start of the block; shape (n_sequences,).
        """
        length = int(lengths[number])
        block_start = block.begin // self.tokens.dtype.itemsize  # in tokens of the .bin
        start = block_start + int(stops[number]) - length
        return self._read_ends(block.first + number, start, length)

    def _is_in_vocabulary(self, low: int, high: int) -> bool:
        """Return whether the vocabulary contains all ids from `low` to `high`."""
        return low >= 0 and (self.expected.max_id is None or high <= self.expected.max_id)

    def _foreign_token(
        self, chunk: Tokens, offset: int, block: TokenRange, stops: NDArray[np.int64]
    ) -> TokenFault:
        """Describe the first token of a chunk that is not in the vocabulary.

        Args:
            chunk: Tokens of the block, shape (n_tokens,).
            offset: Position of the first of these tokens in the block.
            block: The block.
            stops: End of each sequence, in tokens from the start of the block; shape
                (n_sequences,).
        """
        is_foreign = chunk < 0
        if self.expected.max_id is not None:
            is_foreign |= chunk > self.expected.max_id
        position = int(np.argmax(is_foreign))  # in the chunk
        sequence = block.first + int(np.searchsorted(stops, offset + position, side="right"))
        return TokenFault(
            byte=block.begin + self.tokens.byte(offset + position),
            sequence=sequence,
            found=f"id {chunk[position]}",
        )

    def _chunks(self, block: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """Yield the tokens of a block in chunks of 1 MiB, which stay in a processor's cache.

        Args:
            block: The block. It is read 8 MiB at a time.
            pieces: Receives all bytes, to compare them with the digests of pieces; or None.
        """
        itemsize = self.tokens.dtype.itemsize
        step = _READ_BYTES // itemsize
        stop = block.end // itemsize
        for start in range(block.begin // itemsize, stop, step):
            tokens = self.tokens.read(start, min(start + step, stop))
            if pieces is not None:
                pieces.add(tokens.view(np.uint8).data)
            chunk_tokens = _CHUNK_BYTES // itemsize
            for chunk_start in range(0, len(tokens), chunk_tokens):
                yield tokens[chunk_start : chunk_start + chunk_tokens]

    def _read_ends(self, sequence: int, start: int, length: int) -> TokenFault:
        """Read the first and last tokens of a sequence, and describe them as a fault.

        Args:
            sequence: Number of the sequence.
            start: Position of its first token in the .bin.
            length: Number of its tokens.
        """
        stop = start + length
        head = self.tokens.read(start, min(start + len(self.expected.before), stop)).tolist()
        tail = self.tokens.read(max(stop - len(self.expected.after), start), stop).tolist()
        return TokenFault(self.tokens.byte(start), sequence, f"{head} … {tail}")

    def check_ends(self, report: Report, dataset: MMapIndexedDataset) -> None:
        """Check the first and last tokens of 256 evenly spread sequences.

        It complements a check of samples: samples of a dataset with long sequences may contain no
        end of a sequence. In a bucket, only the first and the last sequence are read, since each
        sequence takes two requests.

        Args:
            report: Report to add to; gets an error for the first sequence with other tokens.
            dataset: The dataset.
        """
        n_sequences = QUICK_PLACES if dataset.is_here else 2
        for sequence in spread_rows(len(dataset), n_sequences).tolist():
            length = int(dataset.sequence_lengths[sequence])
            start = int(dataset.sequence_pointers[sequence]) // dataset.dtype.itemsize
            ends = self._read_ends(sequence, start, length)
            if ends.found != self.expected.ends or length < self.expected.min_length:
                self._report_unframed(report, ends, 1)
                return

    def conclude(self, report: Report, outcomes: Sequence[RangeFacts]) -> None:
        """Report the figures and faults of all ranges.

        Args:
            report: Report to add to.
            outcomes: What `look` returned for each range, in order.
        """
        facts = _combined(outcomes)
        report.figures["tokens_read"] = facts.tokens
        report.figures["greatest_id"] = facts.max_id
        if self.hash_limit:
            self._report_duplicates(report, facts)
        if facts.altered:
            report.error(
                "a file has other bytes than when it was written",
                where=self.tokens.url,
                found=facts.altered[0] + _and_more(len(facts.altered)),
                expected="the digests of the pieces that it was joined from",
                remedy="delete the manifest.json next to it, and run `nanoset build`",
            )
        if facts.foreign is not None:
            self._report_foreign(report, facts.foreign)
        if facts.unframed is not None:
            self._report_unframed(report, facts.unframed, facts.unframed_sequences)

    def _report_foreign(self, report: Report, first: TokenFault) -> None:
        """Report that the vocabulary does not contain all tokens.

        Args:
            report: Report to add to.
            first: The first token that it does not contain.
        """
        max_id = self.expected.max_id
        report.error(
            "a token is not in the vocabulary",
            where=f"{self.tokens.url}, byte {first.byte} (sequence {first.sequence})",
            found=first.found,
            expected="0 or more" if max_id is None else f"0 to {max_id}",
            remedy=f"build again with the tokenizer that made the data, or {REMEDY}",
        )

    def _report_duplicates(self, report: Report, facts: RangeFacts) -> None:
        """Report which share of documents repeats others, and warn if it is too large."""
        share = 0.0
        if facts.hashed:
            share = 1.0 - len(facts.hashes) / facts.hashed
        report.figures["duplicate_documents"] = round(share, 6)
        text = repeats_text(share, self.expected.duplicates, self.expected.duplicates_key)
        if text:
            report.warn(text, where=self.tokens.url, remedy=LOOK)

    def _report_unframed(self, report: Report, first: TokenFault, count: int) -> None:
        """Report sequences with unexpected ends: the first of them, and their number."""
        report.error(
            "a sequence does not begin and end with the tokens that it should",
            where=f"{self.tokens.url}, byte {first.byte} "
            f"(sequence {first.sequence}{_and_more(count)})",
            found=first.found,
            expected=self.expected.ends,
            remedy=f"{REMEDY}, with the end-of-document token (append_eod)",
        )


@dataclass(frozen=True, slots=True)
class _ExpectedToken:
    """A token that every sequence must have at a fixed distance from its start or its end."""

    anchors: NDArray[np.int64]
    """Start or end of each sequence, in tokens from the start of the block; ascending."""
    offset: int
    """Distance of the token from the anchor: 0 for the first token, -1 for the last one."""
    token: int
    """The id that must be there."""


class _FramingCheck:
    """Finds the sequences of a block that do not begin and end with the expected tokens.

    The tokens are added chunk by chunk, and a sequence may be in several chunks.

    Args:
        lengths: Tokens of each sequence, shape (n_sequences,).
        stops: End of each sequence, in tokens from the start of the block; shape (n_sequences,).
        expected: The expected first and last tokens.
    """

    def __init__(
        self, lengths: NDArray[np.int32], stops: NDArray[np.int64], expected: Expected
    ) -> None:
        """Note which sequences are too short, and where the tokens of the others are expected."""
        # A sequence that is too short for the expected tokens does not have them.
        is_long_enough = lengths >= expected.min_length
        self._unframed = [np.flatnonzero(~is_long_enough)]

        # Where the others start and stop, and which tokens they must have there.
        self._sequences = np.flatnonzero(is_long_enough)
        long_stops = stops[self._sequences]
        long_starts = long_stops - lengths[self._sequences]
        self._tokens: list[_ExpectedToken] = []
        for offset, token in enumerate(expected.before):
            self._tokens.append(_ExpectedToken(long_starts, offset, token))
        for offset, token in enumerate(expected.after, start=-len(expected.after)):
            self._tokens.append(_ExpectedToken(long_stops, offset, token))

    def add(self, chunk: Tokens, chunk_start: int) -> None:
        """Compare a chunk of tokens with what is expected.

        Args:
            chunk: Tokens, shape (n_tokens,).
            chunk_start: Position of the first of them in the block.
        """
        for expected in self._tokens:
            # A sequence should have this token at the position anchor + offset of the block, where
            # the anchor is the start or the stop of the sequence. So the token is in the chunk if
            # the anchor is in the range of the chunk, shifted by the offset. Anchors are ascending.
            min_anchor = chunk_start - expected.offset
            stop_anchor = min_anchor + len(chunk)
            first, stop = np.searchsorted(expected.anchors, [min_anchor, stop_anchor])
            anchors = expected.anchors[first:stop]
            sequences = self._sequences[first:stop]

            positions = anchors + expected.offset - chunk_start  # in the chunk
            is_other = chunk[positions] != expected.token
            self._unframed.append(sequences[is_other])

    def unframed(self) -> NDArray[np.int64]:
        """Return the numbers of the sequences with unexpected ends, int64, ascending."""
        return np.unique(np.concatenate(self._unframed))


def _and_more(count: int) -> str:
    """Return the end of a message that names only the first of several things."""
    return f", and {count - 1:,} more" if count > 1 else ""
