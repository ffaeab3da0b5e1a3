"""Tables of a shard's documents as one relation, and what DuckDB may read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
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

ID_SCHEMA = pa.schema({"id": pa.string()})


def write_source(path: Path, columns: dict) -> TableSource:
    """Write a table to a Parquet file, and return it as a source of a relation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    pq.write_table(table, path, row_group_size=2)
    return TableSource((path,), table.schema)


def write_relation(path: Path, columns: dict) -> DocumentRelation:
    """Write a table to a Parquet file, and return the relation of its documents."""
    source = write_source(path, columns)
    return DocumentRelation(source.stored_schema, (source,))


def values_of(relation: DocumentRelation, column: str) -> list:
    """Return the values of a column of all documents."""
    values = []
    with open_locked(relation.folders) as connection:
        reference = column_reference(relation.schema, column)
        for batch in relation.batches(connection, [column, "id"], [reference]):
            values += batch.column(0).to_pylist()
    return values


# Columns


@pytest.fixture
def two_tables(tmp_path):
    """The relation of two tables, each of which has a column `tokens`."""
    documents = write_source(
        tmp_path / "documents.parquet",
        {"id": ["x", None, "x"], "tokens": [1, 2, 3]},
    )
    columns = write_source(
        tmp_path / "columns.parquet",
        {"tokens": [0, 0, 0], "lang": ["a", "b", "c"]},
    )
    schema = pa.schema({"id": pa.string(), "tokens": pa.int64(), "lang": pa.string()})
    return DocumentRelation(schema, (documents, columns))


def test_tables_are_joined_by_the_positions_of_their_rows(two_tables):
    """Ids may be missing, or the same for several documents."""
    assert values_of(two_tables, "lang") == ["a", "b", "c"]


def test_a_column_of_several_tables_is_that_of_the_first_one(two_tables):
    assert values_of(two_tables, "tokens") == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "corpus_type", "expected"),
    [
        pytest.param([1, None, -3], pa.string(), ["1", None, "-3"], id="integers as texts"),
        pytest.param([1, None, -3], pa.float64(), [1.0, None, -3.0], id="integers as floats"),
        pytest.param(
            [True, None, False], pa.string(), ["true", None, "false"], id="booleans as texts"
        ),
        pytest.param(
            [1.0, None, 0.00001], pa.string(), ["1", None, "0.00001"], id="floats as texts"
        ),
        pytest.param(
            [1e20, 0.1, 2.0**53],
            pa.string(),
            ["1e+20", "0.1", "9007199254740992"],
            id="large floats as texts",
        ),
        pytest.param(pa.nulls(3), pa.string(), [None, None, None], id="nulls as texts"),
    ],
)
def test_the_values_of_a_shard_have_the_type_that_the_column_has_in_the_corpus(
    tmp_path, values, corpus_type, expected
):
    documents = write_source(tmp_path / "documents.parquet", {"id": ["x", "y", "z"]})
    columns = write_source(tmp_path / "columns.parquet", {"value": values})
    schema = pa.schema({"id": pa.string(), "value": corpus_type})
    relation = DocumentRelation(schema, (documents, columns))

    assert values_of(relation, "value") == expected


def test_names_that_differ_in_case_are_different_columns(tmp_path):
    relation = write_relation(
        tmp_path / "documents.parquet", {"id": ["x"], "Lang": ["A"], "lang": ["a"]}
    )

    assert values_of(relation, "Lang") == ["A"]
    assert values_of(relation, "lang") == ["a"]


# Several shards


@pytest.fixture
def shard_relations(tmp_path):
    """The relations of three shards, each of five documents."""
    relations = []
    for shard in range(3):
        ids = [f"{shard}-{number}" for number in range(5)]
        path = tmp_path / f"{shard}.parquet"
        pq.write_table(pa.table({"id": ids}), path, row_group_size=2)
        metadata = pq.read_metadata(path)
        source = TableSource((path,), ID_SCHEMA, None, (metadata,))
        relations.append(DocumentRelation(ID_SCHEMA, (source,)))
    return relations


def test_shards_with_the_same_columns_have_the_same_layout(shard_relations):
    assert shard_relations[0].has_layout_of(shard_relations[1])


def test_shards_with_the_same_columns_are_read_together(shard_relations):
    ends_with_3 = parse_condition("id like '%-3'", "where")

    [scanned] = DocumentScan(["id"], only=[ends_with_3]).batches(concatenated(shard_relations))

    assert scanned.rows.tolist() == [3, 8, 13]
    assert scanned.columns["id"].to_pylist() == ["0-3", "1-3", "2-3"]


def test_an_error_names_only_the_table_that_is_damaged(tmp_path):
    good = write_relation(tmp_path / "good.parquet", {"id": ["x"] * 1000})
    damaged = write_relation(tmp_path / "damaged.parquet", {"id": ["x"] * 1000})
    path = tmp_path / "damaged.parquet"
    data = path.read_bytes()
    zeros = bytes(len(data) // 2)
    path.write_bytes(data[:4] + zeros + data[4 + len(zeros) :])

    with pytest.raises(FormatError, match="a table of documents cannot be read") as caught:
        values_of(concatenated([good, damaged]), "id")

    assert "damaged.parquet" in str(caught.value)
    assert "good.parquet" not in str(caught.value)


# Lists of documents


def test_long_lists_of_ids_are_searched_in_several_parts(tmp_path, monkeypatch):
    ids = [f"doc-{number}" for number in range(500)]
    relation = write_relation(tmp_path / "documents.parquet", {"id": [None, *ids]})
    listed_ids = ids[::3]
    # The list has no order, ids that no document has, and each id twice.
    ids_in_list = [*reversed(listed_ids), "another", *listed_ids]
    monkeypatch.setattr(scan, "_MAX_LISTED_BYTES", 500)

    documents_scan = DocumentScan(["id"], only_ids=pa.array(ids_in_list, pa.large_string()))
    [scanned] = documents_scan.batches(relation)

    assert scanned.columns["id"].to_pylist() == listed_ids
    assert scanned.rows.tolist() == list(range(1, 501, 3))


def test_documents_that_are_found_in_several_parts_are_returned_in_batches(tmp_path, monkeypatch):
    ids = [f"doc-{number}" for number in range(100)]
    relation = write_relation(tmp_path / "documents.parquet", {"id": ids})
    is_first_half = parse_condition("id < 'doc-5'", "where")
    listed_ids = pa.array(reversed(ids), pa.large_string())
    documents_scan = DocumentScan(["id"], conditions=[is_first_half], only_ids=listed_ids)
    [expected] = documents_scan.batches(relation)
    monkeypatch.setattr(scan, "_MAX_LISTED_BYTES", 500)
    monkeypatch.setattr(scan, "BATCH_DOCUMENTS", 30)

    batches = list(documents_scan.batches(relation))

    assert [len(batch.rows) for batch in batches] == [30, 30, 30, 10]
    masks = [batch.condition_masks[is_first_half] for batch in batches]
    np.testing.assert_array_equal(np.concatenate(masks), expected.condition_masks[is_first_half])
    found_ids = pa.concat_arrays([batch.columns["id"] for batch in batches])
    assert found_ids.to_pylist() == ids


def scanned_rows(documents_scan: DocumentScan, relation: DocumentRelation) -> list[int]:
    """Return the rows of all documents that a scan returns."""
    rows = [np.empty(0, np.int64)]
    for scanned in documents_scan.batches(relation):
        rows.append(scanned.rows)
    return np.concatenate(rows).tolist()


@pytest.mark.parametrize("n_listed", [1, 100, 10_000])
def test_documents_of_a_list_have_the_order_of_the_table(tmp_path, n_listed):
    numbers = [number * 7919 % 1000 for number in range(100)]
    ids = [f"d{number}" for number in numbers]
    relation = write_relation(tmp_path / "documents.parquet", {"id": ids, "n": numbers})
    listed_numbers = [number * 31 % 10_000 for number in range(n_listed)]
    listed_ids = pa.array([f"d{number}" for number in listed_numbers], pa.large_string())
    values = ", ".join(map(str, listed_numbers))
    is_listed = parse_condition(f"n in ({values})", "where")

    rows_by_value = scanned_rows(DocumentScan([], only=[is_listed]), relation)
    rows_by_id = scanned_rows(DocumentScan([], only_ids=listed_ids), relation)

    expected = [row for row, number in enumerate(numbers) if number in listed_numbers]
    assert rows_by_value == expected
    assert rows_by_id == expected


# Paths


def test_a_path_is_no_pattern_and_its_folders_are_no_columns(tmp_path):
    """DuckDB expands wildcards, and reads a folder `key=7` as a column."""
    folder = tmp_path / "a[b]*'x" / "key=7"
    relation = write_relation(folder / "q?.parquet", {"id": ["right"]})
    write_source(folder / "qq.parquet", {"id": ["wrong"]})

    assert values_of(relation, "id") == ["right"]


def test_folders_of_a_root_may_be_links_to_other_disks(tmp_path):
    write_source(tmp_path / "disk" / "web" / "1" / "documents.parquet", {"id": ["x"]})
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "shards").symlink_to(tmp_path / "disk")
    path = tmp_path / "root" / "shards" / "web" / "1" / "documents.parquet"
    relation = DocumentRelation(ID_SCHEMA, (TableSource((path,), ID_SCHEMA),))

    assert values_of(relation, "id") == ["x"]


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
def test_a_connection_reaches_nothing_outside_of_its_folder(tmp_path, query):
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    (tmp_path / "root").mkdir()

    connection = open_locked([tmp_path / "root"])

    with connection, pytest.raises(duckdb.Error):
        connection.execute(query.format(outside=outside)).fetchall()


# Imports

IMPORTING_CODE = """
import sys
import nanoset_core
nanoset_core.load_nanoset
import nanoset_core.stages.views.stage
import nanoset_core.cli.entry
sys.exit("duckdb" in sys.modules)
"""


def test_duckdb_is_imported_only_for_conditions():
    """Its import would slow down every command."""
    process = subprocess.run([sys.executable, "-c", IMPORTING_CODE], check=False)

    assert process.returncode == 0
