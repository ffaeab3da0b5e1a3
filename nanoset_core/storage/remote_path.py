"""The paths of files and folders in buckets and on web servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import BinaryIO

from nanoset_core.errors import InputError
from nanoset_core.storage.file_stats import FileStat, ObjectStat, file_stat, stat_of_object
from nanoset_core.storage.paths import has_control_characters, is_inside
from nanoset_core.storage.reading.objects import open_object
from nanoset_core.storage.store import Store

INVALID_NAMES = ("", ".", "..")
"""Parts of a key that cannot be the name of a file or folder."""


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """The path of a folder or a file in a bucket, with the methods of a `Path`.

    `folder / name` is a file or folder within it.
    """

    store: Store
    """The store in which paths start: the bucket, or the folder of all raw text in it."""
    path: str = ""
    """Path within the store."""
    by_etag: bool = False
    """Whether files are identified by their ETags instead of a digest of their bytes."""
    in_pieces: bool = False
    """Whether large plain files are read in pieces even if they are identified by their ETags."""
    kind: str | None = field(default=None, compare=False)
    """`folder` or `file` if a listing has shown which; None if the store has to be asked."""

    def __str__(self) -> str:
        return self.store.url(self.path)

    def __truediv__(self, name: str) -> RemotePath:
        return replace(self, path=f"{self.path}/{name}".lstrip("/"), kind=None)

    @property
    def name(self) -> str:
        """Last part of the path."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """Last part of the path without its suffix."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """Suffix of the last part, such as `.jsonl`."""
        return PurePosixPath(self.path).suffix

    @property
    def place(self) -> Store:
        """A store whose names are relative to this folder."""
        return self.store.below(self.path)

    @property
    def parent(self) -> RemotePath:
        """The folder that contains this file or folder."""
        return replace(self, path=self.path.rpartition("/")[0], kind=None)

    def absolute(self) -> RemotePath:
        """Return the same location, since it is absolute already; a `Path` has this method, too."""
        return self

    def with_name(self, name: str) -> RemotePath:
        """Return another file or folder, in the same folder as this one.

        Args:
            name: Its name: `s3://bucket/a/x.bin` with the name `y.idx` gives `s3://bucket/a/y.idx`.
        """
        return self.parent / name

    def is_dir(self) -> bool:
        """Return whether this is a folder, that is, whether there are objects below it.

        It takes a request, unless this location comes from a listing.

        Raises:
            StorageError: The bucket does not answer, or refuses.
        """
        if self.kind is None:
            return self.store.holds(self.path)
        return self.kind == "folder"

    def is_file(self) -> bool:
        """Return whether this is a file, that is, an object of the bucket.

        It takes a request, unless this location comes from a listing.

        Raises:
            StorageError: The bucket does not answer, or refuses.
        """
        if self.kind is None:
            return self.path != "" and self.store.stat(self.path) is not None
        return self.kind == "file"

    def stat(self) -> ObjectStat:
        """Return the size and time of this file, by one request.

        The result has the same fields as that of `Path.stat`, so that callers need not know whether
        a file is on a disk or in a bucket. An object has no inode number, which callers compare to
        notice that a file was replaced. In its place is a number that is computed from the ETag,
        which a bucket changes with the bytes.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        stored = self.store.stat(self.path)
        if stored is None:
            raise FileNotFoundError(str(self))
        return stat_of_object(stored)

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the files and folders directly in this folder, except those with invalid keys.

        Raises:
            StorageError: The bucket does not answer, or refuses.
        """
        readable, _ = self.entries()
        yield from readable

    def entries(self) -> tuple[list[RemotePath], dict[str, InputError]]:
        """Return the files and folders directly in this folder, and an error for each invalid key.

        A bucket has no folders: an object has a key such as `raw/web/x.jsonl`, which is treated as
        a path. A key is invalid if a part of it is empty, `.` or `..`:

            raw/x.jsonl        valid
            raw//x.jsonl       another object, but as a path it would name the same file
            raw/../x.jsonl     the same: it is not x.jsonl

        Returns:
            (the valid files and folders, name → error of each invalid one)
        """
        folder_names, file_names = self.store.level(self.path)
        readable = []
        errors = {}
        for name in folder_names:
            if name in INVALID_NAMES:
                errors[f"{name}/"] = self._bad_key(f"{name}/...")  # the key of an object in it
            else:
                readable.append(replace(self / name, kind="folder"))

        for name in file_names:
            if name == "":
                # For an empty folder, web consoles create an object with the key of the folder and
                # a slash, such as `raw/`. It is no file.
                continue
            if name in INVALID_NAMES:
                errors[name] = self._bad_key(name)
            else:
                readable.append(replace(self / name, kind="file"))
        return readable, errors

    def _bad_key(self, name: str) -> InputError:
        """Return the error for a key that is not valid as the path of a file."""
        return InputError(
            "an object's key is no path of a file",
            where=str(self),
            found=ascii(name),
            expected=(
                "parts between single slashes, none of them '.' or '..', without control characters"
            ),
            remedy="copy it to another key, and remove this one",
        )

    def open(self, mode: str = "rb", *, begin: int = 0, end: int | None = None) -> BinaryIO:
        """Open this file for reading, as `Path.open` does for a local file.

        The object is not downloaded as a whole: requests read the bytes that are needed. If the
        caller will read it in order, it says so by `end`. Then the next bytes are requested before
        they are needed.

        Args:
            mode: Must be "rb"; the parameter exists because `Path.open` has it.
            begin: Position at which reading in order will begin.
            end: Position up to which the object will be read in order; None if the order is not
                known.

        Raises:
            FileNotFoundError: The object does not exist.
        """
        if mode != "rb":
            raise ValueError(f"a file in a bucket is opened for reading bytes, not {mode!r}")
        return open_object(self.store, self.path, begin=begin, end=end)

    def files(self) -> Iterator[FileStat]:
        """Yield all files below this folder, except hidden ones and those in hidden folders.

        For example, below the folder `raw` of a bucket:

            raw/web/x.jsonl      gives the path web/x.jsonl
            raw/web/             skipped: consoles create such an empty object for an empty folder
            raw/.old/x.jsonl     skipped: it is in a hidden folder
            raw//x.jsonl         an error: no file can have this path

        Raises:
            InputError: The path of an object is not one that a file could have.
        """
        prefix_length = len(self.path) + 1 if self.path else 0
        for stored in self.store.list(self.path):
            path = stored.name[prefix_length:]
            # Consoles create an empty object whose name ends with a slash for an empty folder.
            is_folder_mark = path == "" or (path.endswith("/") and stored.size == 0)
            if is_folder_mark or _is_hidden(path):
                continue
            if not is_inside(path) or has_control_characters(path):
                raise self._bad_key(path)
            yield file_stat(path, stat_of_object(stored))


def _is_hidden(path: str) -> bool:
    """Return whether a part of an object's path is a name that begins with a dot."""
    names = [part for part in path.split("/") if part not in INVALID_NAMES]
    return any(name.startswith(".") for name in names)
