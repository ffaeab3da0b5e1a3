"""Compare reading random samples with megatron-core's `GPTDataset` on the same files.

python -m benchmarks.read_samples [--megatokens N] [--sequence-length S]

`--lengths` are mean tokens of a document, `--samples` are read in each round. All tokens must be
equal. Rows of megatron-core, which needs torch, are left out if it is not installed. Files are in
the page cache.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import interleaved_calls, options, print_head, print_rows
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig

IDENTIFIERS = {"class": "Benchmark"}
"""Identifiers of the tokenizer, which are part of the names of index files."""
BATCH = 64
"""Samples of a batch."""
CHUNK_TOKENS = 50_000_000
"""About how many tokens of the dataset are written together."""


class Tokenizer:
    """The attributes of a tokenizer that megatron-core's dataset needs."""

    unique_identifiers = IDENTIFIERS
    vocab_size = 50_000
    eod = 0
    pad = 49_999


@dataclass(frozen=True)
class Reader:
    """A way to read samples."""

    read: Callable[[Any], Any]
    """Reads one sample or batch."""
    requests: Sequence[Any]
    """What it is called with, one after another: numbers of samples, or batches of them."""

    def read_all(self) -> Any:
        """Read all samples; return the last result. The others are dropped, as in training."""
        result = None
        for request in self.requests:
            result = self.read(request)
        return result


def main() -> None:
    """Compare readers on datasets with documents of several lengths."""
    arguments = options(
        __doc__,
        megatokens=200,
        lengths=[100, 500, 3000],
        sequence_length=2048,
        samples=4096,
        rounds=5,
    )
    print_head(f"{arguments.samples:,} samples, S = {arguments.sequence_length}")
    for mean_length in arguments.lengths:
        with tempfile.TemporaryDirectory() as folder:
            config = write_dataset(
                Path(folder),
                n_documents=arguments.megatokens * 1_000_000 // mean_length,
                mean_length=mean_length,
                sequence_length=arguments.sequence_length,
            )
            compare(config, mean_length, arguments.samples, arguments.rounds)


def write_dataset(
    folder: Path, *, n_documents: int, mean_length: int, sequence_length: int
) -> NanosetConfig:
    """Write a dataset of random tokens, in documents of very different lengths.

    Args:
        folder: Receives the dataset, and later its index files.
        n_documents: Number of documents.
        mean_length: Mean tokens of a document.
        sequence_length: Tokens of a sample.

    Returns:
        The settings with which samples are read from the dataset.
    """
    rng = np.random.default_rng(0)
    random_lengths = rng.lognormal(np.log(mean_length) - 0.5, 1.0, n_documents)
    lengths = np.maximum(random_lengths, 1).astype(np.int64)
    n_chunks = max(int(lengths.sum()) // CHUNK_TOKENS, 1)
    with MMapIndexedDatasetBuilder(folder / "data", np.uint16) as builder:
        for chunk_lengths in np.array_split(lengths, n_chunks):
            tokens = rng.integers(1, 49_999, int(chunk_lengths.sum()), dtype=np.uint16)
            builder.add_documents(tokens, chunk_lengths, np.ones(len(chunk_lengths), np.int64))
    return NanosetConfig(
        str(folder / "data"),
        sequence_length=sequence_length,
        split="1,0,0",
        path_to_cache=str(folder / "cache"),
        tokenizer_identifiers=IDENTIFIERS,
        eod_token=Tokenizer.eod,
        pad_token=Tokenizer.pad,
    )


def compare(config: NanosetConfig, mean_length: int, n_samples: int, rounds: int) -> None:
    """Print a row for each way to read the same random samples of a dataset.

    Args:
        config: The settings with which samples are read.
        mean_length: Mean tokens of a document, for the rows.
        n_samples: Number of samples that are read in each round.
        rounds: Number of rounds.

    Raises:
        RuntimeError: A reader gives other tokens than the first one.
    """
    nanoset, _, _ = NanosetBuilder(config).build()
    order = np.random.RandomState(1).randint(0, len(nanoset), n_samples)
    numbers = order.tolist()
    n_batches = -(-n_samples // BATCH)  # rounded up

    readers: dict[str, Reader] = {}
    peer = megatron_dataset(config)
    if peer is not None:
        # Its method that reads tokens, and all that its `__getitem__` adds.
        query = peer._query_document_sample_shuffle_indices
        readers["megatron-core's query"] = Reader(lambda number: query(number)[0], numbers)
        readers["GPTDataset[k]"] = Reader(peer.__getitem__, numbers)
    readers["nanoset[k]"] = Reader(nanoset.__getitem__, numbers)
    readers["nanoset.tokens(k)"] = Reader(nanoset.tokens, numbers)
    readers[f"nanoset.batch({BATCH})"] = Reader(nanoset.batch, np.array_split(order, n_batches))

    # Compare all tokens once, and while reading is timed only those of the last sample.
    expected = nanoset.batch(order)  # (n_samples, sequence_length + 1)
    for name, reader in readers.items():
        results = [tokens_of(reader.read(request)) for request in reader.requests]
        if not np.array_equal(np.concatenate(results), expected):
            raise RuntimeError(f"{name} gives other tokens")
    costs = interleaved_calls(
        {name: reader.read_all for name, reader in readers.items()},
        rounds,
        partial(ends_with, last_sample=expected[-1]),
    )
    print_rows(costs, label=f"documents of {mean_length:,} tokens, ")


def ends_with(_first_result: Any, result: Any, *, last_sample: np.ndarray) -> bool:
    """Return whether the last sample of a result has these tokens."""
    return np.array_equal(tokens_of(result)[-1], last_sample)


def tokens_of(result: Any) -> np.ndarray:
    """Return the tokens of what a reader returned, shape (n_samples, sequence_length + 1)."""
    if isinstance(result, dict):
        # A sample for training: the labels are the tokens, shifted by one.
        result = np.append(result["tokens"], result["labels"][-1])
    return result if result.ndim == 2 else result[None]


def megatron_dataset(config: NanosetConfig) -> Any:
    """Return megatron-core's train split on our index files, or None if it is not installed."""
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
        peer_config = GPTDatasetConfig(
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
        sizes = [None, None, None]  # one epoch of each split
        builder = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, peer_config)
        return builder.build()[0]


if __name__ == "__main__":
    main()
