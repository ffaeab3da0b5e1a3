"""Reading a `.pbin` through a memory map: its documents, and samples made of them."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.packed.blocks import DocumentBlocks
from nanoset_core.packed.index import IndexFacts, load_index
from nanoset_core.packed.pbin import open_packed
from nanoset_core.packed.samples import ContinuousSamples

_MEMORY_DTYPES = {1: np.dtype(np.uint8), 2: np.dtype(np.int32), 4: np.dtype(np.int64)}


class PackedDataset:
    """The documents of one `.pbin`, of any layout, read like a list.

    dataset[i] is the tokens of document i, in the type that Modalities gives them in memory (uint8, int32 or int64 for
    1, 2 or 4 bytes); dataset[i:j] a list of them. The index is read when a document is first asked for; `continuous`
    needs none. Pickles as its path, and opens again where it is unpickled.
    The counterpart of Modalities' `PackedMemMapDatasetBase`, and of `PackedMemMapDatasetContinuous`.

    Raises MissingError where there is no such file, FormatError (with the byte offset) where it is damaged; an
    index that Modalities' merge has put 12 bytes off is read as it was meant, see `index_facts.merge_faults`.
    """

    __slots__ = ("_index", "_packed", "dtype", "path", "tokens")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._packed = open_packed(path)
        self._index: tuple[IndexFacts, NDArray[np.int64], NDArray[np.int64]] | None = None
        self.tokens: NDArray = self._packed.tokens
        """All tokens as one flat read-only array, as they are in the file (unsigned, its byte order)."""
        self.dtype = _MEMORY_DTYPES[self._packed.token_bytes]
        """Type of the tokens that are given out."""

    @property
    def layout(self) -> str:
        """A, B, C or D; see `nanoset_core.packed.pbin`."""
        return self._packed.layout.name

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in the file."""
        return self._packed.token_bytes

    @property
    def index_facts(self) -> IndexFacts:
        """What the index was found to be."""
        return self._load()[0]

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """int64[n], number of each document's first token in `tokens`."""
        return self._load()[1]

    @property
    def document_lengths(self) -> NDArray[np.int64]:
        """int64[n], tokens per document."""
        return self._load()[2]

    def continuous(self, block_size: int, reuse_last_target: bool = True) -> ContinuousSamples:
        """All tokens as one stream, cut into samples of `block_size`; see `ContinuousSamples`."""
        return ContinuousSamples(self, block_size, reuse_last_target=reuse_last_target)

    def document_blocks(self, block_size: int) -> DocumentBlocks:
        """Samples of at most `block_size` tokens that begin where a document does; see `DocumentBlocks`."""
        return DocumentBlocks(self, block_size)

    def __len__(self) -> int:
        return len(self._load()[1])

    @overload
    def __getitem__(self, index: int) -> NDArray: ...

    @overload
    def __getitem__(self, index: slice) -> list[NDArray]: ...

    def __getitem__(self, index: int | slice) -> NDArray | list[NDArray]:
        if isinstance(index, slice):
            return [self._document(i) for i in range(*index.indices(len(self)))]
        i, n = operator.index(index), len(self)
        if not -n <= i < n:
            raise SampleIndexError(
                "no such document", where=self.path, found=i, expected=f"0 to {n - 1}" if n else "none: it is empty"
            )
        return self._document(i)

    def _document(self, index: int) -> NDArray:
        _, starts, lengths = self._load()
        begin = int(starts[index])
        return self.tokens[begin : begin + int(lengths[index])].astype(self.dtype)

    def _load(self) -> tuple[IndexFacts, NDArray[np.int64], NDArray[np.int64]]:
        if self._index is None:
            self._index = load_index(self._packed)
        return self._index

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, layout {self.layout}, {len(self.tokens)} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return PackedDataset, (self.path,)
