"""Record which process executes a run, and report runs of killed processes as failed.

If a process is killed, its runs would look active forever. Dagster notices this only while the code
server that launched the run is alive, and never for runs of `nanoset build`. So each run has a tag
such as `9b1de03a55c2:4711:98765:<run id>`: the machine or container, the id of the process, and
when it started.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass

import dagster as dg

from nanoset_assets.names import Names
from nanoset_assets.tags import OWNER_TAG, UNFINISHED
from nanoset_core.storage.in_use.owners import process_stat
from nanoset_core.storage.in_use.process_marks import is_process_alive, place_of_process_ids


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The process that executes a run, as a tag of the run records it: `place:pid:start:run_id`."""

    place: str
    """The machine or container that has the process. (Versions up to 0.2.0 store the host name.)"""
    pid: int
    start: str
    """Start of the process in clock ticks since the machine was booted; "" if unknown."""
    run_id: str
    """The run, or "" if the tag was made before the run was created."""

    @staticmethod
    def parse(value: str) -> RunOwner:
        """Read the tag of a run that says which process executes it.

        Args:
            value: The value of the tag, such as "9b1de03a55c2:4711:98765:1a2b…": machine, id of the
                process, when it was started, and id of the run, which may be empty.
        """
        place, pid, start, run_id = value.split(":")
        return RunOwner(place, int(pid), start, run_id)

    def __str__(self) -> str:
        return f"{self.place}:{self.pid}:{self.start}:{self.run_id}"

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
        if self.place != place_of_process_ids():
            return False  # unknown
        return is_process_alive(self.pid, self.start) is False


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
        Such as `{".dagster/nanoset_process": "9b1de03a55c2:4711:98765:1a2b…"}`: machine, process,
        the time at which it started, and run.
    """
    pid = os.getpid()
    process = process_stat(pid)
    start = "" if process is None else process.start_ticks
    owner = RunOwner(place_of_process_ids(), pid, start, run_id)
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
