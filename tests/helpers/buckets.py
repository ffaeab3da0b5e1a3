"""Buckets of each cloud in which a project can have its root, on servers of this machine."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from helpers import azure_server, chosen_server, google_server, s3_server
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.cloud_filesystem import CloudFilesystemStore
from nanoset_core.storage.stores.s3.store import S3Store

MEMORY = ".fingerprints.json"
"""Ending of the files with remembered digests of raw text, which only save time."""
RAW_PREFIX = "raw text"
"""Folder of raw text in a bucket, next to the prefix of the outputs."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """A kind of bucket, and the server on this machine that plays it."""

    name: str
    why_missing: Callable[[], str | None]
    """Returns why the server cannot run on this machine, or None if it can."""
    serve: Callable[[Path], AbstractContextManager[str]]
    """Runs the server with a folder for its files until the block ends; yields its address."""
    environment: Callable[[str], Mapping[str, str]]
    """Returns the environment variables for an address, which processes need to use the server."""
    new_bucket: Callable[[str, str], Store]
    """Creates a bucket at an address, and returns the place below a prefix in it."""


def _why_no_moto() -> str | None:
    """Return why moto cannot run on this machine, or None if it can."""
    return None if find_spec("moto") else "moto[server] is not installed"


CLOUDS = {
    "s3": Cloud(
        "S3",
        _why_no_moto,
        chosen_server.chosen_server,
        # The address is in the settings of a project.
        environment=lambda _address: chosen_server.CREDENTIALS,
        new_bucket=s3_server.new_bucket,
    ),
    "google": Cloud(
        "Google",
        google_server.why_missing,
        google_server.google_server,
        google_server.environment,
        google_server.new_google_bucket,
    ),
    "azure": Cloud(
        "Azure",
        azure_server.why_missing,
        azure_server.azure_server,
        azure_server.environment,
        azure_server.new_container,
    ),
}
"""Each kind of bucket, by the name that tests and campaigns have for it."""


def root_in(place: Store) -> dict[str, str]:
    """Return replacements in the sample project's settings that put its outputs into a bucket."""
    return {"root: data": f"root: {place.url()}\n{storage_settings(place)}"}


def storage_settings(place: Store, endpoint: str | None = None, more: str = "") -> str:
    """Return the section `storage` of a project's settings that a bucket needs.

    Args:
        place: A place in the bucket.
        endpoint: Address of a proxy before the server, for S3 only: other clouds have it in the
            environment. None without a proxy.
        more: Further settings, after a comma, such as `, shards: drop`.
    """
    settings = ""
    if isinstance(place, S3Store):
        settings = f"endpoint_url: {endpoint or place.endpoint_url!r}"
    settings = f"{settings}{more}".removeprefix(", ")
    return f"storage: {{{settings}}}"


def upload_raw(folder: Path, place: Store) -> Store:
    """Upload a folder of raw text next to the prefix of the outputs, and return its place."""
    raw: Store
    if isinstance(place, S3Store):
        raw = S3Store(place.bucket, RAW_PREFIX, place.endpoint_url)
    else:
        assert isinstance(place, CloudFilesystemStore)
        address = urlsplit(place.base)
        raw = replace(place, base=f"{address.scheme}://{address.netloc}/{RAW_PREFIX}")
    for path in folder.rglob("*"):
        if path.is_file():
            raw.put_file(path.relative_to(folder).as_posix(), path)
    return raw


class RawText(NamedTuple):
    """A project with raw text in a bucket, from which copies of the project can be made."""

    config: Path
    """Its nanoset.yaml."""
    url: str
    """The address of the text in `config`."""
    objects: dict[str, s3_server.StoredObject]
    """The text."""

    @classmethod
    def of(cls, config: Path, place: S3Store) -> RawText:
        """Return what `copy_to` needs of a project, whose text `upload_raw` has put into a bucket."""
        raw = S3Store(place.bucket, RAW_PREFIX, place.endpoint_url)
        return cls(config, raw.url(), s3_server.snapshot(raw))

    def copy_to(self, folder: Path, place: S3Store) -> Path:
        """Copy the project to a folder, and its text to another bucket; return its nanoset.yaml."""
        raw = S3Store(place.bucket, RAW_PREFIX, place.endpoint_url)
        s3_server.restore(raw, self.objects)
        shutil.copytree(self.config.parent, folder, symlinks=True)
        config = folder / self.config.name
        config.write_text(config.read_text().replace(self.url, raw.url()))
        return config


def objects(place: Store) -> dict[str, str]:
    """Return the sha256 of every object below a place, by name; not of files that only save time."""
    digests: dict[str, str] = {}
    if isinstance(place, S3Store):
        for name, stored_object in s3_server.snapshot(place).items():
            digests[name] = hashlib.sha256(stored_object.data).hexdigest()
    else:
        for stored in place.list():
            digests[stored.name] = place.sha256_of(stored)
    return {name: digest for name, digest in digests.items() if not name.endswith(MEMORY)}


def versions(place: Store) -> dict[str, str]:
    """Return mark and time of every object below a place, by name.

    They show whether an object was written again, even with the same bytes.
    """
    if isinstance(place, S3Store):
        return s3_server.versions(place)
    return {stored.name: f"{stored.mark} {stored.written_ns}" for stored in place.list()}


def remove_copies(config: Path) -> None:
    """Delete the working copies of a project, as if another machine used it."""
    shutil.rmtree(config.parent / ".nanoset", ignore_errors=True)


@contextmanager
def calling_for_requests(place: S3Store, record: Callable[..., None]) -> Iterator[None]:
    """Call a function for each request that is sent to a bucket in the `with` block.

    Args:
        place: The bucket.
        record: Called with `params`, the parameters of the request such as its `Key`, with `model`,
            whose `name` is the operation, and with other keyword arguments.
    """
    events = place.client().meta.events
    events.register("before-parameter-build.s3", record)
    try:
        yield
    finally:
        events.unregister("before-parameter-build.s3", record)


@contextmanager
def count_shard_requests(place: S3Store) -> Iterator[Counter[str]]:
    """Yield the number of requests for shards of the corpus web, by operation."""
    n_requests: Counter[str] = Counter()

    def count(params: Mapping[str, str], model: Any, **_: object) -> None:
        key = params.get("Key", params.get("Prefix", ""))
        if "/shards/web" in key:
            n_requests[model.name] += 1

    with calling_for_requests(place, count):
        yield n_requests
