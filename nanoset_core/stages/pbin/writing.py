"""Write a `.pbin` of layout D, whole or not at all: of lists of tokens, or of an indexed dataset."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, FormatError, InputError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.ids import first_foreign, foreign_id
from nanoset_core.formats.indexed.layout import bin_path
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS, Hashed, document_spans, stream_of, stream_tokens
from nanoset_core.formats.pbin.layout import HEADER_BYTES, TOKEN_BYTES, encode_header, token_size_bytes
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.reading import open_object
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import Store

if TYPE_CHECKING:
    from nanoset_core.tokenizers.files import TokenizerPath


@dataclass(frozen=True, slots=True)
class PackedFacts:
    """What was written."""

    documents: int
    tokens: int
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    left_out: int = 0
    """Documents of an indexed dataset without tokens, which its .pbin does not have."""


def write_packed(path: str | os.PathLike[str], documents: Iterable[ArrayLike], *, token_bytes: int) -> PackedFacts:
    """Write documents, each integers of shape (tokens,), one after the other; published whole.

    The bytes are those of Modalities' `TokenizedFileWriter`. Nothing is added: let each document end with an
    end-of-document token where one is wanted. Memory: 8 bytes a document, and the longest document.

    Raises:
        ConfigError: a token does not fit, or tokens have other than 1, 2 or 4 bytes.
        InputError: there are no tokens at all.
    """
    if token_bytes not in TOKEN_BYTES:
        what, remedy = "tokens cannot have this size", "take it from token_size_bytes(vocab_size)"
        raise ConfigError(what, where="token_bytes", found=token_bytes, expected="1, 2 or 4", remedy=remedy)
    lengths = array("q")

    def blocks() -> Iterator[memoryview]:
        for number, document in enumerate(documents):
            where = f"{os.fspath(path)}, document {number}"
            tokens = _flat(document, where)
            lengths.append(len(tokens) * token_bytes)
            yield from encode_tokens(tokens, token_bytes, where)

    data_bytes = write_file(path, token_bytes, blocks(), back_to_back(in_chunks(lengths)))
    return PackedFacts(len(lengths), data_bytes // token_bytes, token_bytes)


def pack_indexed_dataset(
    prefix: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int | None = None,
    end_token: int | None = None,
    greatest_id: int | None = None,
    listener: ProgressCallback = silent,
) -> PackedFacts:
    """Write all documents of `<prefix>.bin/.idx`, in order, as a `.pbin` of layout D; published whole.

    A document of several sequences becomes one; one without tokens is left out and counted, since Modalities has no
    empty documents. Memory is bounded by a chunk, and a byte a document with `end_token`.

    Args:
        prefix: of the .bin and .idx.
        path: the file to write.
        vocab_size: what Modalities asks the tokenizer for; None keeps the size that a token has in the .bin, up to 4.
        end_token: goes after each document that does not end in it, as in Modalities' packer; None adds nothing.
        greatest_id: of the vocabulary; None: ids need only fit a token.
        listener: takes the progress.

    Raises:
        InputError: a token is not in the vocabulary.
    """
    dataset = MMapIndexedDataset(prefix)
    token_bytes = min(dataset.dtype.itemsize, 4) if vocab_size is None else token_size_bytes(vocab_size)
    packing = _Packing(dataset, token_bytes, end_token, listener, Path(path).name, greatest_id)
    data_bytes = write_file(path, token_bytes, packing.blocks(), packing.entries())
    return packing.facts(data_bytes)


def pack_into_store(
    dataset: MMapIndexedDataset,
    store: Store,
    name: str,
    *,
    vocab_size: int,
    greatest_id: int | None = None,
    listener: ProgressCallback = silent,
) -> tuple[PackedFacts, FileFact]:
    """Write all documents of a dataset as an object of a store, with the bytes of `pack_indexed_dataset`.

    Tokens that need more bytes than `vocab_size` asks for get them. Returns what was written, and its size and sha256.

    Raises:
        InputError: a token is not in the vocabulary, by its `greatest_id`.
    """
    token_bytes = token_size_bytes(fitting_vocab_size(dataset, vocab_size))
    packing = _Packing(dataset, token_bytes, None, listener, name.rpartition("/")[2], greatest_id)
    data_bytes = packing.tokens * token_bytes
    header, index = encode_header(data_bytes, token_bytes), encode_index(packing.entries())
    parts = Hashed(map(bytes, chain([header], packing.blocks(), index)))
    store.put_parts(name, parts)
    return packing.facts(data_bytes), FileFact(parts.size, parts.sha256)


def packing_vocab_size(tokenizer_file: TokenizerPath) -> int:
    """Return the tokens of a tokenizer's model, without added ones: what Modalities' `PackedDataGenerator` asks for."""
    from nanoset_core.tokenizers.files import stat_signature  # not for readers: they need numpy alone

    return _vocab_size(tokenizer_file, stat_signature(tokenizer_file))


@lru_cache(maxsize=8)
def _vocab_size(tokenizer_file: TokenizerPath, _stamp: object) -> int:
    from nanoset_core.tokenizers.engines.reference import load_tokenizer

    return int(load_tokenizer(tokenizer_file).get_vocab_size(with_added_tokens=False))


def fitting_vocab_size(dataset: MMapIndexedDataset, vocab_size: int, end_token: int | None = None) -> int:
    """Return `vocab_size`, or the least one whose tokens have room for all tokens of a dataset and the end token.

    Modalities asks its tokenizer for the size of the vocabulary, which may leave added tokens out; its packer then
    loses the documents that hold one. The .bin is read only where a token of its type may need more bytes.
    """
    greatest = -1 if end_token is None else end_token
    if not np.can_cast(dataset.dtype, f"u{token_size_bytes(vocab_size)}"):
        with _open_tokens(dataset) as file:  # of a view, too, all of the .bin
            chunks = read_tokens(file, bin_path(dataset.prefix), dataset.dtype, 0, dataset.token_count)
            greatest = max(greatest, *(int(tokens.max()) for _, tokens in chunks), -1)
    return max(vocab_size, greatest + 1) if greatest >> 8 * token_size_bytes(vocab_size) > 0 else vocab_size


class _Packing:
    """The parts of the `.pbin` of a dataset: first the tokens, then the index."""

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        token_bytes: int,
        end_token: int | None,
        listener: ProgressCallback,
        name: str,
        greatest_id: int | None = None,
    ) -> None:
        path, tokens = bin_path(dataset.prefix), int(dataset.sequence_lengths.sum(dtype=np.int64))
        if dataset.dtype.kind not in "iu":
            what, found, remedy = "the .bin holds no tokens", dataset.dtype.name, "write this dataset again"
            raise FormatError(what, where=path, found=found, expected="whole numbers", remedy=remedy)
        check_not_empty(dataset.prefix, tokens)
        self.stream = stream_of(dataset)
        """Of a view, whose sequences lie anywhere in the .bin."""
        self.tokens = tokens
        """How many there are."""
        self._dataset, self._path, self._token_bytes, self._end_token = dataset, path, token_bytes, end_token
        self._meter = Meter(listener, "pack", name, tokens * token_bytes)
        self._greatest_id = greatest_id
        self._documents = 0
        self._lacking: list[NDArray[np.bool_]] = []  # whether each document lacks the end token, in the chunks of spans

    def blocks(self) -> Iterator[memoryview]:
        with _open_tokens(self._dataset) as file:
            for first, tokens in self._chunks(file):
                yield from encode_tokens(tokens, self._token_bytes, str(self._path), first=first)
                self._meter.advance(len(tokens) * self._token_bytes)

    def entries(self) -> Iterator[Entries]:
        """Yield the index, once all tokens were taken."""
        return back_to_back(self._lengths())

    def facts(self, data_bytes: int) -> PackedFacts:
        """Return the counts, once the index was taken."""
        left_out = len(self._dataset.document_indices) - 1 - self._documents
        return PackedFacts(self._documents, data_bytes // self._token_bytes, self._token_bytes, left_out)

    def _chunks(self, file: BinaryIO) -> Iterator[tuple[int, NDArray[np.integer]]]:
        size, end_token = self._token_bytes, self._end_token
        if end_token is None:
            yield from self._read(file, 0, self.tokens)
            return
        check_fit(np.array([end_token]), size, "the end-of-document token")
        for begins, lengths in document_spans(self._dataset, self.stream):
            ends = begins + lengths
            lacks: list[NDArray[np.bool_]] = []
            for first, tokens in self._read(file, int(begins[0]), int(ends[-1])):
                # after which tokens of this chunk a document ends, shape (documents that end in it,)
                inside = ends[slice(*np.searchsorted(ends, [first, first + len(tokens)], side="right"))] - first
                lacks.append(tokens[inside - 1] != end_token)
                check_fit(tokens, size, str(self._path), first)
                yield first, np.insert(tokens.astype(f"<u{size}"), inside[lacks[-1]], end_token)
            self._lacking.append(np.concatenate(lacks))

    def _read(self, file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield (number of the first, tokens) of tokens [begin, end), in chunks; InputError for one that is foreign."""
        if self.stream is None:
            chunks = read_tokens(file, self._path, self._dataset.dtype, begin, end)
        else:
            chunks = stream_tokens(self._dataset, self.stream, begin, end)
        for first, tokens in chunks:
            if self._greatest_id is not None:
                position = first_foreign(tokens, self._greatest_id)
                if position is not None:
                    found = int(tokens[position])
                    raise foreign_id(self._dataset, self.stream, first + position, found, self._greatest_id)
            yield first, tokens

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        for number, (_, lengths) in enumerate(document_spans(self._dataset, self.stream)):
            self._documents += len(lengths)
            yield (lengths + self._lacking[number] if self._lacking else lengths) * self._token_bytes


def _open_tokens(dataset: MMapIndexedDataset) -> BinaryIO:
    # read in order: the pages of a memory map would count as memory of this process
    if dataset.is_here:
        return open_regular(bin_path(dataset.prefix))
    store, prefix = dataset.stored()
    return open_object(store, f"{prefix}.bin")


def read_tokens(
    file: BinaryIO, path: Path, dtype: np.dtype, begin: int, end: int
) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield (number of the first, tokens) of tokens [begin, end) in chunks, from a file that stands at `begin`."""
    for first in range(begin, end, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, end - first)
        data = file.read(count * dtype.itemsize)
        if len(data) < count * dtype.itemsize:
            what, found = (
                "the file became shorter while it was read",
                f"{count - len(data) // dtype.itemsize} tokens less",
            )
            where, remedy = f"{path}, byte {file.tell()}", "run again once nothing writes to it any more"
            raise SourceChangedError(what, where=where, found=found, expected=f"{end} tokens", remedy=remedy)
        yield first, np.frombuffer(data, dtype)


def write_file(
    path: str | os.PathLike[str], token_bytes: int, blocks: Iterable[memoryview], entries: Iterable[Entries]
) -> int:
    """Write a `.pbin` of encoded tokens and the index of their documents; published whole. Return the tokens' bytes."""
    with atomic_file(Path(path)) as file:
        file.write(encode_header(0, token_bytes))
        file.writelines(blocks)
        data_bytes = file.tell() - HEADER_BYTES
        check_not_empty(path, data_bytes)
        file.writelines(encode_index(entries))
        file.seek(0)
        file.write(encode_header(data_bytes, token_bytes))
    return data_bytes


def check_not_empty(path: object, tokens: int) -> None:
    """Raise InputError where there are no tokens to write."""
    if tokens == 0:
        what, remedy = "no tokens to write", "check what the file is to be made from"
        raise InputError(what, where=path, found="no document, or only documents without tokens", remedy=remedy)


def encode_tokens(tokens: NDArray[np.integer], token_bytes: int, where: str, *, first: int = 0) -> Iterator[memoryview]:
    """Yield tokens, shape (tokens,), as unsigned little-endian numbers of `token_bytes`, in chunks.

    Raises:
        ConfigError: a token does not fit; `where` and `first`, the number of tokens[0], go into the message.
    """
    target = np.dtype(f"<u{token_bytes}")
    for begin in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens[begin : begin + CHUNK_TOKENS]
        check_fit(chunk, token_bytes, where, first + begin)
        yield np.ascontiguousarray(chunk, target).data.cast("B")


def check_fit(tokens: NDArray[np.integer], token_bytes: int, where: str, first: int = 0) -> None:
    """Raise ConfigError where a token is negative, or needs more bytes; `first` is the number of tokens[0]."""
    if np.can_cast(tokens.dtype, f"u{token_bytes}") or not len(tokens):
        return
    limit = 1 << (8 * token_bytes)
    if int(tokens.min()) < 0 or int(tokens.max()) >= limit:
        bad = int(np.argmax((tokens < 0) | (tokens.astype(np.uint64) >= limit)))
        where, expected = f"{where}, token {first + bad}", f"0 to {limit - 1} ({token_bytes} bytes a token)"
        what, remedy = (
            "a token does not fit the token size",
            "give the vocabulary size of the tokenizer, added tokens too",
        )
        raise ConfigError(what, where=where, found=int(tokens[bad]), expected=expected, remedy=remedy)


def in_chunks(lengths: array[int] | NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield some thousand values at a time of what an array holds when the first is asked for."""
    values, step = np.frombuffer(lengths, np.int64), 1 << 16
    yield from (values[first : first + step] for first in range(0, len(values), step))


def back_to_back(chunks: Iterable[NDArray[np.int64]]) -> Iterator[Entries]:
    """Yield the index entries of documents that lie one after the other, from chunks of their lengths in bytes."""
    begin = 0
    for lengths in chunks:
        ends = begin + np.cumsum(lengths)
        yield ends - lengths, lengths
        begin = int(ends[-1])


def _flat(document: ArrayLike, where: str) -> NDArray[np.integer]:
    tokens = np.asarray(document)
    if tokens.size == 0:
        return np.empty(0, np.uint8)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found, remedy = f"{tokens.dtype.name}{list(tokens.shape)}", "give each document as one list of token ids"
        raise ConfigError("a document is not a flat array of whole numbers", where=where, found=found, remedy=remedy)
    return tokens
