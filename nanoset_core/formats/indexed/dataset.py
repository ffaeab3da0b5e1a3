"""Read an indexed dataset (`<prefix>.bin` and `<prefix>.idx`) through memory maps."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, SampleIndexError
from nanoset_core.formats.indexed.layout import Tokens, bin_path, idx_path, no_such_file, read_idx
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import copies_folder, is_remote, remote_location
from nanoset_core.storage.reading import BlockFile, MappedFile
from nanoset_core.storage.store import Store


class MMapIndexedDataset:
    """The sequences of one `.bin`/`.idx` pair, read like a list; nothing is copied.

    dataset[i] is the tokens of sequence i, a read-only view of dtype `dtype`; dataset[i:j] a list of them. Pickles as
    its path, and opens again where it is unpickled. The counterpart of Megatron-LM's `IndexedDataset`.
    """

    __slots__ = (
        "_file",
        "_place",
        "_tokens",
        "access",
        "bin_bytes",
        "document_indices",
        "dtype",
        "is_here",
        "modes",
        "prefix",
        "sequence_lengths",
        "sequence_pointers",
        "stored_bytes",
        "token_count",
    )

    access: FileAccess | None
    """How its files are reached, where it lies below an output root and they do not simply lie there."""

    def __init__(self, prefix: str | os.PathLike[str], *, validate: bool = True) -> None:
        """Open a dataset.

        Args:
            prefix: path without `.bin` and `.idx`, or s3://bucket/path, as the AWS configuration reaches it: then the
                index is fetched, and of the tokens the blocks that are read.
            validate: also check every entry of the .idx (one pass); without it only header, sizes and ends are checked.

        Raises:
            MissingError: a file is not there.
            FormatError: a file is damaged; names the byte offset.
            ConfigError, StorageError: this is no place in a bucket, or it cannot be reached.
        """
        self.prefix, self.access = os.fspath(prefix), None
        self._open(*_locate(self.prefix), validate=validate)

    @classmethod
    def below(cls, access: FileAccess | None, prefix: str, *, validate: bool = False) -> Self:
        """Open a dataset below an output root by its absolute path, without `.bin` and `.idx`; raises as `__init__`.

        `access` reaches the files of the root; None where they simply lie there. Without `validate` its header, sizes
        and ends are checked.
        """
        if access is None:
            return cls(prefix, validate=validate)
        dataset = cls.__new__(cls)
        dataset.prefix, dataset.access = prefix, access
        dataset._open(prefix, access, validate=validate)
        return dataset

    def _open(self, here: str, access: FileAccess, *, validate: bool) -> None:
        self._place = bin_path(here), access
        path, index = bin_path(here), read_idx(access.fetch(idx_path(here)), validate=validate)
        try:
            self._file: MappedFile = access.open_bytes(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise no_such_file(path) from error
        buffer = self._file.buffer
        end = index.furthest() if validate else index.end_bytes
        if len(buffer) < end:
            raise FormatError(
                "the token file is shorter than its index says",
                where=f"{path}, byte {len(buffer)}",
                found=f"{len(buffer)} bytes",
                expected=f"{end} bytes, the end of the last sequence",
                remedy="copy or write the .bin again",
            )
        self.dtype = index.dtype
        """Type of one token."""
        self.sequence_lengths = index.sequence_lengths
        """Tokens per sequence, int32, shape (n,)."""
        self.sequence_pointers = index.sequence_pointers
        """Byte offset of each sequence in the .bin, int64, shape (n,)."""
        self.document_indices = index.document_indices
        """Sequence at which each document begins, int64, shape (documents + 1,); the last entry is n."""
        self.modes = index.modes
        """Of every sequence, int8, shape (n,); None where the dataset is not multimodal."""
        self.bin_bytes = self._file.size
        """Size of the .bin."""
        self.stored_bytes = self._file.sliceable
        """The .bin's bytes, to be sliced; those of one in a bucket come when they are asked for."""
        self.is_here = not isinstance(self._file, BlockFile)
        """Whether all tokens lie on this machine; else they are fetched as they are read."""
        self.token_count = self.bin_bytes // index.dtype.itemsize
        """Tokens in the .bin."""
        self._tokens: Tokens = np.frombuffer(buffer, index.dtype, self.token_count)

    @property
    def tokens(self) -> Tokens:
        """All tokens of the .bin as one flat read-only array; of one in a bucket, all are fetched first."""
        self._file.fetch_span(0, self._file.size)
        return self._tokens

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tokens:
        """Return `tokens`, of which only the bytes of these ranges [begins, ends) are fetched."""
        self._file.fetch(begins, ends)
        return self._tokens

    def spans(self, count: int, at_once: int) -> Iterator[slice]:
        """Yield slices of `count` things to read the tokens of: one of all, or where room is scarce some at once.

        After each, what was fetched is freed where it takes too much room: its tokens may not be used any more.
        """
        step = max(1, count if self._file.room is None else at_once)
        for begin in range(0, count, step):
            yield slice(begin, begin + step)
            self._file.trim()

    @property
    def place(self) -> tuple[FileAccess, Path]:
        """What reaches the .bin, in any process, and its path."""
        return self._place[::-1]

    def stored(self, *, as_copies: bool = False) -> tuple[Store, str]:
        """Return (store, name of the prefix there) for reading ranges of the files, on other machines, too.

        Args:
            as_copies: the copies on this machine instead, where the tokens are here.
        """
        path, access = self._place
        store, name = access.stored_at(path, as_copy=as_copies)
        return store, name.removesuffix(".bin")

    @staticmethod
    def exists(prefix: str | os.PathLike[str]) -> bool:
        """Return whether both files are there."""
        return bin_path(prefix).is_file() and idx_path(prefix).is_file()

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    @overload
    def __getitem__(self, index: int) -> Tokens: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tokens]: ...

    def __getitem__(self, index: int | slice) -> Tokens | list[Tokens]:
        if isinstance(index, slice):
            return [self.get(i) for i in range(*index.indices(len(self)))]
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> Tokens:
        """Return the tokens of one sequence, a read-only view.

        Args:
            index: of the sequence; a negative one counts from the end.
            offset: of the first token.
            length: tokens; absent = to the end of the sequence.

        Raises:
            SampleIndexError: they are outside of the dataset, or of the sequence.
        """
        i = operator.index(index)
        n = len(self)
        if not -n <= i < n:
            expected = f"0 to {n - 1}" if n else "none: it is empty"
            raise SampleIndexError("no such sequence", where=self.prefix, found=i, expected=expected)
        whole = int(self.sequence_lengths[i])
        count = whole - offset if length is None else length
        if offset < 0 or count < 0 or offset + count > whole:
            what, found = f"tokens outside of sequence {i % n}", f"offset {offset}, length {count}"
            raise SampleIndexError(what, where=self.prefix, found=found, expected=f"within its {whole} tokens")
        itemsize = self.dtype.itemsize
        begin = int(self.sequence_pointers[i]) // itemsize + offset
        self._file.fetch_span(begin * itemsize, (begin + count) * itemsize)
        return self._tokens[begin : begin + count]

    def __repr__(self) -> str:
        return f"MMapIndexedDataset({self.prefix!r}, {len(self)} sequences, {self.dtype.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return _open_again, (self.prefix, self.access)


def _open_again(prefix: str, access: FileAccess | None = None) -> MMapIndexedDataset:
    # Version 0.1.0 pickled the prefix alone.
    return MMapIndexedDataset.below(access, prefix)


def _locate(prefix: str) -> tuple[str, FileAccess]:
    """Return (prefix on this machine, access to its files); the .idx of one at s3://bucket/prefix is fetched anew."""
    if not is_remote(prefix):
        return prefix, FileAccess(Path(prefix).parent)
    location = remote_location(prefix, where="the dataset's prefix")
    place = location.parent.place
    access = FileAccess(copies_folder(place), place)
    access.revalidate(idx_path(access.folder / location.name))
    return str(access.folder / location.name), access


def index_here(prefix: str) -> Path:
    """Return the .idx of a dataset on this machine; of one at s3://bucket/prefix a copy, which is fetched anew.

    It need not be there.
    """
    return idx_path(_locate(prefix)[0])
