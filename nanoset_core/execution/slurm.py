"""A Dask cluster whose workers are Slurm jobs: started by a build, and gone with it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.dask_connection import Client, check_installed, open_client
from nanoset_core.execution.interruption import handlers_kept
from nanoset_core.execution.progress import ProgressCallback

_MARGIN_SECONDS = 300
"""At most so long before Slurm would end a job, its workers end by themselves, and others take their tasks."""


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """Jobs that Slurm is asked for, and asked for again where one ends before the build."""

    jobs: int
    """How many at a time."""
    cpus: int
    """Of each job; as many worker processes."""
    memory: str
    """Of each job, such as 2GB."""
    seconds: int
    """Time limit of each job."""
    folder: Path
    """On a file system that the nodes see: logs, and keys while the cluster runs."""
    partition: str | None = None
    """None for the site's default."""
    account: str | None = None
    """The same."""
    directives: tuple[str, ...] = ()
    """What else `#SBATCH` says."""
    wait_seconds: float = 86_400.0
    """How long a queue may take."""
    where: str = "executor"
    """What names it, for messages."""

    @property
    def name(self) -> str:
        """What was asked for."""
        return f"{self.jobs} Slurm jobs" if self.jobs > 1 else "a Slurm job"

    @property
    def start_workers(self) -> str:
        """Where Slurm says why there are no workers."""
        return f"see by `squeue --me --start` what the jobs wait for, and in {self.folder} what those said that ended"

    def connect(self, stack: ExitStack, listener: ProgressCallback, wait_seconds: float) -> Client:
        """Start a scheduler in this process, and submit the jobs, which are cancelled when the stack is closed.

        Raises:
            ConfigError: dask-jobqueue or Slurm is not installed, or Slurm refuses such a job.
        """
        check_installed(self.where)
        if shutil.which("sbatch") is None:
            remedy = "build on a machine from which jobs are submitted, or set executor.kind to processes or dask"
            raise ConfigError("there is no Slurm here", where=self.where, found="no command sbatch", remedy=remedy)
        if shlex.quote(str(self.folder)) != str(self.folder):
            what, found = "dask-jobqueue cannot write this path into a job's script", repr(str(self.folder))
            remedy = "move the project to a path without spaces and characters that are special to a shell"
            raise ConfigError(what, where=self.where, found=found, remedy=remedy)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cluster = self._cluster()
        stack.callback(cluster.close)
        self._check_job(cluster.job_script())
        cluster.adapt(minimum_jobs=self.jobs, maximum_jobs=self.jobs)  # `scale` would not replace a job that ended
        client = open_client(cluster)
        stack.enter_context(client)
        return client

    def _cluster(self) -> Any:
        """Return the cluster; to join it takes a new TLS certificate, in temporary files of `folder`."""
        try:
            with handlers_kept():  # the package sets a handler of SIGINT that exits with 0
                import dask_jobqueue as untyped_jobs
        except ImportError as error:
            what, remedy = "the package `dask-jobqueue` is not installed", "pip install 'nanoset-platform[slurm]'"
            raise ConfigError(what, where=self.where, found=str(error), remedy=remedy) from error
        import dask as untyped

        config: Any = untyped.config
        dask_jobqueue: Any = untyped_jobs
        lifetime = self.seconds - min(_MARGIN_SECONDS, self.seconds // 10)
        more = config.get("jobqueue.slurm.worker-extra-args", None) or []
        options = config.get("jobqueue.slurm.scheduler-options", None) or {}
        minutes, hours, days = self.seconds // 60 % 60, self.seconds // 3600 % 24, self.seconds // 86_400
        return dask_jobqueue.SLURMCluster(
            queue=self.partition,
            account=self.account,
            cores=self.cpus,
            processes=self.cpus,
            memory=self.memory,
            walltime=f"{days}-{hours:02}:{minutes:02}:{self.seconds % 60:02}",
            job_name="nanoset",
            job_extra_directives=list(self.directives),
            log_directory=str(self.folder),
            python=shlex.quote(sys.executable),
            security=True,
            shared_temp_directory=str(self.folder),
            protocol="tls://",
            worker_extra_args=[*more, "--no-dashboard", "--lifetime", f"{lifetime}s"],
            scheduler_options={"dashboard_address": None, **options},
        )

    def _check_job(self, script: str) -> None:
        """Ask Slurm whether it would take such a job; a cluster that adapts only logs that it does not."""
        command = ["sbatch", "--test-only"]
        asked = subprocess.run(command, input=script, capture_output=True, encoding="utf-8", errors="replace")
        if asked.returncode != 0:
            remedy = "correct partition, account, time, cpus, memory or directives; `sinfo` lists what there is"
            found = asked.stderr.strip()
            raise ConfigError("Slurm refuses the jobs", where=self.where, found=found, remedy=remedy)
