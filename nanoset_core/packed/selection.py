"""Write new `.pbin` files of the documents of others: joined, shuffled, shuffled by chunks, or filtered."""

from __future__ import annotations

import hashlib
import operator
import os
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.packed.dataset import PackedDataset
from nanoset_core.packed.index import IndexFacts, document_entries, scan_index
from nanoset_core.packed.layout import open_packed
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.packed.writing import PackedFacts, back_to_back, encode_tokens, in_chunks, write_file
from nanoset_core.storage.regular_files import open_regular, read_regular

_BLOCK_TOKENS = 1 << 21
_COPY_BYTES = 1 << 20
_MAX_SEED = 2**32 - 1


def merge_packed(
    paths: Iterable[str | os.PathLike[str]], target: str | os.PathLike[str], *, listener: ProgressCallback = silent
) -> PackedFacts:
    """Join `.pbin` files of any layout, in the order given, into one of layout D; published whole.

    One file alone is copied with a sound index; a sound file of layout D stays byte for byte the same. The tokens are
    those of Modalities' `merge_packed_data`, the index is right (there, the documents of file k are 12 (k - 1) bytes
    off), and files with that fault are repaired. Memory is bounded by a chunk; an index that scan_index reads whole
    takes some 150 bytes an entry.

    Raises:
        ConfigError: the list is empty.
        FormatError: a file is damaged, or token sizes differ.
        InputError: there are no tokens at all.
    """
    # Each file is opened for each pass anew: thousands of them would use up the process's open files.
    parts = [_Part.scan(path) for path in paths]
    token_bytes = _common_token_bytes((part.path, part.token_bytes) for part in parts)
    meter = Meter(listener, "merge", Path(target).name, sum(part.data_bytes for part in parts))

    def blocks() -> Iterator[memoryview]:
        for part in parts:
            for block in part.blocks():
                yield block
                meter.advance(len(block))

    def entries() -> Iterator[Entries]:
        begin = 0
        for part in parts:
            for starts, lengths in document_entries(open_packed(part.path), part.facts):
                yield starts + begin, lengths
            begin += part.data_bytes

    data_bytes = write_file(target, token_bytes, blocks(), entries())
    return PackedFacts(sum(part.facts.documents for part in parts), data_bytes // token_bytes, token_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """A file to be merged."""

    path: Path
    token_bytes: int
    data_bytes: int
    """Bytes of all tokens."""
    facts: IndexFacts

    @classmethod
    def scan(cls, path: str | os.PathLike[str]) -> _Part:
        packed = open_packed(path)
        return cls(packed.path, packed.token_bytes, packed.data_bytes, scan_index(packed))

    def blocks(self) -> Iterator[memoryview]:
        """Yield the tokens in layout D; read, since pages of a map would count as memory of this process."""
        packed = open_packed(self.path)
        with open_regular(self.path) as file:
            file.seek(packed.layout.header_bytes)
            for begin in range(0, self.data_bytes, _COPY_BYTES):
                size = min(_COPY_BYTES, self.data_bytes - begin)
                data = file.read(size)
                if packed.data_bytes != self.data_bytes or len(data) < size:
                    raise SourceChangedError(
                        "the file changed while it was being merged",
                        where=f"{self.path}, byte 0",
                        found=f"{packed.data_bytes} bytes of tokens",
                        expected=self.data_bytes,
                        remedy="run again once nothing writes to it any more",
                    )
                yield from encode_tokens(np.frombuffer(data, packed.dtype), self.token_bytes, str(self.path))


def _common_token_bytes(sizes: Iterable[tuple[Path, int]]) -> int:
    """Return the bytes of a token, of (file, bytes) of each file.

    Raises:
        ConfigError: there is no file.
        FormatError: the files differ.
    """
    first: tuple[Path, int] | None = None
    for file, size in sizes:
        first = first or (file, size)
        if size != first[1]:
            raise FormatError(
                "files with tokens of different sizes cannot be joined",
                where=f"{file}, byte 8",
                found=f"{size} bytes a token",
                expected=f"{first[1]}, as in {first[0]}",
                remedy="make them with the same tokenizer",
            )
    if first is None:
        raise ConfigError("no file to take documents from", expected="one file or more", remedy="name a .pbin")
    return first[1]


def shuffle_packed(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, seed: int, listener: ProgressCallback = silent
) -> PackedFacts:
    """Write the documents of a `.pbin` in random order; published whole.

    The same bytes as Modalities' `shuffle_tokenized_data` (`random.Random(seed).shuffle` of the index), which holds
    the whole file in memory. Here: 60 bytes a document, and a chunk of tokens.

    Raises:
        MissingError, FormatError: as PackedDataset.
        InputError: there are no tokens at all.
    """
    dataset = PackedDataset(source)
    order = array("q", range(len(dataset)))
    random.Random(operator.index(seed)).shuffle(order)
    return _write([dataset], _all_of(dataset, 0).take(np.frombuffer(order, np.int64)), target, listener)


def shuffle_packed_chunk(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    chunk: int,
    chunks: int,
    seed: int,
    listener: ProgressCallback = silent,
) -> PackedFacts:
    """Write chunk `chunk` of `chunks` of every source, its documents in random order; published whole.

    The same bytes as Modalities' `create_shuffled_dataset_chunk`: each source gives its own part number `chunk`, the
    parts are joined and shuffled by `numpy.random.default_rng`. So the order is random within a chunk only.
    All sources stay open meanwhile.

    Raises:
        ConfigError: there is no such chunk, or no source.
        InputError: the chunk has no tokens.
        FormatError: token sizes differ.
    """
    if not 0 <= chunk < chunks:
        expected = f"0 to {chunks - 1}" if chunks > 0 else "one chunk or more"
        what, remedy = "no such chunk", "count chunks from 0"
        raise ConfigError(what, where="chunk", found=f"{chunk} of {chunks}", expected=expected, remedy=remedy)
    datasets = [PackedDataset(source) for source in sources]
    _common_token_bytes((dataset.path, dataset.token_bytes) for dataset in datasets)
    parts = [
        _all_of(dataset, number).take(slice(*chunk_bounds(len(dataset), chunk, chunks)))
        for number, dataset in enumerate(datasets)
    ]
    selection = _Selection(
        np.concatenate([part.sources for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
    order = np.arange(len(selection.lengths))
    np.random.default_rng(chunk_seed(seed, chunk)).shuffle(order)
    return _write(datasets, selection.take(order), target, listener)


def chunk_bounds(documents: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Return the documents [begin, end) of chunk `chunk`; the first `documents % chunks` chunks have one more."""
    size, larger = divmod(documents, chunks)
    return size * chunk + min(chunk, larger), size * (chunk + 1) + min(chunk + 1, larger)


def chunk_seed(seed: int, chunk: int) -> int:
    """Return Modalities' `calculate_hashed_seed` of the two numbers' digits."""
    digests = [hashlib.sha256(str(value).encode()).hexdigest() for value in (operator.index(seed), chunk)]
    return sum(int(digest, 16) for digest in digests) % _MAX_SEED


def filter_packed(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    keep: NDArray[np.bool_],
    *,
    listener: ProgressCallback = silent,
) -> PackedFacts:
    """Write the documents that `keep` selects, in their order; published whole.

    The bytes are those of Modalities' `filter_dataset`.

    Args:
        source: the file that holds them.
        target: the file to write.
        keep: bool, shape (documents,).
        listener: takes the progress.

    Raises:
        ConfigError: the mask has another length.
        InputError: no document with tokens is kept.
    """
    dataset = PackedDataset(source)
    chosen = np.asarray(keep)
    if chosen.shape != (len(dataset),) or chosen.dtype != bool:
        found, expected = f"{chosen.dtype.name}{list(chosen.shape)}", f"bool[{len(dataset)}]"
        what, remedy = "the mask does not fit the documents", "make the mask from the same file"
        raise ConfigError(what, where=source, found=found, expected=expected, remedy=remedy)
    return _write([dataset], _all_of(dataset, 0).take(np.flatnonzero(chosen)), target, listener)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFilter:
    """Conditions for keeping a document, all of which it has to meet."""

    min_tokens: int | None = None
    """Least number of tokens, inclusive; the end-of-document token counts."""
    max_tokens: int | None = None
    """Greatest number of tokens, inclusive."""
    every: int | None = None
    """Its number, from 0, is a multiple of this."""
    keep: Path | None = None
    """A text file of the numbers to keep, from 0, one a line, in any order."""
    drop: Path | None = None
    """A text file of the numbers to leave out."""

    def mask(self, dataset: PackedDataset) -> NDArray[np.bool_]:
        """Return which documents are kept, bool, shape (documents,).

        Raises:
            ConfigError: there is no condition at all, or a list names a document that is not there.
            InputError: a list holds anything but numbers.
            MissingError: there is no such list.
        """
        if self == DocumentFilter():
            remedy = "give one or more: min_tokens, max_tokens, every, keep, drop"
            raise ConfigError("nothing says which documents to keep", where=dataset.path, remedy=remedy)
        lengths = dataset.document_lengths
        kept = np.ones(len(lengths), bool)
        if self.min_tokens is not None:
            kept &= lengths >= self.min_tokens
        if self.max_tokens is not None:
            kept &= lengths <= self.max_tokens
        if self.every is not None:
            kept &= np.arange(len(lengths)) % self.every == 0
        if self.keep is not None:
            kept &= _listed(self.keep, len(lengths))
        if self.drop is not None:
            kept &= ~_listed(self.drop, len(lengths))
        return kept


def _listed(path: Path, documents: int) -> NDArray[np.bool_]:
    """Return which numbers the file lists, bool, shape (documents,)."""
    try:
        numbers = np.array(read_regular(path).split(), np.int64)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        what, remedy = "no such list of documents", "write the list first, or name another file"
        raise MissingError(what, where=path, expected="a text file of numbers", remedy=remedy) from error
    except (ValueError, OverflowError) as error:
        what, expected = "this list holds something that is no number", "the numbers of documents, one a line"
        remedy = "take everything but whole numbers out of the list"
        raise InputError(what, where=path, found=error, expected=expected, remedy=remedy) from error
    outside = (numbers < 0) | (numbers >= documents)
    if outside.any():
        what, found = "this list names a document that is not there", int(numbers[outside][0])
        remedy = "give the list that belongs to this file"
        raise ConfigError(what, where=path, found=found, expected=f"0 to {documents - 1}", remedy=remedy)
    listed = np.zeros(documents, bool)
    listed[numbers] = True
    return listed


@dataclass(frozen=True, slots=True, eq=False)
class _Selection:
    """Documents in the order in which they are written."""

    sources: NDArray[np.int32]
    """Number of the dataset that holds each, shape (n,)."""
    starts: NDArray[np.int64]
    """Its first token there, shape (n,)."""
    lengths: NDArray[np.int64]
    """Its tokens, shape (n,)."""

    def take(self, order: NDArray[np.int64] | slice) -> _Selection:
        return _Selection(self.sources[order], self.starts[order], self.lengths[order])


def _all_of(dataset: PackedDataset, number: int) -> _Selection:
    """Return all documents of a dataset, which is number `number` of those to write from."""
    sources = np.broadcast_to(np.int32(number), len(dataset))
    return _Selection(sources, dataset.document_starts, dataset.document_lengths)


def _write(
    datasets: Sequence[PackedDataset], selection: _Selection, target: str | os.PathLike[str], listener: ProgressCallback
) -> PackedFacts:
    """Write the documents as a `.pbin` of layout D. Memory: a chunk of tokens, or the longest document."""
    token_bytes = datasets[0].token_bytes
    tokens = int(selection.lengths.sum())
    meter = Meter(listener, "write", Path(target).name, tokens * token_bytes)

    def blocks() -> Iterator[memoryview]:
        for first, last in _ranges(selection.lengths):
            for block in encode_tokens(_gather(datasets, selection.take(slice(first, last))), token_bytes, str(target)):
                yield block
                meter.advance(len(block))

    write_file(target, token_bytes, blocks(), back_to_back(in_chunks(selection.lengths * token_bytes)))
    return PackedFacts(len(selection.lengths), tokens, token_bytes)


def _ranges(lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield documents [first, last) of about a chunk of tokens, or a single longer one."""
    ends = np.cumsum(lengths)
    first = done = 0
    while first < len(lengths):
        last = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
        yield first, last
        first, done = last, int(ends[last - 1])


def _gather(datasets: Sequence[PackedDataset], block: _Selection) -> NDArray[np.integer]:
    """Return the tokens of documents behind one another."""
    # Measured: a slice per document costs 0.3 µs; gathering by token numbers 3 ns a token, more from 120 tokens on.
    places = zip(block.sources.tolist(), block.starts.tolist(), block.lengths.tolist(), strict=True)
    documents = [datasets[source].tokens[start : start + length] for source, start, length in places]
    return documents[0] if len(documents) == 1 else np.concatenate(documents)
