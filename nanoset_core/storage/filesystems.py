"""Places that are read by fsspec: Google Storage, Hugging Face, Azure, web servers, and what else
it knows.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urljoin, urlsplit

from nanoset_core.errors import ConfigError, NanosetError, StorageError
from nanoset_core.storage import s3_requests
from nanoset_core.storage.long_listings import LongListing
from nanoset_core.storage.s3_requests import CONNECTIONS, DamagedTransferError, retried
from nanoset_core.storage.store import Store, Stored, changed, checked_name, gone, in_parallel
from nanoset_core.storage.unanswered import unanswered
from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)
T = TypeVar("T")
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "hf": "hf", "abfs": "azure", "abfss": "azure", "az": "azure"}
"""Scheme → our extra that installs what reads it."""
_WEB = ("http", "https")
WRAPPERS = frozenset(
    [
        "reference",
        "simplecache",
        "filecache",
        "blockcache",
        "cached",
        "zip",
        "tar",
        "libarchive",
        "dir",
        "generic",
        "async_wrapper",
        "asyncwrapper",
        "asynclocal",
        "data",
        "dask",
        "local",
        "file",
        "pyscript",
    ]
)
"""Schemes of fsspec that wrap another file system, or need arguments besides an address."""
_VERSIONS = ("generation", "etag", "ETag", "blob_id", "xet_hash")
_TIMES = ("mtime", "updated", "last_modified", "Last-Modified", "created")
"""Keys under which file systems tell a file's version, and when it was written; the first that is
there counts.
"""
_LIST_ANEW: Mapping[str, Mapping[str, Any]] = {"hf": {"refresh": True}}
_LOOK_ANEW: Mapping[str, Mapping[str, Any]] = {"hf": {"refresh": True, "expand_info": True}}
"""Scheme → what makes it ask, and not answer from its memory; the others have none that
`use_listings_cache` leaves.
"""


@dataclass(frozen=True, slots=True)
class FilesystemStore(Store):
    """The files below a place of a file system that fsspec knows; they are only read.

    What is read is of one version: a range is refused unless the file has the same version after it
    was read.
    """

    base: str
    """URL, without a slash at its end."""

    @property
    def scheme(self) -> str:
        """The kind of file system."""
        return self.base.partition("://")[0]

    def url(self, name: str = "") -> str:
        return f"{self.base}/{name}".rstrip("/")

    def below(self, folder: str) -> FilesystemStore:
        return replace(self, base=self.url(folder))

    def now(self) -> int:
        return time.time_ns()

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Folder by folder, as they are asked for."""
        yield from self._list(folder, LongListing(self.url(folder)))

    def _list(self, folder: str, listing: LongListing) -> Iterator[Stored]:
        """Yield the files below a folder; `listing` counts those of the whole listing."""
        listing.check_depth(folder)
        found = self._entries(folder)
        listing.count(len(found))
        unsized = [
            name
            for name, info in found.items()
            if not _is_folder(info) and info.get("size") is None
        ]
        asked = dict(zip(unsized, in_parallel(self.stat, unsized, CONNECTIONS), strict=True))
        for name in sorted(
            found, key=lambda name: f"{name}{'/' * _is_folder(found[name])}".encode()
        ):
            if _is_folder(found[name]):
                yield from self._list(name, listing)
            elif (
                stored := asked[name] if name in asked else self._stored(name, found[name])
            ) is not None:
                yield stored

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        names: tuple[list[str], list[str]] = [], []
        for name, info in self._entries(folder).items():
            names[not _is_folder(info)].append(name.rpartition("/")[2])
        return sorted(names[0]), sorted(names[1])

    def holds(self, folder: str) -> bool:
        return bool(self._entries(folder))

    def _entries(self, folder: str) -> dict[str, Mapping[str, Any]]:
        """Return name → what the file system says of what lies right in a folder."""
        system, place = self._at(folder)
        listed = self._ask(
            folder, lambda: system.ls(place, detail=True, **_LIST_ANEW.get(self.scheme, {}))
        )
        found = {}
        for info in listed or ():
            above, _, name = info["name"].rstrip("/").rpartition("/")
            is_link = self.scheme in _WEB and (above != place.rstrip("/") or set("?#") & set(name))
            if name and not is_link and info["name"].rstrip("/") != place.rstrip("/"):
                found[f"{folder}/{name}".lstrip("/")] = info
        return found

    def stat(self, name: str) -> Stored | None:
        system, path = self._at(checked_name(name))
        info = self._ask(name, lambda: system.info(path, **_LOOK_ANEW.get(self.scheme, {})))
        return None if info is None or _is_folder(info) else self._stored(name, info)

    def _stored(self, name: str, info: Mapping[str, Any]) -> Stored:
        version = next((str(info[key]) for key in _VERSIONS if info.get(key)), None)
        written_ns = next((_nanoseconds(info[key]) for key in _TIMES if info.get(key)), 0)
        if info.get("size") is None or not (version or written_ns):
            self._refuse(
                "this file cannot be read safely: whether it changes meanwhile could not be seen",
                name,
                found="neither ETag, version nor time"
                if info.get("size") is not None
                else "no size",
                expected="a server that tells a file's size, and its ETag or Last-Modified",
            )
        return Stored(
            name, int(info["size"]), f"{version or written_ns}-{info['size']}", written_ns
        )

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        found = self.stat(name)
        return None if found is None else (self.read_range(name, 0, found.size, found.mark), found)

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        if begin >= end:
            return b""
        path = self._at(checked_name(name))[1]

        def read() -> bytes:
            data = _fetched(
                self._at(name)[0], path, begin, end, is_web=self.scheme in (*_WEB, "hf")
            )
            if (found := self.stat(name)) is None:
                raise gone(self.url(name))
            if mark not in (None, found.mark):
                raise changed(self.url(name), "another version", mark)
            if found.size < end:
                raise changed(self.url(name), f"{found.size:,} bytes", f"at least {end:,}")
            if len(data) != end - begin:
                raise DamagedTransferError(f"{len(data):,} bytes instead of {end - begin:,}")
            return data

        if (data := self._ask(name, read)) is None:
            raise gone(self.url(name))
        return data

    def check_writable(self, name: str, *_: object, **__: object) -> NoReturn:
        what, expected = (
            "outputs cannot be kept there",
            "a path on a local or mounted file system, or s3://bucket/prefix",
        )
        raise ConfigError(
            what, where=self.url(name), expected=expected, remedy="name another place for them"
        )

    put_parts = put_file = delete = check_writable

    def _refuse(self, what: str, name: str, found: str, expected: str) -> NoReturn:
        remedy = "copy the files to a local folder or a bucket first"
        raise StorageError(
            what, where=self.url(name), found=found, expected=expected, remedy=remedy
        )

    def _at(self, name: str) -> tuple[Any, str]:
        """Return the file system, and the path of a name there."""
        scheme, _, rest = self.base.partition("://")
        try:
            system = _file_system(os.getpid(), f"{scheme}://{rest.partition('/')[0]}")
        except ImportError as error:
            extra = _EXTRAS.get(scheme, "http" if scheme in _WEB else None)
            remedy = (
                f"pip install 'nanoset-platform[{extra}]'"
                if extra
                else "install the package that is named"
            )
            what = f"{scheme}:// needs a package that is not installed"
            raise StorageError(
                what, where=self.url(name), found=str(error), remedy=remedy
            ) from error
        except (
            Exception
        ) as error:  # credentials that are missing or unreadable, and what a package needs besides
            raise self._failure(error, name, 1) from error
        return system, system._strip_protocol(self.url(name))

    def _ask(self, name: str, request: Callable[[], T]) -> T | None:
        """Send a request, again where its failure may pass; None where there is no such file."""

        def asked() -> T:
            with unanswered().asking(self.url(name)):
                return request()

        def fate(error: Exception, attempt: int) -> Exception | None:
            cause = _cause(error)
            if isinstance(cause, NanosetError):
                return cause
            if isinstance(cause, (FileNotFoundError, NotADirectoryError)) or _status(cause) == 404:
                return error
            return (
                None
                if _may_pass(cause) and attempt < s3_requests.ATTEMPTS
                else self._failure(cause, name, attempt)
            )

        try:
            return retried(asked, self.url(name), fate)
        except NanosetError:
            raise
        except Exception:  # noqa: BLE001 - `fate` leaves those alone that say that there is no such file
            return None

    def _failure(self, error: BaseException, name: str, attempts: int) -> NanosetError:
        if "support range requests" in str(error):
            self._refuse(
                "this web server gives no parts of a file, which is read in parts",
                name,
                "no ranges",
                "206 for a range",
            )
        what = f"{self.scheme}:// cannot be read" + (
            f", after {attempts} attempts" if attempts > 1 else ""
        )
        remedy = (
            "see whether the name is right and the server up, then run again: what is finished is "
            "kept"
        )
        if isinstance(error, PermissionError) or _status(error) in (401, 403):
            what = f"{self.scheme}:// refuses"
            remedy = (
                "give this process credentials that may read there, as the package behind it "
                "finds them"
            )
        # some are told in several lines
        found = " ".join(f"{type(error).__name__}: {error}".split())
        return StorageError(what, where=self.url(name), found=found, remedy=remedy)


def is_known(scheme: str) -> bool:
    """Return whether fsspec reads such URLs, with a package that may have to be installed."""
    from fsspec.registry import available_protocols

    return scheme in available_protocols()


@functools.cache
def _file_system(process: int, url: str) -> Any:
    """Return fsspec's file system of a process, shared by its threads; it remembers no listing."""
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if url.partition("://")[0] in _WEB:
        options["client_kwargs"] = {"trace_configs": [_redirect_trace()]}
    return url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)[0]


def _redirect_trace() -> Any:
    """Return what aiohttp asks before it follows a redirect."""
    from aiohttp import TraceConfig

    async def check(_session: Any, _context: Any, about: Any) -> None:
        location = about.response.headers.get("Location") or about.response.headers.get("URI") or ""
        check_redirect(str(about.url), urljoin(str(about.url), location))

    trace = TraceConfig()
    trace.on_request_redirect.append(check)
    return trace


def check_redirect(source: str, target: str) -> None:
    """Report a redirect of a web server to another host, which then decides what the raw text is.

    Raises:
        StorageError: the redirect leaves https, or leads from a public host to this machine or its
            network: a server that was chosen to give text does not choose what is read there.
    """
    before = urlsplit(source)
    after = urlsplit(target)
    reason = None
    if before.scheme == "https" and after.scheme != "https":
        reason = "a redirect leaves https"
    elif _is_private(after.hostname) and not _is_private(before.hostname):
        reason = "a redirect leads into a private network"
    if reason is not None:
        raise StorageError(
            reason,
            where=_without_query(source),
            found=f"a redirect to {_without_query(target)}",
            expected="a file on the host that is named, or a redirect to a public host by https",
            remedy=(
                "name the address of the files themselves, or copy them to a local folder or a "
                "bucket first"
            ),
        )
    if before.netloc != after.netloc:
        _report_redirect(f"{before.scheme}://{before.netloc}", f"{after.scheme}://{after.netloc}")


@functools.cache
def _report_redirect(source: str, target: str) -> None:
    """Warn once in a process of a host that redirects to another one."""
    logger.warning("%s redirects to another host: what is read comes from %s", source, target)


def _without_query(url: str) -> str:
    """Return a URL without the part that may hold a signature."""
    return url.partition("?")[0]


def _is_private(host: str | None) -> bool:
    """Return whether a host is this machine, or an address of a private network, as far as its name
    says.
    """
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:  # a name
        return False


def _fetched(system: Any, path: str, begin: int, end: int, *, is_web: bool) -> bytes:
    """Return bytes [begin, end) of a file, fewer where it is shorter."""
    try:
        if not is_web:
            return bytes(system.cat_file(path, start=begin, end=end))
        # Their `cat_file` would take a whole file from servers without ranges, and read in small
        # blocks.
        with system.open(path, "rb", block_size=end - begin, cache_type="none", size=end) as file:
            return bytes(file._fetch_range(begin, end))
    except Exception as error:
        if _status(_cause(error)) == 416:
            return b""
        raise


def _is_folder(info: Mapping[str, Any]) -> bool:
    # where a web server led
    return info["type"] == "directory" or str(info.get("url", "")).endswith("/")


def _nanoseconds(value: Any) -> int:
    """Return a time that a file system told, in nanoseconds since 1970."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value) if value[4:5] == "-" else parsedate_to_datetime(value)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return int(float(value) * 1e6) * 1000


def _cause(error: BaseException) -> BaseException:
    """Return why a request failed: some file systems say of all failures that there is no such
    file.
    """
    cause = error.__cause__
    if (
        isinstance(error, FileNotFoundError)
        and cause is not None
        and (isinstance(cause, NanosetError) or _may_pass(cause) or _status(cause) in (401, 403))
    ):
        return cause
    return error


def _may_pass(error: BaseException) -> bool:
    status = _status(error)
    passing = (ConnectionError, TimeoutError, DamagedTransferError)
    names = {kind.__name__ for kind in type(error).__mro__}
    is_broken = not status and not names.isdisjoint(
        ("ClientConnectionError", "ClientPayloadError", "TransportError")
    )
    return status >= 500 or status in (408, 429) or isinstance(error, passing) or is_broken


def _status(error: BaseException) -> int:
    """Return the HTTP status of a refusal, by whatever name its package gives it; 0 where there is
    none.
    """
    for owner in (error, getattr(error, "response", None)):
        # the first that is there: asking for the next may warn
        for name in ("status", "status_code", "code"):
            if str(status := getattr(owner, name, None)).isdecimal():
                return int(str(status))
    return 0
