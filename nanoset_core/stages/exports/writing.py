"""Write the files of an export that shares the tokens of its dataset.

The tokens are linked or copied without a change. Only those of a view, which may be anywhere in the
.bin, are written again in the order of the view.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import LinkedFormat
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.writing.appending import append_file

# How an export got its tokens, which its manifest records. A copy shares its blocks with the
# original if the file system can do that.
LINKED = "hard link"
COPIED = "copy"
COPIED_IN_BUCKET = "copy within the bucket"
WRITTEN = "written in order"


class TokensFile(Protocol):
    """The file of an export that contains its tokens, at the place where the export is stored."""

    def link_or_copy(self) -> str:
        """Make this file a link to the dataset's .bin, or a copy of it.

        Returns:
            How it was made: `LINKED`, `COPIED` or `COPIED_IN_BUCKET`.
        """
        ...

    def write(self, blocks: Iterator[bytes]) -> None:
        """Write this file.

        Args:
            blocks: Its bytes, in order.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedExport:
    """An export of a dataset whose file of tokens can be a link to the dataset's .bin.

    The stage `exports` and the command `nanoset export` both make exports by this class. They store
    them in different places, so each of them passes its own `TokensFile`.
    """

    format: LinkedFormat
    name: str
    """Name of the export's files, without the ending."""
    dataset: MMapIndexedDataset
    stream: Stream | None
    """Order of the dataset's tokens; None if they are in order in the .bin."""
    traits: DatasetTraits
    """Properties of the dataset that the format depends on."""
    progress: Progress = SILENT
    """Shows how many of the tokens have been written again."""

    def write(self, folder: Path, tokens_file: TokensFile) -> dict[str, Any]:
        """Write all files of an export: the file of tokens, and small files next to it.

        The tokens are those of a dataset, which has them in one large file, the .bin. If possible,
        the export's file becomes a link to it, or a copy. This is not possible for a selection of
        the documents: their tokens are in several places of the .bin, so they are written again.

        Args:
            folder: Folder on this machine for the small files, which say where documents end.
            tokens_file: The file of tokens to be made, which may be in a bucket.

        Returns:
            Facts about the export, such as `{"documents": 998, "made_by": "hard link", …}`.
        """
        n_documents = self.write_small_files(folder)
        if self.stream is None:  # the dataset is the whole .bin
            made_by = tokens_file.link_or_copy()
        else:
            tokens_file.write(self._token_blocks(self.stream))
            made_by = WRITTEN
        return export_facts(self.dataset, n_documents, self.traits, made_by)

    def write_small_files(self, folder: Path) -> int:
        """Write the small files of an export, which say where each document ends.

        For documents of 812, 95 and 0 tokens, they name the ends 812 and 907. A document without
        tokens is left out.

        Args:
            folder: Where to write them.

        Returns:
            The number of documents that have tokens, such as 2.
        """
        ends = _document_ends(self.dataset, self.stream)
        return self.format.write_small_files(folder, self.name, self.traits, ends)

    def _token_blocks(self, stream: Stream) -> Iterator[bytes]:
        """Yield the bytes of the tokens of some documents, in blocks to be written to a file.

        The documents are a selection of those in a larger file, the .bin, in some order:

            tokens of the .bin    0 to 500, 500 to 900, 900 to 7,000, 7,000 to 7,600
            the selection         500 to 900, then 7,000 to 7,600

        Args:
            stream: Where the tokens of these documents are in the .bin, in order.
        """
        n_bytes = stream.tokens * self.dataset.dtype.itemsize
        work = self.progress.work("export", self.name, n_bytes)
        for _, tokens in stream_tokens(self.dataset, stream, 0, stream.tokens):
            block = tokens.tobytes()
            yield block
            work.advance(len(block))


def _document_ends(
    dataset: MMapIndexedDataset, stream: Stream | None
) -> Iterator[NDArray[np.uint64]]:
    """Yield the number of the token after the last one of each document with tokens.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        stream: Order of its tokens; None if they are in order in the .bin.

    Yields:
        uint64, shape (n_documents,), for some documents at a time.
    """
    for starts, lengths in document_spans(dataset, stream):
        yield (starts + lengths).astype(np.uint64)


def count_documents(dataset: MMapIndexedDataset, stream: Stream | None) -> int:
    """Return how many documents of a dataset have tokens.

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        stream: Order of its tokens; None if they are in order in the .bin.
    """
    return sum(len(lengths) for _, lengths in document_spans(dataset, stream))


def export_facts(
    dataset: MMapIndexedDataset, n_documents: int, traits: DatasetTraits, made_by: str
) -> dict[str, Any]:
    """Return what is recorded of every export: its counts, and how it was made.

        {"documents": 998, "tokens": 250000, "left_out": 2, "dtype": "uint16", "made_by": "hard
        link"}

    Args:
        dataset: The dataset that was exported.
        n_documents: How many of its documents have tokens. The others are left out, because the
            formats of exports have no documents without tokens.
        traits: Properties of the dataset.
        made_by: How the export got its tokens, such as `LINKED`.
    """
    return {
        "documents": n_documents,
        "tokens": traits.tokens,
        "left_out": len(dataset.document_indices) - 1 - n_documents,
        "dtype": traits.dtype.name,
        "made_by": made_by,
    }


def put_tokens(source: Path, target: Path) -> str:
    """Make a second name for a large file without copying it: a hard link, if that is possible.

    An export may have the very bytes of tokens that the dataset has: web.ds can be a link to
    web.bin. File systems refuse links in some cases, such as from one disk to another. Then the
    file is copied.

    Args:
        source: The file.
        target: Path of the link or copy, which must not exist.

    Returns:
        Which of the two it is: `LINKED` or `COPIED`.
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
