"""Compute what a planned split takes of each dataset, and apply limits on how often it is read.

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
from nanoset_core.mapping.blending import greedy_segments
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.plan import LengthReader, largest, plan_split
from nanoset_core.mapping.planned import MemberPlan, SplitPlan
from nanoset_core.mapping.splits import SPLITS, SplitName, plain_sum

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
            epochs=epochs_drawn(_before(member) + count, member, config),
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
    weights, size = np.array(plan.blend.weights, np.float64), plan.blend.size
    if size <= _EXACT_SAMPLES:
        parts = (np.bincount(picks, minlength=len(weights)) for _, picks in greedy_segments(weights, size))
        return list(map(int, np.sum([np.zeros(len(weights), np.int64), *parts], axis=0)))
    due = weights / weights.sum() * size
    counts = np.floor(due).astype(np.int64)
    counts[np.argsort(counts - due, kind="stable")[: size - int(counts.sum())]] += 1
    return list(map(int, counts))


def _before(member: MemberPlan) -> int:
    """Return the samples that earlier phases of the run took."""
    return 0 if member.order is None else member.order.taken


def epochs_drawn(taken: int, member: MemberPlan, config: NanosetConfig) -> float:
    """Return how often samples read a dataset: in samples of one epoch, or in tokens where they fill none."""
    if once := config.samples_in(member.tokens):
        return taken / once
    return taken * config.sequence_length / member.tokens if member.tokens else 0.0


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
    """Times it would be read."""
    limit: float
    """Times it may be read."""


class LimitedConfig(NamedTuple):
    """A configuration after the limits were applied."""

    config: NanosetConfig
    exceeded: tuple[ExceededLimit, ...]
    """Datasets that the configuration given would have read too often."""


def apply_epoch_limits(
    config: NanosetConfig, limits: Mapping[str, float], policy: Policy, reader: LengthReader | None = None
) -> LimitedConfig:
    """Give a configuration the samples, or the weights, with which no dataset is read more often than it may be.

    Args:
        config: with the number of samples of every split that matters.
        limits: {prefix: most epochs}; a dataset that is not named has none.
        policy: `raise` an InputError; `repeat` anyway; `stop`: as many samples as the limits allow; `redistribute`: a
            dataset gives what it may, and the others of the blend the rest, in proportion.
        reader: shared with others that plan with the same datasets.

    Raises:
        InputError: a limit is broken and the policy is `raise`, or the limits leave too few samples.
        ConfigError: there are no weights to `redistribute`; or as `plan_split`.
    """
    reader = reader or LengthReader()
    found = tuple(one for split in SPLITS for one in _exceeded(config, split, limits, reader))
    if not found or policy == "repeat":
        return LimitedConfig(config, found)
    if policy == "raise":
        rows = [(Path(one.prefix).name, one.epochs, one.split, one.limit) for one in found]
        raise InputError(
            "a corpus would be read more often than max_epochs allows",
            found="; ".join("{} {:.2f} times in {} (at most {:g})".format(*row) for row in rows),
            expected="with the margin that the trainer adds to each corpus's samples, no more than max_epochs",
            remedy="ask for fewer samples, lower its weight, raise max_epochs, or let on_exhaustion be repeat, stop or "
            "redistribute",
        )
    change = _stop if policy == "stop" else _redistribute
    return LimitedConfig(change(config, limits, reader), found)


def most_samples(tokens: int, limit: float, config: NanosetConfig) -> int:
    """Return the samples that may be built from a dataset of so many tokens that may be read `limit` times."""
    if config.rules.one_epoch:
        return int(limit * config.samples_in(tokens))
    return config.samples_in(int(limit * tokens))


def _exceeded(
    config: NanosetConfig, split: SplitName, limits: Mapping[str, float], reader: LengthReader
) -> list[ExceededLimit]:
    if config.samples(split) is None:
        return []  # one epoch, whatever the limit
    plan = plan_split(config, split, reader)
    if plan is None or (plan.blend is not None and config.blend(split)[1] is None):  # type: ignore[index]
        return []
    found = []
    for member in (member for member in plan.members if member.prefix in limits):
        drawn = member.samples_given if member.samples_target is None else member.samples_target
        before = _before(member) - member.begin
        if (member.samples_requested or 0) + before > most_samples(member.tokens, limits[member.prefix], config):
            epochs = epochs_drawn(drawn + before, member, config)
            found.append(ExceededLimit(member.prefix, split, epochs, limits[member.prefix]))
    return found


def _stop(config: NanosetConfig, limits: Mapping[str, float], reader: LengthReader) -> NanosetConfig:
    """Return the configuration with the largest number of samples, split by split, that keeps every limit."""
    samples = {split: config.samples(split) for split in SPLITS}
    for split, asked in samples.items():

        def fits(count: int, split: SplitName = split) -> bool:
            return not _exceeded(config.with_samples({split: count}), split, limits, reader)

        if asked is None or fits(asked):
            continue
        samples[split] = largest(asked, fits)
        if not samples[split]:
            what, remedy = "the limits on epochs leave no sample", "raise max_epochs, or give the split a larger share"
            raise InputError(f"{what} of the {split} split", found=f"{asked:,} samples asked for", remedy=remedy)
    return config.with_samples(samples)


def _redistribute(config: NanosetConfig, limits: Mapping[str, float], reader: LengthReader) -> NanosetConfig:
    """Lower the shares of what is read too often; where splits share a blend, they share the new weights too."""
    if config.blend_per_split is None:
        return replace(config, data_path=_reweighted(config, SPLITS, limits, reader))
    blends = [
        _reweighted(config, (split,), limits, reader) if _exceeded(config, split, limits, reader) else blend
        for split, blend in zip(SPLITS, config.blend_per_split, strict=True)
    ]
    return replace(config, blend_per_split=blends)


def _reweighted(
    config: NanosetConfig, splits: tuple[SplitName, ...], limits: Mapping[str, float], reader: LengthReader
) -> dict[str, float]:
    prefixes, weights = config.blend(splits[0]) or ([], None)
    if weights is None:
        found, remedy = "redistribute, and one corpus without a weight", "let on_exhaustion be stop, repeat or raise"
        raise ConfigError("there are no weights to redistribute", where="on_exhaustion", found=found, remedy=remedy)
    most = dict.fromkeys(prefixes, math.inf)
    for split in splits:
        size = config.samples(split)
        plan = None if size is None else plan_split(config, split, reader)
        for member in plan.members if plan is not None else ():
            if member.prefix in limits and size:
                allowed = most_samples(member.tokens, limits[member.prefix], config) - _before(member)
                if allowed <= 0:
                    raise InputError(
                        "earlier phases of the run have read a dataset as often as max_epochs allows",
                        found=f"{Path(member.prefix).name}: {_before(member):,} samples",
                        remedy="leave it out of the blend, or raise max_epochs",
                    )
                share = _largest_share(size, allowed, config, config.consumed_samples if split == "train" else 0)
                most[member.prefix] = min(most[member.prefix], share)
    shares = _filled(dict(zip(prefixes, config.rules.normalized(weights), strict=True)), most)
    if shares is None:
        raise InputError(
            "the limits on epochs leave too few samples, whatever the shares",
            found=", ".join(f"{Path(prefix).name} at most {share:.4f}" for prefix, share in most.items()),
            expected="limits that add up to 1 or more",
            remedy="ask for fewer samples, add text, raise max_epochs, or let on_exhaustion be stop",
        )
    return shares


def _largest_share(size: int, allowed: int, config: NanosetConfig, consumed: int) -> float:
    """Return the largest weight, a multiple of 2**-40, with which a dataset gives no more than `allowed` samples.

    So coarse that making weights add up to 1 cannot lift it over the limit, nor is a sample lost below 2**40 of them.
    """
    unit = 1 << 40

    def fits(part: int) -> bool:
        share = (part + 0.5) / unit
        # a run that goes on in its middle has read its first samples before, rounded to one
        before = max(int(share * consumed) - 1, 0)
        return config.rules.member_sizes(size, share, config.surplus)[1] - before <= allowed

    return largest(unit, fits) / unit


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
