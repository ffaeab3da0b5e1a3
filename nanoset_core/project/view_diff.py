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
    """The documents of one version of a view; all arrays have the shape (n_documents,).

    A view may repeat a document. Such a document is listed once, with the number of copies.
    """

    view: Manifest
    """Manifest of the version."""
    documents: NDArray[np.int64]
    """Number of each document in the corpus, ascending."""
    copies: NDArray[np.int64]
    """How many copies of each document the view has."""
    tokens: NDArray[np.int64]
    """How many tokens all copies of each document have together."""
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

    # Number the documents of both versions together: a document that is in both has one number.
    all_keys = np.concatenate([before.keys, after.keys])
    _, numbers = np.unique(all_keys, return_inverse=True)  # (n_before + n_after,)
    numbers_before = numbers[: len(before.keys)]
    numbers_after = numbers[len(before.keys) :]
    n_in_both = int(numbers.max(initial=-1)) + 1

    # For each of these documents: how many copies and tokens the new version has, minus those that
    # the old version has. Shape (n_in_both,).
    extra_copies = np.zeros(n_in_both, np.int64)
    np.add.at(extra_copies, numbers_after, after.copies)
    np.subtract.at(extra_copies, numbers_before, before.copies)
    extra_tokens = np.zeros(n_in_both, np.int64)
    np.add.at(extra_tokens, numbers_after, after.tokens)
    np.subtract.at(extra_tokens, numbers_before, before.tokens)

    # What the new version gained are its extra copies, and what it lost are those of the old one.
    return ViewDiff(
        old=old,
        new=new,
        settings=setting_differences(_settings(old), _settings(new)),
        gained=DocumentChanges(
            documents=_sum_of_positive(extra_copies),
            tokens=_sum_of_positive(extra_tokens),
            first=_first_origins(project, after, extra_copies[numbers_after] > 0, show),
        ),
        lost=DocumentChanges(
            documents=_sum_of_positive(-extra_copies),
            tokens=_sum_of_positive(-extra_tokens),
            first=_first_origins(project, before, extra_copies[numbers_before] < 0, show),
        ),
    )


def _sum_of_positive(differences: NDArray[np.int64]) -> int:
    """Return the sum of all positive values: [3, -5, 1] gives 4."""
    return int(np.maximum(differences, 0).sum())


def _first_origins(
    project: Project, documents: _ViewDocuments, mask: NDArray[np.bool_], limit: int
) -> list[DocumentOrigin]:
    """Return the file and line of the first few of some documents of a view.

    Args:
        project: The project.
        documents: All documents of a version of the view.
        mask: Which of them are meant, shape (n_documents,).
        limit: Largest number of documents to return.
    """
    corpus_numbers = documents.documents[mask][:limit].tolist()
    if not corpus_numbers:
        return []  # this opens no files
    corpus = dataset_of(project.outputs, documents.view).corpus
    return Lineage(corpus).origins(corpus_numbers)


def _settings(view: Manifest) -> dict[str, Any]:
    """Return the rules and the inputs that a version of a view was made by."""
    return {**view.recipe["parents"], **view.recipe["options"]}


def _documents_of(project: Project, view: Manifest, *, by_number: bool) -> _ViewDocuments:
    """Read which documents of the corpus a version of a view has, and how many copies of each.

    Args:
        project: The project.
        view: The version.
        by_number: Whether the number in the corpus identifies a document. If not, a hash of its id
            does, or of its file and line if it has no id. This is for a comparison of views that
            were chosen from different versions of the corpus, which number documents differently.
    """
    dataset = dataset_of(project.outputs, view)
    corpus = dataset.corpus

    # A view that repeats documents has the same number in the corpus several times.
    chunks = [np.empty(0, np.int64), *dataset.documents_in(0, len(dataset.sequences))]
    documents, copies = np.unique(np.concatenate(chunks), return_counts=True)  # (n_documents,)

    # The documents of the corpus are stored back to back, so the length of each is the distance
    # to the start of the next.
    bounds = corpus.sequences.document_indices[:]
    starts = token_starts(corpus.sequences, bounds)  # (n_corpus_documents + 1,)
    lengths = np.diff(starts)[documents]  # (n_documents,) tokens of one copy

    # Read what identifies each document.
    keys: NDArray[Any] = documents
    if not by_number:
        hash_chunks = [np.empty(0, np.uint64)]
        for values in document_values(project, corpus.name, corpus.manifest, identifying=["id"]):
            hash_chunks.append(values.hashes())
        corpus_hashes = np.concatenate(hash_chunks)  # (n_corpus_documents,)
        keys = corpus_hashes[documents]
    return _ViewDocuments(
        view=view,
        documents=documents,
        copies=copies,
        tokens=copies * lengths,
        keys=keys,
    )
