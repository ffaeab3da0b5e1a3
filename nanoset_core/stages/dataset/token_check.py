"""Check the tokens of a .bin, in ranges that different machines can check independently.

Four things are checked:

- every id is in the vocabulary;
- every sequence begins and ends with the special tokens that are added to documents;
- the bytes have not changed since they were written;
- few documents repeat others.

`TokenCheck.check_range` checks one range, and `TokenCheck.conclude` reports on all ranges.
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
    first_unknown_token: TokenFault | None
    """The first token that is not in the vocabulary."""
    first_wrong_ends: TokenFault | None
    """The first sequence that does not begin and end with the expected tokens."""
    n_wrong_ends: int
    """Number of such sequences."""
    hashes: NDArray[np.uint64]
    """Distinct hashes of sequences up to the limit, ascending."""
    n_hashed: int
    """Number of sequences that have these hashes. It is larger than the number of hashes if
    sequences repeat others.
    """
    changed_bytes: tuple[str, ...] = ()
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
    # There may be no parts, and np.concatenate needs an array.
    hash_arrays = [np.empty(0, np.uint64)]
    changed_bytes: list[str] = []
    for part in parts:
        hash_arrays.append(part.hashes)
        changed_bytes += part.changed_bytes

    # A sequence of one part may repeat one of another part. Then both parts have its hash, which
    # `np.unique` keeps once.
    distinct_hashes = np.unique(np.concatenate(hash_arrays))
    return RangeFacts(
        tokens=sum(part.tokens for part in parts),
        max_id=max((part.max_id for part in parts), default=-1),
        first_unknown_token=_first_fault([part.first_unknown_token for part in parts]),
        first_wrong_ends=_first_fault([part.first_wrong_ends for part in parts]),
        n_wrong_ends=sum(part.n_wrong_ends for part in parts),
        hashes=distinct_hashes,
        n_hashed=sum(part.n_hashed for part in parts),
        changed_bytes=tuple(changed_bytes),
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
        # The tokens are all bytes of the .bin. If it is an object in a bucket, the mark names its
        # version, so that a replaced object is noticed.
        reads_local_copies = not deep
        store, prefix = dataset.stored(as_copies=reads_local_copies)
        bin_name = f"{prefix}.bin"
        mark = None
        if not isinstance(store, LocalStore):
            stored = store.stat(bin_name)
            if stored is not None:
                mark = stored.mark
        tokens = StoredArray(store, bin_name, dataset.dtype, mark=mark)

        # The lengths of the sequences are the first array after the header of the .idx. Opening the
        # dataset has downloaded the .idx.
        index_store: Store = store
        index_name = f"{prefix}.idx"
        if reads_local_copies:
            path = Path(idx_path(dataset.prefix)).absolute()
            index_store = LocalStore(path.parent)
            index_name = path.name
        lengths = StoredArray(index_store, index_name, np.dtype("<i4"), HEADER.size)

        # Sequences are hashed to count those that repeat others. That makes sense only if all are
        # read: most copies of a sequence would be missing in a sample of the dataset.
        reads_all = deep or dataset.token_count <= QUICK_TOKENS
        max_hash = 0
        if reads_all:
            max_hash = hash_limit(len(dataset))
        return TokenCheck(tokens, lengths, expected, max_hash)

    def check_range(self, token_range: TokenRange) -> RangeFacts:
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
            pieces = PieceCheck(token_range.pieces, token_range.start_byte)

        block_facts: list[RangeFacts] = []
        for block, lengths in self._blocks(token_range):
            block_facts.append(self._check_block(block, lengths, pieces))
        facts = _combined(block_facts)

        changed_bytes = None if pieces is None else pieces.fault()
        if changed_bytes is not None:
            facts = replace(facts, changed_bytes=(changed_bytes,))
        return facts

    def _blocks(self, token_range: TokenRange) -> Iterator[tuple[TokenRange, NDArray[np.int32]]]:
        """Divide a range into blocks of sequences, so that few lengths are in memory at once.

        Args:
            token_range: Consecutive sequences, or some tokens within one sequence.

        Yields:
            (block, number of tokens of each of its sequences). The lengths are int32, shape
            (n_sequences,). Tokens within one sequence are a single block, with no lengths.
        """
        range_start = token_range.first_sequence
        range_stop = token_range.stop_sequence
        if range_start == range_stop:  # tokens within one sequence
            no_lengths = np.empty(0, np.int32)
            yield token_range, no_lengths
            return

        start_byte = token_range.start_byte
        for first_sequence in range(range_start, range_stop, _BLOCK_SEQUENCES):
            stop_sequence = min(first_sequence + _BLOCK_SEQUENCES, range_stop)
            stored_lengths = self.lengths.read(first_sequence, stop_sequence)
            lengths = stored_lengths.astype(np.int32, copy=False)

            # The .bin may have bytes after its last sequence. They belong to the last block.
            n_tokens = int(lengths.sum(dtype=np.int64))
            stop_byte = start_byte + n_tokens * self.tokens.dtype.itemsize
            if stop_sequence == range_stop:
                stop_byte = token_range.stop_byte

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

        # Hashes show which sequences repeat others. They are computed only if copies are counted.
        counts_duplicates = self.hash_limit > 0
        hasher = SequenceHasher(lengths if counts_duplicates else lengths[:0])
        kept_hashes = [np.empty(0, np.uint64)]

        framing = _FramingCheck(lengths, stops, self.expected)
        n_tokens = 0
        max_id = -1
        first_unknown_token: TokenFault | None = None
        for chunk in self._chunks(block, pieces):
            low = int(chunk.min())
            high = int(chunk.max())
            max_id = max(max_id, high)
            if first_unknown_token is None and not self._is_in_vocabulary(low, high):
                first_unknown_token = self._unknown_token(chunk, n_tokens, block, stops)
            framing.add(chunk, n_tokens)
            hashes = hasher.add(chunk)
            kept_hashes.append(hashes[hashes <= self.hash_limit])
            n_tokens += len(chunk)

        wrong_sequences = framing.wrong_sequences()  # numbers within the block
        first_wrong_ends: TokenFault | None = None
        if len(wrong_sequences):
            first_wrong = int(wrong_sequences[0])
            first_wrong_ends = self._describe_ends(first_wrong, block, lengths, stops)
        all_kept_hashes = np.concatenate(kept_hashes)
        return RangeFacts(
            tokens=n_tokens,
            max_id=max_id,
            first_unknown_token=first_unknown_token,
            first_wrong_ends=first_wrong_ends,
            n_wrong_ends=len(wrong_sequences),
            hashes=np.unique(all_kept_hashes),
            n_hashed=len(all_kept_hashes),
        )

    def _describe_ends(
        self,
        number: int,
        block: TokenRange,
        lengths: NDArray[np.int32],
        stops: NDArray[np.int64],
    ) -> TokenFault:
        """Describe the first and last tokens of a sequence that are not the expected ones.

        The tokens are read again, since only their positions were kept.

        Args:
            number: Number of the sequence within the block.
            block: Consecutive sequences of the .bin.
            lengths: Tokens of each sequence of the block, shape (n_sequences,).
            stops: End of each sequence, in tokens from the start of the block; shape
                (n_sequences,).
        """
        # From positions in the block to positions in the .bin, both in tokens.
        block_start = block.start_byte // self.tokens.dtype.itemsize
        stop = block_start + int(stops[number])
        length = int(lengths[number])
        return self._read_ends(
            sequence=block.first_sequence + number, start=stop - length, length=length
        )

    def _is_in_vocabulary(self, low: int, high: int) -> bool:
        """Return whether the vocabulary contains all ids from `low` to `high`."""
        return low >= 0 and (self.expected.max_id is None or high <= self.expected.max_id)

    def _unknown_token(
        self, chunk: Tokens, chunk_start: int, block: TokenRange, stops: NDArray[np.int64]
    ) -> TokenFault:
        """Describe the first token of a chunk that is not in the vocabulary.

        A block is a range of the .bin, and a chunk is a range of a block.

        Args:
            chunk: Tokens, shape (n_tokens,). At least one is not in the vocabulary.
            chunk_start: Position of the first of these tokens in the block.
            block: Consecutive sequences of the .bin, or tokens within one sequence.
            stops: End of each sequence, in tokens from the start of the block; shape
                (n_sequences,).
        """
        # The first wrong token. The .bin may have signed integers, but no id is negative.
        is_unknown = chunk < 0
        if self.expected.max_id is not None:
            is_unknown |= chunk > self.expected.max_id
        position_in_chunk = int(np.argmax(is_unknown))
        position_in_block = chunk_start + position_in_chunk

        # Its sequence: as many sequences of the block as stop before it come first.
        n_sequences_before = int(np.searchsorted(stops, position_in_block, side="right"))
        return TokenFault(
            byte=block.start_byte + position_in_block * self.tokens.dtype.itemsize,
            sequence=block.first_sequence + n_sequences_before,
            found=f"id {chunk[position_in_chunk]}",
        )

    def _chunks(self, block: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """Yield the tokens of a block in chunks.

        The block is read 8 MiB at a time, to need few requests. A chunk has 1 MiB, so that it stays
        in a processor's cache while it is checked in several ways.

        Args:
            block: Consecutive sequences of the .bin, or tokens within one sequence.
            pieces: Receives all bytes, to compare them with the digests of pieces; or None.
        """
        # From bytes to tokens.
        itemsize = self.tokens.dtype.itemsize
        block_start = block.start_byte // itemsize
        block_stop = block.stop_byte // itemsize
        tokens_per_read = _READ_BYTES // itemsize
        tokens_per_chunk = _CHUNK_BYTES // itemsize

        for read_start in range(block_start, block_stop, tokens_per_read):
            read_stop = min(read_start + tokens_per_read, block_stop)
            tokens = self.tokens.read(read_start, read_stop)
            if pieces is not None:
                pieces.add(tokens.view(np.uint8).data)
            for chunk_start in range(0, len(tokens), tokens_per_chunk):
                yield tokens[chunk_start : chunk_start + tokens_per_chunk]

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
        """Check the first and last tokens of some evenly spread sequences.

        `check_range` does the same for every sequence that it reads. But of a large dataset, it
        reads only samples, and these may all be in the middle of long sequences.

        Args:
            report: Report to add to; gets an error for the first sequence with other tokens.
            dataset: The dataset.
        """
        # In a bucket, only the first and the last sequence: each sequence takes two requests.
        n_sequences = QUICK_PLACES if dataset.is_here else 2
        for sequence in spread_rows(len(dataset), n_sequences).tolist():
            length = int(dataset.sequence_lengths[sequence])
            start = int(dataset.sequence_pointers[sequence]) // dataset.dtype.itemsize
            ends = self._read_ends(sequence, start, length)
            # In a short sequence, the same token could count as a first and as a last one.
            is_too_short = length < self.expected.min_length
            if is_too_short or ends.found != self.expected.ends:
                self._report_wrong_ends(report, ends, n_sequences=1)
                return

    def conclude(self, report: Report, outcomes: Sequence[RangeFacts]) -> None:
        """Report the figures and faults of all ranges.

        Args:
            report: Report to add to.
            outcomes: What `check_range` returned for each range, in order.
        """
        facts = _combined(outcomes)
        report.figures["tokens_read"] = facts.tokens
        report.figures["greatest_id"] = facts.max_id
        if self.hash_limit:
            self._report_duplicates(report, facts)

        # The bytes of a piece that the .bin was joined from have another digest now.
        if facts.changed_bytes:
            report.error(
                "a file has other bytes than when it was written",
                where=self.tokens.url,
                found=facts.changed_bytes[0] + _and_more(len(facts.changed_bytes)),
                expected="the digests of the pieces that it was joined from",
                remedy="delete the manifest.json next to it, and run `nanoset build`",
            )
        if facts.first_unknown_token is not None:
            self._report_unknown_token(report, facts.first_unknown_token)
        if facts.first_wrong_ends is not None:
            self._report_wrong_ends(report, facts.first_wrong_ends, n_sequences=facts.n_wrong_ends)

    def _report_unknown_token(self, report: Report, first: TokenFault) -> None:
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
        if facts.n_hashed:
            share = 1.0 - len(facts.hashes) / facts.n_hashed
        report.figures["duplicate_documents"] = round(share, 6)
        text = repeats_text(share, self.expected.duplicates, self.expected.duplicates_key)
        if text:
            report.warn(text, where=self.tokens.url, remedy=LOOK)

    def _report_wrong_ends(self, report: Report, first: TokenFault, *, n_sequences: int) -> None:
        """Report sequences with unexpected ends: the first of them, and their number."""
        report.error(
            "a sequence does not begin and end with the tokens that it should",
            where=f"{self.tokens.url}, byte {first.byte} "
            f"(sequence {first.sequence}{_and_more(n_sequences)})",
            found=first.found,
            expected=self.expected.ends,
            remedy=f"{REMEDY}, with the end-of-document token (append_eod)",
        )


@dataclass(frozen=True, slots=True)
class _ExpectedToken:
    """A special token that every sequence must have near its start or its end."""

    positions: NDArray[np.int64]
    """Where each sequence must have it, in tokens from the start of the block; ascending."""
    token: int
    """The id that must be there."""


class _FramingCheck:
    """Finds the sequences of a block that do not begin and end with the expected tokens.

    The expected tokens are special tokens that are added to each document, such as one that ends
    it. The tokens of the block are added chunk by chunk, and a sequence may be in several chunks.

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
        self._wrong_sequences = [np.flatnonzero(~is_long_enough)]

        # Where the others start and stop: (n_long_sequences,) each.
        self._long_sequences = np.flatnonzero(is_long_enough)
        long_stops = stops[self._long_sequences]
        long_starts = long_stops - lengths[self._long_sequences]

        # Which tokens they must have there. For example, the first of two tokens at the end is two
        # tokens before the stop.
        self._expected_tokens: list[_ExpectedToken] = []
        for distance, token in enumerate(expected.before):
            self._expected_tokens.append(_ExpectedToken(long_starts + distance, token))
        for distance, token in enumerate(expected.after, start=-len(expected.after)):
            self._expected_tokens.append(_ExpectedToken(long_stops + distance, token))

    def add(self, chunk: Tokens, chunk_start: int) -> None:
        """Compare a chunk of tokens with the special tokens that sequences must have in it.

        Args:
            chunk: Tokens of the block, shape (n_tokens,).
            chunk_start: Position of the first of them in the block.
        """
        chunk_stop = chunk_start + len(chunk)
        for expected in self._expected_tokens:
            # Each sequence must have the token at one position. Find the positions in the chunk;
            # they are consecutive, since positions are ascending.
            first, stop = np.searchsorted(expected.positions, [chunk_start, chunk_stop])
            positions_in_chunk = expected.positions[first:stop] - chunk_start
            sequences = self._long_sequences[first:stop]  # those with these positions

            is_wrong = chunk[positions_in_chunk] != expected.token
            self._wrong_sequences.append(sequences[is_wrong])

    def wrong_sequences(self) -> NDArray[np.int64]:
        """Return the numbers of the sequences with unexpected ends, int64, ascending."""
        return np.unique(np.concatenate(self._wrong_sequences))


def _and_more(count: int) -> str:
    """Return the end of a message that names only the first of several things."""
    return f", and {count - 1:,} more" if count > 1 else ""
