"""Errors of files with raw text say what the user can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core.errors import MissingError
from nanoset_core.storage.copies.worker_folders import WorkerFolder, working_at
from nanoset_core.text.files.raw_files import open_raw, probe_raw


def remedy_for_missing_file(path: Path, *, is_probed: bool = False) -> str:
    """Return the remedy in the error of opening a file that does not exist."""
    opener = probe_raw if is_probed else open_raw
    with pytest.raises(MissingError) as caught, opener(path):
        pass
    return caught.value.remedy


@pytest.mark.parametrize("is_probed", [False, True], ids=["read", "probed"])
def test_a_file_that_was_deleted_leaves_the_inventory_with_the_next_build(tmp_path, is_probed):
    remedy = remedy_for_missing_file(tmp_path / "a.jsonl", is_probed=is_probed)

    assert remedy == "build again: the inventory will be updated"


def test_a_worker_of_a_cluster_may_lack_the_mount_of_a_file(tmp_path):
    with working_at(WorkerFolder(tmp_path / "worker")):
        remedy = remedy_for_missing_file(tmp_path / "raw" / "a.jsonl")

    assert remedy.startswith("if the file exists on the machine of the build, give the machine of")
    assert remedy.endswith("otherwise build again: the inventory will be updated")
