"""Merge indexed datasets within a store, so that their tokens are not downloaded.

The store itself concatenates the .bin files (`Store.compose`). The merged .idx is written here,
from the headers, lengths and document indices of the datasets. That reads 34 + 4n + 8m bytes of
each .idx (`layout.py`): pointers are not read, since they follow from the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.layout import (
    DTYPE_CODES,
    HEADER,
    MAGIC,
    VERSION,
    dtype_code,
    pointer_chunks,
)
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store, Stored

SPAN_BYTES = 1 << 20
"""Largest number of bytes of an .idx that one request reads."""
SPANS_AT_ONCE = 64
"""Number of such ranges that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class StoredPair:
    """An indexed dataset in a store, without modes."""

    bin: Stored
    """Its token file."""
    idx: Stored
    """Its index file."""
    sequences: int
    """Number of sequences, by the header of the .idx."""
    sha256: str = ""
    """Hex digest of the .bin, or "" if it is not known."""

    @property
    def documents_offset(self) -> int:
        """Byte of the .idx at which its document indices start."""
        return HEADER.size + 12 * self.sequences

    @property
    def documents(self) -> int:
        """Number of documents, which follows from the size of the .idx."""
        return (self.idx.size - self.documents_offset) // 8 - 1


class _IndexRange(NamedTuple):
    """A range of the bytes of one .idx."""

    pair: StoredPair
    """The dataset that the .idx belongs to."""
    start: int
    """First byte."""
    stop: int
    """Byte after the last one."""
    is_first: bool
    """Whether it is the first of the requested ranges of this .idx."""
    is_last: bool
    """Whether it is the last of the requested ranges of this .idx."""


class _IndexBlock(NamedTuple):
    """A range of the bytes of one .idx, and these bytes."""

    range: _IndexRange
    """Where the bytes are."""
    data: bytes
    """The bytes."""


def read_pairs(
    store: Store, files: Sequence[tuple[Stored, Stored]]
) -> tuple[list[StoredPair], np.dtype] | None:
    """Read the headers of the indexes of datasets in a bucket, several at the same time.

    Args:
        store: The bucket.
        files: The .bin (tokens) and the .idx (index) of each dataset.

    Returns:
        (the datasets, token type of the first one). None if they cannot be merged in the bucket:
        there are none, or one contains images, too.

    Raises:
        FormatError: A file is not an .idx.
        SourceChangedError, MissingError: A file was replaced or deleted.
    """

    def read_header(idx: Stored) -> bytes:
        """Return the first bytes of an .idx, fewer if the file is shorter."""
        return store.read_range(idx.name, 0, min(HEADER.size, idx.size), idx.mark)

    if not files:
        return None
    headers = in_parallel(read_header, [idx for _, idx in files], SMALL_REQUESTS_AT_ONCE)
    pairs = []
    for (bin_file, idx_file), header in zip(files, headers, strict=True):
        _check_is_idx(store, idx_file, header)
        pair = _pair_without_modes(bin_file, idx_file, header)
        if pair is None:  # it contains images
            return None
        pairs.append(pair)
    _, _, dtype_code, _, _ = HEADER.unpack(headers[0])
    return pairs, DTYPE_CODES[dtype_code]


def _check_is_idx(store: Store, idx_file: Stored, header: bytes) -> None:
    """Check that a file is the index of a dataset, by its first bytes.

    An .idx begins with "MMIDIDX" and two zeros. Byte 17 says of which type the tokens are: 8 stands
    for uint16, for example.

    Args:
        store: The store that contains the file.
        idx_file: The file.
        header: Its first bytes.

    Raises:
        FormatError: It is something else.
    """
    is_idx = len(header) == HEADER.size and header.startswith(MAGIC)
    if not is_idx or header[17] not in DTYPE_CODES:  # byte 17 is the dtype code
        raise _mismatch(
            store, idx_file, found=f"bytes {header!r}", expected="the header of an .idx"
        )


def _pair_without_modes(bin_file: Stored, idx_file: Stored, header: bytes) -> StoredPair | None:
    """Return a dataset, unless it is one of Megatron-LM's datasets for texts with images.

    In these, the index ends with a byte for each sequence, its mode: text or image. They cannot be
    merged in a bucket. The header of the index does not say whether there are modes, but the size
    of the file does. For example, with 1000 sequences:

        header, and an entry for each sequence     up to byte 12,034
        documents: 8 bytes for each of 801         up to byte 18,442    the end without modes
        modes: 1 byte for each sequence            up to byte 19,442    the end with modes

    Args:
        bin_file: The file of tokens.
        idx_file: The index.
        header: The header of the index.

    Returns:
        None if there are modes.
    """
    _, _, _, n_sequences, n_document_indices = HEADER.unpack(header)
    pair = StoredPair(bin_file, idx_file, n_sequences)
    # The part with the documents begins at `documents_offset`. Compute the size of an index with
    # modes, one byte for each sequence.
    size_with_modes = pair.documents_offset + 8 * n_document_indices + n_sequences
    has_modes = n_sequences > 0 and idx_file.size == size_with_modes
    return None if has_modes else pair


def write_merged_idx(
    path: Path, store: Store, pairs: Sequence[StoredPair], dtype: np.dtype
) -> None:
    """Write the index of several datasets as if they were one, without reading their tokens.

    Each dataset has an index, an .idx file, with the lengths of its sequences, their positions in
    the file of tokens, and where its documents begin:

        dataset          0               1           merged
        lengths          3, 2            4           3, 2, 4
        positions        0, 6            0           0, 6, 10     (tokens of 2 bytes)
        documents        0, 2            0, 1        0, 2, 3

    The bytes are those that `merge_indexed_datasets` writes. It takes slightly more than 64 MiB of
    memory.

    Args:
        path: Path of the .idx to write, which must not exist.
        store: The store that contains the datasets.
        pairs: The datasets, in order.
        dtype: Type of their tokens.

    Raises:
        FormatError: An .idx does not fit its size, its tokens, or the other datasets.
        SourceChangedError, MissingError: An .idx was replaced or deleted.
    """
    for pair in pairs:
        _check_idx_size(store, pair)
    n_sequences = sum(pair.sequences for pair in pairs)
    n_documents = sum(pair.documents for pair in pairs)
    with path.open("x+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), n_sequences, n_documents + 1))
        for lengths in _sequence_lengths(store, pairs, dtype):
            file.write(lengths.data)

        # The pointers follow from the lengths, which are read again from the file that they were
        # just written to.
        file.flush()
        written_lengths = np.empty(0, np.int32)
        if n_sequences:
            written_lengths = np.memmap(file, "<i4", "r", HEADER.size, (n_sequences,))
        for _, pointers in pointer_chunks(written_lengths, dtype.itemsize):
            file.write(pointers.astype("<i8", copy=False).data)

        file.write(bytes(8))  # the first document begins at sequence 0
        for document_stops in _document_stops(store, pairs):
            file.write(document_stops.data)


def _check_idx_size(store: Store, pair: StoredPair) -> None:
    """Check that the index of a dataset, its .idx, is as large as its header suggests.

    For example, the header says that there are 3 sequences. Then the file has

        header                         34 bytes
        lengths of 3 sequences         12 bytes
        positions of 3 sequences       24 bytes
        first sequence of documents    8 bytes for each document, and 8 more

    so 70 bytes are followed by 8 or 16 or 24 … bytes.

    Raises:
        FormatError: The file is too small, or its last entry is cut off.
    """
    bytes_of_documents = pair.idx.size - pair.documents_offset  # all but the first 70
    is_whole = bytes_of_documents >= 8 and bytes_of_documents % 8 == 0
    if not is_whole:
        raise _mismatch(
            store,
            pair.idx,
            found=f"{pair.idx.size:,} bytes",
            expected=f"those of a header with {pair.sequences:,} sequences",
        )


def _bounds_of_lengths(pair: StoredPair) -> list[int]:
    """Return where to divide the bytes of an .idx up to the end of the lengths."""
    stop = HEADER.size + 4 * pair.sequences
    return [0, *range(HEADER.size + SPAN_BYTES, stop, SPAN_BYTES), stop]


def _sequence_lengths(
    store: Store, pairs: Sequence[StoredPair], dtype: np.dtype
) -> Iterator[NDArray[np.int32]]:
    """Yield the lengths of all sequences of several datasets, and check the datasets on the way.

    Each dataset has an index, a file that begins with a header and the lengths of its sequences. It
    is read in blocks, since it may have billions of lengths: "header, 12, 7, 9", then "4, 5".

    Args:
        store: The store that contains the datasets.
        pairs: The datasets, in order.
        dtype: Type of the tokens that all datasets must have.

    Yields:
        Tokens of each sequence, int32, shape (n_chunk,).

    Raises:
        FormatError: An index has another header than expected, a length is negative, or the lengths
            do not fit the size of the tokens' file.
    """
    n_tokens = 0  # of the current dataset so far
    for block in _read_blocks(store, pairs, _bounds_of_lengths):
        pair = block.range.pair  # the dataset that the block belongs to
        lengths_start = 0
        if block.range.is_first:  # of its dataset
            _check_header(store, pair, block.data, dtype)
            lengths_start = HEADER.size
            n_tokens = 0
        lengths = np.frombuffer(block.data, "<i4", offset=lengths_start)
        _check_lengths(store, pair, lengths)
        n_tokens += int(lengths.sum(dtype=np.int64))
        yield lengths
        if block.range.is_last:
            _check_bin_size(store, pair, n_tokens, dtype)


def _check_lengths(store: Store, pair: StoredPair, lengths: NDArray[np.int32]) -> None:
    """Raise FormatError if one of these sequence lengths is negative."""
    if len(lengths) and lengths.min() < 0:
        raise _mismatch(
            store, pair.idx, found=f"a length of {lengths.min()}", expected="0 or more tokens"
        )


def _check_bin_size(store: Store, pair: StoredPair, n_tokens: int, dtype: np.dtype) -> None:
    """Raise FormatError if a .bin does not have as many tokens as its .idx says."""
    if n_tokens * dtype.itemsize != pair.bin.size:
        raise _mismatch(
            store,
            pair.bin,
            found=f"a .bin of {pair.bin.size:,} bytes",
            expected=f"{n_tokens:,} tokens",
        )


def _check_header(store: Store, pair: StoredPair, data: bytes, dtype: np.dtype) -> None:
    """Check that the header of an index is the same as when it was first read.

    If it is not, the file was replaced in the meantime, or is damaged.

    Args:
        store: The store that contains the dataset.
        pair: The dataset, as it was first read.
        data: Bytes of the index that begin with the header.
        dtype: Type that the tokens of all merged datasets must have.

    Raises:
        FormatError: The header has other values.
    """
    header = HEADER.unpack_from(data)
    # The last number is that of the starts of documents, and of their end.
    expected_header = (MAGIC, VERSION, dtype_code(dtype), pair.sequences, pair.documents + 1)
    if header != expected_header:
        raise _mismatch(
            store,
            pair.idx,
            found=f"header {header}, {pair.idx.size:,} bytes",
            expected=f"header {expected_header}",
        )


def _document_stops(store: Store, pairs: Sequence[StoredPair]) -> Iterator[NDArray[np.int64]]:
    """Yield where documents stop if several datasets are put one after another.

    A dataset consists of sequences, and a document of one or several of them. The index of a
    dataset stores for each document the number of the sequence after its last one, with a 0 before
    the first document. In the merged dataset, sequences have other numbers: those of the second
    dataset come after the 3 sequences of the first one. The zeros are left out; the caller writes a
    single one:

        dataset         0            1
        sequences       3            4
        stored          0, 2, 3      0, 4
        yielded         2, 3         7

    The numbers are read and yielded in blocks, of which a large dataset has several.

    Args:
        store: The store that contains the datasets.
        pairs: The datasets, in order.

    Yields:
        Number of the sequence after each document, int64, shape (n_chunk,).

    Raises:
        FormatError: The documents of a dataset are not in order, or not those of its sequences.
    """
    first_sequence = 0  # how many sequences the datasets before the current one have
    previous_index = 0  # the last number of the block before, to check that numbers ascend
    for block in _read_blocks(store, pairs, _bounds_of_documents):
        pair = block.range.pair
        indices = np.frombuffer(block.data, "<i8")  # numbers of sequences of this dataset
        stops = indices
        if block.range.is_first:
            # The numbers of a dataset start with 0, where no document stops: leave it out.
            _check_first_index(store, pair, int(indices[0]))
            previous_index = 0
            stops = indices[1:]
        _check_ascending(store, pair, indices, previous_index)
        previous_index = int(indices[-1])
        yield stops + first_sequence  # [2, 3] + 0, and [4] + 3
        if block.range.is_last:
            _check_last_index(store, pair, previous_index)
            first_sequence += pair.sequences  # the next dataset follows after this one


def _bounds_of_documents(pair: StoredPair) -> list[int]:
    """Return where to divide the document indices of an .idx, in bytes."""
    return [*range(pair.documents_offset, pair.idx.size, SPAN_BYTES), pair.idx.size]


def _check_first_index(store: Store, pair: StoredPair, first_index: int) -> None:
    """Raise FormatError if the first document does not begin at sequence 0."""
    if first_index != 0:
        raise _mismatch(
            store,
            pair.idx,
            found=f"document 0 at sequence {first_index}",
            expected="at sequence 0",
        )


def _check_ascending(
    store: Store, pair: StoredPair, indices: NDArray[np.int64], previous_index: int
) -> None:
    """Check that documents are in order: each begins at the sequence of the previous one, or later.

    The numbers are read in blocks. For example, a block ends with 12. If the next block is 12, 15,
    19, all is well. If it is 11, 15, 19, a document begins before the previous one.

    Args:
        store: The store that contains the dataset.
        pair: The dataset.
        indices: The first sequence of each document of the block, shape (n_chunk,).
        previous_index: The last number of the block before.

    Raises:
        FormatError: They are not in order.
    """
    if indices[0] < previous_index or (np.diff(indices) < 0).any():
        raise _mismatch(
            store,
            pair.idx,
            found="a document that begins before the previous one",
            expected="documents in order",
        )


def _check_last_index(store: Store, pair: StoredPair, last_index: int) -> None:
    """Raise FormatError if the documents do not end at the last sequence of a dataset."""
    if last_index != pair.sequences:
        raise _mismatch(
            store,
            pair.idx,
            found=f"documents that end at sequence {last_index}",
            expected=f"{pair.sequences}",
        )


def _read_blocks(
    store: Store, pairs: Sequence[StoredPair], bounds_of: Callable[[StoredPair], Sequence[int]]
) -> Iterator[_IndexBlock]:
    """Read the indexes (.idx files) of several datasets in blocks, several blocks at the same time.

    An index may have gigabytes, so it is not read as a whole. For example, with the bounds 0, 100
    and 180 for each dataset:

        dataset    0            0             1            1
        bytes      0 to 100     100 to 180    0 to 100     100 to 180

    Args:
        store: The store that contains the datasets.
        pairs: The datasets, in order.
        bounds_of: Returns the bounds of the blocks of a dataset, ascending byte offsets in its
            index.

    Yields:
        All blocks of the first dataset, then those of the second one, and so on.
    """

    def read(index_range: _IndexRange) -> _IndexBlock:
        """Read one block."""
        idx = index_range.pair.idx
        data = store.read_range(idx.name, index_range.start, index_range.stop, idx.mark)
        return _IndexBlock(index_range, data)

    # Only a few ranges at a time, which limits the memory that the blocks take.
    ranges = _index_ranges(pairs, bounds_of)
    window = list(islice(ranges, SPANS_AT_ONCE))
    while window:
        yield from in_parallel(read, window, SMALL_REQUESTS_AT_ONCE)
        window = list(islice(ranges, SPANS_AT_ONCE))


def _index_ranges(
    pairs: Sequence[StoredPair], bounds_of: Callable[[StoredPair], Sequence[int]]
) -> Iterator[_IndexRange]:
    """Yield the ranges of bytes in which the indexes (.idx files) of datasets are read.

    For example, the bounds 0, 100 and 180 give the ranges 0 to 100, which is the first one of its
    dataset, and 100 to 180, which is the last one.

    Args:
        pairs: The datasets, in order.
        bounds_of: Returns the bounds for a dataset, such as [0, 100, 180].
    """
    for pair in pairs:
        bounds = bounds_of(pair)
        for start, stop in pairwise(bounds):
            yield _IndexRange(
                pair, start, stop, is_first=start == bounds[0], is_last=stop == bounds[-1]
            )


def _mismatch(store: Store, file: Stored, *, found: str, expected: str) -> FormatError:
    """Return the error for a dataset whose .idx and .bin (tokens) contradict each other.

    Args:
        store: The store that contains the dataset.
        file: One of its files.
        found: What the file has.
        expected: What it should have.
    """
    folder = store.url(file.name.rpartition("/")[0])
    return FormatError(
        "the .idx and the .bin of a dataset do not belong together",
        where=store.url(file.name),
        found=found,
        expected=expected,
        remedy=f"write the dataset again; if a build made it, delete {folder}, and build again",
    )
