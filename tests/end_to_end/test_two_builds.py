"""Two builds at once make each output once; one that has to wait says for whom, and how to end
that.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys

import pytest

from helpers.sample_project import outputs_of
from nanoset_assets.instance import HistoryError, history_faults
from nanoset_core.storage.owners import Owner

BUILD = [sys.executable, "-m", "nanoset_core.cli", "build", "--config"]
HELD = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def stopped_holder_of():
    """Start a process that locks a file and is then suspended; it is killed after the test."""
    holders = []

    def hold(lock) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen([sys.executable, "-c", HELD, str(lock)])
        holders.append(holder)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        return holder

    yield hold
    for holder in holders:
        holder.kill()
        holder.wait()


def start(config) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*BUILD, str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def made(process) -> tuple[int, str]:
    """How many outputs a build made, and what it printed."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    count = re.search(r"^Made (\d+) of (\d+) outputs", out, re.MULTILINE)
    return (int(count[1]) if count else 0), err


def test_two_builds_at_once_make_each_output_once(make_project):
    config = make_project()
    alone = make_project("alone")
    builds = [start(config), start(config)]
    (first, first_said), (second, second_said) = (made(build) for build in builds)
    total, _ = made(start(alone))
    assert first + second == total
    said = first_said + second_said
    assert re.search(
        r"waits for process \d+ on \S+, since \S+ \S+, which makes \w+; `kill \d+` ends it", said
    )
    assert "another build made it meanwhile" in said
    assert outputs_of(config) == outputs_of(alone)


def test_a_build_that_waits_for_a_stopped_one_says_how_to_continue_and_end_it(
    make_project, stopped_holder_of
):
    config = make_project()
    (config.parent / ".dagster").mkdir()
    lock = config.parent / ".dagster" / ".lock"
    holder = stopped_holder_of(lock)

    with start(config) as build:
        printed = []
        # The loop also ends if the build does: its last line is then empty or an error.
        for line in build.stderr:
            printed.append(line)
            if "waits for" in line:
                break
        holder.send_signal(signal.SIGCONT)
        holder.wait()
        n_made, _ = made(build)

    notice = "".join(printed)
    assert f"waits for process {holder.pid} on " in notice
    assert f"`kill -CONT {holder.pid}` continues it, `kill -KILL {holder.pid}` ends it" in notice
    assert str(lock) in notice
    assert n_made > 0


@pytest.mark.parametrize(
    ("owner", "remedy"),
    [
        (Owner("far", 12, 0.0), "`kill 12` on far ends it"),
        (Owner("far"), "end it on far if it hangs"),
        (Owner("here", 12, is_here=True), "`kill 12` ends it"),
    ],
    ids=["another machine", "unknown process", "this machine"],
)
def test_how_a_process_is_ended_depends_on_where_it_runs(owner, remedy):
    assert owner.remedy() == remedy


HELD_DATABASE = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(600)
"""


def test_a_history_that_another_process_keeps_locked_names_that_process(tmp_path):
    database = tmp_path / "storage" / "runs.db"
    database.parent.mkdir()
    command = [sys.executable, "-c", HELD_DATABASE, str(database)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder,
        contextlib.closing(sqlite3.connect(database, timeout=0)) as connection,
    ):
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(HistoryError) as caught, history_faults(tmp_path):
            connection.execute("INSERT INTO t VALUES (1)")
        holder.kill()
    assert f"process {holder.pid} on " in caught.value.found
    assert f"`kill {holder.pid}` ends it" in caught.value.remedy
