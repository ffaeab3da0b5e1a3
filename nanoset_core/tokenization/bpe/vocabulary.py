"""Vocabulary and merges of a BPE model, as plain arrays."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.merges import MOST_IDS, MOST_MERGES
from nanoset_core.tokenization.bpe.reference import NotRecognisedError
from nanoset_core.tokenization.files.content import byte_characters
from nanoset_core.tokenization.files.sentencepiece import SPACE_SIGN


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words and merges of a BPE model."""

    data: NDArray[np.uint8]
    """uint8, shape (bytes,): bytes of all words back to back; none of them holds a zero byte."""
    lengths: NDArray[np.int64]
    """int64, shape (words,): bytes of each word."""
    ids: NDArray[np.int32]
    """int32, shape (words,): token of each word."""
    byte_tokens: NDArray[np.int32]
    """int32, shape (256,): token of each byte, -1 for none."""
    merges: NDArray[np.int32]
    """int32, shape (merges, 3): left token, right token and what they make, in order of rank."""
    characters: NDArray[np.int32]
    """int32, shape (characters, 2): (code point, token) where merging begins with characters, else none."""
    boundary_pairs: NDArray[np.int32]
    """int32, shape (pairs, 2): (last code point of the left token, first of the right one) of all merges, where merging
    begins with characters."""


_NO_BYTE = 256
_BYTE_OF = np.full(0x200, _NO_BYTE, np.uint16)
_BYTE_OF[[ord(character) for character in byte_characters()]] = np.arange(256)


def decode_tokens(tokens: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the bytes that tokens stand for.

    Returns:
        data: uint8, shape (bytes,): bytes of all tokens, back to back.
        lengths: int64, shape (tokens,): bytes of each.
        readable: bool, shape (tokens,): False where a character is outside of the alphabet, and the bytes mean nothing.
    """
    characters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    found = _BYTE_OF[np.minimum(characters, len(_BYTE_OF) - 1)]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    unreadable_before = np.append(0, np.cumsum(found == _NO_BYTE))
    ends = np.cumsum(lengths)
    readable = unreadable_before[ends] == unreadable_before[ends - lengths]
    return found.astype(np.uint8), lengths, readable


def read_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return `vocab` and `merges` of the model as arrays.

    Raises:
        NotRecognisedError: They are none of a byte-level BPE model, or larger than the engine can hold.
    """
    ids = _checked_ids(vocabulary, merges)
    data, lengths, readable = decode_tokens(list(vocabulary))
    of_word = np.repeat(np.arange(len(lengths)), lengths)
    readable[of_word[data == 0]] = False
    readable &= lengths > 0
    byte_tokens = np.array([vocabulary.get(character, -1) for character in byte_characters()], np.int32)
    return Vocabulary(
        data[readable[of_word]],
        lengths[readable],
        ids[readable].astype(np.int32),
        byte_tokens,
        _merge_table(vocabulary, _flattened(merges)),
        np.empty((0, 2), np.int32),
        np.empty((0, 2), np.int32),
    )


def read_character_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Do the same for a model that begins with characters, and writes spaces as ▁: a space stands for each.

    Raises:
        NotRecognisedError: It has no token for some byte, or merges those, or see `read_vocabulary`.
    """
    ids = _checked_ids(vocabulary, merges)
    byte_tokens = np.array([vocabulary.get(f"<0x{byte:02X}>", -1) for byte in range(256)], np.int32)
    parts = _flattened(merges)
    table = _merge_table(vocabulary, parts)
    if byte_tokens.min() < 0 or np.isin(table, byte_tokens).any():
        raise NotRecognisedError("tokens of single bytes that are not there, or that merge")
    if not all(parts) or any(" " in part for part in parts):
        raise NotRecognisedError("a merge of nothing, or of a space")
    words = [word.replace(SPACE_SIGN, " ").encode() for word in vocabulary]
    chosen = [
        place
        for place, (word, text) in enumerate(zip(vocabulary, words, strict=True))
        if text and b"\0" not in text and " " not in word
    ]
    words = [words[place] for place in chosen]
    characters = [(_point(word), ident) for word, ident in vocabulary.items() if len(word) == 1 and word != " "]
    boundary_pairs = {(_point(left[-1]), _point(right[0])) for left, right in zip(parts[::2], parts[1::2], strict=True)}
    return Vocabulary(
        np.frombuffer(b"".join(words), np.uint8),
        np.fromiter(map(len, words), np.int64, len(words)),
        ids[chosen].astype(np.int32),
        byte_tokens,
        table,
        np.array(sorted(characters), np.int32).reshape(-1, 2),
        np.array(sorted(boundary_pairs), np.int32).reshape(-1, 2),
    )


def _point(character: str) -> int:
    """Return a code point, that of a space for ▁."""
    return 0x20 if character == SPACE_SIGN else ord(character)


def _checked_ids(vocabulary: dict[str, int], merges: list[Any]) -> NDArray[np.int64]:
    ids = np.fromiter(vocabulary.values(), np.int64, len(vocabulary))
    if not len(ids) or ids.min() < 0 or ids.max() >= MOST_IDS or len(merges) >= MOST_MERGES:
        raise NotRecognisedError(f"{len(vocabulary)} tokens and {len(merges)} merges are out of bounds")
    if len(np.unique(ids)) != len(ids):
        raise NotRecognisedError("two tokens with one id")
    return ids


def _merge_table(vocabulary: dict[str, int], parts: list[str]) -> NDArray[np.int32]:
    """Return left, right, merged: int32, shape (merges, 3)."""
    lefts, rights = parts[::2], parts[1::2]
    columns = (lefts, rights, map(operator.add, lefts, rights))
    try:
        found = [np.fromiter(map(vocabulary.__getitem__, column), np.int32, len(lefts)) for column in columns]
    except KeyError as error:
        raise NotRecognisedError(f"a merge of {error}, which is no token") from error
    table = np.stack(found, axis=1)
    if len(np.unique(table[:, 0].astype(np.int64) * MOST_IDS + table[:, 1])) != len(table):
        raise NotRecognisedError("merges that come twice")
    return table


def _flattened(merges: list[Any]) -> list[str]:
    """Return left, right, left, right … of all merges, which are written "a b" or ["a", "b"]."""
    if all(isinstance(merge, str) and " " in merge for merge in merges):
        parts = " ".join(merges).split(" ") if merges else []
    elif all(isinstance(merge, list) and len(merge) == 2 for merge in merges):
        parts = [part for merge in merges for part in merge]
    else:
        raise NotRecognisedError("a merge that is no pair")
    if len(parts) != 2 * len(merges) or not all(isinstance(part, str) for part in parts):
        raise NotRecognisedError("a merge that is no pair of tokens")
    return parts
