"""Find the shards that a dataset was merged from.

The recipe of a dataset does not name them: however a corpus is cut into shards, its dataset has the
same bytes.
"""

from __future__ import annotations

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards.purged import OPTION as PURGED
from nanoset_core.stages.shards.stage import TOKENIZED

OPTIONS_OF_DATASET = ("tokenization", "preset")
"""Options of a dataset's recipe that the recipe of its set of shards does not have."""


def shards_of(outputs: OutputRoot, dataset: Manifest, *, strict: bool = False) -> Manifest:
    """Return the set of shards that a dataset was merged from, which says where its documents came
    from.

    Any set of shards of the same files and settings has the same documents, however they are cut
    into shards.

    Args:
        outputs: The root of both.
        dataset: The dataset's manifest.
        strict: Raise if a manifest that may be that of the set cannot be read; otherwise it is
            skipped.

    Raises:
        MissingError: The set was deleted.
        FormatError: The current set cannot be read, or, with `strict`, another one that was looked
            at.
    """
    current = outputs.current(TOKENIZED.layout.folder, dataset.name)
    if current is not None and has_same_origin(current, dataset):
        return current
    for tokenized in outputs.versions(TOKENIZED.layout.folder, dataset.name, strict=strict):
        if has_same_origin(tokenized, dataset):
            return tokenized
    raise MissingError(
        "the shards that the dataset was merged from are gone",
        where=outputs.access.url(outputs.folder / TOKENIZED.layout.folder / dataset.name),
        expected=f"those of the inventory {dataset.recipe['parents']['inventory']}",
        remedy="run `nanoset build`: it makes them again",
    )


def has_same_origin(tokenized: Manifest, dataset: Manifest) -> bool:
    """Return whether a set of shards is of the same files and settings as a dataset, so that it has
    its tokens.
    """
    if tokenized.recipe["parents"] != dataset.recipe["parents"]:
        return False
    if tokenized.recipe["version"] != dataset.recipe["options"]["tokenization"]:
        return False
    options = {
        key: value
        for key, value in dataset.recipe["options"].items()
        if key not in OPTIONS_OF_DATASET
    }
    # Without erased documents neither recipe has this option. A set that has it is not the
    # dataset's.
    options.setdefault(PURGED, None)
    return all(tokenized.recipe["options"].get(key) == value for key, value in options.items())
