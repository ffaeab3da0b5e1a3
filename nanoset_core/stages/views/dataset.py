"""The dataset of a view: documents chosen from a corpus, whose tokens it shares."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.stream import last_not_greater
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.stage import DATASET


class ViewDataset(Dataset):
    """The dataset of a view. Its `.idx` points into the `.bin` of its corpus."""

    kind = "view"
    has_bin_order = False

    @cached_property
    def source(self) -> Dataset:
        """The dataset of the corpus from which the view, or the views before it, are chosen."""
        digest = self.manifest.recipe["parents"]["dataset"]
        message = "the dataset that a view was chosen from was deleted"
        manifest = self.outputs.version(DATASET.layout.folder, self.corpus_name, digest, message)
        return self._datasets.open(manifest)

    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that documents of the view have in the corpus.

        A document without tokens cannot be told from the one whose tokens follow, and gets the
        number of that one.

        Args:
            documents: Numbers in the view, shape (n_documents,).

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        if not len(self.layout.sequence_pointers):
            return np.zeros(len(documents), np.int64)

        # The view and the corpus share one file of tokens. A pointer is the position in it of the
        # first token of a sequence. So find the sequence of the corpus with the same pointer, and
        # then the document that contains it.
        corpus = self.corpus.layout
        pointers = self._first_pointers(documents)
        sequences = last_not_greater(corpus.sequence_pointers, pointers)
        return last_not_greater(corpus.document_indices, sequences)

    def _first_pointers(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pointer of the first sequence of each document; shape (n_documents,).

        Args:
            documents: Numbers in the view, shape (n_documents,).
        """
        view = self.layout
        # Documents at the end of the view may have no sequences: use the last sequence for these.
        last_sequence = len(view.sequence_pointers) - 1
        sequences = np.minimum(view.document_indices[documents], last_sequence)
        return view.sequence_pointers[sequences]

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may contain it several times.

        Args:
            document: Number in the corpus.

        Returns:
            Numbers in the view, ascending; none if the document has no tokens.
        """
        corpus = self.corpus.layout
        first_sequence = int(corpus.document_indices[document])
        stop_sequence = int(corpus.document_indices[document + 1])
        if not corpus.sequence_lengths[first_sequence:stop_sequence].any():
            return np.empty(0, np.int64)

        # Find the copies of the document's first sequence in the view, and then the document of the
        # view to which each copy belongs: the last one whose first sequence is not after it.
        sequences = self._copies_of_sequence(first_sequence)
        documents = last_not_greater(self.layout.document_indices, sequences)
        # A copy of the document is found twice if it begins with two equal, empty sequences.
        return np.unique(documents)

    def _copies_of_sequence(self, sequence: int) -> NDArray[np.int64]:
        """Return the sequences of the view that are a sequence of the corpus; shape (n_copies,).

        The view and the corpus share one file of tokens, so copies have the same position in it. A
        sequence without tokens may have the position of the next one, so the length is compared,
        too.

        Args:
            sequence: Number in the corpus.
        """
        view = self.layout
        corpus = self.corpus.layout
        sequences = np.flatnonzero(view.sequence_pointers == corpus.sequence_pointers[sequence])
        is_copy = view.sequence_lengths[sequences] == corpus.sequence_lengths[sequence]
        copies: NDArray[np.int64] = sequences[is_copy]
        return copies
