"""What the checks of assets find in outputs that were spoilt after they were made."""

from __future__ import annotations

import dagster as dg
import pytest

from helpers.inspecting import verify_at
from nanoset_assets.tags import CHECK
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

BYTES = "a file has other bytes than when it was written"
SPOILT = {
    # asset: (files below the root, old, new of the same length, what is found)
    "pretrain/handoff": (
        "nanosets/pretrain/handoff/*/arguments.txt",
        b"--seq-length 32",
        b"--seq-length 31",
        BYTES,
    ),
    "shuffled/tars": (
        "webdatasets/shuffled/*/shard-00000000.tar",
        b".npy",
        b".nqy",
        "the header's checksum is wrong",
    ),
}


@pytest.mark.parametrize("asset", SPOILT)
def test_what_was_changed_by_hand_is_found_when_it_is_materialised(built_platform, asset):
    pattern, old, new, what = SPOILT[asset]
    (file,) = (
        path
        for path in built_platform.config.root_folder.glob(pattern)
        if "current" not in path.parts
    )
    content = file.read_bytes()
    assert old in content
    parts = {"0"} if asset == "shuffled/tars" else {None}
    built_platform.carry_out({asset: parts})
    file.write_bytes(content.replace(old, new, 1))
    built_platform.carry_out({asset: parts}, raises=False)
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), CHECK)
    (first, second) = built_platform.instance.event_log_storage.get_asset_check_execution_history(
        key, limit=2
    )
    assert second.evaluation.passed
    assert not first.evaluation.passed
    assert first.evaluation.description.startswith(what)


def test_a_spoilt_or_uneven_plan_is_found(built_platform):
    folder = next(
        built_platform.config.root_folder.glob("shuffle_plans/shuffled/*/plan.json")
    ).parent
    project = Project.open(built_platform.config_file)
    assert verify_at(project, "shuffle_plans/shuffled").findings == []
    (folder / "plan.json").write_text(
        (folder / "plan.json").read_text().replace('"seed": 5', '"seed": 6')
    )
    assert [finding.what for finding in verify_at(project, "shuffle_plans/shuffled").errors] == [
        BYTES
    ]


def test_a_trainer_that_will_not_find_its_indexes_is_warned_of(built_platform):
    built_platform.carry_out({"pretrain/handoff": {None}})
    key = dg.AssetCheckKey(dg.AssetKey(["pretrain", "handoff"]), "trainer")
    (found,) = built_platform.instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1
    )
    assert found.evaluation.description.startswith(UNKNOWN_TOKENIZER)
    assert (found.evaluation.passed, found.evaluation.severity) == (
        False,
        dg.AssetCheckSeverity.WARN,
    )
