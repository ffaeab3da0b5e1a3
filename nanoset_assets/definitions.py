"""The Dagster definitions of a project: assets, checks, jobs, sensors and schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import check_asset_names, job_of
from nanoset_assets.buckets import bucket_resources
from nanoset_assets.checks import checks_for
from nanoset_assets.hosted import Automation, ProjectDefs
from nanoset_assets.landing_sensor import landing_sensor
from nanoset_assets.last_valid import definitions_from_file
from nanoset_assets.overview import overview_asset, overview_sensor
from nanoset_assets.raw_text_sensor import raw_text_sensor
from nanoset_assets.schedule import reconcile_schedule
from nanoset_assets.stage_assets import stage_asset, subjects_of
from nanoset_assets.stale_sensor import stale_sensor, with_condition
from nanoset_assets.step_job import STEP_JOB, step_job
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Key, Node

__all__ = ["build_definitions", "definitions_of", "defs"]

CONFIG_VARIABLE = "NANOSET_CONFIG"
"""Environment variable that names the nanoset.yaml of a code location of its own."""
DEFINITIONS_MODULE = "nanoset_assets.definitions"
"""This module, by which a project is a code location of its own; Dagster names the location like
the module.
"""
_JOB_DESCRIPTIONS = {
    "corpus": "One corpus, from files to .bin/.idx.",
    "packed": "A corpus as Modalities' .pbin.",
}
"""Of jobs that make one kind of outputs of corpora; others make everything of their subject."""


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the project that NANOSET_CONFIG names, as a code location.

    The default is nanoset.yaml in the current folder.
    """
    return definitions_from_file(os.environ.get(CONFIG_VARIABLE, CONFIG_FILE), _own_location)


def _own_location(config: ProjectConfig) -> dg.Definitions:
    """Make the definitions of a project, with resources and an executor."""
    location = dg.Definitions(resources=bucket_resources(config), executor=dg.in_process_executor)
    return dg.Definitions.merge(build_definitions(config), location)


def build_definitions(
    config: ProjectConfig | str | os.PathLike[str],
    *,
    key_prefix: str | Sequence[str] | None = None,
    group_prefix: str | None = None,
    automation: Automation = "own",
) -> dg.Definitions:
    """Return the definitions of one project, to be merged with others.

    It shares no resource, executor or name with them.

    Args:
        config: The project: the path of its nanoset.yaml, which each run and tick reads again.
            While the file has a mistake, definitions are those of the last version that loaded. A
            configuration that your code has loaded is taken as it is.
        key_prefix: Before the key of every asset, such as `llm` or ["team", "llm"]; default: what
            nanoset.yaml says under `dagster`.
        group_prefix: Before the name of every group of assets; default: that of nanoset.yaml, or
            made of key_prefix.
        automation: What builds what is missing or stale. `own`: sensors and a schedule of the
            project; `host`: a sensor of yours, which evaluates the automation conditions of what
            follows raw text; `none`: neither.

    Raises:
        ConfigError: The prefix cannot be part of a name, or differs from that of nanoset.yaml; or
            the file at the path has mistakes, and no earlier version of it is known.
    """

    def make(loaded: ProjectConfig) -> dg.Definitions:
        return definitions_of(ProjectDefs.of(loaded, key_prefix, group_prefix), automation)

    if isinstance(config, ProjectConfig):
        return make(config)
    return definitions_from_file(config, make)


def definitions_of(hosted: ProjectDefs, automation: Automation = "own") -> dg.Definitions:
    """Return the definitions of a project.

    Each stage of each subject is an asset, and each subject has a job.
    """
    check_asset_names()
    assets_by_job = _assets_by_job(hosted)
    jobs = {name: _asset_job(hosted, name, assets) for name, assets in assets_by_job.items()}
    corpus_job = jobs[INVENTORY.kind]

    assets = [asset for assets in assets_by_job.values() for asset in assets]
    if automation == "host":
        assets = with_condition(assets, hosted.names)
    assets.append(overview_asset(hosted, automation))

    sensors = [overview_sensor(hosted, automation)]
    if automation != "none":
        sensors.append(raw_text_sensor(hosted, corpus_job))
    if hosted.upstream:
        sensors.append(landing_sensor(hosted, corpus_job))
    schedules: list[dg.ScheduleDefinition] = []
    if automation == "own":
        sensors.append(stale_sensor(hosted, jobs.values()))
        schedules = reconcile_schedule(hosted)

    all_jobs = list(jobs.values())
    # a nanoset, webdataset or corpus may have this name
    if hosted.config.nanosets and STEP_JOB not in jobs:
        all_jobs.append(step_job(hosted))
    return dg.Definitions(
        assets=hosted.translated(assets),
        asset_checks=checks_for(hosted),
        jobs=all_jobs,
        sensors=sensors,
        schedules=schedules,
    )


def _assets_by_job(hosted: ProjectDefs) -> Mapping[str, list[dg.AssetsDefinition]]:
    """Make the assets of all stages; return name of each job → those that it makes."""
    assets_by_job: dict[str, list[dg.AssetsDefinition]] = {}
    for stage in stages():
        for subject, keys in subjects_of(stage, hosted.config).items():
            job = job_of(Node(stage, Key(subject)))
            asset = stage_asset(stage, hosted, subject, keys)
            assets_by_job.setdefault(job, []).append(asset)
    return assets_by_job


def _asset_job(hosted: ProjectDefs, name: str, assets: Sequence[dg.AssetsDefinition]) -> Any:
    """Make the job of some assets; the type of an unresolved job is not public."""
    return dg.define_asset_job(
        hosted.names.definition(name),
        assets,
        description=_JOB_DESCRIPTIONS.get(name, f"All of {name}."),
        tags=hosted.run_tags,
        # Parallelism is in worker processes of the core; a process for each step would only add
        # seconds.
        executor_def=dg.in_process_executor,
    )
