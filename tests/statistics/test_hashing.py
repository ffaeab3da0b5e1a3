"""Hashes of ids never change, and do not depend on the texts that are hashed with them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_hashing import slow_hash, slow_mix
from nanoset_core.statistics import hashing
from nanoset_core.statistics.hashing import below, hash_bytes, hash_ranges, hash_texts, mix, salted

byte_strings = st.lists(st.binary(max_size=40), max_size=20)
numbers = st.integers(0, 2**64 - 1)


@given(values=byte_strings)
def test_a_hash_is_that_of_its_definition(values):
    hashes = hash_bytes(values)

    assert hashes.tolist() == [slow_hash(value) for value in values]


@given(values=byte_strings, block_bytes=st.integers(1, 50))
def test_blocks_do_not_change_a_hash(values, block_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_BLOCK_BYTES", block_bytes)
        patch.setattr(hashing, "_TABLE_SIZE", 3)
        hashes = hash_bytes(values)

    assert hashes.tolist() == [slow_hash(value) for value in values]


@given(values=byte_strings, before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_a_hash_does_not_depend_on_the_bytes_around_a_text(values, before, after):
    data = np.frombuffer(before + b"".join(values) + after, np.uint8)
    borders = len(before) + np.cumsum([0, *map(len, values)])

    hashes = hash_ranges(data, borders)

    assert hashes.tolist() == [slow_hash(value) for value in values]


@given(texts=st.lists(st.none() | st.text(max_size=12), max_size=20), first=st.integers(0, 3))
def test_texts_of_an_arrow_array_are_hashed_as_utf8_and_nulls_as_empty(texts, first):
    array = pa.array(texts, pa.string())[first:]

    hashes = hash_texts(array)

    texts_without_nulls = ["" if text is None else text for text in texts[first:]]
    assert hashes.tolist() == [slow_hash(text.encode()) for text in texts_without_nulls]


def test_hashes_are_those_of_earlier_versions():
    """They decide which documents views of users contain."""
    hashes = hash_bytes([b"", b"a", b"web-7", b"12345678", b"123456789"])

    assert [f"{value:016x}" for value in hashes.tolist()] == [
        "48218226ff3cd4bf",
        "eef08ed19c32945e",
        "ce76ef0e8c862060",
        "45d6e654aad20a22",
        "306c67978c12d3b2",
    ]


@given(values=st.lists(numbers, max_size=5))
def test_mixing_is_that_of_splitmix64(values):
    mixed = mix(np.array(values, np.uint64))

    assert mixed.tolist() == [slow_mix(value) for value in values]


@given(values=st.lists(numbers, max_size=5))
def test_mixing_does_not_change_its_argument(values):
    array = np.array(values, np.uint64)

    mix(array)

    assert array.tolist() == values


@given(values=st.lists(numbers, max_size=5), salt=st.text(max_size=9))
def test_a_salt_is_hashed_into_each_hash(values, salt):
    hashes = salted(np.array(values, np.uint64), salt)

    salt_hash = slow_hash(salt.encode())
    assert hashes.tolist() == [slow_mix(value ^ salt_hash) for value in values]


@given(values=st.lists(numbers, max_size=5), share=st.floats(0, 1))
def test_a_share_of_the_hashes_is_those_below_a_number(values, share):
    is_below = below(np.array(values, np.uint64), share)

    limit = int(share * 2**64)
    assert is_below.tolist() == [value < limit for value in values]
