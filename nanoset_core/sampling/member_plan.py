"""Plan one dataset of a split: its sequences, epochs, samples and file names.

A trainer cuts samples from some epochs of the sequences that the split has of the dataset. For
example, these have 1,000 tokens, samples start every 10 tokens and share one token with the next
sample, and the blend needs 150 of them. That takes 150 * 10 + 1 = 1,501 tokens, and so 2 epochs,
which give (2,000 - 1) // 10 = 199 samples.

A run may have several *phases*, with different blends. A later phase continues the order in which
the earlier ones read the dataset (`orders.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.config import Order
from nanoset_core.sampling.descriptions import member_names
from nanoset_core.sampling.planned import MemberPlan
from nanoset_core.sampling.split_data import DatasetPart, SplitData

_LAST_EPOCH_SHARE = 0.80
"""The last epoch is shuffled on its own if less than this share of its samples is needed."""


class NeededSamples(NamedTuple):
    """How many samples of a dataset a split needs; None stands for those of one epoch."""

    target: int | None
    """Samples that the blend plans to take, or that were requested of a plain dataset."""
    requested: int | None
    """Samples that the trainer asks the dataset for: in a blend, the target and a margin."""


ONE_EPOCH = NeededSamples(None, None)
"""The samples of one epoch, however many these are."""


class _PlannedEpochs(NamedTuple):
    """The epochs in the document index of a dataset."""

    n_epochs: int
    """Number of epochs; in a later phase of a run, those of all phases."""
    separate_last: bool
    """Whether the last epoch is shuffled on its own."""
    order: Order | None
    """In a later phase of a run, how earlier phases read the dataset; otherwise None."""


class _PlannedSamples(NamedTuple):
    """The samples of a dataset."""

    built: int
    """Samples in the sample index."""
    repeats: int
    """How many times the shuffle index repeats them."""
    available: int
    """Samples that the dataset can give to the split."""


class MemberPlanner:
    """Plans the datasets of one split, each independently of the others.

    Args:
        data: Finds the sequences that the split has of each dataset.
    """

    def __init__(self, data: SplitData) -> None:
        self.data = data
        self.config = data.config
        self.split = data.split
        self.rules = data.config.rules
        self.where = f"split {data.split}"
        self.is_later_phase = data.split == "train" and bool(data.config.orders)
        """Whether earlier phases of the run have read datasets of the split."""

    def plan(
        self, prefix: str, share: float | None, needed: NeededSamples, start: int
    ) -> MemberPlan | None:
        """Return the plan of one dataset of the split.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            share: Normalised weight in the blend; None if it has no weight.
            needed: Samples that the split needs of the dataset.
            start: Position in the dataset's shuffle index at which this phase of a run starts; 0 in
                the first phase.

        Returns:
            The plan, or None if the split has no sequence of the dataset and the trainer skips such
            datasets.

        Raises:
            ConfigError: The trainer would hang, crash or read wrong samples.
            MissingError, FormatError: The dataset's `.idx` file is missing or damaged.
        """
        part = self.data.part_of(prefix)
        if not self._is_built(prefix, part):
            return None

        needed = self._as_trainer_requests(prefix, part, needed)
        requested = needed.requested
        epochs = self._plan_epochs(prefix, part, requested, start)
        samples = self._plan_samples(prefix, part, requested, epochs, start)
        names = member_names(self.config, self.split, prefix, requested)
        return MemberPlan(
            prefix=prefix,
            trainer_path=self.config.trainer_path(prefix),
            idx_sha256=part.idx_sha256,
            split=self.split,
            weight=share,
            rows=part.rows,
            tokens=part.tokens,
            samples_target=needed.target,
            samples_requested=requested,
            epochs=epochs.n_epochs,
            separate_last_epoch=epochs.separate_last,
            samples_built=samples.built,
            repeats=samples.repeats,
            samples_given=samples.available,
            description=names.description,
            hash=names.hash,
            files=names.files,
            sidecar=names.sidecar,
            order=epochs.order,
            begin=start if self.is_later_phase else 0,
        )

    def _is_built(self, prefix: str, part: DatasetPart) -> bool:
        """Return whether the trainer builds the dataset for the split.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that the split has of it. If there are none, some trainers build an
                empty dataset, some leave it out, and some stop.

        Raises:
            ConfigError: The split has no sequence of it, and the trainer refuses that.
        """
        if not part.is_empty:
            return True
        if self.rules.empty_split == "refuse":
            raise ConfigError(
                "the split has a share but no sequences",
                where=self.where,
                found=prefix,
                expected="more sequences, or a share of 0",
            )
        return self.rules.empty_split == "build"

    def _as_trainer_requests(
        self, prefix: str, part: DatasetPart, needed: NeededSamples
    ) -> NeededSamples:
        """Return the needed samples as the trainer itself would request them.

        None stands for the samples of one epoch. Some trainers always request a number, so None is
        replaced by the number of these samples.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that the split has of it.
            needed: The needed samples.

        Raises:
            ConfigError: 0 samples are needed, and the trainer refuses that.
        """
        always_requests_number = self.rules.sample_requests == "always"
        if needed.requested is None and always_requests_number:
            samples_of_epoch = self.config.samples_in(part.tokens)
            needed = NeededSamples(target=samples_of_epoch, requested=samples_of_epoch)

        refuses_zero = self.rules.zero_samples == "never"
        if needed.requested == 0 and refuses_zero:
            raise self._zero_samples_error(prefix)
        return needed

    def _zero_samples_error(self, prefix: str) -> ConfigError:
        """Return the error for a dataset of which the trainer would need 0 samples."""
        return ConfigError(
            "every split needs samples",
            where=self.where,
            found=f"preset {self.rules.name}, 0 for {prefix}",
            expected="1 or more",
        )

    def _plan_epochs(
        self, prefix: str, part: DatasetPart, requested: int | None, start: int
    ) -> _PlannedEpochs:
        """Return the epochs from which the samples of a dataset are drawn.

        For example, 150 samples of 10 tokens need 2 epochs of 1,000 tokens.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that the split has of it.
            requested: Samples that are needed of it; None for one epoch.
            start: How many of these the trainer skips, if a run continues with another blend (a
                *later phase*).

        Raises:
            ConfigError: Samples are requested but there are no tokens, or earlier phases of the run
                read other sequences.
        """
        n_epochs = self._epochs_for(prefix, part.tokens, requested)
        if not self.is_later_phase:
            is_last_separate = self._separates_last_epoch(n_epochs, part.tokens, requested)
            return _PlannedEpochs(n_epochs, is_last_separate, order=None)

        # A later phase reads samples that earlier phases have not taken. So there must be epochs
        # enough for what all phases read, and for all positions that the trainer counts.
        n_read = max((requested or 0) - start, 0)
        order = self._order_of_run(prefix, part, n_read)
        n_epochs_of_run = self._epochs_for(prefix, part.tokens, order.taken + n_read)
        return _continued_epochs(order, max(n_epochs, n_epochs_of_run))

    def _epochs_for(self, prefix: str, tokens: int, requested: int | None) -> int:
        """Return the smallest number of epochs that has the tokens of the requested samples.

        For example, 150 samples of 10 tokens, which share one token with the next sample, need
        1,501 tokens: two epochs of 1,000 tokens.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            tokens: Tokens of one epoch.
            requested: The samples; None for those of one epoch.

        Raises:
            ConfigError: Samples are requested, but an epoch has no tokens.
        """
        if requested is None:
            return 1

        # Samples start `step` tokens apart, and the last one extends by `overlap` tokens beyond its
        # step: by the token that it shares with the next sample.
        tokens_needed = requested * self.config.step + self.config.overlap
        if tokens_needed > 0 and tokens == 0:
            raise self._no_tokens_error(prefix, requested)
        # Some trainers never join epochs: they repeat the samples of one.
        if tokens_needed == 0 or self.rules.one_epoch:
            return 1
        return -(-tokens_needed // tokens)  # rounded up

    def _no_tokens_error(self, prefix: str, requested: int) -> ConfigError:
        """Return the error for a dataset without tokens of which samples are requested."""
        return ConfigError(
            "samples are requested of a split without tokens (the trainer would never return)",
            where=self.where,
            found=f"{prefix}: 0 tokens in {self.split}, {requested} samples requested",
            expected=f"tokens in {self.split}, share 0 for {self.split}, "
            "or no number of samples for it",
        )

    def _separates_last_epoch(self, epochs: int, tokens: int, requested: int | None) -> bool:
        """Return whether the last of some epochs is shuffled on its own.

        See the function `separate_last_epoch`.
        """
        config = self.config
        return separate_last_epoch(epochs, tokens, requested, config.step, config.overlap)

    def _order_of_run(self, prefix: str, part: DatasetPart, n_needed: int) -> Order:
        """Return the order in which a dataset is read by all *phases* of a run, one for each blend.

        The first phase that reads the dataset decides the order. If that was an earlier phase, its
        order is in the configuration, and is returned as it is.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that train has of it.
            n_needed: Samples that this phase needs of it, for an order that starts here.

        Raises:
            ConfigError: Earlier phases read other sequences of the dataset.
        """
        order = self.config.orders.get(prefix)
        if order is None:
            return self._new_order(prefix, part, n_needed)
        if order.rows != part.rows:
            raise self._other_sequences_error(prefix, part, order)
        return order

    def _new_order(self, prefix: str, part: DatasetPart, n_needed: int) -> Order:
        """Return the order of a dataset that the run has not read before.

        All later phases, in which the run continues with other blends, keep this order.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that train has of it.
            n_needed: Samples that this phase needs of it.
        """
        n_epochs = self._epochs_for(prefix, part.tokens, n_needed)
        return Order(
            taken=0,
            rows=part.rows,
            epochs=n_epochs,
            separate_last_epoch=self._separates_last_epoch(n_epochs, part.tokens, n_needed),
        )

    def _other_sequences_error(self, prefix: str, part: DatasetPart, order: Order) -> ConfigError:
        """Return the error for an order of other sequences, which cannot be continued."""
        start, stop = part.rows
        earlier_start, earlier_stop = order.rows
        return ConfigError(
            "train has other sequences of a dataset than in earlier phases of the run, "
            "so their order cannot be continued",
            where=self.where,
            found=f"{prefix}: sequences {start:,} to {stop:,}",
            expected=f"{earlier_start:,} to {earlier_stop:,}: the `split` of these phases",
        )

    def _plan_samples(
        self,
        prefix: str,
        part: DatasetPart,
        requested: int | None,
        epochs: _PlannedEpochs,
        start: int,
    ) -> _PlannedSamples:
        """Return how many samples are built from the planned epochs, and how many can be read.

        For example, two epochs of a dataset have 100 samples. If earlier phases of the run took 60
        of them, and this phase reads the shuffle index from position 60, all 100 positions are
        available.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The sequences that the split has of it.
            requested: Samples that are needed of it; None for one epoch.
            epochs: The epochs in its document index.
            start: Position in its shuffle index at which this phase of a run starts; 0 in the first
                phase.

        Raises:
            ConfigError: The trainer needs samples of the dataset and never joins epochs, but an
                epoch has too few tokens for one sample.
        """
        n_built = self.config.samples_in(
            epochs.n_epochs * part.tokens,
            drop_last_partial=self.config.drops_last_partial(self.split),
        )
        if n_built == 0 and self._repeats_one_epoch(requested):
            raise self._too_few_tokens_error(prefix, part)
        repeats = self.rules.repeats(requested, n_built)
        if epochs.order is None:
            return _PlannedSamples(n_built, repeats, available=n_built * repeats)

        # In a later phase of a run, the first `start` positions of the shuffle index are not read.
        # The samples that no earlier phase took follow. Trainers with phases repeat no samples: if
        # there are too few, they build more epochs.
        n_not_taken = n_built - epochs.order.taken
        n_available = min(n_built, start + n_not_taken)
        return _PlannedSamples(n_built, repeats, n_available)

    def _repeats_one_epoch(self, requested: int | None) -> bool:
        """Return whether the trainer repeats the samples of one epoch, so that it must have some.

        Trainers that read windows need a sample even if no number is requested.
        """
        needs_samples = requested is not None or self.rules.windows
        return self.rules.one_epoch and needs_samples

    def _too_few_tokens_error(self, prefix: str, part: DatasetPart) -> ConfigError:
        """Return the error for a dataset that has too few tokens for a sample."""
        return ConfigError(
            "too few tokens for a sample",
            where=self.where,
            found=f"{prefix}: {part.tokens}",
            expected=f"{self.config.sample_tokens} or more",
        )


def _continued_epochs(order: Order, n_needed: int) -> _PlannedEpochs:
    """Return the epochs of a dataset for a run that continues with another blend.

    It continues the order in which the dataset was read before. If that has 2 epochs, and 3 are
    needed now, one is appended, which is shuffled on its own.

    Args:
        order: How earlier phases of the run read the dataset.
        n_needed: Epochs that are needed.
    """
    has_appended_epochs = n_needed > order.epochs
    return _PlannedEpochs(
        n_epochs=max(order.epochs, n_needed),
        separate_last=order.separate_last_epoch or has_appended_epochs,
        order=order,
    )


def separate_last_epoch(
    epochs: int, tokens: int, requested: int | None, length: int, extra: int
) -> bool:
    """Return whether the last epoch is shuffled on its own, because less than 80 % of it is needed.

    If all epochs were shuffled together, and only half of the last one is read, then some documents
    would be read in no epoch. If the last one comes after the others, each document is read once in
    each of these.

    For example, an epoch has 1,001 tokens, which are 100 samples of 10 tokens and an extra one. If
    150 samples are requested, 50 of the second epoch are needed, which is less than 80.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_sample_shuffle_indices`.

    Args:
        epochs: Epochs that are needed.
        tokens: Tokens of one epoch.
        requested: Samples that are needed; None for one epoch.
        length: Tokens from the start of a sample to that of the next one.
        extra: 1 if a sample also has the first token of the next one, else 0.
    """
    if epochs == 1 or requested is None:
        return False
    # The last sample ends `extra` tokens after the place where a next one would start.
    samples_of_epoch = (tokens - extra) // length  # 100
    samples_before_last = ((epochs - 1) * tokens - extra) // length  # 100
    needed_of_last = requested - samples_before_last  # 50
    return needed_of_last < int(_LAST_EPOCH_SHARE * samples_of_epoch)
