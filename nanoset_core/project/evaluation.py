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
    """Yield a warning if evaluations are requested, but the split for them, valid, has no data.

    The trainer skips such evaluations without a message. There is no warning about the test split,
    which is often left empty on purpose.

    Args:
        spec: The settings of a nanoset. Its schedule has `eval_iters`, the number of batches that
            each evaluation reads.
    """
    schedule = spec.schedule
    if schedule is None or not schedule.eval_iters:
        return
    # Trainers that read windows, which are stretches of consecutive tokens, have no splits.
    reads_windows = get_preset(spec.preset).windows
    if reads_windows:
        return

    # The settings give data to valid in one of two ways: by a list of corpora for each split, or by
    # shares of the same corpora, such as "98,1,1" for train, valid and test.
    if spec.blend_per_split:
        has_data = spec.blend_of("valid") is not None
        reason = "has no blend in `blend_per_split`"
        remedy = "name one for it"
    else:
        split = spec.shares or DEFAULT_SPLIT
        share_by_split = dict(zip(SPLITS, parse_split(split), strict=True))
        has_data = share_by_split["valid"] > 0
        reason = f"gets no share by `split: {split}`"
        remedy = "give it a share"
    if has_data:
        return

    requested_samples = schedule.samples()["valid"]
    yield (
        f"eval_iters: {schedule.eval_iters:,} asks for {requested_samples:,} samples of valid, "
        f"which {reason}, so that the trainer evaluates nothing: "
        f"{remedy}, or set eval_iters to 0"
    )
