"""Every kind of damage to a .pbin is found and named."""

import hashlib
import shutil

import pytest

from helpers.building import make_pbin
from helpers.built_project import first_file, overwrite, problems
from helpers.inspecting import verify_at
from nanoset_core import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project


def pbin(project):
    return first_file(project, "packed/web/*/web.pbin")


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_pbin(project, deep):
    report = verify_at(project, "packed/web", deep=deep)
    assert report.findings == []
    assert report.figures["tokens_read"] == report.figures["tokens"]


def test_a_token_of_it_changed(copy):
    project = copy()
    dataset = PackedDataset(pbin(project))
    token = int(dataset.tokens[1234])
    overwrite(pbin(project), 12 + 1234 * dataset.token_bytes, bytes([token & 0xFF ^ 1]))
    for deep in (False, True):
        (finding,) = verify_at(project, "packed/web", deep=deep).errors
        assert finding.what == "a token is not that of the dataset"
        assert finding.where == f"{pbin(project).resolve()}, byte {12 + 1234 * dataset.token_bytes}"
        assert (finding.found, finding.expected) == (f"id {token ^ 1}", f"id {token}")
    (report,) = verify_project(project, ["web/packed"], deep=True)
    assert not report.passed


def test_the_dataset_is_gone(copy):
    project = copy()
    shutil.rmtree(first_file(project, "datasets/web/*/manifest.json").parent)
    report = verify_at(project, "packed/web")
    assert report.passed
    assert "the dataset is missing or damaged: tokens were not compared with it" in problems(
        report, "warning"
    )


@pytest.mark.parametrize(
    ("offset", "data"), [(8, b"\x03"), (0, b"\x00\x00"), (-1, b"\x00"), (-200, b"\xff" * 20)]
)
def test_header_and_index_overwritten(copy, offset, data):
    project = copy()
    path = pbin(project)
    overwrite(path, offset % path.stat().st_size, data)
    (finding,) = verify_at(project, "packed/web").errors
    assert path.name in finding.where
    assert finding.remedy.startswith("delete ")


def test_cut_or_gone(copy):
    project = copy()
    path = pbin(project)
    path.write_bytes(path.read_bytes()[:-100])
    assert problems(verify_at(project, "packed/web")) == [
        "a file has another size than when it was written"
    ]
    path.unlink()
    assert problems(verify_at(project, "packed/web")) == ["a file is missing"]


@pytest.mark.parametrize("deep", [False, True])
def test_borders_between_documents_moved(copy, monkeypatch, deep):
    project = copy()
    path = pbin(project)
    size = path.stat().st_size
    dataset = PackedDataset(path)
    documents, token_bytes = [document.tolist() for document in dataset], dataset.token_bytes
    moved = [*documents[:7], documents[7][:-1], [documents[7][-1], *documents[8]], *documents[9:]]
    write_pbin(path, moved, token_bytes=token_bytes)
    assert path.stat().st_size == size
    if deep:  # as if nothing had a checksum
        monkeypatch.setattr("nanoset_core.stages.pbin.verify.check_files", lambda *_, **__: None)
    (finding,) = verify_at(project, "packed/web", deep=deep).errors
    assert finding.what == "documents begin elsewhere than in the dataset"
    assert finding.where.startswith(f"{path}, byte ") or "web.pbin, byte " in finding.where
    write_pbin(path, documents[1:], token_bytes=token_bytes)
    monkeypatch.setattr("nanoset_core.stages.pbin.verify.check_files", lambda *_, **__: None)
    (finding,) = verify_at(project, "packed/web", deep=deep).errors
    assert finding.what == "the index does not cover the tokens as it did when it was written"
    assert f"documents: {len(documents)}" in finding.expected


def test_a_large_pbin_has_a_digest(copy, monkeypatch):
    monkeypatch.setattr("nanoset_core.outputs.root.HASHED_BYTES", 0)
    project = copy()
    manifest = make_pbin(Project.open(project.config.file, rebuild=True), "web")
    assert (
        manifest.files["web.pbin"].sha256 == hashlib.sha256(pbin(project).read_bytes()).hexdigest()
    )
