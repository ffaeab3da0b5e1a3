"""The .idx of merged datasets in a store is composed from ranges of their .idx files.

It has the same bytes as if the files were merged, and no other byte of the store is read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nanoset_core.errors import FormatError, SourceChangedError
from nanoset_core.formats.indexed import composing
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder, merge_indexed_datasets
from nanoset_core.formats.indexed.composing import StoredPair, write_merged_idx
from nanoset_core.formats.indexed.layout import HEADER
from nanoset_core.storage.stores.local import LocalStore

DTYPE = np.dtype(np.uint16)


@pytest.fixture
def store(tmp_path):
    """A store with the files of a folder."""
    return LocalStore(tmp_path)


def write_shard(prefix, rng, n_documents, dtype=DTYPE):
    """Write a random dataset; some documents have no or several sequences, some are empty."""
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for _ in range(n_documents):
            lengths = rng.integers(0, 9, rng.integers(0, 4))
            builder.add_document(rng.integers(0, 60_000, lengths.sum()), lengths.tolist())


def stored_pairs(store, names):
    """Return the datasets of a store with these names."""
    pairs = []
    for name in names:
        idx = store.stat(f"{name}.idx")
        header = HEADER.unpack(store.read_range(idx.name, 0, HEADER.size))
        _, _, _, n_sequences, _ = header
        pairs.append(StoredPair(store.stat(f"{name}.bin"), idx, n_sequences, ""))
    return pairs


def index_bytes(pair):
    """Return how many bytes of a dataset's .idx a merge needs."""
    sequence_lengths = 4 * pair.sequences
    document_indices = 8 * (pair.documents + 1)
    # The pointers of the sequences are computed from their lengths.
    return HEADER.size + sequence_lengths + document_indices


# Composing


@pytest.mark.parametrize("span_bytes", [8, 24, 1 << 20])
@pytest.mark.parametrize(
    ("document_counts", "dtype"),
    [
        pytest.param([0], np.uint16, id="an empty shard"),
        pytest.param([7], np.int32, id="a shard of four-byte tokens"),
        pytest.param([3, 0, 0, 5], np.uint16, id="empty shards between others"),
        pytest.param([0, 0], np.uint16, id="empty shards"),
        pytest.param([34, 25, 20, 10, 12, 1, 3, 0, 7, 32, 25], np.uint16, id="many shards"),
    ],
)
def test_a_composed_index_has_the_bytes_of_a_merge_of_files(
    tmp_path, store, monkeypatch, span_bytes, document_counts, dtype
):
    monkeypatch.setattr(composing, "SPAN_BYTES", span_bytes)
    monkeypatch.setattr(composing, "SPANS_AT_ONCE", 5)
    rng = np.random.default_rng(0)
    names = [f"shard-{number}" for number in range(len(document_counts))]
    for name, n_documents in zip(names, document_counts, strict=True):
        write_shard(tmp_path / name, rng, n_documents, dtype)
    merge_indexed_datasets([tmp_path / name for name in names], tmp_path / "merged")
    pairs = stored_pairs(store, names)

    # Count the bytes that are read from here on.
    lengths_read = []
    read_range = LocalStore.read_range

    def read_and_count(store, name, start, stop, mark=None):
        lengths_read.append(stop - start)
        return read_range(store, name, start, stop, mark)

    monkeypatch.setattr(LocalStore, "read_range", read_and_count)

    write_merged_idx(tmp_path / "composed.idx", store, pairs, np.dtype(dtype))

    composed = (tmp_path / "composed.idx").read_bytes()
    assert composed == (tmp_path / "merged.idx").read_bytes()
    assert sum(lengths_read) == sum(map(index_bytes, pairs))


# Damage


@pytest.fixture
def two_pairs(tmp_path, store):
    """Two datasets of 12 documents, `a` and `b`."""
    rng = np.random.default_rng(1)
    write_shard(tmp_path / "a", rng, n_documents=12)
    write_shard(tmp_path / "b", rng, n_documents=12)
    return stored_pairs(store, ["a", "b"])


def overwrite_integer(file, offset, value, n_bytes):
    """Overwrite a little-endian integer in a file."""
    data = bytearray(file.read_bytes())
    data[offset : offset + n_bytes] = value.to_bytes(n_bytes, "little", signed=True)
    file.write_bytes(data)


def check_that_b_is_refused(store, two_pairs, message):
    """Check that two datasets are not merged after b.idx was changed."""
    # The file is not the one that was listed.
    with pytest.raises(SourceChangedError):
        write_merged_idx(store.folder / "first.idx", store, two_pairs, DTYPE)

    # The file is the one that was listed, but its content is wrong.
    pairs = [two_pairs[0], replace(two_pairs[1], idx=store.stat("b.idx"))]
    with pytest.raises(FormatError, match=message):
        write_merged_idx(store.folder / "second.idx", store, pairs, DTYPE)


@pytest.mark.parametrize(
    ("offset", "n_bytes", "value", "message"),
    [
        pytest.param(3, 1, 0, "header", id="magic"),
        pytest.param(17, 1, 4, "header", id="type of tokens"),
        pytest.param(18, 8, 9, "header", id="number of sequences"),
        pytest.param(34, 4, -5, "length of -5", id="negative length of the first sequence"),
        pytest.param(34, 4, 9, "tokens", id="length of the first sequence"),
    ],
)
def test_an_index_with_a_wrong_header_or_length_is_refused(
    tmp_path, store, two_pairs, offset, n_bytes, value, message
):
    overwrite_integer(tmp_path / "b.idx", offset, value, n_bytes)

    check_that_b_is_refused(store, two_pairs, message)


@pytest.mark.parametrize(
    ("entry", "first_sequence", "message"),
    [
        pytest.param(0, 1, "document 0", id="first document"),
        pytest.param(1, 100, "begins before|end at", id="second document"),
        pytest.param(12, 100, "end at sequence 100", id="end of the last document"),
    ],
)
def test_an_index_with_a_wrong_document_is_refused(
    tmp_path, store, two_pairs, entry, first_sequence, message
):
    # (13,) int64: first sequence of each of 12 documents, and the number of sequences
    offset = two_pairs[1].documents_offset + 8 * entry
    overwrite_integer(tmp_path / "b.idx", offset, first_sequence, 8)

    check_that_b_is_refused(store, two_pairs, message)


@pytest.mark.parametrize("difference", [1, -1])
def test_an_index_of_another_number_of_sequences_is_refused(tmp_path, store, two_pairs, difference):
    pair = replace(two_pairs[0], sequences=two_pairs[0].sequences + difference)

    with pytest.raises((FormatError, SourceChangedError)):
        write_merged_idx(tmp_path / "merged.idx", store, [pair], DTYPE)
