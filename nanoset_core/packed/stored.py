"""A merged dataset that lives in a store → the `.pbin` of the same documents there; only its .idx is copied here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import bin_path
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.packed.layout import encode_header, token_size_bytes
from nanoset_core.packed.packing import check_whole, document_spans, fits, vocab_size_for
from nanoset_core.packed.pickle_codec import encode_index
from nanoset_core.packed.writing import CHUNK_TOKENS, PackedFacts, back_to_back, check_fit, check_not_empty
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.raw_objects import open_object


def pack_stored_dataset(
    access: FileAccess, prefix: Path, path: Path, *, vocab_size: int, listener: ProgressCallback = silent
) -> tuple[PackedFacts, FileFact]:
    """Write all documents of a dataset in a store as a `.pbin`, whose bytes are those of `pack_indexed_dataset`.

    Args:
        access: how both are reached.
        prefix: of the .bin and .idx.
        path: the file to write.
        vocab_size: what Modalities asks the tokenizer for; where a token has no room then, it gets more.
        listener: hears the progress.

    Returns:
        (what was written, size and sha256 of the file)

    Raises:
        MissingError, FormatError: the dataset is not there, or damaged.
        InputError: there are no tokens at all.
    """
    dataset = MMapIndexedDataset.below(access, str(prefix))
    check_whole(prefix, dataset, access.size(bin_path(prefix)) or 0)
    count = dataset.token_count
    check_not_empty(access.url(prefix), count)
    if not fits(dataset, token_size_bytes(vocab_size)):
        greatest = max(int(tokens.max()) for tokens in _tokens(access, dataset))
        vocab_size = vocab_size_for(vocab_size, greatest)
    token_bytes = token_size_bytes(vocab_size)
    documents = sum(len(lengths) for _, lengths in document_spans(dataset))
    meter = Meter(listener, "pack", path.name, count * token_bytes)

    def blocks() -> Iterator[bytes]:
        yield encode_header(count * token_bytes, token_bytes)
        for tokens in _tokens(access, dataset):
            check_fit(tokens, token_bytes, access.url(bin_path(prefix)))
            yield np.ascontiguousarray(tokens, f"<u{token_bytes}").tobytes()
            meter.advance(len(tokens) * token_bytes)
        yield from encode_index(back_to_back(lengths * token_bytes for _, lengths in document_spans(dataset)))

    sha, size = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for block in blocks():
            sha.update(block)
            size += len(block)
            yield block

    access.store.put_parts(access.name(path), hashed())
    left_out = len(dataset.document_indices) - 1 - documents
    return PackedFacts(documents, count, token_bytes, left_out), FileFact(size, sha.hexdigest())


def _tokens(access: FileAccess, dataset: MMapIndexedDataset) -> Iterator[NDArray[np.integer]]:
    """All tokens in order, read as they are needed."""
    path = bin_path(dataset.prefix)
    try:
        file = open_object(access.store, access.name(path))
    except FileNotFoundError as error:
        raise MissingError("a file of a dataset is gone", where=access.url(path), remedy="build again") from error
    with file:
        while data := file.read(CHUNK_TOKENS * dataset.dtype.itemsize):
            yield np.frombuffer(data, dataset.dtype)
