"""The hash of a document's tokens: its values never change, and chunks do not matter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_hashing import slow_hash
from nanoset_core.sampling.token_hashes import SequenceHasher, hash_sequences

DTYPES = ["uint8", "uint16", "int32", "int64"]

sequences_of_tokens = st.lists(st.lists(st.integers(0, 100), max_size=12), max_size=20)
chunk_sizes = st.lists(st.integers(0, 15), min_size=1)


def expected_hash(tokens, dtype):
    """The hash of one sequence: that of the bytes of its tokens."""
    return slow_hash(np.array(tokens, dtype).tobytes())


def concatenated(sequences, dtype):
    """Return (tokens of all sequences, tokens of each sequence)."""
    tokens = np.array([token for sequence in sequences for token in sequence], dtype)
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    return tokens, lengths


@given(sequences=sequences_of_tokens, dtype=st.sampled_from(DTYPES))
def test_a_hash_is_what_its_definition_says(sequences, dtype):
    hashes = hash_sequences(*concatenated(sequences, dtype))

    expected = [expected_hash(sequence, dtype) for sequence in sequences if sequence]
    assert hashes.tolist() == expected


@given(sequences=sequences_of_tokens, sizes=chunk_sizes, dtype=st.sampled_from(DTYPES))
def test_chunks_do_not_change_a_hash(sequences, sizes, dtype):
    tokens, lengths = concatenated(sequences, dtype)
    chunks = np.split(tokens, np.cumsum(sizes))

    hasher = SequenceHasher(lengths)
    hashes = np.concatenate([hasher.add(chunk) for chunk in chunks])

    assert hashes.tolist() == hash_sequences(tokens, lengths).tolist()


@given(sequences=sequences_of_tokens)
def test_sequences_have_equal_hashes_exactly_if_their_tokens_are_equal(sequences):
    hashes = hash_sequences(*concatenated(sequences, "int32")).tolist()

    filled = [tuple(sequence) for sequence in sequences if sequence]
    assert len(set(hashes)) == len(set(filled))
    assert len(set(zip(filled, hashes, strict=True))) == len(set(filled))


@pytest.mark.parametrize(("dtype", "expected"), [
    ("uint16", ["e9c05c352947ff7f", "c89cd063c884bcc9"]), ("int32", ["41ad1ac26fcb4c42", "fa6427c55db6099d"]),
])  # fmt: skip
def test_stored_hashes_stay_valid(dtype, expected):
    hashes = hash_sequences(np.array([5, 6, 7, 5, 6, 7, 8], dtype), np.array([3, 4]))

    assert [f"{value:016x}" for value in hashes.tolist()] == expected


def test_tokens_after_the_last_sequence_are_ignored():
    tokens = np.array([5, 6, 7, 1, 2, 3], np.uint16)
    lengths = np.array([3])

    assert hash_sequences(tokens, lengths).tolist() == [expected_hash([5, 6, 7], np.uint16)]


def test_a_long_sequence_is_hashed_without_being_in_memory_as_a_whole():
    n_chunks = 40
    chunk = np.arange(7_001, dtype=np.uint16)
    hasher = SequenceHasher(np.array([n_chunks * len(chunk)]))

    for _ in range(n_chunks - 1):
        assert hasher.add(chunk).tolist() == []
    (token_hash,) = hasher.add(chunk).tolist()

    assert token_hash == expected_hash(np.tile(chunk, n_chunks), np.uint16)
