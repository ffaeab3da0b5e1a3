"""Find where a large file of lines is cut into pieces, by small reads instead of reading all of it.

A piece ends with a line. To find the first line end after some position, the file is read from
there in windows: the first one has 64 KiB, and each further one twice as much, up to 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanoset_core.storage.reading.input_files import Probe
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE, in_parallel

WINDOW_BYTES = 64 << 10
"""Bytes of the first read at a cut."""
_MAX_WINDOW_BYTES = 8 << 20


def chained_cuts(probe: Probe, size: int, piece_bytes: int) -> Iterator[int]:
    """Yield the positions at which a large file of lines is cut into pieces, in order.

    A piece ends at the first end of a line after `piece_bytes` bytes. For example, the lines of a
    file of 45 bytes start at 0, 4, 13, 38 and 41. With `piece_bytes` 10:

        a piece starts at     0     13    38
        it is cut at          13    38    (only 7 bytes are left: it ends with the file)

    Only the bytes near a cut are read.

    Args:
        probe: Reads the file.
        size: Bytes of the file.
        piece_bytes: Least size of a piece.
    """
    piece_start = 0
    while size - piece_start > piece_bytes:
        earliest_cut = piece_start + piece_bytes
        cut = _line_start(probe, earliest_cut, size)
        if cut is None:
            return
        yield cut
        piece_start = cut


def separate_cuts(probe: Probe, size: int, piece_bytes: int) -> list[int]:
    """Return the positions at which a large file of lines is cut into pieces, all found at once.

    A large file is cut so that several processes can read it. A cut must be where a line starts.
    The file is divided into ranges of `piece_bytes` bytes, and each range except the first one is
    cut where its first line starts. For example, the lines of a file of 45 bytes start at 0, 4, 13,
    38 and 41. With `piece_bytes` 10:

        range    0–9     10–19    20–29    30–39    40–44
        cut      none    13       none     38       41       (no line starts in 20–29)

    No cut depends on another one. So all ranges can be looked at in parallel, which matters for
    objects in a bucket, where each look is a request.

    Args:
        probe: Reads a few bytes anywhere in the file.
        size: Bytes of the file.
        piece_bytes: Size of a range, and so about that of a piece if lines are much shorter.

    Returns:
        The cuts, ascending.
    """

    def find_cut(range_start: int) -> int | None:
        """Return the first position in a range at which a line starts, or None."""
        range_stop = min(range_start + piece_bytes, size)
        return _line_start(probe, range_start, range_stop)

    range_starts = range(piece_bytes, size, piece_bytes)  # 10, 20, 30, 40
    cuts = in_parallel(find_cut, range_starts, TRANSFERS_AT_ONCE)  # 13, None, 38, 41
    return [cut for cut in cuts if cut is not None]


def _line_start(probe: Probe, start: int, stop: int) -> int | None:
    r"""Return the first position in a range of a file at which a line starts, or None.

    A line starts after a line feed: in b"ab\ncd\n", lines start at 0 and 3. The start of the file
    is not looked for.

    Args:
        probe: Reads the file.
        start: First position of the range, at least 1.
        stop: Position after the range, at most the size of the file. The last byte of a file is
            never read, since no line follows it.
    """
    line_feed = _find_line_feed(probe, start - 1, stop - 1)
    return None if line_feed is None else line_feed + 1


def _find_line_feed(probe: Probe, start: int, stop: int) -> int | None:
    """Return the position of the first line feed in a range of a file, or None.

    Usually one is near, so a small read is enough. In a long line, more and more is read at once,
    so that there are few requests.

    Args:
        probe: Reads the file.
        start: First position of the range.
        stop: Position after the range.
    """
    window_bytes = WINDOW_BYTES
    while start < stop:
        window = probe.read(start, min(start + window_bytes, stop))
        is_truncated = not window  # since the file was listed
        if is_truncated:
            return None
        index = window.find(b"\n")
        if index >= 0:
            return start + index
        start += len(window)
        window_bytes = min(2 * window_bytes, _MAX_WINDOW_BYTES)
    return None
