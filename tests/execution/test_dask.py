import contextlib
import math
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from dask_cluster import running, wait_until
from sample_project import build_all, tree

from nanoset_core.errors import ConfigError, InputError, MissingError, NanosetError
from nanoset_core.execution import dask as module
from nanoset_core.execution.dask import DaskExecutor
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.pipeline import indexed, raw, shuffling, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.access import LocalAccess
from nanoset_core.verification.verify import targets, verify_project

# Work is taken from the standard library: workers import it by name, without the help of this file.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def executor(cluster, tmp_path):
    cluster.staff(2)
    return DaskExecutor(cluster.address, LocalAccess(tmp_path / "shared"))


@pytest.fixture(scope="module")
def on(cluster):
    """Replacements for a project's text that give its work to the cluster."""
    return {"webdatasets:\n": f"executor: {{kind: dask, address: '{cluster.address}'}}\nwebdatasets:\n"}


def ours(folder: Path) -> dict[str, str]:
    return tree(folder / "data")


def test_every_result_once_under_its_number(executor):
    tasks = list(range(23))
    results = list(run_tasks(math.factorial, tasks, 1, executor))
    assert sorted(results) == [(number, math.factorial(task)) for number, task in enumerate(tasks)]
    assert list(executor.shared.folder.iterdir()) == []


def test_workers_do_the_work_and_both_do(cluster, executor):
    naps = ["__import__('time').sleep(0.05) or __import__('os').getpid()"] * 12
    assert {pid for _, pid in executor.run(eval, naps)} == set(cluster.staff(2))


def test_nothing_to_do_needs_no_cluster(tmp_path):
    assert list(DaskExecutor("tcp://127.0.0.1:1", LocalAccess(tmp_path / "none")).run(abs, [])) == []
    assert not (tmp_path / "none").exists()


def test_errors_of_ours_come_back_whole(executor):
    raising = "(_ for _ in ()).throw(__import__('nanoset_core.errors').errors.InputError('w', where='a:3', remedy='r'))"
    with pytest.raises(InputError) as caught:
        list(executor.run(eval, [raising, "1"]))
    assert type(caught.value) is InputError
    assert (caught.value.what, caught.value.where, caught.value.remedy) == ("w", "a:3", "r")


def test_first_error_ends_the_run(executor, tmp_path):
    tasks = ["1/0"] + [f"open({str(tmp_path / str(number))!r}, 'w').close()" for number in range(200)]
    with pytest.raises(ZeroDivisionError):
        list(executor.run(eval, tasks))
    assert len(list(tmp_path.iterdir())) < 50


def test_nobody_listens_any_more(executor, tmp_path):
    """What has not begun never does."""
    tasks = [f"open({str(tmp_path / f'n{n}')!r}, 'w').close() or __import__('time').sleep(0.3)" for n in range(40)]
    results = executor.run(eval, tasks)
    next(results)
    results.close()
    time.sleep(1.0)
    begun = list(tmp_path.glob("n*"))
    assert 1 <= len(begun) <= 5
    assert list(executor.shared.folder.iterdir()) == []


def test_the_same_bytes_as_without_a_cluster(make_project, on, cluster):
    cluster.staff(2)
    local = build_all(make_project("local"))
    spread = build_all(make_project("spread", on))
    where, tokenizer = f"{spread.config.file}: executor.address", spread.config.tokenizer_file
    assert spread.executor == DaskExecutor(cluster.address, spread.config.root_access, where, (tokenizer,))
    assert ours(spread.config.file.parent) == ours(local.config.file.parent)
    assert not [name for name in ours(spread.config.file.parent) if ".tmp-" in name]
    here, there = (list(verify_project(project, deep=True)) for project in (local, spread))
    assert [report.to_json() for report in there] == [report.to_json() for report in here]
    assert [report.passed for report in there] == [True] * len(targets(local))


def test_engines_give_the_same_tars(make_project, on, cluster):
    """Of every engine, buckets too, whose tasks remove what they worked on."""
    cluster.staff(2)
    made = {}
    for engine in ("mmap", "tiled", "buckets"):
        options = on | {"    groups: 3": f"    groups: 2\n    engine: {engine}", "member: npy": "member: json.gz"}
        project = build_all(make_project(engine, options))
        made[engine] = {name: digest for name, digest in ours(project.config.file.parent).items() if "shard-" in name}
    assert made["mmap"]
    assert made["mmap"] == made["tiled"] == made["buckets"]


def holder(folder: Path, pids: list[int]) -> int | None:
    """Which of some processes has an unfinished file of a folder open."""
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                path = descriptor.readlink()
                if path.parent == folder and path.name.startswith(".tmp-"):
                    return pid
    return None


def test_a_worker_killed_in_mid_task(make_project, on, cluster):
    """The other one does what it began; nothing of what it left is taken for data."""
    local, spread = Project.open(make_project("local")), Project.open(make_project("spread", on))
    for project in (local, spread):
        raw.make_inventory(project, "web")
    tokenization.tokenize(local, "web")
    shards = spread.outputs.folder / tokenization.SHARDS / "web"
    pids = cluster.staff(2)
    done: list[object] = []
    progress: list[Progress] = []
    heard = replace(spread, listener=progress.append)
    killed = kill_amid(lambda: done.append(tokenization.tokenize(heard, "web")), shards, pids)
    assert len(done) == 1
    assert [event.done for event in progress] == sorted({event.done for event in progress})
    assert progress[-1].done == progress[-1].total
    assert [worker.pid for worker in cluster.workers if worker.poll() is not None] == [killed]
    assert ours(spread.config.file.parent) == ours(local.config.file.parent)


def test_a_worker_killed_amid_a_tar(make_project, on, cluster):
    large = {"samples_per_shard: 128": "samples_per_shard: 100000", "member: npy": "member: json.gz"}
    local = build_all(make_project("local", large))
    spread = Project.open(build_until_tars(make_project("spread", large | on)))
    folder = local.outputs.require(shuffling.STAGE, "shuffled", remedy="").folder
    pids = cluster.staff(2)

    def write() -> None:
        for group in range(3):
            shuffling.write_group(spread, "shuffled", group)

    killed = kill_amid(write, spread.outputs.folder / folder.relative_to(local.outputs.folder), pids)
    shuffling.finish(spread, "shuffled")
    assert [worker.pid for worker in cluster.workers if worker.poll() is not None] == [killed]
    here, there = (tree(project.outputs.folder / shuffling.STAGE) for project in (local, spread))
    assert there == here


def build_until_tars(config: Path) -> Path:
    project = Project.open(config)
    for corpus in raw.corpora(project):
        raw.make_inventory(project, corpus)
        tokenization.tokenize(project, corpus)
        indexed.index(project, corpus)
    shuffling.make_plan(project, "shuffled")
    return config


def kill_amid(build: Callable[[], object], folder: Path, pids: list[int]) -> int:
    """Run a build, kill -9 the worker that first writes into a folder, await the end of the build; → who was killed."""
    thread = threading.Thread(target=build)
    thread.start()
    killed: list[int] = []

    def kill() -> bool:
        if (pid := holder(folder, pids)) is not None:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return bool(killed)

    assert wait_until(kill, pause=0)
    assert list(folder.glob(".tmp-*")), "it was in the middle of an output"
    thread.join(timeout=30)
    assert not thread.is_alive()
    return killed[0]


def test_a_task_that_kills_every_worker(executor):
    with pytest.raises(NanosetError, match="workers were killed, one after the other") as caught:
        list(executor.run(signal.raise_signal, [signal.SIGKILL]))
    assert caught.value.where == "raise_signal"
    assert "more memory" in caught.value.remedy


def test_workers_that_do_not_share_the_folder(cluster, tmp_path, monkeypatch):
    """/proc/self/cwd is another folder in each process."""
    cluster.staff(2)
    monkeypatch.chdir(tmp_path)
    alone = DaskExecutor(cluster.address, LocalAccess(Path("/proc/self/cwd/shared")))
    with pytest.raises(MissingError, match="a worker does not see the output folder") as caught:
        list(alone.run(abs, [-1, -2]))
    assert caught.value.where.endswith("/proc/self/cwd/shared")
    assert "one file system" in caught.value.remedy


def test_no_workers_and_then_no_scheduler(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path) as lonely:
        executor = DaskExecutor(lonely.address, LocalAccess(tmp_path / "shared"))
        monkeypatch.setattr(module, "WORKERS_SECONDS", 0.3)
        with pytest.raises(MissingError, match="has no workers") as caught:
            list(executor.run(abs, [-1]))
        assert f"dask worker {lonely.address}" in caught.value.remedy
        lonely.staff(1)
        results = executor.run(eval, ["1", "__import__('time').sleep(60)"])
        assert next(results) == (0, 1)
        lonely.scheduler.kill()
        with pytest.raises(NanosetError, match="the Dask scheduler dropped the tasks"):
            next(results)
    assert list((tmp_path / "shared").iterdir()) == []


def test_an_address_that_does_not_answer(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    monkeypatch.setattr(module, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        closed = socket.create_server(("127.0.0.1", 0))
        ports = [mute.getsockname()[1], closed.getsockname()[1]]
        closed.close()
        for port in ports:
            started = time.monotonic()
            with pytest.raises(ConfigError, match="no Dask scheduler answers") as caught:
                list(
                    DaskExecutor(f"tcp://127.0.0.1:{port}", LocalAccess(tmp_path), "n.yaml: executor.address").run(
                        abs, [1]
                    )
                )
            assert time.monotonic() - started < 60, "it waits without end"
            assert caught.value.where == "n.yaml: executor.address"
            assert f"tcp://127.0.0.1:{port}" in caught.value.found
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        list(DaskExecutor("tcp://127.0.0.1:1", LocalAccess(tmp_path)).run(abs, [1]))
    assert caught.value.remedy.startswith("pip install 'nanoset-platform[dask]'")


def test_no_recipe_knows_of_the_executor(make_project, on):
    """A whole project travels to a worker, and the digests of its outputs do not change."""
    local, spread = Project.open(make_project("local")), Project.open(make_project("spread", on))
    assert local.executor is None
    for project in (local, spread):
        raw.make_inventory(project, "web")
    digests = [tokenization.tokenized_recipe(project, "web", "0" * 20).digest for project in (local, spread)]
    assert digests[0] == digests[1]
    assert pickle.loads(pickle.dumps(targets(spread)))[0].name == targets(spread)[0].name
