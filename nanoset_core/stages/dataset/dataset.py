"""The interface of datasets, which is the same for all three kinds.

The dataset of a corpus contains all of its documents. A view selects documents of a corpus. A
packed dataset arranges the documents of a corpus or a view in samples of one length. So a dataset
has a chain of sources; the longest one is packed dataset → view → corpus. A reader asks every
dataset the same three questions:

- Which tokens are in its sequences? `sequences`, `index`, `pieces_of`, `pieces_in`.
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

`stages/datasets.py` opens a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol

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
    """Position of the first token in the document."""
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
class _PlacesInCorpus:
    """Where consecutive documents of a corpus, and their sequences, are in its .bin."""

    first_document: int
    """Number of the first document."""
    first_sequences: NDArray[np.int64]
    """First sequence of each document, and the one after all; shape (n_documents + 1,)."""
    pointers: NDArray[np.int64]
    """First byte of each of their sequences, ascending; shape (n_sequences,), at least one."""
    stop_byte: int
    """Byte after the last one; for the last documents of a corpus, any large number."""

    @staticmethod
    def of(corpus: Index, documents: range) -> _PlacesInCorpus | None:
        """Return which bytes of a corpus's token file belong to some documents, or None if none.

        The token file (.bin) of a corpus has the tokens of all documents, one document after the
        other. A document consists of one or more sequences. For example, for the documents 1 and 2
        of a corpus:

            document           0      1      1      2      3
            sequence           0      1      2      3      4
            its first byte     0      100    140    200    260

            first_sequences    [1, 3, 4]    of documents 1 and 2, and of the one after them
            pointers           [100, 140, 200]
            stop_byte          260

        Args:
            corpus: Says where the sequences of the corpus are, and which documents they belong to.
            documents: Numbers of the documents, here range(1, 3).
        """
        # First sequence of each document, and of the one after them: (n_documents + 1,). For the
        # last document of the corpus, the latter is the number of all sequences.
        first_sequences = corpus.document_indices[documents.start : documents.stop + 1]
        start = int(first_sequences[0])
        stop = int(first_sequences[-1])
        if start == stop:
            return None

        # The first byte of each sequence. The documents stop where the next sequence begins.
        pointers = np.array(corpus.sequence_pointers[start:stop])  # (n_sequences,)
        # If there is none, all further bytes belong to them: let them stop at the largest integer.
        stop_byte = int(np.iinfo(np.int64).max)
        has_next_sequence = stop < len(corpus.sequence_pointers)
        if has_next_sequence:
            stop_byte = int(corpus.sequence_pointers[stop])
        return _PlacesInCorpus(documents.start, first_sequences, pointers, stop_byte)

    @property
    def start_byte(self) -> int:
        """First byte of the documents."""
        return int(self.pointers[0])

    def contain(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether bytes of the .bin belong to the documents, shape (n_places,)."""
        return (places >= self.start_byte) & (places < self.stop_byte)

    def documents_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which documents some bytes of a corpus's token file belong to.

        For example, the documents 1 and 2 have these sequences of tokens:

            document          1      1      2
            sequence          1      2      3
            its first byte    100    140    200

        Byte 150 is in sequence 2, the last one that begins before it. So it belongs to document 1.

        Args:
            places: Positions of the bytes, all within these documents; shape (n_places,).

        Returns:
            Numbers of documents in the corpus, shape (n_places,).
        """
        # A byte belongs to the last sequence that starts at it or before it, and a sequence to the
        # last document that starts with it or before it.
        n_sequences_begun = np.searchsorted(self.pointers, places, side="right")
        sequences = self.first_sequences[0] + n_sequences_begun - 1
        n_documents_begun = np.searchsorted(self.first_sequences, sequences, side="right")
        documents: NDArray[np.int64] = self.first_document + n_documents_begun - 1
        return documents


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
        """Yield the documents that have tokens in some consecutive sequences.

        A document may be stored in several sequences. A dataset may have only some documents of its
        corpus. So its documents have two numbers:

            sequence                      20    21    22    23
            document in this dataset       2     2     3     4
            document in the corpus         7     7     9    12

        The sequences 21 to 22 (start=21, stop=23) have tokens of the corpus's documents 7 and 9.

        Args:
            start: Number of the first sequence.
            stop: Number after the last sequence.

        Yields:
            Numbers of documents in the corpus, int64, in blocks, to limit memory. A document in
            several sequences may occur several times.
        """
        # The documents of the first and of the last sequence, numbered as in this dataset. A
        # sequence belongs to the last document whose first sequence is not after it.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) of each document
        first, last = last_not_greater(first_sequences, [start, stop - 1]).tolist()  # 2 and 3
        for block_start in range(first, last + 1, _DOCUMENTS_AT_ONCE):
            block_stop = min(block_start + _DOCUMENTS_AT_ONCE, last + 1)
            documents = self._with_tokens(np.arange(block_start, block_stop))
            yield self.corpus_documents(documents)  # their numbers in the corpus

    def _with_tokens(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return only the documents that have tokens.

        Args:
            documents: Numbers of the documents in `layout`, shape (n_documents,).
        """
        # A document without tokens has either no sequence, or a single empty one.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) of each document
        has_sequence = first_sequences[documents + 1] > first_sequences[documents]
        documents = documents[has_sequence]
        first_lengths = self.layout.sequence_lengths[first_sequences[documents]]  # in tokens
        return documents[first_lengths > 0]

    def corpus_tokens(self, rows: tuple[int, int], documents: range) -> Iterator[DocumentTokens]:
        """Yield how many tokens of certain documents are in certain rows of this dataset.

        A row is a sequence of tokens. This dataset may have the rows of a corpus in another order,
        for example shuffled. It has no tokens of its own: for each row, it knows at which byte of
        the corpus's token file (.bin) the row starts. In that file, each document takes a known
        range of bytes:

            document of the corpus         0           1
            its bytes                      0 to 100    100 to 300

            row of this dataset            0      1    2
            its first byte in the .bin     100    0    200
            so its document is             1      0    1

        Args:
            rows: Numbers (start, stop) of rows: (0, 3) for all in the example.
            documents: Numbers of documents in the corpus: range(1, 2) for only document 1.

        Yields:
            The document and the number of tokens of each row that belongs to one of the documents
            (here those of the rows 0 and 2), in blocks.
        """
        # Which bytes of the corpus's .bin belong to the documents: 100 to 300 for document 1.
        places = _PlacesInCorpus.of(self.corpus.index, documents)
        if places is None:  # the documents have no tokens
            return
        # If the rows are in the order of the .bin, leave out those before and after these bytes.
        first_row, stop_row = self._rows_between(rows, places.start_byte, places.stop_byte)
        for block_start in range(first_row, stop_row, SEQUENCES_AT_ONCE):
            block_stop = min(block_start + SEQUENCES_AT_ONCE, stop_row)
            yield self._tokens_of_documents(places, slice(block_start, block_stop))

    def _tokens_of_documents(self, places: _PlacesInCorpus, rows: slice) -> DocumentTokens:
        """Return how many tokens of certain documents are in consecutive rows, which are sequences.

        This dataset has the sequences of a corpus in another order, for example shuffled. For each
        row, it knows at which byte of the corpus's token file (.bin) the row starts. There,
        document 1 has the bytes 100 to 300:

            row                               5      6      7
            its first byte in that file     100      0    200
            so it belongs to document 1     yes     no    yes
            its tokens                       50     30     40

        The result is that document 1 has 50 tokens (row 5) and 40 tokens (row 7).

        Args:
            places: Which bytes of the corpus's file belong to the documents: 100 to 300 for
                document 1.
            rows: Numbers of the rows in this dataset: slice(5, 8).
        """
        row_pointers = np.array(self.index.sequence_pointers[rows])  # (n_rows,) first byte of each
        row_lengths = np.array(self.index.sequence_lengths[rows])  # (n_rows,) in tokens
        is_within = places.contain(row_pointers) & (row_lengths > 0)
        return DocumentTokens(
            documents=places.documents_at(row_pointers[is_within]),
            tokens=row_lengths[is_within].astype(np.int64),
        )

    def _rows_between(
        self, rows: tuple[int, int], start_byte: int, stop_byte: int
    ) -> tuple[int, int]:
        """Leave out rows (sequences) that are certainly not in a range of bytes of a token file.

        For example, four rows start at these bytes, and the bytes 150 to 300 are of interest:

            row           0    1      2      3
            first byte    0    100    200    300

        Only row 2 starts in this range, so the result is (2, 3). This can be found quickly, without
        looking at each row, if the first bytes ascend. In a shuffled dataset they do not. Then
        nothing is left out, and the caller looks at each row.

        Args:
            rows: Numbers (start, stop) of rows: (0, 4).
            start_byte: First byte of the range: 150.
            stop_byte: Byte after the last one: 300.

        Returns:
            Numbers (start, stop) of the remaining rows.
        """
        # Whether the first bytes ascend. To find out, all of them are read, so keep the result for
        # the next calls.
        if rows not in self._is_ascending_by_rows:
            self._is_ascending_by_rows[rows] = _is_ascending(self.index, rows)
        if not self._is_ascending_by_rows[rows]:
            return rows
        first_row, stop_row = rows
        pointers = self.index.sequence_pointers[first_row:stop_row]  # first byte of each sequence
        # Two rows start before byte 150, and three before byte 300.
        n_before_start, n_before_stop = _count_below(pointers, [start_byte, stop_byte])
        return first_row + n_before_start, first_row + n_before_stop

    def pieces_of(self, document: int) -> list[DocumentPiece]:
        """Return in which sequences the tokens of a document are stored, and where in each.

        A long document is divided into several sequences. For example, one of 8 tokens may be
        stored like this, as two pieces:

            sequence               20               21
            tokens of the document 0 1 2 3 4        5 6 7
            piece                  start=0 stop=5   start=0 stop=3, its first token is token 5

        An empty document may have a sequence, and so a piece, without tokens.

        Args:
            document: Number of the document in `unpacked`.
        """
        # Here, each sequence has tokens of one document only. Packed datasets, in which a sequence
        # has several documents, override this method.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) the last is the end
        first_sequence = int(first_sequences[document])
        stop_sequence = int(first_sequences[document + 1])

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

        In most datasets, all tokens of a sequence are from one document. So it does not matter
        which part of a sequence is asked for:

            sequence 7, tokens 10 to 20: [7, 10, 20]    one piece, which is all of sequence 7
            sequence 7, tokens 30 to 40: [7, 30, 40]    the same

        In other datasets, sequences have tokens of several documents. Their class overrides this
        method.

        Args:
            spans: The parts, int64, shape (n_spans, 3). The columns are the number of the sequence,
                and the positions of the first token and after the last one in it.

        Returns:
            For each part, the pieces of documents that it overlaps, in order. A piece is returned
            in full.
        """
        sequences = spans[:, 0]  # (n_spans,)
        return [[piece] for piece in self._whole_sequences(sequences)]

    def _whole_sequences(self, sequences: NDArray[np.int64]) -> Iterator[DocumentPiece]:
        """Yield, for each of some sequences, which part of which document it contains.

        A document is stored in one or more sequences. For example:

            sequence                                         0         1         2
            its document                                     0         1         1
            its tokens                                       5         3         4
            how many tokens of the document precede it       0         0         3
            so it has these tokens of the document      0 to 5    0 to 3    3 to 7

        Args:
            sequences: Numbers of the sequences, in any order, shape (n_sequences,). The comments in
                the code have the values for [2, 0].
        """
        # The document of a sequence is the last one that does not start after it.
        first_sequences = self.layout.document_indices  # (n_documents + 1,) [0, 1, 3]
        documents = last_not_greater(first_sequences, sequences)  # (n_sequences,) [1, 0]
        lengths = self.layout.sequence_lengths[sequences]  # (n_sequences,) [4, 5]

        # How many tokens of the document are before each sequence? Compare where both start in the
        # .bin, in tokens.
        document_starts = self._token_starts(first_sequences[documents])  # [5, 0]
        sequence_starts = self._token_starts(sequences)  # [8, 0]
        tokens_before = sequence_starts - document_starts  # (n_sequences,) [3, 0]
        rows = zip(
            sequences.tolist(),
            lengths.tolist(),
            tokens_before.tolist(),
            documents.tolist(),
            strict=True,
        )
        for sequence, length, n_before, document in rows:
            yield DocumentPiece(sequence, start=0, stop=length, first=n_before, document=document)

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
