"""The inventory of a corpus: which files, in which order, with which content, and how the work is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.raw.fingerprints import FingerprintMemory
from nanoset_core.raw.listing import list_files, walk_files
from nanoset_core.raw.pieces import SUFFIXES, Piece, SourceRange, checked_piece, group_pieces, is_text

__all__ = [
    "SUFFIXES",
    "Inventory",
    "Piece",
    "SourceRange",
    "cut_ranges",
    "discover_corpora",
    "list_files",
    "take_inventory",
    "text_bytes",
]

PARTIAL_SUFFIXES = (".tmp", ".part", ".partial", ".crdownload")
"""Endings of files that are still being uploaded: not read, not worth a word."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """A snapshot of a corpus."""

    corpus: str
    pieces: tuple[Piece, ...]
    """in document order: files in natural order, pieces by offset"""
    ignored: tuple[str, ...] = ()
    """files that are not read, judged by their names; relative paths, as a survey found them"""

    @property
    def files(self) -> tuple[str, ...]:
        """Relative paths in document order."""
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    @property
    def size(self) -> int:
        """Stored bytes of all files."""
        return sum(piece.size for piece in self.pieces)

    @property
    def content_digest(self) -> str:
        """Changes whenever a file is added, removed, renamed or edited; not with times or folders."""
        return digest_of([asdict(piece) for piece in self.pieces])

    def to_json(self) -> dict[str, Any]:
        """As plain values, without the ignored files: they reach nothing. `from_json` turns them back."""
        return {"corpus": self.corpus, "pieces": [asdict(piece) for piece in self.pieces]}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Inventory:
        """The inventory that `to_json` wrote down; TypeError or ValueError for anything else."""
        pieces = tuple(checked_piece(Piece(**piece)) for piece in value["pieces"])
        return Inventory(check_corpus_name(value["corpus"], "corpus"), pieces)


def discover_corpora(raw: Path) -> list[str]:
    """Names of the folders below `raw` that hold at least one file that could be read, sorted.

    A folder that cannot be listed counts as well: what is wrong with it is said when its inventory is taken.

    Raises:
        MissingError: `raw` is not there.
        ConfigError: a folder's name cannot be a partition key or a path of ours.
        InputError: a file of text lies outside of any such folder.
    """
    if not raw.is_dir():
        raise MissingError(
            "the folder of raw text does not exist", where=raw, remedy="create it with one folder of .jsonl a corpus"
        )
    entries = sorted(entry for entry in raw.iterdir() if not entry.name.startswith("."))
    if stray := [entry for entry in entries if is_text(entry.name) and entry.is_file()]:
        raise InputError(
            "a file of text belongs to no corpus",
            where=stray[0],
            found=f"{len(stray)} such file(s) in {raw}",
            expected="each file inside the folder of its corpus",
            remedy=f"move it, for example to {raw / stray[0].name.partition('.')[0] / stray[0].name}",
        )
    folders = [entry for entry in entries if entry.is_dir()]
    return [check_corpus_name(folder.name, folder) for folder in folders if _may_hold_text(folder)]


def _may_hold_text(folder: Path) -> bool:
    try:
        return any(is_text(file.path) for file in walk_files(folder, folder.parent))
    except NanosetError:
        return True


def text_bytes(folder: Path) -> int:
    """Stored bytes of the files of a corpus that would be read."""
    return sum(file.size for file in list_files(folder, folder.parent) if is_text(file.path))


def take_inventory(
    folder: Path,
    corpus: str,
    *,
    remembered: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inventory:
    """List and fingerprint the files of one corpus.

    Every byte is hashed once; a file whose size, time and inode are those remembered from an earlier inventory is
    not read again. Plain files above 64 MiB are cut at line ends into pieces with digests of their own, so that a
    grown file leaves its first pieces as they were.

    Args:
        folder: the corpus's folder, searched through all its folders.
        corpus: its name.
        remembered: a small JSON file that carries digests from one inventory to the next.
        progress: called with the number of bytes hashed, or known, since the last call.

    Raises:
        MissingError: the folder is not there.
        InputError: it holds no file that could be read; or see list_files.
        SourceChangedError: a file changed while it was hashed.
    """
    files = list_files(folder, folder.parent)
    texts = [file for file in files if is_text(file.path)]
    ignored = [file.path for file in files if not is_text(file.path) and not file.path.endswith(PARTIAL_SUFFIXES)]
    if not texts:
        raise InputError(
            "the corpus is empty",
            where=folder,
            found=f"{len(ignored)} other file(s): {', '.join(ignored[:5])}" if ignored else "no files",
            expected=f"at least one file ending in {', '.join(SUFFIXES)}",
            remedy="add files, or remove the folder",
        )
    memory = FingerprintMemory(remembered)
    pieces: list[Piece] = []
    for stat in texts:
        pieces.extend(memory.pieces(folder, stat, progress))
    memory.save({stat.path for stat in texts})
    return Inventory(corpus, tuple(pieces), tuple(ignored))


def cut_ranges(inventory: Inventory, target_bytes: int) -> list[SourceRange]:
    """The units of work of a corpus, in document order: consecutive pieces of about `target_bytes` together.

    An added, removed or grown file changes its own range, and seldom a neighbour; see group_pieces.
    """
    return group_pieces(inventory.pieces, target_bytes)
