"""Recognise a file that is named twice, by whatever paths, links or URLs.

A dataset that is read as `data/a` and as `data/../data/a`, or under the name of a link, gives every
sample twice, and no trainer notices. Commands that take several inputs therefore compare what the
names lead to.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nanoset_core.storage.location import Location

_SAME_SCHEME = {"gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Scheme of a URL → another one that fsspec reads the same objects by."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


def file_identity(path: Location) -> Hashable:
    """Return a value that is the same for all names of one file or folder, and different for
    different ones.

    Symbolic links, hard links and bind mounts lead to the same inode. Its size and times are
    compared as well, since some network file systems give several files the same inode number. A
    file that cannot be looked at is known by its path without symbolic links, and an object of a
    bucket by its URL.
    """
    if not isinstance(path, Path):
        return _canonical_url(str(path))
    try:
        stat = path.stat()
    except (OSError, ValueError):  # missing, or not a path at all: whoever reads it reports that
        return os.path.realpath(path) if "\0" not in str(path) else str(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def first_repeated(paths: Iterable[Location]) -> tuple[Location, Location] | None:
    """Return the first two paths that lead to the same file, or None if all are different."""
    path_by_identity: dict[Hashable, Location] = {}
    for path in paths:
        identity = file_identity(path)
        if identity in path_by_identity:
            return path_by_identity[identity], path
        path_by_identity[identity] = path
    return None


def names_of_both(first: Location | str, second: Location | str) -> str:
    """Return how a message shows two names of the same thing."""
    if str(first) == str(second):
        return str(first)
    return f"{first} and {second}, which are the same"


def _canonical_url(url: str) -> str:
    """Return one spelling for the URLs of an object that differ in ways that no server
    distinguishes.
    """
    parts = urlsplit(url)
    scheme = _SAME_SCHEME.get(parts.scheme, parts.scheme)
    if scheme not in _DEFAULT_PORTS:
        # Keys of buckets are compared byte by byte: there, %20 is no space.
        return f"{scheme}://{url.partition('://')[2].rstrip('/')}"
    try:
        port = parts.port or _DEFAULT_PORTS[scheme]
    except ValueError:
        return url
    return f"{scheme}://{(parts.hostname or '').lower()}:{port}{unquote(parts.path).rstrip('/')}"
