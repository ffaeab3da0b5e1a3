"""Which parts an object is joined of, where S3 copies what is large enough and takes the rest from us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nanoset_core.errors import StorageError

LEAST_BYTES = 5 << 20
"""Of every part but the last, as S3 asks for."""
MOST_BYTES = 5 << 30
"""Of any part."""
MOST_PARTS = 10_000
_MOST_JOINED_BYTES = 640 << 20
"""Of a part that is held in memory."""


class Piece(NamedTuple):
    """Bytes [begin, end) of one of the objects that are joined."""

    source: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def plan_parts(sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES) -> list[list[Piece]]:
    """Parts in order: each of one piece of at least `least` bytes, which is copied, or of small ones, which are sent.

    Only objects below `least`, and what is taken from the next one to fill a part up, pass through the client: fewer
    than 2 * least bytes for each run of small ones.

    Args:
        sizes: bytes of each object.
        least: bytes of every part but the last.
        most: bytes of a part.

    Where these would be more parts than an object may have, more objects pass through the client in larger parts.

    Raises:
        StorageError: the object would be larger than so many parts can be.
    """
    parts = list(_parts(sizes, least, most))
    while len(parts) > MOST_PARTS and 2 * least <= min(most, _MOST_JOINED_BYTES):
        least *= 2
        parts = list(_parts(sizes, least, most))
    if len(parts) > MOST_PARTS:
        raise StorageError(
            "too many parts for one object",
            found=f"{len(parts):,}",
            expected=f"at most {MOST_PARTS:,}",
            remedy="join fewer objects, or larger ones",
        )
    return parts


def _parts(sizes: Sequence[int], least: int, most: int) -> Iterator[list[Piece]]:
    held: list[Piece] = []
    held_bytes = 0
    for source, size in enumerate(sizes):
        begin = 0
        while left := size - begin:
            if not held and left >= least:
                take = left if left <= most else min(most, left - least)  # what stays is a part again, never a crumb
                yield [Piece(source, begin, begin + take)]
            else:
                take = min(left, least - held_bytes)
                held.append(Piece(source, begin, begin + take))
                held_bytes += take
                if held_bytes >= least:
                    yield held
                    held, held_bytes = [], 0
            begin += take
    if held:
        yield held
