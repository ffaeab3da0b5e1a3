"""Ctrl-C and other signals end a command with one sentence, and an exit code that says which one.

Builds on Dask are interrupted in tests/execution/test_dask.py, Slurm jobs in
tests/deploy/test_slurm.py.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import ray_cluster
from helpers.child_processes import (
    ForkedCommand,
    check_interrupted,
    interrupt,
    start_forked,
    start_nanoset,
    wait_until,
)
from helpers.interrupted_builds import (
    SHARD_MANIFESTS,
    check_build_is_interrupted,
    has_shards,
)
from helpers.sample_project import write_corpus
from nanoset_core.cli import entry, main

DATASET_MANIFESTS = "data/datasets/web/*/manifest.json"
"""The manifest of the dataset, which is made of all shards."""
INT = signal.SIGINT
TERM = signal.SIGTERM
HUP = signal.SIGHUP
SIGNALS = (INT, TERM, HUP)


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[ray_cluster.RayNodes]:
    """A Ray cluster with a node of two processors."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with ray_cluster.running() as nodes:
        nodes.add_node(n_cpus=2)
        yield nodes


def test_a_signal_ends_a_build_in_its_own_process(tmp_path, tokenizer_file):
    settings = {"tokenization": {"workers": 1}}

    check_build_is_interrupted(tmp_path, tokenizer_file, [TERM], settings=settings)


@pytest.mark.parametrize(
    ("signals", "is_forked"),
    [
        pytest.param([INT, INT], False, id="two SIGINT to a new program"),
        pytest.param([HUP], True, id="SIGHUP"),
    ],
)
def test_a_signal_ends_a_build_with_worker_processes(tmp_path, tokenizer_file, signals, is_forked):
    check_build_is_interrupted(tmp_path, tokenizer_file, signals, is_forked=is_forked)


@pytest.mark.parametrize("signals", [[INT, INT], [TERM]])
def test_a_signal_ends_a_build_on_a_ray_cluster_and_its_workers(
    tmp_path, tokenizer_file, ray_nodes, signals, monkeypatch
):
    monkeypatch.setenv("NANOSET_RAY_ADDRESS", ray_nodes.address)

    check_build_is_interrupted(tmp_path, tokenizer_file, signals, is_forked=False)

    [node] = ray_nodes.nodes
    assert wait_until(lambda: not node.worker_pids()), "the workers of a build end with it"


@dataclass(frozen=True)
class InterruptedBuild:
    """A build that was interrupted while one of Dagster's runs made shards."""

    folder: Path
    """The folder of its project."""
    process: ForkedCommand
    """Its process, which has ended."""
    stderr: str
    """What it printed."""
    datasets: list[Path]
    """Manifests of datasets that it has left."""


@pytest.fixture(scope="module")
def interrupted_build(tmp_path_factory, tokenizer_file) -> InterruptedBuild:
    """A build that Ctrl-C has interrupted, together with all processes that it had started."""
    folder = tmp_path_factory.mktemp("interrupted")
    config = write_corpus(folder, tokenizer_file)
    process = ForkedCommand("build", "-c", config, output=folder / "output")
    stderr = interrupt(process, [INT], lambda: has_shards(folder), group=True)
    return InterruptedBuild(folder, process, stderr, list(folder.glob(DATASET_MANIFESTS)))


def test_an_interrupted_build_makes_nothing_of_its_unfinished_shards(interrupted_build):
    check_interrupted(interrupted_build.process, interrupted_build.stderr, INT)
    assert interrupted_build.datasets == []


def test_the_next_build_continues_an_interrupted_one_with_its_shards(interrupted_build):
    folder = interrupted_build.folder
    times_before = {path: path.stat().st_mtime_ns for path in folder.glob(SHARD_MANIFESTS)}
    # With one process: the start of workers would take most of the time.
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace('"workers": 2', '"workers": 1'))
    output = folder / "output of the next build"

    process = start_forked("build", "-c", config, output=output)
    process.join()

    assert process.exitcode == 0, output.read_text()
    assert any(folder.glob(DATASET_MANIFESTS))
    times_after = {path: path.stat().st_mtime_ns for path in times_before}
    assert times_after == times_before, "finished shards are not made again"


def ignore_signals() -> None:
    """Ignore signals, as nohup does, and a shell that starts a command in the background."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def test_signals_that_the_parent_process_ignored_are_ignored(tmp_path, tokenizer_file):
    # Dagster sets handlers of its own, which must not replace those of the parent.
    config = write_corpus(tmp_path, tokenizer_file, {"tokenization": {"range_mib": 1.0}})
    process = start_nanoset("build", "-c", config, preexec_fn=ignore_signals)

    while process.poll() is None:
        # A terminal sends these two to all processes of the command.
        os.killpg(process.pid, INT)
        os.killpg(process.pid, HUP)
        os.kill(process.pid, TERM)
        time.sleep(0.05)

    stderr = process.communicate()[1]
    assert process.returncode == 0, stderr
    assert any(tmp_path.glob(DATASET_MANIFESTS)), stderr


INTERRUPTED_IMPORT = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "nanoset_core.cli.entry":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
"""Code after which Ctrl-C arrives as soon as the module of the commands is imported."""


def test_ctrl_c_ends_a_command_that_is_still_being_imported():
    process = start_nanoset("--help", before=INTERRUPTED_IMPORT)

    stderr = process.communicate()[1]

    assert process.returncode == 128 + INT
    assert stderr == (
        "interrupted: what is finished is kept; run the same command again to continue\n"
    )


@contextmanager
def default_handlers() -> Iterator[None]:
    """Handle signals as a new Python process does, and restore this process's handlers at the end."""
    defaults = {INT: signal.default_int_handler, TERM: signal.SIG_DFL, HUP: signal.SIG_DFL}
    handlers = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_command_that_only_reads_and_handlers_are_restored(
    make_project, monkeypatch, capfd, number
):
    from nanoset_core.project import status

    config = make_project()
    monkeypatch.setattr(status, "project_status", lambda project: signal.raise_signal(number))
    # The command collects garbage while it reacts to the signal: then it arrives again.
    monkeypatch.setattr(gc, "collect", lambda: signal.raise_signal(number))

    with default_handlers():
        with pytest.raises(SystemExit) as exit_request:
            main(["status", "-c", str(config)])
        handler = signal.getsignal(TERM)

    assert exit_request.value.code == 128 + number
    assert "run the same command again" in capfd.readouterr().err
    assert handler == signal.SIG_DFL


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_end_of_a_command_is_too_late(monkeypatch, number):
    def receive_too_late() -> None:
        """Receive a signal when the command asks for the last time whether there was one."""
        os.kill(os.getpid(), number)

    monkeypatch.setattr(entry, "received_signal", receive_too_late)

    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert end.value.code == 0
