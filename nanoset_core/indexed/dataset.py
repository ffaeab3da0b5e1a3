"""Reading an indexed dataset (`<prefix>.bin` and `<prefix>.idx`) through memory maps."""

from __future__ import annotations

import operator
import os
from typing import overload

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, SampleIndexError
from nanoset_core.indexed.layout import bin_path, idx_path
from nanoset_core.indexed.reading import map_file, read_idx


class MMapIndexedDataset:
    """The sequences of one `.bin`/`.idx` pair, read like a list; nothing is copied.

    dataset[i] is the tokens of sequence i, a read-only view of dtype `dtype`; dataset[i:j] a list of them. Pickles as
    its path, and opens again where it is unpickled. The counterpart of Megatron-LM's `IndexedDataset`.

    prefix: path without `.bin` and `.idx`.
    validate: also check every entry of the .idx (one pass); without it only header, sizes and ends are checked.
    Raises MissingError where a file is missing, FormatError (with the byte offset) where it is damaged.
    """

    __slots__ = ("_index", "modes", "prefix", "tokens")

    def __init__(self, prefix: str | os.PathLike[str], *, validate: bool = True) -> None:
        self.prefix = os.fspath(prefix)
        self._index = read_idx(idx_path(prefix), validate=validate)
        path = bin_path(prefix)
        buffer = map_file(path)
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
        self.tokens: NDArray = np.frombuffer(buffer, self._index.dtype, len(buffer) // itemsize)
        """All tokens of the .bin as one flat read-only array."""

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
        begin = int(self.sequence_pointers[i]) // self.dtype.itemsize + offset
        return self.tokens[begin : begin + count]

    def __repr__(self) -> str:
        return f"MMapIndexedDataset({self.prefix!r}, {len(self)} sequences, {self.dtype.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return _open_again, (self.prefix,)


def _open_again(prefix: str) -> MMapIndexedDataset:
    return MMapIndexedDataset(prefix, validate=False)
