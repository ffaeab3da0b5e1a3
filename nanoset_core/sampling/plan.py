"""Plan a split: decide what will be built for it, before anything is built.

The plan says, for each dataset of the split, which sequences belong to the split, how many epochs
of them are shuffled, and how many samples that gives; and for a blend, how many samples it has and
with which weights the datasets are mixed.

For example, train has 1,000 tokens of a dataset, and 150 samples of 10 tokens are requested, each
with an extra token, which is the first token of the next sample:

    tokens needed     150 * 10 + 1 = 1,501
    epochs            2, since one has 1,000 tokens
    samples built     (2 * 1,000 - 1) // 10 = 199, of which the trainer reads 150

All numbers are computed in closed form, from the `.idx` files of the datasets alone: no array as
long as the samples is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.bisection import largest_that_fits
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.descriptions import blend_names
from nanoset_core.sampling.member_plan import (
    ONE_EPOCH,
    MemberPlanner,
    NeededSamples,
    separate_last_epoch,
)
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.shortages import (
    MIN_NANOTRON_TOKENS,
    no_training_sample,
    too_few_tokens,
)
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SplitName

__all__ = ["largest_epoch_size", "plan_split", "plan_splits", "separate_last_epoch"]


def plan_split(
    config: NanosetConfig,
    split: SplitName,
    reader: LengthReader | None = None,
    *,
    exact: bool = True,
) -> SplitPlan | None:
    """Plan one split: how many epochs and samples of each dataset it has, and how they are mixed.

    Args:
        config: Configuration of the nanoset: its datasets, their weights, and the numbers of
            samples.
        split: The split: train, valid or test.
        reader: Reads the datasets' `.idx` files; share it between splits that are planned together.
        exact: Only for a run that was stopped and continues with other weights. False estimates how
            many samples of each dataset it skips, which is faster and wrong by one or two.

    Returns:
        The plan, or None if the split has no share of the data.

    Raises:
        ConfigError: The trainer would refuse the split, hang, or read wrong samples.
        MissingError, FormatError: A `.idx` file is missing or damaged.
    """
    data = SplitData(config, split, reader or LengthReader())
    return _SplitPlanner(data, exact=exact).plan()


def plan_splits(
    config: NanosetConfig, splits: Sequence[SplitName], reader: LengthReader
) -> dict[SplitName, SplitPlan | None]:
    """Plan several splits, and check that train, if it has a share, has a sample.

    Args:
        config: Configuration of the nanoset.
        splits: Names of the splits.
        reader: Reads the datasets' `.idx` files.

    Returns:
        Name of a split → its plan; None for a split without a share of the data.

    Raises:
        InputError: Train has a share, but no sample.
        ConfigError, MissingError, FormatError: As for `plan_split`.
    """
    plans = {split: plan_split(config, split, reader) for split in splits}
    train = plans.get("train")
    if train is not None and not train.samples:
        raise no_training_sample(config, too_few_tokens(config, "train", reader))
    return plans


def largest_epoch_size(
    config: NanosetConfig, split: SplitName = "train", reader: LengthReader | None = None
) -> int:
    """Return how many samples a weighted blend can have without reading a dataset more than once.

    For example, two datasets have 600 and 1,000 samples, and equal weights. A blend of 1,200
    samples takes 600 of each, and a larger one would read the first dataset a second time. Trainers
    build some samples more than they take, so the result is slightly smaller.

    Args:
        config: Configuration of the nanoset.
        split: The split that the blend is for.
        reader: Reads the datasets' `.idx` files.

    Returns:
        The largest such number; 0 if even one sample is too many.

    Raises:
        ConfigError: The blend has no weights, or a boundary of the split is outside of a dataset.
        MissingError, FormatError: A `.idx` file is missing or damaged.
    """
    prefixes, weights = config.blend(split) or ([], None)
    if weights is None:
        raise _needs_weights_error(split, prefixes)

    shares = config.rules.normalized(weights)
    data = SplitData(config, split, reader or LengthReader())
    samples_of_epoch = [config.samples_in(data.part_of(prefix).tokens) for prefix in prefixes]

    def fits(size: int) -> bool:
        """Return whether a blend of this size needs at most one epoch of each dataset."""
        for share, limit in zip(shares, samples_of_epoch, strict=True):
            # Trainers build a little more than the share of a dataset: `surplus` is usually 0.5 %.
            sizes = config.rules.member_sizes(size, share, config.surplus)
            if sizes.built > limit:
                return False
        return True

    # Since sizes are rounded, each dataset may give up to one sample more than its share.
    upper_bound = sum(samples_of_epoch) + len(samples_of_epoch) + 1
    return largest_that_fits(upper_bound, fits)


def _needs_weights_error(split: SplitName, prefixes: Sequence[str]) -> ConfigError:
    """Return the error for a blend without weights, whose size does not depend on any."""
    return ConfigError(
        "a blend with weights is needed",
        where=f"blend of {split}",
        found=prefixes,
    )


class _Mixture(NamedTuple):
    """How a blend mixes the samples of its datasets."""

    size: int
    """Samples of the blend."""
    weights: tuple[float, ...] | tuple[int, ...]
    """Weight of each dataset."""


class _SplitPlanner:
    """Plans one split of a nanoset."""

    def __init__(self, data: SplitData, *, exact: bool) -> None:
        self.data = data
        self.config = data.config
        self.split = data.split
        self.rules = data.config.rules
        self.exact = exact
        self.requested = data.config.samples(data.split)
        """Samples that are requested of the split; None for one epoch."""
        self.where = f"split {data.split}"
        self.members = MemberPlanner(data)

    def plan(self) -> SplitPlan | None:
        """Return the plan of the split, or None if it has no share of the data.

        A split reads either one dataset, or a *blend*: several datasets, whose samples are mixed.

        Raises:
            ConfigError: The trainer cannot build the split, or would read wrong samples.
        """
        blend = self.config.blend(self.split)
        if blend is None or not self._may_have_sequences():
            return None
        prefixes, weights = blend
        self._check_blend(prefixes, weights)

        # Trainers read a single dataset without the index files of a blend.
        if self._is_plain_dataset(prefixes, weights):
            return self._plan_plain_dataset(prefixes[0])

        # Plan each dataset of the blend, its *member*, and then how their samples are mixed.
        members = self._plan_members(prefixes, weights)
        if not members:
            return None
        blend_plan = self._plan_blend(members, weights)
        return SplitPlan(self.split, self.rules.name, members, blend_plan)

    def _may_have_sequences(self) -> bool:
        """Return whether the trainer would build the split, if there are sequences for it."""
        if self.data.has_own_blend or self.data.has_share:
            return True
        # Rounding can give a sequence to a split without a share. NeMo then builds it, if samples
        # are requested.
        return self.rules.empty_split == "skip" and self.requested is not None

    def _check_blend(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> None:
        """Check that the trainer can mix the datasets, for the requested number of samples.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each; None for datasets without weights.

        Raises:
            ConfigError: The trainer cannot mix these datasets, or not for this number of samples.
        """
        self._check_number_of_datasets(prefixes)
        self._check_separate_blends()
        self._check_weights(prefixes, weights)
        self._check_requested_samples(has_weights=weights is not None)

    def _check_requested_samples(self, *, has_weights: bool) -> None:
        """Check that a number of samples is requested if and only if the trainer uses one.

        Args:
            has_weights: Whether the blend has weights. These say how a number of samples is divided
                among the datasets.

        Raises:
            ConfigError: A number is missing; or it is given for a split of which the trainer always
                reads one epoch, as some do for valid and test.
        """
        rules = self.rules
        if self.requested is not None and not rules.takes_samples(self.split):
            raise ConfigError(
                "the split is always one epoch",
                where=self.where,
                found=f"{self.requested} samples, preset {rules.name}",
                expected="None",
            )
        if has_weights and self.requested is None and rules.needs_samples(self.split):
            raise ConfigError(
                "a blend with weights needs a number of samples",
                where=self.where,
                found=f"{self.split}_split_samples=None",
                expected="a number, or datasets without weights",
            )

    def _check_number_of_datasets(self, prefixes: Sequence[str]) -> None:
        """Check that the trainer can mix as many datasets.

        Raises:
            ConfigError: There are too many.
        """
        if len(prefixes) > self.rules.max_datasets:
            raise ConfigError(
                "too many datasets in the blend",
                where=self.where,
                found=len(prefixes),
                expected=f"at most {self.rules.max_datasets}",
            )

    def _check_separate_blends(self) -> None:
        """Check that the trainer supports separate blends for splits, if there are any.

        Raises:
            ConfigError: It does not.
        """
        if self.data.has_own_blend and not self.rules.per_split_blends:
            raise ConfigError(
                "splits cannot have separate blends",
                where=self.where,
                found=f"preset {self.rules.name}",
                expected="data_path and split",
            )

    def _check_weights(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> None:
        """Check that the trainer can mix datasets without weights, if these have none.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each; None for datasets without weights.

        Raises:
            ConfigError: It cannot.
        """
        if weights is None and len(prefixes) > 1 and not self.rules.unweighted_blends:
            raise ConfigError(
                "the blend needs weights",
                where=self.where,
                found=f"preset {self.rules.name}, a list of prefixes",
                expected="{prefix: weight}",
            )

    def _is_plain_dataset(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> bool:
        """Return whether the trainer reads the split from one dataset, without a blend."""
        if len(prefixes) != 1 or self.rules.windows:
            return False
        if weights is None:
            return True
        return self.data.has_own_blend and self.rules.lone_weight_is_plain

    def _plan_plain_dataset(self, prefix: str) -> SplitPlan | None:
        """Plan a split that is a single dataset without a blend."""
        needed = NeededSamples(self.requested, self.requested)
        member = self.members.plan(prefix, None, needed, self.config.consumed_samples)
        if member is None:
            return None
        return SplitPlan(self.split, self.rules.name, (member,), None)

    def _plan_members(
        self, prefixes: Sequence[str], weights: Sequence[float] | None
    ) -> tuple[MemberPlan, ...]:
        """Plan each dataset of a blend: its sequences, epochs and samples in the split.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each dataset; None if the blend has no weights.

        Returns:
            The plans in the order of the blend. There are none if no dataset has a sample in the
            split, and the trainer skips such datasets.

        Raises:
            ConfigError: Only some of the datasets have samples in the split, or two datasets would
                share index files.
        """
        shares: Sequence[float | None] = [None] * len(prefixes)
        if weights is not None:
            shares = self.rules.normalized(weights)
        starts = self._starts(prefixes, weights)  # 0, unless a run continues with other weights

        members = []
        skipped_prefixes = []
        for prefix, share, start in zip(prefixes, shares, starts, strict=True):
            member = self.members.plan(prefix, share, self._needed_samples(share), start)
            if member is None or self._is_left_out(member):
                skipped_prefixes.append(prefix)
            else:
                members.append(member)

        # A trainer can skip all datasets of a split, but not some of them.
        if members and skipped_prefixes:
            raise self._skipped_dataset_error(skipped_prefixes[0])
        self._check_file_names(members)
        return tuple(members)

    def _skipped_dataset_error(self, prefix: str) -> ConfigError:
        """Return the error for a dataset that is skipped, while others of the blend are not.

        The weights of the blend would not belong to the remaining datasets.
        """
        return ConfigError(
            "a dataset of the blend has no samples in the split",
            where=self.where,
            found=prefix,
            expected="a sample, or none of the others either",
        )

    def _needed_samples(self, share: float | None) -> NeededSamples:
        """Return how many samples the blend needs of a dataset.

        For example, a share of 0.3 of 1,000 samples is 300, and the trainer requests 302, to be
        safe.

        Args:
            share: Its share of the blend's samples; None in a blend without weights.
        """
        if share is None or self.requested is None:
            return ONE_EPOCH
        target, requested = self.rules.member_sizes(self.requested, share, self.config.surplus)
        return NeededSamples(target, requested)

    def _is_left_out(self, member: MemberPlan) -> bool:
        """Return whether the trainer leaves a dataset out of the blend since it has no sample."""
        if not self.rules.drops_short_members or self.data.has_own_blend:
            return False
        return member.samples_given == 0

    def _starts(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> Sequence[int]:
        """Return how many samples of each dataset the trainer skips when a run is resumed.

        A run that continues with other weights starts a new *phase*. The trainer counts the samples
        of the whole run, so in the new blend it skips as many as were consumed. For example, these
        are 100, and the new weights are 0.7 and 0.3. Then it skips the first 70 and 30 samples of
        the datasets, even if earlier phases, with other weights, read 50 and 50.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each dataset; None if the blend has no weights.

        Returns:
            A number for each dataset: 0 in the first phase, and if there are no weights.
        """
        if not self.members.is_later_phase or weights is None:
            return [0] * len(prefixes)
        blend_weights = tuple(self.rules.blend_weights(self.rules.normalized(weights)))
        return samples_taken(
            blend_weights, start=0, stop=self.config.consumed_samples, exact=self.exact
        )

    def _check_file_names(self, members: Sequence[MemberPlan]) -> None:
        """Check that the index files of two datasets have different names in one cache folder.

        Raises:
            ConfigError: Two datasets have the same names, so one would overwrite the other's files.
        """
        if self.config.path_to_cache is None:
            return  # the files are stored next to their datasets
        prefix_by_file: dict[str, str] = {}
        for member in members:
            # All names of a dataset's files have the same start: compare the first ones.
            file = member.cache_files[0]
            other_prefix = prefix_by_file.setdefault(file, member.prefix)
            if other_prefix != member.prefix:
                raise ConfigError(
                    "two datasets of the blend would share index files",
                    where=self.where,
                    found=f"{other_prefix} and {member.prefix}: {file}",
                    expected="datasets with different file names, "
                    f"since index files of preset {self.rules.name} are named without the folder",
                )

    def _plan_blend(
        self, members: tuple[MemberPlan, ...], weights: Sequence[float] | None
    ) -> BlendPlan:
        """Plan how the samples of the split's datasets are mixed.

        Args:
            members: Plans of the datasets.
            weights: Weight of each as configured; None for datasets without weights.

        Raises:
            ConfigError: The blend or a dataset has no samples, and the trainer needs some.
        """
        self._check_samples(members, weights)
        mixture = self._mixture_of(members, weights)
        if mixture.size == 0 and self.rules.zero_samples != "any":
            raise self._empty_blend_error()

        # Without weights and a requested number, the blend takes every sample of every dataset once
        # ("exhaustive"). Trainers that read windows have no such blends: they use the numbers of
        # samples as weights.
        is_exhaustive = weights is None and self.requested is None and not self.rules.windows

        # The trainer names its files by the hash of a description of the blend, which has no size
        # if the blend is exhaustive.
        described_size = None if is_exhaustive else mixture.size
        names = blend_names(self.rules, self.split, members, mixture.weights, described_size)
        return BlendPlan(
            size=mixture.size,
            weights=mixture.weights,
            exhaustive=is_exhaustive,
            description=names.description,
            hash=names.hash,
            files=names.files,
            sidecar=names.sidecar,
            seed=self.config.random_seed if self.rules.shuffles_blend else None,
        )

    def _empty_blend_error(self) -> ConfigError:
        """Return the error for a blend without samples."""
        return ConfigError(
            "a blend needs samples",
            where=self.where,
            found=f"preset {self.rules.name}, a size of 0",
            expected="1 or more",
        )

    def _check_samples(
        self, members: Sequence[MemberPlan], weights: Sequence[float] | None
    ) -> None:
        """Check that every dataset of the blend has a sample, if the trainer needs one.

        Args:
            members: Plans of the datasets.
            weights: Weight of each as configured; None for datasets without weights.

        Raises:
            ConfigError: A dataset has no sample.
        """
        for member in members:
            has_sample = member.samples_given > 0
            if has_sample or self._may_lack_samples(member, weights):
                continue
            # A dataset has no sample because it has too few tokens for one.
            raise ConfigError(
                "a dataset of the blend has no samples in the split",
                where=self.where,
                found=f"{member.prefix}: {member.tokens} tokens",
                expected=f"{self.config.sample_tokens} tokens or more",
            )

    def _may_lack_samples(self, member: MemberPlan, weights: Sequence[float] | None) -> bool:
        """Return whether the trainer can build the blend although a dataset has no sample."""
        # Without weights, the blend takes samples of every dataset.
        if weights is None:
            return False
        # With weights, the blend may be so short that it takes no sample of the dataset.
        if self.rules.wraps == "never":
            return True
        return member.tokens >= MIN_NANOTRON_TOKENS

    def _mixture_of(
        self, members: Sequence[MemberPlan], weights: Sequence[float] | None
    ) -> _Mixture:
        """Return how many samples a blend has, and the weights by which it mixes its datasets.

        Args:
            members: Plans of the blend's datasets.
            weights: Weight of each dataset as configured; None for datasets without weights.
        """
        dataset_sizes = tuple(member.samples_given for member in members)
        if self.rules.windows:
            return self._mixture_of_windows(dataset_sizes, weights)
        if weights is None:
            return self._mixture_by_size(dataset_sizes)
        return self._mixture_by_weight(members, weights)

    def _mixture_of_windows(
        self, dataset_sizes: tuple[int, ...], weights: Sequence[float] | None
    ) -> _Mixture:
        """Return the mixture of a trainer that cuts its datasets into windows.

        It takes as many samples as are requested, or all. Without weights, it mixes the datasets in
        proportion to their sizes.

        Args:
            dataset_sizes: Samples that each dataset can give.
            weights: Weight of each dataset as configured, or None.
        """
        size = sum(dataset_sizes) if self.requested is None else self.requested
        return _Mixture(size, tuple(self.rules.normalized(weights or dataset_sizes)))

    def _mixture_by_size(self, dataset_sizes: tuple[int, ...]) -> _Mixture:
        """Return the mixture of datasets that have no weights: in proportion to their sizes.

        For example, datasets of 300 and 100 samples, of which 200 samples are requested, have the
        weights 0.75 and 0.25. If no number is requested, the blend has all 400 samples, and the
        weights are 300 and 100.

        Args:
            dataset_sizes: Samples that each dataset can give.
        """
        n_available = sum(dataset_sizes)
        if self.requested is None:
            return _Mixture(n_available, dataset_sizes)
        size = min(self.requested, n_available)
        return _Mixture(size, tuple(self.rules.normalized(dataset_sizes)))

    def _mixture_by_weight(
        self, members: Sequence[MemberPlan], weights: Sequence[float]
    ) -> _Mixture:
        """Return the mixture of datasets that have weights.

        Args:
            members: Plans of the datasets.
            weights: Weight of each as configured, such as 3 and 1.
        """
        # Most trainers divide weights by their sum twice, which can change the last bit.
        blend_weights = tuple(self.rules.blend_weights(self.rules.normalized(weights)))
        if self.requested is None:
            n_available = sum(member.samples_given for member in members)
            return _Mixture(n_available, blend_weights)

        # What a blend takes of each dataset is rounded up. Some trainers add up these numbers, so
        # their blend has slightly more samples than requested.
        size = self.rules.weighted_size(
            self.requested,
            taken_by_dataset=[member.samples_target or 0 for member in members],
            built_by_dataset=[member.samples_requested or 0 for member in members],
            per_split=self.data.has_own_blend,
        )
        return _Mixture(size, blend_weights)
