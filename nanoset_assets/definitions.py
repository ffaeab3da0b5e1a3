"""Everything that Dagster loads: assets, jobs and the project resource, from one nanoset.yaml."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from nanoset_assets import assets as pages
from nanoset_assets.automation import automated, automation_sensor
from nanoset_assets.buckets import bucket_resources
from nanoset_assets.checks import checks_for
from nanoset_assets.resources import ProjectResource
from nanoset_assets.schedules import reconcile_schedule
from nanoset_assets.sensors import raw_text_sensor
from nanoset_assets.stage_assets import stage_asset, subjects_of
from nanoset_core.config import CONFIG_FILE
from nanoset_core.config.project import ProjectConfig, load_config
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Stage
from nanoset_core.pipeline.stages import stages

__all__ = ["build_definitions", "defs", "job_of", "pages"]

CONFIG_VARIABLE = "NANOSET_CONFIG"
_JOBS = {"corpus": "One corpus, from files to .bin/.idx.", "packed": "A corpus as Modalities' .pbin."}


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of the project named by NANOSET_CONFIG (default: nanoset.yaml in the current folder)."""
    return build_definitions(load_config(os.environ.get(CONFIG_VARIABLE, CONFIG_FILE)))


def build_definitions(config: ProjectConfig) -> dg.Definitions:
    """The definitions of one project: an asset for each stage and subject, a job for each subject."""
    by_job: dict[str, list[dg.AssetsDefinition]] = {}
    for stage in stages():
        for subject in subjects_of(stage, config):
            by_job.setdefault(job_of(stage, subject), []).append(stage_asset(stage, config, subject))
    jobs = {
        name: dg.define_asset_job(name, assets, description=_JOBS.get(name, f"All of {name}."))
        for name, assets in by_job.items()
    }
    corpus_job = jobs[INVENTORY.kind]
    return dg.Definitions(
        assets=automated([asset for assets in by_job.values() for asset in assets], str(config.file)),
        asset_checks=checks_for(config),
        jobs=list(jobs.values()),
        sensors=[raw_text_sensor(config, corpus_job), automation_sensor(config.automation)],
        schedules=reconcile_schedule(config.file, config.automation),
        resources={"project": ProjectResource(config_file=str(Path(config.file))), **bucket_resources(config)},
        # Parallelism lives in worker processes of the core; a process for each step would only add seconds.
        executor=dg.in_process_executor,
    )


def job_of(stage: Stage, subject: str) -> str:
    """The job that an asset is a part of: all of a nanoset or webdataset, or one kind of all corpora."""
    return stage.kind if stage.by_corpus else subject.replace("-", "_")
