"""A fast history of Dagster for tests."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "NANOSET_TESTS_QUICK_HISTORY"
"""Environment variable: the folder of an empty database, for processes that a test starts."""
DO_NOT_WAIT = "PRAGMA synchronous=OFF"
"""Lets SQLite write to a database without waiting for the disk, which takes 18 ms for an event."""
MAX_ENGINES = 16
"""How many databases stay open."""
_engines: dict[Any, Any] = {}
"""Database and how it is opened → the engine of SQLAlchemy that has it open."""
QUICK_COMMAND = (
    "from helpers.dagster_history import quicken; quicken();"
    " from nanoset_core.cli import main; main()"
)
"""Python code that runs `nanoset` with such a history."""


@pytest.fixture(scope="session", autouse=True)
def quick_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make Dagster's history fast in this process, and in those that `start_forked` starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("history")))
        quicken(patch.setattr)
        yield


def quicken(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Make Dagster's history fast, if the environment variable says that a test wants that.

    Without this, most of the time of a small run is spent on the history:

    - Dagster makes an engine for every query, so every query opens the database and is compiled
      again. Here, engines and connections are used again, and writes do not wait for the disk.
    - The empty database of a run is the result of all migrations. Here, it is a copy of the first.
    - Dagster starts four processes for every run, which show what its steps print. Here, this is
      only written to the file of the step.
    - A build keeps databases open, and waits for the disk after each event. Here, it does not wait.
    - Dagster reads its settings at each step to find out that it must not send telemetry. Here, it
      sends none without reading them.
    - For every database that it opens or makes, Dagster imports the modules of all migrations, to
      learn the number of the last one. Here, they are imported once.

    Args:
        replace: Replaces an attribute of a module or class.
    """
    if VARIABLE not in os.environ:
        return
    from alembic.script import ScriptDirectory
    from dagster._core import telemetry
    from dagster._core.storage import local_compute_log_manager
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    from nanoset_assets.history import open_history

    replace(local_compute_log_manager, "mirror_stream_to_file", _redirect_to_file)
    replace(ScriptDirectory, "from_config", cache(ScriptDirectory.from_config))
    replace(sqlite_event_log, "create_engine", _open_engine)
    replace(sqlite_run_storage, "create_engine", _open_engine)
    storage = sqlite_event_log.SqliteEventLogStorage
    template = Path(os.environ[VARIABLE]) / "empty.db"
    replace(storage, "_initdb", _copying_initdb(storage._initdb, template))
    replace(open_history, "create_engine", _create_engine)
    replace(open_history, "_connect", _connect)
    replace(telemetry, "log_action", lambda *arguments, **options: None)


def _copying_initdb(migrate: Callable[..., None], template: Path) -> Callable[..., None]:
    """Return a replacement for the method of Dagster's storage that makes the database of a run.

    Args:
        migrate: The method, which runs all migrations.
        template: The copy of an empty database, which the first call makes.
    """
    from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME

    def initdb(self: Any, engine: Any, for_index_shard: bool = False) -> None:
        path = Path(engine.url.database)
        # The index of all runs has other tables. A database that exists may need a migration.
        if for_index_shard or path.stem == INDEX_SHARD_NAME or path.exists():
            migrate(self, engine, for_index_shard)
            return
        if template.exists():
            shutil.copyfile(template, path)
            return

        migrate(self, engine)
        # Closed databases have everything in their file, and nothing in their log.
        engine.pool.dispose()
        # Other processes may make the template at the same time.
        unfinished_template = template.with_name(f"{os.getpid()}.db")
        shutil.copyfile(path, unfinished_template)
        unfinished_template.replace(template)

    return initdb


@contextmanager
def _redirect_to_file(stream: Any, path: str) -> Iterator[None]:
    """Write what a step prints to its file alone."""
    from dagster._core.execution.compute_logs import redirect_to_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with redirect_to_file(stream, path):
        yield


def _open_engine(url: str, *, poolclass: Any, connect_args: dict[str, Any] | None = None) -> Any:
    """Return the engine of a database, in place of SQLAlchemy's `create_engine`."""
    from sqlalchemy import make_url

    # A database that replaces another one has the same path, but another inode.
    path = Path(make_url(url).database or "")
    inode = path.stat().st_ino if path.exists() else 0
    options = connect_args or {}
    key = (url, inode, poolclass, tuple(options.items()))
    if key not in _engines:
        if len(_engines) >= MAX_ENGINES:
            oldest_key = next(iter(_engines))
            _engines.pop(oldest_key).pool.dispose()
        _engines[key] = _create_lasting_engine(url, poolclass, options)
    return _engines[key]


def _create_lasting_engine(url: str, poolclass: Any, connect_args: dict[str, Any]) -> Any:
    """Return a new engine, whose connections stay open and do not wait for the disk."""
    from sqlalchemy.pool import NullPool, QueuePool

    pool_that_keeps = QueuePool if poolclass is NullPool else poolclass
    engine = _create_engine(url, poolclass=pool_that_keeps, connect_args=connect_args)
    # Dagster disposes of an engine after each query.
    engine.dispose = lambda: None
    return engine


def _create_engine(url: str, **options: Any) -> Any:
    """Return a new engine, whose connections do not wait for the disk."""
    from sqlalchemy import create_engine, event

    engine = create_engine(url, **options)
    event.listen(engine, "connect", lambda connection, _: connection.execute(DO_NOT_WAIT))
    return engine


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database without SQLAlchemy, and do not wait for the disk."""
    connection = sqlite3.connect(path)
    connection.execute(DO_NOT_WAIT)
    return connection


def close_databases() -> None:
    """Close all open databases, so that changes to their files are noticed."""
    while _engines:
        _, engine = _engines.popitem()
        engine.pool.dispose()
