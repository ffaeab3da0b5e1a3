"""Members of tars: their records, and that equal texts give equal bytes, in any process and after
any other text.
"""

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
from nanoset_core.formats.tars.tar import TarMember, iterate_members


def numpy_saves(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.mark.parametrize("length", [1, 65, 2049, 8193, 131073, 10**9])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_npy_header_equals_numpys(length, dtype):
    out = io.BytesIO()
    fields = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(out, fields)
    assert npy_header(np.dtype(dtype), length) == out.getvalue()


def test_names_count_within_the_shard():
    names = member_names(7, 98, 102, "json.gz")
    assert [row.tobytes().decode() for row in names] == [
        f"{7:08d}_{i:08d}.json.gz" for i in range(98, 102)
    ]


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 5), length=st.integers(1, 300), dtype=st.sampled_from([np.uint16, np.int32])
)
def test_npy_tiles_hold_what_numpy_saves_in_every_use(rows, length, dtype):
    records = NpyRecords(rows, length, np.dtype(dtype), name_bytes=21)
    for use in range(3):
        names = member_names(use, 7, 7 + max(rows - use, 0), "npy")
        data = records.tokens[: len(names)]
        data[:] = np.arange(data.size).reshape(data.shape) + use
        archive = bytes(records.named(names)) + bytes(1024)
        members = list(iterate_members(archive, "here"))
        assert [member.name for member in members] == [name.tobytes().decode() for name in names]
        bodies = [archive[m.offset : m.offset + m.size_bytes] for m in members]
        assert bodies == [numpy_saves(row.astype(dtype)) for row in data]


def test_json_gz_records_hold_compact_json_without_a_time():
    contexts = np.array([[1, 22, 333], [50256, 0, 7]], dtype=np.uint16)
    archive = json_gz_records(
        member_names(3, 0, 2, "json.gz"), contexts, MemberCompressor()
    ) + bytes(1024)
    bodies = [archive[m.offset : m.offset + m.size_bytes] for m in iterate_members(archive, "here")]
    assert [gzip.decompress(body) for body in bodies] == [b"[1,22,333]", b"[50256,0,7]"]
    for body in bodies:
        assert body[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"  # deflate, no name, mtime 0


def decoded(name, body):
    return read_member(bytes(512) + body, TarMember(name, 512, len(body)), "shard.tar")


def test_bodies_decode():
    tokens = np.array([5, 0, 65535], dtype=np.uint16)
    found = decoded("k.npy", numpy_saves(tokens))
    assert found.dtype == np.uint16
    assert found.tolist() == [5, 0, 65535]
    found = decoded("k.json.gz", gzip.compress(json.dumps([1, 2, 3]).encode()))
    assert found.dtype == np.int64
    assert found.tolist() == [1, 2, 3]


def saved_objects():
    out = io.BytesIO()
    np.save(out, np.array([{}], dtype=object), allow_pickle=True)
    return out.getvalue()


LISTS_OF_OTHER_THINGS = (
    *(
        b"[]",
        b'{"a": 1}',
        b'[1, "a"]',
        b"[1, 2.5]",
        b"[[1], [2, 3]]",
        orjson.dumps([1 << 63, -1]),
        b'["1", "2"]',
    ),
    *(b'["aaaaaaaaaaaaaaaa", "", ""]', b'[{"a": 1}]', b"[null]", b"[[1], [2]]"),
)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("k.jpg", b"[1]"),
        ("k.npy", b""),
        ("k.npy", b"not numpy at all"),
        ("k.npy", numpy_saves(np.arange(9))[:-1]),
        ("k.npy", numpy_saves(np.zeros((2, 2), dtype=np.int64))),
        ("k.npy", numpy_saves(np.zeros(3))),
        ("k.json.gz", b""),
        ("k.json.gz", b"[1,2]"),
        ("k.json.gz", gzip.compress(b"[1,2]", mtime=0)[:-3]),
        ("k.json.gz", gzip.compress(b"[1,2]", mtime=0)[:-8] + bytes(8)),
        ("k.json.gz", gzip.compress(b"[1,2", mtime=0)),
        ("k.npy", saved_objects()),
        *(("k.json.gz", gzip.compress(text, mtime=0)) for text in LISTS_OF_OTHER_THINGS),
    ],
)
def test_bodies_that_are_no_context(name, body):
    with pytest.raises(FormatError, match="does not contain the tokens") as caught:
        decoded(name, body)
    assert "shard.tar, offset 512" in str(caught.value)


def test_a_body_that_unpacks_to_very_much():
    bomb = gzip.compress(b"[" + b"0," * (50 << 20) + b"0]", 9, mtime=0)
    assert len(bomb) < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="unpacks to more than"):
            decoded("k.json.gz", bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_MEMBER_BYTES
    finally:
        tracemalloc.stop()


def test_members_larger_than_any_context():
    with pytest.raises(FormatError, match="67,108,865 bytes"):
        read_member(b"", TarMember("k.npy", 512, MAX_MEMBER_BYTES + 1), "here")


# Leaves memory of all sizes behind, filled with what looks like places in a text, then prints a
# digest of each member.
DIRTY = """
import hashlib, sys
import numpy as np
from nanoset_core.formats.tars.members import MemberCompressor
rng = np.random.default_rng(1)
words = [260 + int(word) for word in rng.integers(0, 60, 60)]
texts = [str([words[i] for i in rng.integers(0, 60, 33)]).replace(" ", "").encode() for _ in range(1000)]
kept = [rng.integers(0, 60, 200_000).astype(np.int16) for _ in range(int(sys.argv[1]))]
del kept
kept = [bytes([i % 130, 0]) * int(rng.integers(10, 40_000)) for i in range(int(sys.argv[1]))]
del kept
compressor = MemberCompressor()
print(" ".join(hashlib.md5(compressor.compress(text)).hexdigest() for text in texts))
"""


@settings(max_examples=100)
@given(
    texts=st.lists(
        st.text(st.characters(codec="ascii"), max_size=400).map(str.encode), min_size=1, max_size=8
    )
)
def test_members_are_gzip_files_of_their_texts(texts):
    compressor = MemberCompressor()
    for text in texts:
        member = compressor.compress(text)
        assert gzip.decompress(member) == text
        assert zlib.decompressobj(31).decompress(member) == text


@pytest.mark.parametrize("length", [0, 1, 33, 2049, 100_000])
def test_bytes_do_not_depend_on_what_came_before(length):
    rng = random.Random(length)
    texts = [str([rng.randrange(300) for _ in range(length)]).encode() for _ in range(12)]
    alone = [MemberCompressor().compress(text) for text in texts]
    for _ in range(3):
        order = list(range(len(texts)))
        rng.shuffle(order)
        compressor = MemberCompressor()
        for number in order:
            assert compressor.compress(texts[number]) == alone[number]


def test_bytes_do_not_depend_on_the_memory_of_the_process():
    found = set()
    for number in range(5):
        command = [sys.executable, "-c", DIRTY, str(number)]
        outcome = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
        )
        found.add(hashlib.md5(outcome.stdout.encode()).hexdigest())
    assert len(found) == 1


def test_bytes_do_not_depend_on_the_address_of_the_compressor():
    # Of each text, what comes third comes again; where the first copy is noted decides whether the
    # second is a match.
    texts = [
        b"[1%04x,,,,,,,,,,,,,,,,;%04x]" % (number, number) + b"." * 300 for number in range(30_000)
    ]
    compressors = [MemberCompressor() for _ in range(3)]
    digests = [[hash(compressor.compress(text)) for text in texts] for compressor in compressors]
    assert digests[0] == digests[1] == digests[2]
