"""Find where a large file of lines is cut into pieces, by small reads instead of reading all of it.

A piece ends with a line. A cut is looked for from a given byte on, in windows of 64 KiB that are
doubled as long as there is no line end in them.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.storage.store import in_parallel
from nanoset_core.text.raw_files import Probe

WINDOW_BYTES = 64 << 10
"""Bytes of the first read at a cut."""
_MAX_WINDOW_BYTES = 8 << 20


def chained_cuts(probe: Probe, size: int, piece_bytes: int) -> Iterator[int]:
    """Yield where the pieces of a file end, except the last one.

    A piece ends with the first line that ends at `piece_bytes` bytes of it or later. So each cut
    depends on the one before.

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: Least size of a piece.
    """
    start = 0
    while size - start > piece_bytes:
        cut = line_end(probe, start + piece_bytes - 1, size)
        if cut is None or cut == size:
            return
        yield cut
        start = cut


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Return where the pieces of a file end, except the last one, looking for all cuts at once.

    For each multiple of `piece_bytes`, the file is cut at the first line end there or after it. No
    cut depends on another one. A line that is longer than a piece takes the place of the cuts in
    it.

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: About the size of a piece.
    """

    def cut_after(position: int) -> int | None:
        # Not beyond the next multiple: what is after it belongs to the next cut.
        return line_end(probe, position, min(position + piece_bytes, size - 1))

    # A line feed at one of these positions ends exactly at a multiple of `piece_bytes`.
    positions = range(piece_bytes - 1, size - 1, piece_bytes)
    cuts = in_parallel(cut_after, positions)
    return [cut for cut in cuts if cut is not None]


def line_end(probe: Probe, start: int, stop: int) -> int | None:
    """Return the position after the first line feed in bytes [start, stop), or None."""
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
