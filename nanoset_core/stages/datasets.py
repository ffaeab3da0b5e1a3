"""Open a dataset by its name or by its manifest, whether it is a corpus, a view or packs.

A corpus has all documents of a folder of raw text, a view is a selection of them, and packs are
sequences of one length that are filled with them. Readers need not know which it is:

    dataset = dataset_of(project.outputs, current_dataset(project, "web"))
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from weakref import WeakValueDictionary

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import BUILD_AGAIN, OutputRoot
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
    """Opens the datasets of one output root, each version once."""

    def __init__(
        self, outputs: OutputRoot, *, is_sampled: bool = False, keeps_open: bool = True
    ) -> None:
        """Start without any open dataset.

        Args:
            outputs: The output root.
            is_sampled: Whether little is read of each dataset. From a bucket, small blocks are then
                fetched instead of large ones.
            keeps_open: Whether datasets stay open as long as this object exists. Otherwise, a
                dataset is closed as soon as nobody uses it any more.
        """
        self.outputs = outputs
        self.is_sampled = is_sampled
        self._by_folder: MutableMapping[Path, Dataset] = {}
        if not keeps_open:
            self._by_folder = WeakValueDictionary()

    def open(self, manifest: Manifest, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset that a manifest describes. Its files are opened when they are needed.

        Args:
            manifest: Manifest of the dataset.
            sequences: Its .bin and .idx, if they are open already.
        """
        dataset = self._by_folder.get(manifest.folder)
        if dataset is None:
            dataset_class = _CLASS_BY_FOLDER[manifest.stage]
            dataset = dataset_class(self, manifest, sequences)
            self._by_folder[manifest.folder] = dataset
        return dataset

    def at(self, prefix: str, sequences: MMapIndexedDataset | None = None) -> Dataset:
        """Return the dataset with the .bin and .idx at some path, opened once.

        Args:
            prefix: Path of the .bin and .idx, without these endings.
            sequences: The opened .bin and .idx, if the caller has them.

        Raises:
            MissingError: Its folder contains no manifest.
            FormatError: The manifest is damaged.
        """
        # Each version of a dataset has a folder of its own, with its manifest.
        folder = Path(prefix).parent
        dataset = self._by_folder.get(folder)
        if dataset is not None:
            return dataset
        manifest = self.outputs.manifest_at(folder)
        if manifest is None:
            raise MissingError(
                "the dataset has no manifest",
                where=self.outputs.access.url(folder),
                remedy="run `nanoset build`: it rebuilds the dataset",
            )
        return self.open(manifest, sequences)

    def version(
        self, name: str, digest: str, what_if_missing: str, remedy: str = BUILD_AGAIN
    ) -> Dataset:
        """Return one version of the dataset of a corpus, a view or packs.

        Args:
            name: Name of the dataset.
            digest: Digest of the version.
            what_if_missing: What the error says if the version was deleted, such as "the dataset
                of this nanoset was deleted".
            remedy: What the user should do in that case.

        Raises:
            MissingError: The version was deleted.
            FormatError: Its manifest is damaged.
        """
        # Corpora, views and packs have different folders. A name that is now that of a corpus may
        # have been that of a view, so look in all of them for the digest.
        outputs = self.outputs
        for stage in (VIEW, PACKS):
            manifest = outputs.manifest_at(outputs.folder / stage.layout.folder / name / digest)
            if manifest is not None:
                return self.open(manifest)
        corpus = outputs.version(DATASET.layout.folder, name, digest, what_if_missing, remedy)
        return self.open(corpus)


def dataset_of(outputs: OutputRoot, manifest: Manifest, *, is_sampled: bool = False) -> Dataset:
    """Return the dataset with a manifest; use `Datasets` to open several of one output root.

    Args:
        outputs: The output root.
        manifest: The manifest.
        is_sampled: Whether little is read of the dataset. From a bucket, small blocks are then
            fetched instead of large ones.
    """
    # A dataset refers to the object that opened it. If that object referred to the dataset as well,
    # Python would free the two only when its garbage collector runs, at a time that nobody can
    # predict. Until then, blocks that were downloaded from a bucket would take space on the disk.
    return Datasets(outputs, is_sampled=is_sampled, keeps_open=False).open(manifest)


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that is the dataset of a corpus, a view or packs, given its name.

    Args:
        config: The settings of nanoset.yaml, which say whether the name is that of a view or packs.
        name: Name of the dataset.
    """
    if name in config.packs:
        return Node(PACKS, Key(base_of(config.derived, name), name))
    return unpacked_node(config, name)


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the current version of the dataset of a corpus, a view or packs, given its name.

    Args:
        project: The project.
        name: Name of the dataset.

    Returns:
        Manifest of the version.

    Raises:
        MissingError: It has not been built.
    """
    node = dataset_node(project.config, name)
    return require(project, node.stage, node.key)
