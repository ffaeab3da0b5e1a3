"""Another team's tables are joined to the documents of a corpus, and views choose by them."""

import json
import re
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.building import make_columns, make_corpora, make_view
from helpers.inspecting import current_dataset, current_output, node_at
from helpers.sample_project import jsonl, outputs_of, write_corpus
from nanoset_core.errors import InputError
from nanoset_core.project.gc import collect
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.project.settings import check_config
from nanoset_core.project.verify import verify_project
from nanoset_core.stages import per_shard
from nanoset_core.stages.attributes import lookup
from nanoset_core.stages.attributes import make as attributes
from nanoset_core.stages.attributes.make import join_attributes
from nanoset_core.stages.attributes.settings import COUNTS
from nanoset_core.stages.attributes.stage import ATTRIBUTE_TABLES, ATTRIBUTES
from nanoset_core.stages.stage import Key

WEB = Key("web")
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
    found = current_output(project, "attributes/web")
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
    plain, good = (node_at(f"views/{name}", of="web") for name in ("plain", "good"))
    assert plain.inputs(project.config).keys() == {"dataset", "columns"}
    assert good.inputs(project.config).keys() == {"dataset", "columns", "attributes"}
    reports = {report.output: report for report in verify_project(project, ["web"], deep=True)}
    assert [finding.severity for finding in reports["attributes/web"].findings] == ["warning"] * 3


def test_tables_that_another_build_makes_in_the_meantime_do_not_change_the_counts(
    project, monkeypatch
):
    """Otherwise the manifest would depend on which of two builds made which table."""
    expected = current_output(project, "attributes/web")
    shutil.rmtree(expected.folder)
    # The tables exist, but this build does not see them when it looks which ones to make.
    monkeypatch.setattr(per_shard, "_find_existing", lambda outputs, root: {})

    joined = join_attributes(project, "web")

    assert joined.facts == expected.facts


def test_after_an_append_new_shards_alone_are_joined_and_another_file_joins_all(
    project, monkeypatch
):
    before = tables_of(project)
    facts = current_output(project, "attributes/web").facts
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
    assert "files" in stale_reasons(project, ATTRIBUTES, WEB)[0]
    plain = node_at("views/plain", of="web")
    assert not stale_reasons(project, plain.stage, plain.key)
    join_attributes(project, "web")
    assert not before & {place for place in tables_of(project) if place.name in join_facts(project)}
    shutil.rmtree(project.config.file.parent / "scores")
    reasons = ATTRIBUTES.refusal(
        project, WEB, ATTRIBUTES.recipe(project, WEB, {"tokenized": ""}), None
    )
    assert "attributes.web.files" in reasons


def join_facts(project):
    return current_output(project, "attributes/web").facts["shards"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"on_missing": "fail"}, r"^20 of 90 documents have no row"),
        ({"on_duplicate": "fail"}, "2 documents have several rows"),
        ({"id": "quality"}, "ids are texts or whole numbers"),
    ],
)
def test_policies_judge_what_was_made_and_make_nothing_again(project, monkeypatch, settings, says):
    before, judged = current_output(project, "attributes/web"), changed(project, **settings)
    if "id" not in settings:
        monkeypatch.setattr(attributes, "make_tables", None)
        assert re.search(says.strip("^").replace("20 ", ""), ATTRIBUTES.fault(judged, WEB, before))
        wanted = ATTRIBUTES.recipe(judged, WEB, before.recipe["parents"])
        assert wanted.digest == before.digest
        assert ATTRIBUTES.refusal(judged, WEB, wanted, None) == ATTRIBUTES.fault(
            judged, WEB, before
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
    here = {name for name in outputs_of(made) if name.endswith("columns.parquet")}
    tables = [
        stored.name
        for stored in bucket.list("attribute_tables")
        if stored.name.endswith("columns.parquet")
    ]
    contents = Counter(
        outputs_of(made)[name] for name in here if name.startswith("attribute_tables")
    )
    assert Counter(map(bucket.sha256, tables)) == contents
    [*_, report] = verify_project(Project.open(file), ["web/attributes"])
    assert report.passed
