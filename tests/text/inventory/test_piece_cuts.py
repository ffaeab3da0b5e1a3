"""Cuts that are found by small reads: the right ones, and with few bytes read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.raw_files import LINES, cut_slowly
from nanoset_core.storage.reading.input_files import Probe
from nanoset_core.text.inventory import piece_cuts
from nanoset_core.text.inventory.piece_cuts import WINDOW_BYTES, chained_cuts, separate_cuts


class RecordingFile:
    """A file in memory that records how many bytes are read, and in how many reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.reads = 0
        self.read_bytes = 0
        self.probe = Probe(None, self._read)

    def _read(self, start: int, stop: int) -> bytes:
        self.reads += 1
        self.read_bytes += stop - start
        return self._data[start:stop]


def slow_separate_cuts(data: bytes, piece_bytes: int) -> list[int]:
    """Return the first line end at or after each multiple of a piece, without duplicates."""
    line_ends = [match.end() for match in re.finditer(rb"\n", data)]
    cuts = set()
    for multiple in range(piece_bytes, len(data) + 1, piece_bytes):
        later_ends = [end for end in line_ends if end >= multiple]
        # A line feed at the end of the file is no cut, since no line follows it.
        if later_ends and later_ends[0] < len(data):
            cuts.add(later_ends[0])
    return sorted(cuts)


DATA = LINES.map(b"\n".join)


@given(data=DATA, piece_bytes=st.integers(1, 60), window=st.integers(1, 40))
def test_separate_cuts_are_at_the_line_ends_after_multiples_of_a_piece(data, piece_bytes, window):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_cuts, "WINDOW_BYTES", window)

        cuts = separate_cuts(RecordingFile(data).probe, len(data), piece_bytes)

    assert cuts == slow_separate_cuts(data, piece_bytes)


@given(data=DATA, piece_bytes=st.integers(1, 60), window=st.integers(1, 40))
def test_separate_cuts_read_no_byte_twice_however_long_lines_are(data, piece_bytes, window):
    file = RecordingFile(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_cuts, "WINDOW_BYTES", window)

        separate_cuts(file.probe, len(data), piece_bytes)

    assert file.read_bytes <= len(data)


def test_chained_cuts_of_a_large_file_take_few_small_reads():
    piece_bytes = 4 << 20
    data = b"".join(b"x" * (number * 7919 % 3000) + b"\n" for number in range(40_000))  # 60 MB
    file = RecordingFile(data)

    cuts = list(chained_cuts(file.probe, len(data), piece_bytes))

    pieces = cut_slowly("a.jsonl", data, piece_bytes)
    assert cuts == [piece.begin for piece in pieces[1:]]
    assert file.reads <= 2 * len(cuts)
    assert file.read_bytes <= 2 * len(cuts) * WINDOW_BYTES
