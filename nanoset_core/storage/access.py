"""Access the files of outputs, which are in a local folder or in a store.

A store is a bucket, or anything else that stores files by their names. Then the folder contains
working copies: files are downloaded to it before they are read, and files that were written there
are uploaded. `FileAccess` hides the difference from readers. Writers use `writing/uploads.py`, and
`removing/removals.py` removes files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.storage.atomic import UNFINISHED, write_atomic
from nanoset_core.storage.copies.mirror_room import make_room, note_use, set_time
from nanoset_core.storage.listing import Entry, StoreListing, disk_entries
from nanoset_core.storage.os_errors import explained
from nanoset_core.storage.reading.mapped_files import BLOCK_BYTES, BlockFile, MappedFile
from nanoset_core.storage.regular_files import map_regular, read_regular
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store, Stored, read_pieces
from nanoset_core.storage.stores.local import LocalStore

T = TypeVar("T")
R = TypeVar("R")
_SMALL_BLOCK = 4 << 10
"""Bytes of a block of a file of which little is read, or if disk space is limited."""
ROOM = (
    "room for working copies: storage.mirror names their folder "
    "(on workers: --local-directory of `dask worker`, TMPDIR of `ray start`), "
    "storage.scratch_mib says how much they may take"
)
"""What errors say was expected if the disk is full."""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Access to the files of a local folder, or to those of a store with copies in a local folder.

    Files are addressed by their absolute paths in the folder. The store alone decides what exists:
    an output exists if its manifest does, and the manifest is uploaded last. Copies may be removed
    at any time. `fetch` and `open_bytes` also take paths outside of the folder, such as those of
    cached index files.

    An access can be pickled, so that other processes access the files in the same way.
    """

    folder: Path
    """Absolute path of the files, or of their copies, which have the same names."""
    origin: Store | None = None
    """The store; None if the files are in the folder."""
    capacity: int | None = field(default=None, kw_only=True)
    """Bytes of disk space that copies may use, or None if all copies are kept.

    A quarter of them is for blocks of large files, which are not copied as a whole.
    """
    listing: StoreListing | None = field(default=None, kw_only=True, compare=False, repr=False)
    """A listing of the store, or of a folder in it, that is used instead of asking again."""
    is_sampled: bool = field(default=False, kw_only=True, compare=False, repr=False)
    """Whether only a few places of large files will be read, so that small blocks are fetched."""
    known_sizes: dict[str, int | None] | None = field(
        default=None, kw_only=True, compare=False, repr=False
    )
    """Earlier answers of the store: name → bytes, or None if there is no such file.

    If this is None itself, answers are not remembered.
    """

    @property
    def store(self) -> Store:
        """The store of the files; a local folder is one, too."""
        return LocalStore(self.folder) if self.origin is None else self.origin

    @property
    def takes_requests(self) -> bool:
        """Whether files are read and written by requests to a store, such as a bucket.

        Each request takes time. So it is worth it to send several at once (see `each`), to remember
        answers, and to let the store copy or join files instead of reading them.

        Otherwise files are on a disk. There, a link can let a file appear at a second path, and a
        folder can be filled under another name and then be renamed. In a bucket, files appear one
        by one in their final folder, and a manifest is written last.
        """
        return self.origin is not None

    @property
    def is_space_limited(self) -> bool:
        """Whether copies may be removed at any time, since the disk space for them is limited.

        If so, read a copy before another one is fetched, and free the space of finished work.
        """
        return self.capacity is not None

    @property
    def room_for_blocks(self) -> int | None:
        """Bytes that fetched blocks of large files may take, or None if space is not limited."""
        return None if self.capacity is None else self.capacity // 4

    @property
    def room_for_unsent(self) -> int | None:
        """Bytes that files may take until they are uploaded, or None if space is not limited.

        Copies and blocks that are fetched meanwhile need the other half of the space.
        """
        return None if self.capacity is None else self.capacity // 2

    def has_room_to_keep(self, size: int) -> bool:
        """Return whether copies of a size can stay on the disk while other copies come and go.

        Args:
            size: Bytes of all copies that are to stay together.

        Returns:
            True if they fit into a quarter of the disk space for copies, or if that is not limited.
        """
        return self.room_for_blocks is None or size <= self.room_for_blocks

    def divided(self, n_users: int) -> FileAccess:
        """Return access to the same files with a share of the disk space, if that is limited.

        So several processes together do not use more than is allowed: 8 GiB of capacity for 4 users
        give 2 GiB to each.

        Args:
            n_users: Processes that use the disk space at the same time.

        Returns:
            This access itself if its disk space is not limited.
        """
        if self.capacity is None:
            return self
        return replace(self, capacity=max(1, self.capacity // n_users))

    def is_here(self, path: Path) -> bool:
        """Return whether a file can be read without downloading it: one on a disk always can.

        Args:
            path: Path of the file, or of its copy, in the folder.

        Returns:
            True if the files are not in a store; otherwise whether there is a local copy.
        """
        return self.origin is None or path.is_file()

    def may_have_lost(self, path: str) -> bool:
        """Return whether a missing file may exist in the bucket, so that reading it may succeed.

        Files of a bucket are copied to this machine when they are read. To make room, another
        process may remove a copy just before it is opened. The caller then tries again, which
        downloads it:

            /cache/outputs/datasets/web.bin     True: a copy of a file of the bucket
            s3://bucket/outputs/web.bin         True: the file itself
            /home/me/config.yaml                False: no file of the bucket

        Args:
            path: Path or address of the file, as the error names it.
        """
        if self.origin is None:
            return False  # the files are on this machine's disk, and have no copies
        folder_of_copies = str(self.folder)
        address_of_bucket = self.store.url()
        return path.startswith((folder_of_copies, address_of_bucket))

    def with_copies_in(self, folder: Path) -> FileAccess:
        """Return access to the same files of a bucket, with local copies in another folder.

        A worker of a cluster uses it, whose copies are on its own disk: `s3://bucket/web/a.bin` is
        then copied to `/scratch/worker-3/web/a.bin`, for example. Copies in that folder are removed
        as soon as they have been uploaded, so that the disk does not fill up.

        Args:
            folder: Absolute path of the other folder.

        Returns:
            This access itself if the files are on this machine's disk, and so have no copies.
        """
        if self.origin is None:
            return self
        # `capacity` limits how many bytes copies may take. If there is a limit, each copy is
        # removed after its upload; if not (None), copies are kept. So without a limit, set one that
        # is never reached: it only has the effect that copies are removed.
        capacity = self.capacity
        if capacity is None:
            capacity = sys.maxsize
        return FileAccess(folder, self.origin, capacity=capacity)

    def name(self, path: Path) -> str:
        """Return the name of a file in the store, or "" for the folder itself.

        Args:
            path: Path of the file in the folder. With the folder `/data`, `/data/web/tokens.bin`
                has the name `web/tokens.bin`.

        Raises:
            ValueError: The path is outside of the folder.
        """
        name = path.relative_to(self.folder).as_posix()
        return "" if name == "." else name

    def url(self, path: Path) -> str:
        """Return where a file is stored, for messages to the user.

            path of the local copy      /cache/mirror/bucket/web/tokens.bin
            returned                    s3://bucket/web/tokens.bin

        Args:
            path: Path of the file. If it is outside of the folder of copies, it is returned as it
                is.
        """
        if path.is_relative_to(self.folder):
            return self.store.url(self.name(path))
        return str(path)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of the block name files in the bucket instead of their copies on this machine.

        A user knows `s3://bucket/web/tokens.bin`, and not `/cache/mirror/bucket/web/tokens.bin`.

        Raises:
            NanosetError: The error of the block, with the addresses if the files are in a bucket.
        """
        try:
            yield
        except NanosetError as error:
            bucket = self.origin
            if bucket is None or str(self.folder) not in str(error):
                raise
            # The same error, in which the path of the folder is replaced by the bucket's address.
            raise error.with_places(str(self.folder), bucket.url()) from error

    def fetch(
        self,
        path: Path,
        *,
        size: int | None = None,
        sha256: str | None = None,
        pieces: Path | None = None,
    ) -> Path:
        """Download a file from the bucket, unless there is a copy on this machine already.

        If the files are on this machine's disk, nothing is done.

        Args:
            path: Path of the copy. One outside of the folder of copies is returned unchanged.
            size: Bytes of the file, if known. A copy of another size is downloaded again.
            sha256: Checksum of the file as hex, which a download is compared with.
            pieces: A local file that lists the checksums of consecutive pieces of the file. A
                download is compared with these, too. For some files, only these are known.

        Returns:
            `path`, at which the file can be read now.

        Raises:
            StorageError: The download has another checksum, or there is not enough disk space.
        """
        if self.origin is None or not path.is_relative_to(self.folder):
            return path  # the file itself is on this machine

        # The disk space for copies may be limited. Those that were used least recently are removed
        # first, so note that this one is used.
        if self.is_space_limited:
            note_use(path)
        if _has_copy(path, size):
            return path

        # Read this file first: it may be one of the copies that are removed.
        piece_digests = None if pieces is None else read_pieces(pieces)
        if self.is_space_limited:
            self._make_room_for(path, size)
        with explained(self.folder, expected=ROOM):
            self.origin.fetch(self.name(path), path, sha256=sha256, pieces=piece_digests)
        return path

    def _make_room_for(self, path: Path, size: int | None) -> None:
        """Remove copies of other files until there is room for the copy of a file.

        The disk space for copies of a bucket's files is limited here. The copies that were not used
        for longest are removed first; they can be downloaded again.

        Args:
            path: Path of the copy, which does not exist yet.
            size: Bytes of the file; None if they are not known, so that they are looked up.
        """
        if size is None:
            size = self.size(path) or 0
        address = self.url(path)  # for an error: such as s3://bucket/web/a.bin
        self.make_room(size, address)

    @property
    def room(self) -> int | None:
        """Bytes that copies and unfinished files may take, or None if all copies are kept."""
        return None if self.capacity is None else self.capacity - self.capacity // 4

    def make_room(self, size: int, what: str) -> None:
        """Remove the copies that were not used for longest, until there is room for another file.

        Copies are files that were downloaded from a bucket. If the disk space for them is not
        limited, none is removed.

        Args:
            size: Bytes of the other file.
            what: Address of the other file, for the error.

        Raises:
            StorageError: The file is larger than the room for all copies.
        """
        room = self.room
        if room is not None:
            make_room(self.folder, room, size, what)

    def revalidate(self, path: Path) -> None:
        """Make sure that the local copy of a file is the same as the file in the bucket.

            the file in the bucket               its copy
            has the same size and time           stays
            has another size or time             is downloaded again
            was deleted                          is removed

        Args:
            path: Path of the copy.

        Raises:
            StorageError: The download has other bytes than were stored.
        """
        stored = self.store.stat(self.name(path))
        if stored is None:
            path.unlink(missing_ok=True)
            return

        if path.is_file():
            status = path.stat()
            if status.st_size == stored.size and status.st_mtime_ns == stored.written_ns:
                return
        self.store.fetch(stored.name, path)
        set_time(path, stored.written_ns)

    def _refresh(self, path: Path, *, is_marker: bool) -> bytes | None:
        """Read a small file from the bucket, and bring its local copy up to date.

        A manifest describes the other files in its folder, which have copies on this machine, too.
        If it has changed, these are removed, since they belong to an earlier version:

            1. the bucket has a new web/manifest.json
            2. remove the copies web/a.bin and web/b.bin
            3. write the copy web/manifest.json

        If this process is killed after the second step, the copy of the old manifest is still
        there. So the next call finds that it has changed, and continues.

        Args:
            path: Path of the copy.
            is_marker: Whether the file is such a manifest.

        Returns:
            The bytes of the file, or None if it does not exist.
        """
        data_and_stored = self.store.read_stored(self.name(path))
        if data_and_stored is None:
            return None
        data, stored = data_and_stored

        old_copy = path.read_bytes() if path.is_file() else None
        if old_copy != data:
            if is_marker and old_copy is not None:
                _remove_files(path.parent, except_for=path)
            write_atomic(path, data)
        # Other methods compare the time of the copy with that of the file in the bucket.
        set_time(path, stored.written_ns)
        return data

    def read_current(
        self, path: Path, *, is_marker: bool = False, guesses: Iterable[bytes] = ()
    ) -> bytes:
        """Return the bytes of a small file as they are now, even if its local copy is outdated.

        Files of a bucket have copies on this machine. Whether the copy of a file is up to date
        takes a request to find out, unless the bucket was listed shortly before (`known_listing`).
        So there are four cases:

            the file is on this machine     Read it.
            nothing was listed              Send a request.
            all of the bucket was listed    The listing has the bytes of all small files.
            the file's folder was listed    The listing has the MD5 of the file. If the copy, or one
                                            of `guesses`, has the same MD5, these are the bytes.
                                            Otherwise send a request.

        Args:
            path: Path of the file.
            is_marker: Whether the file is a manifest, which describes the other files in its
                folder. If it has changed, their copies are removed.
            guesses: Bytes that the file may have, such as each of a few possible contents.

        Raises:
            FileNotFoundError: The file does not exist.
            StorageError: This user may not read it, or the disk fails.
        """
        if self.origin is None:
            with explained(path, only_reads=True):
                return read_regular(path)  # the folder has the file itself, and not a copy

        name = self.name(path)
        listing = self.known_listing(name)
        if listing is None:
            # This access has no listing with the file: send a request.
            data = self._refresh(path, is_marker=is_marker)
        elif listing.contents is not None:
            # The listing of a whole store has the bytes of all small files.
            data = listing.contents.get(name)
        else:
            # The listing of a folder has no bytes, but the MD5 of each file.
            entry = listing.file(name)
            data = None
            if entry is not None:
                data = self._read_listed(path, entry, is_marker=is_marker, guesses=guesses)
        if data is None:
            raise FileNotFoundError(self.url(path))
        return data

    def _read_listed(
        self, path: Path, entry: Entry, *, is_marker: bool, guesses: Iterable[bytes]
    ) -> bytes | None:
        """Return the bytes of a small file of a bucket, if possible without a request.

        The bucket was listed, and the listing shows the MD5 of the file, a checksum of its bytes.
        Bytes that have this MD5 are those of the file. So look for them in what this process has
        already:

            the local copy has the MD5        return the copy
            one of the guesses has it         return the guess, and make it the local copy
            neither                           request the file

        Args:
            path: Path of the local copy, which need not exist.
            entry: What the listing says about the file.
            is_marker: Whether the file is a manifest, which describes the other files in its
                folder. If a request shows that it has changed, their copies are removed.
            guesses: Bytes that the file may have.

        Returns:
            The bytes, or None if the file was deleted after it was listed.
        """
        copy = path.read_bytes() if path.is_file() else b""  # no bytes: there is no copy
        for candidate in chain([copy], guesses):
            md5 = hashlib.md5(candidate, usedforsecurity=False).hexdigest()
            if md5 != entry.md5:
                continue
            if candidate != copy:
                write_atomic(path, candidate)
            # Other methods compare the time of the copy with that of the file in the bucket.
            set_time(path, entry.written_ns)
            return candidate

        # The file has other bytes, or the listing has no MD5 of it.
        return self._refresh(path, is_marker=is_marker)

    def read_marker(self, path: Path) -> tuple[bytes, Mapping[str, int] | None]:
        """Return the bytes of a manifest, and if possible the sizes of the other files.

        A manifest lists the files of an output with their sizes, such as web.bin with 80 bytes. The
        caller compares that with the files that exist:

            files on a disk                 the sizes are None, and the caller looks at the files
            a bucket of which all small     the same: the manifest is in memory
              files are in memory
            any other bucket                the folder is listed, which gives the sizes

        If the manifest in the bucket has changed, the copies of the other files are removed, too.

        Args:
            path: Path of the manifest. It is the marker of a complete output: it is written last.

        Returns:
            (bytes of the manifest, name within its folder → size of each file in the folder, or
            None)

        Raises:
            FileNotFoundError: The manifest does not exist.
        """
        has_small_files = self.listing is not None and self.listing.contents is not None
        if self.origin is None or has_small_files:
            return self.read_current(path), None

        # List the folder by one request. If the local copy of the manifest has the checksum in the
        # listing, no second request is needed to read it.
        listing = self.listing_of(path.parent)
        data = replace(self, listing=listing).read_current(path, is_marker=True)
        entries = listing.below(self.name(path.parent))
        return data, {name: entry.size for name, entry in entries}

    def known_listing(self, name: str) -> StoreListing | None:
        """Return the listing of this access if it includes a name; None: the bucket must be asked.

        For example, the access has a listing of the folder `web`. It includes `web/a.bin`, but not
        `books`.

        Args:
            name: Name of a file or folder in the bucket.
        """
        if self.listing is not None and self.listing.covers(name):
            return self.listing
        return None

    def with_listing(self, folder: Path) -> FileAccess:
        """Return access that answers questions about one folder from a listing of it.

        This saves requests to a bucket: a listing takes one request for each thousand files. It is
        made when the first question is asked.

        Args:
            folder: Path of the folder.

        Returns:
            This access itself if the files are on this machine's disk, which is fast to ask.
        """
        bucket = self.origin
        if bucket is None:  # the files are on a disk
            return self
        listing = StoreListing.when_asked(self.name(folder), bucket)
        return replace(self, listing=listing)

    def listing_of(self, folder: Path) -> StoreListing:
        """Return the listing of this access if it includes a folder; otherwise list the folder now.

        Args:
            folder: Path of the folder.

        Returns:
            A listing of the folder, or of a larger part of the store that includes it.
        """
        place = self.name(folder)
        return self.known_listing(place) or StoreListing.of_folder(place, self.store.list(place))

    def listed_object(self, path: Path) -> Stored | None:
        """Return the description of a file of a bucket, if this access has a listing with it.

        Args:
            path: Path of the file in the folder.
        """
        name = self.name(path)
        listing = self.known_listing(name)
        entry = None if listing is None else listing.file(name)
        if entry is None or entry.mark is None:
            return None
        return Stored(name, entry.size, entry.mark, entry.written_ns, entry.md5)

    def size(self, path: Path) -> int | None:
        """Return the bytes of a stored file, or None if it does not exist.

        A request to a bucket takes long. So the answer is looked for in this order:

            a listing of its folder, if this access has one
            earlier answers of the bucket
            a request

        Args:
            path: Path of the file in the folder.
        """
        name = self.name(path)
        listing = self.known_listing(name)
        if listing is not None:
            entry = listing.file(name)
            return None if entry is None else entry.size

        if self.known_sizes is not None and name in self.known_sizes:
            return self.known_sizes[name]
        stored = self.store.stat(name)
        size = None if stored is None else stored.size
        if self.known_sizes is not None:
            self.known_sizes[name] = size
        return size

    def sizes(self, folder: Path, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of files in one folder, by a single listing instead of a request for
        each.

        Args:
            folder: Path of the folder.
            names: Names of the files within the folder, such as ["web.bin", "web.idx"].

        Returns:
            Name → bytes, of the files that exist, such as {"web.bin": 80}.
        """
        entries = dict(self.listing_of(folder).below(self.name(folder)))
        return {name: entries[name].size for name in names if name in entries}

    def written_ns(self, path: Path) -> int:
        """Return when a file was written, without asking the bucket.

            this access has listed the folder    the time in the listing
            there is a local copy of the file    the time of the copy, which is the same
            neither                              0

        Args:
            path: Path of the file in the folder.

        Returns:
            Nanoseconds since 1970.
        """
        # A path outside of the folder has no name, so ask for it only if there is a listing.
        if self.listing is not None:
            name = self.name(path)
            if self.listing.covers(name):
                entry = self.listing.file(name)
                return 0 if entry is None else entry.written_ns

        try:
            return path.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def written_in(self, parent: Path, name: str) -> dict[str, int]:
        """Return when each file of one name was written, in all folders next to each other.

        For example, when the manifest of each version of an output was written:

            datasets/web/3f9c…/manifest.json    →    {"3f9c…": 1772323384000000000, …}

        Args:
            parent: The folder above them, here `datasets/web`.
            name: Name of the files, here `manifest.json`.

        Returns:
            Name of a subfolder → nanoseconds since 1970, for the subfolders that have such a file.
        """
        if self.origin is None:
            return self._written_on_disk(parent, name)

        # List all files below the parent, with their times, or use an earlier listing.
        time_by_folder = {}
        listing = self.listing_of(parent)
        for path_below_parent, entry in listing.below(self.name(parent)):  # "3f9c…/manifest.json"
            folder, _slash, path_in_folder = path_below_parent.partition("/")
            if path_in_folder == name:
                time_by_folder[folder] = entry.written_ns
        return time_by_folder

    def _written_on_disk(self, parent: Path, name: str) -> dict[str, int]:
        """Return subfolder → when its file of one name was written, for folders on this machine."""
        time_by_folder = {}
        for folder in self.names(parent):
            written_ns = self.written_ns(parent / folder / name)
            if written_ns:  # 0 if there is no such file
                time_by_folder[folder] = written_ns
        return time_by_folder

    def sha256(self, path: Path) -> str:
        """Read a stored file, and return the sha256 of its bytes as 64 hex digits.

        Args:
            path: Path of the file in the folder. The stored file is read, not a local copy.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        sha256 = self.store.sha256(self.name(path))
        if sha256 is None:
            raise FileNotFoundError(self.url(path))
        return sha256

    def stored(self, path: Path, begin: int = 0, size: int | None = None) -> Stored:
        """Ask the store for a description of a file, by which its bytes can be read or copied.

        The description has the file's name, its size and a mark of its version. It may also
        describe a range of the file: with `begin` = 1000 and `size` = 80, its bytes [1000, 1080).

        Args:
            path: Path of the file.
            begin: Position of the first byte, if a range of the file is to be described.
            size: Bytes of this range; None for the whole file.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        whole_file = self.store.stat(self.name(path))
        if whole_file is None:
            raise FileNotFoundError(self.url(path))
        if size is None:
            return whole_file
        return replace(whole_file, begin=begin, size=size)

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names of the files and folders directly in a folder.

        If these files are in a bucket that was listed before, the listing is used.

        Args:
            folder: Path of the folder. If it does not exist, the result is empty.

        Returns:
            Names without paths, such as `{"manifest.json", "tokens.bin"}`.
        """
        place = self.name(folder)  # such as "datasets/web"
        listing = self.known_listing(place)
        if listing is not None:
            return frozenset(listing.entries(place))
        folder_names, file_names = self.store.level(place)
        return frozenset([*folder_names, *file_names])

    def with_store_listing(self) -> FileAccess:
        """Return access that answers from a listing of the whole store, taken now.

        A command that looks at many outputs uses it to send few requests: the store is listed once,
        and all its JSON files are read. A local folder needs no listing.

        Returns:
            This access itself if the files are not in a store.
        """
        if self.origin is None:
            return self
        return replace(self, listing=StoreListing.of_store(self.origin))

    def entries(self, folder: Path) -> list[Entry]:
        """Return the files and folders directly in a folder, ordered by name.

        Args:
            folder: Path of the folder.

        Returns:
            A description of each, with its size and time; empty if the folder does not exist.
        """
        bucket = self.origin
        if bucket is None:  # the files are on a disk
            return disk_entries(folder)
        # Use the listing of the bucket that `with_store_listing` made, or list all of it now.
        listing = self.listing or StoreListing.of_store(bucket)
        entry_by_name = listing.entries(self.name(folder))
        return sorted(entry_by_name.values(), key=lambda entry: entry.name)

    def is_link(self, path: Path) -> bool:
        """Return whether a file is a symbolic link, which stores do not have.

        Args:
            path: Path of the file in the folder.

        Returns:
            Always False if the files are in a store.
        """
        return self.origin is None and path.is_symlink()

    def unfinished(self) -> Iterator[Path]:
        """Yield the temporary objects that an interrupted joining of objects left in a bucket.

        More objects than one request can join are joined in steps, by way of temporary objects such
        as `datasets/web/.tmp-web.bin-7f3a-0`. If the process is killed, they stay. They are found
        in the listing of this access; without one, none are found.

        Yields:
            Path of each of these objects below the folder.
        """
        if self.listing is None:
            return
        for name, entry in self.listing.below(""):
            if entry.name.startswith(UNFINISHED):
                yield self.folder / name

    def stored_at(self, path: Path, *, as_copy: bool = False) -> tuple[Store, str]:
        """Return from which store, a bucket or a local folder, a file can be read.

            a local file /data/web/a.bin     (the folder /data/web, "a.bin")
            a file of a bucket               (the bucket, "web/a.bin")
            the same, as a copy              (the folder with the copy, "a.bin")

        Args:
            path: Path of the file, which may be outside of the folder of this access.
            as_copy: Whether to read the local copy of a file in a bucket, if there is one. Other
                machines cannot do that.
        """
        bucket = self.origin
        is_in_bucket = bucket is not None and path.is_relative_to(self.folder)
        reads_copy = as_copy and path.is_file()
        if bucket is not None and is_in_bucket and not reads_copy:
            return bucket, self.name(path)
        return LocalStore(path.parent.absolute()), path.name

    def open_bytes(self, path: Path, *, as_copy: bool = True) -> MappedFile:
        """Open a large file to read parts of it, without downloading the rest.

            a local file            is mapped into memory
            a file in a bucket      is read in blocks, which are kept on the disk of this machine

        Args:
            path: Path of the file, or of its copy in the local folder.
            as_copy: Whether to read the local copy, if there is one, instead of the stored file.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        store, name = self.stored_at(path, as_copy=as_copy)
        if isinstance(store, LocalStore):
            return MappedFile(map_regular(path))

        # Of a large block, most would be wasted if only a few places are read. Large blocks would
        # also soon fill the disk if the space for them is limited.
        needs_small_blocks = self.is_sampled or self.is_space_limited
        block_bytes = _SMALL_BLOCK if needs_small_blocks else BLOCK_BYTES
        return BlockFile(
            store, name, path.parent, block_bytes=block_bytes, room=self.room_for_blocks
        )

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function that sends requests for each item, several at a time if they go to a
        bucket.

        For example, `access.each(access.size, paths)` returns the sizes of many files. Local files
        answer at once, so the function is then called for one item after the other.

        Args:
            work: The function. If it raises an error, this method raises the first one.
            items: The items.

        Returns:
            The results, in the order of the items.
        """
        if self.origin is None:
            return [work(item) for item in items]
        return in_parallel(work, items, SMALL_REQUESTS_AT_ONCE)

    def each_copy(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function that downloads and reads a file for each item, several at a time.

        If the disk space for downloaded copies is limited, they are called one after the other.
        Otherwise, a copy could be removed to make room for the next one before it is read.

        Args:
            work: The function. If it raises an error, this method raises the first one.
            items: The items.

        Returns:
            The results, in the order of the items.
        """
        if self.is_space_limited:
            return [work(item) for item in items]
        return self.each(work, items)


def _has_copy(path: Path, size: int | None) -> bool:
    """Return whether there is a copy of a file, of the right size if that is known."""
    return path.is_file() and (size is None or path.stat().st_size == size)


def _remove_files(folder: Path, *, except_for: Path) -> None:
    """Remove all files below a folder, except for one."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path != except_for:
                path.unlink(missing_ok=True)
