"""The asset `overview`: a whole project on one page of Dagster's UI.

It has a check, which warns of stale outputs, and a sensor, which keeps both up to date without a
run. Nothing here builds anything, so the sensor is part of a project whatever `automation` is.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.dagster_compat import latest_runs, repository_of
from nanoset_assets.project_defs import Automation, ProjectDefs, tick_result
from nanoset_assets.project_look import (
    OverviewContent,
    condition_note,
    overview_content,
    readers_of,
)
from nanoset_assets.stage_assets import GROUP
from nanoset_assets.tags import PROCESS_STARTED_AT
from nanoset_assets.ui.metadata import failure
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.records.parsing import CONFIG_FILE

OVERVIEW = "overview"
"""The name of the asset, and of the sensor that keeps it up to date."""
CHECK = "up_to_date"
"""The name of its check, which warns of missing and stale outputs."""
SECONDS = 60
"""Shortest interval between two ticks: each queries Dagster's history and reads nanoset.yaml."""
COMPARE_SECONDS = 3600
"""How often all outputs are compared although no change has been noticed.

A deleted output, for example, shows only then.
"""
_MAX_NAMES = 3
"""How many stale outputs the log of a tick names at most."""
_UNLOADABLE = "unloadable"
"""Takes the place of `_Cursor.seen` while nanoset.yaml cannot be loaded."""
_DESCRIPTION = (
    "The whole project on one page: tokens, outputs, what is stale and why, and what depends on it."
)
"""Description of the asset in Dagster's UI."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What the sensor remembers from one tick to the next."""

    seen: str = ""
    """The result of `_change_digest` in the last tick that compared all outputs."""
    compared_at: float = 0.0
    """When all outputs were last compared, in seconds since 1970."""
    reported: str = ""
    """Digest of the content that was last reported to Dagster."""

    @staticmethod
    def parse(text: str | None) -> "_Cursor":
        """Return the cursor in a text; an empty one if the text is none, as on the first tick."""
        fields = (text or "").split()
        if len(fields) != 3:
            return _Cursor()
        return _Cursor(fields[0], float(fields[1]), fields[2])

    def __str__(self) -> str:
        return f"{self.seen} {int(self.compared_at)} {self.reported}"


def overview_asset(project_defs: ProjectDefs, automation: Automation) -> dg.AssetsDefinition:
    """Make the asset `overview`, whose page in the UI shows the state of the whole project.

    A sensor keeps it up to date; the user may materialise it to see the current state at once.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs. The page warns if nothing does.
    """
    key = project_defs.names.asset(OVERVIEW)

    @dg.asset(
        key=key,
        group_name=project_defs.names.group(GROUP),
        check_specs=[
            dg.AssetCheckSpec(
                CHECK, asset=key, description="Warns of what is missing or stale, and why."
            )
        ],
        owners=list(project_defs.owners),
        tags=dict(project_defs.tags),
        description=_DESCRIPTION,
    )
    def overview(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        """Compare all outputs, and yield the page with the result of its check."""
        project = project_defs.load_in_step(context)
        try:
            content = overview_content(
                project_defs, automation, project, context.instance, repository_of(context)
            )
        except NanosetError as error:
            raise failure(error) from error
        check = dg.AssetCheckResult(check_name=CHECK, **content.verdict)
        yield dg.MaterializeResult(metadata=content.metadata, check_results=[check])

    return overview


def overview_sensor(project_defs: ProjectDefs, automation: Automation) -> dg.SensorDefinition:
    """Make the sensor that reports the overview whenever it changes, without a run.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs. The page warns if nothing does.
    """
    key = project_defs.names.asset(OVERVIEW)
    options = project_defs.sensor_options(OVERVIEW)
    options["minimum_interval_seconds"] = max(SECONDS, options["minimum_interval_seconds"])

    @dg.sensor(
        description=f"Keeps {key.to_user_string()} up to date, and builds nothing.", **options
    )
    def overview(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Report the page and its check to Dagster, if they have changed since the last report."""
        before = _Cursor.parse(context.cursor)
        now = time.time()
        try:
            project = project_defs.load()
        except NanosetError as error:
            return _unloadable(context, key, error, before)

        # Comparing all outputs is slow: do it only if a quick query shows a change, or from time to
        # time.
        instance = context.instance
        repository = context.repository_def
        digest = _change_digest(project_defs, automation, project, instance, repository)
        has_changed = digest != before.seen
        if not has_changed and now - before.compared_at < COMPARE_SECONDS:
            return tick_result(context, [], [], "no run, setting or corpus has changed")

        # Report the content to Dagster, unless it is what was reported before.
        content = overview_content(project_defs, automation, project, instance, repository)
        reported = _digest((content.metadata, content.stale, content.warnings))
        cursor = str(_Cursor(seen=digest, compared_at=now, reported=reported))
        if reported == before.reported:
            return tick_result(context, [], [], "nothing has changed", cursor=cursor)
        events = [
            dg.AssetMaterialization(key, metadata=content.metadata),
            dg.AssetCheckEvaluation(key, CHECK, **content.verdict),
        ]
        notes = [*content.warnings, *content.stale[:_MAX_NAMES]]
        return tick_result(context, [], notes, "reported", cursor=cursor, asset_events=events)

    return overview


def _unloadable(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, error: NanosetError, before: _Cursor
) -> dg.SensorResult:
    """Return the result of a tick that could not load nanoset.yaml.

    The check of the asset `overview` reports each error once; the log of every tick repeats it.

    Args:
        context: The context of the tick.
        key: The asset `overview`.
        error: Why the file cannot be loaded.
        before: The cursor that the previous tick stored.
    """
    warning = f"{CONFIG_FILE} cannot be loaded, so nothing is built: {one_line(error)}"
    reported = _digest(str(error))
    if reported == before.reported:  # an earlier tick has reported this error
        return tick_result(context, [], [warning], "")

    # With this cursor, the next tick that can load the file compares all outputs.
    cursor = str(_Cursor(seen=_UNLOADABLE, compared_at=0, reported=reported))
    verdict = OverviewContent({}, [], [warning]).verdict
    event = dg.AssetCheckEvaluation(key, CHECK, **verdict)
    return tick_result(context, [], [warning], "", cursor=cursor, asset_events=[event])


def _change_digest(
    project_defs: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str:
    """Return a digest that changes with most of what the overview shows, and is quick to compute.

    It covers settings, corpora, the runs of this project's assets and of those that depend on them,
    and the state of sensors that evaluate conditions. No outputs are read.

    Args:
        project_defs: What the definitions of the project were made from.
        automation: What builds missing and stale outputs.
        project: The project, with the current configuration.
        instance: The instance, for the latest runs.
        repository: All definitions of the code location; None if they are unknown.
    """
    names = project_defs.names
    keys = {names.asset(asset_path(node)) for node in requested_nodes(project.config)}
    if repository is not None:
        keys.update([reader.key for reader in readers_of(repository, keys)])
    runs = latest_runs(instance, sorted(keys))
    corpora = instance.get_dynamic_partitions(names.corpora_name)
    note = condition_note(project_defs, automation, instance, repository)
    return _digest((PROCESS_STARTED_AT, project.config, corpora, runs, note))


def _digest(value: object) -> str:
    """Return a digest of a value's representation as text, which fits into a cursor."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
