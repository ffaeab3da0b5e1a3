"""A Dagster run launcher that submits each run as a Slurm job.

Dagster's web server and daemon run on one machine of the cluster, such as a login node, and the
compute nodes do the work. The launcher calls `sbatch` to submit a run, `squeue` to monitor it, and
`scancel` to end it. A run with the tag `slurm/options: --mem=64G` gets a job with 64 GB of memory.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import dagster as dg

from nanoset_assets.dagster_compat import (
    CheckRunHealthResult,
    ConfigurableClass,
    ConfigurableClassData,
    ExecuteRunArgs,
    LaunchRunContext,
    RunLauncher,
    WorkerStatus,
)
from nanoset_core.errors import ConfigError, joined_lines

JOB_TAG = "slurm/job"
"""Tag of runs: the id of the Slurm job."""
OPTIONS_TAG = "slurm/options"
"""Tag of runs: further options of sbatch, such as `--mem=64G --time=12:00:00`.

They follow those of dagster.yaml, and so override them.
"""
_TIMEOUT_SECONDS = 60
"""How long a Slurm command may take before it counts as failed."""
_WAITING_STATES = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
"""Job states, as squeue prints them, of a job that has not started."""
_RUNNING_STATES = {
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
}
"""Job states, as squeue prints them, of a job that has started and not ended."""
_FORGOTTEN = "Invalid job id"
"""Part of squeue's error for a job that ended so long ago that Slurm has discarded its state."""
_SCRIPT = "#!/bin/sh\nexec {command}\n"
"""The job script. `exec` lets the run's process receive the signals that Slurm sends to the job."""


@dataclass(frozen=True, slots=True)
class _JobState:
    """The state of a job as Slurm reports it."""

    name: str | None
    """The state, such as RUNNING, or None if it is unknown."""
    message: str = ""
    """Why the state is unknown."""

    @property
    def is_active(self) -> bool:
        """Whether the job is waiting or running."""
        return self.name in _WAITING_STATES or self.name in _RUNNING_STATES

    @property
    def has_ended(self) -> bool:
        """Whether it is certain that the job has ended; False if Slurm does not answer."""
        is_known_to_have_ended = self.name is not None and not self.is_active
        return is_known_to_have_ended or self.is_forgotten

    @property
    def is_forgotten(self) -> bool:
        """Whether the job ended so long ago that Slurm has discarded its state."""
        return self.name is None and self.message == _FORGOTTEN

    @property
    def worker_status(self) -> WorkerStatus:
        """The state in Dagster's words: is the process of the run alive?

        PENDING, RUNNING, …               RUNNING
        COMPLETED                         SUCCESS
        FAILED, OUT_OF_MEMORY, …          FAILED
        Slurm has forgotten the job       NOT_FOUND
        Slurm does not answer             RUNNING: it may just be restarting
        """
        if self.is_forgotten:
            return WorkerStatus.NOT_FOUND
        is_unknown = self.name is None
        if is_unknown or self.is_active:
            return WorkerStatus.RUNNING
        if self.name == "COMPLETED":
            return WorkerStatus.SUCCESS
        return WorkerStatus.FAILED


class SlurmRunLauncher(RunLauncher, ConfigurableClass):
    """Submits each run by sbatch, and reports the state of the job to Dagster.

    The job inherits the environment of the launching process. Compute nodes must be able to access,
    under the same paths, the Python environment, nanoset.yaml, and the folders that it names.
    Dagster's history must be in a database that several machines can share, such as Postgres.
    """

    def __init__(
        self,
        log_folder: str,
        options: Sequence[str] = (),
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Create a launcher. Dagster does so when it reads `run_launcher` in its file dagster.yaml.

        Args:
            log_folder: Folder in which jobs write their logs. All machines of the cluster must
                share it.
            options: Options of Slurm's command sbatch for every job, such as `--partition=cpu`.
            inst_data: The same settings in Dagster's own form.
        """
        self._folder = Path(log_folder).absolute()
        self._options = tuple(options)
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """The configuration as Dagster stores it."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        """Return which settings the launcher has in dagster.yaml, and the type of each.

        They are written as follows:

            run_launcher:
              module: nanoset_assets.slurm
              class: SlurmRunLauncher
              config:
                log_folder: /shared/logs
                options: ["--partition=cpu"]
        """
        return {
            "log_folder": dg.Field(
                dg.StringSource, description="Folder in which jobs write their logs."
            ),
            "options": dg.Field(
                [dg.StringSource], default_value=[], description="Options of sbatch for every run."
            ),
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Create a launcher from its settings in the file dagster.yaml. Dagster calls this.

        Args:
            inst_data: The settings in Dagster's own form, which Dagster asks for later.
            config_value: The same as a mapping, such as `{"log_folder": "/shared/logs", "options":
                ["--partition=cpu"]}`.
        """
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Submit a Dagster run as a job of a Slurm cluster. Dagster calls this for each run.

        The job is a shell script with one command, which loads the assets and executes the run. Its
        id is stored in a tag of the run, `slurm/job: 4711`, by which the job is found later.

        Args:
            context: Has the run, and says where a process finds the code of the assets.

        Raises:
            ConfigError: Slurm is not installed on this machine, or rejects the job.
        """
        run = context.dagster_run
        origin = context.job_code_origin
        if origin is None:
            raise ConfigError("this run has no record of its code location", where=run.run_id)

        # The command `dagster api execute_run …`, as Dagster's own launchers use it.
        arguments = ExecuteRunArgs(
            origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True
        )
        script = _SCRIPT.format(command=shlex.join(arguments.get_command_args()))
        job = self._submit(run, script)
        self._instance.add_run_tags(run.run_id, {JOB_TAG: job})
        self._report(run, f"Submitted as Slurm job {job}; it writes to {self._log_file(job)}")

    def _submit(self, run: dg.DagsterRun, script: str) -> str:
        """Give a shell script to Slurm as a new job, and return the id of the job.

        The options of the job come from three places, each of which overrides the one before it:

            what every job needs             --no-requeue …
            dagster.yaml, for all runs       --partition=cpu --mem=16G
            a tag of this run                --mem=64G                     (so the job gets 64 GB)

        Args:
            run: The run that the script executes, with its tags.
            script: The text of the script.

        Raises:
            ConfigError: Slurm is not installed on this machine, or rejects the job.
        """
        # Of contradicting options, sbatch uses the last one.
        user_options = [*self._options, *_split_options(run.tags.get(OPTIONS_TAG, ""))]
        options = [*self._required_options(run), *user_options]

        self._folder.mkdir(parents=True, exist_ok=True)
        answer = _slurm("sbatch", "--parsable", *options, text=script)
        if answer.returncode != 0:
            raise ConfigError(
                "Slurm refuses the run",
                where=f"run_launcher in dagster.yaml: sbatch {shlex.join(user_options)}",
                found=joined_lines(answer.stderr),
                remedy=f"correct the options there, or the tag {OPTIONS_TAG} of the run",
            )
        # With --parsable, sbatch prints `job` or `job;cluster`.
        return answer.stdout.strip().partition(";")[0]

    def _required_options(self, run: dg.DagsterRun) -> list[str]:
        """Return the options of Slurm's command sbatch that every run of Dagster needs.

        Args:
            run: The run. For one of the Dagster job `corpus`, the Slurm job has the name
                `nanoset-corpus`.
        """
        return [
            "--job-name",
            f"nanoset-{run.job_name}",
            "--output",
            str(self._log_file("%j")),
            # Slurm must not restart a job: Dagster retries a run as a new run with a new job.
            "--no-requeue",
            "--export=ALL",
            # Send SIGTERM to the run's process 120 s before the time limit, so that it can end
            # properly.
            "--signal=B:TERM@120",
            "--open-mode=append",
        ]

    def _log_file(self, job: str) -> Path:
        """Return the file in which a Slurm job writes its log, such as `logs/slurm-4711.log`.

        Args:
            job: The id of the job; or `%j`, for which Slurm's command sbatch puts the id.
        """
        return self._folder / f"slurm-{job}.log"

    def _report(self, run: dg.DagsterRun, message: str) -> None:
        """Show a message in Dagster's UI, on the page of a run.

        Args:
            run: The run.
            message: Such as "Submitted as Slurm job 4711".
        """
        self._instance.report_engine_event(message, run, cls=type(self))

    def terminate(self, run_id: str) -> bool:
        """Cancel the Slurm job of a Dagster run. Dagster calls this if a user clicks Terminate.

        After the first click, the run's process gets a signal. It ends its child processes, and
        reports that it was canceled. If it does not react, the user clicks again, and the job is
        killed.

        Args:
            run_id: The id of the run. A tag of the run has the id of its Slurm job.

        Returns:
            Whether the job was canceled, or had ended already. False if the run has ended or has no
            job, or if Slurm refuses.
        """
        run = self._instance.get_run_by_id(run_id)
        job = None if run is None else run.tags.get(JOB_TAG)
        if run is None or run.is_finished or job is None:
            return False
        is_second_request = run.status == dg.DagsterRunStatus.CANCELING
        self._instance.report_run_canceling(run)

        # A job that waits in Slurm's queue has no process that could react to a signal. Remove it
        # from the queue. This has no effect on a job that has started.
        _slurm("scancel", "--state=PENDING", job)
        if _job_state(job).has_ended:
            self._report_end(run)
            return True
        return self._cancel_job(run, job, kills=is_second_request)

    def _report_end(self, run: dg.DagsterRun) -> None:
        """Report to Dagster that a run was canceled, if its process cannot do so itself.

        Usually the process of a run reports its end. There is none if the Slurm job was canceled
        before it started, or was killed.

        Args:
            run: The run, whose Slurm job has ended.
        """
        current_run = self._instance.get_run_by_id(run.run_id) or run
        if not current_run.is_finished:
            self._instance.report_run_canceled(current_run)

    def _cancel_job(self, run: dg.DagsterRun, job: str, *, kills: bool) -> bool:
        """Ask Slurm to end a job, gently or by force, and return whether Slurm accepts that.

        Args:
            run: The Dagster run of the job. If Slurm refuses, its page shows why.
            job: The id of the job.
            kills: True kills all processes of the job at once. False sends the signal SIGTERM to
                its first process, which ends the others itself.
        """
        options = [] if kills else ["--batch", "--signal=TERM"]
        answer = _slurm("scancel", *options, job)
        if answer.returncode != 0:
            self._report(run, f"Slurm could not cancel job {job}: {answer.stderr.strip()}")
        return answer.returncode == 0

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Whether Dagster's daemon may call `check_run_worker_health`."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Say whether the Slurm job of a Dagster run is alive. Dagster calls this regularly.

        A job may end without a word to Dagster: it needed too much memory, for example, or its
        machine has failed. Then Dagster reports the run as failed, instead of showing it as running
        forever.

        Args:
            run: The run. A tag of it has the id of its Slurm job.

        Returns:
            Whether the job is alive, and a message for the page of the run, such as "Slurm job 4711
            is OUT_OF_MEMORY".
        """
        job = run.tags.get(JOB_TAG)
        if job is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, f"the run has no tag {JOB_TAG}")
        state = _job_state(job)
        if state.name is None:
            return CheckRunHealthResult(state.worker_status, state.message)
        message = f"Slurm job {job} is {state.name}"
        return CheckRunHealthResult(state.worker_status, message, run_worker_id=job)

    def get_run_worker_debug_info(
        self, run: dg.DagsterRun, include_container_logs: bool | None = True
    ) -> str | None:
        """Return what helps to find out why the Slurm job of a Dagster run has failed.

        Dagster shows it on the page of the run. For example:

            Log: /shared/logs/slurm-4711.log
            JobId=4711 JobName=nanoset-corpus
               JobState=OUT_OF_MEMORY …

        Args:
            run: The run. A tag of it has the id of its Slurm job.
            include_container_logs: Not used, as a Slurm job has no container.

        Returns:
            The text; None if the run has no Slurm job.
        """
        job = run.tags.get(JOB_TAG)
        if job is None:
            return None
        description = _slurm("scontrol", "show", "job", job).stdout.strip()
        return f"Log: {self._log_file(job)}\n{description}"


def _split_options(options: str) -> list[str]:
    """Split options of Slurm, which a user has written in a tag of a run, as a shell would.

    For example, `--mem=64G --comment="a b"` gives ["--mem=64G", "--comment=a b"].

    Args:
        options: The text of the tag; empty if there is none.

    Raises:
        ConfigError: A quotation mark is not closed.
    """
    try:
        return shlex.split(options)
    except ValueError as error:
        raise ConfigError(
            "these options of sbatch cannot be parsed",
            where=f"the tag {OPTIONS_TAG}",
            found=f"{options!r}: {error}",
            remedy="close the quotation marks",
        ) from error


def _job_state(job: str) -> _JobState:
    """Ask Slurm for the state of a job, by its command squeue.

    There are three cases:

        squeue prints                     result
        RUNNING                           the state RUNNING
        Invalid job id, or nothing        no state: Slurm forgets jobs that have ended long ago
        any other error                   no state: Slurm may just be restarting

    Args:
        job: The id of the job.

    Returns:
        The state, or the reason why it is not known.
    """
    answer = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
    name = answer.stdout.strip()
    message = answer.stderr.strip()
    if answer.returncode == 0 and name:
        return _JobState(name)
    # For a job that it has forgotten, Slurm prints "Invalid job id specified". Some versions print
    # nothing, and do not count this as an error.
    if answer.returncode == 0 or _FORGOTTEN in message:
        message = _FORGOTTEN
    return _JobState(None, message)


def _slurm(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Execute a command of Slurm, such as `squeue --jobs=4711`, and wait until it ends.

    If the scheduler of the cluster is overloaded, a command may take very long. After a minute
    (_TIMEOUT_SECONDS), it is given up, as if it had failed with the exit code 1.

    Args:
        command: The command and its arguments.
        text: What the command reads from its standard input, such as a script.

    Returns:
        The exit code and what the command has printed.

    Raises:
        ConfigError: The command is not installed on this machine.
    """
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            "Slurm is not installed on this machine",
            where="run_launcher in dagster.yaml",
            found=f"no command {command[0]}",
            remedy="run Dagster on a machine that can submit jobs, or configure another launcher",
        ) from error
    except subprocess.TimeoutExpired:
        message = f"{command[0]} did not answer within {_TIMEOUT_SECONDS} s"
        return subprocess.CompletedProcess(command, 1, "", message)
