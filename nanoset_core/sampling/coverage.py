"""Compute what a planned split takes of each dataset, and apply limits on how often it is read.

A limit on a dataset holds for each of its documents: if other datasets of the blend hold the document too, as a view of
the corpus does, all readings of it count. `nanoset_core/sampling/corpora.py` defines how often a document is read.

Shares, epochs, repeats, and tokens that are never seen. Where a corpus would be read too often: nothing, an error,
fewer samples, or other shares. No trainer has such a rule: the result is an ordinary configuration, which the trainer
is given as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.sampling.blending import samples_taken
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import CorpusReader, SharedLimit, epochs_drawn, shared_limits
from nanoset_core.sampling.plan import LengthReader, largest, plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.splits import SPLITS, SplitName, plain_sum

Policy = Literal["raise", "repeat", "stop", "redistribute"]
_EXACT_SAMPLES = 1 << 20
"""Samples of a blend that are picked in less than half a second, whatever the weights."""


@dataclass(frozen=True, slots=True)
class MemberCoverage:
    """One dataset's part in the samples of a split."""

    prefix: str
    sequences: int
    """Sequences of the split in the dataset."""
    tokens: int
    """Tokens of one epoch: of those sequences."""
    weight: float
    """Share asked for, 0 to 1."""
    share: float
    """Share of the split's samples that it gives, 0 to 1."""
    samples_asked: int
    """Samples that the blend is to take; a dataset alone: what was asked for, or all."""
    samples_given: int
    """Samples that are taken of it; before a blend of over a million samples is built, within a few."""
    samples_built: int
    """Samples that its indices hold; the rest is surplus."""
    tokens_taken: int
    """Tokens of the samples that are taken of it, the padding of packs included."""
    epochs: float
    """Samples taken over samples of one epoch; where that has none, tokens over tokens."""
    max_epochs: float | None
    """How often it may be read, if there is a limit."""
    tokens_unseen: int | None
    """Tokens that no sample taken holds, within one a sample; None where it depends on how epochs were shuffled."""
    before: int = 0
    """Samples that earlier phases of the run took of it; they count in `epochs`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        values = asdict(self) | {"surplus": self.samples_built - self.samples_given}
        return values if self.before else {name: value for name, value in values.items() if name != "before"}


def coverage(
    plan: SplitPlan,
    config: NanosetConfig,
    limits: Mapping[str, float] | None = None,
    given: Sequence[int] | None = None,
) -> list[MemberCoverage]:
    """Return what a split takes of each dataset; `given`: samples taken of each, counted in a built blend."""
    taken = list(given) if given is not None else _planned(plan, config)
    taken = [count - member.begin for member, count in zip(plan.members, taken, strict=True)]
    weights: Sequence[float] = (1.0,) if plan.blend is None else plan.blend.weights
    whole, total = plain_sum(weights), sum(taken)
    epoch = sum(member.samples_given for member in plan.members) if config.rules.shuffles_blend else None
    return [
        MemberCoverage(
            prefix=member.prefix,
            sequences=member.rows[1] - member.rows[0],
            tokens=member.tokens,
            weight=weight / whole,
            share=count / total if total else 0.0,
            samples_asked=count if member.samples_target is None else max(member.samples_target - member.begin, 0),
            samples_given=count,
            samples_built=member.samples_given - member.begin if epoch is None else max(member.samples_given, count),
            tokens_taken=count * config.step,
            epochs=epochs_drawn(_before(member) + count, member.tokens, config),
            max_epochs=(limits or {}).get(member.prefix),
            tokens_unseen=_unseen(member, count, config, None if epoch is None else math.ceil(epoch * weight / whole)),
            before=_before(member),
        )
        for member, weight, count in zip(plan.members, weights, taken, strict=True)
    ]


def _planned(plan: SplitPlan, config: NanosetConfig) -> list[int]:
    """Return the samples that a split takes of each dataset: exact for small blends, else by weight."""
    given, asked = [member.samples_given for member in plan.members], config.samples(plan.split)
    if plan.blend is None:
        return [given[0] if asked is None else min(asked, given[0])]
    if plan.blend.exhaustive:
        return given
    size = plan.blend.size
    if size <= _EXACT_SAMPLES:
        return list(samples_taken(plan.blend.weights, 0, size))
    weights = np.array(plan.blend.weights, np.float64)
    due = weights / weights.sum() * size
    counts = np.floor(due).astype(np.int64)
    counts[np.argsort(counts - due, kind="stable")[: size - int(counts.sum())]] += 1
    return list(map(int, counts))


def _before(member: MemberPlan) -> int:
    """Return the samples that earlier phases of the run took."""
    return 0 if member.order is None else member.order.taken


def _unseen(member: MemberPlan, taken: int, config: NanosetConfig, in_epoch: int | None) -> int | None:
    """Return the tokens that no sample holds; `in_epoch`: samples of it in a blend that repeats one epoch."""
    if in_epoch is not None:
        if taken < in_epoch > member.samples_given:
            return None  # some of them twice
        taken = min(taken, in_epoch)
    length, extra = config.step, config.overlap
    taken += _before(member)
    if taken == 0:
        return member.tokens
    if member.epochs > 1:
        # The first epochs are taken whole where they are shuffled apart from the last one, or nothing is left over.
        first = ((member.epochs - 1) * member.tokens - extra) // length
        whole_epochs = taken >= (first if member.separate_last_epoch else member.samples_built)
        return 0 if whole_epochs else None
    once = config.samples_in(member.tokens)
    whole = min(taken, once)
    # Neighbours share a token: samples side by side hold `length` tokens each, and one more at their end.
    return max(0, member.tokens - whole * length - (extra if whole == once else 0))


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A dataset that a split would read more often than it may."""

    prefix: str
    split: SplitName
    epochs: float
    """Times it would be read; of documents with several copies, those that would be read most often."""
    limit: float
    """Times it may be read."""
    holders: tuple[str, ...] = ()
    """If documents have several copies: names of the corpus, views and packs that hold those read most often."""

    @property
    def text(self) -> str:
        """What would be read how often, in one clause."""
        if not self.holders:
            name = Path(self.prefix).name
            return f"{name} {self.epochs:.2f} times in {self.split} (at most {self.limit:g})"
        times = f"{self.epochs:.2f} times in {self.split} (at most {self.limit:g})"
        if len(self.holders) == 1:
            return f"documents that {self.holders[0]} repeats {times}"
        return f"documents that {' and '.join(self.holders)} share {times}"


class LimitedConfig(NamedTuple):
    """A configuration after the limits were applied."""

    config: NanosetConfig
    exceeded: tuple[ExceededLimit, ...]
    """Datasets that the configuration given would have read too often."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on epochs, and what is needed to look at them."""

    by_prefix: Mapping[str, float]
    """Prefix → most epochs."""
    reader: LengthReader
    corpora: CorpusReader | None
    """Finds documents that several datasets hold; None if each dataset is a corpus of its own."""

    def shared(self, plan: SplitPlan, config: NanosetConfig) -> list[SharedLimit]:
        """Return the limits on documents with several copies in the datasets of a split, and of earlier phases."""
        if self.corpora is None or not self.by_prefix:
            return []
        rows = {prefix: order.rows for prefix, order in config.orders.items() if plan.split == "train"}
        rows |= {member.prefix: member.rows for member in plan.members}
        return shared_limits(self.corpora.parts(rows), self.by_prefix)


def apply_epoch_limits(
    config: NanosetConfig,
    limits: Mapping[str, float],
    policy: Policy,
    reader: LengthReader | None = None,
    corpora: CorpusReader | None = None,
) -> LimitedConfig:
    """Give a configuration the samples, or the weights, with which no document is read more often than it may be.

    Args:
        config: with the number of samples of every split that matters.
        limits: {prefix: most epochs}; a dataset that is not named has none.
        policy: `raise` an InputError; `repeat` anyway; `stop`: as many samples as the limits allow; `redistribute`: a
            dataset gives what it may, and the others of the blend the rest, in proportion.
        reader: shared with others that plan with the same datasets.
        corpora: finds documents that several datasets hold; None if each dataset is a corpus of its own.

    Raises:
        InputError: a limit is broken and the policy is `raise`, or the limits leave too few samples.
        ConfigError: there are no weights to `redistribute`; or as `plan_split`.
    """
    known = _Limits(limits, reader or LengthReader(), corpora)
    found = tuple(one for split in SPLITS for one in _exceeded(config, split, known))
    if not found or policy == "repeat":
        return LimitedConfig(config, found)
    if policy == "raise":
        raise InputError(
            "a corpus would be read more often than max_epochs allows",
            found="; ".join(dict.fromkeys(one.text for one in found)),
            expected="with the margin that the trainer adds to each corpus's samples, no more than max_epochs",
            remedy="ask for fewer samples, lower its weight, raise max_epochs, or let on_exhaustion be repeat, stop or "
            "redistribute",
        )
    if policy == "stop":
        return LimitedConfig(_stop(config, known), found)
    return LimitedConfig(_redistribute(config, known), found)


def most_samples(tokens: int, limit: float, config: NanosetConfig) -> int:
    """Return the samples that may be built from a dataset of so many tokens that may be read `limit` times."""
    if config.rules.one_epoch:
        return int(limit * config.samples_in(tokens))
    return config.samples_in(int(limit * tokens))


def epochs_needed(samples: int, tokens: int, config: NanosetConfig) -> float:
    """Return how often a dataset has to be read for so many samples: the inverse of `most_samples`."""
    if samples <= 0 or not tokens:
        return 0.0
    if config.rules.one_epoch:
        samples_of_epoch = config.samples_in(tokens)
        return samples / samples_of_epoch if samples_of_epoch else math.inf
    return (samples * config.step + config.overlap) / tokens


def _exceeded(config: NanosetConfig, split: SplitName, limits: _Limits) -> list[ExceededLimit]:
    if config.samples(split) is None:
        return []  # one epoch, whatever the limit
    plan = plan_split(config, split, limits.reader)
    if plan is None:
        return []

    # Documents with several copies: the readings of all datasets that hold them count.
    shared = limits.shared(plan, config)
    found = _shared_exceeded(plan, config, shared, limits.reader)
    if plan.blend is not None and config.blend(split)[1] is None:  # type: ignore[index]
        return found  # each dataset is read once

    # Datasets whose documents no other one holds.
    shared_prefixes = {limit.prefix for limit in shared}
    for member in plan.members:
        limit = limits.by_prefix.get(member.prefix)
        if limit is None or member.prefix in shared_prefixes:
            continue
        before = _before(member) - member.begin
        if (member.samples_requested or 0) + before > most_samples(member.tokens, limit, config):
            epochs = epochs_drawn(_drawn(member) + before, member.tokens, config)
            found.append(ExceededLimit(member.prefix, split, epochs, limit))
    return found


def documents_read_too_often(
    config: NanosetConfig, split: SplitName, limits: Mapping[str, float], reader: LengthReader, corpora: CorpusReader
) -> list[ExceededLimit]:
    """Return the documents with several copies that a split reads more often than they may be.

    The margin that the trainer adds does not count, nor do the samples by which a share is rounded up.
    """
    plan = plan_split(config, split, reader)
    if plan is None:
        return []
    shared = _Limits(limits, reader, corpora).shared(plan, config)
    return _shared_exceeded(plan, config, shared, reader, has_margin=False)


def _drawn(member: MemberPlan) -> int:
    return member.samples_given if member.samples_target is None else member.samples_target


def _shared_exceeded(
    plan: SplitPlan,
    config: NanosetConfig,
    shared: Sequence[SharedLimit],
    reader: LengthReader,
    *,
    has_margin: bool = True,
) -> list[ExceededLimit]:
    """Return for each dataset with a broken limit the documents that would be read most often.

    Args:
        plan: of the split.
        config: of the split.
        shared: the limits on documents with several copies.
        reader: of the datasets.
        has_margin: whether the samples count that are built of a dataset, or only those that the blend takes of it.
    """
    if not shared:
        return []

    built = _epochs_before(config, reader) if plan.split == "train" else {}
    drawn = dict(built)
    rounding = dict.fromkeys(built, 0.0)
    for member in plan.members:
        before = _before(member) - member.begin
        requested = member.samples_given if member.samples_requested is None else member.samples_requested
        built[member.prefix] = epochs_needed(requested + before, member.tokens, config)
        drawn[member.prefix] = epochs_drawn(_drawn(member) + before, member.tokens, config)
        rounding[member.prefix] = 2 * config.step / max(member.tokens, 1)

    worst: dict[str, ExceededLimit] = {}
    for limit in shared:
        is_exceeded = limit.is_exceeded(built) if has_margin else limit.is_exceeded(drawn, limit.times(rounding))
        times = limit.times(drawn)
        known = worst.get(limit.prefix)
        if is_exceeded and (known is None or times > known.epochs):
            worst[limit.prefix] = ExceededLimit(limit.prefix, plan.split, times, limit.limit, limit.holders)
    return list(worst.values())


def _epochs_before(config: NanosetConfig, reader: LengthReader) -> dict[str, float]:
    """Return how often earlier phases of the run have read each dataset, by prefix."""
    epochs = {}
    for prefix, order in config.orders.items():
        lengths, _ = reader.read(prefix)
        tokens = int(lengths[slice(*order.rows)].sum(dtype=np.int64))
        epochs[prefix] = epochs_needed(order.taken, tokens, config)
    return epochs


def _stop(config: NanosetConfig, limits: _Limits) -> NanosetConfig:
    """Return the configuration with the largest number of samples, split by split, that keeps every limit."""
    samples = {split: config.samples(split) for split in SPLITS}
    for split, asked in samples.items():

        def fits(count: int, split: SplitName = split) -> bool:
            return not _exceeded(config.with_samples({split: count}), split, limits)

        if asked is None or fits(asked):
            continue
        samples[split] = largest(asked, fits)
        if not samples[split]:
            what, remedy = "the limits on epochs leave no sample", "raise max_epochs, or give the split a larger share"
            raise InputError(f"{what} of the {split} split", found=f"{asked:,} samples asked for", remedy=remedy)
    return config.with_samples(samples)


def _redistribute(config: NanosetConfig, limits: _Limits) -> NanosetConfig:
    """Lower the shares of what is read too often; where splits share a blend, they share the new weights too."""
    if config.blend_per_split is None:
        return replace(config, data_path=_reweighted(config, SPLITS, limits))
    blends = [
        _reweighted(config, (split,), limits) if _exceeded(config, split, limits) else blend
        for split, blend in zip(SPLITS, config.blend_per_split, strict=True)
    ]
    return replace(config, blend_per_split=blends)


@dataclass(frozen=True, slots=True)
class _SharedRoom:
    """A limit on documents with several copies, in a split of so many samples."""

    limit: SharedLimit
    size: int
    """Samples of the split."""
    consumed: int
    """Samples of it that the run has consumed."""
    plan: SplitPlan
    config: NanosetConfig
    epochs_before: Mapping[str, float]
    """Prefix → epochs that earlier phases read."""

    def fits(self, shares: Mapping[str, float]) -> bool:
        """Return whether the limit is kept if the datasets have these shares of the split."""
        epochs = dict(self.epochs_before)
        for member in self.plan.members:
            if member.prefix in self.limit.copies:
                built = _samples_built(self.size, shares[member.prefix], self.config, self.consumed)
                epochs[member.prefix] = epochs_needed(built + _before(member), member.tokens, self.config)
        return not self.limit.is_exceeded(epochs)


def _reweighted(config: NanosetConfig, splits: tuple[SplitName, ...], limits: _Limits) -> dict[str, float]:
    prefixes, weights = config.blend(splits[0]) or ([], None)
    if weights is None:
        found, remedy = "redistribute, and one corpus without a weight", "let on_exhaustion be stop, repeat or raise"
        raise ConfigError("there are no weights to redistribute", where="on_exhaustion", found=found, remedy=remedy)

    # The largest share of each dataset, and the limits that several datasets have to keep together.
    most = dict.fromkeys(prefixes, math.inf)
    rooms: list[_SharedRoom] = []
    for split in splits:
        size = config.samples(split)
        plan = None if size is None else plan_split(config, split, limits.reader)
        if plan is None or not size:
            continue
        consumed = config.consumed_samples if split == "train" else 0
        shared = limits.shared(plan, config)
        shared_prefixes = {limit.prefix for limit in shared}
        before = _epochs_before(config, limits.reader) if split == "train" and shared else {}
        rooms += [_SharedRoom(limit, size, consumed, plan, config, before) for limit in shared]
        for member in plan.members:
            if member.prefix not in limits.by_prefix or member.prefix in shared_prefixes:
                continue
            allowed = most_samples(member.tokens, limits.by_prefix[member.prefix], config) - _before(member)
            if allowed <= 0:
                raise InputError(
                    "earlier phases of the run have read a dataset as often as max_epochs allows",
                    found=f"{Path(member.prefix).name}: {_before(member):,} samples",
                    remedy="leave it out of the blend, or raise max_epochs",
                )
            share = _largest_share(size, allowed, config, consumed)
            most[member.prefix] = min(most[member.prefix], share)

    shares = dict(zip(prefixes, config.rules.normalized(weights), strict=True))
    filled = _filled_together(shares, most, rooms) if rooms else _filled(shares, most)
    if filled is None:
        raise InputError(
            "the limits on epochs leave too few samples, whatever the shares",
            found=", ".join([*_share_limits(most), *_shared_limits(rooms)]),
            expected="limits that add up to 1 or more",
            remedy="ask for fewer samples, add text, raise max_epochs, or let on_exhaustion be stop",
        )
    return filled


def _share_limits(most: Mapping[str, float]) -> list[str]:
    return [f"{Path(prefix).name} at most {share:.4f}" for prefix, share in most.items() if share < math.inf]


def _shared_limits(rooms: Sequence[_SharedRoom]) -> list[str]:
    texts = [f"documents in {' and '.join(room.limit.holders)} at most {room.limit.limit:g} times" for room in rooms]
    return list(dict.fromkeys(texts))


_SHARE_UNITS = 1 << 40
"""Shares are looked for in multiples of 2**-40.

So coarse that making weights add up to 1 cannot lift one over its limit, nor is a sample lost below 2**40 of them.
"""


def _samples_built(size: int, share: float, config: NanosetConfig, consumed: int) -> int:
    """Return the samples that are built of a dataset with a share of a split, without those consumed before."""
    # A run that goes on in its middle has read its first samples before, rounded to one.
    before = max(int(share * consumed) - 1, 0)
    return config.rules.member_sizes(size, share, config.surplus)[1] - before


def _largest_share(size: int, allowed: int, config: NanosetConfig, consumed: int) -> float:
    """Return the largest weight, a multiple of 2**-40, with which a dataset gives no more than `allowed` samples."""

    def fits(part: int) -> bool:
        return _samples_built(size, (part + 0.5) / _SHARE_UNITS, config, consumed) <= allowed

    return largest(_SHARE_UNITS, fits) / _SHARE_UNITS


def _filled(shares: dict[str, float], most: Mapping[str, float]) -> dict[str, float] | None:
    """Return shares within their limits that add up to 1, the free ones in their old proportion; None if impossible."""
    fixed: dict[str, float] = {}
    while True:
        free = {prefix: share for prefix, share in shares.items() if prefix not in fixed}
        if not free:
            return None
        left, total = 1.0 - plain_sum(fixed.values()), plain_sum(free.values())
        scaled = {prefix: share / total * left for prefix, share in free.items()}
        over = [prefix for prefix, share in scaled.items() if share > most[prefix]]
        if not over:
            return {prefix: fixed.get(prefix, scaled.get(prefix, 0.0)) for prefix in shares}
        fixed |= {prefix: most[prefix] for prefix in over}


def _filled_together(
    shares: Mapping[str, float], most: Mapping[str, float], rooms: Sequence[_SharedRoom]
) -> dict[str, float] | None:
    """Return shares as `_filled`, if limits also hold for several datasets together; None if impossible.

    All free shares grow from 0 in their old proportion. When a limit is reached, the datasets that it holds for keep
    the share that they have, and the others continue to grow until all shares add up to 1.
    """
    fixed: dict[str, float] = {}
    while True:
        free = {prefix: share for prefix, share in shares.items() if prefix not in fixed}
        if not free:
            return None
        left = 1.0 - plain_sum(fixed.values())
        total = plain_sum(free.values())
        proportions = {prefix: share / total * left for prefix, share in free.items()}

        def reached(
            units: int, fixed: Mapping[str, float] = fixed, proportions: Mapping[str, float] = proportions
        ) -> set[str]:
            """Return the free datasets whose limits are broken at a level, in units of all that is left."""
            level = (units + 0.5) / _SHARE_UNITS
            grown = {prefix: share * level for prefix, share in proportions.items()}
            broken = {prefix for prefix, share in grown.items() if share > most[prefix]}
            for room in rooms:
                if not room.fits({**fixed, **grown}):
                    broken |= room.limit.copies.keys() & proportions.keys()
            return broken

        if not reached(_SHARE_UNITS):
            return {prefix: fixed.get(prefix, proportions.get(prefix, 0.0)) for prefix in shares}
        level = largest(_SHARE_UNITS, lambda units, reached=reached: not reached(units))  # type: ignore[misc]
        for prefix in reached(level + 1):
            fixed[prefix] = min(proportions[prefix] * level / _SHARE_UNITS, most[prefix])
            if not fixed[prefix]:
                return None
