"""The stage `datasets`: merges the shards of a corpus into one .bin/.idx pair for trainers.

A corpus is tokenized in shards, by many processes. Its dataset has the tokens of all shards, in the
order of the documents, as one pair of files such as web_text_document.bin and .idx.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.names import FOLDER, VERSION
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.shards.options import token_options
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    CorpusStage,
    Estimated,
    Key,
    Layout,
    Node,
    Summary,
    counted,
)
from nanoset_core.stages.text_estimate import TextEstimate


class DatasetStage(CorpusStage, Estimated):
    """Merges the shards of each corpus into one .bin and .idx."""

    layout = Layout(FOLDER, uploaded_first=(".bin", ".idx", f".bin{PIECES_ENDING}"))
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
        return Recipe(FOLDER, key.subject, VERSION, inventory_only, options)

    def make(self, project: Project, key: Key) -> Manifest:
        from nanoset_core.stages.dataset.make import make_dataset

        return make_dataset(project, key.subject)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        return int(text_of(key.subject).tokens * project.tokenizer.dtype.itemsize)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
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
