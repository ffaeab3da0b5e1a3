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
        """Return which documents of the corpus some documents of the view are.

        A view is a selection of documents. It has an index of its own, but shares the tokens of the
        corpus: both indices point into the same file. So a document has the same first byte in
        both. For example, document 0 of the view is document 1 of the corpus, which has two
        sequences of tokens:

                                                            corpus             view
            first byte of each sequence                     0, 600, 900, 950   600, 900
            first sequence of each document, and the end    0, 1, 3, 4         0, 2

        A document without tokens has the same first byte as the next document, and gets its number.

        Args:
            documents: Numbers in the view, such as [0]; shape (n_documents,).

        Returns:
            Numbers in the corpus, such as [1]; shape (n_documents,).
        """
        view = self.layout
        corpus = self.corpus.layout
        n_sequences = len(view.sequence_pointers)
        if n_sequences == 0:  # no document has tokens, so they cannot be told apart
            return np.zeros(len(documents), np.int64)

        # 1. In the view: find the first byte of each document. Documents without tokens at its end
        # have no sequence. They get that of the last one.
        view_sequences = np.minimum(view.document_indices[documents], n_sequences - 1)  # [0]
        first_bytes = view.sequence_pointers[view_sequences]  # (n_documents,) [600]

        # 2. In the corpus: find the sequence that begins at this byte, and then the document that
        # contains the sequence. It is the last one that does not start after it.
        corpus_sequences = last_not_greater(corpus.sequence_pointers, first_bytes)  # [1]
        return last_not_greater(corpus.document_indices, corpus_sequences)  # [1]

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may have it several times.

        A view is a selection of documents, which may repeat them. It has an index of its own, but
        shares the tokens of the corpus: both indices point into the same file. So all copies of a
        document have the same first byte. For example, document 1 of the corpus is document 0 and 2
        of the view:

                                                            corpus             view
            first byte of each sequence of tokens           0, 600, 900, 950   600, 900, 0, 600, 900
            first sequence of each document, and the end    0, 1, 3, 4         0, 2, 3, 5

        Args:
            document: Number in the corpus, such as 1.

        Returns:
            Numbers in the view, ascending, such as [0, 2]; none if the document has no tokens.
        """
        # 1. In the corpus: find the first sequence of the document.
        corpus = self.corpus.layout
        first_sequence = int(corpus.document_indices[document])  # 1
        stop_sequence = int(corpus.document_indices[document + 1])  # 3
        has_tokens = corpus.sequence_lengths[first_sequence:stop_sequence].any()
        if not has_tokens:
            return np.empty(0, np.int64)
        first_byte = corpus.sequence_pointers[first_sequence]  # 600
        length = corpus.sequence_lengths[first_sequence]

        # 2. In the view: find the sequences that begin at the same byte. A sequence without tokens
        # begins at the same byte as the next one, so compare the lengths as well.
        view = self.layout
        sequences = np.flatnonzero(view.sequence_pointers == first_byte)
        copies = sequences[view.sequence_lengths[sequences] == length]  # (n_copies,) [0, 3]

        # Find the document that contains each of them: the last that does not start after it.
        documents = last_not_greater(view.document_indices, copies)  # [0, 2]
        # If the document begins with two empty sequences, both are found, in the same document.
        return np.unique(documents)
