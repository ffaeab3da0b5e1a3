"""Words with made-up tokens for tests of pre-token caches, and the comparison of two engines."""

from __future__ import annotations

import random
from unicodedata import combining, is_normalized, ucd_3_2_0

import numpy as np

from nanoset_core.tokenizers.engines.pretoken_cache import PADDING, Batch, PretokenCache

KNOWN = {b"the": 1000, b" of": 1001, b"exactly8": 1002, b"a seed of more than 16 bytes": 1003}


def tokens_of(word: bytes) -> list[int]:
    """Return tokens that depend on every byte of a word and on its length."""
    return [KNOWN[word]] if word in KNOWN else [sum(word) + len(word), *word[::3]]


def encode_long(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    tokens = [tokens_of(word) for word in words]
    return np.array([i for ids in tokens for i in ids], np.int32), np.array(
        [len(ids) for ids in tokens], np.int32
    )


def encode(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return encode_long([word.tobytes().rstrip(b"\0") for word in words])


def laid_out(words: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array([len(word) for word in words], np.int64)
    return (
        np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
    )


def seed(cache: PretokenCache) -> None:
    cache.learn_tokens(*laid_out(list(KNOWN)), np.array(list(KNOWN.values()), np.int32))


def check(cache: PretokenCache, blocks: list[list[bytes]]) -> None:
    batch = Batch()
    for words in blocks:
        cache.look_up(*laid_out(words), batch)
    ids, lengths = cache.tokens(batch)
    expected = [tokens_of(word) for words in blocks for word in words]
    assert ids.tolist() == [token for tokens in expected for token in tokens]
    assert lengths.tolist() == [len(tokens) for tokens in expected]


def known(cache: PretokenCache) -> int:
    """Return how many words a cache knows."""
    return sum(table.count for table in cache._tables.values())


def assert_same(engine, reference, texts) -> None:
    ours, theirs = engine.encode(texts), reference.encode(texts)
    assert ours.lengths.tolist() == theirs.lengths.tolist()
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    assert ours.ids.dtype == ours.lengths.dtype == np.int32


def marked_texts(count, seed):
    """Return random texts with characters that normal forms change.

    These are the combining marks, second halves and jamo of Unicode 3.2, among its other
    characters.
    """
    known = [
        chr(point)
        for point in range(0x30000)
        if ucd_3_2_0.category(chr(point)) not in ("Cn", "Cs", "Co")
    ]
    changed = [
        one
        for one in known
        if combining(one) or not is_normalized("NFC", one) or "\u1100" <= one < "\u1200"
    ]
    of = random.Random(seed)
    pools = [
        changed,
        [*"aeoAEu", "\u0928", "\u05d0", "\u0627", "\u0b47", "\uac00", "\u304b"],
        known,
    ]
    return [
        "".join(of.choice(of.choices(pools, (5, 3, 2))[0]) for _ in range(of.randint(2, 9)))
        for _ in range(count)
    ]
