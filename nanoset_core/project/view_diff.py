"""`nanoset diff` of a view: which documents a new version gained and lost, and which rules changed.

A view may repeat documents, so versions are compared by how many times each has a document. If the
corpus changed as well, its documents have other numbers: then they are recognised by their ids, or
by file and line if they have none.
"""

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
from nanoset_core.stages.views.tables import document_values


@dataclass(frozen=True, slots=True)
class DocumentChanges:
    """Documents that one version has, and the other one does not have, or has fewer times."""

    documents: int
    """How many there are. A document that was added or removed several times counts that many
    times.
    """
    tokens: int
    """How many tokens they have, with those by which documents whose text changed became longer or
    shorter.
    """
    first: list[DocumentOrigin]
    """The first few of them."""

    def to_json(self) -> dict[str, Any]:
        """Return the changes as plain values, for JSON."""
        first = []
        for origin in self.first:
            first.append(
                {"id": origin.id, "file": origin.file, "line": origin.line, "tokens": origin.tokens}
            )
        return {"documents": self.documents, "tokens": self.tokens, "first": first}


@dataclass(frozen=True, slots=True)
class ViewDiff:
    """The differences between two versions of a view."""

    old: Manifest
    """Manifest of the old version."""
    new: Manifest
    """Manifest of the new version."""
    settings: list[str]
    """Rules, contents of lists of ids, and inputs that differ, as `name: before → after`."""
    gained: DocumentChanges
    """Documents that the new version has more often."""
    lost: DocumentChanges
    """Documents that the old version had more often."""

    def to_json(self) -> dict[str, Any]:
        """Return the differences as plain values, for JSON."""
        return {
            "view": self.new.name,
            "settings": self.settings,
            "old": _version_to_json(self.old),
            "new": _version_to_json(self.new),
            "gained": self.gained.to_json(),
            "lost": self.lost.to_json(),
        }


def _version_to_json(view: Manifest) -> dict[str, Any]:
    """Return a version of a view as plain values."""
    return {
        "digest": view.digest,
        "made_at": view.written_ns / 1e9,
        "documents": view.facts["documents"],
        "tokens": view.facts["tokens"],
    }


@dataclass(frozen=True, slots=True)
class _ViewDocuments:
    """The documents of one version of a view; all arrays have the shape (n_documents,)."""

    view: Manifest
    """Manifest of the version."""
    documents: NDArray[np.int64]
    """Number of each document in the corpus, ascending."""
    times: NDArray[np.int64]
    """How many times the view has each document."""
    tokens: NDArray[np.int64]
    """How many tokens each document has, all times together."""
    keys: NDArray[Any]
    """What identifies each document in both versions: its number, or a hash of its id or place."""


def diff_views(project: Project, old: Manifest, new: Manifest, show: int) -> ViewDiff:
    """Compare two versions of a view: which documents the new one gained and lost, and why.

    This takes some 100 bytes of memory for each document.

    Args:
        project: The project.
        old: The old version of the view.
        new: The new version of it.
        show: Largest number of gained documents, and of lost ones, to return with file and line.

    Raises:
        MissingError: The dataset that a version was chosen from, or one of its shards, was deleted.
    """
    # Numbers identify documents as long as both versions are chosen from the same dataset.
    has_same_corpus = old.recipe["parents"]["dataset"] == new.recipe["parents"]["dataset"]
    before = _documents_of(project, old, by_number=has_same_corpus)
    after = _documents_of(project, new, by_number=has_same_corpus)

    # Give each document an index, so that equal documents of both versions have the same one.
    all_keys = np.concatenate([before.keys, after.keys])
    _, index = np.unique(all_keys, return_inverse=True)  # (n_before + n_after,)
    index_before = index[: len(before.keys)]
    index_after = index[len(before.keys) :]
    n_different = int(index.max(initial=-1)) + 1

    # How many times, and with how many tokens, the new version has each document more than the old
    # one; negative if it has it fewer times. Shape (n_different,).
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
    """Return the documents that one version of a view has more times than the other version.

    The documents of both versions together are numbered: `n_different` of them are different.

    Args:
        project: The project.
        documents: The documents of this version.
        index: Number of each of them among the different ones, shape (n_documents,).
        more_times: How many more times this version has each of the different documents than the
            other one; negative if it has it fewer times. Shape (n_different,).
        more_tokens: How many more tokens it has of each, shape (n_different,).
        show: Largest number of documents to return with file and line.
    """
    # Find the first documents that this version has more times, and where they came from.
    has_more = more_times[index] > 0  # (n_documents,)
    shown_positions = np.flatnonzero(has_more)[:show]
    shown_numbers = documents.documents[shown_positions].tolist()
    shown_origins: list[DocumentOrigin] = []
    if shown_numbers:
        corpus = dataset_of(project.outputs, documents.view).corpus
        shown_origins = Lineage(corpus).origins(shown_numbers)
    return DocumentChanges(
        documents=int(np.maximum(more_times, 0).sum()),
        tokens=int(np.maximum(more_tokens, 0).sum()),
        first=shown_origins,
    )


def _settings(view: Manifest) -> dict[str, Any]:
    """Return the rules and the inputs that a version of a view was made by."""
    return {**view.recipe["parents"], **view.recipe["options"]}


def _documents_of(project: Project, view: Manifest, *, by_number: bool) -> _ViewDocuments:
    """Read which documents of the corpus a version of a view has, and how many times.

    Args:
        project: The project.
        view: The version.
        by_number: Whether a document is identified by its number in the corpus. Otherwise by a hash
            of its id, or of its file and line if it has none: its number differs if the versions
            were chosen from different versions of the corpus.
    """
    dataset = dataset_of(project.outputs, view)
    corpus = dataset.corpus

    # Numbers in the corpus of the view's documents, ascending, and how many times each occurs.
    numbers = [np.empty(0, np.int64), *dataset.documents_in(0, len(dataset.sequences))]
    documents, times = np.unique(np.concatenate(numbers), return_counts=True)

    # The tokens of each document, from those of all documents of the corpus.
    bounds = corpus.sequences.document_indices[:]
    starts = token_starts(corpus.sequences, bounds)  # (n_corpus_documents + 1,)
    lengths = np.diff(starts)[documents]  # (n_documents,)

    # What identifies each document.
    keys: NDArray[Any] = documents
    if not by_number:
        key_parts = [np.empty(0, np.uint64)]
        for values in document_values(project, corpus.name, corpus.manifest, identifying=["id"]):
            key_parts.append(values.hashes())
        keys = np.concatenate(key_parts)[documents]
    return _ViewDocuments(view, documents, times, times * lengths, keys)
