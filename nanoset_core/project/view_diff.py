"""`nanoset diff` of a view: which documents it gained and lost, and by which rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import dataset_of
from nanoset_core.stages.views.rules import GroupReader
from nanoset_core.stages.views.tables import document_groups


@dataclass(frozen=True, slots=True)
class DocumentChanges:
    """Documents that one version has and the other has not, or has fewer times."""

    documents: int
    """How many, each counted as many times as it was added or removed."""
    tokens: int
    """Their tokens, and those by which documents whose text changed became longer or shorter."""
    first: list[DocumentOrigin]
    """The first of them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        first = []
        for origin in self.first:
            first.append(
                {"id": origin.id, "file": origin.file, "line": origin.line, "tokens": origin.tokens}
            )
        return {"documents": self.documents, "tokens": self.tokens, "first": first}


@dataclass(frozen=True, slots=True)
class ViewDiff:
    """Two versions of a view, compared."""

    old: Manifest
    new: Manifest
    settings: list[str]
    """Rules, contents of lists of ids, and inputs that differ, as `name: before → after`."""
    gained: DocumentChanges
    lost: DocumentChanges

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "view": self.new.name,
            "settings": self.settings,
            "old": _version_to_json(self.old),
            "new": _version_to_json(self.new),
            "gained": self.gained.to_json(),
            "lost": self.lost.to_json(),
        }


def _version_to_json(view: Manifest) -> dict[str, Any]:
    return {
        "digest": view.digest,
        "made_at": view.written_ns / 1e9,
        "documents": view.facts["documents"],
        "tokens": view.facts["tokens"],
    }


@dataclass(frozen=True, slots=True)
class _ViewDocuments:
    """The documents of one version of a view. All arrays have the shape (n_documents,)."""

    view: Manifest
    documents: NDArray[np.int64]
    """Number of each document in the corpus, ascending."""
    times: NDArray[np.int64]
    """How many times the view has it."""
    tokens: NDArray[np.int64]
    """Its tokens, all times together."""
    keys: NDArray[Any]
    """What identifies it in both versions: its number, or a hash of its id or place."""


def diff_views(project: Project, old: Manifest, new: Manifest, show: int) -> ViewDiff:
    """Compare two versions of a view; takes some 100 bytes of memory for each document.

    If the corpus changed between them, documents with the same id are the same; those without an id
    are the same if their file and line are.

    Args:
        project: The project.
        old: A version of the view.
        new: Another version of it.
        show: How many documents to name.

    Raises:
        MissingError: The dataset that one was chosen from was deleted, or its shards were.
    """
    has_same_corpus = old.recipe["parents"]["dataset"] == new.recipe["parents"]["dataset"]
    before = _documents_of(project, old, by_number=has_same_corpus)
    after = _documents_of(project, new, by_number=has_same_corpus)

    # Give each document of either version an index: equal keys, equal index.
    all_keys = np.concatenate([before.keys, after.keys])
    _, index = np.unique(all_keys, return_inverse=True)  # (n_before + n_after,)
    index_before = index[: len(before.keys)]
    index_after = index[len(before.keys) :]
    n_different = int(index.max(initial=-1)) + 1

    # What the new version has more of each document than the old one; negative if less. Shape
    # (n_different,).
    more_times = np.zeros(n_different, np.int64)
    np.add.at(more_times, index_after, after.times)
    np.subtract.at(more_times, index_before, before.times)
    more_tokens = np.zeros(n_different, np.int64)
    np.add.at(more_tokens, index_after, after.tokens)
    np.subtract.at(more_tokens, index_before, before.tokens)

    return ViewDiff(
        old=old,
        new=new,
        settings=setting_differences(_settings(old), _settings(new)),
        gained=_changes(project, after, index_after, more_times, more_tokens, show),
        lost=_changes(project, before, index_before, -more_times, -more_tokens, show),
    )


def _changes(
    project: Project,
    documents: _ViewDocuments,
    index: NDArray[np.int64],
    more_times: NDArray[np.int64],
    more_tokens: NDArray[np.int64],
    show: int,
) -> DocumentChanges:
    """Return the documents that a version has more times than the other one.

    Args:
        project: The project.
        documents: The documents of the version.
        index: Index of each of them, shape (n_documents,).
        more_times: How many times more it has the document with each index, shape (n_different,).
        more_tokens: How many more tokens that are, shape (n_different,).
        show: How many documents to name.
    """
    positions = np.flatnonzero(more_times[index] > 0)[:show]
    numbers = documents.documents[positions].tolist()
    first: list[DocumentOrigin] = []
    if numbers:
        corpus = dataset_of(project.outputs, documents.view).corpus
        first = Lineage(corpus).origins(numbers)
    return DocumentChanges(
        documents=int(np.maximum(more_times, 0).sum()),
        tokens=int(np.maximum(more_tokens, 0).sum()),
        first=first,
    )


def _settings(view: Manifest) -> dict[str, Any]:
    """Return the rules and inputs of a version of a view."""
    return {**view.recipe["parents"], **view.recipe["options"]}


def _documents_of(project: Project, view: Manifest, *, by_number: bool) -> _ViewDocuments:
    """Return the documents of a version of a view.

    Args:
        project: The project.
        view: The version.
        by_number: Whether a document is identified by its number in the corpus, instead of by its
            id or place.
    """
    dataset = dataset_of(project.outputs, view)
    corpus = dataset.corpus

    # The numbers, in the corpus, of the documents of the view: ascending, with how many times each
    # occurs.
    numbers = [np.empty(0, np.int64), *dataset.documents_in(0, len(dataset.sequences))]
    documents, times = np.unique(np.concatenate(numbers), return_counts=True)

    bounds = corpus.sequences.document_indices[:]
    starts = token_starts(corpus.sequences, bounds)  # (n_corpus_documents + 1,)
    lengths = np.diff(starts)[documents]

    keys: NDArray[Any] = documents
    if not by_number:
        group_keys = [np.empty(0, np.uint64)]
        for group in document_groups(project, corpus.name, corpus.manifest):
            group_keys.append(GroupReader(group).hashes())
        keys = np.concatenate(group_keys)[documents]
    return _ViewDocuments(view, documents, times, times * lengths, keys)
