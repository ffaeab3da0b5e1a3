"""History in a real Postgres, by the settings that are shipped: many partitions, runs from a queue,
nothing lost.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from live.dagster_dev import loaded, query

from helpers.child_processes import start_forked
from helpers.daemons import free_ports, running, until
from helpers.sample_project import jsonl, sentences
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
ASSETS = ("raw_jsonl", "tokenized_shards", "indexed_dataset")
REGISTERED = 200
RUNS = 2
DOCUMENTS = 40
BUILDS = 4
BUILT = 8
CONFIG = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {workers: 1}
automation: {enabled: false}
"""
UNDER_WAY = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED)
_LAUNCH = """mutation { launchRun(executionParams: { mode: "default", runConfigData: "{}", selector: {
    repositoryLocationName: "nanoset", repositoryName: "__repository__", pipelineName: "corpus"},
    executionMetadata: {tags: [{key: "dagster/partition", value: "%s"}]}})
    { __typename ... on PythonError { message } ... on RunConfigValidationInvalid { errors { message } } } }"""


def name(number: int) -> str:
    return f"corpus-{number:03}"


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path) -> Path:
    """As many corpora as there will be runs; → nanoset.yaml."""
    for number in range(RUNS):
        folder = tmp_path / "project" / "raw" / name(number)
        folder.mkdir(parents=True)
        (folder / "text.jsonl").write_bytes(jsonl(sentences(name(number), DOCUMENTS)))
    shutil.copyfile(tokenizer_file, tmp_path / "project" / "tokenizer.json")
    config = tmp_path / "project" / "nanoset.yaml"
    config.write_text(CONFIG)
    return config


@pytest.fixture
def home(
    tmp_path: Path, postgres_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """DAGSTER_HOME with the settings of deploy/machine, but for the limit of runs that start
    workers: here all may.
    """
    folder = tmp_path / "home"
    folder.mkdir()
    text = (DEPLOY / "machine" / "dagster.yaml").read_text()
    assert text.count("default_limit: 2\n") == 1
    (folder / "dagster.yaml").write_text(
        text.replace("default_limit: 2\n", f"default_limit: {RUNS}\n")
    )
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


def code_server(port: int) -> list[str]:
    """The command of the image, on another port."""
    command = json.loads(
        re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)[-1]
    )
    assert command[0] == "dagster"
    return [sys.executable, "-m", *(str(port) if part == "4000" else part for part in command)]


@pytest.fixture
def platform(home: Path, project: Path, tmp_path: Path) -> Iterator[str]:
    """The code location, the webserver and the daemon, as the image runs them; → the webserver's
    address.
    """
    port, web = free_ports(2)
    text = (DEPLOY / "machine" / "workspace.yaml").read_text()
    assert "host: code, port: 4000" in text
    workspace = home / "workspace.yaml"
    workspace.write_text(text.replace("host: code, port: 4000", f"host: 127.0.0.1, port: {port}"))
    environment = {
        "NANOSET_CONFIG": str(project),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }
    webserver = [
        "dagster_webserver",
        "--host",
        "127.0.0.1",
        "--port",
        str(web),
        "--workspace",
        str(workspace),
    ]
    commands = {
        "code": code_server(port),
        "webserver": [sys.executable, "-m", *webserver],
        "daemon": [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(workspace)],
    }
    address = f"http://127.0.0.1:{web}"
    with ExitStack() as stack:
        log = tmp_path / "platform.log"
        for label in ("code", "webserver", "daemon"):
            stack.enter_context(running(commands[label], log, folder=home, environment=environment))
            if label == "code":  # the others would wait a while before they ask again
                until(lambda: _listens(port), 60, log.read_text)
        until(lambda: loaded(address), 60, log.read_text)
        yield address


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def check_history(
    instance: dg.DagsterInstance, corpora: list[str], assets: tuple[str, ...] = ASSETS
) -> None:
    """One run and one materialization of each asset for each corpus; every step and check of it is
    there.
    """
    runs = instance.get_runs()
    assert Counter(run.tags["dagster/partition"] for run in runs) == Counter(corpora)
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    for asset in assets:
        key = dg.AssetKey(asset)
        assert instance.get_materialized_partitions(key) == set(corpora)
        records = instance.fetch_materializations(key, limit=1000).records
        assert Counter(record.partition_key for record in records) == Counter(corpora)
        assert {record.run_id for record in records} == {run.run_id for run in runs}
    for run in runs:
        events = [
            record.dagster_event for record in instance.all_logs(run.run_id) if record.dagster_event
        ]
        kinds = Counter(event.event_type for event in events)
        assert kinds[dg.DagsterEventType.ASSET_MATERIALIZATION] == len(assets)
        assert (
            kinds[dg.DagsterEventType.STEP_START]
            == kinds[dg.DagsterEventType.STEP_SUCCESS]
            >= len(assets)
        )
        assert kinds[dg.DagsterEventType.ASSET_CHECK_EVALUATION] == kinds[
            dg.DagsterEventType.STEP_START
        ] - len(assets)
        assert kinds[dg.DagsterEventType.RUN_START] == kinds[dg.DagsterEventType.RUN_SUCCESS] == 1


def test_runs_from_the_queue_leave_a_whole_history(platform, project, home, tmp_path):
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        instance.add_dynamic_partitions(
            Names().corpora_name, [name(number) for number in range(REGISTERED)]
        )
        corpora = [name(number) for number in range(RUNS)]
        for corpus in corpora:
            answer = query(platform, _LAUNCH % corpus)["launchRun"]
            assert answer["__typename"] == "LaunchRunSuccess", answer
        assert _wait(instance) > 1, "runs were not under way at the same time"
        assert len(instance.get_dynamic_partitions(Names().corpora_name)) == REGISTERED
        check_history(instance, corpora)
        for run in instance.get_runs():
            assert list((Path(os.environ["NANOSET_LOG_FOLDER"]) / run.run_id).rglob("*.err")), (
                "no log was kept"
            )
    opened = Project.open(project)
    for corpus in corpora:
        assert opened.outputs.current("datasets", corpus).facts["documents"] == DOCUMENTS
    again = start_forked(
        "build", "--config", project, environment=os.environ, said=tmp_path / "said"
    )
    again.join()
    assert "nothing was made" in (tmp_path / "said").read_text()


def test_builds_at_the_same_time_share_one_history(home, tmp_path, tokenizer_file):
    shutil.copyfile(tokenizer_file, tmp_path / "tokenizer.json")
    corpora = [name(number) for number in range(REGISTERED)]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, corpora[BUILT:])
    configs = [_part(tmp_path, part) for part in range(BUILDS)]
    words = [("build", "--config", config, "--select", "raw_jsonl") for config in configs]
    builds = [start_forked(*line, environment=os.environ, said=tmp_path / "said") for line in words]
    for one in builds:
        one.join()
    assert [one.exitcode for one in builds] == [0] * BUILDS, (tmp_path / "said").read_text()
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert sorted(instance.get_dynamic_partitions(Names().corpora_name)) == corpora
        check_history(instance, corpora[:BUILT], ("raw_jsonl",))


def _part(folder: Path, part: int) -> Path:
    """A project over its share of the corpora, with the same outputs' folder as the others; →
    nanoset.yaml.
    """
    for number in range(part, BUILT, BUILDS):
        (folder / f"raw-{part}" / name(number)).mkdir(parents=True)
        (folder / f"raw-{part}" / name(number) / "text.jsonl").write_bytes(
            jsonl(sentences(name(number), 3))
        )
    config = folder / f"nanoset-{part}.yaml"
    config.write_text(CONFIG.replace("raw: raw\n", f"raw: raw-{part}\n"))
    return config


def _wait(instance: dg.DagsterInstance, seconds: float = 300.0) -> int:
    """Until all runs have ended; → how many were under way at once, at most."""
    most, deadline = 0, time.monotonic() + seconds
    runs = instance.get_runs()
    while not all(run.is_finished for run in runs):
        most = max(most, sum(run.status in UNDER_WAY for run in runs))
        assert time.monotonic() < deadline, [(run.run_id, run.status) for run in runs]
        time.sleep(0.2)
        runs = instance.get_runs()
    return most


def test_a_run_needs_no_access_to_the_cluster(project, postgres_environment, tmp_path):
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    home = tmp_path / "pod"
    home.mkdir()
    shutil.copyfile(DEPLOY / "kubernetes" / "dagster.yaml", home / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, [name(0)])
        job = build_definitions(load_config(project)).resolve_job_def("corpus")
        assert job.execute_in_process(instance=instance, partition_key=name(0)).success
        check_history(instance, [name(0)])
        from kubernetes.config import ConfigException

        with pytest.raises(ConfigException, match="Service host"):
            _ = instance.run_launcher  # only the daemon and the webserver ask for it
