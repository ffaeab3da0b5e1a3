"""Look at what a project has made, from tests that are not about looking."""

from __future__ import annotations

from typing import Any

from nanoset_core import MMapIndexedDataset
from nanoset_core.lineage import explain, find, webdataset
from nanoset_core.lineage.documents import Lineage
from nanoset_core.lineage.explain import SampleOrigin
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages import datasets
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.tokens import open_dataset


def current_dataset(project: Project, name: str) -> Manifest:
    """Return the manifest of the current dataset of a corpus, view or packs."""
    return datasets.current_dataset(project, name)


def dataset_of(project: Project, manifest: Manifest) -> Dataset:
    """Return the dataset that a manifest describes."""
    return datasets.dataset_of(project.outputs, manifest)


def read_dataset(project: Project, name: str) -> MMapIndexedDataset:
    """Open the tokens of the current dataset of a corpus, view or packs."""
    return open_dataset(current_dataset(project, name))


def lineage_of(project: Project, manifest: Manifest) -> Lineage:
    """Return where the documents of a dataset come from."""
    return Lineage(dataset_of(project, manifest))


def explain_sample(project: Project, nanoset: str, split: str, sample: int) -> SampleOrigin:
    """Return the documents that a sample was cut from, as `nanoset explain` does."""
    return explain.explain_sample(project, nanoset, split, sample)


def explain_context(project: Project, name: str, place: str | int) -> webdataset.ContextOrigin:
    """Return the documents that a context of a webdataset was cut from."""
    return webdataset.explain_context(project, name, place)


def find_document(project: Project, name: str, split: str | None = None, **document: Any) -> Any:
    """Return where a nanoset or webdataset holds a document, as `nanoset explain --id` does."""
    return find.find_document(project, name, split, **document)
