"""Write objects of Azure Blob Storage, `abfs://`.

The package adlfs provides the connection and the credentials. The requests are sent by Azure's own
client, which adlfs opens: the methods of adlfs for files delete the object before they write it,
and do not say which version of an object they read.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from nanoset_core.storage.requests import check_length
from nanoset_core.storage.store import Store, Stored, checked_name
from nanoset_core.storage.stores.cloud_filesystem import (
    CloudFilesystemStore,
    LostUploadError,
    ObjectVersion,
    PartsUpload,
    prefix_of,
)
from nanoset_core.storage.stores.filesystem_errors import http_status
from nanoset_core.storage.stores.filesystems import nanoseconds
from nanoset_core.storage.stores.long_listings import LongListing

T = TypeVar("T")
_HOST_ENDING = ".core.windows.net"
"""How the host of an account ends, if it is part of the address."""
_SHA256 = "nanoset_sha256"
"""Key of an object's metadata: the sha256 of its bytes, as hex."""
_FOLDER_MARKS = ("hdi_isfolder", "is_directory")
"""Keys of the metadata by which accounts with a hierarchy of folders mark a folder."""
_OPTIONS = {"retry_total": 0}
"""Arguments of all requests: `FilesystemStore._ask` sends them again, sooner than Azure's client
would.
"""
_ACCOUNT = re.compile(r"(?i)(?:^|;)AccountName=([^;]+)")
"""The name of the account in a connection string."""


class _Page(NamedTuple):
    """A page of a listing."""

    objects: Sequence[Any]
    """Azure's descriptions of the objects."""
    folders: Sequence[str]
    """Names of the folders, with a slash at the end; only of a listing of one level."""
    next_token: str | None
    """Token with which the next page is requested; None for the last page."""


@dataclass(frozen=True, slots=True)
class AzureStore(CloudFilesystemStore):
    """The blobs below a prefix of a container."""

    @property
    def container(self) -> str:
        """Name of the container."""
        return self._container_and_prefix[0]

    @property
    def _container_and_prefix(self) -> tuple[str, str]:
        """(name of the container, prefix of all names in it).

        The address is abfs://container/prefix, abfs://container@account.dfs.core.windows.net/prefix
        or abfs://account.dfs.core.windows.net/container/prefix.
        """
        host, _, path = self.base.partition("://")[2].partition("/")
        container, _, account = host.partition("@")
        if not account and host.endswith(_HOST_ENDING):
            container, _, path = path.partition("/")
        return container, path

    @property
    def copies_name(self) -> str:
        """Name of the local folder for working copies.

        The account is part of what it is computed from, since two accounts may have containers of
        the same name.
        """
        connection = _ACCOUNT.search(os.environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        if connection is not None:
            account = connection[1]
        return hashlib.sha256(f"{self.url()} {account}".encode()).hexdigest()

    def key(self, name: str) -> str:
        """Return the name by which Azure knows a blob, or a folder, in the container.

        Args:
            name: Name within this store, or "" for its top. With the prefix `nanoset`, `web/a.bin`
                gives `nanoset/web/a.bin`.

        Returns:
            The name without slashes at its ends.
        """
        _, prefix = self._container_and_prefix
        return f"{prefix}/{name}".strip("/")

    def request(
        self,
        name: str,
        send: Callable[[Any], Awaitable[T]],
        *,
        may_be_missing: bool = False,
    ) -> T | None:
        """Send a request about an object, which Azure calls a blob, and repeat it if it fails.

        Args:
            name: Name of the blob.
            send: A coroutine function that sends the request. It is called with Azure's client for
                the blob. If it finds the answer faulty, it raises DamagedTransferError, and is
                called again.
            may_be_missing: What the answer 404 means. True: the blob does not exist, and None is
                returned. False: the whole container does not exist, which is an error.

        Returns:
            What `send` returns.
        """
        key = self.key(checked_name(name))

        def send_with_client(service: Any) -> Awaitable[T]:
            """Call `send` with the client for the blob, given that for the whole account."""
            return send(service.get_blob_client(self.container, key))

        return self._request(name, send_with_client, may_be_missing=may_be_missing)

    def _request(
        self,
        name: str,
        send: Callable[[Any], Awaitable[T]],
        *,
        may_be_missing: bool = False,
    ) -> T | None:
        """Send a request about a bucket, which Azure calls a container; repeat it if it fails.

        Azure's client has coroutines, which run in a thread of the library fsspec. This method
        waits until the coroutine has ended there.

        Args:
            name: Name of a blob (object) or folder, for messages.
            send: A coroutine function that sends the request. It is called with Azure's client for
                the account.
            may_be_missing: Whether None is returned, rather than an error raised, for the answer
                404.

        Returns:
            What `send` returns.
        """
        from fsspec.asyn import sync

        system = self.system()

        def send_and_wait() -> T:
            """Run the coroutine in the thread of fsspec, and wait for what it returns."""
            result: T = sync(system.loop, send, system.service_client)
            return result

        # This calls the function, and again if the server fails for a moment.
        return self._ask(name, send_and_wait, may_be_missing=may_be_missing)

    def now(self) -> int:
        """Return the time of the server's clock, in nanoseconds since 1970.

        Each answer of a server has the time in its header "Date". Azure's client does not return
        headers, but calls a function with the whole answer. So a request for something small is
        sent, and this function takes the time.
        """
        dates: list[str] = []

        def note_date(answer: Any) -> None:
            """Note the time in the header that every answer has."""
            dates.append(answer.http_response.headers["Date"])

        async def list_one_blob(service: Any) -> None:
            """Ask for something small, and let the client call `note_date` with the answer."""
            container = service.get_container_client(self.container)
            blobs = container.list_blobs(
                results_per_page=1, raw_response_hook=note_date, **_OPTIONS
            )
            await anext(blobs.by_page(), None)

        self._request("", list_one_blob)
        last_date = dates[-1]  # earlier ones are those of attempts that failed
        return int(parsedate_to_datetime(last_date).timestamp()) * 10**9

    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield all blobs below a folder, in the order of the bytes of their names."""
        prefix_length = len(prefix_of(self.key("")))
        stored = []
        for page in self._pages(folder):
            for blob in page.objects:
                stored.append(_stored(blob.name[prefix_length:], blob))
        # Accounts with a hierarchy of folders have another order.
        yield from sorted(stored, key=lambda entry: entry.name.encode())

    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the folders, and of the blobs, directly in a folder."""
        prefix_length = len(prefix_of(self.key(folder)))
        folder_names: set[str] = set()
        blob_names: set[str] = set()
        for page in self._pages(folder, one_level=True):
            folder_names.update(name[prefix_length:].removesuffix("/") for name in page.folders)
            blob_names.update(blob.name[prefix_length:] for blob in page.objects)
        return sorted(folder_names), sorted(blob_names)

    def holds(self, folder: str) -> bool:
        """Return whether there is any blob below a folder."""
        return any(page.objects for page in self._pages(folder))

    def _pages(self, folder: str, *, one_level: bool = False) -> Iterator[_Page]:
        """Yield the pages of a listing.

        The server lists blobs in pages of up to 5,000. Each page except the last names a token,
        with which the next one is requested.

        Args:
            folder: The folder that is listed, such as `datasets`.
            one_level: Whether only what is directly in the folder is listed: its blobs, and the
                names of its subfolders. Otherwise all blobs below it are listed.

        Raises:
            StorageError: The server repeats pages, or the listing does not end.
        """
        listing = LongListing(self.url(folder))
        token: str | None = None  # asks for the first page
        while True:
            page = self._request_page(folder, token, one_level=one_level)
            yield page
            token = page.next_token
            if not token:
                return  # this is the last page

            # Raise an error if a faulty server sends the same page again, or pages without end.
            blob_names = [blob.name for blob in page.objects]
            entries = [*page.folders, *blob_names]
            listing.turn_page(len(entries), next_token=token, first_entry=repr(entries[:1]))

    def _request_page(self, folder: str, token: str | None, *, one_level: bool) -> _Page:
        """Request one page of a listing, which has up to 5,000 blobs (Azure's name for objects).

        Args:
            folder: The folder that is listed.
            token: Token of the page, which the page before it has given; None for the first page.
            one_level: True lists the folders in it by their names; False lists what is in them
                instead.
        """
        prefix = prefix_of(self.key(folder))  # such as "nanoset/datasets/"

        async def send(service: Any) -> _Page:
            """Request the page. `_request` calls this with Azure's client for the account."""
            container = service.get_container_client(self.container)
            return await _read_page(container, prefix, token, one_level=one_level)

        page = self._request(folder, send)
        assert page is not None, "a missing container is an error"
        return page

    def stat(self, name: str) -> Stored | None:
        """Return the description of a blob, or None if it does not exist."""

        async def send(client: Any) -> Stored | None:
            """Request the description."""
            properties = await client.get_blob_properties(**_OPTIONS)
            return None if _is_folder(properties) else _stored(name, properties)

        return self.request(name, send, may_be_missing=True)

    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the description of a small blob, or None if it does not exist.

        The description (size, version, time) comes with the bytes, so that one request is enough. A
        folder, which some accounts store like a blob, counts as missing.
        """

        async def send(client: Any) -> tuple[bytes, Stored] | None:
            """Request both at once."""
            stream = await client.download_blob(**_OPTIONS)
            data = await stream.readall()
            if _is_folder(stream.properties):
                return None
            stored = _stored(name, stream.properties)
            check_length(data, stored.size)
            return data, stored

        return self.request(name, send, may_be_missing=True)

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """Return a range of a blob, Azure's name for an object, together with its description.

        One request returns both. The answer says in a header which bytes of how many it contains:
        "Content-Range: bytes 0-99/1234".

        Args:
            name: Name of the blob.
            begin: Position of the first byte.
            end: Position after the last byte. It may be beyond the end of the blob.

        Returns:
            (the bytes, the description of the blob), or None if the blob does not exist.
        """
        checked_name(name)
        if begin >= end:
            # Azure has no requests for an empty range. The method of the base class only asks for
            # the description.
            return Store.open_range(self, name, begin, end)

        async def send(client: Any) -> tuple[bytes, Stored] | None:
            """Request the range. `request` calls this with Azure's client for the blob."""
            return await _read_range(client, name, begin, end)

        data_and_stored = self.request(name, send, may_be_missing=True)
        if data_and_stored is None:
            # The blob has no such bytes, is a folder, or does not exist. The method of the base
            # class finds out which, by a request for the description.
            return Store.open_range(self, name, begin, end)
        return data_and_stored

    def request_range(
        self, name: str, begin: int, end: int, version: ObjectVersion
    ) -> bytes | None:
        """Request bytes of a blob, on the condition that it still has the expected ETag.

        If the blob has another one, the server refuses the request with status 412.
        """
        from azure.core import MatchConditions

        async def send(client: Any) -> bytes | None:
            """Request the bytes; return None if the blob has another ETag than expected.

            `request` calls this with Azure's client for the blob.
            """
            try:
                stream = await client.download_blob(
                    offset=begin,
                    length=end - begin,
                    etag=version.identifier,
                    match_condition=MatchConditions.IfNotModified,
                    **_OPTIONS,
                )
                data: bytes = await stream.readall()
            except Exception as error:
                if http_status(error) == 412:  # the blob has another ETag
                    return None
                raise
            check_length(data, end - begin)
            return data

        return self.request(name, send, may_be_missing=True)

    def check_writable(self, name: str) -> None:
        """Check that this process may write a blob, by sending a block that no blob uses."""
        # Azure deletes such blocks after a week.
        self.begin_upload(name, None).send(b"x")

    def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""
        # It may have been deleted by this request, if the first answer was lost.
        self.request(
            name,
            lambda client: client.delete_blob(delete_snapshots="include", **_OPTIONS),
            may_be_missing=True,
        )

    def write_whole(self, name: str, data: bytes, sha256: str) -> None:
        """Write a blob by one request; the server refuses bytes that were damaged on the way."""
        self.request(
            name,
            lambda client: client.upload_blob(
                data,
                overwrite=True,
                metadata={_SHA256: sha256},
                validate_content=True,
                **_OPTIONS,
            ),
        )

    def begin_upload(self, name: str, sha256: str | None) -> PartsUpload:
        """Begin to write a blob in parts."""
        return _AzureUpload(self, name, sha256)


async def _read_page(container: Any, prefix: str, token: str | None, *, one_level: bool) -> _Page:
    """Request one page of a listing from Azure, and read all of its entries.

    Args:
        container: Azure's client for the container, which is Azure's name for a bucket.
        prefix: How the names of the listed blobs begin, such as `nanoset/datasets/`.
        token: Token of the page; None for the first page.
        one_level: Whether folders are listed by their names, instead of the blobs in them.
    """
    list_blobs = container.walk_blobs if one_level else container.list_blobs
    # Some accounts list folders among the blobs. Only the metadata of such an entry shows that it
    # is a folder, so request the metadata, too.
    blobs = list_blobs(name_starts_with=prefix, include=["metadata"], **_OPTIONS)
    pages = blobs.by_page(token)  # an iterator over this page and those after it
    page = await anext(pages)
    entries = [entry async for entry in page]
    return _page(entries, pages.continuation_token)


def _page(entries: Sequence[Any], next_token: str | None) -> _Page:
    """Return one page of a listing, with folders and blobs apart.

    In a listing of `datasets/`, Azure returns the blob `datasets/notes.json` as an object with size
    and time, but the folder `datasets/web/` as a `BlobPrefix`, which has only a name. Some accounts
    list a folder as an empty blob, too; that is left out.

    Args:
        entries: What Azure returned.
        next_token: Token with which the next page is requested.
    """
    from azure.storage.blob.aio import BlobPrefix

    folders = []
    objects = []
    for entry in entries:
        if isinstance(entry, BlobPrefix):
            folders.append(entry.name)
        elif not _is_folder(entry):
            objects.append(entry)
    return _Page(objects, folders, next_token)


async def _read_range(client: Any, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
    """Request a range of a blob, and return it with a description of the whole blob.

    Args:
        client: Azure's client for the blob.
        name: Name of the blob in the store.
        begin: Position of the first byte.
        end: Position after the last byte. It may be beyond the end of the blob.

    Returns:
        (the bytes, the description); None if the blob ends before the range, or is a folder.

    Raises:
        DamagedTransferError: Some of the bytes are missing. The request is then repeated.
    """
    try:
        stream = await client.download_blob(offset=begin, length=end - begin, **_OPTIONS)
        data: bytes = await stream.readall()
    except Exception as error:
        if http_status(error) == 416:  # the blob ends before this range
            return None
        raise
    properties = stream.properties
    if _is_folder(properties):
        return None

    # In `properties`, Azure's client has put the size of the range. The size of the blob is in a
    # header: 1,234 in "bytes 0-99/1234".
    blob_size = int(properties.content_range.rpartition("/")[2])
    properties.size = blob_size
    expected_bytes = min(end, blob_size) - begin
    check_length(data, expected_bytes)
    return data, _stored(name, properties)


def _is_folder(properties: Any) -> bool:
    """Return whether Azure describes a folder, which some accounts store like a blob."""
    metadata: Mapping[str, str] = properties.metadata or {}
    values = {key.lower(): value for key, value in metadata.items()}
    return any(values.get(mark) == "true" for mark in _FOLDER_MARKS)


def _stored(name: str, properties: Any) -> Stored:
    """Return the description of a blob: its size, version, time and checksums.

    The version is named by a mark, such as '"0x8DC"-1234': its ETag, which Azure changes with each
    write, and its size.

    Args:
        name: Name of the blob in the store.
        properties: How Azure's client describes it.
    """
    # Listings have the ETag without its quotes.
    etag = properties.etag.strip('"')
    metadata: Mapping[str, str] = properties.metadata or {}
    md5 = properties.content_settings.content_md5  # None for blobs that were sent in parts
    return Stored(
        name,
        size=properties.size,
        mark=f'"{etag}"-{properties.size}',
        written_ns=nanoseconds(properties.last_modified),
        sha256=metadata.get(_SHA256),
        md5=None if md5 is None else bytes(md5).hex(),
    )


class _AzureUpload(PartsUpload):
    """Blocks of a blob, from which it is made by a last request.

    Azure deletes the blocks of unfinished uploads after a week.
    """

    def __init__(self, store: AzureStore, name: str, sha256: str | None) -> None:
        """Begin without blocks.

        Args:
            store: The container.
            name: Name of the blob.
            sha256: The sha256 of the blob as hex, to be stored with it; None if not known.
        """
        self._store = store
        self._name = checked_name(name)
        self._metadata = {} if sha256 is None else {_SHA256: sha256}
        self._mark = secrets.token_hex(8)
        """Beginning of the names of its blocks, so that other uploads have other blocks."""
        self._block_names: list[str] = []

    def send(self, part: bytes) -> None:
        """Send the next part of a blob. Azure keeps it as a *block* until the upload is completed.

        Each block has a name, such as "7f3a9c0011223344-00002" in base64: a random mark of this
        upload, and the number of the block. `complete` finally lists the names, and Azure makes the
        blob from the blocks.

        Args:
            part: Bytes of the part.
        """
        # Azure requires names in base64, and all of the same length.
        number = len(self._block_names)
        block_name = base64.b64encode(f"{self._mark}-{number:05d}".encode()).decode()

        async def stage_block(client: Any) -> None:
            """Send the block, with a digest by which the server notices damaged bytes."""
            await client.stage_block(
                block_name, part, length=len(part), validate_content=True, **_OPTIONS
            )

        self._store.request(self._name, stage_block)
        self._block_names.append(block_name)

    def complete(self, last_part: bytes) -> None:
        """Send the last part, and let Azure make the blob from all parts that were sent.

        Azure calls the parts blocks, and a last request, the commit, lists their names.

        Args:
            last_part: Bytes of the last part.

        Raises:
            LostUploadError: Another process has written the blob meanwhile.
        """
        from azure.storage.blob import BlobBlock

        self.send(last_part)
        blocks = [BlobBlock(block_name) for block_name in self._block_names]

        async def commit_blocks(client: Any) -> None:
            """Send the last request. `request` calls this with Azure's client for the blob."""
            try:
                await client.commit_block_list(blocks, metadata=self._metadata, **_OPTIONS)
            except Exception as error:
                # Azure does not have all of the blocks. When a process commits a blob, Azure
                # deletes the blocks that others have sent for the same blob.
                if getattr(error, "error_code", None) == "InvalidBlockList":
                    raise LostUploadError(
                        "the container does not hold what was sent",
                        where=self._store.url(self._name),
                        found="another process wrote the same object meanwhile",
                        remedy="run again, which uploads it again",
                    ) from error
                raise

        self._store.request(self._name, commit_blocks)

    def abandon(self) -> None:
        """Forget the blocks, which Azure deletes after a week."""
        self._block_names.clear()
