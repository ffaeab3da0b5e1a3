"""Notes on a built nanoset that concern every trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.splits import SplitName

_VIEWS = (
    "{names}: chosen from a corpus by the .idx alone; beside it lies the .bin of the whole corpus. A reader that takes "
    "the number of tokens from the size of the .bin (MaxText, readers of raw tokens) trains on what was left out: "
    "never give it this prefix, but tars or a .pbin of the view."
)
_PHASE = (
    "train goes on where the phases before it stopped. Its index files have the names that the trainer asks for, but "
    "hold the order of the whole run: keep them, since files that the trainer builds itself begin anew."
)
_RUN = (
    "train goes on with the run that has consumed {consumed:,} samples: resume its checkpoint with these arguments. "
    "The trainer counts samples from the begin of the run; positions before that hold samples that it has read. "
    "The index files have the names that the trainer asks for, but hold the order of the whole run: keep them."
)


def notes_of(
    config: NanosetConfig,
    empty: Mapping[SplitName, str],
    views: Sequence[str],
    warnings: Sequence[str] = (),
) -> Iterator[str]:
    """Yield notes on splits without samples, on settings, on views, and on a run that continues
    another.

    Args:
        config: The settings that the splits were built with.
        empty: Split → why it has no sample.
        views: Names of the datasets that are views.
        warnings: Clauses about settings that are allowed but rarely intended.
    """
    for split, reason in empty.items():
        yield f"{split}: {reason}."
    for warning in warnings:
        yield f"Warning: {warning}."
    if views:
        yield _VIEWS.format(names=", ".join(views))
    if not config.orders:
        return
    if config.consumed_samples:
        yield _RUN.format(consumed=config.consumed_samples)
    else:
        yield _PHASE
