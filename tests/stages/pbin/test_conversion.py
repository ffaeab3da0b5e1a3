"""Documents are written as a .pbin with the bytes that Modalities writes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pbin_files import GOLDEN, read_documents
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
from nanoset_core.formats.pbin.writing import PbinCounts, write_pbin
from nanoset_core.stages.pbin import conversion
from nanoset_core.stages.pbin.conversion import fitting_vocab_size, write_dataset_as_pbin
from nanoset_core.stages.webdataset.sources import TokenSource

Document = Sequence[Sequence[int]]
"""The sequences of a document of an indexed dataset, each a list of tokens."""


def tokens_of(document: Document) -> list[int]:
    """Return the tokens of all sequences of a document."""
    return list(chain.from_iterable(document))


def count_tokens(documents: Sequence[Sequence[int]]) -> int:
    """Return how many tokens documents have together."""
    return sum(len(tokens) for tokens in documents)


def write_dataset(prefix: Path, documents: Sequence[Document], dtype: type = np.uint16) -> Path:
    """Write an indexed dataset, and return its prefix."""
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for document in documents:
            lengths = [len(sequence) for sequence in document]
            builder.add_document(tokens_of(document), lengths)
    return prefix


@contextmanager
def small_chunks(*, n_documents: int, n_tokens: int) -> Iterator[None]:
    """Let datasets be read and written in chunks of some documents and tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "_CHUNK_DOCUMENTS", n_documents)
        patch.setattr(writing, "CHUNK_TOKENS", n_tokens)
        patch.setattr(stream, "CHUNK_TOKENS", n_tokens)
        yield


# Conversion of an indexed dataset


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("name", ["docs", "edge", "u2"])
def test_a_converted_dataset_has_the_bytes_that_modalities_writes(tmp_path, name, dtype):
    documents = read_documents(GOLDEN / f"{name}.pbin")
    prefix = write_dataset(tmp_path / "x", [[tokens] for tokens in documents], dtype)

    counts = write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)

    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()
    assert counts == PbinCounts(len(documents), count_tokens(documents), token_bytes=2)


TOKEN_BYTES_BY_VOCAB_SIZE = {100: 1, 257: 2, 50257: 2, 65536: 2, 65537: 4, 128256: 4}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("vocab_size", TOKEN_BYTES_BY_VOCAB_SIZE)
def test_tokens_of_any_type_get_the_size_that_the_vocabulary_needs(tmp_path, dtype, vocab_size):
    documents = [[list(range(100))], [[5, 0], [99]], [[1]]]
    prefix = write_dataset(tmp_path / "x", documents, dtype)

    counts = write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=vocab_size)

    assert counts.token_bytes == TOKEN_BYTES_BY_VOCAB_SIZE[vocab_size]
    expected_path = tmp_path / "expected.pbin"
    all_tokens = [tokens_of(document) for document in documents]
    write_pbin(expected_path, all_tokens, token_bytes=counts.token_bytes)
    assert (tmp_path / "x.pbin").read_bytes() == expected_path.read_bytes()


@pytest.mark.parametrize(
    ("dtype", "token_bytes"),
    [(np.uint8, 1), (np.int16, 2), (np.uint16, 2), (np.int32, 4), (np.int64, 4)],
)
def test_without_a_vocabulary_tokens_keep_their_size_up_to_four_bytes(tmp_path, dtype, token_bytes):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]], [[3]]], dtype)

    counts = write_dataset_as_pbin(prefix, tmp_path / "x.pbin")

    assert counts.token_bytes == token_bytes
    assert read_documents(tmp_path / "x.pbin") == [[1, 2], [3]]


DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 65000), max_size=5), max_size=3), min_size=1, max_size=30
)


@settings(deadline=None, max_examples=60)
@given(
    documents=DOCUMENTS,
    dtype=st.sampled_from([np.uint16, np.int32]),
    chunk_size=st.integers(1, 40),
)
def test_documents_without_tokens_are_left_out_and_counted(
    tmp_path_factory, documents, dtype, chunk_size
):
    documents.append([[7]])  # at least one document has tokens
    folder = tmp_path_factory.mktemp("x")
    prefix = write_dataset(folder / "x", documents, dtype)

    with small_chunks(n_documents=chunk_size, n_tokens=chunk_size):
        counts = write_dataset_as_pbin(prefix, folder / "x.pbin", vocab_size=50257)

    all_tokens = [tokens_of(document) for document in documents]
    with_tokens = [tokens for tokens in all_tokens if tokens]
    assert read_documents(folder / "x.pbin") == with_tokens
    assert counts == PbinCounts(
        documents=len(with_tokens),
        tokens=count_tokens(with_tokens),
        token_bytes=2,
        left_out=len(documents) - len(with_tokens),
    )
    write_pbin(folder / "expected.pbin", with_tokens, token_bytes=2)
    assert (folder / "x.pbin").read_bytes() == (folder / "expected.pbin").read_bytes()


@pytest.mark.parametrize(
    ("token", "dtype", "vocab_size"),
    [
        pytest.param(256, np.uint16, 256, id="one byte"),
        pytest.param(65536, np.int32, 65536, id="two bytes"),
        pytest.param(2**32, np.int64, 2**32, id="four bytes"),
        pytest.param(-1, np.int32, 50257, id="negative, two bytes"),
        pytest.param(-1, np.int32, 128256, id="negative, four bytes"),
    ],
)
def test_a_token_that_does_not_fit_is_refused_with_its_place(tmp_path, token, dtype, vocab_size):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]], [[3, token]]], dtype)

    message = f"x.bin, token 3: a token does not fit the token size\n  found: {token}\n"
    with pytest.raises(ConfigError, match=message):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=vocab_size)

    assert {path.suffix for path in tmp_path.iterdir()} == {".bin", ".idx"}


# End-of-document tokens


@settings(max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=30),
    dtype=st.sampled_from([np.uint16, np.int32]),
    end_token=st.sampled_from([0, 3, 300]),
    documents_per_chunk=st.integers(1, 9),
    tokens_per_chunk=st.integers(1, 9),
)
def test_the_end_token_is_added_to_documents_that_do_not_end_in_it(
    tmp_path_factory, documents, dtype, end_token, documents_per_chunk, tokens_per_chunk
):
    documents.append([1])  # at least one document has tokens
    folder = tmp_path_factory.mktemp("x")
    prefix = write_dataset(folder / "x", [[tokens] for tokens in documents], dtype)

    with small_chunks(n_documents=documents_per_chunk, n_tokens=tokens_per_chunk):
        counts = write_dataset_as_pbin(
            prefix, folder / "x.pbin", vocab_size=512, end_token=end_token
        )

    expected = []
    for tokens in documents:
        if tokens and tokens[-1] == end_token:
            expected.append(tokens)
        elif tokens:
            expected.append([*tokens, end_token])
    write_pbin(folder / "expected.pbin", expected, token_bytes=2)
    assert (folder / "x.pbin").read_bytes() == (folder / "expected.pbin").read_bytes()
    assert counts == PbinCounts(
        documents=len(expected),
        tokens=count_tokens(expected),
        token_bytes=2,
        left_out=len(documents) - len(expected),
    )


def test_the_end_token_may_need_more_bytes_than_the_tokens_of_the_dataset(tmp_path):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]]], np.uint16)

    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=128256, end_token=128001)

    assert read_documents(tmp_path / "x.pbin") == [[1, 2, 128001]]


def test_an_end_token_that_does_not_fit_is_refused(tmp_path):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]]])

    message = "the end-of-document token, token 0: a token does not fit"
    with pytest.raises(ConfigError, match=message):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=256, end_token=256)

    assert not (tmp_path / "x.pbin").exists()


@pytest.mark.parametrize(
    ("greatest", "end_token", "vocab_size", "fitting"),
    [
        # The model's vocabulary, without added tokens, has 256 tokens: one byte.
        (255, None, 256, 256),
        (256, None, 256, 257),
        (255, 256, 256, 257),
        (300, 256, 256, 301),
        # Two bytes
        (256, 400, 50257, 50257),
        (65535, None, 65536, 65536),
        (65536, None, 65536, 65537),
        (65535, 65536, 50000, 65537),
        # Four bytes
        (70000, None, 128000, 128000),
    ],
)
def test_added_tokens_enlarge_the_vocabulary_only_if_they_need_more_bytes(
    tmp_path, greatest, end_token, vocab_size, fitting
):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]], [[greatest, 3]]], np.int32)

    assert fitting_vocab_size(MMapIndexedDataset(prefix), vocab_size, end_token) == fitting

    # With this size, all tokens can be written.
    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=fitting, end_token=end_token)


# Datasets that cannot be converted


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([], id="no documents"),
        pytest.param([[]], id="a document without sequences"),
        pytest.param([[[]], []], id="an empty sequence"),
    ],
)
def test_documents_without_any_token_are_refused(tmp_path, documents):
    prefix = write_dataset(tmp_path / "x", documents)
    all_tokens = [tokens_of(document) for document in documents]

    with pytest.raises(InputError, match="no tokens to write"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)
    with pytest.raises(InputError, match="no tokens to write"):
        write_pbin(tmp_path / "x.pbin", all_tokens, token_bytes=2)

    assert not (tmp_path / "x.pbin").exists()


@pytest.mark.parametrize("further_bytes", [b"a", b"ab"])
def test_bytes_of_a_bin_after_its_last_document_are_ignored(tmp_path, further_bytes):
    """The .bin of a view that keeps the first documents of a dataset has such bytes."""
    prefix = write_dataset(tmp_path / "x", [[[1, 2]]])
    write_dataset_as_pbin(prefix, tmp_path / "expected.pbin", vocab_size=512)
    with open(f"{prefix}.bin", "ab") as file:
        file.write(further_bytes)

    write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)

    assert (tmp_path / "x.pbin").read_bytes() == (tmp_path / "expected.pbin").read_bytes()
    assert TokenSource.of_dataset("x", Path(prefix)).count == 2


def test_a_dataset_of_floats_is_refused(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "x", np.float32) as builder:
        builder.add_document(np.ones(3, np.float32), [3])

    with pytest.raises(FormatError, match="float32"):
        write_dataset_as_pbin(tmp_path / "x", tmp_path / "x.pbin", vocab_size=512)


def test_a_bin_that_is_too_short_is_refused(tmp_path):
    prefix = write_dataset(tmp_path / "x", [[[1, 2]]])
    Path(f"{prefix}.bin").write_bytes(b"abc")

    with pytest.raises(FormatError, match=r"x\.bin"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", vocab_size=512)


def test_a_missing_dataset_is_reported(tmp_path):
    with pytest.raises(MissingError):
        write_dataset_as_pbin(tmp_path / "none", tmp_path / "x.pbin", vocab_size=512)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"vocab_size": 128256}, id="tokens are converted"),
        pytest.param({"vocab_size": 512, "end_token": 0}, id="end tokens are added"),
    ],
)
def test_a_bin_that_becomes_shorter_while_it_is_read_is_reported(tmp_path, monkeypatch, options):
    prefix = write_dataset(tmp_path / "x", [[list(range(100))]] * 100)
    # This check is made after the dataset was opened, and before its tokens are read.
    monkeypatch.setattr(
        conversion, "check_not_empty", lambda *_args: os.truncate(f"{prefix}.bin", 999)
    )

    with pytest.raises(SourceChangedError, match=r"x\.bin, byte 999: the file became shorter"):
        write_dataset_as_pbin(prefix, tmp_path / "x.pbin", **options)

    assert not (tmp_path / "x.pbin").exists()


# The bytes of a .pbin


def modalities_bytes(documents: Sequence[Sequence[int]], token_bytes: int) -> bytes:
    """Return a .pbin as Modalities writes it, in the slow but readable way."""
    index = []
    data = b""
    for document in documents:
        document_bytes = b"".join(token.to_bytes(token_bytes, "little") for token in document)
        index.append((len(data), len(document_bytes)))
        data += document_bytes
    header = len(data).to_bytes(8, "little") + token_bytes.to_bytes(4, "little")
    return header + data + pickle.dumps(index, protocol=4)


def test_a_pbin_is_a_header_the_tokens_and_a_pickled_index(tmp_path):
    write_pbin(tmp_path / "x.pbin", [[1], [2, 515]], token_bytes=2)

    assert (tmp_path / "x.pbin").read_bytes() == (
        b"\x06\0\0\0\0\0\0\0\x02\0\0\0"
        b"\x01\0\x02\0\x03\x02"
        b"\x80\x04\x95\x11\0\0\0\0\0\0\0]\x94(K\0K\x02\x86\x94K\x02K\x04\x86\x94e."
    )


@settings(deadline=None, max_examples=60)
@given(
    documents=st.lists(st.lists(st.integers(0, 255), max_size=20), min_size=1, max_size=40),
    token_bytes=st.sampled_from([1, 2, 4]),
)
def test_documents_are_written_as_by_modalities(tmp_path_factory, documents, token_bytes):
    if not any(documents):
        documents.append([7])  # at least one document has tokens
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    arrays = (np.array(document, np.int64) for document in documents)

    write_pbin(path, arrays, token_bytes=token_bytes)

    assert path.read_bytes() == modalities_bytes(documents, token_bytes)
    assert read_documents(path) == documents


DOES_NOT_FIT = "a token does not fit the token size"


@pytest.mark.parametrize(
    ("documents", "token_bytes", "message"),
    [
        pytest.param(
            [[0], [1, 256]],
            1,
            f"document 1, token 1: {DOES_NOT_FIT}\n  found: 256",
            id="more than a byte",
        ),
        pytest.param([[-1]], 2, f"document 0, token 0: {DOES_NOT_FIT}\n  found: -1", id="negative"),
        pytest.param([[2**32]], 4, "found: 4294967296", id="more than four bytes"),
        pytest.param(
            [np.array([2**64 - 1], np.uint64)], 4, "found: 18446744073709551615", id="uint64"
        ),
        pytest.param([[0.5]], 2, "not a flat array of whole numbers", id="fraction"),
        pytest.param([[[1, 2]]], 2, "not a flat array of whole numbers", id="nested"),
        pytest.param([["a"]], 2, "not a flat array of whole numbers", id="text"),
        pytest.param([[True]], 2, "not a flat array of whole numbers", id="boolean"),
        pytest.param([[1]], 3, "tokens cannot have this size", id="three bytes"),
    ],
)
def test_documents_that_cannot_be_written_are_refused(tmp_path, documents, token_bytes, message):
    with pytest.raises(ConfigError, match=message):
        write_pbin(tmp_path / "x.pbin", documents, token_bytes=token_bytes)

    assert list(tmp_path.iterdir()) == []
