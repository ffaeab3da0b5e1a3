"""Write a dataset in the format of another reader: its tokens are linked or copied as they are, or
in its order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import LinkedFormat
from nanoset_core.storage.local import append_file
from nanoset_core.storage.regular_files import open_regular

# How an export got its tokens; a fact of its manifest. A copy shares its blocks if the file system
# can do that.
LINKED = "hard link"
COPIED = "copy"
JOINED = "copy within the bucket"
WRITTEN = "written in order"


class ExportCounts(NamedTuple):
    """Documents of an export. The names of the fields are facts."""

    documents: int
    left_out: int
    """Documents without tokens, which the readers of exports cannot have."""


def count_documents(dataset: MMapIndexedDataset, stream: Stream | None) -> ExportCounts:
    """Return how many documents have tokens, and how many have none."""
    documents = sum(len(lengths) for _, lengths in document_spans(dataset, stream))
    return ExportCounts(documents, len(dataset.document_indices) - 1 - documents)


def write_beside(
    export_format: LinkedFormat,
    folder: Path,
    name: str,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
    traits: DatasetTraits,
) -> ExportCounts:
    """Write the small files of a format to a folder. Memory is bounded by a chunk; of a view, 16
    bytes a sequence.
    """
    ends = _DocumentEnds(dataset, stream)
    export_format.write_beside(folder, name, traits, ends.chunks())
    return ExportCounts(ends.documents, len(dataset.document_indices) - 1 - ends.documents)


@dataclass(slots=True)
class _DocumentEnds:
    """Where documents end, counted while they are written."""

    dataset: MMapIndexedDataset
    stream: Stream | None
    documents: int = 0

    def chunks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the number of the token after the last one of each document with tokens."""
        for starts, lengths in document_spans(self.dataset, self.stream):
            self.documents += len(lengths)
            yield (starts + lengths).astype(np.uint64)


def put_tokens(source: Path, target: Path) -> str:
    """Make a file with the bytes of another one, by a hard link or, if that is refused, a copy;
    return which.
    """
    try:
        os.link(source.resolve(), target)
    except OSError:
        with open_regular(source) as file, target.open("xb") as copy:
            append_file(file, copy, os.fstat(file.fileno()).st_size)
            copy.flush()
            os.fsync(copy.fileno())
        return COPIED
    return LINKED


def token_blocks(
    dataset: MMapIndexedDataset, stream: Stream, name: str, listener: ProgressCallback = silent
) -> Iterator[bytes]:
    """Yield the tokens of a view in its order, in chunks."""
    meter = Meter(listener, "export", name, stream.tokens * dataset.dtype.itemsize)
    for _, tokens in stream_tokens(dataset, stream, 0, stream.tokens):
        block = tokens.tobytes()
        yield block
        meter.advance(len(block))
