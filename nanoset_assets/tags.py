"""Tags of runs, the name of the blocking checks, and limits that all sensors share.

Dagster shows no tags that begin with `.dagster/`. `Names.tag` adds the project's prefix to those by
which a project finds its own runs.
"""

from __future__ import annotations

import time

import dagster as dg

CHECK = "verified"
"""The name of the blocking check of every asset."""
RAW_TAG = ".dagster/nanoset_raw_text"
"""On runs that the sensor over raw text requested: `corpus:signature of its files`."""
WANTED_TAG = ".dagster/nanoset_wanted"
"""On runs that other sensors or the schedule requested, and on runs that failed: digests of the
outputs to be made.
"""
AUTOMATION_TAG = "nanoset/automation"
"""On runs that the sensor over everything downstream, or the schedule, requested."""
OWNER_TAG = ".dagster/nanoset_process"
"""On runs that have started: `host:pid:start:run` of the process that executes them."""
CONFIG_ERROR_TAG = ".dagster/nanoset_config_error"
"""On runs that failed because nanoset.yaml could not be loaded: they are tried again once it can
be.
"""
REBUILD_TAG = "nanoset/rebuild"
"""On runs that make outputs again even if they are complete; its value is "true"."""
PARTITION_TAG = "dagster/partition"
BACKFILL_TAG = "dagster/backfill"
WILL_RETRY_TAG = "dagster/will_retry"

MAX_REQUESTS = 200
"""Runs that one tick of a sensor requests; the next ticks request the rest."""
LOADED = time.time()
"""When this process started, seconds since 1970. The reasons of an earlier failure may have been
removed since.
"""
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = [
    status
    for status in dg.DagsterRunStatus
    if status not in (*UNSUCCESSFUL, dg.DagsterRunStatus.SUCCESS)
]
