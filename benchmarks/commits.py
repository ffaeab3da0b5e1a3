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
from itertools import product
from pathlib import Path

from benchmarks.harness import Command, interleaved, options

HERE = Path(__file__).parents[1]
TOOL = ("-m", "nanoset_core.cli")
PAIR = ("t_text_document.bin", "t_text_document.idx")
"""What `tokenize` writes with the prefix `t`."""
PARTS = 8
"""Copies of the pair that `merge` joins."""
COLUMNS = (
    "command",
    "CPU s, other",
    "CPU ratio",
    "wall ratio",
    "peak MiB, other",
    "peak ratio",
    "bytes",
)
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
    """Returns the words after `python`, given the folder of this run."""
    makes: Sequence[str] = ()
    """What it writes, below its folder."""
    prepare: Callable[[Path, Path], object] = lambda folder, checkout: None
    """Makes what the command finds in its folder, with the code of a checkout."""
    prints: str = ""
    """A regular expression that its output matches, if it makes no files."""


def main() -> None:
    arguments = options(
        __doc__, "other", tokenizer=(str,), input=[], eod="<|endoftext|>", rounds=5, only=[""]
    )
    # Commands are run in other folders, so their paths are absolute.
    arguments.input = [str(Path(file).resolve()) for file in arguments.input]
    arguments.tokenizer = str(Path(arguments.tokenizer).resolve())
    checkouts = {"other": arguments.other.resolve(), "this": HERE}
    # A checkout that was never used, or is used with PYTHONDONTWRITEBYTECODE, would compile all
    # modules each time that a command starts.
    for checkout in checkouts.values():
        compileall.compile_dir(checkout / "nanoset_core", quiet=1)
        compileall.compile_dir(checkout / "nanoset_assets", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shared = folder / "shared"
        write_shared_inputs(shared, arguments, checkouts["other"])
        print(f"| {' | '.join(COLUMNS)} |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        cases = [*cases_of_files(shared, arguments), *cases_of_projects(shared)]
        for case in cases:
            if case.name.startswith(tuple(arguments.only)):
                compare_checkouts(case, folder / "run", checkouts, arguments.rounds)


def write_shared_inputs(shared: Path, arguments: argparse.Namespace, checkout: Path) -> None:
    """Write what several commands read, with the code of one checkout.

    Args:
        shared: Folder that receives a pair in `pair`, copies of it in `parts`, and two projects:
            `demo` before its first build, and `built` after it.
        arguments: Options of this benchmark.
        checkout: The checkout.
    """
    for name in ("pair", "parts", "demo"):
        (shared / name).mkdir(parents=True)
    pair = shared / "pair" / "tokens"
    tokenize = ["tokenize", *tokenizer_words(arguments), "--output-prefix", str(pair)]
    run_nanoset(checkout, *tokenize)
    for part, ending in product(range(PARTS), (".bin", ".idx")):
        # Copies, since `merge` refuses to join one file twice.
        copy = shared / "parts" / f"part-{part}{ending}"
        shutil.copyfile(f"{pair}_text_document{ending}", copy)

    run_nanoset(checkout, "demo", str(shared / "built"))
    shutil.copytree(shared / "built" / "raw", shared / "demo" / "raw")
    for name in ("nanoset.yaml", "tokenizer.json"):
        shutil.copyfile(shared / "built" / name, shared / "demo" / name)


def tokenizer_words(arguments: argparse.Namespace) -> list[str]:
    """Return the words of `tokenize` that name the tokenizer and the texts."""
    tokenizer = ["--tokenizer", arguments.tokenizer, "--eod", arguments.eod, "--append-eod"]
    return [*tokenizer, "--input", *arguments.input]


def command(*words: str) -> Callable[[Path], list[str]]:
    """Return the `Case.command` of a command of `nanoset`.

    Args:
        words: Words after `nanoset`. In them, `{}` stands for the folder of the run.
    """
    return lambda folder: [*TOOL, *(word.replace("{}", str(folder)) for word in words)]


def cases_of_files(shared: Path, arguments: argparse.Namespace) -> list[Case]:
    """Return the commands that make files from files; see `write_shared_inputs`."""
    tokenize = ["tokenize", *tokenizer_words(arguments), "--output-prefix", "{}/t"]
    merge = ["merge", "--input", f"{shared}/parts", "--output-prefix", "{}/t_text_document"]
    pair = f"{shared}/pair/tokens_text_document"
    pack = ["pack", "write", pair, "-o", "{}/t.pbin", "--vocab-size", "50257"]
    build_index = ["map", "--data-path", pair, "--seq-length", "256", "--data-cache-path", "{}/c"]
    shuffle = ["shuffle", "--input", pair, "--seqlen", "2049", "--output", "{}/o"]
    return [
        Case("import", lambda folder: ["-c", IMPORT], prints="function"),
        Case("tokenize, numpy", command(*tokenize, "--engine", "numpy", "--workers", "1"), PAIR),
        Case("tokenize, 2 workers", command(*tokenize, "--workers", "2"), PAIR),
        Case("merge", command(*merge), PAIR),
        Case("pack", command(*pack), ["t.pbin"]),
        Case("map", command(*build_index), ["c"]),
        Case("shuffle npy", command(*shuffle), ["o"]),
    ]


def cases_of_projects(shared: Path) -> list[Case]:
    """Return the commands about a project; see `write_shared_inputs`."""

    def copy_project(folder: Path, checkout: Path) -> None:
        shutil.copytree(shared / "demo", folder / "project", symlinks=True)

    def copy_built_project(folder: Path, checkout: Path) -> None:
        shutil.copytree(shared / "built", folder / "project", symlinks=True)
        # The names of caches depend on where the project is, so they are made again.
        run_nanoset(checkout, "build", "--config", f"{folder}/project/nanoset.yaml")

    def of_project(*words: str) -> Callable[[Path], list[str]]:
        return command(*words, "--config", "{}/project/nanoset.yaml")

    def read_samples(folder: Path) -> list[str]:
        return ["-c", READ_SAMPLES, f"{folder}/project/data"]

    def after_build(name: str, words: Callable[[Path], list[str]], prints: str) -> Case:
        return Case(name, words, prepare=copy_built_project, prints=prints)

    return [
        Case("build", of_project("build"), ["project/data"], copy_project),
        after_build("build, nothing to do", of_project("build"), "nothing was made"),
        after_build("status", of_project("status"), "pretrain"),
        after_build("verify --deep", of_project("verify", "--deep"), "0 errors"),
        after_build("gc", of_project("gc"), "."),
        after_build("read samples", read_samples, "samples"),
    ]


def code_of(checkout: Path) -> dict[str, str]:
    """Return an environment in which Python takes the code of one checkout.

    It does not take that of the folder it is started in.
    """
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


def run_nanoset(checkout: Path, *words: str) -> None:
    """Run a command of one checkout, which must succeed."""
    subprocess.run(
        [sys.executable, *TOOL, *words],
        env=os.environ | code_of(checkout),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def compare_checkouts(case: Case, folder: Path, checkouts: dict[str, Path], rounds: int) -> None:
    """Run one command with the code of both checkouts in turn, and print a row of what it took.

    Args:
        case: The command.
        folder: Folder of each run. It is the same for both checkouts, since the names of caches
            depend on it.
        checkouts: "other" and "this" → checkout.
        rounds: Number of runs of each.
    """
    digests: dict[str, str] = {}

    def command_of(name: str) -> Command:
        def prepare() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            case.prepare(folder, checkouts[name])

        def inspect() -> None:
            digests[name] = digest_of_outputs(folder)

        return Command(
            words=[sys.executable, *case.command(folder)],
            makes=[folder / output for output in case.makes],
            prints=case.prints,
            environment=code_of(checkouts[name]),
            prepare=prepare,
            inspect=inspect,
        )

    costs = interleaved({name: command_of(name) for name in checkouts}, rounds)
    other = costs["other"]
    this = costs["this"]
    cells = [
        case.name,
        f"{statistics.median(other.cpu):.2f}",
        ratios(this.cpu, other.cpu),
        ratios(this.wall, other.wall),
        f"{max(other.peak):,.0f}",
        f"{max(this.peak) / max(other.peak):.2f}",
        "same" if digests["other"] == digests["this"] else "OTHER BYTES",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def ratios(these: list[float], others: list[float]) -> str:
    """Return the median, least and largest ratio of the runs of this checkout to the other's."""
    values = [this / other for this, other in zip(these, others, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def digest_of_outputs(folder: Path) -> str:
    """Return a digest of the names and bytes of all files below a folder.

    Dagster's history, other hidden files and symbolic links do not count.
    """
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in relative.parts)
        if is_hidden or path.is_symlink() or not path.is_file():
            continue
        # In pieces: the memory of this process counts towards the peaks of those that it starts.
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{relative.as_posix()}\0{digest}\n".encode())
    return total.hexdigest()


if __name__ == "__main__":
    main()
