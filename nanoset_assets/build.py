"""`nanoset build`: materialise what is missing or stale, in this process, into the project's Dagster history."""

from __future__ import annotations

import contextlib
import fnmatch
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import dagster as dg

from nanoset_assets.asset_table import asset_path, label_of, partition_of
from nanoset_assets.dagster_compat import code_location_of, interruptible_runs, runs_in_code_location
from nanoset_assets.definitions import DEFINITIONS_MODULE, definitions_of
from nanoset_assets.hosted import REBUILD_TAG, ProjectDefs
from nanoset_assets.instance import HistoryError, history_faults
from nanoset_assets.instance_state import close_abandoned_runs, load_graph_state, owner_tag, register
from nanoset_assets.names import Names
from nanoset_assets.overview import OVERVIEW
from nanoset_assets.stale_sensor import job_of, run_of
from nanoset_core.cli.progress import step_count
from nanoset_core.errors import ConfigError, NanosetError, StorageError, closest_name, one_of, remedy_for_name
from nanoset_core.execution.dask_connection import connections_kept
from nanoset_core.execution.progress import STEP, Progress, ProgressCallback
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.disk import check_disk, plan_line, text_bytes
from nanoset_core.project.dry_run import DryRun, plan
from nanoset_core.project.graph import Graph, Step, graph_over, inventory_node, reasons_to_build
from nanoset_core.project.project import Project, names_of
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.runs import runnable, with_stale_needs
from nanoset_core.project.survey import survey_project
from nanoset_core.stages.inventory.corpora import scan_names
from nanoset_core.stages.inventory.shared_files import check_all_files
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import sweep
from nanoset_core.stages.stage import Node, current_version, is_of_corpora
from nanoset_core.storage.leases import Work, leased
from nanoset_core.tokenizers.distrust import noted

_RETRIES_TAG = "dagster/max_retries"
USER_TAG = "user"
"""On runs: who launched them, in the UI's list of runs."""


@dataclass(slots=True)
class BuildReport:
    """What a build did."""

    steps: list[Step]
    """Every step of the project, or of the corpora that were asked for, selected or not."""
    graph: Graph
    """With what was made."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Folders and files of the raw folder that are no corpora; see RawText."""
    whole: bool = True
    """Whether all corpora were looked at, and not only those that were asked for."""
    made: dict[str, float] = field(default_factory=dict)
    """Label of each step that ran → seconds of the run that held it, shared evenly."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Label of the step that failed → what went wrong."""
    skipped: list[str] = field(default_factory=list)
    """Labels of steps that needed one that failed."""
    replaced: dict[str, list[str]] = field(default_factory=dict)
    """Label of each chosen step whose current version was of other settings → these, as `name: before → now`."""
    seconds: float = 0.0
    """Of the whole build."""

    @property
    def ended(self) -> set[str]:
        """Labels of the steps that will not be made."""
        return {*self.failed, *self.skipped}


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
    """Discover corpora, register their partitions, and materialise every step that is missing or stale.

    What a selected step needs is made too, where it is missing or stale. A step is left alone when its output belongs
    to the inputs as they are now, whichever machine made it.

    Args:
        project: The project; its listener is called with the progress.
        instance: Where runs are recorded.
        select: Dagster's asset selection syntax, such as `+pretrain/blend`, or names of corpora, nanosets,
            nanoset/split and webdatasets; other steps are left as they are.
        corpora: only these are looked at, and built up to their datasets where nothing is selected; empty: all.
        rebuild: make the selected steps again even where they are up to date.
        verbose: let Dagster's own log through.
        say: Called with a line for each run that starts, which ends in "…", and with one on its end.

    Raises:
        ConfigError: the configuration asks for what cannot be, or nothing is selected.
        MissingError: there is no raw folder.
        StorageError: the root's disk has clearly too little room for what is to be made.
        HistoryError: A run could not be recorded.
    """
    started = time.monotonic()
    counter = _StepCounter(project.listener)
    hosted = ProjectDefs.of(project.config, building=project, started=counter.begin)
    names = hosted.names
    close_abandoned_runs(instance, names)
    sweep(project)

    # What the raw folder holds now, and what each output should be made from.
    text = scan_names(project)
    found = list(text.corpora)
    check_requested_corpora(project.config, found)
    check_all_files(project)
    check_named_corpora(corpora, found)
    register(instance, names, found, project.config)
    looked_at = [corpus for corpus in found if not corpora or corpus in corpora]
    inventories, failed = _survey(project, looked_at)
    graph = graph_over(project, inventories, looked_at)
    graph.set_failures(failed)
    state = load_graph_state(graph, instance, names)
    definitions = definitions_of(hosted)

    # Which of them are to be made, in which runs.
    steps = [step for step in state.steps.values() if not corpora or is_of_corpora(step.node.stage)]
    asked = selected(graph.nodes(), [select] if isinstance(select, str) else select, corpora, definitions, names)
    if rebuild:
        state = replace(state, forced=frozenset(step.node for step in steps if step.node in asked))
    due = {step.node for step in steps if step.node in asked and state.needs_run(step.node)}
    needed = with_stale_needs(state, due)
    runs = runnable(state, lambda step: step.node in needed, run_of, in_sequence=True)
    chosen = [step for run in runs for step in run]
    counter.numbers |= {step.node: number for number, step in enumerate(chosen, 1)}
    if chosen:
        say(plan_line(len(chosen), text_bytes(project, counter.numbers)))
    check_disk(project, {step.node for step in chosen}, say)
    distrusted = noted(project.outputs)

    report = BuildReport(steps, graph, text.aside, whole=not corpora)
    report.failed |= {label_of(node): error for node, error in failed.items()}
    if not corpora:
        # What is made of corpora that cannot be read: nanosets, webdatasets, and outputs of corpora.
        held_up = [node for node in graph.blocked() if node.stage.kind != INVENTORY.kind]
        report.skipped += dict.fromkeys(
            label_of(node) if is_of_corpora(node.stage) else node.key.subject for node in held_up
        )
    for step in chosen:
        wanted = graph.recipe(step.node)
        if wanted is not None and (settings := graph.current(step.node).other_settings(wanted)):
            report.replaced[label_of(step.node)] = settings

    location = code_location_of(instance, names.definition(OVERVIEW), DEFINITIONS_MODULE)
    loggers = {"console": {"config": {"log_level": "INFO" if verbose else "CRITICAL"}}}
    how = {"instance": instance, "tags": _run_tags(names, rebuild=rebuild), "run_config": {"loggers": loggers}}
    execution = _Execution(project, hosted, definitions, report, counter, say, how)
    with connections_kept(), runs_in_code_location(instance, location):
        for subject, subject_runs in groupby(runs, lambda run: run[0].node.key.subject):
            execution.execute(subject, list(subject_runs))
        graph.look_again(step.node for step in chosen)
        graph.set_failures(
            {step.node: report.failed[label_of(step.node)] for step in chosen if label_of(step.node) in report.failed}
        )

    if chosen and noted(project.outputs, again=True) != distrusted:
        # What other corpora were tokenized with is stale by now.
        again = build(project, instance, select=select, corpora=corpora, verbose=verbose, say=say)
        again.made = report.made | again.made
        report = again
    report.seconds = time.monotonic() - started
    return report


def dry_run(
    project: Project, *, select: Sequence[str] = (), corpora: Sequence[str] = (), force: bool = False
) -> DryRun:
    """Return what `build` would make with the same arguments; nothing is written, and no history is opened.

    Raises:
        ConfigError: As `build`.
        MissingError: There is no raw folder.
    """
    found = list(scan_names(project).corpora)
    check_requested_corpora(project.config, found)
    check_all_files(project)
    check_named_corpora(corpora, found)
    looked_at = [corpus for corpus in found if not corpora or corpus in corpora]
    known = survey_project(project, looked_at)
    hosted = ProjectDefs.of(project.config)
    definitions = definitions_of(hosted) if select else dg.Definitions()
    chosen = selected(known.graph.nodes(), select, corpora, definitions, hosted.names)
    return plan(known, chosen, label_of, force=force)


def check_named_corpora(corpora: Iterable[str], found: Sequence[str]) -> None:
    """Raise ConfigError if a corpus that --corpus names is not one of the raw folder."""
    if unknown := [name for name in corpora if name not in found]:
        what, remedy = "this corpus is not in the raw folder", remedy_for_name(unknown[0], found, "name one of these")
        expected = one_of(found, "none: there are no corpora")
        raise ConfigError(what, where="--corpus", found=repr(unknown[0]), expected=expected, remedy=remedy)


def _run_tags(names: Names, *, rebuild: bool) -> dict[str, str]:
    """Return the tags of the runs of a build."""
    # They end with this process: Dagster's run retries would begin them again elsewhere.
    tags = owner_tag(names) | {USER_TAG: "nanoset build", _RETRIES_TAG: "0"}
    return tags | {REBUILD_TAG: "true"} if rebuild else tags


def _survey(project: Project, corpora: list[str]) -> tuple[dict[str, Recipe], dict[Node, Exception]]:
    """Return inventories of the corpora that can be read, and what is wrong with the others."""
    inventories: dict[str, Recipe] = {}
    failed: dict[Node, Exception] = {}
    for corpus in corpora:
        node = inventory_node(corpus)
        try:
            inventories[corpus] = node.stage.recipe(project, node.key, {})
        except (NanosetError, OSError) as error:
            failed[node] = error
    return inventories, failed


class _StepCounter:
    """Reports which step of a build begins, as one of all of them."""

    def __init__(self, listener: ProgressCallback) -> None:
        """Args: listener: Is called with the progress."""
        self._listener = listener
        self.numbers: dict[Node, int] = {}
        """Output → number of its step, from 1; to be filled once the steps are known."""

    def begin(self, node: Node) -> None:
        """Report that a step begins; one that was not planned is not reported."""
        if node in self.numbers:
            self._listener(self._progress(node))

    def prefix(self, step: Step) -> str:
        """Return the number of a step as lines begin with it: `[3/25] `."""
        return step_count(self._progress(step.node))

    def _progress(self, node: Node) -> Progress:
        return Progress(STEP, label_of(node), self.numbers[node], len(self.numbers), "steps")


class _Execution:
    """Executes the runs of one build, and writes into its report what became of them."""

    def __init__(
        self,
        project: Project,
        hosted: ProjectDefs,
        definitions: dg.Definitions,
        report: BuildReport,
        counter: _StepCounter,
        say: Callable[[str], None],
        how: Mapping[str, Any],
    ) -> None:
        """Args:
        project: The project.
        hosted: The same as its definitions know it.
        definitions: Its definitions.
        report: Is filled.
        counter: Knows the numbers of the steps.
        say: See `build`.
        how: What else `execute_in_process` takes.
        """
        self._project = project
        self._unremembered = replace(project, seen=None)
        self._hosted = hosted
        self._definitions = definitions
        self._report = report
        self._counter = counter
        self._say = say
        self._how = how

    def execute(self, subject: str, runs: Sequence[list[Step]]) -> None:
        """Execute the runs of one corpus, nanoset or webdataset, once no other build makes it."""
        report = self._report
        with contextlib.ExitStack() as held:
            with contextlib.suppress(StorageError):  # then each step says so for itself
                access = self._project.outputs.access
                kept = names_of(self._project, subject)
                held.enter_context(leased(access, kept, subject, on_wait=self._say_what_is_awaited))
            # Before this build makes any of them, so that nothing is taken for another build's work.
            made = {step.node for run in runs for step in run if self._is_made_meanwhile(step)}
            for run in runs:
                if report.ended.isdisjoint(label_of(need) for step in run for need in step.needs):
                    self._execute_run(run, made)
                else:
                    report.skipped += [label_of(step.node) for step in run if label_of(step.node) not in report.failed]

    def _execute_run(self, run: Sequence[Step], made_meanwhile: Collection[Node]) -> None:
        """Execute a run without the steps that another build made while this one waited or made other outputs."""
        made = [step for step in run if step.node in made_meanwhile]
        left = [step for step in run if step.node not in made_meanwhile]
        if made:
            self._say(f"{self._counter.prefix(made[-1])}{_names_of(made)}: another build made it meanwhile")
        if left:
            self._say(f"{self._counter.prefix(left[0])}{_names_of(left)} …")
            outcome = _execute(left, self._hosted, self._definitions, self._report, self._how)
            self._say(f"{self._counter.prefix(left[-1])}{_names_of(left)}: {outcome}")

    def _say_what_is_awaited(self, subject: str, work: Work) -> None:
        if work.owner is None:
            self._say(f"waits for the build of {subject} on {work.host} …")
        else:
            self._say(f"waits for {work.owner}, which makes {subject}; {work.owner.remedy()} …")

    def _is_made_meanwhile(self, step: Step) -> bool:
        """Return whether a step that was missing or stale is up to date by now."""
        wanted = self._report.graph.recipe(step.node)
        if step.done or wanted is None:  # it is forced, or found faulty by a check
            return False
        try:
            current = current_version(self._unremembered, step.node.stage, step.node.key)
            return not reasons_to_build(self._unremembered, step.node, wanted, current)
        except (NanosetError, OSError):  # making it reports what is wrong
            return False


def _names_of(run: Sequence[Step]) -> str:
    """Return the assets of the steps of one run, and their partition."""
    partition = partition_of(run[0].node)
    return ", ".join("/".join(asset_path(step.node)) for step in run) + (f" [{partition}]" if partition else "")


def _execute(
    run: list[Step], hosted: ProjectDefs, definitions: dg.Definitions, report: BuildReport, how: Mapping[str, Any]
) -> str:
    """Execute one run in this process; write into the report what became of it, and return that in short."""
    nodes, failures = [step.node for step in run], hosted.failures
    failures.clear()
    started = time.monotonic()
    error = _error_of(nodes, hosted.names, definitions, how)
    node, reason = failures[0] if error is not None and failures else (nodes[0], error)
    seconds = time.monotonic() - started
    done, outcome = len(run), f"made in {seconds:.1f} s"
    if reason is not None:
        done, outcome = nodes.index(node), f"{label_of(node)} failed after {seconds:.1f} s"
        report.failed[label_of(node)] = reason
    report.skipped += [label_of(node) for node in nodes[done:] if label_of(node) not in report.failed]
    seconds /= len(run)
    report.made |= {label_of(node): seconds for node in nodes[:done]}
    return outcome


def _error_of(nodes: list[Node], names: Names, definitions: dg.Definitions, how: Mapping[str, Any]) -> Exception | None:
    """Execute a run; return the error that ended it, if any."""
    job = definitions.resolve_job_def(names.definition(job_of(nodes[0])))
    assets, instance = [names.asset(asset_path(node)) for node in nodes], how["instance"]
    try:
        with history_faults(instance.root_directory), interruptible_runs(instance):
            job.execute_in_process(partition_key=partition_of(nodes[0]), asset_selection=assets, **how)
    except HistoryError:  # the next run could not be noted either
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and other runs go on
        return error
    return None


def selected(
    nodes: Iterable[Node], select: Sequence[str], corpora: Collection[str], definitions: dg.Definitions, names: Names
) -> set[Node]:
    """Select those of a project's outputs that are asked for, as `build` describes it; ConfigError where a text of
    `select` selects nothing."""
    within = [node for node in nodes if not corpora or (is_of_corpora(node.stage) and node.key.subject in corpora)]
    if not select:
        return {node for node in within if not corpora or node.stage.kind == INVENTORY.kind}
    return {node for text in select for node in _found(within, text, definitions, names)}


def _found(nodes: Sequence[Node], text: str, definitions: dg.Definitions, names: Names) -> list[Node]:
    graph = definitions.resolve_asset_graph()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=dg.BetaWarning)  # of what Dagster itself uses for groups
            keys = {names.path(key) for key in dg.AssetSelection.from_string(text).resolve(graph)}
    except Exception:  # noqa: BLE001 - the parser's errors have no common kind
        keys = set()
    # Where it is no asset, as `nanoset verify --select` does: web, pretrain/train, pre*; and pretrain/*.
    known = {
        node: [node.key.subject, f"{node.key.subject}/{node.key.part}", "/".join(asset_path(node))] for node in nodes
    }
    found = [node for node in nodes if (asset_path(node) in keys if keys else fnmatch.filter(known[node], text))]
    if not found:
        assets = dict.fromkeys(names.asset(asset_path(node)).to_user_string() for node in nodes)
        subjects = dict.fromkeys(node.key.subject for node in nodes)
        parts = dict.fromkeys(f"{node.key.subject}/{node.key.part}" for node in nodes if node.key.part)
        meant = closest_name(text, [*subjects, *assets, *parts])
        raise ConfigError(
            "this selects nothing",
            where="--select",
            found=repr(text),
            expected=f"an asset ({', '.join(assets)}), a corpus, nanoset or webdataset ({', '.join(subjects)}), a "
            "split such as pretrain/train, a pattern such as pre*, or Dagster's selection syntax: +pretrain/blend",
            remedy=None if meant is None else f"did you mean {meant!r}?",
        )
    return found
