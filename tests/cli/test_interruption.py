"""Ctrl-C, SIGTERM and SIGHUP: one sentence, no process left, and the same command goes on to the
same bytes.
"""

from __future__ import annotations

import gc
import os
import signal
import time

import pytest

from helpers import dask_cluster, ray_cluster
from helpers.child_processes import (
    check_interrupted,
    interrupt,
    start_forked,
    start_nanoset,
    wait_until,
)
from helpers.sample_project import write_corpus
from nanoset_core.cli import main

MANY = "shards/web/*/manifest.json"
EXECUTORS = {
    "in this process": {"tokenization": {"workers": 1}},
    "worker processes": {},
    "a Dask cluster": {"executor": {"kind": "dask", "scheduler_file": "cluster/scheduler.json"}},
    "a Ray cluster": {},
}
"""Settings. A variable names the Ray cluster; Slurm jobs are in tests/deploy/test_slurm.py."""
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
ENDS = [
    ("in this process", [TERM]),
    ("worker processes", [INT, INT]),
    ("worker processes", [HUP]),
    ("a Dask cluster", [INT, INT]),
    ("a Ray cluster", [INT, INT]),
    ("a Ray cluster", [TERM]),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with dask_cluster.running(tmp_path_factory.mktemp("cluster")) as started:
        started.staff(2)
        yield started


@pytest.fixture(scope="module")
def ray_nodes():
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with ray_cluster.running() as nodes:
        nodes.add_node(n_cpus=2)
        yield nodes


@pytest.mark.parametrize(("executor", "numbers"), ENDS)
def test_every_executor_ends_in_the_same_way(tmp_path, tokenizer_file, request, executor, numbers):
    """With one exit code and one sentence for each signal; the second Ctrl-C comes while the first
    one is answered.
    """
    if executor == "a Dask cluster":
        (tmp_path / "cluster").symlink_to(request.getfixturevalue("cluster").folder)
    variables = {}
    if executor == "a Ray cluster":
        nodes = request.getfixturevalue("ray_nodes")
        variables["NANOSET_RAY_ADDRESS"] = nodes.address
    config = write_corpus(tmp_path, tokenizer_file, EXECUTORS[executor])
    process = start_nanoset("build", "-c", config, env=variables)
    said = interrupt(process, numbers, lambda: any((tmp_path / "data").glob(MANY)), group=True)
    check_interrupted(process, said, numbers[0])
    assert not any((tmp_path / "data" / ".in-use").glob("*")), "its lease ends with it"
    if executor == "a Ray cluster":
        [node] = nodes.nodes
        assert wait_until(lambda: not node.worker_pids()), "its workers end with it"


def test_build_goes_on(tmp_path, tokenizer_file):
    """In the middle of one of Dagster's runs, whose helpers hear the Ctrl-C too."""
    words, data = ("build", "-c", write_corpus(tmp_path, tokenizer_file)), tmp_path / "data"
    process = start_nanoset(*words)
    said = interrupt(process, [signal.SIGINT], lambda: any(data.glob(MANY)), group=True)
    check_interrupted(process, said, signal.SIGINT)
    assert not any(data.glob("datasets/*/*/manifest.json"))
    shards = {path: path.stat().st_mtime_ns for path in data.glob("shards/web/*/manifest.json")}
    again = start_forked(*words, said=tmp_path / "said")
    again.join()
    assert again.exitcode == 0, (tmp_path / "said").read_text()
    assert any(data.glob("datasets/*/*/manifest.json"))
    assert all(path.stat().st_mtime_ns == written for path, written in shards.items()), (
        "what was finished stays"
    )


def test_what_the_parent_had_ignored_stays_ignored(tmp_path, tokenizer_file):
    """As nohup, and shells that start a command in the background, would have it; Dagster sets
    handlers of its own.
    """
    config = write_corpus(tmp_path, tokenizer_file)
    ignored = (INT, TERM, HUP)
    process = start_nanoset(
        "build",
        "-c",
        config,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored],
    )
    while process.poll() is None:
        for number in ignored:
            (os.kill if number == signal.SIGTERM else os.killpg)(process.pid, number)
        time.sleep(0.05)
    said = process.communicate()[1]
    assert process.returncode == 0, said
    assert any((tmp_path / "data").glob("datasets/web/*/manifest.json")), said


def test_before_the_command_itself_is_imported():
    """A finder that hears Ctrl-C when the command's own module is looked for, as one that comes
    early does.
    """
    finder = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "nanoset_core.cli.entry":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
    process = start_nanoset("--help", before=finder)
    said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT
    assert said == "interrupted: what is finished is kept; run the same command again to continue\n"


@pytest.mark.parametrize("number", [INT, TERM, HUP])
def test_a_command_that_only_reads(make_project, monkeypatch, capfd, number):
    """In this process: handlers are as before afterwards. The signal comes again as the first one
    is answered.
    """
    from nanoset_core.project import status

    config = make_project()
    monkeypatch.setattr(status, "project_status", lambda project: signal.raise_signal(number))
    monkeypatch.setattr(gc, "collect", lambda: signal.raise_signal(number))
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminated = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # under nohup it is ignored, and stays so
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as left:
            main(["status", "-c", str(config)])
    finally:
        signal.signal(signal.SIGINT, ours)
        signal.signal(signal.SIGHUP, hung_up)
        kept = signal.signal(signal.SIGTERM, terminated)
    assert left.value.code == 128 + number
    assert "run the same command again" in capfd.readouterr().err
    assert kept == signal.SIG_DFL
