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

    Returns:
        True or False; None if it is not known, since the process is one of another machine, or its
        start is not known, or the text is not a mark.
    """
    machine, _, rest = mark.partition("-")
    process = rest.partition("-")[0]
    pid, _, start = process.partition(".")
    if machine != _machine() or not pid.isdigit():
        return None

    try:
        os.kill(int(pid), 0)  # Signal 0 only checks whether the process exists.
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It is a process of another user, perhaps a later one with the same id.

    # The id of a process that has ended may be given to another one, which started later.
    start_now = _start_of(int(pid))
    has_ended = start_now == ""
    if has_ended:
        return False
    is_any_start_unknown = start_now is None or start == ""
    return None if is_any_start_unknown else start_now == start


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
    """Return a name of this machine that holds until its next restart, made of three digests.

    They are those of the host, of its boot, and of the namespace of process ids: in another
    container, the same id belongs to another process. If the last two are not known, the name is
    random.
    """
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        n_random_bytes = _DIGEST_DIGITS // 2
        return f"{secrets.token_hex(n_random_bytes)}none{secrets.token_hex(n_random_bytes)}"

    parts = [host, boot, "\n".join([host, boot, namespace])]
    digests = [hashlib.sha256(part.encode()).hexdigest() for part in parts]
    return "".join(digest[:_DIGEST_DIGITS] for digest in digests)
