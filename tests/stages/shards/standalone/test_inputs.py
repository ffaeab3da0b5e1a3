"""The inputs of `nanoset tokenize` are files, folders and patterns, and are read in order."""

from __future__ import annotations

import os

import pytest

from nanoset_core.errors import InputError, MissingError
from nanoset_core.stages.shards.standalone.inputs import by_file, resolve_inputs


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


def test_files_whose_pairs_would_have_the_same_name_are_named(tmp_path):
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl"):
        (tmp_path / name).touch()
    inputs = resolve_inputs([tmp_path])

    with pytest.raises(InputError) as caught:
        by_file(inputs, tmp_path / "o")

    assert caught.value.found == f"a.jsonl and a.jsonl.gz, both for {tmp_path / 'o_a'}"


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
    (raw / "notes.doc").touch()

    notices = resolve_inputs([raw]).notices

    assert f"{raw}: 1 file is not read: 1 .doc (notes.doc)" in notices


def test_a_folder_that_a_pattern_matches_is_reported_and_not_read(raw):
    (raw / "sub").mkdir()
    (raw / "sub" / "a.jsonl").write_bytes(b"")

    (notice,) = resolve_inputs([f"{raw}/[ps]*"]).notices

    assert f"{raw}/sub is not read" in notice


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(
        InputError, match="write the output of the other program to a file"
    ) as caught:
        resolve_inputs([tmp_path / "pipe"])

    assert caught.value.found == "a named pipe"


def test_a_missing_file_is_refused(raw):
    with pytest.raises(MissingError, match="nowhere"):
        resolve_inputs([raw / "nowhere.jsonl"])


def test_a_file_that_is_named_twice_is_refused(raw):
    with pytest.raises(InputError, match="named twice"):
        resolve_inputs([raw, raw / "part-2.jsonl"])


def test_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file to read"):
        resolve_inputs([tmp_path])


# .txt and .csv files


@pytest.fixture
def texts(tmp_path):
    """A folder with two .txt files, one of JSON lines, and a .csv file."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("{a text}")
    (folder / "b.txt").write_text('\n{"text": "a document"}\n')
    (folder / "c.csv").write_text("text\na document\n")
    return folder


def test_txt_and_csv_files_of_a_folder_are_read_if_there_is_nothing_else(texts, raw):
    (raw / "a.txt").write_text("notes")

    inputs = resolve_inputs([texts, raw])

    names = [file.path.rpartition("/")[2] for file in inputs.files]
    assert names == ["a.txt", "b.txt", "c.csv", "part-2.jsonl", "part-10.jsonl"]


@pytest.mark.parametrize("names", [["."], ["*.*"], ["a.txt", "b.txt", "c.csv"]], ids=str)
def test_files_that_begin_with_an_object_are_json_lines_whatever_their_ending(texts, names):
    """Earlier versions took each file that was named for JSON lines."""
    inputs = resolve_inputs([texts / name for name in names])

    assert len(inputs.files) == 3
    assert inputs.json_lines == {"b.txt"}


def test_pairs_of_json_lines_with_another_ending_keep_their_names(texts, tmp_path):
    inputs = resolve_inputs([texts])

    jobs = by_file(inputs, tmp_path / "o")

    assert [prefix.name for _files, prefix in jobs] == ["o_a", "o_b.txt", "o_c"]
    assert [files.json_lines for files, _prefix in jobs] == [set(), {"b.txt"}, set()]


def test_lists_that_an_earlier_call_wrote_do_not_hide_txt_files(texts):
    (texts / "out_rejects.jsonl").write_text("")

    inputs = resolve_inputs([texts], leave_out=lambda path: path.name == "out_rejects.jsonl")

    assert [file.path for file in inputs.files] == ["a.txt", "b.txt", "c.csv"]
