"""Notice that a dataset was written again since a nanoset that reads it was pickled.

A pickle of a nanoset contains paths, or index arrays, but not the tokens. A worker process that
unpickles it may start minutes later. If another program has replaced the dataset in the meantime,
the old index arrays would cut samples out of the new tokens at the wrong places.

So pickles also contain a fingerprint of the dataset. Comparing it takes the same short time for
datasets of every size. Therefore, it does not cover the whole `.idx`, as the digest in the plan
does, of which a worker would have to read gigabytes.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from nanoset_core.errors import StaleError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset

_N_LENGTHS = 64
"""Number of sequences whose lengths are compared. They show that documents have another order."""


class DatasetFingerprint(NamedTuple):
    """What is compared to notice that a dataset was written again."""

    n_sequences: int
    """Number of sequences."""
    bin_bytes: int
    """Size of the .bin."""
    lengths_md5: str
    """Digest of the lengths of 64 sequences, from the first to the last one."""


def fingerprint_of(dataset: MMapIndexedDataset) -> DatasetFingerprint:
    """Return the fingerprint of a dataset, which is stored in pickles of nanosets that read it."""
    n_sequences = len(dataset)
    n_lengths = min(n_sequences, _N_LENGTHS)
    sequences = np.linspace(0, n_sequences - 1, n_lengths).astype(np.int64)  # (n_lengths,)
    lengths = dataset.sequence_lengths[sequences]  # (n_lengths,)
    lengths_md5 = hashlib.md5(lengths.tobytes(), usedforsecurity=False).hexdigest()
    return DatasetFingerprint(n_sequences, dataset.bin_bytes, lengths_md5)


def check_unchanged(dataset: MMapIndexedDataset, pickled: DatasetFingerprint) -> None:
    """Check that a dataset is still the one that a pickled nanoset was built from.

    Args:
        dataset: The dataset, which was opened again.
        pickled: Its fingerprint at the time when the nanoset was pickled.

    Raises:
        StaleError: It was written again since.
    """
    current = fingerprint_of(dataset)
    if current == pickled:
        return
    found = f"{current.n_sequences} sequences, {current.bin_bytes} bytes of tokens"
    if current[:2] == pickled[:2]:
        found += ", in sequences of other lengths"
    raise StaleError(
        "the dataset was written again since the nanoset was pickled",
        where=dataset.prefix,
        found=found,
        expected=f"{pickled.n_sequences} sequences, {pickled.bin_bytes} bytes of tokens",
        remedy="start the program again, so that the nanoset is built from the present dataset",
    )
