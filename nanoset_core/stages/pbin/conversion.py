"""Convert an indexed dataset to a `.pbin`, whose tokens have the size that Modalities expects.

A dataset is a .bin of tokens and a .idx of its documents. A `.pbin` has both in one file: a header,
all tokens, and an index of where each document begins. If the vocabulary has 50,257 tokens, each
token takes 2 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.ids import first_foreign, foreign_id
from nanoset_core.formats.indexed.layout import bin_path
from nanoset_core.formats.indexed.stream import Hashed, document_spans, stream_of, stream_tokens
from nanoset_core.formats.pbin.layout import encode_header, token_size_bytes
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.formats.pbin.writing import (
    PbinCounts,
    check_fit,
    check_not_empty,
    encode_tokens,
    entries_in_sequence,
    read_tokens,
    write_parts,
)
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.storage.reading.objects import open_object
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.store import Store

if TYPE_CHECKING:
    from nanoset_core.tokenizers.files import TokenizerPath


def write_dataset_as_pbin(
    prefix: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    vocab_size: int | None = None,
    end_token: int | None = None,
    max_id: int | None = None,
    progress: Progress = SILENT,
) -> PbinCounts:
    """Write all documents of a dataset as a `.pbin`, the file from which Modalities trains.

    The file appears when it is complete. It has layout D, the newest one that Modalities reads (see
    `formats/pbin/layout.py`). The sequences of a document are joined. Documents without tokens are
    left out and counted, since Modalities has no empty documents. Memory is bounded; with
    `end_token`, it grows by one byte for each document.

    Args:
        prefix: Path of the dataset's .bin and .idx, without the ending.
        path: The file to write.
        vocab_size: Vocabulary size that Modalities' tokenizer reports, which decides the bytes of a
            token. None: tokens keep their size, up to 4 bytes.
        end_token: Token that is added to each document that does not end in it, as Modalities'
            packer does. None: no token is added.
        max_id: Greatest id of the vocabulary. None: ids only need to fit into a token.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens that were written.

    Raises:
        InputError: A token is not in the vocabulary, or there are no tokens.
        ConfigError: A token does not fit.
        FormatError: The dataset holds other numbers than integers.
    """
    dataset = MMapIndexedDataset(prefix)
    token_bytes = min(dataset.dtype.itemsize, 4)
    if vocab_size is not None:
        token_bytes = token_size_bytes(vocab_size)
    parts = _PbinParts(
        dataset,
        token_bytes=token_bytes,
        end_token=end_token,
        max_id=max_id,
        progress=progress,
        name=Path(path).name,
    )
    data_bytes = write_parts(path, token_bytes, parts.blocks(), parts.entries())
    return parts.counts(data_bytes)


def put_dataset_as_pbin(
    dataset: MMapIndexedDataset,
    store: Store,
    name: str,
    *,
    vocab_size: int,
    max_id: int | None = None,
    progress: Progress = SILENT,
) -> StoredPbin:
    """Write all documents of a dataset as a `.pbin` in a store.

    The bytes are those of `write_dataset_as_pbin`, except that tokens have more bytes than
    `vocab_size` requires if a token of the dataset needs them.

    Args:
        dataset: The dataset.
        store: Store of the file.
        name: Name of the file in the store.
        vocab_size: Vocabulary size that Modalities' tokenizer reports.
        max_id: Greatest id of the vocabulary. None: ids only need to fit into a token.
        progress: Shows how far the work has come.

    Returns:
        The numbers of documents and tokens, and the size and sha256 of the file.

    Raises:
        InputError: A token is not in the vocabulary, or there are no tokens.
        FormatError: The dataset holds other numbers than integers.
    """
    token_bytes = token_size_bytes(fitting_vocab_size(dataset, vocab_size))
    parts = _PbinParts(
        dataset,
        token_bytes=token_bytes,
        end_token=None,
        max_id=max_id,
        progress=progress,
        name=name.rpartition("/")[2],
    )

    # A .pbin is a header, the tokens, and an index. The index is made while the tokens are read, so
    # it is encoded after them. `Hashed` computes the sha256 while the store takes the bytes.
    data_bytes = parts.n_tokens * token_bytes
    header = encode_header(data_bytes, token_bytes)
    blocks = chain([header], parts.blocks(), encode_index(parts.entries()))
    hashed = Hashed(map(bytes, blocks))
    store.put_parts(name, hashed)
    return StoredPbin(parts.counts(data_bytes), FileFact(hashed.size, hashed.sha256))


class StoredPbin(NamedTuple):
    """A `.pbin` that was written to a store."""

    counts: PbinCounts
    """The numbers of documents and tokens."""
    file: FileFact
    """Size and sha256 of the file."""


def model_vocab_size(tokenizer_file: TokenizerPath) -> int:
    """Return how many tokens a tokenizer's vocabulary has, without tokens that were added later.

    The training framework Modalities stores tokens with 1, 2 or 4 bytes, and chooses by this
    number. To write the same files, it is computed in the same way: with 65,500 tokens and 100
    added ones, it is 65,500, which means 2 bytes.

    Args:
        tokenizer_file: The tokenizer's file or folder. It is loaded once for each of its versions,
            and the number is remembered.
    """
    # Imported here, since readers of .pbin files need only numpy.
    from nanoset_core.tokenizers.files import stat_signature

    return _model_vocab_size(tokenizer_file, stat_signature(tokenizer_file))


@lru_cache(maxsize=8)
def _model_vocab_size(tokenizer_file: TokenizerPath, _signature: object) -> int:
    """Load a tokenizer to read its size, once for each version of its files.

    Args:
        tokenizer_file: The tokenizer's file or folder.
        _signature: Differs between versions of the files. It is not used, except by the cache.
    """
    from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer

    return int(load_tokenizer(tokenizer_file).get_vocab_size(with_added_tokens=False))


def fitting_vocab_size(
    dataset: MMapIndexedDataset, vocab_size: int, end_token: int | None = None
) -> int:
    """Return a vocabulary size that is large enough for the token ids of a dataset.

    The framework Modalities stores tokens with 1, 2 or 4 bytes, depending on the size of the
    vocabulary. The size that a tokenizer reports may leave out tokens that were added later:

        reported size    its bytes    largest id    result
        50,257           2            50,256        50,257
        65,536           2            65,600        65,601, so that tokens get 4 bytes

    Args:
        dataset: The dataset. Its tokens are read only if their dtype has room for larger ids.
        vocab_size: Vocabulary size that Modalities' tokenizer reports.
        end_token: Token that will be added to documents, or None.
    """
    token_bytes = token_size_bytes(vocab_size)  # 1, 2 or 4
    n_possible_ids = 1 << (8 * token_bytes)  # 65,536 for 2 bytes

    # Find the largest id. If the tokens of the dataset are stored in so few bytes already, all of
    # them fit, and this is -1.
    largest_id = _largest_id_beyond(dataset, token_bytes)
    if end_token is not None:
        largest_id = max(largest_id, end_token)

    if largest_id < n_possible_ids:
        return vocab_size
    return max(vocab_size, largest_id + 1)


def _largest_id_beyond(dataset: MMapIndexedDataset, token_bytes: int) -> int:
    """Return the largest token id of a dataset, or -1 if all its ids fit into some bytes anyway.

    For example, all values of uint16 fit into 2 bytes: then no token has to be read.

    Args:
        dataset: The dataset.
        token_bytes: The number of bytes: 1, 2 or 4.
    """
    if np.can_cast(dataset.dtype, f"u{token_bytes}"):
        return -1
    return _largest_id_in_bin(dataset)


def _largest_id_in_bin(dataset: MMapIndexedDataset) -> int:
    """Return the largest token id of a dataset, or -1 if it has no tokens.

    It decides how many bytes a token needs. All tokens are in one file, the .bin, which is read
    from start to end. If the dataset is a selection of documents, the ids of other documents in the
    file count, too.

    Args:
        dataset: The dataset, on this machine or in a bucket.
    """
    largest_id = -1
    path = bin_path(dataset.prefix)
    with _open_tokens(dataset) as file:
        for _, tokens in read_tokens(file, path, dataset.dtype, 0, dataset.token_count):
            largest_id = max(largest_id, int(tokens.max()))
    return largest_id


def _check_integers(dataset: MMapIndexedDataset) -> None:
    """Check that a dataset has ids of tokens, which are integers.

    The format .bin can also have other numbers, such as floating-point ones. The framework
    Modalities, for which the dataset is converted, reads integers only.

    Args:
        dataset: The dataset.

    Raises:
        FormatError: It has other numbers than integers.
    """
    if dataset.dtype.kind not in "iu":
        raise FormatError(
            "the .bin holds no tokens",
            where=bin_path(dataset.prefix),
            found=dataset.dtype.name,
            expected="whole numbers",
            remedy="write this dataset again",
        )


class _PbinParts:
    """The parts of the `.pbin` of a dataset: all tokens, and then the index.

    The parts must be taken in this order. To which documents an end token is added is found while
    their tokens are written, and the index depends on it.
    """

    def __init__(
        self,
        dataset: MMapIndexedDataset,
        *,
        token_bytes: int,
        end_token: int | None,
        max_id: int | None,
        progress: Progress,
        name: str,
    ) -> None:
        """Check that the dataset has tokens, and prepare to read them.

        Args:
            dataset: The dataset.
            token_bytes: Bytes of a token in the `.pbin`.
            end_token: Token that is added to documents which do not end in it; None to add none.
            max_id: Greatest id of the vocabulary; None if ids only need to fit into a token.
            progress: Shows how far the work has come.
            name: Name of the `.pbin`, for the progress.

        Raises:
            FormatError: The dataset holds other numbers than integers.
            InputError: The dataset is empty.
        """
        _check_integers(dataset)
        self.n_tokens = int(dataset.sequence_lengths.sum(dtype=np.int64))
        """Number of tokens of the dataset, without end tokens that are added."""
        check_not_empty(dataset.prefix, self.n_tokens)

        self._dataset = dataset
        self._path = bin_path(dataset.prefix)
        self._stream = stream_of(dataset)  # the sequences of a view may be anywhere in the .bin
        self._token_bytes = token_bytes
        self._end_token = end_token
        self._max_id = max_id
        self._work = progress.work("pack", name, self.n_tokens * token_bytes)
        self._documents = 0
        self._lacks_end: list[NDArray[np.bool_]] = []
        """Whether each document lacks the end token, in the chunks of `document_spans`."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield all tokens of a dataset as bytes, as they are stored in a `.pbin`.

        A `.pbin` is the file from which the framework Modalities trains. It has all tokens of the
        documents one after another, and then an index of the documents. If tokens have 2 bytes and
        documents end with the token 0:

            documents    [5, 6], [7]
            tokens       5 6 0 7 0
            bytes        05 00 06 00 00 00 07 00 00 00

        Raises:
            InputError: A token is not in the vocabulary.
            ConfigError: A token does not fit into the bytes of a token.
        """
        with _open_tokens(self._dataset) as file:
            if self._end_token is None:  # documents stay as they are
                chunks = self._read(file, 0, self.n_tokens)
            else:  # those that do not end in this token get it
                chunks = self._tokens_with_ends(file, self._end_token)
            # `first_token` is the number of a chunk's first token, for errors.
            for first_token, tokens in chunks:
                yield from encode_tokens(
                    tokens, self._token_bytes, str(self._path), first=first_token
                )
                self._work.advance(len(tokens) * self._token_bytes)

    def entries(self) -> Iterator[Entries]:
        """Yield the entries of the index, after all blocks were taken."""
        yield from entries_in_sequence(self._document_bytes())

    def counts(self, data_bytes: int) -> PbinCounts:
        """Return the numbers of documents and tokens, after all entries were taken.

        Args:
            data_bytes: Bytes of all tokens that were written.
        """
        return PbinCounts(
            documents=self._documents,
            tokens=data_bytes // self._token_bytes,
            token_bytes=self._token_bytes,
            left_out=len(self._dataset.document_indices) - 1 - self._documents,
        )

    def _document_bytes(self) -> Iterator[NDArray[np.int64]]:
        """Yield the size of each document in bytes, in chunks of shape (n_documents,).

        If an end token was added to a document of 3 tokens of 2 bytes, it has 8 bytes.
        """
        for number, (_, lengths) in enumerate(document_spans(self._dataset, self._stream)):
            self._documents += len(lengths)
            if self._lacks_end:
                lengths = lengths + self._lacks_end[number]
            yield lengths * self._token_bytes

    def _tokens_with_ends(
        self, file: BinaryIO, end_token: int
    ) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield all tokens of a dataset in chunks, with an end token after each document that lacks
        it.

        Modalities, for which the dataset is converted, ends each document with such a token. For
        example, with the end token 0:

            documents    [5, 6], [7, 0]
            result       5 6 0 7 0          the second document has it already
            noted        True, False        which documents lack it (`self._lacks_end`)

        The index, which is written later, needs the note for the lengths of the documents.

        Args:
            file: The .bin, opened.
            end_token: The end token.

        Yields:
            (number of the chunk's first token in the dataset; the tokens, with end tokens).

        Raises:
            ConfigError: A token does not fit into the bytes of a token.
            InputError: A token is not in the vocabulary.
        """
        check_fit(np.array([end_token]), self._token_bytes, "the end-of-document token")
        for starts, lengths in document_spans(self._dataset, self._stream):
            # Some thousand documents: the number of the token after each, (n_documents,).
            stops = starts + lengths

            # Read their tokens in chunks. Each document ends in one of these, which shows whether
            # it lacks the end token.
            lacks_end_by_chunk = []
            for first_token, tokens in self._read(file, int(starts[0]), int(stops[-1])):
                check_fit(tokens, self._token_bytes, str(self._path), first_token)
                # Where documents end in this chunk: [2, 4]. Look at the token before each.
                stops_in_chunk = _stops_in_chunk(stops, first_token, len(tokens))
                lacks_end = tokens[stops_in_chunk - 1] != end_token  # [True, False]
                lacks_end_by_chunk.append(lacks_end)
                yield first_token, self._insert_ends(tokens, stops_in_chunk[lacks_end], end_token)
            self._lacks_end.append(np.concatenate(lacks_end_by_chunk))  # (n_documents,)

    def _insert_ends(
        self, tokens: NDArray[np.integer], stops: NDArray[np.int64], end_token: int
    ) -> NDArray[np.integer]:
        """Insert end tokens into a chunk of the tokens of several documents.

        A framework may need a token that marks the end of each document. With the end token 0:

            tokens    5 6 7
            stops     [2]          a document ends before position 2
            result    5 6 0 7

        The tokens are first converted to the number of bytes that they have in the new file.

        Args:
            tokens: The tokens, shape (n_tokens,).
            stops: Positions in the chunk before which an end token is inserted, shape (n_stops,).
            end_token: The end token.
        """
        narrow_tokens = tokens.astype(f"<u{self._token_bytes}")
        return np.insert(narrow_tokens, stops, end_token)

    def _read(
        self, file: BinaryIO, start: int, stop: int
    ) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield some consecutive tokens of a dataset in chunks, and check that they are valid ids.

        Args:
            file: The .bin, the file with the tokens, opened. If they are in order in it, its
                position has to be the first of these tokens.
            start: Number of the first token in the order of the dataset.
            stop: Number of the token after the last one.

        Yields:
            (number of the chunk's first token, its tokens)

        Raises:
            InputError: A token is not in the vocabulary.
        """
        if self._stream is None:
            # The .bin has exactly the tokens of the dataset, in order.
            chunks = read_tokens(file, self._path, self._dataset.dtype, start, stop)
        else:
            # The dataset is a selection of the documents in the .bin, so read from many places.
            chunks = stream_tokens(self._dataset, self._stream, start, stop)
        for first_token, tokens in chunks:
            self._check_vocabulary(tokens, first_token)
            yield first_token, tokens

    def _check_vocabulary(self, tokens: NDArray[np.integer], first_token: int) -> None:
        """Check that the vocabulary contains some tokens, if its greatest id is known.

        The id 70,000 is an error if the greatest id is 50,256.

        Args:
            tokens: The tokens, shape (n_tokens,).
            first_token: Number of the first of them in the dataset, for the error.

        Raises:
            InputError: It does not contain one of them.
        """
        if self._max_id is None:
            return
        position = first_foreign(tokens, self._max_id)
        if position is not None:
            token = int(tokens[position])
            raise foreign_id(self._dataset, first_token + position, token, self._max_id)


def _stops_in_chunk(stops: NDArray[np.int64], first_token: int, n_tokens: int) -> NDArray[np.int64]:
    """Return where documents end in a chunk of tokens.

    For example, there are three documents, and the chunk has the six tokens from 4 to 9:

        document        0          1          2
        its tokens      0 to 3     4 to 9     10 to 11
        ends at         4          10         12        one after its last token
        in the chunk    no         at 6       no        since token 4 is the chunk's first

    Args:
        stops: Where each document ends, ascending, [4, 10, 12]; shape (n_documents,).
        first_token: Number of the chunk's first token.
        n_tokens: How many tokens the chunk has.

    Returns:
        [6] in the example: the ends of all documents whose last token is in the chunk, counted from
        the chunk's first token.
    """
    # The stops are sorted. Count those up to the start of the chunk, and those up to its end.
    n_until_start = np.searchsorted(stops, first_token, side="right")  # 1
    n_until_end = np.searchsorted(stops, first_token + n_tokens, side="right")  # 2
    return stops[n_until_start:n_until_end] - first_token


def _open_tokens(dataset: MMapIndexedDataset) -> BinaryIO:
    """Open the .bin of a dataset to read it in order, on this machine or from a store.

    Args:
        dataset: The dataset.
    """
    if dataset.is_here:
        return open_regular(bin_path(dataset.prefix))
    store, prefix = dataset.stored()
    return open_object(store, f"{prefix}.bin")
