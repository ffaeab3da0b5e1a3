"""Contamination of a project's corpora: matches, policies, clean views, appends, a bucket."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.building import (
    collect_garbage,
    make_corpora,
    make_mappings,
    make_view,
    open_project,
)
from helpers.contamination import (
    QUESTIONS,
    documents_with,
    places_of_matches,
    searched_project,
    with_settings,
    write_questions,
)
from helpers.inspecting import current_output, node_at, verify_at
from helpers.sample_project import jsonl, outputs_of
from nanoset_core.errors import ConfigError, ForbiddenError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import check_config
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.contamination.make import SearchTask, find_contamination
from nanoset_core.stages.contamination.scope import searched_corpora
from nanoset_core.stages.contamination.stage import contaminated_documents
from nanoset_core.stages.stage import Node

# The first file has questions as they are and in other layout, the second one with a word changed.
FILES = {
    "0.jsonl": documents_with(30, {4: QUESTIONS[0], 17: QUESTIONS[2].upper().replace(" ", "\n")}),
    "1.jsonl": documents_with(30, {23: QUESTIONS[1].replace("yellow", "green")}),
}
PLACES = [
    (4, "0.jsonl", 5, "d4", "a.jsonl", 1),
    (17, "0.jsonl", 18, "d17", "a.jsonl", 3),
    (53, "1.jsonl", 24, "d23", "a.jsonl", 2),
]


@pytest.fixture(scope="module")
def searched(tmp_path_factory, tokenizer_file) -> Path:
    """A project whose corpus was searched for the questions; not to be changed."""
    folder = tmp_path_factory.mktemp("contamination") / "project"
    return searched_project(folder, tokenizer_file, FILES, QUESTIONS)


@pytest.fixture
def project(searched, tmp_path) -> Project:
    """A copy of the project."""
    shutil.copytree(searched.parent, tmp_path / "project", symlinks=True)
    return open_project(tmp_path / "project" / "nanoset.yaml")


@pytest.fixture
def searched_shards(monkeypatch) -> list[int]:
    """The first document of each shard that is searched during the test."""
    first_documents: list[int] = []
    write = SearchTask.write

    def spy(task, folder):
        first_documents.append(task.first)
        return write(task, folder)

    monkeypatch.setattr(SearchTask, "write", spy)
    return first_documents


def append_document_with(project: Project, question: str) -> None:
    """Add a file of 25 documents to the corpus, of which the twelfth holds a question."""
    path = project.config.file.parent / "raw" / "web" / "2.jsonl"
    path.write_bytes(jsonl(documents_with(25, {11: question})))
    make_corpora(project)


def test_matches_name_the_lines_of_documents_and_of_evaluation_texts(project):
    assert places_of_matches(project) == PLACES


def test_the_first_matches_are_facts_of_the_output(project):
    first = current_output(project, "contamination/evals/web").facts["first"][0]

    assert first["share"] == 1.0
    assert first["words"].startswith("if two sailors walk 17 miles to the old harbour of lisbon")


def test_contaminated_documents_are_numbered_in_the_dataset(project):
    assert contaminated_documents(project, "evals", "web").tolist() == [4, 17, 53]


@pytest.mark.parametrize(
    ("policy", "blend", "severities"),
    [
        ("warn", "web", ["warning"]),
        ("warn", "clean", ["warning"]),
        ("block", "web", ["warning"]),
        ("block", "clean", []),
        ("exclude", "web", ["warning"]),
        ("exclude", "clean", []),
    ],
)
def test_a_policy_decides_whether_contaminated_documents_are_reported(
    project, policy, blend, severities
):
    project = with_settings(project, "contamination.evals", policy=policy)
    project = with_settings(project, "nanosets.plain", blend=blend)

    report = verify_at(project, "contamination/evals/web")

    assert [finding.severity for finding in report.findings] == severities


def test_a_section_is_verified_by_its_name(project):
    [report] = verify_project(project, ["evals"])

    assert report.output == "contamination/evals/web"
    assert report.figures["contaminated"] == 3


def test_a_block_names_a_match_and_how_to_leave_it_out(project):
    project = with_settings(project, "contamination.evals", policy="block")
    search = node_at("contamination/evals/web")
    manifest = current_output(project, "contamination/evals/web")

    with pytest.raises(ForbiddenError) as error:
        search.stage.check_allowed(project, search.key, manifest)

    assert error.value.where.endswith("raw/web/0.jsonl:5")
    assert "100% of a.jsonl:1: 'if two sailors" in error.value.found
    assert "clean_of: [evals] instead of web" in error.value.remedy


def test_a_search_without_a_match_allows_training(project):
    write_questions(project.config.file.parent / "evals" / "a.jsonl", ["How are " + "you? " * 20])
    search = node_at("contamination/evals/web")

    manifest = find_contamination(project, "evals", "web")

    search.stage.check_allowed(project, search.key, manifest)


def test_the_default_searches_all_datasets_that_are_trained_on_in_any_format(project):
    project = with_settings(project, "nanosets.plain", blend="other")
    exports = {"copy": {"of": "clean", "format": "datatrove"}}
    config_file = project.config.file
    settings = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**settings, "exports": exports}))

    config = open_project(config_file).config

    assert searched_corpora(config, "evals") == ["other", "web"]


def gates_of_training(project: Project, policy: str, blend: str) -> dict[str, Node]:
    """Return the searches that have to pass before training reads a blend, by their labels."""
    project = with_settings(project, "contamination.evals", policy=policy)
    project = with_settings(project, "nanosets.plain", blend=blend)
    inputs = node_at("nanosets/plain/train/index_mappings").inputs(project.config)
    search = node_at("contamination/evals/web")
    return {label: node for label, node in inputs.items() if node.stage is search.stage}


def test_a_block_has_to_pass_before_training_reads_the_corpus(project):
    gates = gates_of_training(project, policy="block", blend="web")

    assert gates == {"after evals of web": node_at("contamination/evals/web")}


@pytest.mark.parametrize(
    ("policy", "blend"), [("block", "clean"), ("warn", "web"), ("exclude", "web")]
)
def test_other_policies_and_clean_views_do_not_delay_training(project, policy, blend):
    assert gates_of_training(project, policy, blend) == {}


def test_a_block_is_no_parent_of_what_is_made_after_it(project):
    project = with_settings(project, "contamination.evals", policy="block")

    mappings = make_mappings(project, "plain", "train")

    assert set(mappings.recipe["parents"]) == {"web"}


def test_a_clean_view_has_the_other_documents(project):
    view = make_view(project, "clean")

    assert view.facts["documents"] == 57
    assert view.facts["steps"][-1][1] == "clean of evals"


def test_after_an_append_only_the_new_shards_are_searched(project, searched_shards):
    append_document_with(project, QUESTIONS[1])

    find_contamination(project, "evals", "web")

    assert searched_shards == [60]
    assert places_of_matches(project) == [*PLACES, (71, "2.jsonl", 12, "d11", "a.jsonl", 2)]
    assert make_view(project, "clean").facts["documents"] == 81


def test_garbage_collection_keeps_what_was_found_in_shards(project, searched_shards):
    collect_garbage(project)
    shutil.rmtree(project.outputs.folder / "contamination")

    find_contamination(project, "evals", "web")

    assert searched_shards == []
    assert places_of_matches(project) == PLACES


def test_all_shards_are_searched_for_other_evaluation_files(project, searched_shards):
    known_text = documents_with(2, {})[1]["text"]
    write_questions(project.config.file.parent / "evals" / "b.jsonl", [known_text])

    find_contamination(project, "evals", "web")

    assert sorted(searched_shards) == [0, 30]
    assert len(places_of_matches(project)) > len(PLACES)


def test_the_error_for_a_missing_search_says_how_to_make_only_this_search(project):
    shutil.rmtree(project.config.root_folder / "contamination")

    with pytest.raises(MissingError, match="contamination/evals/web has not been built") as caught:
        contaminated_documents(project, "evals", "web")

    assert caught.value.remedy == "run `nanoset build --select evals/web` first"


def test_missing_evaluation_files_are_an_error(project):
    shutil.rmtree(project.config.file.parent / "evals")

    with pytest.raises(MissingError, match=r"contamination\.evals\.files"):
        find_contamination(project, "evals", "web")


def test_impossible_sections_are_errors_of_the_settings(project):
    settings = json.loads(project.config.file.read_text())
    settings["views"]["clean"]["clean_of"] = ["evil"]
    settings["contamination"] = {"evals": {"files": [], "of": ["clean"]}, "plain": {"files": "x"}}

    _, errors = check_config(settings, project.config.file)

    assert sorted(error.what for error in errors) == [
        "a view is searched by way of its corpus",
        "no such section of contamination",
        "there is nothing to look for",
        "two things share a name",
    ]


@pytest.mark.parametrize(
    "files",
    [
        ["evals/a.jsonl", "evals/a.jsonl"],
        ["evals/*.jsonl", "./evals/a.jsonl"],
        ["evals", "linked/a.jsonl"],
    ],
)
def test_an_evaluation_file_with_two_names_is_refused(project, files):
    (project.config.file.parent / "linked").symlink_to("evals")
    project = with_settings(project, "contamination.evals", files=files)

    with pytest.raises(ConfigError, match="named twice"):
        find_contamination(project, "evals", "web")


@pytest.fixture
def project_in_bucket(searched, tmp_path, bucket) -> Project:
    """The same project with its outputs in a bucket, searched there."""
    shutil.copytree(searched.parent, tmp_path / "project", ignore=shutil.ignore_patterns("data"))
    config = tmp_path / "project" / "nanoset.yaml"
    settings = json.loads(config.read_text())
    settings["root"] = bucket.url()
    settings["storage"] = {"endpoint_url": bucket.endpoint_url}
    config.write_text(json.dumps(settings))
    project = open_project(config)
    make_corpora(project)
    find_contamination(project, "evals", "web")
    return project


def test_the_table_of_matches_has_the_same_bytes_in_a_bucket(searched, project_in_bucket, bucket):
    local_digests = outputs_of(searched)
    tables = [
        stored.name
        for stored in bucket.list("contamination")
        if stored.name.endswith("matches.parquet")
    ]

    assert tables
    for name in tables:
        assert bucket.sha256(name) == local_digests[name]


def test_matches_in_a_bucket_are_read_without_local_copies(project_in_bucket):
    shutil.rmtree(project_in_bucket.outputs.folder)  # the copies of this machine

    project = open_project(project_in_bucket.config.file)

    assert places_of_matches(project) == PLACES
    assert make_view(project, "clean").facts["documents"] == 57
