"""Builds on file systems that refuse locks, links or permissions, as those of clusters do.

A library that is loaded before the C library refuses the system calls.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.building import run_stages
from helpers.dagster_history import QUICK_COMMAND, quick_history  # noqa: F401 - of the command that builds
from helpers.sample_project import FEWER, ONLY_WEB, keep_only_web, tree
from nanoset_core.project.project import Project

STATUS_VERIFY_AND_GC = """
import json, sys
from nanoset_core.cli.entry import main
from nanoset_core.project import survey


def exit_code(*words):
    try:
        main([*words, *sys.argv[1:]])
    except SystemExit as error:
        return error.code or 0


survey.READ_BYTES = 0
print(json.dumps([exit_code("status"), exit_code("verify"), exit_code("gc", "--yes")]))
"""
"""Runs three commands in one process, and prints their exit codes."""
RACY_SECONDS = 2.5
"""A file that was changed this recently could change again without another time of change."""
ALL_REFUSALS = "flock,lockf,fsync,link,copy,permissions,space,inodes"

RunNanoset = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library that refuses system calls."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("it takes a C compiler, and Linux, to imitate what a file system refuses")
    path = tmp_path_factory.mktemp("library") / "refusing.so"
    source = Path(__file__).with_name("refusing.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Werror", "-o", path, source, "-ldl"]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def run_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> RunNanoset:
    """A function that runs `nanoset` while system calls on files of its project are refused."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def run(
        config: Path,
        refusals: str,
        *arguments: str,
        program: tuple[str, str] = ("-m", "nanoset_core.cli"),
    ) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "LD_PRELOAD": str(library),
            "REFUSED": refusals,
            "REFUSED_BELOW": str(config.parent),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = subprocess.run(
            [sys.executable, *program, *arguments, "--config", str(config)],
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert "Traceback" not in process.stderr, process.stderr
        return process

    return run


def outputs_of(config: Path) -> dict[str, str]:
    """Return the sha256 of each file of the outputs.

    Links to current versions are left out, since nothing needs them, and files that belong to the
    machine, too.
    """
    digests: dict[str, str] = {}
    for name, digest in tree(config.parent / "data").items():
        is_link = name.endswith("/current")
        is_of_machine = name.startswith(".in-use/") or ".fingerprints" in name
        if not is_link and not is_of_machine:
            digests[name] = digest
    return digests


def make_raw_files_old(config: Path) -> float:
    """Give the raw files an old time of modification.

    Returns:
        The time from which on nobody can have changed them unnoticed.
    """
    change_times: list[float] = []
    for path in (config.parent / "raw").rglob("*.jsonl*"):
        os.utime(path, (1e9, 1e9))
        change_times.append(path.stat().st_ctime)
    return max(change_times) + RACY_SECONDS


@pytest.mark.slow
def test_outputs_are_the_same_on_a_file_system_that_refuses_everything(
    make_project, run_refused, tmp_path
):
    history = tmp_path / "history"  # on another file system, since SQLite needs file locks
    replacements = {"root: data": f"root: data\nhistory: {history}"}
    config = make_project("refusing", FEWER | ONLY_WEB | replacements)
    keep_only_web(config)
    settled_at = make_raw_files_old(config)
    local_config = make_project("local", FEWER | ONLY_WEB)
    keep_only_web(local_config)
    run_stages(Project.open(local_config))
    time.sleep(max(0.0, settled_at - time.time()))

    build = run_refused(config, ALL_REFUSALS, "build", program=("-c", QUICK_COMMAND))

    assert build.returncode == 0, build.stderr
    assert (history / "dagster.yaml").is_file()
    assert outputs_of(config) == outputs_of(local_config)

    # Further commands succeed, too.
    commands = run_refused(config, ALL_REFUSALS, program=("-c", STATUS_VERIFY_AND_GC))
    assert json.loads(commands.stdout.splitlines()[-1]) == [0, 0, 0], commands.stdout


def test_a_build_whose_history_cannot_be_locked_says_what_to_do(make_project, run_refused):
    config = make_project()

    build = run_refused(config, "lockf", "build")

    assert build.returncode == 1
    assert f"{config.parent / '.dagster'}: this file system has no file locks" in build.stderr
    assert f"`history` in {config}" in build.stderr
    assert len(build.stderr.splitlines()) <= 5


def test_status_needs_no_history_and_so_no_file_locks(make_project, run_refused):
    config = make_project()

    status = run_refused(config, "lockf", "status", "--json")

    assert {row["state"] for row in json.loads(status.stdout)} == {"missing"}
