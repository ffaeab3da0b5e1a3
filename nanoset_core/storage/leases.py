"""Who works on which outputs: so that `nanoset gc` removes nothing that a running build uses, on any machine.

A build keeps an object, its *lease*, that names what it works on and how far it has come: renewed every quarter of a
minute, removed at the end. A lease ends with its process, where that is one of this machine; otherwise ten minutes
after it was last renewed by the store's clock. A collection keeps another such object, the *gate*. Both lie in the
root's folder and, where outputs live in a bucket, also there.

A build writes its lease, and then waits while there is a gate; a collection writes its gate, and then looks for leases.
So one of them sees the other wherever listings are up to date.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import ROOM, FileAccess
from nanoset_core.storage.atomic import is_owner_alive, new_mark
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, in_parallel
from nanoset_core.untrusted import safe_logger

__all__ = ["FOLDER", "LEASE_SECONDS", "collecting", "is_live", "kept_fresh", "leased", "leased_names", "new_mark"]

FOLDER = ".in-use"
"""Below the root; holds the leases and gates."""
RENEWED_SECONDS = 15.0
LEASE_SECONDS = 600
"""How long after it was written a lease counts."""
logger = safe_logger(__name__)
_LEASE, _GATE = "lease", "gate"
_WAIT_SECONDS = 1.0
_LAST_SECONDS = 10.0
_held: ContextVar[tuple[tuple[Store, frozenset[str]], ...]] = ContextVar("held", default=())
"""Stores in which this context holds leases, and on which names."""
_at_work: ContextVar[dict[str, Any] | None] = ContextVar("at_work", default=None)
"""What the innermost lease of this context says of its work."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a running build does now."""

    host: str
    """Its machine."""
    stage: str = ""
    """What is being made; empty where nothing was reported yet."""
    share: float | None = None
    """How much of it is done, 0 to 1."""

    def __str__(self) -> str:
        share = "" if self.share is None else f" {self.share:.0%}"
        return f"{self.stage}{share}{', ' if self.stage else ''}on {self.host}"


@contextlib.contextmanager
def leased(access: FileAccess, names: Iterable[str], subject: str | None = None) -> Iterator[None]:
    """Keep outputs from `nanoset gc` until the block ends; wait for a collection that is under way.

    `names` are the first parts of their names; those that the calling context holds already take no second lease.
    `subject` is the one of them that is made; without it all of them are.
    Refusals of the system in the block are explained.
    """
    wanted, stores, work = frozenset(names), _stores(access), dict[str, Any]()
    made = sorted(wanted) if subject is None else [subject]

    def lease() -> bytes:
        return json.dumps({"host": platform.node(), "names": sorted(wanted), "made": made, **work}).encode()

    with contextlib.ExitStack() as held:
        held.enter_context(explained(access.folder, expected=ROOM if access.has_copies else None))
        for store in stores:
            if not any(other == store and held_names >= wanted for other, held_names in _held.get()):
                held.enter_context(kept_fresh(store, own := f"{FOLDER}/{_LEASE}-{new_mark()}", lease))
                _wait_for_gates(store, own)
                if _at_work.get() is not work:
                    held.callback(_at_work.reset, _at_work.set(work))
        held.callback(_held.reset, _held.set((*_held.get(), *((store, wanted) for store in stores))))
        yield


@contextlib.contextmanager
def collecting(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let builds wait before they begin until the block ends; yield `leased_names` at this moment."""
    _wait_for_gates(LocalStore(access.folder))
    with contextlib.ExitStack() as held:
        for store in _stores(access):
            with explained(access.folder, expected="room for one empty file"):
                # On a full disk an empty file: a collection is what makes room.
                is_empty = isinstance(store, LocalStore)
                gate = b"" if is_empty else json.dumps({"host": platform.node(), "names": []}).encode()
                name = f"{FOLDER}/{_GATE}-{new_mark()}"
                held.enter_context(kept_fresh(store, name, lambda gate=gate: gate))  # type: ignore[misc]
        yield leased_names(access)


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Return the names that running builds hold, each with the machine that does."""
    return {name: str(lease["host"]) for lease in _leases(access) for name in lease["names"]}


def under_way(access: FileAccess) -> Mapping[str, Work]:
    """Return the corpora, nanosets and webdatasets that running builds make, each with how far that has come."""
    return {
        name: Work(str(lease["host"]), lease.get("stage", ""), lease.get("share"))
        for lease in _leases(access)
        for name in lease.get("made", lease["names"])
    }


def at_work(stage: str, share: float | None) -> None:
    """Let the lease of this context, when it is renewed next, say what is being made, and how much of it is done."""
    if (work := _at_work.get()) is not None:
        work |= {"stage": stage, "share": None if share is None else round(share, 3)}


def _leases(access: FileAccess) -> Iterator[dict[str, Any]]:
    for store in _stores(access):
        for data in in_parallel(store.read, _live(store, _LEASE), CONNECTIONS):
            if data is not None:
                yield json.loads(data)


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
def kept_fresh(store: Store, name: str, data: Callable[[], bytes]) -> Iterator[None]:
    """Keep an object of this process in a store, with what it holds at the time, until the block ends."""
    _write(store, name, data())
    ended, tried = threading.Event(), threading.Event()
    threading.Thread(target=_keep, args=(store, name, data, ended, tried), name=name, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        tried.wait(_LAST_SECONDS)


def _keep(store: Store, name: str, data: Callable[[], bytes], ended: threading.Event, tried: threading.Event) -> None:
    """Renew an object until the event, and then remove it, if not at once, then as soon as the store lets it."""
    written = b""
    while not ended.wait(RENEWED_SECONDS):
        with contextlib.suppress(StorageError, OSError):
            before, written = written, data()
            _renew(store, name, written, is_same=written == before)
    is_deleted = _is_deleted(store, name)
    tried.set()
    while not is_deleted:  # it counts as long as this process lives
        time.sleep(RENEWED_SECONDS)
        is_deleted = _is_deleted(store, name)


def _renew(store: Store, name: str, data: bytes, *, is_same: bool) -> None:
    if isinstance(store, LocalStore):
        with contextlib.suppress(OSError):
            os.utime(store.folder / name)  # needs no room
            if is_same:
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
