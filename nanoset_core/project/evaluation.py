"""Warn about evaluations that the settings request, but that have no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, parse_split

if TYPE_CHECKING:
    from nanoset_core.stages.mappings.resolved import ResolvedNanoset


def evaluation_warnings(spec: ResolvedNanoset) -> Iterator[str]:
    """Yield a warning if `eval_iters` requests samples of the valid split, which gets none.

    The trainer skips such evaluations without a message. There is no warning about the test split,
    which is often left empty on purpose.

    Args:
        spec: The settings of a nanoset. `eval_iters` is the number of batches of an evaluation.
    """
    schedule = spec.schedule
    # Trainers that read in windows have no splits.
    if schedule is None or not schedule.eval_iters or get_preset(spec.preset).windows:
        return

    # Find out whether the settings give data to valid: by a list of its own, or by a share.
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
        f"eval_iters: {schedule.eval_iters:,} asks for {samples:,} samples of valid, "
        f"which {reason}, so that the trainer evaluates nothing: "
        f"{remedy}, or set eval_iters to 0"
    )
