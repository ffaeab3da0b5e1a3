"""Connections to DuckDB that are kept open."""

from __future__ import annotations

import multiprocessing

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.document_tables import connection
from nanoset_core.document_tables.connection import shared_connection
from nanoset_core.errors import NanosetError


def test_a_connection_is_kept_for_the_same_folders(tmp_path):
    first = shared_connection(frozenset({tmp_path}))
    other = shared_connection(frozenset({tmp_path / "other"}))

    assert shared_connection(frozenset({tmp_path})) is first
    assert other is not first


def test_few_connections_are_kept_and_the_others_can_still_be_used(tmp_path):
    first = shared_connection(frozenset({tmp_path}))
    for number in range(10):
        shared_connection(frozenset({tmp_path / str(number)}))

    assert len(connection._shared_connections) <= connection._MAX_SHARED
    with first.cursor() as cursor:
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_memory_that_the_system_refuses_is_explained(monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise duckdb.OutOfMemoryException("Out of Memory Error: no block\n\nPossible solutions:")

    monkeypatch.setattr(duckdb, "connect", refuse)

    with pytest.raises(NanosetError, match="not enough memory") as caught:
        connection.open_locked()

    assert caught.value.found == "Out of Memory Error: no block"


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    path = tmp_path / "output" / "table.parquet"
    path.parent.mkdir()
    query = f"SELECT sum(n) FROM read_parquet('{path}')"
    sums = []

    for numbers in ([1, 2, 3], [4, 5, 6]):
        pq.write_table(pa.table({"n": numbers}), path)
        with shared_connection(frozenset({tmp_path})).cursor() as cursor:
            sums += cursor.execute(query).fetchone()

    assert sums == [6, 15]


def _ask(folders, answers) -> None:
    """Ask DuckDB in a forked process."""
    with shared_connection(folders).cursor() as cursor:
        answers.put(cursor.execute("SELECT 2").fetchall())


def test_a_forked_process_opens_a_connection_of_its_own(tmp_path):
    folders = frozenset({tmp_path})
    shared_connection(folders)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    process = context.Process(target=_ask, args=(folders, answers))
    process.start()

    assert answers.get(timeout=60) == [(2,)]
    process.join(60)
    assert process.exitcode == 0
