"""New `.pbin` files from documents of others: in another order, or only some of them."""

from __future__ import annotations

import hashlib
import operator
import os
import random
from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import Listener, silent
from nanoset_core.packed.datasets import PackedDataset
from nanoset_core.packed.selection import join_selections, select, write_selection
from nanoset_core.packed.writing import PackedFacts

_MAX_SEED = 2**32 - 1


def shuffle_packed(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, seed: int, listener: Listener = silent
) -> PackedFacts:
    """Write the documents of a `.pbin` in random order; published whole.

    The same bytes as Modalities' `shuffle_tokenized_data` (`random.Random(seed).shuffle` of the index), which holds
    the whole file in memory. Here: 60 bytes a document, and a chunk of tokens. Raises as `PackedDataset`.
    """
    dataset = PackedDataset(source)
    order = array("q", range(len(dataset)))
    random.Random(operator.index(seed)).shuffle(order)
    return write_selection([dataset], select(dataset, 0).take(np.frombuffer(order, np.int64)), target, listener)


def shuffle_packed_chunk(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    chunk: int,
    chunks: int,
    seed: int,
    listener: Listener = silent,
) -> PackedFacts:
    """Write chunk `chunk` of `chunks` of every source, its documents in random order; published whole.

    The same bytes as Modalities' `create_shuffled_dataset_chunk`: each source gives its own part number `chunk`, the
    parts are joined and shuffled by `numpy.random.default_rng`. So the order is random within a chunk only.
    Every source stays open meanwhile.
    ConfigError for a chunk that cannot be, InputError for one without documents, FormatError for token sizes that
    differ.
    """
    if not 0 <= chunk < chunks:
        raise ConfigError("no such chunk", where="chunk", found=f"{chunk} of {chunks}", expected=f"0 to {chunks - 1}")
    datasets = [PackedDataset(source) for source in sources]
    parts = [
        select(dataset, number).take(slice(*chunk_bounds(len(dataset), chunk, chunks)))
        for number, dataset in enumerate(datasets)
    ]
    selection = join_selections(parts)
    order = np.arange(len(selection.lengths))
    np.random.default_rng(chunk_seed(seed, chunk)).shuffle(order)
    return write_selection(datasets, selection.take(order), target, listener)


def filter_packed(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    keep: NDArray[np.bool_] | Callable[[int, NDArray], bool],
    *,
    listener: Listener = silent,
) -> PackedFacts:
    """Write the documents that `keep` names, in their order; published whole.

    keep: bool[documents], or a function of a document's number and tokens. The bytes are those of Modalities'
    `filter_dataset`. ConfigError for a mask of another length, InputError where no document is kept.
    """
    dataset = PackedDataset(source)
    if callable(keep):
        chosen = np.fromiter((bool(keep(i, dataset[i])) for i in range(len(dataset))), bool, len(dataset))
    else:
        chosen = np.asarray(keep)
    if chosen.shape != (len(dataset),) or chosen.dtype != bool:
        raise ConfigError(
            "the mask does not fit the documents",
            where=source,
            found=f"{chosen.dtype.name}{list(chosen.shape)}",
            expected=f"bool[{len(dataset)}]",
        )
    return write_selection([dataset], select(dataset, 0).take(np.flatnonzero(chosen)), target, listener)


def chunk_bounds(documents: int, chunk: int, chunks: int) -> tuple[int, int]:
    """Documents [begin, end) of chunk `chunk`; the first `documents % chunks` chunks have one more."""
    size, larger = divmod(documents, chunks)
    return tuple(size * number + min(number, larger) for number in (chunk, chunk + 1))  # type: ignore[return-value]


def chunk_seed(seed: int, chunk: int) -> int:
    """Modalities' `calculate_hashed_seed` of the two numbers' digits."""
    digests = [hashlib.sha256(str(value).encode()).hexdigest() for value in (operator.index(seed), chunk)]
    return sum(int(digest, 16) for digest in digests) % _MAX_SEED
