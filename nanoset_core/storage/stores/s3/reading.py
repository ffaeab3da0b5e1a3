"""Read raw text in a bucket through s3fs, fsspec's file system for S3, if it is installed."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanoset_core.storage.stores.s3 import requests as s3_requests
from nanoset_core.storage.stores.s3.client import (
    DEFAULT_REGION,
    Server,
    client_settings,
    setting_up,
    with_quick_times,
)
from nanoset_core.storage.stores.s3.store import S3Store
from nanoset_core.storage.stores.unanswered import BLOCK_BYTES, unanswered


@dataclass(frozen=True, slots=True)
class S3Reader(S3Store):
    """A store in a bucket that sends its requests through s3fs, or through botocore without s3fs.

    s3fs is optional: its library aiobotocore works with few versions of botocore, and another
    package may need another version. Only s3fs's connection is used. Retries, errors and conditions
    of requests are those of `S3Store`, since s3fs reads files without the condition If-Match, and
    would not notice that a file was replaced.
    """

    def client(self, read_seconds: int | None = None) -> Any:
        """Return a client with the operations of botocore.

        Args:
            read_seconds: How long to wait for the next bytes of an answer; None for the default.
        """
        timeout = read_seconds or s3_requests.READ_SECONDS
        s3fs_client = _client(os.getpid(), self.server, self.server.address, timeout)
        if s3fs_client is None:
            return S3Store.client(self, read_seconds)
        return s3fs_client


class _Client:
    """Offers the operations of botocore's client, such as `get_object`, but sends them by s3fs.

    s3fs sends requests in an event loop that runs in a thread. An operation blocks until that loop
    has received the whole answer.
    """

    def __init__(self, system: Any) -> None:
        """Create a client.

        Args:
            system: The `S3FileSystem` of s3fs, connected.
        """
        self._system = system

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return a function that sends a request and returns the answer as botocore does.

        Args:
            operation: Name of botocore's operation. The function takes botocore's arguments of it.
        """
        from aiohttp import ClientError
        from fsspec.asyn import sync

        def call(**arguments: Any) -> Any:
            """Send the request, and wait for the answer."""
            try:
                return sync(self._system.loop, self._send, operation, arguments)
            except ClientError as error:
                # The connection broke within a body. botocore's callers expect a built-in error.
                raise ConnectionError(str(error)) from error

        return call

    async def _send(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Send a request through s3fs, and return the answer with its whole body.

        This coroutine runs in the event loop of s3fs, which has a thread of its own. The caller
        waits in another thread until it has ended.

        Args:
            operation: Name of botocore's operation, such as `get_object`.
            arguments: Its arguments, such as `{"Bucket": "data", "Key": "a.jsonl"}`.
        """
        # The client has the operations of botocore as coroutines. (s3fs names this method after its
        # other effect: it opens the session if that is not open yet.)
        client = await self._system.set_session()
        send_request = getattr(client, operation)
        answer = await send_request(**arguments)

        # The caller's thread cannot read a body from the event loop, but can read a file in memory.
        if "Body" in answer:
            answer["Body"] = await _read_into_memory(answer["Body"])
        return answer


async def _read_into_memory(body: Any) -> io.BytesIO:
    """Read the body of an answer, and return it as a file in memory."""
    content = io.BytesIO()
    async with body:
        while block := await body.read(BLOCK_BYTES):
            # Each block shows that the server is not silent.
            unanswered().note_sign_of_server()
            content.write(block)
    content.seek(0)
    return content


@functools.cache
def _client(process: int, server: Server, address: str | None, read_seconds: int) -> _Client | None:
    """Return a client that reads from a server with s3fs; None if s3fs is not installed.

    To connect takes long, so it is done once: this function is cached, and returns the same client
    for the same arguments. Two of the arguments are not used in the body. They are only there so
    that another client is made if they change:

        process    a forked process must not share the connections of its parent
        address    the server's address may come from the environment, which may change

    Args:
        process: Id of the process.
        server: How the server is reached.
        address: `server.address`.
        read_seconds: How long to wait for the next bytes of an answer.

    Raises:
        StorageError: The AWS configuration is wrong.
    """
    try:
        from aiobotocore.session import AioSession
        from s3fs import S3FileSystem
    except ImportError:
        return None

    with setting_up(server):  # errors of the AWS configuration become errors with a remedy
        # Parse the times in answers with a faster function than botocore's own.
        session = with_quick_times(AioSession(profile=server.profile))
        region = server.region or session.get_config_variable("region") or DEFAULT_REGION
        system = S3FileSystem(
            anon=server.anonymous,
            endpoint_url=server.endpoint_url,
            session=session,
            client_kwargs={"region_name": region},
            config_kwargs=client_settings(server, read_seconds),
            # s3fs would keep listings, but they must be fresh. It would also keep file systems, but
            # the cache of this function does that already.
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        system.connect()
    return _Client(system)
