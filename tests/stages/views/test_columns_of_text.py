"""A condition of a view chooses documents by columns of the raw text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.building import make_columns, make_corpora
from helpers.inspecting import (
    current_dataset,
    current_output,
    graph_of,
    node_at,
    read_dataset,
    verify_at,
)
from helpers.sample_project import jsonl, write_corpus
from helpers.views import texts_of
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.views.make import make_view
from nanoset_core.stages.views.verify import verify_view

ROWS = [
    {
        "text": f"text {number}",
        "id": str(number),
        "quality": number % 5 if number < 90 else number % 5 + 0.5,
        "lang": "de" if number % 3 else "en",
    }
    for number in range(120)
]
SETTINGS = {
    "documents": {"columns": ["quality", "lang"]},
    "views": {
        "good": {
            "of": "web",
            "where": "quality >= 3 and lang = 'en'",
            "order": {"by": "quality"},
        },
        "plain": {"of": "web"},
    },
}


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project whose corpus is made, and nothing else; not to be changed."""
    config = write_corpus(tmp_path_factory.mktemp("columns") / "project", tokenizer_file, SETTINGS)
    folder = config.parent / "raw" / "web"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(ROWS[:90]))
    (folder / "b.jsonl").write_bytes(jsonl(ROWS[90:]))
    make_corpora(Project.open(config))
    return config


@pytest.fixture
def project(tokenized, tmp_path) -> Project:
    """A copy of it."""
    shutil.copytree(tokenized.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / tokenized.name)


@pytest.fixture
def with_columns(project) -> Project:
    """The copy, after its columns were made."""
    make_columns(project, "web")
    return project


def reopened(project: Project, old: str, new: str) -> Project:
    """Change nanoset.yaml, and open the project again."""
    text = project.config.file.read_text()
    assert old in text
    project.config.file.write_text(text.replace(old, new))
    return Project.open(project.config.file)


def test_a_view_with_a_condition_needs_the_columns(project):
    with pytest.raises(MissingError, match="columns/web has not been built"):
        make_view(project, "good")


def test_a_condition_chooses_by_values_of_the_raw_text(with_columns):
    view = make_view(with_columns, "good")

    chosen = sorted(
        (row["quality"], number)
        for number, row in enumerate(ROWS)
        if row["quality"] >= 3 and row["lang"] == "en"
    )
    stored = texts_of(read_dataset(with_columns, "web"))
    assert texts_of(read_dataset(with_columns, "good")) == [stored[number] for _, number in chosen]
    assert view.facts["documents"] == len(chosen)
    assert verify_view(with_columns, "web", "good").passed
    assert verify_at(with_columns, "columns/web", deep=True).findings == []


def test_only_a_view_with_a_condition_is_made_from_the_columns(with_columns):
    make_view(with_columns, "plain")  # and all other views of its corpus, in one pass

    good, plain = (
        current_dataset(with_columns, name).recipe["parents"] for name in ("good", "plain")
    )
    assert good.keys() == {"dataset", "columns"}
    assert good["columns"] == current_output(with_columns, "columns/web").digest
    assert plain.keys() == {"dataset"}
    node = node_at("views/good", of="web")
    assert not graph_of(with_columns, "web").stale_reasons(node)
    assert node_at("columns/web") in node.direct_inputs(with_columns.config)


def test_a_condition_on_a_column_that_does_not_exist_is_refused(with_columns):
    changed = reopened(with_columns, "quality >= 3", "grade >= 3")

    with pytest.raises(ConfigError, match="no such column"):
        make_view(changed, "good")


def test_other_columns_need_no_other_tokens(with_columns, monkeypatch):
    columns = '"columns": ["quality", "lang"]'
    changed = reopened(with_columns, columns, '"columns": ["lang", "quality", "id2"]')
    monkeypatch.setattr("nanoset_core.stages.shards.tokenize.tokenize_corpus", None)

    made = make_columns(changed, "web")

    assert [column["name"] for column in made.facts["columns"]] == ["lang", "quality", "id2"]
