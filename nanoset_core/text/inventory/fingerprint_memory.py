"""Remember the pieces of files, so that a file is hashed again only if it changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location, is_s3_url
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.text.inventory.fingerprints import PIECE_BYTES, is_cut_unread, is_large
from nanoset_core.text.inventory.pieces import ETAG, Piece, checked_piece

SAVE_BYTES = 1 << 30
"""The memory is saved whenever about this many bytes were hashed. If the process is killed, no more
has to be hashed again.
"""
_SAVED_SHARE = 8
"""It is not saved before this share of all hashed bytes, an eighth, is new: the memory of a large
corpus is large itself.
"""
_RACY_NS = 2_000_000_000
"""A file that was written this recently could change again without another modification time, since
clocks of file systems are coarse.
"""
_VERSION = 1
_END_IF_UPLOADED = b"\n"
"""Last byte of the local file if the store has the same content, apart from this byte."""


@dataclass(frozen=True, slots=True)
class StoredFingerprints(Record):
    """The content of the JSON file."""

    json_form: ClassVar[JsonForm] = JsonForm("this is not a memory of fingerprints")
    ignores_unknown_keys: ClassVar[bool] = True

    version: int
    """Version of this format."""
    piece_bytes: int
    """Size of the pieces that large files were cut into."""
    files: dict[str, Any]
    """Path → entry. Each is checked when it is used, so that a damaged one costs no other."""


class FingerprintMemory:
    """The pieces of files by path, kept in a small JSON file from one inventory to the next.

    An entry is trusted while its file has the same size, the same modification time, and the same
    inode (in a bucket, ETag) or change time.

    If the outputs are in a store, such as a bucket, the file is stored there, too, for other
    machines. The local file takes precedence: local copies of the same text have other inodes on
    each machine.

    The file has the form

        {"version": 1, "piece_bytes": 67108864, "files": {
            "a.jsonl": {
                "stat": [size, mtime_ns, inode], "changed_ns": …,
                "pieces": [[start, stop, first line, digest], …]}}}
    """

    def __init__(
        self, path: Path | None, access: FileAccess | None = None, folder: Location | None = None
    ) -> None:
        """Load the local file, if it exists.

        Args:
            path: The JSON file; None if nothing is kept.
            access: The outputs, if they may be in a store, which then stores the file, too.
            folder: The folder of the files, if it may be in a bucket.
        """
        self._path = path
        # On a disk, the local file is the only one: there is no other one to read or write.
        is_in_store = access is not None and access.takes_requests
        self._access = access if is_in_store else None
        self._is_cut_unread = folder is not None and is_cut_unread(folder)
        # Only files that were written before this time are remembered; see `_RACY_NS`.
        if folder is not None and is_s3_url(str(folder)):
            # ETags tell all versions apart, however recent. Of files in other stores, such as web
            # servers, only the time may be known, in whole seconds.
            self._settled_before_ns = sys.maxsize
        else:
            self._settled_before_ns = time.time_ns() - _RACY_NS

        data = None
        if path is not None:
            with suppress(FileNotFoundError), explained(path, only_reads=True):
                data = read_regular(path)
        self._entries = _parse(data)
        # Whether the store has all these entries, too.
        self._is_uploaded = data is not None and data.endswith(_END_IF_UPLOADED)
        self._noted_bytes = 0  # size of all files that were hashed by this process
        self._unsaved_bytes = 0  # size of those that were hashed since the last `save`

    def recall(self, stat: FileStat) -> list[Piece] | None:
        """Return the pieces of a file with their digests, if this version was hashed before.

        Large files are hashed in pieces, which takes long. So the digests are remembered, for each
        path with the size and time of the file, on this machine and in the store of the outputs.

        Args:
            stat: Size and times of the file, as it was just listed.

        Returns:
            The pieces; None if the file has to be hashed.
        """
        # First look at the entries on this machine, and then at those in the store of the outputs.
        pieces = self._pieces_in(self._entries, stat)
        if pieces is None:
            pieces = self._pieces_in(self._entries_in_store, stat)
            if pieces is not None:
                # Copy the entry, so that the next `save` writes it to this machine.
                self._entries[stat.path] = self._entries_in_store[stat.path]
        return pieces

    def mark(self, piece: Piece) -> int | None:
        """Return the number that was stored with a file's hash, to notice that it was replaced.

            a file on a disk         its inode number: a file that takes its place has another one
            an object in a bucket    a number computed from its ETag, which each version changes

        Args:
            piece: All of a file, with its hash.

        Returns:
            The number; None if none was stored, or if the piece is only a part of a file.
        """
        number = _mark_in(self._entries, piece)  # stored on this machine
        if number is None:
            number = _mark_in(self._entries_in_store, piece)  # stored by all machines
        return number

    def note(self, stat: FileStat, pieces: list[Piece]) -> None:
        """Remember the digests of a file that was just hashed, and save them now and then.

        What was not saved is lost if this process is killed. But each time, all of the memory is
        saved, which takes long for a large corpus. So it is saved after each GiB (SAVE_BYTES) that
        was hashed, and later after each eighth (_SAVED_SHARE) of all bytes so far.

        Args:
            stat: Name, size and times of the file.
            pieces: The pieces of the file, with their digests.
        """
        # A file that was written in the last seconds is not remembered. If it were written again
        # right now, its time, by which a change is noticed, could stay the same.
        if self._is_settled(stat.mtime_ns):
            self._entries[stat.path] = self._entry(stat, pieces)
            self._is_uploaded = False  # `save` has to upload this entry to the store of the outputs
            self._noted_bytes += stat.size
            self._unsaved_bytes += stat.size

        bytes_between_saves = max(SAVE_BYTES, self._noted_bytes // _SAVED_SHARE)
        if self._unsaved_bytes >= bytes_between_saves:
            self.save(self._entries)

    def _is_settled(self, time_ns: int) -> bool:
        """Return whether a change after a time must have set another time; see `_RACY_NS`."""
        return time_ns < self._settled_before_ns

    def _entry(self, stat: FileStat, pieces: list[Piece]) -> dict[str, Any]:
        """Return the entry of a file in the JSON file."""
        entry: dict[str, Any] = {
            "stat": [stat.size, stat.mtime_ns, stat.inode],
            "pieces": [_row(piece) for piece in pieces],
        }
        # The change time may stand in for the inode: see `FileStat.is_same_version`. If it is too
        # recent, it could stay the same over another change, so only the inode counts.
        if self._is_settled(stat.changed_ns):
            entry["changed_ns"] = stat.changed_ns
        return entry

    def save(self, paths: Collection[str]) -> None:
        """Save the hashes of some files to a JSON file on this machine, and perhaps to a bucket.

        If the outputs of the project are in a bucket, there is one such file for all machines.
        Other machines may have added hashes of other files to it. So theirs and ours are combined:

            in the bucket       a.jsonl, b.jsonl
            on this machine              b.jsonl, c.jsonl
            saved to both       a.jsonl, b.jsonl, c.jsonl

        Nothing is uploaded if no hashes were added since the last upload, or none is left.

        Args:
            paths: The files. What is known about any other file is dropped, since it was deleted.
        """
        self._unsaved_bytes = 0
        if self._path is None:
            return

        has_unshared_entries = self._access is not None and not self._is_uploaded
        entries = self._entries
        if has_unshared_entries:
            entries = self._entries_in_store | entries
        entries = {path: entry for path, entry in entries.items() if path in paths}
        data = dump(StoredFingerprints(_VERSION, PIECE_BYTES, entries))
        if has_unshared_entries and entries:
            is_in_store = entries == self._entries_in_store
            if not is_in_store:
                self._upload(data)
            self._is_uploaded = True
        self._write_local_file(self._path, data)

    def _write_local_file(self, path: Path, data: bytes) -> None:
        """Write the file on this machine, unless it has this content already.

        Args:
            path: The file.
            data: The content. If the store has the same, the file gets a line feed at its end: it
                shows the next process on this machine that it need not upload the file again.
        """
        if self._is_uploaded:
            data += _END_IF_UPLOADED
        if not path.exists() or read_regular(path) != data:
            write_atomic(path, data)

    def _upload(self, data: bytes) -> None:
        """Replace the file in the store, if the outputs are in one."""
        if self._access is not None and self._path is not None:
            self._access.store.put(self._access.name(self._path), data)

    def clear(self) -> None:
        """Delete all digests, on this machine and in the store, so that files are read again."""
        if self._path is None:
            return
        data = dump(StoredFingerprints(_VERSION, PIECE_BYTES, {}))
        self._upload(data)
        write_atomic(self._path, data)

    @cached_property
    def _entries_in_store(self) -> dict[str, Any]:
        """Path → entry of the file in the store, from all machines; empty without a store."""
        if self._access is None or self._path is None:
            return {}
        name = self._access.name(self._path)
        listing = self._access.known_listing(name)
        if listing is not None and listing.file(name) is None:
            return {}  # no machine has stored the file: do not ask for it
        return _parse(self._access.store.read(name))

    def _pieces_in(self, entries: Mapping[str, Any], stat: FileStat) -> list[Piece] | None:
        """Return the hashes of a file's pieces, unless the file has to be hashed.

        Args:
            entries: The entries of the local file, or those of the file in a bucket, by path.
            stat: Name, size and times of the file, as it was just listed.

        Returns:
            The pieces with their hashes; None if they are not known, the file was changed, or it
            has to be cut into smaller pieces.
        """
        pieces = _pieces_if_unchanged(entries, stat)
        if pieces is None:
            return None

        # Users can set that large objects in a bucket are cut into pieces (`_is_cut_unread`). If
        # the entry was made before they did, its object is still in one piece. Then make a new one.
        must_be_cut = self._is_cut_unread and is_large(stat)
        if must_be_cut and _is_one_uncut_object(pieces):
            return None
        return pieces


def _pieces_if_unchanged(entries: Mapping[str, Any], stat: FileStat) -> list[Piece] | None:
    """Return the hashes of a file's pieces, if they are known and the file is unchanged.

    Large files are cut into pieces, each of which has a hash. An entry looks like this:

        {"stat": [size, modification time, inode], "changed_ns": change time,
         "pieces": [[start, stop, first line, hash], …]}

    Args:
        entries: The entry of each file, by path. Any of them may be damaged.
        stat: Name, size and times of the file, as it was just listed.
    """
    try:
        entry = entries[stat.path]
        size, mtime_ns, inode = entry["stat"]
        # The change time is stored only if it shows every later change. 0 stands for unknown.
        changed_ns = entry.get("changed_ns", 0)
        hashed_version = FileStat(stat.path, size, mtime_ns, inode, changed_ns)
        pieces = [_piece(stat.path, row) for row in entry["pieces"]]
        is_unchanged = stat.is_same_version(hashed_version)
        if is_unchanged and _cover_file(pieces, stat.size):
            return pieces
    except (LookupError, TypeError, ValueError):  # no entry, or one that somebody has damaged
        pass
    return None


def _mark_in(entries: Mapping[str, Any], piece: Piece) -> int | None:
    """Return the number that a file had when it was hashed, by which a replaced file is noticed.

    Files on a disk have an inode number. For an object in a bucket, the number is made from its
    ETag, which is another one for each version. For example, the entry of a file is

        {"stat": [4096, 1732970000, 81], "pieces": [[0, 4096, 1, "9f86d0…"]]}

    For the piece of the bytes 0 to 4,096 with the hash 9f86d0…, the result is 81. With another
    hash, the entry is about another version of the file, and the result is None.

    Args:
        entries: The entry of each file, by path. Any of them may be damaged.
        piece: All of a file, with its hash.

    Returns:
        The number; None if it is not known, or if the file was hashed in several pieces.
    """
    with suppress(LookupError, TypeError):  # there is no entry, or a damaged one
        entry = entries[piece.path]
        _size, _mtime_ns, number = entry["stat"]
        is_same_hash = entry["pieces"] == [_row(piece)]  # and there is no other piece
        if is_same_hash:
            return int(number)
    return None


def _is_one_uncut_object(pieces: Sequence[Piece]) -> bool:
    """Return whether pieces are those of an object that is known by its ETag, and was not cut.

    Such an object is one piece, whose first line is line 1. After it was cut, the numbers of lines
    are not known, and are stored as 0.
    """
    first_piece = pieces[0]
    is_known_by_etag = first_piece.digest.startswith(ETAG)
    return is_known_by_etag and first_piece.first_line > 0


def _cover_file(pieces: list[Piece], size: int) -> bool:
    """Return whether pieces follow one another without gaps from the start of a file to its end."""
    starts = [piece.begin for piece in pieces]
    stops = [piece.end for piece in pieces]
    return starts == [0, *stops[:-1]] and stops[-1] == size


def _row(piece: Piece) -> list[Any]:
    """Return a piece in the form in which the JSON file stores it."""
    return [piece.begin, piece.end, piece.first_line, piece.digest]


def _piece(path: str, row: Any) -> Piece:
    """Convert a row of a JSON file to a piece, which is a range of a text file with its hash.

    Large files are hashed in pieces, and the hashes are stored, so that an unchanged file need not
    be read again. For the file "web/a.jsonl":

        [0, 1048570, 1, "9f86d0…"]    the bytes 0 to 1,048,569; starts with line 1

    Args:
        path: Path of the text file.
        row: A value from the JSON file. It is checked, since the file may be damaged.

    Raises:
        TypeError: The row is not a list.
        ValueError: It does not describe a piece.
    """
    start, stop, first_line, digest = row
    for number in (start, stop, first_line):
        if type(number) is not int:  # a boolean is an int, too, for `isinstance`
            raise ValueError(f"{number!r} is not an integer")
    if first_line < 0:
        raise ValueError(f"the first line is {first_line}")
    if not isinstance(digest, str):
        raise ValueError(f"the digest {digest!r} is not a text")
    return checked_piece(Piece(path, start, stop, first_line, digest))


def _parse(data: bytes | None) -> dict[str, Any]:
    """Return the entries of a JSON file: none if it is missing, damaged, or of another version."""
    if data is None:
        return {}
    try:
        content = load(StoredFingerprints, data, "fingerprints")
    except FormatError:
        return {}
    is_current = content.version == _VERSION and content.piece_bytes == PIECE_BYTES
    return content.files if is_current else {}
