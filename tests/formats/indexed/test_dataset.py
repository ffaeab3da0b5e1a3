"""Indexed datasets are read like a list of sequences."""

from __future__ import annotations

import pickle
from itertools import chain

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, cases, name_of

from nanoset_core.errors import FormatError, MissingError, SampleIndexError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset


@pytest.fixture
def prefix(tmp_path):
    """The prefix of a dataset with the sequences 1 2 3, 4, an empty one, and 5."""
    with MMapIndexedDatasetBuilder(tmp_path / "small", np.uint16) as builder:
        builder.add_document([1, 2, 3, 4], [3, 1])
        builder.add_document([])
        builder.add_document([5])
    return tmp_path / "small"


@pytest.fixture
def dataset(prefix):
    """The dataset of `prefix`."""
    return MMapIndexedDataset(prefix)


def token_lists(sequences):
    """Return each sequence as a list."""
    return [sequence.tolist() for sequence in sequences]


def test_a_damaged_sequence_does_not_end_a_loop(prefix):
    idx_path = prefix.with_suffix(".idx")
    idx = bytearray(idx_path.read_bytes())
    idx[38:42] = np.int32(-5).tobytes()  # the length of sequence 1
    idx_path.write_bytes(idx)
    dataset = MMapIndexedDataset(prefix, validate=False)

    with pytest.raises(SampleIndexError, match="sequence 1"):
        list(dataset)


# Datasets that Megatron-LM wrote


@pytest.mark.parametrize("case", cases("indexed_dataset"), ids=name_of)
def test_a_dataset_of_megatron_is_read(case):
    expected = case["meta"]

    dataset = MMapIndexedDataset(FOLDER / case["params"]["prefix"])

    assert len(dataset) == len(expected["sequence_lengths"])
    assert dataset.sequence_lengths.tolist() == expected["sequence_lengths"]
    assert np.diff(dataset.document_indices).tolist() == expected["sequences_per_document"]
    assert dataset.dtype == np.dtype(case["params"]["dtype"])
    assert dataset.modes is None
    assert len(dataset.tokens) == expected["n_tokens"]
    np.testing.assert_array_equal(np.concatenate(dataset[:]), dataset.tokens)


@pytest.mark.parametrize("case", cases("indexed_dataset_multimodal"), ids=name_of)
def test_the_modes_of_a_multimodal_dataset_of_megatron_are_read(case):
    dataset = MMapIndexedDataset(FOLDER / case["params"]["prefix"])

    assert dataset.sequence_lengths.tolist() == case["meta"]["sequence_lengths"]
    assert len(dataset) == len(case["meta"]["sequence_lengths"])
    assert dataset.modes.tolist() == list(chain.from_iterable(case["params"]["modes"]))


# Sequences


def test_a_dataset_can_be_iterated(dataset):
    assert token_lists(dataset) == [[1, 2, 3], [4], [], [5]]


@pytest.mark.parametrize(
    ("index", "sequence"),
    [
        pytest.param(0, [1, 2, 3], id="first"),
        pytest.param(-1, [5], id="from the end"),
        pytest.param(np.int64(1), [4], id="of NumPy"),
    ],
)
def test_a_sequence_is_read_by_its_index(dataset, index, sequence):
    assert dataset[index].tolist() == sequence


@pytest.mark.parametrize(
    ("indices", "sequences"),
    [
        pytest.param(slice(1, 3), [[4], []], id="range"),
        pytest.param(slice(None, None, -2), [[5], [4]], id="backwards"),
    ],
)
def test_several_sequences_are_read_by_a_slice(dataset, indices, sequences):
    assert token_lists(dataset[indices]) == sequences


def test_a_dataset_has_the_arrays_of_its_index(dataset):
    assert dataset.sequence_pointers.tolist() == [0, 6, 8, 8]
    assert dataset.document_indices.tolist() == [0, 2, 3, 4]


def test_tokens_have_the_type_of_the_dataset(dataset):
    assert dataset[0].dtype == np.uint16


def test_tokens_cannot_be_changed(dataset):
    with pytest.raises(ValueError, match="read-only"):
        dataset[0][0] = 9


@pytest.mark.parametrize(
    ("index", "part", "tokens"),
    [
        pytest.param(0, {"offset": 1}, [2, 3], id="from the second token"),
        pytest.param(0, {"offset": 1, "length": 1}, [2], id="the second token"),
        pytest.param(0, {"offset": 3}, [], id="from the end"),
        pytest.param(-4, {"length": 2}, [1, 2], id="the first two tokens"),
    ],
)
def test_a_part_of_a_sequence_is_read(dataset, index, part, tokens):
    assert dataset.get(index, **part).tolist() == tokens


@pytest.mark.parametrize("index", [4, -5, 2**40])
def test_an_index_outside_the_dataset_is_refused(dataset, index):
    with pytest.raises(SampleIndexError, match="0 to 3, or -4 to -1 from the end"):
        dataset.get(index)


@pytest.mark.parametrize(("offset", "length"), [(4, None), (-1, None), (0, 4), (2, 2), (0, -1)])
def test_tokens_outside_a_sequence_are_refused(dataset, offset, length):
    with pytest.raises(SampleIndexError, match="within its 3 tokens"):
        dataset.get(0, offset, length)


def test_gaps_between_sequences_are_skipped(prefix):
    tokens_file = prefix.with_suffix(".bin")
    index_file = prefix.with_suffix(".idx")
    # Let the last sequence begin two tokens later. The pointers follow a header of 34 bytes, and
    # the lengths of four sequences.
    last_pointer = 34 + 4 * 4 + 3 * 8
    index = bytearray(index_file.read_bytes())
    index[last_pointer : last_pointer + 8] = (12).to_bytes(8, "little")
    index_file.write_bytes(index)
    tokens_file.write_bytes(tokens_file.read_bytes() + b"\x07\x00\x08\x00\x09\x00")

    sequences = MMapIndexedDataset(prefix)[:]

    assert token_lists(sequences) == [[1, 2, 3], [4], [], [8]]


def test_an_empty_dataset_has_no_sequences(tmp_path):
    MMapIndexedDatasetBuilder(tmp_path / "empty", np.int32).finalize()

    dataset = MMapIndexedDataset(tmp_path / "empty")

    assert len(dataset) == 0
    assert dataset[:] == []
    assert len(dataset.tokens) == 0
    with pytest.raises(SampleIndexError, match="empty"):
        dataset[0]


# Files


def test_a_token_file_that_is_shorter_than_its_index_is_an_error(prefix):
    tokens_file = prefix.with_suffix(".bin")
    tokens_file.write_bytes(tokens_file.read_bytes()[:-1])

    with pytest.raises(FormatError, match="shorter than its index") as caught:
        MMapIndexedDataset(prefix)

    assert caught.value.where == f"{tokens_file}, byte 9"


def test_a_dataset_exists_if_both_files_do(prefix):
    assert MMapIndexedDataset.exists(prefix)

    prefix.with_suffix(".bin").unlink()

    assert not MMapIndexedDataset.exists(prefix)


def test_a_missing_token_file_is_an_error(prefix):
    prefix.with_suffix(".bin").unlink()

    with pytest.raises(MissingError, match=r"small\.bin"):
        MMapIndexedDataset(prefix)


def test_a_missing_index_is_an_error(prefix):
    with pytest.raises(MissingError, match=r"none\.idx"):
        MMapIndexedDataset(prefix.with_name("none"))


# Pickles, by which worker processes of a data loader get a dataset


def test_a_dataset_is_pickled_as_its_path(dataset):
    data = pickle.dumps(dataset)

    assert len(data) < 500
    assert pickle.loads(data)[0].tolist() == [1, 2, 3]


def test_a_pickle_of_version_0_1_0_can_be_loaded(prefix):
    data = b"cnanoset_core.indexed.dataset\n_open_again\n(V" + str(prefix).encode() + b"\ntR."

    assert pickle.loads(data)[0].tolist() == [1, 2, 3]
