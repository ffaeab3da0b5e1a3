"""What a folder of text contains: the files that are read, and notices on all others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from nanoset_core.errors import MissingError
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import takes_requests
from nanoset_core.text.files.choice import FileChoice
from nanoset_core.text.files.compressions import COMPRESSION_NAMES
from nanoset_core.text.files.endings import (
    ending_of,
    is_companion,
    is_text,
    is_text_of_other_compression,
    is_txt_or_csv,
    is_unfinished,
)
from nanoset_core.text.files.listing import folders_of, list_below, natural_key
from nanoset_core.text.files.notices import Notice, notices_on
from nanoset_core.wording import abbreviated


@dataclass(frozen=True)
class Contents:
    """The files below a folder, without hidden ones."""

    texts: tuple[FileStat, ...] = ()
    """Files that are read, in the order in which the file system listed them."""
    unread: tuple[str, ...] = ()
    """Files that are not read, in natural order."""
    unread_txt_and_csv: tuple[FileStat, ...] = ()
    """Those of the unread files that would be read if the folder had no other text: .txt, .csv and
    .tsv.
    """
    corpus: str = ""
    """Name of the corpus, if it is the folder of one."""
    left_out: tuple[str, ...] = ()
    """Files that the corpus's `files` and `exclude` leave out, in natural order."""
    unmatched_patterns: tuple[str, ...] = ()
    """Patterns of `files` and `exclude` that fit no file."""
    misnamed_folders: tuple[str, ...] = ()
    """Folders that are named like a file of text and contain none, in natural order."""

    @cached_property
    def signature(self) -> str:
        """A hash by which a later call notices that the files of the folder have changed.

        It is the hash of a list with a line for each file: its path, size, and two times. One is
        when its bytes were last written. The other one, the change time, is also updated if the
        file is renamed or replaced, or if its permissions change. So the files need not be read,
        which would be slow.

            a.jsonl    1,200 bytes    written at 1764424689…    changed at 1764424690…
            b.jsonl    3,400 bytes    written at 1764424702…    changed at 1764424702…
        """
        rows = []
        for file in self.texts:
            # The change time notices more than the inode, which some file systems change at
            # each mount. It is 0 if it is not known.
            version = file.changed_ns or file.inode
            rows.append(f"{file.path}\0{file.size}\0{file.mtime_ns}\0{version}\n")
        rows.sort()
        return hashlib.blake2b("".join(rows).encode(), digest_size=10).hexdigest()

    @cached_property
    def ordered(self) -> list[FileStat]:
        """The files that are read, in natural order."""
        return sorted(self.texts, key=lambda file: natural_key(file.path))

    @property
    def size(self) -> int:
        """Stored bytes of the files that are read."""
        return sum(file.size for file in self.texts)

    def chosen(self, choice: FileChoice) -> Contents:
        """Return the contents of a folder from which only some files are wanted.

        For example, a corpus has the settings files: ["*.jsonl", "*.csv"] and exclude: ["test_*"]:

            a.jsonl         taken
            test_1.jsonl    left out, since `exclude` takes precedence
            b.parquet       left out
            *.csv           fits no file, of which the user is told
            c.jsonl/        a folder named like a file, of which the user is told, since a file of
                            this name would be taken

        Args:
            choice: The patterns of the settings.
        """
        if not choice.patterns:
            return self

        # Patterns may also name files that are never read, such as images.
        text_paths = [file.path for file in self.texts]
        paths = sorted([*self.unread, *text_paths], key=natural_key)
        left_out = [path for path in paths if not choice.takes(path)]
        misnamed_folders = [path for path in self.misnamed_folders if choice.takes(path)]
        contents = self.without(lambda path: not choice.takes(path))
        return replace(
            contents,
            left_out=tuple(left_out),
            unmatched_patterns=choice.unmatched(paths),
            misnamed_folders=tuple(misnamed_folders),
        )

    def without(self, is_removed: Callable[[str], bool]) -> Contents:
        """Return the contents as they would be if some files did not exist.

        Then other files may be read. For example, .txt files are only read in a folder without
        other text:

                         now        without a.jsonl
            a.jsonl      read       -
            notes.txt    not read   read
            cat.png      not read   not read

        Args:
            is_removed: Returns whether a file, given its path, is one that should not exist.
        """
        readable_files = [*self.texts, *self.unread_txt_and_csv]
        remaining_files = [file for file in readable_files if not is_removed(file.path)]
        divided = _divide_files(remaining_files)
        text_paths = {file.path for file in divided.texts}
        unread = [path for path in self.unread if not is_removed(path) and path not in text_paths]
        return replace(
            self,
            texts=divided.texts,
            unread=tuple(unread),
            unread_txt_and_csv=divided.unread_txt_and_csv,
        )

    def notices(self, previous_sizes: Mapping[str, int] | None = None) -> list[Notice]:
        """Return notices on files that the owner of the folder should know about.

        For example: "3 .pdf are not read", "a.jsonl is empty", or "b.jsonl has shrunk".

        Args:
            previous_sizes: Path → bytes of each file in the previous build; None if there was none.
        """
        if previous_sizes is None:
            previous_sizes = {}
        files = self.ordered

        # Divide the files that are not read by their names.
        companions: list[str] = []  # README.md, checksums, …
        unfinished: list[str] = []  # still being uploaded
        unknown: list[str] = []  # perhaps text of an unknown format
        for path in self.unread:
            if is_companion(path):
                companions.append(path)
            elif is_unfinished(path):
                unfinished.append(path)
            else:
                unknown.append(path)

        # Files of the previous build that do not exist any more.
        missing = set(previous_sizes)
        missing -= {file.path for file in files}
        missing -= set(self.left_out)

        notices = []
        if unknown:
            has_txt_or_csv = bool(self.unread_txt_and_csv)
            notices.append(_unread_notice(unknown, has_txt_or_csv=has_txt_or_csv))
        notices += notices_on(
            {
                # Folders such as `a.jsonl/` that contain no text.
                "misnamed": [f"{path}/" for path in self.misnamed_folders],
                "unfinished": unfinished,
                "empty": [file.path for file in files if file.size == 0],
                # Patterns of nanoset.yaml that fit no file.
                "unmatched": self.unmatched_patterns,
                "shrunk": _shrunk_files(files, previous_sizes),
                "gone": sorted(missing, key=natural_key),
                # Files that the patterns of nanoset.yaml leave out.
                "left_out": self.left_out,
                "beside": companions,
            }
        )
        return notices


def _unread_notice(paths: Sequence[str], *, has_txt_or_csv: bool) -> Notice:
    """Return a notice on files that may contain text, but are not read because of their endings.

    Such as "12 .pdf (a.pdf, b.pdf, …), 1 .xml (c.xml)": the most frequent ending comes first. If
    the file could be read after a change, such as another compression, the notice says how.

    Args:
        paths: The files, at least one.
        has_txt_or_csv: Whether some of them are .txt, .csv or .tsv. These would be read in a folder
            of their own, which the notice then says.
    """
    paths_by_ending: dict[str, list[str]] = {}
    for path in paths:
        paths_by_ending.setdefault(ending_of(path), []).append(path)

    descriptions = []
    for ending in sorted(paths_by_ending, key=lambda ending: -len(paths_by_ending[ending])):
        group = paths_by_ending[ending]
        descriptions.append(f"{len(group):,} {ending} ({abbreviated(group)})")
    names = ", ".join(descriptions)
    if has_txt_or_csv:
        names += "; to have .txt, .csv and .tsv read, put them into a folder of their own"
    if any(is_text_of_other_compression(path) for path in paths):
        names += f"; to have text of another compression read, use {COMPRESSION_NAMES}"
    return Notice("not_read", len(paths), names)


def _shrunk_files(files: Sequence[FileStat], previous_sizes: Mapping[str, int]) -> list[str]:
    """Return the files that are smaller than in the previous build, with both sizes."""
    shrunk = []
    for file in files:
        previous_size = previous_sizes.get(file.path, 0)
        if file.size < previous_size:
            shrunk.append(f"{file.path} ({previous_size:,} → {file.size:,} bytes)")
    return shrunk


def contents_of(folder: Location, within: Location | None = None) -> Contents:
    """List all files below a folder, and divide them into those that are read and the others.

        a.jsonl      read
        README.md    not read: it is no text to train on
        b.jsonl/     a folder, in spite of its name: reported if nothing in it is read

    Args:
        folder: The folder.
        within: Links below the folder must lead to files in this folder; None permits all links.

    Raises:
        MissingError: The folder does not exist, or a link leads nowhere.
        InputError: A folder cannot be read, a link may not be followed, or a name cannot be shown.
    """
    files, folders = _list_files(folder, within)
    divided = _divide_files(files)
    text_paths = {file.path for file in divided.texts}
    unread = [file.path for file in files if file.path not in text_paths]

    return Contents(
        texts=divided.texts,
        unread=tuple(sorted(unread, key=natural_key)),
        unread_txt_and_csv=divided.unread_txt_and_csv,
        misnamed_folders=_misnamed_folders(folders, text_paths),
    )


def _misnamed_folders(folders: Collection[str], text_paths: Collection[str]) -> tuple[str, ...]:
    """Return the folders that are named like a file of text, but contain none, in natural order.

    A folder such as `a.jsonl/` is often an archive that was unpacked. If it has no text, the user
    should know that `a.jsonl` is not read.

    Args:
        folders: Paths of all folders.
        text_paths: Paths of the files that are read.
    """
    folders_like_texts = {path for path in folders if is_text(path)}
    without_text = folders_like_texts - folders_of(text_paths)
    return tuple(sorted(without_text, key=natural_key))


class _DividedFiles(NamedTuple):
    """Those files of a folder whose formats can be read."""

    texts: tuple[FileStat, ...]
    """Files that are read."""
    unread_txt_and_csv: tuple[FileStat, ...]
    """.txt, .csv and .tsv that are not read, because the folder has files of other formats."""


def _divide_files(files: Sequence[FileStat]) -> _DividedFiles:
    """Decide by their names which files of a corpus are read.

    Files that end in .txt, .csv or .tsv are only read if nothing else can be read:

        files                    what is read
        a.jsonl, urls.txt        a.jsonl
        urls.txt, page.csv       both

    Next to other text, such files are often lists of addresses and the like.

    Args:
        files: The files, in any order, which is kept. Some may be no text at all.
    """
    texts = tuple(file for file in files if is_text(file.path))
    txt_and_csv = tuple(file for file in files if is_txt_or_csv(file.path))
    if texts:
        return _DividedFiles(texts=texts, unread_txt_and_csv=txt_and_csv)
    return _DividedFiles(texts=txt_and_csv, unread_txt_and_csv=())


def _list_files(folder: Location, within: Location | None) -> tuple[list[FileStat], set[str]]:
    """Return the files of a folder of text, and the paths of the folders in it.

    Args:
        folder: The folder, on this machine or in a bucket.
        within: Symbolic links in the folder must lead to files in this folder, so that delivered
            data cannot make the program read other files; None permits all links.

    Returns:
        (the files; folders such as {"2026", "2026/01"})

    Raises:
        MissingError: The folder does not exist, or a link leads nowhere.
        InputError: A folder cannot be read, a link may not be followed, or a name cannot be shown.
    """
    # In a bucket, it takes a request to find out whether a folder exists. So ask only if the
    # listing shows no files in it.
    is_in_bucket = takes_requests(folder)
    if not is_in_bucket and not folder.is_dir():
        raise _no_folder(folder)
    files, folders = list_below(folder, within)
    if is_in_bucket and not files and not folder.is_dir():
        raise _no_folder(folder)
    return files, folders


def _no_folder(folder: Location) -> MissingError:
    """Return the error for a folder that does not exist."""
    return MissingError(
        "the folder does not exist",
        where=folder,
        remedy="create it, or name another",
    )
