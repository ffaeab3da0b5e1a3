"""Plan a split: decide what will be built for it, before anything is built.

Planning reads only the `.idx` files of the datasets. All numbers are in closed form: no array as
long as the samples is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.descriptions import blend_names, member_names
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.sampling.splits import (
    SPLITS,
    Rows,
    SplitName,
    rows_by_bookends,
    rows_by_cuts,
    split_bookends,
)
from nanoset_core.storage.access import FileAccess

__all__ = [
    "BlendPlan",
    "LengthReader",
    "MemberPlan",
    "SplitPlan",
    "largest_epoch_size",
    "plan_split",
]

_LAST_EPOCH_SHARE = 0.80
_MIN_NANOTRON_TOKENS = 2
"""Tokens from which on nanotron builds index files of a dataset, even if they are too few for a
sample.
"""


class LengthReader:
    """Reads every `.idx` once, for splits that are planned together.

    Args:
        access: Fetches files from a store, or None to read them from this machine.
    """

    def __init__(self, access: FileAccess | None = None) -> None:
        self._access = access
        self._known: dict[str, tuple[NDArray[np.int32], str]] = {}

    def read(self, prefix: str) -> tuple[NDArray[np.int32], str]:
        """Return (tokens of every sequence, shape (n_sequences,), sha256 of the .idx) of a dataset.

        Raises:
            MissingError, FormatError: The `.idx` is missing or damaged.
        """
        if prefix not in self._known:
            path = self._local_path(prefix)
            lengths = read_idx(path).sequence_lengths
            if self._access is not None and self._access.capacity is not None:
                # A mapped file keeps its space on the disk, even if the cache has deleted it to
                # make room for others.
                lengths = lengths.copy()
            self._known[prefix] = lengths, hashlib.sha256(map_file(path)).hexdigest()
        return self._known[prefix]

    def _local_path(self, prefix: str) -> Path:
        if self._access is None:
            return index_here(prefix)
        return self._access.fetch(idx_path(prefix))

    def suppose(self, prefix: str, lengths: NDArray[np.int32]) -> None:
        """Set the lengths of a dataset that does not exist yet."""
        self._known[prefix] = lengths, ""


class DatasetPart(NamedTuple):
    """What a split has of a dataset."""

    rows: Rows
    """Sequences: a half-open range."""
    tokens: int
    """Tokens of these sequences."""
    idx_sha256: str


class SplitData:
    """Finds what a split has of each dataset."""

    def __init__(self, config: NanosetConfig, split: SplitName, reader: LengthReader) -> None:
        self.config = config
        self.split = split
        self.reader = reader
        self.shares: tuple[float, float, float] | None = None
        """Shares of train, valid and test; None if every split has data of its own."""
        if config.blend_per_split is None:
            self.shares = config.shares()

    @property
    def has_share(self) -> bool:
        """Whether the split has a share of the datasets that all splits have in common."""
        if self.shares is None:
            return False
        return self.shares[SPLITS.index(self.split)] > 0

    def part_of(self, prefix: str) -> DatasetPart:
        """Return what the split has of a dataset.

        Raises:
            ConfigError: The split starts outside of the dataset; with very few sequences, NeMo's
                and nanotron's do.
            MissingError, FormatError: The `.idx` is missing or damaged.
        """
        lengths, idx_sha256 = self.reader.read(prefix)
        start, stop = self._rows(len(lengths))
        if not 0 <= start <= len(lengths):
            raise ConfigError(
                "the split begins outside of the dataset",
                where=f"split {self.split}",
                found=f"{prefix}: row {start}",
                expected="more sequences",
            )
        stop = max(start, stop)
        tokens = int(lengths[start:stop].sum(dtype=np.int64))
        return DatasetPart((start, stop), tokens, idx_sha256)

    def _rows(self, n_sequences: int) -> Rows:
        if self.shares is None:
            return 0, n_sequences
        number = SPLITS.index(self.split)
        if self.config.rules.split_rule == "cuts":
            return rows_by_cuts(self.shares, n_sequences)[number]
        bookends = split_bookends(self.shares)[number]
        if bookends is None:
            return 0, 0
        return rows_by_bookends(bookends, n_sequences)


def _prefixes(config: NanosetConfig, split: SplitName) -> list[str]:
    """Return the prefixes of a split's datasets."""
    blend = config.blend(split)
    if blend is None:
        return []
    prefixes, _ = blend
    return prefixes


def plan_split(
    config: NanosetConfig,
    split: SplitName,
    reader: LengthReader | None = None,
    *,
    exact: bool = True,
) -> SplitPlan | None:
    """Plan one split.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        reader: Shared by splits that are planned together.
        exact: False estimates where a later phase of a run starts in each dataset, wrong by a
            sample or two, without walking the blend.

    Returns:
        The plan, or None if the split has no share of the data.

    Raises:
        ConfigError: The preset cannot build it, or the trainer would hang, crash or read wrong
            samples: samples are requested of a split without tokens, weights come without a number
            of samples, a dataset of a blend has no samples, or a split starts before the first
            sequence.
        MissingError, FormatError: A `.idx` is missing or damaged.
    """
    return _Planner(config, split, reader or LengthReader(), exact=exact).plan()


def plan_splits(
    config: NanosetConfig, splits: Sequence[SplitName], reader: LengthReader
) -> dict[SplitName, SplitPlan | None]:
    """Plan several splits.

    Raises:
        InputError: Train has a share, but no sample.
        ConfigError, MissingError, FormatError: As `plan_split`.
    """
    plans = {split: plan_split(config, split, reader) for split in splits}
    train = plans.get("train")
    if train is not None and not train.samples:
        raise no_training_sample(config, too_few_tokens(config, "train", reader))
    return plans


def cannot_be_built(config: NanosetConfig, split: SplitName, reader: LengthReader) -> bool:
    """Return whether a trainer hangs or fails because a split's share is too small for a token or
    sample.

    Megatron-LM never returns from a dataset without tokens (`gpt_dataset.py`, `_get_num_epochs`),
    even if no sample is requested, and requires a sample of each dataset without a weight. nanotron
    refuses a split without samples.
    """
    data = SplitData(config, split, reader)
    blend = config.blend(split)
    if blend is None or not data.has_share:
        return False
    prefixes, weights = blend
    if not prefixes:
        return False

    rules = config.rules
    tokens = [data.part_of(prefix).tokens for prefix in prefixes]
    samples = [config.samples_in(count) for count in tokens]
    is_blend = weights is not None or len(prefixes) > 1
    if rules.zero_samples == "never" or (is_blend and weights is None):
        return 0 in samples
    if rules.zero_samples == "no blend" and is_blend:
        return min(tokens) < _MIN_NANOTRON_TOKENS or not any(samples)
    # NeMo skips a split that has no tokens at all.
    is_skipped = rules.empty_split == "skip" and not any(tokens)
    return 0 in tokens and not is_skipped


def tokens_in(config: NanosetConfig, split: SplitName, reader: LengthReader) -> dict[str, int]:
    """Return prefix → tokens that a split has of it, for each dataset of the split."""
    data = SplitData(config, split, reader)
    return {prefix: data.part_of(prefix).tokens for prefix in _prefixes(config, split)}


def too_few_tokens(
    config: NanosetConfig,
    split: SplitName,
    reader: LengthReader,
    names: Sequence[str] | None = None,
) -> str:
    """Return a text with the tokens that a split has of each dataset, and those that a sample
    needs.

    Args:
        config: Configuration of the nanoset.
        split: The split.
        reader: Reads the datasets' `.idx` files.
        names: What to call the datasets; None calls them by their files.
    """
    data = SplitData(config, split, reader)
    prefixes = _prefixes(config, split)
    if not names:
        names = [Path(prefix).name for prefix in prefixes]
    texts = []
    for name, prefix in zip(names, prefixes, strict=True):
        tokens = data.part_of(prefix).tokens
        texts.append(f"{name} {tokens:,}")
    return f"tokens of {split}: {', '.join(texts)}; a sample takes {config.sample_tokens:,}"


def no_training_sample(config: NanosetConfig, found: str) -> InputError:
    """Return the error for a train split without a sample; `found` is the text of `too_few_tokens`."""
    return InputError(
        "train has no sample",
        found=found,
        expected=f"{config.sample_tokens:,} tokens or more",
        remedy="make samples shorter (sequence_length), add text, or give train a larger share in `split`",
    )


def largest_epoch_size(
    config: NanosetConfig, split: SplitName = "train", reader: LengthReader | None = None
) -> int:
    """Return the largest size of a weighted blend for which no dataset is read more than once; 0 if
    there is none.

    Raises:
        ConfigError: The blend has no weights, or the split starts outside of a dataset.
        MissingError, FormatError: A `.idx` is missing or damaged.
    """
    prefixes, weights = config.blend(split) or ([], None)
    if weights is None:
        raise ConfigError(
            "a blend with weights is needed",
            where=f"blend of {split}",
            found=prefixes,
        )
    rules = config.rules
    shares = rules.normalized(weights)
    data = SplitData(config, split, reader or LengthReader())
    samples_of_epoch = [config.samples_in(data.part_of(prefix).tokens) for prefix in prefixes]

    def fits(size: int) -> bool:
        for share, limit in zip(shares, samples_of_epoch, strict=True):
            _, samples_built = rules.member_sizes(size, share, config.surplus)
            if samples_built > limit:
                return False
        return True

    return largest(sum(samples_of_epoch) + len(samples_of_epoch) + 1, fits)


def largest(maximum: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `maximum` that fits, by bisection: every smaller one must
    fit, too.
    """
    low = 0
    high = maximum
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def separate_last_epoch(
    epochs: int, tokens: int, requested: int | None, length: int, extra: int
) -> bool:
    """Return whether the last epoch is shuffled on its own, because less than 80 % of it is needed.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_sample_shuffle_indices`.

    Args:
        epochs: Epochs that are needed.
        tokens: Tokens of one epoch.
        requested: Samples that are needed; None is one epoch.
        length: Tokens of a sample, without the extra one.
        extra: 1 if a sample has an extra token, else 0.
    """
    if epochs == 1 or requested is None:
        return False
    samples_before = ((epochs - 1) * tokens - extra) // length
    samples_of_epoch = (tokens - extra) // length
    return requested - samples_before < int(_LAST_EPOCH_SHARE * samples_of_epoch)


class _Sizes(NamedTuple):
    """How many samples of a dataset a split needs; None is one epoch."""

    target: int | None
    """Samples that the blend plans to take."""
    requested: int | None
    """The same with the blend's margin."""


class _Planner:
    """Plans one split of a nanoset."""

    def __init__(
        self, config: NanosetConfig, split: SplitName, reader: LengthReader, *, exact: bool = True
    ) -> None:
        self.config = config
        self.split = split
        self.rules = config.rules
        self.data = SplitData(config, split, reader)
        self.exact = exact
        self.requested = config.samples(split)
        self.is_later_phase = split == "train" and bool(config.orders)
        self.where = f"split {split}"

    def plan(self) -> SplitPlan | None:
        blend = self.config.blend(self.split)
        if blend is None or not self._may_have_rows():
            return None
        prefixes, weights = blend
        self._check_blend(prefixes, weights)

        # A plain dataset.
        if self._is_plain(prefixes, weights):
            sizes = _Sizes(self.requested, self.requested)
            member = self._member(prefixes[0], None, sizes, self.config.consumed_samples)
            if member is None:
                return None
            return SplitPlan(self.split, self.rules.name, (member,), None)

        # A blend of datasets.
        members = self._members(prefixes, weights)
        if not members:
            return None
        return SplitPlan(self.split, self.rules.name, members, self._blend(members, weights))

    def _may_have_rows(self) -> bool:
        if self.data.shares is None or self.data.has_share:
            return True
        # Rounding can give a sequence to a split without a share. NeMo then builds it, if samples
        # are requested.
        return self.rules.empty_split == "skip" and self.requested is not None

    def _is_plain(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> bool:
        if len(prefixes) != 1 or self.rules.windows:
            return False
        return weights is None or (self.data.shares is None and self.rules.lone_weight_is_plain)

    def _check_blend(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> None:
        """Check that the trainer can read such a blend, and for so many samples."""
        rules = self.rules
        if len(prefixes) > rules.most_datasets:
            raise ConfigError(
                "too many datasets in the blend",
                where=self.where,
                found=len(prefixes),
                expected=f"at most {rules.most_datasets}",
            )
        if self.data.shares is None and not rules.per_split_blends:
            raise ConfigError(
                "splits cannot have blends of their own",
                where=self.where,
                found=f"preset {rules.name}",
                expected="data_path and split",
            )
        if weights is None and len(prefixes) > 1 and not rules.unweighted_blends:
            raise ConfigError(
                "the blend needs weights",
                where=self.where,
                found=f"preset {rules.name}, a list of prefixes",
                expected="{prefix: weight}",
            )
        if self.requested is not None and not rules.takes_samples(self.split):
            raise ConfigError(
                "the split is always one epoch",
                where=self.where,
                found=f"{self.requested} samples, preset {rules.name}",
                expected="None",
            )
        if weights is not None and self.requested is None and rules.needs_samples(self.split):
            raise ConfigError(
                "a blend with weights needs a number of samples",
                where=self.where,
                found=f"{self.split}_split_samples=None",
                expected="a number, or datasets without weights",
            )

    def _members(
        self, prefixes: Sequence[str], weights: Sequence[float] | None
    ) -> tuple[MemberPlan, ...]:
        """Plan the datasets of a blend; none, if the split has nothing of any of them."""
        shares: Sequence[float | None] = [None] * len(prefixes)
        if weights is not None:
            shares = self.rules.normalized(weights)
        starts = self._starts(prefixes, weights)
        members = []
        without_samples = []
        for prefix, share, start in zip(prefixes, shares, starts, strict=True):
            sizes = _Sizes(None, None)
            if share is not None and self.requested is not None:
                sizes = _Sizes(*self.rules.member_sizes(self.requested, share, self.config.surplus))
            member = self._member(prefix, share, sizes, start)
            if member is None or self._is_dropped(member):
                without_samples.append(prefix)
            else:
                members.append(member)

        if members and without_samples:
            raise ConfigError(
                "a dataset of the blend has no samples in the split",
                where=self.where,
                found=without_samples[0],
                expected="a sample, or none of the others either",
            )
        self._check_names(members)
        return tuple(members)

    def _is_dropped(self, member: MemberPlan) -> bool:
        """Return whether the trainer treats a dataset as absent from the blend, because it has no
        sample.
        """
        return (
            self.rules.drops_short_members
            and self.data.shares is not None
            and not member.samples_given
        )

    def _starts(self, prefixes: Sequence[str], weights: Sequence[float] | None) -> Sequence[int]:
        """Return at which of its samples this phase of a run starts to read each dataset."""
        if not self.is_later_phase or weights is None:
            return [0] * len(prefixes)
        blend_weights = tuple(self.rules.blend_weights(self.rules.normalized(weights)))
        return samples_taken(blend_weights, 0, self.config.consumed_samples, exact=self.exact)

    def _member(
        self, prefix: str, share: float | None, sizes: _Sizes, start: int
    ) -> MemberPlan | None:
        """Plan one dataset's part of the split.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            share: Normalised weight in the blend, if there is one.
            sizes: Samples that are needed.
            start: At which of its samples this phase of a run starts.

        Returns:
            The plan, or None if the split has no sequences of the dataset and the trainer skips
            these.
        """
        config = self.config
        rules = self.rules
        part = self.data.part_of(prefix)
        is_empty = part.rows[0] == part.rows[1]
        if is_empty and rules.empty_split == "skip":
            return None
        if is_empty and rules.empty_split == "refuse":
            raise ConfigError(
                "the split has a share but no sequences",
                where=self.where,
                found=prefix,
                expected="more sequences, or a share of 0",
            )

        # Samples.
        if sizes.requested is None and rules.samples_asked == "always":
            samples_of_epoch = config.samples_in(part.tokens)
            sizes = _Sizes(samples_of_epoch, samples_of_epoch)
        requested = sizes.requested
        if requested == 0 and rules.zero_samples == "never":
            raise ConfigError(
                "every split needs samples",
                where=self.where,
                found=f"preset {rules.name}, 0 for {prefix}",
                expected="1 or more",
            )

        # Epochs: in a later phase of a run, those of the phases before, too.
        epochs = self._epochs(prefix, part.tokens, requested)
        is_last_separate = separate_last_epoch(
            epochs, part.tokens, requested, config.step, config.overlap
        )
        order = None
        if self.is_later_phase:
            samples_left = max((requested or 0) - start, 0)
            order = self._order(prefix, part, samples_left)
            epochs_of_run = self._epochs(prefix, part.tokens, order.taken + samples_left)
            epochs = max(order.epochs, epochs, epochs_of_run)
            is_last_separate = order.separate_last_epoch or epochs > order.epochs

        # Samples in these epochs.
        drops_last_partial = config.drops_last_partial(self.split)
        samples_built = config.samples_in(
            epochs * part.tokens, drop_last_partial=drops_last_partial
        )
        is_counted = requested is not None or rules.windows
        if rules.one_epoch and is_counted and samples_built == 0:
            raise ConfigError(
                "too few tokens for a sample",
                where=self.where,
                found=f"{prefix}: {part.tokens}",
                expected=f"{config.sample_tokens} or more",
            )
        repeats = rules.repeats(requested, samples_built)
        samples_given = samples_built * repeats
        if order is not None:
            samples_given = min(samples_built, start + samples_built - order.taken)

        names = member_names(config, self.split, prefix, requested)
        return MemberPlan(
            prefix=prefix,
            trainer_path=config.trainer_path(prefix),
            idx_sha256=part.idx_sha256,
            split=self.split,
            weight=share,
            rows=part.rows,
            tokens=part.tokens,
            samples_target=sizes.target,
            samples_requested=requested,
            epochs=epochs,
            separate_last_epoch=is_last_separate,
            samples_built=samples_built,
            repeats=repeats,
            samples_given=samples_given,
            description=names.description,
            hash=names.hash,
            files=names.files,
            sidecar=names.sidecar,
            order=order,
            begin=start if order is not None else 0,
        )

    def _order(self, prefix: str, part: DatasetPart, samples: int) -> Order:
        """Return the order in which this phase of a run continues a dataset, or starts one that no
        phase read before.

        Args:
            prefix: Path of the dataset without .bin and .idx.
            part: What train has of it.
            samples: Samples that this phase needs of it.
        """
        order = self.config.orders.get(prefix)
        if order is None:
            epochs = self._epochs(prefix, part.tokens, samples)
            is_last_separate = separate_last_epoch(
                epochs, part.tokens, samples, self.config.step, self.config.overlap
            )
            return Order(0, part.rows, epochs, is_last_separate)
        if order.rows != part.rows:
            start, stop = part.rows
            start_before, stop_before = order.rows
            raise ConfigError(
                "train has other sequences of a dataset than the phases before, so that their order cannot go on",
                where=self.where,
                found=f"{prefix}: sequences {start:,} to {stop:,}",
                expected=f"{start_before:,} to {stop_before:,}: the `split` of these phases",
            )
        return order

    def _epochs(self, prefix: str, tokens: int, requested: int | None) -> int:
        """Return the smallest number of epochs that has the tokens of the requested samples."""
        if requested is None:
            return 1
        tokens_needed = requested * self.config.step + self.config.overlap
        if tokens_needed > 0 and tokens == 0:
            raise ConfigError(
                "samples are asked of a split without tokens (the trainer would never return)",
                where=self.where,
                found=f"{prefix}: 0 tokens in {self.split}, {requested} samples asked for",
                expected=f"tokens in {self.split}, share 0 for {self.split}, or no number of samples for it",
            )
        if self.rules.one_epoch or tokens_needed == 0:
            return 1
        return -(-tokens_needed // tokens)  # rounded up

    def _blend(self, members: tuple[MemberPlan, ...], weights: Sequence[float] | None) -> BlendPlan:
        rules = self.rules
        self._check_samples(members, weights)
        size, blend_weights = self._size_and_weights(members, weights)
        if size == 0 and rules.zero_samples != "any":
            raise ConfigError(
                "a blend needs samples",
                where=self.where,
                found=f"preset {rules.name}, a size of 0",
                expected="1 or more",
            )
        is_exhaustive = weights is None and self.requested is None and not rules.windows
        described_size = None if is_exhaustive else size
        names = blend_names(rules, self.split, members, blend_weights, described_size)
        return BlendPlan(
            size=size,
            weights=blend_weights,
            exhaustive=is_exhaustive,
            description=names.description,
            hash=names.hash,
            files=names.files,
            sidecar=names.sidecar,
            seed=self.config.random_seed if rules.shuffles_blend else None,
        )

    def _check_samples(
        self, members: Sequence[MemberPlan], weights: Sequence[float] | None
    ) -> None:
        """Check that every dataset of the blend has a sample, if the trainer needs one."""
        for member in members:
            if member.samples_given == 0 and not self._may_lack_samples(member, weights):
                raise ConfigError(
                    "a dataset of the blend has no samples in the split",
                    where=self.where,
                    found=f"{member.prefix}: {member.tokens} tokens",
                    expected=f"{self.config.sample_tokens} tokens or more",
                )

    def _may_lack_samples(self, member: MemberPlan, weights: Sequence[float] | None) -> bool:
        """Return whether the trainer can build the blend although a dataset has no sample."""
        if weights is None:
            return False
        # With weights, the blend may be short enough to take no sample of it.
        if self.rules.wraps == "never":
            return True
        return member.tokens >= _MIN_NANOTRON_TOKENS

    def _size_and_weights(
        self, members: Sequence[MemberPlan], weights: Sequence[float] | None
    ) -> tuple[int, tuple[float, ...] | tuple[int, ...]]:
        """Return the samples of the blend, and the weights with which it is built and described."""
        rules = self.rules
        lengths = tuple(member.samples_given for member in members)
        size = sum(lengths)
        if rules.windows:
            if self.requested is not None:
                size = self.requested
            return size, tuple(rules.normalized(weights or lengths))

        # Without weights, a blend takes all samples once, or as many as were requested.
        if weights is None:
            if self.requested is None:
                return size, lengths
            return min(self.requested, size), tuple(rules.normalized(lengths))

        blend_weights = tuple(rules.blend_weights(rules.normalized(weights)))
        if self.requested is None:
            return size, blend_weights
        targets = [member.samples_target or 0 for member in members]
        buffers = [member.samples_requested or 0 for member in members]
        has_own_data = self.data.shares is None
        size = rules.weighted_size(self.requested, targets, buffers, per_split=has_own_data)
        return size, blend_weights

    def _check_names(self, members: Sequence[MemberPlan]) -> None:
        """Check that no two datasets would share index files in one cache folder."""
        if self.config.path_to_cache is None:
            return
        prefix_by_file: dict[str, str] = {}
        for member in members:
            file = member.cache_files[0]
            other_prefix = prefix_by_file.setdefault(file, member.prefix)
            if other_prefix != member.prefix:
                raise ConfigError(
                    "two datasets of the blend would share index files",
                    where=self.where,
                    found=f"{other_prefix} and {member.prefix}: {file}",
                    expected=f"datasets with different names, since preset {self.rules.name} keeps no folder",
                )
