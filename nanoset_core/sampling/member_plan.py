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
from nanoset_core.rounding import ceil_division
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
        """Plan the index files of one dataset for a split (train, valid or test).

        The plan says how often the dataset is read (epochs), how many samples that gives, and which
        names the index files have. For example, the split has 1,000 tokens of the dataset, and
        training needs 150 samples of 10 tokens. Consecutive samples share a token, so 150 samples
        take 1,501 tokens:

            epochs            2, since one has 1,000 tokens
            samples built     199: trainers cut all of the 2,000 tokens, (2,000 - 1) / 10

        Args:
            prefix: Path of the dataset without .bin and .idx.
            share: Its weight, divided by the sum of all weights; None if there are no weights.
            needed: How many samples the split needs of the dataset.
            start: How many of these the trainer skips. This is 0, except if a training run was
                stopped and continues with other weights.

        Returns:
            The plan, or None if the split has no documents of the dataset and the trainer leaves it
            out.

        Raises:
            ConfigError: The trainer would hang, crash or read wrong samples.
            MissingError, FormatError: The dataset's `.idx` file is missing or damaged.
        """
        part = self.data.part_of(prefix)
        if not self._is_used(prefix, part):
            return None

        # Some trainers ask for a number of samples even if none is needed.
        needed = self._as_trainer_requests(prefix, part, needed)
        requested = needed.requested  # 150

        # How often is the dataset read, and which samples does that give?
        epochs = self._plan_epochs(prefix, part, requested, start)
        samples = self._plan_samples(prefix, part, requested, epochs, start)
        # In a later phase of a run, the trainer begins at this position of the shuffle index.
        begin = start if self.is_later_phase else 0

        # The names of index files contain a hash of the requested number, among others.
        names = member_names(self.config, self.split, prefix, requested)

        return MemberPlan(
            # The dataset, and what the split has of it.
            prefix=prefix,
            trainer_path=self.config.trainer_path(prefix),
            idx_sha256=part.idx_sha256,
            split=self.split,
            weight=share,
            rows=part.rows,
            tokens=part.tokens,
            # Epochs: 2.
            epochs=epochs.n_epochs,
            separate_last_epoch=epochs.separate_last,
            order=epochs.order,
            # Samples: 150 are requested, and 199 are built.
            samples_target=needed.target,
            samples_requested=requested,
            samples_built=samples.built,
            repeats=samples.repeats,
            samples_given=samples.available,
            begin=begin,
            # Index files.
            description=names.description,
            hash=names.hash,
            files=names.files,
            receipt_name=names.receipt_name,
        )

    def _is_used(self, prefix: str, part: DatasetPart) -> bool:
        """Return whether the trainer uses a dataset in a split (train, valid or test).

        It does, unless the split has no document of the dataset: for example, 0.01 of 20 documents
        are rounded to none. Then the rule `empty_split` of the trainer says what it does:

            "build"      it uses the dataset, with 0 samples
            "skip"       it leaves the dataset out
            "refuse"     it stops with an error

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The documents that the split has of it.

        Raises:
            ConfigError: There are none, and the trainer would stop with an error.
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
        """Return how many samples of a dataset the trainer asks for.

        Usually, these are the needed ones. But some trainers always ask for a number, even if each
        sample is to be read once: then it is the number of all samples.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: What the split has of the dataset: 1,000 tokens, which are 100 samples.
            needed: How many samples are needed; None to read each once.

        Raises:
            ConfigError: No sample is needed, and the trainer would stop with an error.
        """
        always_asks_for_number = self.rules.sample_requests == "always"
        if needed.requested is None and always_asks_for_number:
            n_all = self.config.samples_in(part.tokens)  # 100
            needed = NeededSamples(target=n_all, requested=n_all)

        accepts_zero = self.rules.zero_samples != "never"
        if needed.requested == 0 and not accepts_zero:
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
        """Decide how often a dataset is read, so that there are enough samples of it.

        One reading is an *epoch*. For example, samples have 10 tokens. So 150 samples need 2 epochs
        of a dataset of 1,000 tokens.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: What the split (such as train) has of the dataset.
            requested: How many samples are asked for: 150; None for each sample once.
            start: How many of these the trainer skips, since a training run has changed the weights
                of its datasets; 0 if it has not.

        Raises:
            ConfigError: Samples are needed of a dataset without tokens, or the run has read other
                documents of the dataset before.
        """
        n_epochs = self._epochs_for(prefix, part.tokens, requested)
        if self.is_later_phase:  # the weights were changed
            return self._plan_epochs_of_run(prefix, part, requested, start, n_epochs)
        separate_last = self._separates_last_epoch(n_epochs, part.tokens, requested)
        return _PlannedEpochs(n_epochs, separate_last, order=None)

    def _plan_epochs_of_run(
        self, prefix: str, part: DatasetPart, requested: int | None, start: int, n_epochs: int
    ) -> _PlannedEpochs:
        """Decide how many epochs of a dataset a training run needs that has changed its weights.

        The trainer does not know that the weights were changed. It plans as if the new ones had
        held from the start, and skips the samples that it would have read by now. For example:

            samples that it asks for, with the new weights      150
            skipped                                              80
            read now                               150 - 80 =    70
            really read before, with the old weights            120
            read in all                            120 + 70 =   190

        There must be enough epochs for 190 samples, so that none is repeated too early. They must
        also be enough for 150, which can be more: the trainer expects this number.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: What train has of the dataset.
            requested: How many samples the trainer asks for: 150; None for each sample once.
            start: How many of these it skips: 80.
            n_epochs: Epochs that are enough for `requested`.

        Raises:
            ConfigError: The run has read other documents of the dataset before.
        """
        n_read_now = 0
        if requested is not None:
            n_read_now = max(requested - start, 0)  # 70
        order = self._order_of_run(prefix, part, n_read_now)  # what was read before, and how

        n_read_in_all = order.taken + n_read_now  # 190
        n_epochs_of_run = self._epochs_for(prefix, part.tokens, n_read_in_all)
        return _continued_epochs(order, max(n_epochs, n_epochs_of_run))

    def _epochs_for(self, prefix: str, tokens: int, requested: int | None) -> int:
        """Return how often a dataset must be read to have enough tokens for some samples.

        For example, samples have 10 tokens, and also the first token of the next one. So 150
        samples need 1,501 tokens: two epochs of a dataset of 1,000 tokens. It is at least one.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            tokens: Tokens of one epoch: 1,000.
            requested: Number of samples: 150; None for those of one epoch.

        Raises:
            ConfigError: Samples are needed of a dataset without tokens.
        """
        if requested is None:
            return 1
        tokens_needed = requested * self.config.step + self.config.overlap  # 150 * 10 + 1
        if tokens_needed == 0:
            return 1
        if tokens == 0:
            raise self._no_tokens_error(prefix, requested)
        if self.rules.one_epoch:
            return 1  # these trainers cut samples from one epoch, and repeat the samples
        return ceil_division(tokens_needed, tokens)

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
        """Return whether the last epoch is shuffled on its own, since less than 80 % is needed.

        Args:
            epochs: Epochs of the dataset that are needed.
            tokens: Tokens of one epoch.
            requested: Samples that are needed; None for those of one epoch.
        """
        config = self.config
        return separate_last_epoch(epochs, tokens, requested, config.step, config.overlap)

    def _order_of_run(self, prefix: str, part: DatasetPart, n_needed: int) -> Order:
        """Return how a training run shuffles a dataset, if it has changed the weights of datasets.

        Its order of samples stays the same, so that none is repeated too early. There are two
        cases:

            the run has read the dataset before         the order that it had then
            it has not, as new weights came with new    a new order, of as many epochs as are needed
            datasets                                    now

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: The documents that train has of it now, such as 0 to 899.
            n_needed: Samples that are needed of it now.

        Raises:
            ConfigError: The run has read other documents of the dataset before, such as 0 to 949,
                for example because `split` was changed, too.
        """
        order = self.config.orders.get(prefix)
        if order is None:
            n_epochs = self._epochs_for(prefix, part.tokens, n_needed)
            return Order(
                taken=0,
                rows=part.rows,
                epochs=n_epochs,
                separate_last_epoch=self._separates_last_epoch(n_epochs, part.tokens, n_needed),
            )
        if order.rows != part.rows:
            raise self._other_documents_error(prefix, part, order)
        return order

    def _other_documents_error(self, prefix: str, part: DatasetPart, order: Order) -> ConfigError:
        """Return the error for a training run that has read other documents of a dataset before.

        The run was stopped, and continues with other settings. If `split` was changed, train has
        other documents of the dataset now, such as 0 to 950 in place of 0 to 900. Then the run
        cannot continue where it stopped.

        Args:
            prefix: Path of the dataset.
            part: The documents that train has of it now.
            order: The documents that train had before.
        """
        start, stop = part.rows
        earlier_start, earlier_stop = order.rows
        return ConfigError(
            "train has other sequences of a dataset than in earlier phases of the run, "
            "so their order cannot be continued",
            where=self.where,
            found=f"{prefix}: sequences {start:,} to {stop:,}",
            expected=f"{earlier_start:,} to {earlier_stop:,}: the `split` of these phases",
            remedy=(
                "keep `split`. If it is the same, a dataset of this phase is too small for a "
                "sample of valid or test, so their share went to train: give the phase more "
                "documents of it, or leave it out. Before the run starts, you can also avoid this "
                'by `split: "1,0,0"`'
            ),
        )

    def _plan_samples(
        self,
        prefix: str,
        part: DatasetPart,
        requested: int | None,
        epochs: _PlannedEpochs,
        start: int,
    ) -> _PlannedSamples:
        """Decide how many samples are cut from the epochs of a dataset, and how many can be read.

        For example, two epochs have 100 samples, and all of them can be read. Some trainers repeat
        them if more are needed. It is different if a training run was stopped and continues with
        other weights:

            samples of the epochs                           100
            read before the change                           60, so 40 are left
            skipped, as the trainer counts                   30
            length of the order that the trainer reads       30 + 40 = 70

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: What the split has of the dataset.
            requested: How many samples are needed; None for each sample once.
            epochs: How many epochs there are, and what was read of them before.
            start: How many samples the trainer skips: 30; 0 if the weights were not changed.

        Raises:
            ConfigError: The dataset has too few tokens for a sample, and the trainer needs one.
        """
        n_built = self.config.samples_in(
            epochs.n_epochs * part.tokens,
            drop_last_partial=self.config.drops_last_partial(self.split),
        )
        if n_built == 0 and self._repeats_one_epoch(requested):
            raise self._too_few_tokens_error(prefix, part)
        repeats = self.rules.repeats(requested, n_built)
        if epochs.order is None:  # the weights were not changed
            return _PlannedSamples(n_built, repeats, available=n_built * repeats)

        # Trainers whose weights can be changed never repeat samples: they build more epochs.
        n_not_read = n_built - epochs.order.taken  # 40
        n_available = min(n_built, start + n_not_read)
        return _PlannedSamples(n_built, repeats, n_available)

    def _repeats_one_epoch(self, requested: int | None) -> bool:
        """Return whether the trainer fails if a dataset has no sample.

        These trainers repeat the samples of one epoch, so there must be one. Most need it only if a
        number of samples is requested. Those that cut datasets into windows always need it.
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
    """Return how many epochs of a dataset there are after the weights of a run were changed.

    For example, two epochs were shuffled together before the change:

        needed now    epochs
        1             2, as before
        3             3: the third one is shuffled on its own, and comes after these two
        4             4: the third one and the fourth one, each on its own

    Args:
        order: How the dataset was shuffled before the change.
        n_needed: Epochs that are needed now.
    """
    if n_needed > order.epochs:
        return _PlannedEpochs(n_needed, separate_last=True, order=order)
    return _PlannedEpochs(order.epochs, order.separate_last_epoch, order)


def separate_last_epoch(
    epochs: int, tokens: int, requested: int | None, length: int, extra: int
) -> bool:
    """Return whether the last epoch of a dataset is shuffled on its own, as Megatron-LM does.

    It is if less than 80 % of its samples are needed. For example, a dataset has 100 samples, and
    is read twice:

        samples needed    of the last epoch    shuffled on its own
        150               50                   yes
        190               90                   no

    If all 200 samples were shuffled together, and 150 of them read, some text would be read twice
    and other text not once. If 190 are read, this hardly matters.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_sample_shuffle_indices`.

    Args:
        epochs: Epochs that are needed: 2.
        tokens: Tokens of one epoch: 1,001.
        requested: Samples that are needed: 150; None for those of one epoch.
        length: Tokens from the start of a sample to the start of the next: 10.
        extra: 1 if a sample also has the first token of the next one; else 0.
    """
    if epochs == 1 or requested is None:
        return False

    # The tokens of all epochs are joined, and cut into samples. A few tokens (`extra`) at the end
    # are part of the last sample only.
    samples_of_epoch = (tokens - extra) // length  # 1,000 // 10 = 100
    samples_before_last = ((epochs - 1) * tokens - extra) // length  # 100
    needed_of_last = requested - samples_before_last  # 50
    return needed_of_last < int(_LAST_EPOCH_SHARE * samples_of_epoch)  # 0.8 * 100
