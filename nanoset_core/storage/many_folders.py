"""Read from many folders next to each other in a store, with as few requests as possible.

A request for a listing returns up to a thousand objects. If folders are small, such as those of the
versions of an output, one listing of the folder above them replaces hundreds of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.listing import Snapshot
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Stored, in_parallel

R = TypeVar("R")
_FEW_FOLDERS = 8
"""So many folders are listed one by one if there is much else next to them."""
_OBJECTS_PER_REQUEST = 1000
"""Objects in the answer to one request for a listing."""
_FOLDERS_IN_MEMORY = 1024
"""Folders whose listing is in memory at any time."""


class _ListedFolder(NamedTuple):
    """A folder of a store, with all objects below it."""

    name: str
    """Name within the folder above it."""
    objects: list[Stored]
    """All objects below it, ordered by name."""


def call_for_folders(
    access: FileAccess,
    work: Callable[[FileAccess, Path], R],
    parent: Path,
    names: Sequence[str],
) -> list[R]:
    """Call a function for many folders of one parent, with as few requests to a store as possible.

    Most of the folders should exist. Usually the parent is listed once, which is much cheaper than
    a listing of each folder.

    Args:
        access: Access to the files.
        work: Called with access that answers from a listing of one folder, and with that folder.
        parent: The parent of the folders.
        names: Names of the folders.

    Returns:
        The results, in the order of the names.
    """
    objects = _objects_below(access, parent, len(names))
    if objects is None:
        return access.each(lambda name: work(access, parent / name), names)
    return _call_with_listings(access, work, parent, names, objects)


def _objects_below(access: FileAccess, parent: Path, n_folders: int) -> Iterable[Stored] | None:
    """List the objects below a folder, if this takes fewer requests than to list its subfolders.

    Args:
        access: Access to the files.
        parent: The folder.
        n_folders: How many of its subfolders are needed.

    Returns:
        The objects, ordered by name; None if each subfolder should be looked at alone.
    """
    # A local folder needs no requests, and a single subfolder no common listing.
    store = access.origin
    if store is None or n_folders < 2:
        return None
    parent_name = access.name(parent)
    is_listed_already = access.snapshot_with(parent_name) is not None
    if is_listed_already:
        return None

    objects = store.list(parent_name)  # an iterator, which sends requests as it is read
    if n_folders > _FEW_FOLDERS:
        return objects
    return _all_if_few(objects)


def _all_if_few(objects: Iterable[Stored]) -> list[Stored] | None:
    """Return listed objects if one request returns all of them, and otherwise None.

    A request returns up to a thousand objects. If it returns that many, there may be far more: then
    a listing of each of a few folders is cheaper.
    """
    first_objects = list(islice(objects, _OBJECTS_PER_REQUEST))
    if len(first_objects) == _OBJECTS_PER_REQUEST:
        return None
    return first_objects


def _call_with_listings(
    access: FileAccess,
    work: Callable[[FileAccess, Path], R],
    parent: Path,
    names: Sequence[str],
    objects: Iterable[Stored],
) -> list[R]:
    """Call a function for many folders, with the objects that a listing has found in each.

    Args:
        access: Access to the files.
        work: Called with access that answers from a listing of one folder, and with that folder.
        parent: The parent of the folders.
        names: Names of the folders.
        objects: All objects below the parent, ordered by name.

    Returns:
        The results, in the order of the names.
    """
    # The function may ask for the size of a file in another folder. The calls share these answers,
    # so that the store is asked once for a file that many folders refer to.
    known_sizes: dict[str, int | None] = {}
    parent_name = access.name(parent)

    def call(folder: _ListedFolder) -> R:
        """Call the function for a folder."""
        snapshot = Snapshot.of_folder(f"{parent_name}/{folder.name}", folder.objects)
        access_to_folder = replace(access, snapshot=snapshot, known_sizes=known_sizes)
        return work(access_to_folder, parent / folder.name)

    folders = _folders_of(objects, parent_name)
    result_by_name = _results_by_name(call, folders, set(names))

    # Folders that were not found in the listing have no objects.
    for name in set(names) - result_by_name.keys():
        result_by_name[name] = call(_ListedFolder(name, []))
    return [result_by_name[name] for name in names]


def _results_by_name(
    call: Callable[[_ListedFolder], R], folders: Iterable[_ListedFolder], names: Set[str]
) -> dict[str, R]:
    """Return folder name → what a function returns for the folder, for the folders with some names.

    A few folders are in memory at a time, so that a large listing never is as a whole.
    """

    def call_with_name(folder: _ListedFolder) -> tuple[str, R]:
        """Return the name of a folder, and what the function returns for it."""
        return folder.name, call(folder)

    requested_folders = (folder for folder in folders if folder.name in names)
    return dict(
        in_parallel(call_with_name, requested_folders, CONNECTIONS, window=_FOLDERS_IN_MEMORY)
    )


def _folders_of(objects: Iterable[Stored], parent_name: str) -> Iterator[_ListedFolder]:
    """Group the objects below a parent by the folder directly in the parent.

    Args:
        objects: The objects, ordered by name. Those directly in the parent are left out.
        parent_name: Name of the parent in the store.
    """
    prefix_length = len(parent_name) + 1  # with the slash after it

    def folder_name(stored: Stored) -> str:
        """Return the name of the folder that contains an object; "" for one in the parent."""
        folder, slash, _ = stored.name[prefix_length:].partition("/")
        return folder if slash else ""

    for name, group in groupby(objects, folder_name):
        if name:
            yield _ListedFolder(name, list(group))
