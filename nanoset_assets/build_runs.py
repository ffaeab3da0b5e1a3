"""Execute the runs of `nanoset build` in this process, and record their results in a report.

A step is the work of making one output, and a run makes the outputs of several steps in sequence;
see `nanoset_core/project/runs.py`. For each run, two lines are printed: `[3/25] indexed_dataset
[web] …` when it starts, and `[3/25] indexed_dataset [web]: made in 4.2 s` when it ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import asset_path, job_of, label_of, partition_of
from nanoset_assets.build_report import BuildReport
from nanoset_assets.dagster_compat import interruptible_runs
from nanoset_assets.instance import HistoryError, history_faults
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.execution.progress import Progress, step_count
from nanoset_core.project.graph import Step, reasons_to_build
from nanoset_core.project.project import Project, names_of
from nanoset_core.stages.stage import Node, current_version
from nanoset_core.storage.leases import Work, leased


class StepCounter:
    """Reports which step of a build begins, as "3 of 71"."""

    def __init__(self, progress: Progress) -> None:
        """Create a counter that expects no steps yet.

        Args:
            progress: Shows the steps.
        """
        self._progress = progress
        self._numbers: dict[Node, int] = {}  # output → number of its step, from 1

    def expect(self, nodes: Iterable[Node]) -> None:
        """Set the outputs that the build makes, in the order of their steps.

        The counter is created before they are known, since the definitions need it.

        Args:
            nodes: The outputs. The step of the first one has the number 1.
        """
        self._numbers = {node: number for number, node in enumerate(nodes, start=1)}

    def begin(self, node: Node) -> None:
        """Report that a step begins, if it is one of the expected steps.

        Args:
            node: The output that the step makes.
        """
        if node in self._numbers:
            self._progress.step(label_of(node), self._numbers[node], len(self._numbers))

    def prefix(self, step: Step) -> str:
        """Return the number of a step for the start of a line, such as `[3/25] `.

        Args:
            step: One of the expected steps.
        """
        return step_count(self._numbers[step.node], len(self._numbers))


@dataclass(frozen=True, slots=True)
class BuildRuns:
    """Executes the runs of one build, and records their results in its report."""

    project: Project
    project_defs: ProjectDefs
    """What the definitions of the project are made from."""
    definitions: dg.Definitions
    report: BuildReport
    """Receives the results of the runs."""
    counter: StepCounter
    say: Callable[[str], None]
    """Called with a line when a run starts, and with another when it ends."""
    instance: dg.DagsterInstance
    options: Mapping[str, Any]
    """Tags and run config of all runs, as arguments of Dagster's `execute_in_process`."""

    def execute(self, subject: str, runs: Sequence[list[Step]]) -> None:
        """Execute the runs of one corpus, nanoset, …, once no other build works on it.

        Args:
            subject: The corpus, nanoset (a data mixture for training), webdataset and so on, whose
                outputs the runs make.
            runs: The steps of each run. A run is skipped if it needs an output that failed.
        """
        with self._lease_of(subject):  # waits while another build works on the subject
            # That build may have made some of the outputs: they need not be made again.
            steps = list(chain.from_iterable(runs))
            made_elsewhere = self._made_elsewhere(steps)
            for run in runs:
                inputs = chain.from_iterable(step.needs for step in run)
                input_labels = {label_of(node) for node in inputs}  # such as "raw_jsonl [web]"
                # Outputs that failed in an earlier run, or were skipped because of that.
                unavailable_labels = self.report.given_up
                if unavailable_labels.isdisjoint(input_labels):
                    self._execute_run(run, made_elsewhere)
                else:
                    self.report.skip([step.node for step in run])

    @contextlib.contextmanager
    def _lease_of(self, subject: str) -> Iterator[None]:
        """Hold the lease (lock) of a subject, which keeps other builds from working on it.

        If the root cannot be written to, nothing is held: the steps will fail, and report the
        reason.

        Args:
            subject: The corpus, data mixture (nanoset), … whose outputs this build will make.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(StorageError):
                names = names_of(self.project, subject)
                access = self.project.outputs.access
                lease = leased(access, names, subject, on_wait=self._report_wait)
                stack.enter_context(lease)
            yield

    def _report_wait(self, subject: str, work: Work) -> None:
        """Report which build has to end before this one can continue.

        Args:
            subject: The corpus, nanoset, … on which the other build works.
            work: The other build, as far as it is known.
        """
        if work.owner is None:
            self.say(f"waits for the build of {subject} on {work.host} …")
        else:
            self.say(f"waits for {work.owner}, which makes {subject}; {work.owner.remedy()} …")

    def _made_elsewhere(self, steps: Sequence[Step]) -> set[Node]:
        """Return the outputs that another build has made while this one waited.

        Args:
            steps: The steps that this build is about to execute. Each makes one output.
        """
        # Read the outputs again, instead of relying on what this process has cached.
        project = replace(self.project, seen=None)
        complete_nodes: set[Node] = set()
        for step in steps:
            if step.is_up_to_date:
                continue  # rebuilt because the user asked for it, or because its check failed
            # All builds make the outputs of a subject in the same order. So nobody has made those
            # after one that is still missing, and they need not be looked up.
            if not self._is_made(project, step.node):
                break
            complete_nodes.add(step.node)
        return complete_nodes

    def _is_made(self, project: Project, node: Node) -> bool:
        """Return whether an output need not be built any more, because it is up to date.

        Args:
            project: The project, without a cache of outputs.
            node: The output.
        """
        recipe = self.report.graph.recipe(node)
        if recipe is None:
            return False
        try:
            current = current_version(project, node.stage, node.key)
            return not reasons_to_build(project, node, recipe, current)
        except (NanosetError, OSError):
            return False  # it cannot be read; the step that makes it reports the error

    def _execute_run(self, run: Sequence[Step], made_elsewhere: Collection[Node]) -> None:
        """Execute a run, without the steps whose outputs another build has made meanwhile.

        Args:
            run: The steps of the run, each of which makes one output.
            made_elsewhere: Outputs that another build has made.
        """
        complete = [step for step in run if step.node in made_elsewhere]
        due_steps = [step for step in run if step.node not in made_elsewhere]
        if complete:
            self._say_of(complete[-1], f"{_run_label(complete)}: another build made it meanwhile")
        if due_steps:
            label = _run_label(due_steps)
            self._say_of(due_steps[0], f"{label} …")
            outcome = self._execute_steps(due_steps)
            self._say_of(due_steps[-1], f"{label}: {outcome}")

    def _say_of(self, step: Step, text: str) -> None:
        """Print a line that starts with the number of a step, such as "[3/25] "."""
        self.say(f"{self.counter.prefix(step)}{text}")

    def _execute_steps(self, steps: Sequence[Step]) -> str:
        """Execute one run of Dagster, record its result in the report, and return it in words.

        Args:
            steps: The steps of the run, each of which makes one output.
        """
        nodes = [step.node for step in steps]
        started = time.monotonic()
        error = self._run_and_catch(nodes)
        seconds = time.monotonic() - started
        # Dagster reports only the time of the whole run: assume that all steps took the same.
        seconds_of_step = seconds / len(nodes)
        if error is None:
            self._report_made(nodes, seconds_of_step)
            return f"made in {seconds:.1f} s"

        # Steps are executed in this order: those after the failed one were not reached.
        failed_node = self._report_failure(nodes, error)
        position = nodes.index(failed_node)
        self._report_made(nodes[:position], seconds_of_step)
        self.report.skip(nodes[position:])
        return f"{label_of(failed_node)} failed after {seconds:.1f} s"

    def _run_and_catch(self, nodes: Sequence[Node]) -> Exception | None:
        """Execute a run of Dagster that makes outputs; return the error if it fails, or None.

        Args:
            nodes: The outputs, in the order of their steps.

        Raises:
            HistoryError: The run could not be recorded, and so no later run could be.
        """
        job_name = self.project_defs.names.definition(job_of(nodes[0]))
        job = self.definitions.resolve_job_def(job_name)
        self.project_defs.failures.clear()  # the steps of the run record their errors there
        try:
            self._execute_in_dagster(job, nodes)
        except HistoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and other runs continue
            return error
        return None

    def _report_made(self, nodes: Iterable[Node], seconds_of_step: float) -> None:
        """Record in the report that outputs were made.

        Args:
            nodes: The outputs of a run, or those that it made before it failed.
            seconds_of_step: How long each of them took.
        """
        for node in nodes:
            self.report.made[label_of(node)] = seconds_of_step

    def _report_failure(self, nodes: Sequence[Node], error: Exception) -> Node:
        """Record which output of a failed run could not be made, and why; return the output.

        Args:
            nodes: The outputs of the run, in the order of its steps.
            error: Dagster's error, which only says that the run failed.
        """
        # A step that fails adds its output and its own error to this list, and ends the run.
        failures = self.project_defs.failures
        if failures:
            failed_node, reason = failures[0]
        else:  # the run has failed before its first step
            failed_node = nodes[0]
            reason = error
        self.report.failed[label_of(failed_node)] = reason
        return failed_node

    def _execute_in_dagster(self, job: dg.JobDefinition, nodes: Sequence[Node]) -> None:
        """Execute a run of Dagster in this process, which makes outputs.

        Args:
            job: The job that makes them.
            nodes: The outputs, all of the same partition.

        Raises:
            HistoryError: The run could not be recorded.
            Exception: The run failed.
        """
        names = self.project_defs.names
        with history_faults(self.instance.root_directory), interruptible_runs(self.instance):
            job.execute_in_process(
                instance=self.instance,
                partition_key=partition_of(nodes[0]),
                asset_selection=[names.asset(asset_path(node)) for node in nodes],
                **self.options,
            )


def _run_label(steps: Sequence[Step]) -> str:
    """Return the assets that a run makes, and their partition.

    Args:
        steps: The steps of one run, each of which makes one output.

    Returns:
        Such as `raw_jsonl, tokenized_shards, indexed_dataset [web]`.
    """
    assets = ["/".join(asset_path(step.node)) for step in steps]
    label = ", ".join(assets)
    partition = partition_of(steps[0].node)
    return f"{label} [{partition}]" if partition else label
