"""Samples of one dataset's part of a split."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.config import NanosetConfig
from nanoset_core.loading.samples import SampleForm
from nanoset_core.mapping.cache import open_member
from nanoset_core.mapping.indices import MemberIndices
from nanoset_core.mapping.planned import MemberPlan

_PIECE_TOKENS = 48  # below this mean length one gather beats a copy per piece


class Nanoset:
    """Samples in shuffled order, like a list: `nanoset[k]` is what the preset's trainer would get.

    Works as a `torch.utils.data.Dataset` (map style) as it is, and needs numpy only. Pickles as paths where its index
    files are in a cache folder. Raises SampleIndexError for an index outside of it.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        member: MemberPlan,
        config: NanosetConfig,
        indices: MemberIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """dataset: the tokens. member: the plan. indices: its arrays. cache_dir: the folder that holds them, if any."""
        self.dataset, self.member, self.config = dataset, member, config
        self.document_index, self.sample_index = indices.document_index, indices.sample_index
        self.shuffle_index = indices.shuffle_index
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._form = SampleForm(config)
        self._extra = int(config.add_extra_token)
        self._item_shift = dataset.dtype.itemsize.bit_length() - 1

    @property
    def unique_description(self) -> str:
        """The text that the trainer hashes."""
        return self.member.description

    @property
    def unique_description_hash(self) -> str:
        """Its md5."""
        return self.member.hash

    @property
    def cache_files(self) -> tuple[str, ...]:
        """The trainer's names of its index files."""
        return self.member.cache_files

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, index: int | None) -> dict[str, NDArray]:
        """Sample k as the trainer's dictionary; for None, sample 0 with a loss mask of zeros (a trainer's padding)."""
        return self.sample_of(0 if index is None else index, index)

    def sample_of(self, index: int, asked: int | None) -> dict[str, NDArray]:
        """Sample `index` as the dictionary for the index `asked`, which a blend may have been asked for."""
        return self._form.sample(self.tokens(index), asked)

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Tokens of sample k, int64[sequence_length + 1] (without the extra one where there is none)."""
        sample = int(self.shuffle_index[self._position(index)])
        (first, begin), (last, end) = self.sample_index[sample : sample + 2].tolist()
        width = self.config.sample_tokens
        sequences, tokens = self.document_index[first : last + 1], self.dataset.tokens
        starts = (self.dataset.sequence_pointers[sequences] >> self._item_shift).tolist()
        if first == last:
            start = starts[0]
            sample_tokens = tokens[start + begin : start + end + self._extra].astype(np.int64)
            return sample_tokens if len(sample_tokens) == width else self._pad(sample_tokens)
        lengths = self.dataset.sequence_lengths[sequences].tolist()
        lengths[-1] = end + self._extra
        starts[0] += begin
        lengths[0] -= begin
        out = np.empty(width, np.int64)
        at = 0
        for start, length in zip(starts, lengths, strict=True):
            out[at : at + length] = tokens[start : start + length]
            at += length
        out[at:] = self._form.pad
        return out

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Tokens of many samples at once, int64[len(indices), sequence_length + 1]."""
        wanted = self._positions(indices)
        samples = self.shuffle_index[wanted].astype(np.int64)
        width = self.config.sample_tokens
        # [samples, 2]: (position in document_index, offset)
        begins, ends = self.sample_index[samples].astype(np.int64), self.sample_index[samples + 1].astype(np.int64)
        pieces = ends[:, 0] - begins[:, 0] + 1
        last = np.cumsum(pieces) - 1
        first = last - pieces + 1
        # [pieces]: every stretch of tokens inside one sequence, sample after sample
        total = int(pieces.sum())
        sequences = self.document_index[np.repeat(begins[:, 0] - first, pieces) + np.arange(total)]
        starts = self.dataset.sequence_pointers[sequences] >> self._item_shift
        lengths = self.dataset.sequence_lengths[sequences].astype(np.int64)
        lengths[last] = ends[:, 1] + self._extra
        starts[first] += begins[:, 1]
        lengths[first] -= begins[:, 1]
        filled = np.add.reduceat(lengths, first) if total else lengths
        goals = np.cumsum(lengths) - lengths
        if total and int(filled.min()) < width:
            goals += np.repeat(np.cumsum(width - filled) - (width - filled), pieces)
        out = np.empty(len(samples) * width, np.int64)
        if total and int(filled.min()) < width:
            out[:] = self._form.pad
        self._copy(out, goals, starts, lengths)
        return out.reshape(len(samples), width)

    def _copy(
        self, out: NDArray[np.int64], goals: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """out[goal : goal + length] = tokens[start : start + length] for every piece."""
        tokens = self.dataset.tokens
        if len(lengths) * _PIECE_TOKENS > len(out):
            inside = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            out[np.repeat(goals, lengths) + inside] = tokens[np.repeat(starts, lengths) + inside]
            return
        for goal, start, length in zip(goals.tolist(), starts.tolist(), lengths.tolist(), strict=True):
            out[goal : goal + length] = tokens[start : start + length]

    def _pad(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.pad(tokens, (0, self.config.sample_tokens - len(tokens)), constant_values=self._form.pad)

    def _position(self, index: int) -> int:
        position = operator.index(index)
        count = len(self.shuffle_index)
        if not -count <= position < count:
            raise outside(self.member.prefix, self.member.split, position, count)
        return position

    def _positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        return check_positions(indices, len(self), self.member.prefix, self.member.split)

    def __repr__(self) -> str:
        return f"Nanoset({self.member.prefix!r}, {self.member.split}, {len(self)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache_dir is not None:
            return open_nanoset, (self.member, self.config, self.cache_dir)
        arrays = (self.document_index, self.sample_index, self.shuffle_index)
        return _rebuild, (self.dataset, self.member, self.config, arrays)


def open_nanoset(member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> Nanoset:
    """A Nanoset on the index files of a cache folder, as they are there.

    MissingError and FormatError for the dataset, StaleError for index files of another shape.
    """
    dataset = MMapIndexedDataset(member.prefix, validate=False)
    return Nanoset(dataset, member, config, open_member(member, config, cache_dir), cache_dir)


def outside(prefix: str, split: str, found: int, count: int) -> SampleIndexError:
    """The error for a sample index outside of a dataset."""
    expected = f"{-count} to {count - 1}" if count else "none: it is empty"
    return SampleIndexError("no such sample", where=f"{prefix}, {split}", found=found, expected=expected)


def check_positions(indices: ArrayLike, count: int, prefix: str, split: str) -> NDArray[np.int64]:
    """Sample indices as int64[n], negative ones counted from the end; SampleIndexError for one outside."""
    given = np.asarray(indices)
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise SampleIndexError(
            "sample indices are not a flat list of integers",
            where=f"{prefix}, {split}",
            found=f"{given.dtype.name}{list(given.shape)}",
            expected="integers [n]",
        )
    wrong = (given >= count) | (given < -count)
    if wrong.any():
        raise outside(prefix, split, int(given[int(np.argmax(wrong))]), count)
    positions = given.astype(np.int64)
    return np.where(positions < 0, positions + count, positions)


def _rebuild(
    dataset: MMapIndexedDataset, member: MemberPlan, config: NanosetConfig, arrays: tuple[NDArray, NDArray, NDArray]
) -> Nanoset:
    return Nanoset(dataset, member, config, MemberIndices(*arrays))
