"""The connection to a server that speaks S3: its address, the settings of its client, the client.

botocore, the library below boto3, is imported only when a client is needed, since it is optional
and takes long to import.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import os
from collections.abc import Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from nanoset_core.errors import StorageError
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE

T = TypeVar("T")
_CONNECT_SECONDS = 10
"""Seconds after which an attempt to connect is given up."""
_SMALL_BODY_BYTES = 1 << 20
"""So many bytes are sent without asking the server first whether it agrees to receive them."""
DEFAULT_REGION = "us-east-1"
"""Region of a client for which neither nanoset.yaml nor the AWS settings name one."""
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables that say where the server is; the first one that is set counts."""


class Server(NamedTuple):
    """How a server is reached; the fields of `S3Store` with the same names."""

    endpoint_url: str | None
    """URL of the server; None for AWS, or for what the environment says."""
    region: str | None
    """Region of its buckets; None for what the AWS settings say."""
    profile: str | None
    """Profile of the AWS settings that has the credentials; None for the default one."""
    anonymous: bool
    """Whether requests are sent without a signature."""

    @property
    def address(self) -> str | None:
        """URL of the server, or None for the servers of AWS."""
        addresses = [self.endpoint_url, *map(os.environ.get, ENDPOINT_VARIABLES)]
        return next((address for address in addresses if address), None)


@functools.cache
def new_client(process: int, server: Server, address: str | None, read_seconds: int) -> Any:
    """Return botocore's client for all buckets of a server; the threads of a process share it.

    To create a client takes long, so it is created once, and the cache returns it for later calls
    with the same arguments. Two of the arguments are only there to create another client in time:

        process    a forked process must not share the connections of its parent
        address    botocore may read it from the environment, which may change

    Args:
        process: Id of the process.
        server: How the server is reached.
        address: `server.address`.
        read_seconds: How long to wait for the next bytes of an answer.

    Raises:
        StorageError: botocore is not installed, or the AWS settings are wrong.
    """
    try:
        # Not boto3: its client is the same, but importing it takes 20 ms more in each process.
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise _no_botocore_error(server, error) from error

    with setting_up(server):  # errors of the AWS settings become errors with a remedy
        # Parse the times in answers with a faster function than botocore's own.
        session = with_quick_times(botocore.session.Session(profile=server.profile))
        load_quickly(session)
        region = server.region or session.get_config_variable("region") or DEFAULT_REGION
        client = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=server.endpoint_url,
            config=Config(**client_settings(server, read_seconds)),
        )
    send_small_bodies_at_once(client)
    return client


def _no_botocore_error(server: Server, error: ImportError) -> StorageError:
    """Return the error for a server of buckets if botocore is not installed."""
    return StorageError(
        "buckets need botocore",
        where=server.address or "S3",
        found=str(error),
        remedy="pip install 'nanoset-platform[s3]'",
    )


def load_quickly(session: Any) -> None:
    """Let a session of botocore load the description of a service in less time.

    This saves 70 ms of 200 in each process:

    - botocore lists the folders of all services, hundreds of them, to check that there is one named
      "s3";
    - it parses large files of JSON with the standard library.

    Args:
        session: The session, which is changed. If the user has set AWS_DATA_PATH, with folders of
            further descriptions, it stays as it is.
    """
    import orjson
    from botocore.loaders import JSONFileLoader, Loader

    class QuickFileLoader(JSONFileLoader):  # type: ignore[misc]
        """Reads files of JSON by orjson."""

        def load_file(self, file_path: str) -> Any:
            for ending, open_file in ((".json", open), (".json.gz", gzip.open)):
                if os.path.isfile(file_path + ending):
                    with open_file(file_path + ending, "rb") as file:
                        return orjson.loads(file.read())
            return None

    class LoaderWithoutSearch(Loader):  # type: ignore[misc]
        """Loads the descriptions of services that come with botocore."""

        _service_name = ""
        """The service whose description is loaded."""

        def load_service_model(
            self, service_name: str, type_name: str, api_version: str | None = None
        ) -> Any:
            self._service_name = service_name
            return super().load_service_model(service_name, type_name, api_version)

        def list_available_services(self, type_name: str) -> list[str]:
            # If there is no such service, loading its file is an error, too.
            return [self._service_name]

    if session.get_config_variable("data_path") is None:
        session.register_component(
            "data_loader", LoaderWithoutSearch(file_loader=QuickFileLoader())
        )


@contextlib.contextmanager
def setting_up(server: Server) -> Iterator[None]:
    """Replace errors about the settings of a client, raised in the block, by a StorageError.

    For example, botocore's ProfileNotFound, if the settings name a profile that does not exist,
    becomes "the bucket's client cannot be set up", with the settings to correct.

    Args:
        server: The server that a client is created for.

    Raises:
        StorageError: The settings are wrong.
    """
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise StorageError(
            "the bucket's client cannot be set up",
            where=server.address or "S3",
            found=str(error),
            remedy="correct `storage` in nanoset.yaml, or the AWS settings",
        ) from error


def client_settings(server: Server, read_seconds: int) -> dict[str, Any]:
    """Return the settings of a client of S3, as arguments of `botocore.config.Config`.

    Its defaults suit a few requests; a build sends many
    thousands.

    Args:
        server: The server that the client is for.
        read_seconds: How long to wait for the next bytes of an answer.
    """
    import botocore

    settings: dict[str, Any] = {
        # `with_retries` sends requests again. botocore would give up sooner, and for all threads
        # at once, while a gateway restarts.
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": read_seconds,
        "max_pool_connections": SMALL_REQUESTS_AT_ONCE,
        "tcp_keepalive": True,
        # botocore would assemble its default user agent again for every request.
        "user_agent": f"nanoset Botocore/{botocore.__version__}",
    }
    if server.address:
        # Other servers than AWS have no host name for each bucket: the bucket is in the path.
        settings["s3"] = {"addressing_style": "path"}
    if server.anonymous:
        settings["signature_version"] = botocore.UNSIGNED
    return settings


def with_quick_times(session: T) -> T:
    """Make a session of botocore parse times faster, and return it.

    The list of a bucket's objects has a time for each, such as "2026-03-01T12:03:04Z". botocore's
    parser accepts many forms of time, and takes most of what a listing of many objects costs.

    Args:
        session: A session of botocore or aiobotocore, from which clients are created.

    Returns:
        The same session. Its new clients parse the times in answers by `parse_time`.
    """
    parsers = session.get_component("response_parser_factory")  # type: ignore[attr-defined]
    parsers.set_parser_defaults(timestamp_parser=parse_time)
    return session


def send_small_bodies_at_once(client: Any) -> None:
    """Make a client of botocore send small objects without waiting for the server to agree to them.

    By default, botocore sends the headers of every upload first ("Expect: 100-continue"), and its
    bytes when the server has answered. For a large object, this spares bytes that the server would
    refuse. For a small one, it only doubles the time, since a request then takes two round trips.

    Args:
        client: The client, which is changed.
    """
    from botocore.handlers import add_expect_header
    from botocore.utils import determine_content_length

    def add_expect_header_if_large(params: dict[str, Any], **arguments: Any) -> None:
        """Do what botocore does, if the request has a large body, or one of unknown size."""
        size = determine_content_length(params["body"]) if "body" in params else 0
        if size is None or size > _SMALL_BODY_BYTES:
            add_expect_header(params=params, **arguments)

    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3", add_expect_header_if_large)


def parse_time(text: Any) -> datetime:
    """Return the time in an answer, as botocore's own parser does, but faster.

    Args:
        text: One of these forms, or another one that botocore accepts:

                2026-03-01T12:03:04Z             an ISO time, in listings
                Sun, 01 Mar 2026 12:03:04 GMT    an HTTP date, in headers

    Raises:
        ValueError: The text is not a time.
    """
    try:
        is_iso_time = text[4:5] == "-"
        return datetime.fromisoformat(text) if is_iso_time else parsedate_to_datetime(text)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        time: datetime = parse_timestamp(text)
        return time
