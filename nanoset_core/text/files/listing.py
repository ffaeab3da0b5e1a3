"""List the files below a folder of text, on a file system or in a bucket."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import AnyError, InputError, MissingError
from nanoset_core.storage.file_stats import FileStat, file_stat
from nanoset_core.storage.location import Location
from nanoset_core.storage.paths import (
    UTF_8_LOCALE,
    has_control_characters,
    is_locale_utf_8,
    is_utf_8,
)
from nanoset_core.storage.places import real_path, takes_requests
from nanoset_core.wording import abbreviated

_DIGITS = re.compile(r"([0-9]+)")
_MAX_WRONG_NAMES = 50
"""An error names at most this many files or links with the same fault; it counts the others."""


def stat_file(folder: Location, path: str) -> FileStat:
    """Return the size and times of one file, without reading it.

    By these, a later call notices that the file was changed. For the folder `/data/raw` and the
    path `web/a.jsonl`, it looks at `/data/raw/web/a.jsonl`.

    Args:
        folder: The folder, on a disk or in a bucket.
        path: The file, relative to the folder, with forward slashes.

    Returns:
        The path, the size, when the file was last written and changed, and its inode, which is the
        number that a file system gives to a file.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    return file_stat(path, (folder / path).stat())


def natural_key(path: str) -> tuple[object, ...]:
    """Return a sort key of a path that orders numbers by their value, as people expect it.

        by characters     part-1, part-10, part-2
        by this key       part-1, part-2, part-10

    Paths that differ only in leading zeros are ordered by the path itself, so that the order never
    depends on chance.

    Args:
        path: The path, with / between names.

    Returns:
        (the names of folders and file, each divided into runs of digits and of other characters,
        the path). For "part-2": (((1, 0, "part-"), (0, 2, "")),), "part-2".
    """
    names = []
    for name in path.split("/"):
        runs = []
        for run in _DIGITS.split(name):
            # Keys of numbers start with 0 and those of texts with 1, so that the two are never
            # compared with each other, and numbers come first.
            if run.isascii() and run.isdigit():
                runs.append((0, int(run), ""))
            elif run:
                runs.append((1, 0, run))
        names.append(tuple(runs))
    return tuple(names), path


def walk(folder: Location, within: Location | None = None) -> Iterator[FileStat]:
    """Yield all files below a folder, to find out which texts a user has put there.

        web/a.jsonl             yielded
        web/2024/b.jsonl        yielded
        web/.cache/c.jsonl      skipped, since `.cache` is hidden
        web/link → /home/ann    followed, unless `within` forbids it

    Symbolic links are usually followed. But data that somebody else delivered may contain a link to
    any private file of this machine, and its content would end up in the training data. With
    `within`, links may therefore only lead into that folder or into `folder`.

    Args:
        folder: The folder; may be a link itself.
        within: The folder that links may not lead out of; None permits all links.

    Raises:
        MissingError: A link leads nowhere.
        InputError: A folder cannot be read, a link leads out of `within` or back to a folder above
            it, or a name is not UTF-8 or has control characters.
    """
    for entry in _entries_below(folder, within):
        if not entry.is_folder:
            yield entry.stat


def list_below(folder: Location, within: Location | None = None) -> tuple[list[FileStat], set[str]]:
    """Return all files and folders below a folder.

    For example, for the file web/2024/a.jsonl below the folder: ([its FileStat], {"web",
    "web/2024"}).

    Args:
        folder: The folder, on this machine or in a bucket.
        within: The folder that links may not lead out of; None permits all links.

    Returns:
        (files in the order in which they are found; paths of the folders).

    Raises:
        MissingError: A link leads nowhere.
        InputError: A folder or link cannot be read or may not be followed; see `walk`.
    """
    files = []
    folders = set()
    for entry in _entries_below(folder, within):
        if entry.is_folder:
            folders.add(entry.stat.path)
        else:
            files.append(entry.stat)
    # Buckets have no folders, only objects with slashes in their names: derive the folders.
    folders |= folders_of(file.path for file in files)
    return files, folders


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return every folder that contains one of some files, directly or in a folder within it.

    A bucket has no folders, only names of objects with slashes. So they are found by the names:

        ["a/b/c.jsonl", "a/d.jsonl", "e.jsonl"]  →  {"a", "a/b"}

    Args:
        paths: Paths of the files with forward slashes, relative to one common folder, which is not
            part of the result.
    """
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]  # a/b for a/b/c.jsonl, and then a
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def all_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a local folder, including hidden ones.

    Args:
        folder: The folder. Folders within it are not listed.

    Returns:
        Files and folders in any order.

    Raises:
        InputError: The folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InputError(
            "a folder cannot be read",
            where=folder,
            found=error.strerror,
            remedy="give this user the right to read it",
        ) from error


def check_no_loop(path: str, stat: os.stat_result, above: Sequence[os.stat_result]) -> None:
    """Check that a link does not lead back to a folder that contains it.

    Listing all files below a folder would otherwise never end:

        web/                  a folder
        web/old → ../web      a link in it: web/old/old/old/… exist, too

    A stat result says on which disk a folder is, and its number there. Two paths with the same stat
    result are the same folder.

    Args:
        path: Path of a folder that was found, or of a link to a folder; for the message.
        stat: The stat result of this folder.
        above: The stat results of all folders on the way to it.

    Raises:
        InputError: The folder is one of those above it.
    """
    # Compare the disks and the numbers on them, since the paths differ.
    if any(os.path.samestat(stat, other) for other in above):
        raise InputError(
            "a link leads back to a folder above it",
            where=path,
            found=os.path.realpath(path),
            remedy="remove the link",
        )


class _Entry(NamedTuple):
    """A file or folder below the folder that is listed."""

    stat: FileStat
    is_folder: bool


def _entries_below(folder: Location, within: Location | None) -> Iterator[_Entry]:
    """Yield everything below a folder: its files and folders, the files in these, and so on.

    A bucket has no folders, only objects with names such as `web/a.jsonl`. It can list all of them
    at once, and each is yielded as a file. A folder on a disk is listed level by level.

    Args:
        folder: The folder, on a disk or in a bucket.
        within: Symbolic links must lead into this folder, or into `folder`. None permits all links.
            A bucket has no links.

    Raises:
        MissingError: A link leads nowhere.
        InputError: A folder or link cannot be read, or a link is not permitted.
    """
    if takes_requests(folder):
        for file in folder.files():
            yield _Entry(file, is_folder=False)
        return

    # Compare real paths, since both folders may themselves be reached through links.
    allowed_targets = None
    if within is not None:
        allowed_targets = (real_path(within), real_path(folder))
    yield from _local_entries_below(
        folder, prefix="", ancestors=(folder.stat(),), allowed_targets=allowed_targets
    )


def _local_entries_below(
    folder: Path,
    prefix: str,
    ancestors: tuple[os.stat_result, ...],
    allowed_targets: tuple[str, ...] | None,
) -> Iterator[_Entry]:
    """Yield the files and folders in a folder on a disk, and after each folder what is in it.

        web/           yielded, with the path "web"
        web/a.jsonl    yielded: this function called itself for "web", with the prefix "web/"
        .git/          skipped with all its content, since it is hidden

    Args:
        folder: The folder.
        prefix: Its path below the outermost folder, with a slash at the end, such as "web/2024/";
            empty for the outermost folder itself.
        ancestors: Stat results of this folder and of every folder that contains it. They identify
            folders, so that links back to one of them are noticed.
        allowed_targets: Folders that links may lead into; None if they may lead anywhere.
    """
    entries = [entry for entry in all_entries(folder) if not entry.name.startswith(".")]
    _check_names(folder, [entry.name for entry in entries])
    _check_links(folder, [entry for entry in entries if entry.is_symlink()], allowed_targets)
    for entry in entries:
        path = prefix + entry.name
        stat = _stat(entry)
        if entry.is_dir():
            check_no_loop(entry.path, stat, ancestors)
            yield _Entry(file_stat(path, stat), is_folder=True)
            yield from _local_entries_below(
                Path(entry.path), f"{path}/", (*ancestors, stat), allowed_targets
            )
        elif entry.is_file():  # skips pipes and devices
            yield _Entry(file_stat(path, stat), is_folder=False)


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    """Return the size, times and inode of a file or folder; if it is a link, of what it leads to.

    Args:
        entry: An entry of a folder: a file, a folder, or a link.

    Raises:
        MissingError: A link leads nowhere, or the file was just deleted.
    """
    try:
        return entry.stat()
    except OSError as error:
        target = None
        if entry.is_symlink():
            target = f"a link to {os.readlink(entry.path)}"
        if error.errno == errno.ELOOP:
            raise MissingError(
                "a link leads back to itself",
                where=entry.path,
                found=target,
                remedy="remove the link",
            ) from error
        raise MissingError(
            f"a file is missing: {error.strerror}",
            where=entry.path,
            found=target,
            remedy="mount or restore what it leads to, or remove the link",
        ) from error


def _check_links(
    folder: Path, links: Sequence[os.DirEntry[str]], allowed_targets: tuple[str, ...] | None
) -> None:
    """Check that all links in a folder lead to something, and to nothing that may not be read.

    All links with the same fault are reported at once, so that the user can correct them together.

    Args:
        folder: The folder, for the message.
        links: The links in it.
        allowed_targets: Folders that they may lead into; None if they may lead anywhere.

    Raises:
        MissingError: Some lead nowhere.
        InputError: Some lead to something that may not be read.
    """
    missing_errors: list[MissingError] = []
    forbidden_errors: list[InputError] = []
    for link in links:
        try:
            _stat(link)
            if allowed_targets is not None:
                _check_link(link, allowed_targets)
        except MissingError as error:
            missing_errors.append(error)
        except InputError as error:
            forbidden_errors.append(error)

    if missing_errors:
        raise _error_of_links(folder, missing_errors, "lead nowhere")
    if forbidden_errors:
        raise _error_of_links(folder, forbidden_errors, "lead out of the raw folder")


def _error_of_links(folder: Path, errors: Sequence[AnyError], fault: str) -> AnyError:
    """Return one error for several links with the same fault; a single error is returned unchanged.

    Args:
        folder: The folder of the links.
        errors: The error for each link, at least one.
        fault: What is wrong with all of them, such as "lead nowhere".
    """
    if len(errors) == 1:
        return errors[0]
    link_names = [os.path.basename(str(error.where)) for error in errors]
    return type(errors[0])(
        f"{len(errors):,} links {fault}",
        where=folder,
        found=abbreviated(sorted(link_names), _MAX_WRONG_NAMES),
        expected=errors[0].expected,
        remedy=errors[0].remedy,
    )


def _check_link(entry: os.DirEntry[str], allowed_targets: tuple[str, ...]) -> None:
    """Check that a link leads to a file or folder that may be read.

    Somebody who delivers data could put a link into it, such as web/a.jsonl that leads to
    /etc/passwd. That file would then be read as text for training.

    Args:
        entry: The link.
        allowed_targets: Real paths of the folders that the link may lead into, the raw folder
            first.

    Raises:
        InputError: The target of the link is in none of these folders.
    """
    target = os.path.realpath(entry.path)
    for folder in allowed_targets:
        if os.path.commonpath([target, folder]) == folder:
            return
    raise InputError(
        "a link leads out of the raw folder",
        where=entry.path,
        found=target,
        expected=f"a target in {allowed_targets[0]}",
        remedy=(
            "move what it leads to there; or link the corpus's whole folder, "
            "whose own links may stay within it"
        ),
    )


def _check_names(folder: Path, names: Sequence[str]) -> None:
    r"""Check that the names of files can be written into lists of files, and shown in messages.

        a.jsonl                 allowed, as are all names in UTF-8
        the bytes b"caf\xe9"    not UTF-8. Python reads this name as "caf\udce9".
        "a\nb.jsonl"            a line break, which would look like two files in a list

    Args:
        folder: The folder of the files, for the message.
        names: The names as Python reads them: "\udce9" stands for the byte 0xe9 that is not UTF-8.

    Raises:
        InputError: A name is not UTF-8, or has control characters.
    """
    not_utf_8 = [repr(os.fsencode(name)) for name in names if not is_utf_8(name)]
    if not_utf_8:
        if is_locale_utf_8():
            message = "a file's name is not UTF-8"
            remedy = "rename the file"
        else:
            message = "this locale is not UTF-8, and cannot represent a file's name"
            remedy = UTF_8_LOCALE
        raise InputError(
            message,
            where=folder,
            found=abbreviated(sorted(not_utf_8), _MAX_WRONG_NAMES),
            expected="a name that can be stored next to its documents",
            remedy=remedy,
        )

    with_control_characters = [ascii(name) for name in names if has_control_characters(name)]
    if with_control_characters:
        raise InputError(
            "a file's name has control characters",
            where=folder,
            found=abbreviated(sorted(with_control_characters), _MAX_WRONG_NAMES),
            expected="a name that can be shown on a terminal, in one line",
            remedy="rename the file",
        )
