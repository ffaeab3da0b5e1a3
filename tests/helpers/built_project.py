"""A project that is built once, and copies of it to damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.building import build_all
from helpers.sample_project import CONFIG, jsonl, write_raw
from nanoset_core.project.project import Project
from nanoset_core.stages.report import Report

EXTRA = """\
  several_epochs:
    blend: {books: 1, code: 1}
    sequence_length: 24
    split: "1,0,0"
    samples: {train: 1400}
    trainer_path: /lustre/data
  repeated:
    blend: {web: 0.9, books: 0.1}
    sequence_length: 40
    split: "80,10,10"
    samples: {train: 700}
    preset: nanotron
    trainer_path: /lustre/data
  nemo:
    blend: {web: 0.5, books: 0.5}
    sequence_length: 20
    split: "90,5,5"
    samples: {train: 500, valid: 20, test: 20}
    preset: nemo
    trainer_path: /lustre/data
"""


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Overwrite some bytes of a file."""
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def problems(report: Report, severity: str = "error") -> list[str]:
    """Return what a report found, of one severity."""
    assert all(finding.remedy for finding in report.findings), "every finding says what to do"
    return [finding.what for finding in report.findings if finding.severity == severity]


def first_file(project: Project, pattern: str) -> Path:
    """Return the first file below the output root that matches a pattern."""
    return next(iter(sorted(project.outputs.folder.glob(pattern))))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project with all its outputs; tests must not write to it."""
    folder = tmp_path_factory.mktemp("built")
    write_raw(folder / "raw")
    first = folder / "raw" / "web" / "part-0" / "web-0.jsonl"
    # An empty document, a repeated one, and lines that are no documents.
    odd_rows = [
        {"id": "empty", "text": ""},
        {"id": "again", "text": "the same"},
        {"id": "again", "text": "the same"},
    ]
    first.write_bytes(first.read_bytes() + jsonl(odd_rows) + b"no json\n\n")
    _write_table(folder / "raw" / "books" / "table.parquet")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(
        CONFIG.replace("webdatasets:", EXTRA + "pbin: [web, books]\nwebdatasets:")
    )
    build_all(folder / "nanoset.yaml")
    return folder


def _write_table(path: Path) -> None:
    """Write a Parquet file of 40 documents, some of which are long."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"row {number} of a table, é漢, " + "word " * (number % 17) for number in range(40)]
    table = pa.table({"id": [f"row-{number}" for number in range(40)], "text": texts})
    pq.write_table(table, path, row_group_size=11)


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Callable[[], Project]:
    """A function that copies the project with all its outputs, and opens the copy."""

    def make() -> Project:
        folder = tmp_path / "project"
        shutil.copytree(built, folder, symlinks=True)
        return Project.open(folder / "nanoset.yaml")

    return make


@pytest.fixture
def project(built: Path) -> Project:
    """The shared project; tests must not write to it."""
    return Project.open(built / "nanoset.yaml")
