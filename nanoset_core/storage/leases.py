"""Who works on which outputs: so that `nanoset gc` removes nothing that a running build uses, on any machine.

A build keeps an object, its *lease*, that names what it works on: written anew every minute, removed at the end. A
lease ends when its process has ended, where that is one of this machine, and ten minutes after it was last written by
the store's clock. A collection keeps another such object, the *gate*. Both lie in the root's folder and, where outputs
live in a bucket, also there.

A build writes its lease, and then waits while there is a gate; a collection writes its gate, and then looks for leases.
So one of them sees the other wherever listings are up to date.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.scratch import is_owner_alive, new_mark
from nanoset_core.storage.store import Store, Stored, in_parallel

__all__ = ["FOLDER", "LEASE_SECONDS", "RENEWED_SECONDS", "collecting", "is_live", "leased", "leased_names", "new_mark"]

FOLDER = ".in-use"
"""Below the root; holds the leases and gates."""
RENEWED_SECONDS = 60.0
LEASE_SECONDS = 600
"""How long after it was written a lease counts."""
logger = logging.getLogger(__name__)
_LEASE, _GATE = "lease", "gate"
_WAIT_SECONDS = 1.0
_LAST_SECONDS = 10.0
_held: ContextVar[tuple[tuple[Store, frozenset[str]], ...]] = ContextVar("held", default=())
"""Stores in which this context holds leases, and on which names."""


@contextlib.contextmanager
def leased(access: FileAccess, names: Iterable[str]) -> Iterator[None]:
    """Keep outputs from `nanoset gc` until the block ends; wait for a collection that is under way.

    Names that the calling context holds already take no second lease.

    Args:
        access: the outputs.
        names: the first parts of their names.

    Raises:
        StorageError: the store refuses, or the disk does in the block.
        NanosetError: memory ran out in the block.
    """
    wanted = frozenset(names)
    with contextlib.ExitStack() as held:
        held.enter_context(explained(access.folder))
        for store in _stores(access):
            if not any(other == store and held_names >= wanted for other, held_names in _held.get()):
                own = held.enter_context(_kept(store, _LEASE, sorted(wanted)))
                _wait_for_gates(store, own)
        before = _held.set((*_held.get(), *((store, wanted) for store in _stores(access))))
        try:
            yield
        finally:
            _held.reset(before)


@contextlib.contextmanager
def collecting(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let builds wait before they begin until the block ends; yield `leased_names` at this moment."""
    _wait_for_gates(LocalStore(access.folder))
    with contextlib.ExitStack() as held:
        for store in _stores(access):
            held.enter_context(_kept(store, _GATE, []))
        yield leased_names(access)


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Return the names that running builds hold, each with the machine that does."""
    found: dict[str, str] = {}
    for store in _stores(access):
        leases = [one.name for one in _live(store) if _kind(one) == _LEASE]
        for data in in_parallel(store.read, leases, CONNECTIONS):
            if data is not None:
                lease = json.loads(data)
                found |= dict.fromkeys(lease["names"], str(lease["host"]))
    return found


def is_live(mark: str, written_ns: int, now_ns: int) -> bool:
    """Return whether what a process keeps fresh still counts.

    Args:
        mark: of the process, by `new_mark`.
        written_ns: when it was written last, by the store's clock.
        now_ns: now, by the same clock.
    """
    return written_ns > now_ns - LEASE_SECONDS * 10**9 and is_owner_alive(mark) is not False


def _stores(access: FileAccess) -> list[Store]:
    here = LocalStore(access.folder)
    return [here, access.store] if access.has_copies else [here]


def _wait_for_gates(store: Store, own: str | None = None) -> None:
    is_told, wait = False, 0.05
    while any(_kind(found) == _GATE for found in _live(store, own)):
        if not is_told:
            logger.warning("waits until `nanoset gc` of %s has ended", store.url())
            is_told = True
        time.sleep(wait)
        wait = min(2 * wait, _WAIT_SECONDS)


def _live(store: Store, own: str | None = None) -> list[Stored]:
    """Return the leases and gates that count, without one's own; remove the others."""
    found = [one for one in store.list(FOLDER) if one.name != own]
    now_ns = store.now() if found else 0
    live = [one for one in found if is_live(_file_name(one).partition("-")[2], one.written_ns, now_ns)]
    for one in found:
        if one not in live:
            with contextlib.suppress(StorageError, OSError):
                store.delete(one.name)
    return live


@contextlib.contextmanager
def _kept(store: Store, kind: str, names: list[str]) -> Iterator[str]:
    """Keep an object of this process fresh until the block ends; yield its name."""
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
        keeper.join(_LAST_SECONDS)  # or it could write the object once more after its removal
        with contextlib.suppress(StorageError, OSError):
            store.delete(name)


def _renew(put: Callable[[], None], ended: threading.Event) -> None:
    while not ended.wait(RENEWED_SECONDS):
        with contextlib.suppress(StorageError, OSError):
            put()


def _kind(found: Stored) -> str:
    return _file_name(found).partition("-")[0]


def _file_name(found: Stored) -> str:
    return found.name.rpartition("/")[2]
