"""Marks that name a process, so that other processes can tell whether it is still running.

A mark is part of the names of files: `<machine>-<pid>.<start of the process>-<random>`. The start
distinguishes the process from a later one with the same id. For example:

    1f0c2a9e77d4-4711.89034412-a1b2c3
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
from pathlib import Path

from nanoset_core.storage.in_use.owners import process_stat

_DIGEST_DIGITS = 4
"""Hex digits of each of the three digests in the name of a machine."""
_ENDED_STATES = "ZX"
"""States of a process that has ended, but that the system still lists.

Z: its parent has not asked for its exit code yet. X: it is being removed.
"""


def new_mark() -> str:
    """Return a new mark of this process, which differs from all others.

    The mark becomes part of the name of a file that this process writes. Other processes can then
    see whether the writer is still running, or was killed and has left an unfinished file behind.

    Returns:
        A text such as `1f0c2a9e77d4-4711.89034412-a1b2c3`: machine, process id, when the process
        was started (empty if the system does not say), and a random number.
    """
    pid = os.getpid()
    return f"{_machine()}-{pid}.{_own_start(pid)}-{secrets.token_hex(3)}"


@functools.cache
def _own_start(pid: int) -> str:
    """Return when this process was started, for marks; empty if the system does not say.

    The answer is remembered, since a build makes thousands of marks, and asking takes 0.1 ms.

    Args:
        pid: The id of this process.
    """
    process = process_stat(pid)
    return "" if process is None else process.start_ticks


# A forked process may have the id of an ancestor that has ended, which was started earlier.
os.register_at_fork(after_in_child=_own_start.cache_clear)


def is_owner_alive(mark: str) -> bool | None:
    """Return whether the process that made a mark is running.

    For the mark `1f0c2a9e77d4-4711.89034412-a1b2c3`, which is part of the name of a file:

        1f0c2a9e77d4    the machine; processes of another machine cannot be looked up
        4711            the process id; if no process has it, the process has ended
        89034412        when the process was started; a process with the same id that was started
                        at another time is a later one
        a1b2c3          a random number, which is not needed here

    Args:
        mark: The mark.

    Returns:
        True or False; None if it is not known, since the process is one of another machine, or its
        start is not known, or the text is not a mark.
    """
    machine, _, rest = mark.partition("-")
    process, _, _ = rest.partition("-")  # "4711.89034412"
    pid, _, start = process.partition(".")
    if machine != _machine() or not pid.isdigit():
        return None
    return is_process_alive(int(pid), start)


def is_process_alive(pid: int, start: str) -> bool | None:
    """Return whether a process of this machine, or of this container, is running.

    Args:
        pid: Its process id.
        start: When it was started, in clock ticks since the machine was, such as "89034412"; "" if
            it is not known.

    Returns:
        True or False; None if it is not known, since a process has this id, but may be a later one.
    """
    if not _is_pid_in_use(pid):
        return False
    return _was_started_at(pid, start)


def _is_pid_in_use(pid: int) -> bool:
    """Return whether a process of this machine has a process id."""
    try:
        os.kill(pid, 0)  # Signal 0 only checks whether the process exists.
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It is a process of another user.
    return True


def _was_started_at(pid: int, start: str) -> bool | None:
    """Return whether the process that has an id now was started at a certain time.

    The system gives the id of an ended process to a new one after a while. The time of the start
    tells the two apart.

    Args:
        pid: The process id.
        start: The time, in clock ticks since the machine started, such as "89034412"; "" if it is
            not known.

    Returns:
        True if it was; False if it was started at another time, or has ended; None if one of the
        two times is not known.
    """
    process = process_stat(pid)
    if process is None:
        return None  # the system does not say when it was started
    if process.state in _ENDED_STATES:
        return False
    if start == "":
        return None
    return process.start_ticks == start


def is_mark_of_this_machine(mark: str) -> bool:
    """Return whether a process of this machine made a mark, so that its id means something here.

    Args:
        mark: A mark such as `1f0c2a9e77d4-4711.89034412-a1b2c3`, which identifies a process. Only
            its first part, the machine, is compared. It changes when the machine is restarted.
    """
    return mark.partition("-")[0] == _machine()


def is_from_before_restart(mark: str) -> bool:
    """Return whether a process of this machine made a mark before the machine was restarted.

    If so, the process has ended. The machine in the mark `1f0c2a9e77d4-4711.89034412-a1b2c3` is
    `1f0c2a9e77d4`, which consists of three short digests:

        1f0c    of the host: the same after a restart
        2a9e    of its last start: different after each restart
        77d4    of everything, also of the container: not compared here

    Returns:
        False also for text that is not a mark, and for marks of other machines.
    """
    machine = mark.partition("-")[0]  # 1f0c2a9e77d4
    this_machine = _machine()
    is_mark = len(machine) == len(this_machine) and mark.count("-") == 2
    if not is_mark:
        return False

    host = slice(0, _DIGEST_DIGITS)  # digits 0 to 4: 1f0c
    last_start = slice(_DIGEST_DIGITS, 2 * _DIGEST_DIGITS)  # digits 4 to 8: 2a9e
    is_same_host = machine[host] == this_machine[host]
    is_same_start = machine[last_start] == this_machine[last_start]
    return is_same_host and not is_same_start


@functools.cache
def place_of_process_ids() -> str:
    """Return a name for the place in which process ids have one meaning: a machine or a container.

    Containers on one machine may have the same host name, but each has its own process ids. Unlike
    the machine in a mark, the name is the same after a restart of the machine, and on all systems
    for all processes of the machine.

    Returns:
        12 hex digits such as `9b1de03a55c2`.
    """
    names = [platform.node()]
    with contextlib.suppress(OSError):
        names.append(Path("/etc/machine-id").read_text(encoding="utf-8"))
    # On Linux, a container has its own namespace of process ids.
    with contextlib.suppress(OSError):
        names.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


@functools.cache
def _machine() -> str:
    """Return a name for the place in which process ids are unique: a machine, since its last start.

    Two processes with the same name can look each other up by their ids. A container counts as a
    machine of its own, since ids in it have another meaning.

    Returns:
        12 hex digits such as `1f0c2a9e77d4`: four for the host, four for its last start, and four
        for both and the container.
    """
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        container = os.readlink("/proc/self/ns/pid")  # the namespace of its process ids
    except OSError:
        return _random_machine()

    # The first two are separate, so that `is_from_before_restart` can compare them one by one.
    everything = "\n".join([host, boot, container])
    return _digest(host) + _digest(boot) + _digest(everything)


def _digest(text: str) -> str:
    """Return the first hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def _random_machine() -> str:
    """Return a random name for a machine whose system does not report its boot and container.

    This is so on macOS. Nobody else has the name, so that other processes never take a process of
    this machine for ended because its id is unknown to them. The text "none" replaces the digest of
    the boot: `1f0cnone77d4`.
    """
    n_random_bytes = _DIGEST_DIGITS // 2  # two hex digits for each byte
    return f"{secrets.token_hex(n_random_bytes)}none{secrets.token_hex(n_random_bytes)}"
