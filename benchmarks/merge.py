"""Compare merging indexed datasets with `cat` of the same .bin files.

python -m benchmarks.merge [--parts N] [--megabytes N]
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
DOCUMENT_TOKENS = 1000


def main() -> None:
    """Write datasets, and time both ways to join them."""
    arguments = options(__doc__, parts=64, megabytes=2000, rounds=5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = folder / "parts"
        parts.mkdir()
        write_parts(parts, arguments.parts, arguments.megabytes * 1_000_000 // arguments.parts)

        merged = folder / "merged"
        joined = folder / "joined.bin"
        concatenate = f"cat {parts}/*.bin > {joined} && sync {joined}"
        commands = {
            "cat + sync": Command(["sh", "-c", concatenate], [joined]),
            "merge": Command(
                [sys.executable, "-c", MERGE, str(parts), str(merged)],
                [merged.with_suffix(".bin"), merged.with_suffix(".idx")],
            ),
        }
        compare(commands, arguments.rounds, arguments.megabytes)


def write_parts(folder: Path, parts: int, part_bytes: int) -> None:
    """Write datasets of documents of about 1,000 random tokens.

    Args:
        folder: Receives the datasets.
        parts: Number of datasets.
        part_bytes: Size of the .bin of each.
    """
    rng = np.random.default_rng(0)
    for number in range(parts):
        tokens = rng.integers(0, 50_000, part_bytes // 2, dtype=np.uint16)
        lengths = np.full(len(tokens) // DOCUMENT_TOKENS, DOCUMENT_TOKENS)
        lengths[-1] += len(tokens) - lengths.sum()  # the last document takes the rest
        with MMapIndexedDatasetBuilder(folder / f"part-{number:05d}", np.uint16) as builder:
            builder.add_documents(tokens, lengths, np.ones(len(lengths), np.int64))


if __name__ == "__main__":
    main()
