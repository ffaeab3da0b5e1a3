"""Which documents of a packed dataset to keep, by their length, number or a list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.packed.datasets import PackedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFilter:
    """Conditions that a document has to meet, all of them."""

    min_tokens: int | None = None
    """inclusive; the end-of-document token counts"""
    max_tokens: int | None = None
    """inclusive"""
    every: int | None = None
    """numbers that are multiples of it"""
    keep: Path | None = None
    """a text file of the numbers to keep, from 0, one a line, in any order"""
    drop: Path | None = None
    """a text file of the numbers to leave out"""

    def mask(self, dataset: PackedDataset) -> NDArray[np.bool_]:
        """bool[documents]: which are kept.

        ConfigError where there is no condition at all or a number that is no document's, InputError for a list that
        holds anything but numbers, MissingError where it is not there.
        """
        if self == DocumentFilter():
            raise ConfigError("nothing says which documents to keep", where=dataset.path, expected="a condition")
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
    """bool[documents]: which numbers the file lists."""
    try:
        numbers = np.array(path.read_bytes().split(), np.int64)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingError(
            "no such list of documents", where=path, expected="a text file of numbers", remedy="correct the path"
        ) from error
    except (ValueError, OverflowError) as error:
        raise InputError(
            "this list holds something that is no number",
            where=path,
            found=str(error),
            expected="the numbers of documents, from 0, one a line",
            remedy="correct the line",
        ) from error
    outside = (numbers < 0) | (numbers >= documents)
    if outside.any():
        raise ConfigError(
            "this list names a document that is not there",
            where=path,
            found=int(numbers[outside][0]),
            expected=f"0 to {documents - 1}",
            remedy="give the list that belongs to this file",
        )
    listed = np.zeros(documents, bool)
    listed[numbers] = True
    return listed
