"""Merging indexed datasets, against `cat` of the same .bin files: python -m benchmarks.merge
[--parts N].
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import Command, compare, options
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder

MERGE = """
import sys
from pathlib import Path
from nanoset_core.formats.indexed.builder import merge_indexed_datasets
parts = sorted(path.with_suffix("") for path in Path(sys.argv[1]).glob("*.bin"))
merge_indexed_datasets(parts, sys.argv[2])
"""


def main() -> None:
    arguments = options(__doc__, parts=64, megabytes=2000, rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        parts, merged, joined = (
            Path(folder, "parts"),
            Path(folder, "merged"),
            Path(folder, "joined.bin"),
        )
        parts.mkdir()
        write_parts(parts, arguments.parts, arguments.megabytes * 1_000_000 // arguments.parts)

        pair = [merged.with_suffix(".bin"), merged.with_suffix(".idx")]
        commands = {
            "cat + sync": Command(
                ["sh", "-c", f"cat {parts}/*.bin > {joined} && sync {joined}"], [joined]
            ),
            "merge": Command([sys.executable, "-c", MERGE, str(parts), str(merged)], pair),
        }
        compare(commands, arguments.rounds, arguments.megabytes)


def write_parts(folder: Path, parts: int, part_bytes: int) -> None:
    """Datasets of documents of about 1,000 tokens."""
    rng = np.random.default_rng(0)
    for number in range(parts):
        tokens = rng.integers(0, 50_000, part_bytes // 2, dtype=np.uint16)
        lengths = np.full(len(tokens) // 1000, 1000)
        lengths[-1] += len(tokens) - lengths.sum()
        with MMapIndexedDatasetBuilder(folder / f"part-{number:05d}", np.uint16) as builder:
            builder.add_documents(tokens, lengths, np.ones(len(lengths), np.int64))


if __name__ == "__main__":
    main()
