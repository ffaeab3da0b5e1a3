"""Everything that Dagster loads: assets, jobs and the project resource, from one nanoset.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from nanoset_assets.assets.indexed import indexed_dataset
from nanoset_assets.assets.mapping import nanoset_assets
from nanoset_assets.assets.packed import packed_asset
from nanoset_assets.assets.raw import raw_jsonl
from nanoset_assets.assets.shuffling import webdataset_assets
from nanoset_assets.assets.tokenization import tokenized_shards
from nanoset_assets.automation import automated, automation_sensor
from nanoset_assets.buckets import bucket_resources
from nanoset_assets.checks import checks_for
from nanoset_assets.resources import ProjectResource
from nanoset_assets.schedules import reconcile_schedule
from nanoset_assets.sensors import raw_text_sensor
from nanoset_core.config.project import CONFIG_FILE, ProjectConfig, load_config

CONFIG_VARIABLE = "NANOSET_CONFIG"
CORPUS_JOB = "corpus"
PACKED_JOB = "packed"


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of the project named by NANOSET_CONFIG (default: nanoset.yaml in the current folder)."""
    return build_definitions(load_config(os.environ.get(CONFIG_VARIABLE, CONFIG_FILE)))


def build_definitions(config: ProjectConfig) -> dg.Definitions:
    """The definitions of one project: those of corpora, nanosets and webdatasets, a job for each."""
    corpus_assets = [raw_jsonl, tokenized_shards, indexed_dataset]
    by_name: dict[str, list[dg.AssetsDefinition]] = {
        **{name: nanoset_assets(name, spec) for name, spec in config.nanosets.items()},
        **{name: webdataset_assets(name, spec) for name, spec in config.webdatasets.items()},
    }
    packed = [packed_asset(config.packed)] if config.packed else []
    corpus_job = dg.define_asset_job(CORPUS_JOB, corpus_assets, description="One corpus, from files to .bin/.idx.")
    assets = [*corpus_assets, *packed, *(asset for assets in by_name.values() for asset in assets)]
    return dg.Definitions(
        assets=automated(assets, str(config.file)),
        asset_checks=checks_for(config),
        jobs=[
            corpus_job,
            *(
                dg.define_asset_job(PACKED_JOB, [asset], description="A corpus as Modalities' .pbin.")
                for asset in packed
            ),
            *_jobs(by_name),
        ],
        sensors=[raw_text_sensor(config.automation, corpus_job), automation_sensor(config.automation)],
        schedules=reconcile_schedule(config.file, config.automation),
        resources={"project": ProjectResource(config_file=str(Path(config.file))), **bucket_resources(config)},
        # Parallelism lives in worker processes of the core; a process for each step would only add seconds.
        executor=dg.in_process_executor,
    )


def _jobs(by_name: Mapping[str, list[dg.AssetsDefinition]]) -> list[object]:
    return [
        dg.define_asset_job(name.replace("-", "_"), assets, description=f"All of {name}.")
        for name, assets in by_name.items()
    ]
