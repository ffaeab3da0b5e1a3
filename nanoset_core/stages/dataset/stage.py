"""The stage `datasets`: merges the shards of a corpus into one .bin/.idx pair for trainers.

A corpus is tokenized in shards, by many processes. Its dataset has the tokens of all shards, in the
order of the documents, as one pair of files such as web_text_document.bin and .idx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.shards.options import token_options
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    CorpusStage,
    Estimated,
    Key,
    Layout,
    Node,
    Summary,
    check_recipe,
    counted,
    require,
)
from nanoset_core.stages.text_estimate import TextEstimate

VERSION = 1
STAGE = "datasets"


class DatasetStage(CorpusStage, Estimated):
    """Merges the shards of each corpus into one .bin and .idx."""

    layout = Layout(STAGE, uploaded_first=(".bin", ".idx", f".bin{PIECES_ENDING}"))
    version = VERSION
    estimated_as = "datasets"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"inventory": Node(INVENTORY, key), "tokenized": Node(TOKENIZED, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe of a dataset: everything that decides which bytes it has.

        If a dataset with the same recipe exists, it is used again; otherwise it is built. A recipe
        has the text and how it is tokenized:

            text  →  shards: tokens of parts of the text  →  dataset: all tokens in one file

        Args:
            project: Its settings decide the tokens.
            key: Its `subject` is the name of the corpus.
            parents: Digests of what the dataset is made from: `{"inventory": "3f9c…", "tokenized":
                "a07e…"}`, the list of the files with text, and the list of the shards.
        """
        options = {
            **token_options(project, key.subject),  # the tokenizer, the type of tokens and so on
            "tokenization": TOKENIZED.version,  # of the code that makes the tokens
            "preset": project.config.tokenization.preset,  # decides the names of the files
        }
        # The shards are not part of the recipe: however text is divided into shards, the dataset
        # has the same bytes.
        inventory_only = {"inventory": parents["inventory"]}
        return Recipe(STAGE, key.subject, VERSION, inventory_only, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return make_dataset(project, key.subject)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        return int(text_of(key.subject).tokens * project.tokenizer.dtype.itemsize)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here
    ) -> Report:
        from nanoset_core.stages.dataset.verify import verify_corpus_dataset

        return verify_corpus_dataset(project, key.subject, deep=deep, run=run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        figures = counted(manifest, "documents", "tokens")
        figures["rejected"] = manifest.facts["rejected"] + manifest.facts["faults"]
        return Summary(figures)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return the other output that must be kept as long as a dataset is: its list of shards.

        `nanoset gc` deletes outputs that nothing needs. A dataset was merged from shards, which are
        parts of a tokenized corpus. They still show from which file and line each document came.

        Args:
            outputs: The folder or bucket with all outputs.
            manifest: Manifest of the dataset, the file that describes it.

        Returns:
            The digest by which the list of shards is known, such as ["a07e…"]; [] if it was
            deleted.

        Raises:
            FormatError: The manifest of a list of shards is damaged, and it may be the right one.
                So `nanoset gc` has to stop, or it might delete the shards.
        """
        try:
            shard_list = shards_of(outputs, manifest, strict=True)  # do not skip a damaged one
        except MissingError:
            return []
        return [shard_list.digest]


DATASET = DatasetStage()


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

    # Check that the shards were made with the present settings, which the dataset's recipe has.
    check_recipe(tokenized, TOKENIZED.recipe(project, key, made_from))
    recipe = DATASET.recipe(project, key, made_from)

    def write(folder: Path) -> Written:
        """Merge the shards into a pair in a folder, and return the facts for its manifest."""
        return _merge(project, tokenized, recipe, folder)

    # Call `write`, unless the dataset exists already.
    dataset = project.outputs.commit(recipe, write)
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
    # Imported here: every command imports this module, but few of them merge shards.
    from nanoset_core.stages.dataset.merging import MergeTask, merge_in_bucket, merge_on_disk

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
