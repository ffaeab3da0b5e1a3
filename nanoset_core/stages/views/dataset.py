"""The dataset of a view: documents chosen from a corpus, whose tokens it shares.

For example, document 0 of a view may be document 1 of its corpus. Both have the same first byte in
the common file of tokens, by which one is found from the other.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.stream import Sequences, last_not_greater
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

        A view is a selection of a corpus's documents, and shares the file of tokens with it. So a
        document is found by its first byte in this file:

            document of the view          0      1
            its first byte                600    0
            document of the corpus        1      0

        A document without tokens has the same first byte as the next document, and gets its number.

        Args:
            documents: Numbers in the view, shape (n_documents,).

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        if len(self.layout.sequence_pointers) == 0:
            return np.zeros(len(documents), np.int64)  # no document has tokens
        first_bytes = _first_bytes(self.layout, documents)
        return _documents_at(self.corpus.layout, first_bytes)

    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return where a document of the corpus is in the view, which may have it several times.

        The view shares the file of tokens with its corpus. So all copies of a document have the
        same first byte in this file. For document 1 of the corpus, whose first byte is 600:

            document of the view          0      1      2
            its first byte                600    0      600       the result is [0, 2]

        Args:
            document: Number in the corpus.

        Returns:
            Numbers in the view, ascending; none if the document has no tokens.
        """
        first_byte = _first_byte_with_tokens(self.corpus.layout, document)
        if first_byte is None:
            return np.empty(0, np.int64)
        return self._documents_of_sequences(_sequences_from(self.layout, first_byte))


def _first_byte_with_tokens(index: Sequences, document: int) -> int | None:
    """Return where the tokens of a document begin in the file of tokens; None if it has none.

    A document consists of one or several sequences of tokens, the first of which may be empty.

    Args:
        index: For each document, the number of its first sequence; and the first byte and the
            length of each sequence.
        document: Number of the document.
    """
    first_sequence = int(index.document_indices[document])
    stop_sequence = int(index.document_indices[document + 1])
    lengths = index.sequence_lengths[first_sequence:stop_sequence]
    sequences_with_tokens = first_sequence + np.flatnonzero(lengths)
    if len(sequences_with_tokens) == 0:
        return None
    return int(index.sequence_pointers[sequences_with_tokens[0]])


def _sequences_from(index: Sequences, first_byte: int) -> NDArray[np.int64]:
    """Return which sequences of tokens begin at a byte of the file of tokens.

    Sequences without tokens are left out: they may begin at this byte, too.

    Args:
        index: The first byte and the length of each sequence.
        first_byte: The byte.

    Returns:
        Numbers of sequences, ascending, shape (n_found,).
    """
    sequences = np.flatnonzero(index.sequence_pointers == first_byte)
    has_tokens = index.sequence_lengths[sequences] > 0
    return sequences[has_tokens]


def _first_bytes(index: Sequences, documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where documents begin in the file of tokens.

    A document consists of sequences of tokens, and begins where its first sequence does. A document
    without tokens has no sequence. It gets the byte of the next one, or of the last one at the end.

    Args:
        index: For each document, the number of its first sequence; and where each sequence begins.
        documents: Numbers of documents, shape (n_documents,).

    Returns:
        Byte offsets, shape (n_documents,).
    """
    last_sequence = len(index.sequence_pointers) - 1
    first_sequences = np.minimum(index.document_indices[documents], last_sequence)
    return index.sequence_pointers[first_sequences]


def _documents_at(index: Sequences, first_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which documents begin at some bytes of the file of tokens.

    Args:
        index: Where each sequence begins, ascending; and which sequence is the first one of each
            document, ascending, too.
        first_bytes: Where documents begin, shape (n_documents,).

    Returns:
        Numbers of documents, shape (n_documents,).
    """
    sequences = last_not_greater(index.sequence_pointers, first_bytes)
    return last_not_greater(index.document_indices, sequences)
