"""The inputs of `nanoset tokenize` are files, folders and patterns, and are read in order."""

from __future__ import annotations

import pytest

from nanoset_core.errors import InputError, MissingError
from nanoset_core.stages.shards.inputs import by_file, resolve_inputs


def test_the_files_of_a_folder_are_read_in_natural_order(raw):
    (raw / "sub").mkdir()
    (raw / "sub" / "a.jsonl").write_bytes(b"")

    files = resolve_inputs([raw]).files

    assert [file.path for file in files] == ["part-2.jsonl", "part-10.jsonl", "sub/a.jsonl"]


def test_the_files_of_a_pattern_are_read_in_natural_order(raw):
    files = resolve_inputs([f"{raw}/part-*.jsonl"]).files

    assert [file.path for file in files] == ["part-2.jsonl", "part-10.jsonl"]


def test_a_pair_for_each_file_is_named_after_the_file(raw, tmp_path):
    inputs = resolve_inputs([f"{raw}/part-*.jsonl"])

    prefixes = [prefix for _files, prefix in by_file(inputs, tmp_path / "o")]

    assert [prefix.name for prefix in prefixes] == ["o_part-2", "o_part-10"]


def test_an_empty_file_is_reported(raw):
    (raw / "sub").mkdir()
    (raw / "sub" / "a.jsonl").write_bytes(b"")

    notices = resolve_inputs([raw]).notices

    assert notices == (f"{raw}: 1 file is empty: sub/a.jsonl",)


@pytest.mark.parametrize("name", ["sub/a.jsonl", "sub/*.jsonl"])
def test_an_empty_file_is_reported_with_the_folder_of_its_input(raw, name):
    (raw / "sub").mkdir()
    (raw / "sub" / "a.jsonl").write_bytes(b"")

    notices = resolve_inputs([raw / name]).notices

    assert notices == (f"{raw}/sub: 1 file is empty: a.jsonl",)


def test_a_file_with_an_unknown_ending_is_reported(raw):
    (raw / "notes.txt").touch()

    notices = resolve_inputs([raw]).notices

    assert f"{raw}: 1 file is not read: 1 .txt (notes.txt)" in notices


def test_a_folder_that_a_pattern_matches_is_reported_and_not_read(raw):
    (raw / "sub").mkdir()
    (raw / "sub" / "a.jsonl").write_bytes(b"")

    (notice,) = resolve_inputs([f"{raw}/[ps]*"]).notices

    assert f"{raw}/sub is not read" in notice


def test_a_missing_file_is_refused(raw):
    with pytest.raises(MissingError, match="nowhere"):
        resolve_inputs([raw / "nowhere.jsonl"])


def test_a_file_that_is_named_twice_is_refused(raw):
    with pytest.raises(InputError, match="named twice"):
        resolve_inputs([raw, raw / "part-2.jsonl"])


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file to read"):
        resolve_inputs([tmp_path])
