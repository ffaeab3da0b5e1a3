"""`nanoset map` without a project: index files that are there are found, refused or replaced, never
passed over.
"""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_pairs import GROWING, write_pair
from nanoset_core import NanosetBuilder, NanosetConfig
from nanoset_core.errors import ConfigError
from nanoset_core.stages.mappings.standalone import write_index_files


@pytest.fixture
def data(tmp_path):
    return write_pair(tmp_path / "a", GROWING[:40])


def run(data, *more):
    given = data if isinstance(data, list) else [data]
    arguments = ["map", "--data-path", *given, "--seq-length", 8, "--split", "9,1,0", *more]
    return invoke_nanoset(arguments)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.fixture(params=["megatron", "nemo", "nanotron"])
def made(data, tmp_path, request):
    """(Arguments of a call, its folder, what it wrote there)."""
    folder = tmp_path / "cache"
    arguments = ("--data-cache-path", folder, "--preset", request.param)
    first = run(data, *arguments)
    assert first.exit_code == 0, first.output
    assert "already exists" not in first.output
    return arguments, folder, digests(folder)


def refused(data, arguments, folder):
    """Run a call that is refused with --overwrite as its remedy, and changes nothing; return what
    it found.
    """
    before, error = digests(folder), run(data, *arguments).exception
    assert isinstance(error, ConfigError)
    assert "--overwrite" in error.remedy
    assert digests(folder) == before
    return error.found


def test_the_same_call_does_nothing(data, made, tmp_path):
    arguments, folder, first = made
    again = run(data, *arguments)
    assert again.output.count("(already exists)") == again.output.count(f" in {folder}") == 2
    assert digests(folder) == first
    config = {"sequence_length": 8, "split": "9,1,0", "preset": arguments[-1]}
    NanosetBuilder(
        NanosetConfig(str(data), path_to_cache=str(tmp_path / "by-library"), **config)
    ).build()
    assert digests(tmp_path / "by-library") == first


def test_index_files_of_another_dataset_are_not_replaced_unasked(data, made):
    arguments, folder, first = made
    write_pair(data, GROWING[:44])
    assert "idx_sha256" in refused(data, arguments, folder)
    assert run(data, *arguments, "--overwrite").exit_code == 0
    assert digests(folder) != first
    assert "already exists" in run(data, *arguments).output


def test_index_files_of_a_trainer_are_not_replaced_unasked(data, made):
    arguments, folder, first = made
    for path in folder.glob("*.json"):
        path.unlink()
    assert "would say what it was made from" in refused(data, arguments, folder)
    assert run(data, *arguments, "--overwrite").exit_code == 0
    assert digests(folder) == first


@pytest.mark.parametrize("step", range(6))
def test_a_killed_call_goes_on(data, made, monkeypatch, step):
    arguments, folder, first = made
    real, steps = os.replace, iter(range(1000))

    def killed(source, target):
        if next(steps) == step:
            raise KeyboardInterrupt
        real(source, target)

    for path in folder.iterdir():
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        assert run(data, *arguments).exit_code != 0
    assert run(data, *arguments).exit_code == 0
    assert digests(folder) == first, "nothing is left of the first call"


def test_a_call_that_an_older_version_left_unfinished_is_completed(data, made):
    arguments, folder, first = made
    sidecars = list(folder.glob("*nanoset.json"))
    for sidecar in sidecars:
        made_from = json.loads(sidecar.read_bytes())["made_from"]
        mark = sidecar.with_name(f".{sidecar.name}.begun")
        mark.write_text(json.dumps(made_from))
        sidecar.unlink()

    assert run(data, *arguments).exit_code == 0

    assert sidecars
    assert digests(folder) == first
    assert not list(folder.glob(".*.begun"))


def test_without_a_cache_folder_the_datasets_files_lie_beside_them(data, tmp_path):
    alone = run(data)
    folder = tmp_path / "a" / "cache" / "GPTDataset_indices"
    assert f" in {folder}" in alone.output
    assert list(folder.glob("*train-document_index.npy"))
    blend = run([data, write_pair(tmp_path / "b", GROWING[:40])])
    assert blend.exit_code == 0
    assert "keeps no file of a blend" in blend.output
    config = NanosetConfig([str(data), str(tmp_path / "b")], sequence_length=8, split="9,1,0")
    assert [found.folder for found in write_index_files(config)] == [None, None]
    assert list((tmp_path / "b" / "cache" / "GPTDataset_indices").glob("*train-document_index.npy"))
