"""Reading random samples, against megatron-core's `GPTDataset` on the same files; all tokens must
be equal.

python -m benchmarks.read_samples [--megatokens N] [--sequence-length S]

--lengths are mean tokens of a document, --samples are read in each round. Rows of megatron-core
(with torch) are left out where it isn't installed. Files are in the page cache.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import head, interleaved_calls, options, show
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig

IDENTIFIERS = {"class": "Benchmark"}
BATCH = 64


class Tokenizer:
    """As much of a tokenizer as the peer's dataset asks for."""

    unique_identifiers = IDENTIFIERS
    vocab_size = 50_000
    eod = 0
    pad = 49_999


def main() -> None:
    lengths = [100, 500, 3000]
    arguments = options(
        __doc__, megatokens=200, lengths=lengths, sequence_length=2048, samples=4096, rounds=5
    )
    head(f"{arguments.samples:,} samples, S = {arguments.sequence_length}")
    for mean in arguments.lengths:
        with tempfile.TemporaryDirectory() as folder:
            config = write(
                Path(folder),
                arguments.megatokens * 1_000_000 // mean,
                mean,
                arguments.sequence_length,
            )
            compare(config, mean, arguments.samples, arguments.rounds)


def write(folder: Path, documents: int, mean: int, length: int) -> NanosetConfig:
    """A dataset of documents of widely spread lengths, and what to read from it."""
    random = np.random.default_rng(0)
    lengths = np.maximum(random.lognormal(np.log(mean) - 0.5, 1.0, documents), 1).astype(np.int64)
    with MMapIndexedDatasetBuilder(folder / "data", np.uint16) as builder:
        for part in np.array_split(lengths, max(int(lengths.sum()) // 50_000_000, 1)):
            tokens = random.integers(1, 49_999, int(part.sum()), dtype=np.uint16)
            builder.add_documents(tokens, part, np.ones(len(part), np.int64))
    return NanosetConfig(
        str(folder / "data"),
        sequence_length=length,
        split="1,0,0",
        path_to_cache=str(folder / "cache"),
        tokenizer_identifiers=IDENTIFIERS,
        eod_token=Tokenizer.eod,
        pad_token=Tokenizer.pad,
    )


def compare(config: NanosetConfig, mean: int, samples: int, rounds: int) -> None:
    """One block of the table."""
    nanoset, _, _ = NanosetBuilder(config).build()
    order = np.random.RandomState(1).randint(0, len(nanoset), samples)
    wanted, batches = order.tolist(), np.array_split(order, -(-samples // BATCH))
    theirs = megatron(config)
    # name → (what to call, with each of what)
    reads: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {}
    if theirs is not None:
        reads["megatron-core's query"] = (
            lambda k: theirs._query_document_sample_shuffle_indices(k)[0],
            wanted,
        )
        reads["GPTDataset[k]"] = (theirs.__getitem__, wanted)
    reads["nanoset[k]"] = (nanoset.__getitem__, wanted)
    reads["nanoset.tokens(k)"] = (nanoset.tokens, wanted)
    reads[f"nanoset.batch({BATCH})"] = (nanoset.batch, batches)
    expected = nanoset.batch(order)
    for name, (call, given) in reads.items():
        if not np.array_equal(np.concatenate([rows(call(each)) for each in given]), expected):
            raise RuntimeError(f"{name} gives other tokens")
    calls = {name: partial(read_all, *read) for name, read in reads.items()}
    costs = interleaved_calls(
        calls, rounds, lambda _, last: np.array_equal(rows(last)[-1], expected[-1])
    )
    show(costs, label=f"documents of {mean:,} tokens, ")


def rows(result: Any) -> np.ndarray:
    """Tokens [samples, sequence_length + 1] of what one call gave."""
    if isinstance(result, dict):
        result = np.append(result["tokens"], result["labels"][-1])
    return result if result.ndim == 2 else result[None]


def read_all(call: Callable[[Any], Any], given: list[Any]) -> Any:
    """Call with each; → the last result. The others are dropped, as a training loop does."""
    result = None
    for each in given:
        result = call(each)
    return result


def megatron(config: NanosetConfig) -> Any:
    """The peer's train split on our index files; None where it isn't installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from megatron.core.datasets.blended_megatron_dataset_builder import (
                BlendedMegatronDatasetBuilder,
            )
            from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
        except ImportError as error:
            print(f"megatron-core is left out: {error}", file=sys.stderr)
            return None
        logging.disable(logging.WARNING)
        theirs = GPTDatasetConfig(
            random_seed=config.random_seed,
            sequence_length=config.sequence_length,
            blend=([config.data_path], None),
            split=config.split,
            path_to_cache=config.path_to_cache,
            tokenizer=Tokenizer(),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        return BlendedMegatronDatasetBuilder(
            GPTDataset, [None, None, None], lambda: True, theirs
        ).build()[0]


if __name__ == "__main__":
    main()
