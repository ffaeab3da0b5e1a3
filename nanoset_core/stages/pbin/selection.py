"""Write new `.pbin` files of the documents of others: joined, shuffled, shuffled by chunks, or filtered."""

from __future__ import annotations

import hashlib
import operator
import os
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.layout import PackedFile, document_entries, open_packed, required, scan_index
from nanoset_core.formats.pbin.pickle_codec import Entries
from nanoset_core.stages.pbin.writing import (
    PackedFacts,
    back_to_back,
    encode_tokens,
    in_chunks,
    read_tokens,
    write_file,
)
from nanoset_core.storage.regular_files import open_regular, read_regular

_BLOCK_TOKENS = 1 << 21
_MAX_SEED = 2**32 - 1
_Selection = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
"""Documents in the order in which they are written: (number of the dataset, first token there, tokens) of each."""


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
    # Each file is opened for each pass anew: thousands of maps would use up the files that a process may open.
    files = [(replace(one, view=memoryview(b"")), scan_index(one)) for one in map(open_packed, paths)]
    token_bytes = _common_token_bytes([scanned for scanned, _ in files])
    meter = Meter(listener, "merge", Path(target).name, sum(scanned.data_bytes for scanned, _ in files))

    def blocks() -> Iterator[memoryview]:
        for scanned, _ in files:
            packed, where = open_packed(scanned.path), str(scanned.path)
            if packed.data_bytes != scanned.data_bytes:
                what, found = "the file changed while it was being merged", f"{packed.data_bytes} bytes of tokens"
                remedy = "run again once nothing writes to it any more"
                raise SourceChangedError(what, where=f"{where}, byte 0", found=found, remedy=remedy)
            # Read, since pages of a map would count as memory of this process.
            with open_regular(packed.path) as file:
                file.seek(packed.layout.header_bytes)
                for _, tokens in read_tokens(file, packed.path, packed.dtype, 0, len(packed.tokens)):
                    yield from encode_tokens(tokens, token_bytes, where)
                    meter.advance(tokens.nbytes)

    def entries() -> Iterator[Entries]:
        begin = 0
        for scanned, facts in files:
            for starts, lengths in document_entries(open_packed(scanned.path), facts):
                yield starts + begin, lengths
            begin += scanned.data_bytes

    data_bytes = write_file(target, token_bytes, blocks(), entries())
    return PackedFacts(sum(facts.documents for _, facts in files), data_bytes // token_bytes, token_bytes)


def _common_token_bytes(files: Sequence[PackedDataset | PackedFile]) -> int:
    """Return the bytes of a token in all files; raise where there is none, or they differ."""
    if not files:
        raise ConfigError("no file to take documents from", expected="one file or more", remedy="name a .pbin")
    first = files[0]
    for file in files:
        if file.token_bytes != first.token_bytes:
            what, remedy = "files with tokens of different sizes cannot be joined", "make them with the same tokenizer"
            found, expected = f"{file.token_bytes} bytes a token", f"{first.token_bytes}, as in {first.path}"
            raise FormatError(what, where=f"{file.path}, byte 8", found=found, expected=expected, remedy=remedy)
    return first.token_bytes


def shuffle_packed(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, seed: int, listener: ProgressCallback = silent
) -> PackedFacts:
    """Write the documents of a `.pbin` in random order; published whole.

    The same bytes as Modalities' `shuffle_tokenized_data` (`random.Random(seed).shuffle` of the index), which holds
    the whole file in memory. Here: 60 bytes a document, and a chunk of tokens.

    Raises:
        InputError: there are no tokens at all.
    """
    dataset = PackedDataset(source)
    order = array("q", range(len(dataset)))
    random.Random(operator.index(seed)).shuffle(order)
    return _write([dataset], _take(dataset, 0, np.frombuffer(order, np.int64)), target, listener)


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
        raise ConfigError("no such chunk", where="chunk", found=f"{chunk} of {chunks}", expected=expected)
    datasets = [PackedDataset(source) for source in sources]
    _common_token_bytes(datasets)
    parts = [_take(one, number, slice(*chunk_bounds(len(one), chunk, chunks))) for number, one in enumerate(datasets)]
    numbers, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.arange(len(lengths))
    np.random.default_rng(chunk_seed(seed, chunk)).shuffle(order)
    return _write(datasets, (numbers[order], starts[order], lengths[order]), target, listener)


def chunk_bounds(documents: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Return the documents [begin, end) of a chunk; the first `documents % chunks` chunks have one more."""
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
    """Write the documents that the mask `keep`, bool, shape (documents,), selects, in their order; published whole.

    The bytes are those of Modalities' `filter_dataset`.

    Raises:
        ConfigError: the mask has another length.
        InputError: no document with tokens is kept.
    """
    dataset = PackedDataset(source)
    chosen = np.asarray(keep)
    if chosen.shape != (len(dataset),) or chosen.dtype != bool:
        what, found = "the mask does not fit the documents", f"{chosen.dtype.name}{list(chosen.shape)}"
        raise ConfigError(what, where=source, found=found, expected=f"bool[{len(dataset)}]")
    return _write([dataset], _take(dataset, 0, np.flatnonzero(chosen)), target, listener)


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
        """Return which documents are kept, bool, shape (documents,); raises ConfigError without any condition."""
        if self == DocumentFilter():
            remedy = "give one or more: min_tokens, max_tokens, every, keep, drop"
            raise ConfigError("nothing says which documents to keep", where=dataset.path, remedy=remedy)
        lengths = dataset.document_lengths
        kept = lengths >= (self.min_tokens or 0)
        if self.max_tokens is not None:
            kept &= lengths <= self.max_tokens
        if self.every is not None:
            kept &= np.arange(len(lengths)) % self.every == 0
        for path, is_kept in ((self.keep, True), (self.drop, False)):
            if path is not None:
                kept &= _listed(path, len(lengths)) == is_kept
        return kept


def _listed(path: Path, documents: int) -> NDArray[np.bool_]:
    with required(path, "a text file of the numbers of documents", "write the list first, or name another file"):
        words = read_regular(path).split()
    try:
        numbers = np.array(words, np.int64)
    except (ValueError, OverflowError) as error:
        what, expected = "this list holds something that is no number", "the numbers of documents, one a line"
        raise InputError(what, where=path, found=error, expected=expected) from error
    outside = (numbers < 0) | (numbers >= documents)
    if outside.any():
        what, found = "this list names a document that is not there", int(numbers[outside][0])
        raise ConfigError(what, where=path, found=found, expected=f"0 to {documents - 1}")
    listed = np.zeros(documents, bool)
    listed[numbers] = True
    return listed


def _take(dataset: PackedDataset, number: int, documents: NDArray[np.int64] | slice) -> _Selection:
    lengths = dataset.document_lengths[documents]
    return np.full(len(lengths), number, np.int32), dataset.document_starts[documents], lengths


def _write(
    datasets: Sequence[PackedDataset], selection: _Selection, target: str | os.PathLike[str], listener: ProgressCallback
) -> PackedFacts:
    lengths, token_bytes = selection[2], datasets[0].token_bytes
    tokens = int(lengths.sum())
    meter = Meter(listener, "write", Path(target).name, tokens * token_bytes)

    def blocks() -> Iterator[memoryview]:
        ends, first = np.cumsum(lengths), 0
        while first < len(lengths):
            # About a chunk of tokens, or one longer document.
            done = int(ends[first] - lengths[first])
            last = max(int(np.searchsorted(ends, done + _BLOCK_TOKENS, side="right")), first + 1)
            # Measured: a slice a document costs 0.3 µs; gathering by token numbers 3 ns a token, more from 120 on.
            places = zip(*(column[first:last].tolist() for column in selection), strict=True)
            documents = [datasets[source].tokens[start : start + length] for source, start, length in places]
            gathered = documents[0] if len(documents) == 1 else np.concatenate(documents)
            for block in encode_tokens(gathered, token_bytes, str(target)):
                yield block
                meter.advance(len(block))
            first = last

    write_file(target, token_bytes, blocks(), back_to_back(in_chunks(lengths * token_bytes)))
    return PackedFacts(len(lengths), tokens, token_bytes)
