"""Patterns of a command line: what a shell's would match, each file once, in time that is bounded."""

import glob
import time
from pathlib import Path

import pytest

from nanoset_core.errors import InputError, MissingError
from nanoset_core.stages.shards.inputs import resolve_inputs

FILES = (
    "a.jsonl",
    "x/a.jsonl",
    "x/y/b.jsonl",
    "x/y/a.txt",
    "z/.hidden/a.jsonl",
    "z/.a.jsonl",
    "[q]/a.jsonl",
)


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "a"}\n')
    return tmp_path


@pytest.mark.parametrize("pattern", [
    "*.jsonl", "*/*.jsonl", "**/*.jsonl", "**", "x/**", "**/y/*", "**/a.jsonl", "x/*/b.jsonl", "z/.hidden/*", "z/.*",
    "[[]q]/*.jsonl", "**/**/*.jsonl", "?/**/[ab].jsonl",
])  # fmt: skip
def test_a_pattern_matches_what_a_shell_s_does(folder, pattern):
    expected = {
        Path(name)
        for name in glob.glob(str(folder / pattern), recursive=True)
        if Path(name).is_file()
    }
    found = resolve_inputs([folder / pattern]).paths
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_a_relative_pattern_begins_in_this_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert [file.path for file in resolve_inputs(["x/**/*.jsonl"]).files] == [
        "a.jsonl",
        "y/b.jsonl",
    ]


def test_what_matches_nothing_is_missing(folder):
    for given in ("nothing.jsonl", "*.csv", "nowhere/*.jsonl", "a.jsonl/*"):
        with pytest.raises(MissingError):
            resolve_inputs([folder / given])


def test_many_wildcards_for_folders_list_each_folder_once(tmp_path):
    deep = tmp_path.joinpath(*"a" * 60)
    deep.mkdir(parents=True)
    (deep / "x.jsonl").write_text('{"text": "a"}\n')
    began = time.monotonic()
    found = resolve_inputs(
        [tmp_path / "/".join(["**"] * 8) / "a" / "/".join(["**"] * 8) / "*.jsonl"]
    )
    assert len(found.files) == 1
    assert time.monotonic() - began < 5


def test_a_link_that_leads_back_is_named(folder):
    (folder / "x" / "back").symlink_to(folder)
    with pytest.raises(InputError, match="leads back to a folder above it"):
        resolve_inputs([folder / "**" / "*.jsonl"])
