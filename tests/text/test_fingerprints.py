"""Fingerprints of files: pieces by the slow rule, in this process, on workers and in parts."""

import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.raw_files import LINES, cut_slowly, write_old
from nanoset_core.errors import MissingError, SourceChangedError
from nanoset_core.text import fingerprints, piece_cuts
from nanoset_core.text.contents import contents_of
from nanoset_core.text.fingerprints import fingerprint, fingerprint_all, hash_parts
from nanoset_core.text.pieces import deal_parts
from nanoset_core.text.stored_piece import StoredPiece

DATA = st.tuples(LINES, st.sampled_from([b"", b"\n"])).map(
    lambda lines_and_end: b"\n".join(lines_and_end[0]) + lines_and_end[1]
)
"""Bytes of a file, with or without a line end at the end."""
NAMES = st.sampled_from(["a.jsonl", "a.jsonl.gz"])
SIZES = st.integers(1, 60)
MANY_EXAMPLES = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES)
def test_pieces_are_those_of_the_slow_rule(
    tmp_path_factory, monkeypatch, data, piece_bytes, read_bytes, name
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("corpus")
    stat = write_old(folder, name, data)

    assert fingerprint(folder, stat) == cut_slowly(name, data, piece_bytes)


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES, window=SIZES)
def test_workers_find_the_same_pieces_in_any_order(
    tmp_path_factory, monkeypatch, executor, data, piece_bytes, read_bytes, name, window
):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    monkeypatch.setattr(piece_cuts, "WINDOW_BYTES", window)
    folder = tmp_path_factory.mktemp("corpus")
    stat = write_old(folder, name, data)
    other = write_old(folder, "b.jsonl", data[:50])
    hashed_bytes: list[int] = []

    pieces_by_file = dict(fingerprint_all(folder, [stat, other], executor, hashed_bytes.append))

    assert pieces_by_file == {
        stat: cut_slowly(name, data, piece_bytes),
        other: cut_slowly("b.jsonl", data[:50], piece_bytes),
    }
    assert sum(hashed_bytes) == stat.size + other.size


@MANY_EXAMPLES
@given(data=DATA, name=NAMES, piece_bytes=SIZES, read_bytes=SIZES, part_bytes=SIZES)
def test_parts_are_cut_like_pieces_and_pass_their_checks(
    tmp_path_factory, monkeypatch, data, piece_bytes, read_bytes, name, part_bytes
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(fingerprints, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("corpus")
    stat = write_old(folder, name, data)
    pieces = []

    parts = list(hash_parts(folder, stat, part_bytes, pieces.append))

    assert pieces == cut_slowly(name, data, piece_bytes)
    bounds = [(part.begin, part.end, part.first_line) for part in parts]
    slow_parts = cut_slowly(name, data, part_bytes)
    assert bounds == [(part.begin, part.end, part.first_line) for part in slow_parts]
    for part in parts:
        StoredPiece(folder, part).check()
    ranges = deal_parts(parts, part_bytes)
    assert [part for dealt in ranges for part in dealt.pieces] == parts


def test_workers_share_large_files_piece_by_piece(tmp_path, monkeypatch, executor):
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    line = b"0123456789\n"
    write_old(tmp_path, "large.jsonl", line * 8)
    for number in range(30):
        write_old(tmp_path, f"{number}.jsonl", line * 3)

    files = contents_of(tmp_path).ordered
    pieces_by_file = dict(fingerprint_all(tmp_path, files, executor))

    ranges = [(task.start, task.stop) for task in executor.tasks if task.stat.path == "large.jsonl"]
    assert ranges == [(start, start + 11) for start in range(0, 88, 11)]
    assert len(executor.tasks) == 8 + 30
    assert sum(len(pieces) for pieces in pieces_by_file.values()) == 8 + 30 * 3


def replace_file(path):
    """Put another file of the same size and time in its place."""
    stat = path.stat()
    other = path.with_name("new")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    os.rename(other, path)


CHANGES = {
    "append": lambda path: path.write_bytes(path.read_bytes() + b"more\n"),
    "truncate": lambda path: os.truncate(path, 50),
    "replace": replace_file,
    "touch": lambda path: path.touch(),
    "remove": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["listed", "cut", "half"])
def test_a_change_while_several_workers_hash_a_file_is_an_error(
    tmp_path, monkeypatch, change, moment
):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 30)
    monkeypatch.setattr(fingerprints, "SPREAD_BYTES", 0)
    stat = write_old(tmp_path, "a.jsonl", b"0123456789\n" * 30)
    path = tmp_path / "a.jsonl"

    class ChangingExecutor:
        """Changes the file before the first or the sixth of ten ranges."""

        def run(self, work, tasks):
            changed_before = {"cut": 0, "half": 5}.get(moment)
            for number, task in enumerate(list(tasks)):
                if number == changed_before:
                    CHANGES[change](path)
                yield number, work(task)

    if moment == "listed":
        CHANGES[change](path)
    expected_error = MissingError if change == "remove" else SourceChangedError
    with pytest.raises(expected_error) as caught:
        list(fingerprint_all(tmp_path, [stat], ChangingExecutor()))
    assert caught.value.where == str(path)


@pytest.mark.parametrize("change", ["append", "truncate", "touch"])
def test_a_change_while_a_file_is_hashed_is_an_error(tmp_path, monkeypatch, change):
    monkeypatch.setattr(fingerprints, "READ_BYTES", 30)
    stat = write_old(tmp_path, "a.jsonl", b"0123456789\n" * 10)
    path = tmp_path / "a.jsonl"

    with pytest.raises(SourceChangedError, match="changed while it was read") as caught:
        fingerprint(tmp_path, stat, lambda hashed_bytes: CHANGES[change](path))

    assert caught.value.where == str(path)


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

    for part in [*parts[:2], *parts[3:]]:
        StoredPiece(tmp_path, part).check()
    with pytest.raises(SourceChangedError, match="CRC-32"):
        StoredPiece(tmp_path, parts[2]).check()


def test_a_grown_file_keeps_its_first_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 100)
    lines = [b"%04d " % number + b"x" * 30 + b"\n" for number in range(40)]
    before = fingerprint(tmp_path, write_old(tmp_path, "a.jsonl", b"".join(lines[:33])))

    after = fingerprint(tmp_path, write_old(tmp_path, "a.jsonl", b"".join(lines)))

    assert len(before) == 11
    assert after[:10] == before[:10]


def test_parts_of_a_large_file_are_hashed_in_the_memory_of_a_few_blocks(tmp_path):
    stat = write_old(tmp_path, "a.jsonl", b"a line\n" * (24 << 17))

    tracemalloc.start()
    parts = list(hash_parts(tmp_path, stat, 4 << 20, [].append))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(parts) > 4
    assert peak_bytes < 5 * fingerprints.READ_BYTES
