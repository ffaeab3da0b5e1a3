"""Shuffling contexts into tars: our engines against `cp` of the same bytes, plain Python, and Modalities' shuffle.

python -m benchmarks.shuffle [--megabytes M] [--memory-mib B] [--modalities PYTHON]

--megabytes are those of tokens for npy, --json-megabytes for json.gz; --folder lies on the storage to measure;
--modalities is a Python with Modalities installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.harness import IMPORT_NUMPY, Command, interleaved, options, show

LENGTH, SAMPLES = 2049, 8192
VOCABULARY = 50_000
SIZES = f"length, samples = {LENGTH}, {SAMPLES}\n"

# Prints the peak of private memory (the system's cache of mapped files is not ours) and of scratch, in MB.
OURS = (
    SIZES
    + """
import sys, threading
from pathlib import Path
import numpy as np
from nanoset_core.shuffling import PlanSettings, TokenSource, plan_shuffle
from nanoset_core.shuffling.sizing import choose_engine
from nanoset_core.shuffling.writing import WriteOptions, write_shards

source, folder, engine, member, budget, workers = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]

def private():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024

def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], private())
        peak[1] = max(peak[1], sum(path.stat().st_size for path in folder.rglob("bucket-*") if path.exists()))

if __name__ == "__main__":
    sources = [TokenSource.of_file("web", source, "uint16")]
    plan = plan_shuffle(
        sources, PlanSettings(sequence_length=length, samples_per_shard=samples, seed=1, member=member)
    )
    settings = {"engine": engine, "memory_bytes": int(budget) << 20, "workers": int(workers)}
    choice = choose_engine(plan, **settings)
    done, base = threading.Event(), private()
    peak = [base, 0]
    watching = folder.name == "watched"
    if watching:
        thread = threading.Thread(target=watch)
        thread.start()
    write_shards(plan, sources, range(plan.shards), folder, WriteOptions(**settings), made_from="benchmark")
    done.set()
    if watching:
        thread.join()
        print(engine, choice.passes, *(round(count / 1e6, 1) for count in
              (choice.memory_bytes, peak[0] - base, choice.scratch_bytes, peak[1])))
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

MODALITIES = """
import sys
from pathlib import Path
from modalities.api import FileExistencePolicy, shuffle_tokenized_data
shuffle_tokenized_data(Path(sys.argv[1]), Path(sys.argv[2]), 100, FileExistencePolicy.OVERRIDE, 1)
"""


def main() -> None:
    arguments = options(
        __doc__, megabytes=1000, json_megabytes=40, memory_mib=256, rounds=5, folder=Path, modalities=str
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", arguments.megabytes)
        print(f"npy, {arguments.megabytes} MB of tokens in the cache:")
        compare_npy(folder, arguments)
        print(f"\npeaks with a budget of {arguments.memory_mib} MiB, in MB (beyond what Python and numpy take):")
        show_peaks(folder, arguments.memory_mib)
        write_tokens(folder / "tokens.bin", arguments.json_megabytes)
        print(f"\njson.gz, {arguments.json_megabytes} MB of tokens:")
        compare_json(folder, arguments)
        if arguments.modalities:
            print(f"\nModalities' shuffle of documents in memory, {arguments.json_megabytes} MB of tokens as .pbin:")
            compare_modalities(folder, arguments)


def ours(folder: Path, engine: str, member: str, budget: int, workers: int = 1, out: str = "out") -> list[str]:
    """The command that writes all shards with an engine."""
    settings = [engine, member, str(budget), str(workers)]
    return [sys.executable, "-c", OURS, str(folder / "tokens.bin"), str(folder / out), *settings]


def compare_npy(folder: Path, arguments: argparse.Namespace) -> None:
    """Engines, and plain Python, against `cp` of the tars, each made durable."""
    subprocess.run(ours(folder, "mmap", "npy", arguments.memory_mib, out="made"), check=True)
    size = sum(path.stat().st_size for path in (folder / "made").glob("*.tar"))
    copy = f"mkdir {folder}/out && cp {folder}/made/*.tar {folder}/out/ && sync {folder}/out/*.tar"
    commands = {
        "cp + sync": writes(folder, ["sh", "-c", copy]),
        "python -c 'import numpy'": IMPORT_NUMPY,
    }
    for engine in ("mmap", "tiled", "buckets"):
        commands[engine] = writes(folder, ours(folder, engine, "npy", arguments.memory_mib))
    commands["mmap, 2 workers"] = writes(folder, ours(folder, "mmap", "npy", arguments.memory_mib, 2))
    commands["numpy.save + tarfile"] = writes(folder, plain(folder, "npy"))
    show(interleaved(commands, arguments.rounds), size / 1e6)


def show_peaks(folder: Path, budget: int) -> None:
    """Memory and scratch, stated and found, of each engine."""
    print("| engine | sweeps | memory stated | memory found | scratch stated | scratch found |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for engine in ("mmap", "tiled", "buckets"):
        shutil.rmtree(folder / "watched", ignore_errors=True)
        command = ours(folder, engine, "npy", budget, out="watched")
        print("|", " | ".join(subprocess.check_output(command, text=True, encoding="utf-8").split()), "|")


def compare_json(folder: Path, arguments: argparse.Namespace) -> None:
    """The member that OpenLM reads, against the plain way."""
    shutil.rmtree(folder / "made", ignore_errors=True)
    commands = {
        "mmap": writes(folder, ours(folder, "mmap", "json.gz", arguments.memory_mib)),
        "json.dumps + gzip + tarfile": writes(folder, plain(folder, "json.gz")),
    }
    show(interleaved(commands, min(arguments.rounds, 3)), arguments.json_megabytes)


def compare_modalities(folder: Path, arguments: argparse.Namespace) -> None:
    """Another task of the same kind: documents of a .pbin, of about a context's length, in random order."""
    from nanoset_core.packed import write_packed

    tokens = np.fromfile(folder / "tokens.bin", np.uint16)
    write_packed(folder / "tokens.pbin", np.split(tokens, range(LENGTH, len(tokens), LENGTH)), token_bytes=2)
    peer = [arguments.modalities, "-c", MODALITIES, str(folder / "tokens.pbin"), str(folder / "out.pbin")]
    commands = {
        "mmap, npy": writes(folder, ours(folder, "mmap", "npy", arguments.memory_mib)),
        "Modalities": writes(folder, peer, "out.pbin"),
    }
    show(interleaved(commands, min(arguments.rounds, 3)), arguments.json_megabytes)


def plain(folder: Path, member: str) -> list[str]:
    """The command that writes all shards in the plain way."""
    return [sys.executable, "-c", PLAIN, str(folder / "tokens.bin"), str(folder / "out"), member]


def writes(folder: Path, words: list[str], out: str = "out") -> Command:
    """A command that writes `out`, with the inputs in the cache."""

    def read() -> None:
        for path in (folder / "tokens.bin", *(folder / "made").glob("*.tar")):
            subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)

    return Command(words, [folder / out], prepare=read)


def write_tokens(path: Path, megabytes: int) -> None:
    """Token ids with the frequencies of text (Zipf's law), so that compression has its usual work."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(((VOCABULARY ** rng.random(500_000)) - 1).astype(np.uint16).tobytes())


if __name__ == "__main__":
    main()
