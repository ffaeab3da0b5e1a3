"""Plan the splits of a nanoset from nanoset.yaml and the current datasets.

The settings of a split are worked out in steps:

1. As nanoset.yaml has them, with prefixes of datasets in place of corpora (`split_settings`).
2. With as many samples, or such weights, as the limits on epochs allow (`_settings_within_limits`).
3. The plan: which samples the trainer's datasets have under these settings (`plan`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.corpora import (
    CorpusCoverage,
    CorpusParts,
    MemberReads,
    corpus_coverage,
    tokens_by_reads,
)
from nanoset_core.sampling.coverage import MemberCoverage, coverage
from nanoset_core.sampling.epoch_limits import (
    ExceededLimit,
    UnevenReads,
    documents_read_too_often,
    unevenly_read,
)
from nanoset_core.sampling.epoch_policies import LimitedConfig, apply_epoch_limits
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.mixture import MixRow, mixture_of
from nanoset_core.sampling.orders import Read
from nanoset_core.sampling.plan import largest_epoch_size, plan_split
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.shortages import no_training_sample, too_few_tokens
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.mappings.continuing import check_phase_length, check_remaining_samples
from nanoset_core.stages.mappings.lookup import NanosetLookup
from nanoset_core.stages.mappings.run_before import read_since_handoff
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.mappings.shared_documents import SharedDocuments
from nanoset_core.stages.mappings.split_settings import dataset_prefixes, settings_as_written
from nanoset_core.wording import abbreviated

_Part = TypeVar("_Part", MemberPlan, BlendPlan)
_MAX_CHANGED_WEIGHTS = 8
"""How many changed weights a warning lists."""


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
class CorporaWithReads:
    """How often a split reads the documents of each corpus."""

    coverage: Sequence[CorpusCoverage]
    """How much is read of each corpus."""
    tokens_by_reads: Mapping[str, Sequence[int]]
    """Name of the corpus → tokens that are read 0, 1, 2, … times, as `tokens_by_reads` in
    `sampling/corpora.py` counts them.
    """


@dataclass(frozen=True, slots=True)
class _DocumentsRead:
    """What a split reads of each corpus."""

    corpora: Sequence[CorpusParts]
    """The corpora, each with the datasets that contain its documents."""
    reads_by_prefix: Mapping[str, MemberReads]
    """Prefix of each of these datasets → how many samples are read of it."""


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

        Args:
            split: `train`, `valid` or `test`. If it has no documents, or too few for a sample, the
                result has no plan, or one without samples. For train, that is an error.

        Raises:
            MissingError: A dataset has not been built.
            ConfigError, InputError: The split cannot be filled as its settings ask.
        """
        limit_by_prefix = self._epoch_limits(split)
        limited = self._settings_within_limits(split, limit_by_prefix)
        config = limited.config
        plan: SplitPlan | None = None
        limits_leave_no_sample = config.samples(split) == 0
        if limits_leave_no_sample:
            config = config.with_samples({})  # record settings without a number
        else:
            plan = plan_split(config, split, self.reader, exact=self.exact)
        if split == "train":
            self._check_samples_remain(config)
        why_no_sample = None
        if plan is None or not plan.samples:
            why_no_sample = self._why_no_sample(split, config)

        members: Sequence[MemberCoverage] = ()
        mixture: tuple[MixRow, ...] = ()
        if plan is not None:
            plan = _with_index_folder(plan, self.index_folder)
            members = coverage(plan, config, limit_by_prefix)
            mixture = self._mixture_rows(split, config)
        return PlannedSplit(
            split=split,
            config=config,
            plan=plan,
            members=tuple(members),
            exceeded=tuple(limit for limit in limited.exceeded if limit.split == split),
            corpora=corpora_of(self.spec.blend_of(split)),
            lacking=why_no_sample,
            mixture=mixture,
        )

    def _check_samples_remain(self, config: NanosetConfig) -> None:
        """Check that a training run that changes its data has enough samples left to read.

        For example, the run has read 4,800 samples of other data. Now nanoset.yaml requests 8,000
        samples for the whole run, so 3,200 remain. There are two possible mistakes:

        - nanoset.yaml requests no more than the 4,800, so none remain. Perhaps somebody has written
          the samples that remain, in place of those of the whole run.
        - The run has phases, whose lengths are fixed in nanoset.yaml. But the new data may not be
          read often enough for 3,200 samples.

        Args:
            config: The settings of train. Limits on how often data is read may have reduced its
                number of samples.

        Raises:
            ConfigError: The settings request no more samples than the run has read already.
            InputError: There are fewer samples than a phase of the run needs.
        """
        check_remaining_samples(config)
        if self.spec.continue_:  # the run has phases
            planned_samples = self.spec.samples.get("train", 0)
            check_phase_length(config, planned_samples)

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
        if planned.plan is None:
            return []
        sample_counts = [member.samples_given for member in members or planned.members]
        documents = self._documents_read(planned.plan, planned.config, sample_counts)
        return corpus_coverage(documents.corpora, documents.reads_by_prefix, planned.config)

    def corpora_with_reads(self, planned: PlannedSplit) -> CorporaWithReads:
        """Return what `corpora` returns, and how many tokens are read 0, 1, 2, … times.

        To find out which documents several datasets have takes time, so it is done once for both.

        Args:
            planned: The split.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        if planned.plan is None:
            return CorporaWithReads([], {})
        sample_counts = [member.samples_given for member in planned.members]
        documents = self._documents_read(planned.plan, planned.config, sample_counts)
        reads = documents.reads_by_prefix
        return CorporaWithReads(
            coverage=corpus_coverage(documents.corpora, reads, planned.config),
            tokens_by_reads=tokens_by_reads(documents.corpora, reads, planned.config),
        )

    def limit_warnings(self, planned: PlannedSplit) -> list[str]:
        """Return warnings about documents that may be read more often than `max_epochs` says.

        `max_epochs` limits how often the documents of a dataset are read on average. There are two
        reasons why some of them may be read more often:

        - They are in several datasets, such as web and best-web, a selection of web.
        - The trainer shuffles several epochs of a dataset together.

        Before these, there is a warning if `max_epochs` has changed the length or the weights of
        the split, as `on_exhaustion` says.

        Args:
            planned: The split.

        Returns:
            A sentence without its full stop for the change, and for each dataset or corpus with
            such documents.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        limit_by_prefix = self._enforced_limits(planned.split)
        plan = planned.plan
        if plan is None or not limit_by_prefix:
            return []
        sample_counts = [member.samples_given for member in planned.members]  # of each dataset
        warnings = self._change_warnings(planned)
        warnings += self._shuffle_warnings(planned, plan, sample_counts, limit_by_prefix)
        if self.may_repeat_documents(planned.split):
            warnings += self._sharing_warnings(plan, planned.config, sample_counts, limit_by_prefix)
        return warnings

    @property
    def changes_at_limits(self) -> bool:
        """Whether nanoset changes a split so that it keeps to the limits on epochs.

        on_exhaustion: stop            the split gets shorter
        on_exhaustion: redistribute    other datasets get larger weights
        otherwise                      it stays as requested, or is an error
        """
        return self.spec.on_exhaustion in ("stop", "redistribute")

    def _change_warnings(self, planned: PlannedSplit) -> list[str]:
        """Return a warning if limits on epochs have changed the length or the weights of a split.

        For example, the settings allow to read the dataset `math` twice:

            on_exhaustion: stop leaves 516 of 2,400 samples, since this would be read too often:
            math_text_document 9.23 times in train (at most 2)

        Args:
            planned: The split.

        Returns:
            A list with the warning. It is empty if the split is as the settings request it.
        """
        if not planned.exceeded or not self.changes_at_limits:
            return []
        requested = self._with_samples_of_split(
            planned.split, self._settings_before_limits(planned.split)
        )
        if self.spec.on_exhaustion == "stop":
            change = _change_of_samples(planned, requested)
        else:
            change = _changes_of_weights(planned, requested)
        limits = "; ".join(limit.text for limit in planned.exceeded)
        return [
            f"on_exhaustion: {self.spec.on_exhaustion} {change}, since this would be read too "
            f"often: {limits}"
        ]

    def _shuffle_warnings(
        self,
        planned: PlannedSplit,
        plan: SplitPlan,
        sample_counts: Sequence[int],
        limit_by_prefix: Mapping[str, float],
    ) -> list[str]:
        """Return warnings about datasets that contain documents which may be read too often.

        For example, the documents of books make up a single sample, and may be read 4 times. So 4
        samples are read. But Megatron-LM always prepares one sample more than it reads. For that,
        it shuffles the documents of 5 epochs together, and cuts them into 5 samples. The first 4 of
        these may contain a document 5 times.

        Args:
            planned: The split.
            plan: Its plan.
            sample_counts: How many samples are read of each dataset, in the order of the plan.
            limit_by_prefix: Path of a dataset → how often it may be read.
        """
        reads_by_prefix = MemberReads.by_prefix(plan, planned.config, sample_counts)
        warnings = []
        for name, member in zip(planned.corpora, plan.members, strict=True):
            limit = limit_by_prefix.get(member.prefix)
            if limit is None:
                continue
            most_reads = reads_by_prefix[member.prefix].most_reads(planned.config)  # 5
            if most_reads > math.ceil(limit):
                warnings.append(_shuffle_warning(name, limit, most_reads))
        return warnings

    def _sharing_warnings(
        self,
        plan: SplitPlan,
        config: NanosetConfig,
        sample_counts: Sequence[int],
        limit_by_prefix: Mapping[str, float],
    ) -> list[str]:
        """Return warnings about documents of several datasets, which may be read too often.

        For example, documents may be read once. Some documents of web are also in best-web:

            dataset                           web       best-web    sum
            how often it is read              0.5       0.4         0.9, within the limit
            how often a document is read      0 or 1    0 or 1      2 at worst

        Args:
            plan: The plan of the split.
            config: Its settings.
            sample_counts: How many samples are read of each dataset, in the order of the plan.
            limit_by_prefix: Path of a dataset → how often it may be read.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        documents = self._documents_read(plan, config, sample_counts)
        uneven_reads = unevenly_read(
            documents.corpora, documents.reads_by_prefix, limit_by_prefix, config
        )
        return [_limit_warning(uneven) for uneven in uneven_reads]

    def _enforced_limits(self, split: SplitName) -> dict[str, float]:
        """Return how often datasets may be read, without limits that the user wants to exceed.

        nanoset.yaml has limits at one of two places:

            max_epochs: {web: 4}                with `on_exhaustion: repeat`, this limit may be
                                                exceeded, so there is none in the result
            mix: {web: {max_epochs: 4}, …}      is always kept by train; the other splits have no
                                                mixture, and so no limit

        Args:
            split: The split that reads the datasets, `train`, `valid` or `test`.

        Returns:
            Path of a dataset → limit: {"/data/web_text_document": 4.0}.
        """
        if self.spec.mixture is not None:
            return self._limits_in_mixture(self.spec.mixture) if split == "train" else {}
        if self.spec.on_exhaustion == "repeat":
            return {}
        return self._epoch_limits(split)

    def _limits_in_mixture(self, mixture: MixPart) -> dict[str, float]:
        """Return how often the parts of a mixture may be read, by the paths of their datasets.

        `mix: {web: {max_epochs: 4}, code: {}}` gives {"/data/web_text_document": 4.0}.

        Args:
            mixture: The mixture, as nanoset.yaml has it.
        """
        limit_by_prefix: dict[str, float] = {}
        for corpus, limit in mixture.epoch_limits().items():
            limit_by_prefix[self.prefix(corpus)] = limit
        return limit_by_prefix

    def _documents_read(
        self, plan: SplitPlan, config: NanosetConfig, sample_counts: Sequence[int]
    ) -> _DocumentsRead:
        """Find out which documents a split reads through several datasets, and how much of each.

        From this, the caller computes how often each document is read. For example, train reads 700
        samples of web, and 60 of best-web, a selection of web's documents. The training run has
        read 90 samples of code before, and reads it no more:

            corpora            web: 800,000 tokens are in web alone, 100,000 in web and best-web
                               code: 400,000 tokens are in code
            reads_by_prefix    samples that are read of web: 700, of best-web: 60, of code: 90

        Args:
            plan: The plan of the split.
            config: Its settings.
            sample_counts: How many samples are read of each dataset, in the order of the plan.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        documents_by_prefix = {member.prefix: member.rows for member in plan.members}
        reads_by_prefix = MemberReads.by_prefix(plan, config, sample_counts)
        if plan.split == "train":
            for prefix, order in config.orders.items():
                is_read_no_more = prefix not in reads_by_prefix
                if is_read_no_more:
                    documents_by_prefix[prefix] = order.rows  # (0, 490), the first 490 documents
                    reads_by_prefix[prefix] = self._reads_before(prefix, order)
        corpora = self.shared_documents.parts(documents_by_prefix)
        return _DocumentsRead(corpora, reads_by_prefix)

    def _reads_before(self, prefix: str, order: Order) -> MemberReads:
        """Return what a training run has read of a dataset that it reads no more.

        The data of a run may change while it trains, such as from web to code. Reports on the run
        still count how often it has read the documents of web.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            order: How the run has read the dataset, such as:

                    taken    150         samples that it has read
                    rows     (0, 980)    the documents from which these were cut
                    epochs   2           how often each document was used for that, since the
                                         documents are enough for 100 samples only
        """
        # In one epoch, each of these documents is read once.
        tokens_per_epoch = self.reader.tokens_of(prefix, order.rows)
        return MemberReads(
            tokens=tokens_per_epoch,
            order=order,
            samples_taken=0,  # the run reads no more of it
        )

    # Settings, step by step.

    def _settings_within_limits(
        self, split: SplitName, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Return the settings of a split, changed so that no dataset is read too often.

        For example, nanoset.yaml requests 1,000 samples of train, and web may be read four times at
        most. If only 800 samples are possible without a fifth time, the result requests 800.

        Args:
            split: `train`, `valid` or `test`.
            limit_by_prefix: Path of each dataset with a limit → how often it may be read.

        Returns:
            The settings, and the limits that the settings of nanoset.yaml would exceed.
        """
        config = self._settings_before_limits(split)
        if limit_by_prefix:
            limited = self._limit_epochs(split, config, limit_by_prefix)
        else:
            # `config` may request samples of other splits, too, which only limits need.
            config_of_split = self._with_samples_of_split(split, config)
            limited = LimitedConfig(config_of_split, exceeded=())
        if split == "train":
            self._check_mixture(limited.config)
        return limited

    def _settings_before_limits(self, split: SplitName) -> NanosetConfig:
        """Return the settings of a split as nanoset.yaml has them, before limits change them.

        A limit on how often web is read may change the weight of web in a blend, and with it what
        each split reads that has the same blend. So the limit must be computed from the samples of
        all these splits. Therefore the result requests the samples of all of them. For valid:

            nanoset.yaml                                      samples requested by the result
            blend: {web: 0.5, code: 0.5}                      train 1,000, valid 100, test 100
            blend_per_split: {train: …, valid: {web: 1}, …}   valid 100

        Args:
            split: `train`, `valid` or `test`.

        Raises:
            MissingError: A dataset has not been built.
            ConfigError: The settings contradict each other.
        """
        splits = self._splits_with_same_blend(split)
        # If a training run continues with this data, train leaves out what the run has read before.
        # The other splits do not depend on that.
        read_before = None
        if "train" in splits:
            read_before = self._read_by_run()
        return settings_as_written(self, splits, read_before)

    def _splits_with_same_blend(self, split: SplitName) -> tuple[SplitName, ...]:
        """Return the splits that read the same datasets as a split.

        They are all splits if nanoset.yaml has one `blend`, whose documents train, valid and test
        divide. With `blend_per_split`, each split has datasets of its own.

        Args:
            split: `train`, `valid` or `test`.
        """
        if self.spec.blend is not None:
            return SPLITS
        return (split,)

    def _limit_epochs(
        self, split: SplitName, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Apply limits on how often datasets may be read to the settings of a split.

        Suppose that web has 100 samples and may be read twice. 600 samples are requested, half of
        them from web, which would be read three times. The user chooses what to do about it, by the
        key `on_exhaustion` of nanoset.yaml:

            raise           an error is raised
            repeat          web is read three times: the result only reports this
            stop            about 400 samples are requested, of which 200 are of web
            redistribute    web gets the weight 1/3, so that it is 200 of 600 samples

        Args:
            split: `train`, `valid` or `test`.
            config: The settings of nanoset.yaml. They may request samples of other splits, too.
            limit_by_prefix: Path of a dataset → how often it may be read.

        Returns:
            The settings, which request samples of this split alone; and the limits that those of
            nanoset.yaml exceed.

        Raises:
            InputError: A limit is exceeded, and `on_exhaustion` is `raise`. Or the limits leave too
                few samples.
        """
        splits = self._splits_to_limit_together(split)
        requested_samples = {name: config.samples(name) for name in splits}
        limited = self._apply_limits(config.with_samples(requested_samples), limit_by_prefix)
        config_of_split = self._with_samples_of_split(split, limited.config)

        # If no number of samples of train was requested, there were none to limit until here.
        reads_one_epoch = split == "train" and config.samples(split) is None
        if reads_one_epoch:
            return self._limit_one_epoch(config_of_split, limit_by_prefix)
        return LimitedConfig(config_of_split, limited.exceeded)

    def _apply_limits(
        self, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Change settings as `on_exhaustion` says if they read datasets more often than allowed.

        With `stop`, for example, the result requests fewer samples.

        Args:
            config: The settings, with the samples to which the limits are applied.
            limit_by_prefix: Path of a dataset → how often it may be read.

        Returns:
            The settings, and the limits that they exceeded before the change.

        Raises:
            InputError: A limit is exceeded, and `on_exhaustion` is `raise`. Or the limits leave too
                few samples.
        """
        return apply_epoch_limits(
            config,
            limit_by_prefix,
            self.spec.on_exhaustion,
            self.reader,
            self.shared_documents,
        )

    def _splits_to_limit_together(self, split: SplitName) -> tuple[SplitName, ...]:
        """Return the splits whose samples count when limits on epochs are applied to a split.

        With `on_exhaustion: redistribute`, a limit changes the weights of the datasets. If
        nanoset.yaml has one `blend`, these are the weights of train, valid and test. Each of the
        three must get the same new weights, so they are computed from the samples of all three:

            redistribute, one `blend`                train, valid, test
            redistribute, with `blend_per_split`     the split alone, since it has its own weights
            otherwise, such as `stop`                the split alone, since no weight changes

        Args:
            split: `train`, `valid` or `test`.
        """
        weights_change = self.spec.on_exhaustion == "redistribute"
        splits_share_weights = self.spec.blend is not None
        if weights_change and splits_share_weights:
            return SPLITS
        return (split,)

    def _with_samples_of_split(self, split: SplitName, config: NanosetConfig) -> NanosetConfig:
        """Return settings that request samples of one split only.

        If the user has not said how many, the data decides. Suppose that web has 100 samples, and
        code 300:

            [web, code], no weights     no number: each of the 400 samples is read once
            {web: 0.5, code: 0.5}       about 200: as many as there are in these proportions until
                                        web is used up

        Args:
            split: `train`, `valid` or `test`.
            config: The settings. Samples of other splits that they request are removed.
        """
        samples = config.samples(split)
        if samples is None and self._weights_need_number(split, config):
            samples = largest_epoch_size(config, split=split, reader=self.reader)
        return config.with_samples({split: samples})

    def _weights_need_number(self, split: SplitName, config: NanosetConfig) -> bool:
        """Return whether a trainer can apply the weights of a split to a number of samples only.

            [web, code], no weights     no
            {web: 0.5, code: 0.5}       yes, with most trainers; no if the split has no documents

        Args:
            split: `train`, `valid` or `test`.
            config: The settings, with the rules of the trainer.
        """
        has_weights = isinstance(self.spec.blend_of(split), Mapping)
        return has_weights and config.rules.needs_samples(split) and _has_share(config, split)

    def _epoch_limits(self, split: SplitName) -> dict[str, float]:
        """Return how often datasets may be read: `{"/data/web_text_document": 4.0}`.

        `max_epochs: {web: 4}` in nanoset.yaml limits web alone. Datasets without a limit are left
        out.

        Args:
            split: The split that reads the datasets, `train`, `valid` or `test`.

        Raises:
            MissingError: A dataset has not been built.
        """
        limits: dict[str, float] = {}
        for corpus, prefix in dataset_prefixes(self, self._splits_with_same_blend(split)).items():
            limit = self.spec.epoch_limit(corpus)
            if limit is not None:
                limits[prefix] = limit
        return limits

    def _limit_one_epoch(
        self, config: NanosetConfig, limit_by_prefix: Mapping[str, float]
    ) -> LimitedConfig:
        """Apply limits on how often documents may be read to one epoch of train.

        In one epoch, most trainers read each dataset once. Still, a document may be read twice:

            - Train reads the corpus `web` and the view `best-web`, a selection of its documents.
            - Some trainers read a dataset with a large weight several times.

        Suppose that an epoch has 1,000 samples, and that `max_epochs: 1` forbids to read a document
        twice. `on_exhaustion` says what to do about it:

            raise           an error is raised
            repeat          the settings stay as they are: the result only reports this
            stop            a smaller number of samples is requested, such as 700
            redistribute    the datasets get other weights

        Args:
            config: The settings of train for one epoch. They have no number of samples, which
                stands for one epoch, or exactly the number of one epoch.
            limit_by_prefix: Path of a dataset, without ending → how often it may be read.

        Returns:
            The settings, unchanged if one epoch exceeds no limit; and the limits that it exceeds.

        Raises:
            InputError: A limit is exceeded, and `on_exhaustion` is `raise`. Or the limits leave too
                few samples.
        """
        unchanged = LimitedConfig(config, exceeded=())
        if not self.may_repeat_documents("train"):
            return unchanged
        plan = plan_split(config, "train", self.reader, exact=self.exact)
        if plan is None or not plan.samples:
            return unchanged
        # Limits apply to a number of samples: those of one epoch.
        epoch_config = config.with_samples({"train": plan.samples})
        limited = self._apply_limits(epoch_config, limit_by_prefix)
        if not limited.exceeded:
            return unchanged
        if self.spec.on_exhaustion == "repeat":
            return LimitedConfig(config, limited.exceeded)  # without the number of samples
        return limited

    # A run that continues.

    def _read_by_run(self) -> Read | None:
        """Return what a training run has read of other data before it continues with this nanoset.

        There are two ways to change the data of a run:

            continue_from: …    the user has stopped the run, and changes its nanoset
            phases: …           nanoset.yaml has planned from the start when the data changes

        Returns:
            The samples that were read before; None if the run starts with this nanoset.

        Raises:
            ConfigError: The nanoset before has no samples of train.
            MissingError: The files with which the run was started were deleted.
        """
        if self.spec.continue_from is not None:
            return read_since_handoff(self.project.outputs, self.spec.continue_from)

        previous_phase = self.phase_before()
        if previous_phase is None:
            return None
        return _read_by_phase(previous_phase)

    # Checks.

    def _check_mixture(self, config: NanosetConfig) -> None:
        """Check that no document is read too often because two parts of a mixture contain it.

        For example, web may be read 3 times, and so may best-web, a selection of its documents.
        Both parts keep their limits, but a document that is in both could be read 6 times.

        Args:
            config: The settings of train, with the weights of the mixture.

        Raises:
            InputError: A document is read more often than each of its parts may be.
        """
        if self.spec.mixture is None:
            return
        limit_by_prefix = self._limits_in_mixture(self.spec.mixture)
        if not limit_by_prefix or not self.may_share_documents("train"):
            return

        # Count the documents that several parts have, and how often they are read in all.
        exceeded = documents_read_too_often(
            config, "train", limit_by_prefix, self.reader, self.shared_documents
        )
        if exceeded:
            raise _shared_parts_error(exceeded)

    def _why_no_sample(self, split: SplitName, built_config: NanosetConfig) -> str | None:
        """Return why a split has no sample, although nanoset.yaml gives it a share of the data.

        For example: "it has no sample: tokens of test: web 12; a sample takes 17. Give test a
        larger share, or none, or leave out what is too small".

        Args:
            split: The split that has no sample.
            built_config: The settings that the splits are built with. If a share is too small for a
                sample, it was given to another split here: "98,1,1" has become "98,2,0".

        Returns:
            The reason; None if nanoset.yaml gives the split no share, so it is empty on purpose.

        Raises:
            InputError: The split is train. Without samples of train there is nothing to train on.
        """
        written_config = self._with_written_shares(built_config)
        blend = self.spec.blend_of(split)
        if blend is None or not _has_share(written_config, split):
            return None
        reason = too_few_tokens(written_config, split, self.reader, corpora_of(blend))
        if split == "train":
            raise no_training_sample(written_config, reason)

        message = f"it has no sample: {reason}"
        share_was_moved = not _has_share(built_config, split)
        if share_was_moved:
            message += f"; its share went to the split before it (split: {built_config.split})"
        return f"{message}. Give {split} a larger share, or none, or leave out what is too small"

    def _with_written_shares(self, built_config: NanosetConfig) -> NanosetConfig:
        """Return settings with the shares that the user has written, such as "98,1,1".

        Args:
            built_config: The settings that the splits are built with, perhaps with other shares.
        """
        if self.spec.shares is None:
            return built_config
        return replace(built_config, split=self.spec.shares)


def _read_by_phase(phase: NanosetContext) -> Read:
    """Return which samples a training run has read when one of its phases ends.

    A run may have phases that read different data. Each ends after the number of samples that
    nanoset.yaml says, or with the last sample of its data.

    Args:
        phase: The settings and the data of the phase.

    Raises:
        ConfigError: The phase has no samples.
    """
    train = phase.plan("train")
    if train.plan is None:
        raise ConfigError(
            "the previous phase has no sample of train to continue from",
            where=f"nanosets.{phase.name}",
            remedy="give it a share in `split`",
        )
    planned_samples = phase.spec.samples["train"]
    samples_read = min(planned_samples, train.plan.samples)
    return Read(train.plan, train.config, end=samples_read)


def _change_of_samples(planned: PlannedSplit, requested: NanosetConfig) -> str:
    """Say how many samples are left of a split, as a clause: "leaves 516 of 2,400 samples".

    Args:
        planned: The split, after limits on epochs were applied.
        requested: The settings of nanoset.yaml. They may not say how many samples are wanted.
    """
    n_requested = requested.samples(planned.split)
    if n_requested is None:
        return f"leaves {planned.samples:,} samples"
    n_left = planned.config.samples(planned.split) or 0
    return f"leaves {n_left:,} of {n_requested:,} samples"


def _changes_of_weights(planned: PlannedSplit, requested: NanosetConfig) -> str:
    """Say how the weights of a split have changed, as a clause.

    For example: "changes weights (web 89.25% instead of 50%, math 10.75% instead of 50%)".

    Args:
        planned: The split, after limits on epochs were applied.
        requested: The settings of nanoset.yaml.
    """
    percentages_before = _weight_percentages(requested, planned.split)
    percentages_now = _weight_percentages(planned.config, planned.split)
    if percentages_before is None or percentages_now is None:
        return "changes weights"

    changes: list[str] = []
    percentages = zip(planned.corpora, percentages_before, percentages_now, strict=True)
    for name, before, now in percentages:
        if before != now:
            changes.append(f"{name} {now} instead of {before}")
    return f"changes weights ({abbreviated(changes, _MAX_CHANGED_WEIGHTS)})"


def _weight_percentages(config: NanosetConfig, split: SplitName) -> list[str] | None:
    """Return the weights of the datasets that a split reads, such as ["89.25%", "10.75%"].

    Args:
        config: The settings of the split.
        split: `train`, `valid` or `test`.

    Returns:
        In the order of the datasets; None if they have no weights.
    """
    blend = config.blend(split)
    if blend is None:
        return None
    _, weights = blend
    if weights is None:
        return None
    total_weight = sum(weights)
    return [f"{100 * (weight / total_weight):.4g}%" for weight in weights]


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


def _limit_warning(uneven: UnevenReads) -> str:
    """Return the warning that `max_epochs` does not hold for each document.

    The text has no number that changes whenever text is added: users know warnings by their text.

    Args:
        uneven: Documents that may be read more often than the limit, and the limit.
    """
    holders = " and ".join(uneven.holders)
    verb = "share" if len(uneven.holders) > 1 else "repeats"
    return (
        f"max_epochs ({uneven.limit:g}) limits an average: some of the documents that {holders} "
        f"{verb} may be read {uneven.most_reads} times. To prevent this, read parts that have no "
        "documents in common"
    )


def _shuffle_warning(name: str, limit: float, most_reads: int) -> str:
    """Return the warning that documents of a dataset may be read too often due to the shuffle.

    Args:
        name: Name of the corpus or view.
        limit: How often it may be read.
        most_reads: How often some of its documents may be read.
    """
    return (
        f"max_epochs ({limit:g}) limits an average: some documents of {name} may be read "
        f"{most_reads} times, since the trainer does not shuffle each epoch on its own. To prevent "
        "this, lower its max_epochs, add text to it, or leave it out"
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
        plan: Which samples a split has, and the names of the index files: those of each dataset
            (its `members`), and those that say how datasets are mixed (its `blend`).
        folder: Ends with a slash, or is empty: then the files are in the cache itself.
    """
    if not folder:
        return plan
    members = tuple(_part_in_folder(member, folder) for member in plan.members)
    blend = plan.blend
    if blend is not None:
        blend = _part_in_folder(blend, folder)
    return replace(plan, members=members, blend=blend)


def _part_in_folder(part: _Part, folder: str) -> _Part:
    """Return the plan of a dataset, or of a blend of datasets, with its files in a folder.

    Args:
        part: The plan.
        folder: The folder below the trainer's cache, with a slash at its end.
    """
    files = {kind: folder + name for kind, name in part.files.items()}
    return replace(part, files=files, receipt_name=folder + part.receipt_name)
