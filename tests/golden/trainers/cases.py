"""The cases, their datasets, and the digests by which they are compared."""

import hashlib
import json
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_bytes().splitlines()
]
FIRST_SAMPLES = 24


def write_datasets(case, folder):
    """Write the case's datasets as data/d0, data/d1, … in `folder`."""
    (folder / "data").mkdir()
    for number, dataset in enumerate(case["datasets"]):
        random = np.random.RandomState(dataset["seed"])
        lengths, step = dataset["lengths"], dataset["sequences_per_document"]
        with MMapIndexedDatasetBuilder(
            folder / "data" / f"d{number}", np.dtype(dataset["dtype"])
        ) as builder:
            for begin in range(0, len(lengths), step):
                document = lengths[begin : begin + step]
                builder.add_document(random.randint(0, 20, sum(document)), document)


def digest(parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def array_parts(array):
    """Type, shape and bytes of an array."""
    array = np.asarray(array)
    return [
        array.dtype.str.encode(),
        repr(array.shape).encode(),
        np.ascontiguousarray(array).tobytes(),
    ]


def samples_digest(dataset, preset, *, blended):
    """Digest of the dictionaries of the first samples, the last one (-1) and a trainer's padding
    (None).
    """
    count, indices = len(dataset), list(range(min(len(dataset), FIRST_SAMPLES)))
    indices += [-1] if count and not (blended and preset == "nemo") else []
    indices += [None] if count and not blended and preset.startswith("megatron") else []
    parts = []
    for index in indices:
        for key, value in dataset[index].items():
            parts += [key.encode(), *array_parts(value)]
    return digest(parts)
