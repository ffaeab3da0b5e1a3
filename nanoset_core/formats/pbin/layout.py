"""The bytes of a `.pbin`, the file with which Modalities trains.

It contains a header, the tokens of all documents, and a pickled index of the documents. Three
layouts were written by released versions of Modalities:

```
layout   offset      size   content
C D      0           8      uint64  n, bytes of all tokens
         8           4      uint32  bytes of one token: 1, 2 or 4
         12          n      tokens, unsigned, all documents in sequence
         12 + n      rest   pickle of [(offset, length), ...], in bytes, one pair for each document
A        0           8      uint64  n
         8           n      tokens of 4 bytes
         8 + n       rest   pickle, as above

layout   written by         byte order   offsets count from
A        0.1.0              big          the first byte of the file: the first document is at 8
C        0.2.0              little       the first byte of the file: the first document is at 12
D        0.2.2 and later    little       the first token: the first document is at 0
```

For example, in layout D, two documents with the tokens 5, 6, 7 and 8, 9 as 2-byte integers have n =
10, and the index [(0, 6), (6, 4)].

Only D is written. No field says which layout a file has. That follows from where the index starts,
and from the first entry of the index.

Source: `EmbeddedStreamData` and `PackedDataGenerator` in Modalities'
`src/modalities/dataloader/create_packed_data.py`, and their history.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.formats.pbin.pickle_codec import Entries, damaged, decode_index, first_number
from nanoset_core.storage.reading.mapped_files import MappedFile
from nanoset_core.storage.regular_files import map_regular, required

TOKEN_BYTES = (1, 2, 4)
"""Sizes that a token can have."""
_HEADER = struct.Struct("<QI")
"""Header of the layouts C and D: bytes of all tokens, and bytes of one token."""
HEADER_BYTES = _HEADER.size
"""Size of this header."""
_HEADER_A = struct.Struct(">Q")
"""Header of layout A: bytes of all tokens."""
_TOKEN_BYTES_A = 4
"""Bytes of one token in layout A."""
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
"""The possible first bytes of the index, which is a pickle of the protocol 2, 3, 4 or 5."""
_MAX_OFFSET = 1 << 62
"""Sums of smaller offsets and lengths do not overflow int64."""


@dataclass(frozen=True, slots=True)
class PbinLayout:
    """One of the layouts in the table above."""

    name: Literal["A", "C", "D"]
    """Letter of the layout in the table."""
    header_bytes: int
    """Bytes before the first token."""
    byte_order: Literal["<", ">"]
    """Byte order of the header and the tokens, as numpy writes it."""
    first_offset: int
    """Offset, in bytes, that the index gives to the first token."""


A = PbinLayout("A", _HEADER_A.size, ">", 8)
C = PbinLayout("C", HEADER_BYTES, "<", 12)
D = PbinLayout("D", HEADER_BYTES, "<", 0)


@dataclass(frozen=True, slots=True, eq=False)
class PbinFile:
    """An open `.pbin` whose header has been read, but not its index."""

    path: Path
    """Path of the file, for messages."""
    layout: PbinLayout
    """The layout, found by where the index starts."""
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    data_bytes: int
    """Bytes of all tokens."""
    view: memoryview
    """The whole file, mapped into memory. If it is in a store, only the header and the index are
    valid.
    """

    @property
    def index_begin(self) -> int:
        """Offset of the pickled index, in bytes."""
        return self.layout.header_bytes + self.data_bytes

    @property
    def tokens(self) -> NDArray[np.unsignedinteger]:
        """All tokens, read-only, in the type `dtype`, shape (n_tokens,).

        If the file is in a store, the tokens are not valid.
        """
        n_tokens = self.data_bytes // self.token_bytes
        return np.frombuffer(self.view, self.dtype, n_tokens, self.layout.header_bytes)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of a token in the file: uint8, uint16 or uint32, in the file's byte order."""
        return np.dtype(f"{self.layout.byte_order}u{self.token_bytes}")


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Counts and findings from the index of a file."""

    documents: int
    """Entries of the index."""
    tokens: int
    """Tokens of all documents together. This is the number of tokens in the file, unless documents
    overlap or have gaps between them.
    """
    empty_documents: int
    """Entries without tokens."""
    is_contiguous: bool
    """Whether the documents, in their order, cover all tokens without gaps or overlaps."""
    merge_faults: int
    """How many times the offsets jump because Modalities merged files wrongly; 0 in a correct
    index.
    """


class PbinIndex(NamedTuple):
    """The index of a file, checked and corrected."""

    facts: IndexFacts
    starts: NDArray[np.int64]
    """Number of each document's first token, shape (n_documents,)."""
    lengths: NDArray[np.int64]
    """Tokens of each document, shape (n_documents,)."""


def token_size_bytes(vocab_size: int) -> int:
    """Return in how many bytes the trainer Modalities stores a token: 1, 2 or 4.

        size of the vocabulary    bytes
        2 to 256                  1
        257 to 65,536             2
        more                      4
        1                         4    (a flaw of Modalities' formula, which must be kept)

    Source: `PackedDataGenerator._get_required_num_of_bytes_to_repr`.

    Args:
        vocab_size: The `vocab_size` of the tokenizer. In a Hugging Face tokenizer, it does not
            count added tokens.

    Raises:
        ConfigError: The size is below 1 or above 2^32.
    """
    if not 1 <= vocab_size <= 1 << 32:
        raise ConfigError(
            "no token size fits this vocabulary",
            where="vocab_size",
            found=vocab_size,
            expected=f"1 to {1 << 32}",
        )
    if vocab_size == 1:
        return 4  # the formula is ceil(log2(vocab_size) / 8), which gives 0
    if vocab_size <= 1 << 8:
        return 1
    if vocab_size <= 1 << 16:
        return 2
    return 4


def encode_header(data_bytes: int, token_bytes: int) -> bytes:
    """Return the 12 bytes with which a file of the current layout, D, begins.

    Args:
        data_bytes: Bytes of all tokens.
        token_bytes: Bytes of one token: 1, 2 or 4.
    """
    return _HEADER.pack(data_bytes, token_bytes)


def open_pbin(path: str | os.PathLike[str], file: MappedFile | None = None) -> PbinFile:
    """Open a `.pbin`, a file of tokens for the trainer Modalities, and determine its layout.

    A file has a header, the tokens, and an index, which says where each document starts. The header
    says where the index begins. No field says which of three layouts a file has, but it shows:

        layout D (current)    the first document starts at 0, the first token
        layout C (older)      it starts at 12, since the bytes of the header are counted, too
        layout A (older)      the header is another one

    Args:
        path: Path of the file, also for messages.
        file: The file, if it is in a bucket: only its header and its index are downloaded. By
            default, the local file at the path is mapped into memory.

    Raises:
        MissingError: The file does not exist.
        FormatError: It has none of the layouts, or is cut off; the message names the byte.
    """
    path = Path(path)
    if file is None:
        with required(path, "a .pbin file", "write it first (`nanoset pbin`), or correct the path"):
            file = MappedFile(map_regular(path))
    _fetch(file, 0, HEADER_BYTES)
    _check_header_is_whole(path, file.size)
    pbin = _open_in_matching_layout(path, file)  # A or D: C has the same header as D

    _fetch(file, pbin.index_begin, file.size)
    if pbin.layout is D and first_number(pbin.view, pbin.index_begin) == C.first_offset:
        pbin = replace(pbin, layout=C)
    _check_tokens_are_whole(pbin)
    return pbin


def _check_header_is_whole(path: Path, file_bytes: int) -> None:
    """Raise FormatError if a file is shorter than a header of 12 bytes, which each `.pbin` has."""
    if file_bytes < HEADER_BYTES:
        raise damaged(
            "the header is cut off",
            where=f"{path}, byte {file_bytes}",
            found=f"{file_bytes} bytes",
            expected=f"a .pbin, with a header of {HEADER_BYTES} bytes",
        )


def _check_tokens_are_whole(pbin: PbinFile) -> None:
    """Raise FormatError if the tokens of a file end within a token."""
    if pbin.data_bytes % pbin.token_bytes:
        raise damaged(
            "the tokens end within a token",
            where=f"{pbin.path}, byte 0",
            found=f"{pbin.data_bytes} bytes of tokens",
            expected=f"a multiple of {pbin.token_bytes}, the bytes of one token",
        )


def _open_in_matching_layout(path: Path, file: MappedFile) -> PbinFile:
    """Return the file in the layout whose header says that the tokens end where an index starts.

    Raises:
        FormatError: There is no such layout.
    """
    view = memoryview(file.buffer)
    for pbin in _in_each_layout(path, view):
        if _has_pickle(file, pbin.index_begin):
            return pbin
    raise _unknown_layout(path, view)


def _in_each_layout(path: Path, view: memoryview) -> Iterator[PbinFile]:
    """Yield what the file is if its header is that of layout D, and if it is that of layout A."""
    data_bytes, token_bytes = _HEADER.unpack_from(view)
    if token_bytes in TOKEN_BYTES:
        yield PbinFile(path, D, token_bytes, data_bytes, view)
    (data_bytes_a,) = _HEADER_A.unpack_from(view)
    yield PbinFile(path, A, _TOKEN_BYTES_A, data_bytes_a, view)


def _has_pickle(file: MappedFile, begin: int) -> bool:
    """Return whether the bytes of a file from `begin` on look like the beginning of a pickle.

    If the file is in a store, these bytes are downloaded.
    """
    _fetch(file, begin, begin + 2)
    return bytes(memoryview(file.buffer)[begin : begin + 2]) in _PICKLES


def _fetch(file: MappedFile, begin: int, end: int) -> None:
    """Download a range of bytes if the file is in a store; bytes after its end are ignored."""
    end = min(end, file.size)
    if begin < end:
        file.fetch_span(begin, end)


def _unknown_layout(path: Path, view: memoryview) -> FormatError:
    """Return the error for a file that is no `.pbin`, or a damaged one, with the likely reason.

    A `.pbin` is a file of tokens for the trainer Modalities. Most have its current layout, called
    D, and the older ones, A and C, are rare. So the reason says how the file differs from layout D.

    Args:
        path: Path of the file.
        view: The file, at least as long as a header of the layout D (12 bytes).
    """
    data_bytes, token_bytes = _HEADER.unpack_from(view)
    reason, position = _contradiction_of_layout_d(data_bytes, token_bytes, len(view))
    return damaged(
        reason,
        where=f"{path}, byte {position}",
        found=f"{data_bytes} bytes of {token_bytes}-byte tokens in a file of {len(view)} bytes",
        expected="header, tokens and pickled index of one of Modalities' layouts A, C and D",
    )


def _contradiction_of_layout_d(
    data_bytes: int, token_bytes: int, file_bytes: int
) -> tuple[str, int]:
    """Find out why a file is not a `.pbin` of the current layout, and at which byte it shows.

    That layout, called D, is a header of 12 bytes, the tokens, and an index. The header says how
    many bytes all tokens have, and how many one token has. A wrong file contradicts its header:

        size of one token    size of all tokens    size of the file    reason
        7                    any                   any                 this is no .pbin
        2                    0                     any                 the header is not complete
        2                    1000                  900                 the file ends too early
        2                    1000                  2000                no index after the tokens

    Args:
        data_bytes: Size of all tokens, as the header has it.
        token_bytes: Size of one token, as the header has it.
        file_bytes: Size of the file.

    Returns:
        (the reason, for a message; the position of the byte that shows it)
    """
    index_begin = HEADER_BYTES + data_bytes
    if token_bytes not in TOKEN_BYTES:
        return "this is no .pbin", 8  # the header stores the size of one token there
    if data_bytes == 0:
        # Writers fill in the size of all tokens, at byte 0, last, and write 0 until then.
        reason = "the header is not complete: the program that wrote this file was interrupted"
        return reason, 0
    if index_begin >= file_bytes:
        return "the file ends too early", file_bytes
    return "no index after the tokens", index_begin


def scan_index(file: PbinFile) -> IndexFacts:
    """Check the whole index of a `.pbin`, and return counts only, to save memory.

    A `.pbin` is a file of tokens for the trainer Modalities. Its index says where each document is.
    If Python's own pickle wrote it, as usual, it is read in chunks. If another program did, this
    takes some 150 bytes of memory for each document.

    Args:
        file: The file, whose header was read.

    Returns:
        Numbers of documents and tokens, and whether the documents follow one another without gaps.

    Raises:
        FormatError: The index is damaged; the message names the byte or the document.
    """
    scan = _IndexScan(file)
    for entries in _entries(file):
        scan.add(entries)
    return scan.facts()


def load_index(file: PbinFile) -> PbinIndex:
    """Return where each document of a `.pbin` starts, and how many tokens it has.

    The file stores both in bytes: with tokens of 2 bytes, (6, 4) is a document of 2 tokens that
    starts at token 3. It takes 16 bytes of memory for each document, and 32 while it is read. If
    Modalities, whose format this is, has merged files and written wrong starts, these are
    corrected.

    Args:
        file: The file.

    Raises:
        FormatError: The index is damaged; the message names the byte or the document.
    """
    scan = _IndexScan(file)
    offset_chunks: list[NDArray[np.int64]] = []
    length_chunks: list[NDArray[np.int64]] = []
    for entries in _entries(file):
        scan.add(entries)
        offset_chunks.append(entries.offsets)
        length_chunks.append(entries.lengths)
    facts = scan.facts()

    lengths = _tokens_of_bytes(length_chunks, file.token_bytes)
    if facts.merge_faults:
        # Modalities has merged files, and written wrong offsets but right lengths. Each document
        # starts where the previous one ends.
        starts = np.cumsum(lengths) - lengths
    else:
        starts = _tokens_of_bytes(offset_chunks, file.token_bytes)
    return PbinIndex(facts, starts, lengths)


def _tokens_of_bytes(chunks: Sequence[NDArray[np.int64]], token_bytes: int) -> NDArray[np.int64]:
    """Convert numbers of bytes to numbers of tokens: [[6, 4], [8]] to [3, 2, 4] for 2 bytes each.

    They are divided in place, since an index may have billions of entries.

    Args:
        chunks: The numbers of bytes; none if an index has no documents.
        token_bytes: Bytes of a token.

    Returns:
        All chunks in one array, shape (n_documents,).
    """
    if not chunks:
        return np.empty(0, np.int64)
    numbers = np.concatenate(chunks)
    numbers //= token_bytes
    return numbers


def document_entries(file: PbinFile, facts: IndexFacts) -> Iterator[Entries]:
    """Yield where each document of a file starts, and how long it is, some documents at a time.

    If Modalities has merged files, some starts in the index may be wrong. Then they are computed
    from the lengths, since such files store documents one after another: the lengths 6, 4, 8 give
    the starts 0, 6, 10. All numbers are in bytes, counted from the first token.

    Args:
        file: The file.
        facts: The facts that `scan_index` returned for the file.
    """
    total = 0  # bytes of the documents so far
    for entries in _entries(file):
        if not facts.merge_faults:
            yield entries
            continue
        # The lengths are right, and documents are stored in sequence: compute the offsets.
        stops = total + np.cumsum(entries.lengths)
        yield Entries(stops - entries.lengths, entries.lengths)
        total = int(stops[-1])


def _entries(file: PbinFile) -> Iterator[Entries]:
    """Yield the stored entries of an index in chunks, with offsets from the first token."""
    for entries in decode_index(file.view, file.index_begin, str(file.path)):
        yield Entries(entries.offsets - file.layout.first_offset, entries.lengths)


class _OffsetErrors:
    """By how many bytes the offsets in an index, where documents start, are too small.

    When Modalities merges files (`join_embedded_stream_data`), it forgets their headers. Each
    header has 12 bytes, so all offsets of the second file are 12 bytes too small, those of the
    third 24, and so on:

        document                     0    1    2    3     4     5
        belongs to file              0    0    0    1     1     2
        offset is too small by       0    0    0    12    12    24

    These errors change twice, at the documents 3 and 5: two headers were forgotten.
    """

    def __init__(self) -> None:
        """Begin before the first document."""
        self.n_changes = 0
        """How many documents have another error than the document before them."""
        self.are_whole_headers = True
        """Whether a number of forgotten headers explains all errors: each is 0, 12, 24, …"""
        self._last_error = 0
        """The error of the last document that was added."""

    def add(self, errors: NDArray[np.int64]) -> None:
        """Count the changes in the errors of the next documents.

        Args:
            errors: For each document, by how many bytes its offset is too small; shape
                (n_documents,), at least one.
        """
        if self._last_error == 0 and not errors.any():
            return  # all offsets are right, as usual

        errors_before = np.concatenate([[self._last_error], errors[:-1]])
        self.n_changes += int(np.count_nonzero(errors != errors_before))
        self._last_error = int(errors[-1])

        is_whole_headers = (errors >= 0) & (errors % HEADER_BYTES == 0)  # (n_documents,)
        if not is_whole_headers.all():
            self.are_whole_headers = False


class _IndexScan:
    """Checks the entries of an index chunk by chunk, and recognises Modalities' wrong merges.

    If Modalities has merged files, the offsets of documents may be wrong (see `_OffsetErrors`), but
    their lengths are right. As the documents are stored in sequence, the offsets can be computed.
    For example, one file has documents of 6 and 4 bytes, and a second one has a document of 8:

        lengths                        6    4    8
        correct offsets                0    6   10
        stored offsets                 0    6   -2
        stored offset is too small by  0    0   12    the header of the second file
    """

    def __init__(self, file: PbinFile) -> None:
        """Prepare to check the index of a file, of which no entry was added yet."""
        self._file = file
        self._n_documents = 0
        self._n_empty_documents = 0
        self._total_bytes = 0
        """Bytes of all documents so far."""
        self._offset_errors = _OffsetErrors()
        self._outside_error: FormatError | None = None
        """The error for the first document that is outside of the tokens. It is raised only if no
        wrong merge explains the offsets.
        """

    def add(self, entries: Entries) -> None:
        """Check the next entries of an index, and count what `facts` reports at its end.

        An entry says at which byte a document starts (its offset), and how many bytes it has.
        Usually, each document starts where the one before it ends:

            offset    0    100    250      (correct)
            length    100  150    80

        Wrong offsets are no errors yet. They may come from a known fault of another program, which
        must then explain all of them. That is only known at the end of the index. So they are
        noted, and `facts` raises the error.

        Args:
            entries: The entries, at least one, with offsets from the first token.

        Raises:
            FormatError: An entry is impossible, whatever its offset should have been.
        """
        self._check_values(entries)
        self._keep_outside_error(entries)

        # In a correct index, every document starts where the previous one ends. `_total_bytes` are
        # those of all documents that were added before.
        document_stops = self._total_bytes + np.cumsum(entries.lengths)  # 100 250 330
        correct_offsets = document_stops - entries.lengths  # 0 100 250
        self._offset_errors.add(correct_offsets - entries.offsets)  # 0 0 0

        self._n_documents += len(entries.lengths)
        self._n_empty_documents += int(np.count_nonzero(entries.lengths == 0))
        self._total_bytes = int(document_stops[-1])

    def _keep_outside_error(self, entries: Entries) -> None:
        """Keep the error for the first document that is outside of the tokens, for `facts`."""
        last_offsets = self._file.data_bytes - entries.lengths
        is_outside = (entries.offsets < 0) | (entries.offsets > last_offsets)
        if self._outside_error is None and is_outside.any():
            self._outside_error = self._misplaced_error(entries, is_outside)

    def facts(self) -> IndexFacts:
        """Return what was counted in the index of a .pbin file, after all entries were added.

        An entry of the index says where a document starts. In old layouts (A and C), a document
        must start where the one before it ends. In the current one (D), it may start anywhere in
        the tokens. There, wrong starts are accepted if they come from a fault of the trainer
        Modalities: when it merges files, it forgets to count the header of each file, 12 bytes:

            documents of 60 and 40 bytes, and one of 80 from a second file
            the index says that they start at    0    60     88
            they really start at                 0    60    100

        This project computes where they really start. So such documents count as contiguous, and
        `merge_faults` is 1, the number of forgotten headers.

        Raises:
            FormatError: Documents are where the layout does not allow them.
        """
        if self._file.layout is D:
            self._check_is_within_tokens()
        else:
            self._check_is_in_sequence()

        # If this fault explains the wrong starts, they are off by one more header at each change.
        n_forgotten_headers = 0
        if self._is_wrong_merge:
            n_forgotten_headers = self._offset_errors.n_changes
        return IndexFacts(
            documents=self._n_documents,
            tokens=self._total_bytes // self._file.token_bytes,
            empty_documents=self._n_empty_documents,
            is_contiguous=self._is_in_sequence or self._is_wrong_merge,
            merge_faults=n_forgotten_headers,
        )

    @property
    def _has_all_tokens(self) -> bool:
        """Whether the documents have as many bytes as the tokens of the file."""
        return self._total_bytes == self._file.data_bytes

    @property
    def _is_in_sequence(self) -> bool:
        """Whether the documents follow each other without gaps, and contain all tokens."""
        return self._has_all_tokens and self._offset_errors.n_changes == 0

    @property
    def _is_wrong_merge(self) -> bool:
        """Whether offsets are wrong, but Modalities' fault in merging files explains all of them.

        Then the right offsets can be computed. Modalities merges only files of the layout D.
        """
        if self._file.layout is not D or not self._has_all_tokens:
            return False
        return self._offset_errors.n_changes > 0 and self._offset_errors.are_whole_headers

    def _check_is_within_tokens(self) -> None:
        """Check that no document is outside of the file's tokens, as the layout D demands.

        The documents may be in any order, with gaps between them. An index that Modalities has
        merged wrongly may say that documents start before the tokens. That is no error, since the
        right offsets can be computed.

        Raises:
            FormatError: A document is outside of the tokens.
        """
        if self._outside_error is not None and not self._is_wrong_merge:
            raise self._outside_error

    def _check_is_in_sequence(self) -> None:
        """Check that each document starts where the previous one ends, as in old layouts (A and C).

        Raises:
            FormatError: One does not, or the documents do not have all tokens of the file.
        """
        if self._is_in_sequence:
            return
        file = self._file
        raise damaged(
            f"the index is not that of a file of layout {file.layout.name}",
            where=f"{file.path}, byte {file.index_begin}",
            found=f"{self._n_documents} documents of {self._total_bytes} bytes, "
            f"{self._offset_errors.n_changes} of them out of place",
            expected=f"documents back to back, {file.data_bytes} bytes from "
            f"{file.layout.first_offset}",
        )

    def _check_values(self, entries: Entries) -> None:
        """Check that documents have possible sizes, and consist of whole tokens.

        For example, in a file with 1000 bytes of tokens of 2 bytes each:

            start    bytes
            0        300      right
            0        301      wrong: ends within a token
            7        300      wrong: starts within a token
            0        1002     wrong: longer than all tokens

        A start before or after all tokens is no error yet: the caller may be able to correct it.

        Args:
            entries: Where the documents start in the tokens, and how long they are, in bytes.

        Raises:
            FormatError: One of these errors, or a start so large that no file can have it.
        """
        offsets, lengths = entries
        token_bytes = self._file.token_bytes
        has_wrong_length = (lengths < 0) | (lengths > self._file.data_bytes)
        splits_a_token = (lengths % token_bytes != 0) | (offsets % token_bytes != 0)
        has_impossible_offset = (offsets > _MAX_OFFSET) | (offsets < -_MAX_OFFSET)
        is_wrong = has_wrong_length | splits_a_token | has_impossible_offset  # (n_documents,)
        if is_wrong.any():
            raise self._misplaced_error(entries, is_wrong)

    def _misplaced_error(self, entries: Entries, is_wrong: NDArray[np.bool_]) -> FormatError:
        """Return the error for the first of some documents that is not within the file's tokens.

        Args:
            entries: Where the documents start, and how long they are, in bytes.
            is_wrong: Which of them are not within the tokens, shape (n_entries,).
        """
        file = self._file
        row = int(np.argmax(is_wrong))  # the first wrong one
        number = self._n_documents + row  # after the documents that were checked before
        return damaged(
            "a document is outside of the tokens",
            where=f"{file.path}, entry {number} of the index at byte {file.index_begin}",
            found=f"{entries.lengths[row]} bytes from byte {entries.offsets[row]} of the tokens",
            expected=f"within [0, {file.data_bytes}), "
            f"in multiples of {file.token_bytes}, the bytes of one token",
        )
