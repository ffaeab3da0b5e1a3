"""Check that workers of other machines reach the outputs and run the same software.

While a run has tasks for workers, it keeps a folder in the store of its outputs. The folder holds a marker, which a
worker has to read there, and files that workers may lack, such as the tokenizer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nanoset_core.errors import MissingError, StaleError, StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.leases import RENEWED_SECONDS, is_live, new_mark
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import Store

FOLDER = ".workers"
"""Below the root; holds the folders of all runs."""
KEEP_SECONDS = RENEWED_SECONDS
"""After which a run renews its folder."""
_MARKER = "marker"
_SEEN_WITHIN_SECONDS = 3.0
"""How long a file that another machine wrote may take to appear on a network's file system."""
_WRITERS = ("numpy", "pyarrow", "tokenizers", "orjson", "isal")
"""Packages that tokens or files go through."""
_seen: deque[bytes] = deque(maxlen=64)
"""Tokens of the markers that this process saw: where such a marker is gone, its run has ended."""


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """A file that a run has in the store for its workers."""

    path: Path
    """Where the run's owner has it."""
    name: str
    """In the store."""
    sha256: str
    """Hex, of its bytes."""


@dataclass(frozen=True, slots=True)
class CompatibilityCheck:
    """What a worker must find before it may begin; a task carries it."""

    store: Store
    """Where the outputs live."""
    place: str
    """The run's folder there, as long as the run."""
    token: bytes
    """What the marker in it holds."""
    software: tuple[tuple[str, str], ...]
    """Name → version of what reaches the bytes, as the run's owner has it."""
    files: tuple[CarriedFile, ...] = ()
    """What else is there."""

    def check(self) -> None:
        """Check a worker, from within it.

        Raises:
            MissingError: it does not see the marker; or the run has ended, and the task was called back.
            StaleError: it runs other software.
            StorageError: it cannot reach the bucket of the outputs, or is refused there.
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
        while (found_token := self.store.read(self._marker)) != self.token:
            if time.monotonic() > deadline:
                raise self._unseen(found_token)
            time.sleep(0.1)
        if self.token not in _seen:
            _seen.append(self.token)

    def download(self, folder: Path) -> dict[Path, Path]:
        """Copy the run's files into a folder of this process, those that are not there yet.

        Returns:
            Path of each on the machine of the run → the copy.

        Raises:
            MissingError: the run has ended.
            StorageError: the store cannot be reached, or the bytes are not those of the run.
        """
        copies = {file.path: folder / file.sha256 / file.path.name for file in self.files}
        for file in self.files:
            copy = copies[file.path]
            if not copy.is_file() and not self.store.fetch(file.name, copy, sha256=file.sha256):
                raise self._unseen(None)
        return copies

    def renew(self) -> None:
        """Show that the run goes on, so that its folder is not swept."""
        self.store.put(self._marker, self.token)

    @property
    def _marker(self) -> str:
        return f"{self.place}/{_MARKER}"

    def _unseen(self, seen: bytes | None) -> MissingError:
        is_local = isinstance(self.store, LocalStore)
        return MissingError(
            "a worker does not see the output folder" if is_local else "a worker reaches another store",
            where=f"{_worker()}: {self.store.url()}",
            found="no such file" if seen is None else "another file of that name",
            expected=f"{self._marker}, which the run that gives it work wrote there",
            remedy="give all machines one file system, mounted under the same path, or let raw and root be in a bucket"
            if is_local
            else "give all machines the same endpoint and credentials: see storage.endpoint_url and AWS_ENDPOINT_URL",
        )


@contextmanager
def compatibility_check(access: FileAccess, files: Sequence[Path] = ()) -> Iterator[CompatibilityCheck]:
    """Keep a marker, and files that workers may lack, where outputs live until the block ends."""
    store, token = access.store, secrets.token_hex(16).encode()
    place = f"{FOLDER}/{new_mark()}"
    try:
        carried = []
        for number, path in enumerate(files):
            digest = sha256_file(path)
            carried.append(CarriedFile(path, f"{place}/{number}-{path.name}", digest))
            store.put_file(carried[-1].name, path, sha256=digest, is_new=True)
        check = CompatibilityCheck(store, place, token, software(), tuple(carried))
        store.put(f"{place}/{_MARKER}", token)
        yield check
    finally:
        with contextlib.suppress(StorageError):  # it is swept later; the error that ended the run counts
            _remove(access, place)


def _remove(access: FileAccess, place: str) -> None:
    for found in list(access.store.list(place)):
        access.store.delete(found.name)
    with contextlib.suppress(OSError):  # in a bucket there are no folders, and other runs may have theirs
        (access.folder / place).rmdir()
        (access.folder / FOLDER).rmdir()


def sweep_runs(access: FileAccess) -> None:
    """Remove the folders of runs that were killed."""
    newest: dict[str, int] = {}
    for found in access.store.list(FOLDER):
        place = found.name.rpartition("/")[0]
        newest[place] = max(newest.get(place, 0), found.written_ns)
    now_ns = access.store.now() if newest else 0
    for place, written_ns in newest.items():
        if not is_live(place.rpartition("/")[2], written_ns, now_ns):
            _remove(access, place)


@lru_cache(maxsize=1)
def software() -> tuple[tuple[str, str], ...]:
    """Return name → version of what reaches the bytes of outputs; of the core itself, a digest of its source."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": ".".join(platform.python_version_tuple()[:2]), "nanoset_core": _source_digest()}
    for package in _WRITERS:
        found[package] = "none"
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return tuple(found.items())


def _source_digest() -> str:
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _format(these: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {version}" for name, version in these if (name, version) not in others)


def _worker() -> str:
    return f"process {os.getpid()} of {platform.node()}"
