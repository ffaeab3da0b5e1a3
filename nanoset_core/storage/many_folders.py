"""Read from many folders next to each other in a store, with as few requests as possible.

A request for a listing returns up to a thousand objects. If folders are small, such as those of the
versions of an output, one listing of the folder above them replaces hundreds of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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

    def call_alone(name: str) -> R:
        """Call the function for a folder that was not listed with the others."""
        return work(access, parent / name)

    # A local folder needs no requests, and a single folder no common listing.
    store = access.origin
    if store is None or len(names) < 2:
        return access.each(call_alone, names)
    # The access may have a listing of the parent already.
    parent_name = access.name(parent)
    if access.snapshot_with(parent_name) is not None:
        return access.each(call_alone, names)

    # Many folders: list everything below the parent.
    listing = store.list(parent_name)  # an iterator, which sends requests as it is read
    if len(names) > _FEW_FOLDERS:
        return _call_with_listings(access, work, parent, names, listing)

    # A few folders: try one request, which returns up to a thousand objects. If it returns that
    # many, there is much else below the parent, so a request for each folder is cheaper.
    first_objects = list(islice(listing, _OBJECTS_PER_REQUEST))
    if len(first_objects) == _OBJECTS_PER_REQUEST:
        return access.each(call_alone, names)
    return _call_with_listings(access, work, parent, names, first_objects)


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
    parent_name = access.name(parent)
    # The function may ask for the size of a file in another folder. The calls share these answers,
    # so that the store is asked once for a file that many folders refer to.
    known_sizes: dict[str, int | None] = {}

    def call(folder: _ListedFolder) -> tuple[str, R]:
        """Return the name of a folder, and what the function returns for it."""
        snapshot = Snapshot.of_folder(f"{parent_name}/{folder.name}", folder.objects)
        access_to_folder = replace(access, snapshot=snapshot, known_sizes=known_sizes)
        return folder.name, work(access_to_folder, parent / folder.name)

    # The folders arrive in the order of the listing, a few at a time, so that a large listing is
    # never in memory as a whole.
    requested_names = set(names)
    all_folders = _folders_of(objects, parent_name)
    folders = (folder for folder in all_folders if folder.name in requested_names)
    results = in_parallel(call, folders, CONNECTIONS, window=_FOLDERS_IN_MEMORY)
    result_by_name = dict(results)

    # Folders that were not found in the listing have no objects.
    for name in requested_names - result_by_name.keys():
        _, result_by_name[name] = call(_ListedFolder(name, []))

    # Return the results in the order that was asked for.
    return [result_by_name[name] for name in names]


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
