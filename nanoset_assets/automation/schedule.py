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

from nanoset_assets.assets.output_names import is_asset, label_of, leads_to_dataset
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.assets.table import shape_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.automation.due_runs import (
    DueRuns,
    due_runs,
    idle_reason,
    later_notes,
    run_request,
    waiting_notes,
)
from nanoset_assets.code_location.loaded import LoadedAssets, reload_notes
from nanoset_assets.history.graph_state import GraphState, load_graph_state
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import AUTOMATION_TAG
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.project.run_settings import not_a_cron_line
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import (
    inventory_recipe,
    overwritten_file,
    quiet_period_of,
    remembered_inventory,
)
from nanoset_core.stages.registry import stages, sweep
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.survey import RawText
from nanoset_core.untrusted import Multiline, visible

SCHEDULE = "reconcile"
"""Name of the schedule, without the project's prefix."""
EVERY_ASSET = "__ASSET_JOB"
"""Dagster's implicit job for all assets. Only here may assets have different partitions."""
MAX_NIGHTLY_REQUESTS = 1000
"""How many runs one tick requests at most; the sensors and the next tick request the rest."""


def reconcile_schedule(project_defs: ProjectDefs) -> list[dg.ScheduleDefinition]:
    """Make a Dagster schedule that builds missing and outdated outputs, for example each night.

    Sensors, which Dagster calls every few seconds, do most of this already. But they do not try
    again what has failed, for example. The schedule looks at everything.

    Args:
        project_defs: The names of the project in Dagster, and its settings. The setting
            `automation.reconcile` has the times, such as "0 3 * * *" for three o'clock each night.

    Returns:
        A list with the schedule; empty if the settings have no times.

    Raises:
        ConfigError: The times are not written as a cron line.
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
    """Request runs that make what is missing or out of date; if nothing is, return why.

    For example, in one night:

        what has changed                                     request
        new files in the text collection (corpus) `web`      a run of all outputs of `web`
        the weights of the data mixture `pretrain`           a run of the outputs of `pretrain`
        a run for the corpus `books` failed yesterday        the same run again
        a program is writing files of the corpus `code`      none: the next night

    Args:
        context: Dagster's context of this call of the schedule.
        project_defs: The names and settings of the project in Dagster.
        tick_time: When the call was due, such as `2026-01-31T03:00`.
    """
    names = project_defs.names
    project = project_defs.load()  # with the current nanoset.yaml
    note = project_defs.note_on_raw_folder(context.instance, project)
    if note is not None:
        return dg.SkipReason(visible(note))
    # Look up the active runs before the files. If a run ends in between, it still counts as active,
    # so that what it has just built is not requested again.
    active_runs = ActiveRuns.look_up(context.instance, names)
    text = scan_corpora(project)  # the files of each corpus
    _log_warnings(context, text, reload_notes(project_defs.config, project.config))
    sweep(project)  # removes temporary files of killed processes
    # Each corpus is a partition of Dagster's assets. Add those that are new.
    register(context.instance, names, text.corpora, project.config)

    # Request all outputs of the corpora with new files. What they should be made from is not known
    # before a run has read these files, so they cannot be compared.
    survey = _survey(project, text)
    corpora = [corpus for corpus in survey.with_new_files if corpus not in active_runs.corpora]
    requests = _corpus_requests(names, tick_time, text, corpora)

    # Compare the other outputs with their inputs. Request those that have to be made, and whose
    # inputs are up to date.
    graph = graph_over(project, survey.recipes)
    state = load_graph_state(graph, context.instance, names, active_runs)
    due = _due_runs(state, active_runs, project_defs)
    requests += _output_requests(names, tick_time, due.runs)

    # Say what is not requested, and why.
    notes = _corpus_notes(survey, active_runs) + waiting_notes(due)
    if not requests:
        reasons = [idle_reason(graph.nodes(), state), *notes]
        return dg.SkipReason(visible("; ".join(reasons)))
    requests_now = requests[:MAX_NIGHTLY_REQUESTS]  # the sensors and the next tick request the rest
    notes += later_notes(len(requests) - len(requests_now))
    for note in notes:
        context.log.info(visible(note))
    return requests_now


def _due_runs(state: GraphState, active_runs: ActiveRuns, project_defs: ProjectDefs) -> DueRuns:
    """Return the runs that make outputs which are missing or out of date, if they can start now.

    An output has to wait if one of its inputs has to be made first, or if an active run makes it.

    Args:
        state: Which outputs are missing or out of date.
        active_runs: The runs that are active.
        project_defs: The settings as Dagster has loaded them. It refuses requests for assets that
            were added to the settings since.

    Returns:
        The runs, and the reasons of the outputs that have to wait.
    """
    return due_runs(
        state,
        active_runs,
        LoadedAssets.of(project_defs.config),
        retries_failed=True,  # unlike the sensors
        includes_inventories=True,  # also corpora from which files were removed, for example
    )


def _log_warnings(
    context: dg.ScheduleEvaluationContext, text: RawText, notes: Iterable[str]
) -> None:
    """Log what a person has to correct, for whoever reads the log of the schedule.

    For example, a folder of raw text cannot be read. It may make several corpora (collections of
    documents) fail, but is logged once.

    Args:
        context: Dagster's context of this call of the schedule.
        text: The corpora, and for those that cannot be read, the error.
        notes: Further warnings, such as that Dagster has to load the settings again.
    """
    # Several corpora may have the same fault.
    for fault in dict.fromkeys(text.faults.values()):
        context.log.warning(visible(Multiline(fault)))
    for note in notes:
        context.log.warning(visible(note))


def _corpus_notes(survey: _FileSurvey, active_runs: ActiveRuns) -> list[str]:
    """Say which corpora are not built now, or not completely, although files have changed.

    For example: "web: a run is under way", and "something writes to books, code".

    Args:
        survey: The state of all corpora (collections of documents).
        active_runs: The runs that are active.
    """
    notes: list[str] = []
    for corpus in survey.with_new_files:
        if corpus in active_runs.corpora:
            notes.append(f"{corpus}: a run is under way")
    if survey.being_written:
        notes.append(f"something writes to {', '.join(survey.being_written)}")
    return notes


def _check_cron_line(file: Path, cron_line: str) -> None:
    """Check that Dagster accepts the times of a schedule.

    Otherwise it would only fail later, with an error that does not name the setting.

    Args:
        file: The settings file, nanoset.yaml, for the message.
        cron_line: The times in the form of the program cron, such as "0 3 * * *" for three o'clock
            each night.

    Raises:
        ConfigError: Dagster does not accept them.
    """
    try:
        dg.ScheduleDefinition(job_name=EVERY_ASSET, cron_schedule=cron_line)
    except dg.DagsterInvalidDefinitionError as error:
        raise not_a_cron_line(f"{file}: automation.reconcile", cron_line) from error


def _corpus_requests(
    names: Names, tick_time: str, text: RawText, corpora: Iterable[str]
) -> list[dg.RunRequest]:
    """Return requests for runs that build everything of certain corpora, from files to datasets.

    A corpus is a collection of documents. Dagster starts only one run for each run key, such as
    `2026-01-31T03:00/web:5f0c…`: the time of the schedule, and a hash of the names and sizes of the
    corpus's files. So if Dagster calls the schedule twice for the same night, nothing is built
    twice; but what has failed is tried again in the next night.

    Args:
        names: Knows the names of the project in Dagster.
        tick_time: The time of the schedule, such as "2026-01-31T03:00".
        text: The files of all corpora.
        corpora: Names of the corpora to build.
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
    """Return the assets that a run makes to build a text collection: file list, tokens, dataset.

    Args:
        names: Knows the names of the project in Dagster.
    """
    assets: list[dg.AssetKey] = []
    for stage in stages():  # all steps of the pipeline, also those of data mixtures
        # Dagster does not show all steps. Some make something that only other steps use.
        if leads_to_dataset(stage) and is_asset(stage):
            assets.append(names.asset(shape_of(stage).asset))  # such as "tokenized_shards"
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
        # The last output of a run is made from the others, so its digest stands for all of them.
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


def _survey(project: Project, text: RawText) -> _FileSurvey:
    """List the files that a build of each corpus would read now, without reading any of them.

    A corpus is a folder of raw text, such as raw/web. A file that was written seconds ago may be
    incomplete, so a build uses only the others:

        files of the corpus                              entry in the result
        all were read by earlier builds                  `recipes`: they are compared by digests
        one is new, and was written an hour ago          `with_new_files`: its digest is not known
        one is new, and was written seconds ago          `recipes` (without it), `being_written`
        one of the last build was replaced seconds ago   `being_written`: nothing is built

    Args:
        project: Remembers the digests of all files that earlier builds have read.
        text: The corpora and their files, with names, sizes and times.
    """
    survey = _FileSurvey()
    for corpus, contents in text.corpora.items():
        state = _state_of_corpus(project, contents)
        if state.recipe is not None:
            survey.recipes[corpus] = state.recipe
        if state.has_new_files:
            survey.with_new_files.append(corpus)
        if state.is_being_written:
            survey.being_written.append(corpus)
    return survey


@dataclass(frozen=True, slots=True)
class _CorpusState:
    """The state of one corpus, found without reading its files."""

    recipe: Recipe | None = None
    """Recipe of the inventory (list) of its files; None if it is not known, or has no files."""
    has_new_files: bool = False
    """Whether the recipe is not known, because a file has never been read."""
    is_being_written: bool = False
    """Whether something is writing to a file."""


def _state_of_corpus(project: Project, contents: Contents) -> _CorpusState:
    """Return what is known of the files of a corpus (a folder of raw text) without reading them.

    They are listed with the digests that the project remembers. Files to which a program is still
    writing are left out, or listed as they were in the last build:

        case                                               result
        a program replaces the text of the last build      is being written
        a file was never read, so its digest is unknown    has new files
        all text is still being written                    is being written
        other                                              the list; some files may be written

    Args:
        project: Remembers the digests of all files that earlier builds have read.
        contents: The files of the corpus, with names, sizes and times.
    """
    corpus = contents.corpus
    if overwritten_file(project, corpus, contents.texts) is not None:
        return _CorpusState(is_being_written=True)

    file_list = remembered_inventory(project, contents, quiet_period_of(project, corpus))
    if file_list is None:
        return _CorpusState(has_new_files=True)

    has_incomplete_files = bool(file_list.awaited)  # a later build adds them
    if not file_list.pieces:  # there is no text that can be built
        return _CorpusState(is_being_written=has_incomplete_files)
    return _CorpusState(inventory_recipe(file_list), is_being_written=has_incomplete_files)
