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

    For each multiple m of `piece_bytes`, the file is cut at the first line end in
    [m, m + piece_bytes). If one long line covers this range, there is no cut in the range. Since no
    cut depends on another one, they are all looked for at the same time.

    For example, a file of 45 bytes has lines that end before bytes 4, 13, 38, 41 and 45. With
    `piece_bytes` 10, its cuts are 13, 38 and 41: no line ends in [20, 30).

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: Distance between the positions m. If lines are much shorter, all pieces except
            the last one have about this size.

    Returns:
        Byte after the last one of each piece, ascending.
    """

    def find_cut(start: int) -> int | None:
        """Return the cut for a line feed at byte `start` or later, or None."""
        # The last byte of the file is left out: a cut after it would leave an empty piece.
        stop = min(start + piece_bytes, size - 1)
        return line_end(probe, start, stop)

    # A cut is the byte after a line feed. So the search for one at m or later starts at m - 1.
    starts = range(piece_bytes - 1, size - 1, piece_bytes)
    cuts = in_parallel(find_cut, starts)
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
