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
from functools import cache
from pathlib import Path

from campaigns.interruptions.places import BuildAttempt, LocalPlace, Place, start
from campaigns.interruptions.subject import (
    LONG,
    LONG_FILES,
    Subject,
    outputs,
    visible,
    write_subject,
)
from campaigns.runner import Child, End, Skipped, Trial, drop_rights, limit_memory, watch
from helpers.sample_project import encoded, sentences

_LARGE_SIZE = "size=64m"
"""Mount option: more room than the outputs take."""
_PAGE_BYTES = 4096
"""A file system in memory gives room in pages of this size."""
_PATIENCE = 60.0
"""Seconds to wait for a build that may wait for a thread that has never started."""
_FAILED_THREAD = "Exception ignored in thread started by"
"""What Python prints if a new thread has no memory for its first steps.

The thread that started it then waits forever, and the trial kills the build. This is a fault of
Python itself, which nanoset cannot avoid.
"""
_ABORTED = "cannot allocate memory for thread-local data: ABORT"
"""What the C library prints before it ends a process that has no memory for a thread or library."""
_DAY = 86400
_JUMPS = (-30 * 365 * _DAY, -8 * _DAY, -3700, -2, 0, 2, 3700, 8 * _DAY, 30 * 365 * _DAY)
"""Seconds by which a clock is wrong.

They are shorter and longer than the ages at which nanoset removes what dead builds have left, and
than the ages from which it trusts the time of a file.
"""
_JUMP_CHANCE = 0.7
"""Probability that the clock jumps when a program reads it."""


# Kills


def kill_at_random(attempt: BuildAttempt) -> Iterator[None]:
    """Kill a build at a random moment, and then up to three builds that continue its work."""
    for number in range(attempt.rng.randint(1, 4)):
        build = attempt.start()
        # A build that continues has less to do, and ends earlier.
        attempt.sleep(0.6 if number else 1.0)
        build.kill(workers=attempt.rng.random() < 0.7)
        attempt.wait(build, allowed=("killed", "done"))
    yield


@cache
def _count_steps(place: Place) -> int:
    """Return the number of steps, as `watch` counts them, of a build without disturbance."""
    notes = place.base / ".steps"
    place.undisturbed(lambda: watch(place.base, 0, notes))
    # `watch` appends a byte for each step.
    return notes.stat().st_size


def kill_at_step(attempt: BuildAttempt) -> Iterator[None]:
    """Kill a build just before it renames, links, removes or opens for writing a certain file."""
    step = attempt.step(_count_steps(attempt.place))
    build = attempt.start(lambda: watch(attempt.subject.folder, step))
    attempt.wait(build, allowed=("killed",))
    yield


# Disks and rights


def full_disk(attempt: BuildAttempt, *, of_inodes: bool = False) -> Iterator[None]:
    """Build on a disk that is too small for the outputs, then enlarge the disk.

    Args:
        attempt: The build.
        of_inodes: Whether the number of files is limited, and not their size.
    """
    assert isinstance(attempt.place, LocalPlace)
    files = [path for path in attempt.place.template.rglob("*") if path.is_file()]
    template_bytes = sum(path.stat().st_size for path in files)
    # Sometimes the disk is large enough: the last step may be the one that fails.
    n_pages = max(1, int(template_bytes * attempt.rng.uniform(0.02, 1.1)) // _PAGE_BYTES)
    if of_inodes:
        small = f"nr_inodes={attempt.rng.randrange(2, 330)}"
        large = "nr_inodes=100000"
    else:
        small = f"size={n_pages * _PAGE_BYTES}"
        large = _LARGE_SIZE

    with _mounted(attempt.subject.root, small):
        attempt.wait(attempt.start())
        _mount("-o", f"remount,{large}", str(attempt.subject.root))
        yield


def read_only_disk(attempt: BuildAttempt) -> Iterator[None]:
    """Kill a build, build again on the disk when it is read-only, then make it writable.

    Kernels mount a disk read-only after it has reported errors.
    """
    root = str(attempt.subject.root)
    with _mounted(attempt.subject.root, _LARGE_SIZE):
        build = attempt.start()
        attempt.sleep()
        build.kill()
        _mount("-o", "remount,ro", root)
        attempt.wait(attempt.start())
        _mount("-o", "remount,rw", root)
        yield


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """Create a folder and mount a file system in memory there, until the block ends.

    Args:
        folder: The folder, which must not exist.
        options: Mount options, such as `size=64m`.

    Raises:
        Skipped: This process may not mount file systems.
    """
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Skipped(f"nothing can be mounted here ({error})") from None
    try:
        yield
    finally:
        # Lazily: a process that was just killed may still have files open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    """Run mount(8) with these arguments."""
    subprocess.run(["mount", *arguments], capture_output=True, check=True)


def forbidden_folders(attempt: BuildAttempt) -> Iterator[None]:
    """Make all folders of outputs read-only at a random moment of a build, and then writable."""
    build = attempt.start(drop_rights)
    attempt.sleep()
    _set_permissions(attempt.subject.root, 0o555)
    attempt.wait(build)
    _set_permissions(attempt.subject.root, 0o755)
    yield


def _set_permissions(root: Path, mode: int) -> None:
    """Set the permissions of a folder and of all folders below it."""
    for folder, _, _ in os.walk(root):
        # A build that is running may remove the folder meanwhile.
        with contextlib.suppress(FileNotFoundError):
            Path(folder).chmod(mode)


# Memory


def killed_worker(attempt: BuildAttempt) -> Iterator[None]:
    """Kill the worker with the most memory, as the kernel does when no memory is left."""
    build = attempt.start()
    attempt.sleep()

    # The build may have no worker at this moment: wait for one.
    deadline = time.monotonic() + _PATIENCE
    n_killed = 0
    while n_killed == 0 and not build.poll(0.002) and time.monotonic() < deadline:
        worker_pid = _largest_worker(build)
        if worker_pid is not None:
            os.kill(worker_pid, signal.SIGKILL)
            n_killed = 1

    attempt.wait(build)
    attempt.trial.counts["faults"] = n_killed
    yield


def _largest_worker(build: Child) -> int | None:
    """Return the id of the build's worker process with the most memory, or None without workers."""
    pages_by_pid: dict[int, int] = {}
    # A process or thread that ends meanwhile has no files in /proc any more.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{build.pid}/task").iterdir():
            for pid in (thread / "children").read_text().split():
                process = Path(f"/proc/{pid}")
                # multiprocessing starts workers with `spawn_main`; its helpers have other names.
                if b"spawn_main" in (process / "cmdline").read_bytes():
                    resident_pages = (process / "statm").read_text().split()[1]
                    pages_by_pid[int(pid)] = int(resident_pages)
    return max(pages_by_pid, key=pages_by_pid.__getitem__, default=None)


def refused_memory(attempt: BuildAttempt) -> Iterator[None]:
    """Build with little address space, as under `ulimit -v`, then without the limit."""
    # From 2 MiB to 512 MiB more than the process has.
    extra_bytes = int(2 ** attempt.rng.uniform(21, 29))
    build = attempt.start(lambda: limit_memory(extra_bytes))
    if not build.poll(_PATIENCE) and _FAILED_THREAD in build.said():
        build.kill()
    allowed: tuple[End, ...] = ("refused", "done", "killed")
    if _ABORTED in build.said():
        allowed += ("crashed",)
    attempt.wait(build, allowed=allowed)
    yield


# Clocks


def jumping_clock(attempt: BuildAttempt) -> Iterator[None]:
    """Kill a build that has a jumping clock, and build again with one.

    Before, in between and after, the times of random files are changed, too.
    """
    folder = attempt.subject.folder
    notes = folder / ".jumps"
    _change_file_times(folder / "raw", attempt.rng)
    for is_last in (False, True):
        seed = attempt.rng.getrandbits(64)

        def prepare(seed: int = seed) -> None:
            jump(seed, notes)

        build = attempt.start(prepare)
        if is_last:
            attempt.wait(build, allowed=("done",))
        else:
            attempt.sleep()
            build.kill()
            attempt.wait(build, allowed=("done", "killed"))
        _change_file_times(folder, attempt.rng)

    if notes.exists():
        attempt.trial.counts["faults"] += notes.stat().st_size
    attempt.trial.wrong += attempt.place.judge(attempt.subject)
    yield


def jump(seed: int, notes: Path | None = None) -> None:
    """Replace the clock of this process by one that jumps.

    Args:
        seed: Seed of the random numbers that decide when and how far it jumps.
        notes: File to which each jump appends a byte.
    """
    rng = random.Random(seed)
    true_time = time.time
    true_time_ns = time.time_ns
    notes_file = os.open(notes or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    offset_seconds = 0

    def next_offset() -> int:
        nonlocal offset_seconds
        if rng.random() < _JUMP_CHANCE:
            offset_seconds = rng.choice(_JUMPS)
            os.write(notes_file, b".")
        return offset_seconds

    time.time = lambda: true_time() + next_offset()
    time.time_ns = lambda: true_time_ns() + next_offset() * 10**9


def _change_file_times(folder: Path, rng: random.Random) -> None:
    """Set the times of a third of the files below a folder to the past or the future."""
    now = time.time()
    for path in sorted(folder.rglob("*")):
        if rng.random() < 0.34 and path.is_file() and not path.is_symlink():
            file_time = max(0.0, now + rng.choice(_JUMPS))
            os.utime(path, (file_time, file_time))


# Two at once


def two_builds(attempt: BuildAttempt, *, one_killed: bool = False) -> Iterator[None]:
    """Run two builds of a project at the same time.

    They start together or in sequence. Each may have a jumping clock, and may build everything
    again.

    Args:
        attempt: The project.
        one_killed: Whether the first build is killed.
    """

    def start_build() -> Child:
        rebuild = attempt.rng.random() < 0.4
        seed = attempt.rng.getrandbits(64)
        has_jumping_clock = attempt.rng.random() < 0.3

        def prepare() -> None:
            if has_jumping_clock:
                jump(seed)

        return attempt.start(prepare, rebuild=rebuild)

    first = start_build()
    if not one_killed and attempt.rng.random() < 0.5:
        attempt.sleep()
    second = start_build()
    if one_killed:
        attempt.sleep()
        first.kill()
    attempt.wait(second)
    # A build that builds everything again replaces outputs that the other one may be reading.
    attempt.wait(first, allowed=("killed", "refused", "done"))
    attempt.trial.counts["faults"] = 1
    yield


# Source files that change while they are read


def append(path: Path, n_writes: int = 1) -> None:
    """Append 40 documents to a file.

    Args:
        path: The file. A Parquet file is replaced instead, since it cannot be appended to.
        n_writes: Number of writes; there is a short pause after each if there are several.
    """
    if path.name.endswith(".parquet"):
        replace(path)
        return
    for number in range(n_writes):
        documents = sentences(f"late {number}", 40 // n_writes)
        with path.open("ab") as file:
            file.write(encoded(path.name, documents, 40))
        if n_writes > 1:
            time.sleep(0.01)


def grow(path: Path) -> None:
    """Append documents to a file in several writes, as an upload does."""
    append(path, n_writes=8)


def truncate(path: Path) -> None:
    """Remove the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    """Overwrite a file with as many other bytes.

    The lines of a .jsonl file are reversed. Other files are compressed: zeros in their middle
    damage them.
    """
    data = path.read_bytes()
    if path.name.endswith(".jsonl"):
        lines = data.split(b"\n")[:-1]
        new_data = b"\n".join(reversed(lines)) + b"\n"
    else:
        middle = len(data) // 2
        new_data = data[:middle] + bytes(64) + data[middle + 64 :]
    # Without truncating the file, which a build may be reading.
    with path.open("r+b") as file:
        file.write(new_data)


def replace(path: Path) -> None:
    """Rename another file to the name of a file."""
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
"""What may happen to a source file."""


def changed_while_read(place: LocalPlace, rng: random.Random, number: int) -> Trial:
    """Change a source file during a build, build again, and compare with a new project's build.

    Args:
        place: Gives the folder of the trial and the time that a build takes.
        rng: Random numbers.
        number: Number of the trial, which decides the change and the file.
    """
    # Consecutive trials make all changes to the first file, then to the next one.
    file_number, change_number = divmod(number, len(CHANGES))
    change = CHANGES[change_number]
    file_name = LONG_FILES[file_number % len(LONG_FILES)]
    workers = rng.choice((1, 1, 2))
    subject = write_subject(place.base / f"changed-{number}", workers=workers, long=2)
    attempt = BuildAttempt(place, subject, rng, share=0)
    trial = attempt.trial

    # The build may use the old text or the new one, or refuse, but must not mix them.
    build = attempt.start()
    attempt.sleep(1.5)
    trial.counts["faults"] = int(not build.poll())
    change(subject.folder / "raw" / LONG / file_name)
    trial.ended(build.wait(), "done", "refused")
    trial.wrong += inconsistent(subject.root)

    # The next build must end like the first build of a project that has the new text.
    outcome = attempt.start().wait()
    fresh = subject.beside("-fresh")
    shutil.copytree(subject.folder, fresh.folder, ignore=shutil.ignore_patterns("data"))
    fresh_outcome = start(fresh).wait()
    if fresh_outcome.end != outcome.end or outcome.end not in ("done", "refused"):
        trial.wrong.append(
            f"after the change it ended as {outcome}; a fresh build as {fresh_outcome}"
        )
    trial.wrong += inconsistent(subject.root)
    if fresh_outcome.end == "done":
        trial.wrong += _outputs_that_differ(subject, fresh)

    # The folder of a bad trial stays, for whoever looks for the reason.
    if not trial.wrong:
        shutil.rmtree(subject.folder)
    shutil.rmtree(fresh.folder)
    return trial


def _outputs_that_differ(subject: Subject, fresh: Subject) -> list[str]:
    """Return a message for each output of a new project that another project does not have.

    The other project may have more outputs: those of its text before the change.
    """
    digests = outputs(subject.root)
    messages: list[str] = []
    for name, digest in outputs(fresh.root).items():
        if digests.get(name) != digest:
            messages.append(f"{name} is not as of a fresh build")
    return messages


def inconsistent(root: Path) -> list[str]:
    """Return a message for each file that a manifest lists and that is missing or differs.

    Args:
        root: Root of the outputs, which may not exist.
    """
    if not root.is_dir():
        return []
    files = visible(root)
    sha256_by_name: dict[str, str] = {}
    for name, path in files.items():
        if name.endswith("/manifest.json"):
            sha256_by_name |= _listed_files(name, path)

    missing: list[str] = []
    different: list[str] = []
    for name, sha256 in sha256_by_name.items():
        if name not in files:
            missing.append(f"{name} is listed and not there")
        elif hashlib.sha256(files[name].read_bytes()).hexdigest() != sha256:
            different.append(f"{name} has other bytes than its manifest says")
    return missing + different


def _listed_files(manifest_name: str, path: Path) -> dict[str, str]:
    """Return the sha256 of each file that a manifest lists, by its path below the root.

    Args:
        manifest_name: Path of the manifest below the root of outputs.
        path: The manifest.
    """
    manifest = json.loads(path.read_bytes())
    folder = manifest_name.removesuffix("manifest.json")
    sha256_by_name: dict[str, str] = {}
    for file_name, facts in manifest["files"].items():
        sha256_by_name[folder + file_name] = facts["sha256"]

    # The index files of `nanosets/<name>/<digest>` are in `nanosets/<name>/cache`, since
    # several digests may share them.
    output_name = manifest_name.split("/")[1]
    for file_name, facts in manifest["facts"].get("cache_files", {}).items():
        sha256_by_name[f"nanosets/{output_name}/cache/{file_name}"] = facts["sha256"]
    return sha256_by_name
