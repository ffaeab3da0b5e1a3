"""Tables of others, joined by id: as a dictionary joins them, whatever hashes, files and types they
have.
"""

import json
import re
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.building import make_columns, make_corpora, make_view
from helpers.inspecting import current_dataset
from helpers.sample_project import jsonl, outputs_of, write_corpus
from nanoset_core.errors import InputError, NanosetError
from nanoset_core.project.gc import collect
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.project.settings import check_config
from nanoset_core.project.verify import verify_project
from nanoset_core.sampling import hashing
from nanoset_core.stages.attributes import id_index, lookup
from nanoset_core.stages.attributes import make as attributes
from nanoset_core.stages.attributes import tables as attribute_files
from nanoset_core.stages.attributes.make import join_attributes
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.stages.attributes.settings import COUNTS
from nanoset_core.stages.attributes.stage import ATTRIBUTE_TABLES, ATTRIBUTES
from nanoset_core.stages.attributes.tables import AttributeTables
from nanoset_core.stages.columns.column_table import TABLE
from nanoset_core.stages.stage import Key, require
from nanoset_core.stages.views import stage as views
from nanoset_core.text.listing import stat_file
from nanoset_core.text.values import MOST_BYTES

HASHES = {
    "as they are": lambda hashes: hashes,
    "of three bits, in one part": lambda hashes: hashes & hashing.U64(7),
    "of four bits, in many parts": lambda hashes: hashes & hashing.U64(0xF << 60),
    "of no bit": lambda hashes: hashes & hashing.U64(0),
}


def read(folder, tables, **settings):
    """Write tables to files and read them → (their lookup, names of columns)."""
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hashes", HASHES)
def test_rows_are_those_that_a_dictionary_finds(tmp_path, monkeypatch, hashes, seed):
    real = hashing.hash_texts
    monkeypatch.setattr(hashing, "hash_texts", lambda array: HASHES[hashes](real(array)))
    monkeypatch.setattr(id_index, "_PART_BITS", 5)
    for module in (id_index, lookup, attribute_files):
        monkeypatch.setattr(module, "CHUNK_ROWS", 50)
    random = np.random.default_rng(seed)
    texts = ["", "é", "x" * 9, *(f"id-{number}" for number in range(200))]
    rows = [
        {
            "id": None if random.random() < 0.05 else str(random.choice(texts)),
            "score": None if random.random() < 0.3 else float(random.random()),
            "topic": int(random.integers(-5, 5)),
            "wide": int(random.integers(2**63 - 2, 2**63, dtype=np.uint64)),
            "good": bool(random.integers(2)),
            "words": str(random.choice(texts)) if number % 3 else None,
            "late": number if number > 150 else None,
            "last": f"row {number}" if number > 150 else None,
        }
        for number in range(int(random.integers(1, 300)))
    ]
    cuts = sorted(random.integers(0, len(rows) + 1, 2).tolist())
    parts = [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    types = {
        "id": pa.dictionary(pa.int32(), pa.string()),
        "score": pa.float32(),
        "topic": pa.int16(),
    }
    types |= {
        "wide": pa.uint64(),
        "good": pa.bool_(),
        "words": pa.large_string(),
        "last": pa.string(),
    }
    schemas = [
        pa.schema(
            types
            | {"late": pa.int64() if any(row["late"] is not None for row in part) else pa.null()}
        )
        for part in parts
    ]
    looked_up, names = read(tmp_path / "files", list(map(pa.Table.from_pylist, parts, schemas)))
    first, counts = {}, Counter(row["id"] for row in rows if row["id"] is not None)
    for row in rows:
        if row["id"] is not None:
            first.setdefault(row["id"], row)
    asked = [*map(str, random.choice([*texts, "nobody", "id-1x"], 400)), None]
    found, several = looked_up.open().find(pa.array(asked, pa.string()))
    assert [int(row) >= 0 for row in found] == [one in first for one in asked]
    assert several.tolist() == [counts[one] > 1 for one in asked]
    assert looked_up.count_unmatched() == len(first.keys() - set(asked))
    columns = looked_up.open().take(found)
    for name, column in zip(names, columns, strict=True):
        expected = [first[one][name] if one in first else None for one in asked]
        if name == "score":
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
    found, _ = looked_up.open().find(pa.array(["7"]))
    long, many, at = (column[0].as_py() for column in looked_up.open().take(found))
    assert len(long.encode()) > MOST_BYTES, "so that it is counted as left out"
    assert (many, at) == ("[1,2]", "1970-01-01T00:00:00.000")
    (tmp_path / "a.parquet").write_bytes(b'{"id": 1}\n')
    schema = AttributeSchema("id", None, (), "attributes.web")
    tables = AttributeTables(tmp_path, [stat_file(tmp_path, "a.parquet")], schema)
    with pytest.raises(
        NanosetError, match=r"a\.parquet: a table of attributes cannot be read\n.*plain text"
    ):
        tables.read(tmp_path, lambda _: None)


DOCUMENTS = 90
SETTINGS = {
    "attributes": {"web": "scores"},
    "documents": {"columns": ["lang"]},
    "tokenization": {"range_mib": 0.001, "workers": 1},
    "views": {
        "good": {"of": "web", "where": "quality >= 0.5 and lang = 'en'"},
        "plain": {"of": "web", "where": "lang = 'en'"},
    },
}


def documents(first, count):
    """Of which every tenth has no id."""
    numbers = range(first, first + count)
    rows = [
        {"text": f"text {n} " * 12, "lang": "en" if n % 3 else "de", "id": f"d{n}"} for n in numbers
    ]
    return [
        row if n % 10 else {"text": row["text"], "lang": "de"}
        for n, row in zip(numbers, rows, strict=True)
    ]


def scores(first, count):
    """Of every seventh document there are none."""
    numbers = [n for n in range(first, first + count) if n % 7]
    return {"id": [f"d{n}" for n in numbers], "quality": [n % 4 / 4 for n in numbers]}


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer_file):
    """A project with attributes that are joined; not to be written to."""
    file = write_corpus(tmp_path_factory.mktemp("attributes") / "project", tokenizer_file, SETTINGS)
    shutil.rmtree(file.parent / "raw" / "web")
    (file.parent / "raw" / "web").mkdir()
    for first in range(0, DOCUMENTS, 15):
        (file.parent / "raw" / "web" / f"a{first}.jsonl").write_bytes(jsonl(documents(first, 15)))
    (file.parent / "scores").mkdir()
    pq.write_table(pa.table(scores(0, 60)), file.parent / "scores" / "1.parquet")
    (file.parent / "scores" / "_SUCCESS").touch()
    repeated = pa.table({"id": ["d1", "d1", "d2"], "quality": [9.0, 8.0, 7.0]})
    pq.write_table(
        pa.concat_tables([pa.table(scores(60, 40)), repeated]), file.parent / "scores" / "2.parquet"
    )
    built(Project.open(file))
    return file


@pytest.fixture
def project(made, tmp_path):
    """A copy of it."""
    shutil.copytree(made.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / "nanoset.yaml")


def built(project):
    make_corpora(project)
    make_columns(project, "web")
    join_attributes(project, "web")
    for name in project.config.views:
        make_view(project, name)


def tables_of(project):
    return set((project.outputs.folder / ATTRIBUTE_TABLES.layout.folder / "web").iterdir())


def changed(project, **settings):
    """The same project with other settings of attributes."""
    given = json.loads(project.config.file.read_text())
    given["attributes"] = {"web": {"files": "scores"} | settings}
    project.config.file.write_text(json.dumps(given))
    return Project.open(project.config.file)


def test_views_choose_by_joined_columns_and_counts_are_told(project):
    found = require(project, ATTRIBUTES, Key("web"))
    numbers = [n for n in range(DOCUMENTS) if n % 10 and n % 7]
    assert current_dataset(project, "good").facts["documents"] == sum(
        n % 4 >= 2 and n % 3 > 0 for n in numbers
    )
    assert len(found.facts["shards"]) > 3
    facts = {name: found.facts[name] for name in (*COUNTS, "documents", "rows")}
    assert facts == {
        "missing": DOCUMENTS - len(numbers),
        "without_id": 9,
        "duplicates": 2,
        "unmatched": sum(n % 7 > 0 and (n >= DOCUMENTS or n % 10 == 0) for n in range(100)),
        "documents": DOCUMENTS,
        "rows": sum(n % 7 > 0 for n in range(100)) + 3,
    }
    warnings = list(ATTRIBUTES.show(project, found).warnings)
    assert warnings[0].endswith(", as 'd7'; 9 of them have no id")
    assert [text.split(" ")[0] for text in warnings] == [
        str(facts[k]) for k in ("missing", "duplicates", "unmatched")
    ]
    assert views.VIEW.inputs(project.config, Key("web", "plain")).keys() == {"dataset", "columns"}
    assert views.VIEW.inputs(project.config, Key("web", "good")).keys() == {
        "dataset",
        "columns",
        "attributes",
    }
    reports = {report.output: report for report in verify_project(project, ["web"], deep=True)}
    assert [finding.severity for finding in reports["attributes/web"].findings] == ["warning"] * 3


def test_after_an_append_new_shards_alone_are_joined_and_another_file_joins_all(
    project, monkeypatch
):
    before = tables_of(project)
    facts = require(project, ATTRIBUTES, Key("web")).facts
    (project.config.file.parent / "raw" / "web" / "b.jsonl").write_bytes(
        jsonl(documents(DOCUMENTS, 5))
    )
    make_corpora(project)
    made = join_attributes(project, "web")
    assert len(tables_of(project) - before) == len(made.facts["shards"]) - len(facts["shards"]) > 0
    assert made.facts["unmatched"] == facts["unmatched"] - 3, (
        "ids that older shards have are known, too"
    )
    collect(project)
    assert tables_of(project) >= before
    again = join_attributes(Project.open(project.config.file, rebuild=True), "web")
    assert (again.digest, again.facts) == (made.digest, made.facts)
    make_columns(project, "web")
    make_view(project, "plain")
    pq.write_table(
        pa.table({"id": ["d0"], "quality": [1.5]}),
        project.config.file.parent / "scores" / "0.parquet",
    )
    assert "files" in stale_reasons(project, ATTRIBUTES, Key("web"))[0]
    assert not stale_reasons(project, views.VIEW, Key("web", "plain"))
    join_attributes(project, "web")
    assert not before & {place for place in tables_of(project) if place.name in join_facts(project)}
    shutil.rmtree(project.config.file.parent / "scores")
    reasons = ATTRIBUTES.refusal(
        project, Key("web"), ATTRIBUTES.recipe(project, Key("web"), {"tokenized": ""}), None
    )
    assert "attributes.web.files" in reasons


def join_facts(project):
    return require(project, ATTRIBUTES, Key("web")).facts["shards"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"on_missing": "fail"}, r"^20 of 90 documents have no row"),
        ({"on_duplicate": "fail"}, "2 documents have several rows"),
        ({"id": "quality"}, "ids are texts or whole numbers"),
    ],
)
def test_policies_judge_what_was_made_and_make_nothing_again(project, monkeypatch, settings, says):
    before, judged = require(project, ATTRIBUTES, Key("web")), changed(project, **settings)
    if "id" not in settings:
        monkeypatch.setattr(attributes, "make_tables", None)
        assert re.search(
            says.strip("^").replace("20 ", ""), ATTRIBUTES.fault(judged, Key("web"), before)
        )
        wanted = ATTRIBUTES.recipe(judged, Key("web"), before.recipe["parents"])
        assert wanted.digest == before.digest
        assert ATTRIBUTES.refusal(judged, Key("web"), wanted, None) == ATTRIBUTES.fault(
            judged, Key("web"), before
        )
        [*_, report] = verify_project(judged, ["web/attributes"])
        assert report.errors[0].remedy.split(" ")[-2].startswith("on_")
    with pytest.raises(InputError, match=says.replace("20", r"\d+").strip("^")):
        join_attributes(judged, "web")


def test_documents_without_ids_and_values_that_are_others_are_found(project, monkeypatch):
    text = project.config.file.read_text()
    with monkeypatch.context() as patch:
        find = lookup.OpenLookup.find
        patch.setattr(lookup.OpenLookup, "find", lambda self, ids: find(self, ids[::-1]))
        join_attributes(Project.open(project.config.file, rebuild=True), "web")
    [*_, report] = verify_project(project, ["web/attributes"])
    assert "does not have the values of the rows" in report.errors[0].what
    project.config.file.write_text(
        text.replace('"columns": ["lang"]', '"columns": ["lang"], "id_key": "nothing"')
    )
    other = Project.open(project.config.file)
    make_corpora(other)
    with pytest.raises(InputError, match="no document of the corpus has an id"):
        join_attributes(other, "web")
    _, errors = check_config({**json.loads(text), "attributes": {"../a": "x"}}, project.config.file)
    assert len(errors) == 1


def test_the_same_bytes_in_a_bucket(made, tmp_path, bucket):
    shutil.copytree(made.parent, tmp_path / "project", ignore=shutil.ignore_patterns("data"))
    file = tmp_path / "project" / "nanoset.yaml"
    settings = json.loads(file.read_text()) | {
        "root": bucket.url(),
        "storage": {"endpoint_url": bucket.endpoint_url},
    }
    settings["attributes"] = {"web": f"{bucket.url()}/given/*.parquet"}
    for one in (file.parent / "scores").iterdir():
        bucket.put(f"given/{one.name}", one.read_bytes())
    file.write_text(json.dumps(settings))
    built(Project.open(file))
    here = {name for name in outputs_of(made) if name.endswith(TABLE)}
    tables = [
        stored.name for stored in bucket.list("attribute_tables") if stored.name.endswith(TABLE)
    ]
    contents = Counter(
        outputs_of(made)[name] for name in here if name.startswith("attribute_tables")
    )
    assert Counter(map(bucket.sha256, tables)) == contents
    [*_, report] = verify_project(Project.open(file), ["web/attributes"])
    assert report.passed
