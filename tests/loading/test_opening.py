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


def test_the_phases_of_a_nanoset_are_named(tmp_path):
    for nanoset in ("ann-phase-1", "ann-phase-2", "nano"):
        for split in ("train", "valid"):
            version = tmp_path / "nanosets" / nanoset / split / "index_mappings" / "0"
            version.mkdir(parents=True)
            (version / "manifest.json").touch()

    with pytest.raises(MissingError, match="ann has phases") as caught:
        load_nanoset(tmp_path, "ann", "train")

    assert caught.value.expected == "one of ann-phase-1/train, ann-phase-2/train"
