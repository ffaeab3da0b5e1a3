"""Check that a worker on another machine would write the same bytes, to the same place.

A *run* is the time in which a process, its *owner*, hands out tasks to workers. During it, the
owner keeps a folder in the store of the outputs. The folder contains a marker, which a worker must
be able to read there, and copies of files that workers may lack, such as the tokenizer:

    .workers/<mark of the run>/marker
    .workers/<mark of the run>/0-tokenizer.json
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from nanoset_core.errors import MissingError, StaleError, StorageError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.in_use.heartbeats import is_live, kept_fresh
from nanoset_core.storage.in_use.process_marks import new_mark
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore

FOLDER = ".workers"
"""Folder below the root for the folders of all runs."""
_MARKER = "marker"
"""File in the folder of a run, with random content that workers must be able to read."""
_APPEARS_WITHIN_SECONDS = 3.0
"""How long a file of another machine may take to appear on a network file system."""
_RETRY_SECONDS = 0.1
"""Time between two attempts to read such a file."""
_CORE = "nanoset_core"
"""This package, whose version is a digest of its source files."""
_PACKAGES = ("numpy", "pyarrow", "tokenizers", "orjson", "isal")
"""Packages whose version may change the bytes of outputs."""


class SoftwareVersion(NamedTuple):
    """An installed package, Python, or the core itself."""

    name: str
    version: str


Software: TypeAlias = tuple[SoftwareVersion, ...]
"""Everything on one machine that may change the bytes of outputs."""


@dataclass(frozen=True, slots=True)
class _CarriedFile:
    """A file that the run's owner has copied to the store for the workers."""

    path: Path
    """Its path on the owner's machine."""
    name: str
    """Its name in the store."""
    sha256: str
    """Its checksum as hex."""


def _digest_of_files(files: Iterable[_CarriedFile]) -> str:
    """Return a hash of the contents of some files.

    Args:
        files: The files, in order.
    """
    checksums = "".join(file.sha256 for file in files)
    return hashlib.sha256(checksums.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CompatibilityCheck:
    """What a worker on another machine checks before it works on a task; every task has it along.

    Two things could silently damage the outputs: a worker with another version of some package,
    which writes other bytes, and a worker that writes to another disk of the same name. So the
    check has

        software    such as numpy 2.1 and tokenizers 0.21: the worker must have the same
        token       a random text, which was written to a file of the store: it must read the same
    """

    store: Store
    """Where the outputs are stored."""
    run_folder: str
    """The run's folder in the store, which exists as long as the run."""
    token: bytes
    """Content of the marker in this folder."""
    software: Software
    """Versions on the machine of the run's owner."""
    files: tuple[_CarriedFile, ...] = ()
    """Files that workers may lack."""

    def check(self) -> None:
        """Check that this machine, a worker, may do the tasks of another machine.

        It is called before each task. Two things are sent along with the task and compared here:

            software    such as numpy 2.1: another version of a package may write other bytes
            token       a random text: the worker must find the same text in a certain file

        The machine that hands out tasks wrote this file, the marker, into the store, which is the
        folder or bucket for results. A worker that cannot read it has another disk or bucket of the
        same name, and nobody would find its results.

        Raises:
            StaleError: The software differs.
            MissingError: The marker is missing or has another content. Perhaps all tasks have
                ended, and it was removed.
        """
        self._check_software()
        self._check_store()

    def _check_software(self) -> None:
        """Check that this machine has the same versions of everything that may change the outputs.

        Raises:
            StaleError: Some version differs.
        """
        installed = software()
        if installed == self.software:
            return
        raise StaleError(
            "a worker runs other software than the process that hands out its tasks, "
            "and might write other bytes",
            found=_format_differences(installed, self.software),
            expected=_format_differences(self.software, installed),
            remedy=_same_software_remedy(installed, self.software),
        )

    def _check_store(self) -> None:
        """Check that this machine sees the same store of outputs, by reading the run's marker.

        Network file systems take a moment to show a file that another machine has written, so this
        tries again for 3 seconds (_APPEARS_WITHIN_SECONDS).

        Raises:
            MissingError: There is no marker, or it has another content than that of the run.
        """
        deadline = time.monotonic() + _APPEARS_WITHIN_SECONDS
        while True:
            marker = self.store.read(f"{self.run_folder}/{_MARKER}")
            if marker == self.token:
                return
            if time.monotonic() > deadline:
                raise self._missing_marker_error(marker)
            time.sleep(_RETRY_SECONDS)

    def download(self, folder: Path) -> dict[Path, Path]:
        """Copy files that tasks need, such as a tokenizer, to a folder of this machine.

        This machine may not see the original files. The machine that hands out tasks has put them
        into the store, the folder or bucket for results. What an earlier task has copied is not
        copied again.

        Args:
            folder: The folder on this machine.

        Returns:
            Path of each file on the machine that hands out the tasks → path of the copy.

        Raises:
            MissingError: The files are no longer in the store, since all tasks have ended.
            StorageError: A file in the store is damaged.
        """
        copies = {}
        for file in self.files:
            copy = folder / self._name_of_copy(file)
            if not copy.is_file():
                self._download_file(file, copy)
            copies[file.path] = copy
        return copies

    def _name_of_copy(self, file: _CarriedFile) -> Path:
        """Return the path of a file's copy below the folder of all copies.

        Files of one folder, such as those of a tokenizer, are read together, so their copies are in
        one folder, too. It is named by a hash of their contents, so that other versions of these
        files get another folder.

        Args:
            file: The file, such as /shared/tok/vocab.json.

        Returns:
            Such as 4f1c…/vocab.json.
        """
        neighbours = [other for other in self.files if other.path.parent == file.path.parent]
        return Path(_digest_of_files(neighbours), file.path.name)

    def _download_file(self, file: _CarriedFile, copy: Path) -> None:
        """Copy a file from the store of the outputs to this machine.

        Args:
            file: The file.
            copy: The path on this machine.

        Raises:
            MissingError: It is no longer in the store. All tasks have ended, so all of their files
                were deleted, also the marker.
            StorageError: The file in the store is damaged.
        """
        was_downloaded = self.store.fetch(file.name, copy, sha256=file.sha256)
        if not was_downloaded:
            raise self._missing_marker_error(marker=None)

    def _missing_marker_error(self, marker: bytes | None) -> MissingError:
        """Return the error for a worker that does not see the store for the results.

        The store is a folder or a bucket. The machine that hands out tasks first writes a file into
        it, the marker, with a random text. A worker that cannot read this text would write its
        results to another place. The message says how to give all machines the same store.

        Args:
            marker: What the worker has read; None if there is no such file.
        """
        # Outputs are on a disk, which all machines must mount, or in a bucket.
        if isinstance(self.store, LocalStore):
            message = "a worker does not see the output folder"
            remedy = (
                "give all machines one file system, mounted under the same path, "
                "or let raw and root be in a bucket"
            )
        else:
            message = "a worker reaches another store"
            remedy = (
                "give all machines the same endpoint and credentials: see storage.endpoint_url and "
                "AWS_ENDPOINT_URL, or the variables of the cloud"
            )
        found = "no such file" if marker is None else "another file of that name"
        name = f"{self.run_folder}/{_MARKER}"
        return MissingError(
            message,
            where=self.store.url(),
            found=found,
            expected=f"{name}, which the process that hands out tasks wrote there",
            remedy=remedy,
        )


@contextlib.contextmanager
def compatibility_check(
    access: FileAccess, files: Sequence[Path] = ()
) -> Iterator[CompatibilityCheck]:
    """Yield a check by which workers on other machines find out whether they may work for this one.

    A worker may work if it has the same software, and sees the same store of outputs. To show the
    latter, it has to read a random token, which is in a file of the store during the block.

    Args:
        access: Access to the outputs.
        files: Files that workers may lack, such as the tokenizer. They are copied to the store.

    Yields:
        The check, which is sent to a worker with each task.
    """
    store = access.store
    run_folder = f"{FOLDER}/{new_mark()}"
    token = secrets.token_hex(16).encode()
    try:
        carried_files = _carry(store, files, run_folder)
        # The file is written again and again, as a sign that this process is alive.
        with kept_fresh(store, f"{run_folder}/{_MARKER}", lambda: token):
            yield CompatibilityCheck(store, run_folder, token, software(), carried_files)
    finally:
        _remove_run_if_possible(access, run_folder)


def _carry(store: Store, paths: Sequence[Path], run_folder: str) -> tuple[_CarriedFile, ...]:
    """Copy files of this machine to the store of the outputs, where workers on other machines read
    them.

    Args:
        store: The store.
        paths: Paths of the files, such as that of a tokenizer.
        run_folder: Folder in the store for the copies, such as ".workers/4c2e90". A number
            distinguishes files of the same name: ".workers/4c2e90/0-tokenizer.json".
    """
    carried_files = []
    for number, path in enumerate(paths):
        file = _CarriedFile(path, f"{run_folder}/{number}-{path.name}", sha256_file(path))
        store.put_file(file.name, file.path, sha256=file.sha256, is_new=True)
        carried_files.append(file)
    return tuple(carried_files)


def _remove_run_if_possible(access: FileAccess, run_folder: str) -> None:
    """Remove the files of a run at its end; if the store fails, a later run removes them.

    An error would hide the one that may have ended the run, which counts more.

    Args:
        access: Access to the outputs.
        run_folder: The folder of these files, such as `.workers/4c2e90`.
    """
    with contextlib.suppress(StorageError):
        _remove_run(access, run_folder)


def _remove_run(access: FileAccess, run_folder: str) -> None:
    """Remove the files that a run has put into the store of the outputs for its workers.

    Args:
        access: Access to the outputs.
        run_folder: The folder of these files, such as `.workers/4c2e90`.
    """
    for file in list(access.store.list(run_folder)):
        access.store.delete(file.name)
    _remove_empty_folders(access.folder, run_folder)


def _remove_empty_folders(root: Path, run_folder: str) -> None:
    """Remove the folder of a run, and the folder of all runs, if they are on a disk and empty.

    Two errors are expected here. There are no such folders if the outputs are in a bucket. And the
    folder of all runs is not empty if other runs have folders in it.

    Args:
        root: The folder of the outputs.
        run_folder: The folder of the run, relative to it.
    """
    with contextlib.suppress(OSError):
        (root / run_folder).rmdir()
        (root / FOLDER).rmdir()


def sweep_runs(access: FileAccess) -> None:
    """Delete the files that earlier runs of tasks have left in the store, since they were killed.

    A run removes its files at its end. If its process was killed, they are still there.

    Args:
        access: Access to the store of the outputs.
    """
    written_ns_by_run = _newest_file_by_run(access.store)
    if not written_ns_by_run:
        return
    now_ns = access.store.now()
    for run_folder, written_ns in written_ns_by_run.items():
        mark = run_folder.rpartition("/")[2]  # names the process of the owner
        if not is_live(mark, written_ns, now_ns):
            _remove_run(access, run_folder)


def _newest_file_by_run(store: Store) -> dict[str, int]:
    """Return when each run of tasks was last alive: folder of the run → time in nanoseconds.

    The process that hands out the tasks writes a file in this folder again and again. So the time
    of the newest file shows when the process still ran: {".workers/4c2e90": 1764423000000000000}.

    Args:
        store: The store of the outputs, which has a folder for each run.
    """
    written_ns_by_run: dict[str, int] = {}
    for file in store.list(FOLDER):
        run_folder = file.name.rpartition("/")[0]
        newest_ns = written_ns_by_run.get(run_folder, 0)
        written_ns_by_run[run_folder] = max(newest_ns, file.written_ns)
    return written_ns_by_run


@lru_cache(maxsize=1)
def software() -> Software:
    """Return the versions of everything on this machine that may change the bytes of outputs.

    For example: python 3.12, nanoset_core 3f0a9c71…, numpy 2.1.3, …. This package itself is named
    by a digest of its source files, so that a changed line counts as another version.
    """
    from importlib.metadata import PackageNotFoundError, version

    python_version = ".".join(platform.python_version_tuple()[:2])
    installed = [
        SoftwareVersion("python", python_version),
        SoftwareVersion(_CORE, _source_digest()),
    ]
    for package in _PACKAGES:
        try:
            installed.append(SoftwareVersion(package, version(package)))
        except PackageNotFoundError:
            installed.append(SoftwareVersion(package, "none"))
    return tuple(installed)


def _source_digest() -> str:
    """Return a digest of this package's source files: 16 hexadecimal digits.

    It covers the name, size and content of each file, so that two machines have the same digest
    exactly if they run the same code.
    """
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _format_differences(these: Software, others: Software) -> str:
    """Return what one machine has and another does not, as text: "numpy 2.1.3, orjson 3.10".

    Args:
        these: The versions on the first machine.
        others: The versions on the second machine.
    """
    differences: list[str] = []
    for item in these:
        if item in others:
            continue
        # No command prints this digest, so say what it is.
        name = f"{item.name} with source files" if item.name == _CORE else item.name
        differences.append(f"{name} {item.version}")
    return ", ".join(differences)


def _same_software_remedy(these: Software, others: Software) -> str:
    """Return how a user makes two machines have the same software.

    Args:
        these: The versions on the first machine.
        others: The versions on the second machine.
    """
    remedy = "install the same versions on all machines, and start the workers again"
    is_same_core = dict(these).get(_CORE) == dict(others).get(_CORE)
    if is_same_core:
        return remedy
    return (
        f"{remedy}; if all have one version of nanoset-platform already, its source files were "
        "edited on a machine, or are of another commit"
    )
