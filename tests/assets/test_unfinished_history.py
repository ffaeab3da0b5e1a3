"""A history whose tables are incomplete, because a process was killed while it created them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from helpers.dagster_history import close_databases
from nanoset_assets.history.instance import dagster_home, open_instance
from nanoset_core.project.settings import load_config

EVENT_LOG = "history/runs/index.db"
"""File of the event log, relative to the folder of the history."""


@pytest.fixture
def config(make_project, monkeypatch):
    """The settings of a project whose history is in its own folder."""
    monkeypatch.setenv("DAGSTER_HOME", "")
    return load_config(make_project())


def drop_tables(event_log: Path, first_tables: list[str]) -> None:
    """Drop the tables of an event log, except those that were created first."""
    connection = sqlite3.connect(event_log)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        if table not in [*first_tables, "sqlite_sequence"]:
            connection.execute(f"DROP TABLE {table}")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("first_tables", [[], ["event_logs"], ["event_logs", "asset_keys"]])
def test_missing_tables_are_created_when_a_history_is_opened(config, first_tables, capfd):
    with open_instance(config):
        pass
    close_databases()
    drop_tables(dagster_home(config) / EVENT_LOG, first_tables)

    with open_instance(config) as instance:
        instance.add_dynamic_partitions("corpora", ["books"])
        partitions = instance.get_dynamic_partitions("corpora")
    close_databases()

    assert partitions == ["books"]
    assert capfd.readouterr().out == ""
