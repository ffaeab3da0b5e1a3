"""The asset `overview`: a whole project on one page of Dagster's UI.

It has a check, which warns of stale outputs, and a sensor, which keeps both up to date without a
run. For example, after an edit of nanoset.yaml, the next tick reports "3 outputs missing or stale".
The sensor also adds new corpora as partitions, so that a person can build them in the UI.

Nothing here builds anything, so the sensor is part of a project whatever `automation` is, and it is
on even if `automation.enabled` is false.
"""

# There is no `from __future__ import annotations` here: Dagster reads the annotations of functions
# that it calls, and does not understand them as texts.

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import asset_path
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.assets.project_look import (
    OverviewContent,
    automation_note,
    overview_content,
    readers_of,
)
from nanoset_assets.assets.stage_assets import GROUP
from nanoset_assets.automation.cursors import OverviewCursor, cursor_text, read_cursor
from nanoset_assets.automation.ticks import tick_result
from nanoset_assets.dagster_compat import assets_with_failed_check, latest_runs, repository_of
from nanoset_assets.history.graph_state import update_checks
from nanoset_assets.names import Names
from nanoset_assets.project_defs import Automation, ProjectDefs
from nanoset_assets.tags import CHECK as CHECK_OF_FILES
from nanoset_assets.tags import PROCESS_STARTED_AT
from nanoset_assets.ui.metadata import failure
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.nodes import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.purge.interrupted import interrupted_purges
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.text.files.survey import RawText

OVERVIEW = "overview"
"""The name of the asset, and of the sensor that keeps it up to date."""
CHECK = "up_to_date"
"""The name of its check, which warns of missing and stale outputs."""
SECONDS = 60
"""Shortest interval between two ticks: each queries Dagster's history and lists the raw text."""
COMPARE_SECONDS = 3600
"""How often all outputs are compared although no change has been noticed.

A deleted output, for example, shows only then.
"""
_MAX_NAMES = 3
"""How many stale outputs the log of a tick names at most."""
_UNLOADABLE = "unloadable"
"""Takes the place of `OverviewCursor.quick_digest` while nanoset.yaml cannot be loaded.

It differs from every digest, so all outputs are compared once the file is corrected.
"""
_DESCRIPTION = (
    "The whole project on one page: tokens, outputs, what is stale and why, and what depends on it."
)
"""Description of the asset in Dagster's UI."""


def overview_asset(project_defs: ProjectDefs, automation: Automation) -> dg.AssetsDefinition:
    """Make a Dagster asset whose page shows the state of the whole project.

    The other assets each show one output. This one shows how much text there is, what is out of
    date and why, and who reads the outputs.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds outputs that are out of date, such as sensors. The page warns if
            nothing does.

    Returns:
        The asset `overview`, with a check that fails if an output is missing or out of date.
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
            page = overview_content(
                project_defs, automation, project, context.instance, repository_of(context)
            )
        except NanosetError as error:
            raise failure(error) from error
        check = dg.AssetCheckResult(check_name=CHECK, **page.verdict)  # such as passed=False
        yield dg.MaterializeResult(metadata=page.metadata, check_results=[check])

    return overview


def overview_sensor(project_defs: ProjectDefs, automation: Automation) -> dg.SensorDefinition:
    """Make a Dagster sensor that keeps the page with the state of the whole project up to date.

    Dagster calls a sensor regularly. This one looks whether the page has changed, and if so,
    reports it to Dagster itself. So no run has to be started only to renew a page.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds outputs that are out of date: sensors of the project, a sensor of
            the user, or nothing. The page warns if nothing does.

    Returns:
        The sensor `overview`.
    """
    key = project_defs.names.asset(OVERVIEW)
    options = project_defs.sensor_options(OVERVIEW)
    options["minimum_interval_seconds"] = max(SECONDS, options["minimum_interval_seconds"])
    # The sensor is on even if the settings switch automation off: the page and its check then
    # remind the user of what has to be built.
    options["default_status"] = dg.DefaultSensorStatus.RUNNING

    @dg.sensor(
        description=f"Keeps {key.to_user_string()} up to date, and registers new corpora as "
        "partitions. Builds nothing.",
        **options,
    )
    def overview(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Report the page and its check to Dagster, if they have changed since the last report."""
        return _evaluate(context, project_defs, automation)

    return overview


def _evaluate(
    context: dg.SensorEvaluationContext, project_defs: ProjectDefs, automation: Automation
) -> dg.SensorResult:
    """Report the state of the project to Dagster, if it has changed since the last report.

    Dagster calls this every few seconds.

    Args:
        context: Dagster's context of the call. Its cursor is a text that the last call has left.
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs.

    Raises:
        NanosetError: The raw folder does not exist, or cannot be listed.
    """
    key = project_defs.names.asset(OVERVIEW)
    last_cursor = read_cursor(OverviewCursor, context.cursor)
    now = time.time()
    try:
        project = project_defs.load()
    except NanosetError as error:
        return _result_for_invalid_config(context, key, error, last_cursor)

    note = project_defs.note_on_raw_folder(context.instance, project)
    if note is not None:
        return tick_result(context, notes=[note])

    # To make the page takes long, since all outputs are compared. So look first at what is quick to
    # find out, such as the latest runs. If that is unchanged, make the page only once an hour.
    instance = context.instance
    repository = context.repository_def
    text = scan_corpora(project)  # names, sizes and times of the files of each corpus
    quick_digest = _quick_digest(project_defs, automation, project, text, instance, repository)
    was_compared_lately = now - last_cursor.compared_at < COMPARE_SECONDS
    if quick_digest == last_cursor.quick_digest and was_compared_lately:
        return tick_result(context, idle_reason="no run, setting or text has changed")

    # Without partitions, new corpora could not be built in the UI. The sensor `raw_text` also adds
    # them, but it may be off.
    register(instance, project_defs.names, text.corpora, project.config)

    # Errors that `nanoset verify` has found keep Dagster from building anything from the outputs.
    outputs = requested_nodes(project.config, list(text.corpora))
    update_checks(project, outputs, instance, project_defs.names)

    # Make the page, and report it if it differs from the last one that was reported.
    page = overview_content(project_defs, automation, project, instance, repository)
    page_digest = _digest((page.metadata, page.stale, page.warnings))
    cursor = OverviewCursor(quick_digest, compared_at=now, reported_digest=page_digest)
    if page_digest == last_cursor.reported_digest:
        return tick_result(context, idle_reason="nothing has changed", cursor=cursor_text(cursor))
    return _result_with_page(context, key, page, cursor)


def _result_with_page(
    context: dg.SensorEvaluationContext,
    key: dg.AssetKey,
    page: OverviewContent,
    cursor: OverviewCursor,
) -> dg.SensorResult:
    """Return a sensor's result that shows a page with the state of the project in Dagster.

    Dagster shows it as the latest version of an asset, as if a run had made it.

    Args:
        context: Dagster's context of this call of the sensor.
        key: The key of the asset.
        page: The tables of the page, and the outputs that are out of date.
        cursor: What Dagster hands to the next call of the sensor.
    """
    new_version = dg.AssetMaterialization(key, metadata=page.metadata)
    # The check of the asset fails if an output is missing or out of date. `page.verdict` has the
    # arguments, such as passed=False.
    check = dg.AssetCheckEvaluation(key, CHECK, **page.verdict)
    return tick_result(
        context,
        notes=[*page.warnings, *page.stale[:_MAX_NAMES]],  # lines for the log
        idle_reason="reported",  # shown if there are no notes
        cursor=cursor_text(cursor),
        asset_events=[new_version, check],
    )


def _result_for_invalid_config(
    context: dg.SensorEvaluationContext,
    key: dg.AssetKey,
    error: NanosetError,
    last_cursor: OverviewCursor,
) -> dg.SensorResult:
    """Return a sensor's result that reports an error in the settings file to Dagster's users.

    Dagster calls the sensor every minute or so. Each result has a line for the log. The first one
    with this error also lets the check of the project's asset fail.

    Args:
        context: Dagster's context of this call of the sensor.
        key: The key of the asset that shows the state of the project.
        error: Why the settings cannot be loaded.
        last_cursor: What the last call of the sensor has stored, with a hash of what it reported.
    """
    warning = f"{CONFIG_FILE} cannot be loaded, so nothing is built: {one_line(error)}"
    error_digest = _digest(str(error))
    if error_digest == last_cursor.reported_digest:
        return tick_result(context, notes=[warning])  # the check has failed already

    page = OverviewContent(metadata={}, stale=[], warnings=[warning])
    check = dg.AssetCheckEvaluation(key, CHECK, **page.verdict)  # passed=False, …
    cursor = OverviewCursor(_UNLOADABLE, compared_at=0.0, reported_digest=error_digest)
    return tick_result(context, notes=[warning], cursor=cursor_text(cursor), asset_events=[check])


def _quick_digest(
    project_defs: ProjectDefs,
    automation: Automation,
    project: Project,
    text: RawText,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str:
    """Return a short text that changes if something has happened which the overview would show.

    To make the page, all outputs are examined, which takes long. So this looks only at what is
    quick to find out. If the text is the same as in the last call of the sensor, the page is not
    made. For example, it differs after

        an edit of the settings, or a new file of text
        the start or the end of a run that makes an asset of the project
        the start or the end of a run of another team's asset that is made from one (a dependent)
        a check that has found damaged files, also by `nanoset verify`
        a purge (which erases documents) that was interrupted

    It may miss a change, such as an output that somebody has deleted. So the page is also made once
    an hour.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds outputs that are out of date.
        project: The project with its present settings.
        text: The corpora, which are collections of documents.
        instance: Dagster's instance, with the history of runs.
        repository: All assets in Dagster, also those of other teams; None if they are not known.
    """
    assets = _assets_and_dependents(project_defs.names, project, list(text.corpora), repository)
    # A sentence of the page: which sensor builds the outputs, and whether it is switched on.
    note = automation_note(project_defs, automation, instance, repository)
    purges = interrupted_purges(project.outputs)
    state = (
        PROCESS_STARTED_AT,  # after a restart, the code of this process may be newer
        project.config,
        *_state_of_text(text),
        *_state_of_assets(instance, assets),
        _recorded_errors(project),
        note,
        purges,
    )
    return _digest(state)


def _recorded_errors(project: Project) -> list[str]:
    """Return values that change if `nanoset verify` finds an error, or that it was fixed.

    Args:
        project: The project, whose root has the records.
    """
    version_by_output = FailedChecks.read(project.outputs).version_by_output
    return sorted(map(str, version_by_output.items()))


def _state_of_text(text: RawText) -> tuple[object, ...]:
    """Return values that change if a file of raw text is added, changed or deleted.

    Args:
        text: The corpora (collections of documents). Each has a signature, a hash of the names,
            sizes and times of its files; or a fault, if it cannot be read.
    """
    signatures = {name: contents.signature for name, contents in text.corpora.items()}
    faults = {name: str(fault) for name, fault in text.faults.items()}
    return signatures, faults


def _state_of_assets(
    instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]
) -> tuple[object, ...]:
    """Return values that change if a run of some assets starts or ends, or a check of them fails.

    Args:
        instance: Dagster's instance, with the history of runs.
        assets: The assets.
    """
    runs = latest_runs(instance, assets)  # the latest run that makes each asset, and its state
    # Runs that only check an asset are not among them. So look up the results of checks, too.
    checks = [dg.AssetCheckKey(asset, CHECK_OF_FILES) for asset in assets]
    failed_checks = sorted(map(str, assets_with_failed_check(instance, checks)))
    return runs, failed_checks


def _assets_and_dependents(
    names: Names,
    project: Project,
    corpora: Sequence[str],
    repository: dg.RepositoryDefinition | None,
) -> list[dg.AssetKey]:
    """Return the project's assets, and those of other teams that are made from them, sorted.

    Args:
        names: Knows the names of the project in Dagster.
        project: The project with its present settings.
        corpora: Names of the corpora in the raw folder. Without any, the assets that all corpora
            have, such as `indexed_dataset`, are left out.
        repository: All assets in Dagster; if None, those of other teams are not known, and left
            out.
    """
    nodes = requested_nodes(project.config, corpora)
    assets = {names.asset(asset_path(node)) for node in nodes}
    if repository is not None:
        dependents = readers_of(repository, assets)
        assets.update([dependent.key for dependent in dependents])
    return sorted(assets)


def _digest(value: object) -> str:
    """Return a short text, 64 characters, that changes if a value changes.

    A sensor remembers it until its next call, in place of the value, which may be large.

    Args:
        value: Any value whose representation (`repr`) shows everything that matters.
    """
    return hashlib.sha256(repr(value).encode()).hexdigest()
