"""Notes on a built nanoset that are the same for every trainer.

They tell the user what is not visible in the files: that a split is empty, that a setting is
unusual, that a dataset is only a selection of a corpus, or that the run began with other data. An
example is "valid: its share of the data is too small for a sample."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.splits import SplitName

_VIEWS_NOTE = (
    "{names}: only the .idx selects documents of a corpus; the .bin next to it contains the whole "
    "corpus. A reader that takes the number of tokens from the size of the .bin (MaxText, readers "
    "of raw tokens) also trains on the documents that were left out. Do not give it this prefix, "
    "but tars or a .pbin of the view."
)
"""Note on datasets that are views."""
_PHASE_NOTE = (
    "train continues where the previous phases stopped. Its index files have the names that the "
    "trainer looks for, but contain the order of the whole run. Keep them: files that the trainer "
    "builds itself start from the beginning."
)
"""Note on a phase of a run."""
_CONTINUED_RUN_NOTE = (
    "train continues the run that has consumed {consumed:,} samples: resume its checkpoint with "
    "these arguments. The trainer counts samples from the start of the run; the positions before "
    "{consumed:,} contain samples that it has read. The index files have the names that the "
    "trainer looks for, but contain the order of the whole run: keep them."
)
"""Note on a nanoset that continues the run of another one."""


def notes_of(
    config: NanosetConfig,
    empty: Mapping[SplitName, str],
    views: Sequence[str],
    warnings: Sequence[str] = (),
) -> Iterator[str]:
    """Yield what the user of a handoff, the files for a trainer, should know.

        a split has no samples             why it has none
        unusual settings                   a warning, as `nanoset status` shows it
        a dataset is a view (selection)    which readers would not notice the selection
        the run has read other data        that the prepared index files must be kept

    Args:
        config: The settings that the splits were built with.
        empty: Split without samples → the reason, a clause without its full stop.
        views: Names of the datasets that are views.
        warnings: Settings that are allowed but rarely intended, each a sentence without its full
            stop.

    Yields:
        Each note as one or more sentences.
    """
    for split, reason in empty.items():
        yield f"{split}: {reason}."
    for warning in warnings:
        yield f"Warning: {warning}."
    if views:
        yield _VIEWS_NOTE.format(names=", ".join(views))

    # `orders` lists the datasets that the run read before it reads this nanoset, if any.
    if not config.orders:
        return
    if config.consumed_samples:  # the run began with another nanoset
        yield _CONTINUED_RUN_NOTE.format(consumed=config.consumed_samples)
    else:  # it began with an earlier phase of the same nanoset
        yield _PHASE_NOTE
