"""Tables are joined by id as a dictionary joins them, whatever hashes, files and types they have."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import NanosetError
from nanoset_core.sampling import hashing
from nanoset_core.stages.attributes import id_index, lookup
from nanoset_core.stages.attributes import tables as attribute_files
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.text.listing import stat_file
from nanoset_core.text.values import MOST_BYTES

HASHES = {
    "as they are": lambda hashes: hashes,
    "of three bits, in one part": lambda hashes: hashes & hashing.U64(7),
    "of four bits, in many parts": lambda hashes: hashes & hashing.U64(0xF << 60),
    "of no bit": lambda hashes: hashes & hashing.U64(0),
}


def read(folder, tables, **settings):
    """Write tables to files and read them; return their lookup, and the names of columns."""
    for number, table in enumerate(tables):
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=37)
    (scratch := folder / "scratch").mkdir()
    files = [stat_file(folder, f"{number}.parquet") for number in range(len(tables))]
    given = {
        "id": "id",
        "columns": None,
        "reserved": ("tokens", "kept"),
        "setting": "attributes.web",
    } | settings
    schema = AttributeSchema(**given)
    looked_up = AttributeTables(folder, files, schema).read(scratch, lambda _: None)
    return looked_up, schema.names


IDS = ["", "é", "x" * 9, *(f"id-{number}" for number in range(200))]


def random_rows(random):
    """Return rows with ids of which some repeat, some are missing, and columns with gaps."""
    return [
        {
            "id": None if random.random() < 0.05 else str(random.choice(IDS)),
            "score": None if random.random() < 0.3 else float(random.random()),
            "topic": int(random.integers(-5, 5)),
            "wide": int(random.integers(2**63 - 2, 2**63, dtype=np.uint64)),
            "good": bool(random.integers(2)),
            "words": str(random.choice(IDS)) if number % 3 else None,
            "late": number if number > 150 else None,
            "last": f"row {number}" if number > 150 else None,
        }
        for number in range(int(random.integers(1, 300)))
    ]


def table_of(rows):
    """Return rows as a table; a table in which `late` has no value has no type for it."""
    has_late = any(row["late"] is not None for row in rows)
    types = {
        "id": pa.dictionary(pa.int32(), pa.string()),
        "score": pa.float32(),
        "topic": pa.int16(),
        "wide": pa.uint64(),
        "good": pa.bool_(),
        "words": pa.large_string(),
        "late": pa.int64() if has_late else pa.null(),
        "last": pa.string(),
    }
    return pa.Table.from_pylist(rows, pa.schema(types))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hashes", HASHES)
def test_rows_are_those_that_a_dictionary_finds(tmp_path, monkeypatch, hashes, seed):
    hash_texts = hashing.hash_texts
    monkeypatch.setattr(hashing, "hash_texts", lambda array: HASHES[hashes](hash_texts(array)))
    monkeypatch.setattr(id_index, "_PART_BITS", 5)
    for module in (id_index, lookup, attribute_files):
        monkeypatch.setattr(module, "CHUNK_ROWS", 50)

    # Rows in three tables, and the first row and the count of each id.
    random = np.random.default_rng(seed)
    rows = random_rows(random)
    first, second = sorted(random.integers(0, len(rows) + 1, 2).tolist())
    tables = [table_of(part) for part in (rows[:first], rows[first:second], rows[second:])]
    row_by_id = {}
    for row in rows:
        if row["id"] is not None:
            row_by_id.setdefault(row["id"], row)
    occurrences = Counter(row["id"] for row in rows)

    looked_up, names = read(tmp_path / "files", tables)
    ids = [*map(str, random.choice([*IDS, "nobody", "id-1x"], 400)), None]
    numbers, is_repeated = looked_up.open_files().find(pa.array(ids, pa.string()))
    columns = looked_up.open_files().take(numbers)

    assert [int(number) >= 0 for number in numbers] == [one in row_by_id for one in ids]
    assert is_repeated.tolist() == [one in row_by_id and occurrences[one] > 1 for one in ids]
    assert looked_up.count_unmatched() == len(row_by_id.keys() - set(ids))
    for name, column in zip(names, columns, strict=True):
        expected = [row_by_id[one][name] if one in row_by_id else None for one in ids]
        if name == "score":  # stored with 32 bits
            expected = pa.array(expected, pa.float32()).cast(pa.float64()).to_pylist()
        assert column.to_pylist() == expected, name


ONE = pa.table({"id": ["a"], "score": [0.5]})
CANNOT = {
    "no id": (
        [ONE.drop_columns("id")],
        {},
        "0.parquet: a table of attributes lacks a column; 'id'; found: score",
    ),
    "other id": ([ONE], {"id": "doc"}, "lacks a column; 'doc'; attributes.web.id"),
    "not there": ([ONE], {"columns": ["gone"]}, "lacks a column; 'gone'; attributes.web.columns"),
    "fewer": (
        [ONE, ONE.drop_columns("score")],
        {},
        "1.parquet: a table of attributes lacks; 'score'",
    ),
    "more": (
        [ONE, ONE.append_column("lang", [["en"]])],
        {},
        "1.parquet: tables; differ; 'lang'; 0.parquet: id, score",
    ),
    "type": (
        [ONE, ONE.set_column(1, "score", [[1]])],
        {},
        "1.parquet: tables; 'score' of int64; double, as in",
    ),
    "kept": (
        [ONE.append_column("kept", [[1]])],
        {},
        "0.parquet: documents have a column of this name already; 'kept'",
    ),
    "own": (
        [ONE.append_column("tokens", [[1]])],
        {},
        "of this name already; 'tokens'; attributes.web.columns",
    ),
    "twice": ([ONE.append_column("score", [[1.0]])], {}, "differ; two columns 'score'"),
    "id type": (
        [ONE.set_column(0, "id", [[0.5]])],
        {},
        "ids are texts or whole numbers; 'id' of double",
    ),
    "no value": (
        [ONE.append_column("raw", [[[b"\xff"]]])],
        {},
        "0.parquet: a column of attributes cannot be kept",
    ),
}


@pytest.mark.parametrize("case", CANNOT)
def test_tables_that_cannot_be_joined_are_named(tmp_path, case):
    tables, settings, says = CANNOT[case]
    with pytest.raises(NanosetError) as caught:
        read(tmp_path / "files", tables, **settings)
    assert [part for part in says.split("; ") if part not in str(caught.value)] == [], str(
        caught.value
    )


def test_values_are_kept_as_those_of_raw_text_and_files_that_are_no_tables_are_named(tmp_path):
    values = {
        "at": pa.array([0], pa.timestamp("s")),
        "many": [[1, 2]],
        "long": ["é" * 3000],
        "id": [7],
        "left": [0],
    }
    texts = {"at": ["now"], "many": [{"a": 1}], "long": [b"x"], "id": [8]}
    looked_up, names = read(
        tmp_path / "files", [pa.table(values), pa.table(texts)], columns=["long", "many", "at"]
    )
    assert names == ["long", "many", "at"]
    found, _ = looked_up.open_files().find(pa.array(["7"]))
    long, many, at = (column[0].as_py() for column in looked_up.open_files().take(found))
    assert len(long.encode()) > MOST_BYTES, "so that it is counted as left out"
    assert (many, at) == ("[1,2]", "1970-01-01T00:00:00.000")
    (tmp_path / "a.parquet").write_bytes(b'{"id": 1}\n')
    schema = AttributeSchema("id", None, (), "attributes.web")
    tables = AttributeTables(tmp_path, [stat_file(tmp_path, "a.parquet")], schema)
    with pytest.raises(
        NanosetError, match=r"a\.parquet: a table of attributes cannot be read\n.*plain text"
    ):
        tables.read(tmp_path, lambda _: None)
