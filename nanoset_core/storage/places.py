"""What can be done with a location, and how locations relate to each other.

Disks and buckets differ in what they can do. These functions name the differences, so that callers
ask what they need to know instead of which of the two a location is on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanoset_core.errors import InputError, MissingError
from nanoset_core.storage.location import Location, is_remote, remote_location
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE
from nanoset_core.storage.store import Store, Stored

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_here(location: Location) -> TypeIs[Path]:
    """Return whether a location is on a disk of this machine.

    There, files can be opened by their paths, mapped into memory, and found under several paths,
    which links connect. Other bytes may be written to a file while it is open.

    Args:
        location: The location.

    Returns:
        True for a `Path`; False for a location in a bucket or on a web server, for which
        `takes_requests` is true.
    """
    return isinstance(location, Path)


def takes_requests(location: Location) -> TypeIs[RemotePath]:
    """Return whether a location is in a bucket, or on a web server.

    There, each look at a file takes a request, so it is done as little as possible. Versions of a
    file differ in their ETags, and one listing returns all files below a folder. A file can only be
    replaced as a whole.

    Args:
        location: The location.

    Returns:
        True for a `RemotePath`; False on a disk of this machine, for which `is_here` is true.
    """
    return isinstance(location, RemotePath)


def requests_at_once(files: Iterable[Location]) -> int:
    """Return by how many threads files are best looked up.

    Args:
        files: The files. One in a bucket is enough to make requests necessary.

    Returns:
        1 if no file is in a bucket, since no request is needed then.
    """
    return SMALL_REQUESTS_AT_ONCE if any(map(takes_requests, files)) else 1


def entries_in(folder: Location) -> tuple[Sequence[Location], Mapping[str, InputError]]:
    """Return the files and folders directly in a folder, and an error for each invalid name.

    On a disk, all names are valid. A bucket may have an object with the key `raw//x.jsonl`. As a
    path, this would be the same as `raw/x.jsonl`, which is another object. So it is not returned as
    a file, but as an error.

    Args:
        folder: A folder on a disk or in a bucket.

    Returns:
        (the files and folders, name → error of each that cannot be a path)

    Raises:
        OSError: The folder cannot be listed. A folder of a bucket that does not exist is empty.
    """
    if isinstance(folder, Path):
        return list(folder.iterdir()), {}
    return folder.entries()


def is_file_in_the_way(folder: Location) -> bool:
    """Return whether a folder cannot be created, since a file has its path.

    Args:
        folder: The folder to be created.

    Returns:
        Always False in a bucket, where a file and a folder can have the same path.
    """
    return isinstance(folder, Path) and folder.exists() and not folder.is_dir()


def is_folder_in_the_way(file: Location) -> bool:
    """Return whether a file cannot be created, since a folder has its path.

    Args:
        file: The file to be created.

    Returns:
        Always False in a bucket, where a file and a folder can have the same path.
    """
    return isinstance(file, Path) and file.is_dir()


def with_ending(prefix: Location, ending: str) -> Location:
    """Return the location with an ending after its name.

    Args:
        prefix: A location without an ending, such as `data/web`.
        ending: The ending with its dot: `.bin` gives `data/web.bin`.
    """
    if isinstance(prefix, Path):
        # `with_name` would fail for ".", which has no name.
        return Path(f"{prefix}{ending}")
    return prefix.with_name(f"{prefix.name}{ending}")


def real_path(path: Location) -> str:
    """Return a location as text with symbolic links resolved, so that it can be compared.

    Args:
        path: A path, which need not exist, or a location in a bucket.

    Returns:
        An absolute path, or an address such as `s3://bucket/a`.
    """
    return os.path.realpath(path) if isinstance(path, Path) else str(path)


def path_below(path: Location, folder: Location) -> str | None:
    """Return the path of a file or folder relative to a folder that contains it, or None.

        path                folder            result
        /data/web/a.bin     /data             web/a.bin
        /data/web/a.bin     /other            None: it does not contain the file
        /data               /data             None: it is the same
        /data/web/a.bin     s3://bucket/a     None: one is on a disk, the other in a bucket

    Symbolic links are resolved first.

    Args:
        path: The file or folder.
        folder: The folder.
    """
    if isinstance(path, Path) != isinstance(folder, Path):
        return None  # one of them is in a bucket, so it cannot be below the other one
    relative_path = os.path.relpath(real_path(path), real_path(folder))
    if relative_path == os.curdir or relative_path.startswith(os.pardir):
        return None
    return Path(relative_path).as_posix()


def path_seen_from(path: Location, file: Location) -> str:
    """Return how a file names another one, so that both can be moved together if possible.

        file that names    named file            result
        /data/x.json       /data/web/a.bin       web/a.bin
        /data/x.json       s3://bucket/a.bin     s3://bucket/a.bin
        s3://b/x.json      /data/web/a.bin       /data/web/a.bin

    Args:
        path: The named file.
        file: The file that names it.
    """
    if not isinstance(path, Path):
        return str(path)
    resolved = path.resolve()
    if isinstance(file, Path):
        return os.path.relpath(resolved, file.parent.resolve())
    return str(resolved)


def location_seen_from(path: str, file: Location) -> Location:
    """Return the location of a file that another file names, such as an input in a list of inputs.

        file that names    name                  result
        /data/x.json       web/a.bin             /data/web/a.bin
        /data/x.json       s3://bucket/a.bin     s3://bucket/a.bin
        s3://b/x.json      /data/web/a.bin       /data/web/a.bin, on this machine

    Args:
        path: The name: an address, or a path. If both files are on this machine, it is relative to
            the folder of the file that names it.
        file: The file that contains the name.

    Raises:
        ConfigError: The URL is not valid.
    """
    if is_remote(path):
        return remote_location(path, where=str(file), only_read=True)
    if isinstance(file, Path):
        return file.parent / path
    return Path(path)  # an absolute path, since it was written to a file in a bucket


def may_be_file(address: str, location: Location) -> bool:
    """Return whether an address can be that of a file, so that it makes sense to look for one.

    Args:
        address: The address, as a user has written it.
        location: Its location.

    Returns:
        False for a whole bucket, and for an address in a bucket that ends with a slash.
    """
    if isinstance(location, Path):
        return True
    is_whole_bucket = location.path == ""
    return not is_whole_bucket and not address.endswith("/")


def path_in_place(location: Location) -> str:
    """Return the path of a location within its bucket, or its whole path on a disk.

    Args:
        location: The location: `s3://bucket/web/a.bin` gives `web/a.bin`, and `/data/a.bin` itself.
    """
    return str(location) if isinstance(location, Path) else location.path


def by_place(locations: Iterable[Location]) -> list[list[Location]]:
    """Group locations by the bucket that they are in; those on this machine are one group.

    For example, `a.bin`, `s3://x/b.bin`, `c.bin` give the groups `a.bin`, `c.bin` and
    `s3://x/b.bin`.

    Args:
        locations: The locations.

    Returns:
        The groups in the order of their first locations; the order within each group is kept.
    """
    groups: dict[Store | None, list[Location]] = {}
    for location in locations:
        bucket = None if isinstance(location, Path) else location.store
        groups.setdefault(bucket, []).append(location)
    return list(groups.values())


def common_bucket(locations: Sequence[Location]) -> Store | None:
    """Return the bucket that contains all locations, or None if there is no such bucket.

        s3://x/a.bin, s3://x/b.bin    the bucket x
        s3://x/a.bin, s3://y/b.bin    None: there are two buckets
        s3://x/a.bin, b.bin           None: one is on this machine

    Args:
        locations: At least one location.
    """
    first = locations[0]
    if isinstance(first, Path) or len(by_place(locations)) > 1:
        return None
    return first.store


def common_folder(files: Sequence[Location]) -> Location:
    """Return the innermost folder that contains all files.

        /data/web/a/1.bin     and /data/web/b.bin        /data/web
        s3://x/web/a.bin      and s3://x/books/b.bin     s3://x, the bucket itself

    Args:
        files: At least one file, all on this machine, with absolute paths, or all in one bucket.
    """
    # `commonpath` compares absolute paths, folder by folder. Paths in a bucket, such as web/a.bin,
    # are made absolute by a slash. (For a local path, it is a second slash, which is dropped.)
    folder_paths = [f"/{path_in_place(file.parent)}" for file in files]
    common_path = os.path.commonpath(folder_paths)

    first_file = files[0]
    if isinstance(first_file, Path):
        return Path(common_path)
    # The same bucket with another path. It was not looked up whether that is a file or a folder.
    return replace(first_file, path=common_path.strip("/"), kind=None)


def copy_within_bucket(source: Location, target: Location) -> Callable[[], object] | None:
    """Return a function by which the bucket itself copies a file, or None if it cannot.

    If both files are in the same bucket, the bytes need not be downloaded and sent again.

    Args:
        source: The file. The version that it has now will be copied, even if it is replaced before
            the function is called; then the function fails.
        target: The copy.

    Raises:
        MissingError: The file does not exist.
    """
    if not isinstance(source, RemotePath) or not isinstance(target, RemotePath):
        return None
    if source.store != target.store:
        return None
    # Composing an object of a single other one copies that.
    return partial(target.store.compose, target.path, [stored_object(source)])


def stored_object(file: RemotePath) -> Stored:
    """Return the size and the ETag of an object, with which this version can be read or copied.

    Args:
        file: The location of the object.

    Raises:
        MissingError: The object does not exist.
    """
    stored = file.store.stat(file.path)
    if stored is None:
        raise MissingError(
            "no such object", where=file, remedy="run again once no other call writes it"
        )
    return stored
