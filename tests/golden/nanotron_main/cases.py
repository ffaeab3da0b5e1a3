"""The cases, their datasets, and the digests by which samples and index arrays are compared."""

import json
from pathlib import Path

import numpy as np
from golden.trainers.cases import array_parts, digest

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

EOD = 3
READ = 16
LINES = Path(__file__).parent / "cases.jsonl"


def golden():
    """The cases with what nanotron makes of them, in the order of their seeds."""
    return [json.loads(line) for line in LINES.read_bytes().splitlines()]


def draw(seed):
    """A random blend: one to eight datasets, with or without weights, of windows of a few tokens or
    many.
    """
    random = np.random.default_rng(seed)
    length = int(random.choice([1, 2, 7, 32, 255]))
    count, most = int(random.integers(1, 9)), int(random.choice([3, 40, 1500]))
    windows = random.integers(1, most + 1, count)
    # without weights nanotron leaves such a folder out; here it is refused
    if seed % 25 == 24 and seed % 4:
        windows[0] = 0
    tokens = np.maximum(windows * (length + 1) + random.integers(0, length + 1, count), 1).tolist()
    total = int(windows.sum())
    weights = random.choice([1.0, 0.1, 0.3, 7.0, float(random.random()) + 0.01], count).tolist()
    weights = None if seed % 4 == 0 else weights
    shares = np.array(weights or [1.0] * count)
    # from about here on a folder is too short
    in_order = int((windows / shares).min() * shares.sum())
    return {
        "seed": seed,
        "dtype": str(random.choice(["uint16", "int32"])),
        "tokens": tokens,
        "weights": weights,
        "sequence_length": length,
        "samples": int(random.choice([1, total // 3 + 1, total + 1, 3 * total + 2])),
        "samples_in_order": int(random.choice([1, in_order // 2 + 1, in_order + 1, total + 2])),
        "random_seed": int(random.integers(0, 2**32)),
    }


def write_datasets(case, folder):
    """Write the case's datasets; → their prefixes."""
    random, prefixes = np.random.default_rng(case["random_seed"]), []
    for number, tokens in enumerate(case["tokens"]):
        ends = np.sort(random.integers(0, tokens + 1, 9)).tolist()
        lengths = np.diff([0, *ends, tokens]).tolist()
        text = random.integers(0, 12, tokens)
        prefixes.append(str(folder / f"d{number}"))
        with MMapIndexedDatasetBuilder(prefixes[-1], np.dtype(case["dtype"])) as builder:
            for end, size in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
                builder.add_document(text[end - size : end])
    return prefixes


def facts(dataset, lengths):
    """What is compared: lengths, both index arrays, and samples at both ends and in between."""
    chosen = np.unique(np.linspace(0, len(dataset) - 1, READ).astype(int)).tolist()
    samples = [
        part
        for at in chosen
        for key, value in dataset[at].items()
        for part in [key.encode(), *array_parts(value)]
    ]
    return {
        "lengths": list(lengths),
        "samples": len(dataset),
        "dataset_index": digest(array_parts(dataset.dataset_index)),
        "dataset_sample_index": digest(array_parts(dataset.dataset_sample_index)),
        "read": digest(samples),
    }
