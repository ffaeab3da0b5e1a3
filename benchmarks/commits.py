"""Compare another checkout of this project with this one: whole commands on the same input.

    git worktree add ../before COMMIT
    python -m benchmarks.commits ../before --tokenizer T/tokenizer.json
        --input corpus/*.jsonl [--only NAME …]

The checkouts run in turn, and each command starts from nothing. For each command, the benchmark
prints this checkout's processor time, wall time and memory as ratios to the other's (medians of
pairs), and whether both wrote the same bytes.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Command, interleaved, options

HERE = Path(__file__).parents[1]
TOOL = ("-m", "nanoset_core.cli")
PAIR = ("t_text_document.bin", "t_text_document.idx")
IMPORT = "import nanoset_core; print(nanoset_core.load_nanoset)"
READ_SAMPLES = """
import sys, numpy as np
from nanoset_core import load_nanoset
nanoset = load_nanoset(sys.argv[1], "pretrain", "train")
order = np.random.default_rng(0).permutation(len(nanoset))
for _ in range(20):
    for begin in range(0, len(order), 64):
        nanoset.batch(order[begin : begin + 64])
    for sample in order[:2000]:
        nanoset[int(sample)]
print(len(order), "samples")
"""


@dataclass(frozen=True)
class Case:
    """One command to compare."""

    name: str
    command: Callable[[Path], list[str]]
    """folder of its own → words after `python`"""
    makes: Sequence[str] = ()
    """what it writes, below its folder"""
    prepare: Callable[[Path, Path], object] = lambda folder, checkout: None
    """makes what the command finds in its folder, by that checkout's code"""
    prints: str = ""
    """found in what it prints, where it makes no files"""


def cases(arguments: argparse.Namespace, shared: Path) -> list[Case]:
    """What is compared."""
    text = ["--input", *arguments.input]
    tokenizer = ["--tokenizer", arguments.tokenizer, "--eod", arguments.eod]
    pair = f"{shared}/pair/tokens_text_document"

    def command(*words: str) -> Callable[[Path], list[str]]:
        return lambda folder: [*TOOL, *(word.replace("{}", str(folder)) for word in words)]

    def tokenize(*words: str) -> Callable[[Path], list[str]]:
        return command(
            "tokenize", *tokenizer, "--append-eod", *text, *words, "--output-prefix", "{}/t"
        )

    def unbuilt(folder: Path, checkout: Path) -> None:
        shutil.copytree(shared / "demo", folder / "project", symlinks=True)

    def built(folder: Path, checkout: Path) -> None:
        shutil.copytree(shared / "built", folder / "project", symlinks=True)
        # names of caches hold its place
        nanoset(checkout, "build", "--config", f"{folder}/project/nanoset.yaml")

    def project(*words: str) -> Callable[[Path], list[str]]:
        return command(*words, "--config", "{}/project/nanoset.yaml")

    return [
        Case("import", lambda folder: ["-c", IMPORT], prints="function"),
        Case("tokenize, numpy", tokenize("--engine", "numpy", "--workers", "1"), PAIR),
        Case("tokenize, 2 workers", tokenize("--workers", "2"), PAIR),
        Case(
            "merge",
            command("merge", "--input", f"{shared}/parts", "--output-prefix", "{}/t_text_document"),
            PAIR,
        ),
        Case(
            "pack",
            command("pack", "write", pair, "-o", "{}/t.pbin", "--vocab-size", "50257"),
            ["t.pbin"],
        ),
        Case(
            "map",
            command("map", "--data-path", pair, "--seq-length", "256", "--data-cache-path", "{}/c"),
            ["c"],
        ),
        Case(
            "shuffle npy",
            command("shuffle", "--input", pair, "--seqlen", "2049", "--output", "{}/o"),
            ["o"],
        ),
        Case("build", project("build"), ["project/data"], unbuilt),
        Case("build, nothing to do", project("build"), prepare=built, prints="nothing was made"),
        Case("status", project("status"), prepare=built, prints="pretrain"),
        Case("verify --deep", project("verify", "--deep"), prepare=built, prints="0 errors"),
        Case("gc", project("gc"), prepare=built, prints="."),
        Case(
            "read samples",
            lambda folder: ["-c", READ_SAMPLES, f"{folder}/project/data"],
            (),
            built,
            "samples",
        ),
    ]


def main() -> None:
    arguments = options(
        __doc__, "other", tokenizer=(str,), input=[], eod="<|endoftext|>", rounds=5, only=[""]
    )
    arguments.input = [str(Path(file).resolve()) for file in arguments.input]
    arguments.tokenizer = str(Path(arguments.tokenizer).resolve())
    checkouts = {"other": arguments.other.resolve(), "this": HERE}
    # A checkout that was never used, or is used with PYTHONDONTWRITEBYTECODE, would compile all
    # modules each time that a command starts.
    for checkout in checkouts.values():
        compileall.compile_dir(checkout / "nanoset_core", quiet=1)
        compileall.compile_dir(checkout / "nanoset_assets", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name, "shared")
        prepare(shared, arguments, checkouts["other"])
        print(
            "| command | CPU s, other | CPU ratio | wall ratio | peak MB, other | peak ratio | "
            "bytes |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        for case in cases(arguments, shared):
            if case.name.startswith(tuple(arguments.only)):
                row(case, Path(name), checkouts, arguments.rounds)


def prepare(shared: Path, arguments: argparse.Namespace, checkout: Path) -> None:
    """What several commands read, made by one checkout."""
    for name in ("pair", "parts", "demo"):
        (shared / name).mkdir(parents=True)
    tokenizer = ["--tokenizer", arguments.tokenizer, "--eod", arguments.eod, "--append-eod"]
    nanoset(
        checkout,
        "tokenize",
        *tokenizer,
        "--input",
        *arguments.input,
        "--output-prefix",
        f"{shared}/pair/tokens",
    )
    for part in range(8):
        for ending in (".bin", ".idx"):
            # Copies, since `merge` refuses to join one file twice.
            shutil.copyfile(
                f"{shared}/pair/tokens_text_document{ending}",
                shared / "parts" / f"part-{part}{ending}",
            )
    nanoset(checkout, "demo", str(shared / "built"))
    shutil.copytree(shared / "built" / "raw", shared / "demo" / "raw")
    for name in ("nanoset.yaml", "tokenizer.json"):
        shutil.copyfile(shared / "built" / name, shared / "demo" / name)


def code_of(checkout: Path) -> dict[str, str]:
    """Environment in which Python takes the code of one checkout, and not that of the folder it is
    started in.
    """
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


def nanoset(checkout: Path, *words: str) -> None:
    """Run a command of one checkout, which has to end well."""
    quiet, environment = subprocess.DEVNULL, os.environ | code_of(checkout)
    subprocess.run(
        [sys.executable, *TOOL, *words], env=environment, check=True, stdout=quiet, stderr=quiet
    )


def row(case: Case, place: Path, checkouts: dict[str, Path], rounds: int) -> None:
    """Measure one case and print its row."""
    folder = place / "run"  # the same for both: names of caches hold their place
    contents: dict[str, str] = {}

    def command(name: str) -> Command:
        def prepare() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            case.prepare(folder, checkouts[name])

        words = [sys.executable, *case.command(folder)]
        makes, finish = (
            [folder / made for made in case.makes],
            lambda: contents.update({name: digest(folder)}),
        )
        return Command(words, makes, case.prints, code_of(checkouts[name]), prepare, finish)

    costs = interleaved({name: command(name) for name in checkouts}, rounds)
    other, this = costs["other"], costs["this"]
    cells = (
        case.name,
        f"{statistics.median(other.cpu):.2f}",
        ratio(this.cpu, other.cpu),
        ratio(this.wall, other.wall),
        f"{max(other.peak):,.0f}",
        f"{max(this.peak) / max(other.peak):.2f}",
        "same" if contents["other"] == contents["this"] else "OTHER BYTES",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def ratio(this: list[float], other: list[float]) -> str:
    """Median (min–max) of the pairs' ratios."""
    pairs = [a / b for a, b in zip(this, other, strict=True)]
    return f"{statistics.median(pairs):.2f} ({min(pairs):.2f}–{max(pairs):.2f})"


def digest(folder: Path) -> str:
    """Of every output below a folder: names and bytes, but for Dagster's history and what is
    hidden.
    """
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (
            path.is_file()
            and not path.is_symlink()
            and not any(part.startswith(".") for part in name.split("/"))
        ):
            # in pieces: a command's peak begins at the memory of what starts it
            with path.open("rb") as file:
                total.update(
                    f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode()
                )
    return total.hexdigest()


if __name__ == "__main__":
    main()
