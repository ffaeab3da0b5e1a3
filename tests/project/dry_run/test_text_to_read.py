"""A plan of a build says how much raw text the build reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helpers.building import make_columns, make_corpora, open_project
from helpers.changing import change_setting
from helpers.inspecting import node_at
from helpers.sample_project import jsonl, sentences
from nanoset_core.project.dry_run.text_to_read import text_bytes
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import list_contents
from nanoset_core.stages.inventory.known_files import recall_files
from nanoset_core.stages.inventory.make import inventory_at
from nanoset_core.stages.stage import Node

OUTPUTS = ("inventory/web", "tokenized/web", "columns/web")
"""The outputs of the corpus web for which raw text is read."""
NODES = tuple(node_at(address) for address in OUTPUTS)


@pytest.fixture
def project(make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose corpus web has been tokenized, with the values of a column."""
    # Otherwise files that were written less than two seconds ago count as changed.
    monkeypatch.setattr("nanoset_core.text.inventory.fingerprint_memory._RACY_NS", -(10**18))
    replacements = {"documents: {": "documents: {columns: [note], "}
    project = open_project(make_project(replacements=replacements))
    make_corpora(project, "web")
    make_columns(project, "web")
    return project


def raw_folder(project: Project) -> Path:
    """Return the folder of the corpus web."""
    return project.config.file.parent / "raw/web"


def bytes_of_corpus(project: Project) -> int:
    """Return the size of all text of the corpus web."""
    size = 0
    for ending in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet"):
        size += sum(file.stat().st_size for file in raw_folder(project).rglob(f"*.{ending}"))
    return size


def bytes_to_read(project: Project, nodes: Sequence[Node] = NODES, **options: bool) -> int:
    """Return how much text of the corpus web a build of some outputs reads."""
    return text_bytes(project, nodes, **options)["web"]


def test_all_text_is_read_before_the_first_build(make_project):
    project = open_project(make_project())

    assert bytes_to_read(project) == bytes_of_corpus(project)


@pytest.mark.parametrize("node", NODES, ids=OUTPUTS)
def test_only_a_new_file_is_read_after_it_was_added(project, node):
    new_file = raw_folder(project) / "new.jsonl"
    new_file.write_bytes(jsonl(sentences("new", 2)))

    assert bytes_to_read(project, [node]) == new_file.stat().st_size


def test_only_a_file_that_has_changed_is_read(project):
    file = raw_folder(project) / "part-1/web-3.jsonl"
    file.write_bytes(file.read_bytes().replace(b"web", b"WEB"))

    assert bytes_to_read(project) == file.stat().st_size


def test_no_text_is_read_after_a_file_was_removed(project):
    (raw_folder(project) / "part-1/web-3.jsonl").unlink()

    assert bytes_to_read(project) == 0


def test_all_text_is_read_if_settings_of_tokens_have_changed(project):
    project = change_setting(project, "append_eod: true", "append_eod: false")

    assert bytes_to_read(project) == bytes_of_corpus(project)


def test_all_text_is_read_for_another_column(project):
    project = change_setting(project, "columns: [note]", "columns: [note, url]")

    assert bytes_to_read(project) == bytes_of_corpus(project)


def test_all_text_is_read_by_a_build_that_is_forced(project):
    assert bytes_to_read(project, rebuild=True) == bytes_of_corpus(project)


def test_the_list_of_files_is_read_once_for_all_outputs(project, monkeypatch):
    read_digests = []

    def read_inventory(outputs, corpus, digest):
        read_digests.append(digest)
        return inventory_at(outputs, corpus, digest)

    monkeypatch.setattr("nanoset_core.project.dry_run.text_to_read.inventory_at", read_inventory)

    text_bytes(project, NODES)

    assert len(read_digests) == 1


def test_files_that_the_caller_has_listed_are_not_listed_again(project):
    known_files = {"web": recall_files(project, list_contents(project, "web"))}
    (raw_folder(project) / "new.jsonl").write_bytes(jsonl(sentences("new", 2)))

    assert text_bytes(project, NODES, known_files=known_files) == {"web": 0}


def test_all_text_may_be_read_if_the_list_of_files_is_damaged(project):
    for file in (project.outputs.folder / "inventory/web").glob("*/inventory.json"):
        file.write_bytes(b"x" * file.stat().st_size)

    assert bytes_to_read(project) == bytes_of_corpus(project)


def test_all_text_may_be_read_if_a_shard_was_deleted(project):
    shard_folder = next((project.outputs.folder / "shards/web").glob("[0-9a-f]*"))
    shutil.rmtree(shard_folder)

    assert bytes_to_read(project) == bytes_of_corpus(project)
