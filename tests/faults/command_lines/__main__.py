"""Every command twice, in turn and at once, into its own input, interrupted, without rights, on a full disk.

    PYTHONPATH=tests python -m faults.command_lines [--select 'pack *'] [--faults 'inter*'] [--trials 20]

Looks at what each says and leaves. Prints a table; exits with 1 where a trial was bad, which `--select COMMAND --faults
FAULT --first NUMBER` repeats. A command may not end in a traceback, leave a process, change what it was not asked to
change, or succeed where it cannot have done its work; what it leaves when it fails must be hidden, or what it leaves
when it succeeds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from faults.command_lines.trials import Ended, run, tree
from faults.command_lines.uses import USES, make_world
from faults.runner import MEMORY, drop_rights

NOISE = ("Traceback", "internal error", "Exception ignored", "HUNG", "sqlalchemy")
WORDS = ("error: ", "Error: ", "failed: ", "run the same command again")
_NEW_NAMESPACE, _PRIVATE = 0x00020000, 1 << 18 | 1 << 14


@dataclass(frozen=True, slots=True)
class Reference:
    """What a command does where nothing goes wrong."""

    before: dict[str, str]
    after: dict[str, str]
    seconds: float


class Bench:
    """A folder in which commands are tried, each on a fresh copy of the same small world."""

    def __init__(self, folder: Path) -> None:
        self.trial, self._world = folder / "trial", folder / "world"
        self._references: dict[str, Reference] = {}
        child = os.fork()  # so that this process has no threads when it forks again
        if child == 0:
            make_world(self.trial)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        self.trial.rename(self._world)

    def fresh(self) -> Path:
        """The folder as it was."""
        if self.trial.exists():
            for path in (self.trial, *self.trial.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            shutil.rmtree(self.trial)
        shutil.copytree(self._world, self.trial, symlinks=True)
        (self.trial / "cache").mkdir()
        return self.trial

    def reference(self, name: str) -> Reference:
        """What a command does here."""
        if name not in self._references:
            folder, use = self.fresh(), USES[name]
            before = tree(folder)
            ended = run(folder, use.line())
            assert ended.code == use.code, f"{name}: {ended.said}"
            self._references[name] = Reference(before, tree(folder), ended.seconds)
        return self._references[name]

    def check(self, name: str, ended: Ended, *, must_fail: bool = False, elsewhere: bool = False) -> Iterator[str]:
        """What is wrong with how a command ended; `elsewhere`: its output went to another place than usual."""
        use, reference, after = USES[name], self.reference(name), tree(self.trial)
        for noise in NOISE:
            if noise in ended.said:
                yield f"it says {noise!r}: {ended.said[-1500:]}"
        if ended.left:
            yield f"it left {ended.left} processes"
        if must_fail and ended.code == 0:
            yield f"exit code 0: {ended.said[-300:]}"
        if ended.code not in (0, use.code) and not any(word in ended.said for word in WORDS):
            yield f"exit code {ended.code}, and no word why: {ended.said[-300:]}"
        for path, content in reference.before.items():
            if after.get(path) != content and not path.startswith(use.rewrites or ("\0",)):
                yield f"{path} was {'changed' if path in after else 'removed'} (exit code {ended.code})"
        for path, content in after.items():
            hidden = any(part.startswith(".") for part in path.split("/"))
            if path in reference.before or hidden or (elsewhere and ended.code == 0):
                continue
            if content != reference.after.get(path):
                yield f"{path} was left (exit code {ended.code})"
        if ended.code == 0 and not elsewhere:
            for path in reference.after.keys() - after.keys():
                if "/.dagster/" not in path:  # whose files are named by chance
                    yield f"{path} was not made (exit code 0)"


def twice(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    folder = bench.fresh()
    yield from bench.check(name, run(folder, USES[name].line()))
    before = tree(folder)
    yield from bench.check(name, run(folder, USES[name].line()))
    if tree(folder) != before:
        yield "the second call changed something"


def wrong_input(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    if USES[name].input is not None:
        ended = run(bench.fresh(), USES[name].line(input=draw.choice(["nope", "nope/nanoset.yaml"])))
        yield from bench.check(name, ended, must_fail=True)


def empty_folder(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    if USES[name].input is not None:
        ended = run(bench.fresh(), USES[name].line(input=draw.choice(["hollow", "hollow/nanoset.yaml"])))
        yield from bench.check(name, ended, must_fail=True)


def into_its_input(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    for output in USES[name].onto:
        for problem in bench.check(name, run(bench.fresh(), USES[name].line(output=output)), elsewhere=True):
            yield f"onto {output}: {problem}"


def interrupted(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    seconds = draw.uniform(0.002, bench.reference(name).seconds * 1.1)
    number = draw.choice([signal.SIGINT, signal.SIGTERM])
    ended = run(bench.fresh(), USES[name].line(), stop=(seconds, number, draw.random() < 0.7))
    if ended.code not in (128 + number, USES[name].code):
        yield f"exit code {ended.code} after {number.name}: {ended.said[-1500:]}"
    yield from bench.check(name, ended)
    again = run(bench.trial, USES[name].line())
    if again.code != USES[name].code and bench.reference(name).after.keys() - tree(bench.trial).keys():
        yield f"it does not go on: {again.said[-1500:]}"
    yield from bench.check(name, again)


def no_right_to_write(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    folder, use = bench.fresh(), USES[name]
    place = folder / (Path(use.output).parent if use.output is not None else ".")
    for path in (place, *place.rglob("*")):
        if path.is_dir() and path.name != "cache" and not path.is_symlink():
            path.chmod(0o555)
    yield from bench.check(name, run(folder, use.line(), prepare=drop_rights), must_fail=use.output is not None)


def no_right_to_read(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    folder, use = bench.fresh(), USES[name]
    if use.input is None:
        return
    path = folder / use.input
    path = path if path.exists() else path.with_suffix(".idx")
    mode = path.stat().st_mode
    path.chmod(0)
    ended = run(folder, use.line(), prepare=drop_rights)
    path.chmod(mode)
    yield from bench.check(name, ended, must_fail=True)


def no_place(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    if USES[name].output is not None:
        output = draw.choice(["pairs/x.bin/out", "/proc/nowhere/out", f"made/{'long' * 80}", "\udcff" * 300])
        yield from bench.check(name, run(bench.fresh(), USES[name].line(output=output)), must_fail=True)


def small_files(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    size = int(10 ** draw.uniform(0, 5))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    yield from bench.check(name, run(bench.fresh(), USES[name].line(), prepare=limit))


def few_files(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    count = draw.randint(8, 40)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

    yield from bench.check(name, run(bench.fresh(), USES[name].line(), prepare=limit))


def full_output(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    yield from bench.check(name, run(bench.fresh(), USES[name].line(), prepare=fill), must_fail=True)


def full_disk(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """A small disk where the output goes, which only this process sees; needs root."""
    use, folder = USES[name], bench.fresh()
    places = [*use.disks] if use.output is None else [str(Path(use.output).parent), *use.disks]
    if not places or os.geteuid() != 0:
        return
    disk = folder / draw.choice(places)
    disk.mkdir(exist_ok=True)
    # A build writes a thousand times what some commands do.
    pages, files = int(10 ** draw.uniform(0, 3 if use.disks else 1.8)), draw.choice([64, 4096])

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.unshare(_NEW_NAMESPACE) or libc.mount(b"none", b"/", None, _PRIVATE, None)
        size = f"size={pages << 12},nr_inodes={files}".encode()
        if made or libc.mount(b"none", str(disk).encode(), b"tmpfs", 0, size):
            os._exit(0)  # a container may not

    yield from bench.check(name, run(folder, use.line(), prepare=mount), elsewhere=True)
    if use.disks:  # what the disk held is gone with it, which the rest of the folder does not know
        ended = run(folder, use.line())
        yield from bench.check(name, ended, elsewhere=True)
        if ended.code != use.code:
            yield f"it does not go on: {ended.said[-1500:]}"


def reader_gone(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """As `| head -1` does."""

    def leave() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    ended = run(bench.fresh(), USES[name].line(), prepare=leave)
    yield from (problem for problem in bench.check(name, ended) if not problem.startswith("exit code 1, and no word"))


def two_at_once(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """The second begins while the first is at work; its exit code is not seen, what it says and leaves is."""
    seconds = draw.uniform(0, bench.reference(name).seconds)

    def begin_another() -> None:
        if os.fork() == 0:
            time.sleep(seconds)

    yield from bench.check(name, run(bench.fresh(), USES[name].line(), prepare=begin_another, patience=120))
    yield from bench.check(name, run(bench.trial, USES[name].line()))


Fault = Callable[[Bench, str, random.Random], Iterator[str]]
FAULTS: dict[str, tuple[Fault, bool]] = {
    "twice": (twice, False),
    "wrong input": (wrong_input, False),
    "empty folder": (empty_folder, False),
    "into its input": (into_its_input, False),
    "no right to write": (no_right_to_write, False),
    "no right to read": (no_right_to_read, False),
    "no place for it": (no_place, False),
    "full output": (full_output, False),
    "reader gone": (reader_gone, False),
    "full disk": (full_disk, True),
    "small files": (small_files, True),
    "few files": (few_files, True),
    "two at once": (two_at_once, True),
    "interrupted": (interrupted, True),
}
"""Name → the fault, and whether it comes otherwise in every trial."""


def import_everything() -> None:
    """What commands import on their way, so that forks need no time for it."""
    import pyarrow.parquet  # noqa: F401
    import tokenizers  # noqa: F401

    import nanoset_core.pipeline.stages
    import nanoset_core.shuffling.standalone
    import nanoset_core.verification.verify  # noqa: F401


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.command_lines", description=__doc__.splitlines()[0])
    parser.add_argument("--select", default="*", help="commands, such as 'pack *'")
    parser.add_argument("--faults", default="*", help="such as 'interrupted'")
    parser.add_argument("--trials", type=int, default=5, help="of each fault that depends on chance")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--share", type=int, default=1, help="try one in so many pairs of command and fault")
    parser.add_argument("--no-dagster", action="store_true", help="leave out the commands that need Dagster")
    options = parser.parse_args()
    import_everything()
    with tempfile.TemporaryDirectory(prefix="nanoset-commands-", dir=MEMORY) as folder:
        bench, started = Bench(Path(folder)), time.monotonic()
        pairs = bad = trials = 0
        print("| command | fault | trials | bad |\n| --- | --- | --- | --- |")
        for name, use in USES.items():
            if not fnmatchcase(name, options.select) or (use.needs_dagster and options.no_dagster):
                continue
            for fault, (try_it, by_chance) in FAULTS.items():
                pairs += 1
                if not fnmatchcase(fault, options.faults) or pairs % options.share:
                    continue
                problems = []
                bench.reference(name)  # which needs the folder, and would undo what a trial has done to it
                numbers = range(options.first, options.first + (options.trials if by_chance else 1))
                for number in numbers:
                    found = list(try_it(bench, name, seeded(name, fault, number)))
                    problems += [f"{name}, {fault}, trial {number}: {problem}" for problem in found[:3]]
                trials, bad = trials + len(numbers), bad + len(problems)
                print(f"| {name} | {fault} | {len(numbers)} | {len(problems)} |", flush=True)
                for problem in problems:
                    print(problem, file=sys.stderr, flush=True)
        print(f"| all | | {trials} | {bad} |")
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 1 if bad else 0


def seeded(name: str, fault: str, number: int) -> random.Random:
    """The same for the same trial."""
    return random.Random(f"{name} {fault} {number}")


if __name__ == "__main__":
    sys.exit(main())
