"""Leases: which outputs running builds use, so that `nanoset gc` keeps them, on any machine.

A build writes a *lease*, a small JSON object that names the outputs that it uses and how far it has
come. A collection (`nanoset gc` and other commands that delete outputs) writes a *gate*. Both are
heartbeats (see `heartbeats.py`): renewed while the process works, and ignored once it has died.
They are stored in the folder `.in-use` of the output root. If the root is in a bucket, they are
stored in the bucket and in the local folder for copies, which processes of one machine share.

A build and a collection cannot miss each other: a build writes its lease and then waits while there
is a gate, and a collection writes its gate and then reads the leases. Whoever writes second sees
what the other has written.

Builds that would make the same output take turns, on any machines. Stores have no locks, so the
turns follow Lamport's bakery algorithm:

1. A build writes its lease without a ticket.
2. It reads the other leases. If none is for the same output, it has its turn at once, and needs no
   ticket: builds that come later find its lease.
3. Otherwise it draws a ticket above the highest of theirs, and writes the ticket to its lease.
4. It waits until no other lease for the same output has a lower ticket, or no ticket.

Two builds that draw the same ticket are ordered by the names of their leases.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from nanoset_core.errors import StorageError
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.records.stored_fields import stored
from nanoset_core.storage.access import ROOM, FileAccess
from nanoset_core.storage.in_use.heartbeats import (
    has_ended,
    kept_fresh,
    live_objects_after_sweep,
    owner_of,
    write_object,
)
from nanoset_core.storage.in_use.owners import Owner
from nanoset_core.storage.in_use.process_marks import new_mark
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.untrusted import safe_logger

FOLDER = ".in-use"
"""Folder of leases and gates below the root."""
_LEASE = "lease"
"""Start of the file name of a lease."""
_GATE = "gate"
"""Start of the file name of a gate."""
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0
"""Pause between two looks at what a process waits for; it grows to this."""

logger = safe_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """A lease that code of this context holds."""

    store: Store
    names: frozenset[str]


_held_leases: ContextVar[tuple[_HeldLease, ...]] = ContextVar("held_leases", default=())
"""All leases that this context holds."""


@dataclass(slots=True)
class _ReportedWork:
    """What the holder of a lease reports about its work; `at_work` changes it."""

    since: float
    """When the work began, seconds since 1970."""
    stage: str | None = None
    """What is being made; None before the first report."""
    share: float | None = None
    """How much of it is done, from 0 to 1, if known."""


_current_work: ContextVar[_ReportedWork | None] = ContextVar("current_work", default=None)
"""The reported work of the innermost lease of this context."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a running build is doing."""

    host: str
    """The build's machine."""
    stage: str = ""
    """What is being made; empty if the build has not reported it yet."""
    share: float | None = None
    """How much of it is done, from 0 to 1."""
    owner: Owner | None = field(default=None, compare=False)
    """The build's process."""

    def __str__(self) -> str:
        """`tokenized_shards web 40%, on host`; or `on host` before the first report."""
        if not self.stage:
            return f"on {self.host}"
        share = "" if self.share is None else f" {self.share:.0%}"
        return f"{self.stage}{share}, on {self.host}"


@dataclass(frozen=True, slots=True)
class _LeaseRecord(Record):
    """The content of the object that a lease, or a gate of `nanoset gc`, is in a store."""

    json_form: ClassVar[JsonForm] = JsonForm("this is not a lease of a build")
    ignores_unknown_keys: ClassVar[bool] = True

    host: str
    """Machine of the process that holds the lease."""
    names: tuple[str, ...]
    """The outputs that are kept: names of corpora, nanosets, webdatasets and exports."""
    made: tuple[str, ...] | None = field(default=None, metadata=stored(omit_default=True))
    """Those of them that the process makes; None if that is all of them."""
    ticket: int | None = field(default=0, metadata=stored(omit_default=True))
    """Place in the order of builds that make the same output; None if it has drawn no ticket.

    Runs in Dagster, and builds of earlier versions, do not take turns. Their leases have no ticket,
    which counts as 0, the lowest one: other builds wait for them.
    """
    since: float | None = field(default=None, metadata=stored(omit_default=True))
    """When the build began its work, in seconds since 1970."""
    stage: str | None = field(default=None, metadata=stored(omit_default=True))
    """What is being made, once the build has reported it."""
    share: float | None = field(default=None, metadata=stored(only_with="stage"))
    """How much of it is done, from 0 to 1."""

    @property
    def made_names(self) -> frozenset[str]:
        """The outputs that the process makes: all that are kept, if they are not listed."""
        return frozenset(self.names if self.made is None else self.made)

    def work_of(self, process: Owner) -> Work:
        """Return what the process that holds the lease is making.

        A lease is a small object by which a running process shows which outputs it uses, such as
        {"host": "node-3", "names": ["web"], "stage": "tokenized_shards", "share": 0.4}.
        """
        return Work(
            host=process.host,
            stage=self.stage or "",
            share=self.share,
            owner=process,
        )


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease as another process reads it."""

    name: str
    """Name of the object in the store."""
    host: str
    """Machine of the process that holds the lease."""
    names: frozenset[str]
    """The outputs that are kept: names of corpora, nanosets, webdatasets and exports."""
    made: frozenset[str]
    """Those of them that the process makes."""
    ticket: int | None
    """Place in the order of builds that make the same output; None if it has drawn no ticket."""
    work: Work

    @staticmethod
    def of(name: str, data: bytes) -> _Lease:
        """Parse a lease: an object that shows which outputs another process is using.

        As long as the process is running, nobody deletes these outputs. For example:

            name       .in-use/lease-1f0c2a9e77d4-4711.89034412-a1b2c3
            content    {"host": "node-3", "names": ["web"], "ticket": 5, "since": 1767000000.0}

        Process 4711 of the machine node-3 uses `web`, since a certain time. Of the processes that
        write the same output, the one with the lowest ticket has its turn.

        Args:
            name: Name of the object.
            data: Its content.

        Raises:
            FormatError: The content is not that of a lease.
        """
        content = load(_LeaseRecord, data, where=name)
        process = owner_of(name, content.host, content.since)  # takes the process id from the name
        return _Lease(
            name=name,
            host=process.host,
            names=frozenset(content.names),  # the outputs that it uses
            made=content.made_names,  # those of them that it writes
            ticket=content.ticket,
            work=content.work_of(process),  # what it does at the moment, for messages
        )


@dataclass(slots=True)
class _OwnLease:
    """A lease that this process holds in one store."""

    store: Store
    name: str
    """Name of the object in the store."""
    names: list[str]
    """See `_Lease.names`."""
    made: list[str]
    """See `_Lease.made`."""
    work: _ReportedWork
    takes_turns: bool
    """Whether the process waits for earlier builds that make the same outputs."""
    ticket: int | None = None
    """See `_Lease.ticket`."""

    def content(self) -> bytes:
        """Return the JSON of the lease, by which other processes see what this build does.

            {"host": "node-3", "names": ["web", "books"], "made": ["web"], "ticket": 5,
             "stage": "tokenized_shards", "share": 0.4, …}

        This build uses the outputs `web` and `books`, and writes `web`. Of builds that write the
        same output, the one with the lowest ticket has its turn.
        """
        record = _LeaseRecord(
            host=platform.node(),
            names=tuple(self.names),
            made=tuple(self.made),
            ticket=self.ticket if self.takes_turns else 0,  # 0 is not written
            since=self.work.since,
            stage=self.work.stage,
            share=self.work.share,
        )
        return dump(record)

    def draw_ticket(self, rivals: Iterable[_Lease]) -> None:
        """Draw a number that decides when this build has its turn, and let other builds see it.

        Builds that make the same output take turns, like customers with numbered tickets. The
        number is one more than the highest of all others: if they have 3 and 4, this build gets 5.

        Args:
            rivals: Leases of other builds that make the same output. They were listed after the
                lease of this build was written.
        """
        highest = max((rival.ticket or 0 for rival in rivals), default=0)
        self.ticket = highest + 1
        write_object(self.store, self.name, self.content())

    def rivals(self, names: Iterable[str] | None = None) -> list[_Lease]:
        """Return the leases of other builds that make an output which this build makes, too.

        For example, this build makes `web`. A build that makes `web` and `books` is a rival; one
        that only uses `web` is not. Leases of builds of this process that have ended do not count.

        Args:
            names: Names of other leases, which are objects in the store, if they were listed
                already; None to list them now.
        """
        if names is None:
            # This lease is often the only one. Without it, the list is empty, and nothing is read.
            leases = _leases_in(self.store, ignored=self.name)
        else:
            leases = _read_leases(self.store, names)
        return [
            lease
            for lease in leases
            if not has_ended(lease.name) and not lease.made.isdisjoint(self.made)
        ]

    def is_after(self, rival: _Lease) -> bool:
        """Return whether a rival, a build that makes the same output, has its turn before this one.

        The lower ticket comes first. Two builds that have drawn the same ticket at the same moment
        are ordered by the names of their leases:

            rival's ticket    this build's    result
            2                 5               True
            5                 5               True if the name of the rival's lease is lower
            6                 5               False
            None              5               True
        """
        if rival.ticket is None:
            # The rival has its turn already, since it found no other build when it began. Or it is
            # drawing its ticket at this moment, perhaps a lower one.
            return True
        return (rival.ticket, rival.name) < (self.ticket, self.name)


OnWait = Callable[[str, Work], None]
"""Function that reports that a build has to wait: (name of an output, the build that makes it).

It is called once for each build that is waited for, and again if that build's process is suspended
or continued.
"""


@contextlib.contextmanager
def leased(
    access: FileAccess,
    names: Iterable[str],
    subject: str | None = None,
    *,
    on_wait: OnWait | None = None,
) -> Iterator[None]:
    """Protect outputs from being deleted, until the `with` block ends.

    `nanoset gc` deletes outputs that nothing needs. A build must not lose what it is using
    meanwhile. So it writes a *lease*, a small object that names these outputs, and `nanoset gc`
    reads the leases. If it is running already, the block begins after it.

    Args:
        access: The output root.
        names: Names of the corpora, nanosets, webdatasets and exports whose outputs are protected.
            If this context holds a lease on all of them already, no second one is taken.
        subject: The one of them that the block makes; None if it makes all of them.
        on_wait: Take turns: wait for every build that began to make the subject earlier, and call
            this function for each. None: do not wait for other builds.

    Raises:
        StorageError: The lease cannot be written.
    """
    requested_names = frozenset(names)
    subjects = sorted(requested_names) if subject is None else [subject]
    work = _ReportedWork(since=time.time())
    expected = ROOM if access.takes_requests else None

    with contextlib.ExitStack() as stack:
        stack.enter_context(explained(access.folder, expected=expected))

        # Write a lease, an object that names the outputs, to each store: the local folder and, if
        # the outputs are in one, the bucket.
        stores = _stores(access)
        for store in stores:
            if _holds_lease(store, requested_names):
                continue
            lease = _OwnLease(
                store=store,
                name=f"{FOLDER}/{_LEASE}-{new_mark()}",
                names=sorted(requested_names),
                made=subjects,
                work=work,
                takes_turns=on_wait is not None,
            )
            stack.enter_context(_held(lease, on_wait))

        # Calls within the block need no second lease on the same outputs.
        new_leases = [_HeldLease(store, requested_names) for store in stores]
        _set_in_block(stack, _held_leases, (*_held_leases.get(), *new_leases))
        yield


@contextlib.contextmanager
def _held(lease: _OwnLease, on_wait: OnWait | None) -> Iterator[None]:
    """Keep a lease until the block ends, after waiting for other processes if necessary.

    A lease is an object in a store that names outputs. While it exists, nobody begins to delete
    these outputs. The steps are:

        1. write the lease
        2. wait for commands that began to delete outputs before, and may not know of it
        3. wait for builds that began to write the same outputs before, if `on_wait` is passed
        4. run the block, while a thread renews the lease every few seconds
        5. delete the lease, also after an error

    Args:
        lease: The lease.
        on_wait: Called for each build of the same outputs that is waited for. None: do not wait for
            builds.

    Raises:
        StorageError: The lease cannot be written.
    """
    with contextlib.ExitStack() as stack:
        # Write the lease before looking for commands that delete: if one begins at the same moment,
        # it sees the lease, or this process sees it.
        stack.enter_context(kept_fresh(lease.store, lease.name, lease.content))
        other_names = _wait_for_collections(lease.store, own_lease=lease.name)
        if on_wait is not None:
            _wait_for_rivals(lease, other_names, on_wait)

        # In the block, `at_work` notes in this variable what the build does. The thread writes it
        # to the lease, so that others see it.
        _set_in_block(stack, _current_work, lease.work)
        yield


def _wait_for_rivals(lease: _OwnLease, other_names: list[str], on_wait: OnWait) -> None:
    """Wait for builds that began to write the same outputs before.

    Such builds draw tickets, which are numbers, and the lowest has its turn. If there is no other
    build, this one begins without a ticket: a build that comes later waits for its lease.

    Args:
        lease: The lease of this build.
        other_names: Names of the leases of all other builds.
        on_wait: Called for each build that is waited for.
    """
    rivals = lease.rivals(other_names)
    if rivals:
        lease.draw_ticket(rivals)
        _wait_for_turn(lease, on_wait)


def _holds_lease(store: Store, names: frozenset[str]) -> bool:
    """Return whether this process, in the current context, protects all of some outputs already.

    A function that builds `web` may be called by one that has a lease on `web` and `books`. Then it
    need not write a second lease.

    Args:
        store: The store, which has leases as objects.
        names: Names of the outputs.
    """
    return any(lease.store == store and lease.names >= names for lease in _held_leases.get())


def _set_in_block(stack: contextlib.ExitStack, variable: ContextVar[_T], value: _T) -> None:
    """Set a context variable until an exit stack is closed."""
    token = variable.set(value)
    stack.callback(variable.reset, token)


def _wait_for_turn(lease: _OwnLease, on_wait: OnWait) -> None:
    """Wait until all builds that make the same output, and came earlier, have ended.

    Each build has drawn a ticket, a number. The lowest has its turn. For example, with these
    leases, the third build waits for the first one:

        build    makes     ticket
        1        web       3
        2        books     4
        3        web       5

    Args:
        lease: The lease of this build, with its ticket.
        on_wait: Called with the name of an output and the build that is making it: once for each
            build that is waited for, and again when its process is suspended or continued.
    """
    pause = _FIRST_PAUSE_SECONDS
    reported_state: tuple[str, bool] | None = None
    while True:
        # The other builds of the same output with a lower ticket.
        earlier_leases = [rival for rival in lease.rivals() if lease.is_after(rival)]
        if not earlier_leases:
            return

        # Report the first of them. A build without a ticket comes first; see `is_after`.
        first = min(earlier_leases, key=lambda rival: (rival.ticket or 0, rival.name))
        owner = first.work.owner
        is_suspended = owner is not None and owner.is_stopped
        state = (first.name, is_suspended)
        if state != reported_state:
            common_outputs = first.made.intersection(lease.made)  # at least one
            on_wait(min(common_outputs), first.work)
            reported_state = state

        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


@contextlib.contextmanager
def collecting(access: FileAccess) -> Iterator[Mapping[str, str]]:
    """Let the block delete outputs, while no build may begin to use one of them.

    The block deletes what nothing needs (`nanoset gc`). Each side first writes a small object, and
    then looks for those of the other side:

        this process    writes a *gate*, then looks for leases    does not delete what they name
        a build         writes a *lease*, which names what it     waits until there is no gate
                        uses, then looks for gates

    Whichever writes second sees the object of the other. If both write at the same moment, both see
    the other's, and that is safe, too: the build waits, and its outputs are not deleted.

    Args:
        access: The folder or bucket of all outputs.

    Yields:
        Name of each output that a running build uses → that build's process, as a clause. The block
        must not delete these.

    Raises:
        StorageError: The disk is full, or the bucket cannot be written to.
    """
    # Let another command of this machine that deletes outputs finish first. This is no lock: if two
    # begin at the same moment, both continue.
    _wait_for_collections(LocalStore(access.folder))

    with contextlib.ExitStack() as stack:
        # Write a gate to the local folder and, if the outputs are in one, to the bucket. It is
        # renewed until the block ends, and then deleted.
        for store in _stores(access):
            gate_name = f"{FOLDER}/{_GATE}-{new_mark()}"
            content = functools.partial(_gate_content, store)
            with explained(access.folder, expected="a folder that takes an empty file"):
                try:
                    stack.enter_context(kept_fresh(store, gate_name, content))
                except OSError as error:
                    # The message will name the folder. The user does not know the gate.
                    error.filename = os.fspath(access.folder)
                    raise

        # The builds that began before the gates. Those that begin now, wait.
        yield leased_names(access)


def _gate_content(store: Store) -> bytes:
    """Return the content of the object that makes new builds wait; only its name matters."""
    if isinstance(store, LocalStore):
        # An empty file can be written on a full disk, and a collection is what makes room there.
        return b""
    return dump(_LeaseRecord(platform.node(), names=()))


def leased_names(access: FileAccess) -> Mapping[str, str]:
    """Return the outputs that running builds use, and that must therefore not be deleted.

    Each running build has a lease, an object that names these outputs.

    Args:
        access: The folder or bucket of all outputs. Leases are read from the local folder and from
            the bucket, if there is one.

    Returns:
        Name of a corpus, nanoset, webdataset or export → the process that uses it, as a clause such
        as `process 123 on host, since 2026-03-01 12:03:04`.
    """
    process_by_name: dict[str, str] = {}
    for lease in _leases(access):
        process = str(lease.work.owner)
        for name in sorted(lease.names):
            process_by_name[name] = process
    return process_by_name


def under_way(access: FileAccess) -> Mapping[str, Work]:
    """Return what running builds make, with how far they are.

    Each running build has a lease, an object that names its outputs, and says which part of the
    work it does at the moment.

    Args:
        access: The folder or bucket of all outputs. Leases are read from the local folder and from
            the bucket, if there is one.

    Returns:
        Name of an output → the work on it, such as "tokenized_shards web 40%, on host". If several
        builds make the same output, the work of one of them.
    """
    work_by_name: dict[str, Work] = {}
    for lease in _leases(access):
        for name in sorted(lease.made):
            work_by_name[name] = lease.work
    return work_by_name


@dataclass(frozen=True, slots=True)
class Build:
    """A running build."""

    owner: Owner
    """Its process."""
    names: tuple[str, ...]
    """The corpora, nanosets, webdatasets and exports that it is making."""

    def __str__(self) -> str:
        """`process 123 on host, since 2026-03-01 12:03:04, makes web`."""
        return f"{self.owner}, makes {', '.join(self.names)}"


def builds_under_way(access: FileAccess) -> list[Build]:
    """Return the builds that are running, on all machines, with what each of them makes.

    A build may hold several leases, one for each output that it makes. These are listed together:

        lease of process 123 on host1    makes web
        lease of process 123 on host1    makes books    →    process 123 on host1 makes web, books
        lease of process 77 on host2     makes code     →    process 77 on host2 makes code

    Args:
        access: The output root, whose leases are read.
    """
    names_by_process: dict[tuple[str, int | None], list[str]] = {}
    owner_by_process: dict[tuple[str, int | None], Owner] = {}
    for name, work in under_way(access).items():
        owner = work.owner or Owner(work.host)
        process = (owner.host, owner.pid)  # the id is None if it is not known
        owner_by_process.setdefault(process, owner)
        names_by_process.setdefault(process, []).append(name)

    builds: list[Build] = []
    for process, owner in owner_by_process.items():
        builds.append(Build(owner, tuple(names_by_process[process])))
    return builds


def check_no_build(access: FileAccess, what: str, remedy: str) -> None:
    """Check that no build is working on outputs of a folder or bucket.

    A command that erases documents, for example, must not run during a build. The error says which
    process builds: "process 123 on host, makes web", and that `kill 123` ends it.

    Args:
        access: The folder or bucket of all outputs.
        what: What cannot be done during a build: the beginning of "… while a build is under way".
        remedy: What to do once the build has ended.

    Raises:
        StorageError: A build is running. The error names its process, and how to end it.
    """
    builds = builds_under_way(access)
    if builds:
        raise StorageError(
            f"{what} while a build is under way",
            where=access.folder,
            found="; ".join(str(build) for build in builds),
            expected="no build",
            remedy=f"wait until it has ended, or end it ({end_of(builds)}); {remedy}",
        )


def end_of(builds: Iterable[Build]) -> str:
    """Return how to end some builds, as a clause.

    Args:
        builds: The builds, such as those that a command would have to wait for.

    Returns:
        Text such as "`kill 123` ends it; `kill 77` on host2 ends it".
    """
    return "; ".join(build.owner.remedy() for build in builds)


def at_work(stage: str, share: float | None) -> None:
    """Report what this build is doing at the moment, for `nanoset status` and other builds.

    A running build has a lease, an object in the store that other processes read:

        {"names": ["web"], "stage": "tokenized_shards web", "share": 0.4, …}

    The report is written to it when it is renewed next, within seconds.

    Args:
        stage: What is being made.
        share: How much of it is done, from 0 to 1; None if that is not known.
    """
    work = _current_work.get()  # what the lease says; its thread reads this object
    if work is None:
        return  # this code does not run within a build that has a lease
    work.stage = stage
    work.share = None if share is None else round(share, 3)


def _leases(access: FileAccess) -> Iterator[_Lease]:
    """Yield all leases of a root that count."""
    for store in _stores(access):
        yield from _leases_in(store)


def _leases_in(store: Store, *, ignored: str | None = None) -> list[_Lease]:
    """Return the leases of running processes in a store, which say which outputs they use.

    A lease that a killed process has left behind is deleted.

    Args:
        store: The store.
        ignored: Name of a lease to leave out, such as the caller's own.
    """
    names_by_kind = live_objects_after_sweep(store, FOLDER, ignored=ignored)
    return _read_leases(store, names_by_kind.get(_LEASE, []))


def _read_leases(store: Store, names: Iterable[str]) -> list[_Lease]:
    """Read leases, small objects by which running processes show which outputs they use.

    They were listed a moment ago. One that was deleted in the meantime is left out.

    Args:
        store: The store.
        names: Names of their objects.
    """
    listed_names = list(names)
    contents = in_parallel(store.read, listed_names, SMALL_REQUESTS_AT_ONCE)
    leases: list[_Lease] = []
    for name, data in zip(listed_names, contents, strict=True):
        if data is not None:
            leases.append(_Lease.of(name, data))
    return leases


def _stores(access: FileAccess) -> list[Store]:
    """Return the stores of leases and gates: the local folder and, if there is one, the bucket."""
    local_store = LocalStore(access.folder)
    return [local_store] if access.origin is None else [local_store, access.origin]


def _wait_for_collections(store: Store, *, own_lease: str | None = None) -> list[str]:
    """Wait while a command that deletes outputs, such as `nanoset gc`, is running.

    Such a command writes a *gate*, an object that exists while it runs. A build writes its lease
    first, and then looks for gates. So whichever begins later sees the other.

    Args:
        store: Where gates and leases are.
        own_lease: The lease of the caller, which is not of interest here. Often there is no other
            object, and this is seen by a single request.

    Returns:
        Names of the leases of other running builds. They are from the listing that showed no gate,
        so that the caller need not list the folder again.
    """
    pause = _FIRST_PAUSE_SECONDS
    reported_state: tuple[str, bool] | None = None
    while True:
        # {"gate": names of objects, "lease": names of objects}, of processes that are alive
        names_by_kind = live_objects_after_sweep(store, FOLDER, ignored=own_lease)
        gate_names = names_by_kind.get(_GATE)
        if not gate_names:
            return names_by_kind.get(_LEASE, [])

        # Log which process is waited for, once, and again when it is suspended or continued.
        first_name = gate_names[0]
        process = owner_of(first_name)
        state = (first_name, process.is_stopped)
        if state != reported_state:
            logger.warning(
                "waits until `nanoset gc` of %s has ended: %s; %s",
                store.url(),
                process,
                process.remedy(),
            )
            reported_state = state
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)
