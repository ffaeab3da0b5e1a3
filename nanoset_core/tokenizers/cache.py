"""A cache for what was computed about tokenizers, shared by all processes of a user.

An entry belongs to one tokenizer, to the versions of the libraries that it was computed with, to
this machine's architecture and to the code in `nanoset_core/tokenizers`. If any of these changes,
or if the entry is damaged, it is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from unicodedata import unidata_version

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.storage.atomic import atomic_file, sweep_abandoned
from nanoset_core.storage.paths import user_cache_folder
from nanoset_core.untrusted import safe_logger

Arrays: TypeAlias = dict[str, NDArray[Any]]

FOLDER_BYTES = 1 << 30
"""Size of the folder above which the oldest entries are removed."""
_ENDING = ".npz"
_KEY = "key"
"""Name of the array with an entry's key."""
_PACKAGES = ("tokenizers", "sentencepiece", "nanoset-platform", "numpy")
"""Packages whose version may change what is computed."""
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
"""What numpy raises for a damaged file."""

logger = safe_logger(__name__)
_is_read_only = False


def cache_folder() -> Path | None:
    """Return the default folder of the cache: `nanoset/tokenizers` in the user's cache folder.

    Returns:
        The folder, or None if the user has no home folder.
    """
    folder = user_cache_folder()
    return None if folder is None else folder / "nanoset" / "tokenizers"


@contextlib.contextmanager
def cache_read_only() -> Iterator[None]:
    """Make the cache read-only until the block ends, so that a command leaves no files behind."""
    global _is_read_only
    before = _is_read_only
    _is_read_only = True
    try:
        yield
    finally:
        _is_read_only = before


class CacheEntry:
    """One entry of the cache: named arrays."""

    def __init__(self, kind: str, identity: str, folder: Path | None) -> None:
        """Name an entry of the cache on disk, without reading it.

        An entry is a file with arrays, such as the words that a tokenizer has encoded, for later
        processes. Its name is a digest of all that these depend on.

        Args:
            kind: What the entry contains. It is a part of the file name.
            identity: What the entry depends on in addition to `environment`: a digest of the
                tokenizer, for example.
            folder: The folder of the cache; None to store nothing.
        """
        # Everything that the content depends on is in the name of the file. If any of it changes,
        # there is no file of the new name, and the content is computed again.
        dependencies = "\n".join([kind, identity, *environment()])
        self._key = hashlib.sha256(dependencies.encode()).hexdigest()
        self._path: Path | None = None
        if folder is not None:
            self._path = folder / f"{self._key[:32]}.{kind}{_ENDING}"

    def load(self) -> Arrays | None:
        """Return the arrays that an earlier process saved in the cache on disk.

        Returns:
            The arrays by name; None if there are none, or if the file is damaged. A damaged file is
            deleted, and the caller computes the arrays again.
        """
        if self._path is None:
            return None
        try:
            # numpy stores the arrays in a zip, which has a checksum of each.
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
        """Store arrays in a file of the cache, for later processes.

        If another process has stored more arrays of this entry in the meantime, its file stays:
        entries grow while they are used. A failure to write is only logged, since without the
        cache, later runs just take longer.

        Args:
            arrays: The arrays by name.
        """
        # `_is_read_only` is set while `cache_read_only` is active.
        if self._path is None or _is_read_only:
            return
        try:
            if _is_larger(self._path, arrays):
                return
            self._write(self._path, arrays)
            # Delete unfinished files of killed processes, and the oldest entries of the cache.
            sweep_abandoned(self._path.parent, self._path.name)
            _remove_oldest(self._path.parent)
        except OSError as error:
            logger.info("%s: cannot be written, later runs will take longer: %s", self._path, error)

    def _write(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays to a file, with the key of the entry.

        The key lets `load` notice a file that belongs to another entry. A file that a crash damages
        is noticed, too: no sync is needed.
        """
        key = np.frombuffer(self._key.encode(), np.uint8)
        with atomic_file(path, sync=False) as file:
            np.savez(file, allow_pickle=False, **arrays, **{_KEY: key})

    def drop(self, reason: object) -> None:
        """Remove the entry, so that it is computed again.

        Args:
            reason: Why it cannot be used, for the log. Errors of the file system are ignored, and a
                read-only cache is not changed.
        """
        if self._path is not None and not _is_read_only:
            logger.info("%s: cannot be used, will be computed again: %s", self._path, reason)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def _is_larger(path: Path, arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a file exists and is larger than some arrays would be."""
    n_bytes = sum(array.nbytes for array in arrays.values())
    try:
        return path.stat().st_size > n_bytes
    except FileNotFoundError:
        return False


def to_array(value: object) -> NDArray[np.uint8]:
    """Return a value of JSON's types as an array of bytes, to be stored in an entry.

    Args:
        value: The value, such as `{"size": 50257}`; tuples become lists.

    Returns:
        Its JSON in UTF-8, uint8, shape (n_bytes,).
    """
    return np.frombuffer(orjson.dumps(value), np.uint8)


def from_array(array: NDArray[np.uint8]) -> Any:
    """Return the value that was stored in the cache as an array of bytes.

    The cache has only arrays, so that other values are stored as JSON: {"size": 50257} is the array
    of the bytes of '{"size":50257}'.

    Args:
        array: The bytes, uint8, shape (n_bytes,).

    Returns:
        The value; tuples have become lists.

    Raises:
        ValueError: The bytes are not JSON.
    """
    return orjson.loads(array.tobytes())


def installed_version(package: str) -> str:
    """Return the version of an installed package.

    Args:
        package: Name of the package, such as `numpy`.

    Returns:
        A version such as `2.1.0`, or `unknown` if the package is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@cache
def environment() -> tuple[str, ...]:
    """Return what all entries of the cache depend on, so that a change makes them invalid.

    Returns:
        The sha256 of the code in `nanoset_core/tokenizers`, the version of Unicode, the machine's
        architecture, and the version of each library, such as ("a1b2…", "15.1.0", "x86_64", …).
    """
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(file.read_bytes())
    library_versions = [installed_version(package) for package in _PACKAGES]
    return (code.hexdigest(), unidata_version, platform.machine(), *library_versions)


class _StoredEntry(NamedTuple):
    """A file of the cache; sorts by age, the oldest first."""

    modified_ns: int
    size: int
    path: Path


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest files of the cache until the rest has at most FOLDER_BYTES.

    The newest file stays, even if it is larger than that alone.

    Args:
        folder: The folder of the cache.
    """
    entries = []
    for path in folder.glob(f"*{_ENDING}"):
        # Another process may have removed the file after it was listed.
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            entries.append(_StoredEntry(stat.st_mtime_ns, stat.st_size, path))
    entries.sort()  # by time

    excess = sum(entry.size for entry in entries) - FOLDER_BYTES
    for entry in entries[:-1]:
        if excess <= 0:
            return
        entry.path.unlink(missing_ok=True)
        excess -= entry.size
