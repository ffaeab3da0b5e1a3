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
    "these arguments. The trainer counts samples from the start of the run, and skips those before "
    "sample {consumed:,}. A training loop of your own has to start at sample {consumed:,}, too: "
    "earlier samples are only placeholders. The index files have the names that the trainer looks "
    "for, but contain the order of the whole run: keep them."
)
"""Note on a nanoset that continues the run of another one."""


def notes_of(
    config: NanosetConfig,
    empty: Mapping[SplitName, str],
    views: Sequence[str],
    warnings: Sequence[str] = (),
) -> Iterator[str]:
    """Yield notes on data that was built for a training, for the user who starts the trainer.

    Args:
        config: The settings that the data was built with.
        empty: Split without samples → the reason, such as "its share of the data is too small for a
            sample".
        views: Names of the datasets that are selections of another dataset's documents (views).
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
        # Some programs would not notice that these are selections.
        yield _VIEWS_NOTE.format(names=", ".join(views))

    order_note = _order_note(config)
    if order_note is not None:
        yield order_note


def _order_note(config: NanosetConfig) -> str | None:
    """Return a note if the training has read other data before, so that its order is unusual.

    Then the trainer could not compute this order, so the user has to keep the index files:

        the training began with                         note
        an earlier phase, in the same nanoset.yaml      train continues where the phases stopped
        another data mixture, of which it has read      train continues the run that has consumed
        6,400 samples                                   6,400 samples

    Args:
        config: The settings that the data was built with. If the training began with other data,
            `orders` has the order of its samples.

    Returns:
        The note; None if the training begins with this data.
    """
    if not config.orders:
        return None
    if config.consumed_samples:
        return _CONTINUED_RUN_NOTE.format(consumed=config.consumed_samples)
    return _PHASE_NOTE
