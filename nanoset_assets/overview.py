"""The asset `overview`: a whole project on one page of Dagster's UI.

It has a check, which warns of stale outputs, and a sensor, which keeps both up to date without a
run. Nothing here builds anything, so the sensor is part of a project whatever `automation` is. For
example, after an edit of nanoset.yaml, the next tick reports "3 outputs missing or stale".
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.dagster_compat import latest_runs, repository_of
from nanoset_assets.names import Names
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
"""Takes the place of `_Cursor.quick_digest` while nanoset.yaml cannot be loaded.

It differs from every digest, so all outputs are compared once the file is corrected.
"""
_DESCRIPTION = (
    "The whole project on one page: tokens, outputs, what is stale and why, and what depends on it."
)
"""Description of the asset in Dagster's UI."""


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What the sensor remembers from one tick to the next."""

    quick_digest: str = ""
    """The result of `_quick_digest` in the last tick that compared all outputs."""
    compared_at: float = 0.0
    """When all outputs were last compared, in seconds since 1970."""
    reported_digest: str = ""
    """Digest of the page, or of the error, that was last reported to Dagster."""

    @staticmethod
    def parse(text: str | None) -> "_Cursor":
        """Return the cursor in a text, which `str` has made from one.

        Args:
            text: The text; None on the first tick, which has an empty cursor.
        """
        fields = (text or "").split()
        if len(fields) != 3:
            return _Cursor()
        return _Cursor(fields[0], float(fields[1]), fields[2])

    def __str__(self) -> str:
        return f"{self.quick_digest} {int(self.compared_at)} {self.reported_digest}"


def overview_asset(project_defs: ProjectDefs, automation: Automation) -> dg.AssetsDefinition:
    """Make the asset `overview`, whose page in the UI shows the state of the whole project.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs. The page warns if nothing does.

    Returns:
        The asset, with a check that warns of missing and stale outputs.
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

    Returns:
        The sensor, for the definitions of the code location.
    """
    key = project_defs.names.asset(OVERVIEW)
    options = project_defs.sensor_options(OVERVIEW)
    options["minimum_interval_seconds"] = max(SECONDS, options["minimum_interval_seconds"])

    @dg.sensor(
        description=f"Keeps {key.to_user_string()} up to date, and builds nothing.", **options
    )
    def overview(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Report the page and its check to Dagster, if they have changed since the last report."""
        return _evaluate(context, project_defs, automation)

    return overview


def _evaluate(
    context: dg.SensorEvaluationContext, project_defs: ProjectDefs, automation: Automation
) -> dg.SensorResult:
    """Return what one call of the sensor reports: the state of the project, if it has changed.

    Dagster calls the sensor every few seconds. Making the page takes long, since all outputs are
    compared. So a digest of what is quick to look up (runs, settings, names of corpora) decides
    whether the page is made at all:

        the digest is the same, and the page is recent    nothing is done
        the page was made, and is the same as before      it is not reported again
        the page was made, and is another one             it is reported to Dagster

    Args:
        context: Dagster's context of the call, with what the last call stored.
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs.
    """
    key = project_defs.names.asset(OVERVIEW)
    last_cursor = _Cursor.parse(context.cursor)
    now = time.time()
    try:
        project = project_defs.load()
    except NanosetError as error:
        return _result_for_invalid_config(context, key, error, last_cursor)

    # Making the page is slow, since it compares all outputs. If nothing seems to have changed, by a
    # digest of what is quick to look up, make it only from time to time.
    instance = context.instance
    repository = context.repository_def
    quick_digest = _quick_digest(project_defs, automation, project, instance, repository)
    was_compared_lately = now - last_cursor.compared_at < COMPARE_SECONDS
    if quick_digest == last_cursor.quick_digest and was_compared_lately:
        return tick_result(context, idle_reason="no run, setting or corpus has changed")

    # Make the page, and report it if it differs from the last one that was reported.
    page = overview_content(project_defs, automation, project, instance, repository)
    page_digest = _digest((page.metadata, page.stale, page.warnings))
    cursor = _Cursor(quick_digest, compared_at=now, reported_digest=page_digest)
    if page_digest == last_cursor.reported_digest:
        return tick_result(context, idle_reason="nothing has changed", cursor=str(cursor))
    return _result_with_page(context, key, page, cursor)


def _result_with_page(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, page: OverviewContent, cursor: _Cursor
) -> dg.SensorResult:
    """Return the result of a tick that reports a changed page to Dagster, without a run.

    Args:
        context: The context of the tick.
        key: The asset `overview`.
        page: The tables of the page, and what it warns of.
        cursor: What the sensor remembers for the next tick.
    """
    new_version = dg.AssetMaterialization(key, metadata=page.metadata)
    # The check warns of missing and stale outputs. `verdict` has its arguments, such as `passed`.
    check = dg.AssetCheckEvaluation(key, CHECK, **page.verdict)
    return tick_result(
        context,
        notes=[*page.warnings, *page.stale[:_MAX_NAMES]],
        idle_reason="reported",  # the tick's text in the UI, if the page warns of nothing
        cursor=str(cursor),
        asset_events=[new_version, check],
    )


def _result_for_invalid_config(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, error: NanosetError, last_cursor: _Cursor
) -> dg.SensorResult:
    """Return the result of a tick that could not load nanoset.yaml: a failed check of the overview.

    Every tick logs the error, but only the first one reports it to Dagster's history.

    Args:
        context: The context of the tick.
        key: The asset `overview`.
        error: Why the file cannot be loaded.
        last_cursor: What the previous tick has stored.
    """
    warning = f"{CONFIG_FILE} cannot be loaded, so nothing is built: {one_line(error)}"
    error_digest = _digest(str(error))
    was_reported = error_digest == last_cursor.reported_digest
    if was_reported:
        return tick_result(context, notes=[warning])

    page = OverviewContent(metadata={}, stale=[], warnings=[warning])
    check = dg.AssetCheckEvaluation(key, CHECK, **page.verdict)
    # With this cursor, the first tick after the file is corrected reports the whole page.
    cursor = _Cursor(quick_digest=_UNLOADABLE, compared_at=0, reported_digest=error_digest)
    return tick_result(context, notes=[warning], cursor=str(cursor), asset_events=[check])


def _quick_digest(
    project_defs: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str:
    """Return a digest that changes with most of what the overview shows, and is quick to compute.

    It covers the settings, the corpora, the latest runs of this project's assets and of those that
    depend on them, and a note on stopped sensors. No outputs are read.

    Args:
        project_defs: What the definitions of the project were made from.
        automation: What builds missing and stale outputs.
        project: The project, with the current configuration.
        instance: The instance of Dagster, for the latest runs.
        repository: All definitions of the code location; None if they are unknown.
    """
    names = project_defs.names
    runs = latest_runs(instance, _assets_and_dependents(names, project, repository))
    corpora = instance.get_dynamic_partitions(names.corpora_name)
    note = condition_note(project_defs, automation, instance, repository)
    # After a restart of this process, its code may be newer.
    return _digest((PROCESS_STARTED_AT, project.config, corpora, runs, note))


def _assets_and_dependents(
    names: Names, project: Project, repository: dg.RepositoryDefinition | None
) -> list[dg.AssetKey]:
    """Return the project's assets and other assets that depend on them, sorted.

    Args:
        names: The names of the project in Dagster.
        project: The project, with the current configuration.
        repository: All definitions of the code location; None if they are unknown.
    """
    assets = {names.asset(asset_path(node)) for node in requested_nodes(project.config)}
    if repository is not None:
        dependents = readers_of(repository, assets)
        assets.update([dependent.key for dependent in dependents])
    return sorted(assets)


def _digest(value: object) -> str:
    """Return a digest of a value's representation as text, which fits into a cursor."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
