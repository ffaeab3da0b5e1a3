"""A merged indexed dataset → the `.pbin` of the same documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.indexed.copying import append_file
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import bin_path
from nanoset_core.packed.index_encoding import Entries
from nanoset_core.packed.pbin import encode_header, token_size_bytes
from nanoset_core.packed.writing import (
    CHUNK_TOKENS,
    PackedFacts,
    check_fit,
    check_not_empty,
    write_index,
    write_tokens,
)
from nanoset_core.storage import atomic_file

_CHUNK_DOCUMENTS = 1 << 16


def pack_indexed_dataset(
    prefix: str | os.PathLike[str], path: str | os.PathLike[str], *, vocab_size: int
) -> PackedFacts:
    """Write all documents of `<prefix>.bin/.idx`, in order, as a `.pbin` of layout D; published whole.

    Tokens get the size that Modalities gives them, see `token_size_bytes`; where it is that of the .bin, its bytes
    are copied as they are. A document of several sequences becomes one; one without tokens is left out and counted,
    since Modalities has no empty documents. Memory is bounded by a chunk.

    FormatError for a damaged dataset, or one whose .bin holds other bytes than its sequences in order; ConfigError for
    a token that does not fit; InputError where there are no tokens at all.
    """
    token_bytes = token_size_bytes(vocab_size)
    dataset = MMapIndexedDataset(prefix)
    _check_whole(prefix, dataset)
    check_not_empty(prefix, len(dataset.tokens))
    documents = sum(int(np.count_nonzero(lengths)) for _, lengths in _documents(dataset, token_bytes))
    left_out = len(dataset.document_indices) - 1 - documents
    with atomic_file(Path(path)) as file:
        file.write(encode_header(len(dataset.tokens) * token_bytes, token_bytes))
        source = bin_path(prefix)
        if dataset.dtype.itemsize == token_bytes:
            for begin in range(0, len(dataset.tokens), CHUNK_TOKENS):
                check_fit(dataset.tokens[begin : begin + CHUNK_TOKENS], token_bytes, str(source), begin)
            append_file(source, file, source.stat().st_size)
        else:
            write_tokens(file, dataset.tokens, token_bytes, str(source))
        write_index(file, _with_tokens(_documents(dataset, token_bytes)))
    return PackedFacts(documents, len(dataset.tokens), token_bytes, left_out)


def _documents(dataset: MMapIndexedDataset, token_bytes: int) -> Iterator[Entries]:
    """(offsets, lengths) of all documents in bytes of the .pbin; the .bin is known to be without gaps."""
    starts, itemsize = dataset.sequence_pointers, dataset.dtype.itemsize
    end = len(dataset.tokens) * itemsize
    bounds = dataset.document_indices
    for first in range(0, len(bounds) - 1, _CHUNK_DOCUMENTS):
        sequences = bounds[first : first + _CHUNK_DOCUMENTS + 1]
        begins = np.full(len(sequences), end, np.int64)  # of documents that begin after the last sequence
        inside = sequences < len(starts)
        begins[inside] = starts[sequences[inside]]
        begins = begins // itemsize * token_bytes
        yield begins[:-1], np.diff(begins)


def _with_tokens(entries: Iterator[Entries]) -> Iterator[Entries]:
    for offsets, lengths in entries:
        kept: NDArray[np.bool_] = lengths > 0
        yield offsets[kept], lengths[kept]


def _check_whole(prefix: str | os.PathLike[str], dataset: MMapIndexedDataset) -> None:
    """FormatError unless the .bin is just the sequences, back to back (the .idx was checked: none overlap)."""
    size = bin_path(prefix).stat().st_size
    expected = int(dataset.sequence_lengths.sum(dtype=np.int64)) * dataset.dtype.itemsize
    last = 0
    if len(dataset):
        last = int(dataset.sequence_pointers[-1]) + int(dataset.sequence_lengths[-1]) * dataset.dtype.itemsize
    if dataset.dtype.kind not in "iu" or not size == expected == last:
        raise FormatError(
            "the .bin is not just the tokens of its .idx, back to back",
            where=f"{bin_path(prefix)}, byte {min(size, expected)}",
            found=f"{size} bytes of {dataset.dtype.name}, last sequence ends at byte {last}",
            expected=f"{expected} bytes of whole numbers",
            remedy="write this dataset again",
        )
