"""Recognise a file that is named twice, even if its names are different paths, links or URLs.

A dataset that is read as `data/a` and as `data/../data/a`, or under the name of a link, gives every
sample twice, and no trainer notices. Commands that take several inputs therefore compare which
files their names lead to.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Hashable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nanoset_core.storage.location import Location

_SAME_SCHEME = {"gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Scheme of a URL → another scheme by which fsspec reads the same objects."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
"""Scheme of web servers → port of a URL that does not name one."""


def file_identity(path: Location) -> Hashable:
    """Return a value that two names have in common if they lead to the same file or folder.

        a local file                 (device, inode number, size, times), also if the name is a link
        a file that does not exist   its path without links
        an object in a bucket        its URL in one of several equal forms

    The inode number is that of the file on its disk. Some network file systems give several files
    the same number, so the size and the times are part of the value, too.

    Args:
        path: The name.
    """
    if not isinstance(path, Path):
        return _canonical_url(str(path))
    try:
        status = path.stat()
    except (OSError, ValueError):
        # The file is missing, or this is not a path at all. Whoever reads it will report that.
        has_nul = "\0" in str(path)
        return str(path) if has_nul else os.path.realpath(path)
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def has_same_content(first: Location, second: Location) -> bool:
    """Return whether two names lead to one file, or to two local files with the same bytes.

    A user who passes `a.bin` and a copy of it as two datasets would train on each sample twice.

    Args:
        first: One name.
        second: The other name. Two objects in buckets are not compared, since that would download
            both.

    Returns:
        False also if a file is missing.
    """
    if file_identity(first) == file_identity(second):
        return True
    if not isinstance(first, Path) or not isinstance(second, Path):
        return False
    try:
        return filecmp.cmp(first, second, shallow=False)
    except OSError:  # a missing file is reported when it is read
        return False


def first_repeated(paths: Iterable[Location]) -> tuple[Location, Location] | None:
    """Return the first two paths that lead to the same file, or None if all are different.

    Args:
        paths: Paths and addresses. Links are followed: `a.bin` and a link to it are the same.

    Returns:
        (the earlier path, the later path), each as it was passed.
    """
    path_by_identity: dict[Hashable, Location] = {}
    for path in paths:
        identity = file_identity(path)
        if identity in path_by_identity:
            return path_by_identity[identity], path
        path_by_identity[identity] = path
    return None


def names_of_both(first: Location | str, second: Location | str) -> str:
    """Return how a message shows two names of the same thing.

    Args:
        first: One name.
        second: The other name.

    Returns:
        The name if both are equal; otherwise a clause such as `a.bin and b.bin, which are the
        same`.
    """
    if str(first) == str(second):
        return str(first)
    return f"{first} and {second}, which are the same"


def _canonical_url(url: str) -> str:
    """Return a form of a URL that is the same for all URLs by which one object can be read.

    gcs://bucket/a/       →  gs://bucket/a         gcs and gs both mean Google Storage
    http://HOST/a%20b     →  http://host:80/a b    web servers read %20 as a space
    s3://bucket/a%20b     →  s3://bucket/a%20b     buckets do not
    """
    scheme = urlsplit(url).scheme
    scheme = _SAME_SCHEME.get(scheme, scheme)
    if scheme in _DEFAULT_PORTS:
        return _canonical_web_url(url)
    address = url.partition("://")[2].rstrip("/")
    return f"{scheme}://{address}"


def _canonical_web_url(url: str) -> str:
    """Return a form of the URL of a web server that is the same for all URLs of one file.

    Web servers ignore the case of host names, and decode %20 to a space. A URL whose port is not a
    number is returned as it is.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except ValueError:
        return url
    host = (parts.hostname or "").lower()
    path = unquote(parts.path).rstrip("/")
    return f"{parts.scheme}://{host}:{port}{path}"
