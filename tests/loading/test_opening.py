"""`load_nanoset` says what is wrong with its arguments if there is nothing to open."""

from __future__ import annotations

import pytest

from nanoset_core import load_nanoset
from nanoset_core.errors import ConfigError, MissingError


def test_a_file_in_place_of_the_output_root_is_refused(tmp_path):
    file = tmp_path / "nanoset.yaml"
    file.touch()

    with pytest.raises(ConfigError, match="the output root is a file"):
        load_nanoset(file, "pretrain", "train")


def test_a_folder_without_nanosets_may_be_the_wrong_one(tmp_path):
    with pytest.raises(MissingError, match="no nanoset was built in this folder") as caught:
        load_nanoset(tmp_path, "pretrain", "train")

    assert "which nanoset.yaml names under `root`" in str(caught.value)
    assert "nanoset build" in str(caught.value)


def touch_splits(root, nanosets):
    """Create empty manifests of train and valid, without the files that name current versions."""
    for nanoset in nanosets:
        for split in ("train", "valid"):
            version = root / "nanosets" / nanoset / split / "index_mappings" / "0"
            version.mkdir(parents=True)
            (version / "manifest.json").touch()


def test_a_split_whose_current_version_is_missing_is_not_taken_for_a_wrong_name(tmp_path):
    touch_splits(tmp_path, ["pretrain"])

    with pytest.raises(MissingError, match="current version of this split is missing") as caught:
        load_nanoset(tmp_path, "pretrain", "train")

    assert caught.value.where.endswith("pretrain/train/index_mappings")
    assert "current.json" in caught.value.expected


@pytest.mark.parametrize(
    ("name", "split"),
    [
        pytest.param("pretrain/", "train", id="slash after the name"),
        pytest.param("./pretrain", "train", id="path of the name"),
        pytest.param("../nanosets/pretrain", "train", id="path through the root"),
        pytest.param("pretrain", "train/", id="slash after the split"),
        pytest.param("pretrain/train", "", id="no split"),
        pytest.param("", "pretrain/train", id="no name"),
    ],
)
def test_a_path_in_place_of_a_name_is_no_nanoset(tmp_path, name, split):
    touch_splits(tmp_path, ["pretrain"])

    with pytest.raises(MissingError, match="no such nanoset") as caught:
        load_nanoset(tmp_path, name, split)

    assert caught.value.where == str(tmp_path / "nanosets")
    assert caught.value.found == f"{name}/{split}"
    assert "did you mean 'pretrain/train'?" in caught.value.remedy


@pytest.mark.parametrize("storage", ["nonsense", True, {"region": "eu-central-1"}])
def test_storage_that_is_not_a_storage_spec_is_refused(tmp_path, storage):
    with pytest.raises(ConfigError, match="storage: not a description"):
        load_nanoset(tmp_path, "pretrain", "train", storage)


def test_the_phases_of_a_nanoset_are_named(tmp_path):
    touch_splits(tmp_path, ["ann-phase-1", "ann-phase-2", "nano"])

    with pytest.raises(MissingError, match="ann has phases") as caught:
        load_nanoset(tmp_path, "ann", "train")

    assert caught.value.expected == "one of ann-phase-1/train, ann-phase-2/train"
