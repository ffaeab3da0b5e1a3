"""Plan a split: compute what will be built for it before anything is built.

Only `.idx` files are read, and everything is in closed form: no array as long as the samples is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan, blend_names, member_names
from nanoset_core.sampling.splits import SPLITS, Rows, SplitName, rows_by_bookends, rows_by_cuts, split_bookends
from nanoset_core.storage.access import FileAccess

__all__ = ["BlendPlan", "LengthReader", "MemberPlan", "SplitPlan", "largest_epoch_size", "plan_split"]

_NO_SAMPLES = "a dataset of the blend has no samples in the split"
_LAST_EPOCH_SHARE = 0.80
_LEAST_TOKENS = 2  # that nanotron builds indices of


class LengthReader:
    """Reads every `.idx` once, for splits that are planned together."""

    def __init__(self, access: FileAccess | None = None) -> None:
        """Take the access that fetches the files, where they lie in a store."""
        self._access = access
        self._known: dict[str, tuple[NDArray[np.int32], str]] = {}

    def read(self, prefix: str) -> tuple[NDArray[np.int32], str]:
        """Return (tokens of every sequence int32[n], sha256 of the .idx); errors as `read_idx`."""
        if prefix not in self._known:
            path = index_here(prefix) if self._access is None else self._access.fetch(idx_path(prefix))
            lengths = read_idx(path).sequence_lengths
            if self._access is not None and self._access.capacity is not None:
                lengths = lengths.copy()  # or the disk would hold all files, also those that have made room for others
            self._known[prefix] = lengths, hashlib.sha256(map_file(path)).hexdigest()
        return self._known[prefix]

    def suppose(self, prefix: str, lengths: NDArray[np.int32]) -> None:
        """Take these as the lengths of a dataset that is not there yet."""
        self._known[prefix] = lengths, ""


def plan_split(
    config: NanosetConfig, split: SplitName, reader: LengthReader | None = None, *, exact: bool = True
) -> SplitPlan | None:
    """Plan one split; None where it has no share of the data.

    Args:
        config: of the nanoset.
        split: train, valid or test.
        reader: shared by splits that are planned together.
        exact: False plans a run that goes on in its middle within a sample or two a dataset, without walking its blend.

    Raises:
        ConfigError: the preset cannot do it, or the trainer would hang, crash or read nonsense: samples are asked of a
            split without tokens, weights have no size, a dataset of a blend has no samples, or a split begins before
            the first sequence (on very few sequences, with NeMo and nanotron).
        MissingError, FormatError: a `.idx` is not there, or damaged.
    """
    return _Planner(config, split, reader or LengthReader(), exact=exact).plan()


def plan_splits(
    config: NanosetConfig, splits: Sequence[SplitName], reader: LengthReader
) -> dict[SplitName, SplitPlan | None]:
    """Plan several splits; InputError where train has a share and no sample, else as `plan_split`."""
    plans = {split: plan_split(config, split, reader) for split in splits}
    if (train := plans.get("train")) is not None and not train.samples:
        raise no_training_sample(config, too_few_tokens(config, "train", reader))
    return plans


def cannot_be_built(config: NanosetConfig, split: SplitName, reader: LengthReader) -> bool:
    """Return whether a trainer hangs or fails over a split's share, too small for a token or sample of each dataset.

    Megatron-LM never returns from a dataset without tokens (`gpt_dataset.py`, `_get_num_epochs`), even where no sample
    is asked for, and wants a sample of each dataset without a weight; nanotron refuses a split without samples.
    """
    planner, rules = _Planner(config, split, reader), config.rules
    prefixes, weights = config.blend(split) or ([], None)
    if planner.shares is None or planner.shares[planner.number] <= 0 or not prefixes:
        return False
    tokens = [planner.measure(prefix)[1] for prefix in prefixes]
    samples = [config.samples_in(count) for count in tokens]
    is_blend = weights is not None or len(prefixes) > 1
    if rules.zero_samples == "never" or (is_blend and weights is None):
        return 0 in samples
    if rules.zero_samples == "no blend" and is_blend:
        return min(tokens) < _LEAST_TOKENS or not any(samples)
    return 0 in tokens and (rules.empty_split != "skip" or any(tokens))


def tokens_in(config: NanosetConfig, split: SplitName, reader: LengthReader) -> dict[str, int]:
    """Return prefix → tokens of a split that a dataset holds."""
    planner, (prefixes, _) = _Planner(config, split, reader), config.blend(split) or ([], None)
    return {prefix: planner.measure(prefix)[1] for prefix in prefixes}


def too_few_tokens(
    config: NanosetConfig, split: SplitName, reader: LengthReader, names: Sequence[str] | None = None
) -> str:
    """Return what each dataset (by its file, or `names`) holds for a split, and what a sample takes."""
    planner, (prefixes, _) = _Planner(config, split, reader), config.blend(split) or ([], None)
    named = zip(names or [Path(prefix).name for prefix in prefixes], prefixes, strict=True)
    held = ", ".join(f"{name} {planner.measure(prefix)[1]:,}" for name, prefix in named)
    return f"tokens of {split}: {held}; a sample takes {config.sample_tokens:,}"


def no_training_sample(config: NanosetConfig, found: str) -> InputError:
    """Make the error of a train split without a sample; `found` is by `too_few_tokens`."""
    return InputError(
        "train has no sample",
        found=found,
        expected=f"{config.sample_tokens:,} tokens or more",
        remedy="make samples shorter (sequence_length), add text, or give train a larger share in `split`",
    )


def largest_epoch_size(config: NanosetConfig, split: SplitName = "train", reader: LengthReader | None = None) -> int:
    """Return the largest size of a weighted blend for which no dataset needs more than one epoch; 0 if there is none.

    ConfigError where it has no weights, or the split begins outside of a dataset; or as `LengthReader.read`.
    """
    rules = config.rules
    prefixes, given = config.blend(split) or ([], None)
    if given is None:
        raise ConfigError("a blend with weights is needed", where=f"blend of {split}", found=prefixes)
    shares = rules.normalized(given)
    planner = _Planner(config, split, reader or LengthReader())
    limits = [config.samples_in(planner.measure(prefix)[1]) for prefix in prefixes]

    def fits(size: int) -> bool:
        sizes = (rules.member_sizes(size, share, config.surplus)[1] for share in shares)
        return all(size <= limit for size, limit in zip(sizes, limits, strict=True))

    return largest(sum(limits) + len(limits) + 1, fits)


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to `most` that fits, where every smaller one fits too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def separate_last_epoch(epochs: int, tokens: int, requested: int | None, length: int, extra: int) -> bool:
    """Return whether less than 80 % of the last epoch is needed, so that it is shuffled apart from the others.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_sample_shuffle_indices`.
    """
    if epochs == 1 or requested is None:
        return False
    before = ((epochs - 1) * tokens - extra) // length
    return requested - before < int(_LAST_EPOCH_SHARE * ((tokens - extra) // length))


class _Planner:
    def __init__(self, config: NanosetConfig, split: SplitName, reader: LengthReader, *, exact: bool = True) -> None:
        self.config, self.split, self.rules, self.reader = config, split, config.rules, reader
        self.exact, self.goes_on = exact, split == "train" and bool(config.orders)
        self.number = SPLITS.index(split)
        self.asked = config.samples(split)
        # shares of train, valid and test; None where every split has data of its own
        self.shares = config.shares() if config.blend_per_split is None else None

    def plan(self) -> SplitPlan | None:
        data, rules = self.config.blend(self.split), self.rules
        # Rounding can give a sequence to a split without a share, where rows alone decide.
        by_rows = rules.empty_split == "skip" and self.asked is not None
        if data is None or (self.shares is not None and self.shares[self.number] <= 0 and not by_rows):
            return None
        prefixes, weights = data
        self._check_data(prefixes, weights)
        is_plain = weights is None or (self.shares is None and rules.lone_weight_is_plain)
        if len(prefixes) == 1 and is_plain and not rules.windows:
            member = self._member(prefixes[0], None, self.asked, self.asked, self.config.consumed_samples)
            return None if member is None else SplitPlan(self.split, rules.name, (member,), None)
        members = self._members(prefixes, weights)
        return SplitPlan(self.split, rules.name, members, self._blend(members, weights)) if members else None

    def _check_data(self, prefixes: list[str], weights: list[float] | None) -> None:
        rules = self.rules
        if len(prefixes) > rules.most_datasets:
            raise self._error("too many datasets in the blend", len(prefixes), f"at most {rules.most_datasets}")
        if self.shares is None and not rules.per_split_blends:
            raise self._error("splits cannot have blends of their own", f"preset {rules.name}", "data_path and split")
        if weights is None and len(prefixes) > 1 and not rules.unweighted_blends:
            raise self._error("the blend needs weights", f"preset {rules.name}, a list of prefixes", "{prefix: weight}")
        if self.asked is not None and not rules.takes_samples(self.split):
            raise self._error("the split is always one epoch", f"{self.asked} samples, preset {rules.name}", "None")
        if weights is not None and self.asked is None and rules.needs_samples(self.split):
            raise self._error(
                "a blend with weights needs a number of samples",
                f"{self.split}_split_samples=None",
                "a number, or datasets without weights",
            )

    def _members(self, prefixes: list[str], weights: list[float] | None) -> tuple[MemberPlan, ...]:
        shares = [None] * len(prefixes) if weights is None else self.rules.normalized(weights)
        begins: Sequence[int] = [0] * len(prefixes)
        if self.goes_on and weights is not None:
            blended = tuple(self.rules.blend_weights(self.rules.normalized(weights)))
            begins = samples_taken(blended, 0, self.config.consumed_samples, exact=self.exact)
        members = []
        for prefix, share, begin in zip(prefixes, shares, begins, strict=True):
            sizes: tuple[int | None, int | None] = (None, None)
            if share is not None and self.asked is not None:
                sizes = self.rules.member_sizes(self.asked, share, self.config.surplus)
            member = self._member(prefix, share, *sizes, begin)
            short = member is not None and not member.samples_given and self.shares is not None
            members.append(None if short and self.rules.drops_short_members else member)
        present = tuple(member for member in members if member is not None)
        if present and len(present) != len(members):
            raise self._error(_NO_SAMPLES, prefixes[members.index(None)], "a sample, or none of the others either")
        self._check_names(present)
        return present

    def _member(
        self, prefix: str, share: float | None, target: int | None, requested: int | None, begin: int
    ) -> MemberPlan | None:
        config, rules = self.config, self.rules
        rows, tokens, digest = self.measure(prefix)
        if rows[0] == rows[1] and rules.empty_split == "skip":
            return None
        if rows[0] == rows[1] and rules.empty_split == "refuse":
            raise self._error("the split has a share but no sequences", prefix, "more sequences, or a share of 0")
        if requested is None and rules.samples_asked == "always":
            requested = target = config.samples_in(tokens)
        if requested == 0 and rules.zero_samples == "never":
            raise self._error("every split needs samples", f"preset {rules.name}, 0 for {prefix}", "1 or more")
        epochs, order = self._epochs(prefix, tokens, requested), None
        apart = separate_last_epoch(epochs, tokens, requested, config.step, config.overlap)
        if self.goes_on:
            left = max((requested or 0) - begin, 0)
            order = self._order(prefix, rows, tokens, left)
            epochs = max(order.epochs, epochs, self._epochs(prefix, tokens, order.taken + left))
            apart = order.separate_last_epoch or epochs > order.epochs
        keeps = not config.drops_last_partial(self.split)
        built = config.samples_in(epochs * tokens, drop_last_partial=not keeps)
        if rules.one_epoch and (requested is not None or rules.windows) and built == 0:
            raise self._error("too few tokens for a sample", f"{prefix}: {tokens}", f"{config.sample_tokens} or more")
        repeats = rules.repeats(requested, built)
        return MemberPlan(
            prefix=prefix,
            trainer_path=config.trainer_path(prefix),
            idx_sha256=digest,
            split=self.split,
            weight=share,
            rows=rows,
            tokens=tokens,
            samples_target=target,
            samples_requested=requested,
            epochs=epochs,
            separate_last_epoch=apart,
            samples_built=built,
            repeats=repeats,
            samples_given=built * repeats if order is None else min(built, begin + built - order.taken),
            **member_names(config, self.split, prefix, requested),
            order=order,
            begin=begin if order is not None else 0,
        )

    def _order(self, prefix: str, rows: Rows, tokens: int, needed: int) -> Order:
        """Return the order with which a run goes on, or in which it begins a dataset that no earlier phase read."""
        order = self.config.orders.get(prefix)
        if order is None:
            epochs = self._epochs(prefix, tokens, needed)
            apart = separate_last_epoch(epochs, tokens, needed, self.config.step, self.config.overlap)
            return Order(0, rows, epochs, apart)
        if order.rows != rows:
            found = f"{prefix}: sequences {rows[0]:,} to {rows[1]:,}"
            what = "train has other sequences of a dataset than the phases before, so that their order cannot go on"
            raise self._error(what, found, f"{order.rows[0]:,} to {order.rows[1]:,}: the `split` of these phases")
        return order

    def _epochs(self, prefix: str, tokens: int, requested: int | None) -> int:
        """Return the least number of epochs with tokens for the samples requested."""
        if requested is None:
            return 1
        needed = requested * self.config.step + self.config.overlap
        if needed > 0 and tokens == 0:
            raise self._error(
                "samples are asked of a split without tokens (the trainer would never return)",
                f"{prefix}: 0 tokens in {self.split}, {requested} samples asked for",
                f"tokens in {self.split}, share 0 for {self.split}, or no number of samples for it",
            )
        return 1 if self.rules.one_epoch or not needed else -(-needed // tokens)

    def _blend(self, members: tuple[MemberPlan, ...], weights: list[float] | None) -> BlendPlan:
        rules = self.rules
        # A blend with weights may leave such a dataset out, if the trainer builds indices of it.
        least = None if weights is None else _LEAST_TOKENS if rules.wraps != "never" else 0
        empty = (member for member in members if member.samples_given == 0)
        for short in (member for member in empty if least is None or member.tokens < least):
            found, expected = f"{short.prefix}: {short.tokens} tokens", f"{self.config.sample_tokens} tokens or more"
            raise self._error(_NO_SAMPLES, found, expected)
        size, shares = self._mix(members, weights)
        if size == 0 and rules.zero_samples != "any":
            raise self._error("a blend needs samples", f"preset {rules.name}, a size of 0", "1 or more")
        exhaustive = weights is None and self.asked is None and not rules.windows
        names = blend_names(rules, self.split, members, shares, None if exhaustive else size)
        seed = self.config.random_seed if rules.shuffles_blend else None
        return BlendPlan(size=size, weights=shares, exhaustive=exhaustive, **names, seed=seed)

    def _mix(
        self, members: tuple[MemberPlan, ...], weights: list[float] | None
    ) -> tuple[int, tuple[float, ...] | tuple[int, ...]]:
        """Return (size of the blend, weights that it is built with and described by)."""
        rules, asked = self.rules, self.asked
        lengths = tuple(member.samples_given for member in members)
        if rules.windows:
            return sum(lengths) if asked is None else asked, tuple(rules.normalized(weights or lengths))
        if weights is None:
            if asked is None:
                return sum(lengths), lengths
            return min(asked, sum(lengths)), tuple(rules.normalized(lengths))
        shares = tuple(rules.blend_weights(rules.normalized(weights)))
        if asked is None:
            return sum(lengths), shares
        targets = [member.samples_target or 0 for member in members]
        buffers = [member.samples_requested or 0 for member in members]
        return rules.weighted_size(asked, targets, buffers, per_split=self.shares is None), shares

    def _check_names(self, members: tuple[MemberPlan, ...]) -> None:
        """Refuse two datasets that would share index files in one cache folder."""
        if self.config.path_to_cache is None:
            return
        owners: dict[str, str] = {}
        for member in members:
            owner = owners.setdefault(member.cache_files[0], member.prefix)
            if owner != member.prefix:
                raise self._error(
                    "two datasets of the blend would share index files",
                    f"{owner} and {member.prefix}: {member.cache_files[0]}",
                    f"datasets with different names, since preset {self.rules.name} keeps no folder",
                )

    def measure(self, prefix: str) -> tuple[Rows, int, str]:
        """Return (rows of the split, tokens in them, digest of the .idx)."""
        lengths, digest = self.reader.read(prefix)
        begin, end = self._rows(len(lengths))
        if not 0 <= begin <= len(lengths):
            raise self._error("the split begins outside of the dataset", f"{prefix}: row {begin}", "more sequences")
        rows = (begin, max(begin, end))
        return rows, int(lengths[rows[0] : rows[1]].sum(dtype=np.int64)), digest

    def _rows(self, sequences: int) -> Rows:
        if self.shares is None:
            return 0, sequences
        if self.rules.split_rule == "cuts":
            return rows_by_cuts(self.shares, sequences)[self.number]
        bookends = split_bookends(self.shares)[self.number]
        return (0, 0) if bookends is None else rows_by_bookends(bookends, sequences)

    def _error(self, what: str, found: object, expected: object) -> ConfigError:
        return ConfigError(what, where=f"split {self.split}", found=found, expected=expected)
