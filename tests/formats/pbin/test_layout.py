import math
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.layout import (
    D,
    PbinFile,
    document_entries,
    encode_header,
    load_index,
    open_pbin,
    scan_index,
    token_size_bytes,
)

GOLDEN = GOLDEN_FILES / "modalities"
LEGACY = [
    [211, 210, 201, 0],
    [216, 219, 211, 132, 216, 219, 211, 0],
    [216, 204, 214, 201, 201, 0],
    [202, 0],
]


def file_of(path, header, data, entries):
    path.write_bytes(
        header
        + data
        + (entries if isinstance(entries, bytes) else pickle.dumps(entries, protocol=4))
    )
    return path


@pytest.mark.parametrize(
    ("name", "layout", "token_bytes"),
    [
        ("legacy-a-header8-be.pbin", "A", 4),
        ("legacy-c-header12-le-absolute.pbin", "C", 2),
    ],
)
def test_old_layouts(name, layout, token_bytes):
    dataset = PackedDataset(GOLDEN / name)
    assert (dataset.layout, dataset.token_bytes) == (layout, token_bytes)
    assert [document.tolist() for document in dataset] == LEGACY
    assert dataset.tokens.tolist() == [token for document in LEGACY for token in document]
    assert dataset.document_starts.tolist() == [0, 4, 12, 18]
    assert dataset[1].dtype == {2: np.int32, 4: np.int64}[token_bytes]


@pytest.mark.parametrize("token_bytes", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 300, 1001])
def test_layouts_c_and_d_are_told_apart_by_the_first_offset(tmp_path, token_bytes, count):
    numbers = np.arange(3 * count) % 251
    data = numbers.astype(f"<u{token_bytes}").tobytes()
    header = struct.pack("<QI", len(data), token_bytes)
    step = 3 * token_bytes
    c = file_of(tmp_path / "c", header, data, [(12 + i * step, step) for i in range(count)])
    d = file_of(tmp_path / "d", header, data, [(i * step, step) for i in range(count)])
    expected = numbers.reshape(count, 3).tolist()
    assert PackedDataset(c).layout == "C"
    assert [document.tolist() for document in PackedDataset(c)] == expected
    assert PackedDataset(d).layout == "D"
    assert [document.tolist() for document in PackedDataset(d)] == expected


@pytest.mark.parametrize("count", [1, 2, 300, 1001])
def test_layout_a_has_no_token_size_and_is_big_endian(tmp_path, count):
    numbers = np.arange(3 * count) % 251
    data = numbers.astype(">u4").tobytes()
    entries = [(8 + 12 * i, 12) for i in range(count)]
    dataset = PackedDataset(file_of(tmp_path / "a", struct.pack(">Q", len(data)), data, entries))
    assert dataset.layout == "A"
    assert [document.tolist() for document in dataset] == numbers.reshape(count, 3).tolist()


def test_a_layout_that_no_release_of_modalities_wrote_is_refused():
    with pytest.raises(FormatError, match=r"byte 8: this is no \.pbin"):
        PackedDataset(GOLDEN / "legacy-b-header12-be.pbin")


def test_an_index_without_entries(tmp_path):
    path = file_of(tmp_path / "x", encode_header(4, 2), b"abcd", [])
    assert len(PackedDataset(path)) == 0
    assert not scan_index(open_pbin(path)).is_contiguous
    empty = file_of(tmp_path / "y", encode_header(0, 2), b"", [])
    assert len(PackedDataset(empty)) == 0
    assert scan_index(open_pbin(empty)).is_contiguous


def test_token_sizes_are_those_of_modalities():
    for vocab_size in [*range(1, 3000), 65535, 65536, 65537, 2**24, 2**24 + 1, 2**32 - 1, 2**32]:
        bytes_needed = math.ceil(math.log2(vocab_size) / 8)
        expected = bytes_needed if bytes_needed in (1, 2) else 4
        assert token_size_bytes(vocab_size) == expected, vocab_size
    for vocab_size in (-1, 0, 2**32 + 1, 2**80):
        with pytest.raises(ConfigError, match="vocab_size"):
            token_size_bytes(vocab_size)


WHOLE = (GOLDEN / "u2.pbin").read_bytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: the header is cut off"),
        (WHOLE[:11], "byte 11: the header is cut off"),
        (WHOLE[:12], "byte 12: the file ends too early"),
        (WHOLE[:1000], "byte 1000: the file ends too early"),
        (WHOLE[: 12 + 3076], "byte 3088: the file ends too early"),
        (WHOLE[: 12 + 3076 + 1], "byte 3088: no index"),
        (WHOLE[: 12 + 3076 + 10], "byte 3090: the index ends too early"),
        (WHOLE[:-1], "byte 3090: the index ends too early"),
        (WHOLE + b"\0", "byte 3379: this is not an index"),
        (bytes(8) + WHOLE[8:], "byte 0: the header is not complete"),
        (WHOLE[:8] + b"\x03\0\0\0" + WHOLE[12:], "byte 8: this is no .pbin"),
        (struct.pack("<Q", 2**64 - 1) + WHOLE[8:], "the file ends too early"),
        (struct.pack("<Q", 3075) + WHOLE[8:], "byte 3087: no index"),
        (WHOLE[:8] + b"\x04\0\0\0" + WHOLE[12:14] + WHOLE[12:], "no index"),
        (
            encode_header(3, 2) + b"abc" + pickle.dumps([(0, 2)], protocol=4),
            "byte 0: the tokens end within a token",
        ),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3, "byte 8: this is no .pbin"),
        (b"MMIDIDX\x00\x00\x01" + bytes(400), "byte 8: this is no .pbin"),
        (bytes(5000), "byte 8: this is no .pbin"),
        (
            encode_header(2, 2) + b"ab" + pickle.dumps(["x"], protocol=4),
            "not an index of documents",
        ),
        (
            encode_header(4, 2) + b"abcd" + pickle.dumps([(12, 2)], protocol=4),
            "byte 16: the index is not that of a file of",
        ),
    ],
)
def test_malformed_files(tmp_path, data, message):
    path = tmp_path / "x.pbin"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        len(PackedDataset(path))
    assert f"{path}, " in str(caught.value)
    assert "remedy" in str(caught.value)


def test_missing_files(tmp_path):
    for path in (tmp_path / "x.pbin", tmp_path, tmp_path / "x" / "y"):
        with pytest.raises(MissingError, match="no such file"):
            open_pbin(path)


def packed_of(entries, data_bytes, token_bytes=1):
    """A file of layout D of zeros with this index."""
    header = data_bytes.to_bytes(8, "little") + token_bytes.to_bytes(4, "little")
    index = pickle.dumps([(a, b) for a, b in entries], protocol=4)
    return PbinFile(
        Path("x.pbin"), D, token_bytes, data_bytes, memoryview(header + bytes(data_bytes) + index)
    )


def documents(packed):
    """(starts, lengths) in tokens by both ways of reading; they must agree."""
    facts, starts, lengths = load_index(packed)
    assert scan_index(packed) == facts
    chunks = list(document_entries(packed, facts))
    for array, number in ((starts, 0), (lengths, 1)):
        joined = np.concatenate([np.empty(0, np.int64), *(chunk[number] for chunk in chunks)])
        assert (joined == array * packed.token_bytes).all()
    return facts, starts.tolist(), lengths.tolist()


def modalities_merge(files):
    """Entries that `join_embedded_stream_data` makes of several (entries, data_bytes)."""
    joined, offset = [], 0
    for entries, data_bytes in files:
        joined += [(begin + offset, length) for begin, length in entries]
        offset += data_bytes - 12
    return joined, sum(data_bytes for _, data_bytes in files)


def back_to_back(lengths):
    begins = np.cumsum([0, *lengths])
    return list(zip(begins[:-1].tolist(), lengths, strict=True)), int(begins[-1])


def test_golden_merge_fault():
    packed = open_pbin(GOLDEN / "merge-buggy-index.pbin")
    facts, starts, lengths = documents(packed)
    assert (facts.documents, facts.tokens, facts.merge_faults, facts.is_contiguous) == (
        86,
        99667,
        1,
        True,
    )
    parts = [load_index(open_pbin(GOLDEN / name)) for name in ("docs.pbin", "edge.pbin")]
    assert lengths == np.concatenate([part[2] for part in parts]).tolist()
    assert starts == np.concatenate([parts[0][1], parts[1][1] + parts[0][0].tokens]).tolist()


LENGTHS = st.lists(
    st.lists(st.integers(0, 9).map(lambda n: 4 * n), max_size=6), min_size=1, max_size=5
)


@settings(deadline=None, max_examples=150)
@given(outer=st.lists(LENGTHS, min_size=1, max_size=3), token_bytes=st.sampled_from([1, 2, 4]))
def test_merges_of_merges_are_read_as_they_were_meant(outer, token_bytes):
    merged = modalities_merge(
        [modalities_merge([back_to_back(lengths) for lengths in files]) for files in outer]
    )
    expected, data_bytes = back_to_back(
        [length for files in outer for lengths in files for length in lengths]
    )
    packed = packed_of(*merged, token_bytes)
    assert packed.data_bytes == data_bytes
    facts, starts, lengths = documents(packed)
    assert [
        (s * token_bytes, n * token_bytes) for s, n in zip(starts, lengths, strict=True)
    ] == expected
    assert (facts.merge_faults > 0) == (merged[0] != expected)
    assert facts.is_contiguous
    assert facts.empty_documents == lengths.count(0)


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 3).map(lambda n: 12 * n), min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
def test_documents_in_another_order_are_not_taken_for_a_fault(lengths, seed):
    entries, data_bytes = back_to_back(lengths)
    entries = [entries[i] for i in np.random.default_rng(seed).permutation(len(entries))]
    facts, starts, found = documents(packed_of(entries, data_bytes))
    assert list(zip(starts, found, strict=True)) == entries
    assert facts.merge_faults == 0


def test_an_index_may_leave_tokens_out_and_documents_may_overlap():
    facts, starts, lengths = documents(packed_of([(4, 4), (4, 8), (20, 0), (20, 0)], 20, 2))
    assert (starts, lengths) == ([2, 2, 10, 10], [2, 4, 0, 0])
    assert (facts.documents, facts.tokens, facts.empty_documents) == (4, 6, 2)
    assert not facts.is_contiguous
    assert facts.merge_faults == 0


@pytest.mark.parametrize(
    ("entries", "number"),
    [
        ([(0, 8), (8, 13)], 1),
        ([(0, 8), (8, 14)], 1),
        ([(0, 8), (-2, 12)], 1),
        ([(-12, 8), (8, 4)], 0),
        ([(0, -2)], 0),
        ([(0, 3)], 0),
        ([(1, 2)], 0),
        ([(0, 20), (20, 2**62)], 1),
        ([(0, 20), (2**63 - 2, 2)], 1),
        ([(0, 20), (-(2**63), 2)], 1),
        ([(0, 20), (20, 2)], 1),
    ],
)
def test_documents_outside_the_tokens(entries, number):
    packed = packed_of(entries, 20, 2)
    for read in (scan_index, load_index):
        with pytest.raises(FormatError, match=f"x.pbin, entry {number} of the index at byte 32"):
            read(packed)


def test_the_number_of_a_bad_entry_far_in(tmp_path):
    entries = [(2 * i, 2) for i in range(300_000)]
    entries[250_000] = (600_001, 2)
    with pytest.raises(FormatError, match="entry 250000 of the index"):
        scan_index(packed_of(entries, 600_000, 2))


@pytest.mark.parametrize(
    "entries", [[(12, 4)], [(12, 4), (20, 4)], [(12, 6), (16, 4)], [(12, 4), (16, 6)]]
)
def test_old_layouts_must_be_back_to_back(tmp_path, entries):
    path = tmp_path / "x.pbin"
    path.write_bytes(
        (8).to_bytes(8, "little") + b"\x02\0\0\0" + bytes(8) + pickle.dumps(entries, protocol=4)
    )
    with pytest.raises(FormatError, match="not that of a file of layout C"):
        scan_index(open_pbin(path))
