"""Places in buckets, and how buckets are reached; never with credentials."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.serialization.settings import Range

SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """How buckets are reached. Credentials come by the usual AWS chain: environment, profile, instance role."""

    endpoint_url: str | None = None
    """URL of a store that speaks S3; absent = AWS, or what AWS_ENDPOINT_URL says."""
    region: str | None = None
    """Region of the bucket; absent = what the AWS configuration says."""
    profile: str | None = None
    """Name of a profile in the AWS configuration."""
    anonymous: bool = False
    """Send requests without a signature, as public buckets allow."""
    fingerprint: Literal["content", "etag", "etag-pieces"] = "content"
    """How raw objects are known: by a digest of their bytes, as local files are, which reads each once more; or by
    their ETags, without reading: each object in one piece, or plain ones above 128 MiB in pieces of 64 MiB."""
    mirror: str | None = None
    """Local folder of working copies; absent = .nanoset/mirror beside nanoset.yaml."""
    scratch_mib: Annotated[int, Range(1, 1 << 30)] | None = None
    """MiB for working copies: outputs go once they were sent, older copies as room is needed; absent = all stay."""


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket and a prefix in it, and how to get there."""

    bucket: str
    prefix: str
    """Without slashes at its ends; "" = the whole bucket."""
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False

    @property
    def url(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, name: str) -> str:
        """Return the key of a name below the place."""
        return f"{self.prefix}/{name}".strip("/")

    def below(self, name: str) -> S3Place:
        """Return a place further down."""
        return S3Place(self.bucket, self.key(name), self.endpoint_url, self.region, self.profile, self.anonymous)


def is_remote(location: str) -> bool:
    """Return whether a configured location is a bucket's."""
    return location.startswith(SCHEME)


def parse_place(url: str, storage: StorageSpec, *, where: str) -> S3Place:
    """Return the place that `s3://bucket/prefix` names.

    Raises:
        ConfigError: no bucket, or a prefix with parts that a local folder cannot have.
    """
    bucket, _, prefix = url.removeprefix(SCHEME).rstrip("/").partition("/")
    parts = prefix.split("/") if prefix else []
    if not is_remote(url) or not bucket or {"", ".", ".."} & set(parts) or "\0" in url or "?" in bucket:
        raise ConfigError(
            "this does not name a place in a bucket",
            where=where,
            found=repr(url),
            expected="s3://bucket/prefix, without empty parts, '.' and '..'",
            remedy="write it as s3://bucket/prefix",
        )
    _check_endpoint(storage.endpoint_url or "")
    return S3Place(bucket, prefix, storage.endpoint_url, storage.region, storage.profile, storage.anonymous)


def _check_endpoint(url: str) -> None:
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise ConfigError(
            "the endpoint holds a user's name or password",
            where="storage.endpoint_url",
            found=f"{url.partition('//')[0]}//…@{url.rpartition('@')[2]}",
            expected="scheme, host and port alone",
            remedy="remove it: credentials come by the usual AWS chain, and would stand in logs here",
        )


def mirror_folder(place: S3Place, base: Path) -> Path:
    """Return the folder of a place's working copies: below `base`, by endpoint, bucket and prefix."""
    store = place.bucket
    if place.endpoint_url:
        store += f"@{hashlib.blake2b(place.endpoint_url.encode(), digest_size=4).hexdigest()}"
    return base.joinpath(store, *place.prefix.split("/")) if place.prefix else base / store


def copies_folder(place: S3Place, storage: StorageSpec) -> Path:
    """Return the folder of a place's working copies, by the settings or else in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nanoset" / "mirror"
    base = cache if storage.mirror is None else Path(storage.mirror).expanduser()
    return mirror_folder(place, base).resolve()
