"""`nanoset build`: materialise what is missing or stale, in this process.

The runs are recorded in the project's Dagster history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import label_of
from nanoset_assets.build_runs import BuildReport, BuildRuns, StepCounter
from nanoset_assets.dagster_compat import code_location_of, runs_in_code_location
from nanoset_assets.definitions import DEFINITIONS_MODULE, definitions_of
from nanoset_assets.due_runs import run_of
from nanoset_assets.graph_state import load_graph_state
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.names import Names
from nanoset_assets.overview import OVERVIEW
from nanoset_assets.partition_sets import register
from nanoset_assets.run_owner import close_abandoned_runs, owner_tag
from nanoset_assets.selection import check_named_corpora, selected
from nanoset_assets.tags import REBUILD_TAG
from nanoset_core.errors import NanosetError
from nanoset_core.execution.dask_connection import connections_kept
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.disk import check_disk, plan_line, text_bytes
from nanoset_core.project.dry_run import DryRun, plan
from nanoset_core.project.graph import Graph, Step, graph_over, inventory_node
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.runs import GraphState, runnable, with_stale_needs
from nanoset_core.project.survey import survey_project
from nanoset_core.stages.inventory.corpora import scan_names
from nanoset_core.stages.inventory.shared_files import check_all_files
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import sweep
from nanoset_core.stages.stage import Node, is_of_corpora
from nanoset_core.tokenizers.distrust import load_records

__all__ = ["BuildReport", "build", "dry_run"]

USER_TAG = "user"
"""On runs: who launched them, in the UI's list of runs."""
_RETRIES_TAG = "dagster/max_retries"


def build(
    project: Project,
    instance: dg.DagsterInstance,
    *,
    select: str | Sequence[str] = (),
    corpora: Sequence[str] = (),
    rebuild: bool = False,
    verbose: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Find corpora, register them as partitions, and materialise what is missing or stale.

    What a selected step needs is made too, if it is missing or stale. A step is left alone if its
    output belongs to the inputs as they are now, whichever machine made it.

    Args:
        project: The project; its listener is called with the progress.
        instance: Where runs are recorded.
        select: Dagster's asset selection syntax, such as `+pretrain/blend`, or names of corpora,
            nanosets, nanoset/split and webdatasets; other steps are left as they are.
        corpora: Only these are looked at, and built up to their datasets if nothing is selected;
            empty: all.
        rebuild: Make the selected steps again even if they are up to date.
        verbose: Let Dagster's own log through.
        say: Called with a line for each run that starts, which ends in "…", and with one on its
            end.

    Raises:
        ConfigError: The configuration asks for what cannot be, or nothing is selected.
        MissingError: There is no raw folder.
        StorageError: The root's disk clearly has too little room for what is to be made.
        HistoryError: A run could not be recorded.
    """
    started = time.monotonic()
    counter = StepCounter(project.listener)
    hosted = ProjectDefs.of(project.config, building=project, started=counter.begin)
    names = hosted.names
    close_abandoned_runs(instance, names)
    sweep(project)

    # What exists, what each output should be made from, and what is to be made in which runs.
    survey = _survey(project, hosted, instance, corpora)
    definitions = definitions_of(hosted)
    texts = [select] if isinstance(select, str) else select
    selected_nodes = selected(survey.graph.nodes(), texts, corpora, definitions, names)
    runs = _due_runs(survey, selected_nodes, rebuild=rebuild)
    chosen = [step for run in runs for step in run]
    for number, step in enumerate(chosen, 1):
        counter.numbers[step.node] = number

    # Refuse now what would fill the disk.
    if chosen:
        say(plan_line(len(chosen), text_bytes(project, counter.numbers)))
    check_disk(project, {step.node for step in chosen}, say)
    distrusted = load_records(project.outputs)

    # Execute the runs of each corpus, nanoset, … together, so that no other build makes it
    # meanwhile.
    report = _report_before_runs(survey, chosen, whole=not corpora)
    options = {
        "tags": _run_tags(names, rebuild=rebuild),
        "run_config": _run_config(verbose=verbose),
    }
    execution = BuildRuns(project, hosted, definitions, report, counter, say, instance, options)
    location = code_location_of(instance, names.definition(OVERVIEW), DEFINITIONS_MODULE)
    with connections_kept(), runs_in_code_location(instance, location):
        for subject, subject_runs in groupby(runs, lambda run: run[0].node.key.subject):
            execution.execute(subject, list(subject_runs))
        survey.graph.look_again(step.node for step in chosen)
        survey.graph.set_failures(_failures_of(report, chosen))

    if chosen and load_records(project.outputs, refresh=True) != distrusted:
        # A tokenizer engine was found to err: what other corpora were tokenized with is stale by
        # now.
        second = build(project, instance, select=select, corpora=corpora, verbose=verbose, say=say)
        second.made = report.made | second.made
        report = second
    report.seconds = time.monotonic() - started
    return report


def dry_run(
    project: Project,
    *,
    select: Sequence[str] = (),
    corpora: Sequence[str] = (),
    force: bool = False,
) -> DryRun:
    """Return what `build` would do with the same arguments, without writing anything.

    Raises:
        ConfigError: As `build`.
        MissingError: There is no raw folder.
    """
    existing_corpora = _checked_corpora(project, scan_names(project).corpora, corpora)
    examined_corpora = [corpus for corpus in existing_corpora if not corpora or corpus in corpora]
    known = survey_project(project, examined_corpora)
    hosted = ProjectDefs.of(project.config)
    definitions = definitions_of(hosted) if select else dg.Definitions()
    chosen = selected(known.graph.nodes(), select, corpora, definitions, hosted.names)
    return plan(known, chosen, label_of, force=force)


def _checked_corpora(project: Project, existing: Iterable[str], named: Sequence[str]) -> list[str]:
    """Return the corpora of the raw folder.

    Raises:
        ConfigError: nanoset.yaml or `--corpus` names others, or the same text is in several
            corpora.
    """
    corpora = list(existing)
    check_requested_corpora(project.config, corpora)
    check_all_files(project)
    check_named_corpora(named, corpora)
    return corpora


@dataclass(frozen=True, slots=True)
class _ProjectSurvey:
    """What a project has before a build."""

    graph: Graph
    """Its outputs."""
    state: GraphState
    """Which of them are up to date."""
    steps: list[Step]
    """Every output, or those of the corpora that were named."""
    aside: Mapping[str, str]
    """Folders and files of the raw folder that are no corpora."""
    unreadable: dict[Node, Exception]
    """Inventory that cannot be made → why."""


def _survey(
    project: Project, hosted: ProjectDefs, instance: dg.DagsterInstance, corpora: Sequence[str]
) -> _ProjectSurvey:
    """Look at raw text and outputs, and register new corpora as partitions.

    Args:
        project: The project.
        hosted: The same as its definitions know it.
        instance: Where runs are recorded.
        corpora: Only these are looked at; empty: all.

    Raises:
        ConfigError, MissingError: See `build`.
    """
    text = scan_names(project)
    existing_corpora = _checked_corpora(project, text.corpora, corpora)
    register(instance, hosted.names, existing_corpora, project.config)
    examined_corpora = [corpus for corpus in existing_corpora if not corpora or corpus in corpora]

    # A corpus that cannot be read does not stop the others.
    inventories: dict[str, Recipe] = {}
    unreadable: dict[Node, Exception] = {}
    for corpus in examined_corpora:
        node = inventory_node(corpus)
        try:
            inventories[corpus] = node.stage.recipe(project, node.key, {})
        except (NanosetError, OSError) as error:
            unreadable[node] = error

    graph = graph_over(project, inventories, examined_corpora)
    graph.set_failures(unreadable)
    state = load_graph_state(graph, instance, hosted.names)
    steps = [step for step in state.steps.values() if not corpora or is_of_corpora(step.node.stage)]
    return _ProjectSurvey(graph, state, steps, text.aside, unreadable)


def _due_runs(
    survey: _ProjectSurvey, selected_nodes: Collection[Node], *, rebuild: bool
) -> list[list[Step]]:
    """Return the runs that make what is selected and missing or stale, and what that needs.

    Args:
        survey: What the project has.
        selected_nodes: The outputs that are selected.
        rebuild: Whether these are made again even if they are up to date.
    """
    state = survey.state
    selected_steps = [step for step in survey.steps if step.node in selected_nodes]
    if rebuild:
        state = replace(state, forced=frozenset(step.node for step in selected_steps))
    due = {step.node for step in selected_steps if state.needs_run(step.node)}
    needed = with_stale_needs(state, due)
    return runnable(state, lambda step: step.node in needed, run_of, in_sequence=True)


def _report_before_runs(
    survey: _ProjectSurvey, chosen: Sequence[Step], *, whole: bool
) -> BuildReport:
    """Return what is known before the first run: blocked steps, and outputs to be replaced.

    Args:
        survey: What the project has.
        chosen: The steps that are to be made.
        whole: Whether all corpora were looked at.
    """
    report = BuildReport(survey.steps, survey.graph, survey.aside, whole=whole)
    for node, error in survey.unreadable.items():
        report.failed[label_of(node)] = error
    if whole:
        report.skipped += _blocked_labels(survey.graph)
    report.replaced |= _replaced_settings(survey.graph, chosen)
    return report


def _failures_of(report: BuildReport, steps: Iterable[Step]) -> dict[Node, Exception]:
    """Return what went wrong with each step that failed."""
    errors: dict[Node, Exception] = {}
    for step in steps:
        error = report.failed.get(label_of(step.node))
        if error is not None:
            errors[step.node] = error
    return errors


def _blocked_labels(graph: Graph) -> list[str]:
    """Return the labels of steps that need a corpus whose text cannot be read."""
    labels: dict[str, None] = {}
    for node in graph.blocked():
        if node.stage.kind != INVENTORY.kind:
            label = label_of(node) if is_of_corpora(node.stage) else node.key.subject
            labels[label] = None
    return list(labels)


def _replaced_settings(graph: Graph, steps: Iterable[Step]) -> dict[str, list[str]]:
    """Return the changed settings of each step whose current version has other ones.

    Label of the step → changes, each as `name: before → now`.
    """
    settings_by_label: dict[str, list[str]] = {}
    for step in steps:
        recipe = graph.recipe(step.node)
        if recipe is None:
            continue
        settings = graph.current(step.node).other_settings(recipe)
        if settings:
            settings_by_label[label_of(step.node)] = settings
    return settings_by_label


def _run_tags(names: Names, *, rebuild: bool) -> dict[str, str]:
    """Return the tags of the runs of a build."""
    tags = owner_tag(names)
    tags[USER_TAG] = "nanoset build"
    # Runs end with this process: Dagster's run retries would start them again elsewhere.
    tags[_RETRIES_TAG] = "0"
    if rebuild:
        tags[REBUILD_TAG] = "true"
    return tags


def _run_config(*, verbose: bool) -> dict[str, Any]:
    """Return the run config of the runs of a build: how much of Dagster's own log is printed."""
    level = "INFO" if verbose else "CRITICAL"
    return {"loggers": {"console": {"config": {"log_level": level}}}}
