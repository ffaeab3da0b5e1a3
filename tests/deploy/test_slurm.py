"""deploy/slurm on a real Slurm: workers start, end and die, jobs reach their time limit.

The outputs are the same bytes as on one machine, and no job is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableRepository

from helpers.building import build_all, collect_garbage, open_project
from helpers.child_processes import (
    ForkedCommand,
    check_interrupted,
    interrupt,
    start_nanoset,
    wait_until,
)
from helpers.chosen_server import CREDENTIALS, chosen_server
from helpers.dask_cluster import within
from helpers.inspecting import corpus_names
from helpers.progress import RecordingDisplay
from helpers.s3_server import new_bucket
from helpers.sample_project import tree, write_corpus
from helpers.slurm_cluster import Slurm, slurm
from nanoset_assets.assets.partition_sets import register
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.slurm import JOB_TAG, OPTIONS_TAG
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution import slurm_replacement
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.slurm import SlurmJobs
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.local import LocalStore

pytestmark = pytest.mark.slow
"""The tests start a Slurm of several machines."""

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "deploy" / "slurm"
BUILD_SECONDS = 120
JOB_SECONDS = 180
RUN_SECONDS = 120
LAUNCH_SECONDS = 600
"""How long Dagster may take to import everything and launch a run, on a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Slurm]:
    """A Slurm cluster of three nodes, whose jobs find this checkout and this Python."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with slurm(tmp_path_factory.mktemp("slurm")) as started:
        python_folder = str(Path(sys.executable).parent)
        program_folders = [python_folder, started.environment["PATH"]]
        module_folders = [str(REPOSITORY)]
        if os.environ.get("PYTHONPATH"):
            module_folders.append(os.environ["PYTHONPATH"])
        started.environment["PATH"] = os.pathsep.join(program_folders)
        started.environment["PYTHONPATH"] = os.pathsep.join(module_folders)
        started.environment["NANOSET_HOST"] = "127.0.0.1"
        yield started


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_slurm_accepts_every_script(cluster, script):
    cluster.run("sbatch", "--test-only", str(script))


# Tasks on workers


class NotedTasks:
    """Tasks that note where they run, and take some time."""

    def __init__(self, file: Path, variable: str, seconds: float) -> None:
        """Describe the tasks.

        Args:
            file: Where they note the value of the variable.
            variable: An environment variable that says where a task runs.
            seconds: How long each takes.
        """
        self.file = file
        self.variable = variable
        self.seconds = seconds

    def expressions(self, count: int) -> list[str]:
        """Return Python expressions that workers evaluate, one for each task."""
        note = (
            f"open({str(self.file)!r}, 'a')"
            f".write(__import__('os').environ[{self.variable!r}] + '\\n')"
        )
        return [f"{note} and __import__('time').sleep({self.seconds})"] * count

    def places(self) -> list[str]:
        """Return where tasks have started so far."""
        return self.file.read_text().split()


class Workers:
    """Workers in jobs of Slurm, and their scheduler in this process."""

    def __init__(self, cluster: Slurm, scheduler: Any, folder: Path) -> None:
        """Describe a scheduler without workers.

        Args:
            cluster: Where the workers are to run.
            scheduler: The scheduler.
            folder: The folder of the project, in which workers find the scheduler's address.
        """
        self.cluster = cluster
        self.scheduler = scheduler
        self.folder = folder
        self.scheduler_file = folder / ".nanoset" / "dask" / "scheduler.json"
        self.shared = FileAccess(folder / "shared")

    def submit(self, elements: str, *options: str) -> str:
        """Submit an array of workers, and return the number of its job."""
        return self.cluster.submit(
            SCRIPTS / "workers.sbatch",
            sbatch_options=["--array", elements, "--cpus-per-task=1", *options],
            folder=self.folder,
        )

    def executor(self, wait_seconds: int = 60, **options: Any) -> ClusterExecutor:
        """Return an executor that waits some time for workers."""
        scheduler = DaskScheduler(file=self.scheduler_file, wait_seconds=wait_seconds)
        return ClusterExecutor(scheduler, self.shared, **options)


@pytest.fixture
def workers(cluster, tmp_path) -> Iterator[Workers]:
    """A scheduler in this process, for which workers can be submitted."""
    with within() as scheduler, connections_kept():
        workers = Workers(cluster, scheduler.scheduler, tmp_path)
        workers.scheduler_file.parent.mkdir(parents=True)
        address = {"address": scheduler.scheduler_address}
        workers.scheduler_file.write_text(json.dumps(address))
        yield workers
        cluster.cancel_all()


def run_six_tasks(
    workers: Workers, tasks: NotedTasks, end_worker: Callable[[str], object]
) -> list[str]:
    """Run tasks, end a worker in the middle of a task, and return where tasks were started.

    Args:
        workers: Run the tasks.
        tasks: The tasks.
        end_worker: Ends the worker at the place where the newest task runs.
    """
    results = workers.executor().run(eval, tasks.expressions(6))
    next(results)
    end_worker(tasks.places()[-1])
    assert len(list(results)) == 5
    return tasks.places()


def test_tasks_of_a_worker_that_is_cancelled_or_whose_node_dies_are_repeated(
    cluster, workers, tmp_path
):
    # Each node has one worker.
    array = workers.submit("0-2", "--exclusive")
    cluster.until(lambda: len(workers.scheduler.workers) == 3)

    # A worker is cancelled: its task is started again elsewhere.
    tasks = NotedTasks(tmp_path / "elements", "SLURM_ARRAY_TASK_ID", 1.0)
    places = run_six_tasks(
        workers, tasks, lambda element: cluster.run("scancel", f"{array}_{element}")
    )
    assert len(places) > 6

    # A node dies.
    tasks = NotedTasks(tmp_path / "nodes", "SLURMD_NODENAME", 1.0)
    places = run_six_tasks(workers, tasks, cluster.kill_node)
    assert len(places) > 6
    cluster.start()


def test_a_build_waits_for_queued_workers_and_continues_on_their_successors(
    cluster, workers, tmp_path
):
    # One element of the array runs at a time, and none before it is released. It is released as
    # soon as the executor has reported a few times that it waits.
    array = workers.submit("0-9%1", "--hold")
    reports: list[str] = []

    def release(news: Any) -> None:
        reports.append(news.name)
        if reports == [news.name] * 3:
            cluster.run("scontrol", "release", array)

    display = RecordingDisplay(release)
    tasks = NotedTasks(tmp_path / "elements", "SLURM_ARRAY_TASK_ID", 0.5)
    results = workers.executor(progress=display.progress).run(eval, tasks.expressions(4))
    next(results)
    assert reports[0] == f"for workers of {workers.scheduler_file}"

    # The first element is ended by SIGTERM, as at its time limit; the next one takes over.
    cluster.run("scancel", f"{array}_{tasks.places()[-1]}")
    assert len(list(results)) == 3
    assert set(tasks.places()) == {"0", "1"}


def test_a_build_whose_workers_were_cancelled_gives_up_after_some_time(cluster, workers):
    array = workers.submit("0")
    cluster.until(lambda: len(workers.scheduler.workers) == 1)
    cluster.run("scancel", array)
    cluster.until(lambda: not workers.scheduler.workers)
    executor = workers.executor(wait_seconds=1)

    with pytest.raises(MissingError, match="has no workers"):
        list(executor.run(abs, [-1]))


def test_a_build_that_reaches_its_time_limit_is_continued_by_a_new_job(
    cluster, make_project, tmp_path
):
    local_project = build_all(make_project("local"))
    folder = make_project("spread").parent

    # One job has the scheduler, the workers and the build. When it has made shards, it is signalled
    # as Slurm does shortly before the time limit.
    job = cluster.submit(
        SCRIPTS / "coordinator.sbatch",
        "--corpus",
        "web",
        sbatch_options=["--ntasks=2", "--mem-per-cpu=100M", "--output=log"],
        folder=folder,
    )
    shards = folder / "data" / "shards"
    cluster.until(lambda: any(shards.glob("web/*/manifest.json")), BUILD_SECONDS)
    cluster.run("scancel", "--batch", "--signal=USR1", job)

    # It is requeued, and completes the build.
    cluster.until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), JOB_SECONDS)
    log = (folder / "log").read_text()
    assert cluster.state(job) == "COMPLETED", log
    assert log.count("ended by SIGTERM: ") == 1, log
    files = tree(folder / "data" / "datasets" / "web")
    assert files
    assert files == tree(local_project.outputs.folder / "datasets" / "web")


# Which coordinator the workers belong to


@pytest.fixture
def run_folder(cluster, tmp_path) -> Iterator[Path]:
    """The folder in which a coordinator and its workers meet, of a project without text."""
    folder = tmp_path / ".nanoset" / "dask"
    folder.mkdir(parents=True)
    yield folder
    cluster.cancel_all()


def submit_coordinator(cluster: Slurm, run_folder: Path, *options: str) -> str:
    """Submit a job that sleeps, let it be the coordinator of a folder, and return its number."""
    script = run_folder / "sleeping.sbatch"
    script.write_text("#!/bin/bash\nsleep 600\n")
    job = cluster.submit(script, sbatch_options=["--output=/dev/null", *options])
    (run_folder / "job").symlink_to(job)
    return job


def submit_workers(cluster: Slurm, run_folder: Path, elements: str, seconds: int = 600) -> str:
    """Submit an array of workers that run for some time, and return the number of its job."""
    text = (SCRIPTS / "workers.sbatch").read_text()
    script = run_folder / "workers.sbatch"
    script.write_text(text.replace("lifetime=3000", f"lifetime={seconds}"))
    options = ["--array", elements, "--cpus-per-task=1"]
    return cluster.submit(script, sbatch_options=options, folder=run_folder.parents[1])


def test_a_second_coordinator_in_a_folder_is_refused(cluster, run_folder):
    first_job = submit_coordinator(cluster, run_folder)
    scheduler_file = run_folder / "scheduler.json"
    scheduler_file.write_text("of the first job")

    second_job = cluster.submit(
        SCRIPTS / "coordinator.sbatch",
        sbatch_options=["--output=log"],
        folder=run_folder.parents[1],
    )

    cluster.until(lambda: cluster.state(second_job) in ("COMPLETED", "FAILED"))
    log = (run_folder.parents[1] / "log").read_text()
    assert log.startswith(f"job {first_job} is already the coordinator of this folder"), log
    assert cluster.state(second_job) == "FAILED"
    assert scheduler_file.read_text() == "of the first job"


def test_a_worker_whose_time_is_over_is_queued_again_while_its_coordinator_is_in_the_queue(
    cluster, run_folder
):
    submit_coordinator(cluster, run_folder, "--hold")

    array = submit_workers(cluster, run_folder, "0", seconds=1)

    cluster.until(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", f"{array}_0"))


def test_an_array_of_workers_ends_when_its_coordinator_has_been_cancelled(cluster, run_folder):
    job = submit_coordinator(cluster, run_folder)
    cluster.run("scancel", job)

    submit_workers(cluster, run_folder, "0-9%1")

    # The first element finds out, and cancels those that have not started.
    cluster.until(lambda: not cluster.queue(), JOB_SECONDS)
    assert len(list(run_folder.parents[1].glob("slurm-*_*.log"))) == 1


# Builds that submit their own workers


@pytest.fixture
def _submitting_environment(cluster, monkeypatch) -> None:
    """Let this process, and those that it starts, submit jobs to the cluster."""
    pytest.importorskip("dask_jobqueue", reason="the extra `slurm` is not installed")
    for name in ("SLURM_CONF", "PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")


@pytest.fixture
def store(tmp_path, monkeypatch, request) -> Iterator[Store]:
    """The store of outputs: a folder or a bucket."""
    if request.param == "a folder":
        yield LocalStore(tmp_path / "data")
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with chosen_server(tmp_path / "server") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield new_bucket(endpoint, "root")


@pytest.fixture
def start_build(tmp_path, tokenizer_file, store, _submitting_environment) -> Callable[..., Any]:
    """A function that starts a build of one corpus, with directives for its jobs.

    The build is a fork of a process that has imported nanoset, or a new program.
    """

    def start(*directives: str, is_forked: bool = True) -> Any:
        root = str(store.folder) if isinstance(store, LocalStore) else store.url()
        executor = {"kind": "slurm", "jobs": 2, "memory": "1GB", "directives": directives}
        settings = {"root": root, "executor": executor}
        config_file = write_corpus(tmp_path, tokenizer_file, settings)
        if is_forked:
            return ForkedCommand("build", "-c", config_file, output=tmp_path / "printed")
        return start_nanoset("build", "-c", config_file)

    return start


def manifests_of(store: Store, stage: str) -> list[str]:
    """Return the names of all complete manifests of a stage."""
    names = []
    for file in store.list(stage):
        if file.name.endswith("/manifest.json") and "/.tmp-" not in file.name:
            names.append(file.name)
    return names


class Interruption(NamedTuple):
    """When and how a build is interrupted."""

    moment: str
    signals: list[signal.Signals]
    directives: tuple[str, ...] = ()
    """Directives for the jobs of the build."""
    is_forked: bool = True
    """Whether the build is a fork, and not a new program."""


IN_THE_QUEUE = "in the queue"
AMID_SHARDS = "amid shards"
AT_THE_MERGE = "at the merge"


def has_come(moment: str, cluster: Slurm, store: Store) -> bool:
    """Return whether a build has come to a moment."""
    if moment == IN_THE_QUEUE:
        return bool(cluster.queue())
    stages = {AMID_SHARDS: "shards", AT_THE_MERGE: "tokenized"}
    return bool(manifests_of(store, stages[moment]))


@pytest.mark.parametrize(
    ("store", "interruption"),
    [
        pytest.param(
            "a folder",
            Interruption(
                IN_THE_QUEUE, [signal.SIGINT, signal.SIGINT], ("--hold",), is_forked=False
            ),
            id="in the queue, by SIGINT twice, outputs in a folder",
        ),
        pytest.param(
            "a bucket",
            Interruption(IN_THE_QUEUE, [signal.SIGTERM], ("--hold",)),
            id="in the queue, by SIGTERM, outputs in a bucket",
        ),
        pytest.param(
            "a folder",
            Interruption(AMID_SHARDS, [signal.SIGHUP]),
            id="amid shards, by SIGHUP, outputs in a folder",
        ),
        pytest.param(
            "a bucket",
            Interruption(AMID_SHARDS, [signal.SIGINT, signal.SIGINT]),
            id="amid shards, by SIGINT twice, outputs in a bucket",
        ),
        pytest.param(
            "a folder",
            Interruption(AT_THE_MERGE, [signal.SIGTERM]),
            id="at the merge, by SIGTERM, outputs in a folder",
        ),
    ],
    indirect=["store"],
)
def test_a_signal_ends_a_build_and_its_jobs(cluster, start_build, store, tmp_path, interruption):
    # As with every other executor: see tests/cli/test_interruption.py.
    process = start_build(*interruption.directives, is_forked=interruption.is_forked)

    # A terminal sends Ctrl-C to all its processes.
    output = interrupt(
        process,
        interruption.signals,
        lambda: has_come(interruption.moment, cluster, store),
        group=True,
    )

    # The build has ended with one sentence, and so have its jobs.
    check_interrupted(process, output, interruption.signals[0])
    cluster.until(lambda: not cluster.queue())

    # Only logs are left of them.
    suffixes = {path.suffix for path in (tmp_path / ".nanoset" / "slurm").iterdir()}
    assert suffixes <= {".out", ".err"}
    assert not list(store.list(".in-use"))


@pytest.mark.parametrize("store", ["a folder", "a bucket"], indirect=True)
def test_garbage_collection_removes_what_a_killed_build_has_left(
    cluster, start_build, store, tmp_path
):
    process = start_build()
    has_shards = wait_until(lambda: manifests_of(store, "shards"), BUILD_SECONDS)
    assert has_shards, process.communicate()
    process.kill()
    process.communicate()

    # Left are keys, which others cannot read, leases, and files of workers.
    key_folders = [path for path in (tmp_path / ".nanoset" / "slurm").iterdir() if path.is_dir()]
    modes = [oct((folder / "key").stat().st_mode) for folder in key_folders]
    assert modes == ["0o100600"]
    assert list(store.list(".in-use"))
    assert list(store.list(".workers"))

    # When the jobs have ended by themselves, everything can be removed.
    cluster.until(lambda: not cluster.queue())
    collect_garbage(open_project(tmp_path / "nanoset.yaml"))
    assert not any(folder.exists() for folder in key_folders)
    assert not list(store.list(".in-use"))
    assert not list(store.list(".workers"))


@pytest.fixture
def small_jobs(tmp_path, _submitting_environment, monkeypatch) -> SlurmJobs:
    """Two jobs, whose replacement does not take long."""
    import dask

    dask.config.refresh()  # reads the environment
    monkeypatch.setattr(slurm_replacement, "_CHECK_SECONDS", 2.0)
    return SlurmJobs(
        jobs=2,
        cpus=1,
        memory="200MB",
        seconds=600,
        folder=tmp_path / "logs",
        directives=("--nice=0",),
    )


def n_jobs_in_state(cluster: Slurm, state: str) -> int:
    """Return how many jobs of this user have a state, such as RUNNING."""
    return len(cluster.run("squeue", "-h", "-t", state, "-o", "%i").split())


@pytest.mark.parametrize("cpus", [1, 2])
def test_a_job_that_is_cancelled_is_replaced_by_another_one(cluster, small_jobs, tmp_path, cpus):
    tasks = NotedTasks(tmp_path / "jobs", "SLURM_JOB_ID", 0.5)
    jobs = replace(small_jobs, cpus=cpus)

    with connections_kept():
        results = ClusterExecutor(jobs, FileAccess(tmp_path / "shared")).run(
            eval, tasks.expressions(6)
        )
        next(results)
        cancelled_job = tasks.places()[-1]
        cluster.run("scancel", cancelled_job)
        assert len(list(results)) == 5
        cluster.until(lambda: cluster.state(cancelled_job) == "CANCELLED")
        cluster.until(lambda: n_jobs_in_state(cluster, "RUNNING") == 2)

    # The jobs end with the connection.
    cluster.until(lambda: not cluster.queue())


def test_a_job_that_is_cancelled_in_the_queue_is_replaced_by_another_one(
    cluster, small_jobs, tmp_path
):
    jobs = replace(small_jobs, jobs=1, directives=("--hold",))
    cancelled_jobs = []

    def cancel_first_job(_: Any) -> None:
        job = cluster.queue()
        if job and not cancelled_jobs:
            cancelled_jobs.append(job.split()[0])
            cluster.run("scancel", *cancelled_jobs)
        elif job:
            cluster.run("scontrol", "release", job.split()[0])

    display = RecordingDisplay(cancel_first_job)
    executor = ClusterExecutor(jobs, FileAccess(tmp_path / "shared"), progress=display.progress)

    assert list(executor.run(abs, [-1])) == [(0, 1)]
    assert cancelled_jobs


def test_jobs_that_die_before_their_workers_connect_are_an_error_with_the_end_of_a_log(
    small_jobs, tmp_path, caplog
):
    import dask

    executor = ClusterExecutor(small_jobs, FileAccess(tmp_path / "shared"))
    prologue = ["echo no such file system >&2", "exit 127"]

    with (
        dask.config.set({"jobqueue.slurm.job-script-prologue": prologue}),
        pytest.raises(MissingError, match="end before their workers can connect") as caught,
    ):
        list(executor.run(abs, [-1]))

    # Two jobs at a time, which are replaced twice.
    assert "6 such jobs; job " in caught.value.found
    assert caught.value.found.endswith(": no such file system")
    assert "another takes its place" in caplog.text


@pytest.mark.usefixtures("_submitting_environment")
def test_jobs_that_slurm_refuses_are_an_error_with_its_message(tmp_path):
    jobs = SlurmJobs(
        jobs=1, cpus=1, memory="1GB", seconds=600, folder=tmp_path / "logs", partition="nowhere"
    )
    executor = ClusterExecutor(jobs, FileAccess(tmp_path / "shared"))

    with pytest.raises(ConfigError, match="Slurm refuses the jobs") as caught:
        list(executor.run(eval, ["1"]))

    assert "partition" in caught.value.found


# Runs of Dagster that are jobs of Slurm


NAP_MODULE = """
import time
import dagster as dg

@dg.op
def nap():
    time.sleep(600)

@dg.job
def napping():
    nap()
"""
"""A code location with a job that takes long."""


@dataclass(frozen=True)
class JobHealth:
    """What the launcher reports of a run's job."""

    status: str
    message: str | None


class LaunchedRuns:
    """A Dagster whose runs are jobs of a Slurm."""

    def __init__(self, cluster: Slurm, instance: dg.DagsterInstance, folder: Path) -> None:
        """Start without runs.

        Args:
            cluster: Where runs are executed.
            instance: The history of runs.
            folder: The current folder of commands.
        """
        self.cluster = cluster
        self.instance = instance
        self._folder = folder

    def launch_by_command(self, *arguments: str, tags: dict[str, str]) -> str:
        """Launch a run as a user does, and return its id.

        Args:
            arguments: Arguments of `dagster job launch` that name a job.
            tags: Tags of the run.
        """
        run_id = "00000000-0000-4000-8000-000000000001"
        self.cluster.run(
            sys.executable,
            *("-m", "dagster", "job", "launch", "--run-id", run_id),
            *("--tags", json.dumps(tags)),
            *arguments,
            cwd=self._folder,
            env=os.environ,
            timeout=LAUNCH_SECONDS,
        )
        return run_id

    def create_nap(self, options: str = "") -> str:
        """Create a run of the job that takes long, and return its id.

        Args:
            options: Options of Slurm for its job.
        """
        file = str(self._folder / "napping.py")
        code = ReconstructableRepository.for_file(file, "napping", str(self._folder))
        job = code.get_reconstructable_job("napping")
        run = self.instance.create_run_for_job(
            job.get_definition(),
            tags={OPTIONS_TAG: options},
            job_code_origin=job.get_python_origin(),
        )
        return run.run_id

    def launch_nap(self, options: str = "") -> str:
        """Launch a run as Dagster's daemon does, and return its id.

        Args:
            options: Options of Slurm for its job.
        """
        run_id = self.create_nap(options)
        # The launcher does not need the code locations.
        self.instance.launch_run(run_id, workspace=None)
        return run_id

    def run(self, run_id: str) -> dg.DagsterRun:
        """Return a run as it is now."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def job_of(self, run_id: str) -> str:
        """Return the number of a run's job."""
        return self.run(run_id).tags[JOB_TAG]

    def until(self, run_id: str, status: str) -> dg.DagsterRun:
        """Wait until a run has a status, and return it."""
        self.cluster.until(lambda: self.run(run_id).status.value == status, RUN_SECONDS)
        return self.run(run_id)

    def until_step(self, run_id: str) -> None:
        """Wait until a run executes a step.

        Dagster loses a signal that arrives earlier, between the start of the run and that of the
        process of its first step.
        """
        step_start = dg.DagsterEventType.STEP_START
        self.cluster.until(lambda: self.instance.all_logs(run_id, of_type=step_start), RUN_SECONDS)

    def terminate(self, run_id: str) -> bool:
        """Cancel a run, and return whether there was something to cancel."""
        return self.instance.run_launcher.terminate(run_id)

    def health(self, run_id: str) -> JobHealth:
        """Return what the launcher reports of a run's job."""
        result = self.instance.run_launcher.check_run_worker_health(self.run(run_id))
        return JobHealth(result.status.value, result.msg)


@pytest.fixture
def runs(cluster, tmp_path, monkeypatch) -> Iterator[LaunchedRuns]:
    """A Dagster whose runs are jobs of the cluster."""
    settings = {
        "telemetry": {"enabled": False},
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": "DefaultRunCoordinator",
        },
        "run_launcher": {
            "module": "nanoset_assets.slurm",
            "class": "SlurmRunLauncher",
            "config": {
                "log_folder": str(tmp_path / "logs"),
                "options": ["--mem=100M", "--ntasks=1"],
            },
        },
    }
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "napping.py").write_text(NAP_MODULE)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield LaunchedRuns(cluster, instance, tmp_path)
    cluster.cancel_all()


def test_a_run_is_executed_by_a_job(runs, make_project, monkeypatch):
    local_project = build_all(make_project("local"))
    config_file = make_project("slurm")
    monkeypatch.setenv("NANOSET_CONFIG", str(config_file))
    project = open_project(config_file)
    names = ProjectDefs.of(project.config).names
    register(runs.instance, names, corpus_names(project), project.config)

    run_id = runs.launch_by_command(
        *("-m", "nanoset_assets.definitions", "-j", "corpus"), tags={"dagster/partition": "web"}
    )

    # The run succeeds, and then its job is completed.
    run = runs.until(run_id, "SUCCESS")
    completed = JobHealth("SUCCESS", f"Slurm job {run.tags[JOB_TAG]} is COMPLETED")
    runs.cluster.until(lambda: runs.health(run_id) == completed)

    files = tree(config_file.parent / "data" / "datasets" / "web")
    assert files == tree(local_project.outputs.folder / "datasets" / "web")


def test_a_run_whose_job_is_queued_can_be_cancelled(runs):
    run_id = runs.launch_nap("--hold")
    assert runs.health(run_id) == JobHealth(
        "RUNNING", f"Slurm job {runs.job_of(run_id)} is PENDING"
    )

    assert runs.terminate(run_id)

    assert runs.run(run_id).status == dg.DagsterRunStatus.CANCELED
    assert not runs.terminate(run_id)


def test_a_run_whose_job_somebody_has_cancelled_can_be_cancelled(runs):
    run_id = runs.launch_nap("--hold")
    runs.cluster.run("scancel", runs.job_of(run_id))

    assert runs.terminate(run_id)

    assert runs.run(run_id).status == dg.DagsterRunStatus.CANCELED
    assert not runs.terminate(run_id)


def test_a_run_that_has_started_can_be_cancelled(runs):
    run_id = runs.launch_nap()
    runs.until_step(run_id)
    assert runs.health(run_id) == JobHealth(
        "RUNNING", f"Slurm job {runs.job_of(run_id)} is RUNNING"
    )

    assert runs.terminate(run_id)

    runs.until(run_id, "CANCELED")
    runs.cluster.until(lambda: not runs.cluster.queue())


def test_a_run_whose_job_was_killed_is_reported_as_failed_with_its_log(runs):
    run_id = runs.launch_nap()
    runs.until_step(run_id)

    runs.cluster.run("scancel", "--batch", "--signal=KILL", runs.job_of(run_id))

    runs.cluster.until(lambda: runs.health(run_id).status == "FAILED")
    info = runs.instance.run_launcher.get_run_worker_debug_info(runs.run(run_id))
    assert f"slurm-{runs.job_of(run_id)}.log" in info
    assert "JobState=FAILED" in info


def test_a_run_that_reaches_the_time_limit_of_its_job_fails_so_that_it_is_retried(runs):
    run_id = runs.launch_nap()
    runs.until_step(run_id)

    # As Slurm does shortly before the limit.
    runs.cluster.run("scancel", "--batch", "--signal=TERM", runs.job_of(run_id))

    run = runs.until(run_id, "FAILURE")
    # Dagster retries only runs that failed for this reason.
    assert run.tags["dagster/failure_reason"] == "UNEXPECTED_TERMINATION"


def test_a_run_that_slurm_refuses_has_failed_with_its_message(runs):
    run_id = runs.create_nap("--partition=nowhere")

    with pytest.raises(ConfigError, match="Slurm refuses the run"):
        runs.instance.launch_run(run_id, workspace=None)

    events = [str(record.dagster_event) for record in runs.instance.all_logs(run_id)]
    log = "\n".join(events)
    assert runs.run(run_id).status == dg.DagsterRunStatus.FAILURE
    assert "Slurm refuses the run" in log
    assert "partition" in log


def test_a_job_that_slurm_does_not_know_is_not_found(runs):
    run = dg.DagsterRun(job_name="napping", run_id="b" * 32, tags={JOB_TAG: "99999999"})

    result = runs.instance.run_launcher.check_run_worker_health(run)

    assert result.status.value == "NOT_FOUND"
