"""A `.pbin` is read like a list: of documents, or of samples that are cut from them."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import subprocess
import sys
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, SampleIndexError
from nanoset_core.formats.pbin.dataset import PackedDataset
from nanoset_core.formats.pbin.writing import write_pbin

GOLDEN = GOLDEN_FILES / "modalities"
FACTS_BY_FILE = json.loads((GOLDEN / "samples.json").read_bytes())
"""File → what Modalities' own classes read from it."""


def continuous_cases(*, is_refused):
    """Return the requests for continuous samples that Modalities refused, or those it answered."""
    cases = []
    for file, facts in FACTS_BY_FILE.items():
        for case in facts["continuous"]:
            if ("raised" in case) == is_refused:
                words = [file, f"{case['block_size']} tokens"]
                if case["reuse_last_target"]:
                    words.append("overlapping")
                cases.append(pytest.param(file, case, id=", ".join(words)))
    return cases


def digest(samples):
    """Return the sha256 of the tokens of documents or samples, as 64-bit integers."""
    arrays = [np.asarray(sample, "<i8") for sample in samples]
    return hashlib.sha256(np.concatenate(arrays).tobytes()).hexdigest()


def token_lists(samples):
    """Return each document or sample as a list."""
    return [sample.tolist() for sample in samples]


def pickled_and_loaded(value):
    """Return a value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


def read_golden_tokens(file):
    """Return the documents that a golden file of tokens lists."""
    return json.loads((GOLDEN / file).read_bytes())


# Documents


@pytest.mark.parametrize("file", FACTS_BY_FILE)
def test_documents_are_those_of_modalities(file):
    expected = FACTS_BY_FILE[file]["documents"]

    dataset = PackedDataset(GOLDEN / file)

    assert len(dataset) == expected["samples"]
    assert digest(dataset) == expected["sha256_of_int64_le"]
    assert dataset.dtype.name == expected["dtype"]
    assert {document.dtype.name for document in dataset} == {expected["dtype"]}


@pytest.fixture
def dataset():
    """A dataset of 40 documents with tokens of four bytes."""
    return PackedDataset(GOLDEN / "u4.pbin")


@pytest.fixture
def documents():
    """The documents of `dataset`."""
    return read_golden_tokens("tokens-u4.json")


def test_documents_can_be_iterated(dataset, documents):
    assert token_lists(dataset) == documents


@pytest.mark.parametrize("index", [-1, np.int64(3)], ids=["from the end", "of NumPy"])
def test_a_document_is_read_by_its_index(dataset, documents, index):
    assert dataset[index].tolist() == documents[index]


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param(slice(None), id="all"),
        pytest.param(slice(3, 9), id="range"),
        pytest.param(slice(-4, None), id="last four"),
        pytest.param(slice(9, 3), id="empty"),
        pytest.param(slice(30, 99), id="beyond the end"),
        pytest.param(slice(None, None, -7), id="backwards"),
    ],
)
def test_several_documents_are_read_by_a_slice(dataset, documents, indices):
    assert token_lists(dataset[indices]) == documents[indices]


def test_all_tokens_are_in_one_array_that_cannot_be_changed(dataset, documents):
    assert dataset.tokens.tolist() == list(chain.from_iterable(documents))
    assert not dataset.tokens.flags.writeable


def test_a_dataset_has_the_lengths_of_its_documents(dataset, documents):
    assert dataset.document_lengths.tolist() == [len(document) for document in documents]
    assert dataset.index_facts.is_contiguous


@pytest.mark.parametrize("index", [40, -41, 2**40])
def test_an_index_outside_the_dataset_is_refused(dataset, index):
    with pytest.raises(SampleIndexError, match="no such document"):
        dataset[index]


def test_an_index_must_be_an_integer(dataset):
    with pytest.raises(TypeError):
        dataset[1.0]


def test_a_dataset_is_pickled_without_its_tokens():
    dataset = PackedDataset(GOLDEN / "docs.pbin")

    assert len(pickle.dumps(dataset)) < 500
    assert digest(pickled_and_loaded(dataset)) == digest(dataset)


def test_a_dataset_describes_itself():
    assert "layout D, 90854 tokens" in repr(PackedDataset(GOLDEN / "docs.pbin"))


def test_reading_imports_no_large_package():
    code = f"""\
import sys, nanoset_core.formats.pbin.dataset as d
d.PackedDataset({str(GOLDEN / "docs.pbin")!r}).continuous(129)[3]
heavy = {{'torch', 'pyarrow', 'dagster', 'tokenizers', 'orjson', 'yaml', 'fsspec'}}
sys.exit(', '.join(heavy & set(sys.modules)) or 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Continuous samples


@pytest.mark.parametrize(("file", "case"), continuous_cases(is_refused=True))
def test_continuous_samples_that_modalities_refuses_are_refused(file, case):
    dataset = PackedDataset(GOLDEN / file)

    with pytest.raises(ValueError, match="no sample of this size"):
        dataset.continuous(case["block_size"], case["reuse_last_target"])


@pytest.mark.parametrize("reuse_last_target", ["no", None, 1])
def test_whether_targets_are_reused_is_a_boolean(dataset, reuse_last_target):
    with pytest.raises(ConfigError, match="reuse_last_target: this argument is on or off"):
        dataset.continuous(4, reuse_last_target)


def test_continuous_samples_can_be_iterated(dataset):
    samples = dataset.continuous(4)

    assert token_lists(samples) == samples.batch(range(len(samples))).tolist()


@pytest.mark.parametrize(("file", "case"), continuous_cases(is_refused=False))
def test_continuous_samples_are_those_of_modalities(file, case):
    samples = PackedDataset(GOLDEN / file).continuous(case["block_size"], case["reuse_last_target"])

    batch = samples.batch(np.arange(len(samples)))

    assert batch.shape == (case["samples"], case["block_size"])
    assert batch.dtype == case["dtype"]
    assert samples.dtype == case["dtype"]
    assert digest(batch) == case["sha256_of_int64_le"]


@pytest.mark.parametrize(("file", "case"), continuous_cases(is_refused=False))
def test_a_continuous_sample_is_the_row_of_a_batch(file, case):
    samples = PackedDataset(GOLDEN / file).continuous(case["block_size"], case["reuse_last_target"])
    batch = samples.batch(np.arange(len(samples)))

    for index in (0, len(samples) // 2, len(samples) - 1):
        assert samples[index].tolist() == batch[index].tolist()
        assert samples[index].dtype == batch.dtype


@given(
    n_tokens=st.integers(2, 60),
    block_size=st.integers(-1, 60),
    reuse=st.booleans(),
    token_bytes=st.sampled_from([1, 2, 4]),
)
def test_continuous_samples_are_cut_at_regular_intervals(
    tmp_path_factory, n_tokens, block_size, reuse, token_bytes
):
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    tokens = list(range(n_tokens))
    write_pbin(path, [tokens], token_bytes=token_bytes)
    dataset = PackedDataset(path)
    if not 2 <= block_size <= n_tokens:
        with pytest.raises(ConfigError, match=f"2 to {n_tokens}"):
            dataset.continuous(block_size, reuse)
        return

    samples = dataset.continuous(block_size, reuse_last_target=reuse)

    step = block_size - 1 if reuse else block_size
    starts = range(0, n_tokens - block_size + 1, step)
    expected = [tokens[start : start + block_size] for start in starts]
    assert token_lists(samples) == expected
    assert len(samples) == (n_tokens - block_size) // step + 1
    assert samples[-1].tolist() == expected[-1]
    last_and_first = pickled_and_loaded(samples).batch([len(expected) - 1, 0])
    assert last_and_first.tolist() == [expected[-1], expected[0]]


@pytest.fixture
def continuous_samples():
    """709 samples."""
    return PackedDataset(GOLDEN / "docs.pbin").continuous(129)


@pytest.mark.parametrize("index", [709, -710])
def test_a_continuous_sample_that_does_not_exist_is_refused(continuous_samples, index):
    with pytest.raises(SampleIndexError, match="no such sample"):
        continuous_samples[index]


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param([0, 709], id="after the last"),
        pytest.param([-1], id="negative"),
    ],
)
def test_a_batch_with_a_sample_that_does_not_exist_is_refused(continuous_samples, indices):
    with pytest.raises(SampleIndexError, match="no such sample"):
        continuous_samples.batch(indices)


def test_a_batch_may_be_empty(continuous_samples):
    assert continuous_samples.batch([]).shape == (0, 129)


def test_continuous_samples_are_pickled_without_their_tokens():
    samples = PackedDataset(GOLDEN / "docs.pbin").continuous(129, reuse_last_target=False)

    loaded = pickled_and_loaded(samples)

    assert len(pickle.dumps(samples)) < 500
    assert loaded[5].tolist() == samples[5].tolist()
    assert loaded.reuse_last_target is False


def test_continuous_samples_describe_themselves_without_their_tokens():
    samples = PackedDataset(GOLDEN / "docs.pbin").continuous(129, reuse_last_target=False)

    assert "704 samples of 129 tokens" in repr(samples)
    assert "60" not in repr(samples)


def test_continuous_samples_are_read_without_the_index(tmp_path):
    data = bytearray((GOLDEN / "docs.pbin").read_bytes())
    data[-3] = 0xFF  # damages the index
    (tmp_path / "x.pbin").write_bytes(data)
    damaged = PackedDataset(tmp_path / "x.pbin")
    sound = PackedDataset(GOLDEN / "docs.pbin")

    assert digest(damaged.continuous(129)) == digest(sound.continuous(129))
    with pytest.raises(FormatError, match="not an index"):
        len(damaged)


# Samples that start where documents start


def slow_blocks(documents, block_size):
    """Return the samples by the rule: cut long documents, then join pieces that fit together."""
    pieces = []
    for document in documents:
        for start in range(0, len(document), block_size):
            pieces.append(document[start : start + block_size])

    samples = []
    while pieces:
        sample = pieces.pop(0)
        while pieces and len(sample) + len(pieces[0]) <= block_size:
            sample = sample + pieces.pop(0)
        samples.append(sample)
    return samples


def test_short_documents_share_a_block_and_long_ones_are_cut(tmp_path):
    documents = [[1, 2], [3, 4], [5], [6, 7, 8, 9, 10, 11, 12], [13], [14, 15, 16, 17], [18]]
    write_pbin(tmp_path / "x.pbin", documents, token_bytes=1)

    samples = PackedDataset(tmp_path / "x.pbin").document_blocks(4)

    assert token_lists(samples) == [
        [1, 2, 3, 4],
        [5],
        [6, 7, 8, 9],
        [10, 11, 12, 13],
        [14, 15, 16, 17],
        [18],
    ]
    assert samples.lengths.tolist() == [4, 1, 4, 4, 4, 1]
    assert samples[1].dtype == np.uint8


@given(
    lengths=st.lists(st.one_of(st.integers(0, 4), st.integers(0, 40)), max_size=80),
    block_size=st.integers(1, 30),
)
def test_blocks_of_any_documents_follow_the_rule(tmp_path_factory, lengths, block_size):
    stops = np.cumsum([0, *lengths, 1]).tolist()
    documents = [list(range(start, stop)) for start, stop in pairwise(stops)]
    path = tmp_path_factory.mktemp("x") / "x.pbin"
    write_pbin(path, documents, token_bytes=2)

    samples = PackedDataset(path).document_blocks(block_size)

    expected = slow_blocks(documents, block_size)
    assert token_lists(samples) == expected
    assert samples.lengths.tolist() == [len(sample) for sample in expected]
    assert samples[-1].tolist() == expected[-1]


def test_blocks_follow_the_order_of_the_index(tmp_path):
    tokens = struct.pack("<5H", 0, 1, 2, 3, 4)
    header = struct.pack("<QI", len(tokens), 2)
    index = pickle.dumps([(6, 4), (0, 2), (6, 4)], protocol=4)  # the tokens 3 4, 0, and 3 4
    (tmp_path / "x.pbin").write_bytes(header + tokens + index)

    samples = PackedDataset(tmp_path / "x.pbin").document_blocks(3)

    assert token_lists(samples) == [[3, 4, 0], [3, 4]]
    assert {sample.dtype for sample in samples} == {np.dtype(np.int32)}


@pytest.fixture
def blocks():
    """Blocks of at most 64 tokens."""
    return PackedDataset(GOLDEN / "u2.pbin").document_blocks(64)


def test_blocks_have_all_tokens_of_the_documents(blocks):
    documents = read_golden_tokens("tokens-u2.json")

    n_tokens = sum(block.size for block in blocks)

    assert n_tokens == sum(map(len, documents))


def test_blocks_can_be_pickled(blocks):
    assert token_lists(pickled_and_loaded(blocks)) == token_lists(blocks)


def test_blocks_describe_themselves(blocks):
    assert f"{len(blocks)} samples of 64 tokens" in repr(blocks)


def test_a_block_that_does_not_exist_is_refused(blocks):
    with pytest.raises(SampleIndexError, match="no such sample"):
        blocks[len(blocks)]
    with pytest.raises(SampleIndexError, match="no such sample"):
        blocks[-len(blocks) - 1]


@pytest.mark.parametrize("block_size", ["3", 3.0, True, None])
def test_the_size_of_a_block_is_a_whole_number(tmp_path, block_size):
    write_pbin(tmp_path / "x.pbin", [[1, 2, 3, 4]], token_bytes=2)
    dataset = PackedDataset(tmp_path / "x.pbin")

    with pytest.raises(ConfigError, match="no sample of this size"):
        dataset.continuous(block_size)
    with pytest.raises(ConfigError, match="at least one token"):
        dataset.document_blocks(block_size)


def test_a_block_may_be_an_integer_of_numpy(tmp_path):
    write_pbin(tmp_path / "x.pbin", [[1, 2, 3, 4]], token_bytes=2)
    dataset = PackedDataset(tmp_path / "x.pbin")

    assert len(dataset.continuous(np.int64(2))) == 3
    assert len(dataset.document_blocks(np.int64(2))) == 2


def test_a_block_must_have_a_token():
    with pytest.raises(ConfigError, match="at least one token"):
        PackedDataset(GOLDEN / "u2.pbin").document_blocks(0)
