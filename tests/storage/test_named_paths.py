"""Python's callers name local files by relative paths, by ~, or mistakenly by bucket addresses."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from helpers.sample_pairs import write_sequences
from nanoset_core import (
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    NanosetBuilder,
    NanosetConfig,
    PackedDataset,
    ShardReader,
    iterate_shard,
    iterate_shards,
    load_nanoset,
    merge_indexed_datasets,
)
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.formats.pbin.writing import write_pbin

ADDRESS = "s3://bucket/web"


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """The working directory, empty, which is also the home folder's neighbour."""
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder of the user."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def build_with_cache(prefix, folder):
    """Build the samples of a dataset with index files in a folder."""
    config = NanosetConfig(prefix, sequence_length=2, split="1,0,0", path_to_cache=folder)
    return NanosetBuilder(config).build()[0]


@pytest.mark.parametrize(
    "open_or_write",
    [
        pytest.param(MMapIndexedDatasetBuilder, id="builder"),
        pytest.param(lambda url: merge_indexed_datasets([url], "out"), id="merged"),
        pytest.param(lambda url: merge_indexed_datasets(["x", url], "out"), id="second of merged"),
        pytest.param(lambda url: merge_indexed_datasets(["x"], url), id="output of merge"),
        pytest.param(lambda url: build_with_cache("x", url), id="cache"),
        pytest.param(PackedDataset, id="pbin"),
        pytest.param(ShardReader, id="shards"),
        pytest.param(lambda url: next(iterate_shard(url)), id="tar"),
        pytest.param(lambda url: next(iterate_shards(url)), id="tars"),
    ],
)
def test_a_bucket_is_refused_where_only_local_files_are_used(open_or_write, working_folder):
    write_sequences(Path("x"), [[1, 2, 3, 4, 5]])

    with pytest.raises(ConfigError) as error:
        open_or_write(ADDRESS)

    assert "bucket" in str(error.value)
    assert ADDRESS in str(error.value)
    assert sorted(path.name for path in working_folder.iterdir()) == ["x.bin", "x.idx"]


def test_a_tilde_stands_for_the_home_folder(home, working_folder):
    with MMapIndexedDatasetBuilder("~/x", np.uint16) as builder:
        builder.add_document([1, 2, 3, 4, 5])
    merge_indexed_datasets(["~/x", "~/x"], "~/merged")
    train = build_with_cache("~/x", "~/cache")
    write_pbin(home / "x.pbin", [[1, 2]], token_bytes=2)

    assert len(MMapIndexedDataset("~/merged")) == 2
    assert len(PackedDataset("~/x.pbin")) == 1
    assert train.cache_dir == home / "cache"
    assert (home / "cache").is_dir()
    with pytest.raises(MissingError, match=str(home)):
        load_nanoset("~/outputs", "pretrain", "train")
    assert not list(working_folder.iterdir())


@pytest.mark.usefixtures("home")
def test_index_files_next_to_data_in_the_home_folder_are_written_there(home, working_folder):
    write_sequences(home / "x", [[1, 2, 3, 4, 5]])

    train = build_with_cache("~/x", None)

    assert train.cache_dir.is_relative_to(home)
    assert not list(working_folder.iterdir())


def test_a_builder_writes_to_the_folder_that_it_was_opened_in(working_folder, monkeypatch):
    builder = MMapIndexedDatasetBuilder("x", np.uint16)
    builder.add_document([1, 2])
    monkeypatch.chdir(working_folder.parent)

    builder.finalize()

    assert MMapIndexedDataset(working_folder / "x")[0].tolist() == [1, 2]


def test_pickles_of_datasets_can_be_opened_in_another_working_directory(
    working_folder, monkeypatch
):
    write_sequences(working_folder / "x", [[1, 2]])
    write_pbin(working_folder / "x.pbin", [[3, 4]], token_bytes=2)
    pickles = [
        pickle.dumps(dataset) for dataset in (MMapIndexedDataset("x"), PackedDataset("x.pbin"))
    ]
    monkeypatch.chdir(working_folder.parent)

    indexed, packed = map(pickle.loads, pickles)

    assert indexed[0].tolist() == [1, 2]
    assert packed[0].tolist() == [3, 4]


def test_a_tilde_in_the_name_of_a_file_does_not_stand_for_a_home_folder(working_folder):
    # `nanoset merge --input .` and `inspect ./~a` name the file in this way, as pathlib does.
    write_sequences(Path("~a"), [[1, 2, 3, 4, 5]])
    write_pbin(Path("~a.pbin"), [[1, 2]], token_bytes=2)

    merge_indexed_datasets([Path("~a"), "./~a"], Path("~merged"))
    train = build_with_cache("~a", None)

    assert len(MMapIndexedDataset(Path("~merged"))) == 2
    assert len(PackedDataset(Path("~a.pbin"))) == 1
    assert train.cache_dir.resolve().is_relative_to(working_folder / "~a")
