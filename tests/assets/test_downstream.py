"""An asset of a host that trains on a nanoset: from its handoff's materialisation to samples."""

from __future__ import annotations

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


@pytest.mark.parametrize("select", [(), "pretrain/train"])
def test_another_version_than_the_materialised_one_is_refused(built_platform, select):
    event, root = latest(built_platform), built_platform.config.root_folder
    text = built_platform.config_file.read_text()
    built_platform.config_file.write_text(text.replace("seed: 7", "seed: 8"))
    assert not build(Project.open(built_platform.config_file), built_platform.instance, select=select).failed
    words = (
        "the split was built anew since, and the handoff was not" if select else "(?s)or removed, since.*say by `root`"
    )
    with pytest.raises(StaleError, match=words):
        nanoset_assets.load_materialized(event, "train", root=root)
    there = event if select else latest(built_platform)
    assert len(nanoset_assets.load_materialized(there, "valid", root=root))


def test_what_is_no_handoff_is_refused(built_platform):
    for event in (None, latest(built_platform, dg.AssetKey(["plain", "index_mappings"]))):
        with pytest.raises(MissingError, match="no materialisation of a nanoset's handoff"):
            nanoset_assets.load_materialized(event, "train")
