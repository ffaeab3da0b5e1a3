"""Warnings about evaluations that a trainer would be asked for and could not make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, parse_split

if TYPE_CHECKING:
    from nanoset_core.stages.mappings.settings import NanosetSpec


def evaluation_warnings(spec: NanosetSpec) -> Iterator[str]:
    """Yield a warning if `eval_iters` asks for samples of valid, which gets none by the settings.

    The trainer leaves such evaluations out without a word. That test gets no sample is usual, and
    no reason to warn.
    """
    schedule = spec.schedule
    # which has no splits
    if schedule is None or not schedule.eval_iters or get_preset(spec.preset).windows:
        return
    if spec.blend_per_split:
        has_samples = spec.blend_of("valid") is not None
        reason = "has no blend in `blend_per_split`"
        remedy = "name one for it"
    else:
        shares = spec.shares or DEFAULT_SPLIT
        has_samples = parse_split(shares)[SPLITS.index("valid")] > 0
        reason = f"gets no share by `split: {shares}`"
        remedy = "give it a share"
    if has_samples:
        return
    samples = schedule.samples()["valid"]
    yield (
        f"eval_iters: {schedule.eval_iters:,} asks for {samples:,} samples of valid, which {reason}, so that the "
        f"trainer evaluates nothing: {remedy}, or set eval_iters to 0"
    )
