"""A store in the memory of one process, `memory://`, for tests and for trying things out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NoReturn

from nanoset_core.errors import ConfigError
from nanoset_core.storage.store import checked_name
from nanoset_core.storage.stores.cloud_filesystem import (
    CloudFilesystemStore,
    ObjectVersion,
    PartsUpload,
)


@dataclass(frozen=True, slots=True)
class MemoryStore(CloudFilesystemStore):
    """The files below a folder of fsspec's file system in memory, which all stores share."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process, which has another memory.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "memory:// exists in one process only, and another one would have to use it",
            where=self.url(),
            remedy=(
                "use one worker (--workers 1) and no executor, or a place that several processes "
                "reach"
            ),
        )

    def now(self) -> int:
        """Return the time of this machine's clock, in nanoseconds since 1970."""
        return time.time_ns()

    def check_writable(self, name: str) -> None:
        """Check nothing: memory may be written."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        system, path = self._system_and_path(checked_name(name))
        self._ask(name, lambda: system.rm_file(path))

    def request_range(
        self, name: str, begin: int, end: int, version: ObjectVersion
    ) -> bytes | None:
        """Read bytes of a file, unless it has another version after that."""
        system, path = self._system_and_path(name)
        data: bytes | None = self._ask(name, lambda: system.cat_file(path, begin, end))
        stored = self.stat(name)
        if stored is None or ObjectVersion.of_mark(stored.mark) != version:
            return None
        return data

    def write_whole(self, name: str, data: bytes, sha256: str) -> None:
        """Write a file, which appears with all of its bytes."""
        system, path = self._system_and_path(name)
        self._ask(name, lambda: system.pipe_file(path, data))

    def begin_upload(self, name: str, sha256: str | None) -> PartsUpload:
        """Begin to write a file in parts."""
        return _MemoryUpload(self, name)


class _MemoryUpload(PartsUpload):
    """Collects the parts of a file, which is then written at once."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        """Begin without parts.

        Args:
            store: The store.
            name: Name of the file.
        """
        self._store = store
        self._name = name
        self._data = bytearray()

    def send(self, part: bytes) -> None:
        """Keep the next part."""
        self._data += part

    def complete(self, last_part: bytes) -> None:
        """Write the file."""
        self._data += last_part
        self._store.write_whole(self._name, bytes(self._data), sha256="")

    def abandon(self) -> None:
        """Forget the parts."""
        self._data.clear()
