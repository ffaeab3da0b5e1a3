"""The plan of a split: sizes, epochs, descriptions, hashes and file names, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from nanoset_core.mapping.splits import Rows, SplitName


class _Part:
    """What the plans of a dataset and of a blend have in common."""

    __slots__ = ()
    files: Mapping[str, str]
    sidecar: str

    @property
    def cache_files(self) -> tuple[str, ...]:
        """The trainer's file names."""
        return tuple(self.files.values())


@dataclass(frozen=True, slots=True)
class MemberPlan(_Part):
    """The plan of one dataset's part of a split."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
    trainer_path: str
    """The same as the trainer spells it."""
    idx_sha256: str
    split: SplitName
    weight: float | None
    """Share in the blend, normalised once; None without weights."""
    rows: Rows
    """Sequences of the dataset that are the split's, (begin, end excl)."""
    tokens: int
    """Tokens of one epoch: of those sequences."""
    samples_target: int | None
    """Samples that the blend plans to take, or that were asked for; None is one epoch."""
    samples_requested: int | None
    """The same with the blend's margin: what goes into the trainer's description."""
    epochs: int
    """Epochs in the document index."""
    separate_last_epoch: bool
    """Whether the last epoch is shuffled apart from the others."""
    samples_built: int
    """Samples in the sample index."""
    repeats: int
    """How often the shuffle index repeats them."""
    samples_given: int
    """Length of the dataset: samples_built * repeats."""
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: document_index, sample_index, shuffle_index, the trainer's description if it writes one."""
    sidecar: str
    """Name of our own file beside them."""


@dataclass(frozen=True, slots=True)
class BlendPlan(_Part):
    """The plan of a blend."""

    size: int
    """Samples of the blend."""
    weights: tuple[float, ...] | tuple[int, ...]
    """Normalised weights; or the datasets' lengths when all their samples are taken once."""
    exhaustive: bool
    """Whether all samples of all datasets are taken once."""
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: dataset_index, dataset_sample_index, description."""
    sidecar: str
    """Name of our own file beside them."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The plan of a split."""

    split: SplitName
    preset: str
    members: tuple[MemberPlan, ...]
    """Its datasets, in the order of the blend."""
    blend: BlendPlan | None
    """How they are mixed; None for a plain dataset."""

    @property
    def samples(self) -> int:
        """Length of the split."""
        return self.members[0].samples_given if self.blend is None else self.blend.size

    def to_json(self) -> dict[str, Any]:
        """Return plain types, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan of `to_json`."""
        members = tuple(MemberPlan(**member | {"rows": tuple(member["rows"])}) for member in values["members"])
        blend = values["blend"]
        if blend is not None:
            blend = BlendPlan(**blend | {"weights": tuple(blend["weights"])})
        return cls(values["split"], values["preset"], members, blend)
