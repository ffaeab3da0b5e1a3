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
    """Return the list of shards (parts of a tokenized corpus) that a dataset was merged from.

    The shards show from which file and line each document came. A corpus may have been tokenized
    several times, so there may be several lists. The right one was made from the same text with the
    same settings as the dataset:

        list     made from text    with tokenizer
        3f9c…    of today          gpt2
        a07e…    of last week      gpt2             the dataset was made from this, too

    Args:
        outputs: The output root of both.
        dataset: Manifest of the dataset.
        strict: Raise an error if the manifest of a list is damaged, instead of skipping the list.

    Raises:
        MissingError: There is no such list; it was deleted.
        FormatError: The current list cannot be read; or, with `strict`, another one cannot be read.
    """
    # Usually it is the current list. If the dataset is an old version, look at all lists. Each has
    # a recipe, which says what it was made from. It has to fit the recipe of the dataset.
    current = outputs.current(TOKENIZED.layout.folder, dataset.name)
    if current is not None and has_same_origin(current, dataset):
        return current
    for tokenized in outputs.versions(TOKENIZED.layout.folder, dataset.name, strict=strict):
        if has_same_origin(tokenized, dataset):
            return tokenized
    raise _deleted_shards_error(outputs, dataset)


def _deleted_shards_error(outputs: OutputRoot, dataset: Manifest) -> MissingError:
    """Return the error for a dataset whose shards, which it was merged from, were deleted.

    Args:
        outputs: The output root.
        dataset: Manifest of the dataset.
    """
    return MissingError(
        "the shards that the dataset was merged from were deleted",
        where=outputs.access.url(outputs.folder / TOKENIZED.layout.folder / dataset.name),
        expected=f"those of the inventory {dataset.recipe['parents']['inventory']}",
        remedy="run `nanoset build`: it rebuilds them",
    )


def has_same_origin(tokenized: Manifest, dataset: Manifest) -> bool:
    """Return whether a list of shards was made from the same text and settings as a dataset.

    Shards are the parts in which a corpus was tokenized, and a dataset is merged from them. A
    recipe of each says what it was made from. "inventory" stands for the list of files with text:

        shards     {"parents": {"inventory": "3f9c…"}, "version": 4,
                    "options": {"tokenizer": "9a3f…", …}}
        dataset    {"parents": {"inventory": "3f9c…"}, "version": 2,
                    "options": {"tokenizer": "9a3f…", "tokenization": 4, …}}

    Args:
        tokenized: Manifest of the list of shards, which has its recipe.
        dataset: Manifest of the dataset, which has its recipe.
    """
    has_same_files = tokenized.recipe["parents"] == dataset.recipe["parents"]
    # The code that tokenized the text has a version, which the dataset has as an option.
    version_of_tokenization = dataset.recipe["options"]["tokenization"]
    has_same_code = tokenized.recipe["version"] == version_of_tokenization
    return has_same_files and has_same_code and _has_same_token_options(tokenized, dataset)


def _has_same_token_options(tokenized: Manifest, dataset: Manifest) -> bool:
    """Return whether two outputs were tokenized with the same settings, as their recipes say.

        {"tokenizer": "9a3f…", "dtype": "uint16", …} in both

    Settings that do not matter for the tokens of a dataset, such as how its files are named, are
    not compared.

    Args:
        tokenized: Manifest of the list of shards, the parts in which a corpus was tokenized.
        dataset: Manifest of a dataset, which was perhaps merged from them.
    """
    shard_options = tokenized.recipe["options"]
    dataset_options = dataset.recipe["options"]
    names = dataset_options.keys() - OPTIONS_OF_DATASET
    names |= {PURGED}  # a digest of the documents that were erased, if any
    return all(shard_options.get(name) == dataset_options.get(name) for name in names)
