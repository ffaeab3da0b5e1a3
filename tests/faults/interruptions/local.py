"""Faults of one machine: kills, disks, rights, memory, clocks, and two builds at once."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.interruptions.places import LocalPlace, Place, begin, conclude, dispose, disturbed, start, start_command
from faults.interruptions.subject import Subject
from faults.runner import Child, Skipped, Trial, drop_rights, limit_memory

_STEPS = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ROOMY = "64m"
_PATIENCE = 60.0
"""seconds for a build that may wait for a thread that never came to life"""
_STILLBORN = "Exception ignored in thread started by"
"""What Python says when there is no memory for a new thread's first steps; who started it then waits forever, and is
killed by hand. Python's own code has no remedy for it, nor have we."""
_DAY = 86400
_JUMPS = (-30 * 365 * _DAY, -8 * _DAY, -3700, -2, 0, 2, 3700, 8 * _DAY, 30 * 365 * _DAY)
"""seconds by which a clock may be wrong: the limits of sweeps and of racy times lie between"""
_JUMP_CHANCE = 0.7
"""at each look at the clock"""


# Kills


def kill_at_random(place: Place, rng: random.Random, *, workers: int = 1, seconds: float = 0.0) -> Trial:
    """Kill a build at a moment drawn evenly from its whole time, and up to three that go on with it within theirs.

    seconds: how long an undisturbed `nanoset build` takes; 0 = the core's stages are run, whose time is known.
    """
    trial, command = Trial(), bool(seconds)
    subject = place.new(workers=workers)
    whole = seconds or place.seconds(workers)
    moment = rng.uniform(0, whole)
    for _ in range(rng.randint(1, 4)):
        build = begin(subject, command)
        time.sleep(moment)
        trial.counts["faults"] += build.kill(workers=rng.random() < 0.7)
        trial.ended(build.wait(), "killed", "done")
        trial.wrong += place.look(subject)
        moment = rng.uniform(0, 0.6 * whole)
    return conclude(place, subject, trial, command=command)


def count_steps(place: Place) -> int:
    """How many steps an undisturbed build takes."""
    subject = place.new()
    counted = subject.folder / ".steps"
    start(subject, prepare=lambda: _watch(subject.folder, 0, counted)).wait().require_done()
    steps = counted.stat().st_size
    dispose(subject)
    return steps


def kill_at_step(place: Place, step: int) -> Trial:
    """Kill a build just before it renames, links, removes or opens for writing for the step-th time (from 1)."""
    subject, trial = place.new(), Trial(Counter(faults=1))
    trial.ended(start(subject, prepare=lambda: _watch(subject.folder, step, None)).wait(), "killed")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def _watch(folder: Path, last: int, counted: Path | None) -> None:
    """In the build: count steps below a folder; end at the last, or note each as a byte of a file."""
    prefix, seen = str(folder), 0
    notes = None if counted is None else os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if not (event in _STEPS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES)):
            return
        if not str(arguments[0]).startswith(prefix):
            return
        seen += 1
        if notes is not None:
            os.write(notes, b".")
        elif seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


# Disks and rights


def full_disk(place: LocalPlace, rng: random.Random, *, command: bool = False) -> Trial:
    """Build onto a file system with less room than the outputs take, then give it room."""
    subject = place.new(workers=rng.choice((1, 1, 2)))
    needed = sum(path.stat().st_size for path in place.template.rglob("*") if path.is_file())
    pages = max(1, int(needed * rng.uniform(0.02, 1.1)) // 4096)
    return _mounted_build(place, subject, f"size={pages * 4096}", f"size={_ROOMY}", command=command)


def no_more_inodes(place: LocalPlace, rng: random.Random) -> Trial:
    """Build onto a file system that takes fewer files than there will be, then let it take more."""
    return _mounted_build(place, place.new(), f"nr_inodes={rng.randrange(2, 330)}", "nr_inodes=100000")


def _mounted_build(
    place: LocalPlace, subject: Subject, options: str, afterwards: str, *, command: bool = False
) -> Trial:
    with _mounted(subject.root, options):
        trial = disturbed(place, subject, begin(subject, command))
        _mount("-o", f"remount,{afterwards}", str(subject.root))
        return conclude(place, subject, trial, command=command, keep=True)


def short_files(place: LocalPlace, rng: random.Random) -> Trial:
    """Build where no file may grow beyond a limit, as some quotas have it; then without one."""
    subject, limit = place.new(), (int(2 ** rng.uniform(6, 18)), resource.RLIM_INFINITY)
    build = start(subject, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    return conclude(place, subject, disturbed(place, subject, build))


def forbidden_folders(place: LocalPlace, rng: random.Random) -> Trial:
    """Take the right to write from all folders of outputs at a random moment, or from the start; then give it back."""
    subject = place.new()
    at_start = rng.random() < 0.3
    if at_start:
        subject.root.mkdir(mode=0o555)
    build = start(subject, prepare=drop_rights)
    if not at_start:
        time.sleep(rng.uniform(0, place.seconds(1)))
        _set_rights(subject, 0o555)
    trial = disturbed(place, subject, build)
    _set_rights(subject, 0o755)
    return conclude(place, subject, trial)


def _set_rights(subject: Subject, mode: int) -> None:
    """Of the folder of outputs, where there is one, and of all below it."""
    for folder, _, _ in os.walk(subject.root):
        with contextlib.suppress(FileNotFoundError):
            Path(folder).chmod(mode)


def read_only_disk(place: LocalPlace, rng: random.Random) -> Trial:
    """Mount the outputs read-only, half-built, as kernels do after errors of a disk; then writable again."""
    subject = place.new()
    with _mounted(subject.root, f"size={_ROOMY}"):
        build = start(subject)
        time.sleep(rng.uniform(0, place.seconds(1)))
        build.kill()
        _mount("-o", "remount,ro", str(subject.root))
        trial = disturbed(place, subject, start(subject))
        trial.counts["faults"] = 1
        _mount("-o", "remount,rw", str(subject.root))
        return conclude(place, subject, trial, keep=True)


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


# Memory


def killed_worker(place: Place, rng: random.Random) -> Trial:
    """Kill the worker with the most memory in mid-task, as the kernel does when there is none left."""
    faults, subject = 0, place.new(workers=2)
    build = start(subject)
    moment = time.monotonic() + rng.uniform(0, place.seconds(2))
    while not build.poll() and time.monotonic() < moment + _PATIENCE:
        if time.monotonic() > moment and (largest := _largest_worker(build)) is not None:
            os.kill(largest, signal.SIGKILL)
            faults = 1
            break
        time.sleep(0.002)
    trial = disturbed(place, subject, build)
    trial.counts["faults"] = faults
    return conclude(place, subject, trial)


def _largest_worker(build: Child) -> int | None:
    """The worker process of a build that holds the most memory; None while there is none."""
    sizes = {}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{build.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    sizes[int(child)] = int(Path(f"/proc/{child}/statm").read_text().split()[1])
    return max(sizes, key=sizes.__getitem__, default=None)


def refused_memory(place: Place, rng: random.Random) -> Trial:
    """Build with little more address space than the process has, as under `ulimit -v`; then with enough."""
    subject = place.new()
    extra = int(2 ** rng.uniform(21, 29))
    build = start(subject, prepare=lambda: limit_memory(extra))
    if not build.poll(_PATIENCE) and _STILLBORN in build.said():
        build.kill()
    return conclude(place, subject, disturbed(place, subject, build, allowed=("killed",)))


# Clocks


def jumping_clock(place: Place, rng: random.Random) -> Trial:
    """Build with a clock that jumps to and fro, kill it, let all file times lie, and build with such a clock again."""
    trial, subject = Trial(), place.new()
    _shift_times(subject.folder / "raw", rng)
    for last in (False, True):
        seed = rng.getrandbits(64)
        jumps = subject.folder / ".jumps"
        jumps.write_bytes(b"")
        build = start(subject, prepare=lambda seed=seed, jumps=jumps: jump(seed, jumps))
        if not last:
            time.sleep(rng.uniform(0, place.seconds(1)))
            build.kill()
        trial.ended(build.wait(), "done", *(() if last else ("killed",)))
        trial.counts["faults"] += jumps.stat().st_size
        trial.wrong += place.look(subject)
        _shift_times(subject.folder, rng)
    trial.wrong += place.judge(subject)
    return conclude(place, subject, trial)


def jump(seed: int | None, jumps: Path | None = None) -> None:
    """In a build: let time.time and time.time_ns jump, and note each jump as a byte of a file; None: do nothing."""
    if seed is None:
        return
    rng, offset, (true, true_ns) = random.Random(seed), 0, (time.time, time.time_ns)
    notes = os.open(os.devnull if jumps is None else jumps, os.O_WRONLY | os.O_APPEND)

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


def two_builds(place: Place, rng: random.Random) -> Trial:
    """Two builds, started together or one a moment after the other; either may make everything again."""
    subject = place.new(workers=rng.choice((1, 1, 2)))

    def another() -> Child:
        rebuild, seed = rng.random() < 0.4, rng.getrandbits(64)
        clock = seed if rng.random() < 0.3 else None
        return start(subject, rebuild=rebuild, prepare=lambda: jump(clock))

    pause = rng.choice((0.0, rng.uniform(0, place.seconds(1))))
    return conclude(place, subject, _both(place, subject, another, pause))


def two_commands(place: Place, rng: random.Random) -> Trial:
    """`nanoset build` twice at once, with one history."""
    subject = place.new()

    def another() -> Child:
        return start_command(subject, *(["--force"] if rng.random() < 0.3 else []))

    return conclude(place, subject, _both(place, subject, another, rng.uniform(0, 3)))


def _both(place: Place, subject: Subject, another: Callable[[], Child], pause: float) -> Trial:
    first = another()
    time.sleep(pause)
    return together(place, subject, first, another())


def together(place: Place, subject: Subject, *builds: Child) -> Trial:
    """Wait for builds of the same thing, and look at what readers see."""
    trial = disturbed(place, subject, *builds)
    trial.counts["faults"] = 1
    return trial


def one_of_two_killed(place: Place, rng: random.Random) -> Trial:
    """Two builds at once, one of them killed: the other goes on."""
    subject = place.new()
    victim, other = start(subject), start(subject)
    time.sleep(rng.uniform(0, place.seconds(1)))
    faults = int(victim.kill())
    trial = disturbed(place, subject, other)
    trial.counts["faults"] = faults
    trial.ended(victim.wait(), "killed", "done")
    return conclude(place, subject, trial)
