import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import FormatError
from nanoset_core.packed.index import document_entries, load_index, scan_index
from nanoset_core.packed.layout import D, PackedFile, open_packed

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"


def packed_of(entries, data_bytes, token_bytes=1):
    """A file of layout D of zeros with this index."""
    header = data_bytes.to_bytes(8, "little") + token_bytes.to_bytes(4, "little")
    index = pickle.dumps([(a, b) for a, b in entries], protocol=4)
    return PackedFile(Path("x.pbin"), D, token_bytes, data_bytes, memoryview(header + bytes(data_bytes) + index))


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
    packed = open_packed(GOLDEN / "merge-buggy-index.pbin")
    facts, starts, lengths = documents(packed)
    assert (facts.documents, facts.tokens, facts.merge_faults, facts.is_contiguous) == (86, 99667, 1, True)
    parts = [load_index(open_packed(GOLDEN / name)) for name in ("docs.pbin", "edge.pbin")]
    assert lengths == np.concatenate([part[2] for part in parts]).tolist()
    assert starts == np.concatenate([parts[0][1], parts[1][1] + parts[0][0].tokens]).tolist()


LENGTHS = st.lists(st.lists(st.integers(0, 9).map(lambda n: 4 * n), max_size=6), min_size=1, max_size=5)


@settings(deadline=None, max_examples=150)
@given(outer=st.lists(LENGTHS, min_size=1, max_size=3), token_bytes=st.sampled_from([1, 2, 4]))
def test_merges_of_merges_are_read_as_they_were_meant(outer, token_bytes):
    merged = modalities_merge([modalities_merge([back_to_back(lengths) for lengths in files]) for files in outer])
    expected, data_bytes = back_to_back([length for files in outer for lengths in files for length in lengths])
    packed = packed_of(*merged, token_bytes)
    assert packed.data_bytes == data_bytes
    facts, starts, lengths = documents(packed)
    assert [(s * token_bytes, n * token_bytes) for s, n in zip(starts, lengths, strict=True)] == expected
    assert (facts.merge_faults > 0) == (merged[0] != expected)
    assert facts.is_contiguous
    assert facts.empty_documents == lengths.count(0)


@settings(deadline=None, max_examples=100)
@given(lengths=st.lists(st.integers(1, 3).map(lambda n: 12 * n), min_size=2, max_size=8), seed=st.integers(0, 99))
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


@pytest.mark.parametrize("entries", [[(12, 4)], [(12, 4), (20, 4)], [(12, 6), (16, 4)], [(12, 4), (16, 6)]])
def test_old_layouts_must_be_back_to_back(tmp_path, entries):
    path = tmp_path / "x.pbin"
    path.write_bytes((8).to_bytes(8, "little") + b"\x02\0\0\0" + bytes(8) + pickle.dumps(entries, protocol=4))
    with pytest.raises(FormatError, match="not that of a file of layout C"):
        scan_index(open_packed(path))
