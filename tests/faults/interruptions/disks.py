"""Disks that are full, files that may not grow, and folders that may not be written to."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.interruptions.places import LocalPlace, begin, conclude
from faults.interruptions.processes import start
from faults.interruptions.subject import Subject
from faults.interruptions.trials import Trial

_CAPABILITY_VERSION = 0x20080522
_OVERRIDING = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH"""
_ROOMY = "64m"


def full_disk(place: LocalPlace, rng: random.Random, *, command: bool = False) -> Trial | str:
    """Build onto a file system with less room than the outputs take, then give it room."""
    subject = place.new(workers=rng.choice((1, 1, 2)))
    needed = sum(path.stat().st_size for path in place.template.rglob("*") if path.is_file())
    pages = max(1, int(needed * rng.uniform(0.02, 1.1)) // 4096)
    with _mounted(subject.root, f"size={pages * 4096}") as reason:
        if reason:
            return reason
        trial = Trial()
        outcome = begin(subject, command).wait()
        trial.ended(outcome, "refused", "done")
        trial.faults = int(outcome.end != "done")
        trial.wrong += place.look(subject)
        _mount("-o", f"remount,size={_ROOMY}", str(subject.root))
        return conclude(place, subject, trial, command=command, keep=True)


def no_more_inodes(place: LocalPlace, rng: random.Random) -> Trial | str:
    """Build onto a file system that takes fewer files than there will be, then let it take more."""
    subject = place.new()
    with _mounted(subject.root, f"nr_inodes={rng.randrange(2, 330)}") as reason:
        if reason:
            return reason
        trial = Trial()
        outcome = start(subject).wait()
        trial.ended(outcome, "refused", "done")
        trial.faults = int(outcome.end != "done")
        trial.wrong += place.look(subject)
        _mount("-o", "remount,nr_inodes=100000", str(subject.root))
        return conclude(place, subject, trial, keep=True)


def short_files(place: LocalPlace, rng: random.Random) -> Trial:
    """Build where no file may grow beyond a limit, as some quotas have it; then without one."""
    subject = place.new()
    limit = int(2 ** rng.uniform(6, 18))
    trial = Trial()
    outcome = start(
        subject, prepare=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    ).wait()
    trial.ended(outcome, "refused", "done")
    trial.faults = int(outcome.end != "done")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def forbidden_folders(place: LocalPlace, rng: random.Random) -> Trial:
    """Take the right to write from all folders of outputs at a random moment, or from the start; then give it back."""
    subject = place.new()
    at_start = rng.random() < 0.3
    if at_start:
        subject.root.mkdir(mode=0o555)
    build = start(subject, prepare=_be_bound_by_rights)
    if not at_start:
        time.sleep(rng.uniform(0, place.seconds(1)))
        _set_rights(subject, 0o555)
    trial = Trial()
    outcome = build.wait()
    trial.faults = int(outcome.end != "done")
    trial.ended(outcome, "refused", "done")
    trial.wrong += place.look(subject)
    _set_rights(subject, 0o755)
    return conclude(place, subject, trial)


def _set_rights(subject: Subject, mode: int) -> None:
    """Of the folder of outputs, where there is one, and of all below it."""
    for folder, _, _ in os.walk(subject.root):
        with contextlib.suppress(FileNotFoundError):
            Path(folder).chmod(mode)


def _be_bound_by_rights() -> None:
    """In the build: let go of root's power to write where nobody may."""
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for number in range(3):  # effective, permitted, inheritable
        sets[number] &= ~_OVERRIDING
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def read_only_disk(place: LocalPlace, rng: random.Random) -> Trial | str:
    """Mount the outputs read-only, half-built, as kernels do after errors of a disk; then writable again."""
    subject = place.new()
    with _mounted(subject.root, f"size={_ROOMY}") as reason:
        if reason:
            return reason
        trial = Trial()
        build = start(subject)
        time.sleep(rng.uniform(0, place.seconds(1)))
        build.kill()
        _mount("-o", "remount,ro", str(subject.root))
        trial.ended(start(subject).wait(), "refused", "done")
        trial.wrong += place.look(subject)
        _mount("-o", "remount,rw", str(subject.root))
        return conclude(place, subject, trial, keep=True)


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[str]:
    """A file system in memory at a folder until the block ends; → why that cannot be, or ""."""
    folder.mkdir()
    failed = _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield failed
    finally:
        if not failed:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> str:
    """→ what mount says when it fails."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no mount command"
    return "" if done.returncode == 0 else f"nothing can be mounted here ({done.stderr.strip()[:80]})"
