"""Time the kernels that build index mappings, against megatron-core's compiled helpers.

    python -m benchmarks.mapping [--documents N] [--samples N] [--only sample permutations blend]
        [--big N]

Both run in turn in this process, and their results must be equal. `--samples` is the number of
samples of a blend. Rows of megatron-core are left out if it is not installed. `--big` also prints
the peak memory of a process that builds one large blend, such as one of 100000000 samples.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import Command, interleaved_calls, options, print_head, print_rows, run
from nanoset_core.sampling.blending import build_blending_indices
from nanoset_core.sampling.document_index import build_document_index
from nanoset_core.sampling.sample_index import build_sample_index
from nanoset_core.sampling.shuffle_index import build_shuffle_index

BUILD_BLEND = """
import numpy as np, sys
from nanoset_core.sampling.blending import build_blending_indices
weights = np.random.RandomState(0).dirichlet(np.ones(16))
print(len(build_blending_indices(weights, int(sys.argv[1]))[0]))
"""
"""A program that builds a blend of 16 datasets, and prints its number of samples."""
PEER = "C++ helper"
"""How rows call megatron-core's compiled helpers."""


def main() -> None:
    """Time the kernels that the options name."""
    arguments = options(
        __doc__,
        documents=10_000_000,
        samples=10_000_000,
        rounds=3,
        only=["sample", "permutations", "blend"],
        big=0,
    )
    # First, since the memory of this process would count towards the peak of its children.
    if arguments.big:
        print_peak_of_blend(arguments.big)

    helpers = megatron_helpers()
    if "sample" in arguments.only:
        compare_sample_indices(helpers, arguments.documents, arguments.rounds)
    if "permutations" in arguments.only:
        compare_permutations(arguments.documents, arguments.rounds)
    if "blend" in arguments.only:
        for n_samples in (arguments.samples, arguments.samples // 100):
            compare_blends(helpers, n_samples, arguments.rounds)


def megatron_helpers() -> ModuleType | None:
    """Return megatron-core's compiled helpers, or None if they are not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from megatron.core.datasets import helpers_cpp
        except ImportError as error:
            print(f"rows of the {PEER} are left out: {error}; pip install megatron-core torch")
            return None
    return helpers_cpp


def compare_sample_indices(helpers: ModuleType | None, n_documents: int, rounds: int) -> None:
    """Time the sample index of one epoch.

    Args:
        helpers: megatron-core's compiled helpers, or None.
        n_documents: Number of documents. They have about 1,000 tokens; their lengths vary widely.
        rounds: Number of rounds.
    """
    random_lengths = np.random.default_rng(0).lognormal(6.4, 1.0, n_documents)
    lengths = np.maximum(random_lengths, 1).astype(np.int32)  # (n_documents,) in tokens
    n_tokens = int(lengths.sum(dtype=np.int64))
    document_index = our_document_index(n_documents)

    print_head(f"sample index, {n_documents:,} documents, {n_tokens:,} tokens")
    for sequence_length in (2048, 4096):
        calls: dict[str, Callable[[], Any]] = {}
        if helpers is not None:
            calls[PEER] = partial(
                helpers.build_sample_idx_int32,
                lengths,
                document_index,
                sequence_length,
                1,  # epoch
                n_tokens,
                True,  # drop the last, incomplete sample
                1,  # extra token, for the labels
            )
        for n_threads in (1, 2):
            calls[f"{n_threads} thread(s)"] = partial(
                build_sample_index,
                lengths,
                document_index,
                sequence_length,
                1,
                n_tokens,
                threads=n_threads,
            )
        costs = interleaved_calls(calls, rounds, are_equal)
        print_rows(costs, label=f"S = {sequence_length}, ")


def compare_permutations(count: int, rounds: int) -> None:
    """Time the document index and the shuffle index, against megatron-core's lines of numpy.

    Args:
        count: Number of documents, and of samples.
        rounds: Number of rounds.
    """
    print_head(f"permutations of {count:,}")
    document_calls = {
        "megatron-core's numpy": partial(megatron_document_index, count),
        "ours": partial(our_document_index, count),
    }
    print_rows(interleaved_calls(document_calls, rounds, are_equal), label="document index, ")
    shuffle_calls = {
        "megatron-core's numpy": partial(megatron_shuffle_index, count),
        "ours": partial(our_shuffle_index, count),
    }
    print_rows(interleaved_calls(shuffle_calls, rounds, are_equal), label="shuffle index, ")


def our_document_index(n_documents: int) -> np.ndarray:
    """Return the document index of one epoch, shape (n_documents,)."""
    random = np.random.RandomState(1)
    return build_document_index((0, n_documents), 1, random, separate_last_epoch=False)


def megatron_document_index(n_documents: int) -> np.ndarray:
    """Return the same document index, made by the steps of megatron-core's `gpt_dataset`."""
    index = np.mgrid[0:1, 0:n_documents][1]  # (1, n_documents)
    index[:] = np.arange(n_documents, dtype=np.int32)
    index = index.reshape(-1).astype(np.int32)
    np.random.RandomState(1).shuffle(index)
    return index


def our_shuffle_index(n_samples: int) -> np.ndarray:
    """Return the shuffle index of one epoch, shape (n_samples,)."""
    return build_shuffle_index(n_samples, n_samples, np.random.RandomState(1))


def megatron_shuffle_index(n_samples: int) -> np.ndarray:
    """Return the same shuffle index, made by the steps of megatron-core's `gpt_dataset`."""
    index = np.arange(n_samples, dtype=np.uint32)
    np.random.RandomState(1).shuffle(index)
    return index


def compare_blends(helpers: ModuleType | None, n_samples: int, rounds: int) -> None:
    """Time blends of many kinds of weights.

    Args:
        helpers: megatron-core's compiled helpers, or None.
        n_samples: Number of samples of each blend.
        rounds: Number of rounds.
    """
    print_head(f"blend of {n_samples:,}")
    for name, weights in weights_by_name():
        normalized = weights / weights.sum()
        calls: dict[str, Callable[[], Any]] = {}
        if helpers is not None:
            calls[PEER] = partial(megatron_blend, helpers, normalized, n_samples)
        calls["ours"] = partial(build_blending_indices, normalized, n_samples)
        print_rows(interleaved_calls(calls, rounds, are_equal), label=f"{name}, ")


def weights_by_name() -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, weights) of blends: common ones first, then those that are hard to compute.

    A blend is hard if one weight is much smaller than the others, or if many are equal.
    """
    random = np.random.RandomState(0)
    for n_datasets in (4, 16, 64):
        yield f"{n_datasets} datasets", random.dirichlet(np.ones(n_datasets))
    for n_datasets in (4, 16, 64):
        yield f"{n_datasets} equal ones", np.ones(n_datasets)
    yield "3 and one of 1e-7", np.array([0.5, 0.3, 0.2, 1e-7])
    yield "one and one of 1e-7", np.array([1.0, 1e-7])
    yield "8, 1 to 1e-7 by decades", 10.0 ** -np.arange(8.0)
    for n_datasets in (8, 16, 64, 300):
        yield f"{n_datasets} over 7 decades", 10.0 ** random.uniform(-7, 0, n_datasets)
    for n_datasets in (300, 1000):
        yield f"{n_datasets} datasets", random.dirichlet(np.full(n_datasets, 0.5))


def megatron_blend(
    helpers: ModuleType, weights: np.ndarray, n_samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Build a blend as megatron-core's `BlendedDataset` does.

    Args:
        helpers: megatron-core's compiled helpers.
        weights: Share of each dataset, shape (n_datasets,).
        n_samples: Number of samples.

    Returns:
        (dataset of each sample, int16; its number in the dataset, int64), both (n_samples,).
    """
    dataset_index = np.zeros(n_samples, np.int16)
    dataset_sample_index = np.zeros(n_samples, np.int64)
    is_verbose = False
    helpers.build_blending_indices(
        dataset_index, dataset_sample_index, weights, len(weights), n_samples, is_verbose
    )
    return dataset_index, dataset_sample_index


def print_peak_of_blend(n_samples: int) -> None:
    """Print the peak memory of a process that builds one large blend of 16 datasets."""
    program = [sys.executable, "-c", BUILD_BLEND]
    smallest = run(Command([*program, "1"], prints="^1$"))
    largest = run(Command([*program, str(n_samples)], prints=f"^{n_samples}$"))

    # The result has 2 bytes for the dataset of a sample, and 8 for its number.
    result_mib = n_samples * 10 / 2**20
    scratch_mib = largest.peak - result_mib - smallest.peak
    print(
        f"\nblend of {n_samples:,}: {largest.cpu:.1f} CPU s, peak {largest.peak:,.0f} MiB: "
        f"{result_mib:,.0f} for the result, {smallest.peak:,.0f} for a process with numpy, "
        f"{scratch_mib:,.0f} for computing"
    )


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two results are equal: arrays, or tuples of arrays."""
    if not isinstance(first, tuple):
        return np.array_equal(first, second)
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(array, other) for array, other in pairs)


if __name__ == "__main__":
    main()
