"""Surveys of raw text: which corpora there are, whether they have arrived whole, and their
inventories.

A scan looks at names, sizes and times alone; an inventory hashes every byte that no earlier one has
hashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.execution.processes import Executor
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.records.text import format_count
from nanoset_core.storage.location import RawFolder, RemoteFolder
from nanoset_core.text.contents import Contents, contents_of
from nanoset_core.text.endings import ACCEPTED, is_companion, is_cuttable, is_text, is_unfinished
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.fingerprints import fingerprint_all
from nanoset_core.text.listing import FileStat, walk
from nanoset_core.text.notices import abbreviated
from nanoset_core.text.pieces import Inventory, Piece
from nanoset_core.text.stored_piece import StoredPiece

_STRAY = "a file in no corpus, which is not read"
_REFUSED = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow")
"""Endings of files in no corpus that are an error: these are nearly always text."""
_AHEAD_NS = 3600 * 10**9
"""A file whose time lies further in the future than this tells nothing by it: the clock that wrote
it is wrong.
"""


@dataclass(frozen=True, slots=True)
class RawText:
    """Everything below the raw folder as a scan found it."""

    corpora: Mapping[str, Contents]
    """By name, sorted; only those that hold at least one file that would be read."""
    faults: Mapping[str, NanosetError]
    """Folder or file → why it cannot be taken for a corpus, or cannot be read."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Folder or file → what it is, where it is no corpus since nothing in it is read."""

    @property
    def files(self) -> int:
        """How many files would be read."""
        return sum(len(found.texts) for found in self.corpora.values())


def list_corpora(raw: RawFolder, *, names_only: bool = False) -> RawText:
    """Scan every corpus below the raw folder. A fault in one of them does not hide the others.

    With `names_only` look no further than the first file of each corpus that would be read, and
    leave its files out; a folder that cannot be listed counts as a corpus then: its inventory will
    say what is wrong.

    Raises:
        MissingError: the folder is not there.
        InputError: it cannot be listed.
    """
    corpora: dict[str, Contents] = {}
    aside: dict[str, str] = {}
    entries, faults = _entries(raw)
    for entry in entries:
        try:
            if not entry.is_dir():
                _refuse_stray(raw, entry)
                aside |= {} if is_companion(entry.name) else {entry.name: _STRAY}
                continue
            is_corpus = names_only and _may_hold_text(entry)
            contents = Contents() if is_corpus else contents_of(entry, raw)
            if is_corpus or contents.texts:
                corpora[check_corpus_name(entry.name, entry)] = replace(contents, corpus=entry.name)
            else:
                aside[entry.name] = _why_aside(contents)
        except NanosetError as error:
            faults[entry.name] = error
    return RawText(corpora, faults, aside)


def _why_aside(contents: Contents) -> str:
    found = "; ".join(notice.text for notice in contents.notices()) or "it is empty"
    return f"a folder in which nothing is read: {found}"


def _entries(raw: RawFolder) -> tuple[list[RawFolder], dict[str, NanosetError]]:
    """Return what is in the raw folder, by name and without hidden names, and errors of what cannot
    be named.
    """
    entries: list[RawFolder] = []
    faults: dict[str, NanosetError] = {}
    try:
        if isinstance(raw, RemoteFolder):
            found, bad_keys = raw.entries()
            entries += found
            faults |= bad_keys
        else:
            entries += raw.iterdir()
    except OSError as error:
        if raw.is_dir():
            what, remedy = (
                "the folder of raw text cannot be listed",
                "give this user the right to read it",
            )
            raise InputError(what, where=raw, found=error.strerror, remedy=remedy) from error
    entries = [entry for entry in entries if not entry.name.startswith(".")]
    if not entries and not faults and not raw.is_dir():
        no_folder, remedy = (
            "the folder of raw text does not exist",
            "name a folder, mount or restore it, or create it",
        )
        what = "a file is where the folder of raw text should be" if raw.is_file() else no_folder
        raise MissingError(what, where=raw, remedy=f"{remedy} with one folder of text a corpus")
    return sorted(entries, key=lambda entry: entry.name), faults


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
        return any(is_text(found.path) for found in walk(folder, folder.parent))
    except NanosetError:
        return True


def _is_left_alone(written_ns: int, now_ns: int, seconds: float) -> bool:
    age_ns = now_ns - written_ns
    return age_ns >= seconds * 1e9 or age_ns < -_AHEAD_NS


def is_quiescent(found: Contents, seen: str | None, *, now_ns: int, settle_seconds: float) -> bool:
    """Return whether nothing is being written to a corpus any more, as far as can be told from
    outside.

    `seen`, the signature of the scan before (None: there was none), must be that of this scan at
    `now_ns`, and the newest file must have been left alone for `settle_seconds`.
    """
    newest = max((file.mtime_ns for file in found.texts), default=0)
    return found.signature == seen and _is_left_alone(newest, now_ns, settle_seconds)


@dataclass(frozen=True, slots=True)
class QuietPeriod:
    """Which files have been left alone long enough to be read; the others count as the inventory
    before had them.
    """

    seconds: float
    """How long a file must have been left alone."""
    now_ns: int
    """The time of the look, nanoseconds since 1970."""
    before: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    """Path → pieces of the files of the inventory before."""

    def is_unsettled(self, file: FileStat) -> bool:
        """Return whether a file was written too recently."""
        return not _is_left_alone(file.mtime_ns, self.now_ns, self.seconds)

    def overwritten(self, folder: RawFolder, files: Iterable[FileStat]) -> str | None:
        """Find an unsettled file that does not hold what it held; None where all do.

        A file of lines that was appended to does: its first and its last piece are read to see
        that.
        """
        unsettled = (file for file in files if self.is_unsettled(file) and file.path in self.before)
        return next(
            (file.path for file in unsettled if not _holds(folder, file, self.before[file.path])),
            None,
        )


def _holds(folder: RawFolder, file: FileStat, pieces: Sequence[Piece]) -> bool:
    """Return whether a file still holds the pieces that it had, judged by the first and the last."""
    grown = file.size - pieces[-1].end
    if grown < 0 or (grown and not is_cuttable(file.path)):
        return False
    try:
        for piece in {pieces[0], pieces[-1]}:
            StoredPiece(folder, piece).check()
    except NanosetError:
        return False
    return True


def known_inventory(
    found: Contents, memory: FingerprintMemory, quiet: QuietPeriod | None = None
) -> Inventory | None:
    """Return the inventory that take_inventory would take of these files, without reading them.

    None where the memory does not know every file as it is now.
    """
    files = found.ordered
    known, unsettled = _known(files, memory, quiet)
    return _inventory(found.corpus, files, known, unsettled) if len(known) == len(files) else None


def take_inventory(
    folder: RawFolder,
    corpus: str,
    *,
    memory: FingerprintMemory | None = None,
    progress: Callable[[int], None] | None = None,
    contents: Contents | None = None,
    quiet: QuietPeriod | None = None,
    executor: Executor | None = None,
) -> Inventory:
    """List and fingerprint the files of one corpus.

    Every byte is hashed once; a file that is as an earlier inventory remembers it, by size, time,
    and inode or time of change, is not read again. Plain files above 64 MiB are cut at line ends
    into pieces with digests of their own, so that a grown file leaves its first pieces as they
    were.

    Args:
        folder: the corpus's folder, searched through all its folders.
        corpus: its name.
        memory: carries digests from one inventory to the next; absent = nothing is known.
        progress: called with the number of bytes hashed, or known, since the last call.
        contents: what lies in the folder, if that is known.
        quiet: which files are not read and count as they were; absent: all are read.
        executor: hashes many unknown bytes, large plain files piece by piece; absent = this
            process.

    Raises:
        MissingError, InputError: see contents_of; InputError, too, where no file could be read.
        SourceChangedError: a file changed while it was hashed.
    """
    contents = contents or contents_of(folder, folder.parent)
    if not contents.texts:
        raise no_text(folder, contents)
    files, memory = contents.ordered, memory or FingerprintMemory(None)
    known, unsettled = _known(files, memory, quiet)
    unknown = [file for file in files if file.path not in known]
    if progress is not None:
        progress(contents.size - sum(file.size for file in unknown))
    for file, found in fingerprint_all(folder, unknown, executor, progress):
        memory.note(file, found)
        known[file.path] = found
    inventory = _inventory(corpus, files, known, unsettled)
    if not inventory.pieces:
        raise InputError(
            "something writes to every file of the corpus",
            where=folder,
            found=f"{format_count(len(files), 'file')}, such as {files[0].path}",
            expected="a file that is left alone",
            remedy="wait, or build it by hand, which takes files as they are",
        )
    # which another corpus of the folder may read
    memory.save({*contents.left_out, *(file.path for file in files)})
    return replace(
        inventory, ignored=tuple(path for path in contents.others if not is_unfinished(path))
    )


def _known(
    files: Sequence[FileStat], memory: FingerprintMemory, quiet: QuietPeriod | None
) -> tuple[dict[str, Sequence[Piece]], tuple[str, ...]]:
    """Return (path → pieces of the files that are not to be read, paths of those of them that
    something writes to).
    """
    known = {
        file.path: quiet.before.get(file.path, ())
        for file in files
        if quiet and quiet.is_unsettled(file)
    }
    unsettled = tuple(known)
    recalled = ((file.path, memory.recall(file)) for file in files if file.path not in known)
    return known | {path: pieces for path, pieces in recalled if pieces is not None}, unsettled


def _inventory(
    corpus: str,
    files: Sequence[FileStat],
    known: Mapping[str, Sequence[Piece]],
    unsettled: tuple[str, ...],
) -> Inventory:
    return Inventory(
        corpus, tuple(piece for file in files for piece in known[file.path]), awaited=unsettled
    )


def no_text(folder: RawFolder, contents: Contents, what: str = "the corpus is empty") -> InputError:
    """Return the error for a folder in which nothing is read."""
    others, left_out = contents.others, contents.left_out
    if left_out:
        return InputError(
            "the corpus's files and exclude leave no file to read",
            where=folder,
            found=f"{format_count(len(left_out), 'file')} left out: {abbreviated(left_out)}",
            expected=f"at least one file ending in {ACCEPTED} that they take",
            remedy="correct corpora.<name>.files or exclude in nanoset.yaml"
            + (f": no file fits {abbreviated(contents.unmatched)}" if contents.unmatched else ""),
        )
    found = (
        f"{format_count(len(others), 'other file')}: {', '.join(others[:5])}"
        if others
        else "no files"
    )
    if contents.misnamed:
        count = format_count(len(contents.misnamed), "folder")
        found += f", and {count} named like a file of text: {abbreviated(contents.misnamed)}"
    return InputError(
        what,
        where=folder,
        found=found,
        expected=f"at least one file ending in {ACCEPTED}",
        remedy="add files, convert or rename those that are there, or name another folder",
    )
