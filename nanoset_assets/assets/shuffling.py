"""<webdataset>/shuffle_plan → <webdataset>/tars → <webdataset>/manifest."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.running import WORKERS_POOL
from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.metadata import snapshot_before
from nanoset_assets.ui.webdataset import plan_metadata, tars_metadata, webdataset_metadata
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline import shuffling

TAGS = {"nanoset/stage": "shuffling"}


def _plan_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy"},
        "tags": TAGS,
        "description": f"How the corpora of {name} become shuffled shards: contexts of one length in one order.",
    }


def _tars_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy", "file"},
        "tags": TAGS,
        "pool": WORKERS_POOL,
        "description": "Shuffled tar shards, an even share of them in each partition. Under Partitions, choose one to "
        f"see its tars; {name}/manifest shows the whole.",
    }


def _manifest_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    return {
        "kinds": {"json"},
        "tags": TAGS,
        "description": "manifest.jsonl (OpenLM), index.json (wids) and exp_data.json (DCLM) beside the tars; with "
        "them the webdataset is complete. Give trainers this folder.",
    }


@page_of(shuffling.SHUFFLE_PLAN, _plan_details)
def shuffle_plan(work: Work) -> Mapping[str, Any]:
    """Plan a webdataset, and show its order and sources."""
    manifest = work.make()
    _, plan = shuffling.current_plan(work.project, work.key.subject)
    return plan_metadata(plan, manifest.facts["quality"])


@page_of(shuffling.SHUFFLED_TARS, _tars_details)
def tars(work: Work) -> dg.MaterializeResult[Any]:
    """Write one group of tars, and show which of them were made; its data version is that of the plan."""
    project, name = work.project, work.key.subject
    plan, _ = shuffling.current_plan(project, name)
    is_new = snapshot_before(project, project.outputs.place(shuffling.webdataset_recipe(name, plan.digest)))
    shards = shuffling.write_group(project, name, int(work.key.part or 0))
    work.made(plan)
    made = [shard for shard in shards if is_new(f"{shard.stem}.tar")]
    return dg.MaterializeResult(
        metadata=tars_metadata(shards, made, work.seconds), data_version=dg.DataVersion(plan.digest)
    )


@page_of(shuffling.WEBDATASET, _manifest_details)
def manifest(work: Work) -> Mapping[str, Any]:
    """Complete a webdataset, and show how it is read."""
    return webdataset_metadata(work.project, work.make())
