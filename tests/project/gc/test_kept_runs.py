"""`nanoset gc` keeps the data of the training runs that `storage.keep_runs` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.changing import change_setting
from helpers.sample_project import tree
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.loading.plan_file import read_split
from nanoset_core.project.gc.collect import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings.run_before import handoff_and_splits


@pytest.fixture
def old_handoff(changed) -> str:
    """The digest of the handoff that was current before the corpus web changed."""
    project, _ = changed
    current = project.outputs.current("nanosets", "pretrain/handoff")
    (old,) = [
        version.digest
        for version in project.outputs.versions("nanosets", "pretrain/handoff")
        if version.digest != current.digest
    ]
    return old


def keep_run(project: Project, handoff: str) -> Project:
    """Add a handoff to the key `storage.keep_runs` of a project, and open the project again."""
    return change_setting(project, "raw: raw", f"raw: raw\nstorage: {{keep_runs: [{handoff}]}}")


def test_all_data_of_a_run_is_kept_on_request(changed, old_handoff):
    project, folder = changed
    project = keep_run(project, f"data/nanosets/pretrain/handoff/{old_handoff}")

    collection = collect(project)

    # The samples and the dataset that the run reads are complete; other old versions are removed.
    splits = handoff_and_splits(project.outputs, "pretrain", old_handoff)
    plan, _config = read_split(splits["train"], folder / "data")
    for member in plan.members:
        assert Path(f"{member.prefix}.bin").exists()
    removed_outputs = {item.output for item in collection.garbage}
    assert "webdatasets/shuffled" in removed_outputs
    assert "datasets/web" not in removed_outputs


def test_nothing_is_removed_if_a_run_to_keep_does_not_exist(changed):
    project, folder = changed
    data_before = tree(folder / "data")

    with pytest.raises(MissingError, match="what a run was started with is missing") as caught:
        collect(keep_run(project, f"data/nanosets/pretrain/handoff/{'0' * 20}"))

    assert "restore the text and nanoset.yaml that it was made from" in caught.value.remedy
    assert tree(folder / "data") == data_before


def test_a_run_to_keep_is_named_by_a_version(changed):
    project, _ = changed

    with pytest.raises(ConfigError, match="names no version of a handoff") as caught:
        plan_gc(keep_run(project, "data/nanosets/pretrain/handoff/current"))

    assert caught.value.where == "storage.keep_runs"
