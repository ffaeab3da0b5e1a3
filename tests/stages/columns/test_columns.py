"""Values kept beside the tokens of documents: aligned to the shards' tables, of one type for a
corpus.
"""

from __future__ import annotations

import json

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

ROWS = 16
MIXED = [
    1,
    2.5,
    "three",
    True,
    None,
    {"a": [1, "é"]},
    2**53 + 1,
    2**63,
    1e-7,
    float("nan"),
    "x" * 5000,
]
WIDE = [
    "1",
    "2.5",
    "three",
    "true",
    None,
    '{"a":[1,"é"]}',
    "9007199254740993",
    "9223372036854775808",
    "1e-7",
]
WIDE += [None, None]


@pytest.fixture(autouse=True)
def _small_row_groups(monkeypatch):
    for module in (document_table, column_table):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", ROWS)


def rows(name, count):
    """Documents, every seventh of which has no tokens."""
    return [
        {
            "id": f"{name}-{number}",
            "text": "" if number % 7 == 3 else f"text {number}",
            "lang": "en" if number % 3 else "de",
            "meta": {"score": number if name < "b" else number / 2},
            "rare": None if number < 40 else number,
            "mixed": MIXED[number % len(MIXED)],
        }
        for number in range(count)
    ]


def project_of(folder, tokenizer_file, files, **documents):
    settings = {
        "documents": {
            "columns": ["lang", "meta.score", "rare", "mixed", "gone"],
            "max_rejected_fraction": 0.9,
            **documents,
        },
        "tokenization": {"preset": "nemo", "append_eod": False, "workers": 1, "range_mib": 0.001},
    }
    file = write_corpus(folder, tokenizer_file, settings)
    web = file.parent / "raw" / "web"
    for path in web.iterdir():
        path.unlink()
    for name, data in files.items():
        (web / name).write_bytes(data)
    return Project.open(file)


def made(project):
    make_inventory(project, "web")
    tokenized = make_shards(project, "web")
    keep_columns(project, "web")
    return tokenized


def test_columns_are_those_of_the_documents_that_have_tokens(tmp_path, tokenizer_file):
    broken = b'{"text": 1, "lang": "xx"}\n\n'
    lines = {name: rows(name, 90) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst")}
    table = [
        {key: value for key, value in row.items() if key != "mixed"}
        for row in rows("d.parquet", 90)
    ]
    files = {name: encoded(name, some, 30) for name, some in lines.items()}
    files["a.jsonl"] = (
        broken
        + files["a.jsonl"][:500]
        + files["a.jsonl"][500:].replace(b'"text": "text 5"', b'"text": 5')
    )
    project = project_of(
        tmp_path / "p", tokenizer_file, files | {"d.parquet": encoded("d.parquet", table, 40)}
    )
    names = ["lang", "meta.score", "rare", "mixed", "gone"]
    tokenized = made(project)
    expected = []
    for name, some in {**lines, "d.parquet": table}.items():
        for number, row in enumerate(some):
            if row["text"] and not (name == "a.jsonl" and number == 5):
                wide = WIDE[number % len(MIXED)] if "mixed" in row else None
                values = {
                    "lang": row["lang"],
                    "meta.score": float(row["meta"]["score"]),
                    "rare": row["rare"],
                }
                expected.append({"id": row["id"], **values, "mixed": wide, "gone": None})
    assert all_rows(project, tokenized, names) == expected
    made_columns = current_output(project, "columns/web")
    facts = made_columns.facts
    nulls = {name: sum(row[name] is None for row in expected) for name in names}
    assert {one["name"]: one["nulls"] for one in facts["columns"]} == nulls
    kinds = ["string", "double", "int", "string", "null"]
    assert [one["kind"] for one in facts["columns"]] == kinds
    assert list(COLUMNS.show(project, made_columns).warnings) != []


@pytest.mark.parametrize("range_mib", [0.001, 0.01, 64])
def test_values_do_not_depend_on_the_cut_into_shards(tmp_path, tokenizer_file, range_mib):
    names = ["int", "number", "large", "any"]
    values = {
        "int": [*range(9)],
        "number": [1, 2.5, 3] * 3,
        "large": [2**60, 0.5, 1] * 3,
        "any": [1, 1.0, "1"] * 3,
    }
    lines = [
        {"text": "a", "id": str(n)} | {name: values[name][n % 9] for name in names}
        for n in range(200)
    ]
    files = {f"{n}.jsonl": json.dumps(line).encode() + b"\n" for n, line in enumerate(lines)}
    project = project_of(tmp_path / "p", tokenizer_file, files, columns=names)
    text = project.config.file.read_text().replace(
        '"range_mib": 0.001', f'"range_mib": {range_mib}'
    )
    project.config.file.write_text(text)
    project = Project.open(project.config.file)
    tokenized = made(project)
    texts = {"large": {2**60: str(2**60), 0.5: "0.5", 1: "1"}, "any": dict.fromkeys([1, "1"], "1")}
    expected = [
        {k: texts.get(k, {}).get(v, v) for k, v in line.items() if k != "text"} for line in lines
    ]
    assert all_rows(project, tokenized, names) == expected
    assert column_types(project, tokenized, names) == [
        "int64",
        "double",
        "string",
        "string",
    ]
