"""Write a `.pbin` of layout D, whole or not at all."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.packed.layout import HEADER_BYTES, TOKEN_BYTES, encode_header
from nanoset_core.packed.pickle_codec import encode_index
from nanoset_core.packed.pickle_reader import Entries
from nanoset_core.storage.atomic import atomic_file

CHUNK_TOKENS = 1 << 19
_CHUNK_DOCUMENTS = 1 << 16


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
        path: of the file to write.
        documents: integers, each of shape (tokens,).
        token_bytes: bytes of a token in the file: 1, 2 or 4.

    Raises:
        ConfigError: a token does not fit, or there is no such token size.
        InputError: there are no tokens at all.
    """
    if token_bytes not in TOKEN_BYTES:
        what, remedy = "tokens cannot have this size", "take it from token_size_bytes(vocab_size)"
        raise ConfigError(what, where="token_bytes", found=token_bytes, expected="1, 2 or 4", remedy=remedy)
    lengths = array("q")

    def blocks() -> Iterator[memoryview]:
        for number, document in enumerate(documents):
            where = f"{os.fspath(path)}, document {number}"
            tokens = _flat(document, where)
            lengths.append(len(tokens) * token_bytes)
            yield from encode_tokens(tokens, token_bytes, where)

    def entries() -> Iterator[Entries]:
        yield from back_to_back(in_chunks(np.frombuffer(lengths, np.int64)))

    data_bytes = write_file(path, token_bytes, blocks(), entries())
    return PackedFacts(len(lengths), data_bytes // token_bytes, token_bytes)


def write_file(
    path: str | os.PathLike[str], token_bytes: int, blocks: Iterable[memoryview], entries: Iterable[Entries]
) -> int:
    """Write a `.pbin` of encoded tokens and then the index of their documents; published whole.

    Returns:
        Bytes of all tokens.

    Raises:
        InputError: there are no tokens: no trainer can make a sample of such a file.
    """
    with atomic_file(Path(path)) as file:
        file.write(encode_header(0, token_bytes))
        file.writelines(blocks)
        data_bytes = file.tell() - HEADER_BYTES
        check_not_empty(path, data_bytes)
        file.writelines(encode_index(entries))
        file.seek(0)
        file.write(encode_header(data_bytes, token_bytes))
    return data_bytes


def check_not_empty(path: object, tokens: int) -> None:
    """Raise InputError where there are no tokens to write."""
    if tokens == 0:
        what, remedy = "no tokens to write", "check what the file is to be made from"
        raise InputError(what, where=path, found="no document, or only documents without tokens", remedy=remedy)


def encode_tokens(tokens: NDArray[np.integer], token_bytes: int, where: str, *, first: int = 0) -> Iterator[memoryview]:
    """Yield tokens, shape (tokens,), as unsigned little-endian numbers of `token_bytes`, in chunks.

    Raises:
        ConfigError: a token does not fit; `where` and `first`, the number of tokens[0], go into the message.
    """
    target = np.dtype(f"<u{token_bytes}")
    for begin in range(0, len(tokens), CHUNK_TOKENS):
        chunk = tokens[begin : begin + CHUNK_TOKENS]
        check_fit(chunk, token_bytes, where, first + begin)
        yield np.ascontiguousarray(chunk, target).data.cast("B")


def check_fit(tokens: NDArray[np.integer], token_bytes: int, where: str, first: int = 0) -> None:
    """Raise ConfigError where a token is negative, or needs more bytes; `first` is the number of tokens[0]."""
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


def in_chunks(lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield an array's values, some thousand at a time."""
    return (lengths[first : first + _CHUNK_DOCUMENTS] for first in range(0, len(lengths), _CHUNK_DOCUMENTS))


def back_to_back(chunks: Iterable[NDArray[np.int64]]) -> Iterator[Entries]:
    """Yield the index entries of documents that lie one after the other, from chunks of their lengths in bytes."""
    begin = 0
    for lengths in chunks:
        ends = begin + np.cumsum(lengths)
        yield ends - lengths, lengths
        begin = int(ends[-1])


def _flat(document: ArrayLike, where: str) -> NDArray[np.integer]:
    tokens = np.asarray(document)
    if tokens.size == 0:
        return np.empty(0, np.uint8)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found, remedy = f"{tokens.dtype.name}{list(tokens.shape)}", "give each document as one list of token ids"
        raise ConfigError("a document is not a flat array of whole numbers", where=where, found=found, remedy=remedy)
    return tokens
