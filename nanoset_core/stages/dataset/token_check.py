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
from itertools import chain
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
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE
from nanoset_core.storage.store import PieceCheck, Store
from nanoset_core.storage.stores.local import LocalStore

REMEDY = "write the dataset again (`nanoset build`, or `nanoset tokenize`)"
"""Remedy for a dataset with wrong tokens."""
AT_ONCE = min(2 * available_processors(), TRANSFERS_AT_ONCE)
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
    """Return up to which value hashes are kept, so that not too many are in memory.

    To estimate how many sequences are copies of others, each sequence is hashed to a number from 0
    to 2**64 - 1. With twice as many sequences as there is memory for, only hashes in the lower half
    are kept. That is a fair sample: all copies of a sequence have the same hash, so either all of
    them are kept or none.

    Args:
        n_sequences: Number of sequences that are hashed.
        max_hashes: How many hashes memory may hold.

    Returns:
        2**64 - 1 if all hashes can be kept; half of that for twice as many sequences, and so on.
    """
    if n_sequences <= max_hashes:
        return _MAX_HASH
    return _MAX_HASH * max_hashes // n_sequences


def _duplicate_hash_limit(dataset: MMapIndexedDataset, *, deep: bool) -> int:
    """Return up to which value a check keeps hashes of sequences, to count those that are copies.

    Args:
        dataset: The dataset that is checked.
        deep: Whether all of it is read, even if it is large.

    Returns:
        The greatest hash that is kept. 0 if only samples of the dataset are read, which would
        contain few of the copies: then none is counted.
    """
    reads_all_tokens = deep or dataset.token_count <= QUICK_TOKENS
    return hash_limit(len(dataset)) if reads_all_tokens else 0


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
        """Return what is expected of the tokens of a dataset, by its settings and counts.

        Args:
            options: Settings that the dataset was made with. The key `framing` has the special
                tokens that each document begins and ends with, and `dtype` the type of the tokens.
            facts: Counts of documents, sequences and tokens, as they were recorded.
            max_id: Greatest id of the vocabulary, if it is known.

        Returns:
            The expectations; None for each that is not recorded.
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
    """Return the first fault in the results of consecutive ranges of a token file, or None.

    Args:
        faults: The first fault of each range, in order; None for a range without one.
    """
    for fault in faults:
        if fault is not None:
            return fault
    return None


def _combined(parts: Sequence[RangeFacts]) -> RangeFacts:
    """Combine the results of checking consecutive ranges of a token file.

        range       tokens    greatest id    first token that is not in the vocabulary
        0           1,000     50,256         none
        1           2,000     70,000         at byte 4,096
        combined    3,000     70,000         at byte 4,096

    Args:
        parts: The result of each range, in the order of the ranges.
    """
    return RangeFacts(
        tokens=sum(part.tokens for part in parts),
        max_id=max((part.max_id for part in parts), default=-1),
        first_unknown_token=_first_fault([part.first_unknown_token for part in parts]),
        first_wrong_ends=_first_fault([part.first_wrong_ends for part in parts]),
        n_wrong_ends=sum(part.n_wrong_ends for part in parts),
        hashes=_distinct_hashes([part.hashes for part in parts]),
        n_hashed=sum(part.n_hashed for part in parts),
        changed_bytes=tuple(chain.from_iterable(part.changed_bytes for part in parts)),
    )


def _distinct_hashes(hash_arrays: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the different hashes of sequences in several arrays, ascending.

    The arrays [3, 9] and [3, 5] give [3, 5, 9]: a sequence of the second range of a token file
    repeats one of the first range.
    """
    no_hashes = np.empty(0, np.uint64)  # there may be no arrays, and np.concatenate needs one
    return np.unique(np.concatenate([no_hashes, *hash_arrays]))


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
        """Return the byte of the file at which a number of the array begins.

        Args:
            number: Index of the number, from 0 on.

        Returns:
            2,048 for number 1,024 of an array of uint16 that begins with the file.
        """
        return self.begin + number * self.dtype.itemsize


def _piece_check(token_range: TokenRange) -> PieceCheck | None:
    """Return an object that compares the bytes of a range with digests, or None if there are none.

    Digests are known if a bucket has joined the token file from pieces: that of each was recorded.

    Args:
        token_range: A range of the file, with the pieces that it consists of.
    """
    if not token_range.pieces:
        return None
    return PieceCheck(token_range.pieces, token_range.start_byte)


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
        """Return the check of a dataset's tokens. Nothing is read before `check_range` is called.

        There are two kinds of checks:

            quick    by this process; of a large dataset, only some samples of the tokens
            deep     all tokens, perhaps by several machines, each of which gets this object

        Args:
            dataset: The dataset. Its index must be valid.
            expected: The properties that its tokens must have.
            deep: Whether it is for a deep check.
        """
        # If the dataset is in a bucket, this machine may have copies of its files, which are faster
        # to read. For a deep check, name the files in the bucket: all machines can read these.
        reads_copies = not deep
        return TokenCheck(
            tokens=stored_tokens(dataset, as_copies=reads_copies),
            lengths=_stored_lengths(dataset, as_copies=reads_copies),
            expected=expected,
            hash_limit=_duplicate_hash_limit(dataset, deep=deep),
        )

    def check_range(self, token_range: TokenRange) -> RangeFacts:
        """Check the tokens of one range of a token file.

        The file may have terabytes. So it is divided into ranges, which different processes check,
        and `conclude` then combines the results.

        Args:
            token_range: Consecutive sequences, or some tokens within one sequence.

        Returns:
            Counts, and the first fault of each kind.

        Raises:
            SourceChangedError, MissingError: A file was replaced or deleted.
            StorageError: A file cannot be read.
        """
        pieces = _piece_check(token_range)
        facts = _combined([self._check_block(block, pieces) for block in self._blocks(token_range)])
        if pieces is None:
            return facts
        fault = pieces.fault()  # which bytes differ, in words; None if none do
        return facts if fault is None else replace(facts, changed_bytes=(fault,))

    def _blocks(self, token_range: TokenRange) -> Iterator[_Block]:
        """Divide a range of a token file into blocks of 256 Ki sequences, to bound memory.

        The lengths of a block's sequences tell where it ends. For blocks of only 2 sequences:

            sequence          10     11     12     13     14
            its bytes        100     60     40     80    120

            block             sequences    bytes of the file
            the first one     10, 11         0 to 160
            the second one    12, 13       160 to 280
            the third one     14           280 to 400

        Args:
            token_range: Consecutive sequences of the .bin: 10 to 14. Or some tokens within one very
                long sequence: these are a single block, without lengths.
        """
        stop = token_range.stop_sequence
        is_within_sequence = token_range.first_sequence == stop
        if is_within_sequence:
            yield _Block(token_range, lengths=np.empty(0, np.int32))
            return

        start_byte = token_range.start_byte
        for block_start in range(token_range.first_sequence, stop, _BLOCK_SEQUENCES):
            block_stop = min(block_start + _BLOCK_SEQUENCES, stop)
            lengths = self._read_lengths(block_start, block_stop)
            stop_byte = start_byte + self._bytes_of(lengths)
            if block_stop == stop:
                stop_byte = token_range.stop_byte  # a damaged file may have more bytes
            yield _Block(TokenRange(block_start, block_stop, start_byte, stop_byte), lengths)
            start_byte = stop_byte

    def _read_lengths(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the number of tokens of consecutive sequences, shape (stop - start,)."""
        return self.lengths.read(start, stop).astype(np.int32, copy=False)

    def _bytes_of(self, lengths: NDArray[np.int32]) -> int:
        """Return how many bytes of the .bin some sequences take, given their tokens."""
        return int(lengths.sum(dtype=np.int64)) * self.tokens.dtype.itemsize

    def _check_block(self, block: _Block, pieces: PieceCheck | None) -> RangeFacts:
        """Check the tokens of some sequences, a chunk at a time.

        The tokens are read once. Three things are checked on the way:

        - Each id is in the vocabulary.
        - Each sequence begins and ends with the tokens that it should, such as the end-of-document
          token.
        - Which sequences are copies of others.

        Args:
            block: The sequences, or some tokens within one sequence.
            pieces: Compares all bytes with recorded digests; None if these are not known.

        Returns:
            Counts, and the first fault of each kind.
        """
        vocabulary = _VocabularyCheck(self.expected.max_id)
        framing = _FramingCheck(block, self.expected)
        duplicates = _DuplicateCheck(block.lengths, self.hash_limit)
        n_tokens = 0
        for chunk in self._chunks(block.place, pieces):
            vocabulary.add(chunk, n_tokens)
            framing.add(chunk, n_tokens)
            duplicates.add(chunk)
            n_tokens += len(chunk)

        wrong_sequences = framing.wrong_sequences()  # numbers within the block
        hashes = duplicates.hashes()
        return RangeFacts(
            tokens=n_tokens,
            max_id=vocabulary.max_id_found,
            first_unknown_token=self._describe_unknown(vocabulary.first_unknown, block),
            first_wrong_ends=self._describe_first_wrong_ends(wrong_sequences, block),
            n_wrong_ends=len(wrong_sequences),
            hashes=np.unique(hashes),
            n_hashed=len(hashes),
        )

    def _describe_first_wrong_ends(
        self, wrong_sequences: NDArray[np.int64], block: _Block
    ) -> TokenFault | None:
        """Describe the first sequence that does not begin or end with the tokens that it should.

        A block is consecutive sequences of the token file. Suppose that it starts with sequence
        100, which starts with token 5,000 of the file, and that sequence 2 of the block is wrong:

            sequence of the block      0      1      2
            sequence of the file     100    101    102
            its tokens                10     20      5
            starts with token      5,000  5,010  5,030

        Args:
            wrong_sequences: Numbers of such sequences within the block, ascending: [2].
            block: The block.

        Returns:
            Its first and last tokens, and where it is; None if there is no such sequence.
        """
        if len(wrong_sequences) == 0:
            return None
        first = int(wrong_sequences[0])  # 2
        block_start = block.place.start_byte // self.tokens.dtype.itemsize  # 5,000, in tokens
        tokens_before = int(block.lengths[:first].sum(dtype=np.int64))  # 10 + 20
        # The check of the block has kept no tokens, so read those of this sequence again.
        return self._describe_ends(
            sequence=block.place.first_sequence + first,
            start=block_start + tokens_before,
            length=int(block.lengths[first]),
        )

    def _describe_unknown(self, unknown: _UnknownToken | None, block: _Block) -> TokenFault | None:
        """Describe where the .bin has a token that is not in the vocabulary.

        Suppose that a block has the sequences 7, 8 and 9 with 10 tokens each, starts at byte 4,000,
        and its token 12 has the id 70,000. With tokens of 2 bytes, that is byte 4,024, in sequence
        8.

        Args:
            unknown: The token and its position in the block; None if there is no such token.
            block: Consecutive sequences of the .bin, or tokens within one sequence.

        Returns:
            The id, its byte in the .bin and the number of its sequence; None without a token.
        """
        if unknown is None:
            return None
        # Count the sequences of the block that stop before the token: [10, 20, 30] are the stops of
        # three sequences, and one of them stops before token 12. (Within one sequence: none.)
        n_sequences_before = int(np.searchsorted(block.stops, unknown.position, side="right"))
        return TokenFault(
            byte=block.place.start_byte + unknown.position * self.tokens.dtype.itemsize,
            sequence=block.place.first_sequence + n_sequences_before,
            found=f"id {unknown.token}",
        )

    def _chunks(self, block: TokenRange, pieces: PieceCheck | None) -> Iterator[Tokens]:
        """Read a part of a token file, and yield its tokens in chunks of 1 MiB.

        Few large reads are faster, above all from a bucket. But the checks of the tokens are faster
        on chunks that fit into a processor's cache. So each read is divided into chunks afterwards.
        For tokens of 2 bytes:

            the part      24 MiB
            reads         |    8 MiB    |    8 MiB    |    8 MiB    |
            chunks        eight chunks of 1 MiB for each read, of 524,288 tokens each

        Args:
            block: Which part of the .bin is read: consecutive sequences, or tokens within one
                sequence.
            pieces: If given, it gets all bytes that are read, in order, and compares them with
                checksums. A bucket may have joined the file from pieces, of which each has a known
                checksum.

        Yields:
            Arrays of token ids, in the example of up to 524,288 each.
        """
        tokens_per_chunk = _CHUNK_BYTES // self.tokens.dtype.itemsize  # 524,288 of 2 bytes each
        for tokens in self._read_block(block):  # up to 8 MiB
            if pieces is not None:
                pieces.add(tokens.view(np.uint8).data)
            for start in range(0, len(tokens), tokens_per_chunk):
                yield tokens[start : start + tokens_per_chunk]

    def _read_block(self, block: TokenRange) -> Iterator[Tokens]:
        """Read the tokens of a block with few requests, each of which returns up to 8 MiB.

        Args:
            block: Consecutive sequences of the .bin, or tokens within one sequence.
        """
        itemsize = self.tokens.dtype.itemsize
        block_stop = block.stop_byte // itemsize
        tokens_per_read = _READ_BYTES // itemsize
        for start in range(block.start_byte // itemsize, block_stop, tokens_per_read):
            yield self.tokens.read(start, min(start + tokens_per_read, block_stop))

    def _describe_ends(self, sequence: int, start: int, length: int) -> TokenFault:
        """Read the first and last tokens of a sequence, and describe them for an error message.

        If each document should begin with the token 1 and end with the tokens 2 and 0, one token at
        the start and two at the end are read. For the tokens 1, 5, 9 and 3: "[1] … [9, 3]".

        Args:
            sequence: Number of the sequence.
            start: Position of its first token in the .bin.
            length: Number of its tokens.
        """
        stop = start + length
        # A short sequence may have fewer tokens than that.
        head_stop = min(start + len(self.expected.before), stop)
        tail_start = max(stop - len(self.expected.after), start)
        head = self.tokens.read(start, head_stop).tolist()
        tail = self.tokens.read(tail_start, stop).tolist()
        return TokenFault(byte=self.tokens.byte(start), sequence=sequence, found=f"{head} … {tail}")

    def check_ends(self, report: Report, dataset: MMapIndexedDataset) -> None:
        """Check the first and last tokens of some sequences, spread evenly over a dataset.

        A sequence has the tokens of a document, between special tokens such as [1] … [2]. Of a
        large dataset, `check_range` sees only samples. If all samples are from the middle of long
        documents, it sees none of the special tokens. So they are also checked here.

        Args:
            report: Gets an error for the first sequence with other tokens than it should have.
            dataset: The dataset, with its .bin and .idx opened.
        """
        if dataset.is_here:
            n_sequences = QUICK_PLACES  # 256
        else:
            # In a bucket, each sequence takes two requests. So check only the first and the last.
            n_sequences = 2
        for sequence in spread_rows(len(dataset), n_sequences).tolist():
            wrong_ends = self._wrong_ends(dataset, sequence)
            if wrong_ends is not None:
                self._report_wrong_ends(report, wrong_ends, n_sequences=1)
                return

    def _wrong_ends(self, dataset: MMapIndexedDataset, sequence: int) -> TokenFault | None:
        """Describe the first and last tokens of a sequence, unless they are the expected ones.

        Each document is stored as a sequence of tokens. Special tokens may mark where it begins and
        ends. If it must begin and end with a token 1:

            tokens      ends           result
            1 5 9 1     [1] … [1]      None: these are expected
            1 5 9       [1] … [9]      a description of these
            1           [1] … [1]      a description: the only token cannot be both

        Args:
            dataset: The dataset, with its .bin and .idx opened.
            sequence: Number of the sequence.
        """
        length = int(dataset.sequence_lengths[sequence])
        start = int(dataset.sequence_pointers[sequence]) // dataset.dtype.itemsize  # in tokens
        ends = self._describe_ends(sequence, start, length)

        has_expected_tokens = ends.found == self.expected.ends  # both are texts such as "[1] … [1]"
        is_long_enough = length >= self.expected.min_length
        if has_expected_tokens and is_long_enough:
            return None
        return ends

    def conclude(self, report: Report, outcomes: Sequence[RangeFacts]) -> None:
        """Report what was found in all ranges of a token file.

        For each kind of fault, a single error names the first one, and how many more there are.

        Args:
            report: The report on the dataset, which gets the errors and counts.
            outcomes: What `check_range` returned for each range, in order.
        """
        facts = _combined(outcomes)
        report.figures["tokens_read"] = facts.tokens
        report.figures["greatest_id"] = facts.max_id
        counts_duplicates = self.hash_limit > 0  # 0: no hashes of sequences were kept
        if counts_duplicates:
            self._report_duplicates(report, facts)
        if facts.changed_bytes:
            self._report_changed_bytes(report, facts.changed_bytes)
        if facts.first_unknown_token is not None:
            self._report_unknown_token(report, facts.first_unknown_token)
        if facts.first_wrong_ends is not None:
            self._report_wrong_ends(report, facts.first_wrong_ends, n_sequences=facts.n_wrong_ends)

    def _report_changed_bytes(self, report: Report, changed_bytes: Sequence[str]) -> None:
        """Report that a token file has other bytes than when it was written.

        A bucket has joined it from smaller objects. The digest of each of these was recorded, and
        has been compared with the bytes that were read.

        Args:
            report: Report to add to.
            changed_bytes: For each range with other bytes, how they differ, in words; at least one.
                The message has the first, and how many more there are: "…, and 2 more".
        """
        first_change = changed_bytes[0]
        report.error(
            "a file has other bytes than when it was written",
            where=self.tokens.url,
            found=first_change + _and_more(len(changed_bytes)),  # such as "…, and 2 more"
            expected="the digests of the pieces that it was joined from",
            remedy="delete the manifest.json next to it, and run `nanoset build`, then "
            "`nanoset verify --deep`: outputs that were made from it may be damaged, too",
        )

    def _report_unknown_token(self, report: Report, first: TokenFault) -> None:
        """Report that a token file has an id that the vocabulary does not have.

            a token is not in the vocabulary
            where: web.bin, byte 4096 (sequence 7)
            found: id 70000
            expected: 0 to 50256

        Args:
            report: Report to add to.
            first: The first such token.
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
        """Report which share of documents repeats others, and warn if it is too large.

        Of 1,000 sequences with 880 different hashes, 120 repeat another one: a share of 0.12.

        Args:
            report: Report to add to.
            facts: The hashes of all sequences, or of a sample, and how many sequences these are.
        """
        share = 0.0
        if facts.n_hashed:
            share = 1.0 - len(facts.hashes) / facts.n_hashed
        report.figures["duplicate_documents"] = round(share, 6)
        text = repeats_text(share, self.expected.duplicates, self.expected.duplicates_key)
        if text:
            report.warn(text, where=self.tokens.url, remedy=LOOK)

    def _report_wrong_ends(self, report: Report, first: TokenFault, *, n_sequences: int) -> None:
        """Report sequences that do not begin and end with the tokens that mark a document.

            where: web.bin, byte 4096 (sequence 7, and 2 more)
            found: [1] … [9]
            expected: [1] … [2]

        Args:
            report: Report to add to.
            first: The first such sequence.
            n_sequences: How many there are.
        """
        report.error(
            "a sequence does not begin and end with the tokens that it should",
            where=f"{self.tokens.url}, byte {first.byte} "
            f"(sequence {first.sequence}{_and_more(n_sequences)})",
            found=first.found,
            expected=self.expected.ends,
            remedy=f"{REMEDY}, with the end-of-document token (append_eod)",
        )


def stored_tokens(dataset: MMapIndexedDataset, *, as_copies: bool) -> StoredArray:
    """Return where the tokens of a dataset are stored: all bytes of its .bin.

    The result can be sent to other processes and machines, which then read parts of it. If the .bin
    is in a bucket, and is replaced before they have read it, they raise SourceChangedError.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        as_copies: If the .bin is in a bucket, and there is a copy of it on this machine, return the
            place of the copy.
    """
    store, prefix = dataset.stored(as_copies=as_copies)
    bin_name = f"{prefix}.bin"
    return StoredArray(store, bin_name, dataset.dtype, mark=_version_mark(store, bin_name))


def _version_mark(store: Store, name: str) -> str | None:
    """Return what names the version of a file, such as its ETag in a bucket.

    An object in a bucket may be replaced while several machines read parts of it. They compare the
    mark at each read.

    Args:
        store: Contains the file.
        name: Name of the file in the store.

    Returns:
        The mark; None for a file on a disk, whose mark may differ between machines, or if the file
        was deleted.
    """
    if isinstance(store, LocalStore):
        return None
    stored = store.stat(name)
    return None if stored is None else stored.mark


def _stored_lengths(dataset: MMapIndexedDataset, *, as_copies: bool) -> StoredArray:
    """Return where the lengths of a dataset's sequences are stored: in its .idx, after the header.

        bytes of the .idx       content
        0 to 34                 header
        34 to 38                length of sequence 0, in tokens (an int32)
        38 to 42                length of sequence 1, and so on

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        as_copies: Return the place of the .idx on this machine: if the dataset is in a bucket, that
            of the copy that was downloaded to open it. Otherwise its place in the bucket, which
            other machines can read, too.
    """
    if as_copies:
        path = Path(idx_path(dataset.prefix)).absolute()
        return StoredArray(LocalStore(path.parent), path.name, np.dtype("<i4"), HEADER.size)
    store, prefix = dataset.stored(as_copies=False)
    return StoredArray(store, f"{prefix}.idx", np.dtype("<i4"), HEADER.size)


class _Block(NamedTuple):
    """Consecutive sequences of a .bin that are checked together, or tokens within one sequence."""

    place: TokenRange
    """The numbers of the sequences, and their bytes in the .bin."""
    lengths: NDArray[np.int32]
    """Tokens of each sequence, shape (n_sequences,); empty for tokens within one sequence."""

    @property
    def stops(self) -> NDArray[np.int64]:
        """End of each sequence, in tokens from the start of the block; shape (n_sequences,)."""
        return np.cumsum(self.lengths, dtype=np.int64)


class _UnknownToken(NamedTuple):
    """A token of a block that is not in the vocabulary."""

    position: int
    """Where it is, in tokens from the start of the block."""
    token: int
    """Its id."""


class _VocabularyCheck:
    """Finds the first token of a block that is not in the vocabulary, and the greatest id.

    Args:
        max_id: Greatest id of the vocabulary; None if it is not known.
    """

    def __init__(self, max_id: int | None) -> None:
        self._max_id = max_id
        self.max_id_found = -1
        """Greatest id; -1 if there are no tokens."""
        self.first_unknown: _UnknownToken | None = None
        """The first token that is not in the vocabulary; None if there is none."""

    def add(self, chunk: Tokens, chunk_start: int) -> None:
        """Check the next tokens of the block.

        Only the first token that is not in the vocabulary is kept, and the greatest id.

        Args:
            chunk: The tokens, shape (n_tokens,); at least one.
            chunk_start: Position of the first of them in the block.
        """
        low = int(chunk.min())
        high = int(chunk.max())
        self.max_id_found = max(self.max_id_found, high)
        if self.first_unknown is None and not self._contains(low, high):
            position = int(np.argmax(self._is_unknown(chunk)))
            self.first_unknown = _UnknownToken(chunk_start + position, int(chunk[position]))

    def _contains(self, low: int, high: int) -> bool:
        """Return whether the vocabulary contains all ids from `low` to `high`."""
        return low >= 0 and (self._max_id is None or high <= self._max_id)

    def _is_unknown(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return which tokens are not in the vocabulary, shape (n_tokens,)."""
        # The .bin may have signed integers, but no id is negative.
        is_unknown: NDArray[np.bool_] = tokens < 0
        if self._max_id is not None:
            is_unknown |= tokens > self._max_id
        return is_unknown


class _DuplicateCheck:
    """Hashes the sequences of a block, to find those that repeat others.

    Args:
        lengths: Tokens of each sequence, shape (n_sequences,).
        hash_limit: Greatest hash that is kept; 0 if duplicates are not counted.
    """

    def __init__(self, lengths: NDArray[np.int32], hash_limit: int) -> None:
        counts_duplicates = hash_limit > 0
        self._hasher = SequenceHasher(lengths if counts_duplicates else lengths[:0])
        self._hash_limit = hash_limit
        self._hash_arrays = [np.empty(0, np.uint64)]

    def add(self, chunk: Tokens) -> None:
        """Hash the sequences that end in the next tokens of the block."""
        hashes = self._hasher.add(chunk)
        self._hash_arrays.append(hashes[hashes <= self._hash_limit])

    def hashes(self) -> NDArray[np.uint64]:
        """Return the hash of each sequence, except for those above the limit."""
        return np.concatenate(self._hash_arrays)


@dataclass(frozen=True, slots=True)
class _ExpectedToken:
    """A special token that every sequence must have near its start or its end."""

    token: int
    """The id of the token."""
    sequences: NDArray[np.int64]
    """Numbers of the sequences in the block, ascending, shape (n_sequences,)."""
    positions: NDArray[np.int64]
    """Where each of them must have it, in tokens from the start of the block; ascending."""

    def sequences_without_it(self, chunk: Tokens, chunk_start: int) -> NDArray[np.int64]:
        """Return the sequences that have another token where they must have this one.

        Only the positions in a chunk of the block are looked at. For example, three sequences must
        end with the token 0:

            sequence                       0     1     2
            position of its last token     9    99   200

        The chunk with the positions 64 to 128 has only position 99, as its own token 35. If that is
        not 0, the result is [1].

        Args:
            chunk: The tokens of the chunk, shape (n_tokens,).
            chunk_start: Position of the first of them in the block: 64.

        Returns:
            Numbers of the sequences, int64, ascending.
        """
        chunk_stop = chunk_start + len(chunk)  # 128
        first, stop = np.searchsorted(self.positions, [chunk_start, chunk_stop])  # 1, 2
        positions_in_chunk = self.positions[first:stop] - chunk_start  # [35]
        is_wrong = chunk[positions_in_chunk] != self.token  # [True]
        wrong_sequences: NDArray[np.int64] = self.sequences[first:stop][is_wrong]  # [1]
        return wrong_sequences


def _expected_tokens(
    sequences: NDArray[np.int64], block: _Block, expected: Expected
) -> list[_ExpectedToken]:
    """Return which special tokens sequences must have, and where.

    For example, a sequence from 10 to 20 must begin with the token 1 and end with the tokens 2 and
    3. Then it must have 1 at position 10, 2 at 18, and 3 at 19.

    Args:
        sequences: Numbers of the sequences in their block, ascending, shape (n_sequences,).
        block: The block.
        expected: The special tokens.
    """
    stops = block.stops[sequences]  # (n_sequences,) position after the last token of each
    starts = stops - block.lengths[sequences]
    tokens: list[_ExpectedToken] = []
    for distance, token in enumerate(expected.before):
        tokens.append(_ExpectedToken(token, sequences, positions=starts + distance))
    for distance, token in enumerate(expected.after, start=-len(expected.after)):
        tokens.append(_ExpectedToken(token, sequences, positions=stops + distance))
    return tokens


class _FramingCheck:
    """Finds the sequences of a block that do not begin and end with the expected tokens.

    The expected tokens are special tokens that are added to each document, such as one that ends
    it. The tokens of the block are added chunk by chunk, and a sequence may be in several chunks.

    Args:
        block: The sequences.
        expected: The expected first and last tokens.
    """

    def __init__(self, block: _Block, expected: Expected) -> None:
        """Note which sequences are too short, and where the tokens of the others are expected."""
        # A sequence that is too short for the expected tokens does not have them.
        is_long_enough = block.lengths >= expected.min_length
        self._wrong_sequences = [np.flatnonzero(~is_long_enough)]

        long_sequences = np.flatnonzero(is_long_enough)
        self._expected_tokens = _expected_tokens(long_sequences, block, expected)

    def add(self, chunk: Tokens, chunk_start: int) -> None:
        """Check the special tokens of sequences in the next chunk of a block's tokens.

        For example, sequences must begin with the token 1 and end with the token 0. In a chunk with
        the end of sequence 4 and the start of sequence 5, these two tokens are compared.

        Args:
            chunk: The tokens of the chunk, shape (n_tokens,).
            chunk_start: Position of the first of them in the block.
        """
        for expected in self._expected_tokens:
            self._wrong_sequences.append(expected.sequences_without_it(chunk, chunk_start))

    def wrong_sequences(self) -> NDArray[np.int64]:
        """Return the numbers of the sequences with unexpected ends, int64, ascending."""
        return np.unique(np.concatenate(self._wrong_sequences))


def _and_more(count: int) -> str:
    """Return the end of a message that names the first of several things: ", and 2 more" for 3."""
    return f", and {count - 1:,} more" if count > 1 else ""
