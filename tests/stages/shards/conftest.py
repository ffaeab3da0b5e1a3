"""Raw text that several tests of shards tokenize."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.tokenizing import write_two_files


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder with two files of raw text."""
    return write_two_files(tmp_path / "raw")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """An empty folder for the raw text of a corpus."""
    folder = tmp_path / "raw" / "web"
    folder.mkdir(parents=True)
    return folder
