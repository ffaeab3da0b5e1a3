"""The interface of datasets, which is the same for all three kinds.

The dataset of a corpus contains all of its documents. A view selects documents of a corpus. A
packed dataset arranges the documents of a corpus or a view in samples of one length. So a dataset
has a chain of sources; the longest one is packed dataset → view → corpus. A reader asks every
dataset the same three questions:

- Which tokens are in its sequences? `sequences`, `index`, `tokens_of`, `pieces_of`, `pieces_in`.
- Which documents of the corpus are these? `corpus_documents`, `copies_of`, `documents_in`,
  `corpus_tokens`.
- What was it made from? `source`, `unpacked`, `corpus`.

A document has a number in its corpus, and another one in each view. A packed dataset does not
number its documents: it uses the numbers of the dataset that was packed, which `unpacked` returns.
With a corpus of the documents 0, 1, 2 and 3, a view that selects 1 and 3, and a packed dataset of
that view:

    document of the corpus      1    3
    number in the view          0    1
    number if packed            0    1    (those of the view, which is `unpacked`)

These words occur in the names of arguments and results:

- A *sequence* is an entry of the `.idx`: consecutive tokens of the `.bin`. Usually it is a whole
  document. A document that was split into sentences has several, and an empty one may have none. A
  sequence of a packed dataset has several documents.
- A *row* is a sequence of this dataset, where those of its corpus are meant by *sequence*.
- A *span* is some consecutive tokens of one sequence.
- A *piece* is the tokens of one document in one sequence (`DocumentPiece`).

`stages/datasets.py` opens a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Index, read_idx
from nanoset_core.formats.indexed.stream import Sequences, last_not_greater
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.dataset.tokens import open_dataset

SEQUENCES_AT_ONCE = 1 << 20
"""Number of sequences that are read into memory together."""
_DOCUMENTS_AT_ONCE = 1 << 20
"""Number of documents that are looked up together."""


class DocumentPiece(NamedTuple):
    """Consecutive tokens of a document in one sequence of a dataset."""

    sequence: int
    """Number of the sequence."""
    start: int
    """Position of the first token in the sequence."""
    stop: int
    """Position after the last token in the sequence."""
    first: int
    """Position of the first token in the document. It is 0 in the first piece of the document."""
    document: int
    """Number of the document in `Dataset.unpacked`."""


class DocumentTokens(NamedTuple):
    """How many tokens a dataset contains of documents of its corpus.

    A document that is in several sequences is listed several times.
    """

    documents: NDArray[np.int64]
    """Numbers of the documents in the corpus, shape (n_sequences,)."""
    tokens: NDArray[np.int64]
    """Tokens that a sequence contains of the document, shape (n_sequences,)."""


class DatasetOpener(Protocol):
    """Opens datasets of one output root, each version once."""

    outputs: OutputRoot
    """The output root."""
    is_sampled: bool
    """Whether little is read of each dataset, so that small blocks are fetched from a bucket."""

    def open(self, manifest: Manifest) -> Dataset:
        """Return the dataset with a manifest, without opening its files."""
        ...


@dataclass(frozen=True, slots=True)
class _CorpusSequences:
    """Where consecutive sequences of tokens are stored in the token file (.bin) of a corpus."""

    documents: NDArray[np.int64]
    """Number of the document that each sequence belongs to, shape (n_sequences,)."""
    start_bytes: NDArray[np.int64]
    """Byte of the file at which each sequence starts, ascending, shape (n_sequences,)."""
    stop_byte: int
    """Byte of the file at which the last sequence stops."""

    @staticmethod
    def of(corpus: Index, documents: range) -> _CorpusSequences | None:
        """Return where the sequences of some documents are stored in the token file of a corpus.

        The tokens of a document are one or more sequences, which follow each other in the file:

            document             0      1      1      2      3
            its sequences        0      1      2      3      4
            start at byte        0    100    140    200    260

        For the documents 1 and 2, these are three sequences. They belong to the documents
        [1, 1, 2], start at the bytes [100, 140, 200], and stop at byte 260.

        Args:
            corpus: Index of the corpus.
            documents: Numbers of the documents: range(1, 3).

        Returns:
            The sequences; None if the documents have none.
        """
        # (n_documents + 1,) first sequence of each document, and of the one after them: [1, 3, 4]
        first_sequences = corpus.document_indices[documents.start : documents.stop + 1]
        start = int(first_sequences[0])
        stop = int(first_sequences[-1])
        if start == stop:
            return None

        sequences_per_document = np.diff(first_sequences)  # (n_documents,) [2, 1]
        numbers = np.arange(documents.start, documents.stop)  # [1, 2]
        return _CorpusSequences(
            documents=np.repeat(numbers, sequences_per_document),
            start_bytes=np.array(corpus.sequence_pointers[start:stop]),
            stop_byte=_stop_byte(corpus, stop - 1),
        )

    def tokens_of_rows(
        self, row_bytes: NDArray[np.int64], row_lengths: NDArray[np.int32]
    ) -> DocumentTokens:
        """Return which of these documents each row of a dataset has tokens of, and how many.

        Each row of the dataset is one sequence of the corpus, so both start at the same byte of the
        token file. For example, document 1 has a sequence from byte 100 to 140, and document 2 one
        from byte 140 to 200. A dataset has three rows:

            row                     0       1       2
            starts at byte        140       0     100
            its tokens             30      50      20
            its document            2       –       1       (row 1 is of another document)

        The result is the documents [2, 1] with [30, 20] tokens.

        Args:
            row_bytes: Byte of the token file at which each row starts, shape (n_rows,).
            row_lengths: Number of tokens of each row, shape (n_rows,). Empty rows are left out.
        """
        is_in_bytes = (row_bytes >= self.start_bytes[0]) & (row_bytes < self.stop_byte)
        is_included = is_in_bytes & (row_lengths > 0)  # [True, False, True]
        # A row's sequence is the last that starts up to its byte: empty ones may start there, too.
        n_started = np.searchsorted(self.start_bytes, row_bytes[is_included], side="right")
        sequences = n_started - 1  # [1, 0]
        return DocumentTokens(
            documents=self.documents[sequences],  # [2, 1]
            tokens=row_lengths[is_included].astype(np.int64),  # [30, 20]
        )


def _stop_byte(index: Index, sequence: int) -> int:
    """Return the byte of the token file at which a sequence stops."""
    n_bytes = int(index.sequence_lengths[sequence]) * index.dtype.itemsize
    return int(index.sequence_pointers[sequence]) + n_bytes


class Dataset(ABC):
    """One version of a dataset: of a corpus, a view or a packed dataset.

    Args:
        datasets: Opens the datasets that this one was made from.
        manifest: Manifest of this version.
        sequences: Its `.bin` and `.idx`, if they are open already.
    """

    kind: ClassVar[str]
    """What it is called in messages, such as `view`."""
    is_whole_corpus: ClassVar[bool] = False
    """Whether it contains all documents of its corpus, in the order of the corpus."""
    has_bin_order: ClassVar[bool] = True
    """Whether its `.bin` contains exactly its sequences, in order."""

    def __init__(
        self,
        datasets: DatasetOpener,
        manifest: Manifest,
        sequences: MMapIndexedDataset | None = None,
    ) -> None:
        self.manifest = manifest
        self._datasets = datasets
        self._sequences = sequences
        self._is_ascending_by_rows: dict[tuple[int, int], bool] = {}

    @property
    def outputs(self) -> OutputRoot:
        """The output root that contains it."""
        return self._datasets.outputs

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self.manifest.name

    @property
    def corpus_name(self) -> str:
        """Name of the corpus that contains its documents."""
        return corpus_of(self.manifest)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the datasets in its chain of sources, from its own to that of the corpus."""
        return (self.name, self.corpus_name)

    @cached_property
    @abstractmethod
    def source(self) -> Dataset | None:
        """The dataset that it was made from; None for the dataset of a corpus.

        Raises:
            MissingError: The source was deleted.
        """

    @property
    def corpus(self) -> Dataset:
        """The dataset of its corpus, at the end of the chain of sources.

        Raises:
            MissingError: A dataset of the chain was deleted.
        """
        return self if self.source is None else self.source.corpus

    @property
    def unpacked(self) -> Dataset:
        """The dataset that numbers its documents.

        For a packed dataset, it is the one that was packed; for any other dataset, itself.
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
        """The contents of its `.idx`, which is read without opening the tokens."""
        return read_idx(self.manifest.path(f"{self.manifest.facts['prefix']}.idx"), validate=False)

    @property
    def layout(self) -> Sequences:
        """Pointers and lengths of its sequences, without opening a file again that is open."""
        return self.index if self._sequences is None else self._sequences

    @property
    def holds_tokens_once(self) -> bool:
        """Whether its recipe alone shows that it contains no token of the corpus twice.

        Only the option `repeat` of a view makes copies of documents.
        """
        return not any(option.endswith(".repeat") for option in self.manifest.recipe["options"])

    @abstractmethod
    def corpus_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert numbers of documents in `unpacked` to their numbers in the corpus.

        Args:
            documents: Numbers in `unpacked`, shape (n_documents,).

        Returns:
            Numbers in the corpus, int64, shape (n_documents,).
        """

    @abstractmethod
    def copies_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of all copies of a document, which a view may repeat or leave out.

        The numbers are those in `unpacked`: in this dataset, or in the one that was packed.

        Args:
            document: Number of the document in the corpus.

        Returns:
            int64, shape (n_copies,).
        """

    def documents_in(self, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        """Yield the documents of the corpus that have tokens in some sequences of this dataset.

        A sequence has tokens of one document. For example:

            sequence                   20    21    22    23
            document of the corpus      7     7     9    12

        The sequences 21 to 22 (start=21, stop=23) have tokens of the documents 7 and 9. In this
        dataset, the documents have other numbers, such as 14 and 15.

        Args:
            start: Number of the first sequence.
            stop: Number after the last sequence.

        Yields:
            Numbers of documents in the corpus, int64, in blocks, to limit memory. Subclasses may
            yield a document several times.
        """
        first, last = self._documents_of_sequences(np.array([start, stop - 1])).tolist()
        for block_start in range(first, last + 1, _DOCUMENTS_AT_ONCE):
            block_stop = min(block_start + _DOCUMENTS_AT_ONCE, last + 1)
            documents = self._without_empty(np.arange(block_start, block_stop))  # [14, 15]
            yield self.corpus_documents(documents)  # [7, 9]

    def _documents_of_sequences(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number, in this dataset, of the document that each sequence belongs to.

        If document 0 starts with sequence 0, and document 1 with sequence 3, then sequence 2
        belongs to document 0.

        Args:
            sequences: Numbers of sequences, in any order, shape (n_sequences,).
        """
        # The document is the last one whose first sequence is not after this sequence.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) of each document
        return last_not_greater(first_sequences, sequences)

    def _without_empty(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents that have tokens, and leave out those without any.

        Args:
            documents: Numbers of the documents in `layout`, shape (n_documents,).
        """
        # A document without tokens has either no sequence, or a single empty one.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) of each document
        has_sequence = first_sequences[documents + 1] > first_sequences[documents]
        documents = documents[has_sequence]
        first_lengths = self.layout.sequence_lengths[first_sequences[documents]]  # in tokens
        return documents[first_lengths > 0]

    def documents_within(
        self, documents: NDArray[np.int64], start: int, stop: int
    ) -> NDArray[np.int64]:
        """Return which of some documents have tokens in a range of sequences of this dataset.

        For example, train has the sequences 0 to 899 of a dataset, and valid 900 to 999 (start=900,
        stop=1000):

            document         17     40     41
            its sequences    17     950    951, 952     the result is [40, 41]

        Args:
            documents: Numbers of documents, as in `pieces_of`; shape (n_documents,).
            start: Number of the first sequence.
            stop: Number after the last sequence.

        Returns:
            Shape (n_documents_within,), in the same order.
        """
        documents = self._without_empty(documents)
        first_sequences = self.layout.document_indices  # (n_documents + 1,) of each document
        begins_before_stop = first_sequences[documents] < stop
        ends_after_start = first_sequences[documents + 1] > start
        return documents[begins_before_stop & ends_after_start]

    def corpus_tokens(self, rows: tuple[int, int], documents: range) -> Iterator[DocumentTokens]:
        """Yield how many tokens of certain documents some rows of this dataset have.

        A row is a sequence of tokens of one document. It is also a sequence of the corpus, in which
        documents have other numbers and perhaps another order:

            row of this dataset            0      1      2
            document of the corpus         1      0      1
            its tokens                    30     50     20

        For document 1, this yields 30 tokens (row 0) and 20 tokens (row 2).

        Args:
            rows: Numbers (start, stop) of rows: (0, 3).
            documents: Numbers of documents in the corpus: range(1, 2).

        Yields:
            The document and the number of tokens of each row that belongs to one of the documents,
            in blocks, to limit memory.
        """
        sequences = _CorpusSequences.of(self.corpus.index, documents)
        if sequences is None:  # the documents have no tokens
            return
        # Leave out rows that are before or after these sequences, if that is known.
        first_byte = int(sequences.start_bytes[0])
        first_row, stop_row = self._rows_between(rows, first_byte, sequences.stop_byte)
        for block_start in range(first_row, stop_row, SEQUENCES_AT_ONCE):
            block = slice(block_start, min(block_start + SEQUENCES_AT_ONCE, stop_row))
            yield sequences.tokens_of_rows(
                row_bytes=np.array(self.index.sequence_pointers[block]),
                row_lengths=np.array(self.index.sequence_lengths[block]),
            )

    def _rows_between(
        self, rows: tuple[int, int], start_byte: int, stop_byte: int
    ) -> tuple[int, int]:
        """Return the rows that start in a range of bytes of a token file, or all if that is slow.

        A row is a sequence of tokens. For example, the range is from byte 100 to byte 300:

            row               0      1      2      3
            starts at byte    0    100    200    300      rows 1 and 2 start in it: (1, 3)

        If the start bytes ascend, as here, they are found without looking at each row. In a
        shuffled dataset the bytes do not ascend. Then no row is left out, and the caller looks at
        each of them.

        Args:
            rows: Numbers (start, stop) of rows: (0, 4).
            start_byte: First byte of the range, at which a sequence starts: 100.
            stop_byte: Byte after the last one, at which a sequence stops: 300.

        Returns:
            Numbers (start, stop) of the remaining rows.
        """
        if not self._have_ascending_bytes(rows):
            return rows
        first_row, stop_row = rows
        start_bytes = self.index.sequence_pointers[first_row:stop_row]
        # One row starts before byte 100, and three start before byte 300.
        n_before_start, n_before_stop = _count_below(start_bytes, [start_byte, stop_byte])
        return first_row + n_before_start, first_row + n_before_stop

    def _have_ascending_bytes(self, rows: tuple[int, int]) -> bool:
        """Return whether consecutive rows are stored one after another in the token file.

        The result is remembered, since the start bytes of all rows are read to find it out.

        Args:
            rows: Numbers (start, stop) of the rows.
        """
        if rows not in self._is_ascending_by_rows:
            self._is_ascending_by_rows[rows] = _is_ascending(self.index, rows)
        return self._is_ascending_by_rows[rows]

    def tokens_of(self, document: int) -> NDArray[Any]:
        """Return the tokens of a document, joined from all of its sequences.

        Packs may leave out the end of a long document. The result has only the tokens that this
        dataset contains.

        Args:
            document: Number of the document, as in `pieces_of`.

        Returns:
            Token ids in the dtype of the dataset, shape (n_tokens,); (0,) if the document is empty.
        """
        # Packs may have the end of a long document before its start.
        pieces = sorted(self.pieces_of(document), key=attrgetter("first"))

        arrays = [np.empty(0, self.sequences.dtype)]  # there may be no pieces
        for piece in pieces:
            n_tokens = piece.stop - piece.start
            arrays.append(self.sequences.get(piece.sequence, offset=piece.start, length=n_tokens))
        return np.concatenate(arrays)

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        """Return in which sequences the tokens of a document are stored, and where in each.

        A long document is divided into several sequences. For example, one of 8 tokens may be
        stored like this, as two pieces:

            sequence               20               21
            tokens of the document 0 1 2 3 4        5 6 7
            piece                  start=0 stop=5   start=0 stop=3
                                   first=0          first=5 (its first token is token 5)

        An empty document may have a sequence, and so a piece, without tokens. Here, each sequence
        has tokens of one document only. Packed datasets, in which a sequence has several documents,
        override this method.

        Args:
            document: Number of the document, as this dataset counts them. (A packed dataset counts
                them as the dataset that was packed; see `unpacked`.)
        """
        first_sequence = int(self.layout.document_indices[document])
        stop_sequence = int(self.layout.document_indices[document + 1])
        pieces: list[DocumentPiece] = []
        n_tokens_before = 0  # tokens of the document in earlier sequences
        for sequence in range(first_sequence, stop_sequence):
            n_tokens = int(self.layout.sequence_lengths[sequence])
            piece = DocumentPiece(
                sequence=sequence,
                start=0,
                stop=n_tokens,
                first=n_tokens_before,
                document=document,
            )
            pieces.append(piece)
            n_tokens_before += n_tokens
        return pieces

    def pieces_in(self, spans: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        """Return which documents the tokens in some parts of sequences belong to.

        Here, all tokens of a sequence are from one document. (Datasets with several documents in a
        sequence override this method.) So the answer for a part is the answer for its sequence:

            sequence                       0         1         2
            its document                   0         1         1
            its tokens of it          0 to 5    0 to 3    3 to 7

        Args:
            spans: The parts, int64, shape (n_spans, 3): number of the sequence, and the positions
                of the first token and after the last one in it. [[2, 1, 3]] is a part of sequence
                2.

        Returns:
            For each part, a list of the pieces that it overlaps. A piece is returned in full, also
            if the part has only some of its tokens. Here it is all of sequence 2: a piece with
            start=0, stop=4 and first=3, since its first token is token 3 of document 1.
        """
        sequences = spans[:, 0]
        return [[piece] for piece in self._whole_sequences(sequences)]

    def _whole_sequences(self, sequences: NDArray[np.int64]) -> list[DocumentPiece]:
        """Return, for some sequences, which document their tokens belong to, and which part of it.

            sequence                     0     1     2
            its document                 0     1     1
            its tokens                   5     3     4
            its start in the .bin        0     5     8       counted in tokens

        For sequence 2, this is a piece with all 4 tokens. Its first token is token 3 of document 1,
        which starts with sequence 1: 8 - 5 = 3.

        Args:
            sequences: Numbers of the sequences, shape (n_sequences,): [2].
        """
        lengths = self.layout.sequence_lengths[sequences]  # [4]
        documents = self._documents_of_sequences(sequences)  # [1]
        first_sequences = self.layout.document_indices[documents]  # [1]
        tokens_before = self._token_starts(sequences) - self._token_starts(first_sequences)  # [3]

        pieces: list[DocumentPiece] = []
        for sequence, length, n_before, document in zip(
            sequences.tolist(),
            lengths.tolist(),
            tokens_before.tolist(),
            documents.tolist(),
            strict=True,
        ):
            piece = DocumentPiece(sequence, start=0, stop=length, first=n_before, document=document)
            pieces.append(piece)
        return pieces

    def _token_starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return at which token of the `.bin` sequences start.

        The .idx has the first byte of each. With tokens of 2 bytes, byte 16 is token 8.

        Args:
            sequences: Numbers of sequences, shape (n_sequences,).

        Returns:
            int64, shape (n_sequences,).
        """
        starts: NDArray[np.int64] = (
            self.layout.sequence_pointers[sequences] // self.layout.dtype.itemsize
        )
        return starts

    def padding(self) -> NDArray[np.int64] | None:
        """Return the number of padding tokens in each sequence.

        Returns:
            int64, shape (n_sequences,); or None if datasets of this kind have no padding.
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
    """Return the name of the corpus that contains the documents of a dataset.

    Args:
        manifest: Manifest of the dataset of a corpus or view, or of a packed dataset.

    Returns:
        The name that the manifest records; for the dataset of a corpus, its own name.
    """
    return str(manifest.facts.get("corpus", manifest.name))


def _count_below(ascending: NDArray[np.int64], limits: Sequence[int]) -> list[int]:
    """Return how many numbers of an ascending array are less than each limit.

    Of [0, 100, 200], 2 are less than 150, and none is less than 0.

    Args:
        ascending: The numbers, shape (n,). They may be in a file, which is not read as a whole.
        limits: The limits.
    """
    # The place of the last number that is less; -1 if there is none.
    last_places = last_not_greater(ascending, [limit - 1 for limit in limits])
    counts: list[int] = (last_places + 1).tolist()
    return counts


def _is_ascending(index: Index, rows: tuple[int, int]) -> bool:
    """Return whether consecutive sequences are stored one after another in the token file.

    In a shuffled dataset they are not, so that their first bytes do not ascend: 100, 0, 200.

    Args:
        index: Has the first byte of each sequence (its pointer).
        rows: Numbers (start, stop) of the sequences.
    """
    start, stop = rows
    for first in range(start, stop, SEQUENCES_AT_ONCE):
        # Blocks overlap by one sequence, to compare the last one of a block with the next one.
        last = min(first + SEQUENCES_AT_ONCE + 1, stop)
        pointers = np.array(index.sequence_pointers[first:last])
        if (np.diff(pointers) < 0).any():
            return False
    return True
