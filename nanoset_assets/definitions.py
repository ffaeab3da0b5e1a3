"""Everything that Dagster loads of a project: assets, checks, jobs, sensors and schedule, from one nanoset.yaml."""

from __future__ import annotations

import os
from collections.abc import Sequence

import dagster as dg

from nanoset_assets.asset_table import check_shapes
from nanoset_assets.buckets import bucket_resources
from nanoset_assets.checks import checks_for
from nanoset_assets.hosted import Automation, ProjectDefs
from nanoset_assets.last_valid import definitions_from_file
from nanoset_assets.overview import overview_asset, overview_sensor
from nanoset_assets.raw_text_sensor import landing_sensor, raw_text_sensor
from nanoset_assets.stages_table import stage_asset, subjects_of
from nanoset_assets.stale_sensor import eager, job_of, reconcile_schedule, stale_sensor
from nanoset_assets.step_job import STEP_JOB, step_job
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Key, Node

__all__ = ["build_definitions", "definitions_of", "defs"]

CONFIG_VARIABLE = "NANOSET_CONFIG"
DEFINITIONS_MODULE = "nanoset_assets.definitions"
"""This module, by which a project is a code location of its own; Dagster names the location like the module."""
_JOBS = {"corpus": "One corpus, from files to .bin/.idx.", "packed": "A corpus as Modalities' .pbin."}


@dg.definitions
def defs() -> dg.Definitions:
    """A code location of its own: the project named by NANOSET_CONFIG (default: nanoset.yaml in the current folder)."""
    return definitions_from_file(os.environ.get(CONFIG_VARIABLE, CONFIG_FILE), _own_location)


def _own_location(config: ProjectConfig) -> dg.Definitions:
    ours = dg.Definitions(resources=bucket_resources(config), executor=dg.in_process_executor)
    return dg.Definitions.merge(build_definitions(config), ours)


def build_definitions(
    config: ProjectConfig | str | os.PathLike[str],
    *,
    key_prefix: str | Sequence[str] | None = None,
    group_prefix: str | None = None,
    automation: Automation = "own",
) -> dg.Definitions:
    """Make the definitions of one project, to be merged with others: no resource, executor or name is shared with them.

    Args:
        config: the project: path of its nanoset.yaml, which each run and tick reads again. With the path, definitions
            are those of the last version that loaded while the file has a mistake; a configuration that your code has
            loaded is taken as it is.
        key_prefix: before the key of every asset, such as `llm` or ["team", "llm"]; default: what nanoset.yaml says
            under `dagster`.
        group_prefix: before the name of every group of assets; default: that of nanoset.yaml, or made of key_prefix.
        automation: `own`: by sensors and a schedule of the project; `host`: what follows raw text bears an automation
            condition, for a sensor of yours; `none`: neither.

    Raises:
        ConfigError: the prefix can be no part of a name, or is another than that of nanoset.yaml; or the file at the
            path has mistakes, and no earlier version of it is known.
    """

    def make(loaded: ProjectConfig) -> dg.Definitions:
        return definitions_of(ProjectDefs.of(loaded, key_prefix, group_prefix), automation)

    return make(config) if isinstance(config, ProjectConfig) else definitions_from_file(config, make)


def definitions_of(hosted: ProjectDefs, automation: Automation = "own") -> dg.Definitions:
    """Make the definitions of a project: an asset for each stage and subject, a job for each subject."""
    check_shapes()
    by_job: dict[str, list[dg.AssetsDefinition]] = {}
    for stage in stages():
        for subject, keys in subjects_of(stage, hosted.config).items():
            by_job.setdefault(job_of(Node(stage, Key(subject))), []).append(stage_asset(stage, hosted, subject, keys))
    jobs = {
        job: dg.define_asset_job(
            hosted.names.definition(job),
            assets,
            description=_JOBS.get(job, f"All of {job}."),
            tags=hosted.run_tags,
            # Parallelism lives in worker processes of the core; a process for each step would only add seconds.
            executor_def=dg.in_process_executor,
        )
        for job, assets in by_job.items()
    }
    assets = [asset for assets in by_job.values() for asset in assets]
    corpus_job = jobs[INVENTORY.kind]
    sensors = [] if automation == "none" else [raw_text_sensor(hosted, corpus_job)]
    sensors.append(overview_sensor(hosted, automation))
    if hosted.upstream:
        sensors.append(landing_sensor(hosted, corpus_job))
    if automation == "own":
        sensors.append(stale_sensor(hosted, jobs.values()))
    return dg.Definitions(
        assets=hosted.translated(
            [*(eager(assets, hosted.names) if automation == "host" else assets), overview_asset(hosted, automation)]
        ),
        asset_checks=checks_for(hosted),
        # A nanoset, webdataset or corpus may have its name, and a job of that name.
        jobs=[*jobs.values(), *([step_job(hosted)] if hosted.config.nanosets and STEP_JOB not in jobs else [])],
        sensors=sensors,
        schedules=reconcile_schedule(hosted) if automation == "own" else [],
    )
