"""Apply limits on epochs, where a corpus would be read too often: nothing, an error, fewer samples, or other shares.

No trainer has such a rule: the result is an ordinary configuration, which the trainer is given as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.coverage import epochs_drawn
from nanoset_core.mapping.plan import LengthReader, largest, plan_split
from nanoset_core.mapping.splits import SPLITS, SplitName, plain_sum

Policy = Literal["raise", "repeat", "stop", "redistribute"]


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
        ConfigError: there are no weights to `redistribute`.
        NanosetError: whatever `plan_split` raises.
    """
    reader = reader or LengthReader()
    found = tuple(one for split in SPLITS for one in _exceeded(config, split, limits, reader))
    if not found or policy == "repeat":
        return LimitedConfig(config, found)
    if policy == "raise":
        raise _refusal(found)
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
        if (member.samples_requested or 0) > most_samples(member.tokens, limits[member.prefix], config):
            epochs = epochs_drawn(drawn, member, config)
            found.append(ExceededLimit(member.prefix, split, epochs, limits[member.prefix]))
    return found


def _refusal(found: tuple[ExceededLimit, ...]) -> InputError:
    rows = [f"{Path(one.prefix).name} {one.epochs:.2f} times in {one.split} (at most {one.limit:g})" for one in found]
    return InputError(
        "a corpus would be read more often than max_epochs allows",
        found="; ".join(rows),
        expected="with the margin that the trainer adds to each corpus's samples, no more than max_epochs",
        remedy="ask for fewer samples, lower its weight, raise max_epochs, or let on_exhaustion be repeat, stop or "
        "redistribute",
    )


def _stop(config: NanosetConfig, limits: Mapping[str, float], reader: LengthReader) -> NanosetConfig:
    """Return the configuration with the largest number of samples, split by split, that keeps every limit."""
    samples = {split: config.samples(split) for split in SPLITS}
    for split in SPLITS:
        asked = samples[split]
        if asked is None or not _exceeded(config, split, limits, reader):
            continue

        def fits(count: int, split: SplitName = split) -> bool:
            return not _exceeded(config.with_samples({split: count}), split, limits, reader)

        size = largest(asked, fits)
        if size == 0:
            what, remedy = "the limits on epochs leave no sample", "raise max_epochs, or give the split a larger share"
            raise InputError(f"{what} of the {split} split", found=f"{asked:,} samples asked for", remedy=remedy)
        samples[split] = size
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
                allowed = most_samples(member.tokens, limits[member.prefix], config)
                share = _largest_share(size, allowed, config)
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


def _largest_share(size: int, allowed: int, config: NanosetConfig) -> float:
    """Return the largest weight, a multiple of 2**-40, with which a dataset gives no more than `allowed` samples.

    So coarse that making weights add up to 1 cannot lift it over the limit, nor is a sample lost below 2**40 of them.
    """
    unit = 1 << 40

    def fits(part: int) -> bool:
        return config.rules.member_sizes(size, (part + 0.5) / unit, config.surplus)[1] <= allowed

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
