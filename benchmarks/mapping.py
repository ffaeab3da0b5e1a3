"""The mapping kernels against megatron-core's compiled helpers, in turn within one process; all
results must be equal.

python -m benchmarks.mapping [--documents N] [--samples N] [--only sample,permutations,blend] [--big
N]

--samples are those of the blends. Rows of a peer that isn't installed are left out. --big adds the
peak memory of a process that builds one large blend, such as of 100000000 samples.
"""

from __future__ import annotations

import argparse
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

BIG = """
import numpy as np, sys
from nanoset_core.sampling.blending import build_blending_indices
weights = np.random.RandomState(0).dirichlet(np.ones(16))
print(len(build_blending_indices(weights, int(sys.argv[1]))[0]))
"""
PEER = "C++ helper"


def main() -> None:
    most = 10_000_000
    arguments = options(
        __doc__, documents=most, samples=most, rounds=3, only="sample,permutations,blend", big=0
    )
    if arguments.big:
        big(arguments.big)  # first: what this process holds would count as its children's peak
    helpers = peer()
    parts = {"sample": sample_index, "permutations": permutations, "blend": blends}
    for name in filter(None, arguments.only.split(",")):
        parts[name](helpers, arguments)


def peer() -> ModuleType | None:
    """megatron-core's compiled helpers, if they are installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from megatron.core.datasets import helpers_cpp
        except ImportError as error:
            print(f"rows of the {PEER} are left out: {error}; pip install megatron-core torch")
            return None
    return helpers_cpp


def sample_index(helpers: ModuleType | None, arguments: argparse.Namespace) -> None:
    """Sample index of one epoch of documents of about 1,000 tokens, lengths spread widely."""
    sizes = np.maximum(np.random.default_rng(0).lognormal(6.4, 1.0, arguments.documents), 1).astype(
        np.int32
    )
    documents = build_document_index(
        (0, len(sizes)), 1, np.random.RandomState(1), separate_last_epoch=False
    )
    tokens = int(sizes.sum(dtype=np.int64))
    print_head(f"sample index, {len(sizes):,} documents, {tokens:,} tokens")
    for length in (2048, 4096):
        ours = partial(build_sample_index, sizes, documents, length, 1, tokens)
        calls: dict[str, Callable[[], Any]] = {
            "1 thread": ours,
            "2 threads": partial(ours, threads=2),
        }
        if helpers is not None:
            theirs = partial(
                helpers.build_sample_idx_int32, sizes, documents, length, 1, tokens, True, 1
            )
            calls = {PEER: theirs, **calls}
        print_rows(interleaved_calls(calls, arguments.rounds, equal), label=f"S = {length}, ")


def permutations(helpers: ModuleType | None, arguments: argparse.Namespace) -> None:
    """Document and shuffle index against the peer's own lines of numpy."""
    count = arguments.documents

    def peers_documents() -> np.ndarray:
        index = np.mgrid[0:1, 0:count][1]
        index[:] = np.arange(count, dtype=np.int32)
        index = index.reshape(-1).astype(np.int32)
        np.random.RandomState(1).shuffle(index)
        return index

    def peers_shuffle() -> np.ndarray:
        index = np.arange(count, dtype=np.uint32)
        np.random.RandomState(1).shuffle(index)
        return index

    def our_documents() -> np.ndarray:
        return build_document_index(
            (0, count), 1, np.random.RandomState(1), separate_last_epoch=False
        )

    def our_shuffle() -> np.ndarray:
        return build_shuffle_index(count, count, np.random.RandomState(1))

    print_head(f"permutations of {count:,}")
    pairs = {
        "document index": (peers_documents, our_documents),
        "shuffle index": (peers_shuffle, our_shuffle),
    }
    for name, (theirs, ours) in pairs.items():
        calls = {"the peer's numpy": theirs, "ours": ours}
        print_rows(interleaved_calls(calls, arguments.rounds, equal), label=f"{name}, ")


def shapes() -> Iterator[tuple[str, np.ndarray]]:
    """Weights of blends, ordinary ones first."""
    random = np.random.RandomState(0)
    for datasets in (4, 16, 64):
        yield f"{datasets} datasets", random.dirichlet(np.ones(datasets))
    for datasets in (4, 16, 64):
        yield f"{datasets} equal ones", np.ones(datasets)
    yield "3 and one of 1e-7", np.array([0.5, 0.3, 0.2, 1e-7])
    yield "one and one of 1e-7", np.array([1.0, 1e-7])
    yield "8, 1 to 1e-7 by decades", 10.0 ** -np.arange(8.0)
    for datasets in (8, 16, 64):
        yield f"{datasets} over 7 decades", 10.0 ** random.uniform(-7, 0, datasets)
    yield "300 over 7 decades", 10.0 ** random.uniform(-7, 0, 300)
    for datasets in (300, 1000):
        yield f"{datasets} datasets", random.dirichlet(np.full(datasets, 0.5))


def blends(helpers: ModuleType | None, arguments: argparse.Namespace) -> None:
    """Blends of every kind of weights."""
    for size in (arguments.samples, arguments.samples // 100):
        print_head(f"blend of {size:,}")
        for name, weights in shapes():
            normal = weights / weights.sum()
            calls = {"ours": partial(build_blending_indices, normal, size)}
            if helpers is not None:
                calls = {PEER: partial(peers_blend, helpers, normal, size), **calls}
            print_rows(interleaved_calls(calls, arguments.rounds, equal), label=f"{name}, ")


def peers_blend(
    helpers: ModuleType, weights: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """As megatron-core's `BlendedDataset` calls it."""
    dataset_index, numbers = np.zeros(size, np.int16), np.zeros(size, np.int64)
    helpers.build_blending_indices(dataset_index, numbers, weights, len(weights), size, False)
    return dataset_index, numbers


def big(samples: int) -> None:
    """Peak memory of a process that builds one large blend of 16 datasets."""
    _, _, empty = run(Command([sys.executable, "-c", BIG, "1"], prints="^1$"))
    cpu, _, peak = run(Command([sys.executable, "-c", BIG, str(samples)], prints=f"^{samples}$"))
    output = samples * 10 / 2**20
    print(
        f"\nblend of {samples:,}: {cpu:.1f} CPU s, peak {peak:,.0f} MB, of which {output:,.0f} MB "
        "are the result and"
    )
    print(f"{empty:,.0f} MB a process with numpy; {peak - output - empty:,.0f} MB of scratch")


def equal(one: Any, other: Any) -> bool:
    """Whether two results hold the same arrays."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(np.array_equal(a, b) for a, b in pairs)


if __name__ == "__main__":
    main()
