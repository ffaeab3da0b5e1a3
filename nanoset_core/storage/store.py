"""A place that keeps objects by name: what local folders and buckets have in common."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from nanoset_core.errors import (
    ConfigError,
    FormatError,
    MissingError,
    SourceChangedError,
    StorageError,
)
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular

T = TypeVar("T")
R = TypeVar("R")
THREADS = 8
RANGE_BYTES = 8 << 20
"""Of an object that is read whole, by one request."""
_AT_ONCE = 1024
"""Items that `in_parallel` hands to its threads ahead of their results: there may be a hundred
thousand.
"""
_LINE = re.compile(rb"([0-9a-f]{64}) ([1-9][0-9]*)")
OnJoin = Callable[[int], None]
"""Takes how many more bytes were joined; a negative number where joining begins anew in another
way.
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store says of one object."""

    name: str
    """Below the store, its parts separated by single slashes."""
    size: int
    """Bytes."""
    mark: str
    """Version token, another one for other bytes: the ETag of an object; inode, size and time of a
    file.
    """
    written_ns: int
    """When it was written by the store's clock, nanoseconds since 1970; whole seconds in a bucket.
    """
    sha256: str | None = field(default=None, compare=False)
    """Hex, of its bytes as its writer noted it, where it was asked for alone; likewise what
    follows.
    """
    upload: str | None = field(default=None, compare=False)
    """Mark of the upload in parts that made it."""
    is_digest: bool = field(default=False, compare=False)
    """Whether its mark is a digest, where it has that form."""
    begin: int = 0
    """For a range of an object, which has `size` bytes: the byte of the object at which it begins.
    """


def no_progress(size: int) -> None:
    """Ignore progress."""


class Store(ABC):
    """Objects below one place, which appear whole or not at all; nothing is remembered between two
    calls.

    There is no renaming, appending, locking or linking, since not every store has them. A store
    pickles. Names that would lead out of the place raise ConfigError.
    """

    @abstractmethod
    def url(self, name: str = "") -> str:
        """Return an object's address, for messages."""

    @abstractmethod
    def below(self, folder: str) -> Store:
        """Return a folder of it as a store of its own."""

    @property
    def copies_name(self) -> str:
        """Relative path of the folder of its working copies, another one for another place."""
        return hashlib.sha256(self.url().encode()).hexdigest()

    @abstractmethod
    def now(self) -> int:
        """Return the time of the store's clock, which all machines share, in ns since 1970."""

    @abstractmethod
    def list(self, folder: str = "") -> Iterator[Stored]:
        """Yield every object below a folder as it is now, sorted by the bytes of their names."""

    @abstractmethod
    def level(self, folder: str = "") -> tuple[Sequence[str], Sequence[str]]:
        """Return (names of folders, names of objects) right below a folder, each sorted."""

    def holds(self, folder: str) -> bool:
        """Return whether anything lies below a folder."""
        return next(iter(self.list(folder)), None) is not None

    @abstractmethod
    def stat(self, name: str) -> Stored | None:
        """Return what the store says of an object; None where there is none."""

    @abstractmethod
    def read_stored(self, name: str) -> tuple[bytes, Stored] | None:
        """Return the bytes and the metadata of a small object, or None if it does not exist."""

    def read(self, name: str) -> bytes | None:
        """Return a small object's bytes; None where there is none."""
        found = self.read_stored(name)
        return None if found is None else found[0]

    @abstractmethod
    def read_range(self, name: str, begin: int, end: int, mark: str | None = None) -> bytes:
        """Return bytes [begin, end) of an object; of the version with this mark, where one is
        given.

        SourceChangedError where it has another mark now, or ends before `end`; MissingError where
        it is gone.
        """

    def open_range(self, name: str, begin: int, end: int) -> tuple[bytes, Stored] | None:
        """Return bytes [begin, end) of an object as it is now, as many as it has, and what the
        store says of it.

        None where there is no such object.
        """
        found = self.stat(name)
        if found is None:
            return None
        end = min(end, found.size)
        return self.read_range(name, begin, end, found.mark) if begin < end else b"", found

    def blocks(self, stored: Stored) -> Iterator[bytes]:
        """Yield the bytes of an object, or of a range of one, in order; raises as `read_range`."""
        end = stored.begin + stored.size
        for begin in range(stored.begin, end, RANGE_BYTES):
            yield self.read_range(stored.name, begin, min(begin + RANGE_BYTES, end), stored.mark)

    def sha256(self, name: str) -> str | None:
        """Return the hex sha256 of an object's bytes, which are read; None where there is no such
        object.
        """
        found = self.stat(name)
        return None if found is None else self.sha256_of(found)

    def sha256_of(self, stored: Stored) -> str:
        """Return the hex sha256 of the bytes of an object, or of a range of one; raises as
        `read_range`.
        """
        sha256 = hashlib.sha256()
        for block in self.blocks(stored):
            sha256.update(block)
        return sha256.hexdigest()

    def fetch(
        self,
        name: str,
        target: Path,
        *,
        sha256: str | None = None,
        pieces: Sequence[PieceDigest] | None = None,
    ) -> bool:
        """Copy an object to a local file, whole and checked or not at all; return False where there
        is none.

        Its bytes must have this sha256 (absent: that which its writer noted) and these digests of
        pieces, else StorageError.
        """
        first = b""
        if sha256 is None:
            stored = self.stat(name)  # which tells what its writer noted
        else:
            first, stored = self.open_range(name, 0, RANGE_BYTES) or (b"", None)
        if stored is None:
            return False
        wanted = sha256 or stored.sha256
        with atomic_file(target) as file:
            # once more where the bytes are others: they may have been damaged on their way
            for _ in range(2):
                file.seek(0)
                file.truncate()
                whole, check = hashlib.sha256(), PieceCheck(pieces or ())
                rest = replace(stored, begin=len(first), size=stored.size - len(first))
                for block in filter(None, chain([first], self.blocks(rest))):
                    file.write(block)
                    whole.update(block)
                    if pieces is not None:
                        check.add(block)
                first = b""
                found, fault = whole.hexdigest(), check.fault()
                if wanted in (None, found) and fault is None:
                    return True
            expected = f"sha256 {wanted}" if wanted else "the digests of its pieces"
            raise damaged(self.url(name), fault or f"sha256 {found}", expected)

    def put(self, name: str, data: bytes) -> None:
        """Write a small object."""
        self.put_parts(name, [data])

    @abstractmethod
    def put_parts(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write an object from blocks, in bounded memory; StorageError where that fails.

        It appears when the last block is there; where the blocks end with an exception there is no
        object. In a bucket it has up to 10,000 parts of the store's size, 64 MiB unless told: 625
        GiB.
        """

    @abstractmethod
    def put_file(
        self, name: str, path: Path, *, sha256: str | None = None, is_new: bool = False
    ) -> None:
        """Write an object from a local file; a large one that has these bytes already stays.

        Args:
            name: of the object.
            path: the file.
            sha256: hex, of what the file must hold, else StorageError; absent = anything.
            is_new: skip the check whether the object exists: the caller has listed what there is.
        """

    def compose(
        self,
        name: str,
        sources: Sequence[Stored],
        *,
        sha256: Sequence[str | None] | None = None,
        joined: OnJoin = no_progress,
    ) -> str | None:
        """Write an object that is other objects behind one another; those of a bucket stay within
        it.

        Args:
            name: of the object.
            sources: of this store, as it said of them; or ranges of them.
            sha256: hex, of each source, where they are known: compared with what the store knows of
                them.
            joined: takes the bytes of each part that was joined; one call at a time.

        Returns:
            Hex sha256 of the object, where all of its bytes passed through this process anyway.

        Raises:
            SourceChangedError: a source has another mark than it is given with.
            StorageError: a source has other bytes than it should.
            MissingError: a source is gone.
        """

        def blocks() -> Iterator[bytes]:
            for source in sources:
                yield from self.blocks(source)
                joined(source.size)

        self.put_parts(name, blocks())
        return None

    def check_writable(self, name: str) -> None:  # noqa: B027 - most stores need no check
        """Raise StorageError where this process may not write an object of this name; a local
        folder is not asked.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""

    def abort_uploads(self, is_abandoned: Callable[[str], bool]) -> Sequence[str]:
        """Abort uploads of objects that will never be whole, as is told by their names; return
        those.
        """
        return ()


class PieceDigest(NamedTuple):
    """One piece of a file; the pieces lie back to back."""

    sha256: str
    """Hex, of its bytes."""
    size: int
    """Bytes."""


def pieces_text(pieces: Iterable[PieceDigest]) -> bytes:
    """Return one line a piece, without empty ones. The sha256 of this text stands for all bytes of
    the file.
    """
    return "".join(f"{piece.sha256} {piece.size}\n" for piece in pieces if piece.size).encode()


def read_pieces(path: Path) -> list[PieceDigest]:
    """Read the pieces that a file of `pieces_text` lists; FormatError where it holds something
    else.
    """
    pieces = []
    for number, line in enumerate(read_regular(path).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            what, expected = "this is not a piece of a file", "a sha256 and a number of bytes"
            where, remedy = (
                f"{path}:{number}",
                f"delete {path.parent}, and build again: it is made anew",
            )
            raise FormatError(
                what, where=where, found=repr(line[:100]), expected=expected, remedy=remedy
            )
        pieces.append(PieceDigest(match[1].decode(), int(match[2])))
    return pieces


class PieceCheck:
    """Compares a file's bytes, given in order and in blocks of any size, with the digests of its
    pieces.
    """

    def __init__(self, pieces: Sequence[PieceDigest], begin: int = 0) -> None:
        """Args:
        pieces: of the file, all or some that lie back to back.
        begin: where in the file the first of them begins.
        """
        self._left, self._end = list(reversed(pieces)), begin
        self._sha256, self._taken = hashlib.sha256(), 0
        self._expected, self._found = sum(piece.size for piece in pieces), 0
        self._fault: str | None = None

    def add(self, block: bytes | memoryview) -> None:
        """Add the next bytes."""
        left = memoryview(block)
        self._found += len(left)
        while left and self._left:
            piece = self._left[-1]
            part = left[: piece.size - self._taken]
            self._sha256.update(part)
            self._taken, left = self._taken + len(part), left[len(part) :]
            if self._taken == piece.size:
                self._end_piece(self._left.pop())

    def _end_piece(self, piece: PieceDigest) -> None:
        begin, self._end = self._end, self._end + piece.size
        if (digest := self._sha256.hexdigest()) != piece.sha256 and self._fault is None:
            self._fault = (
                f"sha256 {digest} of bytes {begin:,} to {self._end:,} instead of {piece.sha256}"
            )
        self._sha256, self._taken = hashlib.sha256(), 0

    def fault(self) -> str | None:
        """Return what is wrong with the bytes that were added, which are all of the pieces; None
        where nothing is.
        """
        if self._fault is None and self._found != self._expected:
            return f"{self._found:,} bytes instead of {self._expected:,}"
        return self._fault


def checked_name(name: str) -> str:
    """Return `name`; ConfigError where it would lead out of a store, or no file system could hold
    it.
    """
    if not is_inside(name):
        expected = "parts between single slashes, none of them empty, '.' or '..'"
        raise ConfigError(
            "this is not the name of an object", found=ascii(name)[:200], expected=expected
        )
    return name


def gone(url: str) -> MissingError:
    """Return the error for an object that was listed and is not there any more."""
    return MissingError(
        "an object that was there before is gone", where=url, remedy="run the same command again"
    )


def damaged(url: str, found: str, expected: str) -> StorageError:
    """Return the error for an object whose bytes are not those that were written."""
    what, remedy = (
        "an object has other bytes than were written",
        "remove the object, and build again: it is made anew",
    )
    return StorageError(what, where=url, found=found, expected=expected, remedy=remedy)


def changed(url: str, found: str, expected: str) -> SourceChangedError:
    """Return the error for an object that is another one than was listed."""
    what = "the object is not the one that was listed"
    remedy = "build again once nothing writes to it: the inventory is taken anew"
    return SourceChangedError(what, where=url, found=found, expected=expected, remedy=remedy)


def in_parallel(
    work: Callable[[T], R], items: Iterable[T], threads: int = THREADS, *, window: int = _AT_ONCE
) -> list[R]:
    """Do `work` on every item, up to `threads` at once; results in the items' order, the first
    error is raised.

    At most `window` items are taken before their results are there.
    """
    waiting, found, under_way = iter(items), list[R](), deque[Future[R]]()
    first = list(islice(waiting, 2))
    if len(first) < 2:
        return [work(item) for item in first]
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in chain(first, waiting):
                if len(under_way) == window:
                    found.append(under_way.popleft().result())
                under_way.append(pool.submit(work, item))
            found += [future.result() for future in under_way]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found
