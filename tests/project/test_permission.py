"""How often the searches are checked that decide whether an output may be made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.building import make_corpora, open_project
from helpers.contamination import QUESTIONS, documents_with, searched_project, write_questions
from helpers.inspecting import node_at
from helpers.sample_project import jsonl
from nanoset_core.errors import ForbiddenError, StaleError
from nanoset_core.project.permission import PassedChecks, check_allowed
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.make import find_contamination
from nanoset_core.stages.contamination.stage import CONTAMINATION
from nanoset_core.stages.stage import Key

CORPORA = ["web", "code", "books"]
PLAN = node_at("shuffle_plans/mixed")
TARS_LIST = node_at("webdatasets/mixed")
N_GROUPS = 4


def write_clean_text(folder: Path, corpus: str, n_documents: int = 20) -> None:
    """Write a corpus that contains no question."""
    (folder / "raw" / corpus).mkdir(exist_ok=True)
    (folder / "raw" / corpus / "0.jsonl").write_bytes(jsonl(documents_with(n_documents, {})))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project whose corpora are clean, and were searched; not to be changed."""
    folder = tmp_path_factory.mktemp("permission") / "project"
    files = {"0.jsonl": documents_with(20, {})}
    config = searched_project(folder, tokenizer_file, files, QUESTIONS)
    for corpus in CORPORA:
        write_clean_text(folder, corpus)
    settings = json.loads(config.read_text())
    settings["contamination"]["evals"]["policy"] = "block"
    mixed = {"corpora": CORPORA, "sequence_length": 16, "groups": N_GROUPS}
    settings["webdatasets"] = {"mixed": mixed}
    config.write_text(json.dumps(settings))
    project = open_project(config)
    make_corpora(project)
    for corpus in CORPORA:
        find_contamination(project, "evals", corpus)
    return folder


@pytest.fixture
def project(searched: Path, tmp_path: Path) -> Project:
    """A copy of this project."""
    shutil.copytree(searched, tmp_path / "project", symlinks=True)
    return open_project(tmp_path / "project" / "nanoset.yaml")


@pytest.fixture
def checked_corpora(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The corpora whose searches are checked as a whole, in order."""
    corpora: list[str] = []
    check: Callable[..., None] = type(CONTAMINATION).check_allowed

    def check_and_count(stage: object, project: Project, key: Key, manifest: object) -> None:
        corpora.append(key.part or "")
        check(stage, project, key, manifest)

    monkeypatch.setattr(type(CONTAMINATION), "check_allowed", check_and_count)
    return corpora


def test_a_search_is_checked_once_for_all_groups_of_tars(project, checked_corpora):
    check_allowed(project, TARS_LIST)

    assert checked_corpora == CORPORA


def test_a_check_that_has_passed_is_not_repeated_except_for_the_first_search(
    project, checked_corpora
):
    passed_checks = PassedChecks()

    check_allowed(project, PLAN, passed_checks)
    check_allowed(project, PLAN, passed_checks)

    assert checked_corpora == [*CORPORA, CORPORA[0]]


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_corpus_that_was_built_in_the_meantime_is_noticed(project, corpus):
    passed_checks = PassedChecks()
    check_allowed(project, PLAN, passed_checks)
    write_clean_text(project.config.file.parent, corpus, n_documents=21)
    make_corpora(project, corpus)

    with pytest.raises(StaleError, match="dataset changed"):
        check_allowed(project, PLAN, passed_checks)


@pytest.mark.parametrize("corpus", CORPORA)
def test_what_a_search_has_found_in_the_meantime_forbids_the_output(project, corpus):
    passed_checks = PassedChecks()
    check_allowed(project, PLAN, passed_checks)
    documents = documents_with(20, {3: QUESTIONS[1]})
    (project.config.file.parent / "raw" / corpus / "0.jsonl").write_bytes(jsonl(documents))
    make_corpora(project, corpus)
    find_contamination(project, "evals", corpus)

    with pytest.raises(ForbiddenError, match="1 document that training reads holds"):
        check_allowed(project, PLAN, passed_checks)


def test_evaluation_files_that_were_changed_in_the_meantime_are_noticed(project):
    passed_checks = PassedChecks()
    check_allowed(project, PLAN, passed_checks)
    write_questions(project.config.file.parent / "evals" / "a.jsonl", QUESTIONS[:1])

    with pytest.raises(StaleError, match="files"):
        check_allowed(project, PLAN, passed_checks)


def test_searches_that_were_not_repeated_after_evaluation_files_changed_are_noticed(project):
    passed_checks = PassedChecks()
    check_allowed(project, PLAN, passed_checks)
    write_questions(project.config.file.parent / "evals" / "a.jsonl", QUESTIONS[:1])
    find_contamination(project, "evals", CORPORA[0])

    with pytest.raises(StaleError, match="files"):
        check_allowed(project, PLAN, passed_checks)
