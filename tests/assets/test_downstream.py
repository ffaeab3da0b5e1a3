"""An asset of a host that trains on a nanoset: from its handoff's materialisation to samples."""

from __future__ import annotations

import shutil

import dagster as dg
import numpy as np
import pytest
from sample_platform import Platform

import nanoset_assets
from nanoset_assets.build import build
from nanoset_core import load_nanoset
from nanoset_core.errors import MissingError, StaleError
from nanoset_core.pipeline.project import Project

HANDOFF = dg.AssetKey(["pretrain", "handoff"])


def latest(platform: Platform, key: dg.AssetKey = HANDOFF):
    return platform.instance.get_latest_materialization_event(key)


def test_the_materialisation_of_a_handoff_gives_the_nanoset(built_platform):
    event = latest(built_platform)
    nanoset = nanoset_assets.load_materialized(event, "train", root=built_platform.config.root_folder)
    same = load_nanoset(built_platform.config.root_folder, "pretrain", "train")
    assert len(nanoset) == len(same)
    assert np.array_equal(nanoset[3]["tokens"], same[3]["tokens"])
    again = nanoset_assets.load_materialized(
        event.asset_materialization, "valid", root=built_platform.config.root_folder
    )
    assert len(again) == len(load_nanoset(built_platform.config.root_folder, "pretrain", "valid"))


def test_an_asset_of_a_host_trains_on_it(built_platform):
    build(Project.open(built_platform.config_file), built_platform.instance, select="pretrain/handoff", rebuild=True)

    @dg.asset(deps=[HANDOFF])
    def model(context):
        event = context.instance.get_latest_materialization_event(HANDOFF)
        nanoset = nanoset_assets.load_materialized(event, "train", reset_position_ids=True)
        return dg.MaterializeResult(
            metadata={"samples": len(nanoset), "positions": int(nanoset[0]["position_ids"].max())}
        )

    definitions = dg.Definitions.merge(built_platform.definitions, dg.Definitions(assets=[model]))
    outcome = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=built_platform.instance, asset_selection=[dg.AssetKey("model")]
    )
    (event,) = outcome.get_asset_materialization_events()
    assert event.step_materialization_data.materialization.metadata["samples"].value > 0


def test_another_version_than_the_materialised_one_is_refused(built_platform):
    event, root = latest(built_platform), built_platform.config.root_folder
    text = built_platform.config_file.read_text()
    built_platform.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    assert not build(Project.open(built_platform.config_file), built_platform.instance).failed
    with pytest.raises(StaleError, match="built anew, or removed, since"):
        nanoset_assets.load_materialized(event, "train", root=root)
    assert nanoset_assets.load_materialized(latest(built_platform), "train", root=root)


def test_a_split_that_is_newer_than_the_handoff_is_refused(built_platform):
    event, root = latest(built_platform), built_platform.config.root_folder
    text = built_platform.config_file.read_text()
    built_platform.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    build(Project.open(built_platform.config_file), built_platform.instance, select="pretrain/train")
    with pytest.raises(StaleError, match="the split was built anew since, and the handoff was not"):
        nanoset_assets.load_materialized(event, "train", root=root)
    assert len(nanoset_assets.load_materialized(event, "valid", root=root))


def test_what_is_no_handoff_is_refused(built_platform):
    for event in (None, latest(built_platform, dg.AssetKey(["plain", "index_mappings"]))):
        with pytest.raises(MissingError, match="no materialisation of a nanoset's handoff"):
            nanoset_assets.load_materialized(event, "train")


def test_a_folder_that_was_moved_away_is_said(built_platform):
    event = latest(built_platform)
    shutil.rmtree(built_platform.config.root_folder / "nanosets" / "pretrain" / "handoff")
    with pytest.raises(StaleError, match="say by `root` where they lie"):
        nanoset_assets.load_materialized(event, "train", root=built_platform.config.root_folder)
