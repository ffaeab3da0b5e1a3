"""A cache, shared by all processes of a user, of what was computed about tokenizers.

An entry belongs to one tokenizer, to the libraries that it was computed with, to this machine's
architecture and to this very code. Any other entry, and any that is damaged, is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import unidata_version

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.storage.atomic import atomic_file, sweep_abandoned
from nanoset_core.untrusted import safe_logger

Arrays: TypeAlias = dict[str, NDArray[Any]]

FOLDER_BYTES = 1 << 30
"""Size of the folder above which the oldest entries are removed."""
_ENDING = ".npz"
_KEY = "key"
_PACKAGES = ("tokenizers", "sentencepiece", "nanoset-platform", "numpy")
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    MemoryError,
    zipfile.BadZipFile,
)

logger = safe_logger(__name__)
_is_read_only = False


def cache_folder() -> Path | None:
    """Return the default folder, `nanoset/tokenizers` in the user's cache folder; None without a
    home.
    """
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "nanoset" / "tokenizers"


@contextlib.contextmanager
def nothing_cached() -> Iterator[None]:
    """Leave the cache as it is until the block ends: entries are read, but neither written nor
    removed.
    """
    global _is_read_only
    before = _is_read_only
    _is_read_only = True
    try:
        yield
    finally:
        _is_read_only = before


class Knowledge:
    """One entry of the cache: named arrays."""

    def __init__(self, kind: str, identity: str, folder: Path | None) -> None:
        """Name the entry by what it holds, and by what it depends on besides code, libraries and
        machine.
        """
        self._key = hashlib.sha256("\n".join([kind, identity, *environment()]).encode()).hexdigest()
        self._path = None if folder is None else folder / f"{self._key[:32]}.{kind}{_ENDING}"

    def load(self) -> Arrays | None:
        """Return what an earlier process saved; None where there is nothing, or it is damaged."""
        if self._path is None:
            return None
        try:
            # each has a CRC
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as members:
                arrays = {name: members[name] for name in members.files}
            if arrays.pop(_KEY).tobytes().decode() != self._key:
                raise ValueError("it belongs to another key")
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            self.drop(error)
            return None
        return arrays

    def save(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays for later processes, unless another process has saved more; failures are
        logged only.
        """
        if self._path is None or _is_read_only:
            return
        size = sum(array.nbytes for array in arrays.values())
        try:
            if not self._path.exists() or self._path.stat().st_size <= size:
                with atomic_file(self._path, sync=False) as file:
                    np.savez(
                        file,
                        allow_pickle=False,
                        **arrays,
                        **{_KEY: np.frombuffer(self._key.encode(), np.uint8)},
                    )
                sweep_abandoned(self._path.parent, self._path.name)
                _remove_oldest(self._path.parent)
        except OSError as error:
            logger.info("%s: cannot be written, later runs will take longer: %s", self._path, error)

    def drop(self, reason: object) -> None:
        """Remove the entry."""
        if self._path is not None and not _is_read_only:
            logger.info("%s: cannot be used, will be made again: %s", self._path, reason)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def to_array(value: object) -> NDArray[np.uint8]:
    """Return a value of JSON's types as an array of bytes."""
    return np.frombuffer(orjson.dumps(value), np.uint8)


def from_array(array: NDArray[np.uint8]) -> Any:
    """Return the value that `to_array` was given; tuples come back as lists."""
    return orjson.loads(array.tobytes())


def installed_version(package: str) -> str:
    """Return the version of an installed package, else `unknown`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@cache
def environment() -> tuple[str, ...]:
    """Return what all entries depend on: the code of this package, the libraries, Unicode's
    version, the machine.
    """
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    return code.hexdigest(), unidata_version, platform.machine(), *map(installed_version, _PACKAGES)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest entries of a folder that is too large."""
    entries = sorted(
        (path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob(f"*{_ENDING}")
    )
    left = sum(size for _, size, _ in entries) - FOLDER_BYTES
    for _, size, path in entries[:-1]:
        if left <= 0:
            return
        path.unlink(missing_ok=True)
        left -= size
