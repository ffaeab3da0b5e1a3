"""Compare shuffling contexts into tars with `cp` of the same bytes, and with plain Python.

    python -m benchmarks.shuffle [--megabytes M] [--json-megabytes M] [--memory-mib B]

Two formats of contexts are measured: npy with `--megabytes` of tokens, and json.gz, which OpenLM
reads, with `--json-megabytes`. `--memory-mib` is the memory that an engine may use. The files are
in the folder of temporary files, so TMPDIR says which storage is measured.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import IMPORT_NUMPY, Command, compare, options

LENGTH = 2049
"""Tokens of a context."""
SAMPLES = 8192
"""Contexts of a tar."""
VOCABULARY = 50_000
TOKENS_PER_MEGABYTE = 500_000

SIZES = f"length = {LENGTH}\nsamples = {SAMPLES}\n"
"""The first lines of both programs."""

OURS = (
    SIZES
    + """
import sys
from pathlib import Path
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.stages.webdataset.writing import write_shards

source, folder, engine, member, memory_mib, workers = sys.argv[1:]

if __name__ == "__main__":
    sources = [TokenSource.of_file("web", Path(source), "uint16")]
    settings = PlanSettings(
        sequence_length=length, samples_per_shard=samples, seed=1, member=member
    )
    plan = plan_shuffle(sources, settings)
    write_options = WriteOptions(
        engine=engine, memory_bytes=int(memory_mib) << 20, workers=int(workers)
    )
    write_shards(
        plan, sources, range(plan.shards), Path(folder), write_options, made_from="benchmark"
    )
"""
)
"""A program that writes all tars of a file of tokens with one of our engines."""

PLAIN = (
    SIZES
    + """
import gzip, io, json, random, sys, tarfile
from pathlib import Path
import numpy as np

source, folder, member = sys.argv[1:]
tokens = np.memmap(source, np.uint16, mode="r")
order = list(range(len(tokens) // length))
random.Random(1).shuffle(order)
Path(folder).mkdir(exist_ok=True)
for shard, start in enumerate(range(0, len(order), samples)):
    with tarfile.open(f"{folder}/shard-{shard:08d}.tar", "w") as tar:
        for number, context in enumerate(order[start : start + samples]):
            context_tokens = tokens[context * length : (context + 1) * length]
            if member == "npy":
                body = io.BytesIO()
                np.save(body, context_tokens)
                data = body.getvalue()
            else:
                data = gzip.compress(json.dumps(context_tokens.tolist()).encode(), 6)
            info = tarfile.TarInfo(f"{shard:08d}_{number:08d}.{member}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
"""
)
"""A program that writes such tars in the simplest way."""


def main() -> None:
    """Measure both formats of contexts."""
    arguments = options(__doc__, megabytes=1000, json_megabytes=40, memory_mib=256, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", arguments.megabytes)
        title = f"npy, {arguments.megabytes} MB of tokens in the cache"
        commands = npy_commands(folder, arguments)
        compare(commands, arguments.rounds, arguments.megabytes, title)
        shutil.rmtree(folder / "made")

        write_tokens(folder / "tokens.bin", arguments.json_megabytes)
        title = f"json.gz, {arguments.json_megabytes} MB of tokens in the cache"
        commands = json_commands(folder, arguments)
        compare(commands, arguments.rounds, arguments.json_megabytes, title)


def write_tokens(path: Path, megabytes: int) -> None:
    """Write random token ids with the frequencies of text, so that they compress like text.

    The frequencies follow Zipf's law: the token of rank n occurs about 1/n times as often as the
    most frequent one.

    Args:
        path: The file to write.
        megabytes: Its size.
    """
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            tokens = (VOCABULARY ** rng.random(TOKENS_PER_MEGABYTE)) - 1
            file.write(tokens.astype(np.uint16).tobytes())


def npy_commands(folder: Path, arguments: argparse.Namespace) -> dict[str, Command]:
    """Return commands that write contexts as npy, and `cp` of the tars to the disk.

    Args:
        folder: Contains the tokens, and receives the tars to copy.
        arguments: Options of this benchmark.
    """
    memory_mib = arguments.memory_mib
    subprocess.run(our_program(folder, "mmap", "npy", memory_mib, output="made"), check=True)
    copy = f"mkdir {folder}/out && cp {folder}/made/*.tar {folder}/out/ && sync {folder}/out/*.tar"
    two_workers = our_program(folder, "mmap", "npy", memory_mib, workers=2)
    return {
        "cp + sync": with_cached_inputs(folder, ["sh", "-c", copy]),
        "python -c 'import numpy'": IMPORT_NUMPY,
        "mmap": with_cached_inputs(folder, our_program(folder, "mmap", "npy", memory_mib)),
        "buckets": with_cached_inputs(folder, our_program(folder, "buckets", "npy", memory_mib)),
        "mmap, 2 workers": with_cached_inputs(folder, two_workers),
        "numpy.save + tarfile": with_cached_inputs(folder, plain_program(folder, "npy")),
    }


def json_commands(folder: Path, arguments: argparse.Namespace) -> dict[str, Command]:
    """Return commands that write contexts as json.gz.

    Args:
        folder: Contains the tokens.
        arguments: Options of this benchmark.
    """
    our_words = our_program(folder, "mmap", "json.gz", arguments.memory_mib)
    plain_words = plain_program(folder, "json.gz")
    return {
        "mmap": with_cached_inputs(folder, our_words),
        "json.dumps + gzip + tarfile": with_cached_inputs(folder, plain_words),
    }


def our_program(
    folder: Path, engine: str, member: str, memory_mib: int, workers: int = 1, output: str = "out"
) -> list[str]:
    """Return the command that writes all tars with one of our engines.

    Args:
        folder: Contains the tokens, and receives the folder with the tars.
        engine: `mmap` or `buckets`.
        member: Format of a context.
        memory_mib: Memory that the engine may use.
        workers: Number of processes.
        output: Name of the folder with the tars.
    """
    paths = [str(folder / "tokens.bin"), str(folder / output)]
    return [sys.executable, "-c", OURS, *paths, engine, member, str(memory_mib), str(workers)]


def plain_program(folder: Path, member: str) -> list[str]:
    """Return the command that writes all tars in the simplest way.

    Args:
        folder: Contains the tokens, and receives the folder `out` with the tars.
        member: Format of a context.
    """
    return [sys.executable, "-c", PLAIN, str(folder / "tokens.bin"), str(folder / "out"), member]


def with_cached_inputs(folder: Path, words: list[str]) -> Command:
    """Return a command that writes `out`, and whose inputs are in the cache of the system.

    Args:
        folder: Contains the tokens, and perhaps tars to copy.
        words: The program and its arguments.
    """

    def read_inputs() -> None:
        for path in (folder / "tokens.bin", *(folder / "made").glob("*.tar")):
            subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)

    return Command(words, [folder / "out"], prepare=read_inputs)


if __name__ == "__main__":
    main()
