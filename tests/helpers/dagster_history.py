"""A fast history of Dagster for tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "NANOSET_TESTS_QUICK_HISTORY"
"""Environment variable: the folder of an empty database, for processes that a test starts."""


_MOST_ENGINES = 16
_ENGINES: dict[Any, Any] = {}
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

    Dagster sets up an engine for every query, so that every query is compiled again, and opens the
    database again: more than half the time of a small run. Here engines and connections are kept,
    and writes do not wait for the disk. The empty database of a run is a copy instead of the result
    of all migrations. What a step prints goes to its file alone; to show it as well, Dagster would
    start four processes for every run.
    """
    if VARIABLE not in os.environ:
        return
    from dagster._core.storage import local_compute_log_manager
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    replace(local_compute_log_manager, "mirror_stream_to_file", _to_file)
    for module in (sqlite_event_log, sqlite_run_storage):
        replace(module, "create_engine", _create_engine)
    storage = sqlite_event_log.SqliteEventLogStorage
    empty, make = Path(os.environ[VARIABLE]) / "empty.db", storage._initdb

    def initdb(self: Any, engine: Any, for_index_shard: bool = False) -> None:
        path = Path(engine.url.database)
        if for_index_shard or path.stem == sqlite_event_log.INDEX_SHARD_NAME or path.exists():
            make(self, engine, for_index_shard)
            return
        if not empty.exists():
            make(self, engine)
            engine.pool.dispose()  # what is only in the log goes to the file
            unfinished = empty.with_name(f"{os.getpid()}.db")
            shutil.copyfile(path, unfinished)
            unfinished.replace(empty)
        else:
            shutil.copyfile(empty, path)

    replace(storage, "_initdb", initdb)


@contextmanager
def _to_file(stream: Any, path: str) -> Iterator[None]:
    from dagster._core.execution.compute_logs import redirect_to_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with redirect_to_file(stream, path):
        yield


def _create_engine(url: str, *, poolclass: Any, connect_args: dict[str, Any] | None = None) -> Any:
    from sqlalchemy import make_url

    path = Path(make_url(url).database or "")
    # another file in its place is another database
    number = path.stat().st_ino if path.exists() else 0
    key = url, number, poolclass, tuple((connect_args or {}).items())
    if key not in _ENGINES:
        if len(_ENGINES) >= _MOST_ENGINES:
            _ENGINES.pop(next(iter(_ENGINES))).pool.dispose()
        _ENGINES[key] = _made_engine(url, poolclass, connect_args or {})
    return _ENGINES[key]


def close_databases() -> None:
    """Close all open databases, so that changes to their files are noticed."""
    while _ENGINES:
        _ENGINES.popitem()[1].pool.dispose()


def _made_engine(url: str, poolclass: Any, connect_args: dict[str, Any]) -> Any:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool, QueuePool

    kept = QueuePool if poolclass is NullPool else poolclass
    engine = create_engine(url, poolclass=kept, connect_args=connect_args)
    engine.dispose = lambda: None
    event.listen(
        engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF")
    )
    return engine
