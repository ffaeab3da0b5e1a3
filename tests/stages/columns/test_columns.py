"""Columns that are kept for documents: one row for each document with tokens, and one type for all
files of a corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.building import make_inventory, make_shards
from helpers.columns import all_rows, column_types
from helpers.inspecting import current_output
from helpers.sample_project import encoded, write_corpus
from nanoset_core.project.project import Project
from nanoset_core.stages.columns import column_table
from nanoset_core.stages.columns.make import keep_columns
from nanoset_core.stages.columns.stage import COLUMNS
from nanoset_core.stages.shards import document_table

ROWS_PER_GROUP = 16
COLUMN_NAMES = ["lang", "meta.score", "rare", "mixed", "gone"]
N_DOCUMENTS_PER_FILE = 90


class MixedValue(NamedTuple):
    """A value of a column whose values have several types, so that all are kept as text."""

    raw: Any
    """The value in raw text."""
    stored: str | None
    """The value that is kept for the document."""


MIXED_VALUES = [
    MixedValue(1, "1"),
    MixedValue(2.5, "2.5"),
    MixedValue("three", "three"),
    MixedValue(True, "true"),
    MixedValue(None, None),
    MixedValue({"a": [1, "é"]}, '{"a":[1,"é"]}'),
    MixedValue(2**53 + 1, "9007199254740993"),  # a double does not hold it
    MixedValue(2**63, "9223372036854775808"),  # an int64 does not hold it
    MixedValue(10**22 + 1, "10000000000000000000001"),  # no type of 64 bits holds it
    MixedValue(1e-7, "1e-7"),
    MixedValue(float("nan"), None),
    MixedValue("x" * 5000, None),  # too long to be kept
]


@pytest.fixture(scope="module", autouse=True)
def _small_row_groups() -> Iterator[None]:
    """Let tables have several row groups."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (document_table, column_table):
            patch.setattr(module, "ROW_GROUP_ROWS", ROWS_PER_GROUP)
        yield


def write_project(
    folder: Path,
    tokenizer_file: Path,
    files: Mapping[str, bytes],
    columns: Sequence[str],
    range_mib: float = 0.001,
) -> Project:
    """Write a project of the corpus `web`, and open it.

    Args:
        folder: The folder of the project, which must not exist.
        tokenizer_file: File of the tokenizer.
        files: Name of each file of raw text → its content.
        columns: Columns that are kept.
        range_mib: How much raw text becomes one shard.
    """
    settings = {
        "documents": {"columns": columns, "max_rejected_fraction": 0.9},
        "tokenization": {
            "preset": "nemo",
            "append_eod": False,
            "workers": 1,
            "range_mib": range_mib,
        },
    }
    file = write_corpus(folder, tokenizer_file, settings)

    # The files take the place of those of the sample project.
    web = file.parent / "raw" / "web"
    for path in web.iterdir():
        path.unlink()
    for name, data in files.items():
        (web / name).write_bytes(data)
    return Project.open(file)


def build_columns(project: Project) -> Any:
    """Tokenize the corpus, keep its columns, and return the manifest of its shards."""
    make_inventory(project, "web")
    tokenized = make_shards(project, "web")
    keep_columns(project, "web")
    return tokenized


# Columns of files in several formats


def raw_documents(name: str) -> list[dict[str, Any]]:
    """Return the documents of a file, of which every seventh one has no tokens."""
    documents = []
    for number in range(N_DOCUMENTS_PER_FILE):
        document: dict[str, Any] = {
            "id": f"{name}-{number}",
            "text": f"text {number}",
            "lang": "de",
            "meta": {"score": number / 2},
            "rare": None,
            "mixed": MIXED_VALUES[number % len(MIXED_VALUES)].raw,
        }
        if number % 7 == 3:
            document["text"] = ""
        if number % 3 != 0:
            document["lang"] = "en"
        if name == "a.jsonl":
            document["meta"] = {"score": number}  # an integer, but a float in the other files
        if number >= 40:
            document["rare"] = number
        documents.append(document)
    return documents


class Raw(NamedTuple):
    """Raw text, and what is kept of it."""

    files: dict[str, bytes]
    """Name of each file → its content."""
    rows: list[dict[str, Any]]
    """Id and columns of each document that has tokens, in order."""


def raw_text() -> Raw:
    """Return files in four formats, of which the first one has lines that are not documents."""
    documents_by_file = {
        name: raw_documents(name) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d.parquet")
    }
    documents_by_file["a.jsonl"][5]["text"] = 5
    for document in documents_by_file["d.parquet"]:
        del document["mixed"]  # a column of Parquet has one type

    files = {}
    rows = []
    for name, documents in documents_by_file.items():
        files[name] = encoded(name, documents, part=40)
        for number, document in enumerate(documents):
            if not document["text"] or document["text"] == 5:
                continue
            mixed = None
            if "mixed" in document:
                mixed = MIXED_VALUES[number % len(MIXED_VALUES)].stored
            row = {
                "id": document["id"],
                "lang": document["lang"],
                "meta.score": float(document["meta"]["score"]),
                "rare": document["rare"],
                "mixed": mixed,
                "gone": None,
            }
            rows.append(row)
    files["a.jsonl"] = b'{"text": 1, "lang": "xx"}\n\n' + files["a.jsonl"]
    return Raw(files, rows)


class KeptColumns(NamedTuple):
    """The columns that were kept of a corpus."""

    project: Project
    tokenized: Any
    """Manifest of the corpus's shards."""
    columns: Any
    """Manifest of its columns."""
    rows: list[dict[str, Any]]
    """The rows that are expected: id and columns of each document that has tokens, in order."""


@pytest.fixture(scope="module")
def kept_columns(
    tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path, _small_row_groups: None
) -> KeptColumns:
    """The columns that were kept of files in four formats."""
    raw = raw_text()
    folder = tmp_path_factory.mktemp("columns") / "project"
    project = write_project(folder, tokenizer_file, raw.files, COLUMN_NAMES)
    tokenized = build_columns(project)
    columns = current_output(project, "columns/web")
    return KeptColumns(project, tokenized, columns, raw.rows)


def test_columns_have_a_row_for_each_document_that_has_tokens(kept_columns):
    rows = all_rows(kept_columns.project, kept_columns.tokenized, COLUMN_NAMES)

    assert rows == kept_columns.rows


def test_missing_values_are_counted_for_each_column(kept_columns):
    expected = {}
    for name in COLUMN_NAMES:
        expected[name] = sum(row[name] is None for row in kept_columns.rows)

    facts = kept_columns.columns.facts

    assert {column["name"]: column["nulls"] for column in facts["columns"]} == expected


def test_a_column_has_the_type_that_holds_its_values_in_all_files(kept_columns):
    facts = kept_columns.columns.facts

    kind_by_name = {column["name"]: column["kind"] for column in facts["columns"]}
    assert list(kind_by_name) == COLUMN_NAMES
    assert kind_by_name == {
        "lang": "string",
        "meta.score": "double",
        "rare": "int",
        "mixed": "string",
        "gone": "null",
    }


def test_values_that_are_too_long_are_left_out_with_a_warning(kept_columns):
    warnings = list(COLUMNS.show(kept_columns.project, kept_columns.columns).warnings)

    # Three files have 8 such values, of which 2 are values of documents without tokens.
    assert "18 values of 'mixed' are longer than 4,096 bytes, and left out" in warnings


def test_columns_of_which_no_document_has_a_value_are_reported(kept_columns):
    warnings = list(COLUMNS.show(kept_columns.project, kept_columns.columns).warnings)

    assert (
        "no document has a value of 'gone': correct `documents.columns`, or list the columns of "
        "this corpus in `corpora.web.columns`"
    ) in warnings


def test_a_deeply_nested_value_is_kept_as_text(tmp_path, tokenizer_file):
    deep_list = "[" * 1000 + "]" * 1000  # Python's json module cannot write it
    lines = f'{{"text": "a", "meta": {{"b": 1}}}}\n{{"text": "a", "meta": {deep_list}}}\n'
    files = {"a.jsonl": lines.encode()}
    project = write_project(tmp_path / "project", tokenizer_file, files, ["meta"])

    tokenized = build_columns(project)

    rows = all_rows(project, tokenized, ["meta"])
    assert [row["meta"] for row in rows] == ['{"b":1}', deep_list]


# The cut into shards

RAW_VALUES = {
    "int": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "number": [1, 2.5, 3],
    "large": [2**60, 0.5, 1],  # a double does not hold all integers of this size
    "any": [1, 1.0, "1"],
}
KEPT_VALUES = {
    "int": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "number": [1.0, 2.5, 3.0],
    "large": ["1152921504606846976", "0.5", "1"],
    "any": ["1", "1", "1"],
}
VALUE_TYPES = ["int64", "double", "string", "string"]


@pytest.mark.parametrize("range_mib", [0.001, 0.01, 64])
def test_values_and_types_do_not_depend_on_the_cut_into_shards(tmp_path, tokenizer_file, range_mib):
    # 200 files with one document each. Each shard alone could have narrower types.
    files = {}
    expected_rows = []
    for number in range(200):
        document = {"text": "a", "id": str(number)}
        row = {"id": str(number)}
        for name in RAW_VALUES:
            index = number % len(RAW_VALUES[name])
            document[name] = RAW_VALUES[name][index]
            row[name] = KEPT_VALUES[name][index]
        files[f"{number}.jsonl"] = json.dumps(document).encode() + b"\n"
        expected_rows.append(row)
    names = list(RAW_VALUES)
    project = write_project(tmp_path / "project", tokenizer_file, files, names, range_mib)

    tokenized = build_columns(project)

    assert all_rows(project, tokenized, names) == expected_rows
    assert column_types(project, tokenized, names) == VALUE_TYPES
