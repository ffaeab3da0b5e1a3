"""Copies of documents under other ids, which a purge or a takedown leaves unless they are named."""

import pytest

from helpers.building import make_corpora, make_held_out
from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_core.lineage import copies
from nanoset_core.lineage.copies import find_copies
from nanoset_core.project.project import Project

VIEWS = "views:\n  kept: {of: web, exclude: drop.txt}\nnanosets:\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory, tokenizer_file):
    """nanoset.yaml of a project with copies of web-3 and web-5; not to be written to."""
    changes = {"nanosets:\n": VIEWS, "  pretrain:\n": "  pretrain:\n    held_out: warn\n"}
    file = write_project(tmp_path_factory.mktemp("copies") / "project", tokenizer_file, changes)
    (file.parent / "drop.txt").write_text("web-9\n")
    web = sentences("web", 240)
    text_3 = web[3]["text"]
    rows = [
        {"id": "mirror", "text": text_3},
        {"text": web[5]["text"]},
        {"id": "nearly", "text": text_3 + "!"},
        {"id": "empty-1", "text": ""},
        {"id": "empty-2", "text": ""},
    ]
    (file.parent / "raw/web/copies.jsonl").write_bytes(jsonl(rows))
    (file.parent / "raw/books/copies.jsonl").write_bytes(jsonl([{"id": "web-3", "text": text_3}]))
    make_corpora(Project.open(file))
    return file


@pytest.fixture
def project(config):
    return Project.open(config)


def places(found):
    return [(copy.corpus, copy.id, copy.file, copy.line, copy.of) for copy in found.documents]


MIRROR = ("web", "mirror", "copies.jsonl", 1, "web-3")


def test_copies_are_named_with_id_file_line_and_tokens(project):
    found = find_copies(project, ["web-3"])

    assert places(found) == [MIRROR]
    assert found.documents[0].tokens > 2
    assert not found.not_searched


def test_a_copy_without_an_id_is_found(project):
    assert places(find_copies(project, ["web-5"])) == [("web", None, "copies.jsonl", 2, "web-5")]


def test_a_document_of_another_corpus_is_a_copy_where_only_one_corpus_is_meant(project):
    found = places(find_copies(project, ["web-3"], ["web"]))

    assert found == [("books", "web-3", "copies.jsonl", 1, "web-3"), MIRROR]


def test_a_copy_that_is_named_itself_is_not_reported(project):
    assert places(find_copies(project, ["web-3", "mirror"])) == []


def test_the_copy_leads_back_to_the_original(project):
    assert [copy.id for copy in find_copies(project, ["mirror"]).documents] == ["web-3", "web-3"]


@pytest.mark.parametrize("ids", [["empty-1"], ["web-7"], ["nobody"], []])
def test_documents_without_copies_have_none(project, ids):
    assert places(find_copies(project, ids)) == []


def test_ignored_ids_are_not_reported(project):
    assert places(find_copies(project, ["web-3"], ignored_ids=["mirror"])) == []


def test_too_many_documents_of_one_length_are_said_to_be_unsearched(project, monkeypatch):
    monkeypatch.setattr(copies, "MAX_COMPARED", 0)

    found = find_copies(project, ["web-3"])

    assert found.documents == []
    assert "held_out: warn" in found.not_searched["web"]


def test_stored_hashes_give_the_same_copies_without_reading_other_documents(
    config, tmp_path, monkeypatch
):
    project = Project.open(config)
    wanted = [places(find_copies(project, ids)) for ids in (["web-3"], ["web-5"], ["web-7"])]
    make_held_out(project, "pretrain")

    # Only true copies are left to compare: the original, its copy, and the one of books.
    monkeypatch.setattr(copies, "MAX_COMPARED", 2)
    assert [
        places(find_copies(project, ids)) for ids in (["web-3"], ["web-5"], ["web-7"])
    ] == wanted


def test_a_corpus_that_cannot_be_read_is_named(project, monkeypatch):
    def refuse(dataset, **options):
        if dataset.name == "books":
            raise OSError("a bad disk")
        return open_dataset(dataset, **options)

    open_dataset = copies.open_dataset
    monkeypatch.setattr(copies, "open_dataset", refuse)

    found = find_copies(project, ["web-3"])

    assert places(found) == [MIRROR]
    assert "a bad disk" in found.not_searched["books"]


def test_a_purge_names_copies_before_anything_is_erased(config):
    printed = invoke_nanoset(["purge", "web-3", "--config", str(config)]).output

    assert "1 other document" in printed
    assert "is not erased unless you name its id" in printed
    assert "mirror" in printed
    assert "copies.jsonl:1" in printed


def test_a_takedown_names_copies_that_are_not_listed_yet(config, tmp_path):
    listed = tmp_path / "list.txt"

    def take_down(identity):
        words = ["takedown", identity, "--reason", "asked", "--no-build", "--list", str(listed)]
        return invoke_nanoset([*words, "--config", str(config)]).output

    assert "is not taken down unless you name its id" in take_down("web-3")
    assert "not taken down" not in take_down("mirror")
