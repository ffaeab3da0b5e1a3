"""`nanoset map` without a project: index files that are there are found, refused or replaced, never passed over."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from click.testing import CliRunner

from nanoset_core.cli import nanoset
from nanoset_core.errors import ConfigError, StorageError
from nanoset_core.indexed import MMapIndexedDatasetBuilder
from nanoset_core.loading import NanosetBuilder, NanosetConfig
from nanoset_core.mapping.cache import FileSet
from nanoset_core.mapping.standalone import write_index_files


def write(prefix, count=40):
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for document in range(count):
            builder.add_document(np.arange(20 + document % 7))
    return prefix


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "a")


def run(data, *more):
    given = data if isinstance(data, list) else [data]
    arguments = ["map", "--data-path", *given, "--seq-length", 8, "--split", "9,1,0", *more]
    return CliRunner().invoke(nanoset, [str(argument) for argument in arguments])


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


PRESETS = ["megatron", "nemo", "nanotron"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_call_does_nothing(data, tmp_path, preset):
    arguments = ("--data-cache-path", tmp_path / "cache", "--preset", preset)
    made = run(data, *arguments)
    assert made.exit_code == 0, made.output
    assert "there already" not in made.output
    first = digests(tmp_path / "cache")
    again = run(data, *arguments)
    assert again.output.count("(there already)") == again.output.count(f" in {tmp_path / 'cache'}") == 2
    assert digests(tmp_path / "cache") == first
    config = {"sequence_length": 8, "split": "9,1,0", "preset": preset}
    NanosetBuilder(NanosetConfig(str(data), path_to_cache=str(tmp_path / "by-library"), **config)).build()
    assert digests(tmp_path / "by-library") == first


@pytest.mark.parametrize("preset", PRESETS)
def test_index_files_of_another_dataset_are_not_replaced_unasked(data, tmp_path, preset):
    arguments = ("--data-cache-path", tmp_path / "cache", "--preset", preset)
    run(data, *arguments)
    first = digests(tmp_path / "cache")
    write(data, 44)
    refused = run(data, *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert "idx_sha256" in refused.exception.found
    assert "--overwrite" in refused.exception.remedy
    assert digests(tmp_path / "cache") == first
    assert run(data, *arguments, "--overwrite").exit_code == 0
    assert digests(tmp_path / "cache") != first
    assert "there already" in run(data, *arguments).output


@pytest.mark.parametrize("preset", PRESETS)
def test_index_files_of_a_trainer_are_not_replaced_unasked(data, tmp_path, preset):
    arguments = ("--data-cache-path", tmp_path / "cache", "--preset", preset)
    run(data, *arguments)
    first = digests(tmp_path / "cache")
    for path in (tmp_path / "cache").glob("*.json"):
        path.unlink()
    kept = digests(tmp_path / "cache")
    assert kept
    refused = run(data, *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert "would say what it was made from" in refused.exception.found
    assert digests(tmp_path / "cache") == kept
    assert run(data, *arguments, "--overwrite").exit_code == 0
    assert digests(tmp_path / "cache") == first


@pytest.mark.parametrize("preset", PRESETS)
def test_a_killed_call_goes_on(data, tmp_path, preset, monkeypatch):
    arguments = ("--data-cache-path", tmp_path / "cache", "--preset", preset)
    run(data, *arguments)
    first = digests(tmp_path / "cache")

    def killed(files):
        real(files)
        (files.folder / files.sidecar).unlink()
        raise KeyboardInterrupt

    real = FileSet.write
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(FileSet, "write", killed)
        assert run(data, *arguments).exit_code != 0
    assert run(data, *arguments).exit_code == 0
    assert digests(tmp_path / "cache") == first, "nothing is left of the first call"


def test_the_same_call_on_another_machine_may_be_first(data, tmp_path, monkeypatch):
    arguments = ("--data-cache-path", tmp_path / "cache")
    run(data, *arguments)
    first = digests(tmp_path / "cache")
    real = FileSet.write
    for path in (tmp_path / "cache").iterdir():
        path.unlink()

    def written(files):
        real(files)
        for mark in files.folder.glob(".*.begun"):
            mark.unlink()

    monkeypatch.setattr(FileSet, "write", written)
    assert run(data, *arguments).exit_code == 0
    assert digests(tmp_path / "cache") == first


def test_a_folder_that_cannot_be_written_is_an_error(data, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for folder in ("/proc/none/cache", tmp_path / "file" / "cache"):
        refused = run(data, "--data-cache-path", folder)
        assert isinstance(refused.exception, StorageError)
        assert refused.exception.where == str(folder)
        assert "the folder cannot be made" in str(refused.exception)


def test_without_a_cache_folder_the_datasets_files_lie_beside_them(data, tmp_path):
    alone = run(data)
    folder = tmp_path / "a" / "cache" / "GPTDataset_indices"
    assert f" in {folder}" in alone.output
    assert list(folder.glob("*train-document_index.npy"))
    blend = run([data, write(tmp_path / "b")])
    assert blend.exit_code == 0
    assert "keeps no file of a blend" in blend.output
    config = NanosetConfig([str(data), str(tmp_path / "b")], sequence_length=8, split="9,1,0")
    assert [found.folder for found in write_index_files(config)] == [None, None]
    assert list((tmp_path / "b" / "cache" / "GPTDataset_indices").glob("*train-document_index.npy"))
