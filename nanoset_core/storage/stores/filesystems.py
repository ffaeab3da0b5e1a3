"""Read raw text through fsspec: from Google Storage, Hugging Face, Azure, web servers and others.

fsspec is a library with one interface to many file systems, each with a package that may have to be
installed. The store of this module only reads; `cloud_filesystem.py` adds writing for those that
can be the root of a project. A file's *version* is its ETag, generation or hash, or else its time;
every range is checked to be of the version that was listed.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from nanoset_core.errors import ConfigError, NanosetError, StorageError
from nanoset_core.storage.requests import (
    SMALL_REQUESTS_AT_ONCE,
    Attempts,
    check_length,
    description_of,
    in_parallel,
)
from nanoset_core.storage.store import Store, Stored, changed, checked_name, gone
from nanoset_core.storage.stores.filesystem_errors import (
    cause_of,
    http_status,
    is_missing_file,
    is_refusal,
    is_transient,
)
from nanoset_core.storage.stores.long_listings import LongListing
from nanoset_core.storage.stores.redirects import checking_redirects
from nanoset_core.storage.stores.unanswered import unanswered

T = TypeVar("T")
_EXTRAS = {
    "gs": "gcs",
    "gcs": "gcs",
    "hf": "hf",
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "http": "http",
    "https": "http",
}
"""Scheme → the extra of nanoset-platform that installs the package for it."""
_CREDENTIALS = {
    "gcs": "Google's application default credentials",
    "hf": "a token in HF_TOKEN",
    "azure": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in its environment",
}
"""Extra → where its package looks for credentials first, for messages."""
ROOT_SCHEMES = ("gs", "gcs", "abfs", "abfss", "az", "memory")
"""Schemes of the places, in addition to s3://, in which a project can keep its outputs."""
ROOT_ADDRESSES = (
    "a path on a local or mounted file system, s3://bucket/prefix, gs://bucket/prefix or "
    "abfs://container/prefix"
)
"""What errors say was expected of the address of a place for outputs."""
_LOGGERS = ("azure", "gcsfs")
"""Names of loggers that report each request that fails, although it is sent again."""
_WEB = ("http", "https")
"""Schemes of web servers."""
_MAY_SEND_WHOLE_FILES = ("http", "https", "hf")
"""Schemes of servers that may send the whole file if only a range of it is requested."""
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
"""Schemes of fsspec that wrap another file system, or need more arguments than an address."""
_VERSION_KEYS = ("generation", "etag", "ETag", "blob_id", "xet_hash")
"""Keys under which file systems report a file's version; the first one that is set counts."""
_TIME_KEYS = ("mtime", "updated", "last_modified", "Last-Modified", "created")
"""Keys under which file systems report when a file was written; the first one that is set counts.
"""
_FRESH_LISTING: Mapping[str, Mapping[str, Any]] = {"hf": {"refresh": True}}
"""Scheme → arguments of `ls`, so that its package asks the server instead of its own cache.

The packages of other schemes have no cache if `use_listings_cache` is off.
"""
_FRESH_INFO: Mapping[str, Mapping[str, Any]] = {"hf": {"refresh": True, "expand_info": True}}
"""The same for `info`, which looks up one file."""


@dataclass(frozen=True, slots=True)
class FilesystemStore(Store):
    """The files below one place of a file system that fsspec can read.

    A range of a file is refused unless the file has the expected version after it was read.
    """

    base: str
    """URL of the place, without a slash at its end."""

    rights: ClassVar[str] = "read"
    """What this process must be allowed to do there, for messages."""

    @property
    def scheme(self) -> str:
        """What precedes `://` in the URL; it decides which package reads the files."""
        return self.base.partition("://")[0]

    def url(self, name: str = "") -> str:
        """Return the address of a file, or of the whole place."""
        return f"{self.base}/{name}".rstrip("/")

    def below(self, folder: str) -> Self:
        """Return a folder of this store as a store."""
        return replace(self, base=self.url(folder))

    def now(self) -> int:
        """Return the time of this machine's clock, in nanoseconds since 1970."""
        # There is no common way to ask for the time of a server.
        return time.time_ns()

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all files below a folder; each folder is listed when it is reached."""
        yield from self._list(folder, LongListing(self.url(folder)))

    def _list(self, folder: str, listing: LongListing) -> Iterator[Stored]:
        """Yield all files below a folder, in the order of the bytes of their names.

        Buckets list their objects in this order, so other file systems must do so as well. It is
        not the order of walking through folders by their names:

            a-1        "-" comes before "/"
            a/b        in the folder a
            a0         "0" comes after "/"

        Args:
            folder: The folder.
            listing: Raises an error if the listing does not end, such as that of a web server whose
                folders contain links to themselves.
        """
        listing.check_depth(folder)
        infos = self._entries(folder)  # name → what is known of the file or folder
        listing.count(len(infos))
        stored_by_name = self._look_up_sizes(infos)  # of files that were listed without a size

        def sort_key(name: str) -> bytes:
            """Return the bytes by which an entry is sorted: `a/` for the folder a, so before a0."""
            return f"{name}/".encode() if _is_folder(infos[name]) else name.encode()

        for name in sorted(infos, key=sort_key):
            info = infos[name]
            if _is_folder(info):
                yield from self._list(name, listing)
            elif name not in stored_by_name:
                yield self._stored(name, info)
            else:
                stored = stored_by_name[name]
                if stored is not None:  # it was not deleted after it was listed
                    yield stored

    def _look_up_sizes(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Stored | None]:
        """Look up the sizes of files one by one, for file systems that list files without sizes.

        Args:
            infos: What the listing says about each file or folder, such as {"web/a.jsonl": {"type":
                "file", "size": None}}.

        Returns:
            Name of each file without a size → its description; None if it was deleted meanwhile.
        """
        names = [
            name
            for name, info in infos.items()
            if not _is_folder(info) and info.get("size") is None
        ]
        looked_up = in_parallel(self.stat, names, SMALL_REQUESTS_AT_ONCE)
        return dict(zip(names, looked_up, strict=True))

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders, and of the files, directly in a folder."""
        folder_names = []
        file_names = []
        for path, info in self._entries(folder).items():
            name = path.rpartition("/")[2]
            if _is_folder(info):
                folder_names.append(name)
            else:
                file_names.append(name)
        return sorted(folder_names), sorted(file_names)

    def holds(self, folder: str) -> bool:
        """Return whether there is any file or folder in a folder."""
        return bool(self._entries(folder))

    def _entries(self, folder: str) -> dict[str, Mapping[str, Any]]:
        """Return the files and folders directly in a folder, as the library fsspec describes them.

        For example, {"web/a.jsonl": {"name": "bucket/web/a.jsonl", "type": "file", "size": 80}} for
        the folder `web` of a bucket. Further keys depend on the file system.

        Args:
            folder: Name of the folder in this store; "" for the whole store.

        Returns:
            Name within this store → what fsspec says about it. It is empty if the folder does not
            exist.
        """
        system, folder_path = self._system_and_path(folder)
        folder_path_without_slash = folder_path.rstrip("/")

        # Some packages answer from a cache unless these arguments tell them to ask the server.
        refresh_arguments = _FRESH_LISTING.get(self.scheme, {})
        infos = self._ask(folder, lambda: system.ls(folder_path, detail=True, **refresh_arguments))
        if infos is None:  # the folder does not exist
            return {}

        info_by_name = {}
        for info in infos:
            path = info["name"].rstrip("/")
            parent, _, name = path.rpartition("/")

            # Some file systems list the folder itself, too.
            is_folder_itself = path == folder_path_without_slash
            if is_folder_itself or not name:
                continue

            # The listing of a web server consists of the links of a page. Leave out those to other
            # folders, and those with a query, such as `?sort=size`.
            if self.scheme in _WEB:
                is_in_folder = parent == folder_path_without_slash
                has_query = "?" in name or "#" in name
                if not is_in_folder or has_query:
                    continue

            name_in_store = f"{folder}/{name}".lstrip("/")
            info_by_name[name_in_store] = info
        return info_by_name

    def stat(self, name: str) -> Stored | None:
        """Return the description of a file, or None if it does not exist."""
        system, path = self._system_and_path(checked_name(name))
        fresh = _FRESH_INFO.get(self.scheme, {})
        info = self._ask(name, lambda: system.info(path, **fresh))
        if info is None or _is_folder(info):
            return None
        return self._stored(name, info)

    def _stored(self, name: str, info: Mapping[str, Any]) -> Stored:
        """Return the description of a file: its size, the time of its last change, and a version.

        The version shows whether the file is replaced while it is read. It is the file's ETag or
        generation if the server reports one, otherwise its time of change. Together with the size
        it is the file's mark, such as "d41d8-80".

        Args:
            name: Name of the file.
            info: What fsspec reports about it, such as {"size": 80, "ETag": "d41d8"}. The keys
                depend on the file system.

        Raises:
            StorageError: The server reports no size, or neither a version nor a time.
        """
        size = info.get("size")
        written_at = _first_value(info, _TIME_KEYS)
        written_ns = 0  # the time is not known
        if written_at is not None:
            written_ns = nanoseconds(written_at)

        # A version is, for example, an ETag. Without one, the time serves as one.
        version = _first_value(info, _VERSION_KEYS)
        if version is None and written_ns != 0:
            version = written_ns
        if size is None or version is None:
            found = "no size" if size is None else "neither ETag, version nor time"
            raise self._unsafe_error(name, found)
        return Stored(name, int(size), mark=f"{version}-{size}", written_ns=written_ns)

    def _unsafe_error(self, name: str, found: str) -> NanosetError:
        """Return the error for a file whose changes could not be noticed while it is read."""
        return self._unreadable(
            "this file cannot be read safely, since a change during reading could not be seen",
            name,
            found=found,
            expected="a server that reports a file's size, and its ETag or Last-Modified",
        )

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small file, or None if it does not exist."""
        stored = self.stat(name)
        if stored is None:
            return None
        return self.read_range(name, 0, stored.size, stored.mark), stored

    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return the bytes from `begin` to `end`, exclusive, of one version of a file.

        A large file is read in ranges. If it is replaced meanwhile, the ranges must not be mixed.
        These file systems cannot be asked for a certain version. So the version is looked up after
        each range was read: if it is still the expected one, it was so while the bytes were read.

        Args:
            name: Name of the file.
            begin: Position of the first byte.
            end: Position after the last byte.
            mark: The version that is expected, as `Stored.mark`; None for any version.

        Raises:
            SourceChangedError: The file has another mark, or fewer bytes.
            MissingError: The file does not exist.
        """
        if begin >= end:
            return b""
        checked_name(name)

        def read_once() -> bytes:
            """Read the bytes, and check that all have arrived, of the expected version.

            `_ask` calls this. After a DamagedTransferError, it calls it again.
            """
            system, path = self._system_and_path(name)
            may_send_whole_file = self.scheme in _MAY_SEND_WHOLE_FILES
            data = _fetched(system, path, begin, end, may_send_whole_file=may_send_whole_file)
            self._check_version(name, mark, min_size=end)
            check_length(data, end - begin)
            return data

        data = self._ask(name, read_once)
        if data is None:  # the file does not exist
            raise gone(self.url(name))
        return data

    def _check_version(self, name: str, mark: str | None, min_size: int) -> None:
        """Check that a file exists in the expected version, and has not become shorter.

        Args:
            name: Name of the file.
            mark: The version that is expected, such as "d41d8-80": ETag and size. None for any
                version.
            min_size: How many bytes the file must have at least.

        Raises:
            SourceChangedError: The file has another mark, or fewer bytes.
            MissingError: The file does not exist.
        """
        stored = self.stat(name)
        if stored is None:
            raise gone(self.url(name))
        if mark is not None and stored.mark != mark:
            raise changed(self.url(name), found="another version", expected=mark)
        if stored.size < min_size:
            raise changed(
                self.url(name),
                found=f"{stored.size:,} bytes",
                expected=f"at least {min_size:,}",
            )

    def check_writable(self, name: str) -> None:
        """Refuse to write: these file systems are only read.

        Raises:
            ConfigError: Always.
        """
        raise self._read_only_error(name)

    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Refuse to write, as `check_writable`."""
        raise self._read_only_error(name)

    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Refuse to write, as `check_writable`."""
        raise self._read_only_error(name)

    def delete(self, name: str) -> None:
        """Refuse to delete, as `check_writable`."""
        raise self._read_only_error(name)

    def _read_only_error(self, name: str) -> ConfigError:
        """Return the error for a file that was to be written.

        Args:
            name: Name of the file.
        """
        return ConfigError(
            "outputs cannot be kept there",
            where=self.url(name),
            expected=ROOT_ADDRESSES,
            remedy="name another place for them",
        )

    def _unreadable(self, what: str, name: str, found: str, expected: str) -> StorageError:
        """Return the error for a file that cannot be read safely, because of what its server does.

        For example, a web server that always sends whole files cannot be used, since files are read
        in ranges. The error advises to copy the files to a local folder or a bucket first.

        Args:
            what: The message, such as "this web server does not send ranges of a file".
            name: Name of the file.
            found: What the server does, such as "no ranges".
            expected: What it should do, such as "206 for a range".
        """
        return StorageError(
            what,
            where=self.url(name),
            found=found,
            expected=expected,
            remedy="copy the files to a local folder or a bucket first",
        )

    def _system_and_path(self, name: str) -> tuple[Any, str]:
        """Return fsspec's file system for this place, and the path by which it knows a file.

        Args:
            name: Name of a file or folder of this store.

        Raises:
            StorageError: The package for this file system is not installed, or it cannot connect.
        """
        system = self._connected_system(name)
        # How a URL becomes a path depends on the package, and fsspec has no public name for this.
        return system, system._strip_protocol(self.url(name))

    def _connected_system(self, name: str) -> Any:
        """Return the client for the file system of this place, such as gcsfs for gs://bucket.

        The client is a package that fsspec finds by the scheme of the URL. It is connected at the
        first call, and reused afterwards.

        Args:
            name: Name of the file that is going to be read, for errors.

        Raises:
            StorageError: The package is not installed, or it cannot connect.
        """
        scheme, _, address = self.base.partition("://")
        host = address.partition("/")[0]
        try:
            # A forked process must not use its parent's connections, so it gets another object.
            return _file_system(os.getpid(), f"{scheme}://{host}")
        except ImportError as error:
            raise self._missing_package_error(name, error) from error
        except Exception as error:
            # Each package has errors of its own, such as for credentials that it cannot find.
            raise StorageError(
                f"{scheme}:// cannot be opened",
                where=self.url(name),
                found=_one_line(error),
                remedy=self._credentials_remedy,
            ) from error

    def _missing_package_error(self, name: str, error: ImportError) -> StorageError:
        """Return the error for a place whose package, such as gcsfs, is not installed.

        Args:
            name: Name of the file that was going to be read.
            error: What importing the package raised.
        """
        scheme = self.base.partition("://")[0]
        remedy = "install the package that is named"
        if scheme in _EXTRAS:
            remedy = f"pip install 'nanoset-platform[{_EXTRAS[scheme]}]'"
        return StorageError(
            f"{scheme}:// needs a package that is not installed",
            where=self.url(name),
            found=str(error),
            remedy=remedy,
        )

    def _ask(self, name: str, request: Callable[[], T], *, may_be_missing: bool = True) -> T | None:
        """Send a request until it succeeds, at most 10 times. What follows an error depends on its
        meaning.

            the file does not exist                 None
            overloaded server, broken connection    wait a moment, and send the request again
            missing permissions and so on           a StorageError at once

        Args:
            name: Name of the file or folder that it is about.
            request: Sends the request once.
            may_be_missing: Whether the answer that something does not exist is None. Otherwise,
                such as for a request that writes, it means that the bucket does not exist, and is
                an error.

        Returns:
            The result of the request, or None if the file or folder does not exist.

        Raises:
            StorageError: The request failed each time, or in a way that another attempt would not
                change, such as missing permissions.
        """
        attempts = Attempts(self.url(name))
        while True:
            try:
                # If the server does not answer for long, a warning names it.
                with unanswered().asking(self.url(name)):
                    return request()
            except NanosetError:
                raise  # it has a message for the user already
            except Exception as error:
                # Some packages raise FileNotFoundError for every failure, from an error that says
                # what has really happened. That may be an error with a message for the user.
                cause = cause_of(error)
                if isinstance(cause, NanosetError):
                    raise cause from error

                # The server has answered that something does not exist.
                if is_missing_file(cause):
                    if may_be_missing:
                        return None
                    raise self._no_bucket_error(cause) from error

                # The request has failed. Try again if it may succeed then.
                if attempts.is_last or not is_transient(cause):
                    raise self._failure(cause, name, attempts.number) from error
                attempts.pause(description_of(error))

    @property
    def _credentials_remedy(self) -> str:
        """What to do if credentials are missing, or give too few rights."""
        usual_place = "in a place where the package for this scheme looks for them"
        extra = _EXTRAS.get(self.scheme)
        if extra in _CREDENTIALS:
            usual_place = f"such as {_CREDENTIALS[extra]}"
        return f"give this process credentials that may {self.rights} there, {usual_place}"

    def _no_bucket_error(self, error: BaseException) -> StorageError:
        """Return the error for a bucket that does not exist.

        Args:
            error: What the request raised.
        """
        return StorageError(
            "there is no such bucket",
            where=self.url(),
            found=_one_line(error),
            remedy="create the bucket, or correct its name",
        )

    def _failure(self, error: BaseException, name: str, attempts: int) -> NanosetError:
        """Return the error for a request that failed for good. Its message says what to do.

            the server sends whole files only    "copy the files to a local folder or a bucket"
            the server refuses (status 403)      "give this process credentials that may read"
            anything else, such as no answer     "see whether the name is right and the server up"

        Args:
            error: Why the last attempt failed.
            name: Name of the file or folder that the request was about.
            attempts: Number of attempts.
        """
        # fsspec raises an error with this text if a web server always sends whole files.
        sends_whole_files = "support range requests" in str(error)
        if sends_whole_files:
            return self._unreadable(  # this error has the remedy in the table
                "this web server does not send ranges of a file, and files are read in ranges",
                name,
                found="no ranges",
                expected="206 for a range",
            )
        if is_refusal(error):
            message = f"{self.scheme}:// refuses"
            remedy = self._credentials_remedy
        else:
            after_attempts = f", after {attempts} attempts" if attempts > 1 else ""
            verb = "read" if self.rights == "read" else "used"
            message = f"{self.scheme}:// cannot be {verb}{after_attempts}"
            remedy = (
                "see whether the name is right and the server up, then run again: what is finished "
                "is kept"
            )
        return StorageError(message, where=self.url(name), found=_one_line(error), remedy=remedy)


def _one_line(error: BaseException) -> str:
    """Return the kind and the message of an error in one line; some packages write several."""
    description = f"{type(error).__name__}: {error}"
    # Azure adds the id of the request, and its whole answer in XML.
    description = description.partition("\nRequestId:")[0]
    return " ".join(description.split())


def is_known(scheme: str) -> bool:
    """Return whether fsspec can read URLs of a kind, perhaps with a package to be installed.

    Args:
        scheme: What a URL begins with before `://`, such as `gs` or `hf`.
    """
    from fsspec.registry import available_protocols

    return scheme in available_protocols()


@functools.cache
def _file_system(process: int, url: str) -> Any:
    """Return fsspec's client for a host or bucket; the threads of a process share it.

    fsspec is a library for many kinds of storage. To connect takes long, so it is done once, and
    the cache returns the client for later calls.

    Args:
        process: Id of the process, so that the result is cached for each process: a forked one must
            not share the connections of its parent.
        url: Scheme and host, such as `gs://bucket`.

    Raises:
        ImportError: The package for the scheme is not installed.
    """
    from fsspec.core import url_to_fs

    _ignore_logs_of_failed_requests()
    options: dict[str, Any] = {}
    if url.partition("://")[0] in _WEB:
        # Let the client check the target of a redirect before it follows.
        options["client_kwargs"] = {"trace_configs": [checking_redirects()]}
    system, _ = url_to_fs(
        url,
        # Listings must be fresh, and this function is the cache of file systems.
        use_listings_cache=False,
        skip_instance_cache=True,
        **options,
    )
    return system


def _ignore_logs_of_failed_requests() -> None:
    """Keep Python from printing what the packages of fsspec log about failed requests.

    Such a request is sent again, and if it fails for good, the error says the same.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(logging.NullHandler())


def _fetched(system: Any, path: str, begin: int, end: int, *, may_send_whole_file: bool) -> bytes:
    """Return the bytes of a file from one position to another, read with one request.

    Args:
        system: fsspec's file system, such as that of a bucket or a web server.
        path: Path of the file in it.
        begin: Position of the first byte.
        end: Position after the last byte.
        may_send_whole_file: Whether the server may ignore the positions, and answer with the whole
            file, as some web servers do. It may have many gigabytes, so that must not be read.

    Returns:
        The bytes. They are fewer than requested if the file ends before `end`: bytes 0 to 100 of a
        file of 80 bytes are 80 bytes.
    """
    try:
        if may_send_whole_file:
            return _range_of_web_file(system, path, begin, end)
        return bytes(system.cat_file(path, start=begin, end=end))
    except Exception as error:
        # HTTP status 416: the file ends before this range.
        if http_status(cause_of(error)) == 416:
            return b""
        raise


def _range_of_web_file(system: Any, path: str, begin: int, end: int) -> bytes:
    """Read a range of a file of a web server, and fail if the server sends the whole file instead.

    Some web servers do so. The file can have many gigabytes, so it must not be downloaded only to
    read a few bytes of it. fsspec's public functions would: `cat_file` downloads the whole file,
    and `file.read` requests the range in small blocks. Its private `_fetch_range` requests the
    range at once, and raises an error if more bytes arrive.

    Args:
        system: fsspec's file system.
        path: The URL of the file, such as `https://host/web/a.jsonl`.
        begin: Position of the first byte.
        end: Position after the last byte.

    Raises:
        Exception: The server has sent the whole file. The error depends on the file system.
    """
    # Without a size, fsspec would first ask the server for it. No byte after `end` is read.
    with system.open(path, "rb", block_size=end - begin, cache_type="none", size=end) as file:
        return bytes(file._fetch_range(begin, end))


def _is_folder(info: Mapping[str, Any]) -> bool:
    """Return whether fsspec describes a folder, and not a file.

    A web server has no folders. But if `http://host/web` is one on its disk, it redirects the
    request to `http://host/web/`, so that the final URL ends with a slash.
    """
    # A web server redirects the address of a folder to the same address with a slash at its end.
    final_url = str(info.get("url", ""))
    return info["type"] == "directory" or final_url.endswith("/")


def _first_value(info: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """Return the value of the first key that is set, or None."""
    for key in keys:
        if info.get(key):
            return info[key]
    return None


def nanoseconds(time_of_file: Any) -> int:
    """Return when a file was written, in nanoseconds since 1970.

    File systems report this time in different forms:

        datetime(2026, 1, 2)              in UTC, if it has no time zone
        "2026-01-02T00:00:00Z"            ISO 8601
        "Fri, 02 Jan 2026 00:00:00 GMT"   as in headers of HTTP
        1767312000.0                      seconds since 1970

    Args:
        time_of_file: The time in one of these forms.

    Returns:
        1767312000000000000 for all of them. It is precise to a microsecond.
    """
    if isinstance(time_of_file, str):
        is_iso_time = time_of_file[4:5] == "-"
        if is_iso_time:
            time_of_file = datetime.fromisoformat(time_of_file)
        else:
            time_of_file = parsedate_to_datetime(time_of_file)
    if isinstance(time_of_file, datetime):
        if time_of_file.tzinfo is None:
            time_of_file = time_of_file.replace(tzinfo=UTC)
        seconds = time_of_file.timestamp()
    else:
        seconds = float(time_of_file)
    return int(seconds * 1e6) * 1000
