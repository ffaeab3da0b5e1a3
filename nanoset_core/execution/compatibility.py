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
from nanoset_core.storage.atomic import discard, open_unfinished

_SEEN_WITHIN_SECONDS = 3.0
"""how long a file that another machine wrote may take to appear on a network's file system"""
_WRITERS = ("numpy", "pyarrow", "tokenizers", "orjson", "isal")
"""packages that tokens or files go through"""
_met: deque[bytes] = deque(maxlen=64)
"""words of the markers that this process saw: where one is gone again, its run has ended"""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What a worker must find before it may begin; a task carries it."""

    marker: Path
    """a file in the shared folder, there as long as the run"""
    word: bytes
    """what the marker holds"""
    software: tuple[tuple[str, str], ...]
    """name → version of what reaches the bytes, as the run's owner has it"""

    def check(self) -> None:
        """On a worker: raise MissingError where the marker is not seen, StaleError where the software is another.

        So does a task that was called back and begins nevertheless, whose marker is gone.
        """
        found = software()
        if found != self.software:
            raise StaleError(
                "a worker has other software than the one who gives it work, and could write other bytes",
                where=_worker(),
                found=_spelled(found, self.software),
                expected=_spelled(self.software, found),
                remedy="install the same versions on all machines, and start the workers again",
            )
        deadline = time.monotonic() + (0 if self.word in _met else _SEEN_WITHIN_SECONDS)
        while (seen := _read(self.marker)) != self.word:
            if time.monotonic() > deadline:
                raise MissingError(
                    "a worker does not see the output folder",
                    where=f"{_worker()}: {self.marker.parent}",
                    found=seen.strerror if isinstance(seen, OSError) else "another file of that name",
                    expected=f"{self.marker.name}, which the run that gives it work wrote there",
                    remedy="give all machines one file system, mounted under the same path, for raw text and outputs",
                )
            time.sleep(0.1)
        if self.word not in _met:
            _met.append(self.word)


@contextmanager
def meeting_in(folder: Path) -> Iterator[Meeting]:
    """Leave a marker in a folder until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    word = secrets.token_hex(16).encode()
    file = open_unfinished(folder / "meeting")
    try:
        file.write(word)
        file.flush()
        os.fsync(file.fileno())
        yield Meeting(Path(file.name), word, software())
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


def _spelled(these: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in these if (name, version) not in others)


def _read(path: Path) -> bytes | OSError:
    try:
        return path.read_bytes()
    except OSError as error:
        return error


def _worker() -> str:
    return f"process {os.getpid()} of {platform.node()}"
