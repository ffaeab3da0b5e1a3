"""The sample project with views, and what a test looks at in a view."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.inspecting import current_dataset, lineage_of, read_dataset
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import bin_path, idx_path, read_idx
from nanoset_core.outputs.manifest import MANIFEST, Recipe, StoredManifest
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import dump
from nanoset_core.stages.views.settings import STAGE
from nanoset_core.stages.views.writing import write_view_idx

VIEWS = """\
views:
  kept: {of: web, exclude: "drop/*.txt", split: {keep: [0.1, 1]}}
  held: {of: web, split: {keep: [0, 0.1]}}
  some: {of: kept, tokens: 5e3, repeat: 2.5, order: {seed: 3}}
pbin: [some]
nanosets:
"""
CHANGES = {
    "nanosets:\n": VIEWS,
    "blend: {web: 0.7, code: 0.3}": "blend: {some: 0.7, code: 0.3}",
    "corpora: [web, code, books]": "corpora: [code, some]",
}
"""Replacements in the sample project's settings."""
DROPPED = ("web-3", "web-5", "web-100")
"""Ids that the view `kept` leaves out."""


def texts_of(dataset: MMapIndexedDataset) -> list[bytes]:
    """Return the tokens of each sequence as bytes, which can be compared and put into sets."""
    return [tokens.tobytes() for tokens in dataset[0 : len(dataset)]]


def copy_tokens(project: Project, name: str, folder: Path) -> Path:
    """Write the documents of a view as a dataset with tokens of its own; return its prefix."""
    view = read_dataset(project, name)
    with MMapIndexedDatasetBuilder(folder / name, view.dtype) as builder:
        for number in range(len(view)):
            builder.add_documents(view[number], np.array([len(view[number])]), np.array([1]))
    return folder / name


def origins(project: Project, name: str) -> list[Any]:
    """Return where each document of a dataset comes from."""
    dataset = current_dataset(project, name)
    return lineage_of(project, dataset).origins(range(dataset.facts["documents"]))


def write_view(prefix: Path, source: Path, *blocks: Sequence[int] | np.ndarray) -> str:
    """Write a view of an indexed dataset: some of its documents, with the same tokens.

    Args:
        prefix: Prefix of the view.
        source: Prefix of the dataset.
        blocks: Numbers of the documents, in the order of the view. They may come in several
            sequences, each of which is written before the next.

    Returns:
        The prefix of the view.
    """
    bin_path(prefix).hardlink_to(bin_path(source))
    chosen = [np.array(block, np.int64) for block in blocks]
    write_view_idx(idx_path(prefix), read_idx(idx_path(source)), lambda: chosen)
    return str(prefix)


def write_view_manifest(name: str, *, documents: int, tokens: int) -> None:
    """Write the manifest of a view of documents of one sequence to the current folder."""
    recipe = Recipe(stage=STAGE, name=name, version=1)
    facts = {
        "prefix": name,
        "dtype": "uint16",
        "documents": documents,
        "sequences": documents,
        "tokens": tokens,
    }
    Path(MANIFEST).write_bytes(dump(StoredManifest.of(recipe, facts, {})))
