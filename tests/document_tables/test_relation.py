"""Tables of a shard's documents as one relation, and what DuckDB may read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.document_tables import scan
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.connection import open_locked
from nanoset_core.document_tables.relation import (
    DocumentRelation,
    TableSource,
    column_reference,
    concatenated,
)
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.errors import FormatError


def stored(path: Path, columns: dict) -> TableSource:
    """Write a table to a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=2)
    return TableSource((path,), table.schema)


def values_of(relation: DocumentRelation, column: str) -> list:
    """Return the values of a column of all documents."""
    values = []
    with open_locked(relation.folders) as connection:
        reference = column_reference(relation.schema, column)
        for batch in relation.batches(connection, [column, "id"], [reference]):
            values += batch.column(0).to_pylist()
    return values


def test_tables_are_joined_by_position_and_the_first_one_with_a_name_counts(tmp_path):
    documents = stored(
        tmp_path / "documents.parquet", {"id": ["x", None, "x"], "tokens": [1, 2, 3]}
    )
    columns = stored(tmp_path / "columns.parquet", {"tokens": [0, 0, 0], "lang": ["a", "b", "c"]})
    schema = pa.schema({"id": pa.string(), "tokens": pa.int64(), "lang": pa.string()})
    relation = DocumentRelation(schema, (documents, columns))

    assert values_of(relation, "lang") == ["a", "b", "c"]
    assert values_of(relation, "tokens") == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "target", "expected"),
    [
        ([1, None, -3], pa.string(), ["1", None, "-3"]),
        ([1, None, -3], pa.float64(), [1.0, None, -3.0]),
        ([True, None, False], pa.string(), ["true", None, "false"]),
        ([1.0, None, 0.00001], pa.string(), ["1", None, "0.00001"]),
        ([1e20, 0.1, 2.0**53], pa.string(), ["1e+20", "0.1", "9007199254740992"]),
        (pa.nulls(3), pa.string(), [None, None, None]),
    ],
)
def test_a_column_has_the_type_of_the_corpus_also_where_a_shard_has_another(
    values, target, expected, tmp_path
):
    documents = stored(tmp_path / "documents.parquet", {"id": ["x", "y", "z"]})
    columns = stored(tmp_path / "columns.parquet", {"value": values})
    schema = pa.schema({"id": pa.string(), "value": target})

    found = values_of(DocumentRelation(schema, (documents, columns)), "value")

    assert found == expected


def test_shards_of_equal_columns_are_read_together(tmp_path):
    relations = []
    for shard in range(3):
        ids = [f"{shard}-{number}" for number in range(5)]
        path = tmp_path / f"{shard}.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=2)
        source = TableSource(
            (path,), pa.schema({"id": pa.string()}), None, (pq.read_metadata(path),)
        )
        relations.append(DocumentRelation(source.stored_schema, (source,)))
    relation = concatenated(relations)

    ends_with_3 = parse_condition("id like '%-3'", "where")
    [scanned] = DocumentScan(["id"], only=[ends_with_3]).batches(relation)

    assert relations[0].has_layout_of(relations[1])
    assert scanned.rows.tolist() == [3, 8, 13]
    assert scanned.columns["id"].to_pylist() == ["0-3", "1-3", "2-3"]


def test_long_lists_of_ids_are_searched_in_parts(tmp_path, monkeypatch):
    ids = [f"doc-{number}" for number in range(500)]
    documents = stored(tmp_path / "documents.parquet", {"id": [None, *ids]})
    relation = DocumentRelation(documents.stored_schema, (documents,))
    listed = pa.array([*reversed(ids[::3]), "another", *ids[::3]], pa.large_string())

    monkeypatch.setattr(scan, "_MAX_LISTED_BYTES", 500)
    [scanned] = DocumentScan(["id"], only_ids=listed).batches(relation)

    assert scanned.columns["id"].to_pylist() == ids[::3]
    assert scanned.rows.tolist() == list(range(1, 501, 3))


@pytest.mark.parametrize("n_listed", [1, 100, 10_000])
def test_documents_found_by_lists_have_the_order_of_the_table(n_listed, tmp_path):
    numbers = [number * 7919 % 1000 for number in range(100)]
    documents = stored(
        tmp_path / "documents.parquet", {"id": [f"d{number}" for number in numbers], "n": numbers}
    )
    relation = DocumentRelation(documents.stored_schema, (documents,))
    listed = [number * 31 % 10_000 for number in range(n_listed)]
    expected = [row for row, number in enumerate(numbers) if number in listed]

    by_value = parse_condition(f"n in ({', '.join(map(str, listed))})", "where")
    ids = pa.array([f"d{number}" for number in listed], pa.large_string())
    scans = [DocumentScan([], only=[by_value]), DocumentScan([], only_ids=ids)]

    for documents_scan in scans:
        found = [scanned.rows for scanned in documents_scan.batches(relation)]
        assert np.concatenate([np.empty(0, np.int64), *found]).tolist() == expected


def test_names_that_differ_in_case_are_different_columns(tmp_path):
    documents = stored(tmp_path / "documents.parquet", {"id": ["x"], "Lang": ["A"], "lang": ["a"]})
    schema = pa.schema({"id": pa.string(), "Lang": pa.string(), "lang": pa.string()})
    relation = DocumentRelation(schema, (documents,))

    assert values_of(relation, "Lang") == ["A"]
    assert values_of(relation, "lang") == ["a"]


def test_a_path_is_not_a_pattern_and_its_folders_are_not_columns(tmp_path):
    root = tmp_path / "a[b]*'x"
    documents = stored(root / "key=7" / "q?.parquet", {"id": ["right"]})
    stored(root / "key=7" / "qq.parquet", {"id": ["wrong"]})
    relation = DocumentRelation(pa.schema({"id": pa.string()}), (documents,))

    assert values_of(relation, "id") == ["right"]


def test_folders_of_a_root_may_be_links_to_other_disks(tmp_path):
    stored(tmp_path / "disk" / "web" / "1" / "documents.parquet", {"id": ["x"]})
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "shards").symlink_to(tmp_path / "disk")
    path = tmp_path / "root" / "shards" / "web" / "1" / "documents.parquet"
    schema = pa.schema({"id": pa.string()})
    relation = DocumentRelation(schema, (TableSource((path,), schema),))

    assert values_of(relation, "id") == ["x"]


def test_only_the_damaged_table_is_named(tmp_path):
    sources = []
    for name in ("good", "damaged"):
        source = stored(tmp_path / f"{name}.parquet", {"id": ["x"] * 1000})
        sources.append(DocumentRelation(source.stored_schema, (source,)))
    path = tmp_path / "damaged.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])

    with pytest.raises(FormatError, match="a table of documents cannot be read") as caught:
        values_of(concatenated(sources), "id")

    assert "damaged.parquet" in str(caught.value)
    assert "good.parquet" not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM '{outside}'",
        "COPY (SELECT 1) TO '{outside}.csv'",
        "ATTACH '{outside}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 2",
        "SET enable_external_access = true",
        "RESET allowed_directories",
    ],
)
def test_a_connection_reaches_nothing_outside_of_its_folder(query, tmp_path):
    import duckdb

    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    (tmp_path / "root").mkdir()

    connection = open_locked([tmp_path / "root"])

    with connection, pytest.raises(duckdb.Error):
        connection.execute(query.format(outside=outside)).fetchall()


def test_duckdb_is_imported_only_for_conditions():
    script = (
        "import sys, nanoset_core; nanoset_core.load_nanoset; "
        "import nanoset_core.stages.views.stage, nanoset_core.cli.entry; "
        "sys.exit('duckdb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
