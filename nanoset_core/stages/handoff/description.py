"""Describe a built nanoset as its trainer sees it: the content of the files of a handoff.

A handoff is the folder of files with which a trainer is started. Its description, a `Handoff`,
knows the datasets with their weights, the number of samples that each split was built for, and
the folder of the index files. All paths are those of the machine where the trainer runs:
`/cluster/data/web` instead of `/home/me/data/web`, for example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import ScheduleSpec


class FilesAndNotes(NamedTuple):
    """The files that are written for a trainer, and notes for its user."""

    texts: dict[str, str]
    """Name of each file → content."""
    notes: list[str]
    """What the user should know, in sentences."""


class WeightedPath(NamedTuple):
    """A dataset of a blend, with its weight."""

    weight: float | None
    """None if the trainer gets no weights."""
    path: str
    """Prefix of the dataset where the trainer runs."""


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """Counts of a dataset that spare a trainer from reading its .idx."""

    sequences: int
    """Number of sequences."""
    document_indices: int
    """Length of the array `document_indices` in the .idx: number of documents + 1."""
    dtype: str
    """Name of the tokens' type, such as uint16."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A built nanoset as its trainer sees it; all paths are those where the trainer runs."""

    name: str
    """Name of the nanoset, or of one phase of it."""
    spec: ResolvedNanoset
    """Its settings in nanoset.yaml."""
    config: NanosetConfig
    """The settings that it was built with, and the number of samples of each split with data."""
    samples: Mapping[SplitName, int]
    """Split → number of samples that were built; 0 if it has no data."""
    folder: str
    """Folder of the files of the handoff."""
    cache: str
    """Folder of the index files."""
    datasets: Mapping[str, DatasetCounts]
    """Prefix of each dataset → counts."""
    vocab_size: int
    """Number of tokens of the tokenizer, including special tokens."""
    tokenizer: tuple[str, ...] = ()
    """Megatron-LM's arguments that name the tokenizer, each a flag with its values.

    Empty if the arguments do not follow from the settings: then the user gives them.
    """
    tokenizer_note: str | None = None
    """A note on how Megatron-LM reads the tokenizer, if that needs explanation."""
    padding_token: str | None = None
    """The token that fills packs up, such as "<pad>"; None if there is none of its own."""
    end_token: str | None = None
    """The token at the end of documents, such as "</s>"; None if there is none."""
    token_ids: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the data for which the trainer's tokenizer must have the same ids: "pad" if many
    samples are padded, and "eod", which matters if a mask looks for ends of documents.
    """
    indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The index files that the trainer will look for, by their paths below `cache`.

    Each entry maps the file with the description of an index to the other files of that index.
    """
    empty: Mapping[SplitName, str] = field(default_factory=dict)
    """Split that has no samples although it has a share of the data → the reason."""
    views: Sequence[str] = ()
    """Names of the datasets that are views."""
    warnings: Sequence[str] = ()
    """Settings that are allowed but rarely intended, in the words of `nanoset status`."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """Prefix of a dataset → folder of the .ds file that its trainer reads instead."""
    tokenizer_name: str | None = None
    """Name of the tokenizer in the exports."""

    @property
    def section(self) -> str:
        """Name of the section of nanoset.yaml that describes the nanoset."""
        return section_of(self.name, self.spec)

    @property
    def is_per_split(self) -> bool:
        """Whether each split has its own blend."""
        return self.config.blend_per_split is not None

    def data(self, split: SplitName) -> list[WeightedPath]:
        """Return the datasets of a split, in the order in which the trainer gets them.

        For train, these may be 0.7 of /data/web and 0.3 of /data/code, as paths on the machine
        where the trainer runs.

        Args:
            split: The split: "train", "valid" or "test".

        Returns:
            The weight and the path of each dataset; none if the split has no data. A single dataset
            may have no weight.
        """
        blend = self.config.blend(split)
        if blend is None:
            return []
        prefixes, weights = blend
        paths = [self.config.trainer_path(prefix) for prefix in prefixes]
        if weights is None:
            return [WeightedPath(weight=None, path=path) for path in paths]
        return [WeightedPath(weight, path) for weight, path in zip(weights, paths, strict=True)]

    @property
    def evaluates(self) -> bool:
        """Whether the trainer gets data of valid or test."""
        # Shares of the data, such as 0.98, 0.01 and 0.01. With a blend for each split, each split
        # has all data of its blend.
        shares = (1.0, 1.0, 1.0) if self.is_per_split else self.config.shares()
        _, valid_share, test_share = shares
        has_valid = valid_share > 0 and bool(self.data("valid"))
        has_test = test_share > 0 and bool(self.data("test"))
        return has_valid or has_test

    @property
    def run(self) -> ScheduleSpec | None:
        """How long the trainer should run: the schedule, shortened if there are too few samples.

        For example, the schedule in nanoset.yaml says 1,000 iterations with batches of 100 samples.
        But only 1,050 samples were built, because nanoset.yaml also limits how often data may be
        repeated. Then the run has 10 iterations.

        Returns:
            The schedule; None if nanoset.yaml has none.
        """
        schedule = self.spec.schedule
        n_built_samples = self.config.train_split_samples
        if schedule is None or n_built_samples is None:
            return schedule
        # If other data is read from some iteration on, the schedule cannot be shortened.
        has_phases = bool(self.spec.transitions)
        has_all_samples = n_built_samples == schedule.samples()["train"]
        if has_phases or has_all_samples:
            return schedule
        n_complete_batches = n_built_samples // schedule.global_batch_size
        return replace(schedule, iterations=n_complete_batches)

    @property
    def is_shortened(self) -> bool:
        """Whether the run gets fewer iterations than the schedule of nanoset.yaml requests."""
        return self.run != self.spec.schedule

    @property
    def sample_count_mismatch(self) -> dict[SplitName, int]:
        """The splits that were built for another number of samples than the trainer will request.

        The trainer would not find the index files of these splits, and build its own.

        Returns:
            Split → the number of samples that the trainer will request, such as {"valid": 1600}.
        """
        mismatch: dict[SplitName, int] = {}
        for split, n_requested in self._requested_samples().items():
            is_empty = not self.samples[split]
            n_built_for = self.config.samples(split)
            was_built_for_one_epoch = n_built_for is None  # it has all samples that there are
            if is_empty or was_built_for_one_epoch:
                continue
            if n_built_for != n_requested:
                mismatch[split] = n_requested
        return mismatch

    def _requested_samples(self) -> dict[SplitName, int]:
        """Return how many samples of each split the trainer will request when it is started.

        For example, a run of 500 iterations with batches of 100 requests 50,000 samples of train.

        Returns:
            Split → number of samples, in the order of the splits. Empty if nanoset.yaml does not
            say how long the run is.
        """
        if self.run is None:
            return {}
        requested = self.run.samples(self._phase_iterations())
        n_built_samples = self.config.train_split_samples
        if self.is_shortened and n_built_samples is not None:
            # Of 1,050 samples, 10 iterations read 1,000. But the trainer is started with
            # --train-samples 1050.
            requested["train"] = n_built_samples
        return {split: requested[split] for split in SPLITS if split in requested}

    def _phase_iterations(self) -> int | None:
        """Return the iterations of the phase for which the data is; None if it is for a whole run.

        For a phase from iteration 200 to 300, they are 100.
        """
        if self.spec.span is None:
            return None
        start, stop = self.spec.span
        return stop - start


def section_of(name: str, spec: ResolvedNanoset) -> str:
    """Return the name of the section of nanoset.yaml that describes a nanoset.

    The phases of a run are several nanosets, such as `pretrain-phase-2`, of one section `pretrain`.

    Args:
        name: Name of the nanoset.
        spec: Its settings.
    """
    is_phase = spec.span is not None
    return name.rpartition("-phase-")[0] if is_phase else name
