"""A condition of a view chooses documents by columns of the raw text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.building import make_columns, make_corpora
from helpers.changing import change_setting
from helpers.command import output_of
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
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.views.choosing import check_column_names
from nanoset_core.stages.views.make import make_view
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.verify import verify_view

N_ROWS = 120
N_ROWS_OF_FIRST_FILE = 90
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


def make_row(number: int, quality: float) -> dict[str, Any]:
    """Return a document of the corpus, one in three of them in English."""
    language = "de" if number % 3 else "en"
    return {"text": f"text {number}", "id": str(number), "quality": quality, "lang": language}


# The quality is an integer in the first file, and a fraction in the second.
ROWS_OF_FIRST_FILE = [make_row(n, n % 5) for n in range(N_ROWS_OF_FIRST_FILE)]
ROWS_OF_SECOND_FILE = [make_row(n, n % 5 + 0.5) for n in range(N_ROWS_OF_FIRST_FILE, N_ROWS)]
ROWS = ROWS_OF_FIRST_FILE + ROWS_OF_SECOND_FILE


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project whose corpus is made, and nothing else; not to be changed."""
    config = write_corpus(tmp_path_factory.mktemp("columns") / "project", tokenizer_file, SETTINGS)
    folder = config.parent / "raw" / "web"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(ROWS_OF_FIRST_FILE))
    (folder / "b.jsonl").write_bytes(jsonl(ROWS_OF_SECOND_FILE))
    make_corpora(Project.open(config))
    return config


@pytest.fixture
def project(tokenized: Path, tmp_path: Path) -> Project:
    """A copy of that project."""
    shutil.copytree(tokenized.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / tokenized.name)


@pytest.fixture
def project_with_columns(project: Project) -> Project:
    """The copy, after its columns were made."""
    make_columns(project, "web")
    return project


def test_a_view_with_a_condition_needs_the_columns(project):
    with pytest.raises(MissingError, match="columns/web has not been built"):
        make_view(project, "good")


def test_a_condition_chooses_documents_by_values_of_the_raw_text(project_with_columns):
    view = make_view(project_with_columns, "good")

    chosen = []
    for number, row in enumerate(ROWS):
        if row["quality"] >= 3 and row["lang"] == "en":
            chosen.append(number)
    chosen.sort(key=lambda number: ROWS[number]["quality"])  # stable, as the order of a view
    texts = texts_of(read_dataset(project_with_columns, "web"))
    texts_of_view = texts_of(read_dataset(project_with_columns, "good"))
    assert texts_of_view == [texts[number] for number in chosen]
    assert view.facts["documents"] == len(chosen)


def test_a_view_with_a_condition_and_its_columns_pass_verification(project_with_columns):
    make_view(project_with_columns, "good")

    assert verify_view(project_with_columns, "web", "good", deep=False).passed
    assert verify_at(project_with_columns, "columns/web", deep=True).findings == []


def test_only_a_view_with_a_condition_is_made_from_the_columns(project_with_columns):
    # All views of a corpus are made in one pass.
    make_view(project_with_columns, "plain")

    columns = current_output(project_with_columns, "columns/web")
    parents_of_good = current_dataset(project_with_columns, "good").recipe["parents"]
    parents_of_plain = current_dataset(project_with_columns, "plain").recipe["parents"]
    assert parents_of_good.keys() == {"dataset", "columns"}
    assert parents_of_good["columns"] == columns.digest
    assert parents_of_plain.keys() == {"dataset"}


def test_the_columns_are_an_input_of_a_view_with_a_condition(project_with_columns):
    make_view(project_with_columns, "plain")
    node = node_at("views/good", of="web")

    assert not graph_of(project_with_columns, "web").stale_reasons(node)
    assert node_at("columns/web") in node.direct_inputs(project_with_columns.config)


def test_a_condition_on_a_column_that_does_not_exist_is_refused(project_with_columns):
    changed_project = change_setting(project_with_columns, "quality >= 3", "grade >= 3")

    with pytest.raises(ConfigError, match="no such column"):
        make_view(changed_project, "good")


def status_of_good(project: Project) -> StatusRow:
    """Return the row of the view `good` in `nanoset status`."""
    [row] = [row for row in project_status(project) if row.part == "good"]
    return row


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("grade >= 3", "no such column (grade)"),
        ("lang >= 3", "the condition cannot be computed: lang is a column of type string"),
    ],
)
def test_a_view_whose_condition_does_not_fit_the_columns_is_failing(
    project_with_columns, condition, why
):
    project = change_setting(project_with_columns, "quality >= 3", condition)

    row = status_of_good(project)

    assert row.state == "failing"
    assert row.why[0].startswith(why)


def test_a_misspelt_column_is_found_before_the_corpus_is_built(project):
    shutil.rmtree(project.config.root_folder)
    changed_project = change_setting(project, "quality >= 3", "qualty >= 3")

    row = status_of_good(changed_project)

    assert row.state == "failing"
    assert row.why[0].startswith("no such column (qualty)")


def test_of_columns_that_differ_in_case_the_same_one_is_suggested_every_time(project):
    spellings = ["LANG", "LANg", "LAng", "Lang", "lANG", "laNG", "lanG", "lang"]
    project = change_setting(project, '"lang"]', ", ".join(f'"{name}"' for name in spellings) + "]")
    project = change_setting(project, "lang = 'en'", "langg = 'en'")

    with pytest.raises(ConfigError) as error:
        check_column_names(project.config, "good")

    assert error.value.remedy.startswith("did you mean 'lang'?")


def test_a_view_is_missing_while_a_column_that_it_needs_has_to_be_built(project_with_columns):
    project = change_setting(project_with_columns, "quality >= 3", "grade >= 3")
    project = change_setting(project, '"columns": ["quality"', '"columns": ["grade", "quality"')

    assert status_of_good(project).state == "missing"


@pytest.fixture
def project_with_misspelt_column(project: Project) -> Project:
    """The copy, with a column `qualty` without values, since no line has this key."""
    misspelt = change_setting(project, '"columns": ["quality"', '"columns": ["qualty"')
    make_columns(misspelt, "web")
    return misspelt


@pytest.mark.parametrize(
    ("rules", "warning"),
    [
        (
            {"where": "qualty >= 3"},
            "`where` uses the column 'qualty', but no document has a value of it",
        ),
        (
            {"top": {"by": "qualty", "share": 0.5}},
            "`top` uses the column 'qualty', but no document has a value of it",
        ),
        (
            {"order": {"by": "qualty"}},
            "`order` uses the column 'qualty', but no document has a value of it",
        ),
        (
            {"split": {"by": "qualty", "keep": [0, 0.5]}},
            "`split` uses the column 'qualty', but no document has a value of it: so documents "
            "are divided by file and line",
        ),
    ],
)
def test_a_view_warns_of_a_column_that_no_document_has_a_value_of(
    project_with_misspelt_column, rules, warning
):
    plain = '"plain": {"of": "web"}'
    changed = f'"plain": {json.dumps({"of": "web", **rules})}'
    project = change_setting(project_with_misspelt_column, plain, changed)

    view = make_view(project, "plain")

    assert warning in VIEW.show(project, view).warnings
    assert warning in output_of("view", "plain", "-c", project.config.file)


def test_a_view_of_columns_with_values_has_no_warning(project_with_columns):
    view = make_view(project_with_columns, "good")

    assert VIEW.show(project_with_columns, view).warnings == []


def test_the_values_of_columns_are_shown_with_a_notice_of_columns_without_any(
    project_with_misspelt_column,
):
    config = project_with_misspelt_column.config.file

    assert "no document has a value of qualty" in output_of("columns", "web", "-c", config)


def test_a_condition_that_does_not_fit_its_column_fails_no_other_view(project_with_columns):
    changed_project = change_setting(project_with_columns, "quality >= 3", "lang >= 3")

    # The other views of the corpus that are out of date are made at the same time.
    make_view(changed_project, "plain")

    assert current_dataset(changed_project, "plain").facts["documents"] == N_ROWS
    with pytest.raises(ConfigError, match=r"views\.good\.where"):
        make_view(changed_project, "good")


def test_a_text_among_numbers_is_named_with_its_document(project):
    file = project.config.file.parent / "raw" / "web" / "b.jsonl"
    row = {"text": "one more", "id": "last", "quality": "n/a", "lang": "en"}
    file.write_bytes(file.read_bytes() + jsonl([row]))
    make_corpora(project)
    make_columns(project, "web")

    with pytest.raises(ConfigError) as caught:
        make_view(project, "good")

    line = N_ROWS - N_ROWS_OF_FIRST_FILE + 1
    assert caught.value.found == (
        f"quality >= 3, but quality is 'n/a' in web/b.jsonl:{line}, id 'last'"
    )


def test_numbers_that_are_stored_as_texts_are_told_from_other_texts(project):
    file = project.config.file.parent / "raw" / "web" / "b.jsonl"
    row = {"text": "one more", "id": "last", "quality": "4.5", "lang": "en"}
    file.write_bytes(file.read_bytes() + jsonl([row]))
    make_corpora(project)
    make_columns(project, "web")

    with pytest.raises(ConfigError, match="csv_values: json"):
        make_view(project, "good")


def test_other_columns_need_no_other_tokens(project_with_columns, monkeypatch):
    changed_project = change_setting(
        project_with_columns,
        '"columns": ["quality", "lang"]',
        '"columns": ["lang", "quality", "id2"]',
    )
    # Tokenizing would fail.
    monkeypatch.setattr("nanoset_core.stages.shards.make.tokenize_corpus", None)

    columns = make_columns(changed_project, "web")

    names = [column["name"] for column in columns.facts["columns"]]
    assert names == ["lang", "quality", "id2"]
