"""Who works on which outputs of a store that several machines share: so that `nanoset gc` on any of them sees builds.

Whoever makes outputs keeps an object, its *lease*, that names what it works on: written anew every minute, removed at
the end. One that is ten minutes old by the store's clock counts no more, since its holder is dead or cut off; one of a
process of this machine that is gone counts no more at once. A collection keeps another such object, the *gate*; what a
run has in a bucket for its workers is told by the same rule from what a killed one left.

Whoever begins writes its lease and then waits while there is a gate; a collection writes its gate and then looks for
leases. So one of them sees the other, wherever listings are up to date; no condition of the store's is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.locks import FOLDER
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel

RENEWED_SECONDS = 60.0
LEASE_SECONDS = 600
"""How long after it was written a lease counts."""
logger = logging.getLogger(__name__)
_LEASE, _GATE = "lease", "gate"
_WAIT_SECONDS = 1.0
_LAST_SECONDS = 10.0


_held: ContextVar[tuple[Store, frozenset[str]] | None] = ContextVar("held", default=None)
"""Where this context holds a lease on which names."""


@contextlib.contextmanager
def leased(access: FileAccess, names: Iterable[str]) -> Iterator[None]:
    """Hold outputs against `nanoset gc` on every machine until the block ends, where they live in a store of all.

    Names are the first parts of the outputs' names. It waits while a collection looks for what can go. Within the block
    to hold some of them once more asks nothing of the store.

    Raises:
        StorageError: the store refuses.
    """
    wanted, held = frozenset(names), _held.get()
    if not access.has_copies or (held is not None and held[0] == access.store and held[1] >= wanted):
        yield  # locks of the file system tell of them, or the lease
        return
    with _kept(access.store, _LEASE, sorted(wanted)) as own:
        told = False
        while any(_kind(found) == _GATE for found in _live(access.store, own)):
            if not told:
                logger.warning("waits until `nanoset gc` of %s has ended", access.store.url())
                told = True
            time.sleep(_WAIT_SECONDS)
        token = _held.set((access.store, wanted))
        try:
            yield
        finally:
            _held.reset(token)


@contextlib.contextmanager
def collecting_everywhere(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let builds on all machines wait before they begin until the block ends; → `leased_names` at this moment."""
    if not access.has_copies:
        yield {}
        return
    with _kept(access.store, _GATE, []):
        yield leased_names(access)


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Name of what is worked on at this moment → the machine that does; none where locks of the file system tell."""
    if not access.has_copies:
        return {}
    leases = [found.name for found in _live(access.store) if _kind(found) == _LEASE]
    held = [data for data in in_parallel(access.store.read, leases, CONNECTIONS) if data is not None]
    return {str(name): str(lease["host"]) for lease in map(json.loads, held) for name in lease["names"]}


def _live(store: Store, own: str | None = None) -> list[Stored]:
    """Leases and gates that count, without one's own. The others are removed: nobody else would."""
    found = [one for one in store.list(FOLDER) if one.name != own]
    now_ns = store.now() if found else 0
    live = [one for one in found if is_live(_file_name(one).partition("-")[2], one.written_ns, now_ns)]
    for one in found:
        if one not in live:
            with contextlib.suppress(StorageError):
                store.delete(one.name)
    return live


@contextlib.contextmanager
def _kept(store: Store, kind: str, names: list[str]) -> Iterator[str]:
    """Keep an object of this process fresh until the block ends; → its name."""
    name = f"{FOLDER}/{kind}-{new_mark()}"
    data = json.dumps({"host": platform.node(), "names": names}).encode()
    store.put(name, data)
    ended = threading.Event()
    keeper = threading.Thread(target=_renew, args=(lambda: store.put(name, data), ended), name=name, daemon=True)
    keeper.start()
    try:
        yield name
    finally:
        ended.set()
        keeper.join(_LAST_SECONDS)  # or it might write the object once more after its removal
        with contextlib.suppress(StorageError):  # then it ends by itself
            store.delete(name)


def _renew(put: Callable[[], None], ended: threading.Event) -> None:
    while not ended.wait(RENEWED_SECONDS):
        with contextlib.suppress(StorageError):  # it is tried again in a minute
            put()


def _kind(found: Stored) -> str:
    return _file_name(found).partition("-")[0]


def _file_name(found: Stored) -> str:
    return found.name.rpartition("/")[2]


def new_mark() -> str:
    """What no other process calls an object of its own; it tells who did."""
    return f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_live(mark: str, written_ns: int, now_ns: int) -> bool:
    """Whether what a process keeps fresh still counts.

    Args:
        mark: which the process gave it.
        written_ns: when it was written last, by the store's clock.
        now_ns: now, by the same.
    """
    return written_ns > now_ns - LEASE_SECONDS * 10**9 and not _is_gone(mark)


def _is_gone(mark: str) -> bool:
    """Whether a mark is of a process of this machine that has ended."""
    machine, pid, _ = [*mark.split("-"), "", "", ""][:3]
    return machine == _machine() and pid.isdigit() and not Path("/proc", pid).exists() and Path("/proc/self").exists()


def _machine() -> str:
    """Another one wherever process ids mean something else: on other machines, after a restart, in other containers."""
    try:
        marks = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"), os.readlink("/proc/self/ns/pid")]
    except OSError:
        marks = [secrets.token_hex(8)]  # nobody takes another for gone
    return hashlib.sha256("\n".join([platform.node(), *marks]).encode()).hexdigest()[:12]
