"""Reading an indexed dataset (`<prefix>.bin` and `<prefix>.idx`) through memory maps."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, SampleIndexError
from nanoset_core.indexed.layout import bin_path, idx_path
from nanoset_core.indexed.location import locate
from nanoset_core.indexed.reading import no_such_file, read_idx
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.block_file import BlockFile, MappedFile
from nanoset_core.storage.location import is_remote


class MMapIndexedDataset:
    """The sequences of one `.bin`/`.idx` pair, read like a list; nothing is copied.

    dataset[i] is the tokens of sequence i, a read-only view of dtype `dtype`; dataset[i:j] a list of them. Pickles as
    its path, and opens again where it is unpickled. The counterpart of Megatron-LM's `IndexedDataset`.

    prefix: path without `.bin` and `.idx`, or s3://bucket/path, as the AWS configuration reaches it: then the index is
        brought, and of the tokens the blocks that are read.
    access: how the files are reached, where `prefix` lies below an output root.
    validate: also check every entry of the .idx (one pass); without it only header, sizes and ends are checked.
    Raises MissingError where a file is missing, FormatError (with the byte offset) where it is damaged.
    """

    __slots__ = ("_access", "_file", "_index", "_tokens", "modes", "prefix")

    def __init__(
        self, prefix: str | os.PathLike[str], *, validate: bool = True, access: FileAccess | None = None
    ) -> None:
        self.prefix = os.fspath(prefix)
        here, self._access = (self.prefix, access) if access is not None else locate(self.prefix)
        self._index = read_idx(self._access.fetch(idx_path(here)), validate=validate)
        path = bin_path(here)
        self._file = _open_tokens(self._access, path)
        buffer = self._file.buffer
        if len(buffer) < self._index.end_bytes:
            raise FormatError(
                "the token file is shorter than its index says",
                where=f"{path}, byte {len(buffer)}",
                found=f"{len(buffer)} bytes",
                expected=f"{self._index.end_bytes} bytes, the end of the last sequence",
                remedy="copy or write the .bin again: it was truncated, or belongs to another .idx",
            )
        self.modes = self._index.modes
        """int8[n], or None where the dataset is not multimodal."""
        itemsize = self._index.dtype.itemsize
        self._tokens: NDArray = np.frombuffer(buffer, self._index.dtype, len(buffer) // itemsize)

    @property
    def tokens(self) -> NDArray:
        """All tokens of the .bin as one flat read-only array; of one in a bucket, all are brought first."""
        self._file.fetch_everything()
        return self._tokens

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray:
        """As `tokens`, of which only the bytes of these ranges [begins, ends) need to be right."""
        self._file.fetch(begins, ends)
        return self._tokens

    @property
    def token_count(self) -> int:
        """Tokens in the .bin."""
        return len(self._tokens)

    @property
    def stored_bytes(self) -> memoryview | BlockFile:
        """The .bin's bytes, to be sliced; those of one in a bucket come when they are asked for."""
        return self._file.sliceable

    @property
    def dtype(self) -> np.dtype:
        """Type of one token."""
        return self._index.dtype

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[n], tokens per sequence."""
        return self._index.sequence_lengths

    @property
    def sequence_pointers(self) -> NDArray[np.int64]:
        """int64[n], byte offset of each sequence in the .bin."""
        return self._index.sequence_pointers

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """int64[documents + 1]: document d is the sequences [document_indices[d], document_indices[d + 1])."""
        return self._index.document_indices

    @staticmethod
    def exists(prefix: str | os.PathLike[str]) -> bool:
        """Whether both files are there."""
        return bin_path(prefix).is_file() and idx_path(prefix).is_file()

    def __len__(self) -> int:
        return len(self._index.sequence_lengths)

    @overload
    def __getitem__(self, index: int) -> NDArray: ...

    @overload
    def __getitem__(self, index: slice) -> list[NDArray]: ...

    def __getitem__(self, index: int | slice) -> NDArray | list[NDArray]:
        if isinstance(index, slice):
            return [self.get(i) for i in range(*index.indices(len(self)))]
        return self.get(index)

    def get(self, index: int, offset: int = 0, length: int | None = None) -> NDArray:
        """Tokens [offset, offset + length) of one sequence; to its end where length is None.

        A negative index counts from the end. SampleIndexError outside of the dataset or of the sequence.
        """
        i = operator.index(index)
        n = len(self)
        if not -n <= i < n:
            raise SampleIndexError(
                "no such sequence", where=self.prefix, found=i, expected=f"0 to {n - 1}" if n else "none: it is empty"
            )
        whole = int(self.sequence_lengths[i])
        count = whole - offset if length is None else length
        if offset < 0 or count < 0 or offset + count > whole:
            raise SampleIndexError(
                f"tokens outside of sequence {i % n}",
                where=self.prefix,
                found=f"offset {offset}, length {count}",
                expected=f"within its {whole} tokens",
            )
        itemsize = self.dtype.itemsize
        begin = int(self.sequence_pointers[i]) // itemsize + offset
        self._file.fetch_span(begin * itemsize, (begin + count) * itemsize)
        return self._tokens[begin : begin + count]

    def __repr__(self) -> str:
        return f"MMapIndexedDataset({self.prefix!r}, {len(self)} sequences, {self.dtype.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return _open_again, (self.prefix, None if is_remote(self.prefix) else self._access)


def _open_again(prefix: str, access: FileAccess | None) -> MMapIndexedDataset:
    return MMapIndexedDataset(prefix, validate=False, access=access)


def _open_tokens(access: FileAccess, path: Path) -> MappedFile:
    try:
        return access.open_bytes(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise no_such_file(path) from error
