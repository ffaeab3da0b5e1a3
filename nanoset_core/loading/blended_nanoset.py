"""Read the samples of a split: of one dataset, or of a blend of several.

A blend has two index arrays: `dataset_index` says which dataset each sample is of, and
`dataset_sample_index` its index in the samples of that dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.loading.fingerprints import DatasetFingerprint, check_unchanged, fingerprint_of
from nanoset_core.loading.nanoset import Nanoset, open_members, open_nanoset
from nanoset_core.loading.samples import Sample, SampleForm
from nanoset_core.loading.split_samples import SplitSamples
from nanoset_core.sampling.cache import open_blend
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.storage.access import FileAccess


class _DatasetSamples(NamedTuple):
    """The samples of a batch that come from one dataset."""

    dataset: Nanoset
    """The samples of the dataset."""
    rows: NDArray[np.intp]
    """Rows of the batch that these samples fill; shape (n,)."""
    samples: NDArray[np.int64]
    """Index of each sample in the dataset; shape (n,)."""


class BlendedNanoset(SplitSamples):
    """Samples of several datasets in the order of their blend; read like a `Nanoset`.

    Raises:
        SampleIndexError: An index has no sample.
    """

    def __init__(
        self,
        datasets: Sequence[Nanoset],
        plan: SplitPlan,
        config: NanosetConfig,
        indices: BlendIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Prepare to read the samples of several datasets in the order of their blend.

        Args:
            datasets: The samples of each member of the plan.
            plan: The plan by which the index arrays were built.
            config: Settings of the nanoset.
            indices: The index arrays.
            cache_dir: Folder of the index files, or None if they are only in memory.
        """
        name = f"blend of {len(datasets)}" if cache_dir is None else str(Path(cache_dir))
        may_pad = any(dataset.may_pad for dataset in datasets)
        super().__init__(
            config,
            plan.blend,
            where=f"{name}, {plan.split}",
            count=len(indices.dataset_index),
            first_sample=config.consumed_samples if plan.split == "train" else 0,
            form=SampleForm(config, pads=may_pad),
            cache_dir=cache_dir,
        )
        self.datasets = tuple(datasets)
        self.plan = plan
        self.dataset_index = indices.dataset_index
        self.dataset_sample_index = indices.dataset_sample_index
        # The dictionaries of some trainers say which dataset the sample is from.
        self._names_dataset = config.rules.names_dataset
        # Some trainers start a dataset again when a blend takes more samples of it than it has.
        self._restarts_datasets = config.rules.wraps == "read"

    @classmethod
    def open(
        cls, plan: SplitPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]
    ) -> Self:
        """Open a blend from index files; the exceptions are those of `open_nanoset`.

        Args:
            plan: The plan of the split: its datasets, and the names of their index files.
            config: Settings of the nanoset.
            cache_dir: Folder of the index files.
        """
        datasets = open_members(plan.members, config, cache_dir)
        return cls(datasets, plan, config, open_blend(plan, cache_dir), cache_dir)

    def __getitem__(self, index: int | None) -> Sample:
        """Return a training sample as the dictionary that the trainer expects.

        For example, sample 7 of the blend is sample 3 of its dataset 1. Some trainers' dictionaries
        also say this: {"dataset_id": 1, "tokens": …}. The other entries are those of `Nanoset`, and
        `help(Nanoset.__getitem__)` lists them.

        Args:
            index: Number of the sample; None returns the first sample with a loss mask of zeros, as
                padding.
        """
        stored_index = self._first_sample if index is None else index
        dataset_number, sample = self._locate(stored_index)
        values = self.datasets[dataset_number].sample_of(sample, index)
        if not self._names_dataset:
            return values
        # The dictionaries of some trainers say which dataset the sample is from.
        dataset_id = self.dataset_index[self._position(stored_index)]
        return {"dataset_id": dataset_id, **values}

    def __getitems__(self, indices: Sequence[int | None]) -> list[Sample]:
        """Return the samples at some indices, faster than one by one.

        Args:
            indices: Indices as for `__getitem__`: integers, or None for padding.
        """
        samples = super().__getitems__(indices)
        if not self._names_dataset:
            return samples
        dataset_ids = self.dataset_index[self._positions_or_first(indices)]
        named_samples: list[Sample] = []
        for dataset_id, values in zip(dataset_ids, samples, strict=True):
            named_samples.append({"dataset_id": dataset_id, **values})
        return named_samples

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of a training sample as a flat array, without labels and masks.

        For example, sample 7 of the blend is sample 3 of its dataset 1: this has its tokens. The
        end of a short sample is `pad_token` if the trainer uses it, and otherwise -1.

        Args:
            index: Number of the sample in the blend; a negative one counts from the end.

        Returns:
            Shape (sequence_length + 1,), or one token less without the extra token.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the datasets.
        """
        dataset_number, sample = self._locate(index)
        return self.datasets[dataset_number].tokens(sample)

    def sources(self, index: int) -> tuple[int, NDArray[np.int64]]:
        """Return which dataset a training sample is from, and where its tokens are in that dataset.

        A blend mixes the samples of several datasets. A dataset consists of sequences of tokens,
        usually one for each document. For example, sample 20 of the blend is from dataset 1. It has
        the last two tokens of sequence 7, and then the first three tokens of sequence 4. The
        result:

            1, [[7, 8, 10],      sequence 7, its tokens 8 and 9
                [4, 0,  3]]      sequence 4, its tokens 0 to 2

        Args:
            index: Number of the sample in the blend; a negative one counts from the end.

        Returns:
            (number of the dataset, array of shape (n_parts, 3)). Each row of the array is the
            number of a sequence, the first token in it, and the token after the last one.
            `help(Nanoset.sources)` shows how to get the numbers of the documents.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the datasets.
        """
        # Find out which sample of the dataset this is. The dataset knows the sequences.
        dataset_number, sample = self._locate(index)
        dataset = self.datasets[dataset_number]
        return dataset_number, dataset.sources(sample)

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many training samples, one sample in each row.

        The samples of a blend are taken from several datasets. Those of each dataset are read
        together, and written to their rows. A short sample, which may be the last one of a dataset,
        is filled up with `pad_token` if the trainer uses it, and otherwise with -1.

        Args:
            indices: Numbers of the samples in the blend, shape (n,); negative ones count from the
                end.

        Returns:
            Shape (n, sequence_length + 1), or one token less without the extra token.

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The index arrays do not fit the datasets.
        """
        positions = self._positions(indices)
        batch = np.empty((len(positions), self.config.sample_tokens), np.int64)
        for part in self._by_dataset(positions):
            batch[part.rows] = part.dataset.batch(part.samples)
        return batch

    def cu_seqlens(self, indices: ArrayLike) -> NDArray[np.int32]:
        """Return where documents begin in many samples; see `SplitSamples.cu_seqlens`."""
        positions = self._positions(indices)
        boundaries = np.empty((len(positions), self.config.sequence_length + 1), np.int32)
        for part in self._by_dataset(positions):
            boundaries[part.rows] = part.dataset.cu_seqlens(part.samples)
        return boundaries

    def _by_dataset(self, positions: NDArray[np.int64]) -> Iterator[_DatasetSamples]:
        """Group samples of a blend by the dataset that each of them is taken from.

        A blend takes its samples from several datasets in turn. Reading all samples of one dataset
        at once is faster. For example:

            row of the batch     0          1          2          3
            is taken from        books, 5   web, 0     books, 6   books, 7

            web      fills row 1
            books    fills the rows 0, 2 and 3 with its samples 5, 6 and 7

        Args:
            positions: Numbers of the samples in the blend, shape (n,).

        Yields:
            The samples of each dataset that occurs, and the rows that they fill.

        Raises:
            StaleError: An entry of the index arrays leads to no dataset or no sample.
        """
        if not len(positions):
            return
        dataset_numbers = self.dataset_index[positions].astype(np.int64)  # (n,)
        samples = self.dataset_sample_index[positions]  # (n,) number of each in its dataset
        self._check_entries(dataset_numbers, samples)
        for dataset_number in np.unique(dataset_numbers):
            dataset = self.datasets[dataset_number]
            [rows] = np.nonzero(dataset_numbers == dataset_number)
            samples_of_dataset = samples[rows]
            if self._restarts_datasets:
                samples_of_dataset = samples_of_dataset % len(dataset)
            yield _DatasetSamples(dataset, rows, samples_of_dataset)

    def _check_entries(
        self, dataset_numbers: NDArray[np.int64], samples: NDArray[np.int64]
    ) -> None:
        """Check that entries of the index arrays are numbers of datasets, and not negative.

        Args:
            dataset_numbers: Dataset of each sample, shape (n,), at least one.
            samples: Number of each sample in its dataset, shape (n,).

        Raises:
            StaleError: An entry leads to no dataset or no sample.
        """
        are_datasets = dataset_numbers.min() >= 0 and dataset_numbers.max() < len(self.datasets)
        if not are_datasets or samples.min() < 0:
            raise self._misfit("an entry of the blend that leads nowhere")

    def _locate(self, index: int) -> tuple[int, int]:
        """Find out which sample of which dataset a sample of the blend is.

        A blend takes its samples from several datasets in turn. For example, sample 7 of the blend
        is sample 3 of dataset 1.

        Args:
            index: Number of the sample in the blend: 7; a negative one counts from the end.

        Returns:
            (number of the dataset, number of the sample in that dataset): (1, 3).

        Raises:
            SampleIndexError: There is no such sample.
            StaleError: The entry of the index arrays leads to no dataset or no sample.
        """
        position = self._position(index)
        dataset_number = int(self.dataset_index[position])
        sample = int(self.dataset_sample_index[position])
        if not 0 <= dataset_number < len(self.datasets) or sample < 0:
            raise self._misfit(
                f"entry {position} of the blend is sample {sample} of dataset {dataset_number}"
            )
        if self._restarts_datasets:
            sample %= len(self.datasets[dataset_number])  # number 12 of 10 samples is number 2
        return dataset_number, sample

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to recreate the samples from a pickle: a function and its arguments.

        Workers of a DataLoader open the files again, if there are any, instead of copying arrays.
        """
        if self.cache_dir is not None:
            access = self.datasets[0].dataset.access if self.datasets else None
            fingerprints = [fingerprint_of(samples.dataset) for samples in self.datasets]
            return _open_pickled, (self.plan, self.config, self.cache_dir, access, fingerprints)
        indices = BlendIndices(self.dataset_index, self.dataset_sample_index)
        return BlendedNanoset, (self.datasets, self.plan, self.config, indices)


def open_split(
    plan: SplitPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None = None,
) -> Nanoset | BlendedNanoset:
    """Open the training samples of a split: train, valid or test.

    Which tokens each sample has was computed by a build, and is stored in index files. If the split
    mixes several datasets, a further file says which of them each sample is taken from.

    Args:
        plan: The plan of the split: its datasets, and the names of their index files.
        config: Settings of the nanoset.
        cache_dir: Folder of the index files.
        access: Downloads files of a bucket; None for local files.

    Raises:
        MissingError: A file does not exist.
        FormatError: A dataset is damaged.
        StaleError: An index file differs from the plan.
    """
    if plan.blend is None:
        return open_nanoset(plan.members[0], config, cache_dir, access)
    datasets = open_members(plan.members, config, cache_dir, access)
    return BlendedNanoset(datasets, plan, config, open_blend(plan, cache_dir, access), cache_dir)


def _open_pickled(
    plan: SplitPlan,
    config: NanosetConfig,
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None,
    fingerprints: Sequence[DatasetFingerprint],
) -> BlendedNanoset:
    """Open the samples of a mixture of datasets that were pickled, for example for another process.

    A pickle does not contain the samples, but the paths of their files. It also contains the name
    of this function, which Python calls to unpickle it.

    Args:
        plan: Says which datasets there are, and the names of their index files.
        config: Settings of the nanoset.
        cache_dir: Folder of the index files.
        access: Downloads files of a bucket; None for local files.
        fingerprints: What each dataset was like when the samples were pickled.

    Raises:
        StaleError: A dataset was written again since.
    """
    datasets = open_members(plan.members, config, cache_dir, access)
    for samples, fingerprint in zip(datasets, fingerprints, strict=True):
        check_unchanged(samples.dataset, fingerprint)
    return BlendedNanoset(datasets, plan, config, open_blend(plan, cache_dir, access), cache_dir)
