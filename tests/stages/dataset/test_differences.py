"""Outputs that differ from their dataset are only blamed if the dataset is as it was written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import open_root
from nanoset_core.stages.dataset import differences as differences_module
from nanoset_core.stages.dataset.differences import include_differences
from nanoset_core.stages.report import Report

PIECES = [b"first piece", b"second piece"]


def sha256_of(data: bytes) -> str:
    """Return the sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(params=[True, False], ids=["joined from pieces", "written as a whole"])
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> Manifest:
    """A dataset with a token file that a bucket has joined from two pieces, or that has a sha256."""
    folder = tmp_path / "datasets" / "web" / "0a1b"
    folder.mkdir(parents=True)
    tokens = b"".join(PIECES)
    (folder / "web.bin").write_bytes(tokens)
    lines = [f"{sha256_of(piece)} {len(piece)}\n" for piece in PIECES]
    piece_list = "".join(lines).encode()
    (folder / "web.bin.pieces").write_bytes(piece_list)

    fact = FileFact(len(tokens), sha256=sha256_of(tokens))
    if request.param:
        fact = FileFact(len(tokens), pieces="web.bin.pieces")
    return Manifest(
        folder=folder,
        recipe={"stage": "datasets", "name": "web"},
        digest="0a1b",
        facts={"prefix": "web"},
        files={"web.bin": fact, "web.bin.pieces": FileFact(len(piece_list), sha256_of(piece_list))},
        access=open_root(tmp_path).access,
    )


def damage(dataset: Manifest) -> None:
    """Change a byte of the second piece of a dataset's token file."""
    path = dataset.folder / "web.bin"
    path.write_bytes(path.read_bytes().replace(b"second", b"secand"))


def findings_of(dataset: Manifest, *, deep: bool = True) -> list[str]:
    """Return what is reported on a .pbin that differs from a dataset."""
    report = Report("packed/web")
    differences = Report("packed/web")
    differences.error("a token is not that of the dataset")
    include_differences(report, differences, [dataset], deep=deep)
    return [finding.what for finding in report.findings]


def test_the_differences_are_reported_if_the_dataset_is_as_it_was_written(dataset):
    assert findings_of(dataset) == ["a token is not that of the dataset"]


def test_a_damaged_dataset_is_reported_instead_of_the_differences(dataset):
    damage(dataset)

    [finding] = findings_of(dataset)

    assert finding.startswith("the output datasets/web is damaged")


def test_a_quick_check_does_not_read_a_large_dataset(dataset, monkeypatch):
    damage(dataset)
    monkeypatch.setattr(differences_module, "_QUICK_BYTES", 10)

    assert findings_of(dataset, deep=False) == ["a token is not that of the dataset"]


def test_a_dataset_is_not_read_if_nothing_differs(dataset):
    damage(dataset)
    report = Report("packed/web")

    include_differences(report, Report("packed/web"), [dataset], deep=True)

    assert report.findings == []
