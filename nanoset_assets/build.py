"""Build a project in this process: materialise the assets that are missing or stale.

This is what `nanoset build` does. A build has four phases:

1. Survey: find corpora, register them as partitions, and compare outputs with their inputs.
2. Select: the outputs that the user chose, and what these need, become a list of runs.
3. Execute the runs, which are recorded in the project's Dagster history.
4. Report what was made, what failed, and what was skipped because of it.
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
"""On runs: who launched them, as the UI shows it in its list of runs."""
_RETRIES_TAG = "dagster/max_retries"
"""On runs: how many times Dagster's daemon retries them."""


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

    What a selected step needs is made too, if it is missing or stale. A step does not run if its
    output belongs to its current inputs, whichever machine made it.

    Args:
        project: The project; its listener is called with the progress.
        instance: The instance in which the runs are recorded.
        select: What to build: Dagster's asset selection syntax, such as `+pretrain/blend`, or names
            of corpora, nanosets, nanoset/split and webdatasets; empty: everything.
        corpora: Only these corpora are examined, and built up to their datasets if `select` is
            empty; empty: all.
        rebuild: Whether selected steps that are up to date run, too.
        verbose: Whether Dagster's own log is printed.
        say: Called with a line when a run starts, which ends in "…", and with another when it ends.

    Raises:
        ConfigError: The configuration is invalid, or the selection is empty.
        MissingError: There is no raw folder.
        StorageError: The root's disk has clearly too little free space for the outputs.
        HistoryError: A run could not be recorded.
    """
    started = time.monotonic()
    counter = StepCounter(project.listener)
    hosted = ProjectDefs.of(project.config, building=project, started=counter.begin)
    names = hosted.names
    close_abandoned_runs(instance, names)
    sweep(project)

    # Compare existing outputs with their inputs, and divide what has to be made into runs.
    survey = _survey(project, hosted, instance, corpora)
    definitions = definitions_of(hosted)
    texts = [select] if isinstance(select, str) else select
    selected_nodes = selected(survey.graph.nodes(), texts, corpora, definitions, names)
    runs = _due_runs(survey, selected_nodes, rebuild=rebuild)
    chosen = [step for run in runs for step in run]
    for number, step in enumerate(chosen, 1):
        counter.numbers[step.node] = number

    # Refuse a build that would fill the disk before it starts.
    if chosen:
        say(plan_line(len(chosen), text_bytes(project, counter.numbers)))
    check_disk(project, {step.node for step in chosen}, say)
    distrusted_before = load_records(project.outputs)

    # Execute the runs of each subject (corpus, nanoset, …) together: it is locked meanwhile, so
    # that no other build works on it.
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

    # If a tokenizer engine turned out to give wrong tokens, shards that it made earlier have become
    # stale: build once more, without it.
    if chosen and load_records(project.outputs, refresh=True) != distrusted_before:
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

    Args:
        project: The project.
        select: See `build`.
        corpora: See `build`.
        force: See `rebuild` of `build`.

    Raises:
        ConfigError: See `build`.
        MissingError: There is no raw folder.
    """
    existing_corpora = scan_names(project).corpora
    examined_corpora = _corpora_to_examine(project, existing_corpora, corpora)
    survey = survey_project(project, examined_corpora)

    # Definitions are only needed for Dagster's selection syntax.
    hosted = ProjectDefs.of(project.config)
    definitions = definitions_of(hosted) if select else dg.Definitions()
    chosen = selected(survey.graph.nodes(), select, corpora, definitions, hosted.names)
    return plan(survey, chosen, label_of, force=force)


def _corpora_to_examine(
    project: Project, existing: Iterable[str], requested: Sequence[str]
) -> list[str]:
    """Return the corpora that a build examines, in the order of the raw folder.

    Args:
        project: The project.
        existing: The corpora of the raw folder.
        requested: The corpora that `--corpus` names; empty: all.

    Raises:
        ConfigError: nanoset.yaml or `--corpus` names a corpus that does not exist, or several
            corpora of one split contain the same file.
    """
    corpora = list(existing)
    check_requested_corpora(project.config, corpora)
    check_all_files(project)
    check_named_corpora(requested, corpora)
    if not requested:
        return corpora
    return [corpus for corpus in corpora if corpus in requested]


@dataclass(frozen=True, slots=True)
class _ProjectSurvey:
    """The outputs of a project and their state before a build."""

    graph: Graph
    """All outputs, and what each is made from."""
    state: GraphState
    """Which of them are up to date."""
    steps: list[Step]
    """A step for each output that the build considers: only those of corpora if `--corpus` is
    given.
    """
    aside: Mapping[str, str]
    """Entry of the raw folder that is no corpus → why it is not read."""
    unreadable: dict[Node, Exception]
    """Inventory of a corpus that cannot be read → the error."""


def _survey(
    project: Project, hosted: ProjectDefs, instance: dg.DagsterInstance, corpora: Sequence[str]
) -> _ProjectSurvey:
    """Compare outputs with raw text and settings, and register new corpora as partitions.

    Args:
        project: The project.
        hosted: What the definitions of the project are made from.
        instance: The instance in which corpora are registered and runs recorded.
        corpora: Only these are examined; empty: all.

    Raises:
        ConfigError, MissingError: See `build`.
    """
    text = scan_names(project)
    examined_corpora = _corpora_to_examine(project, text.corpora, corpora)
    # Also those that are not examined: the UI shows every corpus of the raw folder.
    register(instance, hosted.names, list(text.corpora), project.config)

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
    """Return the runs that make the selected outputs and the stale outputs that these need.

    Args:
        survey: The state of the project.
        selected_nodes: The outputs that are selected.
        rebuild: Whether selected outputs that are up to date are made, too.

    Returns:
        The steps of each run, in the order in which the runs have to be executed.
    """
    state = survey.state
    selected_steps = [step for step in survey.steps if step.node in selected_nodes]
    if rebuild:
        forced = frozenset(step.node for step in selected_steps)
        state = replace(state, forced=forced)
    due = {step.node for step in selected_steps if state.needs_run(step.node)}
    to_make = with_stale_needs(state, due)
    return runnable(state, lambda step: step.node in to_make, run_of, in_sequence=True)


def _report_before_runs(
    survey: _ProjectSurvey, chosen: Sequence[Step], *, whole: bool
) -> BuildReport:
    """Return a report that lists what is decided before the first run.

    These are corpora that cannot be read, steps that need them, and settings that have changed.

    Args:
        survey: The state of the project.
        chosen: The steps that will run.
        whole: Whether all corpora were examined.
    """
    report = BuildReport(survey.steps, survey.graph, survey.aside, whole=whole)
    for node, error in survey.unreadable.items():
        report.failed[label_of(node)] = error
    if whole:
        report.skipped += _blocked_labels(survey.graph)
    report.replaced |= _replaced_settings(survey.graph, chosen)
    return report


def _failures_of(report: BuildReport, steps: Iterable[Step]) -> dict[Node, Exception]:
    """Return the error of each step that failed."""
    errors: dict[Node, Exception] = {}
    for step in steps:
        error = report.failed.get(label_of(step.node))
        if error is not None:
            errors[step.node] = error
    return errors


def _blocked_labels(graph: Graph) -> list[str]:
    """Return the labels of steps that need a corpus whose text cannot be read."""
    labels: list[str] = []
    for node in graph.blocked():
        # The steps of the corpus itself go without saying: it is reported as failed.
        if node.stage.kind == INVENTORY.kind:
            continue
        # One line for a nanoset or webdataset, not one for each of its steps.
        label = label_of(node) if is_of_corpora(node.stage) else node.key.subject
        labels.append(label)
    return list(dict.fromkeys(labels))


def _replaced_settings(graph: Graph, steps: Iterable[Step]) -> dict[str, list[str]]:
    """Return the settings that differ between the current version of an output and the new one.

    Returns:
        Label of the step → changes, each as `name: before → now`. Steps without a change are left
        out.
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
    # A run ends with this process. Without this tag, Dagster's daemon could retry it elsewhere.
    tags[_RETRIES_TAG] = "0"
    if rebuild:
        tags[REBUILD_TAG] = "true"
    return tags


def _run_config(*, verbose: bool) -> dict[str, Any]:
    """Return the run config of a build's runs, which sets how much of Dagster's log is printed."""
    level = "INFO" if verbose else "CRITICAL"
    return {"loggers": {"console": {"config": {"log_level": level}}}}
