"""The index of a `.pbin` is written as pickle writes it, and read without running pickle.

A pickle can run any code as it is loaded. So what is not the pickle of an index is refused.
"""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import FormatError
from nanoset_core.formats.pbin import pickle_codec
from nanoset_core.formats.pbin.pickle_codec import decode_index, encode_index, unpickle_index

TUPLE2_MEMOIZE = b"\x86\x94"
"""The opcodes after each entry of an index in protocol 4: make a pair, and remember it."""
LIMITS = [
    0,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**39 - 1,
    2**39,
    2**47 - 1,
    2**47,
    2**55 - 1,
    2**55,
]
"""Numbers at the limits of every size of integer in a pickle."""
LOOKALIKES = [
    0x9486,
    0x948600,
    0x94869486,
    0x9486000000,
    0x86948694869486,
    0x94866528,
    0x654B86944B,
    2**63 - 1,
]
"""Numbers that contain the bytes of TUPLE2_MEMOIZE, and the greatest number."""
numbers = st.one_of(
    st.integers(0, 2**63 - 1), st.integers(0, 70000), st.sampled_from(LIMITS + LOOKALIKES)
)


def encode(entries, chunk_entries=None):
    """Return the index of entries (offset, length), encoded in chunks.

    Args:
        entries: The entries.
        chunk_entries: How many entries are encoded at once; by default all.
    """
    columns = np.array(entries, np.int64).reshape(-1, 2)
    step = chunk_entries or max(len(entries), 1)
    chunks = []
    for start in range(0, len(entries), step):
        chunk = columns[start : start + step]
        chunks.append((chunk[:, 0], chunk[:, 1]))
    return b"".join(encode_index(chunks))


def pairs_of(chunk):
    """Return the entries (offset, length) of arrays of offsets and of lengths."""
    offsets, lengths = chunk
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def decode(data, start=0):
    """Return the entries of an index that begins at a byte."""
    entries = []
    for chunk in decode_index(memoryview(data), start, "x.pbin"):
        entries += pairs_of(chunk)
    return entries


def decode_slowly(data):
    """Return the entries of an index, by the decoder that knows every form of it."""
    return pairs_of(unpickle_index(memoryview(data), 0, "x.pbin"))


def pickled(value):
    """Return a value as Modalities pickles an index."""
    return pickle.dumps(value, protocol=4)


def back_to_back_entries(count):
    """Return entries of documents of every size, whose offsets need every size of integer."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 300, count) << rng.integers(0, 30, count)
    offsets = np.cumsum(lengths) - lengths
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


# The bytes of pickle


def test_an_empty_index_has_the_documented_bytes():
    assert encode([]) == b"\x80\x04]\x94."


def test_an_index_of_one_entry_has_the_documented_bytes():
    frame = b"]\x94K\x00K\x05\x86\x94a."

    assert encode([(0, 5)]) == b"\x80\x04\x95" + struct.pack("<Q", len(frame)) + frame


def test_an_index_of_several_entries_has_the_documented_bytes():
    first = b"K\x00M\x00\x01\x86\x94"
    second = b"J\x00\x00\x01\x00\x8a\x05\x00\x00\x00\x80\x00\x86\x94"
    frame = b"]\x94(" + first + second + b"e."

    data = encode([(0, 256), (65536, 2**31)])

    assert data == b"\x80\x04\x95" + struct.pack("<Q", len(frame)) + frame


@pytest.mark.parametrize(
    "count", [0, 1, 2, 3, 999, 1000, 1001, 1002, 1999, 2000, 2001, 8191, 8192, 8193, 30000]
)
def test_an_index_has_the_bytes_of_pickle(count):
    entries = back_to_back_entries(count)
    expected = pickled(entries)

    assert encode(entries) == expected
    assert encode(entries, chunk_entries=777) == expected
    assert decode(expected) == entries


@given(
    entries=st.lists(st.tuples(numbers, numbers), max_size=60),
    repeats=st.integers(1, 60),
    chunk_entries=st.integers(1, 999),
)
def test_any_entries_are_encoded_and_decoded_as_by_pickle(entries, repeats, chunk_entries):
    repeated = []
    for _ in range(repeats):
        # New pairs each time, since pickle writes the same object only once.
        repeated += [(offset, length) for offset, length in entries]
    expected = pickled(repeated)

    assert encode(repeated, chunk_entries) == expected
    assert decode(expected) == repeated
    assert decode_slowly(expected) == repeated


# Other forms of an index, which other programs write


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 2500])
@pytest.mark.parametrize("pair_type", [tuple, list])
@pytest.mark.parametrize("repeats", [1, 3])
def test_other_protocols_lists_and_repeated_documents_are_read(protocol, count, pair_type, repeats):
    entries = back_to_back_entries(count)
    # As by `index * 3`: each pair is the same object three times, which pickle writes once.
    index = [pair_type(entry) for entry in entries] * repeats
    data = pickle.dumps(index, protocol=protocol)

    assert decode(b"before" + data, start=6) == entries * repeats


def test_a_pickle_without_memo_and_with_marked_tuples_is_read():
    assert decode(b"\x80\x03](K\x00K\x05\x86(K\x05M\x00\x01te.") == [(0, 5), (5, 256)]


def test_the_pickle_of_the_pickler_in_python_is_read():
    entries = back_to_back_entries(1001)

    data = pickle._dumps(entries, protocol=4)  # ends a batch of one entry in another way

    assert data != pickled(entries)
    assert decode(data) == entries


def test_negative_numbers_are_read():
    entries = [(number, 4) for number in LIMITS] + [(-number, 4) for number in LIMITS]

    assert decode(pickled(entries)) == entries


# The fast decoder, which searches chunks of the index for the ends of entries


def test_an_index_of_modalities_is_read_by_the_fast_decoder(monkeypatch):
    monkeypatch.setattr(pickle_codec, "unpickle_index", None)
    entries = back_to_back_entries(30000)

    assert decode(pickled(entries)) == entries


@settings(deadline=None, max_examples=40)
@given(
    entries=st.lists(
        st.tuples(st.sampled_from(LOOKALIKES), st.sampled_from(LOOKALIKES)),
        min_size=5,
        max_size=300,
    ),
    chunk_bytes=st.integers(64, 400),
)
def test_numbers_that_look_like_the_end_of_an_entry_do_not_confuse_it(entries, chunk_bytes):
    data = pickled(entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle_codec, "_CHUNK_BYTES", chunk_bytes)
        patch.setattr(pickle_codec, "unpickle_index", None)
        assert decode(data) == entries


def peak_memory(n_entries):
    """Return the bytes of memory that decoding an index of so many entries takes."""
    data = encode(back_to_back_entries(1000) * (n_entries // 1000))
    tracemalloc.start()
    try:
        n_decoded = 0
        for offsets, _ in decode_index(memoryview(data), 0, "x"):
            n_decoded += len(offsets)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_decoded == n_entries
    return peak_bytes


def test_memory_does_not_grow_with_the_index():
    peak_memory(1000)  # the first use of NumPy's functions takes memory, too

    assert peak_memory(600_000) < 1.2 * peak_memory(300_000)


# Damage


def test_damage_in_the_middle_is_an_error_that_names_the_byte():
    data = bytearray(pickled(back_to_back_entries(30000)))
    offset = data.index(TUPLE2_MEMOIZE, len(data) // 2)
    data[offset] = 0x87

    message = f"byte {offset}: this is not an index of doc.*\n.*TUPLE3, bytes 87 94"
    with pytest.raises(FormatError, match=message):
        decode(bytes(data))


@pytest.mark.parametrize("decoder", [decode, decode_slowly])
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="empty"),
        pytest.param([(0, 5)], id="1 entry"),
        pytest.param(back_to_back_entries(3), id="3 entries"),
        pytest.param(back_to_back_entries(40), id="40 entries"),
    ],
)
def test_an_index_that_is_cut_off_anywhere_is_an_error(decoder, entries):
    data = pickled(entries)

    for length in range(len(data)):
        with pytest.raises(FormatError, match=r"x\.pbin, byte"):
            decoder(data[:length])


def entries_or_none(decoder, data):
    """Return what a decoder reads, or None if it refuses the data."""
    try:
        return decoder(data)
    except FormatError:
        return None


@given(
    replacement=st.binary(max_size=60),
    entries=st.sampled_from([back_to_back_entries(3), back_to_back_entries(40)]),
    offset=st.integers(0, 400),
)
def test_any_damage_is_an_error_or_is_read_alike_by_both_decoders(replacement, entries, offset):
    data = pickled(entries)
    damaged = data[:offset] + replacement + data[offset + len(replacement) :]

    fast_entries = entries_or_none(decode, damaged)
    slow_entries = entries_or_none(decode_slowly, damaged)

    # The fast decoder also refuses wrong frames.
    assert fast_entries is None or fast_entries == slow_entries


# Hostile pickles


class MakesFolder:
    """An object whose pickle makes a folder as it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("should-not-exist",)


HOSTILE = {
    # Pickles that call functions.
    "reduce": pickled([MakesFolder()]),
    "reduce, protocol 0": pickle.dumps(MakesFolder(), protocol=0),
    "reduce among pairs": pickled([*back_to_back_entries(2000), MakesFolder()]),
    "global": b"\x80\x04cos\nmkdir\n.",
    "inst": b"\x80\x04(X\x01\0\0\0aios\nmkdir\n.",
    "extension": b"\x80\x02]\x82\x01a.",
    "persistent": b"\x80\x02]Pname\na.",
    # Other values than lists of pairs of integers.
    "string": pickled([("a", 1)]),
    "bytes": pickled([(b"a", 1)]),
    "float": pickled([(0.0, 1)]),
    "bool": pickled([(True, 1)]),
    "bool, protocol 0": b"\x80\x02](I01\nI01\n\x86e.",
    "none": pickled([None]),
    "dict": pickled({0: 5}),
    "tuple of tuples": pickled(((0, 5), (5, 6))),
    "triples": pickled([(0, 5, 6)] * 40),
    "singles": pickled([(0,)] * 40),
    "flat": pickled([0, 5] * 40),
    "one number": pickled(5),
    "list of lists of pairs": pickled([[(0, 5)]]),
    # Values that are too large, or are said to be.
    "a number of 65 bits": pickled([(2**64, 5)] * 40),
    "a number of 1 MB": pickled([(1 << (8 << 20), 5)]),
    "a number said to have 2 GB": b"\x80\x02](\x8b\xff\xff\xff\x7fK\x00\x86e.",
    "bytes said to have 2**62": b"\x80\x04]\x8e" + struct.pack("<Q", 2**62) + b"a.",
    "deep lists": b"\x80\x04" + b"]" * 40_000 + b"a" * 39_999 + b".",
    "text with a million digits": b"\x80\x02](I" + b"9" * 1_000_000 + b"\nI1\n\x86e.",
    # Opcodes that contradict each other.
    "marks only": b"\x80\x04]" + b"(" * 100_000 + b".",
    "no marks": b"\x80\x02]K\x00K\x05\x86K\x00K\x05\x86aa.",
    "a mark without an end": b"\x80\x02](K\x00K\x05\x86.",
    "an end without a mark": b"\x80\x02]K\x00K\x05\x86e.",
    "a list in itself": b"\x80\x04]\x94(K\x00K\x05\x86\x94h\x00e.",
    "a get of a missing entry": b"\x80\x04]\x94(K\x00K\x05\x86\x94h\x02e.",
    "a get within a pair": b"\x80\x04]\x94(K\x00K\x05\x86\x94K\x00h\x01\x86e.",
    "memo numbers out of turn": b"\x80\x02]r\xff\xff\xff\x7f(K\x00K\x05\x86e.",
    "duplicates": b"\x80\x04]\x94(K\x00K\x05\x86" + b"2" * 1000 + b"e.",
    "an unknown opcode": b"\x80\x04\xff.",
    # Too many or wrong bytes.
    "bytes after the end": pickled(back_to_back_entries(40)) + b"\0",
    "two pickles": pickled(back_to_back_entries(40)) * 2,
    "a frame past the end": (
        b"\x80\x04\x95" + struct.pack("<Q", 2**63) + pickled(back_to_back_entries(9))[11:]
    ),
    "an empty frame": b"\x80\x04\x95" + bytes(8) + pickled(back_to_back_entries(9))[11:],
    "zeros": bytes(1000),
    "nothing": b"",
}
"""Pickles that run code, take much memory or time, or are no index."""


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_in_little_memory_and_runs_nothing(name, working_folder):
    data = HOSTILE[name]

    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"x\.pbin, byte \d+") as caught:
            decode(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "remedy" in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert peak_bytes < 64 * len(data) + (1 << 20)
    assert list(working_folder.iterdir()) == []


def test_the_hostile_pickle_would_run_code_if_it_were_loaded(working_folder):
    pickle.loads(HOSTILE["reduce"])

    assert (working_folder / "should-not-exist").is_dir()
