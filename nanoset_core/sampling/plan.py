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
from nanoset_core.sampling.shortages import no_training_sample, too_few_tokens
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
    """Decide what a split of the data (train, valid or test) consists of, before it is built.

    The plan has one entry for each dataset, and one for the blend, which mixes their samples. For
    example, 1,200 samples of two datasets with the weights 3 and 1:

        dataset    tokens    samples of one epoch    needed    epochs
        web        20,480    2,000                   900       1
        books       1,024      100                   300       3

    Only the lengths of documents are read, so this is fast.

    Args:
        config: What to train with: the datasets, their weights, and the number of samples.
        split: The split.
        reader: Reads the lengths from the datasets' `.idx` files; share it between splits.
        exact: False is faster if a training run has changed its weights. Numbers of samples may
            then be wrong by one or two.

    Returns:
        The plan, or None if the split has no share of the data.

    Raises:
        ConfigError: The trainer would refuse the split, hang, or read wrong samples.
        MissingError, FormatError: A `.idx` file is missing or damaged.
    """
    data = SplitData(config, split, reader or LengthReader())
    planner = _SplitPlanner(data, exact=exact)
    return planner.plan()


def plan_splits(
    config: NanosetConfig, splits: Sequence[SplitName], reader: LengthReader
) -> dict[SplitName, SplitPlan | None]:
    """Decide what several splits of the training data consist of, before they are built.

    Training is impossible without training samples, so this is checked here: the split train may
    have a share of the data, but too few tokens for one sample.

    Args:
        config: What to train with: the datasets, their weights, and the numbers of samples.
        splits: Names of the splits: train, valid and test, or some of them.
        reader: Reads the lengths of documents from the datasets' `.idx` files.

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
    """Return how many samples can be trained on without reading any dataset more than once.

    The samples are taken from several datasets in proportion to weights, so the dataset that is
    used up first decides. For example, with the weights 0.5 and 0.5:

        dataset                     web      books
        samples of one epoch        1,000    600
        taken of 1,200 samples      600      600      one epoch of books
        taken of 1,400 samples      700      700      more than one epoch of books

    The result is slightly less than 1,200, since trainers prepare some more samples of each dataset
    than they take.

    Args:
        config: What to train with: the datasets and their weights.
        split: The split of the data (train, valid or test).
        reader: Reads the lengths of documents from the datasets' `.idx` files.

    Returns:
        The largest such number; 0 if even one sample is too many.

    Raises:
        ConfigError: There are no weights, or a boundary of the split is outside of a dataset.
        MissingError, FormatError: A `.idx` file is missing or damaged.
    """
    blend = config.blend(split)
    if blend is None:
        raise _needs_weights_error(split, [])
    prefixes, weights = blend
    if weights is None:
        raise _needs_weights_error(split, prefixes)

    shares = config.rules.normalized(weights)  # they add up to 1
    data = SplitData(config, split, reader or LengthReader())
    samples_of_epoch = [config.samples_in(data.part_of(prefix).tokens) for prefix in prefixes]

    def fits(size: int) -> bool:
        """Return whether this number of samples needs at most one epoch of each dataset."""
        for share, limit in zip(shares, samples_of_epoch, strict=True):
            # The trainer prepares, for example, 0.5 % more samples than it takes (`surplus`).
            sizes = config.rules.member_sizes(size, share, config.surplus)
            if sizes.built > limit:
                return False
        return True

    # Try sizes up to all samples of all datasets. Numbers are rounded, so each dataset may give one
    # more.
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
        """Decide what the split (train, valid or test) consists of, before it is built.

        Most splits mix several datasets. Then the plan has an entry for each dataset (a *member*),
        and one for the mixture (the *blend*). For a single dataset, there is no blend.

        Returns:
            The plan, or None if the split has no data.

        Raises:
            ConfigError: The trainer cannot build the split, or would read wrong samples.
        """
        blend = self.config.blend(self.split)
        if blend is None or not self._may_have_documents():
            return None
        prefixes, weights = blend  # paths of the datasets such as "data/web", and their weights
        self._check_blend(prefixes, weights)
        if self._is_single_dataset(prefixes, weights):
            return self._plan_single_dataset(prefixes[0])

        members = self._plan_members(prefixes, weights)
        if not members:
            return None  # no dataset has a sample
        blend_plan = self._plan_blend(members, weights)
        return SplitPlan(self.split, self.rules.name, members, blend_plan)

    def _may_have_documents(self) -> bool:
        """Return whether the split can have documents of the datasets.

        It can if it has a share of them, such as 0.05 for valid, or datasets of its own. NeMo is an
        exception: rounding may give a document to a split without a share. NeMo uses it if samples
        of the split are requested.
        """
        if self.data.has_own_blend or self.data.has_share:
            return True
        is_nemo = self.rules.empty_split == "skip"
        return is_nemo and self.requested is not None

    def _check_blend(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> None:
        """Check that the trainer can mix these datasets, before anything is planned.

        For example, NeMo cannot read more than 254 datasets, and some trainers need weights.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each; None for datasets without weights.

        Raises:
            ConfigError: The trainer cannot mix these datasets, or not for this number of samples.
        """
        self._check_number_of_datasets(prefixes)
        self._check_may_have_own_datasets()
        self._check_weights(prefixes, weights)
        self._check_number_of_samples(has_weights=weights is not None)

    def _check_number_of_samples(self, *, has_weights: bool) -> None:
        """Check whether a number of samples may be, or must be, requested of the split.

        Some trainers always read valid and test once, so no number may be requested. With weights,
        a number must be: 3/4 of the samples are from one dataset and 1/4 from another one, but 3/4
        of how many?

        Args:
            has_weights: Whether the datasets have weights.

        Raises:
            ConfigError: A number is missing, or there should be none.
        """
        rules = self.rules
        if self.requested is not None and not rules.takes_samples(self.split):
            raise ConfigError(
                f"this trainer always reads {self.split} once, so no number can be requested",
                where=self.where,
                found=f"{self.requested} samples, preset {rules.name}",
                expected="None",
            )
        if self.requested is None and has_weights and rules.needs_samples(self.split):
            raise ConfigError(
                "a blend with weights needs a number of samples",
                where=self.where,
                found=f"{self.split}_split_samples=None",
                expected="a number, or datasets without weights",
            )

    def _check_number_of_datasets(self, prefixes: Sequence[str]) -> None:
        """Check that the trainer can take samples from that many datasets.

        It numbers the datasets in files of small integers. For example, NeMo has one byte for each
        number, and so at most 254 datasets.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.

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

    def _check_may_have_own_datasets(self) -> None:
        """Check that the trainer can read other datasets for valid or test than for train.

        Some trainers can only divide the same datasets among the splits: 95 % of each for train and
        5 % for valid.

        Raises:
            ConfigError: The split has datasets of its own, and the trainer cannot read them.
        """
        has_own_datasets = self.data.has_own_blend
        if has_own_datasets and not self.rules.per_split_blends:
            raise ConfigError(
                "this trainer cannot read other datasets for each split",
                where=self.where,
                found=f"preset {self.rules.name}, blend_per_split",
                expected="the same datasets for all splits (data_path), divided by `split`",
            )

    def _check_weights(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> None:
        """Check that the datasets have weights if the trainer needs them.

        Some trainers can take all samples of several datasets, but others only know how to take
        samples in proportion to weights.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each; None for datasets without weights.

        Raises:
            ConfigError: They have no weights, and the trainer needs them.
        """
        if weights is None and len(prefixes) > 1 and not self.rules.unweighted_blends:
            raise ConfigError(
                "the blend needs weights",
                where=self.where,
                found=f"preset {self.rules.name}, a list of prefixes",
                expected="{prefix: weight}",
            )

    def _is_single_dataset(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> bool:
        """Return whether the trainer reads the split from one dataset, without a blend."""
        if len(prefixes) != 1 or self.rules.always_blends:
            return False
        if weights is None:
            return True
        return self.data.has_own_blend and self.rules.lone_weight_is_plain

    def _plan_single_dataset(self, prefix: str) -> SplitPlan | None:
        """Plan a split that is a single dataset without a blend."""
        needed = NeededSamples(self.requested, self.requested)
        member = self.members.plan(prefix, None, needed, self.config.consumed_samples)
        if member is None:
            return None
        return SplitPlan(self.split, self.rules.name, (member,), None)

    def _plan_members(
        self, prefixes: Sequence[str], weights: Sequence[float] | None
    ) -> tuple[MemberPlan, ...]:
        """Decide, for each dataset of the split, how many samples of it are built.

        For example, training takes 1,200 samples of two datasets with the weights 3 and 1:

            dataset    share of the samples    needed samples    with the trainer's margin of 0.5 %
            web        0.75                    900               905
            books      0.25                    300               302

        Some trainers leave out datasets that are too small for a sample, but keep the list of all
        weights. So if web had no sample, books would get the weight of web. This is an error here.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Weight of each dataset; None if they have no weights.

        Returns:
            What is planned for each dataset. Empty if none of them has a sample.

        Raises:
            ConfigError: A dataset without a sample would be left out, and others not. Or the files
                of two datasets would have the same names.
        """
        shares: Sequence[float | None] = [None] * len(prefixes)
        if weights is not None:
            shares = self.rules.normalized(weights)
        skipped_samples = self._skipped_samples(prefixes, weights)  # mostly 0

        members = []
        prefixes_without_samples = []
        for prefix, share, start in zip(prefixes, shares, skipped_samples, strict=True):
            member = self.members.plan(prefix, share, self._needed_samples(share), start)
            if member is None or self._is_left_out(member):
                prefixes_without_samples.append(prefix)
            else:
                members.append(member)

        if members and prefixes_without_samples:
            raise self._skipped_dataset_error(prefixes_without_samples[0])
        self._check_file_names(members)
        return tuple(members)

    def _skipped_dataset_error(self, prefix: str) -> ConfigError:
        """Return the error for a dataset that has too few tokens for a sample.

        The trainer would leave the dataset out, but not its weight. So the next dataset in the list
        would get this weight.

        Args:
            prefix: Path of the dataset.
        """
        return ConfigError(
            "a dataset of the blend has no samples in the split, "
            "so the trainer would give its weight to another one",
            where=self.where,
            found=prefix,
            expected="at least one sample of each dataset",
            remedy="leave this dataset out, add text to it, or give the split a larger share",
        )

    def _needed_samples(self, share: float | None) -> NeededSamples:
        """Return how many samples of a dataset training needs for the split.

        For example, training reads 1,000 samples, and 0.3 of them from this dataset:

            read (`target`)                                     300
            prepared by the trainer, to be safe (`requested`)   302

        Args:
            share: Share of the dataset in all samples: 0.3; None if datasets have no weights.

        Returns:
            Both numbers; None and None if each sample of the dataset is read once.
        """
        if share is None or self.requested is None:
            return ONE_EPOCH
        sizes = self.rules.member_sizes(self.requested, share, self.config.surplus)
        return NeededSamples(target=sizes.target, requested=sizes.built)

    def _is_left_out(self, member: MemberPlan) -> bool:
        """Return whether the trainer leaves out a dataset because it has no sample."""
        if not self.rules.drops_short_members or self.data.has_own_blend:
            return False
        return member.samples_given == 0

    def _skipped_samples(
        self, prefixes: Sequence[str], weights: Sequence[float] | None
    ) -> Sequence[int]:
        """Return how many samples of each dataset the trainer skips when it resumes training.

        It skips as many samples as it has read in all, and divides them by the present weights. For
        example, a training run has read 100 samples, and changes its weights from 0.5 and 0.5 to
        0.7 and 0.3. Then it skips 70 samples of the first dataset and 30 of the second one.

        Args:
            prefixes: Paths of the datasets without .bin and .idx.
            weights: Present weight of each dataset; None if they have no weights.

        Returns:
            A number for each dataset. All are 0 unless a run has changed its weights.
        """
        has_changed_weights = self.members.is_later_phase
        if not has_changed_weights or weights is None:
            return [0] * len(prefixes)
        n_read = self.config.consumed_samples  # 100
        blend_weights = tuple(self.rules.blend_weights(weights))  # 0.7, 0.3
        # `exact` is False if numbers that are wrong by one or two are enough.
        return samples_taken(blend_weights, start=0, stop=n_read, exact=self.exact)

    def _check_file_names(self, members: Sequence[MemberPlan]) -> None:
        """Check that the index files of different datasets have different names.

        Some trainers name these files after the dataset, without its folder. For example, `a/web`
        and `b/web` would both have the file `web_train_indexmap_1000ns_2048sl_1s_doc_idx.npy`.

        Args:
            members: What is planned for each dataset, with its file names.

        Raises:
            ConfigError: Two datasets have files of the same name.
        """
        if self.config.path_to_cache is None:
            return  # each dataset has a folder of its own for them
        prefix_by_file: dict[str, str] = {}
        for member in members:
            # If the first files of two datasets have different names, all of them have.
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
        """Decide how the samples of several datasets are mixed, and how the files are named.

        There are two kinds of mixtures. For datasets of 300 and 100 samples:

            by weight      1,000 samples are requested, with the weights 0.8 and 0.2: these are
                           800 and 200, so samples are read several times
            exhaustive     neither weights nor a number of samples: each sample is read once

        Args:
            members: What is planned for each dataset.
            weights: Weight of each dataset; None for datasets without weights.

        Raises:
            ConfigError: There are no samples, or none of one dataset, and the trainer needs some.
        """
        self._check_samples(members, weights)
        mixture = self._mixture_of(members, weights)  # its number of samples, and its weights
        if mixture.size == 0 and self.rules.zero_samples != "any":
            raise self._empty_blend_error()

        # Trainers that cut datasets into windows never read exhaustively. Without weights, they
        # take the numbers of samples as weights.
        is_exhaustive = weights is None and self.requested is None and not self.rules.windows

        # The trainer names its files by the hash of a description. It includes the number of
        # samples, unless the mixture is exhaustive.
        described_size: int | None = mixture.size
        if is_exhaustive:
            described_size = None
        names = blend_names(self.rules, self.split, members, mixture.weights, described_size)

        seed = None
        if self.rules.shuffles_blend:
            seed = self.config.random_seed
        return BlendPlan(
            size=mixture.size,
            weights=mixture.weights,
            exhaustive=is_exhaustive,
            description=names.description,
            hash=names.hash,
            files=names.files,
            receipt_name=names.receipt_name,
            seed=seed,
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
        """Check that each dataset has enough tokens for a sample, if the trainer needs one.

        It does if datasets have no weights: then it reads all samples of each, and fails if there
        are none. With weights, it depends on the trainer.

        Args:
            members: What is planned for each dataset of the split.
            weights: Weight of each dataset; None for datasets without weights.

        Raises:
            ConfigError: A dataset has too few tokens: 1,500, and a sample has 2,049.
        """
        for member in members:
            if member.samples_given > 0:
                continue
            if weights is not None and self._accepts_without_sample(member.tokens):
                continue
            raise ConfigError(
                "a dataset of the blend has no samples in the split",
                where=self.where,
                found=f"{member.prefix}: {member.tokens} tokens",
                expected=f"{self.config.sample_tokens} tokens or more",
            )

    def _accepts_without_sample(self, n_tokens: int) -> bool:
        """Return whether the trainer accepts a weighted dataset with too few tokens for a sample.

        Most trainers do: they notice nothing, unless the weight is so large that they take a sample
        of the dataset, which is an error later. But NeMo and nanotron build index files of each
        dataset, and fail if it has less than 2 tokens.

        Args:
            n_tokens: Tokens of the dataset.
        """
        return n_tokens >= self.rules.least_tokens

    def _mixture_of(
        self, members: Sequence[MemberPlan], weights: Sequence[float] | None
    ) -> _Mixture:
        """Return how many samples training reads of the split, and how it mixes the datasets.

        For example, two datasets have 300 and 100 samples:

            weights       requested    result
            3 and 7       1,000        1,000 samples or a few more, with the weights 0.3 and 0.7
            none          200          200 samples, with the weights 0.75 and 0.25
            none          none         400 samples, each once, with the weights 300 and 100

        Trainers that read datasets in windows (samples without a common token) have simpler rules:
        the number that is requested, and weights that always add up to 1.

        Args:
            members: What is planned for each dataset of the split.
            weights: Weight of each dataset; None for datasets without weights.
        """
        dataset_sizes = tuple(member.samples_given for member in members)  # 300 and 100 samples
        if self.rules.windows:
            return self._mixture_of_windows(dataset_sizes, weights)
        if weights is None:
            return self._mixture_by_size(dataset_sizes)
        return self._mixture_by_weight(members, weights)

    def _mixture_of_windows(
        self, dataset_sizes: tuple[int, ...], weights: Sequence[float] | None
    ) -> _Mixture:
        """Return how many samples are read by a trainer that cuts datasets into windows.

        It reads as many samples as are requested, or otherwise all. Datasets without weights are
        mixed in proportion to their sizes: 0.75 and 0.25 for 300 and 100 samples.

        Args:
            dataset_sizes: Samples of each dataset: 300 and 100.
            weights: Weight of each dataset; None for datasets without weights.
        """
        size = sum(dataset_sizes) if self.requested is None else self.requested
        proportions = dataset_sizes if weights is None else weights
        shares = self.rules.normalized(proportions)  # they add up to 1
        return _Mixture(size, tuple(shares))

    def _mixture_by_size(self, dataset_sizes: tuple[int, ...]) -> _Mixture:
        """Return how many samples are read of datasets without weights, and how these are mixed.

        No sample is read twice. For datasets of 300 and 100 samples:

            requested    samples    weights
            200          200        0.75 and 0.25
            1,000        400        0.75 and 0.25
            none         400        300 and 100, since trainers write the sizes in this case

        Args:
            dataset_sizes: Samples of each dataset.
        """
        n_available = sum(dataset_sizes)  # 400
        if self.requested is None:
            return _Mixture(n_available, weights=dataset_sizes)
        shares = self.rules.normalized(dataset_sizes)
        return _Mixture(min(self.requested, n_available), tuple(shares))

    def _mixture_by_weight(
        self, members: Sequence[MemberPlan], weights: Sequence[float]
    ) -> _Mixture:
        """Return how many samples are read of datasets with weights.

        Numbers are rounded up for each dataset, and trainers prepare a reserve. So some of them
        read more samples than were requested. For example, for 1,001 samples and the weights 3 and
        1:

            dataset    exact number    rounded up    with a reserve
            web        750.75          751           755
            books      250.25          251           253
            sum        1,001           1,002         1,008

        Depending on the trainer, one of these three sums is the number of samples.

        Args:
            members: What is planned for each dataset: `samples_target` is the number that is
                rounded up, and `samples_requested` that with the reserve.
            weights: Weight of each dataset: 3 and 1.
        """
        shares = tuple(self.rules.blend_weights(weights))  # 0.75 and 0.25
        if self.requested is None:
            # The trainer reads as many samples as all datasets have.
            n_available = sum(member.samples_given for member in members)
            return _Mixture(n_available, shares)

        rounded_up = [member.samples_target or 0 for member in members]  # 751 and 251
        with_reserve = [member.samples_requested or 0 for member in members]  # 755 and 253
        size = self.rules.weighted_size(
            self.requested, rounded_up, with_reserve, per_split=self.data.has_own_blend
        )
        return _Mixture(size, shares)
