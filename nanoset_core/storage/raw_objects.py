"""Raw text in a bucket, read like files, by s3fs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

from nanoset_core.errors import SourceChangedError, StorageError
from nanoset_core.storage.location import S3Place
from nanoset_core.storage.s3 import ObjectFacts
from nanoset_core.storage.s3_requests import (
    ATTEMPTS,
    DamagedTransferError,
    client_settings,
    is_passing,
    persist,
    without_password,
)

T = TypeVar("T")
BLOCK_BYTES = 8 << 20
BUFFER_BYTES = 256 << 10


class ObjectFile(io.RawIOBase):
    """The bytes of an object that stays as it was when it was opened; SourceChangedError once it is replaced."""

    def __init__(self, file: Any, url: str) -> None:
        """file: opened by s3fs, which asks for every range under the ETag that it found first."""
        self._file, self._url = file, url
        found = file.details
        written = int(found["LastModified"].timestamp()) * 10**9
        self.facts = ObjectFacts(url, found["size"], found["ETag"], written)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        with _explained(self._url):  # a read that failed has moved nothing: it can be done again
            return persist(lambda: _answer(lambda: int(self._file.readinto(target))), self._url)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class BufferedObject(io.BufferedReader):
    """An object's file, read by lines, blocks or bytes."""

    raw: ObjectFile

    @property
    def facts(self) -> ObjectFacts:
        """What the bucket said of the object when it was opened."""
        return self.raw.facts


def open_object(place: S3Place, name: str) -> BinaryIO:
    """Open an object for reading.

    Raises:
        FileNotFoundError: there is none.
        StorageError: the bucket cannot be reached, or refuses.
    """
    url = f"s3://{place.bucket}/{place.key(name)}"

    with _explained(url):
        system = _file_system(place)
        file = persist(lambda: _answer(lambda: system.open(url, "rb", block_size=BLOCK_BYTES)), url)
    return BufferedObject(ObjectFile(file, url), BUFFER_BYTES)


def _answer(request: Callable[[], T]) -> T:
    """What s3fs gives; what fails in passing as `persist` knows it, and not as s3fs calls it."""
    from aiohttp import ClientError as BrokenOff

    try:
        return request()
    except KeyError as error:
        raise DamagedTransferError("an answer was cut off within its head") from error
    except BrokenOff as error:
        raise DamagedTransferError(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and is_passing(cause):
            raise cause from None
        raise


def _file_system(place: S3Place) -> Any:
    """s3fs for a place: one a process, which remembers no listings, and sends each request once."""
    try:
        from s3fs import S3FileSystem
    except ImportError as error:
        raise StorageError(
            "raw text in buckets needs s3fs",
            where=place.url,
            found=str(error),
            remedy="pip install 'nanoset-platform[s3]'",
        ) from error
    # `persist` is the one place that tries again: three that did, one within the other, would for hours
    settings = client_settings(place)
    system = S3FileSystem(
        anon=place.anonymous,
        endpoint_url=place.endpoint_url,
        profile=place.profile,
        client_kwargs={} if place.region is None else {"region_name": place.region},
        config_kwargs=settings | {"retries": {"mode": "standard", "total_max_attempts": 1}},
        use_listings_cache=False,
    )
    system.retries = 1
    return system


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn what s3fs raises into errors that say what to do; FileNotFoundError is left to the caller."""
    from s3fs.utils import FileExpired

    try:
        yield
    except (FileNotFoundError, StorageError):
        raise
    except FileExpired as error:
        raise SourceChangedError(
            "the object is not the one that was opened",
            where=url,
            found="another ETag",
            expected="the one that it had then",
            remedy="build again once nothing writes to it: the inventory is taken anew",
        ) from error
    except PermissionError as error:
        raise StorageError(
            "the bucket refuses",
            where=url,
            found=str(error),
            remedy="give this process credentials that may read there, by the usual AWS chain",
        ) from error
    except Exception as error:
        raise StorageError(
            f"the object cannot be read, after {ATTEMPTS} attempts",
            where=url,
            found=without_password(f"{type(error).__name__}: {error}"),
            remedy="see whether the store is up, then run again: what is finished is kept",
        ) from error
