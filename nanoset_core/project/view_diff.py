"""`nanoset diff` of a view: which documents a new version gained and lost, and which rules changed.

A view is a selection of the documents of a corpus. It may repeat documents, so versions are
compared by how many copies each has: a document that was there once and is there three times
counts as two gained. If the corpus changed as well, its documents have other numbers: then they
are recognised by their ids, or by file and line if they have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
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
        """Return the changes as plain values, for JSON.

        Returns:
            {"documents": …, "tokens": …, "first": …}, where `first` has the id, file, line and
            tokens of the first few documents.
        """
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
    """Return a version of a view as plain values: its digest, its time and its size.

    Args:
        view: Manifest of the version.
    """
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
        project: Its output root has the versions.
        old: The old version of the view, a selection of a corpus's documents.
        new: The new version of it.
        show: Largest number of gained documents, and of lost ones, to return with file and line.

    Raises:
        MissingError: The dataset that a version was chosen from, or one of its shards, was deleted.
    """
    # A document is recognised by its number, if both versions are chosen from the same dataset.
    is_same_dataset = old.recipe["parents"]["dataset"] == new.recipe["parents"]["dataset"]
    before = _documents_of(project, old, by_number=is_same_dataset)
    after = _documents_of(project, new, by_number=is_same_dataset)

    # Number the documents of both versions together, and compare how many copies and tokens of each
    # they have. For example, [1, 0, -2] copies were added of the documents 0, 1 and 2: one copy was
    # gained, and two were lost.
    numbers_before, numbers_after = _common_numbers(before.keys, after.keys)
    copies_added = _increases(numbers_before, before.copies, numbers_after, after.copies)
    tokens_added = _increases(numbers_before, before.tokens, numbers_after, after.tokens)
    gained = _changes(project, after, numbers_after, copies_added, tokens_added, show)
    lost = _changes(project, before, numbers_before, -copies_added, -tokens_added, show)
    settings = setting_differences(_settings(old), _settings(new))
    return ViewDiff(old=old, new=new, settings=settings, gained=gained, lost=lost)


def _changes(
    project: Project,
    documents: _ViewDocuments,
    numbers: NDArray[np.int64],
    copies_added: NDArray[np.int64],
    tokens_added: NDArray[np.int64],
    show: int,
) -> DocumentChanges:
    """Return the documents of which one version of a view has more copies than the other one.

    For example, the versions together have 4 documents, and this one has those with the numbers 1
    and 3. Of the numbers 0 to 3 it has [-2, 1, 0, 2] more copies: it gained 3 copies, of both of
    its documents.

    Args:
        project: Its output root has the corpus of the view.
        documents: The documents of the version that may have more.
        numbers: Number of each of them, shape (n_documents,). The documents of both versions are
            numbered together.
        copies_added: How many more copies this version has of the document with each number, shape
            (n_numbers,); negative if it has fewer.
        tokens_added: How many more tokens these copies have, shape (n_numbers,).
        show: Largest number of documents to return with file and line.
    """
    has_more_copies = copies_added[numbers] > 0  # (n_documents,)
    return DocumentChanges(
        documents=_sum_of_positive(copies_added),
        tokens=_sum_of_positive(tokens_added),
        first=_first_origins(project, documents, has_more_copies, show),
    )


def _common_numbers(
    keys_before: NDArray[Any], keys_after: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the documents of two versions together, so that equal keys have the same number.

    For example, the keys [30, 50] and [50, 90] give the numbers [0, 1] and [1, 2].

    Args:
        keys_before: What identifies each document of the old version, shape (n_before,).
        keys_after: What identifies each document of the new version, shape (n_after,).

    Returns:
        The numbers of the old documents, shape (n_before,), and of the new ones, shape (n_after,).
        They begin at 0 and have no gaps.
    """
    all_keys = np.concatenate([keys_before, keys_after])
    _, numbers = np.unique(all_keys, return_inverse=True)  # (n_before + n_after,)
    return numbers[: len(keys_before)], numbers[len(keys_before) :]


def _increases(
    numbers_before: NDArray[np.int64],
    amounts_before: NDArray[np.int64],
    numbers_after: NDArray[np.int64],
    amounts_after: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return by how much an amount of each document, such as its tokens, increased.

    For example, documents 0 and 1 had 5 tokens each. Now document 1 has 7, and document 2 has 4:
    the numbers [0, 1] and [1, 2] with the amounts [5, 5] and [7, 4] give [-5, 2, 4].

    Args:
        numbers_before: Number of each document of the old version, shape (n_before,).
        amounts_before: Its amount there, shape (n_before,).
        numbers_after: Number of each document of the new version, shape (n_after,).
        amounts_after: Its amount there, shape (n_after,).

    Returns:
        The increase for each number, shape (n_numbers,). A version that lacks a document has the
        amount 0 of it.
    """
    highest_number = max(numbers_before.max(initial=-1), numbers_after.max(initial=-1))
    increases = np.zeros(int(highest_number) + 1, np.int64)
    np.add.at(increases, numbers_after, amounts_after)
    np.subtract.at(increases, numbers_before, amounts_before)
    return increases


def _sum_of_positive(differences: NDArray[np.int64]) -> int:
    """Return the sum of all positive values: [3, -5, 1] gives 4."""
    return int(np.maximum(differences, 0).sum())


def _first_origins(
    project: Project, documents: _ViewDocuments, mask: NDArray[np.bool_], limit: int
) -> list[DocumentOrigin]:
    """Return the file and line of the first documents of a view that a mask selects.

    Args:
        project: Its output root has the corpus.
        documents: All documents of a version of the view.
        mask: Which of them are selected, shape (n_documents,).
        limit: Largest number of documents to return.

    Returns:
        The origins, in the order of the documents; at most `limit` of them.
    """
    numbers_in_corpus = documents.documents[mask][:limit].tolist()
    if not numbers_in_corpus:
        return []  # without opening files
    # A view is chosen from the dataset of a corpus, which knows where its documents come from.
    corpus = dataset_of(project.outputs, documents.view).corpus
    return Lineage(corpus).origins(numbers_in_corpus)


def _settings(view: Manifest) -> dict[str, Any]:
    """Return the rules and the inputs that a version of a view was made by."""
    return {**view.recipe["parents"], **view.recipe["options"]}


def _documents_of(project: Project, view: Manifest, *, by_number: bool) -> _ViewDocuments:
    """Read which documents of a corpus a version of a view has, and how many copies of each.

    Args:
        project: Its output root has the corpus.
        view: The version.
        by_number: Whether documents are identified by their numbers in the corpus; otherwise by
            hashes of their ids, or of their files and lines, since other versions of the corpus
            number them differently.

    Returns:
        The documents in the order of the corpus, each once, with copies, tokens and keys.
    """
    # A view stores the numbers of its documents in the corpus. It may repeat some.
    selection = dataset_of(project.outputs, view)
    n_selected = len(selection.sequences)
    chunks = [np.empty(0, np.int64), *selection.documents_in(0, n_selected)]
    numbers = np.concatenate(chunks)  # (n_selected,) such as [4, 7, 4]
    documents, copies = np.unique(numbers, return_counts=True)  # (n_documents,) [4, 7], [2, 1]

    corpus = selection.corpus
    lengths = _document_lengths(corpus.sequences)[documents]  # (n_documents,) tokens of one copy
    keys: NDArray[Any] = documents
    if not by_number:
        keys = _document_hashes(project, corpus.name, corpus.manifest)[documents]
    return _ViewDocuments(view, documents, copies, tokens=copies * lengths, keys=keys)


def _document_lengths(sequences: MMapIndexedDataset) -> NDArray[np.int64]:
    """Return the number of tokens of each document of a corpus, shape (n_documents,).

    Args:
        sequences: The dataset of the corpus. Its documents are stored back to back, so a document
            ends where the next one begins.
    """
    bounds = sequences.document_indices[:]
    starts = token_starts(sequences, bounds)  # (n_documents + 1,)
    return np.diff(starts)


def _document_hashes(project: Project, corpus: str, dataset: Manifest) -> NDArray[np.uint64]:
    """Return a hash of the id of each document of a corpus, shape (n_documents,).

    Args:
        project: Its output root has the corpus.
        corpus: Name of the corpus.
        dataset: Manifest of the version of its dataset.
    """
    chunks = [np.empty(0, np.uint64)]
    for values in document_values(project, corpus, dataset, identifying=["id"]):
        chunks.append(values.hashes())  # of file and line for a document without an id
    return np.concatenate(chunks)
