"""Random datasets to be exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

END = 7


def random_pair(
    folder: Path, seed: int, *, has_ends: bool | None = None
) -> tuple[Path, list[np.ndarray]]:
    """Write a dataset → its prefix, and its documents in order.

    Some are empty or one token long; some datasets have ids that need four bytes, or documents
    without an end token unless `has_ends` says that all have one.
    """
    rng = np.random.default_rng(seed)
    dtype, most = ((np.uint16, 65_000), (np.int32, 200_000))[seed % 2]
    has_ends, documents = seed % 5 != 0 if has_ends is None else has_ends, []
    prefix = folder / f"d{seed}_text_document"
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for length in rng.choice([0, 1, 2, 30, 300], rng.integers(1, 60)):
            tokens = rng.integers(END + 1, most, length).astype(dtype)
            tokens[length - 1 : length] = END if has_ends else most - 1
            builder.add_document(tokens)
            documents.append(tokens)
        builder.add_document(np.array([9, END], dtype))
        documents.append(np.array([9, END], dtype))
    return prefix, documents
