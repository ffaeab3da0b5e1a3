"""Find active runs and backfills, so that what they make is not requested again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property

import dagster as dg

from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.dagster_compat import OpenBackfill, latest_planned, open_backfills
from nanoset_assets.names import Names
from nanoset_assets.partition_sets import stages_of_corpora
from nanoset_assets.tags import BACKFILL_TAG, PARTITION_TAG, UNFINISHED
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.stage import Node


class ActiveRuns:
    """The runs of an instance that were queued or had not ended when this object was made.

    Create it before you read outputs. A run that ends in between still counts as active, so that
    what it has just made is not requested again; the next tick decides.
    """

    def __init__(
        self,
        instance: dg.DagsterInstance,
        names: Names,
        upstream: Mapping[str, Sequence[dg.AssetKey]] | None = None,
    ) -> None:
        """Look up the runs.

        Args:
            instance: The instance.
            names: The names of the project.
            upstream: Corpus → the host's assets that land its text; default: none.
        """
        self.instance = instance
        self.names = names
        self.upstream = upstream or {}
        self.looked_up_at = time.time()
        """When the runs were looked up, in seconds since 1970."""
        self.runs: Sequence[dg.DagsterRun] = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
        self._run_ids = {run.run_id for run in self.runs}
        self._is_active_by_node: dict[Node, bool] = {}

    @cached_property
    def corpora(self) -> set[str]:
        """The corpora that an active run builds."""
        job = self.names.definition(INVENTORY.kind)
        assets = {self.names.asset(shape_of(stage).asset) for stage in stages_of_corpora()}
        corpora: set[str] = set()
        for run in self.runs:
            is_about_corpora = run.job_name == job or not assets.isdisjoint(
                run.asset_selection or ()
            )
            if is_about_corpora and PARTITION_TAG in run.tags:
                corpora.add(run.tags[PARTITION_TAG])
        return corpora

    @cached_property
    def backfills(self) -> list[OpenBackfill]:
        """The backfills that have not ended."""
        return open_backfills(self.instance)

    @cached_property
    def landing(self) -> dict[str, str]:
        """Corpus whose text is being written → the asset that an active run or backfill makes."""
        targeted: set[dg.AssetKey] = set()
        for backfill in self.backfills:
            targeted.update(backfill.assets)
        for run in self.runs:
            targeted.update(run.asset_selection or ())

        # A run of a job does not list its assets: look up the last run of each asset instead.
        if self.runs or self.backfills:
            open_ids = {backfill.backfill_id for backfill in self.backfills}
            for key in {key for keys in self.upstream.values() for key in keys}:
                record = last_run(self.instance, key, None)
                if record is None:
                    continue
                # A run that has ended may be one of several of a backfill that continues.
                is_of_open_backfill = record.dagster_run.tags.get(BACKFILL_TAG) in open_ids
                if is_of_open_backfill or self._is_active(record):
                    targeted.add(key)

        landing: dict[str, str] = {}
        for corpus, upstream_keys in self.upstream.items():
            for key in upstream_keys:
                if key in targeted:
                    landing.setdefault(corpus, key.to_user_string())
        return landing

    def targets(self, asset: dg.AssetKey, partition: str) -> bool:
        """Return whether an active run or open backfill will make a partition of an asset.

        A backfill whose partitions are unknown is assumed to make it.
        """
        if any(backfill.targets(asset, partition) for backfill in self.backfills):
            return True
        record = last_run(self.instance, asset, partition)
        return record is not None and self._is_active(record)

    def __contains__(self, node: Node) -> bool:
        """Return whether the last run that was to make an output is active."""
        if node not in self._is_active_by_node:
            asset = self.names.asset(asset_path(node))
            record = last_run(self.instance, asset, partition_of(node))
            self._is_active_by_node[node] = record is not None and self._is_active(record)
        return self._is_active_by_node[node]

    def _is_active(self, record: dg.RunRecord) -> bool:
        run = record.dagster_run
        if run.run_id in self._run_ids or run.status in UNFINISHED:
            return True
        # A run that started and ended after the runs were looked up counts as active, too.
        return end_time(record) >= self.looked_up_at


def last_run(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None
) -> dg.RunRecord | None:
    """Return the last run that was to make an asset, or one partition of it."""
    planned = latest_planned(instance, asset, partition)
    if planned.run_id is None:
        return None
    return instance.get_run_record_by_id(planned.run_id)


def end_time(record: dg.RunRecord) -> float:
    """Return when a run ended, in seconds since 1970.

    For a run that never started, this is the last change of its record.
    """
    return record.end_time or record.update_timestamp.timestamp()
