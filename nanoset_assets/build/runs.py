"""Execute the runs of `nanoset build` in this process, and record their results in a report.

A step is the work of making one output, and a run makes the outputs of several steps in sequence;
see `runs.py`. For each run, two lines are printed: `[3/25] indexed_dataset [web] …` when it starts,
and `[3/25] indexed_dataset [web]: made in 4.2 s` when it ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import asset_path, job_of, label_of, partition_of
from nanoset_assets.build.report import BuildReport
from nanoset_assets.dagster_compat import interruptible_runs
from nanoset_assets.history.instance import HistoryError, history_faults
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.execution.progress import Progress, step_count
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.reasons_to_build import reasons_to_build
from nanoset_core.project.graph.step import Step
from nanoset_core.project.permission import check_allowed
from nanoset_core.project.project import Project, leased_names
from nanoset_core.stages.stage import Node, current_version
from nanoset_core.storage.in_use.leases import FOLDER as LEASE_FOLDER
from nanoset_core.storage.in_use.leases import Work, leased


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
        """Set the outputs that the build makes, in the order in which it makes them.

        The counter is created earlier, before it is known how many there are.

        Args:
            nodes: The outputs. Making the first one is step 1.
        """
        self._numbers = {node: number for number, node in enumerate(nodes, start=1)}

    def begin(self, node: Node) -> None:
        """Report that the build begins to make an output: "3 of 71" if it is the third of 71.

        Args:
            node: The output. If it is not one of those that were expected, nothing is reported.
        """
        if node in self._numbers:
            self._progress.step(label_of(node), self._numbers[node], len(self._numbers))

    def prefix(self, step: Step) -> str:
        """Return the number of a step for the start of a line: `[3/25] ` is the third of 25.

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
        """Make all outputs of one subject, such as a text collection or a data mixture, run by run.

        If an output fails, the runs that need it are skipped, and the others are executed.

        Args:
            subject: Name of the text collection (corpus), data mixture (nanoset) or webdataset.
            runs: The runs in their order, each with the steps that it executes. A step makes an
                output.
        """
        with self._lease_of(subject):  # waits while another build works on the subject
            # Another build that this one has waited for may have made some of the outputs.
            steps = list(chain.from_iterable(runs))
            made_elsewhere = self._made_meanwhile(steps)
            for run in runs:
                if self._needs_failed_output(run):
                    self.report.skip([step.node for step in run])
                else:
                    self._execute_run(run, made_elsewhere)

    def _needs_failed_output(self, run: Sequence[Step]) -> bool:
        """Return whether a run cannot succeed, because this build failed to make an input.

        For example, if the dataset of `web` has failed, or was skipped because of another failure,
        everything that is made from it has to be skipped.

        Args:
            run: The steps of the run, each with the outputs that it needs.
        """
        failed_labels = self.report.given_up  # such as {"indexed_dataset [web]"}
        inputs = chain.from_iterable(step.needs for step in run)
        return any(label_of(node) in failed_labels for node in inputs)

    @contextlib.contextmanager
    def _lease_of(self, subject: str) -> Iterator[None]:
        """Make sure that no other build makes the same outputs while the `with` block is executed.

        If another build is making them, this waits for its end. Builds may run on several machines,
        so this is done by a lease: a file next to the outputs that says which build works on them.

        Args:
            subject: Name of the text collection (corpus), data mixture (nanoset), … that will be
                made.
        """
        with contextlib.ExitStack() as stack:
            # If the file cannot be written, continue without it: the outputs cannot be written
            # either, and the step that fails will report the reason.
            with contextlib.suppress(StorageError):
                names = leased_names(self.project, subject)  # the subject, and what it is made from
                access = self.project.outputs.access
                stack.enter_context(leased(access, names, subject, on_wait=self._report_wait))
            yield

    def _report_wait(self, subject: str, work: Work) -> None:
        """Print which build has to end before this one can continue.

        For example: "waits for the build of web on node7 …". If the process is known, the line also
        says how to end it: "waits for …, which works on web; `kill 123` on node7 ends it …".

        A copy of a root that was made during a build has the lease of this build, which has nothing
        to do with the copy. That cannot be recognized: a root may have another path on each
        machine. So the line also says what to do in this case.

        Args:
            subject: The text collection (corpus), data mixture (nanoset), … that the other build
                makes.
            work: The other build, as far as it is known.
        """
        if work.owner is None:
            self.say(f"waits for the build of {subject} on {work.host} …")
        else:
            remedy = work.owner.remedy()
            if not work.owner.is_here:
                access = self.project.outputs.access
                leases = access.url(access.folder / LEASE_FOLDER)
                remedy += (
                    f"; if this root is a copy of the one that it builds, delete {leases} instead"
                )
            self.say(f"waits for {work.owner}, which works on {subject}; {remedy} …")

    def _made_meanwhile(self, steps: Sequence[Step]) -> set[Node]:
        """Return the outputs that were made since this build has looked at them.

        For example, another build also wants to make the tokens and the dataset of the text
        collection `web`. It made the tokens while this one waited for it, and was stopped. Then
        only the dataset is left for this one. (Every build makes the outputs of `web` in the same
        order. So if one was not made, later ones were not made either.)

        Outputs that were up to date before are left out. They are made all the same, because the
        user wants a rebuild, or their check has failed. That they are up to date now does not show
        that somebody has made them.

        Args:
            steps: The steps that this build is about to execute, or has tried to execute, in order.
                Each makes one output.
        """
        outdated_nodes = [step.node for step in steps if not step.is_up_to_date]
        # `seen` caches what this process has read of the outputs. Read their present state instead.
        project = replace(self.project, seen=None)
        return set(takewhile(partial(self._is_made, project), outdated_nodes))

    def _is_made(self, project: Project, node: Node) -> bool:
        """Return whether an output is up to date now: there is nothing left to do for it.

        Args:
            project: The project, without a cache: outputs are read as they are stored now.
            node: The output.
        """
        recipe = self.report.graph.recipes.of(node)  # what it should be made from
        if recipe is None:
            return False  # not known, as some raw text was not read
        try:
            current = current_version(project, node.stage, node.key)
            failed_checks = FailedChecks.read(project.outputs)
            if reasons_to_build(project, node, recipe, current, failed_checks):
                return False
            check_allowed(project, node, self.project_defs.passed_checks)
        except (NanosetError, OSError):
            # It cannot be read, or is forbidden. The step that makes it reports the error.
            return False
        return True

    def _execute_run(self, run: Sequence[Step], made_elsewhere: Collection[Node]) -> None:
        """Execute one run, and print a line before and after it.

        For example, a run makes the list of files (raw_jsonl), the tokens and the dataset of `web`,
        but another build has made the list of files a moment ago. It is left out, and these lines
        are printed:

            [1/3] raw_jsonl [web]: another build made it meanwhile
            [2/3] tokenized_shards, indexed_dataset [web] …
            [3/3] tokenized_shards, indexed_dataset [web]: made in 4.2 s

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

        A run executes its steps in order, and ends at the first one that fails. For example, a run
        of 12 seconds has three steps, and the second fails:

            step                      recorded as
            raw_jsonl [web]           made, in 4 s (a third: Dagster reports only the total)
            tokenized_shards [web]    failed
            indexed_dataset [web]     skipped

        The result is then "tokenized_shards [web] failed after 12.0 s".

        Args:
            steps: The steps of the run, each of which makes one output.
        """
        nodes = [step.node for step in steps]
        started = time.monotonic()
        error = self._run_and_catch(nodes)
        seconds = time.monotonic() - started
        seconds_of_step = seconds / len(nodes)
        if error is None:
            self._report_made(nodes, seconds_of_step)
            return f"made in {seconds:.1f} s"

        # Dagster's error only says that the run has failed. A step that fails therefore adds its
        # output and its own error to the list `failures` before it ends.
        failures = self.project_defs.failures
        if failures:
            failed_node, error = failures[0]
            n_made = nodes.index(failed_node)
        else:  # Dagster itself has failed: before the first step, between steps, or at the end
            n_made = self._count_made(steps)
        self._report_made(nodes[:n_made], seconds_of_step)

        if n_made == len(nodes):
            self.report.failed[f"the end of the run of {_run_label(steps)}"] = error
            return f"the end of the run failed after {seconds:.1f} s"
        failed_label = label_of(nodes[n_made])
        self.report.failed[failed_label] = error
        self.report.skip(nodes[n_made:])  # all but the failed one, which is recorded already
        if failed_label == _run_label(steps):  # the line starts with the label of the run
            return f"failed after {seconds:.1f} s"
        return f"{failed_label} failed after {seconds:.1f} s"

    def _count_made(self, steps: Sequence[Step]) -> int:
        """Return how many steps of a failed run have made their outputs, from the first one on.

        Args:
            steps: The steps of the run, in the order in which it executes them.
        """
        made_nodes = self._made_meanwhile(steps)
        count = 0
        for step in steps:
            if step.node not in made_nodes:
                break
            count += 1
        return count

    def _run_and_catch(self, nodes: Sequence[Node]) -> Exception | None:
        """Execute a run of Dagster that makes outputs; return the error if it fails, or None.

        Args:
            nodes: The outputs, in the order in which the run makes them. One job can make all of
                them.

        Raises:
            HistoryError: The run could not be recorded in Dagster's history. As later runs could
                not be recorded either, the build has to end.
        """
        job_name = self.project_defs.names.definition(job_of(nodes[0]))  # such as "pretrain"
        job = self.definitions.resolve_job_def(job_name)
        # A step of the run that fails adds its own error to this list. Remove those of earlier
        # runs.
        self.project_defs.failures.clear()
        try:
            self._execute_in_dagster(job, nodes)
        except HistoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported, and other runs continue
            return error
        return None

    def _report_made(self, nodes: Iterable[Node], seconds_of_step: float) -> None:
        """Record in the report that outputs were made, each with the seconds that it took.

        Args:
            nodes: The outputs of a run, or those that it made before it failed.
            seconds_of_step: How long each of them took.
        """
        for node in nodes:
            self.report.made[label_of(node)] = seconds_of_step

    def _execute_in_dagster(self, job: dg.JobDefinition, nodes: Sequence[Node]) -> None:
        """Execute a run of Dagster in this process, and wait for its end.

        An asset in Dagster, such as `indexed_dataset`, has partitions, such as `web`: a run makes
        one partition of one or several assets. Ctrl-C ends it.

        Args:
            job: The job that makes them: Dagster's name for the assets that may be made in one run.
            nodes: The outputs to make, all of the same partition.

        Raises:
            HistoryError: The run could not be recorded in Dagster's history.
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
    """Return how a run of Dagster is called in the lines that a build prints.

    A run makes one partition of some assets: `raw_jsonl, tokenized_shards, indexed_dataset [web]`.
    If an asset has no partitions, only its name is printed: `pretrain/handoff`.

    Args:
        steps: The steps of the run, each of which makes one output: a partition of an asset.
    """
    assets = ["/".join(asset_path(step.node)) for step in steps]
    label = ", ".join(assets)
    partition = partition_of(steps[0].node)  # the same for all steps
    return f"{label} [{partition}]" if partition else label
