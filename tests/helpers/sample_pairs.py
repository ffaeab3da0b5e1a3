"""Small indexed datasets: pairs of a .bin and an .idx."""

from __future__ import annotations

import json
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
    n_documents = len(lengths)
    tokens = start + np.arange(sum(lengths)) % 1000
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_documents(tokens, lengths, [1] * n_documents)
    return str(prefix)


def random_pair(
    folder: Path, seed: int, *, has_ends: bool | None = None
) -> tuple[Path, list[np.ndarray]]:
    """Write a random dataset of some documents, a few of which are empty or have one token.

    Args:
        folder: Where it is written.
        seed: Decides the documents. Tokens have four bytes if it is odd.
        has_ends: Whether documents end with END. By default they do, unless 5 divides the seed.

    Returns:
        The prefix of the dataset, and its documents in order. The last one always ends with END.
    """
    rng = np.random.default_rng(seed)
    if seed % 2 == 0:
        dtype: type[np.integer] = np.uint16
        vocabulary_size = 65_000
    else:
        dtype = np.int32
        vocabulary_size = 200_000
    if has_ends is None:
        has_ends = seed % 5 != 0
    last_token = END if has_ends else vocabulary_size - 1

    documents = []
    n_documents = rng.integers(1, 60)
    for length in rng.choice([0, 1, 2, 30, 300], n_documents).tolist():
        tokens = rng.integers(END + 1, vocabulary_size, length).astype(dtype)
        tokens[length - 1 : length] = last_token  # nothing, if the document is empty
        documents.append(tokens)
    documents.append(np.array([9, END], dtype))

    prefix = folder / f"d{seed}_text_document"
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for document in documents:
            builder.add_document(document)
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


def write_tokenized(prefix: Path, tokenizer: str, **options: object) -> None:
    """Write a dataset of two documents, and the receipt of `nanoset tokenize` next to it.

    Args:
        prefix: Prefix of the dataset.
        tokenizer: Fingerprint of its tokenizer.
        options: Further options in the receipt.
    """
    write_sequences(prefix, [[1, 2], [3]])
    files = {}
    for ending in (".bin", ".idx"):
        path = prefix.with_name(f"{prefix.name}{ending}")
        files[path.name] = {"bytes": path.stat().st_size}
    receipt = {"nanoset": 1, "options": {"tokenizer": tokenizer, **options}, "files": files}
    prefix.with_name(f"{prefix.name}.manifest.json").write_text(json.dumps(receipt))


def pair_bytes(prefix: Path) -> tuple[bytes, bytes]:
    """Return the bytes of the .bin and of the .idx of a pair."""
    tokens = prefix.with_name(f"{prefix.name}.bin")
    index = prefix.with_name(f"{prefix.name}.idx")
    return tokens.read_bytes(), index.read_bytes()
