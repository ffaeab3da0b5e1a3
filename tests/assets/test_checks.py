"""What the checks of assets find in outputs that were damaged after they were made."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from helpers.inspecting import current_output, verify_at
from helpers.sample_platform import Platform
from nanoset_assets.tags import CHECK
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

OTHER_BYTES = "a file has other bytes than when it was written"


def replace_bytes(file: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file by as many others."""
    content = file.read_bytes()
    assert old in content
    assert len(old) == len(new)
    file.write_bytes(content.replace(old, new, 1))


def last_evaluations(
    platform: Platform, asset: str, check: str, count: int
) -> list[dg.AssetCheckEvaluation]:
    """Return the last evaluations of a check of an asset, the newest first."""
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check)
    storage = platform.instance.event_log_storage
    records = storage.get_asset_check_execution_history(key, limit=count)
    return [record.evaluation for record in records]


# Outputs that were changed by hand, and are materialised again


def test_a_changed_file_of_a_handoff_fails_its_check(built_platform):
    project = Project.open(built_platform.config_file)
    arguments_file = current_output(project, "nanosets/pretrain/handoff").path("arguments.txt")
    built_platform.carry_out({"pretrain/handoff": {None}})
    replace_bytes(arguments_file, b"--seq-length 32", b"--seq-length 31")

    built_platform.carry_out({"pretrain/handoff": {None}}, raises=False)

    after, before = last_evaluations(built_platform, "pretrain/handoff", CHECK, 2)
    assert before.passed
    assert not after.passed
    assert after.description.startswith(OTHER_BYTES)


def test_a_damaged_tar_fails_the_check_of_its_group(built_platform):
    (tar,) = [
        path
        for path in built_platform.config.root_folder.glob(
            "webdatasets/shuffled/*/shard-00000000.tar"
        )
        if "current" not in path.parts
    ]
    built_platform.carry_out({"shuffled/tars": {"0"}})
    replace_bytes(tar, b".npy", b".nqy")

    built_platform.carry_out({"shuffled/tars": {"0"}}, raises=False)

    after, before = last_evaluations(built_platform, "shuffled/tars", CHECK, 2)
    assert before.passed
    assert not after.passed
    assert after.description.startswith("the header's checksum is wrong")


# Other findings


def test_a_changed_shuffle_plan_is_an_error(built_platform):
    project = Project.open(built_platform.config_file)
    plan_file = current_output(project, "shuffle_plans/shuffled").path("plan.json")
    assert verify_at(project, "shuffle_plans/shuffled").findings == []

    plan_file.write_text(plan_file.read_text().replace('"seed": 5', '"seed": 6'))

    errors = verify_at(project, "shuffle_plans/shuffled").errors
    assert [error.what for error in errors] == [OTHER_BYTES]


def test_a_tokenizer_that_trainers_do_not_know_is_a_warning(built_platform):
    built_platform.carry_out({"pretrain/handoff": {None}})

    (evaluation,) = last_evaluations(built_platform, "pretrain/handoff", "trainer", 1)
    assert not evaluation.passed
    assert evaluation.severity == dg.AssetCheckSeverity.WARN
    assert evaluation.description.startswith(UNKNOWN_TOKENIZER)
