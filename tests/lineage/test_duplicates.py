"""Copies of documents under other ids: a purge or takedown leaves them unless they are named."""

from __future__ import annotations

import shutil

import pytest

from helpers.building import make_corpora, make_held_out
from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_core.lineage import duplicates
from nanoset_core.lineage.duplicates import find_copies
from nanoset_core.project.project import Project

VIEWS = "views:\n  kept: {of: web, exclude: drop.txt}\nnanosets:\n"
COPY_WITH_ID = {
    "corpus": "web",
    "id": "mirror",
    "file": "copies.jsonl",
    "line": 1,
    "of": "web-3",
}
COPY_WITHOUT_ID = {
    "corpus": "web",
    "id": None,
    "file": "copies.jsonl",
    "line": 2,
    "of": "web-5",
}
COPY_IN_ANOTHER_CORPUS = {
    "corpus": "books",
    "id": "web-3",
    "file": "copies.jsonl",
    "line": 1,
    "of": "web-3",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory, tokenizer_file):
    """The nanoset.yaml of a project with copies of web-3 and web-5; tests must not write to it."""
    folder = tmp_path_factory.mktemp("copies") / "project"
    replacements = {"nanosets:\n": VIEWS, "  pretrain:\n": "  pretrain:\n    held_out: warn\n"}
    config = write_project(folder, tokenizer_file, replacements)
    (folder / "drop.txt").write_text("web-9\n")

    web = sentences("web", 240)
    text_3 = web[3]["text"]
    text_5 = web[5]["text"]
    documents_of_web = [
        {"id": "mirror", "text": text_3},
        {"text": text_5},
        {"id": "nearly", "text": text_3 + "!"},
        {"id": "empty-1", "text": ""},
        {"id": "empty-2", "text": ""},
    ]
    documents_of_books = [{"id": "web-3", "text": text_3}]
    (folder / "raw/web/copies.jsonl").write_bytes(jsonl(documents_of_web))
    (folder / "raw/books/copies.jsonl").write_bytes(jsonl(documents_of_books))

    make_corpora(Project.open(config))
    return config


@pytest.fixture
def project(config):
    """The project with the copies; tests must not write to it."""
    return Project.open(config)


def places(found_copies):
    """Return where each copy is, and of which document it is one."""
    return [
        {"corpus": copy.corpus, "id": copy.id, "file": copy.file, "line": copy.line, "of": copy.of}
        for copy in found_copies.documents
    ]


def test_a_copy_is_named_with_its_id_file_line_and_tokens(project):
    found_copies = find_copies(project, ["web-3"])

    assert places(found_copies) == [COPY_WITH_ID]
    assert found_copies.documents[0].tokens > 2
    assert not found_copies.not_searched


def test_a_copy_without_an_id_is_named(project):
    assert places(find_copies(project, ["web-5"])) == [COPY_WITHOUT_ID]


def test_a_document_with_the_same_id_in_another_corpus_is_a_copy_if_one_corpus_is_meant(project):
    found_copies = find_copies(project, ["web-3"], ["web"])

    assert places(found_copies) == [COPY_IN_ANOTHER_CORPUS, COPY_WITH_ID]


def test_a_copy_whose_id_is_requested_is_not_reported(project):
    assert places(find_copies(project, ["web-3", "mirror"])) == []


def test_the_original_is_a_copy_of_its_copy(project):
    found_copies = find_copies(project, ["mirror"])

    # One in each corpus has this id.
    assert [copy.id for copy in found_copies.documents] == ["web-3", "web-3"]


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(["empty-1"], id="no text"),
        pytest.param(["web-7"], id="a text of its own"),
        pytest.param(["nobody"], id="no such document"),
        pytest.param([], id="no ids"),
    ],
)
def test_a_document_whose_text_does_not_occur_again_has_no_copies(project, ids):
    assert places(find_copies(project, ids)) == []


def test_a_copy_whose_id_is_to_be_ignored_is_not_reported(project):
    assert places(find_copies(project, ["web-3"], ignored_ids=["mirror"])) == []


def test_a_corpus_with_too_many_documents_of_one_length_is_not_searched(project, monkeypatch):
    monkeypatch.setattr(duplicates, "MAX_COMPARED", 0)

    found_copies = find_copies(project, ["web-3"])

    assert found_copies.documents == []
    # The message says what makes the search possible.
    assert "held_out: warn" in found_copies.not_searched["web"]


def test_with_stored_hashes_the_same_copies_are_named_without_reading_other_documents(
    config, monkeypatch
):
    project = Project.open(config)
    requests = [["web-3"], ["web-5"], ["web-7"]]
    places_without_hashes = [places(find_copies(project, ids)) for ids in requests]
    make_held_out(project, "pretrain")

    # Only true copies may be compared: the original with its copy, and with the one of books.
    monkeypatch.setattr(duplicates, "MAX_COMPARED", 2)
    places_with_hashes = [places(find_copies(project, ids)) for ids in requests]

    assert places_with_hashes == places_without_hashes


def test_a_corpus_that_cannot_be_read_is_reported_with_the_reason(project, monkeypatch):
    open_dataset = duplicates.open_dataset

    def open_all_but_books(dataset, **options):
        if dataset.name == "books":
            raise OSError("a bad disk")
        return open_dataset(dataset, **options)

    monkeypatch.setattr(duplicates, "open_dataset", open_all_but_books)

    found_copies = find_copies(project, ["web-3"])

    assert places(found_copies) == [COPY_WITH_ID]
    assert "a bad disk" in found_copies.not_searched["books"]


def test_a_purge_names_copies_before_it_erases_anything(config):
    printed = invoke_nanoset(["purge", "web-3", "--config", config]).output

    assert "1 other document" in printed
    assert "is not erased unless you name its id" in printed
    assert "mirror" in printed
    assert "copies.jsonl:1" in printed


def test_a_takedown_names_copies_that_are_not_on_the_list_yet(config, tmp_path):
    folder = shutil.copytree(config.parent, tmp_path / "project", symlinks=True)
    options = ["--reason", "asked", "--no-build", "--config", folder]

    # The first document has a copy. The second takedown is of this copy: the first one is listed.
    first = invoke_nanoset(["takedown", "web-3", *options]).output
    second = invoke_nanoset(["takedown", "mirror", *options]).output

    assert "is not taken down unless you name its id" in first
    assert "not taken down" not in second


def test_a_takedown_takes_no_part_of_a_listed_id_for_an_id(config, tmp_path):
    folder = shutil.copytree(config.parent, tmp_path / "project", symlinks=True)
    # Only \n and \r\n divide the ids of a list: this one does not list `mirror`.
    (folder / "drop.txt").write_text("mirror\u2028of another site\n")
    options = ["--reason", "asked", "--no-build", "--config", folder]

    printed = invoke_nanoset(["takedown", "web-3", *options]).output

    assert "is not taken down unless you name its id" in printed
    assert "mirror" in printed
