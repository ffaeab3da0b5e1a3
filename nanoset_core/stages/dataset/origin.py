"""Find the shards that a dataset was merged from.

The recipe of a dataset does not name its shards, since a dataset has the same bytes however its
corpus is divided into shards.
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
    """Return the set of shards that a dataset was merged from.

    The shards say which line of which file each document was read from. Any set of shards of the
    same files and settings has the same documents, even if it divides them differently.

    Args:
        outputs: The output root of both.
        dataset: Manifest of the dataset.
        strict: Whether a damaged manifest, which may be that of the set, is an error. Otherwise it
            is skipped.

    Raises:
        MissingError: The set was deleted.
        FormatError: The current set cannot be read; or, with `strict`, another set cannot be read.
    """
    current = outputs.current(TOKENIZED.layout.folder, dataset.name)
    if current is not None and has_same_origin(current, dataset):
        return current
    for tokenized in outputs.versions(TOKENIZED.layout.folder, dataset.name, strict=strict):
        if has_same_origin(tokenized, dataset):
            return tokenized
    raise MissingError(
        "the shards that the dataset was merged from were deleted",
        where=outputs.access.url(outputs.folder / TOKENIZED.layout.folder / dataset.name),
        expected=f"those of the inventory {dataset.recipe['parents']['inventory']}",
        remedy="run `nanoset build`: it rebuilds them",
    )


def has_same_origin(tokenized: Manifest, dataset: Manifest) -> bool:
    """Return whether a set of shards was made from the same files and settings as a dataset.

    If so, the shards contain the tokens of the dataset.

    Args:
        tokenized: Manifest of the set of shards.
        dataset: Manifest of the dataset.
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
    # Recipes have this option only if documents were erased. If only one of the two has it, they
    # contain different documents.
    options.setdefault(PURGED, None)
    return all(tokenized.recipe["options"].get(key) == value for key, value in options.items())
