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

from nanoset_core.storage.owners import process_stat

_DIGEST_DIGITS = 4
"""Hex digits of each of the three digests in the name of a machine."""


def new_mark() -> str:
    """Return a new mark of this process, which differs from all others."""
    pid = os.getpid()
    return f"{_machine()}-{pid}.{_start_of(pid) or ''}-{secrets.token_hex(3)}"


def is_owner_alive(mark: str) -> bool | None:
    """Return whether the process that made a mark is running.

    Args:
        mark: The mark, such as `1f0c2a9e77d4-4711.89034412-a1b2c3`: machine, process id, when the
            process started, and a random number.

    Returns:
        True or False; None if it is not known, since the process is one of another machine, or its
        start is not known, or the text is not a mark.
    """
    machine, _, rest = mark.partition("-")
    process, _, _ = rest.partition("-")
    pid, _, start = process.partition(".")
    if machine != _machine() or not pid.isdigit():
        return None
    if not _is_pid_in_use(int(pid)):
        return False
    return _was_started_at(int(pid), start)


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
    """Return whether a process is running, and is not a later one with the same id.

    Args:
        pid: The process id.
        start: When the process started, in clock ticks; "" if that is not known.

    Returns:
        None if it cannot be known, since one of the starts is not known.
    """
    present_start = _start_of(pid)
    if present_start == "":  # it has ended, but is still listed
        return False
    if present_start is None or start == "":
        return None
    return present_start == start


def is_mark_of_this_machine(mark: str) -> bool:
    """Return whether a process of this machine made a mark, so that its id means something here."""
    return mark.partition("-")[0] == _machine()


def is_from_before_restart(mark: str) -> bool:
    """Return whether a process of this machine made a mark before the machine was restarted."""
    machine = mark.partition("-")[0]
    this_machine = _machine()
    if len(machine) != len(this_machine) or mark.count("-") != 2:
        return False  # It is not a mark.
    host = slice(0, _DIGEST_DIGITS)
    boot = slice(_DIGEST_DIGITS, 2 * _DIGEST_DIGITS)
    return machine[host] == this_machine[host] and machine[boot] != this_machine[boot]


def _start_of(pid: int) -> str | None:
    """Return the time at which a process was started, in clock ticks since the machine started.

    Returns:
        "" if the process has ended, and None if the system says nothing about the process.
    """
    process = process_stat(pid)
    if process is None:
        return None
    # Z: the process has ended, but its parent has not asked for its exit code yet. X: it is being
    # removed.
    has_ended = process.state in "ZX"
    return "" if has_ended else process.start_ticks


@functools.cache
def _machine() -> str:
    """Return a name of this machine that holds until its next restart.

    The name has 12 characters, three digests of 4 hex digits:

    1. of the host;
    2. of its boot, so that `is_from_before_restart` can compare hosts and boots separately;
    3. of both and the namespace of process ids. In another container of the same host, a process
       id belongs to another process, so that its machine needs another name.
    """
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return _random_machine()
    return _digest(host) + _digest(boot) + _digest("\n".join([host, boot, namespace]))


def _digest(text: str) -> str:
    """Return the first hex digits of the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]


def _random_machine() -> str:
    """Return a random name for a machine whose system does not report its boot and namespace.

    It has "none" in place of the digest of the boot.
    """
    n_random_bytes = _DIGEST_DIGITS // 2  # two hex digits for each byte
    return f"{secrets.token_hex(n_random_bytes)}none{secrets.token_hex(n_random_bytes)}"
