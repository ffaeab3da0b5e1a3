"""The dataset of a view: documents chosen from a corpus, whose tokens it shares.

For example, document 0 of a view may be document 1 of its corpus. Both have the same first byte in
the common file of tokens, by which one is found from the other.
"""

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

        The .idx of the view and of the corpus point into the same file of tokens. For example, if
        document 1 of the corpus consists of two sequences, and is document 0 of the view:

                                                        corpus             view
            first byte of each sequence                 0, 600, 900, 950   600, 900
            first sequence of each document, and end    0, 1, 3, 4         0, 2

        A document without tokens cannot be told from the one whose tokens follow, and gets the
        number of that one.

        Args:
            documents: Numbers in the view, such as 0; shape (n_documents,).

        Returns:
            Numbers in the corpus, such as 1; shape (n_documents,).
        """
        view = self.layout
        corpus = self.corpus.layout
        n_sequences = len(view.sequence_pointers)
        if n_sequences == 0:  # all documents are without tokens
            return np.zeros(len(documents), np.int64)

        # Find the first byte of each document, (n_documents,): 600. Documents at the end of the
        # view may have no sequence: use the last one for these.
        view_sequences = np.minimum(view.document_indices[documents], n_sequences - 1)
        pointers = view.sequence_pointers[view_sequences]

        # Find the sequence of the corpus that begins there, number 1, and the document that
        # contains it: the last one whose first sequence is not after it.
        corpus_sequences = last_not_greater(corpus.sequence_pointers, pointers)
        return last_not_greater(corpus.document_indices, corpus_sequences)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may contain it several times.

        A document consists of sequences of tokens. The view and the corpus share one file of
        tokens, so each copy of a sequence has the same first byte in this file.

        Args:
            document: Number in the corpus.

        Returns:
            Numbers in the view, ascending; none if the document has no tokens.
        """
        view = self.layout
        corpus = self.corpus.layout
        first_sequence = int(corpus.document_indices[document])
        stop_sequence = int(corpus.document_indices[document + 1])
        if not corpus.sequence_lengths[first_sequence:stop_sequence].any():
            return np.empty(0, np.int64)

        # Find the copies of its first sequence in the view. A sequence without tokens begins at the
        # same byte as the next one, so compare the lengths, too.
        pointer = corpus.sequence_pointers[first_sequence]
        length = corpus.sequence_lengths[first_sequence]
        sequences = np.flatnonzero(view.sequence_pointers == pointer)
        copies = sequences[view.sequence_lengths[sequences] == length]  # (n_copies,)

        # Find the document of the view that contains each copy: the last one whose first sequence
        # is not after it.
        documents = last_not_greater(view.document_indices, copies)
        # A copy of the document is found twice if it begins with two equal, empty sequences.
        return np.unique(documents)
