import itertools
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.packed import PackedDataset, write_packed

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"


def slow_blocks(documents, block_size):
    """The rule, word for word."""
    pieces = [
        document[begin : begin + block_size] for document in documents for begin in range(0, len(document), block_size)
    ]
    samples = []
    while pieces:
        sample = pieces.pop(0)
        while pieces and len(sample) + len(pieces[0]) <= block_size:
            sample = sample + pieces.pop(0)
        samples.append(sample)
    return samples


def test_literal_example(tmp_path):
    documents = [[1, 2], [3, 4], [5], [6, 7, 8, 9, 10, 11, 12], [13], [14, 15, 16, 17], [18]]
    write_packed(tmp_path / "x.pbin", documents, token_bytes=1)
    samples = PackedDataset(tmp_path / "x.pbin").document_blocks(4)
    assert [sample.tolist() for sample in samples] == [
        [1, 2, 3, 4],
        [5],
        [6, 7, 8, 9],
        [10, 11, 12, 13],
        [14, 15, 16, 17],
        [18],
    ]
    assert samples.lengths.tolist() == [4, 1, 4, 4, 4, 1]
    assert samples.batch([1, 3], pad_id=99).tolist() == [[5, 99, 99, 99], [10, 11, 12, 13]]
    assert samples.batch([1], pad_id=99).dtype == np.uint8


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 40)), max_size=80),
    block_size=st.integers(1, 30),
)
def test_any_documents(tmp_path_factory, lengths, block_size):
    ends = np.cumsum([0, *lengths, 1])
    documents = [list(range(a, b)) for a, b in itertools.pairwise(ends.tolist())]
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    write_packed(path, documents, token_bytes=2)
    samples = PackedDataset(path).document_blocks(block_size)
    expected = slow_blocks(documents, block_size)
    assert [sample.tolist() for sample in samples] == expected
    assert samples.lengths.tolist() == [len(sample) for sample in expected]
    assert samples[-1].tolist() == expected[-1]


@pytest.mark.parametrize("block_size", [1, 2, 17, 129, 1025, 10**12])
def test_golden_documents(block_size):
    dataset = PackedDataset(GOLDEN / "docs.pbin")
    samples = dataset.document_blocks(block_size)
    expected = slow_blocks([document.tolist() for document in dataset], block_size)
    assert [sample.tolist() for sample in samples] == expected
    assert samples.lengths.sum() == len(dataset.tokens)


def test_documents_that_do_not_lie_back_to_back(tmp_path):
    index = pickle.dumps([(6, 4), (0, 2), (6, 4)], protocol=4)
    (tmp_path / "x.pbin").write_bytes(struct.pack("<QI", 10, 2) + struct.pack("<5H", *range(5)) + index)
    samples = PackedDataset(tmp_path / "x.pbin").document_blocks(3)
    assert [sample.tolist() for sample in samples] == [[3, 4, 0], [3, 4]]
    assert {sample.dtype for sample in samples} == {np.dtype(np.int32)}


def test_pickling_and_limits(tmp_path):
    samples = PackedDataset(GOLDEN / "u2.pbin").document_blocks(64)
    copy = pickle.loads(pickle.dumps(samples))
    assert [a.tolist() for a in copy] == [a.tolist() for a in samples]
    assert len(pickle.dumps(samples)) < 500
    assert f"{len(samples)} samples of up to 64 tokens" in repr(samples)
    documents = json.loads((GOLDEN / "tokens-u2.json").read_bytes())
    assert sum(samples[i].size for i in range(len(samples))) == sum(map(len, documents))
    for index in (len(samples), -len(samples) - 1):
        with pytest.raises(SampleIndexError, match="no such sample"):
            samples[index]
    with pytest.raises(ConfigError, match="at least one token"):
        PackedDataset(GOLDEN / "u2.pbin").document_blocks(0)
    with pytest.raises(ConfigError, match="padding"):
        PackedDataset(GOLDEN / "u1.pbin").document_blocks(8).batch([0], pad_id=256)
