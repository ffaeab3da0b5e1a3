"""The logs of Slurm jobs that a build has submitted, which `nanoset gc` removes when they are old.

Each job writes two small files, `nanoset-<number>.out` and `.err`, and builds do not delete them:
they say why a job has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nanoset_core.project.gc.garbage import Garbage, GarbageCollection, LeftAlone, Policy
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.removing.freed_space import FileSizes

OUTPUT = "logs of Slurm jobs"
"""What the logs belong to, in the table of `nanoset gc`."""
_PATTERNS = ("nanoset-*.out", "nanoset-*.err")
"""Names of the files. dask-jobqueue forms them from the name of the jobs."""


def find_old_logs(folder: Path, policy: Policy) -> list[Garbage]:
    """Return the logs of Slurm jobs that have ended, if they are older than the age limit.

    Args:
        folder: The folder of the logs, which may be missing.
        policy: Has the age limit. The age of a log counts from when it was last written to.
    """
    # List the logs before the clusters, so that no log is of a cluster that starts in between.
    paths = _log_paths(folder)
    oldest_cluster_ns = _start_of_oldest_cluster(folder)

    logs: list[Garbage] = []
    for path in paths:
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # another `nanoset gc` has just deleted it
        may_be_running = _may_be_running(status.st_mtime_ns, oldest_cluster_ns)
        if may_be_running or policy.is_recent(status.st_mtime_ns):
            continue
        sizes = FileSizes(status.st_size)
        logs.append(Garbage(path=path, output=OUTPUT, leased_name="", kind="log", sizes=sizes))
    return logs


def _may_be_running(log_written_ns: int, oldest_cluster_ns: int | None) -> bool:
    """Return whether the job that has written a log may still be running.

    A job writes to its log when it starts, which is after its cluster has started. So the job has
    ended if the log is older than all clusters.

    Args:
        log_written_ns: When the log was last written to, in ns since 1970.
        oldest_cluster_ns: Since when the oldest cluster has been running; None if there is none.
    """
    return oldest_cluster_ns is not None and log_written_ns >= oldest_cluster_ns


def remove_logs(logs: Iterable[Garbage]) -> GarbageCollection:
    """Delete logs of Slurm jobs.

    Args:
        logs: The logs. It is no problem if one does not exist any more.

    Returns:
        As `garbage`, what was deleted; as `left_alone`, what could not be deleted.
    """
    removed: list[Garbage] = []
    unremovable: list[LeftAlone] = []
    for log in logs:
        try:
            log.path.unlink(missing_ok=True)
        except OSError as error:
            why = f"it cannot be removed: {error.strerror}"
            unremovable.append(LeftAlone(log.path, why, refused=True))
            continue
        removed.append(log)
    return GarbageCollection(garbage=tuple(removed), left_alone=tuple(unremovable))


def _log_paths(folder: Path) -> list[Path]:
    """Return the paths of all logs of jobs, sorted.

    Args:
        folder: The folder of the logs, which may be missing.
    """
    paths: list[Path] = []
    for pattern in _PATTERNS:
        for path in folder.glob(pattern):
            if path.is_file() and not path.is_symlink():
                paths.append(path)
    return sorted(paths)


def _start_of_oldest_cluster(folder: Path) -> int | None:
    """Return when the oldest cluster that may still be running was started, or None.

    While a build uses Slurm jobs, the folder contains a temporary folder with the keys of their
    cluster. A build that was killed leaves it, until a later sweep removes it.

    Args:
        folder: The folder of the logs, which may be missing.

    Returns:
        Nanoseconds since 1970, by the same clock as the times of the logs.
    """
    times_ns: list[int] = []
    for key_folder in folder.glob(f"{UNFINISHED}keys-*"):
        try:
            times_ns.append(key_folder.lstat().st_mtime_ns)
        except FileNotFoundError:
            continue  # the cluster has just ended
    return min(times_ns, default=None)
