"""Read the samples of a split: of one dataset, or of a blend of several."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import SampleIndexError, StaleError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Tokens, positions_in
from nanoset_core.loading.boundaries import cu_seqlens_of
from nanoset_core.loading.samples import Sample, SampleForm
from nanoset_core.sampling.cache import open_blend, open_member
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices, MemberIndices
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.access import FileAccess

_PIECE_TOKENS = 48  # below this mean length one gather beats a copy per piece
_MANY_PIECES = 12  # from here on their bounds are faster from arrays


class _Samples:
    """Base of the samples of a dataset and of a blend."""

    config: NanosetConfig
    cache_dir: Path | None
    _part: MemberPlan | BlendPlan | None
    _where: str
    _count: int
    _form: SampleForm

    @property
    def unique_description(self) -> str:
        """The text that the trainer hashes."""
        return self._part.description if self._part else ""

    @property
    def unique_description_hash(self) -> str:
        """Its md5."""
        return self._part.hash if self._part else ""

    @property
    def cache_files(self) -> tuple[str, ...]:
        """The trainer's names of its own index files; those of a blend's datasets are theirs."""
        return self._part.cache_files if self._part else ()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where}, {len(self)} samples)"

    def __getitems__(self, indices: Sequence[int | None]) -> list[Sample]:
        """Return `[self[index] for index in indices]`, faster; torch's DataLoader fetches batches
        by it.
        """
        asked = self._asked(indices)
        return self._form.samples(self.batch(asked), indices, self._boundaries(asked))

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples, shape (samples, sequence_length + 1), one less without
        the extra token.
        """
        raise NotImplementedError

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many samples, shape (samples, sequence_length + 1).

        Each row begins with 0, and is filled up with sequence_length.
        """
        raise NotImplementedError

    def _boundaries(self, asked: NDArray[np.int64]) -> NDArray[np.int32] | None:
        return self.cu_seqlens(asked) if self._form.by_document else None

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if not -self._count <= position < self._count:
            raise self._outside(position)
        return position

    def _asked(self, indices: Sequence[int | None]) -> NDArray[np.int64]:
        return np.array(
            [self._position(0 if index is None else index) for index in indices], np.int64
        )

    def _positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        given = np.asarray(indices)
        if given.size == 0:
            return np.empty(0, np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            what, found = (
                "sample indices are not a flat list of integers",
                f"{given.dtype.name}{list(given.shape)}",
            )
            raise SampleIndexError(
                what, where=self._where, found=found, expected="integers, shape (n,)"
            )
        wrong = (given >= self._count) | (given < -self._count)
        if wrong.any():
            raise self._outside(int(given[int(np.argmax(wrong))]))
        return given.astype(np.int64)

    def _outside(self, found: int) -> SampleIndexError:
        expected = (
            f"0 to {self._count - 1}, or -{self._count} to -1 from the end"
            if self._count
            else "none: it is empty"
        )
        return SampleIndexError("no such sample", where=self._where, found=found, expected=expected)

    def _misfit(self, found: str) -> StaleError:
        what, remedy = (
            "the index files don't fit the dataset",
            "build the nanoset again: its data was changed",
        )
        expected = f"samples of {self.config.sample_tokens} tokens"
        return StaleError(what, where=self._where, found=found, expected=expected, remedy=remedy)


class Nanoset(_Samples):
    """Samples in shuffled order, like a list: `nanoset[k]` is what the preset's trainer would get.

    Works as a `torch.utils.data.Dataset` (map style) as it is, and needs numpy only. Pickles as
    paths where its index files are in a cache folder.

    Raises:
        SampleIndexError: an index is outside of it.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        member: MemberPlan,
        config: NanosetConfig,
        indices: MemberIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take a dataset, and its index that was built as planned; `cache_dir` is the folder that
        holds it, if any.
        """
        self.dataset, self.member, self.config = dataset, member, config
        self._part, self._where, self._count = (
            member,
            f"{member.prefix}, {member.split}",
            len(indices.shuffle_index),
        )
        self.document_index, self.sample_index = indices.document_index, indices.sample_index
        self.shuffle_index = indices.shuffle_index
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        # Without the id that fills short samples none is looked for.
        self.may_pad = (
            dataset.dtype.kind != "u"
            or config.pad_token is not None
            or not (config.add_extra_token and config.drops_last_partial(member.split))
        )
        self._form = SampleForm(config, pads=self.may_pad)
        self._token_count = dataset.token_count
        self._extra, self._width = config.overlap, config.sample_tokens
        self._item_shift = dataset.dtype.itemsize.bit_length() - 1
        self._shuffle, self._rows = _entries(self.shuffle_index), _entries(self.sample_index)
        self._documents, self._bytes = _entries(self.document_index), dataset.stored_bytes
        self._lengths, self._pointers = (
            _entries(dataset.sequence_lengths),
            _entries(dataset.sequence_pointers),
        )
        self._sequences = _unsigned(self.document_index)
        # NeMo ends a sample in an empty sequence at offset -1, which is `_no_end` where entries
        # have no sign.
        self._no_end = (
            (1 << 8 * self.sample_index.itemsize) - 1
            if self._extra and config.rules.empty_end
            else None
        )

    def __getitem__(self, index: int | None) -> Sample:
        """Return sample k as the trainer's dictionary; for None, sample 0 with a loss mask of
        zeros, as padding.
        """
        return self.sample_of(0 if index is None else index, index)

    def sample_of(self, index: int, asked: int | None) -> Sample:
        """Return sample `index` as the dictionary for the index `asked`, which differs from it in a
        blend.
        """
        bounds = self.cu_seqlens([index])[0] if self._form.by_document else None
        return self._form.sample(self._text(index), asked, bounds)

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of sample k, shape (sequence_length + 1,), or one less without the
        extra token.
        """
        return self._text(index).astype(np.int64, copy=False)

    def _text(self, index: int) -> Tokens:
        position = self._position(index)
        try:
            sample, first, begin, last, stop = self._bounds(position)
            pieces_of = self._few_pieces if last - first < _MANY_PIECES else self._many_pieces
            text = np.frombuffer(
                bytearray().join(pieces_of(first, begin, last, stop)), self.dataset.dtype
            )
        except (IndexError, ValueError) as error:
            raise self._misfit(
                f"entry {position} of the shuffle index leads nowhere: {error}"
            ) from error
        if len(text) == self._width:
            return text
        self._check_short(sample, len(text))
        padded = np.full(self._width, self._form.pad, np.int64)
        padded[: len(text)] = text
        return padded

    def _bounds(self, position: int) -> tuple[int, int, int, int, int]:
        """Return (sample of the index, place in the document index, first token there, last place,
        end excl there).
        """
        rows, sample = self._rows, self._shuffle[position]
        end = rows[sample + 1, 1]
        stop = 0 if end == self._no_end else end + self._extra
        return sample, rows[sample, 0], rows[sample, 1], rows[sample + 1, 0], stop

    def _few_pieces(self, first: int, begin: int, last: int, stop: int) -> list[memoryview]:
        """Return the bytes from token `begin` of the sequence at `first` to `stop` (excl) of the
        one at `last`.
        """
        pointers, lengths, shift, data = (
            self._pointers,
            self._lengths,
            self._item_shift,
            self._bytes,
        )
        pieces, offset = [], begin << shift
        for sequence in self._documents[first:last].tolist():
            start = pointers[sequence]
            pieces.append(data[start + offset : start + (lengths[sequence] << shift)])
            offset = 0
        start = pointers[self._documents[last]]
        pieces.append(data[start + offset : start + (stop << shift)])
        return pieces

    def _many_pieces(self, first: int, begin: int, last: int, stop: int) -> list[memoryview]:
        """Return the same as `_few_pieces`, faster for many."""
        sequences = self._sequences[first : last + 1]
        starts = self.dataset.sequence_pointers[sequences]
        stops = starts + (
            self.dataset.sequence_lengths[sequences].astype(np.int64) << self._item_shift
        )
        stops[-1] = starts[-1] + (stop << self._item_shift)
        starts[0] += begin << self._item_shift
        return [
            self._bytes[begin:end]
            for begin, end in zip(starts.tolist(), stops.tolist(), strict=True)
        ]

    def sources(self, index: int) -> NDArray[np.int64]:
        """Return where sample k's tokens lie: (sequence of the dataset, first token, end excl),
        shape (pieces, 3).
        """
        _, first, begin, last, stop = self._bounds(self._position(index))
        pieces = np.zeros((last - first + 1, 3), np.int64)
        pieces[:, 0] = self.document_index[first : last + 1]
        pieces[:, 2] = self.dataset.sequence_lengths[pieces[:, 0]]
        pieces[0, 1], pieces[-1, 2] = begin, stop
        return pieces

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples, shape (samples, sequence_length + 1), one less without
        the extra token.
        """
        samples, width = self.shuffle_index[self._positions(indices)].astype(np.int64), self._width
        if not len(samples):
            return np.empty((0, width), np.int64)
        starts, lengths, pieces = self._stretches(samples)
        # (samples,): tokens of each
        filled = np.add.reduceat(lengths, np.cumsum(pieces) - pieces)
        if (filled == width).all():
            return self._gather(starts, lengths).astype(np.int64).reshape(len(samples), width)
        for sample in np.flatnonzero(filled != width):  # one at most, unless something is wrong
            self._check_short(int(samples[sample]), int(filled[sample]))
        out = np.full((len(samples), width), self._form.pad, np.int64)
        out[np.arange(width) < filled[:, None]] = self._gather(starts, lengths)
        return out

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many samples, shape (samples, sequence_length + 1); see
        `cu_seqlens_of`.
        """
        samples = self.shuffle_index[self._positions(indices)].astype(np.int64)
        if not len(samples):
            return np.empty((0, self.config.sequence_length + 1), np.int32)
        _, lengths, pieces = self._stretches(samples)
        return cu_seqlens_of(
            lengths, pieces, self.config.sequence_length, int(self.config.add_extra_token)
        )

    def _stretches(
        self, samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (first token, tokens) of each part of a sequence, sample after sample, and the
        parts of each.
        """
        # (samples, 2): (position in document_index, offset)
        if samples.min() < 0 or samples.max() >= len(self.sample_index) - 1:
            raise self._misfit("a sample outside of the sample index")
        begins, ends = (
            self.sample_index[samples].astype(np.int64),
            self.sample_index[samples + 1].astype(np.int64),
        )
        if (
            begins.min() < 0
            or (ends < begins)[:, 0].any()
            or ends[:, 0].max() >= len(self.document_index)
        ):
            raise self._misfit("a document outside of the document index")
        pieces = ends[:, 0] - begins[:, 0] + 1
        last = np.cumsum(pieces) - 1
        first = last - pieces + 1
        sequences = self._sequences[
            np.repeat(begins[:, 0] - first, pieces) + np.arange(int(pieces.sum()))
        ]
        if sequences.max() >= len(self.dataset):
            raise self._misfit("a sequence outside of the dataset")
        starts = self.dataset.sequence_pointers[sequences] >> self._item_shift
        lengths = self.dataset.sequence_lengths[sequences].astype(np.int64)
        lengths[last] = ends[:, 1] + self._extra
        starts[first] += begins[:, 1]
        lengths[first] -= begins[:, 1]
        if lengths.min() < 0 or starts.min() < 0 or (starts + lengths).max() > self._token_count:
            raise self._misfit("samples outside of their sequences")
        return starts, lengths, pieces

    def _gather(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tokens:
        begins, ends = starts << self._item_shift, (starts + lengths) << self._item_shift
        tokens, total = self.dataset.tokens_for(begins, ends), int(lengths.sum())
        if len(lengths) * _PIECE_TOKENS > total:
            return tokens[positions_in(starts, lengths)]
        pieces = [
            self._bytes[begin:end]
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        # twice as fast as copying into an array
        return np.frombuffer(b"".join(pieces), tokens.dtype)

    def _check_short(self, sample: int, tokens: int) -> None:
        """Raise StaleError for a sample of too many tokens, or of too few unless a split keeps it
        as its last.
        """
        last = sample == self.member.samples_built - 1 and not self.config.drops_last_partial(
            self.member.split
        )
        if tokens > self._width or not last:
            raise self._misfit(f"sample {sample} of {tokens} tokens")

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache_dir is not None:
            return open_nanoset, (self.member, self.config, self.cache_dir, self.dataset.access)
        indices = MemberIndices(self.document_index, self.sample_index, self.shuffle_index)
        return Nanoset, (self.dataset, self.member, self.config, indices)


def open_nanoset(
    member: MemberPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> Nanoset:
    """Open a Nanoset from its index files in a cache folder; `access` downloads those that lie in a
    store.

    Raises:
        MissingError: a file is not there.
        FormatError: the dataset is damaged.
        StaleError: an index file differs from the plan.
    """
    dataset = MMapIndexedDataset.below(access, member.prefix)
    return Nanoset(dataset, member, config, open_member(member, cache_dir, access), cache_dir)


def open_members(
    members: Sequence[MemberPlan],
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> list[Nanoset]:
    """Open each member of a split as `open_nanoset` does, many at once where they lie in a store."""

    def opened(member: MemberPlan) -> Nanoset:
        return open_nanoset(member, config, cache_dir, access)

    return list(map(opened, members)) if access is None else access.each(opened, members)


def _entries(array: NDArray[Any]) -> memoryview:
    """Return a view that gives single entries as Python integers, twice as fast as the array
    itself.
    """
    if not array.size:
        return memoryview(b"")
    # By way of bytes, since the arrays of an .idx are not aligned.
    flat, code = array.reshape(-1).view(np.uint8).data, cast("Any", _unsigned(array).dtype.char)
    return cast("memoryview", flat.cast(code, array.shape))


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the same bytes without a sign, so that a number below zero does not count from the
    end.
    """
    return array.view(f"u{array.dtype.itemsize}")


class BlendedNanoset(_Samples):
    """Samples of several datasets in the order of their blend; read like a `Nanoset`."""

    def __init__(
        self,
        datasets: Sequence[Nanoset],
        plan: SplitPlan,
        config: NanosetConfig,
        indices: BlendIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take one dataset for each member of the plan, and the index of their blend, as `Nanoset`
        does.
        """
        self.datasets, self.plan, self.config = tuple(datasets), plan, config
        self.dataset_index, self.dataset_sample_index = (
            indices.dataset_index,
            indices.dataset_sample_index,
        )
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._part, self._count = plan.blend, len(indices.dataset_index)
        self._where = f"{self.cache_dir or f'blend of {len(self.datasets)}'}, {plan.split}"
        self._names_dataset, self._wraps = config.rules.names_dataset, config.rules.wraps == "read"
        self._form = SampleForm(config, pads=any(dataset.may_pad for dataset in self.datasets))

    @classmethod
    def open(
        cls, plan: SplitPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]
    ) -> Self:
        """Open a blend on the index files of a cache folder; errors as of `open_nanoset`."""
        return cls(
            open_members(plan.members, config, cache_dir),
            plan,
            config,
            open_blend(plan, cache_dir),
            cache_dir,
        )

    def __getitem__(self, index: int | None) -> Sample:
        """Return sample k as the trainer's dictionary; for None, sample 0 with a loss mask of
        zeros.
        """
        number, sample = self._locate(0 if index is None else index)
        values = self.datasets[number].sample_of(sample, index)
        if not self._names_dataset:
            return values
        return {"dataset_id": self.dataset_index[self._position(index or 0)], **values}

    def __getitems__(self, indices: Sequence[int | None]) -> list[Sample]:
        """Return `[self[index] for index in indices]`, faster."""
        wanted = self._asked(indices)
        found = self._form.samples(self.batch(wanted), indices, self._boundaries(wanted))
        if not self._names_dataset:
            return found
        numbers = self.dataset_index[wanted]
        return [
            {"dataset_id": number} | values for number, values in zip(numbers, found, strict=True)
        ]

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of sample k, shape (sequence_length + 1,), or one less without the
        extra token.
        """
        number, sample = self._locate(index)
        return self.datasets[number].tokens(sample)

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples, shape (samples, sequence_length + 1), one less without
        the extra token.
        """
        wanted = self._positions(indices)
        out = np.empty((len(wanted), self.config.sample_tokens), np.int64)
        for dataset, rows, samples in self._by_dataset(wanted):
            out[rows] = dataset.batch(samples)
        return out

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many samples, as `Nanoset.cu_seqlens`."""
        wanted = self._positions(indices)
        out = np.empty((len(wanted), self.config.sequence_length + 1), np.int32)
        for dataset, rows, samples in self._by_dataset(wanted):
            out[rows] = dataset.cu_seqlens(samples)
        return out

    def _by_dataset(
        self, wanted: NDArray[np.int64]
    ) -> Iterator[tuple[Nanoset, NDArray[np.intp], NDArray[np.int64]]]:
        """Yield (dataset, rows of `wanted` that it has, their samples there)."""
        numbers, samples = (
            self.dataset_index[wanted].astype(np.int64),
            self.dataset_sample_index[wanted],
        )
        if len(wanted) and (
            numbers.min() < 0 or numbers.max() >= len(self.datasets) or samples.min() < 0
        ):
            raise self._misfit("an entry of the blend that leads nowhere")
        for number in np.unique(numbers):
            rows, dataset = np.flatnonzero(numbers == number), self.datasets[number]
            yield dataset, rows, samples[rows] % len(dataset) if self._wraps else samples[rows]

    def sources(self, index: int) -> tuple[int, NDArray[np.int64]]:
        """Return (number of the dataset of sample k, its `Nanoset.sources` there)."""
        number, sample = self._locate(index)
        return number, self.datasets[number].sources(sample)

    def _locate(self, index: int) -> tuple[int, int]:
        position = self._position(index)
        number, sample = int(self.dataset_index[position]), int(self.dataset_sample_index[position])
        if not 0 <= number < len(self.datasets) or sample < 0:
            raise self._misfit(
                f"entry {position} of the blend is sample {sample} of dataset {number}"
            )
        return number, sample % len(self.datasets[number]) if self._wraps else sample

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache_dir is not None:
            access = next((one.dataset.access for one in self.datasets), None)
            return open_split, (self.plan, self.config, self.cache_dir, access)
        indices = BlendIndices(self.dataset_index, self.dataset_sample_index)
        return BlendedNanoset, (self.datasets, self.plan, self.config, indices)


def open_split(
    plan: SplitPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> Nanoset | BlendedNanoset:
    """Open a split on existing index files of a cache folder; arguments and errors as
    `open_nanoset`.
    """
    if plan.blend is None:
        return open_nanoset(plan.members[0], config, cache_dir, access)
    datasets = open_members(plan.members, config, cache_dir, access)
    return BlendedNanoset(datasets, plan, config, open_blend(plan, cache_dir, access), cache_dir)
