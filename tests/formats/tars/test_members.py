"""Members of tars: how they are written and read.

Equal contexts give equal bytes, in any process, and after any other context.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import subprocess
import sys
import tracemalloc
import zlib

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import REPOSITORY
from helpers.tars import iterate_members, npy_bytes
from nanoset_core.errors import FormatError
from nanoset_core.formats.tars.members import (
    MAX_MEMBER_BYTES,
    MemberCompressor,
    NpyRecords,
    json_gz_records,
    member_names,
    npy_header,
    read_member,
)
from nanoset_core.formats.tars.tar import TarMember

END_OF_TAR = bytes(1024)


def bodies_by_name(archive):
    """Return name → body of the members of a tar."""
    bodies = {}
    for member in iterate_members(archive, "here"):
        bodies[member.name] = archive[member.offset : member.offset + member.size_bytes]
    return bodies


def texts_of(names):
    """Return names that are rows of bytes as text."""
    return [name.tobytes().decode() for name in names]


# Writing


def test_names_number_the_contexts_of_a_shard():
    names = member_names(7, 98, 101, "json.gz")

    assert texts_of(names) == [
        "00000007_00000098.json.gz",
        "00000007_00000099.json.gz",
        "00000007_00000100.json.gz",
    ]


@pytest.mark.parametrize("length", [1, 65, 2049, 8193, 131073, 10**9])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_the_header_of_an_array_is_that_of_numpy(length, dtype):
    output = io.BytesIO()
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(output, fields)

    assert npy_header(np.dtype(dtype), length) == output.getvalue()


@settings(deadline=None, max_examples=40)
@given(
    capacity=st.integers(0, 5),
    length=st.integers(1, 300),
    dtype=st.sampled_from([np.uint16, np.int32]),
)
def test_npy_records_have_the_bytes_of_numpy_each_time_they_are_used(capacity, length, dtype):
    records = NpyRecords(capacity, length, np.dtype(dtype), name_bytes=21)

    # Each time, one context fewer than before.
    for shard in range(3):
        n_contexts = max(capacity - shard, 0)
        names = member_names(shard, 7, 7 + n_contexts, "npy")
        contexts = np.arange(n_contexts * length).reshape(n_contexts, length) + shard
        expected = [npy_bytes(context, dtype) for context in contexts]

        records.tokens[:n_contexts] = contexts
        archive = bytes(records.named(names)) + END_OF_TAR

        bodies = bodies_by_name(archive)
        assert list(bodies) == texts_of(names)
        assert list(bodies.values()) == expected


def test_json_gz_records_are_compact_json_without_a_time():
    contexts = np.array([[1, 22, 333], [50256, 0, 7]], dtype=np.uint16)
    names = member_names(3, 0, 2, "json.gz")

    archive = json_gz_records(names, contexts, MemberCompressor()) + END_OF_TAR

    bodies = list(bodies_by_name(archive).values())
    assert [gzip.decompress(body) for body in bodies] == [b"[1,22,333]", b"[50256,0,7]"]
    for body in bodies:
        # gzip, deflate, no name, and zeros instead of the time
        assert body[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"


# Reading


def read_body(name, body):
    """Read a member of a tar, which is after its header of 512 bytes."""
    return read_member(bytes(512) + body, TarMember(name, 512, len(body)), "shard.tar")


def test_an_array_is_read_with_its_type():
    tokens = read_body("k.npy", npy_bytes([5, 0, 65535], np.uint16))

    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [5, 0, 65535]


def test_a_json_list_is_read_as_64_bit_integers():
    tokens = read_body("k.json.gz", gzip.compress(json.dumps([1, 2, 3]).encode()))

    assert tokens.dtype == np.int64
    assert tokens.tolist() == [1, 2, 3]


JSON_GZ = gzip.compress(b"[1,2]", mtime=0)


def pickled_array():
    """Return an array that can only be read by unpickling it, which would run code."""
    output = io.BytesIO()
    np.save(output, np.array([{}], dtype=object), allow_pickle=True)
    return output.getvalue()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        pytest.param("k.jpg", b"[1]", id="image"),
        pytest.param("k.npy", b"", id="empty npy"),
        pytest.param("k.npy", b"not numpy at all", id="npy of text"),
        pytest.param("k.npy", npy_bytes(np.arange(9))[:-1], id="npy cut off"),
        pytest.param("k.npy", npy_bytes([[0, 0], [0, 0]], np.int64), id="npy of two dimensions"),
        pytest.param("k.npy", npy_bytes(np.zeros(3)), id="npy of fractions"),
        pytest.param("k.npy", pickled_array(), id="npy of objects"),
        pytest.param("k.json.gz", b"", id="empty json.gz"),
        pytest.param("k.json.gz", b"[1,2]", id="json.gz not compressed"),
        pytest.param("k.json.gz", JSON_GZ[:-3], id="json.gz cut off"),
        pytest.param("k.json.gz", JSON_GZ[:-8] + bytes(8), id="json.gz with a wrong checksum"),
    ],
)
def test_a_member_that_is_damaged_or_no_context_is_an_error(name, body):
    with pytest.raises(FormatError, match="does not contain the tokens") as caught:
        read_body(name, body)

    assert "shard.tar, offset 512" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        b"[1,2",
        b"[]",
        b'{"a": 1}',
        b'[1, "a"]',
        b"[1, 2.5]",
        b"[[1], [2, 3]]",
        orjson.dumps([1 << 63, -1]),  # fit together in no integer type
        b'["1", "2"]',
        b'["aaaaaaaaaaaaaaaa", "", ""]',
        b'[{"a": 1}]',
        b"[null]",
        b"[[1], [2]]",
        b"[true, 1]",
        b"[true, false]",
        orjson.dumps([1 << 63]),
    ],
    ids=bytes.decode,
)
def test_json_that_is_no_list_of_tokens_is_an_error(text):
    with pytest.raises(FormatError, match="does not contain the tokens") as caught:
        read_body("k.json.gz", gzip.compress(text, mtime=0))

    assert "shard.tar, offset 512" in str(caught.value)


def test_a_member_that_decompresses_to_very_much_is_refused_in_little_memory():
    body = gzip.compress(b"[" + b"0," * (50 << 20) + b"0]", 9, mtime=0)  # 100 MiB
    assert len(body) < 200_000

    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="unpacks to more than"):
            read_body("k.json.gz", body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 4 * MAX_MEMBER_BYTES


def test_a_member_that_is_larger_than_any_context_is_refused():
    with pytest.raises(FormatError, match="67,108,865 bytes"):
        read_member(b"", TarMember("k.npy", 512, MAX_MEMBER_BYTES + 1), "here")


# Compression


@given(
    texts=st.lists(
        st.text(st.characters(codec="ascii"), max_size=400).map(str.encode), min_size=1, max_size=8
    )
)
def test_compressed_texts_are_gzip_files(texts):
    compressor = MemberCompressor()
    for text in texts:
        member = compressor.compress(text)

        # zlib reads the first part of a file of several parts, so there is only one.
        assert gzip.decompress(member) == text
        assert zlib.decompressobj(31).decompress(member) == text


@pytest.mark.parametrize("n_tokens", [0, 1, 33, 2049, 100_000])
def test_compressed_bytes_do_not_depend_on_the_texts_before(n_tokens):
    rng = random.Random(n_tokens)
    texts = []
    for _ in range(12):
        tokens = [rng.randrange(300) for _ in range(n_tokens)]
        texts.append(str(tokens).encode())
    expected = [MemberCompressor().compress(text) for text in texts]

    for _ in range(3):
        order = list(range(len(texts)))
        rng.shuffle(order)
        compressor = MemberCompressor()
        for number in order:
            assert compressor.compress(texts[number]) == expected[number]


COMPRESS_IN_USED_MEMORY = """
import hashlib, sys
import numpy as np
from nanoset_core.formats.tars.members import MemberCompressor

n_blocks = int(sys.argv[1])
rng = np.random.default_rng(1)
words = [260 + int(word) for word in rng.integers(0, 60, 60)]
texts = []
for _ in range(1000):
    tokens = [words[i] for i in rng.integers(0, 60, 33)]
    texts.append(str(tokens).replace(" ", "").encode())

# Free memory of all sizes that is full of what could be positions in a text.
blocks = [rng.integers(0, 60, 200_000).astype(np.int16) for _ in range(n_blocks)]
del blocks
blocks = [bytes([i % 130, 0]) * int(rng.integers(10, 40_000)) for i in range(n_blocks)]
del blocks

compressor = MemberCompressor()
for text in texts:
    print(hashlib.md5(compressor.compress(text)).hexdigest())
"""
"""Compresses texts, and prints a digest of each.

A compressor that reads memory before it writes it gives other bytes, or fails.
"""


def test_compressed_bytes_do_not_depend_on_the_memory_of_the_process():
    outputs = set()
    for n_blocks in range(5):
        outcome = subprocess.run(
            [sys.executable, "-c", COMPRESS_IN_USED_MEMORY, str(n_blocks)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        outputs.add(hashlib.md5(outcome.stdout.encode()).hexdigest())

    assert len(outputs) == 1


def test_compressed_bytes_do_not_depend_on_the_address_of_the_compressor():
    # The third to sixth byte of a text occur again in it. Whether the compressor finds this match
    # depends on where it notes the first occurrence.
    texts = []
    for number in range(30_000):
        texts.append(b"[1%04x,,,,,,,,,,,,,,,,;%04x]" % (number, number) + b"." * 300)

    hashes_by_compressor = []
    for compressor in [MemberCompressor() for _ in range(3)]:
        hashes_by_compressor.append([hash(compressor.compress(text)) for text in texts])

    assert hashes_by_compressor[0] == hashes_by_compressor[1]
    assert hashes_by_compressor[0] == hashes_by_compressor[2]
