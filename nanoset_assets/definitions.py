"""The Dagster definitions of a project: assets, checks, jobs, sensors and schedule.

`dagster dev -m nanoset_assets.definitions` shows a project as a code location by itself, and
`build_definitions("nanoset.yaml", key_prefix="llm")` adds it to a code location of yours: then the
assets are `llm/raw_jsonl`, `llm/tokenized_shards`, `llm/indexed_dataset` and so on.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, get_args

import dagster as dg

from nanoset_assets.assets.checks import checks_for
from nanoset_assets.assets.output_names import CORPUS_JOB, check_asset_names, job_of
from nanoset_assets.assets.overview import overview_asset, overview_sensor
from nanoset_assets.assets.stage_assets import asset_outputs, stage_asset
from nanoset_assets.assets.step_job import STEP_JOB, step_job
from nanoset_assets.automation.landing_sensor import landing_sensor
from nanoset_assets.automation.raw_text_sensor import raw_text_sensor
from nanoset_assets.automation.schedule import reconcile_schedule
from nanoset_assets.automation.stale_sensor import stale_sensor, with_condition
from nanoset_assets.buckets import bucket_resources
from nanoset_assets.code_location.last_valid import definitions_from_file
from nanoset_assets.history.instance import check_home_variable
from nanoset_assets.project_defs import Automation, ProjectDefs
from nanoset_core.errors import ConfigError, one_of, remedy_for_name
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.records.parsing import CONFIG_FILE, CONFIG_VARIABLE
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Key, Node

__all__ = ["build_definitions", "definitions_of", "defs"]

DEFINITIONS_MODULE = "nanoset_assets.definitions"
"""This module. Dagster loads it if a project is a separate code location, named like the module."""
_JOB_DESCRIPTIONS = {
    "corpus": "One corpus, from files to .bin/.idx.",
    "packed": "A corpus as Modalities' .pbin.",
}
"""Descriptions of the jobs that build corpora. Other jobs build everything of their subject."""


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the project that NANOSET_CONFIG names, as a code location.

    `dagster dev -m nanoset_assets.definitions` calls this, to show a project without any assets of
    other teams. The environment variable has the path of the project's nanoset.yaml; the default is
    nanoset.yaml in the current folder.
    """
    return definitions_from_file(os.environ.get(CONFIG_VARIABLE, CONFIG_FILE), _own_location)


def _own_location(config: ProjectConfig) -> dg.Definitions:
    """Return the definitions of a project that Dagster loads alone, without assets of other teams.

    A set of definitions that Dagster loads together (a code location) has one set of resources,
    such as the access to a bucket, and one executor. Here they can be the project's.
    `build_definitions` leaves them out, since they may be merged with those of other teams.

    Args:
        config: The settings of nanoset.yaml.
    """
    location = dg.Definitions(resources=bucket_resources(config), executor=dg.in_process_executor)
    return dg.Definitions.merge(build_definitions(config), location)


def build_definitions(
    config: ProjectConfig | str | os.PathLike[str],
    *,
    key_prefix: str | Sequence[str] | None = None,
    group_prefix: str | None = None,
    automation: Automation = "own",
) -> dg.Definitions:
    """Return the definitions of one project, which can be merged with yours.

    Definitions are what Dagster loads: assets, checks, jobs, sensors and schedules. With a
    `key_prefix`, they share no name with those of others:

        key_prefix    assets
        none          raw_jsonl, indexed_dataset, pretrain/blend, …
        "llm"         llm/raw_jsonl, llm/indexed_dataset, llm/pretrain/blend, …

    Resources and an executor are not included: those of your code location are used.

    Args:
        config: The path of the project's nanoset.yaml, or a loaded configuration. Each run and tick
            reads the file again. While it has a mistake, the last valid version is used.
        key_prefix: Prefix of the key of every asset, such as `llm` or ["team", "llm"]; default:
            that of nanoset.yaml.
        group_prefix: Prefix of the name of every asset group; default: that of nanoset.yaml, or
            derived from key_prefix.
        automation: What builds missing and stale outputs. `own`: sensors and a schedule of the
            project; `host`: a sensor of yours, which evaluates the automation conditions of all
            assets downstream of raw text; `none`: neither.

    Returns:
        The assets, checks, jobs, sensors and schedules of the project.

    Raises:
        ConfigError: An argument is invalid, or the prefix differs from that of nanoset.yaml; or the
            file has mistakes, and no earlier version of it is known.
    """

    def make(loaded: ProjectConfig) -> dg.Definitions:
        """Make the definitions of a configuration."""
        return definitions_of(ProjectDefs.of(loaded, key_prefix, group_prefix), automation)

    if isinstance(config, ProjectConfig):
        return make(config)
    return definitions_from_file(config, make)


def definitions_of(project_defs: ProjectDefs, automation: Automation = "own") -> dg.Definitions:
    """Return the definitions of a project: its assets, checks, jobs, sensors and schedule.

    For example, a project with the data mixture (nanoset) `pretrain` has:

        assets       raw_jsonl, tokenized_shards, indexed_dataset, pretrain/blend, … and an overview
        checks       for most assets, one that verifies what was made
        jobs         corpus (makes the assets of one text collection), pretrain, and one that
                     shows what the trainer reads in a step
        sensors      such as one that watches the folder of raw text
        schedule     if the project itself builds what is missing and stale

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs: sensors and a schedule of the project
            (`own`); a sensor that the user has for all assets, those of other teams included
            (`host`); or nothing, so that users start runs themselves (`none`).

    Raises:
        ConfigError: `automation` is none of the three values, a job and an asset have the same
            name, the time of the schedule is not valid, or Dagster cannot use the folder that
            DAGSTER_HOME names.
    """
    _check_automation(automation)
    check_home_variable()
    check_asset_names()

    # Make the assets, and a job for each group of them.
    # "pretrain" → all assets of this data mixture
    assets_by_job = _assets_by_job(project_defs, automation)
    assets = list(chain.from_iterable(assets_by_job.values()))
    if automation == "host":
        assets = with_condition(assets, project_defs.names)  # the host's sensor evaluates it
    assets.append(overview_asset(project_defs, automation))

    jobs: dict[str, Any] = {}
    for name, job_assets in assets_by_job.items():
        jobs[name] = _asset_job(project_defs, name, job_assets)
    all_jobs = list(jobs.values())
    # A data mixture may have the name of the job that explains a step: its job takes precedence.
    if project_defs.config.nanosets and STEP_JOB not in jobs:
        all_jobs.append(step_job(project_defs))

    schedules = reconcile_schedule(project_defs) if automation == "own" else []
    return dg.Definitions(
        assets=project_defs.translated(assets),
        asset_checks=checks_for(project_defs),
        jobs=all_jobs,
        sensors=_sensors(project_defs, automation, jobs),
        schedules=schedules,
    )


def _check_automation(value: object) -> None:
    """Check that an argument `automation` is `own`, `host` or `none`.

    Args:
        value: The argument, which a user's code may have passed.

    Raises:
        ConfigError: It is another value, such as "Host" or None.
    """
    names = get_args(Automation)
    if value not in names:
        raise ConfigError(
            "unknown value",
            where="automation",
            found=repr(value),
            expected=one_of(map(repr, names), nothing=""),
            remedy=remedy_for_name(str(value), names, "choose one of them"),
        )


@lru_cache(maxsize=1)
def remembered_definitions(project_defs: ProjectDefs) -> dg.Definitions:
    """Return the definitions of a project, and remember them, since they are slow to create.

    Args:
        project_defs: The names and settings of the project in Dagster.
    """
    return definitions_of(project_defs)


def _sensors(
    project_defs: ProjectDefs, automation: Automation, jobs: Mapping[str, Any]
) -> list[dg.SensorDefinition]:
    """Return the sensors of a project: functions that Dagster calls again and again.

    Which ones there are depends on what builds missing and stale outputs (`automation`):

        sensor                                                        own    host    none
        overview: reports the state of all outputs                    yes    yes     yes
        raw text: watches the folder of raw text                      yes    yes     no
        landing: watches assets of other teams that write raw text    if there are such assets
        stale: builds what is out of date                             yes    no      no

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: `own`: sensors of the project; `host`: a sensor that the user has for all
            assets; `none`: nothing.
        jobs: Name → job, which the sensors request.
    """
    corpus_job = jobs[CORPUS_JOB]  # makes all outputs of a corpus up to its dataset
    sensors = [overview_sensor(project_defs, automation)]  # only reports
    if automation != "none":
        sensors.append(raw_text_sensor(project_defs, corpus_job))
    if project_defs.upstream:  # assets of the host that write raw text
        sensors.append(landing_sensor(project_defs, corpus_job))
    if automation == "own":
        sensors.append(stale_sensor(project_defs, jobs.values()))
    return sensors


def _assets_by_job(
    project_defs: ProjectDefs, automation: Automation
) -> Mapping[str, list[dg.AssetsDefinition]]:
    """Make all assets of the project, and return them by the Dagster job that makes them.

    For example, with the data mixture `pretrain`:

        corpus      raw_jsonl, tokenized_shards, indexed_dataset
        pretrain    pretrain/index_mappings, pretrain/blend, pretrain/handoff

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs, see `definitions_of`.
    """
    assets_by_job: dict[str, list[dg.AssetsDefinition]] = defaultdict(list)
    for stage in stages():  # the steps of the pipeline, such as writing index files
        # A step has an asset for each mixture, for example: {"pretrain": its splits}. The splits
        # are the partitions of the asset.
        for subject, outputs in asset_outputs(stage, project_defs.config).items():
            asset = stage_asset(stage, project_defs, subject, outputs, automation)
            job_name = job_of(Node(stage, Key(subject)))  # the same for all of its partitions
            assets_by_job[job_name].append(asset)
    return assets_by_job


def _asset_job(project_defs: ProjectDefs, name: str, assets: Sequence[dg.AssetsDefinition]) -> Any:
    """Define a job, which makes some assets in one run, such as all of the data mixture `pretrain`.

    Args:
        project_defs: The names and settings of the project in Dagster.
        name: Name of the job, such as `pretrain`, without the project's prefix.
        assets: The assets that the job makes.

    Returns:
        The definition. Dagster's type for it is not public.
    """
    return dg.define_asset_job(
        project_defs.names.definition(name),
        assets,
        description=_JOB_DESCRIPTIONS.get(name, f"All of {name}."),
        tags=project_defs.run_tags,
        # A step starts its own worker processes. Dagster's default executor would start a process
        # for each step, too, which only costs seconds.
        executor_def=dg.in_process_executor,
    )
