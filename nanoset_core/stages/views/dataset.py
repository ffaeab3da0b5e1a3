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

        A document consists of sequences of tokens. The view and the corpus have an index each, but
        share one file of tokens. An index has a pointer for each sequence: the position of its
        first token in that file. So a sequence of the view is the sequence of the corpus with the
        same pointer.

        A document without tokens cannot be told from the one whose tokens follow, and gets the
        number of that one.

        Args:
            documents: Numbers in the view, shape (n_documents,).

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        view = self.layout
        n_sequences = len(view.sequence_pointers)
        if not n_sequences:
            return np.zeros(len(documents), np.int64)

        # The pointer of each document's first sequence. Documents without sequences at the end of
        # the view have none: use that of the last sequence.
        first_sequences = view.document_indices[documents]  # (n_documents,)
        first_sequences = np.minimum(first_sequences, n_sequences - 1)
        pointers = view.sequence_pointers[first_sequences]  # (n_documents,)

        # Look up the sequence of the corpus with this pointer: the last one that does not begin
        # after it.
        corpus = self.corpus.layout
        corpus_sequences = last_not_greater(corpus.sequence_pointers, pointers)

        # Look up the document with this sequence: the last one that does not begin after it.
        return last_not_greater(corpus.document_indices, corpus_sequences)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may contain it several times.

        A document consists of sequences of tokens. The view and the corpus share one file of
        tokens, and a pointer is the position of a sequence in it. So copies of a document begin
        with sequences that have the same pointer.

        Args:
            document: Number in the corpus.

        Returns:
            Numbers in the view, ascending; none if the document has no tokens.
        """
        corpus = self.corpus.layout
        first_sequence = int(corpus.document_indices[document])
        stop_sequence = int(corpus.document_indices[document + 1])
        lengths = corpus.sequence_lengths[first_sequence:stop_sequence]
        if not lengths.any():
            return np.empty(0, np.int64)

        # Find the first sequences of all copies. A sequence without tokens may have the same
        # pointer as the next one, so the length is compared, too.
        view = self.layout
        pointer = corpus.sequence_pointers[first_sequence]
        sequences = np.flatnonzero(view.sequence_pointers == pointer)
        is_copy = view.sequence_lengths[sequences] == lengths[0]
        sequences = sequences[is_copy]

        # A sequence belongs to the last document that does not begin after it. If the first
        # sequence is empty, the document may have several such sequences: name it once.
        return np.unique(last_not_greater(view.document_indices, sequences))
