"""Compute what a planned split takes of each dataset: shares, epochs, repeats, and tokens that are never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.planned import MemberPlan, SplitPlan
from nanoset_core.mapping.speculation import greedy_segments
from nanoset_core.mapping.splits import plain_sum

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

    @property
    def surplus(self) -> int:
        """Samples built that are not taken."""
        return self.samples_built - self.samples_given

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return asdict(self) | {"surplus": self.surplus}


def coverage(
    plan: SplitPlan,
    config: NanosetConfig,
    limits: Mapping[str, float] | None = None,
    given: Sequence[int] | None = None,
) -> list[MemberCoverage]:
    """Return what a split takes of each dataset.

    Args:
        plan: of the split.
        config: that it was planned with.
        limits: prefix → most epochs.
        given: samples taken of each dataset, counted in a built blend; absent = as planned.
    """
    taken = list(given) if given is not None else _planned(plan, config)
    weights: Sequence[float] = (1.0,) if plan.blend is None else plan.blend.weights
    whole, total = plain_sum(weights), sum(taken)
    return [
        MemberCoverage(
            prefix=member.prefix,
            sequences=member.rows[1] - member.rows[0],
            tokens=member.tokens,
            weight=weight / whole,
            share=count / total if total else 0.0,
            samples_asked=count if member.samples_target is None else member.samples_target,
            samples_given=count,
            samples_built=member.samples_given,
            epochs=epochs_drawn(count, member, config),
            max_epochs=(limits or {}).get(member.prefix),
            tokens_unseen=_unseen(member, count, config),
        )
        for member, weight, count in zip(plan.members, weights, taken, strict=True)
    ]


def _planned(plan: SplitPlan, config: NanosetConfig) -> list[int]:
    if plan.blend is None:
        only = plan.members[0]
        asked = config.samples(plan.split)
        return [only.samples_given if asked is None else min(asked, only.samples_given)]
    if plan.blend.exhaustive:
        return [member.samples_given for member in plan.members]
    return _blended(np.array(plan.blend.weights, np.float64), plan.blend.size)


def _blended(weights: NDArray[np.float64], size: int) -> list[int]:
    """Return the samples that a blend takes of each dataset: exact for small blends, else by weight."""
    if size <= _EXACT_SAMPLES:
        counts = np.zeros(len(weights), np.int64)
        for _, picks in greedy_segments(weights, size):
            counts += np.bincount(picks, minlength=len(weights))
        return [int(count) for count in counts]
    due = weights / weights.sum() * size
    counts = np.floor(due).astype(np.int64)
    counts[np.argsort(counts - due, kind="stable")[: size - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def epochs_drawn(taken: int, member: MemberPlan, config: NanosetConfig) -> float:
    """Return how often samples read a dataset: in samples of one epoch, or in tokens where they fill none."""
    if once := config.samples_in(member.tokens):
        return taken / once
    return taken * config.sequence_length / member.tokens if member.tokens else 0.0


def _unseen(member: MemberPlan, taken: int, config: NanosetConfig) -> int | None:
    length, extra = config.sequence_length, int(config.add_extra_token)
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
