"""Dagster's history in tests, at the speed of tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_history() -> Iterator[None]:
    """Engines of SQLAlchemy are kept, and do not wait for the disk.

    Dagster sets one up for every query, so that every query is compiled anew: half the time of a small run.
    """
    from dagster._core.storage.event_log.sqlite import sqlite_event_log
    from dagster._core.storage.runs.sqlite import sqlite_run_storage

    with pytest.MonkeyPatch.context() as patch:
        for module in (sqlite_event_log, sqlite_run_storage):
            patch.setattr(module, "create_engine", _create_engine)
        yield


def _create_engine(url: str, *, poolclass: Any, connect_args: dict[str, Any] | None = None) -> Any:
    return _kept_engine(url, poolclass, tuple((connect_args or {}).items()))


@lru_cache(maxsize=16)
def _kept_engine(url: str, poolclass: Any, connect_args: tuple[tuple[str, Any], ...]) -> Any:
    from sqlalchemy import create_engine, event

    engine = create_engine(url, poolclass=poolclass, connect_args=dict(connect_args))
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    return engine
