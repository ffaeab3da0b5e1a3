"""deploy/slurm on a real Slurm: workers come, go and die, jobs end at their time limit, and the
bytes are the same.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

from helpers.building import build_all, collect_garbage, open_project
from helpers.child_processes import check_interrupted, interrupt, start_nanoset, wait_until
from helpers.chosen_server import CREDENTIALS, chosen_server
from helpers.dask_cluster import within
from helpers.inspecting import corpus_names
from helpers.progress import RecordingDisplay
from helpers.s3_server import new_bucket
from helpers.sample_project import tree, write_corpus
from helpers.slurm_cluster import Slurm, slurm
from nanoset_assets.partition_sets import register
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.slurm import JOB_TAG, OPTIONS_TAG
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.dask import DaskExecutor
from nanoset_core.execution.dask_connection import connections_kept
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.slurm import SlurmJobs
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.local import LocalStore

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"
NAP = (
    "open({file!r}, 'a').write(__import__('os').environ['{variable}'] + '\\n') and "
    "__import__('time').sleep({seconds})"
)
"""A task that notes where it runs."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    folder = tmp_path_factory.mktemp("slurm")
    with slurm(folder) as started:
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        started.environment |= {
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), started.environment["PATH"]]
            ),
            "PYTHONPATH": os.pathsep.join(paths),
            "NANOSET_HOST": "127.0.0.1",
        }
        yield started


@pytest.fixture
def workers(cluster, tmp_path):
    """Submits an array of workers for a scheduler in this process; → its executor."""
    run = tmp_path / ".nanoset" / "dask"
    run.mkdir(parents=True)
    with within() as scheduler, connections_kept():
        (run / "scheduler.json").write_text(json.dumps({"address": scheduler.scheduler_address}))
        at = DaskScheduler(file=run / "scheduler.json", wait_seconds=60)

        def submit(elements: str, *options: str) -> str:
            given = ("--array", elements, "--cpus-per-task=1", *options)
            return cluster.submit(SCRIPTS / "workers.sbatch", options=given, cwd=tmp_path)

        submit.executor = DaskExecutor(at, FileAccess(tmp_path / "shared"))
        submit.scheduler = scheduler.scheduler
        yield submit
        cluster.run("scancel", "--user", str(os.getuid()))
        cluster.until(lambda: not cluster.run("squeue", "-h"))


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_slurm_takes_every_script(cluster, script):
    cluster.run("sbatch", "--test-only", str(script))


def naps(tmp_path: Path, variable: str, seconds: float, count: int) -> tuple[Path, list[str]]:
    noted = tmp_path / "noted"
    return noted, [NAP.format(file=str(noted), variable=variable, seconds=seconds)] * count


def test_a_worker_is_cancelled_and_a_node_dies(cluster, workers, tmp_path):
    """In the middle of a task, which another one does."""
    array = workers("0-2", "--exclusive")  # one a node
    cluster.until(lambda: len(workers.scheduler.workers) == 3)
    ends = {"SLURM_ARRAY_TASK_ID": lambda number: cluster.run("scancel", f"{array}_{number}")}
    ends["SLURMD_NODENAME"] = cluster.kill_node
    for variable, end in ends.items():
        noted, tasks = naps(tmp_path, variable, 1.0, 6)
        results = workers.executor.run(eval, tasks)
        next(results)
        end(noted.read_text().split()[-1])
        assert len(list(results)) == 5
        assert len(noted.read_text().split()) > 6, "none was under way"
        noted.unlink()
    cluster.start()


def test_an_array_waits_in_the_queue_is_renewed_and_cancelled(cluster, workers, tmp_path):
    """Each element is ended by SIGTERM, as at its time limit, and the next one begins."""
    heard: list[str] = []
    array = workers("0-9%1", "--hold")

    def release(news):
        heard.append(news.name)
        if heard == [news.name] * 3:
            cluster.run("scontrol", "release", array)

    at = workers.executor.cluster
    shown = RecordingDisplay(release)
    held = DaskExecutor(at, workers.executor.shared, progress=shown.progress)
    noted, tasks = naps(tmp_path, "SLURM_ARRAY_TASK_ID", 0.5, 4)
    results = held.run(eval, tasks)
    next(results)
    assert heard[0] == f"for workers of {at.file}"
    cluster.run("scancel", f"{array}_{noted.read_text().split()[-1]}")
    assert len(list(results)) == 3
    assert set(noted.read_text().split()) == {"0", "1"}
    cluster.run("scancel", array)
    cluster.until(lambda: not workers.scheduler.workers)
    hasty = DaskScheduler(file=at.file, wait_seconds=1)
    with pytest.raises(MissingError, match="has no workers"):
        list(DaskExecutor(hasty, workers.executor.shared).run(abs, [-1]))


def test_a_build_goes_on_after_its_time_limit(cluster, make_project, tmp_path):
    """One allocation of scheduler, workers and build, told as Slurm tells it that its time is
    nearly over.
    """
    local = build_all(make_project("local"))
    folder = make_project("spread").parent
    options = ("--ntasks=2", "--mem-per-cpu=100M", "--output=log")
    job = cluster.submit(
        SCRIPTS / "coordinator.sbatch", "--corpus", "web", options=options, cwd=folder
    )
    cluster.until(lambda: any((folder / "data" / "shards").glob("web/*/manifest.json")), 120)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.until(lambda: cluster.state(job) in ("COMPLETED", "FAILED"), 180)
    log = (folder / "log").read_text()
    assert cluster.state(job) == "COMPLETED", log
    assert log.count("ended by SIGTERM: ") == 1, log
    assert (folder / ".nanoset" / "dask" / "ended").exists()
    built = tree(folder / "data" / "datasets" / "web")
    assert built
    assert built == tree(local.outputs.folder / "datasets" / "web")


@pytest.fixture
def submits(cluster, monkeypatch):
    """This process, and what it starts, submits jobs to the cluster."""
    pytest.importorskip("dask_jobqueue", reason="the extra `slurm` is not installed")
    for name in ("SLURM_CONF", "PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setenv("DASK_JOBQUEUE__SLURM__INTERFACE", "lo")


@pytest.fixture
def place(tmp_path, monkeypatch, request):
    """Where outputs go: a folder, or a bucket."""
    if request.param == "a folder":
        yield LocalStore(tmp_path / "data")
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with chosen_server(tmp_path / "server") as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield new_bucket(address, "root")


def start_build(folder, tokenizer_file, place, *directives):
    jobs = {"kind": "slurm", "jobs": 2, "memory": "1GB", "directives": directives}
    root = str(place.folder) if isinstance(place, LocalStore) else place.url()
    return start_nanoset(
        "build", "-c", write_corpus(folder, tokenizer_file, {"root": root, "executor": jobs})
    )


def manifests(place, stage):
    return [
        one
        for one in place.list(stage)
        if one.name.endswith("/manifest.json") and "/.tmp-" not in one.name
    ]


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
MOMENTS = {
    "in the queue": lambda cluster, place: cluster.run("squeue", "-h"),
    "amid shards": lambda cluster, place: manifests(place, "shards"),
    "at the merge": lambda cluster, place: manifests(place, "tokenized"),
}
ENDS = [
    ("in the queue", "a folder", [INT, INT]),
    ("in the queue", "a bucket", [TERM]),
    ("amid shards", "a folder", [HUP]),
    ("amid shards", "a bucket", [INT, INT]),
    ("at the merge", "a folder", [TERM]),
]


@pytest.mark.parametrize(("moment", "place", "numbers"), ENDS, indirect=["place"])
def test_a_signal_ends_a_build_and_its_jobs(
    cluster, submits, tmp_path, tokenizer_file, place, moment, numbers
):
    """As with every other executor: tests/cli/test_interruption.py. A terminal's Ctrl-C comes to
    all its processes.
    """
    process = start_build(
        tmp_path, tokenizer_file, place, *(["--hold"] if moment == "in the queue" else [])
    )
    said = interrupt(process, numbers, lambda: MOMENTS[moment](cluster, place), group=True)
    check_interrupted(process, said, numbers[0])
    cluster.until(lambda: not cluster.run("squeue", "-h"))
    assert {path.suffix for path in (tmp_path / ".nanoset" / "slurm").iterdir()} <= {
        ".out",
        ".err",
    }, "logs"
    assert not list(place.list(".in-use"))


@pytest.mark.parametrize("place", ["a folder", "a bucket"], indirect=True)
def test_what_a_killed_build_leaves_goes(cluster, submits, tmp_path, tokenizer_file, place):
    process = start_build(tmp_path, tokenizer_file, place)
    assert wait_until(lambda: manifests(place, "shards"), 120), process.communicate()
    process.kill()
    process.communicate()
    keys = [path for path in (tmp_path / ".nanoset" / "slurm").iterdir() if path.is_dir()]
    assert [oct((folder / "key").stat().st_mode) for folder in keys] == ["0o100600"]
    assert list(place.list(".in-use"))
    assert list(place.list(".workers"))
    cluster.until(lambda: not cluster.run("squeue", "-h"))
    collect_garbage(open_project(tmp_path / "nanoset.yaml"))
    assert not any(path.exists() for path in keys)
    assert not list(place.list(".in-use"))
    assert not list(place.list(".workers"))


def test_a_build_that_starts_its_own_workers(cluster, submits, tmp_path):
    import dask

    dask.config.refresh()
    jobs = SlurmJobs(
        jobs=2,
        cpus=1,
        memory="200MB",
        seconds=600,
        folder=tmp_path / "logs",
        directives=("--nice=0",),
    )
    shared = FileAccess(tmp_path / "shared")
    noted, tasks = naps(tmp_path, "SLURM_JOB_ID", 0.5, 6)
    with connections_kept():
        results = DaskExecutor(jobs, shared).run(eval, tasks)
        next(results)
        cluster.run("scancel", noted.read_text().split()[-1])
        assert len(list(results)) == 5
        cluster.until(
            lambda: cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%i").count("\n") == 1
        )
    cluster.until(lambda: not cluster.run("squeue", "-h"))
    refused = SlurmJobs(
        jobs=1, cpus=1, memory="1GB", seconds=600, folder=tmp_path / "logs", partition="nowhere"
    )
    with pytest.raises(ConfigError, match="Slurm refuses the jobs") as caught:
        list(DaskExecutor(refused, shared).run(eval, ["1"]))
    assert "partition" in caught.value.found


NAPPING = """
import time
import dagster as dg

@dg.op
def nap():
    time.sleep(600)

@dg.job
def napping():
    nap()
"""


NAP_RUN = ("-f", "napping.py", "-j", "napping")


class Runs:
    """A Dagster whose runs are jobs of a Slurm."""

    def __init__(self, cluster: Slurm, instance: dg.DagsterInstance, folder: Path) -> None:
        self.cluster, self.instance, self._folder, self._count = cluster, instance, folder, 0

    def launch(self, *asked: str, code: int = 0, **tags: str) -> str:
        """Launch a run as a user does; → its id."""
        self._count += 1
        run_id = f"00000000-0000-4000-8000-{self._count:012}"
        given = [
            "--run-id",
            run_id,
            "--tags",
            json.dumps({name.replace("_", "/"): tag for name, tag in tags.items()}),
        ]
        launch = (sys.executable, "-m", "dagster", "job", "launch")
        self.cluster.run(*launch, *given, *asked, cwd=self._folder, env=os.environ, code=code)
        return run_id

    def job(self, run_id: str) -> str:
        """Number of a run's job."""
        return self.run(run_id).tags[JOB_TAG]

    def run(self, run_id: str) -> dg.DagsterRun:
        """A run as it is now."""
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def until(self, run_id: str, status: str) -> dg.DagsterRun:
        """Wait for a status of a run."""
        self.cluster.until(lambda: self.run(run_id).status.value == status, 120)
        return self.run(run_id)

    def health(self, run_id: str) -> tuple[str, str | None]:
        """What the launcher says of a run's job."""
        found = self.instance.run_launcher.check_run_worker_health(self.run(run_id))
        return found.status.value, found.msg


@pytest.fixture
def runs(cluster, tmp_path, monkeypatch) -> Iterator[Runs]:
    home = tmp_path / "home"
    home.mkdir()
    launcher = {"log_folder": str(tmp_path / "logs"), "options": ["--mem=100M", "--ntasks=1"]}
    settings = {
        "telemetry": {"enabled": False},
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": "DefaultRunCoordinator",
        },
        "run_launcher": {
            "module": "nanoset_assets.slurm",
            "class": "SlurmRunLauncher",
            "config": launcher,
        },
    }
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "napping.py").write_text(NAPPING)
    for name, value in (cluster.environment | {"DAGSTER_HOME": str(home)}).items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield Runs(cluster, instance, tmp_path)
    cluster.run("scancel", "--user", str(os.getuid()))
    cluster.until(lambda: not cluster.run("squeue", "-h"))


def test_a_run_of_dagster_is_a_job(runs, make_project, monkeypatch):
    local, config = build_all(make_project("local")), make_project("slurm")
    monkeypatch.setenv("NANOSET_CONFIG", str(config))
    project = open_project(config)
    register(
        runs.instance, ProjectDefs.of(project.config).names, corpus_names(project), project.config
    )
    run_id = runs.launch(
        "-m", "nanoset_assets.definitions", "-j", "corpus", dagster_partition="web"
    )
    run = runs.until(run_id, "SUCCESS")
    runs.cluster.until(
        lambda: runs.health(run_id) == ("SUCCESS", f"Slurm job {run.tags[JOB_TAG]} is COMPLETED")
    )
    assert tree(config.parent / "data" / "datasets" / "web") == tree(
        local.outputs.folder / "datasets" / "web"
    )


def test_a_run_is_cancelled_before_its_job_begins_and_within_it(runs):
    for is_taken in (False, True):
        waiting = runs.launch(*NAP_RUN, slurm_options="--hold")
        assert runs.health(waiting) == ("RUNNING", f"Slurm job {runs.job(waiting)} is PENDING")
        if is_taken:  # by another user
            runs.cluster.run("scancel", runs.job(waiting))
        assert runs.instance.run_launcher.terminate(waiting)
        assert runs.run(waiting).status == dg.DagsterRunStatus.CANCELED
        assert not runs.instance.run_launcher.terminate(waiting)
    begun = runs.launch(*NAP_RUN)
    runs.until(begun, "STARTED")
    assert runs.health(begun) == ("RUNNING", f"Slurm job {runs.job(begun)} is RUNNING")
    assert runs.instance.run_launcher.terminate(begun)
    runs.until(begun, "CANCELED")
    runs.cluster.until(lambda: not runs.cluster.run("squeue", "-h"))


def test_a_run_whose_job_is_lost_or_out_of_time(runs):
    lost = runs.launch(*NAP_RUN)
    runs.until(lost, "STARTED")
    runs.cluster.run("scancel", "--batch", "--signal=KILL", runs.job(lost))
    runs.cluster.until(lambda: runs.health(lost)[0] == "FAILED")
    said = runs.instance.run_launcher.get_run_worker_debug_info(runs.run(lost))
    assert f"slurm-{runs.job(lost)}.log" in said
    assert "JobState=FAILED" in said

    late = runs.launch(*NAP_RUN)
    runs.until(late, "STARTED")
    # as Slurm does before the limit
    runs.cluster.run("scancel", "--batch", "--signal=TERM", runs.job(late))
    failed = runs.until(late, "FAILURE")
    assert failed.tags["dagster/failure_reason"] == "UNEXPECTED_TERMINATION", (
        "or it would not be tried again"
    )


def test_what_slurm_refuses_is_a_failed_run(runs):
    run_id = runs.launch(*NAP_RUN, slurm_options="--partition=nowhere", code=1)
    assert runs.run(run_id).status == dg.DagsterRunStatus.FAILURE
    said = "\n".join(str(record.dagster_event) for record in runs.instance.all_logs(run_id))
    assert "Slurm refuses the run" in said
    assert "partition" in said
    unknown = runs.run(run_id).with_tags({JOB_TAG: "99999999"})
    assert runs.instance.run_launcher.check_run_worker_health(unknown).status.value == "NOT_FOUND"
    assert OPTIONS_TAG == "slurm/options"
