"""Take the inventory of a corpus: list its files, and hash those that are new or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nanoset_core.errors import InputError, NanosetError
from nanoset_core.execution.processes import Executor
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.endings import is_cuttable, is_unfinished
from nanoset_core.text.files.survey import is_settled, no_text
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.fingerprints import fingerprint_all
from nanoset_core.text.inventory.pieces import Inventory, Piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.wording import format_count


@dataclass(frozen=True, slots=True)
class QuietPeriod:
    """How long a file must not have been written before an inventory reads it.

    A file that was written later is *unsettled*: perhaps it is still being uploaded. The inventory
    then lists the pieces that the file had in the previous inventory. If it is new, it has to wait
    for a later inventory.
    """

    seconds: float
    """How long a file must not have been written, in seconds."""
    now_ns: int
    """The present time, nanoseconds since 1970."""
    previous_pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    """Path → pieces of each file in the previous inventory."""

    def is_unsettled(self, file: FileStat) -> bool:
        """Return whether a file was written too recently to be read.

        Args:
            file: The file, as it was listed.
        """
        return not is_settled(file.mtime_ns, self.now_ns, self.seconds)

    def overwritten(self, folder: Location, files: Iterable[FileStat]) -> str | None:
        """Return a file of the last build that is being overwritten at this moment, or None.

        While something writes to a file, a build reads only what the file had in the last build.
        That is right if the writer appends lines, as the old lines are still there. If it
        overwrites the file, the old text is gone, and the new one is not complete:

            the last build read    AAAA BBBB
            appended to            AAAA BBBB CC…    still begins with the same bytes
            overwritten            XXXX Y…          does not: returned here

        Args:
            folder: The folder of the corpus.
            files: The files in it, as they were listed.
        """
        for file in files:
            previous_pieces = self.previous_pieces.get(file.path)
            if previous_pieces is None or not self.is_unsettled(file):
                continue
            if not _begins_with(folder, file, previous_pieces):
                return file.path
        return None


def _begins_with(folder: Location, file: FileStat, pieces: Sequence[Piece]) -> bool:
    """Return whether a file still begins with the text that it had in an earlier build.

    An earlier build has recorded a digest of each piece (some 64 MiB) of the file. Since the file
    may be large, only its first and last piece are read and compared with their digests. A program
    that overwrites a file nearly always changes one of them.

    Args:
        folder: The folder of the corpus.
        file: The file, as it was listed.
        pieces: All pieces that the file had in the earlier build, in order.
    """
    earlier_size = pieces[-1].end
    if file.size < earlier_size:
        return False
    if file.size > earlier_size and not is_cuttable(file.path):
        return False  # a compressed file or a table cannot grow by appending to it
    try:
        for piece in {pieces[0], pieces[-1]}:  # a set: they may be the same piece
            StoredPiece(folder, piece).check()
    except NanosetError:
        return False
    return True


class _KnownFiles(NamedTuple):
    """The files of a corpus that need not be read."""

    pieces: dict[str, Sequence[Piece]]
    """Path → pieces."""
    unsettled: tuple[str, ...]
    """Those of these files that were written a moment ago; see `QuietPeriod`."""


def known_inventory(
    contents: Contents, memory: FingerprintMemory, quiet: QuietPeriod | None = None
) -> Inventory | None:
    """Return the inventory of a corpus, if no file has to be read for it; otherwise None.

    An inventory lists the files of a corpus with digests of their bytes. The digests of a file that
    has the same size and times as in an earlier inventory are known. If there is a new or changed
    file, it would have to be read, which `take_inventory` does.

    Args:
        contents: The files of the corpus, as they were listed.
        memory: The digests from earlier inventories.
        quiet: How to treat files that were written a moment ago; None if all count as complete.
    """
    files = contents.ordered
    known = _known_files(files, memory, quiet)
    if len(known.pieces) < len(files):
        return None
    return _inventory(contents.corpus, files, known)


def take_inventory(
    folder: Location,
    corpus: str,
    *,
    memory: FingerprintMemory | None = None,
    progress: Callable[[int], None] | None = None,
    contents: Contents | None = None,
    quiet: QuietPeriod | None = None,
    executor: Executor | None = None,
) -> Inventory:
    """Take the inventory of a corpus: list its files, and hash those that are new or changed.

    Every byte is hashed once: a file that has not changed since an earlier inventory is not read
    again. Plain files above 64 MiB are cut at line ends into pieces, each with a digest, so that
    the first pieces of a file stay the same when it grows.

    Args:
        folder: The folder of the corpus, which is searched at all depths.
        corpus: Name of the corpus.
        memory: Carries digests from one inventory to the next; None if nothing is known.
        progress: Called with the number of bytes that were hashed, or known, since the last call.
        contents: The files in the folder, if they were listed already.
        quiet: How to treat files that were written a moment ago; None to read all files.
        executor: Hashes unknown files if they are large together; None for this process.

    Raises:
        MissingError: The folder does not exist, a link leads nowhere, or a file was deleted.
        InputError: The folder cannot be listed, or the corpus has no file that can be read.
        SourceChangedError: A file changed while it was hashed.
    """
    if contents is None:
        contents = contents_of(folder, folder.parent)
    if not contents.texts:
        raise no_text(folder, contents)
    if memory is None:
        memory = FingerprintMemory(None)

    # Find the files whose pieces are known already. They count as hashed from the start.
    files = contents.ordered
    known = _known_files(files, memory, quiet)
    unknown_files = [file for file in files if file.path not in known.pieces]
    if progress is not None:
        unknown_bytes = sum(file.size for file in unknown_files)
        progress(contents.size - unknown_bytes)

    # Hash the others. After that, the pieces of all files are known.
    for file, pieces in fingerprint_all(folder, unknown_files, executor, progress):
        memory.note(file, pieces)
        known.pieces[file.path] = pieces
    inventory = _inventory(corpus, files, known)
    if not inventory.pieces:
        raise _all_files_being_written(folder, files)

    # Another corpus may read the files that this one does not read, so remember these, too.
    read_paths = [file.path for file in files]
    memory.save({*contents.left_out, *contents.unread, *read_paths})
    ignored = tuple(path for path in contents.unread if not is_unfinished(path))
    return replace(inventory, ignored=ignored)


def _all_files_being_written(folder: Location, files: Sequence[FileStat]) -> InputError:
    """Return the error for a corpus all of whose files something is writing to."""
    return InputError(
        "something writes to every file of the corpus",
        where=folder,
        found=f"{format_count(len(files), 'file')}, such as {files[0].path}",
        expected="a file that is left alone",
        remedy="wait, or build it by hand, which takes files as they are",
    )


def _known_files(
    files: Sequence[FileStat], memory: FingerprintMemory, quiet: QuietPeriod | None
) -> _KnownFiles:
    """Return the digests of those files that need not be read now.

        file       state                                  what is returned
        a.jsonl    unchanged since it was hashed          its digests
        b.jsonl    new                                    nothing: it has to be read
        c.jsonl    something writes to it at the moment   its digests in the last inventory; none
                                                          if it is new, so that it has to wait

    Args:
        files: The files, as they were listed.
        memory: The digests of files that were hashed before.
        quiet: Says which files are being written; None if all count as complete.
    """
    pieces_by_path: dict[str, Sequence[Piece]] = {}
    unsettled_paths = []
    for file in files:
        if quiet is not None and quiet.is_unsettled(file):
            unsettled_paths.append(file.path)
            pieces_by_path[file.path] = quiet.previous_pieces.get(file.path, ())
            continue
        remembered_pieces = memory.recall(file)
        if remembered_pieces is not None:
            pieces_by_path[file.path] = remembered_pieces
    return _KnownFiles(pieces_by_path, tuple(unsettled_paths))


def _inventory(corpus: str, files: Sequence[FileStat], known: _KnownFiles) -> Inventory:
    """Return the inventory of files whose pieces are all known."""
    pieces: list[Piece] = []
    for file in files:
        pieces.extend(known.pieces[file.path])
    return Inventory(corpus, tuple(pieces), awaited=known.unsettled)
