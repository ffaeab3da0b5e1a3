"""indexed: a corpus's shards → one .bin/.idx, as Megatron-LM's preprocess_data.py would have written it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nanoset_core.errors import StaleError
from nanoset_core.indexed.builder import merge_indexed_datasets
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.pipeline import tokenization
from nanoset_core.pipeline.project import Project, holding
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.tokenization.framing import pair_name
from nanoset_core.tokenization.shards import TOKENS

VERSION = 1
STAGE = "datasets"


def dataset_recipe(project: Project, corpus: str, inventory_digest: str) -> Recipe:
    """What a merged dataset is made from. How the corpus was cut into shards leaves no trace in it."""
    settings = project.config.tokenization
    options = tokenization.token_options(project) | {"tokenization": tokenization.VERSION, "preset": settings.preset}
    return Recipe(STAGE, corpus, VERSION, {"inventory": inventory_digest}, options)


@holding
def index(project: Project, corpus: str) -> Manifest:
    """Merge a corpus's current shards, and make the dataset the current one."""
    tokenized = project.outputs.require(
        tokenization.STAGE, corpus, remedy=f"materialise tokenized_shards for the corpus {corpus!r} first"
    )
    inventory_digest = tokenized.recipe["parents"]["inventory"]
    expected = tokenization.tokenized_recipe(project, corpus, inventory_digest)
    if tokenized.digest != expected.digest:
        raise StaleError(
            "the shards were made under other settings than the present ones",
            where=tokenized.folder,
            found=tokenized.digest,
            expected=expected.digest,
            remedy=f"materialise tokenized_shards for the corpus {corpus!r} first",
        )
    recipe = dataset_recipe(project, corpus, inventory_digest)
    shards = tokenization.current_shards(project, tokenized)
    config = project.config
    prefix = pair_name(config.tokenization.preset, corpus, config.documents.text_key)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        merge_indexed_datasets([shard.path(TOKENS) for shard in shards], folder / prefix)
        facts = {
            "prefix": prefix,
            "documents": tokenized.facts["documents"],
            "sequences": tokenized.facts["sequences"],
            "tokens": tokenized.facts["tokens"],
            "rejected": tokenized.facts["rejected"],
            "faults": tokenized.facts["faults"],
            "dtype": recipe.options["dtype"],
        }
        return facts, {f"{prefix}.{end}": sha256_file(folder / f"{prefix}.{end}") for end in ("bin", "idx")}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


def current_dataset(project: Project, corpus: str) -> Manifest:
    """The corpus's live dataset.

    Raises:
        MissingError: it was not made yet.
    """
    return project.outputs.require(STAGE, corpus, remedy=f"materialise indexed_dataset for the corpus {corpus!r} first")
