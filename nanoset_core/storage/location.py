"""Locations of files: paths of this machine, and addresses such as s3://bucket/prefix.

A `Location` is a `Path` or a `RemoteFolder`, which has the same methods as far as they are needed.
Addresses that contain credentials are refused, since they would be written to manifests and logs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.records.settings import Range
from nanoset_core.storage.filesystems import WRAPPERS, FilesystemStore, is_known
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.paths import expanded, has_control_characters, is_inside
from nanoset_core.storage.reading import open_object
from nanoset_core.storage.s3 import SCHEME, S3Store
from nanoset_core.storage.s3_reading import S3Reader
from nanoset_core.storage.store import Store, Stored
from nanoset_core.untrusted import HIDDEN, without_secret_parameters, without_secrets

_NO_NAMES = ("", ".", "..")
"""Parts of a key that cannot be the name of a file or folder."""
_URL = re.compile("(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Beginning of an address that is not a path of this machine."""
_FILE_URL = re.compile("file://", re.IGNORECASE)
_PASSWORD = re.compile(r"[^/@:]*:.*@", re.DOTALL)
"""`user:password@` after the scheme of a URL; a password may contain a slash.

`host:80/x@y` matches, too, and is recognized by `_PORT`.
"""
_PORT = re.compile(r"[^/@:]*:[0-9]*(/|$)")
"""`host:port` after the scheme of a URL."""


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How buckets are accessed; credentials come from the AWS chain: environment, profile, role."""

    endpoint_url: str | None = None
    """URL of a store that speaks S3; absent = AWS, or what AWS_ENDPOINT_URL says."""
    region: str | None = None
    """Region of the bucket; absent = what the AWS configuration says."""
    profile: str | None = None
    """Name of a profile in the AWS configuration."""
    anonymous: bool = False
    """Send requests without a signature, as public buckets allow."""
    fingerprint: Literal["content", "etag", "etag-pieces"] = "content"
    """How raw objects are known: by a digest of their bytes, as local files are, which reads each
    once more; or by their ETags, without reading: each object in one piece, or plain ones above 128
    MiB in pieces of 64 MiB."""
    mirror: str | None = None
    """Local folder of working copies; absent = .nanoset/mirror beside nanoset.yaml."""
    scratch_mib: Annotated[int, Range(1, 1 << 30)] | None = None
    """MiB of the disk for all that passes through `mirror`: outputs go once they were sent, older
    copies as room is needed; absent = all stay."""
    shards: Literal["keep", "drop"] = "keep"
    """Whether shards keep their tokens once a dataset holds them too: with drop, `nanoset gc`
    removes that copy.
    """

    @property
    def capacity(self) -> int | None:
        """Bytes of disk space for working copies, or None if all are kept."""
        return None if self.scratch_mib is None else self.scratch_mib << 20


def local_path(url: str, *, base: Path, where: str) -> Path:
    """Return a configured location as an absolute local path.

    Args:
        url: A path or a file:// URL.
        base: Folder at which relative paths start.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: It is another URL.
    """
    if "://" in url and _FILE_URL.match(url) is None:
        raise ConfigError(
            "only local files can be used here",
            where=where,
            found=url,
            expected="a path on a local or mounted file system",
            remedy="mount the bucket, or copy it to a local folder first",
        )
    return (base / expanded(without_file_scheme(url), where)).resolve()


def is_remote(location: str) -> bool:
    """Return whether a configured location is a URL, other than file://, instead of a path."""
    return _URL.match(location) is not None


def is_in_bucket(location: str) -> bool:
    """Return whether a configured location is in a bucket of S3, which can also store outputs."""
    return location[: len(SCHEME)].lower() == SCHEME


def copies_folder(store: Store, mirror: str | Path | None = None) -> Path:
    """Return the folder of a store's working copies.

    Args:
        store: The store.
        mirror: Folder for the copies of all stores. By default it is in the user's cache folder.
    """
    cache = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/nanoset/mirror"
    return (expanded(mirror or cache, "the folder of working copies") / store.copies_name).resolve()


class ObjectStat(NamedTuple):
    """Size and time of an object, with the names that `os.stat` uses."""

    st_size: int
    """Bytes."""
    st_mtime_ns: int
    """When it was written, in nanoseconds since 1970."""
    st_ino: int
    """Computed from its ETag, so that it changes with the bytes."""


@dataclass(frozen=True, slots=True, order=True)
class RemoteFolder:
    """A folder or a file in a bucket, with the methods of a `Path`.

    `folder / name` is a file or folder within it.
    """

    store: Store
    """The store in which paths start: the bucket, or the folder of all raw text in it."""
    path: str = ""
    """Path within the store."""
    by_etag: bool = False
    """Whether files are identified by their ETags instead of a digest of their bytes."""
    in_pieces: bool = False
    """Whether large plain files are read in pieces even if they are identified by their ETags."""
    kind: str | None = field(default=None, compare=False)
    """`folder` or `file` if a listing has shown which; None if the store has to be asked."""

    def __str__(self) -> str:
        return self.store.url(self.path)

    def __truediv__(self, name: str) -> RemoteFolder:
        return replace(self, path=f"{self.path}/{name}".lstrip("/"), kind=None)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """Last part of the path without its suffix."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """Suffix of the last part, such as `.jsonl`."""
        return PurePosixPath(self.path).suffix

    @property
    def place(self) -> Store:
        """A store whose names are relative to this folder."""
        return self.store.below(self.path)

    @property
    def parent(self) -> RemoteFolder:
        """The folder that contains it."""
        return replace(self, path=self.path.rpartition("/")[0], kind=None)

    def absolute(self) -> RemoteFolder:
        """Return the same location, since it is absolute already."""
        return self

    def with_name(self, name: str) -> RemoteFolder:
        """Return the location with another name in the same folder."""
        return self.parent / name

    def is_dir(self) -> bool:
        """Return whether there are objects below it."""
        if self.kind is None:
            return self.store.holds(self.path)
        return self.kind == "folder"

    def is_file(self) -> bool:
        """Return whether it is an object."""
        if self.kind is None:
            return self.path != "" and self.store.stat(self.path) is not None
        return self.kind == "file"

    def stat(self) -> ObjectStat:
        """Return the size and time of the object.

        Raises:
            FileNotFoundError: It does not exist.
        """
        facts = self.store.stat(self.path)
        if facts is None:
            raise FileNotFoundError(str(self))
        return stat_of_object(facts)

    def iterdir(self) -> Iterator[RemoteFolder]:
        """Yield the files and folders directly in it, except those with invalid keys."""
        readable, _ = self.entries()
        yield from readable

    def entries(self) -> tuple[list[RemoteFolder], dict[str, InputError]]:
        """Return the files and folders directly in it, and an error for each invalid key.

        A key is invalid if a part of it is empty, `.` or `..`. raw//x.jsonl and raw/../x.jsonl are
        other objects than raw/x.jsonl and x.jsonl, but as paths they name the same files.

        Returns:
            The valid files and folders, and name → error.
        """
        folders, files = self.store.level(self.path)
        readable = []
        errors = {}
        for name in folders:
            if name in _NO_NAMES:
                errors[f"{name}/"] = self._bad_key(f"{name}/...")
            else:
                readable.append(replace(self / name, kind="folder"))
        for name in files:
            if name not in _NO_NAMES:
                readable.append(replace(self / name, kind="file"))
            elif name:  # An empty name is the mark of the folder itself, as consoles write it.
                errors[name] = self._bad_key(name)
        return readable, errors

    def _bad_key(self, name: str) -> InputError:
        """Return the error for a key that is not valid as the path of a file."""
        return InputError(
            "an object's key is no path of a file",
            where=str(self),
            found=ascii(name),
            expected=(
                "parts between single slashes, none of them '.' or '..', without control characters"
            ),
            remedy="copy it to another key, and remove this one",
        )

    def open(self, mode: str = "rb", *, begin: int = 0, end: int | None = None) -> BinaryIO:
        """Open the object for reading; see `open_object`.

        Args:
            mode: Must be "rb"; it is there since `Path.open` has it.
            begin: First byte to read.
            end: Byte after the last one to read; None for the end of the object.
        """
        if mode != "rb":
            raise ValueError(f"raw text is opened for reading bytes, not {mode!r}")
        return open_object(self.store, self.path, begin=begin, end=end)

    def files(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield (path below this folder, bytes, written at in ns, mark of the ETag) of every file
        that is not hidden.

        InputError where a key is one that no folder of files could hold.
        """
        cut = len(self.path) + 1 if self.path else 0
        for stored in self.store.list(self.path):
            name = stored.name[cut:]
            is_folder_mark = name.endswith("/") and not stored.size  # as consoles write them
            is_hidden = any(
                part.startswith(".") and part not in _NO_NAMES for part in name.split("/")
            )
            if not name or is_folder_mark or is_hidden:
                continue
            if not is_inside(name) or has_control_characters(name):
                raise self._bad_key(name)
            yield name, stored.size, stored.written_ns, etag_mark(stored.mark)


Location: TypeAlias = Path | RemoteFolder
"""A file or folder, on a file system or in a bucket."""
RawFolder: TypeAlias = Location
"""The folder of the raw text, or a file in it."""


def location(given: str | PathLike[str]) -> Location:
    """Return the location of an input, from a path, a file:// URL or another URL.

    Raises:
        ConfigError: The URL is not valid; see `remote_location`.
    """
    text = without_file_scheme(fspath(given))
    if is_remote(text):
        return remote_location(text, where=text, only_read=True)
    return expanded(text, text)


def without_file_scheme(text: str) -> str:
    """Return the path of a file:// URL; other text is returned unchanged."""
    return _FILE_URL.sub("", text, count=1) if _FILE_URL.match(text) else text


def on_this_machine(location: Location) -> Path:
    """Return a location that is known to be local as a path."""
    if not isinstance(location, Path):
        raise TypeError(f"{location} is not on this machine")
    return location


def remote_location(
    url: str, *, where: str, storage: StorageSpec | None = None, only_read: bool = False
) -> RemoteFolder:
    """Return the location of an address such as s3://bucket/path.

    Args:
        url: The address.
        where: Place of the setting, for errors.
        storage: How the bucket is accessed. By default the AWS configuration is used.
        only_read: Whether nothing will be written. Then the address may be of any file system that
            fsspec knows.

    Raises:
        ConfigError: The address or the endpoint is not valid, or contains credentials.
    """
    storage = storage or StorageSpec()
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    _check_without_secrets(url, rest, where)
    _check_address(url, where)

    host, _, path = rest.rstrip("/").partition("/")
    parts = path.split("/") if path else []
    has_invalid_part = any(part in _NO_NAMES for part in parts)
    is_host_valid = host != "" and "?" not in host
    if not is_remote(url) or not is_host_valid or has_invalid_part or "\0" in url:
        raise ConfigError(
            "this does not name a place in a bucket",
            where=where,
            found=repr(url),
            expected="s3://bucket/prefix, without empty parts, '.' and '..'",
            remedy="write it as s3://bucket/prefix",
        )

    if not is_in_bucket(url):
        _check_read_only(url, where, only_read=only_read)
        return RemoteFolder(FilesystemStore(f"{scheme}://{host}"), path)
    _check_endpoint(storage.endpoint_url or "")
    store_class = S3Reader if only_read else S3Store
    store = store_class(
        host, "", storage.endpoint_url, storage.region, storage.profile, storage.anonymous
    )
    return RemoteFolder(store, path)


def _check_address(url: str, where: str) -> None:
    """Raise ConfigError for a URL whose host or port cannot be read, such as `http://[::1`."""
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        expected = "scheme://host/path, with an IPv6 address in brackets and a port of digits"
        raise ConfigError(
            "this is not a URL",
            where=where,
            found=f"{url!r}: {error}",
            expected=expected,
            remedy="correct it",
        ) from error


def _check_without_secrets(url: str, rest: str, where: str) -> None:
    """Check that a URL does not contain a password, token or signature.

    Args:
        url: The URL.
        rest: What follows its scheme.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: It does.
    """
    has_password = _PASSWORD.match(rest) is not None and _PORT.match(rest) is None
    if has_password or without_secret_parameters(url) != url:
        raise ConfigError(
            "the address holds a query, or a user's name or password",
            where=where,
            found=HIDDEN if has_password and without_secrets(url) == url else url,
            expected="an address without credentials",
            remedy=(
                "leave it out: it would stand in manifests and logs. Give credentials as the "
                "package behind the scheme finds them (environment, profile, configuration file), "
                "or copy the text to a local folder first"
            ),
        )


def _check_endpoint(endpoint: str) -> None:
    """Check the address of a server that speaks S3.

    Raises:
        ConfigError: It contains credentials, or is not the address of a server.
    """
    where = "storage.endpoint_url"
    authority = endpoint.partition("//")[2].partition("/")[0]
    if "@" in authority or without_secrets(endpoint) != endpoint:
        what = "the endpoint holds a user's name or password"
        remedy = "remove it: credentials come by the usual AWS chain, and would stand in logs here"
        raise ConfigError(what, where=where, found=endpoint, remedy=remedy)
    if endpoint and re.fullmatch(r"(?i)https?://[^\s/?#]+(/[^\s?#]*)?", endpoint) is None:
        what, expected = "this is not the address of a server", "http://host:port or https://host"
        raise ConfigError(
            what, where=where, found=repr(endpoint), expected=expected, remedy="correct it"
        )


def _check_read_only(url: str, where: str, *, only_read: bool) -> None:
    """Check that a URL other than of S3 can be used: only for reading, and if fsspec knows it.

    Raises:
        ConfigError: Something would be written, or fsspec cannot read the URL.
    """
    scheme = url.partition("://")[0].lower()
    if only_read and scheme in WRAPPERS:
        raise ConfigError(
            "this scheme names no place of its own",
            where=where,
            found=url,
            expected=(
                "a path on a local or mounted file system, "
                "s3://bucket/prefix, gs://, hf://, abfs:// or https://"
            ),
            remedy="name the place that it wraps, or unpack the files into a local folder first",
        )
    if not only_read or not is_known(scheme):
        what = "only local folders and S3 can be used here"
        expected = "a path on a local or mounted file system, or s3://bucket/prefix"
        if only_read:
            what = "no file system of this name is known"
            expected += ", gs://, hf://, abfs://, https:// or another URL that fsspec knows"
        raise ConfigError(
            what,
            where=where,
            found=url,
            expected=expected,
            remedy="mount the place, or copy it to a local folder first",
        )
    if scheme.startswith("http") and {"?", "#", "@"} & set(url):
        raise ConfigError(
            "the address holds a query, or a user's name or password",
            where=where,
            found=re.sub("[?#].*|//[^/]*@", HIDDEN, url),
            expected="https://host/folder",
            remedy=(
                "leave it out: it would stand in manifests and logs; "
                "copy what needs it to a local folder first"
            ),
        )


def store_of(folder: Location) -> Store:
    """Return a store whose names are relative to a folder."""
    return LocalStore(folder) if isinstance(folder, Path) else folder.place


def stat_of_object(facts: Stored) -> ObjectStat:
    """Return the size and time of an object, with the names that `os.stat` uses."""
    return ObjectStat(facts.size, facts.written_ns, etag_mark(facts.mark))


def etag_mark(etag: str) -> int:
    """Return 63 bits of an ETag's hash, in place of the inode number of a local file."""
    return int.from_bytes(hashlib.blake2b(etag.encode(), digest_size=8).digest(), "big") >> 1
