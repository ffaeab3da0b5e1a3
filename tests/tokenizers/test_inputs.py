"""Patterns of input files match what a shell's patterns match, each file once, in bounded time."""

from __future__ import annotations

import glob
import time
from pathlib import Path

import pytest

from nanoset_core.errors import InputError, MissingError
from nanoset_core.stages.shards.standalone.inputs import resolve_inputs

FILES = [
    "a.jsonl",
    "x/a.jsonl",
    "x/y/b.jsonl",
    "x/y/a.txt",
    "z/.hidden/a.jsonl",
    "z/.a.jsonl",
    "[q]/a.jsonl",
]
PATTERNS = [
    "*.jsonl",
    "*/*.jsonl",
    "**/*.jsonl",
    "**",
    "x/**",
    "**/y/*",
    "**/a.jsonl",
    "x/*/b.jsonl",
    "z/.hidden/*",
    "z/.*",
    "[[]q]/*.jsonl",
    "**/**/*.jsonl",
    "?/**/[ab].jsonl",
]
LINE = '{"text": "a"}\n'


@pytest.fixture
def folder(tmp_path):
    """A folder with files at several depths, some of them hidden."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINE)
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_the_files_that_a_shell_matches(folder, pattern):
    matches = [Path(name) for name in glob.glob(str(folder / pattern), recursive=True)]
    expected = {path for path in matches if path.is_file()}

    paths = resolve_inputs([folder / pattern]).paths

    assert set(paths) == expected
    assert len(paths) == len(expected)


def test_a_relative_pattern_starts_in_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)

    inputs = resolve_inputs(["x/**/*.jsonl"])

    assert [file.path for file in inputs.files] == ["a.jsonl", "y/b.jsonl"]


@pytest.mark.parametrize("pattern", ["nothing.jsonl", "*.csv", "nowhere/*.jsonl", "a.jsonl/*"])
def test_a_pattern_that_matches_nothing_is_an_error(folder, pattern):
    with pytest.raises(MissingError):
        resolve_inputs([folder / pattern])


def test_many_wildcards_for_folders_take_little_time(tmp_path):
    """Each folder is listed once. Trying each way to match 60 folders would never end."""
    deep_folder = tmp_path.joinpath(*"a" * 60)
    deep_folder.mkdir(parents=True)
    (deep_folder / "x.jsonl").write_text(LINE)
    any_folders = "/".join(["**"] * 8)
    pattern = tmp_path / any_folders / "a" / any_folders / "*.jsonl"
    start = time.monotonic()

    inputs = resolve_inputs([pattern])

    assert len(inputs.files) == 1
    assert time.monotonic() - start < 5  # seconds


def test_a_link_to_a_folder_above_it_is_an_error(folder):
    (folder / "x" / "back").symlink_to(folder)

    with pytest.raises(InputError, match="leads back to a folder above it"):
        resolve_inputs([folder / "**" / "*.jsonl"])
