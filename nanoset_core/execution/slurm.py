"""Start a Dask scheduler in this process, with Slurm jobs as its workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, joined_lines
from nanoset_core.execution.dask import DaskClient
from nanoset_core.execution.dask_scheduler import end_unlogged, open_client, require_distributed
from nanoset_core.execution.interruption import (
    children_shielded,
    handlers_restored,
    signals_dropped,
)
from nanoset_core.execution.progress import Progress
from nanoset_core.execution.slurm_replacement import JobReplacer, SlurmClient
from nanoset_core.storage.atomic import claim_scratch
from nanoset_core.untrusted import shell_word

_CLOSE_SECONDS = 30.0
"""Time limit to cancel the jobs. If Slurm does not answer, their workers end by themselves."""
_MAX_MARGIN_SECONDS = 300
"""Time between the end of a worker and that of its job, at most.

Workers end before Slurm ends their job, so that others take over their tasks.
"""


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """Workers in jobs of the cluster manager Slurm, and a scheduler in this process.

    If a job ends before the build does, another one is submitted.
    """

    jobs: int
    """Number of jobs that run at the same time."""
    cpus: int
    """Processors of each job, and as many worker processes."""
    memory: str
    """Memory of each job, such as 2GB."""
    seconds: int
    """Time limit of each job."""
    folder: Path
    """Folder for logs, and for keys while the cluster runs. All nodes must see it."""
    partition: str | None = None
    """Partition of Slurm; None for the site's default."""
    account: str | None = None
    """Account that is charged; None for the site's default."""
    directives: tuple[str, ...] = ()
    """Further `#SBATCH` directives for the jobs."""
    wait_seconds: float = 86_400.0
    """How long to wait for jobs to start."""
    where: str = "executor"
    """The setting that asks for the jobs, for messages."""

    @property
    def software(self) -> str:
        """The program that the cluster consists of, for messages."""
        return "Dask"

    @property
    def name(self) -> str:
        """What was requested from Slurm, for messages."""
        return f"{self.jobs} Slurm jobs" if self.jobs > 1 else "a Slurm job"

    @property
    def start_workers(self) -> str:
        """How to find out why there are no workers, for messages."""
        return (
            "see by `squeue --me --start` what the jobs wait for, "
            f"and in {self.folder} the logs of those that ended"
        )

    def connect(self, stack: ExitStack, progress: Progress) -> DaskClient:
        """Submit jobs to the batch system Slurm, whose processes are the workers of a Dask cluster.

        Dask's scheduler, which hands out the tasks, runs in this process. The jobs may have to wait
        for free machines, but this function does not wait for them. Jobs that end too early are
        replaced.

        Args:
            stack: When it is closed, the connection ends, the jobs are cancelled, and the scheduler
                ends.
            progress: Not used; other kinds of clusters show here how long they wait.

        Raises:
            ConfigError: dask-jobqueue or Slurm is not installed, or Slurm refuses such a job.
        """
        require_distributed(self.where)
        self._check_machine()
        cluster = self._start_scheduler(stack)
        self._check_job(cluster.job_script())

        replacer = JobReplacer(cluster, self.jobs, self.folder, self.where)
        stack.callback(replacer.stop)
        replacer.start()  # submits the jobs
        client = SlurmClient(open_client(cluster), replacer)
        stack.callback(client.close)
        return client

    def _start_scheduler(self, stack: ExitStack) -> Any:
        """Start Dask's scheduler in a thread of this process, and return what can submit its jobs.

        The thread will start `sbatch` to submit them. Ctrl-C must not reach that process: if it
        ended before it reports its job, nobody could cancel the job.

        Args:
            stack: When it is closed, the jobs are cancelled, and the scheduler ends.

        Returns:
            A `SLURMCluster` of dask-jobqueue.

        Raises:
            ConfigError: dask-jobqueue is not installed.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_folder = stack.enter_context(claim_scratch(self.folder / "keys"))
        with children_shielded():
            cluster = self._cluster(key_folder)
        stack.callback(_close, cluster)
        return cluster

    def _check_machine(self) -> None:
        """Check that jobs can be submitted to Slurm from this machine, and from this folder.

        Raises:
            ConfigError: There is no command `sbatch`, or the path of the folder has spaces, for
                example.
        """
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "there is no Slurm on this machine",
                where=self.where,
                found="no command sbatch",
                remedy="build on a machine from which jobs are submitted, "
                "or set executor.kind to processes or dask",
            )
        if shell_word(self.folder) != str(self.folder):
            raise ConfigError(
                "dask-jobqueue cannot write this path into a job's script",
                where=self.where,
                found=repr(str(self.folder)),
                remedy="move the project to a path without spaces "
                "and characters that are special to a shell",
            )

    def _cluster(self, keys: Path) -> Any:
        """Start Dask's scheduler in this process, and return what can submit jobs to Slurm.

        That is an object of dask-jobqueue, which also writes the scripts of the jobs: cpus=8
        becomes a line `#SBATCH --cpus-per-task=8`.

        Args:
            keys: Folder for a certificate. Only workers that can read it can join the scheduler.

        Raises:
            ConfigError: dask-jobqueue is not installed.
        """
        dask_jobqueue = self._import_jobqueue()
        return dask_jobqueue.SLURMCluster(
            queue=self.partition,
            account=self.account,
            cores=self.cpus,
            processes=self.cpus,
            memory=self.memory,
            walltime=f"{self.seconds // 60}:{self.seconds % 60:02}",  # minutes:seconds
            job_name="nanoset",
            job_extra_directives=list(self.directives),
            log_directory=str(self.folder),
            python=shell_word(sys.executable),
            security=_new_security(keys),
            protocol="tls://",
            worker_extra_args=self._worker_arguments(),
            scheduler_options=_scheduler_options(),
        )

    def _worker_arguments(self) -> list[str]:
        """Return the arguments of the command that starts a worker in a job.

        The first ones are those that the administrators of the machine have set for all users of
        dask-jobqueue. `--lifetime` lets a worker end itself before Slurm would kill its job.
        """
        site_arguments = _site_option("worker-extra-args") or []
        return [*site_arguments, "--no-dashboard", "--lifetime", f"{self._worker_seconds}s"]

    def _import_jobqueue(self) -> Any:
        """Import the package dask-jobqueue, which starts workers as jobs of Slurm, and return it.

        It is imported only here, since it is optional. If it is missing, the error names the extra
        that installs it: pip install 'nanoset-platform[slurm]'.

        Raises:
            ConfigError: The package is not installed.
        """
        try:
            # When it is imported, the package sets a handler of Ctrl-C that exits with code 0.
            with handlers_restored():
                import dask_jobqueue
        except ImportError as error:
            raise ConfigError(
                "the package `dask-jobqueue` is not installed",
                where=self.where,
                found=str(error),
                remedy="pip install 'nanoset-platform[slurm]'",
            ) from error
        return dask_jobqueue

    @property
    def _worker_seconds(self) -> int:
        """How long the worker of a job runs, so that it ends before Slurm ends the job."""
        # A short job does not lose more than a tenth of its time.
        margin_seconds = min(_MAX_MARGIN_SECONDS, self.seconds // 10)
        return self.seconds - margin_seconds

    def _check_job(self, script: str) -> None:
        """Ask Slurm whether it would accept such a job, without submitting it.

        Slurm refuses, for example, a job with more memory than any machine has. Without this check,
        dask-jobqueue would only log that, and the user would wait for workers for hours.

        Args:
            script: The script of the job, with its `#SBATCH` lines.

        Raises:
            ConfigError: Slurm would refuse the job.
        """
        answer = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        if answer.returncode != 0:
            raise ConfigError(
                "Slurm refuses the jobs",
                where=self.where,
                found=joined_lines(answer.stderr),
                remedy="correct partition, account, time, cpus, memory or directives; "
                "`sinfo` lists what the site has",
            )


def _new_security(folder: Path) -> Any:
    """Make a TLS certificate, so that nobody else can join a Dask cluster or send tasks to it.

    It is written to three files, which only this user can read. All processes of the cluster share
    them.

    Args:
        folder: The folder of the files. The machines of the cluster must see it.

    Returns:
        Dask's settings (`distributed.Security`) that use these files.
    """
    from distributed import Security as untyped_security

    security: Any = untyped_security
    # The certificate, as three texts. That these are the settings of a worker does not matter.
    texts = security.temporary().get_tls_config_for_role("worker")
    authority = _write_private(folder / "ca_file", texts["ca_file"])
    certificate = _write_private(folder / "cert", texts["cert"])
    key = _write_private(folder / "key", texts["key"])

    options = {"tls_ca_file": authority}
    for role in ("scheduler", "worker", "client"):
        options[f"tls_{role}_cert"] = certificate
        options[f"tls_{role}_key"] = key
    return security(require_encryption=True, **options)


def _write_private(path: Path, text: str) -> str:
    """Write a text to a new file that only this user can read, and return its path.

    Args:
        path: The path.
        text: The text.
    """
    open_private = partial(os.open, mode=0o600)
    with open(path, "x", encoding="utf-8", opener=open_private) as file:
        file.write(text)
    return str(path)


def _scheduler_options() -> dict[str, Any]:
    """Return the options of Dask's scheduler: its dashboard can only be seen on this machine.

    Options that the administrators have set for all users of dask-jobqueue take precedence.
    """
    site_options = _site_option("scheduler-options") or {}
    return {"dashboard_address": "127.0.0.1:0", **site_options}


def _close(cluster: Any) -> None:
    """Cancel the jobs of a cluster, even if the user presses Ctrl-C again meanwhile.

    If this takes too long, the workers end by themselves soon after the scheduler.

    Args:
        cluster: The `SLURMCluster`.
    """
    with signals_dropped(), end_unlogged(), suppress(TimeoutError):
        cluster.close(timeout=_CLOSE_SECONDS)


def _site_option(name: str) -> Any:
    """Return an option that the administrators have set for all Dask clusters on Slurm, or None.

    Args:
        name: Name of the option, such as "worker-extra-args", in Dask's section `jobqueue.slurm`.
    """
    import dask as untyped_dask

    dask_config: Any = untyped_dask.config
    return dask_config.get(f"jobqueue.slurm.{name}", None)
