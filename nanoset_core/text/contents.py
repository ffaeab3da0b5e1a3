"""What a folder of text contains: the files that are read, and notices on all others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nanoset_core.errors import MissingError
from nanoset_core.storage.location import RawFolder, RemoteFolder
from nanoset_core.text.choice import FileChoice
from nanoset_core.text.endings import ending_of, is_companion, is_text, is_unfinished
from nanoset_core.text.listing import FileStat, folders_of, list_below, natural_key
from nanoset_core.text.notices import Notice, abbreviated, notice_on


@dataclass(frozen=True)
class Contents:
    """The files below a folder, without hidden ones."""

    texts: tuple[FileStat, ...] = ()
    """Files that are read, in the order in which the file system listed them."""
    others: tuple[str, ...] = ()
    """Files that are not read, in natural order."""
    corpus: str = ""
    """Name of the corpus, if it is the folder of one."""
    left_out: tuple[str, ...] = ()
    """Files that the corpus's `files` and `exclude` leave out, in natural order."""
    unmatched: tuple[str, ...] = ()
    """Patterns of `files` and `exclude` that fit no file."""
    misnamed: tuple[str, ...] = ()
    """Folders that are named like a file of text and contain none, in natural order."""

    @cached_property
    def signature(self) -> str:
        """A hash that changes if a file that is read is added, removed, renamed, written or
        replaced, or if its permissions change.
        """
        rows = []
        for file in self.texts:
            # The change time notices more than the inode, which some file systems number anew each
            # time.
            version = file.changed_ns or file.inode
            rows.append(f"{file.path}\0{file.size}\0{file.mtime_ns}\0{version}\n")
        rows.sort()
        return hashlib.blake2b("".join(rows).encode(), digest_size=10).hexdigest()

    @property
    def ordered(self) -> list[FileStat]:
        """The files that are read, in natural order."""
        return sorted(self.texts, key=lambda file: natural_key(file.path))

    @property
    def size(self) -> int:
        """Stored bytes of the files that are read."""
        return sum(file.size for file in self.texts)

    def chosen(self, choice: FileChoice) -> Contents:
        """Return the same contents without the files that a choice leaves out."""
        if not choice.patterns:
            return self
        paths = [file.path for file in self.texts]
        paths += self.others
        paths.sort(key=natural_key)
        taken = {path for path in paths if choice.takes(path)}
        return replace(
            self,
            texts=tuple(file for file in self.texts if file.path in taken),
            others=tuple(path for path in self.others if path in taken),
            left_out=tuple(path for path in paths if path not in taken),
            unmatched=choice.unmatched(paths),
            misnamed=tuple(path for path in self.misnamed if choice.takes(path)),
        )

    def notices(self, previous_sizes: Mapping[str, int] | None = None) -> list[Notice]:
        """Return what the owner of the folder should know.

        Args:
            previous_sizes: Path → bytes of each file when it was built before.
        """
        previous_sizes = previous_sizes or {}
        files = self.ordered
        companions = [path for path in self.others if is_companion(path)]
        unfinished = [
            path for path in self.others if is_unfinished(path) and not is_companion(path)
        ]
        return [
            *self._not_read_notice(),
            *notice_on("misnamed", [f"{path}/" for path in self.misnamed]),
            *notice_on("unfinished", unfinished),
            *notice_on("empty", [file.path for file in files if file.size == 0]),
            *notice_on("unmatched", self.unmatched),
            *notice_on("shrunk", _shrunk_files(files, previous_sizes)),
            *notice_on("gone", self._missing_files(previous_sizes)),
            *notice_on("left_out", self.left_out),
            *notice_on("beside", companions),
        ]

    def _not_read_notice(self) -> list[Notice]:
        """Return a notice on the files that may hold text but are not read, by their endings."""
        paths_by_ending: dict[str, list[str]] = {}
        for path in self.others:
            if not is_companion(path) and not is_unfinished(path):
                paths_by_ending.setdefault(ending_of(path), []).append(path)
        if not paths_by_ending:
            return []

        n_files = 0
        groups = []
        by_count = sorted(paths_by_ending.items(), key=lambda item: -len(item[1]))
        for ending, paths in by_count:
            n_files += len(paths)
            groups.append(f"{len(paths):,} {ending} ({abbreviated(paths)})")
        return [Notice("not_read", n_files, ", ".join(groups))]

    def _missing_files(self, previous_sizes: Mapping[str, int]) -> list[str]:
        """Return the files of the previous build that are not here any more, in natural order."""
        missing = set(previous_sizes)
        missing -= {file.path for file in self.texts}
        missing -= set(self.left_out)
        return sorted(missing, key=natural_key)


def _shrunk_files(files: Sequence[FileStat], previous_sizes: Mapping[str, int]) -> list[str]:
    """Return the files that are smaller than in the previous build, with both sizes."""
    shrunk = []
    for file in files:
        previous_size = previous_sizes.get(file.path, 0)
        if file.size < previous_size:
            shrunk.append(f"{file.path} ({previous_size:,} → {file.size:,} bytes)")
    return shrunk


def contents_of(folder: RawFolder, within: RawFolder | None = None) -> Contents:
    """List everything below a folder.

    Args:
        folder: The folder.
        within: The folder that links may not lead out of; see `walk`.

    Raises:
        MissingError: The folder does not exist, or a link leads nowhere.
        InputError: See `walk`.
    """
    files: list[FileStat] = []
    folders: set[str] = set()
    # A folder in a bucket exists if anything is below it, which only listing it can tell.
    if isinstance(folder, RemoteFolder) or folder.is_dir():
        files, folders = list_below(folder, within)
    if not files and not folder.is_dir():
        raise MissingError(
            "the folder does not exist",
            where=folder,
            remedy="create it, or name another",
        )

    texts = [file for file in files if is_text(file.path)]
    others = [file.path for file in files if not is_text(file.path)]
    misnamed = {path for path in folders if is_text(path)}
    misnamed -= folders_of(file.path for file in texts)
    return Contents(
        texts=tuple(texts),
        others=tuple(sorted(others, key=natural_key)),
        misnamed=tuple(sorted(misnamed, key=natural_key)),
    )
