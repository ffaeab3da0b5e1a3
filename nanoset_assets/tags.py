"""Tags of runs, names of checks and metadata, and limits that all sensors share.

Dagster's UI hides tags that start with `.dagster/`. Tags with which a project finds its runs get
the project's prefix by `Names.tag`.
"""

from __future__ import annotations

import time

import dagster as dg

CHECK = "verified"
"""The name of the blocking check of every asset."""
RAW_TAG = ".dagster/nanoset_raw_text"
"""Tag of runs that the sensor over raw text requested: `corpus:signature of its files`."""
WANTED_TAG = ".dagster/nanoset_wanted"
"""Tag of runs that other sensors or the schedule requested, and of runs that failed: the digests of
the outputs that they were to make.
"""
AUTOMATION_TAG = "nanoset/automation"
"""Tag of runs that the sensor over stale outputs or the schedule requested: its name."""
OWNER_TAG = ".dagster/nanoset_process"
"""Tag of runs that have started: the process that executes them; see `RunOwner`."""
REPEATABLE_TAG = ".dagster/nanoset_repeatable"
"""Tag of runs that failed for a reason outside of their outputs: they may be requested again.

For example, nanoset.yaml could not be loaded, or the run had no partition.
"""
REBUILD_TAG = "nanoset/rebuild"
"""Tag of runs that rebuild outputs even if they are up to date; its value is "true"."""
PARTITION_TAG = "dagster/partition"
"""Dagster's tag of runs of one partition: the name of the partition."""
BACKFILL_TAG = "dagster/backfill"
"""Dagster's tag of runs of a backfill: the id of the backfill."""
WILL_RETRY_TAG = "dagster/will_retry"
"""Dagster's tag of runs that failed: whether its daemon will retry them, "true" or "false"."""
RECORDED = "nanoset/recorded"
"""Metadata of a check that has failed: whether that is also recorded below the root. If the record
is removed later, the output was verified again without Dagster.
"""
INDIRECT = "nanoset/indirect"
"""Metadata of a dependency: other dependencies of the asset wait for it anyway."""

MAX_REQUESTS = 200
"""How many runs a tick of a sensor requests at most; the next ticks request the rest."""
PROCESS_STARTED_AT = time.time()
"""When this process started, in seconds since 1970.

Runs that failed earlier may be requested again: the cause may have been fixed by the restart.
"""
UNSUCCESSFUL = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
"""Statuses of runs that ended without making all of their outputs."""
_FINISHED = (*UNSUCCESSFUL, dg.DagsterRunStatus.SUCCESS)
UNFINISHED = [status for status in dg.DagsterRunStatus if status not in _FINISHED]
"""Statuses of runs that are queued or have not ended."""
