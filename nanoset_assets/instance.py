"""The Dagster instance of a project: where its storage lies, how it is opened, and what can be wrong with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import dagster as dg

from nanoset_core.errors import ConfigError, NanosetError, StorageError
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.owners import Owner, lock_owner, wait_for_lock
from nanoset_core.storage.paths import expanded

HOME_VARIABLE = "DAGSTER_HOME"
SETTINGS = "dagster.yaml"
LOCK = ".lock"
"""Locked while an instance is opened: two processes that make Dagster's tables at once leave them broken."""
_LEAST_BYTES = 64 << 10
_ROOM = "make room there and run again: what is finished is kept"
_ASIDE = "move the folder away and run again: a new history is begun, and what is finished is kept"
_FULL, _IO_FAULT = "database or disk is full", "disk I/O error"
_LOCKED = "database is locked"
_FAULTS = {
    _FULL: ("the disk is full, or the quota used up", _ROOM),
    "readonly database": ("the history may not be written", "give this user the right to write there, and run again"),
    "unable to open database": (
        "the history cannot be opened",
        "give this user the right to write there, or make room",
    ),
    _IO_FAULT: ("the disk takes no more, or fails", "make room there, or see what the system log says"),
    _LOCKED: ("another process keeps the history locked", "end that process, or wait, and run again"),
    "malformed": ("the history is damaged", _ASIDE),
    "not a database": ("the history is damaged", _ASIDE),
    "more than one head": ("the history is damaged", _ASIDE),
}
"""What SQLite says → what that means, and what to do."""


class HistoryError(StorageError):
    """Dagster's history cannot be read or written."""


def dagster_home(config: ProjectConfig) -> Path:
    """Return DAGSTER_HOME where it is set, else `history` of nanoset.yaml; make it, with a dagster.yaml, where missing.

    Raises:
        StorageError: it cannot be made.
    """
    home = expanded(os.environ.get(HOME_VARIABLE) or config.history_folder, HOME_VARIABLE).resolve()
    with explained(home):
        home.mkdir(parents=True, exist_ok=True)
        if not (home / SETTINGS).exists():
            write_atomic(home / SETTINGS, (resources.files("nanoset_assets") / SETTINGS).read_bytes())
    return home


def open_instance(config: ProjectConfig) -> dg.DagsterInstance:
    """Open the project's instance; set DAGSTER_HOME for this process and its children.

    Raises:
        HistoryError: the history cannot be read or written.
        ConfigError: its dagster.yaml is not one.
    """
    setting = HOME_VARIABLE if os.environ.get(HOME_VARIABLE) else f"`history` in {config.file}"
    home = dagster_home(config)
    os.environ[HOME_VARIABLE] = str(home)
    with _locked(home) as refusal:
        try:
            with history_faults(home):
                return dg.DagsterInstance.get()
        except HistoryError as error:
            if refusal is None:
                raise
            raise HistoryError(
                "this file system has no file locks, which the history (SQLite) needs",
                where=home,
                found=refusal,
                expected="a folder on a disk of this machine",
                remedy=f"name one by {setting}, or keep the history in Postgres; the outputs can stay where they are",
            ) from error
        except dg.DagsterError as error:
            raise ConfigError(
                "Dagster cannot use these settings", where=home / SETTINGS, found=error, remedy="correct the file"
            ) from error


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[str | None]:
    """Hold an exclusive lock on DAGSTER_HOME, of SQLite's own kind; yield the lock error, if any.

    Without the right to write to the folder there is no lock, and no error: Dagster says what it needs.
    """
    with contextlib.ExitStack() as held:
        refusal = None
        try:
            file = held.enter_context((home / LOCK).open("ab"))
            wait_for_lock(file.fileno(), lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB), home / LOCK)
        except OSError as error:
            refusal = f"{error.strerror} (errno {error.errno})" if error.filename is None else None
        yield refusal


@contextlib.contextmanager
def history_faults(home: str | os.PathLike[str]) -> Iterator[None]:
    """Explain an error of the database in a folder, and say what to do.

    Raises:
        HistoryError: The database cannot be read or written.
    """
    try:
        yield
    except NanosetError:
        raise
    except Exception as error:
        fault = _database_fault(error)
        if fault is None:
            raise
        text = _FULL if _IO_FAULT in str(fault) and _is_full(home) else str(fault)
        known = (value for said, value in _FAULTS.items() if said in text)
        what, remedy = next(known, ("the history cannot be used", "see what the database says, and run again"))
        found = str(getattr(fault, "orig", None) or fault).strip()
        owner = _lock_owner(home) if _LOCKED in text else None
        if owner is not None:
            found = f"{found}: {owner}"
            remedy = f"wait and run again, or end that process: {owner.remedy()}"
        raise HistoryError(what, where=home, found=found, remedy=remedy) from error


def _lock_owner(home: str | os.PathLike[str]) -> Owner | None:
    """Return the process that keeps a database of a history locked, if it is one of this machine."""
    for file in sorted(Path(home).rglob("*.db*")):
        with contextlib.suppress(OSError):
            owner = lock_owner(file.stat())
            if owner is not None:
                return owner
    return None


def _is_full(folder: str | os.PathLike[str]) -> bool:
    """Return whether a disk has no room: SQLite cannot tell that from one that fails, where it maps a file."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < _LEAST_BYTES
    return False


def _database_fault(error: BaseException | None) -> BaseException | None:
    """Return the database error that caused another error, if any."""
    from alembic.util import CommandError
    from sqlalchemy.exc import SQLAlchemyError

    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, SQLAlchemyError | CommandError | sqlite3.Error):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
