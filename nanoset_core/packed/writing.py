"""Writing a `.pbin` of layout D, whole or not at all."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.execution.progress import Meter
from nanoset_core.packed.layout import TOKEN_BYTES, encode_header
from nanoset_core.packed.pickle_codec import encode_index
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.storage.copying import append_file

CHUNK_TOKENS = 1 << 21
_CHUNK_DOCUMENTS = 1 << 16
_COPY_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class PackedFacts:
    """What was written."""

    documents: int
    """Documents in the file."""
    tokens: int
    """Tokens in the file."""
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    left_out: int = 0
    """Documents of an indexed dataset without tokens, which its .pbin does not have."""


def write_packed(path: str | os.PathLike[str], documents: Iterable[ArrayLike], *, token_bytes: int) -> PackedFacts:
    """Write documents, each a flat array of tokens, one after the other; published whole.

    The bytes are those of Modalities' `TokenizedFileWriter`. Nothing is added: let each document end with an
    end-of-document token where one is wanted. Memory: 8 bytes a document, and the longest document.

    Args:
        path: where to.
        documents: integers, each of shape (tokens,).
        token_bytes: bytes of a token in the file: 1, 2 or 4.

    Raises:
        ConfigError: a token does not fit, or there is no such token size.
        InputError: there are no tokens at all.
    """
    if token_bytes not in TOKEN_BYTES:
        raise ConfigError(
            "tokens cannot have this size",
            where="token_bytes",
            found=token_bytes,
            expected="1, 2 or 4",
            remedy="take it from token_size_bytes(vocab_size)",
        )
    lengths = array("q")
    with atomic_file(Path(path)) as file:
        file.write(encode_header(0, token_bytes))
        for number, document in enumerate(documents):
            where = f"{os.fspath(path)}, document {number}"
            tokens = _flat(document, where)
            write_tokens(file, tokens, token_bytes, where)
            lengths.append(len(tokens) * token_bytes)
        sizes = np.frombuffer(lengths, np.int64)
        data_bytes = int(sizes.sum())
        check_not_empty(path, data_bytes)
        write_index(file, back_to_back(in_chunks(sizes)))
        file.seek(0)
        file.write(encode_header(data_bytes, token_bytes))
    return PackedFacts(len(sizes), data_bytes // token_bytes, token_bytes)


def write_tokens(
    file: IO[bytes],
    tokens: NDArray[np.integer],
    token_bytes: int,
    where: str,
    meter: Meter | None = None,
    *,
    first: int = 0,
) -> None:
    """Append tokens, shape (tokens,), as unsigned little-endian numbers of `token_bytes`, in chunks.

    Raises:
        ConfigError: a token does not fit; `where` and `first`, the number of tokens[0], go into the message.
    """
    target = np.dtype(f"<u{token_bytes}")
    for begin in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens[begin : begin + CHUNK_TOKENS]
        check_fit(chunk, token_bytes, where, first + begin)
        file.write(np.ascontiguousarray(chunk, target).data.cast("B"))
        if meter is not None:
            meter.advance(len(chunk) * token_bytes)


def copy_tokens(source: Path, begin_bytes: int, size_bytes: int, file: IO[bytes], meter: Meter) -> None:
    """Append a part of another file as it is.

    Raises:
        SourceChangedError: that file ends early.
    """
    for done in range(0, size_bytes, _COPY_BYTES):
        piece = min(_COPY_BYTES, size_bytes - done)
        append_file(source, file, piece, begin_bytes=begin_bytes + done)
        meter.advance(piece)


def check_fit(tokens: NDArray[np.integer], token_bytes: int, where: str, first: int = 0) -> None:
    """Make sure that tokens have room; `first` is the number of tokens[0].

    Raises:
        ConfigError: one of them is negative, or needs more bytes.
    """
    if np.can_cast(tokens.dtype, f"u{token_bytes}") or not len(tokens):
        return
    limit = 1 << (8 * token_bytes)
    if int(tokens.min()) < 0 or int(tokens.max()) >= limit:
        bad = int(np.argmax((tokens < 0) | (tokens.astype(np.uint64) >= limit)))
        raise ConfigError(
            "a token does not fit the token size",
            where=f"{where}, token {first + bad}",
            found=int(tokens[bad]),
            expected=f"0 to {limit - 1} ({token_bytes} bytes a token)",
            remedy="give the vocabulary size of the tokenizer that made these tokens, added tokens included",
        )


def write_index(file: IO[bytes], entries: Iterable[Entries]) -> None:
    """Append the pickled index of entries in bytes."""
    for piece in encode_index(entries):
        file.write(piece)


def in_chunks(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """An array's values, some thousand at a time."""
    return (lengths[first : first + _CHUNK_DOCUMENTS] for first in range(0, len(lengths), _CHUNK_DOCUMENTS))


def back_to_back(chunks: Iterable[NDArray[np.int64]]) -> Iterator[Entries]:
    """Index entries of documents that lie one after the other; `chunks` of their lengths in bytes, none empty."""
    begin = 0
    for lengths in chunks:
        ends = begin + np.cumsum(lengths)
        yield ends - lengths, lengths
        begin = int(ends[-1])


def check_not_empty(path: object, tokens: int) -> None:
    """Make sure that something is to be written: no trainer can make a sample of a .pbin without tokens.

    Raises:
        InputError: there are no tokens.
    """
    if tokens == 0:
        raise InputError(
            "no tokens to write",
            where=path,
            found="no document, or only documents without tokens",
            expected="one token or more",
            remedy="check what the file is to be made from",
        )


def _flat(document: ArrayLike, where: str) -> NDArray[np.integer]:
    tokens = np.asarray(document)
    if tokens.size == 0:
        return np.empty(0, np.uint8)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ConfigError(
            "a document is not a flat array of whole numbers",
            where=where,
            found=f"{tokens.dtype.name}{list(tokens.shape)}",
            expected="integers, shape (tokens,)",
            remedy="give each document as one list of token ids",
        )
    return tokens
