"""Faults of one machine: kills, disks, rights, memory, clocks, and two builds at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from campaigns.interruptions.places import Attempt, LocalPlace, Place, start
from campaigns.interruptions.subject import LONG, LONG_FILES, outputs, visible, write_subject
from campaigns.runner import Child, Skipped, Trial, drop_rights, limit_memory, watch
from helpers.sample_project import encoded, sentences

_ROOMY = "size=64m"
_PATIENCE = 60.0
"""seconds for a build that may wait for a thread that never came to life"""
_STILLBORN = "Exception ignored in thread started by"
"""What Python says when there is no memory for a new thread's first steps; who started it then
waits forever, and is killed by hand. Python's own code has no remedy for it, nor have we."""
_DAY = 86400
_JUMPS = (-30 * 365 * _DAY, -8 * _DAY, -3700, -2, 0, 2, 3700, 8 * _DAY, 30 * 365 * _DAY)
"""seconds by which a clock may be wrong: the limits of sweeps and of racy times lie between"""
_JUMP_CHANCE = 0.7
"""at each look at the clock"""


# Kills


def kill_at_random(on: Attempt) -> Iterator[None]:
    """Kill a build at a moment drawn evenly from its whole time, and up to three that go on with it
    within theirs.
    """
    for number in range(on.rng.randint(1, 4)):
        build = on.start()
        on.sleep(0.6 if number else 1.0)
        build.kill(workers=on.rng.random() < 0.7)
        on.wait(build, allowed=("killed", "done"))
    yield


@cache
def _steps(place: Place) -> int:
    """How many steps an undisturbed build takes."""
    counted = place.base / ".steps"
    place.undisturbed(lambda: watch(place.base, 0, counted))
    return counted.stat().st_size


def kill_at_step(on: Attempt) -> Iterator[None]:
    """Kill a build just before it renames, links, removes or opens for writing for a time."""
    step = on.step(_steps(on.place))
    on.wait(on.start(lambda: watch(on.subject.folder, step)), allowed=("killed",))
    yield


# Disks and rights


def full_disk(on: Attempt, *, of_inodes: bool = False) -> Iterator[None]:
    """Build onto a file system with less room, or room for fewer files, than the outputs take, then
    give it room.
    """
    needed = sum(path.stat().st_size for path in on.place.template.rglob("*") if path.is_file())
    pages = max(1, int(needed * on.rng.uniform(0.02, 1.1)) // 4096)
    limit = f"nr_inodes={on.rng.randrange(2, 330)}" if of_inodes else f"size={pages * 4096}"
    with _mounted(on.subject.root, limit):
        on.wait(on.start())
        _mount("-o", f"remount,{'nr_inodes=100000' if of_inodes else _ROOMY}", str(on.subject.root))
        yield


def read_only_disk(on: Attempt) -> Iterator[None]:
    """Mount the outputs read-only, half-built, as kernels do after errors of a disk; then writable
    again.
    """
    with _mounted(on.subject.root, _ROOMY):
        build = on.start()
        on.sleep()
        build.kill()
        _mount("-o", "remount,ro", str(on.subject.root))
        on.wait(on.start())
        _mount("-o", "remount,rw", str(on.subject.root))
        yield


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at a folder until the block ends."""
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Skipped(f"nothing can be mounted here ({error})") from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=True)


def forbidden_folders(on: Attempt) -> Iterator[None]:
    """Take the right to write from all folders of outputs at a random moment; then give it back."""
    build = on.start(drop_rights)
    on.sleep()
    _set_rights(on.subject.root, 0o555)
    on.wait(build)
    _set_rights(on.subject.root, 0o755)
    yield


def _set_rights(root: Path, mode: int) -> None:
    for folder, _, _ in os.walk(root):
        with contextlib.suppress(FileNotFoundError):
            Path(folder).chmod(mode)


# Memory


def killed_worker(on: Attempt) -> Iterator[None]:
    """Kill the worker with the most memory in mid-task, as the kernel does when there is none left."""
    build = on.start()
    on.sleep()
    deadline, faults = time.monotonic() + _PATIENCE, 0
    while not faults and not build.poll(0.002) and time.monotonic() < deadline:
        if (largest := _largest_worker(build)) is not None:
            os.kill(largest, signal.SIGKILL)
            faults = 1
    on.wait(build)
    on.trial.counts["faults"] = faults
    yield


def _largest_worker(build: Child) -> int | None:
    """The worker process of a build that holds the most memory; None while there is none."""
    sizes = {}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{build.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    sizes[int(child)] = int(Path(f"/proc/{child}/statm").read_text().split()[1])
    return max(sizes, key=sizes.__getitem__, default=None)


def refused_memory(on: Attempt) -> Iterator[None]:
    """Build with little more address space than the process has, as under `ulimit -v`; then with
    enough.
    """
    extra = int(2 ** on.rng.uniform(21, 29))
    build = on.start(lambda: limit_memory(extra))
    if not build.poll(_PATIENCE) and _STILLBORN in build.said():
        build.kill()
    on.wait(build, allowed=("refused", "done", "killed"))
    yield


# Clocks


def jumping_clock(on: Attempt) -> Iterator[None]:
    """Build with a clock that jumps to and fro, kill it, let all file times lie, and build with
    such a clock again.
    """
    _shift_times(on.subject.folder / "raw", on.rng)
    jumps = on.subject.folder / ".jumps"
    for last in (False, True):
        build = on.start(partial(jump, on.rng.getrandbits(64), jumps))
        if not last:
            on.sleep()
            build.kill()
        on.wait(build, allowed=("done",) if last else ("done", "killed"))
        _shift_times(on.subject.folder, on.rng)
    on.trial.counts["faults"] += jumps.stat().st_size if jumps.exists() else 0
    on.trial.wrong += on.place.judge(on.subject)
    yield


def jump(seed: int, jumps: Path | None = None) -> None:
    """In a build: let time.time and time.time_ns jump, and note each jump as a byte of a file."""
    rng, offset, (true, true_ns) = random.Random(seed), 0, (time.time, time.time_ns)
    notes = os.open(jumps or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def look() -> int:
        nonlocal offset
        if rng.random() < _JUMP_CHANCE:
            offset = rng.choice(_JUMPS)
            os.write(notes, b".")
        return offset

    time.time = lambda: true() + look()
    time.time_ns = lambda: true_ns() + look() * 10**9


def _shift_times(folder: Path, rng: random.Random) -> None:
    """Let a third of the files below a folder look as if written long ago, or years from now."""
    now = time.time()
    for path in sorted(folder.rglob("*")):
        if rng.random() < 0.34 and path.is_file() and not path.is_symlink():
            then = max(0.0, now + rng.choice(_JUMPS))
            os.utime(path, (then, then))


# Two at once


def two_builds(on: Attempt, *, one_killed: bool = False) -> Iterator[None]:
    """Two builds, started together or one a moment after the other; either may make everything
    again.

    one_killed: the first is killed, and the other goes on.
    """

    def another() -> Child:
        rebuild, seed = on.rng.random() < 0.4, on.rng.getrandbits(64)
        clock = on.rng.random() < 0.3
        return on.start(lambda: jump(seed) if clock else None, rebuild=rebuild)

    first = another()
    if not one_killed and on.rng.random() < 0.5:
        on.sleep()
    second = another()
    if one_killed:
        on.sleep()
        first.kill()
    on.wait(second)
    on.wait(first, allowed=("killed", "done") if one_killed else ("refused", "done"))
    on.trial.counts["faults"] = 1
    yield


# Source files that change while they are read


def append(path: Path, steps: int = 1) -> None:
    """More documents at its end; a table is written anew, since it cannot grow."""
    if path.name.endswith(".parquet"):
        return replace(path)
    for step in range(steps):
        with path.open("ab") as file:
            file.write(encoded(path.name, sentences(f"late {step}", 40 // steps), 40))
        time.sleep(0.01 if steps > 1 else 0)


def grow(path: Path) -> None:
    """More documents bit by bit, as of an upload under way."""
    append(path, steps=8)


def truncate(path: Path) -> None:
    """Its second half is cut off."""
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    """Other bytes in the same place, as many as before: lines in another order, or damage to what
    is compressed.
    """
    data = path.read_bytes()
    lines = b"\n".join(reversed(data.split(b"\n")[:-1])) + b"\n"
    other = (
        lines
        if path.name.endswith(".jsonl")
        else data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :]
    )
    with path.open("r+b") as file:
        file.write(other)


def replace(path: Path) -> None:
    """Another file takes its name."""
    other = path.with_name(".other")
    other.write_bytes(encoded(path.name, sentences("late", 200), 50))
    other.rename(path)


CHANGES: tuple[Callable[[Path], None], ...] = (
    append,
    grow,
    truncate,
    rewrite,
    replace,
    Path.unlink,
)


def changed_while_read(place: LocalPlace, rng: random.Random, number: int) -> Trial:
    """Change one file at a random moment of a build; then build again, and compare with a fresh
    build of what is there.

    place: gives the folder and the time that a build takes.
    """
    change, victim = (
        CHANGES[number % len(CHANGES)],
        LONG_FILES[number // len(CHANGES) % len(LONG_FILES)],
    )
    subject = write_subject(place.base / f"changed-{number}", workers=rng.choice((1, 1, 2)), long=2)
    on = Attempt(place, subject, rng, 0)
    build = on.start()
    on.sleep(1.5)
    on.trial.counts["faults"] = int(not build.poll())
    change(subject.folder / "raw" / LONG / victim)
    on.trial.ended(build.wait(), "done", "refused")
    on.trial.wrong += inconsistent(subject.root)
    afterwards, fresh = on.start().wait(), subject.beside("-fresh")
    shutil.copytree(subject.folder, fresh.folder, ignore=shutil.ignore_patterns("data"))
    wanted = start(fresh).wait()
    if wanted.end != afterwards.end or afterwards.end not in ("done", "refused"):
        on.trial.wrong.append(
            f"after the change it ended as {afterwards}; a fresh build as {wanted}"
        )
    on.trial.wrong += inconsistent(subject.root)
    if wanted.end == "done":
        found = outputs(subject.root)
        differing = [
            name for name, digest in outputs(fresh.root).items() if found.get(name) != digest
        ]
        on.trial.wrong += [f"{name} is not as of a fresh build" for name in differing]
    if not on.trial.wrong:
        shutil.rmtree(subject.folder)
    shutil.rmtree(fresh.folder)
    return on.trial


def inconsistent(root: Path) -> list[str]:
    """Files that readers see and that no manifest lists with their very bytes."""
    shown = visible(root) if root.is_dir() else {}
    listed: dict[str, str] = {}
    for name in (name for name in shown if name.endswith("/manifest.json")):
        manifest = json.loads(shown[name].read_bytes())
        folder = name.removesuffix("manifest.json")
        listed |= {folder + file: fact["sha256"] for file, fact in manifest["files"].items()}
        cache = "/".join(["nanosets", *name.split("/")[1:2], "cache", ""])
        listed |= {
            cache + file: fact["sha256"]
            for file, fact in manifest["facts"].get("cache_files", {}).items()
        }
    missing = [f"{name} is listed and not there" for name in listed if name not in shown]
    digests = {
        name: hashlib.sha256(shown[name].read_bytes()).hexdigest()
        for name in listed
        if name in shown
    }
    other = [name for name, digest in digests.items() if digest != listed[name]]
    return missing + [f"{name} has other bytes than its manifest says" for name in other]
