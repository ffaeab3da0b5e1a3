"""Words with made-up tokens, to test pre-token caches without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bytes, FlatLists, Ints
from nanoset_core.tokenizers.engines.pretoken_cache import PADDING, Batch, PretokenCache

FIRST_WORDS = {b"the": 1000, b" of": 1001, b"exactly8": 1002, b"a seed of more than 16 bytes": 1003}
"""Words that every cache starts with → the one token of each."""


class WordBuffer(NamedTuple):
    """Words in a buffer, as caches take them."""

    data: Bytes
    """uint8, shape (n_bytes + PADDING,): the words without anything between them, and padding."""
    starts: Ints
    """int64, shape (n_words,): first byte of each word."""
    lengths: Ints
    """int64, shape (n_words,): bytes of each word."""


def tokens_of(word: bytes) -> list[int]:
    """Return tokens that depend on every byte of a word and on its length."""
    if word in FIRST_WORDS:
        return [FIRST_WORDS[word]]
    return [sum(word) + len(word), *word[::3]]


def flat_tokens_of(words: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return the tokens of all words, concatenated, and the number of tokens of each word."""
    ids = []
    lengths = []
    for word in words:
        tokens = tokens_of(word)
        ids += tokens
        lengths.append(len(tokens))
    return ids, lengths


def encode_long_words(words: list[bytes]) -> FlatLists:
    """Encode words of any length, as a cache expects it from an engine."""
    ids, lengths = flat_tokens_of(words)
    return np.array(ids, np.int32), np.array(lengths, np.int32)


def encode_words(words: Bytes) -> FlatLists:
    """Encode the rows of an array, which are words padded with zeros, as a cache expects it."""
    return encode_long_words([word.tobytes().rstrip(b"\0") for word in words])


def buffer_of(words: Sequence[bytes]) -> WordBuffer:
    """Put words into a buffer."""
    data = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
    lengths = np.array([len(word) for word in words], np.int64)
    starts = np.cumsum(lengths) - lengths
    return WordBuffer(data, starts, lengths)


def add_first_words(cache: PretokenCache) -> None:
    """Add the words that every cache starts with."""
    tokens = np.array(list(FIRST_WORDS.values()), np.int32)
    cache.learn_tokens(*buffer_of(list(FIRST_WORDS)), tokens)


def assert_gives_tokens(cache: PretokenCache, blocks: Sequence[Sequence[bytes]]) -> None:
    """Check that a cache gives the tokens of all words, which are looked up block by block."""
    batch = Batch()
    all_words = []
    for words in blocks:
        cache.look_up(*buffer_of(words), batch)
        all_words += words
    expected_ids, expected_lengths = flat_tokens_of(all_words)

    ids, lengths = cache.tokens(batch)

    assert ids.tolist() == expected_ids
    assert lengths.tolist() == expected_lengths


def count_words(cache: PretokenCache) -> int:
    """Return how many words a cache knows."""
    return sum(table.count for table in cache._tables.values())
