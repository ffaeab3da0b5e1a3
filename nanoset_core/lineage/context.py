"""Open what an inspection reads: a project, or only its output root."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot, open_root
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import Inventory
from nanoset_core.tokenization.files import TokenizerPath


@dataclass(frozen=True, slots=True)
class InspectionContext:
    """A project's outputs, and its settings where they are known."""

    outputs: OutputRoot
    config: ProjectConfig | None
    """The project's settings; None = unknown, so that no raw text is read."""
    tokenizer_file: TokenizerPath | None
    """The tokenizer's file; None = unknown."""
    datasets: dict[Path, Manifest] = field(default_factory=dict, compare=False, repr=False)
    """Cache of manifests by folder."""

    @staticmethod
    def of(project_or_root: Project | str | os.PathLike[str]) -> InspectionContext:
        """Open a project, or an output root alone: then no text is read or decoded."""
        if isinstance(project_or_root, Project):
            config = project_or_root.config
            return InspectionContext(project_or_root.outputs, config, config.tokenizer_file)
        return InspectionContext(open_root(project_or_root), None, None)

    def dataset_at(self, prefix: str) -> Manifest:
        """Return the manifest of the merged dataset at a prefix.

        Raises:
            MissingError: there is none.
        """
        folder = Path(prefix).parent
        if folder not in self.datasets:
            manifest = self.outputs.manifest_at(folder)
            if manifest is None:
                remedy = "run `nanoset build`: it makes the dataset again"
                raise MissingError("the dataset has no manifest", where=folder, remedy=remedy)
            self.datasets[folder] = manifest
        return self.datasets[folder]

    def inventory_of(self, dataset: Manifest) -> Inventory | None:
        """Return the inventory that a dataset was made from; None where it was removed."""
        folder = self.outputs.folder / raw.STAGE / dataset.name / dataset.recipe["parents"]["inventory"]
        manifest = self.outputs.manifest_at(folder)
        return None if manifest is None else manifest.load(raw.FILE, Inventory.from_json)
