"""Small indexed datasets."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

GROWING = [20 + document % 7 for document in range(160)]
"""Lengths of documents."""


def write_pair(prefix: str | PathLike[str], lengths: Sequence[int], start: int = 0) -> str:
    """Write documents of one sequence each, of ascending tokens from `start` on; return the prefix."""
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_documents(start + np.arange(sum(lengths)) % 1000, lengths, [1] * len(lengths))
    return str(prefix)
