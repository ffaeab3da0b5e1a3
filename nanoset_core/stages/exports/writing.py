"""Write a dataset in the format of another reader: its tokens are linked or copied as they are, in their order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import Tokens
from nanoset_core.stages.exports.formats import LinkedFormat
from nanoset_core.storage.local import append_file
from nanoset_core.storage.regular_files import open_regular

LINKED, COPIED, JOINED, WRITTEN = "hard link", "copy", "copy within the bucket", "written in order"
"""How the tokens came to be there; a copy shares its blocks where the file system can."""


class Ends(NamedTuple):
    """Documents of an exit."""

    documents: int
    left_out: int
    """Documents without tokens, which no reader of it can have."""


def write_beside(
    exit_format: LinkedFormat,
    folder: Path,
    name: str,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
    tokens: Tokens,
) -> Ends:
    """Write the small files of a format to a folder; memory is bounded by a chunk, of a view 16 bytes a sequence."""
    documents = 0

    def ends() -> Iterator[NDArray[np.uint64]]:
        nonlocal documents
        for begins, lengths in document_spans(dataset, stream):
            documents += len(lengths)
            yield (begins + lengths).astype(np.uint64)

    exit_format.write_beside(folder, name, tokens, ends())
    return Ends(documents, len(dataset.document_indices) - 1 - documents)


def count_documents(dataset: MMapIndexedDataset, stream: Stream | None) -> Ends:
    """Return how many documents have tokens, and how many have none."""
    documents = sum(len(lengths) for _, lengths in document_spans(dataset, stream))
    return Ends(documents, len(dataset.document_indices) - 1 - documents)


def put_tokens(source: Path, target: Path) -> str:
    """Let a file be the tokens of another one: by a hard link, or where that is refused a copy; return which."""
    try:
        os.link(source.resolve(), target)
        return LINKED
    except OSError:
        with open_regular(source) as file, target.open("xb") as copy:
            append_file(file, copy, os.fstat(file.fileno()).st_size)
            copy.flush()
            os.fsync(copy.fileno())
        return COPIED


def token_blocks(
    dataset: MMapIndexedDataset, stream: Stream, name: str, listener: ProgressCallback = silent
) -> Iterator[bytes]:
    """Yield the tokens of a view in its order, in chunks."""
    meter = Meter(listener, "export", name, stream.tokens * dataset.dtype.itemsize)
    for _, tokens in stream_tokens(dataset, stream, 0, stream.tokens):
        block = tokens.tobytes()
        yield block
        meter.advance(len(block))
