"""Where a plain file is cut, found by small reads: nobody has to read it whole to share it."""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.raw.stored import Probe
from nanoset_core.storage.store import in_parallel

WINDOW_BYTES = 64 << 10
"""Read at a cut, which lies at a line end in it as a rule."""
_MOST_WINDOW_BYTES = 8 << 20


def chained_cuts(probe: Probe, size: int, piece_bytes: int) -> Iterator[int]:
    """Where pieces of a file end, but for the last: each cut counts from the one before, after whole lines.

    The next cuts lie a little after the next multiples of a piece, so that several are looked for at once.

    Args:
        probe: of the file.
        size: of the file.
        piece_bytes: a piece ends with the first line that ends at or after so many bytes.
    """
    begin = 0
    while size - begin > piece_bytes:
        looked_at = range(begin + piece_bytes - 1, size, piece_bytes)[: probe.at_once]
        for at, window in zip(looked_at, _windows(probe, looked_at, size), strict=True):
            found = window.find(b"\n", begin + piece_bytes - 1 - at)
            if found < 0:
                if at > looked_at[0]:
                    break  # the lines before were long: it is looked for where it must be
                begin = line_end(probe, at + len(window), size) or size
            else:
                begin = at + found + 1
            if begin < size:
                yield begin


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Where pieces of a file end, but for the last: at the first line end at or after each multiple of a piece.

    No cut depends on another, so that all are looked for at once. A line that is longer than a piece takes the place of
    cuts. Arguments as for chained_cuts.
    """
    lasts = range(piece_bytes - 1, size - 1, piece_bytes)
    found = in_parallel(lambda at: line_end(probe, at, min(at + piece_bytes, size - 1)), lasts, probe.at_once)
    return [cut for cut in found if cut is not None]


def _windows(probe: Probe, begins: range, size: int) -> list[bytes]:
    return in_parallel(lambda begin: probe.read(begin, min(begin + WINDOW_BYTES, size)), begins, probe.at_once)


def line_end(probe: Probe, begin: int, end: int) -> int | None:
    """The byte after the first line end in bytes [begin, end); None where there is none."""
    length = WINDOW_BYTES
    while begin < end and (window := probe.read(begin, min(begin + length, end))):
        if (found := window.find(b"\n")) >= 0:
            return begin + found + 1
        begin, length = begin + len(window), min(2 * length, _MOST_WINDOW_BYTES)
    return None
