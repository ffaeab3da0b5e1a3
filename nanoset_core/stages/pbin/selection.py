"""Write new `.pbin` files with the documents of existing ones: joined, shuffled, or filtered.

A `.pbin` has all tokens, and an index of where each document begins. So a new file is written in
two steps: the tokens of its documents, in their new order, and then an index of them.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, SourceChangedError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.blocks import divide_into_blocks
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.layout import (
    IndexFacts,
    PbinFile,
    document_entries,
    open_pbin,
    scan_index,
)
from nanoset_core.formats.pbin.pickle_codec import Entries
from nanoset_core.formats.pbin.writing import (
    PbinCounts,
    encode_tokens,
    entries_in_sequence,
    in_chunks,
    read_tokens,
    write_parts,
)
from nanoset_core.storage.location import Location, on_this_machine
from nanoset_core.storage.regular_files import open_regular, read_regular, required
from nanoset_core.wording import format_count

_BLOCK_TOKENS = 1 << 21
"""About this many tokens are written at once."""
_MAX_SEED = 2**32 - 1
"""Modulus of Modalities' seeds."""


def merge_pbin(
    paths: Iterable[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    progress: Progress = SILENT,
) -> PbinCounts:
    """Join `.pbin` files, which contain tokens and an index of their documents, into one file.

    The files may have any of the layouts that versions of Modalities wrote. The new file has the
    newest one, layout D. It appears when it is complete.

    Modalities' own `merge_packed_data` writes the same tokens, but a wrong index: it overlooks the
    headers of 12 bytes, so that the documents of the second file seem to begin 12 bytes too early,
    those of the third 24 bytes, and so on. This function writes a correct index, and repairs files
    that `merge_packed_data` wrote, also if only one file is given.

    Memory is bounded. But the index of a file that has to be read completely takes about 150 bytes
    an entry.

    Args:
        paths: The files, in the order of their documents.
        target: The file to write.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.

    Raises:
        ConfigError: No file is given.
        FormatError: A file is damaged, or the sizes of tokens differ.
        InputError: The documents contain no tokens.
        MissingError: A file does not exist.
        SourceChangedError: A file changed while it was read.
    """
    # First read and check the index of each file; then write all tokens, and after them one index.
    files = [_ScannedFile.of(open_pbin(path)) for path in paths]
    token_bytes = _common_token_bytes(files)
    merge = _Merge(files, token_bytes, Path(target).name, progress)
    data_bytes = write_parts(target, token_bytes, merge.blocks(), merge.entries())

    n_documents = sum(file.index.documents for file in files)
    n_tokens = data_bytes // token_bytes
    return PbinCounts(n_documents, n_tokens, token_bytes)


@dataclass(frozen=True, slots=True)
class _ScannedFile:
    """A file to be merged, whose index was checked.

    It is not kept open, since a process may have only some thousand open files.
    """

    path: Path
    """Path of the file."""
    token_bytes: int
    """Bytes of a token."""
    data_bytes: int
    """Bytes of all tokens."""
    index: IndexFacts
    """What the check of the index has found, such as the number of documents."""

    @staticmethod
    def of(file: PbinFile) -> _ScannedFile:
        """Check the index of a file.

        Args:
            file: The file, opened.

        Raises:
            FormatError: The file is damaged.
        """
        return _ScannedFile(file.path, file.token_bytes, file.data_bytes, scan_index(file))


def _tokens_of_file(scanned: _ScannedFile) -> Iterator[NDArray[np.integer]]:
    """Yield all tokens of a `.pbin` file, some at a time.

    Args:
        scanned: The file, which was scanned before.

    Raises:
        SourceChangedError: The file has another size than when it was scanned.
    """
    file = _reopened(scanned)
    n_tokens = len(file.tokens)
    # Read the file instead of using the mapped array `file.tokens`: pages of an array that were
    # read would count as memory of this process.
    with open_regular(file.path) as stored:
        stored.seek(file.layout.header_bytes)  # tokens follow the header
        for _, tokens in read_tokens(stored, file.path, file.dtype, 0, n_tokens):
            yield tokens


@dataclass(slots=True)
class _Merge:
    """The parts of a merged file: the tokens of all files, and then their index entries."""

    files: Sequence[_ScannedFile]
    """The files, in the order of their documents."""
    token_bytes: int
    """Bytes of a token, in all files."""
    name: str
    """Name of the merged file, for the progress."""
    progress: Progress
    """Shows how many bytes are written."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield the tokens of several `.pbin` files, as bytes for the merged file.

        Such a file has a header, the tokens of all documents, and an index of the documents. Here
        only the tokens are copied. The merged file gets a header and an index of its own.

            a.pbin    header A, tokens 5 6, index A
            b.pbin    header B, tokens 7 8 9, index B
            result    tokens 5 6 7 8 9

        Raises:
            SourceChangedError: A file has another size than when it was scanned.
        """
        work = self.progress.work("merge", self.name, sum(file.data_bytes for file in self.files))
        for scanned in self.files:
            for tokens in _tokens_of_file(scanned):
                yield from encode_tokens(tokens, self.token_bytes, str(scanned.path))
                work.advance(tokens.nbytes)

    def entries(self) -> Iterator[Entries]:
        """Yield the index entries of all files, with their offsets in the merged file.

        Raises:
            FormatError: A file is damaged.
        """
        bytes_before = 0
        for scanned in self.files:
            for starts, lengths in document_entries(open_pbin(scanned.path), scanned.index):
                yield Entries(starts + bytes_before, lengths)
            bytes_before += scanned.data_bytes


def _reopened(scanned: _ScannedFile) -> PbinFile:
    """Open a file again, after a check that it still has the size that it had at first.

    Its index was read first, and its tokens are read now. If another program writes to it
    meanwhile, they would not fit together.

    Args:
        scanned: The file.

    Raises:
        SourceChangedError: It has another size.
    """
    file = open_pbin(scanned.path)
    if file.data_bytes != scanned.data_bytes:
        raise SourceChangedError(
            "the file changed while it was being merged",
            where=f"{scanned.path}, byte 0",
            found=f"{file.data_bytes} bytes of tokens",
            expected=None,
            remedy="run again once nothing writes to it any more",
        )
    return file


class _Named(Protocol):
    """A file with a size of its tokens, which may be open or not."""

    @property
    def path(self) -> Path:
        """Path of the file."""

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""


def _common_token_bytes(files: Sequence[_Named]) -> int:
    """Return the size in bytes that tokens have in all files, such as 2.

    Files with tokens of 2 and of 4 bytes cannot be joined: their ids may be those of two
    vocabularies.

    Args:
        files: The files.

    Raises:
        ConfigError: No file is given.
        FormatError: Tokens have different sizes.
    """
    if not files:
        raise ConfigError(
            "no file to take documents from",
            expected="one file or more",
            remedy="name a .pbin",
        )
    first_file = files[0]
    for file in files:
        if file.token_bytes != first_file.token_bytes:
            raise FormatError(
                "files with tokens of different sizes cannot be joined",
                where=f"{file.path}, byte 8",
                found=f"{format_count(file.token_bytes, 'byte')} a token",
                expected=f"{first_file.token_bytes}, as in {first_file.path}",
                remedy="make them with the same tokenizer, and with --vocab-size if it has added "
                "tokens, which not every text contains",
            )
    return first_file.token_bytes


def shuffle_pbin(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    seed: int,
    progress: Progress = SILENT,
) -> PbinCounts:
    """Write the documents of a file of tokens in random order, as Modalities would.

    A `.pbin` has the tokens of documents, and an index that says where each starts. A framework
    that reads documents in the order of the file needs them shuffled:

        documents    0 1 2 3
        result       2 0 3 1, for example

    The bytes are those of Modalities' `shuffle_tokenized_data`, which holds the whole file in
    memory. This function needs 60 bytes a document. The new file appears when it is complete.

    Args:
        source: The file to read.
        target: The file to write.
        seed: Seed of the order.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.

    Raises:
        InputError: The documents contain no tokens.
    """
    dataset = PackedDataset(source)
    documents = _shuffled_by_python(len(dataset), seed)
    selection = _Selection.of(dataset, number=0, documents=documents)  # 0: of the only dataset
    return _write([dataset], selection, target, progress)


def _shuffled_by_python(count: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers 0, 1, 2, … in the order that Python's `random` gives, as in Modalities.

    Args:
        count: How many numbers.
        seed: Seed of the order.

    Returns:
        Shape (count,).
    """
    # An `array` of int64 ("q") takes less memory than a list. NumPy uses it without a copy.
    order = array("q", range(count))
    random.Random(operator.index(seed)).shuffle(order)
    return np.frombuffer(order, np.int64)


def shuffle_pbin_chunk(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    chunk: int,
    chunks: int,
    seed: int,
    progress: Progress = SILENT,
) -> PbinCounts:
    """Write one of several chunks of a large dataset, with its documents in random order.

    To shuffle a dataset that is too large for one machine, each machine makes one chunk. It takes
    the same part of each source, joins these parts and shuffles their documents. For chunk 0 of 2:

        source A    documents 0 1 2 3      takes 0 1
        source B    documents 4 5 6 7      takes 4 5
        the file    such as 5 0 4 1

    So the order is random only within a chunk. The bytes are those of Modalities'
    `create_shuffled_dataset_chunk`. The file appears when it is complete.

    Args:
        sources: The files to read, which are all open at the same time.
        target: The file to write.
        chunk: Number of the chunk, from 0 on.
        chunks: Number of chunks.
        seed: Seed of the order, from which a different one follows for each chunk.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.

    Raises:
        ConfigError: There is no such chunk, or no source.
        InputError: The chunk has no tokens.
        FormatError: The sizes of tokens differ.
    """
    _check_chunk(chunk, chunks)
    datasets = [PackedDataset(source) for source in sources]
    _common_token_bytes(datasets)  # raises an error if they differ

    selection = _select_chunk(datasets, chunk, chunks)
    order = np.arange(len(selection.lengths))
    np.random.default_rng(chunk_seed(seed, chunk)).shuffle(order)
    return _write(datasets, selection.reordered(order), target, progress)


def _check_chunk(chunk: int, chunks: int) -> None:
    """Check that a chunk exists: its number must be less than the number of chunks.

    A dataset may be divided into chunks, which different machines shuffle. They are numbered from
    0:

        chunk 3 of 4    fine
        chunk 4 of 4    an error

    Args:
        chunk: Number of the chunk.
        chunks: Number of chunks.

    Raises:
        ConfigError: There is no such chunk.
    """
    if not 0 <= chunk < chunks:
        raise ConfigError(
            "no such chunk",
            where="chunk",
            found=f"{chunk} of {chunks}",
            expected=f"0 to {chunks - 1}" if chunks > 0 else "one chunk or more",
        )


def _select_chunk(datasets: Sequence[PackedDataset], chunk: int, chunks: int) -> _Selection:
    """Select the documents of one chunk of all datasets, dataset after dataset.

    Each dataset is cut into the same number of chunks. Chunk 0 of 2, for datasets of 4 and 6
    documents, has the documents 0 and 1 of the first, and 0, 1 and 2 of the second.

    Args:
        datasets: The datasets; at least one.
        chunk: Number of the chunk, from 0 on.
        chunks: Number of chunks that each dataset is cut into.
    """
    parts = []
    for number, dataset in enumerate(datasets):
        start, stop = chunk_bounds(len(dataset), chunk, chunks)
        parts.append(_Selection.of(dataset, number, slice(start, stop)))
    return _Selection.concatenated(parts)


def chunk_bounds(documents: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Return the documents [start, stop) of a chunk, if documents are divided evenly.

    The first chunks may have one document more than the others. For 10 documents in 4 chunks:

        chunk         0         1         2         3
        documents     0 to 3    3 to 6    6 to 8    8 to 10

    Args:
        documents: Number of all documents.
        chunk: Number of the chunk, from 0 on.
        chunks: Number of chunks.
    """
    # Each chunk has 2 documents, and 2 documents are left for the first 2 chunks.
    size, n_larger = divmod(documents, chunks)
    # All chunks before have one more document, but at most `n_larger` of them.
    start = size * chunk + min(chunk, n_larger)
    stop = size * (chunk + 1) + min(chunk + 1, n_larger)
    return start, stop


def chunk_seed(seed: int, chunk: int) -> int:
    """Return the seed by which one chunk of a dataset is shuffled, as Modalities computes it.

    A dataset may be shuffled in chunks, on several machines. Each chunk needs another seed, and all
    of them follow from one:

        sha256("1234") + sha256("0")      for chunk 0 of the seed 1234, as whole numbers
        modulo 2**32 - 1                  so that the result fits into 32 bits

    Args:
        seed: The seed of all chunks.
        chunk: Number of the chunk, from 0 on.

    Returns:
        A number from 0 to 2**32 - 2, that of Modalities' `calculate_hashed_seed`.
    """
    total = 0
    for number in (operator.index(seed), chunk):
        total += int(hashlib.sha256(str(number).encode()).hexdigest(), 16)
    return total % _MAX_SEED


def filter_pbin(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    keep: NDArray[np.bool_],
    *,
    progress: Progress = SILENT,
) -> PbinCounts:
    """Write some documents of a file of tokens to a new one, in their order.

    A `.pbin` has the tokens of documents, from which the framework Modalities trains. For example:

        documents    [5, 6], [7], [8, 9]
        keep         True, False, True
        result       [5, 6], [8, 9]

    The bytes are those of Modalities' `filter_dataset`. The new file appears when it is complete.

    Args:
        source: The file to read.
        target: The file to write.
        keep: Whether each document is written, bool, shape (n_documents,).
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.

    Raises:
        ConfigError: The mask has another length or dtype.
        InputError: No document with tokens is kept.
    """
    dataset = PackedDataset(source)
    mask = np.asarray(keep)
    if mask.shape != (len(dataset),) or mask.dtype != bool:
        raise ConfigError(
            "the mask does not fit the documents",
            where=source,
            found=f"{mask.dtype.name}{list(mask.shape)}",
            expected=f"bool[{len(dataset)}]",
        )
    selection = _Selection.of(dataset, number=0, documents=np.flatnonzero(mask))
    return _write([dataset], selection, target, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFilter:
    """Conditions for keeping a document. It must meet all that are set."""

    min_tokens: int | None = None
    """The document has at least this many tokens, including an end-of-document token."""
    max_tokens: int | None = None
    """The document has at most this many tokens."""
    every: int | None = None
    """The number of the document, counted from 0, is a multiple of this."""
    keep: Location | None = None
    """This text file lists the number of the document. It has one number a line, in any order."""
    drop: Location | None = None
    """This text file does not list the number of the document."""

    def list_files(self) -> dict[str, Location]:
        """Return the text files that conditions name, such as {"drop": Path("bad.txt")}."""
        paths = {"keep": self.keep, "drop": self.drop}
        return {name: path for name, path in paths.items() if path is not None}

    def with_list_files(self, paths: Mapping[str, Location]) -> DocumentFilter:
        """Return the same conditions, with copies of their text files in other places.

        Args:
            paths: Where the text files are now: the result of `list_files` with other paths.
        """
        return replace(self, keep=paths.get("keep"), drop=paths.get("drop"))

    def plain_values(self) -> dict[str, int | str | None]:
        """Return all conditions as values that can be stored as JSON, with paths as strings.

        For example, {"min_tokens": 16, "max_tokens": None, …, "drop": "bad.txt"}.
        """
        return {
            "min_tokens": self.min_tokens,
            "max_tokens": self.max_tokens,
            "every": self.every,
            "keep": None if self.keep is None else str(self.keep),
            "drop": None if self.drop is None else str(self.drop),
        }

    def mask(self, dataset: PackedDataset) -> NDArray[np.bool_]:
        """Return which documents of a file of tokens meet all conditions of the user.

        For example, `DocumentFilter(min_tokens=10, every=2)` has two conditions:

            document               0       1       2       3       4
            its tokens             812     95      3       20      10
            10 tokens or more      yes     yes     no      yes     yes
            every second           yes     no      yes     no      yes
            result                 True    False   False   False   True

        Lists of documents must be on this machine.

        Args:
            dataset: The documents.

        Returns:
            bool, shape (n_documents,).

        Raises:
            ConfigError: There is no condition, or a list names a document that does not exist.
            MissingError: A list does not exist.
            InputError: A list contains something that is not a number.
        """
        has_no_condition = self == DocumentFilter()
        if has_no_condition:
            raise ConfigError(
                "nothing says which documents to keep",
                where=dataset.path,
                remedy="give one or more: min_tokens, max_tokens, every, keep, drop",
            )
        is_kept = np.ones(len(dataset), bool)
        for meets_condition in self._conditions(dataset.document_lengths):
            is_kept &= meets_condition
        return is_kept

    def _conditions(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
        """Yield, for each condition that is set, which documents meet it.

        For documents of 5, 20 and 30 tokens:

            min_tokens: 10     False, True, True
            every: 2           True, False, True

        Args:
            lengths: Number of tokens of each document, shape (n_documents,).

        Yields:
            Shape (n_documents,).

        Raises:
            ConfigError: A list names a document that does not exist.
            MissingError: A list does not exist.
            InputError: A list contains something that is not a number.
        """
        if self.min_tokens is not None:
            yield lengths >= self.min_tokens
        if self.max_tokens is not None:
            yield lengths <= self.max_tokens
        if self.every is not None:
            yield np.arange(len(lengths)) % self.every == 0
        if self.keep is not None:
            yield _is_listed(on_this_machine(self.keep), len(lengths))
        if self.drop is not None:
            yield ~_is_listed(on_this_machine(self.drop), len(lengths))


def _is_listed(path: Path, n_documents: int) -> NDArray[np.bool_]:
    """Return whether each document is named in a text file, by which a user keeps or drops
    documents.

        the file                       3
                                       0
        result for four documents      True, False, False, True

    Args:
        path: The text file, with the number of a document in each line.
        n_documents: Number of all documents.

    Returns:
        Shape (n_documents,).

    Raises:
        MissingError: The file does not exist.
        InputError: It contains something that is not a number.
        ConfigError: It names a document that does not exist.
    """
    numbers = _read_numbers(path)
    is_outside = (numbers < 0) | (numbers >= n_documents)
    if is_outside.any():
        raise ConfigError(
            "this list names a document that does not exist",
            where=path,
            found=int(numbers[is_outside][0]),
            expected=f"0 to {n_documents - 1}",
        )
    is_listed = np.zeros(n_documents, bool)
    is_listed[numbers] = True
    return is_listed


def _read_numbers(path: Path) -> NDArray[np.int64]:
    r"""Return the numbers in a text file, in the order of the file: "3\n0\n" gives [3, 0].

    Args:
        path: The text file.

    Raises:
        MissingError: The file does not exist.
        InputError: It contains something that is not a number.
    """
    with required(
        path,
        "a text file of the numbers of documents",
        "write the list first, or name another file",
    ):
        words = read_regular(path).split()
    try:
        return np.array(words, np.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(
            "this list contains something that is not a number",
            where=path,
            found=error,
            expected="the numbers of documents, one a line",
        ) from error


@dataclass(frozen=True, slots=True)
class _Selection:
    """Documents of several datasets, in the order in which they are written.

    All arrays have the shape (n_documents,).
    """

    sources: NDArray[np.int32]
    """Number of the dataset of each document."""
    starts: NDArray[np.int64]
    """First token of each document in its dataset."""
    lengths: NDArray[np.int64]
    """Number of tokens of each document."""

    @staticmethod
    def of(dataset: PackedDataset, number: int, documents: NDArray[np.int64] | slice) -> _Selection:
        """Select documents of one dataset.

        Args:
            dataset: The dataset.
            number: Number of the dataset among all.
            documents: Numbers of the documents, or a slice of them.
        """
        lengths = dataset.document_lengths[documents]
        sources = np.full(len(lengths), number, np.int32)
        return _Selection(sources, dataset.document_starts[documents], lengths)

    @staticmethod
    def concatenated(parts: Sequence[_Selection]) -> _Selection:
        """Return the documents of all parts, in the order of the parts.

        Args:
            parts: The parts; at least one.
        """
        return _Selection(
            sources=np.concatenate([part.sources for part in parts]),
            starts=np.concatenate([part.starts for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
        )

    def index_entries(self, token_bytes: int) -> Iterator[Entries]:
        """Yield the index of a file of these documents, in chunks, to limit memory.

        Each document starts where the one before it ends, so the index follows from their sizes.

        Args:
            token_bytes: Bytes of a token.
        """
        document_sizes = in_chunks(self.lengths * token_bytes)
        return entries_in_sequence(document_sizes)

    def reordered(self, order: NDArray[np.int64]) -> _Selection:
        """Return these documents in another order.

        Args:
            order: Index of each document of the result in this selection, shape (n_documents,).
        """
        return _Selection(self.sources[order], self.starts[order], self.lengths[order])


def _write(
    datasets: Sequence[PackedDataset],
    selection: _Selection,
    target: str | os.PathLike[str],
    progress: Progress,
) -> PbinCounts:
    """Write selected documents of one or more `.pbin` files to a new one.

    Such a file has the tokens of all documents, and then an index, which says where each document
    starts and how long it is. For the documents [7, 8] and [5], with tokens of 2 bytes:

        tokens    7 8 5
        index     (0, 4), (4, 2)      first byte and number of bytes of each document

    Args:
        datasets: The files from which the documents are taken; all have tokens of one size.
        selection: The documents, in the order in which they are written.
        target: The file to write.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.
    """
    token_bytes = datasets[0].token_bytes
    n_tokens = int(selection.lengths.sum())
    work = progress.work("write", Path(target).name, n_tokens * token_bytes)

    def token_blocks() -> Iterator[memoryview]:
        """Yield the bytes of all tokens, in blocks, and show how many were written."""
        for tokens in _selected_tokens(datasets, selection):
            for block in encode_tokens(tokens, token_bytes, str(target)):
                yield block
                work.advance(len(block))

    write_parts(target, token_bytes, token_blocks(), selection.index_entries(token_bytes))
    return PbinCounts(len(selection.lengths), n_tokens, token_bytes)


def _selected_tokens(
    datasets: Sequence[PackedDataset], selection: _Selection
) -> Iterator[NDArray[np.integer]]:
    """Yield the tokens of selected documents, in blocks of about `_BLOCK_TOKENS` tokens.

    A block consists of complete documents, so a very long document is a block of its own.

    Documents are sliced, which takes 0.3 µs for each one. Gathering with an index array would take
    3 ns a token, which is more for documents of over 100 tokens.

    Args:
        datasets: The datasets from which the documents are taken.
        selection: The documents, as their datasets, first tokens and lengths.
    """
    borders = np.concatenate([[0], np.cumsum(selection.lengths)])  # (n_documents + 1,) in tokens
    for block in divide_into_blocks(borders, _BLOCK_TOKENS):
        places = zip(
            selection.sources[block].tolist(),
            selection.starts[block].tolist(),
            selection.lengths[block].tolist(),
            strict=True,
        )
        documents = []
        for source, start, length in places:
            documents.append(datasets[source].tokens[start : start + length])
        if len(documents) == 1:
            yield documents[0]  # without a copy
        else:
            yield np.concatenate(documents)
