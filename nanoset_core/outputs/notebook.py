"""Notebooks: small records that processes add below a root, and that every process reads.

A notebook is a folder below the root, in which each record, a note, is a JSON file of its own. If
its notes are about different subjects, such as corpora, it has a section for each, a subfolder:

    <root>/distrusted_engines/1f0c….json          a notebook without sections
    <root>/purged/web/77ab….json                  a notebook with a section for the corpus `web`

The name of a file is a digest of what the note says, and a file appears whole or not at all. So
processes on several machines can add notes at the same time, and adding a note that exists already
changes nothing. Most notes are never removed. A note about a state that has ended is, such as the
one on a failed check once a check has passed.

What the notes of a notebook contain is declared by a class derived from `Note`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from nanoset_core.errors import FormatError
from nanoset_core.outputs.root import SEEN_SECONDS, OutputRoot
from nanoset_core.records.digests import digest_of
from nanoset_core.records.json_records import Record, dump, load, to_plain
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.removing.removals import remove_file
from nanoset_core.storage.writing.uploads import write_small_file
from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)


class Note(Record):
    """Base of the dataclasses that are the records of a notebook."""

    __slots__ = ()

    def identity(self) -> Any:
        """Return a value of JSON that two notes have in common only if one of them is enough.

        The file of a note is named by a digest of this value, so a note is stored once, even if
        several processes write it. By default the value is the whole note. A class can leave fields
        out: if the same engine fails for many documents, a note about one of them is enough.
        """
        return to_plain(self)


NoteType = TypeVar("NoteType", bound=Note)


@dataclass(slots=True)
class _SeenNotes(Generic[NoteType]):
    """What was read of a notebook below one root."""

    listed_at: float
    """When the folder was listed, by the monotonic clock."""
    names: Collection[str]
    """Names in the folder: of the files of notes, and of sections."""
    by_section: dict[str, list[NoteType]] = field(default_factory=dict)
    """Section → its notes, for the sections that were read."""


class Notebook(Generic[NoteType]):
    """The notes of one kind, below any root.

    Looking for notes in a bucket takes a request, and most corpora have none. So a process
    remembers for a few seconds what it has read there.
    """

    def __init__(self, folder: str, kind: type[NoteType], *, skips_damaged: bool) -> None:
        """Declare a notebook: a folder with a JSON file for each note.

        Args:
            folder: Name of the folder below a root.
            kind: Class of the notes.
            skips_damaged: Whether an unreadable note is skipped with a warning; otherwise it is an
                error.
        """
        self._folder = folder
        self._kind = kind
        self._skips_damaged = skips_damaged
        self._seen: dict[Path, _SeenNotes[NoteType]] = {}
        """Folder of a root → what was read below it."""

    def add(self, outputs: OutputRoot, note: NoteType, section: str = "") -> None:
        """Write a note, which is a small JSON record, to a file of its own.

        For example, that a tokenizer's fast engine gave wrong tokens for a document, so that later
        builds do not use it. Processes on several machines may add notes at the same time. Adding
        an equal note again changes nothing, since its file has the same name and the same bytes.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
            note: The note.
            section: The section that the note belongs to; "" in a notebook without sections.
        """
        file_name = f"{digest_of(note.identity())}.json"
        path = outputs.folder / self._folder / section / file_name
        write_small_file(outputs.access, path, dump(note))
        # Forget what was read of this notebook, so that the next `read` finds the note.
        self._seen.pop(outputs.folder, None)

    def remove(self, outputs: OutputRoot, note: NoteType) -> None:
        """Remove a note from a notebook without sections, if it exists.

        In a bucket, this takes no request if the notebook was read a moment ago and lacks the note.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
            note: A note with the same identity.
        """
        file_name = f"{digest_of(note.identity())}.json"
        if file_name not in self._look_at(outputs).names:
            return
        with suppress(FileNotFoundError):  # another process has removed it
            remove_file(outputs.access, outputs.folder / self._folder / file_name)
        self._seen.pop(outputs.folder, None)

    def read(
        self, outputs: OutputRoot, section: str = "", *, refresh: bool = False
    ) -> list[NoteType]:
        """Return the notes in a section of this notebook, which are small JSON files in one folder.

        In a bucket, it takes a request to list the folder, and one to read each note. So what was
        read is used again for some seconds. Notes that other processes add within these seconds may
        be missing.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
            section: The section, a subfolder; "" in a notebook without sections.
            refresh: Whether to read again even if that was done a moment ago.

        Returns:
            The notes, ordered by the names of their files.

        Raises:
            FormatError: A note cannot be read, and this notebook does not skip damaged ones.
        """
        seen = self._look_at(outputs, refresh=refresh)

        # Each section is read when it is needed first.
        if section not in seen.by_section:
            paths = self._note_paths(outputs, section, seen.names)
            seen.by_section[section] = self._read_notes(outputs.access, paths)
        return list(seen.by_section[section])  # a copy, which the caller may change

    def is_empty(self, outputs: OutputRoot) -> bool:
        """Return whether there are neither notes nor sections.

        In a bucket, this takes no request if the notebook was read a moment ago.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
        """
        return not self._look_at(outputs).names

    def _look_at(self, outputs: OutputRoot, *, refresh: bool = False) -> _SeenNotes[NoteType]:
        """Return what was read of this notebook a moment ago; otherwise list its folder now.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
            refresh: Whether to list the folder in any case.
        """
        seen = None
        if not refresh:
            seen = self._recently_seen(outputs)
        if seen is None:
            seen = self._list_folder(outputs)
            self._seen[outputs.folder] = seen
        return seen

    def _list_folder(self, outputs: OutputRoot) -> _SeenNotes[NoteType]:
        """List the folder of the notebook, without reading the files in it.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.

        Returns:
            The names of all files and folders in it, and when they were listed. It has no notes
            yet: `read` adds them.
        """
        # Take the time first. What other processes add while the folder is listed may be missing,
        # so the listing is as old as its beginning.
        listed_at = time.monotonic()
        names = outputs.access.names(outputs.folder / self._folder)
        return _SeenNotes(listed_at, names)

    def _recently_seen(self, outputs: OutputRoot) -> _SeenNotes[NoteType] | None:
        """Return what was read of this notebook in the last seconds, or None.

        A request to a bucket takes long, so what it returned is used again for a few seconds
        (SEEN_SECONDS). A folder on a disk is listed anew each time, which is fast.

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
        """
        listing = self._seen.get(outputs.folder)
        if listing is None or not outputs.access.takes_requests:
            return None
        if time.monotonic() - listing.listed_at > SEEN_SECONDS:
            return None
        return listing

    def _read_notes(self, access: FileAccess, paths: Iterable[Path]) -> list[NoteType]:
        """Read notes, which are small JSON files.

        Args:
            access: Reads files below the folder or bucket of all outputs.
            paths: The files of the notes.

        Returns:
            The notes, without those that were deleted a moment ago, or are skipped.

        Raises:
            FormatError: A note cannot be read, and damaged ones are not skipped.
        """
        notes: list[NoteType] = []
        for path in paths:
            note = self._read_note(access, path)
            if note is not None:
                notes.append(note)
        return notes

    def _note_paths(self, outputs: OutputRoot, section: str, names: Collection[str]) -> list[Path]:
        """Return the files of the notes of a section, ordered by name.

        A notebook is a folder with a JSON file for each note, or with a subfolder for each section.
        For example, with a section for each month:

            .nanoset/runs/2026-01/4c2e.json       section "2026-01"
            .nanoset/runs/2026-01/9a07.json       section "2026-01"

        Args:
            outputs: The folder or bucket of all outputs, in which the notebook is.
            section: The section; "" in a notebook without sections.
            names: Names of all files and folders directly in the notebook's folder.
        """
        notebook_folder = outputs.folder / self._folder
        if not section:
            return _json_files(notebook_folder, names)
        if section not in names:
            return []  # saves the request that would list the subfolder
        section_folder = notebook_folder / section
        names_in_section = outputs.access.names(section_folder)
        return _json_files(section_folder, names_in_section)

    def _read_note(self, access: FileAccess, path: Path) -> NoteType | None:
        """Read a note, which is a small JSON file; return None if it is missing, or is skipped.

        Some kinds of notes are skipped if they are damaged, with a warning. Others must not be: a
        note may say that a document was erased, and to overlook it would be worse than to stop.

        Args:
            access: Reads files below the folder or bucket of all outputs.
            path: The file of the note.

        Raises:
            FormatError: The note is damaged, and is not skipped.
        """
        url = access.url(path)
        try:
            data = access.read_current(path)  # as it is now, not as an earlier copy of it was
            return load(self._kind, data, where=url)
        except FileNotFoundError:
            return None  # somebody deleted it a moment ago
        except FormatError as error:
            if not self._skips_damaged:
                raise
            logger.warning("%s is skipped: %s", url, error)
            return None


def _json_files(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the paths of the JSON files in a folder, ordered by name.

    Args:
        folder: The folder.
        names: Names of everything in it.
    """
    return [folder / name for name in sorted(names) if name.endswith(".json")]
