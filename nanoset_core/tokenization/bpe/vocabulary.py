"""Vocabulary and merges of a BPE model, as plain arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.merges import MOST_IDS, MOST_MERGES
from nanoset_core.tokenization.bpe.reference import NotRecognisedError
from nanoset_core.tokenization.files.content import byte_characters, token_bytes
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


def read_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return `vocab` and `merges` of the model as arrays.

    Raises:
        NotRecognisedError: They are none of a byte-level BPE model, or larger than the engine can hold.
    """
    words = ((token_bytes(word), ident) for word, ident in vocabulary.items())
    byte_tokens = [vocabulary.get(character, -1) for character in byte_characters()]
    return _arrays(vocabulary, words, byte_tokens, _flattened(merges), [], [])


def read_character_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return the arrays of a model that begins with characters, and writes spaces as ▁: a space stands for each.

    Raises:
        NotRecognisedError: It has no token for some byte, or merges those, or see `read_vocabulary`.
    """
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    parts = _flattened(merges)
    merging = {*parts, *map(operator.add, parts[::2], parts[1::2])}
    if any(name not in vocabulary or name in merging for name in names):
        raise NotRecognisedError("tokens of single bytes that are not there, or that merge")
    if "" in merging or any(" " in part for part in parts):
        raise NotRecognisedError("a merge of nothing, or of a space")
    own = {word: ident for word, ident in vocabulary.items() if " " not in word}
    words = ((word.replace(SPACE_SIGN, " ").encode(), ident) for word, ident in own.items())
    characters = [(_point(word), ident) for word, ident in own.items() if len(word) == 1]
    boundary_pairs = {(_point(left[-1]), _point(right[0])) for left, right in zip(parts[::2], parts[1::2], strict=True)}
    byte_tokens = [vocabulary[name] for name in names]
    return _arrays(vocabulary, words, byte_tokens, parts, sorted(characters), sorted(boundary_pairs))


def _arrays(
    vocabulary: dict[str, int],
    words: Iterable[tuple[bytes | None, int]],
    byte_tokens: list[int],
    parts: list[str],
    characters: list[tuple[int, int]],
    boundary_pairs: list[tuple[int, int]],
) -> Vocabulary:
    ids = set(vocabulary.values())
    if not ids or min(ids) < 0 or max(ids) >= MOST_IDS or len(parts) >= 2 * MOST_MERGES:
        raise NotRecognisedError(f"{len(vocabulary)} tokens and {len(parts) // 2} merges are out of bounds")
    if len(ids) != len(vocabulary):
        raise NotRecognisedError("two tokens with one id")
    kept = [(word, ident) for word, ident in words if word and b"\0" not in word]
    return Vocabulary(
        np.frombuffer(b"".join(word for word, _ in kept), np.uint8),
        np.array([len(word) for word, _ in kept], np.int64),
        np.array([ident for _, ident in kept], np.int32),
        np.array(byte_tokens, np.int32),
        _merge_table(vocabulary, parts),
        np.array(characters, np.int32).reshape(-1, 2),
        np.array(boundary_pairs, np.int32).reshape(-1, 2),
    )


def _point(character: str) -> int:
    """Return a code point, that of a space for ▁."""
    return 0x20 if character == SPACE_SIGN else ord(character)


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
