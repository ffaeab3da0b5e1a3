"""Plan the splits of a nanoset from nanoset.yaml and the current datasets.

The settings of a split are worked out in steps:

1. As nanoset.yaml has them, with prefixes of datasets in place of corpora (`split_settings`).
2. With as many samples, or such weights, as the limits on epochs allow (`_settings_within_limits`).
3. The plan: which samples the trainer's datasets have under these settings (`plan`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.corpora import CorpusCoverage, MemberReads, corpus_coverage
from nanoset_core.sampling.coverage import MemberCoverage, coverage
from nanoset_core.sampling.epoch_limits import ExceededLimit, documents_read_too_often
from nanoset_core.sampling.epoch_policies import LimitedConfig, apply_epoch_limits
from nanoset_core.sampling.mixture import MixRow, mixture_of
from nanoset_core.sampling.orders import Read
from nanoset_core.sampling.plan import largest_epoch_size, plan_split
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.shortages import no_training_sample, too_few_tokens
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.mappings.continuing import check_phase_length, check_remaining_samples
from nanoset_core.stages.mappings.lookup import NanosetLookup
from nanoset_core.stages.mappings.run_before import read_since_handoff
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.mappings.shared_documents import SharedDocuments
from nanoset_core.stages.mappings.split_settings import dataset_prefixes, settings_as_written

_Part = TypeVar("_Part", MemberPlan, BlendPlan)


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split of a nanoset, before it is built."""

    split: SplitName
    """The split."""
    config: NanosetConfig
    """The settings that it is built with, after limits on epochs were applied."""
    plan: SplitPlan | None
    """None if the split has no share of the data, or too little for a sample."""
    members: tuple[MemberCoverage, ...]
    """What it takes of each dataset."""
    exceeded: tuple[ExceededLimit, ...]
    """Datasets that would have been read too often without the limits."""
    corpora: tuple[str, ...]
    """Names of the members, in their order."""
    lacking: str | None
    """Why it has no sample, if it has a share of the data."""
    mixture: tuple[MixRow, ...] = ()
    """What each part of its mixture gets; only train has one."""

    @property
    def samples(self) -> int:
        """Length of the split."""
        return 0 if self.plan is None else self.plan.samples


@dataclass(frozen=True, slots=True)
class _LimitedSettings:
    """The settings of one split after limits on epochs were applied."""

    config: NanosetConfig
    exceeded: tuple[ExceededLimit, ...]
    """Datasets that would have been read too often without the limits."""
    limit_by_prefix: Mapping[str, float]
    """How often each dataset may be read; a dataset that is missing has no limit."""


class NanosetContext(NanosetLookup):
    """One nanoset of a project, with its current datasets, and the plans of its splits."""

    def __init__(
        self,
        project: Project,
        name: str,
        reader: LengthReader | None = None,
        datasets: dict[str, Manifest] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        super().__init__(project, name, reader, datasets, exact=exact)
        self._shared_documents: SharedDocuments | None = None

    @property
    def shared_documents(self) -> SharedDocuments:
        """Counts the documents that several datasets of the nanoset contain."""
        if self._shared_documents is None:
            dataset_by_prefix = {
                self.prefix(name): self.dataset(name) for name in self.spec.corpora
            }
            self._shared_documents = SharedDocuments(self.project.outputs, dataset_by_prefix)
        return self._shared_documents

    def plan(self, split: SplitName) -> PlannedSplit:
        """Plan one split of a nanoset: which samples a training run reads, and from which data.

        A nanoset is a mixture of data for training. It has up to three splits: train, valid and
        test. For example, with the settings `blend: {web: 0.8, code: 0.2}` and 1,000 samples for
        train, the plan says that 800 samples are read from web and 200 from code, and how often
        each document is read.

        Without a number of samples, a blend with weights ends when its first corpus is used up.

        Args:
            split: `train`, `valid` or `test`.

        Returns:
            The plan, what it takes of each dataset, and why it has no sample, if so.

        Raises:
            MissingError: A dataset has not been built.
            ConfigError: The settings contradict each other, or cannot be fulfilled.
            InputError: Limits on epochs, or the shares of a mixture, cannot be kept with this data.
        """
        try:
            return self._plan(split)
        except (ConfigError, InputError) as error:
            # Say which nanoset it is, unless the error does already.
            key = f"nanosets.{self.name}"
            if not error.where:
                raise error.at(key) from error
            if key in error.where:
                raise
            raise error.at(f"{key}, {error.where}") from error

    def _plan(self, split: SplitName) -> PlannedSplit:
        """Plan one split of a nanoset, with errors that do not name the nanoset.

            settings                                     the plan
            1,000 samples of train are requested         1,000 samples
            test has no share of the documents           None
            valid has 1 % of them, and that is less      None, or no samples, and `lacking` says why
            than a sample

        Raises:
            MissingError: A dataset has not been built.
            ConfigError, InputError: The split cannot be filled as its settings ask.
        """
        settings = self._settings_within_limits(split)
        config = settings.config
        plan: SplitPlan | None = None
        if config.samples(split) == 0:
            # The limits on epochs leave no sample. Record settings without a number.
            config = config.with_samples({})
        else:
            plan = plan_split(config, split, self.reader, exact=self.exact)
        if split == "train":
            self._check_continued(config)

        # A split without samples is built, too, and the reason is recorded. Only for train, this
        # call raises an error.
        why_no_sample = None
        if plan is None or not plan.samples:
            why_no_sample = self._why_no_sample(split, config)

        # What the split reads of each dataset, and of each part of its mixture.
        members: Sequence[MemberCoverage] = ()
        mixture: tuple[MixRow, ...] = ()
        if plan is not None:
            plan = _with_index_folder(plan, self.index_folder)
            members = coverage(plan, config, settings.limit_by_prefix)
            mixture = self._mixture_rows(split, config)
        return PlannedSplit(
            split=split,
            config=config,
            plan=plan,
            members=tuple(members),
            exceeded=tuple(limit for limit in settings.exceeded if limit.split == split),
            corpora=corpora_of(self.spec.blend_of(split)),
            lacking=why_no_sample,
            mixture=mixture,
        )

    def _check_continued(self, config: NanosetConfig) -> None:
        """Check the length of a training run that continues an earlier one with other data.

        A run may have phases with different data, such as 600 iterations of web text and then 400
        of code, with 8 samples each. The numbers of samples count from the start of the run: 4,800
        for the first phase, and 8,000 for the second one.

        Args:
            config: The settings of the train split, after limits on how often data is read.

        Raises:
            ConfigError: The run has read all its samples already, so that none are left.
            InputError: The limits leave fewer samples than the phase has.
        """
        check_remaining_samples(config)
        # A phase has a fixed end, at which the next one starts: it may not have fewer samples.
        if self.spec.continue_:
            check_phase_length(config, self.spec.samples.get("train", 0))

    def _mixture_rows(self, split: SplitName, config: NanosetConfig) -> tuple[MixRow, ...]:
        """Return which share of the samples each part of the mixture (the key `mix`) gets.

        `mix: {web: 0.7, other: {share: 0.3, mix: {books: {}, code: {}}}}` gives a row for each of
        `web`, `other`, `books` and `code`.

        Args:
            split: The split. Only train has a mixture; the others give an empty result.
            config: Its settings.
        """
        if split != "train" or self.spec.mixture is None:
            return ()
        return mixture_of(self.spec.mixture, config, self.reader).rows

    def corpora(
        self, planned: PlannedSplit, members: Sequence[MemberCoverage] | None = None
    ) -> list[CorpusCoverage]:
        """Return how often a split reads the documents of each corpus, through all its datasets.

        A corpus is a collection of texts. Several datasets may have been made from it, so that
        adding up what is read of each dataset does not tell how often a document is read. For
        example, train reads all of `web`, and of the view `best-web`, which is a selection of its
        documents:

            dataset     its documents         of the corpus web
            web         0, 1, 2, 3            documents 0 and 2 are read once,
            best-web    1, 3                  and documents 1 and 3 twice

        Args:
            planned: The split.
            members: What the built split takes of each dataset. By default, what the plan says,
                which is an estimate for a large blend.

        Returns:
            An entry for each corpus; none if the split has no plan, since it has no data.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        plan = planned.plan
        if plan is None:
            return []
        sample_counts = [member.samples_given for member in members or planned.members]
        # Path of a dataset → the range of its documents that belong to the split, such as (0, 4);
        # and how many samples the split takes of it.
        rows_by_prefix = {member.prefix: member.rows for member in plan.members}
        reads_by_prefix = MemberReads.by_prefix(plan, planned.config, sample_counts)

        # Add the datasets that only earlier phases of the run have read. They may have documents in
        # common with those of the split.
        for prefix, order in _orders_of_earlier_phases(planned, reads_by_prefix).items():
            rows_by_prefix[prefix] = order.rows
            reads_by_prefix[prefix] = self._reads_of_earlier_phases(prefix, order)

        # The datasets of a corpus may share documents, so count how often each document is read.
        corpus_parts = self.shared_documents.parts(rows_by_prefix)
        return corpus_coverage(corpus_parts, reads_by_prefix, planned.config)

    def _reads_of_earlier_phases(self, prefix: str, order: Order) -> MemberReads:
        """Return what a training run has read of a dataset that only its earlier phases contain.

        A run may have phases with different data. The report of a phase says how often each
        document has been read so far. So it needs the datasets of earlier phases, too, if they have
        documents in common with those of this phase:

            phase 1    reads web
            phase 2    reads best-web, a selection of web's documents: these are read a second time

        For phase 2, this function returns what was read of web.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            order: In which order the earlier phases read the dataset, and where they stopped.
        """
        # Train may have only a part of the dataset, such as the documents 0 to 980 of 1,000. The
        # tokens of these are what it reads in one epoch.
        sequence_lengths, _ = self.reader.read(prefix)
        start, stop = order.rows
        tokens = int(sequence_lengths[start:stop].sum(dtype=np.int64))
        return MemberReads(
            tokens=tokens,
            samples_before=order.taken,  # samples that the earlier phases read
            samples_taken=0,  # the present phase takes no sample of it
            # How many epochs were shuffled together, which decides which samples were read.
            epochs=order.epochs,
            separate_last_epoch=order.separate_last_epoch,
        )

    # Settings, step by step.

    def _settings_within_limits(self, split: SplitName) -> _LimitedSettings:
        """Return the settings of a split, changed so that no document is read too often.

        The setting `max_epochs: 4` says that no document may be read more than four times. If the
        settings request more, `on_exhaustion` decides what happens: fewer samples, other weights,
        or an error.

            splits share a blend            a limit may change their common weights: start with the
                                            settings of all splits
            each has a blend of its own     start with the settings of this split

        Args:
            split: `train`, `valid` or `test`.

        Returns:
            The settings of this split alone, which limits were exceeded, and the limits.
        """
        # The settings of nanoset.yaml. If splits share one blend, they also share its weights,
        # which limits may change: so these are the settings of all splits.
        splits: tuple[SplitName, ...] = (split,) if self.spec.blend is None else SPLITS
        prefix_by_corpus = dataset_prefixes(self, splits)  # corpus → path of its dataset
        # Only train can continue what a training run has read with other data before.
        read_before = self._read_by_run() if "train" in splits else None
        written_config = settings_as_written(self, splits, read_before)

        # The settings of this split alone, within the limits.
        limit_by_prefix = self._epoch_limits(prefix_by_corpus)
        if limit_by_prefix:
            limited = self._limit_epochs(split, written_config, limit_by_prefix)
        else:
            limited = LimitedConfig(self._with_samples_of(split, written_config), exceeded=())
        if self.spec.mixture is not None and split == "train":
            self._check_mixture(limited.config, prefix_by_corpus)
        return _LimitedSettings(limited.config, limited.exceeded, limit_by_prefix)

    def _limit_epochs(
        self, split: SplitName, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Return settings of a split that read no document more often than `max_epochs` allows.

        For example, web has 100 samples and may be read twice. With a weight of 0.5, it would be
        300 of 600 requested samples. What becomes of that depends on the setting `on_exhaustion`:

            raise           an error
            repeat          the same settings: web is read three times, which is only reported
            stop            about 400 samples are requested, of which 200 are of web
            redistribute    web gets the weight 1/3, so that it is 200 of 600 samples

        Args:
            split: `train`, `valid` or `test`.
            config: The settings as nanoset.yaml has them, with the samples of all splits.
            limit_by_prefix: Path of a dataset, without ending → how often it may be read.

        Returns:
            The settings, and which limits the given ones exceed.
        """
        # The policy "redistribute" changes weights. If all splits share them, it has to know the
        # samples of all splits. Otherwise, leave out those of other splits: if they are too many,
        # this split can still be built.
        requested = config.samples(split)
        shares_weights = self.spec.blend is not None
        limits_change_weights = self.spec.on_exhaustion == "redistribute"
        needs_samples_of_all = shares_weights and limits_change_weights
        if not needs_samples_of_all:
            config = config.with_samples({split: requested})

        limited = self._apply_limits(config, limit_by_prefix)
        config_of_split = self._with_samples_of(split, limited.config)
        if requested is None and split == "train":
            # Limits apply to numbers of samples, and there is none: each dataset is read once. Even
            # then, train may read a document too often. This is not checked for valid and test.
            return self._limit_one_epoch(config_of_split, limit_by_prefix)
        return LimitedConfig(config_of_split, limited.exceeded)

    def _apply_limits(
        self, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Return settings with which no document is read too often.

        What changes is decided by `on_exhaustion`: fewer samples, other weights, or an error.

        Args:
            config: The settings, with the number of samples of each split that counts.
            limit_by_prefix: Path of a dataset, without ending → how often it may be read.
        """
        return apply_epoch_limits(
            config, limit_by_prefix, self.spec.on_exhaustion, self.reader, self.shared_documents
        )

    def _with_samples_of(self, split: SplitName, config: NanosetConfig) -> NanosetConfig:
        """Return settings that request samples of one split alone.

        If the user sets no number, it depends on whether the trainer needs one. To take shares of
        0.7 and 0.3 of a number of samples, most trainers have to be told the number:

            settings of the user            samples of train
            samples: {train: 1000}          1,000
            none, blend with weights        those until the first corpus is used up; or None, if the
                                            trainer needs no number
            none, blend without weights     None: the trainer reads each document once

        Args:
            split: `train`, `valid` or `test`.
            config: Settings, which may request samples of other splits, too. Those are removed.
        """
        samples = config.samples(split)  # None if the user sets no number
        # A blend with weights is a mapping, such as {"web": 0.7}; without, it is a list of names.
        is_weighted = isinstance(self.spec.blend_of(split), Mapping)
        if samples is None and is_weighted and config.rules.needs_samples(split):
            samples = self._samples_until_first_is_used_up(config, split)
        return config.with_samples({split: samples})

    def _epoch_limits(self, prefix_by_corpus: Mapping[str, str]) -> dict[str, float]:
        """Return how often each dataset may be read: `{"/data/web_text_document": 4.0}`.

        `max_epochs: {web: 4}` limits web alone. Datasets without a limit are left out.

        Args:
            prefix_by_corpus: Name of a corpus → path of its dataset, without .bin and .idx.
        """
        limits: dict[str, float] = {}
        for corpus, prefix in prefix_by_corpus.items():
            limit = self.spec.epoch_limit(corpus)
            if limit is not None:
                limits[prefix] = limit
        return limits

    def _limit_one_epoch(
        self, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Return settings of train with which one epoch reads no document too often.

        In one epoch, each dataset is read once. That may already be too often for a document. If
        train reads the corpus `web` and the view `best-web`, a selection of its documents, it reads
        those twice. Suppose that they have 1,000 samples together. With `max_epochs: 1`, it depends
        on `on_exhaustion`:

            raise           an error
            repeat          no number of samples, as before; only reported
            stop            a smaller number of samples, such as 700
            redistribute    other weights of the datasets

        If no document is read twice, nothing changes.

        Args:
            config: The settings of train, without a number of samples: they mean one epoch.
            limit_by_prefix: Path of a dataset, without ending → how often it may be read.

        Returns:
            The settings, with a number of samples only if one epoch would exceed a limit; and which
            limits it exceeds.
        """
        no_change = LimitedConfig(config, exceeded=())
        # Some trainers take no number of samples. And if no two datasets have a document in common,
        # one epoch reads each document once.
        if not config.rules.takes_samples("train") or not self.may_share_documents("train"):
            return no_change

        # Limits apply to a number of samples. So count those of one epoch, and limit them.
        plan = plan_split(config, "train", self.reader, exact=self.exact)
        if plan is None or not plan.samples:
            return no_change
        epoch_config = config.with_samples({"train": plan.samples})
        limited = self._apply_limits(epoch_config, limit_by_prefix)
        if not limited.exceeded:
            return no_change

        # The policy "repeat" only reports what is read too often. So return the given settings,
        # which have no number of samples.
        if self.spec.on_exhaustion == "repeat":
            return LimitedConfig(config, limited.exceeded)
        return limited

    def _samples_until_first_is_used_up(
        self, config: NanosetConfig, split: SplitName
    ) -> int | None:
        """Return how many samples can be taken from a blend until its first corpus is used up.

        For example, web has 100 samples, code has 300, and both have the same weight. After 200
        samples, all 100 of web have been taken.

        Args:
            config: The settings, with a weighted blend.
            split: `train`, `valid` or `test`.

        Returns:
            The number of samples; None if the split has no share of the data.
        """
        # Splits that share one blend divide its documents, and a split may get none of them. A
        # split with a blend of its own gets all documents of that blend.
        splits_share_a_blend = config.blend_per_split is None
        if splits_share_a_blend:
            shares = parse_split(config.split)  # of train, valid and test
            if shares[SPLITS.index(split)] <= 0:
                return None
        return largest_epoch_size(config, split=split, reader=self.reader)

    # A run that continues.

    def _read_by_run(self) -> Read | None:
        """Return what a training run has read before this nanoset, or None if it starts with it.

        A run can continue in two ways:

        - It was started with another nanoset, from whose data it now switches to this one. For
          example, it has read 2,000 samples of `pretrain`.
        - This nanoset is one of several phases, which follow one another in the same settings. For
          example, it is `pretrain-phase-2`, and so the run has read all of `pretrain-phase-1`.

        Raises:
            ConfigError: The previous phase has no sample, or the other nanoset has no train split.
            MissingError: The files with which the run was started (its handoff) were deleted.
        """
        # The run was started with another nanoset, whose handoff is named in nanoset.yaml.
        if self.spec.continue_from is not None:
            return read_since_handoff(self.project.outputs, self.spec.continue_from)

        # Or the nanoset is a phase of a run.
        previous_phase = self.phase_before()
        if previous_phase is None:
            return None
        return _read_by_phase(previous_phase)

    # Checks.

    def _check_mixture(self, config: NanosetConfig, prefix_by_corpus: Mapping[str, str]) -> None:
        """Check that no document is read too often because several parts of a mixture contain it.

        For example, web may be read 3 times, and so may its selection best-web. Each part keeps its
        limit, and yet a document that is in both may be read 6 times.

        Args:
            config: The settings of train, with the weights of the mixture.
            prefix_by_corpus: Name of each corpus → path of its dataset, without endings.

        Raises:
            InputError: Parts together read a document more often than each of them may.
        """
        mixture = self.spec.mixture
        if mixture is None or not self.may_share_documents("train"):
            return
        limit_by_corpus = mixture.epoch_limits()
        if not limit_by_corpus:
            return
        limit_by_prefix: dict[str, float] = {}
        for corpus, limit in limit_by_corpus.items():
            limit_by_prefix[prefix_by_corpus[corpus]] = limit
        exceeded = documents_read_too_often(
            config, "train", limit_by_prefix, self.reader, self.shared_documents
        )
        if exceeded:
            raise _shared_parts_error(exceeded)

    def _why_no_sample(self, split: SplitName, built_config: NanosetConfig) -> str | None:
        """Return why a split has no sample, although nanoset.yaml gives it a share of the data.

        If a share is too small for a sample, the split before gets it. So there are two settings:

                                train, valid, test
            as written          98, 1, 1
            as built            98, 2, 0          test is too small, so valid has its share

        For test, the reason is "it has no sample: …; its share went to the split before it (split:
        98,2,0). Give it a larger share, or none".

        Args:
            split: The split, which has no sample.
            built_config: The settings that the splits are built with.

        Returns:
            The reason, in words; None if nanoset.yaml gives the split no share, so that it is meant
            to be empty.

        Raises:
            InputError: The split is train. Without samples of train there is nothing to train on.
        """
        blend = self.spec.blend_of(split)
        # The settings with the shares as nanoset.yaml has them: 98, 1, 1 in the example.
        written_config = self._with_written_shares(built_config)
        if blend is None or not _has_share(written_config, split):
            return None
        reason = too_few_tokens(written_config, split, self.reader, corpora_of(blend))
        if split == "train":
            raise no_training_sample(written_config, reason)

        message = f"it has no sample: {reason}"
        # If the share was given to the split before, say so: the user finds other shares than
        # those in nanoset.yaml.
        if not _has_share(built_config, split):
            message += f"; its share went to the split before it (split: {built_config.split})"
        return f"{message}. Give it a larger share, or none"

    def _with_written_shares(self, built: NanosetConfig) -> NanosetConfig:
        """Return settings in which train, valid and test have the shares of nanoset.yaml again.

        A share that is too small for a sample is given to another split before anything is built,
        so that "98,1,1" may have become "98,2,0". To explain why a split is empty, the written
        shares are needed.

        Args:
            built: The settings that the splits are built with.
        """
        if self.spec.shares is None:
            return built  # each split gets all documents of a blend of its own
        return replace(built, split=self.spec.shares)


def _orders_of_earlier_phases(
    planned: PlannedSplit, present_prefixes: Container[str]
) -> dict[str, Order]:
    """Return the datasets that only earlier phases of a training run have read.

        phase 1    web, books
        phase 2    web, code        (this one: the result has books)

    Args:
        planned: The split of the present phase. Only train continues earlier phases.
        present_prefixes: Paths of the datasets that this split reads, without .bin and .idx.

    Returns:
        Path of the dataset → the order in which it was read, and how far.
    """
    if planned.split != "train":
        return {}
    orders = planned.config.orders
    return {prefix: orders[prefix] for prefix in orders if prefix not in present_prefixes}


def _read_by_phase(phase: NanosetContext) -> Read:
    """Return what a training run has read when a phase of it has ended.

    A phase of 600 iterations with 8 samples each reads 4,800 samples, or fewer if its data ends
    before.

    Args:
        phase: The phase, with the phases before it.

    Raises:
        ConfigError: It has no sample of train.
    """
    train = phase.plan("train")
    if train.plan is None:
        raise ConfigError(
            "the previous phase has no sample of train to continue from",
            where=f"nanosets.{phase.name}",
            remedy="give it a share in `split`",
        )
    # The phase ends after the samples of its iterations, or with the last sample of its split.
    samples_read = min(phase.spec.samples["train"], train.plan.samples)
    return Read(train.plan, train.config, samples_read)


def _shared_parts_error(exceeded: Sequence[ExceededLimit]) -> InputError:
    """Return the error for parts of a mixture that together read documents too often.

    Args:
        exceeded: The datasets with these documents, and how often they would be read.
    """
    return InputError(
        "parts of the mixture together read documents more often than max_epochs allows",
        where="mix",  # the key of nanoset.yaml
        found="; ".join(limit.text for limit in exceeded),
        remedy=(
            "give less to one of these parts, choose views that share no documents, "
            "or raise max_epochs"
        ),
    )


def _has_share(config: NanosetConfig, split: SplitName) -> bool:
    """Return whether a split has any documents: a share above 0, or a blend of its own.

    The shares "98,2,0" give some to train and valid, and none to test.
    """
    if config.blend_per_split is not None:
        return True
    return config.shares()[SPLITS.index(split)] > 0


def _with_index_folder(plan: SplitPlan, folder: str) -> SplitPlan:
    """Return a plan whose index files are in a folder below the trainer's cache.

    With the folder "0a1b2c/", `5ce5…-shuffle_index.npy` becomes `0a1b2c/5ce5…-shuffle_index.npy`.

    Args:
        plan: Which samples a split has, and the names of the files that say so.
        folder: Ends with a slash, or is empty: then the files are in the cache itself.
    """
    if not folder:
        return plan
    members = tuple(_part_in_folder(member, folder) for member in plan.members)
    blend = None if plan.blend is None else _part_in_folder(plan.blend, folder)
    return replace(plan, members=members, blend=blend)


def _part_in_folder(part: _Part, folder: str) -> _Part:
    """Return the plan of a dataset, or of a blend of datasets, with its files in a folder.

    Args:
        part: The plan.
        folder: The folder below the trainer's cache, with a slash at its end.
    """
    files = {kind: folder + name for kind, name in part.files.items()}
    return replace(part, files=files, sidecar=folder + part.sidecar)
