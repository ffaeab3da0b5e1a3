"""Every command under the same faults: twice, in turn and at once, into its own input or what is another's, killed …

A command may not end in a traceback, leave a process, change what it was not asked to change, or succeed where it
cannot have done its work; what it leaves when it fails must be hidden, or what it leaves when it succeeds.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from child_processes import members, wait_until
from faults.runner import Child, Kind, Outcome, Skipped, Trial, drop_rights, each
from faults.uses import USES, make_world

from nanoset_core.cli import main

HEAD, COLUMNS, TRIALS = ("command", "fault"), (), 5
NOISE = ("Traceback", "internal error", "Exception ignored", "sqlalchemy")
WORDS = ("error: ", "Error: ", "failed: ", "run the same command again")
_NOT_COMPARED = (".dagster/", "data/.in-use/", "cache/")
_FINGERPRINTS = ".fingerprints.json"
_OTHERS = ("other input or settings", "--overwrite")
_ANOTHERS = ("nothing says what it was made from", "something else", "would say what it was made from", "already")
_NEW_NAMESPACE, _PRIVATE = 0x00020000, 1 << 18 | 1 << 14


@dataclass(frozen=True, slots=True)
class Reference:
    """What a command does where nothing goes wrong."""

    before: dict[str, str]
    after: dict[str, str]
    seconds: float

    def made(self) -> list[str]:
        """Return the files for readers that it makes, but for those of a project and what editors take."""
        new = (name for name in self.after.keys() - self.before.keys() if not _is_hidden(name))
        return sorted(name for name in new if not name.startswith("data/") and not name.endswith(".schema.json"))


class Bench:
    """A folder in which commands are tried, each on a fresh copy of the same small world."""

    def __init__(self, folder: Path, *, warm: bool) -> None:
        self.trial, self._world = folder / "trial", folder / "world"
        self._references: dict[str, Reference] = {}

        def make() -> None:
            os.environ["XDG_CACHE_HOME"] = str(self.trial / "cache" if warm else folder / "other")
            make_world(self.trial)

        Child(make).wait().require_done()  # it leaves no threads here
        self.trial.rename(self._world)

    def fresh(self, name: str) -> Path:
        """The folder as it was, without the project's outputs where a use has no project."""
        if self.trial.exists():
            for path in (self.trial, *self.trial.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            shutil.rmtree(self.trial)
        needless = None if "-c {input}" in USES[name].words else shutil.ignore_patterns("data")
        shutil.copytree(self._world, self.trial, symlinks=True, ignore=needless)
        (self.trial / "cache").mkdir(exist_ok=True)
        return self.trial

    def reference(self, name: str) -> Reference:
        """What a command does here."""
        if name not in self._references:
            before, begun = tree(self.fresh(name)), time.monotonic()
            ended = self.run(USES[name].line())
            assert ended.code == USES[name].code, f"{name}: {ended.said}"
            self._references[name] = Reference(before, tree(self.trial), time.monotonic() - begun)
        return self._references[name]

    def written(self, name: str) -> list[tuple[int, int]]:
        """Which files a use's outputs are, and when they were written."""
        found = [(self.trial / path).lstat() for path in self.reference(name).made()]
        return [(stat.st_ino, stat.st_mtime_ns) for stat in found]

    def start(self, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> Child:
        """Start `nanoset` in the folder; prepare: called in its process first."""
        cache = str(self.trial / "cache")

        def work() -> None:
            os.chdir(self.trial)
            os.environ |= {"XDG_CACHE_HOME": cache, "COLUMNS": "200", "TMPDIR": cache}
            prepare()
            main(list(words))

        return Child(work)

    def run(self, words: Sequence[str], prepare: Callable[[], object] = lambda: None) -> Outcome:
        """Run `nanoset` in the folder to its end."""
        return self.start(words, prepare).wait(600, 600)

    def check(
        self,
        name: str,
        ended: Outcome,
        *,
        must_fail: bool = False,
        says: Sequence[str] = (),
        elsewhere: bool = False,
        group: int = 0,
        patience: float = 5,
    ) -> Iterator[str]:
        """Yield what is wrong with how a command ended.

        Args:
            name: of its use.
            ended: how it ended.
            must_fail: it cannot have done its work.
            says: words that it has to say.
            elsewhere: its output went to another place than usual.
            group: of its processes.
            patience: seconds that other processes may take to end after it.
        """
        if group and not wait_until(lambda: not members(group), patience):
            yield f"it left {len(members(group))} processes"
            os.killpg(group, signal.SIGKILL)
        use, reference, after = USES[name], self.reference(name), tree(self.trial)
        for noise in NOISE:
            if noise in ended.said:
                yield f"it says {noise!r}: {ended.said[-1500:]}"
        if ended.end == "hung":
            yield "it hangs"
        for words in says:
            if words not in ended.said:
                yield f"it does not say {words!r}: {ended.said[-500:]}"
        if must_fail and ended.code == 0:
            yield f"exit code 0: {ended.said[-300:]}"
        if ended.code not in (0, use.code, -signal.SIGKILL) and not any(word in ended.said for word in WORDS):
            yield f"exit code {ended.code}, and no word why: {ended.said[-300:]}"
        for path, content in reference.before.items():
            if after.get(path) != content and not path.startswith(use.rewrites or ("\0",)):
                yield f"{path} was {'changed' if path in after else 'removed'} (exit code {ended.code})"
        for path, content in after.items():
            if path in reference.before or _is_hidden(path) or (elsewhere and ended.code == 0):
                continue
            if content != reference.after.get(path):
                yield f"{path} was left (exit code {ended.code})"
        if ended.code == 0 and not elsewhere:
            for path in reference.after.keys() - after.keys():
                if "/.dagster/" not in path:  # whose files are named by chance
                    yield f"{path} was not made (exit code 0)"

    def try_it(self, name: str, words: Sequence[str], prepare: Callable[[], object] = lambda: None, **given):
        """Yield what is wrong with a command that is run in the folder; for what is given see `check`."""
        child = self.start(words, prepare)
        yield from self.check(name, child.wait(600, 600), group=child.pid, **given)


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def tree(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file, the target of every link; without history, locks and remembered times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(_NOT_COMPARED) or path.name == _FINGERPRINTS:
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def twice(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    bench.fresh(name)
    yield from bench.try_it(name, USES[name].line())
    before = tree(bench.trial), bench.written(name)
    yield from bench.try_it(name, USES[name].line())
    if (tree(bench.trial), bench.written(name)) != before:
        yield "the second call changed something, or wrote it again"


def wrong_input(bench: Bench, name: str, draw: random.Random, *, inputs: Sequence[str]) -> Iterator[str]:
    if USES[name].input is not None:
        bench.fresh(name)
        yield from bench.try_it(name, USES[name].line(input=draw.choice(inputs)), must_fail=True)


def into_its_input(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    for output in USES[name].onto:
        bench.fresh(name)
        for problem in bench.try_it(name, USES[name].line(output=output), elsewhere=True):
            yield f"onto {output}: {problem}"


def another_made_it(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """A file that it would write is there, and was made by another tool."""
    if made := bench.reference(name).made():
        file = bench.fresh(name) / draw.choice(made)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"of another tool")
        child = bench.start(USES[name].line())
        ended = child.wait()
        if file.read_bytes() != b"of another tool" or not any(words in ended.said for words in _ANOTHERS):
            yield f"{file.name} of another tool: exit code {ended.code}: {ended.said[-500:]}"
        file.unlink()
        yield from bench.check(name, ended, group=child.pid, must_fail=True)


def other_settings(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """What the same command made with other settings is replaced with --overwrite alone."""
    use, reference = USES[name], bench.reference(name)
    if not use.other:
        return
    bench.fresh(name)
    bench.run(use.line()).require_done()
    before = bench.written(name)
    yield from bench.try_it(name, [*use.line(), *use.other.split()], must_fail=True, says=_OTHERS)
    if bench.written(name) != before:
        yield "it was written again"
    bench.run([*use.line(), *use.other.split(), "--overwrite"]).require_done()
    if tree(bench.trial) == reference.after:
        yield "nothing was replaced"
    bench.run([*use.line(), "--overwrite"]).require_done()
    yield from bench.check(name, Outcome("done"))


def interrupted(bench: Bench, name: str, draw: random.Random, *, killed: bool = False) -> Iterator[str]:
    """At any moment, alone or with its workers; then it is run again."""
    seconds, use = draw.uniform(0.002, bench.reference(name).seconds * 1.1), USES[name]
    number = signal.SIGKILL if killed else draw.choice([signal.SIGINT, signal.SIGTERM])
    bench.fresh(name)
    child = bench.start(use.line())
    if not child.poll(seconds):
        child.send(number, group=draw.random() < 0.7)
    ended = child.wait()
    if ended.code not in (-number if killed else 128 + number, use.code):
        yield f"exit code {ended.code} after {number.name}: {ended.said[-1500:]}"
    yield from bench.check(name, ended, group=child.pid)
    again = bench.run(use.line())
    if again.code != use.code and bench.reference(name).after.keys() - tree(bench.trial).keys():
        yield f"it does not go on: {again.said[-1500:]}"
    yield from bench.check(name, again)


def no_right_to_write(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    folder, use = bench.fresh(name), USES[name]
    place = folder / (Path(use.output).parent if use.output is not None else ".")
    for path in (place, *place.rglob("*")):
        if path.is_dir() and path.name != "cache" and not path.is_symlink():
            path.chmod(0o555)
    yield from bench.try_it(name, use.line(), drop_rights, must_fail=use.output is not None)


def no_right_to_read(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    folder, use = bench.fresh(name), USES[name]
    if use.input is None:
        return
    path = folder / use.input
    path = path if path.exists() else path.with_suffix(".idx")
    mode = path.stat().st_mode
    path.chmod(0)
    ended = bench.run(use.line(), drop_rights)
    path.chmod(mode)
    yield from bench.check(name, ended, must_fail=True)


def no_place(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    if USES[name].output is not None:
        output = draw.choice(["pairs/x.bin/out", f"made/{'long' * 80}", "\udcff" * 300])
        bench.fresh(name)
        yield from bench.try_it(name, USES[name].line(output=output), must_fail=True)
        says = ("/proc/nowhere", "the folder cannot be made", "name a place")
        yield from bench.try_it(name, USES[name].line(output="/proc/nowhere/out"), must_fail=True, says=says)


def small_files(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    for size in (int(10 ** draw.uniform(0, 5)), 16):
        bench.fresh(name)
        child = bench.start(USES[name].line(), partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size)))
        ended = child.wait()
        if ended.code not in (0, USES[name].code) and "a file may not grow further" not in ended.said:
            yield f"it does not say why: {ended.said[-500:]}"
        yield from bench.check(name, ended, group=child.pid, must_fail=size == 16 and USES[name].output is not None)


def few_files(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    count = draw.randint(8, 40)
    bench.fresh(name)
    yield from bench.try_it(name, USES[name].line(), lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))


def full_output(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    def fill() -> None:
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    bench.fresh(name)
    yield from bench.try_it(name, USES[name].line(), fill, must_fail=True)


def full_disk(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """A small disk where the output goes, which only this process sees; needs root."""
    use, folder = USES[name], bench.fresh(name)
    places = [*use.disks] if use.output is None else [str(Path(use.output).parent), *use.disks]
    if not places:
        return
    if os.geteuid() != 0:
        raise Skipped("only root may mount a small disk")
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

    yield from bench.try_it(name, use.line(), mount, elsewhere=True)
    if use.disks:  # what the disk held is gone with it, which the rest of the folder does not know
        ended = bench.run(use.line())
        yield from bench.check(name, ended, elsewhere=True)
        if ended.code != use.code:
            yield f"it does not go on: {ended.said[-1500:]}"


def reader_gone(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """As `| head -1` does."""

    def leave() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    bench.fresh(name)
    problems = bench.try_it(name, USES[name].line(), leave)
    yield from (problem for problem in problems if not problem.startswith("exit code 1, and no word"))


def two_at_once(bench: Bench, name: str, draw: random.Random) -> Iterator[str]:
    """The second begins while the first is at work; its exit code is not seen, what it says and leaves is."""
    seconds = draw.uniform(0, bench.reference(name).seconds)

    def begin_another() -> None:
        if os.fork() == 0:
            time.sleep(seconds)

    bench.fresh(name)
    yield from bench.try_it(name, USES[name].line(), begin_another, patience=120)
    yield from bench.try_it(name, USES[name].line())


Fault = Callable[[Bench, str, random.Random], Iterator[str]]
FAULTS: dict[str, Fault] = {
    "twice": twice,
    "wrong input": partial(wrong_input, inputs=["nope", "nope/nanoset.yaml"]),
    "empty folder": partial(wrong_input, inputs=["hollow", "hollow/nanoset.yaml"]),
    "into its input": into_its_input,
    "another made it": another_made_it,
    "other settings": other_settings,
    "no right to write": no_right_to_write,
    "no right to read": no_right_to_read,
    "no place for it": no_place,
    "full output": full_output,
    "reader gone": reader_gone,
}
BY_CHANCE: dict[str, Fault] = {
    "full disk": full_disk,
    "small files": small_files,
    "few files": few_files,
    "two at once": two_at_once,
    "interrupted": interrupted,
    "killed": partial(interrupted, killed=True),
}
"""Faults that come otherwise in every trial."""


def import_everything() -> None:
    """Import what commands import on their way, so that forks need no time for it."""
    import pyarrow.parquet  # noqa: F401
    import tokenizers  # noqa: F401

    import nanoset_core.pipeline.stages
    import nanoset_core.shuffling.standalone
    import nanoset_core.verification.verify  # noqa: F401


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-dagster", action="store_true", help="leave out the commands that need Dagster")
    parser.add_argument("--warm", action="store_true", help="what engines know of the tokenizer is in the cache")


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each command and fault."""
    import_everything()
    bench = Bench(folder, warm=options.warm)

    def trial(name: str, fault: Fault, draw: random.Random) -> Trial:
        bench.reference(name)  # which needs the folder, and would undo what a trial has done to it
        return Trial(wrong=list(fault(bench, name, draw)))

    for name, use in USES.items():
        for fault, act in {} if use.needs_dagster and options.no_dagster else (FAULTS | BY_CHANCE).items():
            times = options.trials if fault in BY_CHANCE else 1
            yield each((name, fault), times, lambda draw, _, name=name, act=act: trial(name, act, draw))
