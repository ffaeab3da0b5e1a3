"""Surveys of raw text: which corpora there are, whether they have arrived whole, and their inventories.

A scan looks at names, sizes and times alone; an inventory hashes every byte that no earlier one has hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.execution.processes import Executor
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.raw.contents import Contents, contents_of
from nanoset_core.raw.endings import ACCEPTED, is_companion, is_text, is_unfinished
from nanoset_core.raw.fingerprints import (
    FingerprintMemory,
    is_cut_unread,
    is_read,
    spread_fingerprints,
    unread_fingerprints,
)
from nanoset_core.raw.listing import FileStat, natural_key, walk_files
from nanoset_core.raw.pieces import Inventory, Piece
from nanoset_core.raw.settling import Settling, is_left_alone
from nanoset_core.serialization.text import format_count
from nanoset_core.storage.remote_folder import RawFolder

SPREAD_BYTES = 1 << 30
"""Unknown bytes from which it is worth while to have them hashed by an executor's workers."""
_STRAY = "a file in no corpus, which is not read"
_REFUSED = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow")
"""Endings of files in no corpus that are an error: they are hardly anything else than text."""


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """The files of a corpus as a scan found them."""

    corpus: str
    files: tuple[FileStat, ...]
    """Those that would be read, in the order in which the file system gave them."""
    signature: str
    """Changes when a file is added, removed, renamed, written to or replaced; with its rights, too."""
    newest_ns: int
    """The last modification of any file, nanoseconds since 1970."""

    @property
    def size(self) -> int:
        """Stored bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class RawText:
    """Everything below the raw folder as a scan found it."""

    corpora: Mapping[str, CorpusFiles]
    """By name, sorted; only those that hold at least one file that would be read."""
    faults: Mapping[str, NanosetError]
    """Folder or file → why it cannot be taken for a corpus, or cannot be read."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Folder or file → what it is, where it is no corpus since nothing in it is read."""

    @property
    def files(self) -> int:
        """How many files would be read."""
        return sum(len(found.files) for found in self.corpora.values())


def list_corpora(raw: RawFolder) -> RawText:
    """Scan every corpus below the raw folder. What is wrong with one of them does not hide the others.

    Raises:
        MissingError: the folder is not there.
        InputError: it cannot be listed.
    """
    corpora: dict[str, CorpusFiles] = {}
    faults: dict[str, NanosetError] = {}
    aside: dict[str, str] = {}
    for entry in _entries(raw):
        try:
            if not entry.is_dir():
                _refuse_stray(raw, entry)
                aside |= {} if is_companion(entry.name) else {entry.name: _STRAY}
                continue
            contents = contents_of(entry, raw)
            if contents.texts:
                corpora[check_corpus_name(entry.name, entry)] = _scanned(contents, entry.name)
            else:
                aside[entry.name] = _why_aside(contents)
        except NanosetError as error:
            faults[entry.name] = error
    return RawText(corpora, faults, aside)


def left_aside(raw: RawFolder) -> Mapping[str, str]:
    """What below the raw folder is no corpus since nothing in it is read: its name → what it is.

    Raises:
        MissingError, InputError: see list_corpora.
    """
    aside: dict[str, str] = {}
    for entry in _entries(raw):
        if not entry.is_dir():
            is_told = not entry.name.endswith(_REFUSED) and not is_companion(entry.name)
            aside |= {entry.name: _STRAY} if is_told else {}
        elif not _may_hold_text(entry):
            aside[entry.name] = _why_aside(contents_of(entry, raw))
    return aside


def _why_aside(contents: Contents) -> str:
    """What a folder is in which nothing is read."""
    found = "; ".join(notice.text for notice in contents.notices()) or "it is empty"
    if contents.others and not contents.notices():
        found = f"{format_count(len(contents.others), 'companion')}, such as {contents.others[0]}"
    return f"a folder in which nothing is read: {found}"


def discover_corpora(raw: RawFolder) -> list[str]:
    """Names of the folders below the raw folder that hold at least one file that could be read, sorted.

    A folder that cannot be listed counts as well: what is wrong with it is said when its inventory is taken.

    Raises:
        MissingError: the raw folder is not there.
        ConfigError: a folder's name cannot be a partition key or a path of ours.
        InputError: the raw folder cannot be listed, or a file of text lies outside of any corpus.
    """
    folders = []
    for entry in _entries(raw):
        if entry.is_dir():
            folders.append(entry)
        else:
            _refuse_stray(raw, entry)
    return [check_corpus_name(folder.name, folder) for folder in folders if _may_hold_text(folder)]


def _entries(raw: RawFolder) -> list[RawFolder]:
    if isinstance(raw, Path) and raw.is_file():
        raise InputError(
            "a file is where the folder of raw text should be", where=raw, remedy="name a folder of corpora"
        )
    if not raw.is_dir():
        raise MissingError(
            "the folder of raw text does not exist",
            where=raw,
            remedy="mount or restore it, or create it with one folder of text a corpus",
        )
    try:
        entries = [entry for entry in raw.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(
            "the folder of raw text cannot be listed",
            where=raw,
            found=error.strerror,
            remedy="give this user the right to read it",
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def _refuse_stray(raw: RawFolder, file: RawFolder) -> None:
    if is_text(file.name) and file.name.endswith(_REFUSED) and file.is_file():
        raise InputError(
            "a file of text belongs to no corpus",
            where=file,
            expected="each file inside the folder of its corpus",
            remedy=f"move it, for example to {raw / file.name.partition('.')[0] / file.name}",
        )


def _may_hold_text(folder: RawFolder) -> bool:
    try:
        return any(is_text(file.path) for file in walk_files(folder, folder.parent))
    except NanosetError:
        return True


def scan_corpus(folder: RawFolder, corpus: str) -> CorpusFiles:
    """The files of one corpus that would be read.

    Raises:
        MissingError, InputError: see list_files.
    """
    return _scanned(contents_of(folder, folder.parent), corpus)


def _scanned(contents: Contents, corpus: str) -> CorpusFiles:
    files = contents.texts
    # Some file systems number their inodes anew at each look.
    rows = sorted(f"{file.path}\0{file.size}\0{file.mtime_ns}\0{file.changed_ns or file.inode}\n" for file in files)
    signature = hashlib.blake2b("".join(rows).encode(), digest_size=10).hexdigest()
    return CorpusFiles(corpus, files, signature, max((file.mtime_ns for file in files), default=0))


def is_quiescent(found: CorpusFiles, seen: str | None, *, now_ns: int, settle_seconds: float) -> bool:
    """Whether nothing is being written to a corpus any more, as far as one can tell from outside.

    Two scans must have found the same, and the newest file must not have been written to for `settle_seconds`.

    Args:
        found: what this scan found.
        seen: the signature that the scan before found; None where there was none.
        now_ns: the time of this scan, nanoseconds since 1970.
        settle_seconds: how long a file must have been left alone.
    """
    if found.signature != seen:
        return False
    return is_left_alone(found.newest_ns, now_ns, settle_seconds)


def known_inventory(
    found: CorpusFiles, remembered: Path, settling: Settling | None = None, *, cut_unread: bool = False
) -> Inventory | None:
    """The inventory that would be taken of these files, without reading them.

    Args:
        found: the files.
        remembered: the memory of digests that take_inventory keeps.
        settling: which files count as they were, as for take_inventory.
        cut_unread: whether the corpus's folder is one of is_cut_unread.

    Returns:
        None where the memory does not know every file as it is now.
    """
    memory = FingerprintMemory(remembered, cut_unread=cut_unread)
    pieces: list[Piece] = []
    awaited: list[str] = []
    for file in sorted(found.files, key=lambda file: natural_key(file.path)):
        if settling is not None and settling.awaits(file):
            awaited.append(file.path)
            pieces.extend(settling.pieces(file))
        elif (known := memory.recall(file)) is not None:
            pieces.extend(known)
        else:
            return None
    return Inventory(found.corpus, tuple(pieces), awaited=tuple(awaited))


def take_inventory(
    folder: RawFolder,
    corpus: str,
    *,
    remembered: Path | None = None,
    progress: Callable[[int], None] | None = None,
    contents: Contents | None = None,
    settling: Settling | None = None,
    executor: Executor | None = None,
) -> Inventory:
    """List and fingerprint the files of one corpus.

    Every byte is hashed once; a file that is as an earlier inventory remembers it, by size, time, and inode or time of
    change, is not read again. Plain files above 64 MiB are cut at line ends into pieces with digests of their own, so
    that a grown file leaves its first pieces as they were.

    Args:
        folder: the corpus's folder, searched through all its folders.
        corpus: its name.
        remembered: a small JSON file that carries digests from one inventory to the next.
        progress: called with the number of bytes hashed, or known, since the last call.
        contents: what lies in the folder, where that was looked at already.
        settling: files that were written a moment ago are not read and count as they were; absent: all are read.
        executor: hashes the files that no earlier inventory knows, where these are many bytes, large plain ones
            piece by piece; absent = this process.

    Raises:
        MissingError: the folder is not there.
        InputError: it holds no file that could be read; or see list_files.
        SourceChangedError: a file changed while it was hashed.
    """
    contents = contents or contents_of(folder, folder.parent)
    if not contents.texts:
        raise no_text(folder, contents)
    memory = FingerprintMemory(remembered, cut_unread=is_cut_unread(folder))
    pieces: list[Piece] = []
    awaited = [stat.path for stat in contents.ordered if settling is not None and settling.awaits(stat)]
    waiting = set(awaited)

    def unknown() -> list[FileStat]:
        return [stat for stat in contents.ordered if stat.path not in waiting and memory.recall(stat) is None]

    spread: dict[str, list[Piece]] = {}
    for stat, found in _several_at_once(folder, unknown, executor, progress):
        memory.note(stat, found)
        spread[stat.path] = found
    for stat in contents.ordered:
        if settling is not None and stat.path in waiting:
            pieces.extend(settling.pieces(stat))
        elif stat.path in spread:
            pieces.extend(spread[stat.path])
        else:
            pieces.extend(memory.pieces(folder, stat, progress))
    if not pieces:
        raise InputError(
            "something writes to every file of the corpus",
            where=folder,
            found=f"{format_count(len(awaited), 'file')}, such as {awaited[0]}",
            expected="a file that is left alone",
            remedy="wait, or build it by hand, which takes files as they are",
        )
    memory.save({stat.path for stat in contents.texts})
    others = tuple(path for path in contents.others if not is_unfinished(path))
    return Inventory(corpus, tuple(pieces), others, tuple(awaited))


def _several_at_once(
    folder: RawFolder,
    unknown: Callable[[], list[FileStat]],
    executor: Executor | None,
    progress: Callable[[int], None] | None,
) -> Iterable[tuple[FileStat, list[Piece]]]:
    """Unknown files with their pieces, where it is worth while to look at several at once; none where it is not."""
    if is_cut_unread(folder):
        return unread_fingerprints(folder, unknown())
    if executor is not None and is_read(folder):
        stats = unknown()
        if sum(stat.size for stat in stats) >= SPREAD_BYTES:
            return spread_fingerprints(folder, stats, executor, progress)
    return ()


def no_text(folder: RawFolder, contents: Contents, what: str = "the corpus is empty") -> InputError:
    """What to raise where nothing in a folder is read."""
    others = contents.others
    return InputError(
        what,
        where=folder,
        found=f"{format_count(len(others), 'other file')}: {', '.join(others[:5])}" if others else "no files",
        expected=f"at least one file ending in {ACCEPTED}",
        remedy="add files, convert or rename those that are there, or name another folder",
    )
