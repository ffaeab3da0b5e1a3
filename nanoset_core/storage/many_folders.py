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
from nanoset_core.storage.listing import StoreListing
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Stored

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
    """Call a function for many folders next to each other, with few requests to a bucket.

    A request for a listing returns up to a thousand files. So one listing of `shards/web` is
    cheaper than one for each of its folders `shards/web/3f9c…`, `shards/web/a07e…` and so on.

    Args:
        access: Reads the files.
        work: Called with (access, path of a folder). If this access has a listing of the folder, it
            looks files up there, and sends no request for that.
        parent: The folder above them.
        names: Names of the folders, most of which should exist.

    Returns:
        The results, in the order of the names.
    """
    objects = _listing_if_cheaper(access, parent, len(names))
    if objects is not None:
        return _call_with_listing(access, work, parent, names, objects)
    # Without a listing: a few folders, or folders on a disk.
    return access.each(lambda name: work(access, parent / name), names)


def _listing_if_cheaper(
    access: FileAccess, parent: Path, n_folders: int
) -> Iterable[Stored] | None:
    """List all objects below a folder, unless it takes fewer requests to list some subfolders.

    A request lists up to a thousand objects. Suppose that subfolders have some ten objects:

        subfolders needed    list the folder    list each subfolder    result
        3 of 5,000           50 requests        3 requests             None
        500 of 500           5 requests         500 requests           the listing
        3 of 4               1 request          3 requests             the listing

    Args:
        access: Access to the files.
        parent: The folder.
        n_folders: How many of its subfolders are needed.

    Returns:
        The objects, ordered by name; None if each of the subfolders should be listed alone.
    """
    store = access.origin  # the bucket; None for files on a disk
    if store is None or n_folders < 2:
        return None
    parent_name = access.name(parent)
    is_listed_already = access.known_listing(parent_name) is not None
    if is_listed_already:
        return None  # the subfolders can be looked up in that listing, without requests

    objects = store.list(parent_name)  # an iterator, which sends requests as it is read
    if n_folders > _FEW_FOLDERS:  # more than 8: probably most of the subfolders
        return objects

    # A few subfolders are needed. How many others there are is only known after a request for the
    # first thousand objects. If it returns fewer, these are all. Otherwise, there may be millions.
    first_objects = list(islice(objects, _OBJECTS_PER_REQUEST))
    is_complete = len(first_objects) < _OBJECTS_PER_REQUEST
    return first_objects if is_complete else None


def _call_with_listing(
    access: FileAccess,
    work: Callable[[FileAccess, Path], R],
    parent: Path,
    names: Sequence[str],
    objects: Iterable[Stored],
) -> list[R]:
    """Call a function for many folders, with a listing of the folder above them.

    For example, the listing of `shards` is one long list, ordered by name. It is divided into
    folders:

        shards/3f9c/a.bin, shards/3f9c/b.bin    →  work(access to shards/3f9c)
        shards/a07e/a.bin                       →  work(access to shards/a07e)

    Each call can look up the files of its folder without a request.

    Args:
        access: Access to the files.
        work: Called with access to the files of one folder, and with the path of that folder.
        parent: The folder above them.
        names: Names of the folders.
        objects: All files below the parent, ordered by name. They may be very many, and are listed
            as they are needed.

    Returns:
        The results, in the order of the names.
    """
    # The function may also ask for the size of a file in another folder. All calls share these
    # answers, so that the store is asked once for a file that many folders refer to.
    known_sizes: dict[str, int | None] = {}
    parent_name = access.name(parent)
    result_by_name: dict[str, R] = {}

    def call(folder: _ListedFolder) -> None:
        """Call the function for a folder, with access that answers from its listing."""
        listing = StoreListing.of_folder(f"{parent_name}/{folder.name}", folder.objects)
        access_to_folder = replace(access, listing=listing, known_sizes=known_sizes)
        result_by_name[folder.name] = work(access_to_folder, parent / folder.name)

    # The listing may be long: take folders from it only as fast as the function is called.
    requested_names = set(names)
    folders = _folders_of(objects, parent_name)
    requested_folders = (folder for folder in folders if folder.name in requested_names)
    in_parallel(call, requested_folders, SMALL_REQUESTS_AT_ONCE, window=_FOLDERS_IN_MEMORY)

    # Folders that are not in the listing have no objects.
    for name in requested_names - result_by_name.keys():
        call(_ListedFolder(name, []))
    return [result_by_name[name] for name in names]


def _folders_of(objects: Iterable[Stored], parent_name: str) -> Iterator[_ListedFolder]:
    """Group the objects below a parent by the folder directly in the parent.

    For the parent `shards`:

        shards/3f9c/a.bin, shards/3f9c/x/b.bin    the folder 3f9c
        shards/a07e/a.bin                         the folder a07e
        shards/notes.json                         left out: it is directly in the parent

    Args:
        objects: The objects, ordered by name, so that those of a folder come one after another.
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
