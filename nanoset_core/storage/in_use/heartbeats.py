"""Objects in a store that show that a process is alive.

A process that has to be visible to other processes, also on other machines, writes a small object
and renews it every 15 seconds; it deletes the object when its work ends. The name of the object
ends with a mark, which identifies the machine and the process. Other processes decide by two rules
whether the object counts:

- If the process runs on the same machine, the object counts as long as the process exists. It may
  be suspended, or unable to write, for any time.
- Otherwise the object counts for ten minutes after it was last renewed, by the clock of the store.

Objects that do not count are deleted by the next process that lists them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator

from nanoset_core.errors import StorageError
from nanoset_core.storage.in_use.owners import Owner, started_at
from nanoset_core.storage.in_use.process_marks import is_mark_of_this_machine, is_owner_alive
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore

RENEWED_SECONDS = 15.0
"""Interval at which a process renews its objects."""
LEASE_SECONDS = 600
"""An object of another machine counts for this long after it was last renewed."""
_DELETION_SECONDS = 10.0
"""At its end, a process waits this long at most for its object to be deleted."""
_ended_names: set[str] = set()
"""Names of objects of this process for work that has ended.

An object may outlive the work because the store refuses to delete it. This process must not wait
for such an object.
"""


def has_ended(name: str) -> bool:
    """Return whether an object was written by this process, for work that has ended.

    Such an object may still exist because the store refused to delete it. It is to be ignored.

    Args:
        name: Name of the object in its store, such as `.in-use/lease-<mark>`.
    """
    return name in _ended_names


def live_objects_after_sweep(
    store: Store, folder: str, *, ignored: str | None = None
) -> dict[str, list[str]]:
    """List the objects with which running processes show that they are alive. Delete all others.

    Each process that works on a store keeps a small object in it, and renews it every few seconds.
    The name says what it is for (its kind), and which process has written it (its mark):

        .in-use/lease-1f0c2a9e77d4-4711.890-a1b2c3    process 4711 is running: listed
        .in-use/lease-1f0c2a9e77d4-4712.891-d4e5f6    process 4712 has ended: deleted

    Args:
        store: The store.
        folder: Folder of these objects, such as `.in-use`.
        ignored: Name of an object to leave alone, such as that of the caller.

    Returns:
        Kind → names of the objects whose processes are taken to be running, here `{"lease":
        [".in-use/lease-1f0c2a9e77d4-4711.890-a1b2c3"]}`. A kind without such objects is missing.
    """
    objects = [stored for stored in store.list(folder) if stored.name != ignored]
    if not objects:
        return {}  # without a request for the time

    now_ns = store.now()
    names_by_kind: dict[str, list[str]] = {}
    for stored in objects:
        kind, mark = _kind_and_mark(stored.name)
        if is_live(mark, stored.written_ns, now_ns):
            names_by_kind.setdefault(kind, []).append(stored.name)
        else:
            _try_to_delete(store, stored.name)
    return names_by_kind


def is_live(mark: str, written_ns: int, now_ns: int) -> bool:
    """Return whether the process that has written an object is taken to be alive.

    A process of this machine can be looked up. One of another machine counts as alive for ten
    minutes (LEASE_SECONDS) after it has last renewed its object, which it does every 15 seconds.

    Args:
        mark: The mark of the process in the name of the object, such as
            `1f0c2a9e77d4-4711.89034412-a1b2c3`: machine, process id, start, and random digits.
        written_ns: When the object was last renewed, in nanoseconds.
        now_ns: The time now, by the same clock, which is that of the store.
    """
    is_alive = is_owner_alive(mark)
    if is_alive is not None:
        return is_alive
    # The process runs on another machine, where it renews the object every few seconds.
    return written_ns > now_ns - LEASE_SECONDS * 10**9


def owner_of(name: str, host: str | None = None, since: float | None = None) -> Owner:
    """Return the process that wrote an object, so that a message can say whom a user waits for.

        .in-use/lease-1f0c2a9e77d4-4711.89034412-a1b2c3    the object
        process 4711 on node-3, since 2026-03-01 12:03:04   its process

    The name has a digest of the machine (1f0c2a9e77d4) and the process id (4711).

    Args:
        name: Name of the object.
        host: Readable name of the process's machine, if the object's content has it.
        since: When the process began its work, seconds since 1970, if the content has it.
    """
    _kind, mark = _kind_and_mark(name)  # "lease", and the rest of the name
    pid = _pid_in(mark)
    is_on_this_machine = is_mark_of_this_machine(mark)

    # What the content does not say is known for processes of this machine.
    if since is None and is_on_this_machine and pid is not None:
        since = started_at(pid)
    if host is None:
        host = platform.node() if is_on_this_machine else "another machine"
    return Owner(host, pid, since, is_on_this_machine)


def _pid_in(mark: str) -> int | None:
    """Return the process id in the mark of a process, which is part of the name of an object.

    For example, `1f0c2a9e77d4-4711.89034412-a1b2c3` (machine, process id, start, random) gives
    4711.

    Returns:
        The id; None for a mark of another form, which another version of this program may have
        written.
    """
    parts = mark.split("-")
    if len(parts) < 3:
        return None
    pid_text, _, _ = parts[1].partition(".")
    return int(pid_text) if pid_text.isdecimal() else None


def _kind_and_mark(name: str) -> tuple[str, str]:
    """Divide the name of an object into its kind and the mark of its process.

    For example, `.in-use/lease-1f0c2a9e77d4-4711.890-a1b2c3` gives `lease` and
    `1f0c2a9e77d4-4711.890-a1b2c3`.
    """
    file_name = name.rpartition("/")[2]
    kind, _, mark = file_name.partition("-")
    return kind, mark


@contextlib.contextmanager
def kept_fresh(store: Store, name: str, data: Callable[[], bytes]) -> Iterator[None]:
    """Show other processes that this one works: keep an object in a store until the block ends.

        before the block    this thread writes the object
        during the block    another thread writes it again every 15 seconds (RENEWED_SECONDS)
        after the block     that thread deletes it, while this one waits for at most 10 seconds

    If this process is killed, the object stays, but is not renewed. After ten minutes, processes of
    other machines conclude that this one has died.

    Args:
        store: Where the object is stored.
        name: Name of the object, which ends with a mark of this process.
        data: Returns the content of the object. It is called for each renewal.
    """
    write_object(store, name, data())
    heartbeat = _Heartbeat(store, name, data)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


class _Heartbeat:
    """A thread that renews an object until the work ends, and then deletes it."""

    def __init__(self, store: Store, name: str, data: Callable[[], bytes]) -> None:
        """Prepare to renew an object in a store, by which other processes see that this one is
        alive.

        Args:
            store: Where the object is stored. It exists already.
            name: Name of the object, such as `.in-use/lease-1f0c2a9e77d4-4711.89034412-a1b2c3`.
            data: Returns the content of the object.
        """
        self._store = store
        self._name = name
        self._data = data
        self._written_data: bytes | None = None
        """Content that was written last."""
        self._work_ended = threading.Event()
        """Set by `stop`."""
        self._deletion_tried = threading.Event()
        """Set by the thread after its first attempt to delete the object."""

    def start(self) -> None:
        """Begin to renew the object."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Let the thread delete the object, and wait for that, but for 10 seconds at most.

        If the store does not answer within that time (_DELETION_SECONDS), the process continues,
        and the thread keeps trying.
        """
        # From now on, this process ignores the object, even if it cannot be deleted at once.
        _ended_names.add(self._name)
        self._work_ended.set()
        self._deletion_tried.wait(_DELETION_SECONDS)

    def _run(self) -> None:
        """Renew the object every few seconds until the work ends, and then delete it.

        This is what the thread does. Meanwhile, the main thread works. At the end, it sets
        `_work_ended`, and waits until this thread sets `_deletion_tried`.

        A renewal that fails does no harm if a later one succeeds: other machines ignore the object
        only after `LEASE_SECONDS` without a renewal.
        """
        while not self._work_ended.wait(RENEWED_SECONDS):
            with contextlib.suppress(StorageError, OSError):
                self._renew()

        is_deleted = _try_to_delete(self._store, self._name)
        self._deletion_tried.set()  # lets the main thread continue

        # Try again until the object is deleted. Other processes of this machine would wait for it
        # as long as this process exists, which may be much longer than its work.
        while not is_deleted:
            time.sleep(RENEWED_SECONDS)
            is_deleted = _try_to_delete(self._store, self._name)

    def _renew(self) -> None:
        """Show that this process is alive, by giving its object a new time.

        Other processes look at the time of the object. If it is old, they take this process for
        dead.
        """
        data = self._data()
        has_same_content = data == self._written_data
        self._written_data = data

        # The time of a local file can be changed without writing it, which works on a full disk,
        # too.
        if isinstance(self._store, LocalStore):
            with contextlib.suppress(OSError):  # the file may be missing: then write it
                os.utime(self._store.folder / self._name)
                if has_same_content:
                    return

        # An object in a bucket gets a new time by writing it again.
        write_object(self._store, self._name, data)


def write_object(store: Store, name: str, data: bytes) -> None:
    """Write an object that shows that this process works.

    Args:
        store: Where the object is stored: a bucket or a local folder.
        name: Name of the object, which ends with the mark of this process.
        data: Its bytes; none for an object whose name says all.

    Raises:
        StorageError: The object cannot be written.
    """
    if isinstance(store, LocalStore) and not data:
        # The disk may be full, and this process may be about to delete something there. Usually, a
        # temporary file is written and renamed. To create an empty file needs no free space.
        path = store.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        store.put(name, data)


def _try_to_delete(store: Store, name: str) -> bool:
    """Delete an object; return whether it was deleted, or was missing already."""
    try:
        store.delete(name)
    except (StorageError, OSError):
        return False
    return True
