"""Build a project in this process: materialise the assets that are missing or stale.

This is what `nanoset build` does. A build has four phases:

1. Survey: find corpora, register them as partitions, and compare outputs with their inputs.
2. Select: the outputs that the user chose, and what these need, become a list of runs.
3. Execute the runs, which are recorded in the project's Dagster history.
4. Report what was made, what failed, and what was skipped because of it.

For example, after a file was added to the corpus `web`, a build makes the inventory, the shards and
the dataset of `web` in one run, and then the index files of the nanosets that read `web`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import label_of, leads_to_dataset
from nanoset_assets.assets.overview import OVERVIEW
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.build.report import BuildReport
from nanoset_assets.build.runs import BuildRuns, StepCounter
from nanoset_assets.build.selection import selected
from nanoset_assets.build.survey import OutputSurvey, corpora_to_examine, survey_outputs
from nanoset_assets.dagster_compat import code_location_of, runs_in_code_location
from nanoset_assets.definitions import DEFINITIONS_MODULE, remembered_definitions
from nanoset_assets.history.complete_history import digest_of_outputs, remember_outputs
from nanoset_assets.history.graph_state import GraphState, load_graph_state
from nanoset_assets.history.open_history import asset_database, history_kept_open
from nanoset_assets.history.run_owner import owner_tag
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.runs import divide_into_runs
from nanoset_assets.tags import REBUILD_TAG
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.project.dry_run.disk import check_disk, plan_line
from nanoset_core.project.dry_run.plan import DryRun, plan
from nanoset_core.project.dry_run.text_to_read import text_bytes
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import add_stale_inputs
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.project.survey import survey_project
from nanoset_core.stages.inventory.corpora import scan_names
from nanoset_core.stages.inventory.make import forget_digests
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.options import check_tokenizer
from nanoset_core.stages.stage import Node, is_of_corpora
from nanoset_core.tokenizers.distrust import load_records

__all__ = ["BuildReport", "build", "dry_run"]

USER_TAG = "user"
"""Tag of runs: who launched them. The UI shows it in its list of runs."""
_RETRIES_TAG = "dagster/max_retries"
"""Tag of runs: how many times Dagster's daemon retries them."""


def build(
    project: Project,
    instance: dg.DagsterInstance,
    *,
    select: str | Sequence[str] = (),
    corpora: Sequence[str] = (),
    rebuild: bool = False,
    verbose: bool = False,
    survey: OutputSurvey | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Make all outputs of a project that are missing or out of date, and return what was done.

    This is the function behind `nanoset build`. For example, after a file was added to the text
    collection (corpus) `web`, it makes the tokens and the dataset of `web`, and then the data
    mixtures with `web`. Everything is recorded in Dagster's history, as if Dagster's server had
    done it.

    If the inputs of a selected output are missing or stale, they are made first. An output that was
    made from its current inputs is not made again, whichever machine made it.

    Args:
        project: The project; its progress shows the steps.
        instance: The instance of Dagster in which the runs are recorded.
        select: What to build: Dagster's asset selection syntax, such as `+pretrain/blend`, or names
            of corpora, nanosets, nanoset/split and webdatasets; empty: everything.
        corpora: Only these corpora are examined, and built up to their datasets if `select` is
            empty; empty: all.
        rebuild: Whether selected outputs that are up to date are made, too.
        verbose: Whether Dagster's own log is printed.
        survey: The state of the outputs of `corpora`, if the caller has looked at them just now.
        say: Called with a line when a run starts, which ends in "…", and with another when it ends.

    Returns:
        What was made, what failed, and what was skipped because of it.

    Raises:
        ConfigError: The configuration is invalid, or the selection is empty.
        MissingError: There is no raw folder.
        StorageError: The root's disk has clearly too little free space for the outputs.
        HistoryError: A run could not be recorded.
    """
    started = time.monotonic()
    selections = select
    if isinstance(select, str):
        selections = [select]
    builder = _Builder(
        project=project,
        instance=instance,
        select=selections,
        corpora=corpora,
        verbose=verbose,
        say=say,
    )
    with history_kept_open(instance):
        if survey is None:
            survey = survey_outputs(project, corpora)
        if rebuild:
            survey = builder.read_text_again(survey)
        report = builder.build(survey, rebuild=rebuild)
    report.seconds = time.monotonic() - started
    return report


@dataclass(frozen=True, slots=True)
class _BuildPlan:
    """What a build is going to do."""

    project_defs: ProjectDefs
    counter: StepCounter
    """Expects the steps of the runs."""
    survey: OutputSurvey
    """The outputs of the project before the build."""
    selected: frozenset[Node]
    """The outputs that the user wants to build, also those that are up to date."""
    runs: list[list[Step]]
    """The steps of each run, in the order in which the runs are executed."""

    @property
    def steps(self) -> list[Step]:
        """The steps of all runs."""
        return list(chain.from_iterable(self.runs))

    @property
    def nodes(self) -> list[Node]:
        """The outputs that the steps make."""
        return [step.node for step in self.steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds a project; the fields are the arguments of the function `build`."""

    project: Project
    instance: dg.DagsterInstance
    select: Sequence[str]
    corpora: Sequence[str]
    verbose: bool
    say: Callable[[str], None]

    def build(self, survey: OutputSurvey, *, rebuild: bool) -> BuildReport:
        """Make all outputs that are missing or out of date, and return what was done.

        Several programs (engines) can tokenize text. While an output is made, its tokens are
        compared with those of the tokenizer's own library. An engine that gives others is put on a
        list of distrusted ones, which is stored with the outputs. Then outputs that it has made
        earlier are out of date, and are made again.

        Args:
            survey: The outputs of the project, as they are now.
            rebuild: Whether selected outputs that are up to date are made, too.

        Returns:
            What was made, what failed, and what was skipped because of it.
        """
        plan = self._plan(survey, rebuild=rebuild)
        self._check_disk(plan, rebuild=rebuild)
        distrusted_before = load_records(self.project.outputs)
        report = self._execute(plan, rebuild=rebuild)
        if not plan.nodes:
            return report  # nothing was made, so no tokens were compared
        distrusted_now = load_records(self.project.outputs, refresh=True)
        if distrusted_now == distrusted_before:
            return report
        return self._build_again(report)

    def _build_again(self, first_report: BuildReport) -> BuildReport:
        """Build what has become out of date because the build has found a faulty tokenizing engine.

        For example, the tokens of `books` were made last week, and so were up to date. Then this
        build has tokenized `web`, and found that the engine gives wrong tokens. So the tokens of
        `books`, which the same engine has made, are not trusted any more.

        Args:
            first_report: What the build has done up to now.

        Returns:
            The state after the second build, with what both have made.
        """
        survey = survey_outputs(self.project, self.corpora)
        report = self.build(survey, rebuild=False)
        report.add_first_build(first_report)
        return report

    def read_text_again(self, survey: OutputSurvey) -> OutputSurvey:
        """Read the text files of the selected corpora, even those that look unchanged.

        A survey remembers a digest (hash) of each file, and reads a file again only if its size or
        modification time has changed. But a file can be overwritten without changing these:

            raw/web/a.jsonl       size     modification time    digest
            remembered            1,200    12:00                3f9c…
            now                   1,200    12:00                81aa…     (not noticed)

        If the user forces a build, such a change has to be noticed as well.

        Args:
            survey: The outputs of the project, by the remembered digests.

        Returns:
            The outputs by the present digests. If the user has not selected the list of files of
            any corpus (its inventory), nothing is read, and the same survey is returned.
        """
        # What the user has selected, such as all outputs of the corpus `web`.
        project_defs = ProjectDefs.of(self.project.config)
        nodes = selected(survey.graph.nodes(), self.select, self.corpora, project_defs)
        corpora = [node.key.subject for node in nodes if node.stage is INVENTORY]
        if not corpora:
            return survey
        forget_digests(self.project, corpora)  # without digests, the next survey reads the files
        return survey_outputs(self.project, self.corpora)

    def _plan(self, survey: OutputSurvey, *, rebuild: bool) -> _BuildPlan:
        """Decide which outputs of the project are made, and in which runs of Dagster.

        Args:
            survey: The outputs of the project, as they are now.
            rebuild: Whether selected outputs that are up to date are made, too.
        """
        counter = StepCounter(self.project.progress)  # prints "3 of 71" when a step begins
        project_defs = ProjectDefs.of(
            self.project.config, build_project=self.project, started=counter.begin
        )
        state = self._compare_with_history(survey, project_defs.names)
        selected_nodes = selected(survey.graph.nodes(), self.select, self.corpora, project_defs)
        runs = _runs_to_execute(survey.steps, state, selected_nodes, rebuild=rebuild)

        plan = _BuildPlan(project_defs, counter, survey, frozenset(selected_nodes), runs)
        counter.expect(plan.nodes)  # now it is known that there are 71 steps
        return plan

    def _compare_with_history(self, survey: OutputSurvey, names: Names) -> GraphState:
        """Bring Dagster's history up to date, and return which outputs have to be made.

        The history is a database of what was built when, which Dagster's web pages show. Every text
        collection becomes a partition there, even those that this build was not asked to look at.
        Outputs that another machine has made are added. Those of active runs are not, since the
        runs record their outputs themselves.

        Args:
            survey: The outputs of the project, as they are now.
            names: The names of the project in Dagster.
        """
        started_reading_ns = time.time_ns()
        register(self.instance, names, survey.all_corpora, self.project.config)
        active_runs = ActiveRuns.look_up(self.instance, names)
        state = load_graph_state(survey.graph, self.instance, names, active_runs)
        if self._has_nothing_to_do(survey, state, active_runs):
            self._remember_complete_history(survey, started_reading_ns)
        return state

    def _has_nothing_to_do(
        self, survey: OutputSurvey, state: GraphState, active_runs: ActiveRuns
    ) -> bool:
        """Return whether it is certain that no output of the project has to be made.

        Args:
            survey: The outputs that this build has examined, and whether they are up to date.
            state: Which of them have failed their check.
            active_runs: The active runs of all processes.
        """
        if self.corpora:
            return False  # only the outputs of these text collections were examined
        if active_runs.runs:
            return False  # a run may still be killed, and leave its output unfinished
        return survey.is_up_to_date and not state.failed_check

    def _remember_complete_history(self, survey: OutputSurvey, read_at_ns: int) -> None:
        """Note next to Dagster's history that it has all outputs, and that nothing is left to do.

        If nothing changes until the next build, that one need not read the history.

        Args:
            survey: The outputs of the project, all of which are up to date.
            read_at_ns: When reading the history began, in nanoseconds since 1970. The note is only
                valid if the history does not change from then on.
        """
        database = asset_database(self.instance)
        if database is None:  # the history is on a server, and not in a file
            return
        digest = digest_of_outputs(self.project.config, survey.steps)
        remember_outputs(Path(self.instance.root_directory), database, digest, read_at_ns)

    def _check_disk(self, plan: _BuildPlan, *, rebuild: bool) -> None:
        """Print how much is to be made, and refuse a build that would fill the disk.

        For example: "plan: 12 steps, from 3.2 GB of text in 2 corpora".

        Args:
            plan: The outputs that the build is going to make.
            rebuild: Whether outputs are written even if they are up to date.

        Raises:
            StorageError: By an estimate of their size, the disk has far too little free space.
        """
        written_nodes = plan.nodes
        if not rebuild:
            # An output may exist, and only the link `current` to it be missing. Then a run sets the
            # link, and writes no data: leave it out.
            written_nodes = plan.survey.graph.nodes_to_write(plan.nodes)
        if plan.nodes:
            size_by_corpus = text_bytes(self.project, written_nodes, rebuild=rebuild)
            self.say(plan_line(len(plan.nodes), size_by_corpus))
        check_disk(self.project, set(written_nodes), self.say)  # prints warnings by `say`

    def _execute(self, plan: _BuildPlan, *, rebuild: bool) -> BuildReport:
        """Execute the runs of a plan, and return a report of what was made and what failed.

        Args:
            plan: The runs.
            rebuild: Whether outputs are made even if they are up to date.
        """
        # The user may have named some text collections. If not, all are built.
        report = _report_before_runs(plan, has_all_corpora=not self.corpora)
        if not plan.runs:
            return report

        build_runs = self._prepare_runs(plan, report, rebuild=rebuild)
        _execute_runs(build_runs, plan.runs)  # adds what was made and what failed to `report`

        # The graph remembers what each output was before. Let it look again at those of the runs.
        graph = plan.survey.graph
        graph.forget(plan.nodes)
        _report_newly_forbidden(report, plan)
        graph.set_failures(_failures_of(report, plan.steps))
        return report

    def _prepare_runs(self, plan: _BuildPlan, report: BuildReport, *, rebuild: bool) -> BuildRuns:
        """Return the object that executes the runs of a plan, each as a run of Dagster.

        Args:
            plan: The runs.
            report: Receives what the runs make, and what fails.
            rebuild: Whether outputs are made even if they are up to date.
        """
        options = {
            "tags": _run_tags(plan.project_defs.names, rebuild=rebuild),
            "run_config": _run_config(verbose=self.verbose),
        }
        return BuildRuns(
            project=self.project,
            project_defs=plan.project_defs,
            definitions=remembered_definitions(plan.project_defs),  # the assets and jobs
            report=report,
            counter=plan.counter,  # prints "3 of 71" when an output begins
            say=self.say,  # prints other lines
            instance=self.instance,
            options=options,
        )


def _execute_runs(build_runs: BuildRuns, runs: Sequence[list[Step]]) -> None:
    """Execute the runs of a build one after the other.

    Args:
        build_runs: Executes runs, and adds their results to the report of the build.
        runs: The runs, each a list of steps. Those of one subject, such as the text collection
            `web`, follow one another.
    """
    with (
        connections_kept(),  # all runs share one connection to a Dask cluster
        _runs_listed_by_dagster(build_runs),
    ):
        # Execute all runs of a subject together: no other build may work on it meanwhile.
        for subject, subject_runs in groupby(runs, _subject_of):
            build_runs.execute(subject, list(subject_runs))


def _runs_listed_by_dagster(build_runs: BuildRuns) -> AbstractContextManager[None]:
    """Return a context in which runs are executed such that all web pages of Dagster list them.

    Some pages list runs by code location: the Python module from which a server of Dagster has
    loaded the project. Runs that a command in a terminal executes have none, and would be missing
    there. In this context, they get that of the server.

    Args:
        build_runs: Has the names of the project, and the history in which runs are recorded.
    """
    # The server stores the location with each sensor of the project, such as `overview`.
    sensor_name = build_runs.project_defs.names.definition(OVERVIEW)
    location = code_location_of(build_runs.instance, sensor_name, DEFINITIONS_MODULE)
    return runs_in_code_location(build_runs.instance, location)


def _subject_of(run: Sequence[Step]) -> str:
    """Return what a run is about: the name of a text collection (corpus), a data mixture and so on.

    Args:
        run: The steps of the run, each of which makes one output. All have the same subject.
    """
    return run[0].node.key.subject


def dry_run(
    project: Project,
    *,
    select: Sequence[str] = (),
    corpora: Sequence[str] = (),
    rebuild: bool = False,
) -> DryRun:
    """Return what `build` would make with the same arguments, without making anything.

    Args:
        project: Its outputs, settings and raw text are compared.
        select: What would be built: selections in Dagster's syntax, such as `+pretrain/blend`, or
            names; empty: everything.
        corpora: Only these text collections (corpora) are examined; empty: all.
        rebuild: Whether selected outputs that are up to date would be rebuilt, too.

    Returns:
        The outputs that would be made, with reasons and sizes.

    Raises:
        ConfigError: The configuration is invalid, the selection is empty, or the tokenizer lacks a
            token that nanoset.yaml names.
        MissingError: There is no raw folder, or no tokenizer.
        FormatError: The tokenizer is damaged.
    """
    existing_corpora = scan_names(project).corpora
    examined_corpora = corpora_to_examine(project, existing_corpora, corpora)

    # A build examines the tokenizer before its first step, even if no output needs it.
    if examined_corpora:
        check_tokenizer(project)

    # Compare the outputs with the raw text and the settings.
    survey = survey_project(project, examined_corpora)

    project_defs = ProjectDefs.of(project.config)
    chosen = selected(survey.graph.nodes(), select, corpora, project_defs)
    return plan(survey, chosen, label_of, rebuild=rebuild)


def _runs_to_execute(
    steps: Iterable[Step], state: GraphState, selected_nodes: Collection[Node], *, rebuild: bool
) -> list[list[Step]]:
    """Return the runs that make the selected outputs, and what has to be made before them.

    For example, the user selects the dataset of `web`, and the text of `web` has changed. Then one
    run makes the tokens of `web` first, and the dataset from them.

    Args:
        steps: The work of making each output that the build considers.
        state: Which outputs are missing, out of date or up to date.
        selected_nodes: The outputs that the user has selected.
        rebuild: Whether selected outputs that are up to date are made, too.

    Returns:
        The steps of each run, in the order in which the runs have to be executed.
    """
    nodes = [step.node for step in steps if step.node in selected_nodes]
    if rebuild:
        state = replace(state, forced=frozenset(nodes))  # counts all of them as out of date
    due_nodes = [node for node in nodes if state.needs_run(node)]  # the dataset
    nodes_to_make = add_stale_inputs(  # the dataset and its tokens
        due_nodes, inputs_of=state.inputs_of, is_stale=state.is_stale
    )

    def is_to_be_made(step: Step) -> bool:
        """Return whether a run has to execute a step."""
        return step.node in nodes_to_make

    # The build executes its runs in sequence, so a run can use what an earlier one makes.
    return divide_into_runs(state, is_to_be_made, runs_in_sequence=True)


def _report_before_runs(plan: _BuildPlan, *, has_all_corpora: bool) -> BuildReport:
    """Return the report of a build with what is known before anything is made.

    Outputs are named as in Dagster: `raw_jsonl [books]` is the list of the files of the text
    collection (corpus) `books`. If one of these files is damaged, and the user has changed the seed
    of the data mixture `pretrain`, which does not read `books`, the report says:

        failed      {"raw_jsonl [books]": the error}
        skipped     the outputs that would be made from `books`
        replaced    {"pretrain/blend [train]": ["seed: 7 → 8"]}: why this output is made again

    Args:
        plan: What was found out about all outputs (`survey`), which of them the user has selected
            (`selected`), and which of these are going to be made (`steps`).
        has_all_corpora: Whether all corpora were examined, and not only some that the user named.
            If not, the inputs of some outputs are not known, and nothing is listed as skipped.
    """
    survey = plan.survey
    report = BuildReport(
        survey.steps, survey.graph, survey.unread_entries, has_all_corpora=has_all_corpora
    )
    report.selected = plan.selected
    for file_list, error in survey.unreadable.items():
        report.failed[label_of(file_list)] = error
    if has_all_corpora:
        report.skipped += _blocked_labels(survey.graph)
    report.replaced |= _replaced_settings(survey.graph, plan.steps)
    return report


def _report_newly_forbidden(report: BuildReport, plan: _BuildPlan) -> None:
    """Report outputs as failed that were up to date, and that a search of this build forbids.

    For example, a file of evaluation texts was added, and the settings forbid to train on such
    texts. The build has searched the corpora again, and found one in the data of a nanoset. Nothing
    has to be made of this nanoset, so no run has failed.

    Args:
        report: What the build did. The errors are added to it.
        plan: The outputs that the user has selected, and those for which there was a run.
    """
    graph = plan.survey.graph
    nodes_of_runs = set(plan.nodes)
    for step in report.steps:
        if step.node in nodes_of_runs or step.node not in plan.selected:
            continue
        prohibition = graph.prohibition(step.node)
        if prohibition is not None:
            report.failed[label_of(step.node)] = prohibition


def _failures_of(report: BuildReport, steps: Iterable[Step]) -> dict[Node, Exception]:
    """Return each output that could not be made, with its error.

    The report names outputs by labels, such as `tokenized_shards [web]`. This returns the outputs
    themselves, so that the user can be shown why each is missing.

    Args:
        report: What the build did.
        steps: The steps of the build, each of which makes one output.
    """
    errors: dict[Node, Exception] = {}
    for step in steps:
        error = report.failed.get(label_of(step.node))
        if error is not None:
            errors[step.node] = error
    return errors


def _blocked_labels(graph: Graph) -> list[str]:
    """Return which outputs cannot be made because the text of a corpus cannot be read.

    A corpus is a text collection, such as `web`. Its own tokens and dataset are left out, since the
    corpus itself is reported as failed.

    Args:
        graph: The outputs of the project, with the corpora that cannot be read.

    Returns:
        Such as ["web/views [clean]", "pretrain"], each name once.
    """
    blocked = [node for node in graph.blocked() if not leads_to_dataset(node.stage)]
    return list(dict.fromkeys(map(_label_of_blocked, blocked)))


def _label_of_blocked(node: Node) -> str:
    """Return how the report of a build calls an output that cannot be made.

        output                                               label
        file of the text collection web for some trainer     "packed_dataset [web]"
        view "clean" (a selection of the documents of web)   "web/views [clean]"
        a split of the data mixture pretrain                 "pretrain"

    A mixture is named as a whole, since the user configures it as a whole.

    Args:
        node: The output.
    """
    is_view_or_packs = node.stage.layout.is_named_by_part  # a text collection may have many
    if is_of_corpora(node.stage) or is_view_or_packs:
        return label_of(node)
    return node.key.subject


def _replaced_settings(graph: Graph, steps: Iterable[Step]) -> dict[str, list[str]]:
    """Return which settings have changed since the present version of each output was made.

    For example, the user has changed the seed of the data mixture `pretrain`, so that the build has
    to make it again:

        {"pretrain/blend [train]": ["seed: 7 → 8"]}

    Args:
        graph: The outputs of the project, with their current versions.
        steps: The steps that will run, each of which makes one output.

    Returns:
        Label of a step → changes. Steps without a change of settings are left out.
    """
    changes_by_label: dict[str, list[str]] = {}
    for step in steps:
        new_recipe = graph.recipes.of(step.node)  # what the new version is going to be made from
        if new_recipe is None:
            continue  # not known yet
        changes = graph.versions.of(step.node).other_settings(new_recipe)
        if changes:
            changes_by_label[label_of(step.node)] = changes
    return changes_by_label


def _run_tags(names: Names, *, rebuild: bool) -> dict[str, str]:
    """Return the tags that Dagster stores with each run of a build.

        tag                     value                 purpose
        owner                   this process          if it is killed, the next build notices it
        user                    nanoset build         Dagster's list of runs shows it
        dagster/max_retries     0                     Dagster must not repeat the run elsewhere
        rebuild                 true, if requested    outputs are made although they are up to date

    Args:
        names: The names of the project, for the name of a tag.
        rebuild: Whether outputs are made even if they are up to date.
    """
    tags = owner_tag(names)
    tags[USER_TAG] = "nanoset build"
    tags[_RETRIES_TAG] = "0"
    if rebuild:
        tags[REBUILD_TAG] = "true"
    return tags


def _run_config(*, verbose: bool) -> dict[str, Any]:
    """Return the configuration of a build's runs: how much of Dagster's own log is printed.

    Args:
        verbose: Whether all of it is printed, or only critical errors.
    """
    level = "INFO" if verbose else "CRITICAL"
    return {"loggers": {"console": {"config": {"log_level": level}}}}
