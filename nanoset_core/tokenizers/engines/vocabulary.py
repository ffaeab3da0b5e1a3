"""The words and merges of a BPE model, as arrays, read from a parsed `tokenizer.json`.

There are two kinds of models. Byte-level ones write each byte as a character of its own: "Ġthe" is
" the". Models over characters, as converted from SentencePiece, write text as it is, but a space as
▁; they have tokens `<0x00>` to `<0xFF>` for the bytes of characters that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bytes, Ids, Ints
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.merges import MOST_IDS, MOST_MERGES
from nanoset_core.tokenizers.engines.units import no_merge_crosses_cuts
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters, token_bytes


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words and merges of a BPE model."""

    data: Bytes
    """uint8, shape (n_bytes,): bytes of all words, concatenated; none of them has a zero byte."""
    lengths: Ints
    """int64, shape (n_words,): bytes of each word."""
    ids: Ids
    """int32, shape (n_words,): token of each word."""
    byte_tokens: Ids
    """int32, shape (256,): token of each byte, or -1."""
    merges: Ids
    """int32, shape (n_merges, 3): left token, right token and the token that they make, in order of
    rank.
    """
    characters: Ids
    """int32, shape (n_characters, 2): code point and token of each character. Empty for byte-level
    models.
    """
    boundary_pairs: Ids
    """int32, shape (n_pairs, 2): last code point of the left token and first code point of the
    right one, of all merges, without repetitions. Empty for byte-level models.
    """


class _Merges(NamedTuple):
    """The two tokens of each merge, as a model writes them, in order of rank."""

    left: list[str]
    right: list[str]

    def results(self) -> list[str]:
        """Return the token that each merge makes: "the" from "th" and "e"."""
        return [left + right for left, right in zip(self.left, self.right, strict=True)]


def read_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return the tokens and merges of a tokenizer as arrays, if it merges bytes, as GPT-2's does.

    In its tokenizer.json, each byte of a token is written as one character: "Ġthe" stands for "
    the".

    Args:
        vocabulary: `vocab` of the model: token → id, such as {"Ġthe": 262}.
        merges: `merges` of the model, such as ["Ġ t", "h e"].

    Raises:
        NotRecognisedError: Merges do not fit the vocabulary, or it is too large for our tokenizer.
    """
    split_merges = _split_merges(merges)  # the left and the right token of each: "Ġ" and "t"
    _check_size(vocabulary, split_merges)

    # The bytes of each token: those of " the" for "Ġthe". None for a token with a character that
    # stands for no byte: no text becomes such a token.
    entries = []
    for token, token_id in vocabulary.items():
        entries.append(_VocabularyEntry(token_bytes(token), token_id))

    # The token of each byte; -1 if there is none.
    byte_tokens = [vocabulary.get(character, -1) for character in byte_characters()]
    return _build(vocabulary, split_merges, entries, byte_tokens)


def read_character_vocabulary(vocabulary: dict[str, int], merges: list[Any]) -> Vocabulary:
    """Return the tokens and merges of a tokenizer as arrays, if it merges characters.

    Tokenizers that come from SentencePiece do that. They write spaces as ▁, which become spaces
    again here: "▁the" stands for " the".

    Args:
        vocabulary: `vocab` of the model: token → id.
        merges: `merges` of the model.

    Raises:
        NotRecognisedError: The model is too large; or a byte has no token, or one that is merged;
            or a merge joins a letter with a space after it, between which our tokenizer cuts text.
    """
    # Check that the engine can encode with this model.
    split_merges = _split_merges(merges)
    _check_size(vocabulary, split_merges)
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
    _check_merging_tokens(vocabulary, split_merges, byte_names)

    # The engine cuts long texts between certain characters, such as a letter and a space. If a
    # merge joins such characters, a token could be cut in two.
    boundary_pairs = _boundary_pairs(split_merges)  # h and e for the merge "th e"
    if not no_merge_crosses_cuts(boundary_pairs):
        raise NotRecognisedError("tokens across places where text is cut")

    # Tokens with a space are left out: every space of a text becomes ▁ first, so they never occur.
    entries = []
    characters = []
    for token, token_id in vocabulary.items():
        if " " in token:
            continue
        entries.append(_VocabularyEntry(token.replace(SPACE_SIGN, " ").encode(), token_id))
        if len(token) == 1:
            characters.append((_code_point(token), token_id))
    return _build(
        vocabulary,
        split_merges,
        entries,
        [vocabulary[name] for name in byte_names],
        characters=sorted(characters),
        boundary_pairs=sorted(boundary_pairs),
    )


def _boundary_pairs(merges: _Merges) -> set[tuple[int, int]]:
    """Return the code points on both sides of each place where a merge joins two tokens."""
    pairs = set()
    for left, right in zip(merges.left, merges.right, strict=True):
        pairs.add((_code_point(left[-1]), _code_point(right[0])))
    return pairs


def _split_merges(merges: list[Any]) -> _Merges:
    """Return both tokens of each merge, which is written "a b" or ["a", "b"]."""
    left_tokens = []
    right_tokens = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        left_tokens.append(left)
        right_tokens.append(right)
    return _Merges(left_tokens, right_tokens)


def _check_size(vocabulary: dict[str, int], merges: _Merges) -> None:
    """Check that a vocabulary is small enough for this project's own tokenizer.

    It packs two ids and the number of a merge into one 64-bit integer, so that all of these are
    limited.

    Args:
        vocabulary: Token → id.
        merges: The merges.

    Raises:
        NotRecognisedError: An id or the number of merges is too large, or two tokens have one id.
    """
    ids = set(vocabulary.values())
    n_merges = len(merges.left)
    is_out_of_bounds = not ids or min(ids) < 0 or max(ids) >= MOST_IDS
    if is_out_of_bounds or n_merges >= MOST_MERGES:
        raise NotRecognisedError(
            f"{len(vocabulary)} tokens and {n_merges} merges are out of bounds"
        )
    if len(ids) != len(vocabulary):
        raise NotRecognisedError("two tokens with one id")


def _check_merging_tokens(
    vocabulary: dict[str, int], merges: _Merges, byte_names: list[str]
) -> None:
    """Check that our own tokenizer can merge the tokens of a vocabulary of SentencePiece's kind.

    Such a vocabulary has a token for each of the 256 bytes, such as <0x0A>, for characters without
    a token of their own. Our tokenizer does not merge these tokens with others.

    Args:
        vocabulary: Token → id.
        merges: The two tokens of each merge.
        byte_names: The tokens of the bytes.

    Raises:
        NotRecognisedError: A token of a byte is missing or merges, or a merge is not usual.
    """
    merging_tokens = {*merges.left, *merges.right}
    merged_tokens = set(merges.results())
    for name in byte_names:
        if name not in vocabulary:
            raise NotRecognisedError(f"tokens of single bytes are missing, such as {name}")
        if name in merging_tokens or name in merged_tokens:
            raise NotRecognisedError(f"tokens of single bytes merge, such as {name}")

    # Spaces of a text become ▁ before anything is merged, so a token with a space never occurs.
    has_space = any(" " in token for token in merging_tokens)
    if has_space or "" in merging_tokens:
        raise NotRecognisedError("a merge of an empty token, or of a token with a space")


def _code_point(character: str) -> int:
    """Return the code point of a character, that of a space for ▁."""
    return ord(" ") if character == SPACE_SIGN else ord(character)


class _VocabularyEntry(NamedTuple):
    """A token of a vocabulary."""

    data: bytes | None
    """The text that the token stands for, in UTF-8; None if it stands for no text."""
    token_id: int


def _build(
    vocabulary: dict[str, int],
    merges: _Merges,
    entries: Iterable[_VocabularyEntry],
    byte_tokens: Sequence[int],
    *,
    characters: Sequence[tuple[int, int]] = (),
    boundary_pairs: Sequence[tuple[int, int]] = (),
) -> Vocabulary:
    """Convert a vocabulary of tokens and merges to arrays, with which numpy works.

    For example, the tokens "t", "h" and "th":

        data       b"thth"      their bytes, one after another
        lengths    [1, 1, 2]
        ids        [5, 6, 300]
        merges     [[5, 6, 300]]

    Args:
        vocabulary: Token, as it is written in the file → id.
        merges: The merges, in order of rank.
        entries: Bytes and id of each token.
        byte_tokens: Id of the token of each of the 256 bytes, or -1.
        characters: If merges join characters: code point and id of each token of one character.
        boundary_pairs: Then also the code points of any two characters that meet where a merge
            joins two tokens: those of h and e for the merge "th e".

    Raises:
        NotRecognisedError: A pair of tokens has several merges.
    """
    # Leave out tokens that stand for no text, and those with a zero byte: the numpy engine pads
    # words with zeros, and leaves text with zeros to the tokenizers library.
    token_texts = []
    ids = []
    for entry in entries:
        if entry.data and b"\0" not in entry.data:
            token_texts.append(entry.data)
            ids.append(entry.token_id)
    return Vocabulary(
        data=np.frombuffer(b"".join(token_texts), np.uint8),
        lengths=np.array([len(text) for text in token_texts], np.int64),
        ids=np.array(ids, np.int32),
        byte_tokens=np.array(byte_tokens, np.int32),
        merges=_merge_table(vocabulary, merges),
        characters=np.array(characters, np.int32).reshape(-1, 2),
        boundary_pairs=np.array(boundary_pairs, np.int32).reshape(-1, 2),
    )


def _merge_table(vocabulary: dict[str, int], merges: _Merges) -> Ids:
    """Return the merges of a vocabulary as a table of token ids.

    A merge joins two tokens to a third one. With the ids {"t": 5, "h": 6, "th": 300, "e": 7, "the":
    301}:

        merges      t h          th e
        table       5 6 300      300 7 301

    Args:
        vocabulary: Token → id.
        merges: The merges, in the order in which they are applied.

    Returns:
        int32, shape (n_merges, 3): the left token, the right token, and the token that they become.

    Raises:
        NotRecognisedError: A pair of tokens has several merges.
    """
    columns = []
    for tokens in (merges.left, merges.right, merges.results()):
        ids = [vocabulary[token] for token in tokens]
        columns.append(np.array(ids, np.int32))
    left_ids, right_ids, _ = columns

    # No two merges may join the same two tokens. To find that, write the two ids as one number, as
    # digits of the base MOST_IDS: all ids are below it, so that different pairs stay different.
    pairs = left_ids.astype(np.int64) * MOST_IDS + right_ids
    if len(np.unique(pairs)) != len(pairs):
        raise NotRecognisedError("merges that come twice")
    return np.stack(columns, axis=1)
