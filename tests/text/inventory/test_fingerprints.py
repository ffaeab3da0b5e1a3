"""Fingerprints of files: their pieces, by one process or several, and files that change meanwhile."""

import os
import re
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.raw_files import LINES, cut_slowly, write_old
from nanoset_core.errors import MissingError, SourceChangedError
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory import fingerprints, piece_cuts
from nanoset_core.text.inventory.fingerprints import fingerprint, fingerprint_all, hash_parts
from nanoset_core.text.inventory.stored_piece import StoredPiece

DATA = st.builds(
    lambda lines, last_line_end: b"\n".join(lines) + last_line_end,
    LINES,
    st.sampled_from([b"", b"\n"]),
)
"""Bytes of a file, with or without a line end at the end."""
NAMES = st.sampled_from(["a.jsonl", "a.jsonl.gz"])
SIZES = st.integers(1, 60)
MANY_EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# Pieces


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES)
def test_a_file_is_cut_as_one_line_at_a_time(
    tmp_path_factory, monkeypatch, data, piece_bytes, read_bytes, name
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("corpus")
    stat = write_old(folder, name, data)

    assert fingerprint(folder, stat) == cut_slowly(name, data, piece_bytes)


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES, window=SIZES)
def test_several_workers_find_the_same_pieces_in_any_order(
    tmp_path_factory, monkeypatch, executor, data, piece_bytes, read_bytes, name, window
):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    monkeypatch.setattr(piece_cuts, "WINDOW_BYTES", window)
    folder = tmp_path_factory.mktemp("corpus")
    stat_a = write_old(folder, name, data)
    stat_b = write_old(folder, "b.jsonl", data[:50])
    hashed_bytes: list[int] = []

    pieces_by_file = dict(fingerprint_all(folder, [stat_a, stat_b], executor, hashed_bytes.append))

    assert pieces_by_file == {
        stat_a: cut_slowly(name, data, piece_bytes),
        stat_b: cut_slowly("b.jsonl", data[:50], piece_bytes),
    }
    assert sum(hashed_bytes) == stat_a.size + stat_b.size


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES, part_bytes=SIZES)
def test_a_file_is_cut_into_parts_by_the_same_rule_as_into_pieces(
    tmp_path_factory, monkeypatch, data, piece_bytes, read_bytes, name, part_bytes
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("corpus")
    stat = write_old(folder, name, data)
    pieces = []

    parts = list(hash_parts(folder, stat, part_bytes, pieces.append))

    assert pieces == cut_slowly(name, data, piece_bytes)
    # The digests of parts are CRCs, which are checked by reading the parts.
    parts_without_digests = [replace(part, digest="") for part in parts]
    expected_parts = cut_slowly(name, data, part_bytes)
    assert parts_without_digests == [replace(part, digest="") for part in expected_parts]
    for part in parts:
        StoredPiece(folder, part).check()


def test_several_workers_hash_a_large_file_piece_by_piece(tmp_path, monkeypatch, executor):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    line = b"0123456789\n"  # each line is a piece
    write_old(tmp_path, "large.jsonl", line * 8)
    for number in range(30):
        write_old(tmp_path, f"{number}.jsonl", line * 3)

    files = contents_of(tmp_path).ordered
    pieces_by_file = dict(fingerprint_all(tmp_path, files, executor))

    large_tasks = [task for task in executor.tasks if task.stat.path == "large.jsonl"]
    assert [task.start for task in large_tasks] == [0, 11, 22, 33, 44, 55, 66, 77]
    assert [task.stop for task in large_tasks] == [11, 22, 33, 44, 55, 66, 77, 88]
    # Each small file is one task.
    assert len(executor.tasks) == 8 + 30
    assert sum(len(pieces) for pieces in pieces_by_file.values()) == 8 + 30 * 3


def test_a_file_that_has_grown_keeps_its_first_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 100)  # three lines
    lines = [b"%04d " % number + b"x" * 30 + b"\n" for number in range(40)]
    before = fingerprint(tmp_path, write_old(tmp_path, "a.jsonl", b"".join(lines[:33])))

    after = fingerprint(tmp_path, write_old(tmp_path, "a.jsonl", b"".join(lines)))

    assert len(before) == 11
    assert after[:10] == before[:10]


def test_parts_of_a_large_file_are_hashed_in_the_memory_of_a_few_blocks(tmp_path):
    stat = write_old(tmp_path, "a.jsonl", b"a line\n" * (24 << 17))

    tracemalloc.start()
    parts = list(hash_parts(tmp_path, stat, 4 << 20, [].append))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(parts) > 4
    assert peak_bytes < 5 * fingerprints.READ_BYTES


# Files that change


def replace_file(path):
    """Put another file of the same size and time in the place of a file."""
    stat = path.stat()
    replacement = path.with_name("new")
    replacement.write_bytes(path.read_bytes()[::-1])
    os.utime(replacement, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.rename(replacement, path)


CHANGES = {
    "append": lambda path: path.write_bytes(path.read_bytes() + b"more\n"),
    "truncate": lambda path: os.truncate(path, 50),
    "replace": replace_file,
    "touch": lambda path: path.touch(),
    "remove": lambda path: path.unlink(),
}


class ChangingExecutor:
    """An executor during whose work a file changes."""

    def __init__(self, change, changed_before):
        """Prepare the executor.

        Args:
            change: Changes the file.
            changed_before: Number of the task before which the file changes.
        """
        self.change = change
        self.changed_before = changed_before

    def run(self, work, tasks):
        """Yield the number and result of each task."""
        for number, task in enumerate(list(tasks)):
            if number == self.changed_before:
                self.change()
            yield number, work(task)


@pytest.fixture
def file_of_10_pieces(tmp_path, monkeypatch):
    """A listed file whose ten pieces are hashed by the workers of an executor."""
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 30)
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    return write_old(tmp_path, "a.jsonl", b"0123456789\n" * 30)


ERRORS = {
    "append": SourceChangedError,
    "truncate": SourceChangedError,
    "replace": SourceChangedError,
    "touch": SourceChangedError,
    "remove": MissingError,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_a_file_was_listed_is_an_error_on_workers(
    tmp_path, file_of_10_pieces, executor, change
):
    path = tmp_path / "a.jsonl"
    CHANGES[change](path)

    with pytest.raises(ERRORS[change]) as caught:
        list(fingerprint_all(tmp_path, [file_of_10_pieces], executor))

    assert caught.value.where == str(path)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("changed_before", [0, 5])
def test_a_change_while_several_workers_hash_a_file_is_an_error(
    tmp_path, file_of_10_pieces, change, changed_before
):
    path = tmp_path / "a.jsonl"
    executor = ChangingExecutor(lambda: CHANGES[change](path), changed_before)

    with pytest.raises(ERRORS[change]) as caught:
        list(fingerprint_all(tmp_path, [file_of_10_pieces], executor))

    assert caught.value.where == str(path)


@pytest.mark.parametrize("change", ["append", "truncate", "touch"])
def test_a_change_while_a_file_is_hashed_is_an_error(tmp_path, monkeypatch, change):
    monkeypatch.setattr(fingerprints, "READ_BYTES", 30)
    stat = write_old(tmp_path, "a.jsonl", b"0123456789\n" * 10)
    path = tmp_path / "a.jsonl"

    with pytest.raises(SourceChangedError, match="changed while it was read") as caught:
        fingerprint(tmp_path, stat, lambda hashed_bytes: CHANGES[change](path))

    assert caught.value.where == str(path)
    # Times can be compared with those that `ls` shows.
    assert re.search(r"written at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", caught.value.found)


def test_a_file_that_is_replaced_between_listing_and_hashing_is_an_error(tmp_path):
    stat = write_old(tmp_path, "a.jsonl", b"0123456789\n" * 10)
    replace_file(tmp_path / "a.jsonl")

    with pytest.raises(SourceChangedError, match="changed while it was read"):
        fingerprint(tmp_path, stat)


def test_a_part_with_other_bytes_fails_its_check(tmp_path):
    line = b"0123456789\n"
    stat = write_old(tmp_path, "a.jsonl", line * 10)
    parts = list(hash_parts(tmp_path, stat, 20, [].append))  # of two lines each

    write_old(tmp_path, "a.jsonl", line * 4 + b"0123x56789\n" + line * 5)

    changed_part = parts.pop(2)
    for part in parts:
        StoredPiece(tmp_path, part).check()
    with pytest.raises(SourceChangedError, match="CRC-32"):
        StoredPiece(tmp_path, changed_part).check()
