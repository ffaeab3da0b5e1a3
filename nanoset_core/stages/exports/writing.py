"""Write the files of an export that shares the tokens of its dataset.

The tokens are linked or copied without a change. Only those of a view, which may be anywhere in the
.bin, are written again in the order of the view.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import LinkedFormat
from nanoset_core.storage.local import append_file
from nanoset_core.storage.regular_files import open_regular

# How an export got its tokens, which its manifest records. A copy shares its blocks with the
# original if the file system can do that.
LINKED = "hard link"
COPIED = "copy"
JOINED = "copy within the bucket"
WRITTEN = "written in order"


class ExportCounts(NamedTuple):
    """Numbers of documents, with the names that manifests use."""

    documents: int
    """Documents in the export."""
    left_out: int
    """Documents without tokens, which the formats of exports cannot express."""


def count_documents(dataset: MMapIndexedDataset, stream: Stream | None) -> ExportCounts:
    """Count the documents with tokens, and those without."""
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
    """Write the small files of an export, which say where documents end.

    Memory is bounded, except for a view: there it takes 16 bytes a sequence.

    Args:
        export_format: Format of the export.
        folder: Where to write them.
        name: Name of the export's files, without the ending.
        dataset: The dataset.
        stream: Order of its tokens, if they are not in order in the .bin.
        traits: Properties of the dataset.
    """
    ends = _DocumentEnds(dataset, stream)
    export_format.write_beside(folder, name, traits, ends.chunks())
    return ExportCounts(ends.documents, len(dataset.document_indices) - 1 - ends.documents)


@dataclass(slots=True)
class _DocumentEnds:
    """Yields where documents end, and counts the documents meanwhile."""

    dataset: MMapIndexedDataset
    stream: Stream | None
    documents: int = 0

    def chunks(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the number of the token after the last one of each document with tokens."""
        for starts, lengths in document_spans(self.dataset, self.stream):
            self.documents += len(lengths)
            yield (starts + lengths).astype(np.uint64)


def put_tokens(source: Path, target: Path) -> str:
    """Make a hard link to a file, or a copy if links are refused; return which it is."""
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
    dataset: MMapIndexedDataset, stream: Stream, name: str, progress: Progress = SILENT
) -> Iterator[bytes]:
    """Yield the bytes of a view's tokens in the order of the view, in chunks."""
    work = progress.work("export", name, stream.tokens * dataset.dtype.itemsize)
    for _, tokens in stream_tokens(dataset, stream, 0, stream.tokens):
        block = tokens.tobytes()
        yield block
        work.advance(len(block))
