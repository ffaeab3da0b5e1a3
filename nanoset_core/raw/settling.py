"""Files that something still writes to: they count as the inventory before had them, until they are left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nanoset_core.errors import NanosetError
from nanoset_core.raw.endings import is_cuttable
from nanoset_core.raw.listing import FileStat
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.stored import StoredPiece
from nanoset_core.storage.remote_folder import RawFolder

_AHEAD_NS = 3600 * 10**9
"""A file whose time lies further in the future than this tells nothing by it: the clock that wrote it is wrong."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Which files have been left alone, as far as one look can tell, and what stands in for the others."""

    seconds: float
    """How long a file must have been left alone."""
    now_ns: int
    """The time of the look, nanoseconds since 1970."""
    before: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    """Path → pieces of the files of the inventory before."""

    def awaits(self, file: FileStat) -> bool:
        """Whether a file was written a moment ago."""
        return not is_left_alone(file.mtime_ns, self.now_ns, self.seconds)

    def pieces(self, file: FileStat) -> Sequence[Piece]:
        """Those of a file that is awaited: as they were; none where it is a new one."""
        return self.before.get(file.path, ())

    def overwritten(self, folder: RawFolder, files: Iterable[FileStat]) -> str | None:
        """A file that is awaited and cannot be read as it was; None where all can.

        A file of lines that was appended to can: its first and its last piece are read to see that. Compressed
        files and tables of another size are written anew.
        """
        waits = (file for file in files if self.awaits(file) and self.pieces(file))
        return next((file.path for file in waits if not _holds(folder, file, self.pieces(file))), None)


def _holds(folder: RawFolder, file: FileStat, pieces: Sequence[Piece]) -> bool:
    """Whether a file still holds the pieces that it had, as far as the outermost tell."""
    ends = [pieces[0], *pieces[1:][-1:]]
    grown = file.size - ends[-1].end
    if grown < 0 or (grown and not is_cuttable(file.path)):
        return False
    try:
        for piece in ends:
            StoredPiece(folder, piece).check()
    except NanosetError:
        return False
    return True


def is_left_alone(written_ns: int, now_ns: int, seconds: float) -> bool:
    """Whether what was written last at a time has been left alone for some seconds since."""
    age_ns = now_ns - written_ns
    return age_ns >= seconds * 1e9 or age_ns < -_AHEAD_NS
