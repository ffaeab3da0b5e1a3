"""Open the Dagster instance of a project, and explain errors of its database.

An instance stores the history of runs, by default in SQLite files in DAGSTER_HOME. An error such as
`sqlite3.OperationalError: database is locked` becomes a HistoryError that names the process which
holds the lock, and says how to end it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import yaml

from nanoset_core.errors import ConfigError, NanosetError, StorageError
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.in_use.owners import Owner, lock_owner, wait_for_lock
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.paths import expanded

if TYPE_CHECKING:
    import dagster as dg

HOME_VARIABLE = "DAGSTER_HOME"
"""Environment variable with the path of the folder of the history."""
_NO_TELEMETRY_VARIABLE = "DAGSTER_DISABLE_TELEMETRY"
"""Environment variable that keeps Dagster from sending statistics of its use, whatever its value.
"""
SETTINGS = "dagster.yaml"
"""File of Dagster's settings in this folder."""
LOCK = ".lock"
"""File in this folder that is locked while an instance is opened.

If two processes create Dagster's tables at the same time, the database is damaged.
"""
_DATABASE_FILES = ("history/*.db*", "history/runs/index.db*", "schedules/*.db*")
"""Files of SQLite in this folder that all processes write: databases, and those next to them."""
_STORAGE_KEYS = ("storage", "run_storage", "event_log_storage", "schedule_storage")
"""Keys of dagster.yaml that store the history elsewhere, such as in Postgres."""
_WILDCARD = re.compile(r"[*?\[]")
"""A character of a path with which Dagster does not find its settings.

It passes the path of dagster.yaml to `glob`. So in a folder `run[1]`, the file is not read, and in
`run*`, that of `run2` is read as well.
"""
_URL_SYNTAX = re.compile(r"\?|%[0-9A-Fa-f]{2}")
"""A text in a path with which Dagster opens other SQLite files than those in its folder.

It puts the path into a URL as it is. SQLAlchemy ends the path at `?`, and reads `%20` as a space.
"""
_MIN_FREE_BYTES = 64 << 10
"""A disk with less free space counts as full."""
_MAX_PAGE_BYTES = 64 << 10
"""SQLite appends at most this many bytes to a file at once: its largest page."""


class HistoryError(StorageError):
    """Dagster's history cannot be read or written."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error of SQLite, and what it means for the user."""

    message: str
    """Part of SQLite's message, by which the error is recognised."""
    meaning: str
    """What is wrong, for the user."""
    remedy: str
    """What the user can do about it."""


_DISK_FULL = _Fault(
    "database or disk is full",
    "the disk is full, or the quota used up",
    "make room there and run again: what is finished is kept",
)
_DISK_ERROR = _Fault(
    "disk I/O error",
    "the disk takes no more, or fails",
    "make room there, or see what the system log says",
)
_READ_ONLY_DISK = _Fault(
    "unable to open database",
    "the disk of the history is read-only",
    "mount it for writing, or set `history` in nanoset.yaml or DAGSTER_HOME to another folder, and "
    "run again",
)
_FILE_LIMIT = _Fault(
    "disk I/O error",
    "a file of the history may not grow further",
    "raise `ulimit -f` and run again: what is finished is kept",
)
_LOCKED = _Fault(
    "database is locked",
    "another process keeps the history locked",
    "end that process, or wait, and run again",
)
_READ_ONLY = _Fault(
    "readonly database",
    "the history may not be written",
    "give this user the right to write there, or set `history` in nanoset.yaml or DAGSTER_HOME to "
    "another folder, and run again",
)
_CANNOT_OPEN = _Fault(
    "unable to open database",
    "the history cannot be opened",
    "give this user the right to write there, make room, or set `history` in nanoset.yaml or "
    "DAGSTER_HOME to another folder",
)
_DAMAGE_REMEDY = (
    "move the folder away and run again: a new history is begun, and what is finished is kept"
)
"""What the user can do about a damaged history. It takes no outputs with it."""
_FAULTS = (
    _DISK_FULL,
    _READ_ONLY,
    _CANNOT_OPEN,
    _DISK_ERROR,
    _LOCKED,
    _Fault("malformed", "the history is damaged", _DAMAGE_REMEDY),
    _Fault("not a database", "the history is damaged", _DAMAGE_REMEDY),
    _Fault("more than one head", "the history is damaged", _DAMAGE_REMEDY),
)
"""The errors that are recognised; the first one whose message occurs counts."""
_UNKNOWN_FAULT = _Fault(
    "", "the history cannot be used", "see what the database says, and run again"
)
"""Stands for errors of the database that are not recognised."""


def dagster_home(config: ProjectConfig) -> Path:
    """Return the folder in which Dagster records the history of all runs; create it if needed.

    The environment variable DAGSTER_HOME overrides the setting `history`, as Dagster users expect.
    A new folder gets a file dagster.yaml, with the settings that Dagster itself needs.

    Args:
        config: The settings of the project.

    Returns:
        Absolute path of the folder.

    Raises:
        ConfigError: Dagster cannot use a folder with this path.
        StorageError: The folder or its dagster.yaml cannot be created.
    """
    location = os.environ.get(HOME_VARIABLE) or config.history_folder
    home = expanded(location, HOME_VARIABLE).resolve()
    _check_path(home)
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
        if not (home / SETTINGS).exists():
            template = resources.files("nanoset_assets") / SETTINGS
            write_atomic(home / SETTINGS, template.read_bytes())
    return home


def check_home_variable() -> None:
    """Check that Dagster can use the folder that the variable DAGSTER_HOME names, if it is set.

    A Dagster that loads a project has chosen its folder already, and does not notice that it reads
    other settings, or writes another database.

    Raises:
        ConfigError: Dagster cannot use a folder with this path.
    """
    location = os.environ.get(HOME_VARIABLE)
    if location:
        _check_path(expanded(location, HOME_VARIABLE))


def _check_path(home: Path) -> None:
    """Check that Dagster uses the files in this folder, and no others, because of its path.

    Args:
        home: The folder of the history. It need not exist.

    Raises:
        ConfigError: The path has characters that Dagster, or SQLite, reads as something else.
    """
    path = str(home)
    misread = _WILDCARD.findall(path)
    if _is_in_own_files(home):
        misread += _URL_SYNTAX.findall(path)
    if not misread:
        return

    # Each of them once, in the order in which they were found.
    characters = ", ".join(f"`{text}`" for text in dict.fromkeys(misread))
    raise ConfigError(
        "Dagster misreads the path of this folder, so its history cannot be stored there",
        where=home,
        found=characters,
        expected="a path without `*`, `?` and `[`, and without % before two hexadecimal digits",
        remedy=f"set `history` in nanoset.yaml, or {HOME_VARIABLE}, to a folder with another path, "
        "or rename the folder; the outputs can stay where they are",
    )


def open_instance(config: ProjectConfig) -> dg.DagsterInstance:
    """Open Dagster's history of runs, and create it if this is the first run.

    The history is a database, usually in SQLite files in a folder. DAGSTER_HOME, by which Dagster
    finds this folder, is set for this process and its children. Dagster sends no statistics from
    these processes, even if the dagster.yaml of a user does not forbid it.

    Args:
        config: The settings of the project, which say where the folder is.

    Returns:
        Dagster's instance, the object through which everything in the history is read and written.

    Raises:
        HistoryError: The database cannot be read or written.
        ConfigError: The file dagster.yaml in the folder has a mistake.
    """
    setting = HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else f"`history` in {config.file}"
    home = dagster_home(config)
    os.environ[HOME_VARIABLE] = str(home)
    os.environ.setdefault(_NO_TELEMETRY_VARIABLE, "1")

    # Opening an instance may create tables, so only one process may do it at a time.
    with _locked_if_possible(home) as lock_error:
        try:
            return _open_instance_in(home)
        except HistoryError as error:
            if lock_error is None:
                raise
            # The history is in SQLite, which needs file locks, but its own error does not say so.
            raise _no_file_locks(home, lock_error, setting) from error


def _open_instance_in(home: Path) -> dg.DagsterInstance:
    """Open Dagster's history of runs in a folder, to which DAGSTER_HOME is set.

    Errors of the database and of Dagster are replaced by errors that say what the user can do.

    Args:
        home: The folder, which has a dagster.yaml.

    Raises:
        HistoryError: The database cannot be read or written.
        ConfigError: The dagster.yaml has a mistake.
    """
    import dagster as dg  # takes a second, and is not needed to find the folder of the history

    _check_databases_are_writable(home)
    try:
        with history_faults(home):
            instance = dg.DagsterInstance.get()
            _complete_event_log(instance)
            return instance
    except HistoryError:
        raise
    except dg.DagsterError as error:
        raise ConfigError(
            "Dagster cannot use these settings",
            where=home / SETTINGS,
            found=error,
            remedy="correct the file",
        ) from error


def _check_databases_are_writable(home: Path) -> None:
    """Check that this user may write the files of the history, if it is in SQLite files.

    SQLite creates further files next to a database when it opens it, even if it may not write the
    database. These would belong to this user, and keep the owner of the history from writing it.

    Args:
        home: The folder of the history.

    Raises:
        HistoryError: A file belongs to another user, and this one may not write it.
    """
    if not _is_in_own_files(home):
        return
    for pattern in _DATABASE_FILES:
        for file in sorted(home.glob(pattern)):
            try:
                owner_id = file.stat().st_uid
            except FileNotFoundError:
                continue  # a journal, which SQLite deletes at the end of each transaction
            if owner_id != os.geteuid() and not os.access(file, os.W_OK):
                raise HistoryError(
                    "the history of another user may not be written",
                    where=file,
                    found=f"a file of the user with the id {owner_id}",
                    expected="a history of this user",
                    remedy="set `history` in nanoset.yaml, or DAGSTER_HOME, to a folder of your "
                    "own, or store the history in Postgres; the outputs can be shared",
                )


def _is_in_own_files(home: Path) -> bool:
    """Return whether Dagster's history is in SQLite files in its folder, which is the default.

    If not, such files may be left from the time before dagster.yaml was changed.

    Args:
        home: The folder of the history, which has a dagster.yaml.
    """
    try:
        settings = yaml.safe_load((home / SETTINGS).read_bytes())
    except (OSError, yaml.YAMLError):
        return True  # Dagster will say what is wrong with the file
    if not isinstance(settings, dict):
        return True  # an empty file
    return not any(key in settings for key in _STORAGE_KEYS)


def _complete_event_log(instance: dg.DagsterInstance) -> None:
    """Create tables of Dagster's history that are missing because a process was killed.

    Dagster creates an SQLite file, and then the tables in it. If it is killed in between, later
    processes find the file, suppose that it has all tables, and fail. `alembic_version` is the
    table that is created last. So if it exists, the others do as well.

    Args:
        instance: Dagster's instance. If its history is not in SQLite files, nothing is done.
    """
    from dagster._core.storage.event_log import SqliteEventLogStorage

    event_log = instance.event_log_storage
    if not isinstance(event_log, SqliteEventLogStorage):
        return
    if not event_log.has_table("alembic_version"):
        # `upgrade` creates all missing tables. It prints its progress, which nobody needs to see.
        with contextlib.redirect_stdout(io.StringIO()):
            instance.upgrade()


def _no_file_locks(home: Path, reason: str, setting: str) -> HistoryError:
    """Return the error for a history of runs on a file system without file locks.

    The history is an SQLite database, which needs locks, so that two processes do not write at
    once. Some network file systems of clusters have none.

    Args:
        home: The folder of the history.
        reason: What the system said when a file was to be locked.
        setting: By which setting or variable the user can choose another folder.
    """
    return HistoryError(
        "this file system has no file locks, which the history (SQLite) needs",
        where=home,
        found=reason,
        expected="a folder on a disk of this machine",
        remedy=f"set {setting} to such a folder, or store the history in Postgres; "
        "the outputs can stay where they are",
    )


@contextlib.contextmanager
def _locked_if_possible(home: Path) -> Iterator[str | None]:
    """Let only one process at a time execute a block, if the file system has locks.

    Otherwise the block is executed without a lock. It opens the history of runs, which may be in a
    database on another machine, and then needs no locks here.

    Args:
        home: The folder of the history, in which the file `.lock` is created.

    Yields:
        Why the file cannot be locked, such as "No locks available (errno 37)"; None if it is.
    """
    lock_path = home / LOCK
    try:
        file = lock_path.open("ab")
    except OSError:
        # The folder cannot be written, say. This says nothing about locks. If the history is in
        # this folder, it cannot be opened either, and will report the reason.
        yield None
        return

    with file:  # closing the file ends the lock
        yield _lock(file, lock_path)


def _lock(file: BinaryIO, path: Path) -> str | None:
    """Lock a file, once no other process has locked it.

    Args:
        file: The file, which is open.
        path: Its path, for messages.

    Returns:
        None if it is locked now; otherwise why its file system cannot lock it, such as "No locks
        available (errno 37)".
    """

    def try_to_lock() -> None:
        """Lock the file, or raise an error if another process has locked it."""
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # SQLite uses locks of this kind, too

    try:
        # Call `try_to_lock` again and again, until no other process has a lock on the file.
        wait_for_lock(file.fileno(), try_to_lock, path)
    except OSError as error:
        return f"{error.strerror} (errno {error.errno})"
    return None


@contextlib.contextmanager
def history_faults(home: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of the history's database, raised in a block, into errors that help the user.

    For example, "sqlite3.OperationalError: database is locked" becomes an error that names the
    process which has locked it, and says how to end it.

    Args:
        home: The folder of the history of runs.

    Raises:
        HistoryError: The database cannot be read or written.
    """
    try:
        yield
    except NanosetError:
        raise
    except Exception as error:
        database_error = _database_error(error)
        if database_error is None:
            raise
        raise _history_error(database_error, home) from error


def _history_error(error: BaseException, home: str | os.PathLike[str]) -> HistoryError:
    """Return an error that says what an error of the history's database means, and what to do.

    For example, for "database is locked":

        message    another process keeps the history locked
        found      database is locked: process 123 (dagster-daemon)
        remedy     wait and run again, or end that process: `kill 123` ends it

    Args:
        error: The error of the database.
        home: The folder of the history of runs.
    """
    fault = _fault_of(error, home)  # its meaning and remedy
    # SQLAlchemy wraps the original error, and adds the query to the message.
    database_message = str(getattr(error, "orig", None) or error).strip()
    if fault is _LOCKED:
        owner = _lock_owner(home)  # a process that keeps the database locked
        if owner is not None:
            return HistoryError(
                fault.meaning,
                where=home,
                found=f"{database_message}: {owner}",
                # `owner.remedy()` is a clause such as "`kill 123` ends it".
                remedy=f"wait and run again, or end that process: {owner.remedy()}",
            )
    return HistoryError(fault.meaning, where=home, found=database_message, remedy=fault.remedy)


def _fault_of(error: BaseException, home: str | os.PathLike[str]) -> _Fault:
    """Find out what an error of the history's database means, by the words in its message.

    For example, "attempt to write a readonly database" contains "readonly database": the user has
    no right to write the files.

    Args:
        error: The error of SQLite.
        home: The folder of the history. If SQLite reports an I/O error, it is examined whether the
            disk is full, or a file too large, which SQLite reports in this way, too.

    Returns:
        The meaning and the remedy, in words.
    """
    message = str(error)
    for fault in _FAULTS:
        if fault.message in message:
            # With memory-mapped files, SQLite reports a full disk as an I/O error.
            if fault is _DISK_ERROR and _is_full(home):
                return _DISK_FULL
            if fault is _DISK_ERROR and _is_file_at_limit(home):
                return _FILE_LIMIT
            if fault in (_READ_ONLY, _CANNOT_OPEN) and _is_on_read_only_disk(home):
                return _READ_ONLY_DISK
            return fault
    return _UNKNOWN_FAULT


def _lock_owner(home: str | os.PathLike[str]) -> Owner | None:
    """Find the process that keeps the history of runs locked, so that the user can end it.

    Args:
        home: The folder of the history, with its database files and SQLite's files next to them.

    Returns:
        The process; None if no process of this machine has locked a file.
    """
    for file in sorted(Path(home).rglob("*.db*")):
        with contextlib.suppress(OSError):
            owner = lock_owner(file.stat())
            if owner is not None:
                return owner
    return None


def _is_full(folder: str | os.PathLike[str]) -> bool:
    """Return whether the disk of a folder is full; False if that cannot be found out."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    return False


def _is_on_read_only_disk(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder is on a read-only disk; False if that cannot be found out."""
    with contextlib.suppress(OSError):
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    return False


def _is_file_at_limit(home: str | os.PathLike[str]) -> bool:
    """Return whether a file of the history has the size that this process may write (`ulimit -f`).

    Args:
        home: The folder of the history, with its database files and SQLite's files next to them.
    """
    max_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if max_bytes == resource.RLIM_INFINITY:
        return False
    for file in Path(home).rglob("*.db*"):
        with contextlib.suppress(OSError):
            # SQLite writes pages, so the last bytes before the limit may be unused.
            if file.stat().st_size > max_bytes - _MAX_PAGE_BYTES:
                return True
    return False


def _database_error(error: BaseException | None) -> BaseException | None:
    """Return the error of the database that has caused another error; None if there is none.

    Python links an error to the one during whose handling it was raised:

        DagsterError                      raised because of the next one
        sqlalchemy.OperationalError       raised because of the next one
        sqlite3.OperationalError          "database is locked"

    Here, the result is the second one: the first in the chain that comes from the database.

    Args:
        error: The error with which some code of Dagster has failed.
    """
    from alembic.util import CommandError
    from sqlalchemy.exc import SQLAlchemyError

    seen_ids: set[int] = set()  # of the errors of the chain, which may be a circle
    while error is not None and id(error) not in seen_ids:
        if isinstance(error, SQLAlchemyError | CommandError | sqlite3.Error):
            return error
        seen_ids.add(id(error))
        error = error.__cause__ or error.__context__
    return None
