"""The schedule `reconcile`, which compares every output with its files, settings and code.

It does the work of both sensors, over raw text and over stale outputs, and also retries what has
failed. So it repairs whatever the sensors have missed. For example, with `reconcile: 0 3 * * *` in
nanoset.yaml, it requests each night a run of every output that is missing or stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_names import is_asset, label_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.due_runs import due_runs, run_request
from nanoset_assets.graph_state import load_graph_state
from nanoset_assets.loaded import LoadedAssets, reload_notes
from nanoset_assets.names import Names
from nanoset_assets.partition_sets import register
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import AUTOMATION_TAG
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import Step, graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.running import not_a_cron_line
from nanoset_core.project.runs import GraphState
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import (
    inventory_recipe,
    overwritten_file,
    quiet_period_of,
    remembered_inventory,
)
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages, sweep
from nanoset_core.text.pieces import Inventory
from nanoset_core.text.survey import RawText
from nanoset_core.untrusted import Multiline, visible

SCHEDULE = "reconcile"
"""Name of the schedule, without the project's prefix."""
EVERY_ASSET = "__ASSET_JOB"
"""Dagster's implicit job for all assets. Only here may assets have different partitions."""
MAX_NIGHTLY_REQUESTS = 1000
"""How many runs one tick requests at most; the sensors and the next tick request the rest."""


def reconcile_schedule(project_defs: ProjectDefs) -> list[dg.ScheduleDefinition]:
    """Make the schedule, if `automation.reconcile` of nanoset.yaml says when it runs.

    Args:
        project_defs: The names and settings of the project in Dagster.

    Returns:
        A list with the schedule; empty if nanoset.yaml has no such setting.

    Raises:
        ConfigError: The setting is not a valid cron line.
    """
    automation = project_defs.config.automation
    cron_line = automation.reconcile
    if cron_line is None:
        return []
    _check_cron_line(project_defs.config.file, cron_line)
    status = dg.DefaultScheduleStatus

    @dg.schedule(
        name=project_defs.names.definition(SCHEDULE),
        job_name=EVERY_ASSET,
        cron_schedule=cron_line,
        execution_timezone=automation.timezone,
        default_status=status.RUNNING if automation.enabled else status.STOPPED,
        description="Compares every output with the current files, settings and code, and builds "
        "outputs that are missing, stale or faulty as far as their inputs are ready. The sensors "
        "build what depends on these.",
    )
    def reconcile(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        """Request runs for all outputs that are missing or stale, or say why there is none."""
        tick_time = f"{context.scheduled_execution_time:%Y-%m-%dT%H:%M}"
        return _tick_result(context, project_defs, tick_time)

    return [reconcile]


def _tick_result(
    context: dg.ScheduleEvaluationContext, project_defs: ProjectDefs, tick_time: str
) -> list[dg.RunRequest] | dg.SkipReason:
    """Return the runs that one call of the schedule requests, or why it requests none.

    The schedule runs at fixed times, such as every night. It looks for outputs that are missing or
    out of date, and requests runs that make them.

    Args:
        context: Dagster's context of the call.
        project_defs: The names and settings of the project in Dagster.
        tick_time: When the call was due, such as `2026-01-31T03:00`.
    """
    names = project_defs.names
    project = project_defs.load()  # with the current nanoset.yaml
    # Look up the active runs before the files: if one ends meanwhile, it still counts as active, so
    # that what it has just built is not requested again.
    active_runs = ActiveRuns(context.instance, names)
    text = scan_corpora(project)
    _log_warnings(context, text, reload_notes(project_defs.config, project.config))
    sweep(project)  # removes temporary files of killed processes
    register(context.instance, names, text.corpora, project.config)  # as partitions
    return _requests_or_reason(project_defs, project, text, active_runs, tick_time)


def _requests_or_reason(
    project_defs: ProjectDefs,
    project: Project,
    text: RawText,
    active_runs: ActiveRuns,
    tick_time: str,
) -> list[dg.RunRequest] | dg.SkipReason:
    """Compare raw text with outputs, and return the runs to request, or why there are none.

        a corpus with files that were never read    a run that makes all of its outputs
        any other output that is missing or stale   a run that makes it, if its inputs are ready

    Args:
        project_defs: The names of the project, and the settings that Dagster has loaded.
        project: The project with the current nanoset.yaml.
        text: The corpora, which are folders of raw text, and their files.
        active_runs: The runs that were active before the raw text was listed. What they make is not
            requested again.
        tick_time: When the schedule was due, such as `2026-01-31T03:00`; a part of the run keys.
    """
    names = project_defs.names
    # Corpora with files that were never read: request all of their assets.
    survey = _survey(project, text)
    corpora = [corpus for corpus in survey.with_new_files if corpus not in active_runs.corpora]
    requests = _corpus_requests(names, tick_time, text, corpora)

    # The other corpora: request the outputs that are missing or stale and whose inputs are ready.
    graph = graph_over(project, survey.recipes)
    state = load_graph_state(graph, active_runs.instance, names, active_runs)
    due = _due_runs(project_defs, state, active_runs)
    requests += _output_requests(names, tick_time, due)
    if requests:
        return requests[:MAX_NIGHTLY_REQUESTS]  # the sensors and the next tick request the rest
    return _skip_reason(len(state.steps), len(text.corpora), survey.being_written)


def _due_runs(
    project_defs: ProjectDefs, state: GraphState, active_runs: ActiveRuns
) -> list[list[Step]]:
    """Return the runs that make missing and stale outputs, also those that have failed before.

    An inventory, the list of the files of a corpus, is made again, too, if the files have changed.

    Args:
        project_defs: Its settings say which assets Dagster has loaded.
        state: Which outputs are missing, stale or up to date.
        active_runs: The active runs, whose outputs are not made again.

    Returns:
        The steps of each run. A step makes one output.
    """
    loaded_assets = LoadedAssets.of(project_defs.config)
    due = due_runs(
        state, active_runs, loaded_assets, retries_failed=True, includes_inventories=True
    )
    return due.runs


def _log_warnings(
    context: dg.ScheduleEvaluationContext, text: RawText, notes: Iterable[str]
) -> None:
    """Log what a person has to correct.

    Args:
        context: The context of the tick, which has its log.
        text: The corpora of the raw folder, with those that cannot be read.
        notes: Further warnings, such as that Dagster has to reload its definitions.
    """
    # Several corpora may have the same fault.
    for fault in dict.fromkeys(text.faults.values()):
        context.log.warning(visible(Multiline(fault)))
    for note in notes:
        context.log.warning(note)


def _skip_reason(n_outputs: int, n_corpora: int, being_written: Sequence[str]) -> dg.SkipReason:
    """Return the text for a tick that requests no run.

    Args:
        n_outputs: Outputs that were examined.
        n_corpora: Corpora of the raw folder.
        being_written: Corpora with files that something is writing to.
    """
    reason = f"{n_outputs:,} outputs of {n_corpora:,} corpora: none is missing or stale"
    if being_written:
        reason += f"; something writes to {', '.join(being_written)}"
    return dg.SkipReason(reason)


def _check_cron_line(file: Path, cron_line: str) -> None:
    """Check that Dagster accepts a cron line, such as `0 3 * * *`.

    Args:
        file: The nanoset.yaml, for the message.
        cron_line: The line, from `automation.reconcile`.

    Raises:
        ConfigError: Dagster rejects the cron line.
    """
    try:
        dg.ScheduleDefinition(job_name=EVERY_ASSET, cron_schedule=cron_line)
    except dg.DagsterInvalidDefinitionError as error:
        raise not_a_cron_line(f"{file}: automation.reconcile", cron_line) from error


def _corpus_requests(
    names: Names, tick_time: str, text: RawText, corpora: Iterable[str]
) -> list[dg.RunRequest]:
    """Return requests for all assets of corpora, from their files to their datasets.

    Args:
        names: The names of the project in Dagster.
        tick_time: When this call of the schedule was due, a part of the run keys. Dagster starts
            each key once, so a repeated call starts nothing twice, but the next one can repeat what
            has failed.
        text: The files of all corpora.
        corpora: The corpora to build.
    """
    assets = _assets_of_a_corpus(names)
    requests: list[dg.RunRequest] = []
    for corpus in corpora:
        request = dg.RunRequest(
            run_key=f"{tick_time}/{corpus}:{text.corpora[corpus].signature}",
            partition_key=corpus,
            asset_selection=assets,
            tags={AUTOMATION_TAG: SCHEDULE},
        )
        requests.append(request)
    return requests


def _assets_of_a_corpus(names: Names) -> list[dg.AssetKey]:
    """Return the assets that the job of a corpus makes; their stages have the kind "corpus"."""
    assets: list[dg.AssetKey] = []
    for stage in stages():
        if stage.kind == INVENTORY.kind and is_asset(stage):
            assets.append(names.asset(shape_of(stage).asset))
    return assets


def _output_requests(
    names: Names, tick_time: str, runs: Iterable[Sequence[Step]]
) -> list[dg.RunRequest]:
    """Return requests for runs that make missing and stale outputs.

    Dagster starts only one run for each run key. The key has the time of the schedule and a digest
    of what is made: `2026-01-31T03:00/pretrain/handoff:3f9c…`. So if Dagster calls the schedule
    again for the same night, nothing is made twice, and in the next night a run that has failed can
    be repeated.

    Args:
        names: The names of the project in Dagster.
        tick_time: When the schedule was due.
        runs: The steps of each run. A step makes one output.
    """
    requests: list[dg.RunRequest] = []
    for run in runs:
        # Dagster ignores a request whose key it has seen. With the time, another tick may repeat
        # the request. The last output is made from the others, so its digest stands for all.
        last_step = run[-1]
        run_key = f"{tick_time}/{label_of(last_step.node)}:{last_step.digest}"
        requests.append(run_request(names, run, SCHEDULE, run_key=run_key))
    return requests


@dataclass(frozen=True, slots=True)
class _FileSurvey:
    """The state of all corpora, found without reading their files."""

    recipes: dict[str, Recipe] = field(default_factory=dict)
    """Corpus → recipe of the inventory of its files, without those that are being written."""
    with_new_files: list[str] = field(default_factory=list)
    """Corpora with new files. The recipe of their inventory is unknown until a run reads them."""
    being_written: list[str] = field(default_factory=list)
    """Corpora with files that something is writing to."""

    def add(self, corpus: str, inventory: Inventory) -> None:
        """Add a corpus; some of its files may be listed, while others are still being written.

        Args:
            corpus: Name of the corpus.
            inventory: The list of its files that a build would make.
        """
        if inventory.awaited:
            self.being_written.append(corpus)
        if inventory.pieces:
            self.recipes[corpus] = inventory_recipe(inventory)


def _survey(project: Project, text: RawText) -> _FileSurvey:
    """List the files of each corpus that a build would read now, without reading any of them.

    The corpora, which are folders of raw text, are divided into three groups:

    - A file of the last build is being overwritten: a build now would lose its text, so the corpus
      waits.
    - There is a file that was never read: the corpus has to be built.
    - All files were read before: their digests are known, and show whether anything has changed.

    Args:
        project: Its outputs have the digests of files that were read before.
        text: The corpora and their files.
    """
    survey = _FileSurvey()
    for corpus, contents in text.corpora.items():
        # Wait while a file that an earlier build has read is being overwritten: a build would leave
        # it out, and the corpus would lose its text.
        if overwritten_file(project, corpus, contents.texts) is not None:
            survey.being_written.append(corpus)
            continue
        # Other files that were written to a moment ago are new: a later build reads them.
        quiet_period = quiet_period_of(project, corpus)
        inventory = remembered_inventory(project, contents, quiet_period)
        if inventory is None:
            survey.with_new_files.append(corpus)  # the digest of a file is not known yet
        else:
            survey.add(corpus, inventory)
    return survey
