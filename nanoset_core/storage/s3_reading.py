"""Raw text in a bucket, read by fsspec's file system for S3 where it is installed."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanoset_core.storage import s3_requests
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_requests import Server, client_settings, quick_times, setting_up
from nanoset_core.storage.unanswered import BLOCK_BYTES, unanswered


@dataclass(frozen=True, slots=True)
class S3Reader(S3Store):
    """The same place, whose requests go through s3fs, and through boto3 where that is not
    installed.

    aiobotocore, on which s3fs stands, takes few versions of botocore, and another package may need
    another one. Conditions, attempts and errors are ours: s3fs's own reading sends no If-Match.
    """

    def client(self, read_seconds: int | None = None) -> Any:
        timeout = read_seconds or s3_requests.READ_SECONDS
        client = _client(os.getpid(), self.server, self.server.address, timeout)
        return client or S3Store.client(self, read_seconds)


class _Client:
    """boto3's operations, each sent by s3fs in the thread of its loop, with the whole body read."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        from aiohttp import ClientError
        from fsspec.asyn import sync

        async def send(**about: Any) -> Any:
            answer = await getattr(await self._system.set_session(), operation)(**about)
            if "Body" in answer:
                whole = io.BytesIO()
                async with answer["Body"] as body:
                    while block := await body.read(BLOCK_BYTES):
                        unanswered().heard()
                        whole.write(block)
                whole.seek(0)
                answer["Body"] = whole
            return answer

        def call(**about: Any) -> Any:
            try:
                return sync(self._system.loop, send, **about)
            except ClientError as error:  # the connection broke within a body
                raise ConnectionError(str(error)) from error

        return call


@functools.cache
def _client(process: int, server: Server, address: str | None, read_seconds: int) -> _Client | None:
    """Return the s3fs client of a process, shared by its threads, or None without s3fs.

    The arguments are those of `new_client`.
    """
    try:
        from aiobotocore.session import AioSession
        from s3fs import S3FileSystem
    except ImportError:
        return None
    with setting_up(server):
        session = quick_times(AioSession(profile=server.profile))
        system = S3FileSystem(
            anon=server.anonymous,
            endpoint_url=server.endpoint_url,
            session=session,
            client_kwargs={
                "region_name": server.region or session.get_config_variable("region") or "us-east-1"
            },
            config_kwargs=client_settings(server, read_seconds),
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        system.connect()
    return _Client(system)
