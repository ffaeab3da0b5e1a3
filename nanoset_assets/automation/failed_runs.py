"""Decide which outputs are not requested again because the last run that was to make them failed.

A run that failed would fail again unless something has changed: its inputs, or the process that
executes it. So a sensor that requested the run at each of its ticks would start it forever. Runs
that were killed from outside, for lack of memory for example, are the exception: they may be
repeated a few times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import dagster as dg

from nanoset_assets.assets.output_names import asset_path, partition_of
from nanoset_assets.automation.active_runs import end_time, last_run, start_time
from nanoset_assets.dagster_compat import DATA_VERSION_TAG
from nanoset_assets.names import Names
from nanoset_assets.tags import (
    PROCESS_STARTED_AT,
    REPEATABLE_TAG,
    UNSUCCESSFUL,
    WANTED_TAG,
    WILL_RETRY_TAG,
)
from nanoset_core.project.graph.step import Step
from nanoset_core.stages.stage import Node

MAX_ATTEMPTS = 5
"""How many runs are requested for the same output, for causes that may go away by themselves.

These are runs that are killed, outputs that are deleted after each run, and a nanoset.yaml that
cannot be loaded.
"""
RETRY_SECONDS = 600
"""How long Dagster may take to retry a killed run; it usually takes moments."""
_WILL_BE_RETRIED = "its run was killed, and will be started again"
"""Why no run is requested for an output whose last run Dagster is about to retry."""


def reason_not_requested(instance: dg.DagsterInstance, names: Names, step: Step) -> str | None:
    """Return why a sensor should not request a run for an output, or None if it may.

    A sensor looks at the project every few seconds. If the last run for an output has failed, the
    output is still missing. Another run would only fail again, unless something has changed since.
    This shows in the digest of the output, a hash of all that it is made from (texts, settings, …).
    If a search may forbid the output, as with `policy: block`, it is a hash of that as well, since
    the run may succeed once the policy is changed. Each run has a tag with the digest that its
    output was to have. Suppose that the output should now have the digest 81aa…. The first line
    that applies decides:

        last run for the output                           may another one be requested?
        there is none, or it has succeeded                yes
        failed before Dagster's server was started        yes: the restart may help
        was killed; Dagster is about to start it again    no
        failed; another run has made an input since       yes: the input was perhaps the problem
        failed; has 3f9c…, so something has changed       yes
        failed; has 81aa…, so nothing has changed         `reason_not_repeated` decides

    Args:
        instance: The instance of Dagster, which has the earlier runs.
        names: The names of the project in Dagster.
        step: The output (`step.node`), and the digest that it should have now.

    Returns:
        Such as "its run 1f2e3d4c failed; it is built when what it is made from changes, or from the
        UI"; or None.
    """
    asset = names.asset(asset_path(step.node))
    last = last_run(instance, asset, partition_of(step.node))
    if last is None or last.dagster_run.status not in UNSUCCESSFUL:
        return None
    if end_time(last) < PROCESS_STARTED_AT:
        return None  # it failed before this process began

    if _is_about_to_be_retried(last):
        # If a person has started the run, it has no tag with a digest. Add the present one, with
        # which later calls compare.
        _ensure_digests_tag(instance, names, last, current_digest=step.attempt_digest)
        return _WILL_BE_RETRIED

    # Perhaps an input was missing or out of date, so that the run failed. The digest does not
    # change when the input is made: it is computed from what the input should be.
    if _has_newer_input(instance, names, step, last):
        return None

    # The tag of a run that makes several outputs has the digests of all: "3f9c… 55d0…".
    digests_tag = _ensure_digests_tag(instance, names, last, current_digest=step.attempt_digest)
    has_changed = step.attempt_digest not in digests_tag.split()
    if has_changed:
        return None

    # Nothing has changed. Some runs may be repeated all the same, but not forever. So look up all
    # runs that were to make the same: these have the same tag.
    attempts_filter = dg.RunsFilter(tags={names.tag(WANTED_TAG): digests_tag})
    attempts = instance.get_run_records(attempts_filter)
    return reason_not_repeated(instance, last, attempts)


def _has_newer_input(
    instance: dg.DagsterInstance, names: Names, step: Step, failed: dg.RunRecord
) -> bool:
    """Return whether an output that could not be made has an input that was made since.

    For example, the split `train` of a data mixture is made from the dataset `web`:

        12:00    a run that should make `train` fails, since `web` is out of date
        12:01    another run makes `web`. From now on, the result is True: `train` can be made.

    Inputs that were made while the failed run was under way count as well: it may have looked at
    them before that.

    Args:
        instance: The instance of Dagster, which records when each output was made.
        names: The names of the project in Dagster.
        step: The output, with the inputs that it is made from.
        failed: The run that has failed. The inputs that it made itself do not count.
    """
    # There may be hundreds of inputs, and this is called every few seconds. So look up all
    # partitions of an asset in one query.
    for asset, partitions in _partitions_by_asset(step.needs).items():
        asset_key = names.asset(asset)
        if _was_made_by_another_run(instance, asset_key, partitions, failed):
            return True
    return False


def _partitions_by_asset(nodes: Iterable[Node]) -> dict[tuple[str, ...], list[str]]:
    """Return the partitions of assets that outputs are in Dagster, grouped by asset.

    For example, for the datasets of `web` and `books`, and the settings of the data mixture `pre`
    for a trainer, which is an asset without partitions:

        {("indexed_dataset",): ["web", "books"], ("pre", "handoff"): []}

    Args:
        nodes: The outputs.
    """
    partitions_by_asset: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        partitions = partitions_by_asset.setdefault(asset_path(node), [])
        partition = partition_of(node)
        if partition is not None:
            partitions.append(partition)
    return partitions_by_asset


def _was_made_by_another_run(
    instance: dg.DagsterInstance,
    asset: dg.AssetKey,
    partitions: Sequence[str],
    failed: dg.RunRecord,
) -> bool:
    """Return whether another run has made an asset, or parts of it, since a failed run started.

    Args:
        instance: The instance of Dagster, which records each time that an asset is made.
        asset: Key of the asset, such as `indexed_dataset`.
        partitions: The parts of the asset that count, such as ["web", "books"]. Empty if the asset
            is not divided into partitions.
        failed: The run that has failed.
    """
    # There is a record for each time that a partition was made, perhaps thousands. Few are enough:
    # of the partitions web and books, the failed run has made each at most once. So if there are
    # three records, one is of another run.
    max_records = len(partitions) + 1  # an asset without partitions: the latest one
    records_filter = dg.AssetRecordsFilter(
        asset,
        asset_partitions=partitions or None,
        after_timestamp=start_time(failed),
    )
    records = instance.fetch_materializations(records_filter, limit=max_records).records
    return any(record.run_id != failed.dagster_run.run_id for record in records)


def _ensure_digests_tag(
    instance: dg.DagsterInstance, names: Names, record: dg.RunRecord, current_digest: str
) -> str:
    """Return the digests of the outputs that a run was to make; store one if there are none.

    The digest of an output is a hash of what it is made from. A sensor that requests a run stores
    the digests of its outputs in a tag of the run, such as "3f9c… 81aa…" for two outputs.

    A run that a person has started has no such tag. Then it is supposed to be for the present
    version of the output, and gets the tag now. Suppose that this version is 81aa…, and that the
    settings are changed later, so that it is 55d0…:

        call      current_digest    tag before    result
        first     81aa…             none          "81aa…"
        second    55d0…             81aa…         "81aa…": something has changed since the run

    Args:
        instance: The instance of Dagster, which stores the tag.
        names: The names of the project, for the name of the tag.
        record: The run, which has ended.
        current_digest: The digest of the present version.

    Returns:
        The value of the tag, which the run has in any case afterwards.
    """
    run = record.dagster_run
    tag_name = names.tag(WANTED_TAG)
    if tag_name in run.tags:
        return run.tags[tag_name]
    instance.add_run_tags(run.run_id, {tag_name: current_digest})
    return current_digest


def reason_not_repeated(
    instance: dg.DagsterInstance, last: dg.RunRecord, attempts: Sequence[dg.RunRecord]
) -> str | None:
    """Return why the last run for an output should not be repeated now, or None if it may be.

    A sensor has found an output that is missing or out of date, although there was a run to make
    exactly this version of it. It depends on how that run ended:

        last run                                              repeated
        was killed, and Dagster is about to start it again    no
        ended before this process (Dagster's server) began    yes
        failed by an error, or was cancelled                  no: it would fail again
        was killed, or nanoset.yaml could not be read         yes, but there are at most 5 runs
        had no partition, although it needed one              yes, but there are at most 5 runs
        succeeded, but its output is missing again            yes, but there are at most 5 runs

    Args:
        instance: The instance of Dagster, which knows how the steps of a run ended.
        last: The last run that was to make the output.
        attempts: All runs that were requested for the same output.

    Returns:
        Such as "its run was killed, and will be started again"; or None.
    """
    run = last.dagster_run
    if _is_about_to_be_retried(last):
        return _WILL_BE_RETRIED
    if end_time(last) < PROCESS_STARTED_AT:
        return None  # after a restart of Dagster's server, everything is tried again
    if _would_fail_again(instance, run):
        outcome = "failed" if run.status == dg.DagsterRunStatus.FAILURE else "was cancelled"
        return (
            f"its run {run.run_id[:8]} {outcome}; "
            "it is built when what it is made from changes, or from the UI"
        )

    # Other runs may be repeated, but not forever. Count those since this process began.
    n_attempts = sum(end_time(attempt) >= PROCESS_STARTED_AT for attempt in attempts)
    if n_attempts >= MAX_ATTEMPTS:
        return f"{n_attempts} runs did not build it; the last is {run.run_id[:8]}"
    return None


def _would_fail_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run has failed or was cancelled, for a reason that is probably still there.

    If it was killed (for lack of memory, say), if nanoset.yaml could not be read at that moment, or
    if a person started it without a partition, the reason may have passed.

    Args:
        instance: The instance of Dagster, which knows how the steps of the run ended.
        run: A run that has ended.
    """
    had_outside_cause = _was_killed(instance, run) or REPEATABLE_TAG in run.tags
    return run.status in UNSUCCESSFUL and not had_outside_cause


def has_made(
    instance: dg.DagsterInstance,
    record: dg.RunRecord,
    asset: dg.AssetKey,
    partition: str,
    digest: str,
) -> bool:
    """Return whether a certain run made the present version of a partition, with a given digest.

    A sensor that sees changed files requests a run. When it looks again, the run has perhaps made
    the very output that the sensor asks for. The sensor then requests no other run.

    Args:
        instance: The instance of Dagster, which has the history of the asset.
        record: The run.
        asset: Key of the asset, such as `indexed_dataset`.
        partition: A partition of the asset, such as `web`.
        digest: The digest (hash) that the version should have. Dagster records it as data version.
    """
    run = record.dagster_run
    if not run.is_success:
        return False
    records_filter = dg.AssetRecordsFilter(asset, asset_partitions=[partition])
    records = instance.fetch_materializations(records_filter, limit=1).records
    if not records:
        return False  # the partition was never made

    latest = records[0]  # the last time that it was made
    materialization = latest.asset_materialization
    if latest.run_id != run.run_id or materialization is None:
        return False  # another run has made it since
    tags = materialization.tags or {}
    return tags.get(DATA_VERSION_TAG) == digest


def _is_about_to_be_retried(record: dg.RunRecord) -> bool:
    """Return whether Dagster is about to start a run again that was killed.

    Dagster's daemon marks such a run with a tag, and usually starts it again within moments. If
    that has not happened after RETRY_SECONDS (10 minutes), it is not expected any more.

    Args:
        record: A run that has ended.
    """
    seconds_ago = time.time() - end_time(record)
    return seconds_ago < RETRY_SECONDS and record.dagster_run.tags.get(WILL_RETRY_TAG) == "true"


def _was_killed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a run was killed from outside, such as for lack of memory.

    Then Dagster records that the run has failed, but not that one of its steps has.

    Args:
        instance: The instance of Dagster, which knows how the steps of the run ended.
        run: A run that has ended.
    """
    if run.status != dg.DagsterRunStatus.FAILURE:
        return False
    return instance.get_run_stats(run.run_id).steps_failed == 0
