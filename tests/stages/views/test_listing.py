"""`nanoset view NAME --ids FILE` lists the documents that a view chooses."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.building import make_corpora
from helpers.changing import change_setting
from helpers.command import json_of, run_nanoset
from helpers.sample_project import jsonl
from helpers.views import origins
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.project.project import Project
from nanoset_core.stages.views.choosing import trial_choice
from nanoset_core.stages.views.ids import can_be_listed, listed_ids


def list_ids(project: Project, view: str, *options: str) -> list[str]:
    """Let the command list the documents of a view, and return the ids in its file."""
    file = project.config.file.parent / "ids.txt"
    run_nanoset("view", view, "--ids", file, "--config", project.config.file, *options)
    return file.read_text().splitlines()


def change_views(project: Project, views: str) -> Project:
    """Add views to the project, and open it again."""
    return change_setting(project, "views:\n", f"views:\n{views}")


@pytest.mark.parametrize("view", ["kept", "held"])
def test_the_list_has_the_id_of_each_document_in_the_order_of_the_corpus(project, view):
    assert list_ids(project, view) == [origin.id for origin in origins(project, view)]


def test_a_document_that_a_view_repeats_is_listed_once(project):
    documents = {origin.id for origin in origins(project, "some")}

    ids = list_ids(project, "some")

    assert len(ids) == len(set(ids))
    assert set(ids) == documents


def test_views_that_were_never_built_can_be_listed(project):
    project = change_views(project, '  short: {of: web, where: "tokens < 20"}\n')

    ids = list_ids(project, "short")

    with trial_choice(project, "short") as chosen:
        assert len(ids) == chosen.selection.documents


def test_a_view_that_excludes_the_list_of_another_one_has_the_other_documents(project):
    list_ids(project, "held")
    project = change_views(project, "  rest: {of: web, exclude: ids.txt}\n")
    all_documents = {origin.id for origin in origins(project, "web")}
    held_documents = {origin.id for origin in origins(project, "held")}

    rest = list_ids(project, "rest")

    assert set(rest) == all_documents - held_documents


def test_the_list_of_a_view_with_no_document_is_empty(project):
    project = change_views(project, '  none: {of: web, where: "tokens < 0"}\n')

    assert list_ids(project, "none") == []


def test_standard_output_is_json_alone(project):
    file = project.config.file.parent / "ids.txt"

    values = json_of("view", "held", "--ids", file, "--json", "--config", project.config.file)

    assert values["name"] == "held"
    assert file.exists()


def test_documents_that_cannot_be_listed_are_counted(project):
    rows = [
        {"text": "a document without an id"},
        {"id": "# 7", "text": "its id looks like a comment"},
        {"id": "8", "text": "a document with an id"},
    ]
    (project.config.file.parent / "raw/web/odd.jsonl").write_bytes(jsonl(rows))
    make_corpora(project)
    project = change_views(project, "  odd: {of: web, where: \"file = 'odd.jsonl'\"}\n")
    file = project.config.file.parent / "ids.txt"

    outcome = run_nanoset("view", "odd", "--ids", file, "--config", project.config.file)

    assert file.read_text() == "8\n"
    assert "1 document without an id cannot be listed" in outcome.stderr
    assert "such as '# 7'" in outcome.stderr
    assert f"1 id written to {file}" in outcome.stdout


def test_an_earlier_list_stays_if_the_view_cannot_be_chosen(project):
    file = project.config.file.parent / "ids.txt"
    file.write_text("kept\n")

    with pytest.raises(ConfigError, match="no such view"):
        run_nanoset("view", "nope", "--ids", file, "--config", project.config.file)

    assert file.read_text() == "kept\n"


def test_a_link_still_leads_to_the_file_that_is_replaced(project):
    folder = project.config.file.parent
    link = folder / "ids.txt"
    link.symlink_to("target.txt")

    ids = list_ids(project, "held")

    assert link.is_symlink()
    assert (folder / "target.txt").read_text().splitlines() == ids


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_not_replaced_by_a_list(project, is_linked):
    folder = project.config.file.parent
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    file = pipe
    if is_linked:
        file = folder / "link"
        file.symlink_to("pipe")

    with pytest.raises(InputError, match="a named pipe"):
        run_nanoset("view", "held", "--ids", file, "--config", project.config.file)

    assert pipe.is_fifo()


@given(st.lists(st.text(alphabet=["a", "#", " ", "\n", "\r", "\ufeff", "é"], max_size=4)))
def test_a_list_is_read_as_it_was_written(tmp_path_factory, ids):
    array = pa.array(ids, pa.large_string())
    listable_ids = array.filter(can_be_listed(array)).to_pylist()
    folder: Path = tmp_path_factory.mktemp("ids")

    (folder / "ids.txt").write_bytes("".join(f"{identity}\n" for identity in listable_ids).encode())

    assert listed_ids(folder, ["ids.txt"]).to_pylist() == listable_ids
