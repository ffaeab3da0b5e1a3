"""Evaluation texts that very many documents hold: reported separately, but also excluded."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.building import make_view, open_project
from helpers.contamination import QUESTIONS, documents_with, searched_project, with_settings
from helpers.inspecting import current_output, verify_at
from nanoset_core.errors import ForbiddenError
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.matches import summarize
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.stage import Key

INSTRUCTION = (
    "Read the passage below with care and answer the question with a single word, "
    "without any explanation."
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory, tokenizer_file) -> Path:
    """A project with an instruction in 120 documents, a question in two; not to be changed."""
    plants = dict.fromkeys(range(120), INSTRUCTION)
    plants[7] = f"{INSTRUCTION} {QUESTIONS[0]}"
    plants[130] = QUESTIONS[1]
    return searched_project(
        tmp_path_factory.mktemp("boilerplate") / "project",
        tokenizer_file,
        {"0.jsonl": documents_with(140, plants)},
        [INSTRUCTION, *QUESTIONS],
    )


@pytest.fixture
def project(searched, tmp_path) -> Project:
    """A copy of the project."""
    shutil.copytree(searched.parent, tmp_path / "project", symlinks=True)
    return open_project(tmp_path / "project" / "nanoset.yaml")


def test_documents_with_other_texts_are_counted_and_quoted_first(project):
    summary = CONTAMINATION.show(project, current_output(project, "contamination/evals/web"))

    assert list(summary.figures) == ["documents", "contaminated", "bytes"]
    assert summary.figures["contaminated"] == 2
    assert summary.warnings[0].startswith(
        "2 documents hold texts of evals; 0.jsonl:8 holds 100% of a.jsonl:2: 'if two sailors"
    )


def test_boilerplate_is_reported_in_a_warning_of_its_own(project):
    summary = CONTAMINATION.show(project, current_output(project, "contamination/evals/web"))

    assert summary.details["boilerplate only"] == "119"
    assert summary.warnings[1].startswith(
        "1 text of evals is in 100 documents or more, probably as boilerplate: 119 documents"
    )
    assert "120 hold 100% of a.jsonl:1: 'read the passage below" in summary.warnings[1]


def test_an_output_of_an_older_version_is_summarized_from_its_table(project):
    manifest = current_output(project, "contamination/evals/web")
    older_facts = dict(manifest.facts)
    del older_facts["boilerplate"]

    older = CONTAMINATION.show(project, replace(manifest, facts=older_facts))

    assert older == CONTAMINATION.show(project, manifest)


def test_a_block_names_boilerplate_separately(project):
    project = with_settings(project, "contamination.evals", policy="block")

    with pytest.raises(ForbiddenError) as error:
        CONTAMINATION.check_allowed(
            project, Key("evals", "web"), current_output(project, "contamination/evals/web")
        )

    assert error.value.what.startswith(
        "2 documents that training reads hold texts of evals; 1 text of evals is in"
    )
    assert error.value.where.endswith("raw/web/0.jsonl:8")
    assert verify_at(project, "contamination/evals/web").figures["contaminated"] == 2


def test_a_block_counts_a_single_document(project):
    project = with_settings(project, "contamination.evals", policy="block")
    manifest = current_output(project, "contamination/evals/web")
    summary = {**manifest.facts["boilerplate"], "contaminated": 1}
    manifest = replace(manifest, facts={**manifest.facts, "boilerplate": summary})

    with pytest.raises(ForbiddenError) as error:
        CONTAMINATION.check_allowed(project, Key("evals", "web"), manifest)

    assert error.value.what.startswith("1 document that training reads holds texts of evals; ")


def test_a_clean_view_leaves_documents_with_boilerplate_out(project):
    n_contaminated = 121  # the instruction in 120, a question in 2, both in 1

    assert make_view(project, "clean").facts["documents"] == 140 - n_contaminated


def matches_of_one_text(n_documents: int) -> list[dict[str, object]]:
    """Return a match of the same evaluation text in each document."""
    row = {
        "file": "0.jsonl",
        "line": 1,
        "share": 1.0,
        "words": "a",
        "evaluation_file": "a.jsonl",
        "evaluation_line": 1,
    }
    return [{**row, "document": number} for number in range(n_documents)]


def test_a_text_in_99_documents_is_no_boilerplate():
    matches = matches_of_one_text(99)

    summary = summarize(matches)

    assert (summary.contaminated, summary.first) == (99, matches[0])
    assert (summary.boilerplate_texts, summary.boilerplate_documents) == (0, 0)


def test_a_text_in_100_documents_is_boilerplate():
    summary = summarize(matches_of_one_text(100))

    assert (summary.contaminated, summary.first) == (0, None)
    assert (summary.boilerplate_texts, summary.boilerplate_documents) == (1, 100)


def test_no_matches_are_summarized_as_nothing():
    assert summarize([]) == (0, None, 0, 0, None, 0)
