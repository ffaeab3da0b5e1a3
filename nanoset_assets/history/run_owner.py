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
        """Read the tag of a run that says which process executes it.

        Args:
            value: The value of the tag, such as "node7:4711:98765:1a2b…": machine, id of the
                process, when it was started, and id of the run, which may be empty.
        """
        host, pid, start, run_id = value.split(":")
        return RunOwner(host, int(pid), int(start), run_id)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}:{self.run_id}"

    def is_of(self, run: dg.DagsterRun) -> bool:
        """Return whether this tag of a run was made for it, or was copied from an earlier run.

        If Dagster tries a failed run again, it creates a new run, and copies all tags of the failed
        one to it. So the new run has a tag with the process of the failed one, until its own
        process replaces the tag.

        Args:
            run: The run that has the tag.
        """
        if self.run_id:
            return self.run_id == run.run_id
        # The command `nanoset build` makes the tag before it creates the run, so the tag has no id.
        # A new run for a failed one has this as its parent, so its tag is a copy.
        is_new_attempt = run.parent_run_id is not None
        return not is_new_attempt

    def is_gone(self) -> bool:
        """Return whether the process that executes a run has ended. If that is not certain: False.

        A process has ended if no process has its id, or if the id belongs to another process by
        now:

            tag of the run            now on its machine              result
            4711, started at 98765    no process 4711                 True
            4711, started at 98765    4711, started at 98765          False
            4711, started at 98765    4711, started at 120000         True: another process
            4711, started at 98765    unknown: not this machine       False
        """
        if self.host != socket.gethostname():
            return False  # unknown
        try:
            os.kill(self.pid, 0)  # sends no signal, but fails if there is no such process
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # the process exists, but belongs to another user
        # There is a process with this id. Is it the same one? If it is not known when that was
        # started, suppose so.
        is_start_known = self.start != 0
        return is_start_known and self.start != _start_of(self.pid)


def is_run_process() -> bool:
    """Return whether this process executes a whole run of Dagster, and not only one step of it.

    Dagster may start a child process for each step of a run. A child ends before the run does, so
    nobody may conclude from its end that the run has ended. Children are recognised by Python's
    `multiprocessing`, or by the command `dagster api execute_step`.
    """
    return multiprocessing.parent_process() is None and "execute_step" not in sys.argv


def owner_tag(names: Names, run_id: str = "") -> dict[str, str]:
    """Return a tag for a run of Dagster that says which process executes it: this one.

    If the process is killed, Dagster would show the run as active forever. By the tag, a later
    process can find out that this one has ended.

    Args:
        names: Knows the names of the project in Dagster, also that of the tag.
        run_id: The id of the run; "" if the run does not exist yet.

    Returns:
        Such as `{".dagster/nanoset_process": "node7:4711:98765:1a2b…"}`: machine, process, the time
        at which it started, and run.
    """
    pid = os.getpid()
    owner = RunOwner(socket.gethostname(), pid, _start_of(pid), run_id)
    return {names.tag(OWNER_TAG): str(owner)}


def close_abandoned_runs(instance: dg.DagsterInstance, names: Names) -> list[str]:
    """Report runs of Dagster as failed whose process was killed, for example for lack of memory.

    Otherwise Dagster would show them as active forever, and their outputs would never be built,
    since everything waits for the end of active runs. Each run has a tag with the process that
    executes it, by which it is examined whether the process still exists.

    Args:
        instance: Dagster's instance, with all runs.
        names: Knows the names of the project in Dagster, also that of the tag.

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
    """Return when a process of this machine was started; 0 if that is not known.

    Linux has a file for each process, such as /proc/4711/stat:

        4711 (my command) S 1 4711 … 98765 …

    The times in it are counted in units of usually 0.01 s since the machine was started.

    Args:
        pid: The id of the process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # Split what follows the command: the command itself may contain spaces and parentheses.
    fields = stat.rpartition(")")[2].split()  # ["S", "1", "4711", …]
    return int(fields[_START_FIELD])
