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
        what = "the dataset that a view was chosen from was deleted"
        manifest = self.outputs.version(DATASET.layout.folder, self.corpus_name, digest, what)
        return self._datasets.open(manifest)

    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers that documents of the view have in the corpus.

        View and corpus share their tokens: the pointer of a sequence is the position of its first
        token in the .bin, in either index. So equal pointers identify a document. A document
        without tokens counts as the one whose tokens follow.

        Args:
            documents: Numbers in the view, shape (n_documents,).

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        view = self.layout
        n_sequences = len(view.sequence_pointers)
        if not n_sequences:
            return np.zeros(len(documents), np.int64)

        # The pointer of each document's first sequence. A last document without sequences has none.
        first_sequences = np.minimum(view.document_indices[documents], n_sequences - 1)
        pointers = view.sequence_pointers[first_sequences]  # (n_documents,)

        # The sequence of the corpus with this pointer, and the document that it belongs to.
        corpus = self.corpus.layout
        corpus_sequences = last_not_greater(corpus.sequence_pointers, pointers)
        return last_not_greater(corpus.document_indices, corpus_sequences)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may contain it several times.

        Args:
            document: Number in the corpus.

        Returns:
            Numbers in the view; none if the document has no tokens, by which it could be found.
        """
        corpus = self.corpus.layout
        first_sequence, stop_sequence = corpus.document_indices[document : document + 2].tolist()
        lengths = corpus.sequence_lengths[first_sequence:stop_sequence]
        if not lengths.any():
            return np.empty(0, np.int64)

        # Find the sequences of the view whose tokens are at the same position in the .bin as those
        # of the document's first sequence. A sequence without tokens may have the same position, so
        # the lengths are compared, too.
        view = self.layout
        pointer = corpus.sequence_pointers[first_sequence]
        candidates = np.flatnonzero(view.sequence_pointers == pointer)
        is_first = view.sequence_lengths[candidates] == lengths[0]
        return np.unique(last_not_greater(view.document_indices, candidates[is_first]))
