"""The input of a handoff."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nanoset_core.config.nanoset import ScheduleSpec
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.splits import SPLITS, SplitName


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """Counts that a trainer may be given instead of reading a dataset's .idx."""

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
    config: NanosetConfig
    """Its settings, with the samples of every split that has data."""
    samples: Mapping[SplitName, int]
    """Split → samples that were built; 0 where it has no data."""
    folder: str
    """Folder of the handoff's own files."""
    cache: str
    """Folder of the index files."""
    datasets: Mapping[str, DatasetCounts]
    """Prefix → counts."""
    vocab_size: int
    """Tokens of the tokenizer, special ones included."""
    schedule: ScheduleSpec | None = None
    """The trainer's run, if it was given."""
    transitions: tuple[int, ...] = ()
    """Iterations at which one phase ends and the next begins."""
    masks: tuple[str, ...] = ()
    """Options for masking at ends of documents that the trainer is to get."""
    tokenizer: tuple[str, ...] = ()
    """Megatron-LM's arguments that name the tokenizer, a flag and its values each; none where the user names it."""
    tokenizer_note: str | None = None
    """Note on a tokenizer that Megatron-LM does not know."""
    span: tuple[int, int] | None = None
    """Iterations of the phase that this nanoset is, (begin, end excl)."""

    @property
    def is_per_split(self) -> bool:
        """Whether every split has data of its own."""
        return self.config.blend_per_split is not None

    def data(self, split: SplitName) -> list[tuple[float | None, str]]:
        """Return (weight, prefix) of each dataset of a split; no weight where the trainer is given none."""
        prefixes, weights = self.config.blend(split) or ([], None)
        paths = [self.config.trainer_path(prefix) for prefix in prefixes]
        return [(None if weights is None else weights[number], path) for number, path in enumerate(paths)]

    @property
    def run(self) -> ScheduleSpec | None:
        """The run that the built training samples are enough for: shorter than `schedule` where limits cut them.

        In phases it is `schedule`, since the iterations of the others decide where this one begins.
        """
        schedule, built = self.schedule, self.config.train_split_samples
        if schedule is None or built is None or self.transitions or built == schedule.samples()["train"]:
            return schedule
        return replace(schedule, iterations=built // schedule.global_batch_size)

    @property
    def sample_count_mismatch(self) -> dict[SplitName, int]:
        """Split → samples that `run` asks for, where its index files are for another number."""
        if self.run is None:
            return {}
        asked = self.run.samples(None if self.span is None else self.span[1] - self.span[0])
        if self.run != self.schedule:
            asked["train"] = self.config.train_split_samples or 0
        built = {split: self.config.samples(split) for split in SPLITS if self.samples[split]}
        return {
            split: asked[split]
            for split, count in built.items()
            if count is not None and split in asked and asked[split] != count
        }
