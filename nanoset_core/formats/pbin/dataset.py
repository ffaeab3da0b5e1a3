"""Read a `.pbin` through a memory map: its documents, and samples of them.

Samples are cut from one stream of all tokens, as Modalities does (`ContinuousSamples`), or begin where a document
begins (`DocumentBlocks`). The rule of the latter is our own, since Modalities' class of this purpose cuts documents at
random.
"""

from __future__ import annotations

import operator
import os
from array import array
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.formats.pbin.layout import IndexFacts, load_index, open_packed

_MEMORY_DTYPES: dict[int, np.dtype[np.integer]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int32), 4: np.dtype(np.int64)}


class PackedDataset:
    """The documents of one `.pbin`, of any layout, read like a list.

    dataset[i] is the tokens of document i, in the type that Modalities gives them in memory (uint8, int32 or int64 for
    1, 2 or 4 bytes); dataset[i:j] a list of them. The index is read when a document is first asked for; `continuous`
    needs none. Wrong offsets that Modalities' merge wrote are corrected, see `index_facts.merge_faults`. Pickles as its
    path. The counterpart of Modalities' `PackedMemMapDatasetBase`, and of `PackedMemMapDatasetContinuous`.

    Raises:
        MissingError: there is no such file.
        FormatError: the file is damaged; the message names the byte.
    """

    __slots__ = ("__dict__", "_packed", "dtype", "path", "tokens")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._packed = open_packed(path)
        self.tokens = self._packed.tokens
        """All tokens as they are in the file (unsigned, its byte order), shape (tokens,); read-only."""
        self.dtype = _MEMORY_DTYPES[self._packed.token_bytes]
        """Type of the tokens that are given out."""

    @property
    def layout(self) -> str:
        """A, B, C or D; see `nanoset_core.formats.pbin.layout`."""
        return self._packed.layout.name

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in the file."""
        return self._packed.token_bytes

    @property
    def index_facts(self) -> IndexFacts:
        """What the index was found to be."""
        return self._index[0]

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Number of each document's first token in `tokens`, int64, shape (documents,)."""
        return self._index[1]

    @property
    def document_lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, int64, shape (documents,)."""
        return self._index[2]

    def continuous(self, block_size: int, reuse_last_target: bool = True) -> ContinuousSamples:
        """Return all tokens as one stream, cut into samples of `block_size`; see `ContinuousSamples`."""
        return ContinuousSamples(self, block_size, reuse_last_target=reuse_last_target)

    def document_blocks(self, block_size: int) -> DocumentBlocks:
        """Return samples of at most `block_size` tokens that begin with documents; see `DocumentBlocks`."""
        return DocumentBlocks(self, block_size)

    def __len__(self) -> int:
        return len(self._index[1])

    @overload
    def __getitem__(self, index: int) -> NDArray[np.integer]: ...

    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.integer]]: ...

    def __getitem__(self, index: int | slice) -> NDArray[np.integer] | list[NDArray[np.integer]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = _position(index, len(self), "document", self.path)
        _, starts, lengths = self._index
        return self.tokens[starts[number] : starts[number] + lengths[number]].astype(self.dtype)

    @cached_property
    def _index(self) -> tuple[IndexFacts, NDArray[np.int64], NDArray[np.int64]]:
        return load_index(self._packed)

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, layout {self.layout}, {len(self.tokens)} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return PackedDataset, (self.path,)


class _Samples:
    """Base of samples of a dataset; pickles as its file and arguments."""

    def __init__(self, dataset: PackedDataset, block_size: int, count: int, *made_of: object) -> None:
        self._dataset, self.block_size, self._count, self._made_of = dataset, block_size, count, made_of

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Type of the tokens that are given out."""
        return self._dataset.dtype

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._dataset.path)!r}, {len(self)} samples of {self.block_size} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._dataset, self.block_size, *self._made_of)

    def _position(self, index: int) -> int:
        return _position(index, len(self), "sample", self._dataset.path)


class ContinuousSamples(_Samples):
    """Samples of `block_size` tokens from one stream of N; documents are not kept apart.

    Sample i begins at token i (block_size - 1) where the last target of a sample is the first input of the next
    (`reuse_last_target`), which gives (N - block_size) // (block_size - 1) + 1 of them; else at token i block_size,
    N // block_size of them. What is left at the end is dropped. Inputs are sample[:-1], targets sample[1:].

    Equal to Modalities' `PackedMemMapDatasetContinuous`; its `sequence_length` in a configuration is block_size - 1
    with `reuse_last_target`, and block_size without.

    Raises:
        ConfigError: the block is below 2 tokens, or above N.
    """

    def __init__(self, dataset: PackedDataset, block_size: int, reuse_last_target: bool = True) -> None:
        tokens = dataset.tokens
        if block_size < 2 or len(tokens) < block_size:
            what, found = "no sample of this size can be cut from the dataset", f"block_size {block_size}"
            raise ConfigError(what, where=dataset.path, found=found, expected=f"2 to {len(tokens)}, its tokens")
        self.reuse_last_target = reuse_last_target
        step = block_size - 1 if reuse_last_target else block_size
        # shape (samples, block_size): overlapping views of the file
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, block_size)[::step]
        super().__init__(dataset, block_size, len(self._windows), reuse_last_target)

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the tokens of one sample, shape (block_size,); a negative index counts from the end."""
        sample: NDArray[np.unsignedinteger] = self._windows[self._position(index)]
        return sample.astype(self.dtype)

    def batch(self, indices: ArrayLike) -> NDArray[np.integer]:
        """Return the tokens of several samples, shape (len(indices), block_size).

        Raises:
            SampleIndexError: a number is outside [0, n).
        """
        wanted = np.asarray(indices, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise _no_such("sample", f"{wanted.min()} to {wanted.max()}", len(self), self._dataset.path)
        return self._windows[wanted].astype(self.dtype)


class DocumentBlocks(_Samples):
    """Samples of at most `block_size` tokens that begin with documents.

    A longer document is cut, from its beginning, into pieces of block_size and a rest; any other document with tokens
    is one piece. A sample is as many of the next pieces as fit, at least one. So every token is in exactly one sample,
    in order. Memory: 40 bytes a piece while it is made, then 16, and 8 a sample.

    Raises:
        ConfigError: the block is below 1 token.
    """

    def __init__(self, dataset: PackedDataset, block_size: int) -> None:
        if block_size < 1:
            what, found = "a block has at least one token", f"block_size {block_size}"
            raise ConfigError(what, where=dataset.path, found=found)
        starts, lengths = dataset.document_starts, dataset.document_lengths
        counts = -(-lengths // block_size)
        documents = np.repeat(np.arange(len(starts)), counts)  # of each piece, shape (pieces,)
        firsts = np.cumsum(counts) - counts
        inside = (np.arange(len(documents)) - firsts[documents]) * block_size  # tokens of the document before the piece
        self._starts, sizes = starts[documents] + inside, np.minimum(lengths[documents] - inside, block_size)
        self._ends = self._starts + sizes
        del documents, inside
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        # The first piece that no longer fits a sample that begins with each piece, shape (pieces,).
        following = (np.searchsorted(totals, totals[:-1] + block_size, side="right") - 1).data
        bounds = array("q", [0])
        while bounds[-1] < len(sizes):
            bounds.append(following[bounds[-1]])
        self._bounds = np.frombuffer(bounds, np.int64)
        """Sample k is the pieces [bounds[k], bounds[k + 1]), int64, shape (samples + 1,)."""
        self.lengths: NDArray[np.int64] = np.diff(totals[self._bounds])
        """Tokens of each sample, int64, shape (samples,)."""
        super().__init__(dataset, block_size, len(self.lengths))

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the tokens of one sample, shape (lengths[index],); a negative index counts from the end."""
        i = self._position(index)
        pieces = slice(*self._bounds[i : i + 2])
        spans = zip(self._starts[pieces], self._ends[pieces], strict=True)
        return np.concatenate([self._dataset.tokens[begin:end] for begin, end in spans]).astype(self.dtype)


def _position(index: SupportsIndex, count: int, noun: str, path: Path) -> int:
    number = operator.index(index)
    if not -count <= number < count:
        raise _no_such(noun, number, count, path)
    return number % count


def _no_such(noun: str, found: object, count: int, path: Path) -> SampleIndexError:
    expected = f"0 to {count - 1}" if count else "none: it is empty"
    return SampleIndexError(f"no such {noun}", where=path, found=found, expected=expected)
