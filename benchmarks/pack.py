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
from collections.abc import Callable, Sequence
from pathlib import Path

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
DOCUMENT_TOKENS = 1_000
SMALL_DOCUMENTS = 50_000
"""Documents of the file that documents and samples are read from."""
READS = 20_000
SAMPLE_TOKENS = 2_049
BATCH = 64
VOCABULARY = 50_257

PACK = """
import sys
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin
write_dataset_as_pbin(sys.argv[1], sys.argv[2], vocab_size=50257)
"""
"""The arguments of this script are the dataset's prefix and the file to write."""
MERGE = """
import sys
from nanoset_core.stages.pbin.selection import merge_pbin
merge_pbin(sys.argv[2:], sys.argv[1])
"""
"""The arguments of this script are the file to write and those to join."""
SHUFFLE = """
import sys
from nanoset_core.stages.pbin.selection import shuffle_pbin
shuffle_pbin(sys.argv[1], sys.argv[2], seed=1)
"""
"""The arguments of this script are the file to shuffle and the one to write."""

Calls = dict[str, Callable[[], int]]
"""Name of a reader → function that reads, and returns a number which is the same for all readers."""


def main() -> None:
    arguments = options(__doc__, megabytes=2000, documents=10_000_000, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        compare_writing(Path(name), arguments.megabytes, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        compare_reading(Path(name), arguments.documents, arguments.rounds)


def compare_writing(folder: Path, megabytes: int, rounds: int) -> None:
    """Print what it takes to pack, merge and shuffle in whole processes, beside `cat`."""
    run_in_new_process(write_inputs, folder, megabytes)
    output = folder / "out.pbin"
    copy = folder / "out.bin"
    parts = sorted(str(path) for path in folder.glob("parts/*.pbin"))

    def script(code: str, *arguments: str) -> Command:
        return Command([sys.executable, "-c", code, *arguments], makes=[output])

    commands = {
        "cat + sync": Command(
            ["sh", "-c", f"cat {folder}/parts/*.bin > {copy} && sync {copy}"], makes=[copy]
        ),
        "pack": script(PACK, str(folder / "pair"), str(output)),
        "pack merge": script(MERGE, str(output), *parts),
        "pack shuffle": script(SHUFFLE, str(folder / "whole.pbin"), str(output)),
    }
    title = f"{megabytes:,} MB of tokens in documents of {DOCUMENT_TOKENS:,}"
    compare(commands, rounds, megabytes, title)


def write_inputs(folder: Path, megabytes: int) -> None:
    """Write the same tokens as pairs and .pbin files, in parts and as a whole."""
    parts = folder / "parts"
    parts.mkdir()
    write_parts(parts, PARTS, megabytes * 1_000_000 // PARTS)
    prefixes = sorted(path.with_suffix("") for path in parts.glob("*.bin"))
    for prefix in prefixes:
        write_dataset_as_pbin(prefix, prefix.with_suffix(".pbin"))
    merge_pbin([prefix.with_suffix(".pbin") for prefix in prefixes], folder / "whole.pbin")
    merge_indexed_datasets(prefixes, folder / "pair")


def compare_reading(folder: Path, n_documents: int, rounds: int) -> None:
    """Print what it takes to open and read files in one process, beside Modalities' classes.

    Args:
        folder: Folder for the files.
        n_documents: Documents of the file whose index is opened.
        rounds: Number of rounds that are counted.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, SMALL_DOCUMENTS * DOCUMENT_TOKENS, dtype=np.uint16)
    small = folder / "small.pbin"
    write_pbin(small, tokens.reshape(-1, DOCUMENT_TOKENS), token_bytes=2)
    big = folder / "big.pbin"
    # Any 5 tokens do: only the index of this file is read.
    some_tokens = tokens[:5]
    write_pbin(big, (some_tokens for _ in range(n_documents)), token_bytes=2)

    numbers = rng.integers(0, SMALL_DOCUMENTS, READS).tolist()
    documents = PackedDataset(small)
    samples = documents.continuous(SAMPLE_TOKENS)
    sample_numbers = [number % len(samples) for number in numbers]

    def read_batches() -> int:
        total = 0
        for begin in range(0, READS, BATCH):
            batch = samples.batch(sample_numbers[begin : begin + BATCH])
            total += int(batch[:, 0].sum())
        return total

    opening: Calls = {"nanoset": lambda: len(PackedDataset(big))}
    reading_documents: Calls = {
        "nanoset": lambda: sum(len(documents[number]) for number in numbers)
    }
    reading_samples: Calls = {
        "nanoset": lambda: sum(int(samples[number][0]) for number in sample_numbers),
        f"nanoset, batches of {BATCH}": read_batches,
    }
    if importlib.util.find_spec("modalities") is not None:
        peer = modalities_calls(small, big, numbers, sample_numbers)
        opening["Modalities"], reading_documents["Modalities"], reading_samples["Modalities"] = peer

    titles = {
        f"open the index of {n_documents:,} documents": opening,
        f"read {READS:,} documents of {DOCUMENT_TOKENS:,} tokens": reading_documents,
        f"read {READS:,} samples of {SAMPLE_TOKENS:,} tokens": reading_samples,
    }
    for title, calls in titles.items():
        print_head(title)
        print_rows(interleaved_calls(calls, rounds, lambda first, other: first == other))


def modalities_calls(
    small: Path, big: Path, numbers: Sequence[int], sample_numbers: Sequence[int]
) -> tuple[Callable[[], int], Callable[[], int], Callable[[], int]]:
    """Return what Modalities' classes do, for the three tables.

    Args:
        small: The file that is read.
        big: The file whose index is opened.
        numbers: The documents that are read.
        sample_numbers: The samples that are read.

    Returns:
        Functions that open the index, read the documents, and read the samples.
    """
    from modalities.dataloader.dataset import (
        PackedMemMapDatasetBase,
        PackedMemMapDatasetContinuous,
    )

    documents = PackedMemMapDatasetBase(small, sample_key="x", load_index=True)
    samples = PackedMemMapDatasetContinuous(small, "x", SAMPLE_TOKENS, True)

    def open_index() -> int:
        return len(PackedMemMapDatasetBase(big, sample_key="x", load_index=True))

    def read_documents() -> int:
        return sum(len(documents[number]["x"]) for number in numbers)

    def read_samples() -> int:
        return sum(int(samples[number]["x"][0]) for number in sample_numbers)

    return open_index, read_documents, read_samples


if __name__ == "__main__":
    main()
