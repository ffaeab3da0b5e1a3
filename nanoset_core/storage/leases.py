"""Who works on which outputs: so that `nanoset gc` removes nothing that a running build uses, on
any machine.

A build keeps an object, its *lease*, that names what it works on and how far it has come: renewed
every quarter of a minute, removed at the end. A lease ends with its process, where that is one of
this machine; otherwise ten minutes after it was last renewed by the store's clock. A collection
keeps another such object, the *gate*. Both lie in the root's folder and, where outputs live in a
bucket, also there.

A build writes its lease, and then waits while there is a gate; a collection writes its gate, and
then looks for leases. So one of them sees the other wherever listings are up to date.

Builds that would make the same outputs take turns, also on two machines that share a bucket. Stores
have no locks, so that turns follow Lamport's bakery: a build writes its lease without a ticket,
draws a ticket above all that it sees, and writes that into the lease. Then it waits for every lease
on the same name that has no ticket yet, or a lower one. Two builds that draw the same ticket are
ordered by the names of their leases.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from nanoset_core.errors import StorageError
from nanoset_core.storage.access import ROOM, FileAccess
from nanoset_core.storage.atomic import is_mark_of_this_machine, is_owner_alive, new_mark
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.owners import Owner, started_at
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, in_parallel
from nanoset_core.untrusted import safe_logger

__all__ = [
    "FOLDER",
    "LEASE_SECONDS",
    "Build",
    "Work",
    "builds_under_way",
    "check_no_build",
    "collecting",
    "end_of",
    "is_live",
    "kept_fresh",
    "leased",
    "leased_names",
    "new_mark",
    "under_way",
]

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
_released: set[str] = set()
"""Leases and gates of this process whose blocks have ended."""
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
    owner: Owner | None = field(default=None, compare=False)
    """Its process."""

    def __str__(self) -> str:
        share = "" if self.share is None else f" {self.share:.0%}"
        return f"{self.stage}{share}{', ' if self.stage else ''}on {self.host}"


@dataclass(frozen=True, slots=True)
class _Lease:
    """What a lease says, as another process reads it."""

    name: str
    """Of its object in the store."""
    host: str
    """Machine of its process."""
    names: frozenset[str]
    """First parts of the names of the outputs that it keeps."""
    made: frozenset[str]
    """Those that are being made."""
    ticket: int | None
    """Its place in the order of builds that make the same; None if it is not drawn yet."""
    work: Work

    @staticmethod
    def of(name: str, data: bytes) -> _Lease:
        """Read a lease. One of a run in Dagster, or of an earlier version, has no ticket: it counts
        as the lowest.
        """
        values = json.loads(data)
        owner = _owner_of(name, str(values["host"]), values.get("since"))
        names = frozenset(values["names"])
        return _Lease(
            name=name,
            host=owner.host,
            names=names,
            made=frozenset(values.get("made", names)),
            ticket=values.get("ticket", 0),
            work=Work(owner.host, values.get("stage", ""), values.get("share"), owner),
        )


OnWait = Callable[[str, Work], None]
"""Is called with a name and the build that makes it, when that build begins to be waited for or is
stopped.
"""


@contextlib.contextmanager
def leased(
    access: FileAccess,
    names: Iterable[str],
    subject: str | None = None,
    *,
    on_wait: OnWait | None = None,
) -> Iterator[None]:
    """Keep outputs from `nanoset gc` until the block ends; wait for a collection that is under way.

    Refusals of the system in the block are explained.

    Args:
        access: The root of the outputs.
        names: First parts of the names of the outputs. Those that the calling context holds take no
            second lease.
        subject: The one of them that is made; without it all of them are.
        on_wait: If given, wait also for every process that began earlier to make the subject, and
            call this for each.
    """
    wanted = frozenset(names)
    stores = _stores(access)
    made = sorted(wanted) if subject is None else [subject]
    work: dict[str, Any] = {"since": time.time()}

    def content(ticket: Mapping[str, int | None]) -> bytes:
        values = {"host": platform.node(), "names": sorted(wanted), "made": made, **ticket, **work}
        return json.dumps(values).encode()

    with contextlib.ExitStack() as held:
        held.enter_context(explained(access.folder, expected=ROOM if access.has_copies else None))
        for store in stores:
            if any(other == store and held_names >= wanted for other, held_names in _held.get()):
                continue
            name = f"{FOLDER}/{_LEASE}-{new_mark()}"
            ticket: dict[str, int | None] = {} if on_wait is None else {"ticket": None}
            held.enter_context(kept_fresh(store, name, functools.partial(content, ticket)))
            _wait_for_gates(store, name)
            if on_wait is not None:
                number = 1 + max(
                    (other.ticket or 0 for other in _rivals(store, name, made)), default=0
                )
                ticket["ticket"] = number
                _write(store, name, content(ticket))
                _wait_for_turn(store, name, made, number, on_wait)
            if _at_work.get() is not work:
                held.callback(_at_work.reset, _at_work.set(work))
        held.callback(
            _held.reset, _held.set((*_held.get(), *((store, wanted) for store in stores)))
        )
        yield


def _wait_for_turn(
    store: Store, name: str, made: Iterable[str], ticket: int, on_wait: OnWait
) -> None:
    """Wait until no build with a lower ticket makes one of the same names."""
    pause = 0.05
    reported: tuple[str, bool] | None = None
    while True:
        earlier = [
            other for other in _rivals(store, name, made) if _comes_before(other, ticket, name)
        ]
        if not earlier:
            return
        first = min(earlier, key=lambda other: (other.ticket or 0, other.name))
        owner = first.work.owner
        state = (first.name, owner is not None and owner.is_stopped)
        if state != reported:
            on_wait(min(first.made.intersection(made)), first.work)
            reported = state
        time.sleep(pause)
        pause = min(2 * pause, _WAIT_SECONDS)


def _comes_before(other: _Lease, ticket: int, name: str) -> bool:
    return other.ticket is None or (other.ticket, other.name) < (ticket, name)


def _rivals(store: Store, name: str, made: Iterable[str]) -> list[_Lease]:
    """Return the other leases on those of these outputs that are being made."""
    others = [lease for lease in _leases_in(store) if lease.name not in (name, *_released)]
    return [lease for lease in others if not lease.made.isdisjoint(made)]


@contextlib.contextmanager
def collecting(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let new builds wait until the block ends; yield the names that are leased at this moment."""
    _wait_for_gates(LocalStore(access.folder))
    with contextlib.ExitStack() as held:
        for store in _stores(access):
            with explained(access.folder, expected="room for one empty file"):
                # On a full disk an empty file: a collection is what makes room.
                is_empty = isinstance(store, LocalStore)
                gate = (
                    b"" if is_empty else json.dumps({"host": platform.node(), "names": []}).encode()
                )
                name = f"{FOLDER}/{_GATE}-{new_mark()}"
                held.enter_context(kept_fresh(store, name, lambda gate=gate: gate))  # type: ignore[misc]
        yield leased_names(access)


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Return the names that running builds hold, each with the process that does, as a clause."""
    return {
        name: str(lease.work.owner) for lease in _leases(access) for name in sorted(lease.names)
    }


def under_way(access: FileAccess) -> Mapping[str, Work]:
    """Return the corpora, nanosets and webdatasets that running builds make, each with how far that
    has come.
    """
    return {name: lease.work for lease in _leases(access) for name in sorted(lease.made)}


@dataclass(frozen=True, slots=True)
class Build:
    """A build that is under way."""

    owner: Owner
    """Its process."""
    names: tuple[str, ...]
    """The corpora, nanosets and webdatasets that it makes now."""

    def __str__(self) -> str:
        """`process 123 on host, since 2026-03-01 12:03:04, makes web`."""
        return f"{self.owner}, makes {', '.join(self.names)}"


def builds_under_way(access: FileAccess) -> list[Build]:
    """Return the builds that are under way, on any machine."""
    names_by_process: dict[tuple[str, int | None], list[str]] = {}
    owner_by_process: dict[tuple[str, int | None], Owner] = {}
    for name, work in under_way(access).items():
        owner = work.owner or Owner(work.host)
        process = (owner.host, owner.pid)
        owner_by_process.setdefault(process, owner)
        names_by_process.setdefault(process, []).append(name)
    return [
        Build(owner, tuple(names_by_process[process]))
        for process, owner in owner_by_process.items()
    ]


def check_no_build(access: FileAccess, what: str, remedy: str) -> None:
    """Raise StorageError if a build works on outputs of this root, with its process and how to end
    it.

    Args:
        access: The root of the outputs.
        what: What cannot be done meanwhile, as the beginning of "… while a build is under way".
        remedy: What to do once the build has ended.
    """
    builds = builds_under_way(access)
    if builds:
        raise StorageError(
            f"{what} while a build is under way",
            where=access.folder,
            found="; ".join(map(str, builds)),
            expected="no build",
            remedy=f"wait until it has ended, or end it ({end_of(builds)}); {remedy}",
        )


def end_of(builds: Iterable[Build]) -> str:
    """Return how builds are ended, as a clause."""
    return "; ".join(build.owner.remedy() for build in builds)


def at_work(stage: str, share: float | None) -> None:
    """Let the lease of this context, when it is renewed next, say what is being made, and how much
    of it is done.
    """
    if (work := _at_work.get()) is not None:
        work |= {"stage": stage, "share": None if share is None else round(share, 3)}


def _leases(access: FileAccess) -> Iterator[_Lease]:
    for store in _stores(access):
        yield from _leases_in(store)


def _leases_in(store: Store) -> list[_Lease]:
    names = _live(store, _LEASE)
    contents = in_parallel(store.read, names, CONNECTIONS)
    # A lease may have been removed since it was listed.
    return [
        _Lease.of(name, data)
        for name, data in zip(names, contents, strict=True)
        if data is not None
    ]


def _owner_of(name: str, host: str | None = None, since: float | None = None) -> Owner:
    """Return the process that keeps a lease or gate, by the mark in its name."""
    mark = name.rpartition("/")[2].partition("-")[2]
    process = mark.split("-")[1].partition(".")[0] if mark.count("-") >= 2 else ""
    pid = int(process) if process.isdecimal() else None
    is_here = is_mark_of_this_machine(mark)
    if is_here and since is None and pid is not None:
        since = started_at(pid)
    if host is None:
        host = platform.node() if is_here else "another machine"
    return Owner(host, pid, since, is_here)


def is_live(mark: str, written_ns: int, now_ns: int) -> bool:
    """Return whether what a process of this mark keeps fresh counts; its age tells only where that
    is not known.

    A process of this machine may be suspended, or unable to write, for longer. Both times are by
    the store's clock.
    """
    alive = is_owner_alive(mark)
    return written_ns > now_ns - LEASE_SECONDS * 10**9 if alive is None else alive


def _stores(access: FileAccess) -> list[Store]:
    here = LocalStore(access.folder)
    return [here, access.store] if access.has_copies else [here]


def _wait_for_gates(store: Store, own: str | None = None) -> None:
    """Wait until no collection is under way; say for which one, and how to end it."""
    pause = 0.05
    reported: tuple[str, bool] | None = None
    while gates := _live(store, _GATE, own):
        owner = _owner_of(gates[0])
        state = (gates[0], owner.is_stopped)
        if state != reported:
            logger.warning(
                "waits until `nanoset gc` of %s has ended: %s; %s",
                store.url(),
                owner,
                owner.remedy(),
            )
            reported = state
        time.sleep(pause)
        pause = min(2 * pause, _WAIT_SECONDS)


def _live(store: Store, kind: str, own: str | None = None) -> list[str]:
    """Return the names of the leases or gates that count; remove whatever does not, but never
    `own`.
    """
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
    """Keep an object of this process in a store, with what it holds at the time, until the block
    ends.
    """
    _write(store, name, data())
    ended = threading.Event()
    tried = threading.Event()
    threading.Thread(
        target=_keep, args=(store, name, data, ended, tried), name=name, daemon=True
    ).start()
    try:
        yield
    finally:
        _released.add(name)  # this process does not wait for it, should it not be removable yet
        ended.set()
        tried.wait(_LAST_SECONDS)


def _keep(
    store: Store,
    name: str,
    data: Callable[[], bytes],
    ended: threading.Event,
    tried: threading.Event,
) -> None:
    """Renew an object until the event, and then remove it, if not at once, then as soon as the
    store lets it.
    """
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
