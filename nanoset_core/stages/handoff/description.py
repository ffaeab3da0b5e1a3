"""A built nanoset as its trainer sees it: everything that the files of a handoff are written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.mappings.settings import NanosetSpec, ScheduleSpec


class FilesAndNotes(NamedTuple):
    """What is written for a trainer."""

    texts: dict[str, str]
    """File name → content."""
    notes: list[str]
    """What the user has to know: sentences."""


class WeightedPath(NamedTuple):
    """A dataset of a blend."""

    weight: float | None
    """None if the trainer is given no weights."""
    path: str
    """Its prefix as the trainer spells it."""


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """Counts that a trainer may be given, so that it need not read a dataset's .idx."""

    sequences: int
    """Sequences in the .idx."""
    document_indices: int
    """Length of its document_indices: documents + 1."""
    dtype: str
    """Name of the tokens' type, such as uint16."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A built nanoset as a trainer sees it; every path is spelled as the trainer will spell it."""

    name: str
    """Name of the nanoset, or of one phase of it."""
    spec: NanosetSpec
    """Its settings in nanoset.yaml."""
    config: NanosetConfig
    """The settings that it was built with, with the samples of every split that has data."""
    samples: Mapping[SplitName, int]
    """Split → samples that were built; 0 if it has no data."""
    folder: str
    """Folder of the handoff's own files."""
    cache: str
    """Folder of the index files."""
    datasets: Mapping[str, DatasetCounts]
    """Prefix → counts."""
    vocab_size: int
    """Tokens of the tokenizer, special ones included."""
    tokenizer: tuple[str, ...] = ()
    """Megatron-LM's arguments that name the tokenizer, a flag and its values each; empty if the
    user names it.
    """
    tokenizer_note: str | None = None
    """Note on a tokenizer that Megatron-LM does not know."""
    indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Description of each index that the trainer will look for → the other files of it; names below
    `cache`.
    """
    empty: Mapping[SplitName, str] = field(default_factory=dict)
    """Split that has a share of the data and no sample → why."""
    views: Sequence[str] = ()
    """Names of the datasets that are views, of which the trainer reads the .idx."""
    warnings: Sequence[str] = ()
    """Settings of nanoset.yaml that are allowed but rarely intended, in the words of `nanoset
    status`.
    """
    exports: Mapping[str, str] = field(default_factory=dict)
    """Prefix → folder of the dataset's .ds file, for a trainer that reads those."""
    tokenizer_name: str | None = None
    """What the exports call the tokenizer."""

    @property
    def section(self) -> str:
        """Name of its section in nanoset.yaml, which describes all phases of a run."""
        return self.name if self.spec.span is None else self.name.rpartition("-phase-")[0]

    @property
    def is_per_split(self) -> bool:
        """Whether every split has data of its own."""
        return self.config.blend_per_split is not None

    def data(self, split: SplitName) -> list[WeightedPath]:
        """Return the datasets of a split, in the order of its blend."""
        blend = self.config.blend(split)
        if blend is None:
            return []
        prefixes, weights = blend
        paths = [self.config.trainer_path(prefix) for prefix in prefixes]
        if weights is None:
            return [WeightedPath(None, path) for path in paths]
        return [WeightedPath(weight, path) for weight, path in zip(weights, paths, strict=True)]

    @property
    def evaluates(self) -> bool:
        """Whether the trainer is given data of valid or test."""
        shares = (1.0, 1.0, 1.0) if self.is_per_split else self.config.shares()
        share_by_split = dict(zip(SPLITS, shares, strict=True))
        return any(self.data(split) and share_by_split[split] > 0 for split in SPLITS[1:])

    @property
    def run(self) -> ScheduleSpec | None:
        """The run that the built training samples suffice for.

        It is shorter than `schedule` if limits on epochs leave fewer samples. For a phase it is
        always `schedule`, since the iterations of the other phases decide where this one begins.
        """
        schedule = self.spec.schedule
        built = self.config.train_split_samples
        if schedule is None or built is None or self.spec.transitions:
            return schedule
        if built == schedule.samples()["train"]:
            return schedule
        return replace(schedule, iterations=built // schedule.global_batch_size)

    @property
    def sample_count_mismatch(self) -> dict[SplitName, int]:
        """Split → samples that `run` asks for, if its index files are for another number."""
        if self.run is None:
            return {}
        span = self.spec.span
        requested = self.run.samples(None if span is None else span[1] - span[0])
        if self.run != self.spec.schedule:
            requested["train"] = self.config.train_split_samples or 0
        mismatch: dict[SplitName, int] = {}
        for split in SPLITS:
            built = self.config.samples(split)
            if not self.samples[split] or built is None or split not in requested:
                continue
            if requested[split] != built:
                mismatch[split] = requested[split]
        return mismatch
