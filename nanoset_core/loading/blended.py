"""Read the samples of a blend of datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.loading.nanoset import IndexedSamples, Nanoset, open_members
from nanoset_core.loading.samples import SampleForm
from nanoset_core.mapping.cache import open_blend
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.indices import BlendIndices
from nanoset_core.mapping.planned import SplitPlan
from nanoset_core.storage.access import FileAccess


class BlendedNanoset(IndexedSamples):
    """Samples of several datasets in the order of their blend; read like a `Nanoset`."""

    def __init__(
        self,
        datasets: Sequence[Nanoset],
        plan: SplitPlan,
        config: NanosetConfig,
        indices: BlendIndices,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take the datasets and the index of a blend.

        Args:
            datasets: one per member of the plan.
            plan: of the split.
            config: that it was planned with.
            indices: arrays that were built as planned.
            cache_dir: the folder that holds them, if any.
        """
        self.datasets, self.plan, self.config = tuple(datasets), plan, config
        self.dataset_index, self.dataset_sample_index = indices.dataset_index, indices.dataset_sample_index
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        self._part, self._count = plan.blend, len(indices.dataset_index)
        self._where = f"{self.cache_dir or f'blend of {len(self.datasets)}'}, {plan.split}"
        self._names_dataset = config.rules.names_dataset
        self._wraps = config.rules.wraps == "read"
        self._form = SampleForm(config, pads=any(dataset.may_pad for dataset in self.datasets))

    @classmethod
    def open(cls, plan: SplitPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> Self:
        """Open a blend on the index files of a cache folder; errors as of `open_nanoset`."""
        return cls(open_members(plan.members, config, cache_dir), plan, config, open_blend(plan, cache_dir), cache_dir)

    def __getitem__(self, index: int | None) -> dict[str, Any]:
        """Return sample k as the trainer's dictionary; for None, sample 0 with a loss mask of zeros."""
        number, sample = self._locate(0 if index is None else index)
        values = self.datasets[number].sample_of(sample, index)
        if not self._names_dataset:
            return values
        return {"dataset_id": self.dataset_index[self._position(index or 0)], **values}

    def __getitems__(self, indices: Sequence[int | None]) -> list[dict[str, Any]]:
        """Return `[self[index] for index in indices]`, faster; torch's DataLoader fetches batches by it."""
        wanted = np.array([self._position(0 if index is None else index) for index in indices], np.int64)
        found = self._form.samples(self.batch(wanted), indices)
        if not self._names_dataset:
            return found
        return [
            {"dataset_id": number} | values for number, values in zip(self.dataset_index[wanted], found, strict=True)
        ]

    def tokens(self, index: int) -> NDArray[np.int64]:
        """Return the tokens of sample k, shape (sequence_length + 1,), or one less without the extra token."""
        number, sample = self._locate(index)
        return self.datasets[number].tokens(sample)

    def batch(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Return the tokens of many samples, shape (samples, sequence_length + 1), one less without the extra token."""
        wanted = self._positions(indices)
        numbers, samples = self.dataset_index[wanted].astype(np.int64), self.dataset_sample_index[wanted]
        if len(wanted) and (numbers.min() < 0 or numbers.max() >= len(self.datasets) or samples.min() < 0):
            raise self._misfit("an entry of the blend that leads nowhere")
        out = np.empty((len(wanted), self.config.sample_tokens), np.int64)
        for number in np.unique(numbers):
            rows = np.flatnonzero(numbers == number)
            dataset = self.datasets[number]
            out[rows] = dataset.batch(samples[rows] % len(dataset) if self._wraps else samples[rows])
        return out

    def sources(self, index: int) -> tuple[int, NDArray[np.int64]]:
        """Return (number of the dataset of sample k, its `Nanoset.sources` there)."""
        number, sample = self._locate(index)
        return number, self.datasets[number].sources(sample)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return (dataset, sample within it) of sample k."""
        position = self._position(index)
        number, sample = int(self.dataset_index[position]), int(self.dataset_sample_index[position])
        if not 0 <= number < len(self.datasets) or sample < 0:
            raise self._misfit(f"entry {position} of the blend is sample {sample} of dataset {number}")
        return number, sample % len(self.datasets[number]) if self._wraps else sample

    def __repr__(self) -> str:
        return f"BlendedNanoset({len(self.datasets)} datasets, {self.plan.split}, {len(self)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.cache_dir is not None:
            access = next((one.dataset.access for one in self.datasets), None)
            return open_blended, (self.plan, self.config, self.cache_dir, access)
        indices = BlendIndices(self.dataset_index, self.dataset_sample_index)
        return BlendedNanoset, (self.datasets, self.plan, self.config, indices)


def open_blended(
    plan: SplitPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> BlendedNanoset:
    """Open a blend on the index files of a cache folder; arguments and errors as of `open_nanoset`."""
    datasets = open_members(plan.members, config, cache_dir, access)
    return BlendedNanoset(datasets, plan, config, open_blend(plan, cache_dir, access), cache_dir)
