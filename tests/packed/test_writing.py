import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.packed import PackedDataset, PackedFacts, write_packed

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"


def modalities_bytes(documents, token_bytes):
    """The slow readable twin: a .pbin as Modalities writes it."""
    bodies = [b"".join(token.to_bytes(token_bytes, "little") for token in document) for document in documents]
    index, offset = [], 0
    for body in bodies:
        index.append((offset, len(body)))
        offset += len(body)
    header = offset.to_bytes(8, "little") + token_bytes.to_bytes(4, "little")
    return header + b"".join(bodies) + pickle.dumps(index, protocol=4)


@pytest.mark.parametrize("token_bytes", [1, 2, 4])
def test_golden_files(tmp_path, token_bytes):
    documents = json.loads((GOLDEN / f"tokens-u{token_bytes}.json").read_bytes())
    facts = write_packed(tmp_path / "x.pbin", documents, token_bytes=token_bytes)
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"u{token_bytes}.pbin").read_bytes()
    assert facts == PackedFacts(40, sum(map(len, documents)), token_bytes)


def test_literal_bytes(tmp_path):
    write_packed(tmp_path / "x.pbin", [[1], [2, 515]], token_bytes=2)
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
def test_any_documents(tmp_path_factory, documents, size):
    if not any(documents):
        documents.append([7])
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    write_packed(path, (np.array(document, np.int64) for document in documents), token_bytes=size)
    assert path.read_bytes() == modalities_bytes(documents, size)
    assert [document.tolist() for document in PackedDataset(path)] == documents


def test_documents_longer_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("nanoset_core.packed.writing.CHUNK_TOKENS", 7)
    documents = [list(range(n)) for n in (20, 7, 1)]
    write_packed(tmp_path / "x.pbin", documents, token_bytes=4)
    assert (tmp_path / "x.pbin").read_bytes() == modalities_bytes(documents, 4)


@pytest.mark.parametrize(
    ("documents", "token_bytes", "message"),
    [
        ([[0], [1, 256]], 1, "document 1, token 1: a token does not fit the token size\n  found: 256"),
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
        write_packed(tmp_path / "x.pbin", documents, token_bytes=token_bytes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_nothing_to_write(tmp_path, documents):
    with pytest.raises(InputError, match="no tokens to write"):
        write_packed(tmp_path / "x.pbin", documents, token_bytes=2)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path):
    write_packed(tmp_path / "x.pbin", [[1]], token_bytes=2)
    before = (tmp_path / "x.pbin").read_bytes()

    def documents():
        yield [1]
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        write_packed(tmp_path / "x.pbin", documents(), token_bytes=2)
    assert (tmp_path / "x.pbin").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
