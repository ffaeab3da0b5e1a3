"""Write a `.pbin` (layout D) from documents, or from encoded tokens and index entries."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS
from nanoset_core.formats.pbin.layout import HEADER_BYTES, TOKEN_BYTES, encode_header
from nanoset_core.formats.pbin.pickle_codec import Entries, encode_index
from nanoset_core.storage.atomic import atomic_file

_CHUNK_DOCUMENTS = 1 << 16
"""Documents whose index entries are written at once."""


@dataclass(frozen=True, slots=True)
class PbinCounts:
    """Counts of a `.pbin`. The names of the fields are facts in manifests and records."""

    ignores_unknown_keys: ClassVar[bool] = True

    documents: int
    """Number of documents in the index."""
    tokens: int
    """Number of tokens of all documents together."""
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    left_out: int = 0
    """Documents without tokens; the `.pbin` of an indexed dataset leaves them out."""


def write_pbin(
    path: str | os.PathLike[str], documents: Iterable[ArrayLike], *, token_bytes: int
) -> PbinCounts:
    """Write tokenized documents as a `.pbin`, the file with which Modalities trains.

    For example, with 2 bytes for a token, the documents [5, 6, 7] and [8, 9] become a header, 10
    bytes of tokens, and the index [(0, 6), (6, 4)]. The bytes are those of Modalities'
    `TokenizedFileWriter`. The file appears once it is complete. It takes 8 bytes of memory for each
    document, and memory for the longest document.

    Args:
        path: The file to write.
        documents: Token ids of each document, integers, shape (n_tokens,). No tokens are added.
        token_bytes: Bytes of a token: 1, 2 or 4; see `token_size_bytes`.

    Raises:
        ConfigError: A token does not fit, or tokens cannot have this size.
        InputError: No document has tokens.
    """
    _check_token_bytes(token_bytes)
    encoder = _DocumentEncoder(os.fspath(path), documents, token_bytes)
    data_bytes = write_parts(path, token_bytes, encoder.blocks(), encoder.entries())
    return PbinCounts(len(encoder.lengths), data_bytes // token_bytes, token_bytes)


def _check_token_bytes(token_bytes: int) -> None:
    """Raise ConfigError if a token of a `.pbin` cannot have so many bytes."""
    if token_bytes not in TOKEN_BYTES:
        raise ConfigError(
            "tokens cannot have this size",
            where="token_bytes",
            found=token_bytes,
            expected="1, 2 or 4",
            remedy="take it from token_size_bytes(vocab_size)",
        )


class _DocumentEncoder:
    """Encodes the tokens of documents, and then their index entries.

    Args:
        path: Path of the `.pbin`, for messages.
        documents: Token ids of each document.
        token_bytes: Bytes of a token.
    """

    def __init__(self, path: str, documents: Iterable[ArrayLike], token_bytes: int) -> None:
        self._path = path
        self._documents = documents
        self._token_bytes = token_bytes
        self.lengths = array("q")
        """Bytes of each document that was encoded so far."""

    def blocks(self) -> Iterator[memoryview]:
        """Yield the encoded tokens of all documents."""
        for number, document in enumerate(self._documents):
            where = f"{self._path}, document {number}"
            tokens = _flat(document, where)
            self.lengths.append(len(tokens) * self._token_bytes)
            yield from encode_tokens(tokens, self._token_bytes, where)

    def entries(self) -> Iterator[Entries]:
        """Yield the index entries of all documents, after all `blocks` were taken."""
        yield from entries_in_sequence(in_chunks(np.frombuffer(self.lengths, np.int64)))


def write_parts(
    path: str | os.PathLike[str],
    token_bytes: int,
    blocks: Iterable[memoryview],
    entries: Iterable[Entries],
) -> int:
    """Write a `.pbin`, the file that the trainer Modalities reads, from its three parts.

        header      how many bytes all tokens have, and how many one token has
        tokens      of all documents, one after another
        index       where each document starts, and how long it is

    The size in the header is known only after the tokens were written, so it is filled in at the
    end. The file gets its name when it is complete.

    Args:
        path: The file to write.
        token_bytes: Bytes of a token.
        blocks: The encoded tokens of all documents.
        entries: The index entries of all documents. They are taken after the last block, and so can
            be counted while the blocks are written.

    Returns:
        The bytes of all tokens.

    Raises:
        InputError: No tokens were written, and Modalities cannot read an empty file.
    """
    with atomic_file(Path(path)) as file:
        file.write(encode_header(0, token_bytes))
        file.writelines(blocks)
        data_bytes = file.tell() - HEADER_BYTES
        check_not_empty(path, data_bytes)
        file.writelines(encode_index(entries))

        # Now that the size of the tokens is known, complete the header.
        file.seek(0)
        file.write(encode_header(data_bytes, token_bytes))
    return data_bytes


def check_not_empty(path: object, size: int) -> None:
    """Check that there are tokens to write.

    Args:
        path: The file to write, for the message.
        size: Number of tokens, or of their bytes.

    Raises:
        InputError: The number is 0.
    """
    if size == 0:
        raise InputError(
            "no tokens to write",
            where=path,
            found="no document, or only documents without tokens",
            remedy="check what the file is to be made from",
        )


def encode_tokens(
    tokens: NDArray[np.integer], token_bytes: int, where: str, *, first: int = 0
) -> Iterator[memoryview]:
    """Yield the bytes of tokens as a file stores them: unsigned, with the lowest byte first.

    For example, the token 300 becomes 2c 01 if a token has 2 bytes. In a file whose tokens have 1
    byte, it is an error.

    Args:
        tokens: Shape (n_tokens,).
        token_bytes: Bytes of each token.
        where: The document or file that the tokens belong to, for messages.
        first: Number of the first token in it, for messages.

    Raises:
        ConfigError: A token does not fit.
    """
    encoded_dtype = np.dtype(f"<u{token_bytes}")
    for start in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens[start : start + CHUNK_TOKENS]
        check_fit(chunk, token_bytes, where, first + start)
        yield np.ascontiguousarray(chunk, encoded_dtype).data.cast("B")


def check_fit(tokens: NDArray[np.integer], token_bytes: int, where: str, first: int = 0) -> None:
    """Check that all tokens can be stored with some number of bytes each.

    With 1 byte, tokens from 0 to 255 can be stored, and with 2 bytes, tokens up to 65,535.

    Args:
        tokens: Shape (n_tokens,).
        token_bytes: Bytes of each token.
        where: The document or file that the tokens belong to, for messages.
        first: Number of the first token in it, for messages.

    Raises:
        ConfigError: A token is negative, or needs more bytes.
    """
    encoded_dtype = np.dtype(f"<u{token_bytes}")
    has_small_type = np.can_cast(tokens.dtype, encoded_dtype)
    if has_small_type or not len(tokens):
        return
    greatest = (1 << 8 * token_bytes) - 1
    if int(tokens.min()) >= 0 and int(tokens.max()) <= greatest:
        return

    is_changed = tokens.astype(encoded_dtype) != tokens  # by the conversion: it does not fit
    index = int(np.argmax(is_changed))
    raise ConfigError(
        "a token does not fit the token size",
        where=f"{where}, token {first + index}",
        found=int(tokens[index]),
        expected=f"0 to {greatest} ({token_bytes} bytes a token)",
        remedy="give the vocabulary size of the tokenizer, added tokens too",
    )


def read_tokens(
    file: BinaryIO, path: Path, dtype: np.dtype, start: int, stop: int
) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield a range of the tokens of a file in chunks, so that it needs little memory.

    The file is read, not mapped into memory, since the pages of a map count as memory of the
    process.

    Args:
        file: The file, at the position of the first token.
        path: Path of the file, for messages.
        dtype: Type of its tokens.
        start: Number of the first token, such as 0.
        stop: Number after the last token.

    Yields:
        The number of the chunk's first token, and its tokens, shape (n_tokens,).

    Raises:
        SourceChangedError: The file has become shorter.
    """
    for chunk_start in range(start, stop, CHUNK_TOKENS):
        n_tokens = min(CHUNK_TOKENS, stop - chunk_start)
        data = file.read(n_tokens * dtype.itemsize)
        n_missing = n_tokens - len(data) // dtype.itemsize
        if n_missing:
            raise SourceChangedError(
                "the file became shorter while it was read",
                where=f"{path}, byte {file.tell()}",
                found=f"{n_missing} tokens less",
                expected=f"{stop} tokens",
                remedy="run again once nothing writes to it any more",
            )
        yield chunk_start, np.frombuffer(data, dtype)


def in_chunks(values: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield a long array in chunks, so that what is computed for a chunk takes little memory.

    Args:
        values: Shape (n_values,).

    Yields:
        Views of consecutive values, none of them empty.
    """
    for start in range(0, len(values), _CHUNK_DOCUMENTS):
        yield values[start : start + _CHUNK_DOCUMENTS]


def entries_in_sequence(chunks: Iterable[NDArray[np.int64]]) -> Iterator[Entries]:
    """Yield where documents start, and how long they are, if they are stored without gaps.

        chunk        lengths     starts
        first        6  4        0  6
        second       8  2        10  18    (the first chunk has 10 bytes)

    Args:
        chunks: Bytes of the documents, shape (n_documents,), at least one in each chunk.

    Yields:
        The starts and lengths of each chunk's documents.
    """
    total = 0
    for lengths in chunks:
        stops = total + np.cumsum(lengths)
        yield Entries(stops - lengths, lengths)
        total = int(stops[-1])


def _flat(document: ArrayLike, where: str) -> NDArray[np.integer]:
    """Return the tokens of a document as an array of integers, shape (n_tokens,).

    For example, [5, 17, 2] is a document, and [] is one without tokens. [[5, 17], [2]] and [0.5]
    are errors.

    Args:
        document: Token ids, as a list or an array.
        where: File and number of the document, for messages.

    Raises:
        ConfigError: The document is something else.
    """
    tokens = np.asarray(document)
    if tokens.size == 0:
        return np.empty(0, np.uint8)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ConfigError(
            "a document is not a flat array of whole numbers",
            where=where,
            found=f"{tokens.dtype.name}{list(tokens.shape)}",
            remedy="give each document as one list of token ids",
        )
    return tokens
