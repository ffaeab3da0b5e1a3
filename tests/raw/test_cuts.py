"""Where files are cut, found by small reads: as by reading all of them."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.raw import cuts
from nanoset_core.raw.cuts import chained_cuts, line_end, separate_cuts
from nanoset_core.raw.stored import Probe, probe_raw

TEXTS = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40).map(b"\n".join)


def probe_of(data: bytes, at_once: int, asked: list[tuple[int, int]] | None = None) -> Probe:
    def read(begin: int, end: int) -> bytes:
        if asked is not None:
            asked.append((begin, end))
        return data[begin:end]

    return Probe(None, read, at_once)


def slow_cuts(data: bytes, piece_bytes: int) -> list[int]:
    found, begin = [], 0
    for line in re.finditer(rb"\n", data):
        if line.end() - begin >= piece_bytes and line.end() < len(data):
            begin = line.end()
            found.append(begin)
    return found


@settings(max_examples=150, deadline=None)
@given(data=TEXTS, piece_bytes=st.integers(1, 60), window=st.integers(1, 40), at_once=st.integers(1, 5))
def test_cuts_are_those_of_the_slow_rule(data, piece_bytes, window, at_once):
    kept, cuts.WINDOW_BYTES = cuts.WINDOW_BYTES, window
    try:
        assert list(chained_cuts(probe_of(data, at_once), len(data), piece_bytes)) == slow_cuts(data, piece_bytes)
    finally:
        cuts.WINDOW_BYTES = kept


@settings(max_examples=150, deadline=None)
@given(data=TEXTS, piece_bytes=st.integers(1, 60), window=st.integers(1, 40))
def test_separate_cuts_are_after_the_lines_that_reach_multiples_of_a_piece(data, piece_bytes, window):
    ends = [line.end() for line in re.finditer(rb"\n", data) if line.end() < len(data)]
    reached = {next((end for end in ends if end >= at), None) for at in range(piece_bytes, len(data) + 1, piece_bytes)}
    kept, cuts.WINDOW_BYTES = cuts.WINDOW_BYTES, window
    try:
        asked: list[tuple[int, int]] = []
        found = separate_cuts(probe_of(data, 3, asked), len(data), piece_bytes)
    finally:
        cuts.WINDOW_BYTES = kept
    assert found == sorted(reached - {None})
    assert sum(end - begin for begin, end in asked) <= len(data), "no byte twice, however long lines are"


def test_little_is_read():
    asked: list[tuple[int, int]] = []
    data = b"".join(b"x" * (number * 7919 % 3000) + b"\n" for number in range(40_000))
    found = list(chained_cuts(probe_of(data, 8, asked), len(data), 4 << 20))
    assert found == slow_cuts(data, 4 << 20)
    assert len(asked) <= 2 * len(found)
    assert sum(end - begin for begin, end in asked) <= 2 * len(found) * cuts.WINDOW_BYTES


def test_a_file_that_is_shorter_by_now_is_no_endless_one(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    with probe_raw(tmp_path / "a") as probe:
        assert list(chained_cuts(probe, 1000, 5)) == [8]
        assert line_end(probe, 8, 1000) is None
