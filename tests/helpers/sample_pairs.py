"""Small indexed datasets: pairs of a .bin and an .idx."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder

END = 7
"""End token of the documents of a random dataset."""
GROWING = [20 + document % 7 for document in range(160)]
"""Lengths of 160 documents."""


def write_pair(prefix: str | PathLike[str], lengths: Sequence[int], start: int = 0) -> str:
    """Write documents of one sequence each, with ascending tokens, and return the prefix."""
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_documents(start + np.arange(sum(lengths)) % 1000, lengths, [1] * len(lengths))
    return str(prefix)


def random_pair(
    folder: Path, seed: int, *, has_ends: bool | None = None
) -> tuple[Path, list[np.ndarray]]:
    """Write a random dataset; return its prefix, and its documents in order.

    Some documents are empty or one token long. Some datasets have ids that need four bytes.

    Args:
        folder: Where it is written.
        seed: Decides everything.
        has_ends: Whether documents end with END; by default most datasets' do.
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


def write_sequences(
    prefix: str | PathLike[str], sequences: Iterable[Sequence[int]]
) -> MMapIndexedDataset:
    """Write a dataset of 16-bit tokens, in which each sequence is a document, and open it."""
    builder = MMapIndexedDatasetBuilder(prefix, np.uint16)
    for sequence in sequences:
        builder.add_document(np.array(sequence, np.uint16), [len(sequence)])
    builder.finalize()
    return MMapIndexedDataset(prefix)


def pair_bytes(prefix: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the .bin and of the .idx of a pair."""
    tokens = prefix.with_name(f"{prefix.name}.bin")
    index = prefix.with_name(f"{prefix.name}.idx")
    return tokens.read_bytes(), index.read_bytes()
