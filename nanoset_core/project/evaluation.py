"""Warn about evaluations that the settings request, but that have no samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, parse_split

if TYPE_CHECKING:
    from nanoset_core.stages.mappings.resolved import ResolvedNanoset


def evaluation_warnings(spec: ResolvedNanoset) -> Iterator[str]:
    """Yield a warning if evaluations are requested, but the split for them, valid, has no data.

    The trainer skips such evaluations without a message.

    Args:
        spec: The settings of a nanoset. Its schedule has `eval_iters`, the number of batches that
            each evaluation reads.
    """
    schedule = spec.schedule
    if schedule is None or not schedule.eval_iters:
        return  # no evaluations are requested
    # The preset names the trainer. Some trainers divide a stream of tokens into windows themselves,
    # and never read a split for validation.
    reads_windows = get_preset(spec.preset).windows
    if reads_windows:
        return

    missing = _missing_validation_data(spec)
    if missing is None:
        return
    n_samples = schedule.samples()["valid"]
    yield (
        f"eval_iters: {schedule.eval_iters:,} asks for {n_samples:,} samples of valid, "
        f"which {missing.reason}, so that the trainer evaluates nothing: "
        f"{missing.remedy}, or set eval_iters to 0"
    )


class _MissingData(NamedTuple):
    """Why a split has no data, as clauses of a message."""

    reason: str
    remedy: str


def _missing_validation_data(spec: ResolvedNanoset) -> _MissingData | None:
    """Return why the settings of a nanoset give no data to valid; None if they give it some.

    Args:
        spec: The settings. They divide data in one of two ways: by a list of corpora for each
            split, or by shares of the same corpora, such as "98,1,1" for train, valid and test.
    """
    if spec.blend_per_split:
        if spec.blend_of("valid") is not None:
            return None
        return _MissingData("has no blend in `blend_per_split`", "name one for it")

    split = spec.shares or DEFAULT_SPLIT
    share_by_split = dict(zip(SPLITS, parse_split(split), strict=True))
    if share_by_split["valid"] > 0:
        return None
    return _MissingData(f"gets no share by `split: {split}`", "give it a share")
