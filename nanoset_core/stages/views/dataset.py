"""The dataset of a view: documents chosen from a corpus, whose tokens it shares."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.stream import places_upto
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

        The first token of a document identifies it. A document without tokens counts as the one
        whose tokens follow.

        Args:
            documents: Numbers in the view, shape (n_documents,).

        Returns:
            Shape (n_documents,).
        """
        view = self.layout
        n_sequences = len(view.sequence_pointers)
        if not n_sequences:
            return np.zeros(len(documents), np.int64)
        first_sequences = np.minimum(view.document_indices[documents], n_sequences - 1)
        corpus = self.corpus.layout
        corpus_sequences = places_upto(
            corpus.sequence_pointers, view.sequence_pointers[first_sequences]
        )
        return places_upto(corpus.document_indices, corpus_sequences)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers in the view of all copies of a document; none if it has no tokens."""
        corpus = self.corpus.layout
        first_sequence, stop_sequence = corpus.document_indices[document : document + 2].tolist()
        lengths = corpus.sequence_lengths[first_sequence:stop_sequence]
        if not lengths.any():  # without tokens it cannot be found by them
            return np.empty(0, np.int64)

        # The view's sequences that are the first one of the document. A sequence without tokens may
        # have the same pointer, so the lengths are compared, too.
        view = self.layout
        pointer = corpus.sequence_pointers[first_sequence]
        candidates = np.flatnonzero(view.sequence_pointers == pointer)
        is_first = view.sequence_lengths[candidates] == lengths[0]
        return np.unique(places_upto(view.document_indices, candidates[is_first]))
