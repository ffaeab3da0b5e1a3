"""The base class of the stages `columns` and `attributes`, which make a table for each shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, Node, OutsideFiles, PerCorpus


class AlignedStage(PerCorpus, OutsideFiles):
    """A stage whose outputs have values of each document of a corpus, in a table for each shard."""

    tables_folder: str
    """Folder of the tables, below the root; one version for each shard."""

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"tokenized": Node(TOKENIZED, key)}

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        """Return what is wrong with the tables that have values of documents, in words, or None.
        The documents of a corpus are in several parts, called shards. Each has a table in a folder
        that is named by a digest.

        Args:
            project: The project, whose outputs contain the folders.
            key: The corpus.
            manifest: The record of the tables, with their digests: {"shards": ["0a1b…", "77cd…"]}.
        """

        def is_complete(outputs: OutputRoot, folder: Path) -> bool:
            """Return whether a folder has all files that were written to it."""
            return outputs.find_at(folder) is not None

        # Call it for each folder. In a bucket, all of them are looked up with few requests.
        are_complete = project.outputs.each_version(
            is_complete,
            stage=self.tables_folder,
            name=key.subject,
            digests=manifest.facts[SHARDS],
        )
        if all(are_complete):
            return None
        return "the table of a shard is missing or damaged"

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        return [str(digest) for digest in manifest.facts[SHARDS]]
