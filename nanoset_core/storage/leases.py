"""Who works on which outputs: so that `nanoset gc` removes nothing that a running build uses, on any machine.

A build keeps an object, its *lease*, that names what it works on: renewed every minute, removed at the end. A lease
ends with its process, where that is one of this machine; otherwise ten minutes after it was last renewed by the store's
clock. A collection keeps another such object, the *gate*. Both lie in the root's folder and, where outputs live in a
bucket, also there.

A build writes its lease, and then waits while there is a gate; a collection writes its gate, and then looks for leases.
So one of them sees the other wherever listings are up to date.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import is_owner_alive, new_mark
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, in_parallel

__all__ = ["FOLDER", "LEASE_SECONDS", "collecting", "is_live", "kept_fresh", "leased", "leased_names", "new_mark"]

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

    `names` are the first parts of their names; those that the calling context holds already take no second lease.
    Refusals of the system in the block are explained.
    """
    wanted, stores = frozenset(names), _stores(access)
    with contextlib.ExitStack() as held:
        held.enter_context(explained(access.folder))
        for store in stores:
            if not any(other == store and held_names >= wanted for other, held_names in _held.get()):
                own = held.enter_context(_kept(store, _LEASE, sorted(wanted)))
                _wait_for_gates(store, own)
        held.callback(_held.reset, _held.set((*_held.get(), *((store, wanted) for store in stores))))
        yield


@contextlib.contextmanager
def collecting(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let builds wait before they begin until the block ends; yield `leased_names` at this moment."""
    _wait_for_gates(LocalStore(access.folder))
    with contextlib.ExitStack() as held:
        for store in _stores(access):
            with explained(access.folder, expected="room for one empty file"):
                held.enter_context(_kept(store, _GATE, []))
        yield leased_names(access)


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Return the names that running builds hold, each with the machine that does."""
    found: dict[str, str] = {}
    for store in _stores(access):
        for data in in_parallel(store.read, _live(store, _LEASE), CONNECTIONS):
            if data is not None:
                lease = json.loads(data)
                found |= dict.fromkeys(lease["names"], str(lease["host"]))
    return found


def is_live(mark: str, written_ns: int, now_ns: int) -> bool:
    """Return whether what a process of this mark keeps fresh counts; its age tells only where that is not known.

    A process of this machine may be suspended, or unable to write, for longer. Both times are by the store's clock.
    """
    alive = is_owner_alive(mark)
    return written_ns > now_ns - LEASE_SECONDS * 10**9 if alive is None else alive


def _stores(access: FileAccess) -> list[Store]:
    here = LocalStore(access.folder)
    return [here, access.store] if access.has_copies else [here]


def _wait_for_gates(store: Store, own: str | None = None) -> None:
    is_told, wait = False, 0.05
    while _live(store, _GATE, own):
        if not is_told:
            logger.warning("waits until `nanoset gc` of %s has ended", store.url())
            is_told = True
        time.sleep(wait)
        wait = min(2 * wait, _WAIT_SECONDS)


def _live(store: Store, kind: str, own: str | None = None) -> list[str]:
    """Return the names of the leases or gates that count; remove whatever does not, but never `own`."""
    found = [one for one in store.list(FOLDER) if one.name != own]
    now_ns, live = store.now() if found else 0, []
    for one in found:
        found_kind, _, mark = one.name.rpartition("/")[2].partition("-")
        if not is_live(mark, one.written_ns, now_ns):
            _is_deleted(store, one.name)
        elif found_kind == kind:
            live.append(one.name)
    return live


@contextlib.contextmanager
def _kept(store: Store, kind: str, names: list[str]) -> Iterator[str]:
    """Keep a lease or gate until the block ends; yield its name."""
    name = f"{FOLDER}/{kind}-{new_mark()}"
    is_empty = kind == _GATE and isinstance(store, LocalStore)  # a collection is what makes room on a full disk
    data = b"" if is_empty else json.dumps({"host": platform.node(), "names": names}).encode()
    with kept_fresh(store, name, data):
        yield name


@contextlib.contextmanager
def kept_fresh(store: Store, name: str, data: bytes) -> Iterator[None]:
    """Keep an object of this process in a store, renewed every minute, until the block ends."""
    _write(store, name, data)
    ended, tried = threading.Event(), threading.Event()
    threading.Thread(target=_keep, args=(store, name, data, ended, tried), name=name, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        tried.wait(_LAST_SECONDS)


def _keep(store: Store, name: str, data: bytes, ended: threading.Event, tried: threading.Event) -> None:
    """Renew an object until the event, and then remove it, if not at once, then as soon as the store lets it."""
    while not ended.wait(RENEWED_SECONDS):
        with contextlib.suppress(StorageError, OSError):
            _renew(store, name, data)
    is_deleted = _is_deleted(store, name)
    tried.set()
    while not is_deleted:  # it counts as long as this process lives
        time.sleep(RENEWED_SECONDS)
        is_deleted = _is_deleted(store, name)


def _renew(store: Store, name: str, data: bytes) -> None:
    if isinstance(store, LocalStore):
        with contextlib.suppress(OSError):
            os.utime(store.folder / name)  # needs no room
            return
    _write(store, name, data)


def _write(store: Store, name: str, data: bytes) -> None:
    if data or not isinstance(store, LocalStore):
        store.put(name, data)
        return
    path = store.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _is_deleted(store: Store, name: str) -> bool:
    try:
        store.delete(name)
    except (StorageError, OSError):
        return False
    return True
