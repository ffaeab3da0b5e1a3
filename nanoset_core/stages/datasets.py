"""Datasets by name: of a corpus, a view or packs, which readers of datasets need not tell apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.packs.pieces import PIECES_FILE, PieceTable
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.views.stage import VIEW, unpacked_node


def dataset_node(config: ProjectConfig, name: str) -> Node:
    """Return the output that holds the dataset with this name: of a corpus or view, or packs."""
    if name in config.packs:
        return Node(PACKS, Key(base_of(config.derived, name), name))
    return unpacked_node(config, name)


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the current version of the dataset with this name: of a corpus or view, or packs.

    Raises:
        MissingError: It has not been built.
    """
    node = dataset_node(project.config, name)
    return require(project, node.stage, node.key)


def is_packs(dataset: Manifest) -> bool:
    """Return whether a dataset consists of packs."""
    return dataset.stage == PACKS.layout.folder


def packed_from(outputs: OutputRoot, dataset: Manifest) -> Manifest:
    """Return the dataset whose documents packs hold; any other dataset is returned as it is.

    Raises:
        MissingError: The dataset was deleted.
    """
    if not is_packs(dataset):
        return dataset
    name = dataset.facts["of"]
    digest = dataset.recipe["parents"]["dataset"]
    stage = DATASET if name == dataset.facts["corpus"] else VIEW
    return outputs.version(stage.layout.folder, name, digest, "the dataset that packs were made of is gone")


def padding_of(packs: Manifest) -> NDArray[np.int64]:
    """Return how many tokens of each pack are padding, int64, shape (n_packs,)."""
    n_packs = int(packs.facts["packs"])
    if not packs.facts["padding"]:
        return np.zeros(n_packs, np.int64)
    return int(packs.facts["length"]) - pieces_of(packs).tokens_by_pack(n_packs)


def pieces_of(packs: Manifest) -> PieceTable:
    """Open the table of the pieces of packs."""
    return PieceTable(packs.path(PIECES_FILE))
