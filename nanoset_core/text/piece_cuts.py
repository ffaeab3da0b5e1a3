"""Find where a large file of lines is cut into pieces, by small reads instead of reading all of it.

A piece ends with a line. To find the first line end after some position, the file is read from
there in windows: the first one has 64 KiB, and each further one twice as much, up to 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.storage.store import in_parallel
from nanoset_core.text.raw_files import Probe

WINDOW_BYTES = 64 << 10
"""Bytes of the first read at a cut."""
_MAX_WINDOW_BYTES = 8 << 20


def chained_cuts(probe: Probe, size: int, piece_bytes: int) -> Iterator[int]:
    """Yield the positions at which a file is cut into pieces, finding each from the one before.

    A piece ends as soon as it has `piece_bytes` bytes or more and its last line is complete. No cut
    is yielded for the last piece, which ends with the file.

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: Least size of a piece.

    Yields:
        Byte after the last one of each piece.
    """
    start = 0  # of the current piece
    while size - start > piece_bytes:
        # The earliest line feed that may end the piece is its byte number `piece_bytes`.
        cut = line_end(probe, start + piece_bytes - 1, size)
        if cut is None or cut == size:
            return
        yield cut
        start = cut


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Return the positions at which a file is cut into pieces, finding each without the others.

    A cut is the start of a line. The file is divided into ranges of `piece_bytes` bytes each, and
    cut at the first line that starts in each of them, except in the first range. If one long line
    covers a range, there is no cut in it. No cut depends on another one, so all of them are looked
    for at the same time.

    For example, the lines of a file of 45 bytes start at 0, 4, 13, 38 and 41. With `piece_bytes`
    10, its cuts are 13, 38 and 41: no line starts in the range from 20 to 30.

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: Size of a range. If lines are much shorter, all pieces except the last one have
            about this size.

    Returns:
        The cuts, ascending.
    """

    def find_cut(range_start: int) -> int | None:
        """Return the first position in a range at which a line starts, or None."""
        # A line starts after a line feed, so the line feed is one byte before the cut.
        first_byte = range_start - 1
        # A line feed at the end of the file is no cut, since no line follows it.
        stop_byte = min(first_byte + piece_bytes, size - 1)
        return line_end(probe, first_byte, stop_byte)

    range_starts = range(piece_bytes, size, piece_bytes)
    cuts = in_parallel(find_cut, range_starts)
    return [cut for cut in cuts if cut is not None]


def line_end(probe: Probe, start: int, stop: int) -> int | None:
    """Return the position after the first line feed in a range of a file.

    Args:
        probe: Reads the file.
        start: First byte of the range.
        stop: Byte after the range.

    Returns:
        The position, or None if the range has no line feed.
    """
    # Usually a line end is near, so that a small read is enough. In a long line, read more and more
    # at once, so that there are few requests.
    window_bytes = WINDOW_BYTES
    while start < stop:
        window = probe.read(start, min(start + window_bytes, stop))
        if not window:  # the file is shorter by now
            return None
        line_feed = window.find(b"\n")
        if line_feed >= 0:
            return start + line_feed + 1
        start += len(window)
        window_bytes = min(2 * window_bytes, _MAX_WINDOW_BYTES)
    return None
