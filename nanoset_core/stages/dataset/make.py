"""Make the dataset of a corpus from its current shards.

The merge itself is in `merging.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.project.project import Project, holding
from nanoset_core.stages.dataset.merging import MergeTask, merge_in_bucket, merge_on_disk
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, check_recipe, require


@holding
def make_dataset(project: Project, corpus: str) -> Manifest:
    """Merge the token files of a corpus into the one dataset that trainers read.

    The corpus has been tokenized in parts, the shards:

        shards/web/3f9c…/tokens.bin
        shards/web/a07e…/tokens.bin    →    datasets/web/77cd…/web_text_document.bin

    "77cd…" is a digest of the dataset's recipe, which says what it is made from: the text and the
    settings. If this folder exists already, nothing is merged. In both cases, the dataset becomes
    the current one of the corpus.

    Args:
        project: Its outputs have the shards, and get the dataset.
        corpus: Name of the corpus, a collection of text.

    Returns:
        Manifest of the dataset, which describes it.

    Raises:
        MissingError: The corpus was not tokenized, or a shard was deleted.
        StaleError: The shards were made with other settings than the present ones.
        StorageError: The tokens of a shard have changed since they were written.
    """
    key = Key(corpus)
    tokenized = require(project, TOKENIZED, key)  # the list of the shards
    made_from = {"inventory": tokenized.recipe["parents"]["inventory"]}  # the files with text

    check_recipe(tokenized, TOKENIZED.recipe(project, key, made_from))  # of the present settings
    recipe = DATASET.recipe(project, key, made_from)

    def write(folder: Path) -> Written:
        """Merge the shards into a pair in a folder, and return the facts for its manifest."""
        return _merge(project, tokenized, recipe, folder)

    dataset = project.outputs.commit(recipe, write)  # unless the dataset exists
    return project.outputs.make_current(dataset)


def _merge(project: Project, tokenized: Manifest, recipe: Recipe, folder: Path) -> Written:
    """Merge the tokens of a corpus into one pair of files, and return the facts for its manifest.

        web_text_document.bin, web_text_document.idx
        {"prefix": "web_text_document", "documents": 1000, "tokens": 250000, "dtype": "uint16", …}

    Args:
        project: Its nanoset.yaml says how the files are named.
        tokenized: Manifest of the tokenized corpus, which lists its shards.
        recipe: Recipe of the dataset.
        folder: The folder of the files.
    """
    corpus = tokenized.name
    text_key = project.config.documents_of(corpus).text_key
    prefix = pair_name(project.config.tokenization.preset, corpus, text_key)
    task = MergeTask(project, tokenized, recipe, prefix)
    if project.outputs.access.takes_requests:
        files = merge_in_bucket(task, folder)
    else:
        files = merge_on_disk(task, folder)

    facts: dict[str, Any] = {"prefix": prefix}
    for name in ("documents", "sequences", "tokens", "rejected", "faults"):
        facts[name] = tokenized.facts[name]
    facts["dtype"] = recipe.options["dtype"]
    return Written(facts, files)
