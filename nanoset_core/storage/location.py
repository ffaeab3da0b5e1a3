"""Locations of files: paths of this machine, and addresses such as s3://bucket/prefix.

A `Location` is a `Path` or a `RemotePath`, which has the same methods as far as they are needed.
Addresses that contain credentials are refused, since they would be written to manifests and logs.
"""

from __future__ import annotations

import os
import re
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nanoset_core.errors import ConfigError
from nanoset_core.storage.paths import (
    check_no_variable,
    expanded,
    user_cache_folder,
    with_home,
)
from nanoset_core.storage.remote_path import INVALID_NAMES, RemotePath
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore
from nanoset_core.storage.stores.s3.requests import S3_SCHEME

if TYPE_CHECKING:
    from nanoset_core.storage.stores.cloud_filesystem import CloudFilesystemStore

_URL = re.compile("(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""Beginning of an address that is not a path of this machine."""
_FILE_URL = re.compile("file://", re.IGNORECASE)


def local_path(url: str, *, base: Path, where: str) -> Path:
    """Return the absolute path of a location in the settings that has to be local.

        data/a              a path below `base`
        file:///data/a      /data/a
        s3://bucket/a       an error: the caller needs a file of this machine

    Args:
        url: The location: a path or a file:// URL.
        base: Folder at which relative paths start.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: The location is a URL of another kind, or has a variable.
    """
    if is_remote(url):
        raise _only_local_error(url, where)
    _check_is_url_or_path(url, where)
    path = (base / expanded(without_file_scheme(url), where)).resolve()
    # A folder may really have such a name. `Path.exists` would raise an error if this user may not
    # look into the folder above.
    if not os.path.exists(path):
        check_no_variable(url, where)
    return path


def _check_is_url_or_path(url: str, where: str) -> None:
    """Check that a location in the settings is not an address with a mistake in its scheme.

    An example is " s3://bucket" in quotes. Outputs would be written to a folder named " s3:".

    Args:
        url: The location, which is not the address of a bucket or server.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: It contains ://, without being a file:// URL or a path.
    """
    beginning, separator, _rest = url.partition("://")
    is_file_url = _FILE_URL.match(url) is not None
    if separator and "/" not in beginning and not is_file_url:
        raise ConfigError(
            "neither an address nor a path",
            where=where,
            found=repr(url),
            expected="an address that begins with a scheme, such as s3://, or a path",
            remedy="correct what precedes ://, or begin a path that contains it with ./",
        )


def path_on_this_machine(path: str | PathLike[str]) -> Path:
    """Return the path of a file or folder that a caller in Python has named, and that is local.

        data/a              data/a
        ~/a, file:///b/a    /home/ada/a and /b/a
        ~a                  ~a, the name of a file
        s3://bucket/a       an error; Python would take it for a path below a folder named "s3:"

    Args:
        path: What the caller has given.

    Raises:
        ConfigError: It is the address of a bucket, or cannot be a path.
    """
    text = fspath(path)
    if is_remote(text):
        raise _only_local_error(text)
    return with_home(without_file_scheme(text), where=text)


def _only_local_error(url: str, where: str | None = None) -> ConfigError:
    """Return the error for the address of a bucket in place of a path of this machine.

    Args:
        url: The address.
        where: Place of the setting that has it, if it is one of a file.
    """
    return ConfigError(
        "only local files can be used here",
        where=where or url,
        found=url if where else None,
        expected="a path on a local or mounted file system",
        remedy="mount the bucket, or copy the files to a local folder first",
    )


def is_remote(location: str) -> bool:
    """Return whether a location is a URL, other than file://, instead of a local path.

    Args:
        location: What a user has written: True for `s3://bucket/a`, False for `data/a` and
            `file:///data/a`.
    """
    return _URL.match(location) is not None


def is_s3_url(location: str) -> bool:
    """Return whether a location is the address of a bucket of S3, or of something in it.

    Args:
        location: What a user has written: True for `s3://bucket/a` and `S3://bucket/a`, False for
            `gs://bucket/a`.
    """
    return location[: len(S3_SCHEME)].lower() == S3_SCHEME


def copies_folder(store: Store, mirror: str | Path | None = None) -> Path:
    """Return the local folder in which copies of a bucket's files are kept while programs use them.

    For example, the copies of all buckets are below `~/.cache/nanoset/mirror`, where each bucket or
    folder of a bucket has a folder of its own.

    Args:
        store: The bucket, or a folder in it.
        mirror: Folder for the copies of all stores. By default it is in the user's cache folder.

    Returns:
        An absolute path, different for each store. Nothing is created there.

    Raises:
        ConfigError: The path of `mirror` names a user who does not exist, or it is not given and
            this user has no home folder.
    """
    where = "the folder of working copies"
    if mirror:
        parent = expanded(mirror, where)
        return (parent / store.copies_name).resolve()

    cache_folder = user_cache_folder()
    if cache_folder is None:
        raise ConfigError(
            "the home folder is not known",
            where=where,
            remedy="set the variable HOME or XDG_CACHE_HOME",
        )
    return (cache_folder / "nanoset" / "mirror" / store.copies_name).resolve()


Location: TypeAlias = Path | RemotePath
"""A file or folder, on a file system or in a bucket."""


def location(path: str | PathLike[str]) -> Location:
    """Return the location of an input that a user has named: a local path, or a folder of a bucket.

        data/a, ~/a, file:///data/a      a `Path`
        s3://bucket/a, https://host/a    a `RemotePath`, which has the same methods

    Args:
        path: A path, a file:// URL or another URL.

    Raises:
        ConfigError: The URL is not valid; see `remote_location`.
    """
    text = without_file_scheme(fspath(path))
    # An error names the text itself as the place where the user has written it.
    if is_remote(text):
        return remote_location(text, where=text, only_read=True)
    return expanded(text, where=text)  # with a user's home folder in place of ~


def without_file_scheme(text: str) -> str:
    """Return the path of a file:// URL; other text is returned unchanged.

    Args:
        text: What a user has written: `file:///data/a` gives `/data/a`.
    """
    return _FILE_URL.sub("", text, count=1) if _FILE_URL.match(text) else text


def on_this_machine(location: Location) -> Path:
    """Return a location that the caller knows to be local, as a path.

    A location is either a `Path` or a place in a bucket. This tells the type checker, and readers,
    that it is a `Path` here.

    Args:
        location: A location without the scheme of a bucket. It is returned unchanged.

    Raises:
        TypeError: The location is in a bucket.
    """
    if not isinstance(location, Path):
        raise TypeError(f"{location} is not on this machine")
    return location


def remote_location(
    url: str, *, where: str, storage: StorageSpec | None = None, only_read: bool = False
) -> RemotePath:
    """Return the location of an address such as s3://bucket/path, after checking the address.

        s3://bucket/raw/web          the path raw/web in the bucket
        gs://bucket/raw              the same, for Google Storage
        https://host/raw             only if nothing will be written
        s3://key:secret@bucket/raw   an error: it would be written to logs

    No request is sent to the bucket.

    Args:
        url: The address.
        where: Place of the setting, for errors.
        storage: How the bucket is accessed. By default the AWS configuration is used.
        only_read: Whether nothing will be written. Then the address may be of any file system that
            fsspec, a library for many kinds of storage, knows.

    Raises:
        ConfigError: The address or the endpoint is not valid, or contains credentials.
    """
    # Modules about addresses are imported here, since most projects are on a disk.
    from nanoset_core.storage.address_checks import (
        check_address,
        check_endpoint,
        check_filesystem_url,
        check_without_secrets,
    )
    from nanoset_core.storage.stores.s3.client import ENDPOINT_VARIABLES

    # Check what all kinds of addresses have in common.
    check_without_secrets(url, where)
    check_no_variable(url, where)
    check_address(url, where)
    scheme, _, rest = url.partition("://")
    host, _, path = rest.rstrip("/").partition("/")  # such as "bucket" and "path/in/bucket"
    if not _names_a_place(url, host, path):
        raise ConfigError(
            "this does not name a place in a bucket",
            where=where,
            found=repr(url),
            expected=(
                "s3://bucket/prefix, gs://bucket/prefix, abfs://container/prefix or a similar URL, "
                "without empty parts, '.' and '..'"
            ),
            remedy="name a bucket and perhaps a prefix in it",
        )

    # The store is the whole bucket or server, and the path is one within it. S3 has a store of its
    # own, and fsspec accesses all others.
    if is_s3_url(url):
        storage = storage or StorageSpec()
        endpoint_by_place = {"storage.endpoint_url": storage.endpoint_url}
        for variable in ENDPOINT_VARIABLES:
            endpoint_by_place[variable] = os.environ.get(variable)
        # Only the first one counts. The others may be addresses of other services.
        for place, endpoint in endpoint_by_place.items():
            if endpoint:
                check_endpoint(endpoint, place)
                break
        return RemotePath(_bucket(host, storage, only_read=only_read), path)
    check_filesystem_url(url, where, only_read=only_read)
    return RemotePath(_filesystem(scheme.lower(), host, only_read=only_read), path)


def _names_a_place(url: str, host: str, path: str) -> bool:
    """Return whether an address names a folder or object of a store.

        s3://bucket, s3://bucket/a/b    True
        s3://                           False: it names no bucket
        s3://bucket/a//b                False: a part of the path is empty ("." is wrong, too)

    Args:
        url: The address.
        host: What follows its scheme, such as the bucket.
        path: What follows the host; "" for the whole bucket.
    """
    parts = path.split("/") if path else []
    has_valid_parts = not any(part in INVALID_NAMES for part in parts)
    is_host_valid = host != "" and "?" not in host
    return is_remote(url) and is_host_valid and has_valid_parts and "\0" not in url


def _filesystem(scheme: str, host: str, *, only_read: bool) -> Store:
    """Return the store at an address such as gs://bucket or https://host.

    Files are accessed by the library fsspec, which can read many kinds of stores. Only some of them
    can also be written to, by classes of this program.

    Args:
        scheme: What is before `://`.
        host: What follows it, such as the bucket.
        only_read: Whether nothing will be written.
    """
    from nanoset_core.storage.stores.filesystems import FilesystemStore

    address = f"{scheme}://{host}"
    if only_read:
        return FilesystemStore(address)
    writable_store_class = _root_store_class(scheme)  # such as GoogleStore
    return writable_store_class(address)


def _root_store_class(scheme: str) -> type[CloudFilesystemStore]:
    """Return the class of a place for outputs, by the scheme of its address.

    Args:
        scheme: One of `ROOT_SCHEMES`.
    """
    # Imported here, because most commands use none of them, and importing all takes 6 ms.
    if scheme in ("gs", "gcs"):
        from nanoset_core.storage.stores.google import GoogleStore

        return GoogleStore
    if scheme in ("abfs", "abfss", "az"):
        from nanoset_core.storage.stores.azure import AzureStore

        return AzureStore
    if scheme == "memory":
        from nanoset_core.storage.stores.memory import MemoryStore

        return MemoryStore
    raise ValueError(f"outputs cannot be in {scheme}://")


def _bucket(name: str, storage: StorageSpec, *, only_read: bool) -> Store:
    """Return a bucket of S3 as a store, by which its objects are listed, read and written.

    No request is sent yet. For inputs, which are only read, another class is used: it sends
    requests through another library, s3fs, if that is installed.
    """
    from nanoset_core.storage.stores.s3.reading import S3Reader
    from nanoset_core.storage.stores.s3.store import S3Store

    store_class = S3Reader if only_read else S3Store
    return store_class(
        bucket=name,
        prefix="",
        endpoint_url=storage.endpoint_url,
        region=storage.region,
        profile=storage.profile,
        anonymous=storage.anonymous,
    )


def store_of(folder: Location) -> Store:
    """Return a folder as a store, in which files are addressed by their paths below the folder.

    Args:
        folder: A folder on a disk or in a bucket. It need not exist.

    Returns:
        A store with the same methods in both cases. In that of `data`, `data/web/a.bin` has the
        name `web/a.bin`.
    """
    return LocalStore(folder) if isinstance(folder, Path) else folder.place
