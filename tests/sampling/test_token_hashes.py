"""Hashes of tokens never change, and do not depend on how the tokens are cut into chunks."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_hashing import slow_hash
from nanoset_core.sampling.token_hashes import SequenceHasher, hash_sequences

DTYPES = ["uint8", "uint16", "int32", "int64"]

sequences_of_tokens = st.lists(st.lists(st.integers(0, 100), max_size=12), max_size=20)
chunk_sizes = st.lists(st.integers(0, 15), min_size=1)


class TokenArrays(NamedTuple):
    """Sequences as arrays, as `hash_sequences` takes them."""

    tokens: np.ndarray
    """Tokens of all sequences, concatenated."""
    lengths: np.ndarray
    """Tokens of each sequence."""


def concatenate(sequences, dtype):
    """Return sequences as arrays."""
    tokens = np.array(list(chain.from_iterable(sequences)), dtype)
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return TokenArrays(tokens, lengths)


def slow_token_hash(tokens, dtype):
    """Return the hash of one sequence: that of the bytes of its tokens."""
    return slow_hash(np.array(tokens, dtype).tobytes())


def filled(sequences):
    """Return the sequences that are not empty: others have no hash."""
    return [tuple(sequence) for sequence in sequences if sequence]


@given(sequences=sequences_of_tokens, dtype=st.sampled_from(DTYPES))
def test_a_hash_is_that_of_its_definition(sequences, dtype):
    tokens, lengths = concatenate(sequences, dtype)

    hashes = hash_sequences(tokens, lengths)

    expected = [slow_token_hash(sequence, dtype) for sequence in filled(sequences)]
    assert hashes.tolist() == expected


@given(sequences=sequences_of_tokens, sizes=chunk_sizes, dtype=st.sampled_from(DTYPES))
def test_chunks_do_not_change_a_hash(sequences, sizes, dtype):
    tokens, lengths = concatenate(sequences, dtype)
    chunks = np.split(tokens, np.cumsum(sizes))

    hasher = SequenceHasher(lengths)
    hashes = np.concatenate([hasher.add(chunk) for chunk in chunks])

    assert hashes.tolist() == hash_sequences(tokens, lengths).tolist()


@given(sequences=sequences_of_tokens)
def test_sequences_have_equal_hashes_exactly_if_their_tokens_are_equal(sequences):
    tokens, lengths = concatenate(sequences, "int32")

    hashes = hash_sequences(tokens, lengths).tolist()

    distinct_sequences = set(filled(sequences))
    distinct_pairs = set(zip(filled(sequences), hashes, strict=True))
    assert len(set(hashes)) == len(distinct_sequences)
    assert len(distinct_pairs) == len(distinct_sequences)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("uint16", ["e9c05c352947ff7f", "c89cd063c884bcc9"]),
        ("int32", ["41ad1ac26fcb4c42", "fa6427c55db6099d"]),
    ],
)
def test_hashes_are_those_of_earlier_versions(dtype, expected):
    """They are stored in outputs of users."""
    tokens, lengths = concatenate([[5, 6, 7], [5, 6, 7, 8]], dtype)

    hashes = hash_sequences(tokens, lengths)

    assert [f"{value:016x}" for value in hashes.tolist()] == expected


def test_tokens_after_the_last_sequence_are_ignored():
    tokens = np.array([5, 6, 7, 1, 2, 3], np.uint16)
    lengths = np.array([3])

    hashes = hash_sequences(tokens, lengths)

    assert hashes.tolist() == [slow_token_hash([5, 6, 7], np.uint16)]


def test_a_long_sequence_is_hashed_chunk_by_chunk():
    """So it need not be in memory as a whole."""
    n_chunks = 40
    chunk = np.arange(7_001, dtype=np.uint16)
    hasher = SequenceHasher(np.array([n_chunks * len(chunk)]))

    for _ in range(n_chunks - 1):
        assert hasher.add(chunk).tolist() == []
    (token_hash,) = hasher.add(chunk).tolist()

    assert token_hash == slow_token_hash(np.tile(chunk, n_chunks), np.uint16)
