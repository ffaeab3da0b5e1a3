"""Builds on file systems of clusters, imitated: what they refuse is refused by a library that is
loaded before C's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.building import run_stages
from helpers.dagster_history import QUICK_COMMAND, quick_history  # noqa: F401 - of the command that builds
from helpers.sample_project import FEWER, tree
from nanoset_core.project.project import Project

AFTERWARDS = """
import json, sys
from nanoset_core.cli.entry import main
from nanoset_core.project import survey

def code(*words):
    try:
        main([*words, *sys.argv[1:]])
    except SystemExit as ended:
        return ended.code or 0

survey.READ_BYTES = 0
print(json.dumps([code("status"), code("verify"), code("gc", "--yes")]))
"""
SECONDS = 2.5
"""After so long, a file's time of change can be trusted."""
EVERYTHING = "flock,lockf,fsync,link,copy,rights,room,inodes"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("it takes a C compiler, and Linux, to imitate what a file system refuses")
    path = tmp_path_factory.mktemp("library") / "refusing.so"
    source = Path(__file__).with_name("refusing.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Werror", "-o", path, source, "-ldl"], check=True
    )
    return path


@pytest.fixture
def run(library, monkeypatch):
    """Runs `nanoset` where so much is refused in a project's folder; → what it said, and its exit
    code.
    """
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def run(config, refused, *arguments, program=("-m", "nanoset_core.cli")):
        told = {"LD_PRELOAD": str(library), "REFUSED": refused, "REFUSED_BELOW": str(config.parent)}
        told["PYTHONPATH"] = os.pathsep.join(sys.path)
        done = subprocess.run(
            [sys.executable, *program, *arguments, "--config", str(config)],
            env=os.environ | told,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def outputs(config):
    """Without the links, which are a convenience, and what belongs to the machine."""
    found = tree(config.parent / "data").items()
    return {
        name: digest
        for name, digest in found
        if not name.endswith("/current") and not name.startswith(".in-use/")
    }


def test_where_a_file_system_refuses_everything_the_outputs_are_the_same(
    make_project, run, tmp_path
):
    config = make_project(
        "refusing", FEWER | {"root: data": f"root: data\nhistory: {tmp_path / 'history'}"}
    )
    for path in (config.parent / "raw").rglob("*.jsonl*"):
        os.utime(path, (1e9, 1e9))
    newest = max(path.stat().st_ctime for path in (config.parent / "raw").rglob("*.jsonl*"))
    local = make_project("local", FEWER)
    run_stages(Project.open(local))
    time.sleep(max(0.0, newest + SECONDS - time.time()))
    built = run(config, EVERYTHING, "build", program=("-c", QUICK_COMMAND))
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "history" / "dagster.yaml").is_file()
    without_notes = {
        name: digest for name, digest in outputs(config).items() if ".fingerprints" not in name
    }
    assert without_notes == {
        name: digest for name, digest in outputs(local).items() if ".fingerprints" not in name
    }
    afterwards = run(config, EVERYTHING, program=("-c", AFTERWARDS))
    assert json.loads(afterwards.stdout.splitlines()[-1]) == [0, 0, 0], afterwards.stdout


def test_a_history_without_file_locks_is_a_sentence(make_project, run):
    config = make_project()
    done = run(config, "lockf", "build")
    assert done.returncode == 1
    assert f"{config.parent / '.dagster'}: this file system has no file locks" in done.stderr
    assert f"`history` in {config}" in done.stderr
    assert len(done.stderr.splitlines()) <= 5
    status = run(config, "lockf", "status", "--json")
    assert {row["state"] for row in json.loads(status.stdout)} == {"missing"}, "it needs no history"
