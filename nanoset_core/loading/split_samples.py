"""Base class of the samples of a split, whether they come from one dataset or from a blend."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import SampleIndexError, StaleError
from nanoset_core.loading.samples import Sample, SampleForm
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import BlendPlan, MemberPlan


class SplitSamples:
    """Base of the samples of a split: it checks indices, and makes dictionaries of tokens.

    Subclasses read the tokens.
    """

    def __init__(
        self,
        config: NanosetConfig,
        part: MemberPlan | BlendPlan | None,
        *,
        where: str,
        count: int,
        first_sample: int,
        form: SampleForm,
        cache_dir: str | os.PathLike[str] | None,
    ) -> None:
        """Prepare what the samples of one dataset and those of a blend of several have in common.

        Args:
            config: Settings of the nanoset, such as the length of a sample.
            part: The plan of the index files, which say what each sample consists of: that of a
                dataset or of a blend. None for a blend that is not planned.
            where: What error messages call the samples, such as "/data/web, train".
            count: Number of samples.
            first_sample: Number of the first sample that can be read. It is greater than 0 if a run
                continues with these samples: the trainer skips as many as the run has read before.
            form: Makes the dictionaries that the trainer expects.
            cache_dir: Folder of the index files, or None if they are only in memory.
        """
        self.config = config
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._part = part
        self._where = where
        self._count = count
        self._first_sample = first_sample
        self._form = form

    @property
    def unique_description(self) -> str:
        """The text whose hash is part of the names of the trainer's index files."""
        return self._part.description if self._part else ""

    @property
    def unique_description_hash(self) -> str:
        """The md5 of `unique_description`."""
        return self._part.hash if self._part else ""

    @property
    def cache_files(self) -> tuple[str, ...]:
        """The trainer's names of the index files, without those of a blend's datasets."""
        return self._part.cache_files if self._part else ()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __repr__(self) -> str:
        """Return the class, what the samples are called in messages, and their number."""
        return f"{type(self).__name__}({self._where}, {len(self)} samples)"

    def __getitem__(self, index: int | None) -> Sample:
        """Return a sample as the trainer's dictionary.

        Args:
            index: Index of the sample; None returns the first sample with a loss mask of zeros, as
                padding.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Sample]:
        """Yield all samples.

        Without this method, Python would call `samples[0]`, `samples[1]` and so on until an
        IndexError, and take the SampleIndexError of a damaged index file for the end.
        """
        for index in range(len(self)):
            yield self[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[Sample]:
        """Return the samples at some indices, faster than one by one.

        The DataLoader of torch calls this method to fetch a batch.

        Args:
            indices: Indices as for `__getitem__`: integers, or None for padding.
        """
        positions = self._positions_or_first(indices)
        tokens = self.batch(positions)
        return self._form.samples(tokens, indices, self._boundaries(positions))

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples; the end of a short one is padding, mostly -1.

        Args:
            indices: Integers, shape (n,); negative ones count from the end.

        Returns:
            Shape (n, sequence_length + 1), or one token less without the extra token.

        Raises:
            SampleIndexError: There is no such sample.
        """
        raise NotImplementedError

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many training samples: the cumulative sequence lengths.

        Attention kernels for samples of several documents take this array, by this name. For
        example, a sample of 8 tokens has three documents:

            document          0    1    2
            tokens            3    2    3
            begins at         0    3    5       row of the result: 0 3 5 8 8 8 8 8 8

        Samples have different numbers of documents, so rows are filled up with the end of the
        sample.

        Args:
            indices: Numbers of the samples, shape (n,); negative ones count from the end.

        Returns:
            Shape (n, sequence_length + 1).

        Raises:
            SampleIndexError: There is no such sample.
        """
        raise NotImplementedError

    def _boundaries(self, positions: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Return where documents begin in many samples, or None if samples do not contain it."""
        return self.cu_seqlens(positions) if self._form.by_document else None

    def _position(self, index: int) -> int:
        """Return the number of a sample as a Python integer, after a check that it can be read.

        Of 10 samples, 0 to 9 exist, and -10 to -1, which count from the end. A negative number
        stays negative: it is used with arrays that have an entry for each sample, where it counts
        from the end, too.

        Raises:
            SampleIndexError: There is no such sample, or a run that continues with these samples
                skips it.
        """
        position = operator.index(index)
        if not -self._count <= position < self._count:
            raise self._no_such_sample(position)
        if position % self._count < self._first_sample:
            raise self._skipped_sample(position)
        return position

    def _positions_or_first(self, indices: Sequence[int | None]) -> NDArray[np.int64]:
        """Return indices as an array of int64, with the first sample instead of None.

        None requests padding, which consists of the tokens of the first sample with a loss mask of
        zeros.
        """
        positions: list[int] = []
        for index in indices:
            positions.append(self._position(self._first_sample if index is None else index))
        return np.array(positions, np.int64)

    def _positions(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Check the numbers of requested samples, and return them as an array of int64.

        Of 10 samples, the numbers 0 to 9 exist, and -10 to -1, which count from the end. Others, or
        numbers such as 0.5, are errors.

        Args:
            indices: The numbers, shape (n,).

        Raises:
            SampleIndexError: They are not a flat list of integers, a sample does not exist, or a
                run that continues with these samples skips it.
        """
        positions = np.asarray(indices)
        if positions.size == 0:
            return np.empty(0, np.int64)
        self._check_flat_integers(positions)
        is_outside = (positions >= self._count) | (positions < -self._count)
        if is_outside.any():
            first_outside = positions[np.argmax(is_outside)]
            raise self._no_such_sample(int(first_outside))
        positions = positions.astype(np.int64)
        is_skipped = positions % self._count < self._first_sample
        if is_skipped.any():
            first_skipped = positions[np.argmax(is_skipped)]
            raise self._skipped_sample(int(first_skipped))
        return positions

    def _check_flat_integers(self, positions: NDArray[Any]) -> None:
        """Check that the numbers of requested samples are integers, in an array of one dimension.

        Raises:
            SampleIndexError: They are not.
        """
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise SampleIndexError(
                "sample indices are not a flat list of integers",
                where=self._where,
                found=f"{positions.dtype.name}{list(positions.shape)}",
                expected="integers, shape (n,)",
            )

    def _no_such_sample(self, index: int) -> SampleIndexError:
        """Return the error for an index without a sample."""
        if self._count:
            expected = f"0 to {self._count - 1}, or -{self._count} to -1 from the end"
        else:
            expected = "none: it is empty"
        return SampleIndexError("no such sample", where=self._where, found=index, expected=expected)

    def _skipped_sample(self, index: int) -> SampleIndexError:
        """Return the error for a sample that a run skips when it continues with these samples."""
        return SampleIndexError(
            "the run had consumed this sample before it continued with this nanoset",
            where=self._where,
            found=index,
            expected=f"{self._first_sample} to {self._count - 1}",
            remedy=f"read from sample {self._first_sample} on, for example with "
            f"PretrainingSampler(…, consumed_samples={self._first_sample}, …)",
        )

    def _misfit(self, problem: str) -> StaleError:
        """Return the error for index files that were made for other data.

        Index files say which tokens each sample has. If the data was replaced by a smaller dataset,
        some of these tokens do not exist, for example.

        Args:
            problem: What does not fit, as a clause.
        """
        return StaleError(
            "the index files don't fit the dataset",
            where=self._where,
            found=problem,
            expected=f"samples of {self.config.sample_tokens} tokens",
            remedy="build the nanoset again if its data was changed; if not, `nanoset verify` says "
            "which file is damaged",
        )
