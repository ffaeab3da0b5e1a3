"""Two builds at once make each output once.

A build that waits for another process says for which one, and how to end it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.build_processes import finish_build, start_build
from helpers.sample_project import FEWER, outputs_of, write_project
from nanoset_assets.history.instance import HistoryError, history_faults
from nanoset_core.storage.in_use.owners import Owner

LOCK_FILE = """
import fcntl, os, signal, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGSTOP)
"""
"""A program that locks a file, and is then suspended."""


@pytest.fixture
def stopped_holder_of():
    """A function that starts a process which locks a file and is suspended until the test ends."""
    holders = []

    def hold(lock) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen([sys.executable, "-c", LOCK_FILE, str(lock)])
        holders.append(holder)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        return holder

    yield hold
    for holder in holders:
        holder.kill()
        holder.wait()


@pytest.fixture(scope="module")
def make_small_project(tmp_path_factory, tokenizer_file):
    """A function that writes a project with few outputs of every kind; returns its nanoset.yaml."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("two-builds") / "project"
        return write_project(folder, tokenizer_file, FEWER)

    return make


@pytest.fixture(scope="module")
def two_builds(make_small_project):
    """A project, and the results of two builds that ran at the same time."""
    config = make_small_project()
    builds = [start_build(config), start_build(config)]
    results = [finish_build(build) for build in builds]
    return config, results


def test_two_builds_at_once_make_each_output_once(two_builds, make_small_project):
    config, results = two_builds
    config_alone = make_small_project()

    result_alone = finish_build(start_build(config_alone))

    assert results[0].n_made + results[1].n_made == result_alone.n_made
    assert outputs_of(config) == outputs_of(config_alone)


def test_of_two_builds_at_once_one_says_for_which_process_it_waits(two_builds):
    _, results = two_builds
    printed = results[0].printed + results[1].printed

    assert re.search(
        r"waits for process \d+ on \S+, since \S+ \S+, which works on \w+; `kill \d+` ends it",
        printed,
    )
    assert "another build made it meanwhile" in printed


def test_a_build_of_a_copy_that_waits_for_the_build_of_the_original_says_what_to_delete(
    make_small_project,
):
    config = make_small_project()
    lease = config.parent / "data" / ".in-use" / "lease-0123456789ab-4711.890-a1b2c3"
    lease.parent.mkdir(parents=True)
    lease.write_text('{"host": "far", "names": ["code", "web"]}')

    build = start_build(config, "--corpus", "web")
    notice = build.wait_for_line("waits for")
    lease.unlink()
    result = finish_build(build)

    assert "waits for process 4711 on far, which works on" in notice
    assert f"if this root is a copy of the one that it builds, delete {lease.parent}" in notice
    assert result.n_made > 0


def test_a_build_that_waits_for_a_stopped_one_says_how_to_continue_and_end_it(
    make_small_project, stopped_holder_of
):
    config = make_small_project()
    (config.parent / ".dagster").mkdir()
    lock = config.parent / ".dagster" / ".lock"
    holder = stopped_holder_of(lock)

    build = start_build(config, "--corpus", "web")
    notice = build.wait_for_line("waits for")
    holder.send_signal(signal.SIGCONT)
    holder.wait()
    result = finish_build(build)

    assert f"waits for process {holder.pid} on " in notice
    assert f"`kill -CONT {holder.pid}` continues it, `kill -KILL {holder.pid}` ends it" in notice
    assert str(lock) in notice
    assert result.n_made > 0


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


LOCK_DATABASE = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(600)
"""
"""A program that locks a database until it is killed."""


def test_a_history_that_another_process_keeps_locked_names_that_process(tmp_path):
    database = tmp_path / "storage" / "runs.db"
    database.parent.mkdir()
    command = [sys.executable, "-c", LOCK_DATABASE, str(database)]
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
