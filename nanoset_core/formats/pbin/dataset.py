"""Read a `.pbin` through a memory map: its documents, and samples of them.

Samples are cut from one stream of all tokens, as Modalities does (`ContinuousSamples`), or start
where a document starts (`DocumentBlocks`). The latter do not follow Modalities, whose class for
this purpose cuts documents at random.
"""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.formats.pbin.layout import IndexFacts, PbinIndex, load_index, open_pbin
from nanoset_core.records.arguments import boolean, plain_integer
from nanoset_core.rounding import ceil_division
from nanoset_core.storage.location import path_on_this_machine

_MEMORY_DTYPES: dict[int, np.dtype[np.integer]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int32),
    4: np.dtype(np.int64),
}
"""Bytes of a token in the file → the type in which Modalities returns tokens."""


class PackedDataset:
    """The documents of one `.pbin`, of any layout, read like a list.

    `dataset[i]` is the tokens of document i, in the type in which Modalities returns them: uint8,
    int32 or int64 for tokens of 1, 2 or 4 bytes. `dataset[i:j]` is a list of documents.

    The index is read when the first document is requested; `continuous` does not need it. Wrong
    offsets that Modalities' merge has written are corrected (`index_facts.merge_faults`). A pickle
    of the dataset contains its absolute path only. Modalities' counterparts are
    `PackedMemMapDatasetBase` and `PackedMemMapDatasetContinuous`.

    Attributes:
        path: Absolute path of the file.
        tokens: All tokens as they are in the file: read-only, uint8, uint16 or uint32 in its byte
            order, shape (n_tokens,).
        dtype: Type of the tokens of documents and samples: uint8, int32 or int64.

    Args:
        path: Path of the file on this machine. `~` is replaced by the home folder.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is damaged; the message names the byte.
        ConfigError: The path is the address of a bucket.
    """

    __slots__ = ("__dict__", "_file", "dtype", "path", "tokens")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file; the docstring of the class describes the arguments and attributes."""
        self.path = path_on_this_machine(path).absolute()
        self._file = open_pbin(self.path)
        self.tokens = self._file.tokens
        self.dtype = _MEMORY_DTYPES[self._file.token_bytes]

    @property
    def layout(self) -> str:
        """Name of the file's layout, A, C or D; see `nanoset_core.formats.pbin.layout`."""
        return self._file.layout.name

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in the file."""
        return self._file.token_bytes

    @property
    def index_facts(self) -> IndexFacts:
        """Counts and findings from the index."""
        return self._index.facts

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Number of each document's first token in `tokens`, int64, shape (n_documents,)."""
        return self._index.starts

    @property
    def document_lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, int64, shape (n_documents,)."""
        return self._index.lengths

    def continuous(self, block_size: int, reuse_last_target: bool = True) -> ContinuousSamples:
        """Return samples that are cut from one stream of all tokens, regardless of documents.

        For 10 tokens and samples of 4, these are

            tokens 0 to 3, 3 to 6, 6 to 9    if the last token of a sample is reused in the next one
            tokens 0 to 3, 4 to 7            otherwise

        A model that learns to predict the next token cannot use the last token of a sample as an
        input, since the token after it is not in the sample. That is why it may be reused.

        Args:
            block_size: Tokens of a sample.
            reuse_last_target: Whether the last token of a sample is also the first of the next one.

        Returns:
            A list of samples, each of shape (block_size,) and of the dataset's `dtype`: uint8,
            int32 or int64 for tokens of 1, 2 or 4 bytes in the file.

        Raises:
            ConfigError: The block is smaller than 2 tokens, or larger than the dataset.
        """
        return ContinuousSamples(self, block_size, reuse_last_target=reuse_last_target)

    def document_blocks(self, block_size: int) -> DocumentBlocks:
        """Return training samples that start where documents start.

        A sample has several short documents, or a part of a long one. For example, with samples of
        at most 4 tokens, documents of 1, 2 and 6 tokens give samples of 3, 4 and 2 tokens.

        Args:
            block_size: Largest number of tokens in a sample.

        Returns:
            A list of samples, each of at most `block_size` tokens, of the same dtype as those of
            `continuous`.

        Raises:
            ConfigError: The block is smaller than 1 token.
        """
        return DocumentBlocks(self, block_size)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._index.starts)

    def __iter__(self) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each document."""
        for number in range(len(self)):
            yield self[number]

    @overload
    def __getitem__(self, index: int) -> NDArray[np.integer]: ...

    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.integer]]: ...

    def __getitem__(self, index: int | slice) -> NDArray[np.integer] | list[NDArray[np.integer]]:
        """Return the tokens of a document, or a list with those of each document of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = _checked_number(index, len(self), "document", self.path)
        start = self._index.starts[number]
        stop = start + self._index.lengths[number]
        return self.tokens[start:stop].astype(self.dtype)

    @cached_property
    def _index(self) -> PbinIndex:
        """The index, which is read when it is first needed."""
        return load_index(self._file)

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.path)!r}, layout {self.layout}, {len(self.tokens)} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return PackedDataset, (self.path,)


class _PbinSamples(ABC):
    """The samples of a dataset, read like a list.

    Args:
        dataset: The dataset.
        block_size: Largest number of tokens in a sample.
        n_samples: Number of samples.
    """

    def __init__(self, dataset: PackedDataset, block_size: int, n_samples: int) -> None:
        self._dataset = dataset
        self.block_size = block_size
        self._n_samples = n_samples

    @abstractmethod
    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the tokens of one sample; a negative index counts from the end."""

    def __iter__(self) -> Iterator[NDArray[np.integer]]:
        """Yield the tokens of each sample."""
        for number in range(len(self)):
            yield self[number]

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """Type of the tokens of samples."""
        return self._dataset.dtype

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._n_samples

    def __repr__(self) -> str:
        samples = f"{len(self)} samples of {self.block_size} tokens"
        return f"{type(self).__name__}({str(self._dataset.path)!r}, {samples})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._dataset, self.block_size)

    def _number(self, index: int) -> int:
        """Return the number of a sample, from 0 on; a negative index counts from the end.

        Raises:
            SampleIndexError: There is no such sample.
        """
        return _checked_number(index, len(self), "sample", self._dataset.path)


class ContinuousSamples(_PbinSamples):
    """Samples of `block_size` tokens from one stream of all tokens, regardless of documents.

    Inputs are sample[:-1], targets sample[1:]. With `reuse_last_target`, the last target of a
    sample is also the first input of the next one. Remaining tokens are dropped. For 10 tokens and
    a block size of 4:

        reuse_last_target    sample i starts at    samples
        True                 3 i                   0 1 2 3, 3 4 5 6, 6 7 8 9
        False                4 i                   0 1 2 3, 4 5 6 7

    It equals Modalities' `PackedMemMapDatasetContinuous`, whose `sequence_length` in a
    configuration is block_size - 1 with `reuse_last_target`, and block_size without.

    Raises:
        ConfigError: The block is smaller than 2 tokens, or larger than the dataset; or
            `reuse_last_target` is no boolean.
    """

    def __init__(
        self, dataset: PackedDataset, block_size: int, reuse_last_target: bool = True
    ) -> None:
        """Cut the tokens of all documents, concatenated, into samples of `block_size` tokens."""
        self.reuse_last_target = boolean("reuse_last_target", reuse_last_target)
        tokens = dataset.tokens
        sample_tokens = plain_integer(block_size)
        if sample_tokens is None or not 2 <= sample_tokens <= len(tokens):
            raise ConfigError(
                "no sample of this size can be cut from the dataset",
                where=dataset.path,
                found=f"block_size {block_size!r}",
                expected=f"2 to {len(tokens)}, its tokens",
            )

        # The next sample starts at the last token of this one, or after it.
        step = sample_tokens - 1 if self.reuse_last_target else sample_tokens
        # (n_samples, block_size) overlapping views of the file
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, sample_tokens)[::step]
        super().__init__(dataset, sample_tokens, len(self._windows))

    def __reduce__(self) -> tuple[object, ...]:
        return ContinuousSamples, (self._dataset, self.block_size, self.reuse_last_target)

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the tokens of one sample, shape (block_size,).

        A negative index counts from the end.
        """
        sample: NDArray[np.unsignedinteger] = self._windows[self._number(index)]
        return sample.astype(self.dtype)

    def batch(self, indices: ArrayLike) -> NDArray[np.integer]:
        """Return the tokens of several samples, shape (len(indices), block_size).

        Args:
            indices: Numbers of the samples; negative ones are not allowed.

        Raises:
            SampleIndexError: A number is outside [0, n_samples).
        """
        numbers = np.asarray(indices, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= len(self)):
            found = f"{numbers.min()} to {numbers.max()}"
            raise _no_such("sample", found, len(self), self._dataset.path)
        return self._windows[numbers].astype(self.dtype)


class DocumentBlocks(_PbinSamples):
    """Samples of at most `block_size` tokens that start with documents.

    A document longer than a block is cut, from its start, into pieces of `block_size` tokens and a
    remainder; any other document with tokens is one piece. A sample consists of as many of the next
    pieces as fit. So every token is in exactly one sample, in order. For documents of 3, 2, 9 and 1
    tokens and a block size of 4:

        pieces     3    2    4    4    1    1
        samples    3 |  2 |  4 |  4 |  1 +  1

    It takes 16 bytes of memory for each piece, 40 while it is made, and 8 for each sample.

    Raises:
        ConfigError: The block is smaller than 1 token.
    """

    def __init__(self, dataset: PackedDataset, block_size: int) -> None:
        most_tokens = plain_integer(block_size)
        if most_tokens is None or most_tokens < 1:
            raise ConfigError(
                "a block has at least one token",
                where=dataset.path,
                found=f"block_size {block_size!r}",
                expected="a whole number, 1 or more",
            )
        self._starts, self._stops = _cut(
            dataset.document_starts, dataset.document_lengths, most_tokens
        )
        """Where each piece starts and stops in the tokens of the file, shape (n_pieces,)."""
        lengths = self._stops - self._starts
        # (n_pieces + 1,) tokens of all pieces before each one, and at the end of all pieces
        tokens_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._bounds = _sample_bounds(tokens_before, most_tokens)
        """Sample k consists of the pieces [bounds[k], bounds[k + 1]), shape (n_samples + 1,)."""
        self.lengths: NDArray[np.int64] = np.diff(tokens_before[self._bounds])
        """Tokens of each sample, shape (n_samples,)."""
        super().__init__(dataset, most_tokens, len(self.lengths))

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Return the tokens of one sample, shape (lengths[index],).

        A negative index counts from the end.
        """
        number = self._number(index)
        pieces = slice(self._bounds[number], self._bounds[number + 1])
        ranges = zip(self._starts[pieces], self._stops[pieces], strict=True)
        tokens = [self._dataset.tokens[start:stop] for start, stop in ranges]
        return np.concatenate(tokens).astype(self.dtype)


def _cut(
    document_starts: NDArray[np.int64], document_lengths: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut documents into pieces of at most `block_size` tokens, the last with the remainder.

    For example, documents of 5, 2 and 3 tokens, cut every 2 tokens:

        document of each piece     0  0  0  1  2  2
        number in its document     0  1  2  0  0  1
        starts                     0  2  4  5  7  9
        stops                      2  4  5  7  9  10

    Args:
        document_starts: First token of each document, shape (n_documents,).
        document_lengths: Tokens of each document, shape (n_documents,).
        block_size: Largest number of tokens in a piece.

    Returns:
        (where each piece starts, where it stops), each of shape (n_pieces,)
    """
    document_stops = document_starts + document_lengths  # 5 7 10
    # (n_documents,) A document of 5 tokens has 3 pieces.
    pieces_per_document = ceil_division(document_lengths, block_size)
    document_of_piece = np.repeat(np.arange(len(document_starts)), pieces_per_document)
    numbers = _numbers_within_groups(document_of_piece, pieces_per_document)

    # A piece stops after `block_size` tokens, or with its document.
    starts = document_starts[document_of_piece] + numbers * block_size
    stops = np.minimum(starts + block_size, document_stops[document_of_piece])
    return starts, stops


def _numbers_within_groups(
    group_of_item: NDArray[np.int64], group_sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Number the items of each group from 0 on: groups of 3, 1 and 2 items give 0 1 2  0  0 1.

    Args:
        group_of_item: Group of each item, ascending, shape (n_items,).
        group_sizes: Items of each group, shape (n_groups,).
    """
    first_items = np.cumsum(group_sizes) - group_sizes  # (n_groups,)
    return np.arange(len(group_of_item)) - first_items[group_of_item]


def _sample_bounds(tokens_before: NDArray[np.int64], max_tokens: int) -> NDArray[np.int64]:
    """Divide pieces of text into samples, each of which takes as many of the next pieces as fit.

    For example, for samples of up to 5 tokens:

        piece                    0     1     2     3
        its length in tokens     3     2     4     1
        sample                   0     0     1     1      so the result is 0, 2, 4

    Args:
        tokens_before: Tokens of all pieces before each one, and last those of all pieces, shape
            (n_pieces + 1,): 0, 3, 5, 9, 10.
        max_tokens: Largest number of tokens in a sample. No piece is longer.

    Returns:
        First piece of each sample, and last the number of pieces, shape (n_samples + 1,).
    """
    n_pieces = len(tokens_before) - 1
    next_starts = _starts_of_next_samples(tokens_before, max_tokens)  # [2, 2, 4, 4]

    # The first sample starts with piece 0. Go from sample to sample, until no piece is left.
    next_start_of_piece = next_starts.data  # a buffer: its entries are read faster than an array's
    bounds = array("q", [0])
    while bounds[-1] < n_pieces:
        bounds.append(next_start_of_piece[bounds[-1]])
    return np.frombuffer(bounds, np.int64)


def _starts_of_next_samples(tokens_before: NDArray[np.int64], max_tokens: int) -> NDArray[np.int64]:
    """For each piece of text, suppose that a sample starts with it. Return where the next starts.

    A sample has as many successive pieces as fit into `max_tokens`. For example, for 5 tokens:

        piece                                  0     1     2     3
        its length in tokens                   3     2     4     1
        pieces of a sample that starts here    0, 1  1     2, 3  3
        first piece of the next sample         2     2     4     4     (4: no piece is left)

    Args:
        tokens_before: Tokens of all pieces before each one, and last those of all pieces, shape
            (n_pieces + 1,): 0, 3, 5, 9, 10.
        max_tokens: Largest number of tokens in a sample. No piece is longer.

    Returns:
        First piece of the next sample, or n_pieces if no piece is left, shape (n_pieces,).
    """
    # Put all pieces one after another, and count tokens from the start of the first one.
    piece_starts = tokens_before[:-1]  # [0, 3, 5, 9]
    piece_ends = tokens_before[1:]  # [3, 5, 9, 10]
    sample_limits = piece_starts + max_tokens  # [5, 8, 10, 14]

    # The next sample starts with the first piece that ends after the limit. Pieces are numbered
    # from 0, so its number is how many pieces end at or before the limit. Count these.
    return np.searchsorted(piece_ends, sample_limits, side="right")  # [2, 2, 4, 4]


def _checked_number(index: SupportsIndex, count: int, noun: str, path: Path) -> int:
    """Return the number, from 0 on, of the item that a list index names.

    Of 10 documents, the index 3 names number 3, and -1 names number 9, the last one. The index 10
    is an error.

    Args:
        index: The index; a negative one counts from the end.
        count: Number of items.
        noun: Name of such an item, for the message.
        path: The file, for the message.

    Raises:
        SampleIndexError: There is no such item.
    """
    number = operator.index(index)
    if not -count <= number < count:
        raise _no_such(noun, number, count, path, counts_from_end=True)
    return number % count


def _no_such(
    noun: str, found: object, count: int, path: Path, *, counts_from_end: bool = False
) -> SampleIndexError:
    """Return the error for a document or sample that does not exist.

    Args:
        noun: "document" or "sample".
        found: The requested number or numbers.
        count: How many there are.
        path: The file.
        counts_from_end: Whether negative numbers are allowed, too.
    """
    expected = "none: it is empty"
    if count:
        expected = f"0 to {count - 1}"
        if counts_from_end:
            expected += f", or -{count} to -1 from the end"
    return SampleIndexError(f"no such {noun}", where=path, found=found, expected=expected)
