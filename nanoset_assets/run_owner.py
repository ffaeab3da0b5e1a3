"""Record which process executes a run, and report runs of killed processes as failed.

If a process is killed, its runs would look active forever. Dagster notices this only while the code
server that launched the run is alive, and never for runs of `nanoset build`. So each run has a tag
such as `node7:4711:98765:<run id>`: the machine, the id of the process, and when it started.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from nanoset_assets.names import Names
from nanoset_assets.tags import OWNER_TAG, UNFINISHED

_START_FIELD = 19
"""Index of the field `starttime` in /proc/<pid>/stat, among the fields after the command."""


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The process that executes a run, as a tag of the run records it: `host:pid:start:run_id`."""

    host: str
    pid: int
    start: int
    """Start of the process in clock ticks since the machine was booted; 0 if unknown."""
    run_id: str
    """The run, or "" if the tag was made before the run was created."""

    @staticmethod
    def parse(value: str) -> RunOwner:
        """Read the value of a tag.

        Args:
            value: What `str` returned for a RunOwner, such as `node7:4711:98765:`.
        """
        host, pid, start, run_id = value.split(":")
        return RunOwner(host, int(pid), int(start), run_id)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}:{self.run_id}"

    def is_of(self, run: dg.DagsterRun) -> bool:
        """Return whether the tag was made for a run, and not copied from another one.

        A run that retries another one has the other run's tag until it starts.

        Args:
            run: The run that has the tag.
        """
        if self.run_id:
            return self.run_id == run.run_id
        # A tag without a run is of the first attempt, which retries no other run.
        return run.parent_run_id is None

    def is_gone(self) -> bool:
        """Return whether the process that has started a run certainly does not exist any more.

        Process ids are reused. So a process with the same id counts only if it started at the same
        time. About processes of other machines, nothing is known.
        """
        if self.host != socket.gethostname():
            return False  # unknown
        try:
            os.kill(self.pid, 0)  # sends no signal, but fails if there is no such process
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # the process exists, but belongs to another user
        # Process ids are reused: a process that started at another time is a different one. If the
        # system did not report the time, it is 0, and the process is assumed to exist.
        is_start_known = self.start != 0
        return is_start_known and self.start != _start_of(self.pid)


def is_run_process() -> bool:
    """Return whether this process executes a whole run.

    A process that executes one step of a run ends before the run does.
    """
    return multiprocessing.parent_process() is None and "execute_step" not in sys.argv


def owner_tag(names: Names, run_id: str = "") -> dict[str, str]:
    """Return the tag for a run that this process executes.

    Args:
        names: The names of the project, for the name of the tag.
        run_id: The id of the run, or "" if it is not created yet.

    Returns:
        Name of the tag → this machine, the id of this process, and when it started.
    """
    pid = os.getpid()
    owner = RunOwner(socket.gethostname(), pid, _start_of(pid), run_id)
    return {names.tag(OWNER_TAG): str(owner)}


def close_abandoned_runs(instance: dg.DagsterInstance, names: Names) -> list[str]:
    """Report runs as failed whose process was killed: Dagster would show them as running.

    Args:
        instance: The instance of Dagster, which records the runs.
        names: The names of the project in Dagster, for the tag that names the process of a run.

    Returns:
        The ids of these runs.
    """
    tag = names.tag(OWNER_TAG)
    closed: list[str] = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if tag not in run.tags:
            continue
        owner = RunOwner.parse(run.tags[tag])
        if owner.is_of(run) and owner.is_gone():
            instance.report_run_failed(run, "its process was killed; what it had finished is kept")
            closed.append(run.run_id)
    return closed


def _start_of(pid: int) -> int:
    """Return when a process of this machine started, in clock ticks since boot; 0 if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command, in parentheses, may contain spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    return int(fields[_START_FIELD])
