import contextlib
import json
import math
import os
import pickle
import platform
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from helpers.building import (
    build_all,
    finish_webdataset,
    make_corpora,
    make_inventory,
    make_shuffle_plan,
    make_tars,
)
from helpers.child_processes import start_nanoset, wait_until
from helpers.dask_cluster import running, within
from helpers.inspecting import current_output, node_at
from helpers.progress import RecordingDisplay
from helpers.sample_project import tree
from nanoset_core.errors import ConfigError, InputError, MissingError, NanosetError
from nanoset_core.execution import dask_scheduler
from nanoset_core.execution.dask import DaskExecutor
from nanoset_core.execution.dask_connection import connections_kept
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import (
    SILENT,
    Progress,
    TaskNote,
    progress_reported_to,
    report_progress,
)
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.storage.access import FileAccess

# Work is taken from the standard library: workers import it by name, without the help of this file.

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[tuple[int, Any]]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def executor(cluster, tmp_path):
    cluster.staff(2)
    return on_scheduler(tmp_path / "shared", cluster.address)


@pytest.fixture(scope="module")
def on(cluster):
    """Replacements for a project's text that give its work to the cluster."""
    return {
        "webdatasets:\n": f"executor: {{kind: dask, address: '{cluster.address}'}}\nwebdatasets:\n"
    }


def on_scheduler(
    folder: Path, *address: str, progress: Progress = SILENT, **settings: object
) -> DaskExecutor:
    return DaskExecutor(DaskScheduler(*address, **settings), FileAccess(folder), progress=progress)


def ours(folder: Path) -> dict[str, str]:
    return tree(folder / "data")


@pytest.fixture(params=["here", "processes", "cluster"])
def run(request: pytest.FixtureRequest) -> Run:
    """Every way in which tasks are run."""
    if request.param == "cluster":
        return request.getfixturevalue("executor").run
    return lambda work, tasks: run_tasks(work, tasks, 1 if request.param == "here" else 3)


def test_every_result_once_under_its_number(run):
    tasks = list(range(23))
    assert sorted(run(math.factorial, tasks)) == [
        (number, math.factorial(task)) for number, task in enumerate(tasks)
    ]
    assert list(run(math.factorial, [])) == []


def test_first_error_ends_the_run(run, tmp_path):
    """Those under way are finished, the rest never begin."""
    nap = "__import__('time').sleep(0.1)"
    tasks = ["1/0"] + [
        f"open({str(tmp_path / str(number))!r}, 'w').close() or {nap}" for number in range(200)
    ]
    with pytest.raises(ZeroDivisionError):
        list(run(eval, tasks))
    assert len(list(tmp_path.iterdir())) < 100


def test_errors_of_ours_come_back_whole(run):
    raising = (
        "(_ for _ in ()).throw(__import__('nanoset_core.errors').errors.InputError('w', "
        "where='a:3', remedy='r'))"
    )
    with pytest.raises(InputError) as caught:
        list(run(eval, [raising, "1"]))
    assert (type(caught.value), caught.value.what, caught.value.remedy) == (InputError, "w", "r")
    place, _, worker = caught.value.where.partition(", ")
    assert place == "a:3"
    if run.__name__ == "<lambda>":
        assert not worker
    else:
        assert re.fullmatch(rf"on the worker tcp://[\d.:]+ of {re.escape(platform.node())}", worker)


def test_what_tasks_tell_is_heard_before_they_end(run):
    tasks, heard = [TaskNote(str(number)) for number in range(6)], []
    with progress_reported_to(heard.append):
        for number, _ in run(report_progress, tasks):
            assert tasks[number] in heard
    assert sorted(heard, key=lambda note: note.text) == tasks
    list(run(report_progress, tasks))
    assert len(heard) == 6, "outside of the block nobody hears"


def test_what_a_task_tells_is_heard_while_it_is_under_way(run, tmp_path):
    """Which ends no sooner than it was heard."""
    told = "progress.report_progress(progress.TaskNote({!r}))"
    code = (
        "[{told}, any(__import__('os').path.exists({file!r}) or __import__('time').sleep(0.01) "
        "for _ in range(3000))]"
        "[1] for progress in [__import__('nanoset_core.execution.progress').execution.progress]"
    )
    files = [str(tmp_path / str(number)) for number in range(4)]
    with progress_reported_to(lambda note: Path(note.text).touch()):
        results = list(
            run(eval, [f"[{code.format(told=told.format(file), file=file)}]" for file in files])
        )
    assert sorted(results) == [(number, [True]) for number in range(4)]


def test_two_runs_over_one_connection_hear_each_their_own_tasks(executor, tmp_path):
    """One of them ends while the other goes on."""
    progress = "__import__('nanoset_core.execution.progress').execution.progress"
    is_there = f"__import__('os').path.exists({str(tmp_path / 'go')!r})"
    awaits = f"any(__import__('time').sleep(0.01) or {is_there} for _ in [0] * 3000)"
    tells = "[progress.report_progress(progress.TaskNote({!r})) for progress in [" + progress + "]]"
    heard: dict[str, list[TaskNote]] = {"long": [], "short": []}
    with connections_kept(), progress_reported_to(heard["long"].append):
        long = executor.run(eval, ["1", f"{awaits} and {tells.format('long')}"])
        next(long)
        with progress_reported_to(heard["short"].append):
            list(executor.run(eval, [tells.format("short")]))
        (tmp_path / "go").touch()
        list(long)
    assert {name: [note.text for note in told] for name, told in heard.items()} == {
        "long": ["long"],
        "short": ["short"],
    }


def test_warnings_of_a_bucket_name_the_worker(executor, caplog):
    warning = (
        "__import__('logging').getLogger('nanoset_core.storage.any').warning('s3://b/k: no answer')"
    )
    list(executor.run(eval, [warning]))
    (told,) = caplog.messages
    assert re.fullmatch(
        rf"s3://b/k: no answer \(on the worker tcp://[\d.:]+ of {re.escape(platform.node())}\)",
        told,
    )


def test_workers_do_the_work_and_both_do(cluster, executor):
    naps = ["__import__('time').sleep(0.05) or __import__('os').getpid()"] * 12
    assert {pid for _, pid in executor.run(eval, naps)} == set(cluster.staff(2))


def test_nothing_to_do_needs_no_cluster(tmp_path):
    assert list(on_scheduler(tmp_path / "none", "tcp://127.0.0.1:1").run(abs, [])) == []
    assert not (tmp_path / "none").exists()


def test_nobody_listens_any_more(executor, tmp_path):
    """What has not begun never does."""
    tasks = [
        f"open({str(tmp_path / f'n{n}')!r}, 'w').close() or __import__('time').sleep(0.3)"
        for n in range(40)
    ]
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
    scheduler = DaskScheduler(cluster.address, where=f"{spread.config.file}: executor.address")
    assert spread.executor == DaskExecutor(
        scheduler, spread.config.root_access, (spread.config.tokenizer_file,)
    )
    assert ours(spread.config.file.parent) == ours(local.config.file.parent)
    assert not [name for name in ours(spread.config.file.parent) if ".tmp-" in name]
    here, there = (list(verify_project(project, deep=True)) for project in (local, spread))
    assert [report.to_json() for report in there] == [report.to_json() for report in here]
    assert [report.passed for report in there] == [True] * len(targets(local))


def test_engines_give_the_same_tars(make_project, on, cluster):
    """Of every engine, buckets too, whose tasks remove what they worked on."""
    cluster.staff(2)
    made = {}
    for engine in ("mmap", "buckets"):
        options = on | {
            "    groups: 3": f"    groups: 2\n    engine: {engine}",
            "member: npy": "member: json.gz",
        }
        project = build_all(make_project(engine, options))
        made[engine] = {
            name: digest
            for name, digest in ours(project.config.file.parent).items()
            if "shard-" in name
        }
    assert made["mmap"]
    assert made["mmap"] == made["buckets"]


def holder(folder: Path, pids: list[int]) -> int | None:
    """Which of some processes has an unfinished file of a folder open."""
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                path = descriptor.readlink()
                if path.parent == folder and path.name.startswith(".tmp-"):
                    return pid
    return None


def test_a_worker_killed_amid_a_tar(make_project, on, cluster):
    large = {
        "samples_per_shard: 128": "samples_per_shard: 100000",
        "member: npy": "member: json.gz",
    }
    local = build_all(make_project("local", large))
    spread = Project.open(build_until_tars(make_project("spread", large | on)))
    folder = current_output(local, "webdatasets/shuffled").folder
    pids = cluster.staff(2)

    def write() -> None:
        for group in range(3):
            make_tars(spread, "shuffled", group)

    killed = kill_amid(
        write, spread.outputs.folder / folder.relative_to(local.outputs.folder), pids
    )
    finish_webdataset(spread, "shuffled")
    assert [worker.pid for worker in cluster.workers if worker.poll() is not None] == [killed]
    here, there = (tree(project.outputs.folder / "webdatasets") for project in (local, spread))
    assert there == here


def build_until_tars(config: Path) -> Path:
    project = Project.open(config)
    make_corpora(project)
    make_shuffle_plan(project, "shuffled")
    return config


def kill_amid(build: Callable[[], object], folder: Path, pids: list[int]) -> int:
    """Run a build, kill -9 the worker that first writes into a folder, await the end of the build;
    → who was killed.
    """
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
    alone = on_scheduler(Path("/proc/self/cwd/shared"), cluster.address)
    with pytest.raises(MissingError, match="a worker does not see the output folder") as caught:
        list(alone.run(abs, [-1, -2]))
    assert "/proc/self/cwd/shared, on the worker tcp://" in caught.value.where
    assert "one file system" in caught.value.remedy


MORTAL = "type('Mortal', (), {'__reduce__': lambda self: __import__('os')._exit(1)})()"
"""A result whose worker dies as it is fetched."""


def test_no_workers_and_then_no_scheduler(tmp_path):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path) as lonely:
        executor = on_scheduler(tmp_path / "shared", lonely.address, wait_seconds=0.3)
        with pytest.raises(MissingError, match="has no workers") as caught:
            list(executor.run(abs, [-1]))
        assert f"dask worker {lonely.address}" in caught.value.remedy
        lonely.staff(1)
        with pytest.raises(MissingError, match="has no workers"):
            list(executor.run(eval, [MORTAL]))
        lonely.staff(1)
        results = executor.run(eval, ["1", "__import__('time').sleep(60)"])
        assert next(results) == (0, 1)
        lonely.scheduler.kill()
        with pytest.raises(NanosetError, match="the Dask scheduler dropped the tasks"):
            next(results)
    assert list((tmp_path / "shared").iterdir()) == []


def test_tasks_are_handed_out_before_there_is_a_scheduler(tmp_path):
    """The file, the scheduler and a worker come one after the other; each is waited for, and said
    to be.
    """
    file, shown, results = tmp_path / "scheduler.json", RecordingDisplay(), []
    heard = shown.works
    executor = on_scheduler(
        tmp_path / "shared", file=file, wait_seconds=60, progress=shown.progress
    )
    with within() as late:
        thread = threading.Thread(
            target=lambda: results.extend(executor.run(math.factorial, range(5)))
        )
        thread.start()
        assert wait_until(lambda: f"for the Dask scheduler {file}" in {news.name for news in heard})
        file.write_text('{"addr')  # as one that is being written
        file.write_text(json.dumps({"address": late.scheduler_address}))
        assert wait_until(lambda: f"for workers of {file}" in {news.name for news in heard})
        assert wait_until(lambda: len(late.scheduler.tasks) == 5)
        late.adapt(minimum=0, maximum=2, interval="50ms")  # it grows with its work
        thread.join(20)
    assert sorted(results) == [(number, math.factorial(number)) for number in range(5)]
    assert {news.stage for news in heard} == {"waiting"}
    ended = {news.name: news.done == news.total for news in heard}
    assert list(ended.values()) == [True, True]


def test_a_build_connects_once(executor, monkeypatch):
    import distributed

    made, new = [], distributed.Client

    def counted(*arguments, **options):
        made.append(new(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(distributed, "Client", counted)
    with connections_kept():
        for _ in range(2):
            assert list(executor.run(abs, [-1])) == [(0, 1)]
        assert [client.status for client in made] == ["running"]
        made[0].close()
        with connections_kept():
            assert list(executor.run(abs, [-1])) == [(0, 1)], "one that is lost is replaced"
        assert [client.status for client in made] == ["closed", "running"]
    assert [client.status for client in made] == ["closed", "closed"]
    assert list(executor.run(abs, [-1])) == [(0, 1)]
    assert made[-1].status == "closed"


def test_a_worker_joins_while_a_build_connects(executor, monkeypatch):
    import distributed

    class Interrupted(distributed.Client):
        connecting = 0

        async def _ensure_connected(self, timeout=None):
            Interrupted.connecting += 1
            assert Interrupted.connecting > 2, (
                "as where a message of the scheduler's comes with its greeting"
            )
            await super()._ensure_connected(timeout)

    monkeypatch.setattr(distributed, "Client", Interrupted)
    assert sorted(executor.run(abs, [-1, -2])) == [(0, 1), (1, 2)]
    assert Interrupted.connecting == 3


def test_a_build_waits_for_one_cluster_once(tmp_path, monkeypatch):
    """Hundreds of outputs may be to come, each of which would wait a day."""
    shown, connect, looked = RecordingDisplay(), DaskScheduler.connect, []
    heard = shown.works
    monkeypatch.setattr(
        DaskScheduler,
        "connect",
        lambda scheduler, *about: looked.append(scheduler) or connect(scheduler, *about),
    )
    missing = on_scheduler(
        tmp_path / "shared", file=tmp_path / "none", wait_seconds=0.3, progress=shown.progress
    )
    with within() as idle, connections_kept():
        scheduler = DaskScheduler(idle.scheduler_address, wait_seconds=0.3)
        empty = DaskExecutor(scheduler, FileAccess(tmp_path / "shared"), progress=shown.progress)
        for executor, expected in ((missing, "has written its file"), (empty, "has no workers")):
            told = []
            for waits in (True, False):
                heard.clear()
                with pytest.raises(NanosetError, match=expected) as caught:
                    list(executor.run(abs, [-1]))
                assert bool(heard) == waits
                told.append(str(caught.value))
            assert told[0] == told[1]
        assert looked == [missing.cluster, empty.cluster], (
            "what is not there is not looked for again"
        )
        idle.scale(1)
        assert wait_until(lambda: idle.scheduler.workers)
        assert list(empty.run(abs, [-1])) == [(0, 1)]


def test_sigterm_while_workers_are_waited_for(make_project):
    """As Slurm sends it: the build says what it waits for, and ends in one sentence."""
    config = make_project("spread")
    with within() as idle:
        address = idle.scheduler_address
        process = start_nanoset(
            "build", "--corpus", "web", "-c", config, env={"NANOSET_DASK_ADDRESS": address}
        )
        try:
            said = next(line for line in process.stderr if "waiting for workers" in line)
            assert wait_until(lambda: idle.scheduler.tasks)
            process.terminate()
            said += process.communicate(timeout=60)[1]
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 128 + signal.SIGTERM, said
    assert f"waiting for workers of {address}: 0 s so far, up to 1 min" in said
    assert said.splitlines()[-1].startswith("ended by SIGTERM: ")
    assert "Traceback" not in said


def certificate(folder: Path) -> dict[str, str]:
    """Settings of Dask's own configuration: a client's certificate, and its authority, in files."""
    import distributed

    folder.mkdir()
    settings = {}
    for name, text in distributed.Security.temporary().get_tls_config_for_role("client").items():
        if text is not None:
            (folder / name).write_text(text)
            role = "" if name == "ca_file" else "client."
            settings[f"distributed.comm.tls.{role}{name.replace('_', '-')}"] = str(folder / name)
    return settings


def test_a_cluster_that_takes_nobody_without_its_certificate(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    import dask

    monkeypatch.setattr(dask_scheduler, "CONNECT_SECONDS", 1.0)
    known, foreign = certificate(tmp_path / "known"), certificate(tmp_path / "foreign")
    files = {name: str(tmp_path / "known" / name) for name in ("cert", "key")}
    roles = {
        f"tls_{role}_{name}": file
        for role in ("scheduler", "worker", "client")
        for name, file in files.items()
    }
    authority = str(tmp_path / "known" / "ca_file")
    security = distributed.Security(tls_ca_file=authority, require_encryption=True, **roles)
    with within(protocol="tls", security=security, n_workers=1) as cluster:
        executor = on_scheduler(tmp_path / "shared", cluster.scheduler_address, wait_seconds=0.5)
        assert executor.cluster.name.startswith("tls://")
        with dask.config.set(known):
            assert list(executor.run(abs, [-1])) == [(0, 1)]
        for settings in ({}, foreign):
            with (
                dask.config.set(settings),
                pytest.raises(ConfigError, match="no Dask scheduler answers") as caught,
            ):
                list(executor.run(abs, [-1]))
            assert "certificate" in caught.value.remedy


@pytest.mark.parametrize("is_mute", [True, False])
def test_an_address_that_does_not_answer(tmp_path, monkeypatch, is_mute):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    monkeypatch.setattr(dask_scheduler, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        if not is_mute:
            server.close()
        started = time.monotonic()
        with pytest.raises(ConfigError, match="no Dask scheduler answers") as caught:
            list(
                on_scheduler(
                    tmp_path, address, wait_seconds=0.2, where="n.yaml: executor.address"
                ).run(abs, [1])
            )
        assert time.monotonic() - started < 60, "it waits without end"
    assert caught.value.where == "n.yaml: executor.address"
    assert address in caught.value.found
    assert ("does not answer as a scheduler" in caught.value.found) == is_mute
    assert list(tmp_path.iterdir()) == []


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        list(on_scheduler(tmp_path, "tcp://127.0.0.1:1").run(abs, [1]))
    assert caught.value.remedy.startswith("pip install 'nanoset-platform[dask]'")


def test_no_recipe_knows_of_the_executor(make_project, on):
    """A whole project travels to a worker, and the digests of its outputs do not change."""
    local, spread = Project.open(make_project("local")), Project.open(make_project("spread", on))
    assert local.executor is None
    for project in (local, spread):
        make_inventory(project, "web")
    shards = node_at("tokenized/web")
    digests = [
        shards.stage.recipe(project, shards.key, {"inventory": "0" * 20}).digest
        for project in (local, spread)
    ]
    assert digests[0] == digests[1]
    assert pickle.loads(pickle.dumps(targets(spread)))[0].name == targets(spread)[0].name
