import hashlib
import itertools
import json
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, SampleIndexError
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin

GOLDEN = GOLDEN_FILES / "modalities"
SAMPLES = json.loads((GOLDEN / "samples.json").read_bytes())
CONTINUOUS = [(name, case) for name, facts in SAMPLES.items() for case in facts["continuous"]]


def digest(samples):
    return hashlib.sha256(
        np.concatenate([np.asarray(sample, "<i8") for sample in samples]).tobytes()
    ).hexdigest()


def again(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", SAMPLES)
def test_documents_are_those_of_modalities(name):
    dataset, expected = PackedDataset(GOLDEN / name), SAMPLES[name]["documents"]
    assert len(dataset) == expected["samples"]
    assert digest(dataset) == expected["sha256_of_int64_le"]
    assert (
        {document.dtype.name for document in dataset} == {expected["dtype"]} == {dataset.dtype.name}
    )


@pytest.mark.parametrize(("name", "case"), CONTINUOUS)
def test_continuous_samples_are_those_of_modalities(name, case):
    dataset = PackedDataset(GOLDEN / name)
    arguments = case["block_size"], case["reuse_last_target"]
    if "raised" in case:
        with pytest.raises(ValueError, match="no sample of this size"):
            dataset.continuous(*arguments)
        return
    samples = dataset.continuous(*arguments)
    assert len(samples) == case["samples"]
    whole = samples.batch(np.arange(len(samples)))
    assert whole.shape == (case["samples"], case["block_size"])
    assert whole.dtype == case["dtype"] == samples.dtype
    assert digest(whole) == case["sha256_of_int64_le"]
    for i in {0, len(samples) // 2, len(samples) - 1}:
        assert (samples[i] == whole[i]).all()
        assert samples[i].dtype == whole.dtype


@settings(deadline=None, max_examples=80)
@given(
    count=st.integers(2, 60),
    block_size=st.integers(-1, 60),
    reuse=st.booleans(),
    size=st.sampled_from([1, 2, 4]),
)
def test_continuous_samples_are_those_of_the_slow_twin(
    tmp_path_factory, count, block_size, reuse, size
):
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    tokens = list(range(count))
    write_pbin(path, [tokens], token_bytes=size)
    dataset = PackedDataset(path)
    if not 2 <= block_size <= count:
        with pytest.raises(ConfigError, match=f"2 to {count}"):
            dataset.continuous(block_size, reuse)
        return
    step = block_size - 1 if reuse else block_size
    expected = [tokens[i : i + block_size] for i in range(0, count - block_size + 1, step)]
    samples = dataset.continuous(block_size, reuse_last_target=reuse)
    assert [sample.tolist() for sample in samples] == expected
    assert len(expected) == (
        (count - block_size) // (block_size - 1) + 1 if reuse else count // block_size
    )
    assert samples[-1].tolist() == expected[-1]
    assert again(samples).batch([len(expected) - 1, 0]).tolist() == [expected[-1], expected[0]]


def test_documents_like_a_list():
    dataset = PackedDataset(GOLDEN / "u4.pbin")
    expected = json.loads((GOLDEN / "tokens-u4.json").read_bytes())
    assert [document.tolist() for document in dataset] == expected
    for part in (
        slice(None),
        slice(3, 9),
        slice(-4, None),
        slice(9, 3),
        slice(30, 99),
        slice(None, None, -7),
    ):
        assert [document.tolist() for document in dataset[part]] == expected[part]
    assert dataset[-1].tolist() == expected[-1]
    assert dataset[np.int64(3)].tolist() == expected[3]
    assert dataset.document_lengths.tolist() == [len(document) for document in expected]
    assert dataset.tokens.tolist() == [token for document in expected for token in document]
    assert not dataset.tokens.flags.writeable
    assert dataset.index_facts.is_contiguous
    for index in (40, -41, 2**40):
        with pytest.raises(SampleIndexError, match="no such document"):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.0]


def test_samples_outside():
    samples = PackedDataset(GOLDEN / "docs.pbin").continuous(129)
    for index in (709, -710):
        with pytest.raises(SampleIndexError, match="no such sample"):
            samples[index]
    for indices in ([0, 709], [-1]):
        with pytest.raises(SampleIndexError, match="no such sample"):
            samples.batch(indices)
    assert samples.batch([]).shape == (0, 129)


def test_pickling_carries_no_tokens():
    dataset = PackedDataset(GOLDEN / "docs.pbin")
    assert len(pickle.dumps(dataset)) < 500
    assert digest(again(dataset)) == digest(dataset)
    samples = dataset.continuous(129, reuse_last_target=False)
    assert len(pickle.dumps(samples)) < 500
    assert (again(samples)[5] == samples[5]).all()
    assert again(samples).reuse_last_target is False
    assert "60" not in repr(samples)
    assert "704 samples of 129 tokens" in repr(samples)
    assert "layout D, 90854 tokens" in repr(dataset)


def test_continuous_samples_need_no_index(tmp_path):
    data = bytearray((GOLDEN / "docs.pbin").read_bytes())
    data[-3] = 0xFF
    (tmp_path / "x.pbin").write_bytes(data)
    dataset = PackedDataset(tmp_path / "x.pbin")
    assert digest(dataset.continuous(129)) == digest(
        PackedDataset(GOLDEN / "docs.pbin").continuous(129)
    )
    with pytest.raises(FormatError, match="not an index"):
        len(dataset)


def test_reading_imports_numpy_alone():
    code = (
        "import sys, nanoset_core.formats.pbin.dataset as d\n"
        f"d.PackedDataset({str(GOLDEN / 'docs.pbin')!r}).continuous(129)[3]\n"
        "heavy = {'torch', 'pyarrow', 'dagster', 'tokenizers', 'orjson', 'yaml', 'fsspec'} & "
        "set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def slow_blocks(documents, block_size):
    """The rule, word for word."""
    pieces = [
        document[begin : begin + block_size]
        for document in documents
        for begin in range(0, len(document), block_size)
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
    write_pbin(tmp_path / "x.pbin", documents, token_bytes=1)
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
    assert samples[1].dtype == np.uint8


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 40)), max_size=80),
    block_size=st.integers(1, 30),
)
def test_any_documents(tmp_path_factory, lengths, block_size):
    ends = np.cumsum([0, *lengths, 1])
    documents = [list(range(a, b)) for a, b in itertools.pairwise(ends.tolist())]
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    write_pbin(path, documents, token_bytes=2)
    samples = PackedDataset(path).document_blocks(block_size)
    expected = slow_blocks(documents, block_size)
    assert [sample.tolist() for sample in samples] == expected
    assert samples.lengths.tolist() == [len(sample) for sample in expected]
    assert samples[-1].tolist() == expected[-1]


def test_documents_that_do_not_lie_back_to_back(tmp_path):
    index = pickle.dumps([(6, 4), (0, 2), (6, 4)], protocol=4)
    (tmp_path / "x.pbin").write_bytes(
        struct.pack("<QI", 10, 2) + struct.pack("<5H", *range(5)) + index
    )
    samples = PackedDataset(tmp_path / "x.pbin").document_blocks(3)
    assert [sample.tolist() for sample in samples] == [[3, 4, 0], [3, 4]]
    assert {sample.dtype for sample in samples} == {np.dtype(np.int32)}


def test_pickling_and_limits(tmp_path):
    samples = PackedDataset(GOLDEN / "u2.pbin").document_blocks(64)
    copy = pickle.loads(pickle.dumps(samples))
    assert [a.tolist() for a in copy] == [a.tolist() for a in samples]
    assert f"{len(samples)} samples of 64 tokens" in repr(samples)
    documents = json.loads((GOLDEN / "tokens-u2.json").read_bytes())
    assert sum(samples[i].size for i in range(len(samples))) == sum(map(len, documents))
    for index in (len(samples), -len(samples) - 1):
        with pytest.raises(SampleIndexError, match="no such sample"):
            samples[index]
    with pytest.raises(ConfigError, match="at least one token"):
        PackedDataset(GOLDEN / "u2.pbin").document_blocks(0)
