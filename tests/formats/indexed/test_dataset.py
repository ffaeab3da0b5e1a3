"""Reading indexed datasets."""

import pickle

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, cases, name_of

from nanoset_core.errors import FormatError, MissingError, SampleIndexError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset


@pytest.fixture
def small(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "small", np.uint16) as builder:
        builder.add_document([1, 2, 3, 4], [3, 1])
        builder.add_document([])
        builder.add_document([5])
    return tmp_path / "small"


@pytest.mark.parametrize(
    "case", cases("indexed_dataset", "indexed_dataset_multimodal"), ids=name_of
)
def test_golden(case):
    dataset = MMapIndexedDataset(FOLDER / case["params"]["prefix"])
    meta = case["meta"]
    assert dataset.sequence_lengths.tolist() == meta["sequence_lengths"]
    assert len(dataset) == len(meta["sequence_lengths"])
    if "modes" in case["params"]:
        assert dataset.modes.tolist() == [
            mode for document in case["params"]["modes"] for mode in document
        ]
        return
    assert dataset.dtype == np.dtype(case["params"]["dtype"])
    assert np.diff(dataset.document_indices).tolist() == meta["sequences_per_document"]
    assert dataset.modes is None
    assert len(dataset.tokens) == meta["n_tokens"]
    np.testing.assert_array_equal(np.concatenate(dataset[:]), dataset.tokens)


def test_reads_like_a_list(small):
    dataset = MMapIndexedDataset(small)
    assert [sequence.tolist() for sequence in dataset] == [[1, 2, 3], [4], [], [5]]
    assert dataset[-1].tolist() == [5]
    assert dataset[np.int64(1)].tolist() == [4]
    assert [sequence.tolist() for sequence in dataset[1:3]] == [[4], []]
    assert [sequence.tolist() for sequence in dataset[::-2]] == [[5], [4]]
    assert dataset.sequence_pointers.tolist() == [0, 6, 8, 8]
    assert dataset.document_indices.tolist() == [0, 2, 3, 4]
    assert dataset[0].dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        dataset[0][0] = 9


def test_get_takes_parts(small):
    dataset = MMapIndexedDataset(small)
    assert dataset.get(0, offset=1).tolist() == [2, 3]
    assert dataset.get(0, offset=1, length=1).tolist() == [2]
    assert dataset.get(0, offset=3).tolist() == []
    assert dataset.get(-4, length=2).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        *(((index,), "0 to 3") for index in (4, -5, 2**40)),
        *(
            ((0, *part), "within its 3 tokens")
            for part in ((4, None), (-1, None), (0, 4), (2, 2), (0, -1))
        ),
    ],
)
def test_sequences_and_tokens_outside(small, place, message):
    with pytest.raises(SampleIndexError, match=message):
        MMapIndexedDataset(small).get(*place)


def test_token_file_shorter_than_the_index(small):
    path = small.with_suffix(".bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match="shorter than its index") as caught:
        MMapIndexedDataset(small)
    assert caught.value.where == f"{path}, byte 9"


def test_missing_files(small):
    assert MMapIndexedDataset.exists(small)
    small.with_suffix(".bin").unlink()
    assert not MMapIndexedDataset.exists(small)
    with pytest.raises(MissingError, match=r"small\.bin"):
        MMapIndexedDataset(small)
    with pytest.raises(MissingError, match=r"none\.idx"):
        MMapIndexedDataset(small.with_name("none"))


def test_gaps_between_sequences_are_skipped(small):
    idx, binary = small.with_suffix(".idx"), small.with_suffix(".bin")
    data = bytearray(idx.read_bytes())
    # the last sequence begins two tokens later
    data[34 + 16 + 24 : 34 + 16 + 32] = (12).to_bytes(8, "little")
    idx.write_bytes(data)
    binary.write_bytes(binary.read_bytes() + b"\x07\x00\x08\x00\x09\x00")
    assert [sequence.tolist() for sequence in MMapIndexedDataset(small)[:]] == [
        [1, 2, 3],
        [4],
        [],
        [8],
    ]


def test_empty_dataset(tmp_path):
    MMapIndexedDatasetBuilder(tmp_path / "empty", np.int32).finalize()
    dataset = MMapIndexedDataset(tmp_path / "empty")
    assert len(dataset) == 0
    assert dataset[:] == []
    assert len(dataset.tokens) == 0
    with pytest.raises(SampleIndexError, match="empty"):
        dataset[0]


def test_pickles_of_version_0_1_0_open(small):
    data = b"cnanoset_core.indexed.dataset\n_open_again\n(V" + str(small).encode() + b"\ntR."
    assert pickle.loads(data)[0].tolist() == [1, 2, 3]


def test_pickles_as_its_path(small):
    data = pickle.dumps(MMapIndexedDataset(small))
    assert len(data) < 500
    assert pickle.loads(data)[0].tolist() == [1, 2, 3]
