"""Replace Slurm jobs that have ended while a build still needs their workers.

Dask only notices the end of a job whose worker was connected, and only if the job had one worker.
It waits for all others for ever: jobs that died before their worker could connect, since a node
lacks the file system with Python, for example, or that somebody has cancelled in the queue.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError, joined_lines
from nanoset_core.execution.dask import DaskClient
from nanoset_core.execution.interruption import children_shielded
from nanoset_core.untrusted import safe_logger

_CHECK_SECONDS = 20.0
"""Time between two looks at Slurm's queue."""
_SQUEUE_SECONDS = 60.0
"""Time limit of `squeue`, which may take long if Slurm's controller is restarted."""
_MAX_FAILURES_PER_JOB = 3
"""How many jobs may end without a worker, for each that is wanted, before the build gives up."""

logger = safe_logger(__name__)


class JobReplacer:
    """Submits another job whenever a job of a cluster has ended, until it is stopped.

    It works in a thread, which asks Slurm from time to time which jobs are in its queue.
    """

    def __init__(self, cluster: Any, n_jobs: int, folder: Path, where: str) -> None:
        """Prepare to look at the jobs of a cluster.

        Args:
            cluster: The `SLURMCluster` of dask-jobqueue.
            n_jobs: How many jobs it has at any time.
            folder: Folder with the logs of the jobs.
            where: The setting that asks for the jobs, for messages.
        """
        self._cluster = cluster
        self._n_jobs = n_jobs
        self._folder = folder
        self._where = where
        self._stopped = threading.Event()
        self._jobs_with_workers: set[str] = set()
        """Numbers of the jobs whose workers were connected."""
        self._n_failures = 0
        """Jobs that ended before their workers could connect, since a worker was last seen."""
        self.failure: MissingError | None = None
        """Why no more jobs are submitted; None while they are."""

    def start(self) -> None:
        """Submit the first jobs, and look at them from now on."""
        self._cluster.scale(jobs=self._n_jobs)
        # Ctrl-C must not reach the commands that the thread starts.
        with children_shielded():
            threading.Thread(target=self._watch, name="slurm jobs", daemon=True).start()

    def stop(self) -> None:
        """Submit no more jobs."""
        self._stopped.set()

    def _watch(self) -> None:
        """Replace the jobs that have ended, again and again."""
        while self.failure is None and not self._stopped.wait(_CHECK_SECONDS):
            # Jobs that are submitted later are not among these.
            job_by_name = dict(self._cluster.workers)
            queued_ids = _queued_job_ids()
            if queued_ids is None:  # Slurm does not answer
                continue
            try:
                self._cluster.sync(self._replace_ended_jobs, job_by_name, queued_ids)
            except (OSError, RuntimeError, ValueError) as error:  # `sbatch` has failed
                # The next look tries again, unless the build has ended meanwhile.
                if not self._stopped.is_set():
                    logger.warning("cannot replace a Slurm job: %s", joined_lines(error))

    async def _replace_ended_jobs(
        self, job_by_name: Mapping[str, Any], queued_ids: frozenset[str]
    ) -> None:
        """Submit another job for each that is neither in the queue nor has a worker.

        Dask calls this in the thread of its scheduler.

        Args:
            job_by_name: Jobs of the cluster by the names of their workers.
            queued_ids: Numbers of the jobs that were in the queue after these were submitted.
        """
        if self._stopped.is_set():
            return
        worker_names = {str(worker.name) for worker in self._cluster.scheduler.workers.values()}
        if worker_names:
            self._n_failures = 0

        for name, job in job_by_name.items():
            if _has_worker(name, worker_names):
                self._jobs_with_workers.add(job.job_id)
            elif job.job_id not in queued_ids:
                self._remove_ended_job(name, job)

        # This submits a job for each name that has none now.
        if self.failure is None:
            await self._cluster

    def _remove_ended_job(self, name: str, job: Any) -> None:
        """Remove a job that has ended from the cluster, unless another one has its name already.

        Args:
            name: Name of its worker, such as "SLURMCluster-0".
            job: The job, an object of dask-jobqueue.
        """
        if self._cluster.workers.get(name) is job:
            self._note_ended_job(job.job_id)
            del self._cluster.workers[name]

    def _note_ended_job(self, job_id: str | None) -> None:
        """Warn of a job that ended before its worker could connect; after several, give up.

        Args:
            job_id: Number of the job that has ended; None if it could not be submitted.
        """
        if job_id is None or job_id in self._jobs_with_workers:
            return
        self._n_failures += 1
        reason = f"job {job_id}: {self._last_log_line(job_id)}"
        if self._n_failures < _MAX_FAILURES_PER_JOB * self._n_jobs:
            logger.warning(
                "a Slurm job has ended before its worker could connect, and another takes its "
                "place; %s; logs: %s",
                reason,
                self._folder,
            )
            return
        self.failure = MissingError(
            "the Slurm jobs end before their workers can connect",
            where=self._where,
            found=f"{self._n_failures} such jobs; {reason}",
            remedy=f"remove the cause (the logs of the jobs are in {self._folder}), and run again",
        )

    def _last_log_line(self, job_id: str) -> str:
        """Return the last line that a job has written, or what is known if there is none.

        Args:
            job_id: Number of the job.
        """
        for suffix in (".err", ".out"):
            for path in sorted(self._folder.glob(f"nanoset-{job_id}*{suffix}")):
                lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
                written_lines = [line.strip() for line in lines if line.strip()]
                if written_lines:
                    return written_lines[-1]
        return "it has no log; perhaps it was cancelled in the queue"


class SlurmClient(DaskClient):
    """A connection of this process to a Dask scheduler whose workers are Slurm jobs."""

    def __init__(self, client: Any, replacer: JobReplacer) -> None:
        """Use a client of Dask.

        Args:
            client: `distributed.Client`, which is connected.
            replacer: Replaces the jobs that end.
        """
        super().__init__(client)
        self._replacer = replacer

    def n_workers(self) -> int:
        """Return how many workers the scheduler knows.

        Raises:
            MissingError: There are none, and no more jobs are submitted.
        """
        n_workers = super().n_workers()
        if n_workers == 0 and self._replacer.failure is not None:
            raise self._replacer.failure
        return n_workers


def _has_worker(job_name: str, worker_names: Collection[str]) -> bool:
    """Return whether a worker of a job is connected.

    Args:
        job_name: Name of the job, such as "SLURMCluster-0". It is also the name of its worker. If a
            job has several, they are called "SLURMCluster-0-0", "SLURMCluster-0-1" and so on.
        worker_names: The names of all workers that are connected.
    """
    prefix = f"{job_name}-"
    return any(worker == job_name or worker.startswith(prefix) for worker in worker_names)


def _queued_job_ids() -> frozenset[str] | None:
    """Return the numbers of this user's jobs that wait or run; None if Slurm does not answer."""
    try:
        answer = subprocess.run(
            ["squeue", "--me", "--noheader", "--format=%A"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SQUEUE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return frozenset(answer.stdout.split())
