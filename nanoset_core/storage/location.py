"""Places in buckets, how buckets are reached (never with credentials), and paths in them."""

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
_FILE_URL = re.compile("file://", re.IGNORECASE)
_PASSWORD = re.compile(r"[^/@:]*:.*@", re.DOTALL)
"""`user:password@` after the scheme of a URL, where a password may hold a slash; `host:80/x@y` is
none.
"""
_PORT = re.compile(r"[^/@:]*:[0-9]*(/|$)")


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How buckets are reached. Credentials come by the usual AWS chain: environment, profile,
    instance role.
    """

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
        """Bytes for working copies; None = all stay."""
        return None if self.scratch_mib is None else self.scratch_mib << 20


def local_path(url: str, *, base: Path, where: str) -> Path:
    """Turn a configured location into an absolute local path; relative ones start at `base`."""
    if "://" in url and _FILE_URL.match(url) is None:
        what, expected = (
            "only local files can be used here",
            "a path on a local or mounted file system",
        )
        remedy = "mount the bucket, or copy it to a local folder first"
        raise ConfigError(what, where=where, found=url, expected=expected, remedy=remedy)
    return (base / expanded(without_file_scheme(url), where)).resolve()


def is_remote(location: str) -> bool:
    """Return whether a configured location is a URL, and no path of this machine."""
    return _URL.match(location) is not None


def is_in_bucket(location: str) -> bool:
    """Return whether a configured location is that of a bucket, where outputs can be kept."""
    return location[: len(SCHEME)].lower() == SCHEME


def copies_folder(store: Store, mirror: str | Path | None = None) -> Path:
    """Return the folder of a store's working copies: below `mirror`, or else in the user's cache
    folder.
    """
    cache = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/nanoset/mirror"
    return (expanded(mirror or cache, "the folder of working copies") / store.copies_name).resolve()


class ObjectStat(NamedTuple):
    """An object's size and time under the names of os.stat."""

    st_size: int
    """Bytes."""
    st_mtime_ns: int
    """When it was written, nanoseconds since 1970."""
    st_ino: int
    """Made of its ETag: another number for other bytes."""


@dataclass(frozen=True, slots=True, order=True)
class RemoteFolder:
    """A folder in a bucket, or a file in one; `folder / name` goes down."""

    store: Store
    """Where paths begin: at the root of the raw text, or at that of the bucket."""
    path: str = ""
    """Below it."""
    by_etag: bool = False
    """Files are known by their ETags, not by a digest of their bytes."""
    in_pieces: bool = False
    """Large plain ones that are known by their ETags are cut nevertheless."""
    kind: str | None = field(default=None, compare=False)
    """`folder` or `file`, where a listing said so."""

    def __str__(self) -> str:
        return self.store.url(self.path)

    def __truediv__(self, name: str) -> RemoteFolder:
        return replace(self, path=f"{self.path}/{name}".lstrip("/"), kind=None)

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """The last part without its ending."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """The ending of the last part."""
        return PurePosixPath(self.path).suffix

    @property
    def place(self) -> Store:
        """The folder as a store of its own."""
        return self.store.below(self.path)

    @property
    def parent(self) -> RemoteFolder:
        """The folder that it lies in."""
        return replace(self, path=self.path.rpartition("/")[0], kind=None)

    def absolute(self) -> RemoteFolder:
        """Return it: it has no other path."""
        return self

    def with_name(self, name: str) -> RemoteFolder:
        """Return the file beside it of another name."""
        return self.parent / name

    def is_dir(self) -> bool:
        """Return whether anything lies below it."""
        if self.kind is None:
            return self.store.holds(self.path)
        return self.kind == "folder"

    def is_file(self) -> bool:
        """Return whether it is an object."""
        if self.kind is None:
            return self.path != "" and self.store.stat(self.path) is not None
        return self.kind == "file"

    def stat(self) -> ObjectStat:
        """Return the object's size, time and mark; FileNotFoundError where there is none."""
        facts = self.store.stat(self.path)
        if facts is None:
            raise FileNotFoundError(str(self))
        return stat_of_object(facts)

    def iterdir(self) -> Iterator[RemoteFolder]:
        """Yield what lies right below it, but for keys that no folder of files could hold; see
        `entries`.
        """
        yield from self.entries()[0]

    def entries(self) -> tuple[list[RemoteFolder], dict[str, InputError]]:
        """Return what lies right below it, and errors of the keys there that no folder of files
        could hold.

        Such a key has an empty part, or one that is `.` or `..`: raw//x.jsonl and raw/../x.jsonl
        are other objects than raw/x.jsonl and x.jsonl, but paths that name the same files.
        """
        folders, files = self.store.level(self.path)
        bad = {f"{name}/": self._bad_key(f"{name}/...") for name in folders if name in _NO_NAMES}
        bad |= {name: self._bad_key(name) for name in files if name in _NO_NAMES and name}
        readable = [
            replace(self / name, kind=kind)
            for kind, names in (("folder", folders), ("file", files))
            for name in names
            if name not in _NO_NAMES
        ]
        return readable, bad

    def _bad_key(self, name: str) -> InputError:
        return InputError(
            "an object's key is no path of a file",
            where=str(self),
            found=ascii(name),
            expected="parts between single slashes, none of them '.' or '..', without control characters",
            remedy="copy it to another key, and remove this one",
        )

    def open(self, mode: str = "rb", *, begin: int = 0, end: int | None = None) -> BinaryIO:
        """Open it for reading, as `open_object`: once it is replaced, reading it fails."""
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
"""Where raw text lies, or a file of it."""


def location(given: str | PathLike[str]) -> Location:
    """Return what an input's local path, file:// URL, s3://bucket/path or other URL names; see
    `remote_location`.
    """
    text = without_file_scheme(fspath(given))
    return (
        remote_location(text, where=text, only_read=True)
        if is_remote(text)
        else expanded(text, text)
    )


def without_file_scheme(text: str) -> str:
    """Return the path of a file:// URL, and any other text as it is."""
    return _FILE_URL.sub("", text, count=1) if _FILE_URL.match(text) else text


def on_this_machine(location: Location) -> Path:
    """Return the path of what is known to be local."""
    if not isinstance(location, Path):
        raise TypeError(f"{location} is not on this machine")
    return location


def remote_location(
    url: str, *, where: str, storage: StorageSpec | None = None, only_read: bool = False
) -> RemoteFolder:
    """Return what `s3://bucket/path` names; with `only_read` also a URL of any other file system
    that fsspec knows.

    `storage`: how a bucket is reached, else as the AWS configuration says. ConfigError, which says
        `where`, for a path
    that no local folder can have, and for a URL or an endpoint with a password, token or signature.
    """
    storage = storage or StorageSpec()
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    _check_without_secrets(url, rest, where)
    _check_address(url, where)
    first, _, path = rest.rstrip("/").partition("/")
    parts = path.split("/") if path else []
    if (
        not is_remote(url)
        or not first
        or {"", ".", ".."} & set(parts)
        or "\0" in url
        or "?" in first
    ):
        what, remedy = "this does not name a place in a bucket", "write it as s3://bucket/prefix"
        expected = "s3://bucket/prefix, without empty parts, '.' and '..'"
        raise ConfigError(what, where=where, found=repr(url), expected=expected, remedy=remedy)
    if not is_in_bucket(url):
        _check_read_only(url, where, only_read=only_read)
        return RemoteFolder(FilesystemStore(f"{scheme}://{first}"), path)
    _check_endpoint(storage.endpoint_url or "")
    kind = S3Reader if only_read else S3Store
    store = kind(
        first, "", storage.endpoint_url, storage.region, storage.profile, storage.anonymous
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
    """Raise ConfigError for a URL with a password, token or signature; `rest` is what follows its
    scheme.
    """
    has_password = _PASSWORD.match(rest) is not None and _PORT.match(rest) is None
    if has_password or without_secret_parameters(url) != url:
        raise ConfigError(
            "the address holds a query, or a user's name or password",
            where=where,
            found=HIDDEN if has_password and without_secrets(url) == url else url,
            expected="an address without credentials",
            remedy="leave it out: it would stand in manifests and logs. Give credentials as the package behind the "
            "scheme finds them (environment, profile, configuration file), or copy the text to a local folder first",
        )


def _check_endpoint(endpoint: str) -> None:
    """Raise ConfigError for an endpoint of S3 that holds credentials, or that is not the address of
    a server.
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
    """Raise ConfigError for a URL that fsspec does not read, and for any where something is to be
    written.
    """
    scheme = url.partition("://")[0].lower()
    if only_read and scheme in WRAPPERS:
        raise ConfigError(
            "this scheme names no place of its own",
            where=where,
            found=url,
            expected="a path on a local or mounted file system, s3://bucket/prefix, gs://, hf://, abfs:// or https://",
            remedy="name the place that it wraps, or unpack the files into a local folder first",
        )
    if not only_read or not is_known(scheme):
        what = (
            "no file system of this name is known"
            if only_read
            else "only local folders and S3 can be used here"
        )
        expected = "a path on a local or mounted file system, or s3://bucket/prefix"
        expected += (
            ", gs://, hf://, abfs://, https:// or another URL that fsspec knows"
            if only_read
            else ""
        )
        raise ConfigError(
            what,
            where=where,
            found=url,
            expected=expected,
            remedy="mount the place, or copy it to a local folder first",
        )
    if scheme.startswith("http") and {"?", "#", "@"} & set(url):
        what, found = (
            "the address holds a query, or a user's name or password",
            re.sub("[?#].*|//[^/]*@", HIDDEN, url),
        )
        remedy = "leave it out: it would stand in manifests and logs; copy what needs it to a local folder first"
        raise ConfigError(
            what, where=where, found=found, expected="https://host/folder", remedy=remedy
        )


def store_of(folder: Location) -> Store:
    """Return a folder as a store of its own."""
    return LocalStore(folder) if isinstance(folder, Path) else folder.place


def stat_of_object(facts: Stored) -> ObjectStat:
    """Return what a bucket says of an object under the names of os.stat."""
    return ObjectStat(facts.size, facts.written_ns, etag_mark(facts.mark))


def etag_mark(etag: str) -> int:
    """Return 63 bits of an ETag's hash, for the field that holds the inode number of a local file."""
    return int.from_bytes(hashlib.blake2b(etag.encode(), digest_size=8).digest(), "big") >> 1
