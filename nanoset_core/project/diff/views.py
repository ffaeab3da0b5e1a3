"""`nanoset diff` of a view: which documents a new version gained and lost, and which rules changed.

It also compares two views of one corpus, or a view with its corpus. Then the second one counts as
the new version.

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
from nanoset_core.outputs.differences import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.stage import DATASET
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
        """Return these documents as plain values, for the JSON that `nanoset diff` prints.

        For example, if 3 documents were gained, of which the first is shown:

            {"documents": 3, "tokens": 92,
             "first": [{"id": "7", "file": "a.jsonl", "line": 5, "tokens": 31}]}
        """
        first_documents = []
        for origin in self.first:
            values = {
                "id": origin.id,
                "file": origin.file,
                "line": origin.line,
                "tokens": origin.tokens,
            }
            first_documents.append(values)
        return {"documents": self.documents, "tokens": self.tokens, "first": first_documents}


@dataclass(frozen=True, slots=True)
class ViewDiff:
    """The differences between two versions of a view, or between two datasets of a corpus."""

    old: Manifest
    """Manifest of the old version."""
    new: Manifest
    """Manifest of the new version."""
    settings: list[str]
    """Rules, contents of lists of ids, and inputs that differ, as `name: before → after`; empty for
    two datasets, which have rules of their own.
    """
    gained: DocumentChanges
    """Documents that the new version has more often."""
    lost: DocumentChanges
    """Documents that the old version had more often."""

    @property
    def is_of_one_view(self) -> bool:
        """Whether both are versions of the same view, and not two datasets."""
        return self.old.name == self.new.name

    @property
    def without_tokens(self) -> int:
        """How many more documents without tokens the new version has; negative if it has fewer.

        A view does not store which documents of its corpus these are, so neither `gained` nor
        `lost` contains them.
        """
        difference = self.new.facts["documents"] - self.old.facts["documents"]
        return int(difference) - (self.gained.documents - self.lost.documents)

    def to_json(self) -> dict[str, Any]:
        """Return the differences as plain values, for JSON."""
        return {
            "view": self.new.name,
            "settings": self.settings,
            "old": _version_to_json(self.old),
            "new": _version_to_json(self.new),
            "gained": self.gained.to_json(),
            "lost": self.lost.to_json(),
            "without_tokens": self.without_tokens,
        }


def _version_to_json(view: Manifest) -> dict[str, Any]:
    """Return a build of a view (a selection of documents) as plain values, for JSON.

    For example: {"name": "clean", "digest": "3f9c…", "made_at": 1767225600.0, "documents": 1000,
    "tokens": 31000}.

    Args:
        view: Manifest of the build, a file that describes it.
    """
    return {
        "name": view.name,
        "digest": view.digest,
        "made_at": view.written_ns / 1e9,  # in seconds since 1970
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
    """Compare two builds of a view: which documents the new one gained and lost.

    A view is a selection of the documents of a dataset, and may have several copies of a document.
    This takes some 100 bytes of memory for each document.

    Args:
        project: The project, whose output folder has both builds.
        old: The manifest of the old build, which describes it. It may also be that of another view
            of the same corpus, or of the dataset of the corpus.
        new: The manifest of the new build.
        show: How many of the gained documents, and of the lost ones, to return with file and line.

    Raises:
        MissingError: The dataset that a build was chosen from, or a part of it, was deleted.
    """
    # A document is recognised by a key: its number in the dataset or, if the dataset was rebuilt
    # between the builds, a hash of its id.
    is_same_dataset = _dataset_digest(old) == _dataset_digest(new)
    before = _documents_of(project, old, by_number=is_same_dataset)
    after = _documents_of(project, new, by_number=is_same_dataset)

    # Number the documents of both builds together, by their keys. For example, the old build has B
    # and C (numbers_before [1, 2]), and the new one has A and B (numbers_after [0, 1]):
    #
    #     document       A    B    C
    #     number         0    1    2
    #     copies before  -    1    2
    #     copies after   1    1    -
    #     more_copies    1    0    -2
    numbers_before, numbers_after = _common_numbers(before.keys, after.keys)
    more_copies = _increases(numbers_before, before.copies, numbers_after, after.copies)
    more_tokens = _increases(numbers_before, before.tokens, numbers_after, after.tokens)

    # Of the documents of the new build (A and B), those with more copies than before: A.
    is_gained = more_copies[numbers_after] > 0  # (n_after,)
    gained = DocumentChanges(
        documents=_sum_of_positive(more_copies),
        tokens=_sum_of_positive(more_tokens),
        first=_first_origins(project, after, is_gained, show),
    )

    # Of the documents of the old build (B and C), those with fewer copies now: C.
    is_lost = more_copies[numbers_before] < 0  # (n_before,)
    lost = DocumentChanges(
        documents=_sum_of_positive(-more_copies),
        tokens=_sum_of_positive(-more_tokens),
        first=_first_origins(project, before, is_lost, show),
    )
    settings: list[str] = []
    if old.name == new.name:
        settings = setting_differences(_settings(old), _settings(new))
    return ViewDiff(old=old, new=new, settings=settings, gained=gained, lost=lost)


def _dataset_digest(version: Manifest) -> str:
    """Return the digest of the dataset of a corpus from which a view was chosen.

    Args:
        version: Manifest of the view, or of the dataset itself.
    """
    if version.stage == DATASET.layout.folder:
        return version.digest
    return str(version.recipe["parents"]["dataset"])


def _common_numbers(
    keys_before: NDArray[Any], keys_after: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the documents of two builds of a view, so that the same document has one number.

    A view is a selection of documents. Each document has a key by which it is recognised. For
    example:

        keys                   30    50    90
        number                 0     1     2
        in the old build       yes   yes   no      [0, 1]
        in the new build       no    yes   yes     [1, 2]

    Args:
        keys_before: Keys of the documents of the old build, shape (n_before,): [30, 50].
        keys_after: Keys of the documents of the new build, shape (n_after,): [50, 90].

    Returns:
        Numbers of the old documents, shape (n_before,), and of the new ones, shape (n_after,).
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
    """Return how much larger an amount of each document is in the new build, such as its tokens.

    The documents of two builds of a view (a selection of documents) are numbered together. If a
    build lacks a document, its amount there is 0. For example:

        number              0     1     2
        amount before       5     5     -
        amount after        -     7     4
        increase           -5     2     4

    Args:
        numbers_before: Number of each document of the old build, shape (n_before,): [0, 1].
        amounts_before: Its amount there, shape (n_before,): [5, 5].
        numbers_after: Number of each document of the new build, shape (n_after,): [1, 2].
        amounts_after: Its amount there, shape (n_after,): [7, 4].

    Returns:
        The increase for each number, shape (n_numbers,).
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
    """Return where the first few of some documents come from: their files and lines of raw text.

    `nanoset diff` shows users by this which documents a view (a selection of the documents of a
    dataset) has gained or lost. For example, with a limit of 1:

        documents of the view, by their numbers in the dataset    4       7       9
        mask                                                      True    False   True
        result                                                    line 5 of a.jsonl (document 4)

    Args:
        project: The project, whose output folder has the dataset.
        documents: The documents of the view.
        mask: Which of them to return, shape (n_documents,).
        limit: How many to return at most.
    """
    numbers_in_dataset = documents.documents[mask]  # (n_selected,) [4, 9]
    first_numbers = numbers_in_dataset[:limit].tolist()
    if not first_numbers:
        return []  # without opening files
    dataset = dataset_of(project.outputs, documents.view).corpus
    return Lineage(dataset).origins(first_numbers)


def _settings(view: Manifest) -> dict[str, Any]:
    """Return the rules and the inputs that a version of a view was made by."""
    return {**view.recipe["parents"], **view.recipe["options"]}


def _documents_of(project: Project, view: Manifest, *, by_number: bool) -> _ViewDocuments:
    """Read which documents a view has, with the copies and tokens of each, and a key for each.

    A view is a selection of the documents of a dataset, and may repeat some. By its key, a document
    is recognised in another build of the view.

    Args:
        project: The project, whose output folder has the dataset.
        view: The manifest of the view, which describes it.
        by_number: Whether the key is the number of the document in the dataset. Otherwise it is a
            hash of the document's id.

    Returns:
        The documents, ascending by their numbers in the dataset.
    """
    # Each document once, and how many copies of it the view has: [4, 7] and [2, 1]
    selection = dataset_of(project.outputs, view)
    documents, copies = np.unique(_documents_with_copies(selection), return_counts=True)

    # Look up the lengths of these documents in the dataset: [100, 30] give [200, 30].
    dataset = selection.corpus
    lengths_in_dataset = _document_lengths(dataset.sequences)  # (n_documents_in_dataset,)
    tokens = copies * lengths_in_dataset[documents]  # (n_documents,) tokens of all copies

    keys: NDArray[Any] = documents  # (n_documents,)
    if not by_number:
        hashes_in_dataset = _document_hashes(project, dataset.name, dataset.manifest)
        keys = hashes_in_dataset[documents]
    return _ViewDocuments(view, documents, copies, tokens, keys)


def _documents_with_copies(view: Dataset) -> NDArray[np.int64]:
    """Return the documents of a view, one after another, a repeated one as often as it has copies.

    For example, [4, 7, 4]: first document 4 of the dataset, then document 7, then 4 once more.

    Args:
        view: The view, a selection of the documents of a dataset. Its tokens are stored in
            sequences, one for each copy of a document.

    Returns:
        Numbers of the documents in the dataset, shape (n_sequences,).
    """
    n_sequences = len(view.sequences)
    chunks = [np.empty(0, np.int64), *view.documents_in(0, n_sequences)]
    return np.concatenate(chunks)


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
    """Return a hash of the id of each document of a dataset, shape (n_documents,).

    By it, a document is recognised after the dataset was rebuilt, when it may have another number.
    If a document has no id, the hash is that of its file and line.

    Args:
        project: The project, whose output folder has the tables with the ids.
        corpus: Name of the text collection that the dataset is made from.
        dataset: Manifest of the dataset.
    """
    chunks = [np.empty(0, np.uint64)]
    for values in document_values(project, corpus, dataset, identifying=["id"]):
        chunks.append(values.hashes())  # of file and line for a document without an id
    return np.concatenate(chunks)
