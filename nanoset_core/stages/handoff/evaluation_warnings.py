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
    """Warn if a training is to be evaluated, but has no data for that.

    For example, the training data are divided as "99,0,1": none are for validation (valid), which
    evaluations read. Trainers then skip the evaluations without a message.

    Args:
        spec: The settings of the data for a training.
    """
    schedule = spec.schedule
    if schedule is None or not schedule.eval_iters:
        return  # no evaluations are requested
    if not get_preset(spec.preset).has_splits:
        return  # the trainer never reads validation data
    missing = _missing_validation_data(spec)
    if missing is None:
        return  # there are data for evaluations

    n_samples = schedule.samples()["valid"]  # of all evaluations together
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
    """Return why a training has no data for evaluations, which read the split `valid`.

    The settings divide data in one of two ways:

        blend_per_split: {train: web, test: news}    valid reads nothing, since it is not listed
        split: 99,0,1                                valid gets 0 of 100 parts

    Args:
        spec: The settings of a nanoset, which is what a training reads.

    Returns:
        The reason, and what to do; None if valid has data.
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
