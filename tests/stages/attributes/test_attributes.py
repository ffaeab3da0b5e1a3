"""Another team's tables are joined to the documents of a corpus, and views choose by them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.building import make_columns, make_corpora, make_view
from helpers.inspecting import current_dataset, current_output, node_at
from helpers.sample_project import jsonl, outputs_of, write_corpus
from nanoset_core.errors import InputError
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.graph.built_inputs import changes_against_built_inputs
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.project.settings import check_config
from nanoset_core.project.verify import verify_project
from nanoset_core.stages import per_shard
from nanoset_core.stages.attributes import lookup
from nanoset_core.stages.attributes import make as attributes
from nanoset_core.stages.attributes.make import join_attributes
from nanoset_core.stages.attributes.names import COUNTS
from nanoset_core.stages.attributes.stage import ATTRIBUTE_TABLES, ATTRIBUTES
from nanoset_core.stages.report import Report
from nanoset_core.stages.stage import Key, Node

WEB = Key("web")
N_DOCUMENTS = 90
DOCUMENTS_PER_FILE = 15
N_SCORED = 100
"""The tables have scores of the documents 0 to 99, of which the corpus does not have the last ten."""
REPEATED_ROWS = {"id": ["d1", "d1", "d2"], "quality": [9.0, 8.0, 7.0]}
"""Rows whose ids earlier rows have, so that they are not used."""
SETTINGS = {
    "attributes": {"web": "scores"},
    "documents": {"columns": ["lang"]},
    "tokenization": {"range_mib": 0.001, "workers": 1},
    "views": {
        "good": {"of": "web", "where": "quality >= 0.5 and lang = 'en'"},
        "plain": {"of": "web", "where": "lang = 'en'"},
    },
}


def has_id(number: int) -> bool:
    """Return whether a document has an id."""
    return number % 10 != 0


def is_english(number: int) -> bool:
    """Return whether the column `lang` of a document is `en`."""
    return number % 3 != 0 and has_id(number)


def has_score(number: int) -> bool:
    """Return whether the tables have a row for a document."""
    return number % 7 != 0


def quality(number: int) -> float:
    """Return the score of a document."""
    return number % 4 / 4


def documents(numbers: Iterable[int]) -> list[dict[str, str]]:
    """Return documents of raw text."""
    rows = []
    for number in numbers:
        row = {"text": f"text {number} " * 12, "lang": "de"}
        if is_english(number):
            row["lang"] = "en"
        if has_id(number):
            row["id"] = f"d{number}"
        rows.append(row)
    return rows


def scores(numbers: Iterable[int]) -> pa.Table:
    """Return a table of the scores of documents."""
    scored = [number for number in numbers if has_score(number)]
    ids = [f"d{number}" for number in scored]
    return pa.table({"id": ids, "quality": [quality(number) for number in scored]})


def build(project: Project) -> None:
    """Make everything that the settings name."""
    make_corpora(project)
    make_columns(project, "web")
    join_attributes(project, "web")
    for name in project.config.views:
        make_view(project, name)


@pytest.fixture(scope="module")
def built_file(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project with joined attributes; tests change only copies of it."""
    folder = tmp_path_factory.mktemp("attributes") / "project"
    file = write_corpus(folder, tokenizer_file, SETTINGS)

    # The documents take the place of those of the sample project.
    raw = folder / "raw" / "web"
    shutil.rmtree(raw)
    raw.mkdir()
    for first in range(0, N_DOCUMENTS, DOCUMENTS_PER_FILE):
        rows = documents(range(first, first + DOCUMENTS_PER_FILE))
        (raw / f"a{first}.jsonl").write_bytes(jsonl(rows))

    # Spark leaves a mark next to the tables that it writes.
    tables = folder / "scores"
    tables.mkdir()
    (tables / "_SUCCESS").touch()
    pq.write_table(scores(range(60)), tables / "1.parquet")
    last_table = pa.concat_tables([scores(range(60, N_SCORED)), pa.table(REPEATED_ROWS)])
    pq.write_table(last_table, tables / "2.parquet")

    build(Project.open(file))
    return file


@pytest.fixture(scope="module")
def built(built_file: Path) -> Project:
    """The project with joined attributes, for tests that only read."""
    return Project.open(built_file)


@pytest.fixture
def project(built_file: Path, tmp_path: Path) -> Project:
    """A copy of the project with joined attributes."""
    return copy_project(built_file, tmp_path / "project")


def copy_project(file: Path, folder: Path) -> Project:
    """Copy the folder of a nanoset.yaml, and open the copy."""
    shutil.copytree(file.parent, folder, symlinks=True)
    return Project.open(folder / file.name)


def reopen(project: Project, **settings: str) -> Project:
    """Change settings of a project's attributes, and open the project again."""
    file = project.config.file
    config = json.loads(file.read_text())
    config["attributes"] = {"web": {"files": "scores"} | settings}
    file.write_text(json.dumps(config))
    return Project.open(file)


def joined_output(project: Project) -> Any:
    """Return the manifest of the current joined attributes."""
    return current_output(project, "attributes/web")


def shard_tables(project: Project) -> set[Path]:
    """Return the folders of the joined tables of single shards."""
    return set((project.outputs.folder / ATTRIBUTE_TABLES.layout.folder / "web").iterdir())


def verify_attributes(project: Project, *, deep: bool = False) -> Report:
    """Verify the joined attributes, and return the report on them."""
    *_, report = verify_project(project, ["web/attributes"], deep=deep)
    assert report.output == "attributes/web"
    return report


# What is joined, and what has no match


def test_a_view_chooses_documents_by_joined_columns(built):
    n_good = 0
    for number in range(N_DOCUMENTS):
        if has_score(number) and quality(number) >= 0.5 and is_english(number):
            n_good += 1

    assert current_dataset(built, "good").facts["documents"] == n_good


def test_a_view_depends_on_attributes_only_if_its_condition_names_one_of_them(built):
    plain = node_at("views/plain", of="web")
    good = node_at("views/good", of="web")

    assert plain.inputs(built.config).keys() == {"dataset", "columns"}
    assert good.inputs(built.config).keys() == {"dataset", "columns", "attributes"}


def test_the_manifest_counts_documents_and_rows_without_a_match(built):
    scored = [number for number in range(N_SCORED) if has_score(number)]
    with_score = {number for number in range(N_DOCUMENTS) if has_id(number) and has_score(number)}

    facts = joined_output(built).facts

    assert len(facts["shards"]) > 3
    assert {name: facts[name] for name in (*COUNTS, "documents", "rows")} == {
        "missing": N_DOCUMENTS - len(with_score),
        "without_id": 9,
        "duplicates": 2,
        "unmatched": len(set(scored) - with_score),
        "documents": N_DOCUMENTS,
        "rows": len(scored) + 3,
    }


def test_documents_and_ids_without_a_match_are_shown_as_warnings(built):
    manifest = joined_output(built)
    counts = [str(manifest.facts[name]) for name in ("missing", "duplicates", "unmatched")]

    warnings = list(ATTRIBUTES.show(built, manifest).warnings)

    assert [warning.split(" ")[0] for warning in warnings] == counts
    assert warnings[0].endswith(", as 'd7'; 9 of them have no id")


def test_verification_reports_documents_and_ids_without_a_match_as_warnings(project):
    report = verify_attributes(project, deep=True)

    assert [finding.severity for finding in report.findings] == ["warning"] * 3


def test_verification_finds_values_of_other_rows(project, monkeypatch):
    find = lookup.OpenLookup.find
    with monkeypatch.context() as patch:
        patch.setattr(lookup.OpenLookup, "find", lambda self, ids: find(self, ids[::-1]))
        join_attributes(Project.open(project.config.file, rebuild=True), "web")

    report = verify_attributes(project)

    assert "has other values than the tables it was made from" in report.errors[0].what


# What is joined again after a change


def test_tables_that_another_build_makes_in_the_meantime_do_not_change_the_counts(
    project, monkeypatch
):
    """Otherwise the manifest would depend on which of two builds made which table."""
    expected = joined_output(project)
    shutil.rmtree(expected.folder)
    # The tables exist, but this build does not see them when it looks which ones to make.
    monkeypatch.setattr(per_shard, "_find_existing", lambda outputs, root: {})

    manifest = join_attributes(project, "web")

    assert manifest.facts == expected.facts


class AppendedProject(NamedTuple):
    """A project after raw text was appended to its corpus, and attributes were joined to it."""

    project: Project
    digest: str
    """Digest of the joined attributes."""
    facts: dict[str, Any]
    """Facts of the joined attributes."""
    facts_before: dict[str, Any]
    """Facts of the attributes that were joined before the append."""
    tables_before: set[str]
    """Names of the tables of single shards before the append."""


@pytest.fixture(scope="module")
def appended(built_file: Path, tmp_path_factory: pytest.TempPathFactory) -> AppendedProject:
    """A project after five documents were appended; tests only read it."""
    project = copy_project(built_file, tmp_path_factory.mktemp("appended") / "project")
    facts_before = joined_output(project).facts
    tables_before = {table.name for table in shard_tables(project)}

    new_documents = documents(range(N_DOCUMENTS, N_DOCUMENTS + 5))
    (project.config.file.parent / "raw" / "web" / "b.jsonl").write_bytes(jsonl(new_documents))
    make_corpora(project)
    manifest = join_attributes(project, "web")
    return AppendedProject(
        project=project,
        digest=manifest.digest,
        facts=manifest.facts,
        facts_before=facts_before,
        tables_before=tables_before,
    )


def test_after_an_append_only_the_new_shards_are_joined(appended):
    tables = {table.name for table in shard_tables(appended.project)}
    n_new_shards = len(appended.facts["shards"]) - len(appended.facts_before["shards"])

    assert n_new_shards > 0
    assert len(tables - appended.tables_before) == n_new_shards


def test_after_an_append_ids_of_older_shards_still_count_as_matched(appended):
    n_unmatched_before = appended.facts_before["unmatched"]

    # Of the new documents, d90 has no id and d91 no score.
    assert appended.facts["unmatched"] == n_unmatched_before - len(["d92", "d93", "d94"])


def test_after_an_append_garbage_collection_keeps_the_tables_of_older_shards(appended, tmp_path):
    project = copy_project(appended.project.config.file, tmp_path / "project")

    collect(project)

    assert {table.name for table in shard_tables(project)} >= appended.tables_before


def test_a_rebuild_after_an_append_gives_the_same_attributes(appended, tmp_path):
    project = copy_project(appended.project.config.file, tmp_path / "project")

    rebuilt = join_attributes(Project.open(project.config.file, rebuild=True), "web")

    assert rebuilt.digest == appended.digest
    assert rebuilt.facts == appended.facts


def add_table(project: Project) -> None:
    """Add a table of attributes that comes before the others."""
    table = pa.table({"id": ["d0"], "quality": [1.5]})
    pq.write_table(table, project.config.file.parent / "scores" / "0.parquet")


def test_after_another_table_was_added_attributes_are_stale(project):
    add_table(project)

    graph = Graph(project, known={})
    assert "files" in changes_against_built_inputs(graph, Node(ATTRIBUTES, WEB))[0]


def test_after_another_table_was_added_views_without_attributes_are_up_to_date(project):
    plain = node_at("views/plain", of="web")

    add_table(project)

    assert not changes_against_built_inputs(Graph(project, known={}), plain)


def test_after_another_table_was_added_all_shards_are_joined_again(project):
    tables_before = {table.name for table in shard_tables(project)}
    add_table(project)

    manifest = join_attributes(project, "web")

    assert tables_before.isdisjoint(manifest.facts["shards"])


# What cannot be joined


def test_a_build_without_tables_is_refused(project):
    shutil.rmtree(project.config.file.parent / "scores")
    recipe = ATTRIBUTES.recipe(project, WEB, {"tokenized": ""})

    refusal = ATTRIBUTES.refusal(project, WEB, recipe, None)

    assert "attributes.web.files" in refusal


def test_ids_that_are_fractions_are_refused(project):
    project = reopen(project, id="quality")

    with pytest.raises(InputError, match="ids are texts or whole numbers"):
        join_attributes(project, "web")


def test_a_corpus_without_ids_is_refused(project):
    file = project.config.file
    config = json.loads(file.read_text())
    config["documents"]["id_key"] = "nothing"
    file.write_text(json.dumps(config))
    project = Project.open(file)
    make_corpora(project)

    with pytest.raises(InputError, match="no document of the corpus has an id"):
        join_attributes(project, "web")


def test_a_path_is_refused_as_the_name_of_a_corpus_with_attributes(built_file):
    config = json.loads(built_file.read_text())
    config["attributes"] = {"../a": "x"}

    _, errors = check_config(config, built_file)

    assert len(errors) == 1


# Policies, which may be changed after attributes were joined


class StrictProject(NamedTuple):
    """A project with joined attributes that violate a policy which was changed afterwards."""

    project: Project
    violation: str
    """What the message says."""
    remedy: str
    """What the remedy says."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            {
                "settings": {"on_missing": "fail"},
                "violation": "20 of 90 documents have no row",
                "remedy": "set on_missing: keep",
            },
            id="on_missing",
        ),
        pytest.param(
            {
                "settings": {"on_duplicate": "fail"},
                "violation": "2 documents have several rows",
                "remedy": "set on_duplicate: first",
            },
            id="on_duplicate",
        ),
    ],
)
def strict(
    request: Any, built_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> StrictProject:
    """A project with joined attributes that violate a policy which was changed afterwards."""
    case = request.param
    copy = copy_project(built_file, tmp_path_factory.mktemp("strict") / "project")
    project = reopen(copy, **case["settings"])
    return StrictProject(project, violation=case["violation"], remedy=case["remedy"])


def test_a_stricter_policy_does_not_change_the_recipe(strict):
    joined = joined_output(strict.project)

    recipe = ATTRIBUTES.recipe(strict.project, WEB, joined.recipe["parents"])

    assert recipe.digest == joined.digest


def test_attributes_that_violate_a_policy_are_at_fault(strict):
    fault = ATTRIBUTES.fault(strict.project, WEB, joined_output(strict.project))

    assert fault.startswith(strict.violation)


def test_a_build_is_refused_if_existing_attributes_violate_a_policy(strict):
    joined = joined_output(strict.project)
    recipe = ATTRIBUTES.recipe(strict.project, WEB, joined.recipe["parents"])

    refusal = ATTRIBUTES.refusal(strict.project, WEB, recipe, None)

    assert refusal == ATTRIBUTES.fault(strict.project, WEB, joined)


def test_verification_reports_a_violated_policy_and_how_to_relax_it(strict):
    report = verify_attributes(strict.project)

    assert report.errors[0].what.startswith(strict.violation)
    assert report.errors[0].remedy.endswith(strict.remedy)


def test_a_violated_policy_fails_without_joining_again(strict, monkeypatch):
    monkeypatch.setattr(attributes, "make_tables", None)

    with pytest.raises(InputError, match=strict.violation):
        join_attributes(strict.project, "web")


# Outputs in a bucket


def test_tables_in_a_bucket_have_the_same_bytes_as_on_a_disk(built_file, tmp_path, bucket):
    # A project with the same raw text, whose outputs and attribute tables are in a bucket.
    folder = tmp_path / "project"
    shutil.copytree(built_file.parent, folder, ignore=shutil.ignore_patterns("data"))
    for path in (folder / "scores").iterdir():
        bucket.put(f"given/{path.name}", path.read_bytes())
    file = folder / "nanoset.yaml"
    settings = json.loads(file.read_text())
    settings["root"] = bucket.url()
    settings["storage"] = {"endpoint_url": bucket.endpoint_url}
    settings["attributes"] = {"web": f"{bucket.url()}/given/*.parquet"}
    file.write_text(json.dumps(settings))

    build(Project.open(file))

    # The tables of both projects have the same checksums.
    local_checksums = []
    for name, sha256 in outputs_of(built_file).items():
        if name.startswith("attribute_tables") and name.endswith("columns.parquet"):
            local_checksums.append(sha256)
    bucket_checksums = []
    for stored in bucket.list("attribute_tables"):
        if stored.name.endswith("columns.parquet"):
            bucket_checksums.append(bucket.sha256(stored.name))
    assert sorted(bucket_checksums) == sorted(local_checksums)

    assert verify_attributes(Project.open(file)).passed
