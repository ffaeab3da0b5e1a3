"""Merging datasets in their store: the same bytes as merging files, from pieces of their indices
alone.
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
from nanoset_core.storage.local import LocalStore


def write_shard(prefix, chosen, documents, dtype=np.uint16):
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for _ in range(documents):
            lengths = chosen.integers(0, 9, chosen.integers(0, 4))
            builder.add_document(chosen.integers(0, 60_000, lengths.sum()), lengths.tolist())


def stored_pairs(store, names):
    for name in names:
        binary, index = store.stat(f"{name}.bin"), store.stat(f"{name}.idx")
        _, _, _, sequences, _ = HEADER.unpack(store.read_range(index.name, 0, HEADER.size))
        yield StoredPair(binary, index, sequences, "")


@pytest.mark.parametrize("span_bytes", [8, 24, 1 << 20])
def test_the_bytes_of_a_merge_of_files(tmp_path, monkeypatch, span_bytes):
    monkeypatch.setattr(composing, "SPAN_BYTES", span_bytes)
    monkeypatch.setattr(composing, "SPANS_AT_ONCE", 5)
    chosen, store = np.random.default_rng(0), LocalStore(tmp_path)
    for turn, counts in enumerate(([0], [7], [3, 0, 0, 5], [0, 0], chosen.integers(0, 40, 11))):
        names = [f"{turn}-{number}" for number in range(len(counts))]
        for name, count in zip(names, counts, strict=True):
            write_shard(tmp_path / name, chosen, int(count), np.int32 if turn == 1 else np.uint16)
        merge_indexed_datasets([tmp_path / name for name in names], tmp_path / f"{turn}-whole")
        read, store_of = [], type(store)
        monkeypatch.setattr(
            store_of,
            "read_range",
            lambda store, name, begin, end, mark=None, there=store_of.read_range, read=read: (
                read.append(end - begin) or there(store, name, begin, end, mark)
            ),
        )
        pairs = list(stored_pairs(store, names))
        read.clear()
        write_merged_idx(
            tmp_path / f"{turn}-idx", store, pairs, np.dtype(np.int32 if turn == 1 else np.uint16)
        )
        assert (tmp_path / f"{turn}-idx").read_bytes() == (
            tmp_path / f"{turn}-whole.idx"
        ).read_bytes()
        assert sum(read) == sum(
            34 + 4 * pair.sequences + 8 * (pair.documents + 1) for pair in pairs
        )
        monkeypatch.undo()
        monkeypatch.setattr(composing, "SPAN_BYTES", span_bytes)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (3, 0, "header"),
        (17, 4, "header"),
        (18, 9, "header"),
        (34, -5, "length of -5"),
        (34, 9, "tokens"),
        ("first mark", 1, "document 0"),
        ("second mark", 100, "begins before|end at"),
        ("last mark", 100, "end at sequence 100"),
    ],
)
def test_an_index_that_is_not_that_of_its_tokens_is_refused(tmp_path, at, value, what):
    chosen, store = np.random.default_rng(1), LocalStore(tmp_path)
    for name in ("a", "b"):
        write_shard(tmp_path / name, chosen, 12)
    pairs = list(stored_pairs(store, ["a", "b"]))
    data = bytearray((tmp_path / "b.idx").read_bytes())
    marks = pairs[1].documents_offset
    places = {"first mark": marks, "second mark": marks + 8, "last mark": len(data) - 8}
    size = 1 if at in (3, 17) else 4 if at == 34 else 8
    begin = places.get(at, at)
    data[begin : begin + size] = value.to_bytes(size, "little", signed=True)
    (tmp_path / "b.idx").write_bytes(data)
    with pytest.raises(SourceChangedError):
        write_merged_idx(tmp_path / "x.idx", store, pairs, np.dtype(np.uint16))
    changed = [pairs[0], replace(pairs[1], idx=store.stat("b.idx"))]
    with pytest.raises(FormatError, match=what):
        write_merged_idx(tmp_path / "y.idx", store, changed, np.dtype(np.uint16))


def test_an_index_of_another_length_is_refused(tmp_path):
    store = LocalStore(tmp_path)
    write_shard(tmp_path / "a", np.random.default_rng(1), 12)
    (pair,) = stored_pairs(store, ["a"])
    for wrong in (
        replace(pair, sequences=pair.sequences + 1),
        replace(pair, sequences=pair.sequences - 1),
    ):
        with pytest.raises((FormatError, SourceChangedError)):
            write_merged_idx(
                tmp_path / f"{wrong.sequences}.idx", store, [wrong], np.dtype(np.uint16)
            )
