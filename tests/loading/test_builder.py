"""Where index files go, and who builds them."""

import threading

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.indexed import MMapIndexedDatasetBuilder
from nanoset_core.loading import Nanoset, NanosetBuilder, NanosetConfig


@pytest.fixture
def prefix(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder:
        for _ in range(30):
            builder.add_document(np.arange(25))
    return str(tmp_path / "d")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("preset", "folder"),
    [("megatron", "d/cache/GPTDataset_indices"), ("nanotron-000", "d/cache/Nanoset_indices"), ("nemo", ".")],
)
def test_without_a_cache_folder_files_go_where_the_trainer_looks(tmp_path, prefix, preset, folder):
    config = NanosetConfig(prefix, sequence_length=8, split="1,0,0", preset=preset)
    train, _, _ = NanosetBuilder(config).build()
    assert set(train.cache_files) <= set(names(tmp_path / folder))


def test_blends_need_a_cache_folder_to_be_kept(tmp_path, prefix):
    config = NanosetConfig({prefix: 1.0}, sequence_length=8, split="1,0,0", train_split_samples=20)
    train, _, _ = NanosetBuilder(config).build()
    assert train.cache_dir is None
    assert not [name for name in names(tmp_path / "d" / "cache" / "GPTDataset_indices") if "Blended" in name]
    assert len(train) == 20


def test_a_folder_that_cannot_be_written_is_no_hindrance(tmp_path, prefix):
    (tmp_path / "file").write_text("")
    config = NanosetConfig(prefix, sequence_length=8, split="1,0,0", path_to_cache=str(tmp_path / "file" / "cache"))
    train, _, _ = NanosetBuilder(config).build()
    assert isinstance(train, Nanoset)
    assert train.cache_dir is None
    assert train.batch([0]).shape == (1, 9)


def test_nothing_is_written_when_one_split_cannot_be(tmp_path, prefix):
    folder = tmp_path / "cache"
    config = NanosetConfig(prefix, sequence_length=8, split="999,0,1", test_split_samples=5, path_to_cache=str(folder))
    with pytest.raises(ConfigError, match="never return"):
        NanosetBuilder(config).build()
    assert not folder.exists()


def test_one_process_builds_and_others_wait(tmp_path, prefix):
    config = NanosetConfig(
        {prefix: 1.0},
        sequence_length=8,
        split="8,2,0",
        train_split_samples=30,
        valid_split_samples=5,
        path_to_cache=str(tmp_path / "cache"),
    )
    timer = threading.Timer(0.2, lambda: NanosetBuilder(config).build())
    timer.start()
    train, valid, test = NanosetBuilder(config).wait(timeout_seconds=20, poll_seconds=0.01)
    timer.join()
    assert (len(train), len(valid), test) == (30, 5, None)
    with pytest.raises(MissingError, match="within 0 s"):
        NanosetBuilder(NanosetConfig.from_json(config.to_json() | {"random_seed": 2})).wait(0.0)
    with pytest.raises(ConfigError, match="shared cache folder"):
        NanosetBuilder(NanosetConfig(prefix, sequence_length=8)).wait(0.0)


def test_processes_that_build_at_once_end_with_one_whole_set(tmp_path, prefix):
    config = NanosetConfig(prefix, sequence_length=8, split="1,1,1", path_to_cache=str(tmp_path / "cache"))
    results, errors = [], []

    def build():
        try:
            results.append([split.batch(range(len(split))) for split in NanosetBuilder(config).build()])
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for result in results:
        for ours, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(ours, first)
    assert len(names(tmp_path / "cache")) == 15
