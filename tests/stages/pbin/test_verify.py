"""Verification finds every kind of damage to a .pbin, and names its place."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from helpers.building import make_pbin
from helpers.built_project import first_file, overwrite, problems
from helpers.inspecting import verify_at
from helpers.pbin_files import read_documents
from nanoset_core import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project

HEADER_BYTES = 12


def pbin_of(project: Project) -> Path:
    """Return the .pbin of the corpus `web`."""
    return first_file(project, "packed/web/*/web.pbin")


@pytest.fixture
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verification not compare the checksums of files, as if they had none."""
    monkeypatch.setattr("nanoset_core.stages.pbin.verify.check_files", lambda *_, **__: None)


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_pbin_has_no_findings(project, deep):
    report = verify_at(project, "packed/web", deep=deep)

    assert report.findings == []
    assert report.figures["tokens_read"] == report.figures["tokens"]


# Tokens


def test_a_token_that_differs_from_the_dataset_is_an_error(copy):
    project = copy()
    path = pbin_of(project)
    dataset = PackedDataset(path)
    number = 1234
    token = int(dataset.tokens[number])
    offset = HEADER_BYTES + number * dataset.token_bytes
    overwrite(path, offset, bytes([(token ^ 1) & 0xFF]))  # the lowest bit of the token

    for deep in (False, True):
        (finding,) = verify_at(project, "packed/web", deep=deep).errors
        assert finding.what == "a token is not that of the dataset"
        assert finding.where == f"{path.resolve()}, byte {offset}"
        assert finding.found == f"id {token ^ 1}"
        assert finding.expected == f"id {token}"

    # The verification of the project does not pass, either.
    (report,) = verify_project(project, ["web/packed"], deep=True)
    assert not report.passed


def test_tokens_are_not_compared_if_the_dataset_is_missing(copy):
    project = copy()
    shutil.rmtree(first_file(project, "datasets/web/*/manifest.json").parent)

    report = verify_at(project, "packed/web")

    assert report.passed
    warning = "the dataset is missing or damaged: tokens were not compared with it"
    assert warning in problems(report, "warning")


# Header and index


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        pytest.param(8, b"\x03", id="size of tokens"),
        pytest.param(0, b"\x00\x00", id="number of bytes"),
        pytest.param(-1, b"\x00", id="end of the index"),
        pytest.param(-200, b"\xff" * 20, id="entries of the index"),
    ],
)
def test_an_overwritten_header_or_index_is_an_error(copy, offset, data):
    project = copy()
    path = pbin_of(project)
    overwrite(path, offset % path.stat().st_size, data)  # negative offsets count from the end

    (finding,) = verify_at(project, "packed/web").errors

    assert path.name in finding.where
    assert finding.remedy.startswith("delete ")


def move_a_border(path: Path) -> None:
    """Move the last token of document 7 to document 8, which does not change the file's size."""
    documents = read_documents(path)
    token_bytes = PackedDataset(path).token_bytes
    size = path.stat().st_size

    moved_token = documents[7].pop()
    documents[8].insert(0, moved_token)
    write_pbin(path, documents, token_bytes=token_bytes)
    assert path.stat().st_size == size


def check_that_a_moved_border_is_found(project: Project, *, deep: bool) -> None:
    """Move a border between documents, and check that verification finds it."""
    path = pbin_of(project)
    move_a_border(path)

    (finding,) = verify_at(project, "packed/web", deep=deep).errors

    assert finding.what == "documents begin elsewhere than in the dataset"
    assert "web.pbin, byte " in finding.where


def test_a_border_between_documents_that_moved_is_an_error(copy):
    check_that_a_moved_border_is_found(copy(), deep=False)


@pytest.mark.usefixtures("without_checksums")
def test_a_border_that_moved_is_found_without_checksums(copy):
    check_that_a_moved_border_is_found(copy(), deep=True)


@pytest.mark.usefixtures("without_checksums")
def test_an_index_without_a_document_is_found_without_checksums(copy):
    project = copy()
    path = pbin_of(project)
    documents = read_documents(path)
    write_pbin(path, documents[1:], token_bytes=PackedDataset(path).token_bytes)

    for deep in (False, True):
        (finding,) = verify_at(project, "packed/web", deep=deep).errors
        assert finding.what == "the index does not cover the tokens as it did when it was written"
        assert f"documents: {len(documents)}" in finding.expected


# The file


def test_a_pbin_that_was_cut_is_an_error(copy):
    project = copy()
    path = pbin_of(project)
    path.write_bytes(path.read_bytes()[:-100])

    report = verify_at(project, "packed/web")

    assert problems(report) == ["a file has another size than when it was written"]


def test_a_pbin_that_was_deleted_is_an_error(copy):
    project = copy()
    pbin_of(project).unlink()

    report = verify_at(project, "packed/web")

    assert problems(report) == ["a file is missing"]


def test_the_manifest_of_a_large_pbin_has_its_checksum(copy, monkeypatch):
    # Files of more bytes than this have checksums in the manifest only if their stage gives them.
    monkeypatch.setattr("nanoset_core.outputs.root.HASHED_BYTES", 0)
    project = copy()

    manifest = make_pbin(Project.open(project.config.file, rebuild=True), "web")

    sha256 = hashlib.sha256(pbin_of(project).read_bytes()).hexdigest()
    assert manifest.files["web.pbin"].sha256 == sha256
