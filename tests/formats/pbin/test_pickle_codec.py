"""The index of a .pbin, and of a JSONL file."""

import json
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.formats.pbin import pickle_codec, raw_index
from nanoset_core.formats.pbin.pickle_codec import decode_index, encode_index, unpickle_index
from nanoset_core.formats.pbin.raw_index import RawIndexFacts, create_raw_index

# Every size of int that pickle knows, its limits, and numbers that hold the bytes of TUPLE2 MEMOIZE
# (86 94).
LIMITS = [
    0,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    *(2**bits + step for bits in (39, 47, 55) for step in (-1, 0)),
]
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
NUMBERS = st.one_of(
    st.integers(0, 2**63 - 1), st.integers(0, 70000), st.sampled_from(LIMITS + LOOKALIKES)
)


def arrays(entries):
    pairs = np.array(entries, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def encode(entries, step=None):
    offsets, lengths = arrays(entries)
    step = step or max(len(offsets), 1)
    return b"".join(
        encode_index(
            (offsets[i : i + step], lengths[i : i + step]) for i in range(0, len(offsets), step)
        )
    )


def decode(data, decoder=decode_index, begin=0):
    found = decoder(memoryview(data), begin, "x.pbin")
    chunks = [found] if decoder is unpickle_index else list(found)
    return [
        pair for chunk in chunks for pair in zip(chunk[0].tolist(), chunk[1].tolist(), strict=True)
    ]


def many(count, seed=0):
    """Entries of documents of every size, back to back, crossing each width of offset."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 300, count) << rng.integers(0, 30, count)
    return list(zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True))


def test_literal_bytes():
    assert encode([]) == b"\x80\x04]\x94."
    one = b"]\x94K\x00K\x05\x86\x94a."
    assert encode([(0, 5)]) == b"\x80\x04\x95\x0a\0\0\0\0\0\0\0" + one
    two = b"]\x94(K\x00M\x00\x01\x86\x94J\x00\x00\x01\x00\x8a\x05\x00\x00\x00\x80\x00\x86\x94e."
    assert encode([(0, 256), (65536, 2**31)]) == b"\x80\x04\x95" + struct.pack("<Q", len(two)) + two


@pytest.mark.parametrize(
    "count", [0, 1, 2, 3, 999, 1000, 1001, 1002, 1999, 2000, 2001, 8191, 8192, 8193, 30000]
)
def test_bytes_are_those_of_pickle(count):
    entries = many(count)
    expected = pickle.dumps(entries, protocol=4)
    assert encode(entries) == expected
    assert encode(entries, step=777) == expected
    assert decode(expected) == entries


@settings(deadline=None, max_examples=80)
@given(
    entries=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60),
    repeats=st.integers(1, 60),
    step=st.integers(1, 999),
)
def test_any_entries_equal_pickle_both_ways(entries, repeats, step):
    entries = [(offset, length) for _ in range(repeats) for offset, length in entries]
    expected = pickle.dumps(entries, protocol=4)
    assert encode(entries, step) == expected
    assert decode(expected) == entries
    assert decode(expected, unpickle_index) == entries


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 1001, 9000])
@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("repeats", [1, 3])
def test_other_protocols_and_forms_are_read(protocol, count, form, repeats):
    """With repeats, as by `index * 3`, each document is the same object three times."""
    entries = many(count)
    data = pickle.dumps([form(pair) for pair in entries] * repeats, protocol=protocol)
    assert decode(b"before" + data, begin=6) == entries * repeats


def test_a_pickle_without_memo_and_with_marked_tuples_is_read():
    assert decode(b"\x80\x03](K\x00K\x05\x86(K\x05M\x00\x01te.") == [(0, 5), (5, 256)]


def test_pythons_own_pickler_ends_a_batch_of_one_with_append():
    entries = many(1001)
    data = pickle._dumps(entries, protocol=4)
    assert data != pickle.dumps(entries, protocol=4)
    assert decode(data) == entries


def test_signed_numbers_are_read():
    entries = [(sign * number, 4) for number in LIMITS for sign in (1, -1)]
    assert decode(pickle.dumps(entries, protocol=4)) == entries


def test_the_fast_way_is_taken(monkeypatch):
    monkeypatch.setattr(pickle_codec, "unpickle_index", None)
    assert decode(pickle.dumps(many(30000), protocol=4)) == many(30000)


@settings(deadline=None, max_examples=40)
@given(
    entries=st.lists(
        st.tuples(st.sampled_from(LOOKALIKES), st.sampled_from(LOOKALIKES)),
        min_size=5,
        max_size=300,
    ),
    chunk_bytes=st.integers(64, 400),
)
def test_lookalikes_across_small_chunks(entries, chunk_bytes):
    data = pickle.dumps(entries, protocol=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle_codec, "_CHUNK_BYTES", chunk_bytes)
        patch.setattr(pickle_codec, "unpickle_index", None)
        assert decode(data) == [(int(a), int(b)) for a, b in entries]


def test_damage_in_the_middle_is_found_where_it_is():
    data = bytearray(pickle.dumps(many(30000), protocol=4))
    at = data.index(b"\x86\x94", len(data) // 2)
    data[at] = 0x87
    with pytest.raises(
        FormatError, match=f"byte {at}: this is not an index of doc.*\n.*TUPLE3, bytes 87 94"
    ):
        decode(bytes(data))


@pytest.mark.parametrize("entries", [[], [(0, 5)], many(3), many(40)])
def test_every_cut_is_refused(entries):
    data = pickle.dumps(entries, protocol=4)
    for end in range(len(data)):
        with pytest.raises(FormatError, match=r"x\.pbin, byte"):
            decode(data[:end])
        with pytest.raises(FormatError, match=r"x\.pbin, byte"):
            decode(data[:end], unpickle_index)


@settings(deadline=None, max_examples=150)
@given(
    data=st.binary(max_size=60),
    entries=st.sampled_from([many(3), many(40)]),
    at=st.integers(0, 400),
)
def test_any_damage_gives_an_error_or_pairs(data, entries, at):
    whole = pickle.dumps(entries, protocol=4)
    damaged = whole[:at] + data + whole[at + len(data) :]
    results = []
    for decoder in (decode_index, unpickle_index):
        try:
            results.append(decode(damaged, decoder))
        except FormatError:
            results.append(None)
    assert results[0] == results[1] or results[0] is None  # the fast way also checks the frames


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("should-not-exist",)


HOSTILE = {
    "reduce": pickle.dumps([Bomb()], protocol=4),
    "reduce, protocol 0": pickle.dumps(Bomb(), protocol=0),
    "reduce among pairs": pickle.dumps([*many(2000), Bomb()], protocol=4),
    "global": b"\x80\x04cos\nmkdir\n.",
    "inst": b"\x80\x04(X\x01\0\0\0aios\nmkdir\n.",
    "extension": b"\x80\x02]\x82\x01a.",
    "persistent": b"\x80\x02]Pname\na.",
    "string": pickle.dumps([("a", 1)], protocol=4),
    "bytes": pickle.dumps([(b"a", 1)], protocol=4),
    "float": pickle.dumps([(0.0, 1)], protocol=4),
    "bool": pickle.dumps([(True, 1)], protocol=4),
    "bool, protocol 0": b"\x80\x02](I01\nI01\n\x86e.",
    "none": pickle.dumps([None], protocol=4),
    "dict": pickle.dumps({0: 5}, protocol=4),
    "tuple of tuples": pickle.dumps(((0, 5), (5, 6)), protocol=4),
    "triples": pickle.dumps([(0, 5, 6)] * 40, protocol=4),
    "singles": pickle.dumps([(0,)] * 40, protocol=4),
    "flat": pickle.dumps([0, 5] * 40, protocol=4),
    "one number": pickle.dumps(5, protocol=4),
    "list of lists of pairs": pickle.dumps([[(0, 5)]], protocol=4),
    "a number of 65 bits": pickle.dumps([(2**64, 5)] * 40, protocol=4),
    "a number of 1 MB": pickle.dumps([(1 << (8 << 20), 5)], protocol=4),
    "a number said to have 2 GB": b"\x80\x02](\x8b\xff\xff\xff\x7fK\x00\x86e.",
    "bytes said to have 2**62": b"\x80\x04]\x8e" + struct.pack("<Q", 2**62) + b"a.",
    "deep lists": b"\x80\x04" + b"]" * 40_000 + b"a" * 39_999 + b".",
    "marks only": b"\x80\x04]" + b"(" * 1_000_000 + b".",
    "no marks": b"\x80\x02]K\x00K\x05\x86K\x00K\x05\x86aa.",
    "a mark without an end": b"\x80\x02](K\x00K\x05\x86.",
    "an end without a mark": b"\x80\x02]K\x00K\x05\x86e.",
    "a list in itself": b"\x80\x04]\x94(K\x00K\x05\x86\x94h\x00e.",
    "a get of what is not there": b"\x80\x04]\x94(K\x00K\x05\x86\x94h\x02e.",
    "a get within a pair": b"\x80\x04]\x94(K\x00K\x05\x86\x94K\x00h\x01\x86e.",
    "memo numbers out of turn": b"\x80\x02]r\xff\xff\xff\x7f(K\x00K\x05\x86e.",
    "duplicates": b"\x80\x04]\x94(K\x00K\x05\x86" + b"2" * 1000 + b"e.",
    "text with a million digits": b"\x80\x02](I" + b"9" * 1_000_000 + b"\nI1\n\x86e.",
    "an unknown opcode": b"\x80\x04\xff.",
    "bytes after the end": pickle.dumps(many(40), protocol=4) + b"\0",
    "two pickles": pickle.dumps(many(40), protocol=4) * 2,
    "a frame past the end": b"\x80\x04\x95"
    + struct.pack("<Q", 2**63)
    + pickle.dumps(many(9), protocol=4)[11:],
    "an empty frame": b"\x80\x04\x95" + bytes(8) + pickle.dumps(many(9), protocol=4)[11:],
    "zeros": bytes(1000),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"x\.pbin, byte \d+") as caught:
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "remedy" in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert peak < 64 * len(data) + (1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_the_bomb_would_go_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["reduce"])
    assert (tmp_path / "should-not-exist").is_dir()


def test_memory_does_not_grow_with_the_index():
    def peak(count):
        data = encode(many(1000) * (count // 1000))
        tracemalloc.start()
        try:
            assert sum(len(chunk[0]) for chunk in decode_index(memoryview(data), 0, "x")) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1000)  # first use of numpy's functions
    assert peak(1_200_000) < 1.2 * peak(400_000)


GOLDEN = GOLDEN_FILES / "modalities"


def modalities_index(data):
    """The slow readable twin, after `IndexGenerator`: (bytes of the index, numbers of the lines
    dropped).
    """
    lines = data.split(b"\n")
    if lines[-1] == b"" and len(lines) > 1:
        lines.pop()
    entries, dropped, offset = [], [], 0
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
            entries.append((offset, len(line)))
        except ValueError:
            dropped.append(number)
        offset += len(line) + 1
    return pickle.dumps(entries, protocol=4), dropped


@pytest.mark.parametrize("name", ["docs", "edge", "legacy", "drops-empty", "drops-missing"])
def test_golden_indexes(tmp_path, name):
    facts = create_raw_index(GOLDEN / f"{name}.jsonl", tmp_path / "x.idx")
    assert (tmp_path / "x.idx").read_bytes() == (GOLDEN / f"{name}.idx").read_bytes()
    lines = (GOLDEN / f"{name}.jsonl").read_bytes().count(b"\n")
    assert facts == RawIndexFacts(tmp_path / "x.idx", lines, lines, 0, ())


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"",
                b" ",
                b"\r",
                b"{}",
                b'{"text": "a"}\r',
                b"NaN",
                b"-Infinity",
                b'"\\ud800"',
                b"[1",
                b"{}{}",
            ]
        ),
        st.sampled_from(
            [
                b"\xef\xbb\xbf{}",
                b'"\xff"',
                b"1" * 400,
                b'"\xc3\xa9"',
                b"[" * 50 + b"]" * 50,
                b"\xff\xfe1\x00",
            ]
        ),
        st.dictionaries(st.text(max_size=3), st.integers()).map(
            lambda value: json.dumps(value).encode()
        ),
        st.binary(max_size=4),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(lines=LINES, block=st.integers(1, 40), ends=st.booleans())
def test_any_lines(tmp_path_factory, lines, block, ends):
    folder = tmp_path_factory.mktemp("x")
    data = b"\n".join(lines) + b"\n" * ends
    (folder / "x.jsonl").write_bytes(data)
    expected, dropped = modalities_index(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_index, "_BLOCK_BYTES", block)
        facts = create_raw_index(folder / "x.jsonl", on_fault="drop")
        assert (folder / "x.idx").read_bytes() == expected
        assert facts.first_dropped == tuple(dropped[:100])
        assert facts.dropped == len(dropped)
        assert facts.lines == facts.documents + facts.dropped
        if dropped:
            with pytest.raises(InputError, match=f"line {dropped[0]}, byte "):
                create_raw_index(folder / "x.jsonl")
        else:
            assert create_raw_index(folder / "x.jsonl") == facts


def test_many_dropped_lines(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"x\n{}\n" * 500)
    facts = create_raw_index(tmp_path / "x.jsonl", on_fault="drop")
    assert (facts.dropped, len(facts.first_dropped), facts.first_dropped[-1]) == (500, 100, 199)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1, byte 0: this line is blank"),
        (b"\n", "line 1, byte 0: this line is blank"),
        (b"{}\n\n", "line 2, byte 3: this line is blank"),
        (b"\x1f\x8b\x08\x00aaaa", "line 1, byte 0: this line is not JSON"),
        (b"[" * 100_000, "line 1, byte 0: this line is not JSON"),
        ((GOLDEN / "bad-json.jsonl").read_bytes(), "line 2, byte 15: this line is not JSON"),
        ((GOLDEN / "blank-line.jsonl").read_bytes(), "line 2, byte 15: this line is blank"),
    ],
)
def test_refusals(tmp_path, data, message):
    (tmp_path / "x.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=message):
        create_raw_index(tmp_path / "x.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_what_cannot_be(tmp_path):
    with pytest.raises(MissingError, match="no such file"):
        create_raw_index(tmp_path / "none.jsonl")
    for paths in ([tmp_path / "x.idx"], [tmp_path / "x.jsonl"] * 2):
        with pytest.raises(ConfigError, match="would replace the text"):
            create_raw_index(*paths)
    assert list(tmp_path.iterdir()) == []
