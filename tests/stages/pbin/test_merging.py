"""Merged .pbin files have the bytes of their documents written in one go, also if Modalities
merged them wrongly.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from helpers.pbin_files import GOLDEN, read_documents, write_with_index
from helpers.progress import RecordingDisplay
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
    SourceChangedError,
)
from nanoset_core.formats.pbin import writing
from nanoset_core.formats.pbin.layout import open_pbin
from nanoset_core.formats.pbin.writing import PbinCounts, write_pbin
from nanoset_core.stages.pbin import selection
from nanoset_core.stages.pbin.selection import merge_pbin

FAULTY = GOLDEN / "merge-buggy-index.pbin"
"""The files docs.pbin and edge.pbin, merged by Modalities, with its fault in the index."""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The path of a merged file."""
    return tmp_path / "merged.pbin"


# Sound files


def test_a_merge_has_the_bytes_of_writing_all_documents_in_one_go(tmp_path, target):
    paths = [GOLDEN / f"{name}.pbin" for name in ("docs", "edge", "u2")]

    counts = merge_pbin(paths, target)

    documents = []
    for path in paths:
        documents += read_documents(path)
    n_tokens = sum(len(document) for document in documents)
    assert counts == PbinCounts(documents=126, tokens=n_tokens, token_bytes=2)
    write_pbin(tmp_path / "expected.pbin", documents, token_bytes=2)
    assert target.read_bytes() == (tmp_path / "expected.pbin").read_bytes()


@pytest.mark.parametrize("name", ["docs", "edge", "u1", "u2", "u4", "docs.shuffle-s11"])
def test_a_single_sound_file_stays_as_it_is(target, name):
    merge_pbin([GOLDEN / f"{name}.pbin"], target)

    assert target.read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()


def test_an_empty_file_adds_nothing(tmp_path, target):
    empty = write_with_index(tmp_path / "empty.pbin", [], [])

    merge_pbin([empty, GOLDEN / "u2.pbin"], target)

    assert target.read_bytes() == (GOLDEN / "u2.pbin").read_bytes()


def test_documents_that_leave_tokens_out_stay_where_they_are(tmp_path, target):
    path = write_with_index(tmp_path / "x.pbin", range(5), [(2, 4), (8, 2)])

    counts = merge_pbin([path, path], target)

    assert read_documents(target) == [[1, 2], [4], [1, 2], [4]]
    assert counts == PbinCounts(documents=4, tokens=10, token_bytes=2)


# Files of old layouts


def test_old_layouts_are_written_as_the_present_one(target):
    old = GOLDEN / "legacy-c-header12-le-absolute.pbin"

    merge_pbin([old, GOLDEN / "u2.pbin"], target)

    assert open_pbin(target).layout.name == "D"
    documents_of_u2 = json.loads((GOLDEN / "tokens-u2.json").read_bytes())
    assert read_documents(target) == read_documents(old) + documents_of_u2


def test_a_single_file_of_layout_a_is_written_as_its_documents(tmp_path, target):
    old = GOLDEN / "legacy-a-header8-be.pbin"

    merge_pbin([old], target)

    write_pbin(tmp_path / "expected.pbin", read_documents(old), token_bytes=4)
    assert target.read_bytes() == (tmp_path / "expected.pbin").read_bytes()


# The fault of Modalities' own merge


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """The file that Modalities should have written in place of FAULTY."""
    path = tmp_path / "right.pbin"
    merge_pbin([GOLDEN / "docs.pbin", GOLDEN / "edge.pbin"], path)
    return path


def test_the_fault_of_modalities_merge_is_repaired_in_place(target, right):
    target.write_bytes(FAULTY.read_bytes())

    counts = merge_pbin([target], target)

    assert counts.documents == 86
    assert target.read_bytes() == right.read_bytes()
    assert right.read_bytes() != FAULTY.read_bytes()


def test_faulty_files_are_merged_without_their_fault(target, right):
    merge_pbin([FAULTY, FAULTY], target)

    assert read_documents(target) == read_documents(right) * 2


# Large files


def test_large_files_are_copied_in_pieces_which_show_the_progress(target, monkeypatch):
    monkeypatch.setattr(writing, "CHUNK_TOKENS", 500)  # of two bytes
    display = RecordingDisplay()

    merge_pbin([GOLDEN / "docs.pbin"], target, progress=display.progress)

    data_bytes = open_pbin(GOLDEN / "docs.pbin").data_bytes
    assert [work.done for work in display.works] == [*range(1000, data_bytes, 1000), data_bytes]
    assert {work.total for work in display.works} == {data_bytes}
    assert {work.unit for work in display.works} == {"bytes"}
    assert {work.name for work in display.works} == {"merged.pbin"}
    assert target.read_bytes() == (GOLDEN / "docs.pbin").read_bytes()


@pytest.fixture
def _few_open_files() -> Iterator[None]:
    """Let this process open 90 more files than it has open."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Tests before this one may have left files open.
    highest_descriptor = max(int(name) for name in os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest_descriptor + 90, hard_limit))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))


@pytest.mark.usefixtures("_few_open_files")
def test_more_files_can_be_merged_than_may_be_open(target):
    counts = merge_pbin([GOLDEN / "u1.pbin"] * 200, target)

    assert counts.documents == 8000


# Files that cannot be merged


def test_a_merge_of_no_files_is_refused(target):
    with pytest.raises(ConfigError, match="no file to take documents from"):
        merge_pbin([], target)

    assert not target.exists()


def test_files_with_tokens_of_different_sizes_are_refused(target):
    message = r"u1\.pbin, byte 8: files with tokens of different"
    with pytest.raises(FormatError, match=message):
        merge_pbin([GOLDEN / "u2.pbin", GOLDEN / "u1.pbin"], target)

    assert not target.exists()


def test_a_missing_file_is_reported(tmp_path, target):
    with pytest.raises(MissingError, match="no such file"):
        merge_pbin([GOLDEN / "u2.pbin", tmp_path / "none.pbin"], target)

    assert not target.exists()


def test_a_file_that_was_cut_is_refused(tmp_path, target):
    cut = tmp_path / "cut.pbin"
    cut.write_bytes((GOLDEN / "docs.pbin").read_bytes()[:-1])

    with pytest.raises(FormatError, match=r"cut\.pbin, byte"):
        merge_pbin([GOLDEN / "u2.pbin", cut], target)

    assert not target.exists()


def test_a_merge_without_any_token_is_refused(tmp_path, target):
    empty = write_with_index(tmp_path / "empty.pbin", [], [])

    with pytest.raises(InputError, match="no tokens"):
        merge_pbin([empty], target)

    assert not target.exists()


def test_a_file_that_is_replaced_while_it_is_merged_is_reported(tmp_path, target, monkeypatch):
    path = tmp_path / "x.pbin"
    write_pbin(path, [np.arange(10)], token_bytes=2)

    def replace_file(files: list[selection._ScannedFile]) -> int:
        """Replace the file after its index was read, and before its tokens are."""
        write_pbin(path, [np.arange(9)], token_bytes=2)
        return files[0].token_bytes

    monkeypatch.setattr(selection, "_common_token_bytes", replace_file)

    with pytest.raises(SourceChangedError, match=r"x\.pbin, byte 0"):
        merge_pbin([path], target)

    assert not target.exists()
