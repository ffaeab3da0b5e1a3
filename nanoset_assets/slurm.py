"""Dagster's runs as Slurm jobs: for a Dagster that lives on one machine of a cluster whose nodes do the work."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
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
_SECONDS = 60
"""That a command of Slurm's may take."""
_ALIVE = {
    *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    *("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
}
"""States of a job that waits or is under way."""
_FORGOTTEN = "Invalid job id"
_SCRIPT = "#!/bin/sh\nexec {command}\n"


class SlurmRunLauncher(RunLauncher, ConfigurableClass):
    """Submits each run by sbatch, with the environment of the launching process; reports the job's state to Dagster.

    What the job runs, it finds under the same paths: Python, nanoset.yaml, and the folders that it names. The history
    has to be one for several machines.
    """

    def __init__(
        self, log_folder: str, options: Sequence[str] = (), inst_data: ConfigurableClassData | None = None
    ) -> None:
        """Args:
        log_folder: Where jobs write their logs; seen by the nodes.
        options: of sbatch, such as `--partition=cpu`.
        inst_data: as Dagster gives it.
        """
        self._folder, self._options, self._inst_data = Path(log_folder).absolute(), tuple(options), inst_data
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        return {
            "log_folder": dg.Field(dg.StringSource, description="Where jobs write their logs."),
            "options": dg.Field([dg.StringSource], default_value=[], description="Options of sbatch for every run."),
        }

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Submit a run.

        Raises:
            ConfigError: there is no Slurm here, or it refuses the job.
        """
        run, origin = context.dagster_run, context.job_code_origin
        if origin is None:
            raise ConfigError("the run does not say which code it is of", where=run.run_id)
        args = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True)
        own = ["--job-name", f"nanoset-{run.job_name}", "--output", str(self._folder / "slurm-%j.log")]
        # A run that Dagster knows to have begun cannot begin again: it is tried again as another run.
        own += ["--no-requeue", "--export=ALL", "--signal=B:TERM@120", "--open-mode=append"]
        given = [*self._options, *_words(run.tags.get(OPTIONS_TAG, ""))]
        self._folder.mkdir(parents=True, exist_ok=True)
        script = _SCRIPT.format(command=shlex.join(args.get_command_args()))
        asked = _slurm("sbatch", "--parsable", *own, *given, text=script)
        if asked.returncode != 0:
            where, found = f"run_launcher in dagster.yaml: sbatch {shlex.join(given)}", joined_lines(asked.stderr)
            remedy = f"correct the options there, or the tag {OPTIONS_TAG} of the run"
            raise ConfigError("Slurm refuses the run", where=where, found=found, remedy=remedy)
        job = asked.stdout.strip().partition(";")[0]
        self._instance.add_run_tags(run.run_id, {JOB_TAG: job})
        log = self._folder / f"slurm-{job}.log"
        self._instance.report_engine_event(f"Submitted as Slurm job {job}; it writes to {log}", run, cls=type(self))

    def terminate(self, run_id: str) -> bool:
        """Cancel a run's job, by force at the second request; return whether there was anything to cancel."""
        run = self._instance.get_run_by_id(run_id)
        job = None if run is None else run.tags.get(JOB_TAG)
        if run is None or run.is_finished or job is None:
            return False
        self._instance.report_run_canceling(run)
        _slurm("scancel", "--state=PENDING", job)
        state, said = _state(job)
        if state not in _ALIVE and (state is not None or said == _FORGOTTEN):
            run = self._instance.get_run_by_id(run_id) or run
            if not run.is_finished:  # its job ended before the run began
                self._instance.report_run_canceled(run)
            return True
        # To the run's process alone: it ends what it has started.
        gently = () if run.status == dg.DagsterRunStatus.CANCELING else ("--batch", "--signal=TERM")
        asked = _slurm("scancel", *gently, job)
        if asked.returncode != 0:
            message = f"Slurm does not cancel job {job}: {asked.stderr.strip()}"
            self._instance.report_engine_event(message, run, cls=type(self))
        return asked.returncode == 0

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return the state of a run's job; where Slurm does not answer, the job counts as under way."""
        job = run.tags.get(JOB_TAG)
        if job is None:
            return CheckRunHealthResult(WorkerStatus.UNKNOWN, f"the run has no tag {JOB_TAG}")
        state, said = _state(job)
        if state is None:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND if said == _FORGOTTEN else WorkerStatus.RUNNING, said)
        ended = WorkerStatus.SUCCESS if state == "COMPLETED" else WorkerStatus.FAILED
        status = WorkerStatus.RUNNING if state in _ALIVE else ended
        return CheckRunHealthResult(status, f"Slurm job {job} is {state}", run_worker_id=job)

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str | None:
        """Return where the job's log lies, and what Slurm knows of the job."""
        job = run.tags.get(JOB_TAG)
        if job is None:
            return None
        return f"Log: {self._folder / f'slurm-{job}.log'}\n{_slurm('scontrol', 'show', 'job', job).stdout.strip()}"


def _words(options: str) -> list[str]:
    """Return the options of a run's tag; ConfigError if a quote is left open."""
    try:
        return shlex.split(options)
    except ValueError as error:
        remedy = "close the quotation marks"
        raise ConfigError(
            "not options of sbatch", where=f"the tag {OPTIONS_TAG}", found=f"{options!r}: {error}", remedy=remedy
        ) from error


def _state(job: str) -> tuple[str | None, str]:
    """Return (state of a job, such as RUNNING, or None where it is unknown; what Slurm said)."""
    asked = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
    state, said = asked.stdout.strip(), asked.stderr.strip()
    if asked.returncode == 0 and state:
        return state, ""
    # Some versions print nothing of a job that they have forgotten.
    return None, _FORGOTTEN if asked.returncode == 0 or _FORGOTTEN in said else said


def _slurm(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, check=False, encoding="utf-8", errors="replace", timeout=_SECONDS
        )
    except FileNotFoundError as error:
        where, found = "run_launcher in dagster.yaml", f"no command {command[0]}"
        remedy = "run Dagster on a machine from which jobs are submitted, or name another launcher"
        raise ConfigError("there is no Slurm here", where=where, found=found, remedy=remedy) from error
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer within {_SECONDS} s")
