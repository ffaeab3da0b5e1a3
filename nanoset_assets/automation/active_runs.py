"""Find active runs and backfills, so that what they make is not requested again.

A run makes assets, or one partition of each; a backfill is a request for many partitions, for which
Dagster starts one run after the other. If an active run makes the dataset of the corpus `web`, for
example, `"web" in ActiveRuns.look_up(instance, names).corpora` is true, and no sensor requests it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain

import dagster as dg

from nanoset_assets.assets.output_names import CORPUS_JOB, asset_path, partition_of
from nanoset_assets.assets.partition_sets import stages_of_corpora
from nanoset_assets.assets.table import shape_of
from nanoset_assets.dagster_compat import OpenBackfill, latest_planned, open_backfills
from nanoset_assets.history.run_owner import close_abandoned_runs
from nanoset_assets.names import Names
from nanoset_assets.tags import BACKFILL_TAG, PARTITION_TAG, UNFINISHED
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
        """Look up the runs that have not ended. Use `look_up` instead.

        Args:
            instance: The instance of Dagster that has the runs.
            names: The names of the project in Dagster.
            upstream: Corpus (text collection) → the assets of other teams that write its raw text,
                such as `{"web": [AssetKey("crawl/pages")]}`; default: none.
        """
        self.instance = instance
        self.names = names
        self.upstream = upstream or {}
        self.looked_up_at = time.time()
        """When the runs were looked up, in seconds since 1970."""
        self.runs: Sequence[dg.DagsterRun] = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
        self._run_ids = {run.run_id for run in self.runs}
        self._is_active_by_node: dict[Node, bool] = {}

    @staticmethod
    def look_up(
        instance: dg.DagsterInstance,
        names: Names,
        upstream: Mapping[str, Sequence[dg.AssetKey]] | None = None,
    ) -> ActiveRuns:
        """Look up the runs that have not ended, after marking those of killed processes as failed.

        Otherwise, a run whose process was killed would count as active forever, and everything
        would wait for it.

        Args:
            instance: The instance of Dagster that has the runs.
            names: The names of the project in Dagster.
            upstream: Corpus (text collection) → the assets of other teams that write its raw text,
                such as `{"web": [AssetKey("crawl/pages")]}`; default: none.
        """
        close_abandoned_runs(instance, names)
        return ActiveRuns(instance, names, upstream)

    @cached_property
    def corpora(self) -> set[str]:
        """The text collections (corpora) of which a run makes something now, such as {"web"}.

        For Dagster, a corpus is a partition of the assets that are made from it. A run that makes
        one of these has a tag with the partition.
        """
        corpora: set[str] = set()
        for run in self.runs:
            if self._makes_corpus_assets(run) and PARTITION_TAG in run.tags:
                corpora.add(run.tags[PARTITION_TAG])
        return corpora

    def _makes_corpus_assets(self, run: dg.DagsterRun) -> bool:
        """Return whether a run makes assets whose partitions are corpora, such as their datasets.

        Args:
            run: A run of any job. It either executes the whole job, or lists the assets to make.
        """
        corpus_job = self.names.definition(CORPUS_JOB)  # "corpus", with the project's prefix
        if run.job_name == corpus_job:
            return True
        listed_assets = run.asset_selection or set()  # empty for a run of the whole job
        return not self._corpus_assets.isdisjoint(listed_assets)

    @cached_property
    def _corpus_assets(self) -> set[dg.AssetKey]:
        """The assets whose partitions are corpora, such as indexed_dataset."""
        return {self.names.asset(shape_of(stage).asset) for stage in stages_of_corpora()}

    @cached_property
    def backfills(self) -> list[OpenBackfill]:
        """The backfills that have not ended."""
        return open_backfills(self.instance)

    @cached_property
    def landing(self) -> dict[str, str]:
        """Corpus whose raw text is being written at this moment → the asset that writes it.

        For example, `{"web": "crawl/pages"}` while a run of another team's asset crawl/pages is
        active. The dataset of `web` is not built before that run has ended, or it would be made
        from half of the text.
        """
        if not self.runs and not self.backfills:
            return {}  # nothing is active, so no asset is being made
        active_writers: dict[str, str] = {}
        for corpus, writers in self.upstream.items():  # corpus → the assets that write its text
            for asset in writers:
                if asset in self._assets_being_made:
                    active_writers[corpus] = asset.to_user_string()
                    break  # one is enough as a reason to wait
        return active_writers

    @cached_property
    def _assets_being_made(self) -> set[dg.AssetKey]:
        """The assets in `upstream`, which write raw text, that a run or backfill makes now."""
        assets = set(chain.from_iterable(self.upstream.values()))
        assets_being_made: set[dg.AssetKey] = set()
        for asset in assets:
            if asset in self._selected_assets or self._is_last_run_active(asset):
                assets_being_made.add(asset)
        return assets_being_made

    @cached_property
    def _selected_assets(self) -> set[dg.AssetKey]:
        """The assets that active runs and backfills list as those that they make.

        A backfill is a request for many partitions. A run of a whole job lists no assets, so those
        that it makes are missing here.
        """
        selected: set[dg.AssetKey] = set()
        for backfill in self.backfills:
            selected.update(backfill.assets)
        for run in self.runs:
            selected.update(run.asset_selection or ())
        return selected

    def _is_last_run_active(self, asset: dg.AssetKey) -> bool:
        """Return whether an asset is being made at the moment, by a run or by a backfill.

        A backfill is a request for many partitions, for which Dagster starts one run after the
        other. So it may continue although the last run has ended:

            last run of the asset                         result
            is active                                     yes
            has ended; its backfill is still open         yes
            has ended, and belongs to no open backfill    no

        Args:
            asset: Key of one of the assets in `upstream`.
        """
        record = last_run(self.instance, asset, None)
        if record is None:
            return False
        # A run that has ended may be one of several of a backfill that continues.
        open_backfill_ids = {backfill.backfill_id for backfill in self.backfills}
        is_of_open_backfill = record.dagster_run.tags.get(BACKFILL_TAG) in open_backfill_ids
        return is_of_open_backfill or self._is_active(record)

    def targets(self, asset: dg.AssetKey, partition: str) -> bool:
        """Return whether a run or backfill is making a partition of an asset, or will make it.

        If somebody deletes the raw text of a corpus, such as the folder raw/web, its partition
        `web` is to be deleted in Dagster, too. But this has to wait as long as the result is True.

        Args:
            asset: Key of the asset, such as `indexed_dataset`.
            partition: Name of the partition, such as `web`.
        """
        # A backfill is a request for many partitions, whose runs are started one after another.
        if any(backfill.targets(asset, partition) for backfill in self.backfills):
            return True
        # Dagster records the last run that was to make the partition. It does not start two at
        # once.
        record = last_run(self.instance, asset, partition)
        return record is not None and self._is_active(record)

    def __contains__(self, node: Node) -> bool:
        """Return whether an output is about to be made: `node in active_runs`.

        This is so if the last run that was to make it has not ended. Answers are remembered, since
        each takes a query of Dagster's history.

        Args:
            node: The output, such as the dataset of the corpus `web`.
        """
        if node not in self._is_active_by_node:
            asset = self.names.asset(asset_path(node))
            record = last_run(self.instance, asset, partition_of(node))
            self._is_active_by_node[node] = record is not None and self._is_active(record)
        return self._is_active_by_node[node]

    def _is_active(self, record: dg.RunRecord) -> bool:
        """Return whether a run counts as active.

        Outputs are read after the active runs are looked up (at time 10, say). A run that ends in
        between may have made an output that was read before. So it counts as active, too:

            run starts    run ends       active
            2             5              no
            2             not yet        yes
            2             12             yes: at time 10, it was active
            11            12             yes: it started and ended later

        Args:
            record: Dagster's record of the run.
        """
        run = record.dagster_run
        if run.run_id in self._run_ids or run.status in UNFINISHED:
            return True
        # It has ended: before this object was made, or later?
        return end_time(record) >= self.looked_up_at


def last_run(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str | None
) -> dg.RunRecord | None:
    """Return the last run that was started to make an asset, whether or not it succeeded.

    Dagster notes at the start of a run what it is going to make. Since then, the run may have
    failed without having made the asset.

    Args:
        instance: The instance of Dagster that has the runs.
        asset: Key of the asset, such as `indexed_dataset`.
        partition: Only runs of this partition, such as `web`; None for an asset without partitions.

    Returns:
        Dagster's record of the run; None if there was none, or if it was deleted.
    """
    planned = latest_planned(instance, asset, partition)
    if planned.run_id is None:
        return None
    return instance.get_run_record_by_id(planned.run_id)


def start_time(record: dg.RunRecord) -> float:
    """Return when a run started, in seconds since 1970.

    Args:
        record: Dagster's record of the run. If the run never started, the time is that at which it
            was created.
    """
    return record.start_time or record.create_timestamp.timestamp()


def end_time(record: dg.RunRecord) -> float:
    """Return when a run ended, in seconds since 1970.

    Args:
        record: Dagster's record of the run. If the run never started, the time is that of the last
            change of the record.
    """
    return record.end_time or record.update_timestamp.timestamp()
