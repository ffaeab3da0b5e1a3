"""The plan of a split as plain values: what is built for it, and the names of its files.

Fields that earlier versions of nanoset did not have are stored only if they have another value than
their default, so that the digests of old plans do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nanoset_core.records.stored_fields import stored
from nanoset_core.sampling.config import Order
from nanoset_core.sampling.splits import Rows, SplitName


class _PlannedFiles:
    """The file names that the plans of a dataset and of a blend have in common."""

    __slots__ = ()
    files: Mapping[str, str]
    receipt_name: str

    @property
    def cache_files(self) -> tuple[str, ...]:
        """Names of the files that the trainer reads."""
        return tuple(self.files.values())


@dataclass(frozen=True, slots=True)
class MemberPlan(_PlannedFiles):
    """The plan of one dataset of a split."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
    trainer_path: str
    """The same path on the machine that trains."""
    idx_sha256: str
    """Digest of the dataset's `.idx` file."""
    split: SplitName
    weight: float | None
    """Normalised weight in the blend, as it decides `samples_target`; None without weights."""
    rows: Rows
    """Sequences of the dataset that belong to the split: a half-open range."""
    tokens: int
    """Tokens of one epoch, that is, of these sequences."""
    samples_target: int | None
    """Samples that the blend plans to take, or that were requested; None is one epoch."""
    samples_requested: int | None
    """The same with the blend's margin, as the trainer writes it into its description."""
    epochs: int
    """Epochs in the document index."""
    separate_last_epoch: bool
    """Whether the last epoch is shuffled on its own."""
    samples_built: int
    """Samples in the sample index."""
    repeats: int
    """How many times the shuffle index repeats them."""
    samples_given: int
    """Length of the dataset: samples_built * repeats. In a later phase of a run, the samples that
    earlier phases took are subtracted, and the positions before `begin` are added.
    """
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: document_index, sample_index, shuffle_index, and description if the trainer
    writes one.
    """
    receipt_name: str = field(metadata=stored("sidecar"))
    """Name of their receipt, the file next to them that says what they were made from."""
    order: Order | None = field(default=None, metadata=stored(omit_default=True))
    """In a later phase of a run, how earlier phases read the dataset; `epochs` then counts the
    epochs of all phases.
    """
    begin: int = field(default=0, metadata=stored(omit_default=True))
    """In a later phase of a run, the position in the shuffle index at which the run continues."""

    @property
    def order_of_run(self) -> Order:
        """How the training run shuffles the dataset, and how much of it earlier phases took.

        The first phase of a run that reads the dataset decides this. If it is this phase, nothing
        was taken before, and the dataset is shuffled as planned here.
        """
        if self.order is not None:
            return self.order
        return Order(
            taken=0,
            rows=self.rows,
            epochs=self.epochs,
            separate_last_epoch=self.separate_last_epoch,
        )

    @property
    def taken_before(self) -> int:
        """Samples that earlier phases of the run took of the dataset."""
        return self.order_of_run.taken


@dataclass(frozen=True, slots=True)
class BlendPlan(_PlannedFiles):
    """How the datasets of a split are mixed."""

    size: int
    """Samples of the blend."""
    weights: tuple[float, ...] | tuple[int, ...]
    """Normalised weights, or the lengths of the datasets if all their samples are taken once."""
    exhaustive: bool
    """Whether all samples of all datasets are taken once."""
    description: str
    """The text that the trainer hashes."""
    hash: str
    """Its md5."""
    files: Mapping[str, str]
    """Part → file name: dataset_index, dataset_sample_index, description."""
    receipt_name: str = field(metadata=stored("sidecar"))
    """Name of their receipt, the file next to them that says what they were made from."""
    seed: int | None = field(default=None, metadata=stored(omit_default=True))
    """Seed of the shuffled blend of one epoch; None if the trainer does not shuffle blends."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What is built for one split of a nanoset."""

    split: SplitName
    preset: str
    members: tuple[MemberPlan, ...]
    """Its datasets, in the order of the blend."""
    blend: BlendPlan | None
    """How they are mixed; None for a plain dataset."""

    @property
    def samples(self) -> int:
        """Number of samples in the split."""
        if self.blend is None:
            return self.members[0].samples_given
        return self.blend.size
