"""Which parts an object is joined of, where S3 copies what is large enough and takes the rest from us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nanoset_core.errors import StorageError

LEAST_BYTES = 5 << 20
"""Of every part but the last, as S3 asks for."""
MOST_BYTES = 5 << 30
"""Of any part."""
COPIED_BYTES = 1 << 30
"""Of a copied part, unless that would be too many: one request can be waited for, and is done again after a fault."""
SENT_BYTES = 16 << 20
"""Of a part that is sent where none can be copied, likewise."""
MOST_PARTS = 10_000


class Piece(NamedTuple):
    """Bytes [begin, end) of one of the objects that are joined."""

    source: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def copied_bytes(sizes: Sequence[int]) -> int:
    """The most bytes of a copied part, so that half of the parts of an object are enough for all of it."""
    return min(MOST_BYTES, max(COPIED_BYTES, -(-sum(sizes) // (MOST_PARTS // 2))))


def sent_bytes(sizes: Sequence[int]) -> int:
    """The same where all parts pass through the client, which holds some of them."""
    return min(MOST_BYTES, max(SENT_BYTES, -(-sum(sizes) // (MOST_PARTS // 2))))


def runs_of(sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES) -> list[slice]:
    """Runs of objects, each of which can be joined at once; several where all together would be too many parts.

    Arguments as for `plan_parts`.
    """
    if sum(1 for _ in _parts(sizes, least, most)) <= MOST_PARTS:
        return [slice(0, len(sizes))]
    runs: list[slice] = []
    begin = parts = 0
    for source, size in enumerate(sizes):
        needed = max(1, -(-size // most))
        if parts and parts + needed > MOST_PARTS:
            runs.append(slice(begin, source))
            begin, parts = source, 0
        parts += needed
    return [*runs, slice(begin, len(sizes))]


def plan_parts(sizes: Sequence[int], *, least: int = LEAST_BYTES, most: int = MOST_BYTES) -> list[list[Piece]]:
    """Parts in order: each of one piece of at least `least` bytes, which is copied, or of small ones, which are sent.

    Only objects below `least`, and what is taken from the next one to fill a part up, pass through the client: fewer
    than 2 * least bytes for each run of small ones.

    Args:
        sizes: bytes of each object.
        least: bytes of every part but the last.
        most: bytes of a part.

    Raises:
        StorageError: an object cannot have as many parts.
    """
    parts = list(_parts(sizes, least, most))
    if len(parts) > MOST_PARTS:
        raise StorageError(
            "too many parts for one object",
            found=f"{len(parts):,}",
            expected=f"at most {MOST_PARTS:,}, of {most:,} bytes each",
            remedy="join less: no store of this kind holds so large an object",
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
