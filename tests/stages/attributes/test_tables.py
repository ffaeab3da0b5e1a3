"""Tables of attributes are read into a lookup that finds rows by id, as a dictionary does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import NanosetError
from nanoset_core.stages.attributes import id_index, lookup
from nanoset_core.stages.attributes import tables as attribute_files
from nanoset_core.stages.attributes.lookup import Lookup
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.statistics import hashing
from nanoset_core.text.files.listing import stat_file
from nanoset_core.text.tables.values import MOST_BYTES

ROWS_PER_GROUP = 37
"""Rows of a row group in the tables of these tests, so that a table has several groups."""
SMALL_CHUNK_ROWS = 50
"""Rows that are processed at a time, so that small tables are processed in several steps."""


class ReadTables(NamedTuple):
    """Tables of attributes that were read."""

    lookup: Lookup
    names: list[str]
    """Names of the columns without the id."""


def read_tables(folder: Path, tables: Sequence[pa.Table], **settings: Any) -> ReadTables:
    """Write tables into a folder, as `0.parquet`, `1.parquet` and so on, and read them.

    Args:
        folder: The folder, which must not exist.
        tables: The tables.
        settings: Fields of the schema that are not the default ones.
    """
    folder.mkdir()
    files = []
    for number, table in enumerate(tables):
        name = f"{number}.parquet"
        pq.write_table(table, folder / name, row_group_size=ROWS_PER_GROUP)
        files.append(stat_file(folder, name))
    fields = {
        "id": "id",
        "columns": None,
        "reserved": ("tokens", "kept"),
        "setting": "attributes.web",
    }
    schema = AttributeSchema(**(fields | settings))

    scratch = folder / "scratch"
    scratch.mkdir()
    attributes = AttributeTables(folder, files, schema).read(scratch, lambda n_bytes: None)
    return ReadTables(attributes.lookup, attributes.names)


# Rows are found by their ids

IDS = ["", "é", "x" * 9, *(f"id-{number}" for number in range(200))]
UNKNOWN_IDS = ["nobody", "id-1x"]
N_ROWS_WITHOUT_LATE_VALUES = 150
COLUMN_NAMES = ["id", "score", "topic", "wide", "good", "words", "late", "last"]
EMPTY_ROW: dict[str, Any] = dict.fromkeys(COLUMN_NAMES)
"""A row without values, as the lookup returns for an id that it does not have."""


def random_row(random: np.random.Generator, number: int) -> dict[str, Any]:
    """Return a random row of a table, whose id another row may have, or which has no id.

    Args:
        random: Source of the values.
        number: Number of the row. The columns `late` and `last` are empty in the first rows.
    """
    row = dict(EMPTY_ROW)
    if random.random() >= 0.05:
        row["id"] = str(random.choice(IDS))
    if random.random() >= 0.3:
        row["score"] = float(random.random())
    row["topic"] = int(random.integers(-5, 5))
    row["wide"] = int(random.integers(2**63 - 2, 2**63, dtype=np.uint64))
    row["good"] = bool(random.integers(2))
    if number % 3 != 0:
        row["words"] = str(random.choice(IDS))
    if number > N_ROWS_WITHOUT_LATE_VALUES:
        row["late"] = number
        row["last"] = f"row {number}"
    return row


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as a table, which has no type for the column `late` if no row has a value."""
    late_type = pa.null()
    if any(row["late"] is not None for row in rows):
        late_type = pa.int64()
    types = {
        "id": pa.dictionary(pa.int32(), pa.string()),
        "score": pa.float32(),
        "topic": pa.int16(),
        "wide": pa.uint64(),
        "good": pa.bool_(),
        "words": pa.large_string(),
        "late": late_type,
        "last": pa.string(),
    }
    return pa.Table.from_pylist(list(rows), pa.schema(types))


def all_bits(hashes: np.ndarray) -> np.ndarray:
    """Return hashes as they are: no two of them are equal."""
    return hashes


def lowest_three_bits(hashes: np.ndarray) -> np.ndarray:
    """Return eight hashes for all ids, all of them in one part of the index."""
    return hashes & hashing.U64(7)


def highest_four_bits(hashes: np.ndarray) -> np.ndarray:
    """Return sixteen hashes for all ids, each in a part of the index of its own."""
    return hashes & hashing.U64(0xF << 60)


def no_bits(hashes: np.ndarray) -> np.ndarray:
    """Return one hash for all ids."""
    return hashes & hashing.U64(0)


HASH_REDUCTIONS: list[Callable[[np.ndarray], np.ndarray]] = [
    all_bits,
    lowest_three_bits,
    highest_four_bits,
    no_bits,
]
"""Functions that make hashes of different ids collide."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reduce", HASH_REDUCTIONS)
def test_a_lookup_finds_the_same_rows_as_a_dictionary(tmp_path, monkeypatch, reduce, seed):
    hash_texts = hashing.hash_texts
    monkeypatch.setattr(hashing, "hash_texts", lambda array: reduce(hash_texts(array)))
    monkeypatch.setattr(id_index, "_PART_BITS", 5)
    for module in (id_index, lookup, attribute_files):
        monkeypatch.setattr(module, "CHUNK_ROWS", SMALL_CHUNK_ROWS)

    # Rows, and the dictionary: the first row of each id, and how many rows have it.
    random = np.random.default_rng(seed)
    rows = [random_row(random, number) for number in range(int(random.integers(1, 300)))]
    row_by_id: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["id"] is not None:
            row_by_id.setdefault(row["id"], row)
    n_rows_by_id = Counter(row["id"] for row in rows)

    # The rows in three tables, which may be empty.
    first_stop, second_stop = sorted(random.integers(0, len(rows) + 1, 2).tolist())
    parts = [rows[:first_stop], rows[first_stop:second_stop], rows[second_stop:]]
    read = read_tables(tmp_path / "files", [table_of(part) for part in parts])

    # Look ids up, some of which are unknown, and one of which is missing.
    ids = [*map(str, random.choice([*IDS, *UNKNOWN_IDS], 400)), None]
    matching = read.lookup.open_files().find(pa.array(ids, pa.string()))
    columns = read.lookup.open_files().take(matching.rows)

    # The same ids are looked up in the dictionary.
    expected_rows = [row_by_id.get(row_id, EMPTY_ROW) for row_id in ids]
    is_found = [row_id in row_by_id for row_id in ids]
    is_repeated = [row_id in row_by_id and n_rows_by_id[row_id] > 1 for row_id in ids]
    n_unmatched = len(row_by_id.keys() - set(ids))

    assert (matching.rows >= 0).tolist() == is_found
    assert matching.is_repeated.tolist() == is_repeated
    assert read.lookup.count_unmatched() == n_unmatched
    for name, column in zip(read.names, columns, strict=True):
        expected = [row[name] for row in expected_rows]
        if name == "score":  # stored with 32 bits
            expected = pa.array(expected, pa.float32()).cast(pa.float64()).to_pylist()
        assert column.to_pylist() == expected, name


def test_ids_of_a_table_that_are_integers_match_ids_that_are_texts(tmp_path):
    read = read_tables(tmp_path / "files", [pa.table({"id": [7, 8], "score": [0.25, 0.5]})])

    matching = read.lookup.open_files().find(pa.array(["8", "9"]))

    assert matching.rows.tolist() == [1, -1]


# Which values are kept, and in which form


@pytest.fixture
def read_values(tmp_path: Path) -> dict[str, Any]:
    """The values that are kept of the first row of two tables, by column.

    The tables have different types, which are all kept as text. A column of the first table is
    not in the settings, and not in the second table.
    """
    first = pa.table(
        {
            "at": pa.array([0], pa.timestamp("s")),
            "many": [[1, 2]],
            "long": ["é" * 3000],
            "id": [7],
            "ignored": [0],
        }
    )
    second = pa.table({"at": ["now"], "many": [{"a": 1}], "long": [b"x"], "id": [8]})
    read = read_tables(tmp_path / "files", [first, second], columns=["long", "many", "at"])

    matching = read.lookup.open_files().find(pa.array(["7"]))
    columns = read.lookup.open_files().take(matching.rows)
    values = [column[0].as_py() for column in columns]
    return dict(zip(read.names, values, strict=True))


def test_only_the_columns_of_the_settings_are_read_in_their_order(read_values):
    assert list(read_values) == ["long", "many", "at"]


def test_lists_and_times_are_kept_as_text_like_those_of_raw_text(read_values):
    assert read_values["many"] == "[1,2]"
    assert read_values["at"] == "1970-01-01T00:00:00.000"


def test_a_text_that_is_too_long_to_be_kept_is_still_too_long_when_it_is_joined(read_values):
    """It is counted as left out when it is joined, so it must not be cut to an allowed length."""
    assert len(read_values["long"].encode()) > MOST_BYTES


# Tables that cannot be joined

TABLE = pa.table({"id": ["a"], "score": [0.5]})


@dataclass(frozen=True)
class RefusedTables:
    """Tables that cannot be joined."""

    tables: list[pa.Table]
    message_parts: list[str]
    """Texts that the message has, among them the file."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the schema that are not the default ones."""


REFUSED_TABLES = {
    "no id": RefusedTables(
        tables=[TABLE.drop_columns("id")],
        message_parts=["0.parquet: a table of attributes lacks a column", "'id'", "found: score"],
    ),
    "no id of the name in the settings": RefusedTables(
        tables=[TABLE],
        settings={"id": "doc"},
        message_parts=["lacks a column", "'doc'", "attributes.web.id"],
    ),
    "no column of the name in the settings": RefusedTables(
        tables=[TABLE],
        settings={"columns": ["gone"]},
        message_parts=["lacks a column", "'gone'", "attributes.web.columns"],
    ),
    "fewer columns than the first table": RefusedTables(
        tables=[TABLE, TABLE.drop_columns("score")],
        message_parts=["1.parquet: a table of attributes lacks", "'score'"],
    ),
    "more columns than the first table": RefusedTables(
        tables=[TABLE, TABLE.append_column("lang", [["en"]])],
        message_parts=["1.parquet: tables", "differ", "'lang'", "0.parquet: id, score"],
    ),
    "another type than in the first table": RefusedTables(
        tables=[TABLE, TABLE.set_column(1, "score", [[1]])],
        message_parts=["1.parquet: tables", "'score' of int64", "double, as in"],
    ),
    "a name that a kept column of documents has": RefusedTables(
        tables=[TABLE.append_column("kept", [[1]])],
        message_parts=["0.parquet: documents have a column of this name already", "'kept'"],
    ),
    "a name that all documents have": RefusedTables(
        tables=[TABLE.append_column("tokens", [[1]])],
        message_parts=["of this name already", "'tokens'", "attributes.web.columns"],
    ),
    "two columns of one name": RefusedTables(
        tables=[TABLE.append_column("score", [[1.0]])],
        message_parts=["differ", "two columns 'score'"],
    ),
    "ids that are fractions": RefusedTables(
        tables=[TABLE.set_column(0, "id", [[0.5]])],
        message_parts=["ids are texts or whole numbers", "'id' of double"],
    ),
    "a list of bytes": RefusedTables(
        tables=[TABLE.append_column("raw", [[[b"\xff"]]])],
        message_parts=["0.parquet: a column of attributes cannot be kept"],
    ),
}


@pytest.mark.parametrize("case", REFUSED_TABLES.values(), ids=REFUSED_TABLES.keys())
def test_tables_that_cannot_be_joined_are_refused_with_the_reason(tmp_path, case):
    with pytest.raises(NanosetError) as caught:
        read_tables(tmp_path / "files", case.tables, **case.settings)

    message = str(caught.value)
    missing_parts = [part for part in case.message_parts if part not in message]
    assert missing_parts == [], message


def test_a_file_that_is_no_table_is_refused_with_its_name(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b'{"id": 1}\n')
    schema = AttributeSchema("id", columns=None, reserved=(), setting="attributes.web")
    tables = AttributeTables(tmp_path, [stat_file(tmp_path, "a.parquet")], schema)

    message = r"a\.parquet: a table of attributes cannot be read\n.*plain text"
    with pytest.raises(NanosetError, match=message):
        tables.read(tmp_path, lambda n_bytes: None)
