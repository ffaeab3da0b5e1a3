"""Which raw text has arrived whole, and whether an inventory was taken of it: names, sizes and times, no bytes read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.raw.corpus import Inventory
from nanoset_core.raw.fingerprints import FingerprintMemory
from nanoset_core.raw.listing import FileStat, natural_key, walk_files
from nanoset_core.raw.pieces import Piece, is_text

_AHEAD_NS = 3600 * 10**9
"""A file whose time lies further in the future than this tells nothing by it: the clock that wrote it is wrong."""


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """The files of a corpus as a glance found them."""

    corpus: str
    files: tuple[FileStat, ...]
    """those that would be read, in the order in which the file system gave them"""
    mark: str
    """changes when a file is added, removed, renamed, written to or replaced"""
    newest_ns: int
    """the last modification of any file, nanoseconds since 1970"""

    @property
    def size(self) -> int:
        """Stored bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class RawText:
    """Everything below the raw folder as a glance found it."""

    corpora: Mapping[str, CorpusFiles]
    """by name, sorted; only those that hold at least one file that would be read"""
    faults: Mapping[str, NanosetError]
    """folder or file → why it cannot be taken for a corpus, or cannot be read"""

    @property
    def files(self) -> int:
        """How many files would be read."""
        return sum(len(found.files) for found in self.corpora.values())


def look(raw: Path) -> RawText:
    """List every corpus below `raw`. What is wrong with one of them does not hide the others.

    Raises:
        MissingError: `raw` is not there.
        InputError: it cannot be listed.
    """
    if not raw.is_dir():
        raise MissingError(
            "the folder of raw text does not exist",
            where=raw,
            remedy="mount or restore it, or create it with one folder of text a corpus",
        )
    corpora: dict[str, CorpusFiles] = {}
    faults: dict[str, NanosetError] = {}
    for entry in _entries(raw):
        try:
            if entry.is_dir():
                found = glance(entry, entry.name)
                if found.files:
                    corpora[check_corpus_name(entry.name, entry)] = found
            elif is_text(entry.name) and entry.is_file():
                raise _stray(raw, entry)
        except NanosetError as error:
            faults[entry.name] = error
    return RawText(corpora, faults)


def _entries(raw: Path) -> list[Path]:
    try:
        return sorted(entry for entry in raw.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(
            "the folder of raw text cannot be listed",
            where=raw,
            found=error.strerror,
            remedy="give this user the right to read it",
        ) from error


def _stray(raw: Path, file: Path) -> InputError:
    return InputError(
        "a file of text belongs to no corpus",
        where=file,
        expected="each file inside the folder of its corpus",
        remedy=f"move it, for example to {raw / file.name.partition('.')[0] / file.name}",
    )


def glance(folder: Path, corpus: str) -> CorpusFiles:
    """The files of one corpus that would be read; raises as list_files does."""
    files = tuple(file for file in walk_files(folder, folder.parent) if is_text(file.path))
    rows = sorted(f"{file.path}\0{file.size}\0{file.mtime_ns}\0{file.inode}\n" for file in files)
    mark = hashlib.blake2b("".join(rows).encode(), digest_size=10).hexdigest()
    return CorpusFiles(corpus, files, mark, max((file.mtime_ns for file in files), default=0))


def is_settled(found: CorpusFiles, seen: str | None, *, now_ns: int, settle_seconds: float) -> bool:
    """Whether nothing is being written to a corpus any more, as far as one can tell from outside.

    Two looks must have found the same, and the newest file must not have been written to for `settle_seconds`.

    Args:
        found: what this look found.
        seen: the mark that the look before found; None where there was none.
        now_ns: the time of this look, nanoseconds since 1970.
        settle_seconds: how long a file must have been left alone.
    """
    if found.mark != seen:
        return False
    age_ns = now_ns - found.newest_ns
    return age_ns >= settle_seconds * 1e9 or age_ns < -_AHEAD_NS


def known_inventory(found: CorpusFiles, remembered: Path) -> Inventory | None:
    """The inventory that would be taken of these files, without reading them.

    Args:
        found: the files.
        remembered: the memory of digests that take_inventory keeps.

    Returns:
        None where the memory does not know every file as it is now.
    """
    memory = FingerprintMemory(remembered)
    pieces: list[Piece] = []
    for file in sorted(found.files, key=lambda file: natural_key(file.path)):
        known = memory.recall(file)
        if known is None:
            return None
        pieces.extend(known)
    return Inventory(found.corpus, tuple(pieces))
