"""The sample project with views, and what a test looks at in a view."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helpers.inspecting import current_dataset, lineage_of, read_dataset
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.layout import read_idx
from nanoset_core.outputs.manifest import MANIFEST, Recipe, StoredManifest
from nanoset_core.project.project import Project
from nanoset_core.records.json_records import dump
from nanoset_core.stages.views.names import FOLDER
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


def write_view(prefix: str, base: str, documents: Sequence[int]) -> None:
    """Write a pair with the tokens of another one, whose .idx lists only some documents."""
    shutil.copyfile(f"{base}.bin", f"{prefix}.bin")
    chosen = np.array(documents)
    write_view_idx(Path(f"{prefix}.idx"), read_idx(f"{base}.idx"), lambda: [chosen])


def write_view_manifest(name: str, *, documents: int, tokens: int) -> None:
    """Write the manifest of a view of documents of one sequence to the current folder."""
    recipe = Recipe(stage=FOLDER, name=name, version=1)
    facts = {
        "prefix": name,
        "dtype": "uint16",
        "documents": documents,
        "sequences": documents,
        "tokens": tokens,
    }
    Path(MANIFEST).write_bytes(dump(StoredManifest.of(recipe, facts, {})))
