import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import (
    ConfigError,
    FormatError,
    InputError,
    MissingError,
    SourceChangedError,
)
from nanoset_core.formats.indexed import stream
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.pbin import writing
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import PbinCounts, write_pbin
from nanoset_core.stages.pbin import conversion
from nanoset_core.stages.pbin.conversion import fitting_vocab_size, write_dataset_as_pbin
from nanoset_core.stages.webdataset.sources import TokenSource

GOLDEN = GOLDEN_FILES / "modalities"


def joined(sequences):
    return [token for sequence in sequences for token in sequence]


def indexed(prefix, documents, dtype=np.uint16):
    """documents: lists of sequences, each a list of tokens."""
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for sequences in documents:
            builder.add_document(joined(sequences), [len(sequence) for sequence in sequences])
    return prefix


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("name", ["docs", "edge", "u2"])
def test_the_bytes_are_those_of_modalities(tmp_path, name, dtype):
    documents = [document.tolist() for document in PackedDataset(GOLDEN / f"{name}.pbin")]
    prefix = indexed(tmp_path / "x", [[document] for document in documents], dtype)
    facts = write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()
    assert facts == PbinCounts(len(documents), sum(map(len, documents)), 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("vocab_size", [100, 257, 50257, 65536, 65537, 128256])
def test_every_pair_of_token_types(tmp_path, dtype, vocab_size):
    documents = [[list(range(100))], [[5, 0], [99]], [[1]]]
    prefix = indexed(tmp_path / "x", documents, dtype)
    facts = write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=vocab_size)
    flat = [joined(sequences) for sequences in documents]
    write_pbin(tmp_path / "y.pbin", flat, token_bytes=facts.token_bytes)
    assert (tmp_path / "x.pbin").read_bytes() == (tmp_path / "y.pbin").read_bytes()


DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65000), max_size=5), max_size=3), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=60)
@given(documents=DOCUMENTS, dtype=st.sampled_from([np.uint16, np.int32]), chunk=st.integers(1, 40))
def test_any_documents(tmp_path_factory, documents, dtype, chunk):
    documents.append([[7]])
    folder = tmp_path_factory.mktemp("x")
    prefix = indexed(folder / "x", documents, dtype)
    flat = [joined(sequences) for sequences in documents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CHUNK_DOCUMENTS", chunk)
        patch.setattr(writing, "CHUNK_TOKENS", chunk)
        patch.setattr(stream, "CHUNK_TOKENS", chunk)
        facts = write_dataset_as_pbin(prefix, folder / "x.pbin", vocab_size=50257)
    kept = [document for document in flat if document]
    assert [document.tolist() for document in PackedDataset(folder / "x.pbin")] == kept
    assert facts == PbinCounts(len(kept), sum(map(len, kept)), 2, left_out=len(flat) - len(kept))
    write_pbin(folder / "y.pbin", kept, token_bytes=2)
    assert (folder / "x.pbin").read_bytes() == (folder / "y.pbin").read_bytes()


@pytest.mark.parametrize(
    ("token", "dtype", "vocab_size"),
    [
        (256, np.uint16, 256),
        (65536, np.int32, 65536),
        (-1, np.int32, 128256),
        (-1, np.int32, 50257),
        (2**32, np.int64, 2**32),
    ],
)
def test_tokens_that_do_not_fit(tmp_path, token, dtype, vocab_size):
    prefix = indexed(tmp_path / "x", [[[1, 2]], [[3, token]]], dtype)
    with pytest.raises(
        ConfigError,
        match=f"x.bin, token 3: a token does not fit the token size\n  found: {token}\n",
    ):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=vocab_size)
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin", ".idx"}


@settings(max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=30),
    dtype=st.sampled_from([np.uint16, np.int32]),
    end=st.sampled_from([0, 3, 300]),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_end_tokens_go_where_they_lack(tmp_path_factory, documents, dtype, end, chunks):
    documents.append([1])
    folder = tmp_path_factory.mktemp("x")
    prefix = indexed(folder / "x", [[document] for document in documents], dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CHUNK_DOCUMENTS", chunks[0])
        patch.setattr(writing, "CHUNK_TOKENS", chunks[1])
        patch.setattr(stream, "CHUNK_TOKENS", chunks[1])
        facts = write_dataset_as_pbin(prefix, folder / "x.pbin", vocab_size=512, end_token=end)
    ended = [
        [*document, end] if document[-1] != end else document for document in documents if document
    ]
    write_pbin(folder / "y.pbin", ended, token_bytes=2)
    assert (folder / "x.pbin").read_bytes() == (folder / "y.pbin").read_bytes()
    assert facts == PbinCounts(
        len(ended), sum(map(len, ended)), 2, left_out=len(documents) - len(ended)
    )


def test_an_end_token_that_the_bin_has_no_room_for(tmp_path):
    prefix = indexed(tmp_path / "x", [[[1, 2]]])
    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=128256, end_token=128001)
    assert PackedDataset(tmp_path / "x.pbin")[0].tolist() == [1, 2, 128001]
    with pytest.raises(
        ConfigError, match="the end-of-document token, token 0: a token does not fit"
    ):
        write_dataset_as_pbin(prefix, tmp_path / "y.pbin", vocab_size=256, end_token=256)
    assert not (tmp_path / "y.pbin").exists()


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.uint8, 1), (np.int16, 2), (np.uint16, 2), (np.int32, 4), (np.int64, 4)]
)
def test_without_a_vocabulary_tokens_keep_their_size(tmp_path, dtype, size):
    prefix = indexed(tmp_path / "x", [[[1, 2]], [[3]]], dtype)
    assert write_dataset_as_pbin(prefix, tmp_path / "x.pbin").token_bytes == size
    assert [document.tolist() for document in PackedDataset(tmp_path / "x.pbin")] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("greatest", "end", "vocab_size", "fitting"),
    [
        (255, None, 256, 256),
        (256, None, 256, 257),
        (255, 256, 256, 257),
        (300, 256, 256, 301),
        (256, 400, 50257, 50257),
        (65535, None, 65536, 65536),
        (65536, None, 65536, 65537),
        (65535, 65536, 50000, 65537),
        (70000, None, 128000, 128000),
    ],
)
def test_added_tokens_widen_the_vocabulary_only_where_they_need_more_bytes(
    tmp_path, greatest, end, vocab_size, fitting
):
    prefix = indexed(tmp_path / "x", [[[1, 2]], [[greatest, 3]]], np.int32)
    assert fitting_vocab_size(MMapIndexedDataset(prefix), vocab_size, end) == fitting
    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=fitting, end_token=end)


@pytest.mark.parametrize("documents", [[], [[]], [[[]], []]])
def test_no_tokens(tmp_path, documents):
    prefix = indexed(tmp_path / "x", documents)
    with pytest.raises(InputError, match="no tokens to write"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)
    with pytest.raises(InputError, match="no tokens to write"):
        write_pbin(
            tmp_path / "x.pbin", [joined(sequences) for sequences in documents], token_bytes=2
        )
    assert not (tmp_path / "x.pbin").exists()


@pytest.mark.parametrize("extra", [b"a", b"ab"])
def test_a_bin_with_other_bytes(tmp_path, extra):
    """As that of a view which keeps the first documents of a dataset."""
    prefix = indexed(tmp_path / "x", [[[1, 2]]])
    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)
    with open(f"{prefix}.bin", "ab") as file:
        file.write(extra)
    write_dataset_as_pbin(prefix, tmp_path / "y.pbin", vocab_size=512)
    assert (tmp_path / "y.pbin").read_bytes() == (tmp_path / "x.pbin").read_bytes()
    assert TokenSource.of_dataset("x", Path(prefix)).count == 2


def test_a_bin_of_floats_a_short_one_and_none(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "f", np.float32) as builder:
        builder.add_document(np.ones(3, np.float32), [3])
    with pytest.raises(FormatError, match="float32"):
        write_dataset_as_pbin(tmp_path / "f", tmp_path / "x.pbin", vocab_size=512)
    prefix = indexed(tmp_path / "x", [[[1, 2]]])
    Path(f"{prefix}.bin").write_bytes(b"abc")
    with pytest.raises(FormatError, match=r"x\.bin"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)
    with pytest.raises(MissingError):
        write_dataset_as_pbin(tmp_path / "none", tmp_path / "x.pbin", vocab_size=512)


@pytest.mark.parametrize("given", [{"vocab_size": 128256}, {"vocab_size": 512, "end_token": 0}])
def test_a_bin_that_becomes_shorter_meanwhile(tmp_path, monkeypatch, given):
    prefix = indexed(tmp_path / "x", [[list(range(100))]] * 100)
    monkeypatch.setattr(conversion, "check_not_empty", lambda *_: os.truncate(f"{prefix}.bin", 999))
    with pytest.raises(SourceChangedError, match=r"x\.bin, byte 999: the file became shorter"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", **given)
    assert not (tmp_path / "x.pbin").exists()


def modalities_bytes(documents, token_bytes):
    """The slow readable twin: a .pbin as Modalities writes it."""
    bodies = [
        b"".join(token.to_bytes(token_bytes, "little") for token in document)
        for document in documents
    ]
    index, offset = [], 0
    for body in bodies:
        index.append((offset, len(body)))
        offset += len(body)
    header = offset.to_bytes(8, "little") + token_bytes.to_bytes(4, "little")
    return header + b"".join(bodies) + pickle.dumps(index, protocol=4)


def test_literal_bytes(tmp_path):
    write_pbin(tmp_path / "x.pbin", [[1], [2, 515]], token_bytes=2)
    assert (tmp_path / "x.pbin").read_bytes() == (
        b"\x06\0\0\0\0\0\0\0\x02\0\0\0"
        b"\x01\0\x02\0\x03\x02"
        b"\x80\x04\x95\x11\0\0\0\0\0\0\0]\x94(K\0K\x02\x86\x94K\x02K\x04\x86\x94e."
    )


@settings(deadline=None, max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(0, 255), max_size=20), min_size=1, max_size=40),
    size=st.sampled_from([1, 2, 4]),
)
def test_any_documents_are_written_as_by_modalities(tmp_path_factory, documents, size):
    if not any(documents):
        documents.append([7])
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    write_pbin(path, (np.array(document, np.int64) for document in documents), token_bytes=size)
    assert path.read_bytes() == modalities_bytes(documents, size)
    assert [document.tolist() for document in PackedDataset(path)] == documents


@pytest.mark.parametrize(
    ("documents", "token_bytes", "message"),
    [
        (
            [[0], [1, 256]],
            1,
            "document 1, token 1: a token does not fit the token size\n  found: 256",
        ),
        ([[-1]], 2, "document 0, token 0: a token does not fit the token size\n  found: -1"),
        ([[2**32]], 4, "found: 4294967296"),
        ([np.array([2**64 - 1], np.uint64)], 4, "found: 18446744073709551615"),
        ([[0.5]], 2, "not a flat array of whole numbers"),
        ([[[1, 2]]], 2, "not a flat array of whole numbers"),
        ([["a"]], 2, "not a flat array of whole numbers"),
        ([[True]], 2, "not a flat array of whole numbers"),
        ([[1]], 3, "tokens cannot have this size"),
    ],
)
def test_what_cannot_be_written(tmp_path, documents, token_bytes, message):
    with pytest.raises(ConfigError, match=message):
        write_pbin(tmp_path / "x.pbin", documents, token_bytes=token_bytes)
    assert list(tmp_path.iterdir()) == []
