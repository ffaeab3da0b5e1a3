"""Writing and reading Modalities' .pbin: python -m benchmarks.pack [--megabytes N] [--documents N].

1. A pair packed, and .pbin files merged and shuffled, against `cat` of the same tokens: whole
   processes, in turn.
2. Opening a file and reading documents and samples, against Modalities' own classes if they are installed;
   --documents are those of the file whose index is opened.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import (
    Command,
    compare,
    interleaved_calls,
    options,
    print_head,
    print_rows,
    run_in_new_process,
)
from benchmarks.merge import write_parts
from nanoset_core.formats.indexed.builder import merge_indexed_datasets
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin
from nanoset_core.stages.pbin.selection import merge_pbin

PARTS = 16
HAS_PEER = importlib.util.find_spec("modalities") is not None
IMPORT = "import sys; from nanoset_core.formats import pbin as packed; "
PACK = IMPORT + "packed.write_dataset_as_pbin(*sys.argv[1:], vocab_size=50257)"
JOIN = IMPORT + "packed.merge_pbin(sys.argv[2:], sys.argv[1])"
SHUFFLE = IMPORT + "packed.shuffle_pbin(*sys.argv[1:], seed=1)"


def main() -> None:
    arguments = options(__doc__, megabytes=2000, documents=10_000_000, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        writing(Path(name), arguments.megabytes, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        reading(Path(name), arguments.documents, arguments.rounds)


def writing(folder: Path, megabytes: int, rounds: int) -> None:
    """Whole processes, ratios to `cat`."""
    run_in_new_process(prepare, folder, megabytes)
    out, packs = folder / "out", sorted(map(str, folder.glob("parts/*.pbin")))

    script = [sys.executable, "-c"]
    packed = Path(f"{out}.pbin")
    commands = {
        "cat + sync": Command(
            ["sh", "-c", f"cat {folder}/parts/*.bin > {out}.bin && sync {out}.bin"],
            [Path(f"{out}.bin")],
        ),
        "pack": Command([*script, PACK, str(folder / "pair"), str(packed)], [packed]),
        "pack merge": Command([*script, JOIN, str(packed), *packs], [packed]),
        "pack shuffle": Command(
            [*script, SHUFFLE, str(folder / "whole.pbin"), str(packed)], [packed]
        ),
    }
    compare(commands, rounds, megabytes, f"{megabytes:,} MB of tokens in documents of 1,000")


def prepare(folder: Path, megabytes: int) -> None:
    """The same tokens as pairs and .pbin files, in parts and whole."""
    parts = folder / "parts"
    parts.mkdir()
    write_parts(parts, PARTS, megabytes * 1_000_000 // PARTS)
    prefixes = sorted(path.with_suffix("") for path in parts.glob("*.bin"))
    for prefix in prefixes:
        write_dataset_as_pbin(prefix, prefix.with_suffix(".pbin"))
    merge_pbin([prefix.with_suffix(".pbin") for prefix in prefixes], folder / "whole.pbin")
    merge_indexed_datasets(prefixes, folder / "pair")


def reading(folder: Path, documents: int, rounds: int) -> None:
    """Calls in one process, ratios to ours."""
    small, big = folder / "small.pbin", folder / "big.pbin"
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50257, 50_000_000, dtype=np.uint16)
    write_pbin(small, np.split(tokens, np.arange(1000, len(tokens), 1000)), token_bytes=2)
    write_pbin(big, (tokens[n : n + 5] for n in range(documents)), token_bytes=2)
    numbers = rng.integers(0, 50_000, 20_000).tolist()
    ours = PackedDataset(small)
    stream = ours.continuous(2049)
    samples = [number % len(stream) for number in numbers]

    open_index: dict[str, Any] = {"nanoset": lambda: len(PackedDataset(big))}
    read_documents: dict[str, Any] = {
        "nanoset": lambda: sum(len(ours[number]) for number in numbers)
    }
    read_samples: dict[str, Any] = {
        "nanoset": lambda: sum(int(stream[number][0]) for number in samples),
        "nanoset, batches of 64": lambda: sum(
            int(stream.batch(samples[first : first + 64])[:, 0].sum())
            for first in range(0, len(samples), 64)
        ),
    }
    if HAS_PEER:
        from modalities.dataloader.dataset import (
            PackedMemMapDatasetBase,
            PackedMemMapDatasetContinuous,
        )

        base = PackedMemMapDatasetBase(small, sample_key="x", load_index=True)
        theirs = PackedMemMapDatasetContinuous(small, "x", 2049, True)
        open_index["Modalities"] = lambda: len(
            PackedMemMapDatasetBase(big, sample_key="x", load_index=True)
        )
        read_documents["Modalities"] = lambda: sum(len(base[number]["x"]) for number in numbers)
        read_samples["Modalities"] = lambda: sum(int(theirs[number]["x"][0]) for number in samples)
    for title, group in (
        (f"open the index of {documents:,} documents", open_index),
        ("read 20,000 documents of 1,000 tokens", read_documents),
        ("read 20,000 samples of 2,049 tokens", read_samples),
    ):
        print_head(title)
        print_rows(interleaved_calls(group, rounds, lambda first, other: first == other))


if __name__ == "__main__":
    main()
