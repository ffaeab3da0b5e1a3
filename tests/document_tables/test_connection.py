"""Connections to DuckDB: which are shared and kept open, and what happens to stale ones."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.document_tables import connection
from nanoset_core.document_tables.connection import shared_connection
from nanoset_core.errors import NanosetError


def test_the_same_folders_share_a_connection(tmp_path):
    first = shared_connection(frozenset({tmp_path}))
    second = shared_connection(frozenset({tmp_path}))

    assert second is first


def test_other_folders_have_another_connection(tmp_path):
    first = shared_connection(frozenset({tmp_path}))
    second = shared_connection(frozenset({tmp_path / "other"}))

    assert second is not first


def test_few_connections_are_kept_open_and_older_ones_can_still_be_used(tmp_path):
    oldest = shared_connection(frozenset({tmp_path}))
    for number in range(10):
        shared_connection(frozenset({tmp_path / str(number)}))

    assert len(connection._shared_connections) <= connection._MAX_SHARED
    with oldest.cursor() as cursor:
        assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_an_error_says_if_the_system_refuses_memory(monkeypatch):
    def refuse(*_arguments: object, **_options: object) -> None:
        raise duckdb.OutOfMemoryException("Out of Memory Error: no block\n\nPossible solutions:")

    monkeypatch.setattr(duckdb, "connect", refuse)

    with pytest.raises(NanosetError, match="not enough memory") as caught:
        connection.open_locked()

    assert caught.value.found == "Out of Memory Error: no block"


def read_sum(folder: Path, path: Path) -> int:
    """Return the sum of a table's column n, read by the connection that its folder shares."""
    with shared_connection(frozenset({folder})).cursor() as cursor:
        [total] = cursor.execute(f"SELECT sum(n) FROM read_parquet('{path}')").fetchone()
    return total


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    """Outputs may be rebuilt while the process runs."""
    path = tmp_path / "output" / "table.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    assert read_sum(tmp_path, path) == 6

    pq.write_table(pa.table({"n": [4, 5, 6]}), path)

    assert read_sum(tmp_path, path) == 15


def put_answer(folders: frozenset[Path], answers: multiprocessing.Queue[list[tuple[int]]]) -> None:
    """Put the answer to a query into a queue."""
    with shared_connection(folders).cursor() as cursor:
        answers.put(cursor.execute("SELECT 2").fetchall())


def test_a_forked_process_opens_another_connection(tmp_path):
    """A connection of the parent process would block in a child, which has none of its threads."""
    folders = frozenset({tmp_path})
    shared_connection(folders)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()

    process = context.Process(target=put_answer, args=(folders, answers))
    process.start()

    assert answers.get(timeout=60) == [(2,)]
    process.join(60)
    assert process.exitcode == 0
