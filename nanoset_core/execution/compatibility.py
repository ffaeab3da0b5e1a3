"""Whether workers of other machines are fit for a task: they see the shared folder, and run the same software."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.storage.atomic import discard
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.scratch import open_unfinished

_SEEN_WITHIN_SECONDS = 3.0
"""How long a file that another machine wrote may take to appear on a network's file system."""
_WRITERS = ("numpy", "pyarrow", "tokenizers", "orjson", "isal")
"""Packages that tokens or files go through."""
_seen: deque[bytes] = deque(maxlen=64)
"""Tokens of the markers that this process saw: where one is gone again, its run has ended."""


@dataclass(frozen=True, slots=True)
class CompatibilityCheck:
    """What a worker must find before it may begin; a task carries it."""

    marker: Path
    """A file in the shared folder, there as long as the run."""
    token: bytes
    """What the marker holds."""
    software: tuple[tuple[str, str], ...]
    """Name → version of what reaches the bytes, as the run's owner has it."""

    def check(self) -> None:
        """Check a worker, from within it.

        Raises:
            MissingError: it does not see the marker; or the run has ended, and the task was called back.
            StaleError: it runs other software.
        """
        found = software()
        if found != self.software:
            raise StaleError(
                "a worker runs other software than the process that hands out its tasks, and might write other bytes",
                where=_worker(),
                found=_format(found, self.software),
                expected=_format(self.software, found),
                remedy="install the same versions on all machines, and start the workers again",
            )
        deadline = time.monotonic() + (0 if self.token in _seen else _SEEN_WITHIN_SECONDS)
        while (seen := _read(self.marker)) != self.token:
            if time.monotonic() > deadline:
                raise MissingError(
                    "a worker does not see the output folder",
                    where=f"{_worker()}: {self.marker.parent}",
                    found=seen.strerror if isinstance(seen, OSError) else "another file of that name",
                    expected=f"{self.marker.name}, which the run that gives it work wrote there",
                    remedy="give all machines one file system, mounted under the same path, for raw text and outputs",
                )
            time.sleep(0.1)
        if self.token not in _seen:
            _seen.append(self.token)


@contextmanager
def compatibility_check(folder: Path) -> Iterator[CompatibilityCheck]:
    """Leave a marker in a folder until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(16).encode()
    file = open_unfinished(folder / "compatibility")
    try:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
        yield CompatibilityCheck(Path(file.name), token, software())
    finally:
        discard(file)


@lru_cache(maxsize=1)
def software() -> tuple[tuple[str, str], ...]:
    """Name → version of what reaches the bytes of outputs; of the core itself, a digest of its source."""
    from importlib.metadata import PackageNotFoundError, version

    found = [("python", ".".join(platform.python_version_tuple()[:2])), ("nanoset_core", _source_digest())]
    for package in _WRITERS:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            found.append((package, "none"))
    return tuple(found)


def _source_digest() -> str:
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _format(these: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in these if (name, version) not in others)


def _read(path: Path) -> bytes | OSError:
    try:
        return read_regular(path)
    except OSError as error:
        return error


def _worker() -> str:
    return f"process {os.getpid()} of {platform.node()}"
