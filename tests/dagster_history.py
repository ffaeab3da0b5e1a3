"""Dagster's history in tests, at the speed of tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines of SQLAlchemy are kept, and do not wait for the disk; a run's empty database is a copy of the first one.

    Dagster sets an engine up for every query, so that every query is compiled anew: half the time of a small run.
    """
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    with pytest.MonkeyPatch.context() as patch:
        for module in (sqlite_event_log, sqlite_run_storage):
            patch.setattr(module, "create_engine", _create_engine)
        storage = sqlite_event_log.SqliteEventLogStorage
        empty, make = tmp_path_factory.mktemp("history") / "empty.db", storage._initdb

        def initdb(self: Any, engine: Any, for_index_shard: bool = False) -> None:
            path = Path(engine.url.database)
            if for_index_shard or path.stem == sqlite_event_log.INDEX_SHARD_NAME or path.exists():
                make(self, engine, for_index_shard)
                return
            if not empty.exists():
                make(self, engine)
                shutil.copyfile(path, empty)
            else:
                shutil.copyfile(empty, path)

        patch.setattr(storage, "_initdb", initdb)
        yield


def _create_engine(url: str, *, poolclass: Any, connect_args: dict[str, Any] | None = None) -> Any:
    return _kept_engine(url, poolclass, tuple((connect_args or {}).items()))


@lru_cache(maxsize=16)
def _kept_engine(url: str, poolclass: Any, connect_args: tuple[tuple[str, Any], ...]) -> Any:
    from sqlalchemy import create_engine, event

    engine = create_engine(url, poolclass=poolclass, connect_args=dict(connect_args))
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return engine
