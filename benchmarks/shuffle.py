"""Shuffling contexts into tars: our engines against `cp` of the same bytes, and plain Python.

python -m benchmarks.shuffle [--megabytes M] [--memory-mib B]

--megabytes are those of tokens for npy, --json-megabytes for json.gz; TMPDIR names the storage to
measure.
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

LENGTH, SAMPLES = 2049, 8192
VOCABULARY = 50_000
SIZES = f"length, samples = {LENGTH}, {SAMPLES}\n"

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

source, folder, engine, member, budget, workers = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]

if __name__ == "__main__":
    sources = [TokenSource.of_file("web", source, "uint16")]
    plan = plan_shuffle(
        sources, PlanSettings(sequence_length=length, samples_per_shard=samples, seed=1, member=member)
    )
    settings = {"engine": engine, "memory_bytes": int(budget) << 20, "workers": int(workers)}
    write_shards(plan, sources, range(plan.shards), folder, WriteOptions(**settings), made_from="benchmark")
"""
)

PLAIN = (
    SIZES
    + """
import gzip, io, json, random, sys, tarfile
from pathlib import Path
import numpy as np

source, folder, member = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
tokens = np.memmap(source, np.uint16, mode="r")
order = list(range(len(tokens) // length))
random.Random(1).shuffle(order)
folder.mkdir(exist_ok=True)
for shard, begin in enumerate(range(0, len(order), samples)):
    with tarfile.open(folder / f"shard-{shard:08d}.tar", "w") as tar:
        for number, context in enumerate(order[begin : begin + samples]):
            row = tokens[context * length : (context + 1) * length]
            if member == "npy":
                body = io.BytesIO()
                np.save(body, row)
                data = body.getvalue()
            else:
                data = gzip.compress(json.dumps(row.tolist()).encode(), 6)
            info = tarfile.TarInfo(f"{shard:08d}_{number:08d}.{member}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
"""
)


def main() -> None:
    arguments = options(__doc__, megabytes=1000, json_megabytes=40, memory_mib=256, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for member, megabytes in (
            ("npy", arguments.megabytes),
            ("json.gz", arguments.json_megabytes),
        ):
            write_tokens(folder / "tokens.bin", megabytes)
            commands = (
                npy_rows(folder, arguments) if member == "npy" else json_rows(folder, arguments)
            )
            compare(
                commands,
                arguments.rounds,
                megabytes,
                f"{member}, {megabytes} MB of tokens in the cache",
            )


def ours(
    folder: Path, engine: str, member: str, budget: int, workers: int = 1, out: str = "out"
) -> list[str]:
    """Return the command that writes all shards with an engine."""
    settings = [engine, member, str(budget), str(workers)]
    return [sys.executable, "-c", OURS, str(folder / "tokens.bin"), str(folder / out), *settings]


def npy_rows(folder: Path, arguments: argparse.Namespace) -> dict[str, Command]:
    """Return engines, and plain Python, beside `cp` of the tars, each made durable."""
    subprocess.run(ours(folder, "mmap", "npy", arguments.memory_mib, out="made"), check=True)
    copy = f"mkdir {folder}/out && cp {folder}/made/*.tar {folder}/out/ && sync {folder}/out/*.tar"
    commands = {
        "cp + sync": writes(folder, ["sh", "-c", copy]),
        "python -c 'import numpy'": IMPORT_NUMPY,
    }
    for engine in ("mmap", "buckets"):
        commands[engine] = writes(folder, ours(folder, engine, "npy", arguments.memory_mib))
    commands["mmap, 2 workers"] = writes(
        folder, ours(folder, "mmap", "npy", arguments.memory_mib, 2)
    )
    return commands | {"numpy.save + tarfile": writes(folder, plain(folder, "npy"))}


def json_rows(folder: Path, arguments: argparse.Namespace) -> dict[str, Command]:
    """Return the rows of the member that OpenLM reads."""
    shutil.rmtree(folder / "made")
    return {
        "mmap": writes(folder, ours(folder, "mmap", "json.gz", arguments.memory_mib)),
        "json.dumps + gzip + tarfile": writes(folder, plain(folder, "json.gz")),
    }


def plain(folder: Path, member: str) -> list[str]:
    """The command that writes all shards in the plain way."""
    return [sys.executable, "-c", PLAIN, str(folder / "tokens.bin"), str(folder / "out"), member]


def writes(folder: Path, words: list[str]) -> Command:
    """Return a command that writes `out`, with the inputs in the cache."""

    def read() -> None:
        for path in (folder / "tokens.bin", *(folder / "made").glob("*.tar")):
            subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)

    return Command(words, [folder / "out"], prepare=read)


def write_tokens(path: Path, megabytes: int) -> None:
    """Token ids with the frequencies of text (Zipf's law), for realistic compression."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(((VOCABULARY ** rng.random(500_000)) - 1).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
