"""Pack a merged indexed dataset as the `.pbin` of the same documents, on this machine or in a bucket."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, SourceChangedError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import bin_path
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.packed.layout import encode_header, token_size_bytes
from nanoset_core.packed.pickle_codec import encode_index
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.packed.writing import (
    CHUNK_TOKENS,
    PackedFacts,
    back_to_back,
    check_fit,
    check_not_empty,
    encode_tokens,
    write_file,
)
from nanoset_core.storage.raw_objects import open_object
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import Store

if TYPE_CHECKING:
    from nanoset_core.tokenization.files import TokenizerPath

_CHUNK_DOCUMENTS = 1 << 16


def pack_indexed_dataset(
    prefix: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int | None = None,
    end_token: int | None = None,
    listener: ProgressCallback = silent,
) -> PackedFacts:
    """Write all documents of `<prefix>.bin/.idx`, in order, as a `.pbin` of layout D; published whole.

    Tokens get the size that Modalities gives them, see `token_size_bytes`. A document of several sequences becomes
    one; one without tokens is left out and counted, since Modalities has no empty documents. Memory is bounded by a
    chunk, and a byte a document with `end_token`.

    Args:
        prefix: of the .bin and .idx.
        path: the file to write.
        vocab_size: what Modalities asks the tokenizer for; None keeps the size that a token has in the .bin, up to 4.
        end_token: goes after each document that does not end in it, as in Modalities' packer; None adds nothing.
        listener: takes the progress.

    Raises:
        FormatError: the dataset is damaged, or its .bin holds other bytes than its sequences in order.
        ConfigError: a token does not fit.
        InputError: there are no tokens at all.
    """
    dataset = MMapIndexedDataset(prefix)
    token_bytes = min(dataset.dtype.itemsize, 4) if vocab_size is None else token_size_bytes(vocab_size)
    packing = _Packing(dataset, token_bytes, end_token, listener, Path(path).name)
    data_bytes = write_file(path, token_bytes, packing.blocks(), packing.entries())
    return packing.facts(data_bytes)


def pack_into_store(
    dataset: MMapIndexedDataset, store: Store, name: str, *, vocab_size: int, listener: ProgressCallback = silent
) -> tuple[PackedFacts, FileFact]:
    """Write all documents of a dataset as an object of a store, with the bytes of `pack_indexed_dataset`.

    Args:
        dataset: the documents; of one in a bucket, the tokens are read as they are needed.
        store: to write to.
        name: of the object.
        vocab_size: what Modalities asks the tokenizer for; tokens that need more bytes get them.
        listener: takes the progress.

    Returns:
        (what was written, size and sha256 of the object)

    Raises:
        FormatError, InputError: as pack_indexed_dataset.
    """
    token_bytes = token_size_bytes(fitting_vocab_size(dataset, vocab_size))
    packing = _Packing(dataset, token_bytes, None, listener, name.rpartition("/")[2])
    data_bytes = dataset.token_count * token_bytes
    sha256, size = hashlib.sha256(), 0

    def blocks() -> Iterator[bytes | memoryview]:
        yield encode_header(data_bytes, token_bytes)
        yield from packing.blocks()
        yield from encode_index(packing.entries())

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in blocks():
            sha256.update(block)
            size += len(block)
            yield bytes(block)

    store.put_parts(name, hashed())
    return packing.facts(data_bytes), FileFact(size, sha256.hexdigest())


def packing_vocab_size(tokenizer_file: TokenizerPath) -> int:
    """Return the tokens of a tokenizer's model, without added ones: `vocab_size` of Hugging Face's fast tokenizers.

    Modalities asks for this number in `PackedDataGenerator`.

    Raises:
        MissingError, FormatError: as load_tokenizer.
    """
    from nanoset_core.tokenization.files import stat_signature  # not for readers: tokenizers need more than numpy

    return _vocab_size(tokenizer_file, stat_signature(tokenizer_file))


@lru_cache(maxsize=16)
def _vocab_size(file: TokenizerPath, _stamp: object) -> int:
    from nanoset_core.tokenization.bpe.reference import load_tokenizer

    return int(load_tokenizer(file).get_vocab_size(with_added_tokens=False))


def fitting_vocab_size(dataset: MMapIndexedDataset, vocab_size: int, end_token: int | None = None) -> int:
    """Return `vocab_size`, or the least one whose tokens have room for all tokens of a dataset and the end token.

    Modalities asks its tokenizer for the size of the vocabulary, which may leave added tokens out; its packer then
    loses the documents that hold one. The .bin is read only where a token of its type may need more bytes.
    """
    greatest = -1 if end_token is None else end_token
    if not np.can_cast(dataset.dtype, f"u{token_size_bytes(vocab_size)}"):
        with _open_tokens(dataset) as file:
            chunks = _chunks(dataset, file, 0, dataset.token_count)
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
    ) -> None:
        _check_contiguous(dataset)
        check_not_empty(dataset.prefix, dataset.token_count)
        self._dataset, self._token_bytes, self._end_token = dataset, token_bytes, end_token
        self._meter = Meter(listener, "pack", name, dataset.token_count * token_bytes)
        self._documents = 0
        self._lacking: list[NDArray[np.bool_]] = []
        """Whether each document lacks the end token, in chunks of `document_spans`; shape (documents,)."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield the encoded tokens."""
        for tokens, first in self._tokens():
            yield from encode_tokens(tokens, self._token_bytes, str(bin_path(self._dataset.prefix)), first=first)
            self._meter.advance(len(tokens) * self._token_bytes)

    def entries(self) -> Iterator[Entries]:
        """Yield the index, once all tokens were taken."""
        return back_to_back(lengths * self._token_bytes for lengths in self._lengths())

    def facts(self, data_bytes: int) -> PackedFacts:
        """Return the counts, once the index was taken."""
        left_out = len(self._dataset.document_indices) - 1 - self._documents
        return PackedFacts(self._documents, data_bytes // self._token_bytes, self._token_bytes, left_out)

    def _tokens(self) -> Iterator[tuple[NDArray[np.integer], int]]:
        """Yield chunks of tokens, and the number of the first as messages should give it."""
        dataset = self._dataset
        with _open_tokens(dataset) as file:
            if self._end_token is None:
                for first, tokens in _chunks(dataset, file, 0, dataset.token_count):
                    yield tokens, first
            else:
                for tokens in self._ended_documents(file, self._end_token):
                    yield tokens, 0

    def _ended_documents(self, file: BinaryIO, end_token: int) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of all documents, each with the end token; note which documents lacked it."""
        dataset, size = self._dataset, self._token_bytes
        check_fit(np.array([end_token]), size, "the end-of-document token")
        for begins, lengths in document_spans(dataset):
            ends = begins + lengths
            lacks: list[NDArray[np.bool_]] = []
            for first, tokens in _chunks(dataset, file, int(begins[0]), int(ends[-1])):
                # after which tokens of this chunk a document ends, shape (documents that end in it,)
                inside = ends[slice(*np.searchsorted(ends, [first, first + len(tokens)], side="right"))] - first
                lacks.append(tokens[inside - 1] != end_token)
                check_fit(tokens, size, str(bin_path(dataset.prefix)), first)
                yield np.insert(tokens.astype(f"<u{size}"), inside[lacks[-1]], end_token)
            self._lacking.append(np.concatenate(lacks))

    def _lengths(self) -> Iterator[NDArray[np.int64]]:
        for number, (_, lengths) in enumerate(document_spans(self._dataset)):
            self._documents += len(lengths)
            yield lengths + self._lacking[number] if self._lacking else lengths


def _open_tokens(dataset: MMapIndexedDataset) -> BinaryIO:
    """Open the .bin to be read in order: the pages of a memory map would count as memory of this process."""
    if dataset.is_here:
        return open_regular(bin_path(dataset.prefix))
    store, prefix = dataset.stored()
    return open_object(store, f"{prefix}.bin")


def _chunks(
    dataset: MMapIndexedDataset, file: BinaryIO, begin: int, end: int
) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield (number of the first, tokens) of tokens [begin, end) from a file that stands at `begin`."""
    itemsize = dataset.dtype.itemsize
    for first in range(begin, end, CHUNK_TOKENS):
        count = min(CHUNK_TOKENS, end - first)
        data = file.read(count * itemsize)
        if len(data) < count * itemsize:
            raise SourceChangedError(
                "the file became shorter while it was read",
                where=f"{bin_path(dataset.prefix)}, byte {first * itemsize + len(data)}",
                found=f"{count - len(data) // itemsize} tokens less",
                expected=f"{end} tokens",
                remedy="run again once nothing writes to it any more",
            )
        yield first, np.frombuffer(data, dataset.dtype)


def document_spans(dataset: MMapIndexedDataset) -> Iterator[Entries]:
    """Yield (first tokens, lengths) in tokens of all documents with tokens, of a .bin that is known to have no gaps."""
    starts, itemsize, bounds = dataset.sequence_pointers, dataset.dtype.itemsize, dataset.document_indices
    for first in range(0, len(bounds) - 1, _CHUNK_DOCUMENTS):
        sequences = bounds[first : first + _CHUNK_DOCUMENTS + 1]
        begins = np.full(len(sequences), dataset.token_count, np.int64)  # of documents after the last sequence
        inside = sequences < len(starts)
        begins[inside] = starts[sequences[inside]] // itemsize
        lengths = np.diff(begins)
        kept = lengths > 0
        if kept.any():
            yield begins[:-1][kept], lengths[kept]


def _check_contiguous(dataset: MMapIndexedDataset) -> None:
    """Raise FormatError where the .bin is not just the sequences, back to back (the .idx has none that overlap)."""
    size = dataset.bin_bytes
    expected = int(dataset.sequence_lengths.sum(dtype=np.int64)) * dataset.dtype.itemsize
    last = 0
    if len(dataset):
        last = int(dataset.sequence_pointers[-1]) + int(dataset.sequence_lengths[-1]) * dataset.dtype.itemsize
    if dataset.dtype.kind not in "iu" or not size == expected == last:
        raise FormatError(
            "the .bin is not just the tokens of its .idx, back to back",
            where=f"{bin_path(dataset.prefix)}, byte {min(size, expected)}",
            found=f"{size} bytes of {dataset.dtype.name}, last sequence ends at byte {last}",
            expected=f"{expected} bytes of whole numbers",
            remedy="write this dataset again",
        )
