"""Every command under the same faults: twice, in turn and at once, into its own input or what is
another's, killed …

A command may not end in a traceback, leave a process, change what it was not asked to change, or
succeed where it cannot have done its work; what it leaves when it fails must be hidden, or what it
leaves when it succeeds.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaigns.runner import Child, Kind, Outcome, Skipped, Trial, drop_rights, each, watch
from campaigns.uses import USES, Use, commands, make_world
from helpers.child_processes import members, wait_until
from nanoset_core.cli import main
from nanoset_core.stages.shards import preprocess_ranges

HEAD, COLUMNS, TRIALS = ("command", "fault"), (), 5
NOISE = (
    "Traceback",
    "internal error",
    "Exception ignored",
    "sqlalchemy",
    "SpawnProcess",
    "Aborted",
)
SAID_AFTER = {
    number: f"{by}: what is finished is kept; run the same command again to continue"
    for number, by in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM"))
}
WORDS = ("error: ", "Error: ", "failed: ", "run the same command again")
_ON_THEIR_WAY = """isal.isal_zlib multiprocessing.synchronize numpy.random pyarrow.dataset pyarrow.parquet rich.console
rich.status rich.table tokenizers yaml zstandard nanoset_core.lineage.explain nanoset_core.stages.registry
nanoset_core.stages.webdataset.standalone.preview
nanoset_core.stages.webdataset.standalone.shuffle nanoset_core.project.verify nanoset_core.project.status"""
"""What commands import, besides their own modules: forks need no time for it."""
_NOT_COMPARED = (".dagster/", "data/.in-use/", "cache/")
_ANOTHERS = (
    "nothing says what it was made from",
    "something else",
    "would say what it was made from",
    "already",
)
# the last is of workers' semaphores
_SMALL = ("a file may not grow further", "takes no more", "[Errno 0]")
_NEW_NAMESPACE, _PRIVATE = 0x00020000, 1 << 18 | 1 << 14
Wrong = Iterator[str]
"""What is wrong with how a command ended."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a command does where nothing goes wrong."""

    before: dict[str, str]
    after: dict[str, str]
    seconds: float

    def made(self) -> list[str]:
        """Return the files for readers that it makes, but for those of a project and what editors
        take.
        """
        new = (name for name in self.after.keys() - self.before.keys() if not _is_hidden(name))
        return sorted(
            name
            for name in new
            if not name.startswith(("data/", "unbuilt/")) and not name.endswith(".schema.json")
        )


class World:
    """A small world, of which each attempt gets a fresh copy in the same place."""

    def __init__(self, folder: Path, *, warm: bool) -> None:
        self.trial, self.sound = folder / "trial", folder / "world"
        self.references: dict[str, Reference] = {}

        def make() -> None:
            os.environ["XDG_CACHE_HOME"] = str(self.trial / "cache" if warm else folder / "other")
            make_world(self.trial)

        Child(make).wait().require_done()  # it leaves no threads here
        list(commands())  # imports their modules
        for name in _ON_THEIR_WAY.split():
            importlib.import_module(name)
        self.trial.rename(self.sound)


class Attempt:
    """A use of a command, to be tried under a fault."""

    def __init__(self, world: World, name: str, draw: random.Random) -> None:
        self._world, self._name, self.draw = world, name, draw
        self.use: Use = USES[name]
        self.folder = world.trial
        if name not in world.references:
            before, begun = tree(self.fresh()), time.monotonic()
            self.run().require_done()
            world.references[name] = Reference(before, tree(self.folder), time.monotonic() - begun)
        self.reference = world.references[name]

    def fresh(self) -> Path:
        """The folder as it was, without the project's outputs where a use has no project."""
        if self.folder.exists():
            for path in (self.folder, *self.folder.rglob("*")):
                if path.is_dir() and not path.is_symlink():
                    path.chmod(0o755)
            shutil.rmtree(self.folder)
        needless = None if "{project}" in self.use.words else shutil.ignore_patterns("data")
        shutil.copytree(self._world.sound, self.folder, symlinks=True, ignore=needless)
        (self.folder / "cache").mkdir(exist_ok=True)
        return self.folder

    def written(self) -> list[tuple[int, int]]:
        """Which files its outputs are, and when they were written."""
        found = [(self.folder / path).lstat() for path in self.reference.made()]
        return [(stat.st_ino, stat.st_mtime_ns) for stat in found]

    def start(
        self, *more: str, prepare: Callable[[], object] = lambda: None, **places: str
    ) -> Child:
        """Start it; more: further words; prepare: called in its process first; places: another
        input or output.
        """
        # before the process is there that a signal may reach
        words = [*self.use.line(**places), *more]

        def work() -> None:
            os.chdir(self.folder)
            cache = str(self.folder / "cache")
            os.environ |= {"XDG_CACHE_HOME": cache, "COLUMNS": "200", "TMPDIR": cache}
            preprocess_ranges.MIN_RANGE_BYTES = (
                1 << 12
            )  # so that there is work for more than one process
            prepare()
            main(words)

        return Child(work)

    def run(self, *more: str) -> Outcome:
        """Run it to its end."""
        return self.start(*more).wait()

    def try_it(
        self, *more: str, prepare: Callable[[], object] = lambda: None, fresh: bool = True, **told
    ) -> Wrong:
        """Run it on a fresh copy, or on what is there, and check; told: see `check`, or another
        input or output.
        """
        places = {name: told.pop(name) for name in ("input", "output") if name in told}
        if fresh:
            self.fresh()
        yield from self.check(self.start(*more, prepare=prepare, **places), **told)

    def check(
        self,
        child: Child | None = None,
        *,
        must_fail: bool = False,
        says: Sequence[str] = (),
        elsewhere: bool = False,
        patience: float = 5,
    ) -> Wrong:
        """Wait for its end, and look.

        Args:
            child: its process; None: it has ended well.
            must_fail: it cannot have done its work.
            says: words that it has to say.
            elsewhere: its output went to another place than usual.
            patience: seconds that other processes may take to end after it.
        """
        ended = child.wait() if child else Outcome("done")
        if child and not wait_until(lambda: not members(child.pid), patience):
            yield f"it left {len(members(child.pid))} processes"
            os.killpg(child.pid, signal.SIGKILL)
        said = ended.said[-1500:]
        yield from (f"it says {noise!r}: {said}" for noise in NOISE if noise in ended.said)
        yield from (
            f"it does not say {words!r}: {said}" for words in says if words not in ended.said
        )
        if ended.end == "hung":
            yield "it hangs"
        if must_fail and ended.code == 0:
            yield f"exit code 0: {said}"
        if ended.code not in (0, -signal.SIGKILL) and not any(word in ended.said for word in WORDS):
            yield f"exit code {ended.code}, and no word why: {said}"
        before, wanted, after = self.reference.before, self.reference.after, tree(self.folder)
        for path, content in before.items():
            if after.get(path) != content and not path.startswith(self.use.rewrites or ("\0",)):
                yield (
                    f"{path} was {'changed' if path in after else 'removed'} (exit code "
                    f"{ended.code})"
                )
        if elsewhere and ended.code == 0:
            return
        left = (path for path in after.keys() - before.keys() if not _is_hidden(path))
        yield from (
            f"{path} was left (exit code {ended.code})"
            for path in left
            if after[path] != wanted.get(path)
        )
        missing = wanted.keys() - after.keys() if ended.code == 0 else ()
        # which chance has named
        yield from (f"{path} was not made" for path in missing if "/.dagster/" not in path)


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def tree(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file, the target of every link; without history, locks and
    remembered times.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(_NOT_COMPARED) or path.name == ".fingerprints.json":
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def twice(on: Attempt) -> Wrong:
    yield from on.try_it()
    before = tree(on.folder), on.written()
    yield from on.try_it(fresh=False)
    if (tree(on.folder), on.written()) != before:
        yield "the second call changed something, or wrote it again"


def wrong_input(*inputs: str) -> Fault:
    def try_one(on: Attempt) -> Wrong:
        if on.use.input is not None:
            yield from on.try_it(input=on.draw.choice(inputs), must_fail=True)

    return try_one


def into_its_input(on: Attempt) -> Wrong:
    for output in on.use.onto:
        yield from (
            f"onto {output}: {problem}" for problem in on.try_it(output=output, elsewhere=True)
        )


def another_made_it(on: Attempt) -> Wrong:
    """A file that it would write is there, and was made by another tool."""
    if made := on.reference.made():
        file = on.fresh() / on.draw.choice(made)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"of another tool")
        child = on.start()
        ended = child.wait()
        if file.read_bytes() != b"of another tool" or not any(
            words in ended.said for words in _ANOTHERS
        ):
            yield f"{file.name} of another tool: exit code {ended.code}: {ended.said[-500:]}"
        # it may be replaced when that is asked
        if on.use.other and file.parent == (on.folder / on.use.output).parent:
            on.run("--overwrite").require_done()
            return (yield from on.check())
        file.unlink()
        yield from on.check(child, must_fail=True)


def other_settings(on: Attempt) -> Wrong:
    """What the same command made with other settings is replaced with --overwrite alone."""
    if not on.use.other:
        return
    other, says = on.use.other.split(), ("other input or settings", "--overwrite")
    on.fresh()
    on.run().require_done()
    before = on.written()
    yield from on.try_it(*other, fresh=False, must_fail=True, says=says)
    if on.written() != before:
        yield "it was written again"
    on.run(*other, "--overwrite").require_done()
    if tree(on.folder) == on.reference.after:
        yield "nothing was replaced"
    on.run("--overwrite").require_done()
    yield from on.check()


def interrupted(on: Attempt, *numbers: signal.Signals) -> Wrong:
    """At any moment, alone or with its workers; then it is run again."""
    number = on.draw.choice(numbers or [signal.SIGINT, signal.SIGTERM])
    on.fresh()
    child = on.start()
    if not child.poll(on.draw.uniform(0.002, on.reference.seconds * 1.1)):
        child.send(number, group=on.draw.random() < 0.7)
    ended = child.wait()
    if ended.code not in (-number if number == signal.SIGKILL else 128 + number, 0):
        yield f"exit code {ended.code} after {number.name}: {ended.said[-1500:]}"
    if ended.code > 0 and ended.said.count(SAID_AFTER[number]) != 1:
        yield f"it does not say {SAID_AFTER[number]!r} once: {ended.said[-1500:]}"
    yield from on.check(child)
    yield from _goes_on(on)


def _goes_on(on: Attempt) -> Wrong:
    again = on.start()
    ended = again.wait()
    if ended.code and on.reference.after.keys() - tree(on.folder).keys():
        yield f"it does not go on: {ended.said[-1500:]}"
    yield from on.check(again)


def killed_at_steps(on: Attempt) -> Wrong:
    """Just before it makes, renames, removes or opens something for writing: anywhere, and near its
    end.
    """
    counted = on.fresh() / "cache" / ".steps"
    on.start(prepare=lambda: watch(on.folder, 0, counted)).wait().require_done()
    steps = counted.stat().st_size
    for first in (1, max(1, steps - 12), max(1, steps - 12)):
        step = on.draw.randint(first, steps)
        yield from on.try_it(prepare=lambda step=step: watch(on.folder, step))
        yield from _goes_on(on)


def no_right_to_write(on: Attempt) -> Wrong:
    place = on.fresh() / (Path(on.use.output).parent if on.use.output is not None else ".")
    for path in (place, *place.rglob("*")):
        if path.is_dir() and path.name != "cache" and not path.is_symlink():
            path.chmod(0o555)
    yield from on.try_it(fresh=False, prepare=drop_rights, must_fail=on.use.output is not None)


def no_right_to_read(on: Attempt) -> Wrong:
    if on.use.input is None:
        return
    path = on.fresh() / on.use.input
    path = path if path.exists() else path.with_suffix(".idx")
    mode = path.stat().st_mode
    path.chmod(0)
    child = on.start(prepare=drop_rights)
    child.wait()
    path.chmod(mode)
    yield from on.check(child, must_fail=True)


def no_place(on: Attempt) -> Wrong:
    if on.use.output is not None:
        output = on.draw.choice(["pairs/x.bin/out", f"made/{'long' * 80}", "\udcff" * 300])
        yield from on.try_it(output=output, must_fail=True)
        says = ("/proc/nowhere", "the folder cannot be made", "name a place")
        yield from on.try_it(output="/proc/nowhere/out", must_fail=True, says=says)


def small_files(on: Attempt) -> Wrong:
    for size in (int(10 ** on.draw.uniform(0, 5)), 16):
        on.fresh()
        child = on.start(
            prepare=lambda size=size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        )
        ended = child.wait()
        if ended.code and not any(word in ended.said for word in _SMALL):
            yield f"it does not say why: {ended.said[-500:]}"
        yield from on.check(child, must_fail=size == 16 and on.use.output is not None)


def few_files(on: Attempt) -> Wrong:
    count = on.draw.randint(8, 40)
    yield from on.try_it(prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))


def full_output(on: Attempt) -> Wrong:
    yield from on.try_it(
        prepare=lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1), must_fail=True
    )


def full_disk(on: Attempt) -> Wrong:
    """A small disk where the output goes, which only this process sees; needs root."""
    places = (
        [*on.use.disks]
        if on.use.output is None
        else [str(Path(on.use.output).parent), *on.use.disks]
    )
    if not places:
        return
    if os.geteuid() != 0:
        raise Skipped("only root may mount a small disk")
    disk = on.fresh() / on.draw.choice(places)
    disk.mkdir(exist_ok=True)
    # A build writes a thousand times what some commands do.
    pages, files = (
        int(10 ** on.draw.uniform(0, 3 if on.use.disks else 1.8)),
        on.draw.choice([64, 4096]),
    )

    def mount() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.unshare(_NEW_NAMESPACE) or libc.mount(b"none", b"/", None, _PRIVATE, None)
        size = f"size={pages << 12},nr_inodes={files}".encode()
        if made or libc.mount(b"none", str(disk).encode(), b"tmpfs", 0, size):
            os._exit(0)  # a container may not

    yield from on.try_it(fresh=False, prepare=mount, elsewhere=True)
    # what the disk held is gone with it, which the rest of the folder does not know
    if on.use.disks:
        again = on.start()
        if again.wait().code:
            yield f"it does not go on: {again.said()[-1500:]}"
        yield from on.check(again, elsewhere=True)


def reader_gone(on: Attempt) -> Wrong:
    """As `| head -1` does."""

    def leave() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    yield from (
        problem
        for problem in on.try_it(prepare=leave)
        if not problem.startswith("exit code 1, and no word")
    )


def two_at_once(on: Attempt) -> Wrong:
    """The second begins while the first is at work; its exit code is not seen, what it says and
    leaves is.
    """
    seconds = on.draw.uniform(0, on.reference.seconds)
    yield from on.try_it(prepare=lambda: os.fork() or time.sleep(seconds), patience=120)
    yield from on.try_it(fresh=False)


Fault = Callable[[Attempt], Wrong]
FAULTS: dict[str, Fault] = {
    "twice": twice,
    "wrong input": wrong_input("nope", "nope/nanoset.yaml"),
    "empty folder": wrong_input("hollow", "hollow/nanoset.yaml"),
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
    "killed": lambda on: interrupted(on, signal.SIGKILL),
    "killed at steps": killed_at_steps,
}
"""Faults that come otherwise in every trial."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-dagster", action="store_true", help="leave out the commands that need Dagster"
    )
    parser.add_argument(
        "--warm", action="store_true", help="what engines know of the tokenizer is in the cache"
    )


def kinds(folder: Path, options: argparse.Namespace) -> Iterator[Kind]:
    """A kind for each command and fault."""
    world = World(folder, warm=options.warm)
    for name, use in USES.items():
        for fault, act in (
            {} if use.needs_dagster and options.no_dagster else (FAULTS | BY_CHANCE).items()
        ):
            times = options.trials if fault in BY_CHANCE else 1

            def trial(
                draw: random.Random, _number: int, name: str = name, act: Fault = act
            ) -> Trial:
                return Trial(wrong=list(act(Attempt(world, name, draw))))

            yield each((name, fault), times, trial)
