"""What the datasets of a corpus, a view and packs have in common, so that readers need not tell
them apart.

A view holds documents of a corpus, and packs hold documents of a corpus or a view: packs → view →
corpus is the longest chain of sources. Three questions are asked of every dataset, wherever it is
in the chain:

- Which tokens are in its sequences? `sequences`, `index`, `pieces_of`, `pieces_in`.
- Which documents of the corpus are these? `corpus_documents`, `copies_of`, `documents_in`, `corpus_tokens`.
- What was it made from? `source`, `unpacked`, `corpus`.

Documents have numbers in the corpus, and other ones in each view. Packs have none of their own:
they use those of the dataset that was packed, which `unpacked` returns for every dataset.
`stages/datasets.py` opens a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Index, read_idx
from nanoset_core.formats.indexed.stream import Sequences, places_upto
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.dataset.tokens import open_dataset

SEQUENCES_AT_ONCE = 1 << 20
"""Sequences that are looked at together."""
_DOCUMENTS_AT_ONCE = 1 << 20


class DocumentPiece(NamedTuple):
    """Consecutive tokens of a document in one sequence of a dataset."""

    sequence: int
    """Number of the sequence."""
    start: int
    """Position of the first token in the sequence."""
    stop: int
    """Position after the last token in the sequence."""
    first: int
    """Position of the first token in the document."""
    document: int
    """Number of the document in `Dataset.unpacked`."""


class DocumentTokens(NamedTuple):
    """Tokens that a dataset contains of documents of its corpus; a document may be listed several
    times.
    """

    documents: NDArray[np.int64]
    """Numbers of the documents in the corpus, int64, shape (n,)."""
    tokens: NDArray[np.int64]
    """Tokens of each, int64, shape (n,)."""


class DatasetOpener(Protocol):
    """Opens datasets of one output root, each version once."""

    outputs: OutputRoot
    is_sampled: bool
    """Whether little is read of each dataset, so that small blocks are fetched from a bucket."""

    def open(self, manifest: Manifest) -> Dataset:
        """Return the dataset with a manifest; no file of it is opened yet."""
        ...


class Dataset(ABC):
    """One version of the dataset of a corpus, a view or packs.

    Args:
        datasets: Opens the datasets that this one was made from.
        manifest: Manifest of this version.
        sequences: Its `.bin` and `.idx`, if they are open already.
    """

    kind: ClassVar[str]
    """What its name names: a corpus, a view or packs."""
    is_whole_corpus: ClassVar[bool] = False
    """Whether it holds all documents of its corpus, in their order."""
    has_bin_order: ClassVar[bool] = True
    """Whether its `.bin` is its sequences, concatenated."""

    def __init__(
        self,
        datasets: DatasetOpener,
        manifest: Manifest,
        sequences: MMapIndexedDataset | None = None,
    ) -> None:
        self.manifest = manifest
        self._datasets = datasets
        self._sequences = sequences
        self._is_ascending: dict[tuple[int, int], bool] = {}

    @property
    def outputs(self) -> OutputRoot:
        """The output root that contains it."""
        return self._datasets.outputs

    @property
    def name(self) -> str:
        """Name of the corpus, view or packs."""
        return self.manifest.name

    @property
    def corpus_name(self) -> str:
        """Name of the corpus that its documents are from."""
        return corpus_of(self.manifest)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets in its chain of sources: its own first, the corpus's last."""
        return (self.name, self.corpus_name)

    @cached_property
    @abstractmethod
    def source(self) -> Dataset | None:
        """What it was chosen or packed from; None for the dataset of a corpus.

        Raises:
            MissingError: The source was deleted.
        """

    @cached_property
    def corpus(self) -> Dataset:
        """The dataset of its corpus, at the end of the chain of sources; raises MissingError as
        `source`.
        """
        return self if self.source is None else self.source.corpus

    @property
    def unpacked(self) -> Dataset:
        """The dataset whose numbers its documents have: the source of packs, any other dataset
        itself.
        """
        return self

    @property
    def sequences(self) -> MMapIndexedDataset:
        """Its sequences; the files are opened at the first call."""
        if self._sequences is None:
            self._sequences = open_dataset(self.manifest, is_sampled=self._datasets.is_sampled)
        return self._sequences

    @cached_property
    def index(self) -> Index:
        """Its `.idx` alone: where its sequences and documents are, without opening the tokens."""
        return read_idx(self.manifest.path(f"{self.manifest.facts['prefix']}.idx"), validate=False)

    @property
    def layout(self) -> Sequences:
        """Where its sequences and documents are: from its sequences if these are open, or else from
        its index.
        """
        return self.index if self._sequences is None else self._sequences

    @property
    def holds_tokens_once(self) -> bool:
        """Whether each of its tokens is certainly another token of the corpus, which no file needs
        to tell.
        """
        return not any(option.endswith(".repeat") for option in self.manifest.recipe["options"])

    @abstractmethod
    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the corpus of documents with these numbers in `unpacked`, int64,
        (n_documents,).
        """

    @abstractmethod
    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers in `unpacked` of a document of the corpus, int64, shape (n_copies,).

        A view that repeats a document has several copies of it. A view has none of a document
        without tokens.
        """

    def documents_in(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        """Yield the corpus's numbers of the documents with tokens in the sequences [start, stop),
        int64.

        Some are yielded at a time. A document that is in several sequences may be repeated.
        """
        bounds = self.layout.document_indices  # (n_documents + 1,) first sequence of each document
        first_document, last_document = places_upto(bounds, [start, stop - 1]).tolist()
        for first in range(first_document, last_document + 1, _DOCUMENTS_AT_ONCE):
            documents = np.arange(first, min(first + _DOCUMENTS_AT_ONCE, last_document + 1))

            # Leave out documents without a sequence, and those whose only sequence is empty.
            documents = documents[bounds[documents + 1] > bounds[documents]]
            documents = documents[self.layout.sequence_lengths[bounds[documents]] > 0]
            yield self.corpus_documents(documents)

    def corpus_tokens(self, rows: tuple[int, int], documents: range) -> Iterator[DocumentTokens]:
        """Yield the tokens that some of its sequences contain of documents of the corpus.

        Args:
            rows: Numbers (start, stop) of the sequences.
            documents: Numbers of the documents in the corpus.
        """
        # The corpus's sequences of these documents, and where their tokens start in its .bin.
        corpus = self.corpus.index
        bounds = corpus.document_indices[documents.start : documents.stop + 1]  # (n_documents + 1,)
        first_sequence = int(bounds[0])
        stop_sequence = int(bounds[-1])
        # (n_sequences,) bytes
        pointers = np.array(corpus.sequence_pointers[first_sequence:stop_sequence])
        if not len(pointers):
            return
        stop_pointer = int(np.iinfo(np.int64).max)
        if stop_sequence < len(corpus.sequence_pointers):
            stop_pointer = int(corpus.sequence_pointers[stop_sequence])

        # The rows that point into this part of the .bin. One may start within a sequence of the
        # corpus.
        first_row, stop_row = self._rows_between(rows, int(pointers[0]), stop_pointer)
        for start in range(first_row, stop_row, SEQUENCES_AT_ONCE):
            stop = min(start + SEQUENCES_AT_ONCE, stop_row)
            row_pointers = np.array(self.index.sequence_pointers[start:stop])
            lengths = np.array(self.index.sequence_lengths[start:stop])
            is_within = (
                (row_pointers >= pointers[0]) & (row_pointers < stop_pointer) & (lengths > 0)
            )
            sequences = (
                first_sequence
                + np.searchsorted(pointers, row_pointers[is_within], side="right")
                - 1
            )
            numbers = documents.start + np.searchsorted(bounds, sequences, side="right") - 1
            yield DocumentTokens(numbers, lengths[is_within].astype(np.int64))

    def _rows_between(
        self, rows: tuple[int, int], start_pointer: int, stop_pointer: int
    ) -> tuple[int, int]:
        """Return those rows that may point into a range of the tokens; all, unless they are in the
        tokens' order.
        """
        if rows not in self._is_ascending:
            self._is_ascending[rows] = _is_ascending(self.index, rows)
        if not self._is_ascending[rows]:
            return rows
        first_row, stop_row = rows
        pointers = self.index.sequence_pointers[first_row:stop_row]
        places = places_upto(pointers, [start_pointer - 1, stop_pointer - 1]) + 1
        start, stop = places.tolist()
        return first_row + start, first_row + stop

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        """Return where a document of `unpacked` is, in the order of the sequences.

        The sequences of a document without tokens are included, except those that packs leave out.
        """
        bounds = self.layout.document_indices
        start, stop = bounds[document : document + 2].tolist()
        pieces: list[DocumentPiece] = []
        first = 0
        for sequence in range(start, stop):
            length = int(self.layout.sequence_lengths[sequence])
            pieces.append(DocumentPiece(sequence, 0, length, first, document))
            first += length
        return pieces

    def pieces_in(self, spans: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        """Return the pieces of documents that have tokens in some spans, each in full, in order.

        Args:
            spans: Sequence, first token in it and stop of each span, int64, shape (n_spans, 3).

        Returns:
            The pieces of each span.
        """
        sequences = spans[:, 0]
        bounds = self.layout.document_indices
        documents = places_upto(bounds, sequences)

        # A document's first sequence begins with its first token.
        firsts = self._token_starts(sequences) - self._token_starts(bounds[documents])
        lengths = self.layout.sequence_lengths[sequences]
        columns = (sequences, np.zeros_like(sequences), lengths, firsts, documents)
        return [[DocumentPiece(*row)] for row in np.stack(columns, axis=1).tolist()]

    def _token_starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position in the `.bin` of the first token of some sequences, int64, shape
        (n_sequences,).
        """
        starts: NDArray[np.int64] = (
            self.layout.sequence_pointers[sequences] // self.layout.dtype.itemsize
        )
        return starts

    def padding(self) -> NDArray[np.int64] | None:
        """Return how many tokens of each sequence are padding, int64, (n_sequences,); None if none
        ever is.
        """
        return None


class CorpusDataset(Dataset):
    """The dataset of a corpus: all its documents, in the order of the files."""

    kind = "corpus"
    is_whole_corpus = True

    @cached_property
    def source(self) -> None:
        return None

    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        return documents

    def copies_of(self, document: int) -> NDArray[np.int64]:
        return np.array([document])


def corpus_of(manifest: Manifest) -> str:
    """Return the name of the corpus that the documents of a dataset are from."""
    return str(manifest.facts.get("corpus", manifest.name))


def _is_ascending(index: Index, rows: tuple[int, int]) -> bool:
    """Return whether sequences [start, stop) are in the order of their tokens in the `.bin`."""
    start, stop = rows
    for first in range(start, stop, SEQUENCES_AT_ONCE):
        # One more than a block, so that the last sequence is compared with the first one of the
        # next block.
        pointers = np.array(
            index.sequence_pointers[first : min(first + SEQUENCES_AT_ONCE + 1, stop)]
        )
        if (np.diff(pointers) < 0).any():
            return False
    return True
