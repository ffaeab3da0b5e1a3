"""Open a dataset by its name or by its manifest, whether it is a corpus, a view or packs."""

from __future__ import annotations

from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import REMADE, OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.dataset import CorpusDataset, Dataset
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.dataset import PacksDataset
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.stages.views.dataset import ViewDataset
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW, unpacked_node

_CLASS_BY_FOLDER: dict[str, type[Dataset]] = {
    DATASET.layout.folder: CorpusDataset,
    VIEW.layout.folder: ViewDataset,
    PACKS.layout.folder: PacksDataset,
}


class Datasets:
    """Opens the datasets of one output root, each version once.

    Args:
        outputs: The output root.
        is_sampled: Whether little is read of each dataset. From a bucket, small blocks are then
            fetched instead of large ones.
    """

    def __init__(self, outputs: OutputRoot, *, is_sampled: bool = False) -> None:
        self.outputs = outputs
        self.is_sampled = is_sampled
        self._by_folder: dict[Path, Dataset] = {}

    def open(self, manifest: Manifest, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset with a manifest; its files are opened when they are needed.

        Args:
            manifest: Manifest of the dataset.
            sequences: Its .bin and .idx, if they are open already.
        """
        if manifest.folder not in self._by_folder:
            dataset_class = _CLASS_BY_FOLDER[manifest.stage]
            self._by_folder[manifest.folder] = dataset_class(self, manifest, sequences)
        return self._by_folder[manifest.folder]

    def at(self, prefix: str, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset with the .bin and .idx at some path.

        Args:
            prefix: Path of the .bin and .idx, without these endings.
            sequences: The opened .bin and .idx, if the caller has them.

        Raises:
            MissingError: Its folder contains no manifest.
        """
        folder = Path(prefix).parent
        if folder in self._by_folder:
            return self._by_folder[folder]
        manifest = self.outputs.manifest_at(folder)
        if manifest is None:
            raise MissingError(
                "the dataset has no manifest",
                where=self.outputs.access.url(folder),
                remedy="run `nanoset build`: it rebuilds the dataset",
            )
        return self.open(manifest, sequences)

    def version(self, name: str, digest: str, gone: str, remedy: str = REMADE) -> Dataset:
        """Return one version of the dataset of a corpus, a view or packs.

        Args:
            name: Name of the dataset.
            digest: Digest of the version.
            gone: What the error says if the version was deleted.
            remedy: What the user should do in that case.

        Raises:
            MissingError: The version was deleted.
        """
        # The name may have meant a view or packs when the version was made, whatever nanoset.yaml
        # says now. A digest identifies one version, so at most one folder exists.
        for stage in (VIEW, PACKS):
            folder = self.outputs.folder / stage.layout.folder / name / digest
            manifest = self.outputs.manifest_at(folder)
            if manifest is not None:
                return self.open(manifest)
        return self.open(self.outputs.version(DATASET.layout.folder, name, digest, gone, remedy))


def dataset_of(outputs: OutputRoot, manifest: Manifest, *, is_sampled: bool = False) -> Dataset:
    """Return the dataset with a manifest; use `Datasets` to open several of one output root."""
    return Datasets(outputs, is_sampled=is_sampled).open(manifest)


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that is the dataset of a corpus, a view or packs, given its name."""
    if name in config.packs:
        return Node(PACKS, Key(base_of(config.derived, name), name))
    return unpacked_node(config, name)


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the current version of the dataset of a corpus, a view or packs, given its name.

    Raises:
        MissingError: It has not been built.
    """
    node = dataset_node(project.config, name)
    return require(project, node.stage, node.key)
