"""Digests of a file by pieces: of one that was joined within a store, and so not read from end to end."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import FormatError
from nanoset_core.storage.regular_files import read_regular

_LINE = re.compile(rb"([0-9a-f]{64}) ([1-9][0-9]*)")


class PieceDigest(NamedTuple):
    """One piece of a file; the pieces lie back to back."""

    sha256: str
    """Hex, of its bytes."""
    size: int
    """Bytes."""


def pieces_text(pieces: Iterable[PieceDigest]) -> bytes:
    """Return one line a piece, without empty ones. The sha256 of this text stands for all bytes of the file."""
    return "".join(f"{piece.sha256} {piece.size}\n" for piece in pieces if piece.size).encode()


def read_pieces(path: Path) -> list[PieceDigest]:
    """Read the pieces that a file of `pieces_text` lists.

    Raises:
        FormatError: it holds something else.
        FileNotFoundError: it is not there.
    """
    pieces = []
    for number, line in enumerate(read_regular(path).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise FormatError(
                "this is not a piece of a file",
                where=f"{path}:{number}",
                found=repr(line[:100]),
                expected="a sha256 and a number of bytes",
                remedy=f"delete {path.parent}, and build again: it is made anew",
            )
        pieces.append(PieceDigest(match[1].decode(), int(match[2])))
    return pieces


class PieceCheck:
    """Compares a file's bytes, given in order and in blocks of any size, with the digests of its pieces."""

    def __init__(self, pieces: Sequence[PieceDigest], begin: int = 0) -> None:
        """Args:
        pieces: of the file, all or some that lie back to back.
        begin: where in the file the first of them begins.
        """
        self._left, self._end = list(reversed(pieces)), begin
        self._sha256, self._taken = hashlib.sha256(), 0
        self._expected, self._found = sum(piece.size for piece in pieces), 0
        self._fault: str | None = None

    def add(self, block: bytes | memoryview) -> None:
        """Add the next bytes."""
        left = memoryview(block)
        self._found += len(left)
        while left and self._fault is None:
            if not self._left:
                self._fault = f"bytes after the last piece, which ends at byte {self._end:,}"
                return
            piece = self._left[-1]
            part = left[: piece.size - self._taken]
            self._sha256.update(part)
            self._taken, left = self._taken + len(part), left[len(part) :]
            if self._taken == piece.size:
                self._end_piece(self._left.pop())

    def _end_piece(self, piece: PieceDigest) -> None:
        begin, self._end = self._end, self._end + piece.size
        if (digest := self._sha256.hexdigest()) != piece.sha256:
            self._fault = f"sha256 {digest} of bytes {begin:,} to {self._end:,} instead of {piece.sha256}"
        self._sha256, self._taken = hashlib.sha256(), 0

    def fault(self) -> str | None:
        """Return what is wrong with the bytes that were added, which are all of the pieces; None where nothing is."""
        if self._fault is None and self._left:
            return f"{self._found:,} bytes instead of {self._expected:,}"
        return self._fault
