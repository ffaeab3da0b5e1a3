"""Find purges that were interrupted, so that commands warn of them until they are finished.

A purge writes an unfinished receipt at its beginning, and replaces it by the final one at its end.
If a process was killed in between, documents that were to be erased are still stored, although new
builds leave them out, so that all outputs are up to date. A purge that is still running is not
interrupted: it keeps an object in the folder `.in-use`, as builds do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.outputs.erasures import RECEIPTS, PurgeRecord
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import load
from nanoset_core.stages.shards import purged
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.heartbeats import has_ended, kept_fresh, live_objects_after_sweep
from nanoset_core.storage.in_use.leases import FOLDER as LEASE_FOLDER
from nanoset_core.storage.in_use.process_marks import new_mark
from nanoset_core.storage.store import Store
from nanoset_core.wording import format_count

_KIND = "purge"
"""Start of the file name of the object that a running purge keeps."""


@dataclass(frozen=True, slots=True)
class InterruptedPurge:
    """A purge that began, and did not end."""

    record: PurgeRecord | None
    """Its unfinished receipt; None if that is damaged."""
    receipt: str
    """Path or address of the receipt."""

    def __str__(self) -> str:
        """Return what to do, as a warning of one line that does not name the ids."""
        day = ""
        ids = "the same ids"
        options = ""
        if self.record is not None:
            day = f" of {self.record.day}"
            ids = f"the same {format_count(len(self.record.ids), 'id')}"
            options = "".join(f" --corpus {corpus}" for corpus in self.record.corpora)
        return (
            f"the purge{day} was interrupted, so old versions may still contain its documents; "
            f"to finish it, run `nanoset purge ID…{options} --yes` with {ids} again "
            f"({self.receipt} lists their lines)"
        )


@contextlib.contextmanager
def announced(outputs: OutputRoot, receipt: Path) -> Iterator[None]:
    """Show all processes, until the block ends, that this one is erasing documents.

    A small object is stored, and written again every few seconds:

        .in-use/purge-1f0c2a9e77d4-4711.89034412-a1b2c3    contains the name of the receipt

    If the process is killed, the object is no longer renewed. Then other processes take the purge
    with this receipt for an interrupted one.

    Args:
        outputs: The outputs, which documents are erased from.
        receipt: Path of the unfinished receipt of this purge.

    Raises:
        StorageError: The disk is full, or the bucket cannot be written to.
    """
    object_name = f"{LEASE_FOLDER}/{_KIND}-{new_mark()}"
    content = receipt.name.encode()
    with kept_fresh(outputs.access.store, object_name, lambda: content):  # deletes it at the end
        yield


def interrupted_purges(outputs: OutputRoot) -> list[InterruptedPurge]:
    """Return the purges that began and did not end, without those that are running now.

    A purge, which erases documents, has a receipt. Its name shows whether the purge has ended:

        purge_receipts/.5e8f….json    not yet: the purge is running, or was interrupted
        purge_receipts/c04d….json     yes

    Args:
        outputs: The outputs of the project.
    """
    if _was_surely_never_purged(outputs):
        return []

    folder = outputs.folder / RECEIPTS
    receipt_names = {name for name in outputs.access.names(folder) if _is_unfinished(name)}
    if receipt_names:
        receipt_names -= _receipts_of_running_purges(outputs)

    purges: list[InterruptedPurge] = []
    for name in sorted(receipt_names):
        purge = _read_interrupted_purge(outputs.access, folder / name)
        if purge is not None:
            purges.append(purge)
    return purges


def _was_surely_never_purged(outputs: OutputRoot) -> bool:
    """Return whether it is known, without a request to a bucket, that nothing was ever purged.

    Every command looks for interrupted purges, and would wait for the request. But a purge also
    records its documents, so that builds leave them out. This process has probably read these
    records a moment ago.

    Args:
        outputs: The outputs of the project. If they are on a disk, the result is False, since
            looking there is quick.
    """
    return outputs.access.takes_requests and not purged.has_records(outputs)


def _read_interrupted_purge(access: FileAccess, receipt: Path) -> InterruptedPurge | None:
    """Read the unfinished receipt of a purge; None if the purge has ended a moment ago.

    Args:
        access: Access to the output folder.
        receipt: Path of the receipt. If it is damaged, the result has no details of the purge.
    """
    record: PurgeRecord | None = None
    try:
        record = load(PurgeRecord, access.read_current(receipt), where=receipt)
    except FileNotFoundError:
        return None
    except FormatError:
        pass
    return InterruptedPurge(record, access.url(receipt))


def is_a_purge_running(outputs: OutputRoot) -> bool:
    """Return whether a purge is erasing documents now, on any machine.

    In a bucket, this takes no request as long as nothing was ever purged, if this process has read
    the records of erased documents a moment ago.

    Args:
        outputs: The outputs of the project.
    """
    if _was_surely_never_purged(outputs):
        return False
    return bool(_receipts_of_running_purges(outputs))


def _is_unfinished(name: str) -> bool:
    """Return whether a file in the folder of receipts has the name of an unfinished receipt."""
    return name.startswith(".") and name.endswith(".json")


def _receipts_of_running_purges(outputs: OutputRoot) -> set[str]:
    """Return the receipts of all purges that are running now, on any machine.

    A purge erases documents, and lists them in a receipt. As long as it is running, it keeps a
    small object that contains the name of the receipt; see `announced`:

        .in-use/purge-1f0c2a9e77d4-4711.89034412-a1b2c3    contains ".5e8f….json"

    Args:
        outputs: The outputs of the project.

    Returns:
        File names of the receipts, such as {".5e8f….json"}.
    """
    store = outputs.access.store
    receipt_names: set[str] = set()
    for object_name in _objects_of_running_purges(store):
        content = store.read(object_name)
        if content is not None:  # None if the purge has ended a moment ago
            receipt_names.add(content.decode(errors="replace"))
    return receipt_names


def _objects_of_running_purges(store: Store) -> list[str]:
    """List the objects with which running purges show other processes that they are running.

    Every process that works on the outputs keeps such an object, and renews it every few seconds:

        .in-use/purge-1f0c2a9e77d4-4711.89034412-a1b2c3    of a running purge: returned
        .in-use/purge-1f0c2a9e77d4-4712.89034413-d4e5f6    not renewed: its process was killed
        .in-use/lease-1f0c2a9e77d4-4713.89034414-b7c8d9    of a build

    Args:
        store: The folder or bucket of the outputs.

    Returns:
        Names of the objects. Those of killed processes are deleted.
    """
    objects_by_kind = live_objects_after_sweep(store, LEASE_FOLDER)
    objects_of_purges = objects_by_kind.get(_KIND, [])
    # An earlier purge of this process has ended, although its object could not be deleted.
    return [object_name for object_name in objects_of_purges if not has_ended(object_name)]
