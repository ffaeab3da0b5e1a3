"""Dagster runs as Slurm jobs.

Dagster itself runs on one machine of the cluster, and the nodes do the work.
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
"""Number of a run's job."""
OPTIONS_TAG = "slurm/options"
"""Options of sbatch for one run, after those of dagster.yaml, such as `--mem=64G --time=12:00:00`."""
_TIMEOUT_SECONDS = 60
"""Of a command of Slurm."""
_WAITING_STATES = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
}
_RUNNING_STATES = {
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
}
_FORGOTTEN = "Invalid job id"
"""What Slurm says of a job that ended some time ago."""
_SCRIPT = "#!/bin/sh\nexec {command}\n"


@dataclass(frozen=True, slots=True)
class _JobState:
    """What Slurm says of a job."""

    name: str | None
    """Such as RUNNING; None if it is not known."""
    message: str = ""
    """Why it is not known."""

    @property
    def is_active(self) -> bool:
        """Whether the job waits or runs."""
        return self.name in _WAITING_STATES or self.name in _RUNNING_STATES

    @property
    def is_forgotten(self) -> bool:
        """Whether Slurm does not know the job any more: it has ended."""
        return self.name is None and self.message == _FORGOTTEN


class SlurmRunLauncher(RunLauncher, ConfigurableClass):
    """Submits each run by sbatch, and reports the state of the job to Dagster.

    The job gets the environment of the launching process.

    Nodes must find what the job runs under the same paths: Python, nanoset.yaml, and the folders
    that it names. The history has to be one for several machines.
    """

    def __init__(
        self,
        log_folder: str,
        options: Sequence[str] = (),
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Create a launcher; Dagster does so from dagster.yaml.

        Args:
            log_folder: Folder for the logs of jobs, which all nodes must share.
            options: Options of sbatch, such as `--partition=cpu`.
            inst_data: Dagster's own record of this configuration.
        """
        self._folder = Path(log_folder).absolute()
        self._options = tuple(options)
        self._inst_data = inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        return {
            "log_folder": dg.Field(dg.StringSource, description="Where jobs write their logs."),
            "options": dg.Field(
                [dg.StringSource], default_value=[], description="Options of sbatch for every run."
            ),
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Submit a run.

        Raises:
            ConfigError: This machine has no Slurm, or Slurm refuses the job.
        """
        run = context.dagster_run
        origin = context.job_code_origin
        if origin is None:
            raise ConfigError("the run does not say which code it is of", where=run.run_id)
        arguments = ExecuteRunArgs(
            origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True
        )
        script = _SCRIPT.format(command=shlex.join(arguments.get_command_args()))
        options = [*self._options, *_split_options(run.tags.get(OPTIONS_TAG, ""))]

        self._folder.mkdir(parents=True, exist_ok=True)
        answer = _slurm("sbatch", "--parsable", *self._job_options(run), *options, text=script)
        if answer.returncode != 0:
            raise ConfigError(
                "Slurm refuses the run",
                where=f"run_launcher in dagster.yaml: sbatch {shlex.join(options)}",
                found=joined_lines(answer.stderr),
                remedy=f"correct the options there, or the tag {OPTIONS_TAG} of the run",
            )
        job = answer.stdout.strip().partition(";")[0]  # a cluster's name may follow
        self._instance.add_run_tags(run.run_id, {JOB_TAG: job})
        self._report(run, f"Submitted as Slurm job {job}; it writes to {self._log_file(job)}")

    def _job_options(self, run: dg.DagsterRun) -> list[str]:
        """Return the options of sbatch that every run has."""
        return [
            "--job-name",
            f"nanoset-{run.job_name}",
            "--output",
            str(self._log_file("%j")),
            # A run that Dagster knows to have started cannot start again: it is tried again as
            # another run.
            "--no-requeue",
            "--export=ALL",
            "--signal=B:TERM@120",
            "--open-mode=append",
        ]

    def _log_file(self, job: str) -> Path:
        return self._folder / f"slurm-{job}.log"

    def _report(self, run: dg.DagsterRun, message: str) -> None:
        """Show a message on the page of a run."""
        self._instance.report_engine_event(message, run, cls=type(self))

    def terminate(self, run_id: str) -> bool:
        """Cancel a run's job, by force at the second request.

        Returns whether there was a job to cancel.
        """
        run = self._instance.get_run_by_id(run_id)
        job = None if run is None else run.tags.get(JOB_TAG)
        if run is None or run.is_finished or job is None:
            return False
        self._instance.report_run_canceling(run)
        _slurm("scancel", "--state=PENDING", job)

        state = _job_state(job)
        has_ended = state.name is not None and not state.is_active
        if has_ended or state.is_forgotten:
            run = self._instance.get_run_by_id(run_id) or run
            if not run.is_finished:  # its job ended before the run started
                self._instance.report_run_canceled(run)
            return True

        # At first only the run's process gets a signal: it ends what it has started.
        is_second_request = run.status == dg.DagsterRunStatus.CANCELING
        signal_options = () if is_second_request else ("--batch", "--signal=TERM")
        answer = _slurm("scancel", *signal_options, job)
        if answer.returncode != 0:
            self._report(run, f"Slurm does not cancel job {job}: {answer.stderr.strip()}")
        return answer.returncode == 0

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return the state of a run's job; if Slurm does not answer, the job counts as running."""
        job = run.tags.get(JOB_TAG)
        if job is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, f"the run has no tag {JOB_TAG}")
        state = _job_state(job)
        if state.name is None:
            status = WorkerStatus.NOT_FOUND if state.is_forgotten else WorkerStatus.RUNNING
            return CheckRunHealthResult(status, state.message)
        status = WorkerStatus.FAILED
        if state.is_active:
            status = WorkerStatus.RUNNING
        elif state.name == "COMPLETED":
            status = WorkerStatus.SUCCESS
        return CheckRunHealthResult(status, f"Slurm job {job} is {state.name}", run_worker_id=job)

    def get_run_worker_debug_info(
        self, run: dg.DagsterRun, include_container_logs: bool | None = True
    ) -> str | None:
        """Return where the job's log is, and what Slurm knows of the job."""
        job = run.tags.get(JOB_TAG)
        if job is None:
            return None
        description = _slurm("scontrol", "show", "job", job).stdout.strip()
        return f"Log: {self._log_file(job)}\n{description}"


def _split_options(options: str) -> list[str]:
    """Return the options of a run's tag.

    Raises:
        ConfigError: A quote is left open.
    """
    try:
        return shlex.split(options)
    except ValueError as error:
        raise ConfigError(
            "not options of sbatch",
            where=f"the tag {OPTIONS_TAG}",
            found=f"{options!r}: {error}",
            remedy="close the quotation marks",
        ) from error


def _job_state(job: str) -> _JobState:
    """Ask Slurm for the state of a job."""
    answer = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
    name = answer.stdout.strip()
    message = answer.stderr.strip()
    if answer.returncode == 0 and name:
        return _JobState(name)
    # Some versions print nothing of a job that they have forgotten.
    if answer.returncode == 0 or _FORGOTTEN in message:
        message = _FORGOTTEN
    return _JobState(None, message)


def _slurm(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm; one that does not answer in time counts as failed.

    Args:
        command: The command and its arguments.
        text: Its standard input.

    Raises:
        ConfigError: This machine has no such command.
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
            "there is no Slurm here",
            where="run_launcher in dagster.yaml",
            found=f"no command {command[0]}",
            remedy="run Dagster on a machine from which jobs are submitted, or name another launcher",
        ) from error
    except subprocess.TimeoutExpired:
        message = f"{command[0]} did not answer within {_TIMEOUT_SECONDS} s"
        return subprocess.CompletedProcess(command, 1, "", message)
