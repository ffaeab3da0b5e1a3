"""A history in a real Postgres, with the settings of deploy/: many partitions and queued runs.

Nothing is lost, whether runs come from the queue or from several builds at the same time.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from live.dagster_dev import has_loaded, query

from helpers.child_processes import start_forked
from helpers.daemons import free_ports, running, until
from helpers.sample_project import jsonl, sentences
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config

pytestmark = pytest.mark.slow
"""The tests start a Postgres, and the processes of a deployment of Dagster."""

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
CORPUS_ASSETS = ["raw_jsonl", "tokenized_shards", "indexed_dataset"]
N_REGISTERED = 200
"""How many corpora are partitions."""
N_RUNS = 2
"""How many runs are queued at the same time, each of a corpus."""
N_DOCUMENTS = 40
"""Documents of each corpus that is built by a queued run."""
N_BUILDS = 2
"""How many builds run at the same time."""
N_BUILT = 4
"""How many corpora these builds make together."""
SETTINGS = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
tokenization: {workers: 1}
automation: {enabled: false}
"""
ACTIVE_STATUSES = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
LAUNCH_RUN = """
mutation {
  launchRun(executionParams: {
    mode: "default",
    runConfigData: "{}",
    selector: {
      repositoryLocationName: "nanoset", repositoryName: "__repository__", pipelineName: "corpus"
    },
    executionMetadata: {tags: [{key: "dagster/partition", value: "%s"}]}
  }) {
    __typename
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
"""What the UI sends to launch a run of a corpus."""
START_SECONDS = 60
RUN_SECONDS = 300.0


def corpus_name(number: int) -> str:
    """Return the name of a corpus."""
    return f"corpus-{number:03}"


CORPORA = [corpus_name(number) for number in range(N_REGISTERED)]


def write_corpus(raw_folder: Path, corpus: str, n_documents: int) -> None:
    """Write the documents of a corpus."""
    (raw_folder / corpus).mkdir(parents=True)
    text = jsonl(sentences(corpus, n_documents))
    (raw_folder / corpus / "text.jsonl").write_bytes(text)


@pytest.fixture
def config_file(tmp_path: Path, tokenizer_file: Path) -> Path:
    """The nanoset.yaml of a project with a corpus for each run."""
    folder = tmp_path / "project"
    for number in range(N_RUNS):
        write_corpus(folder / "raw", corpus_name(number), N_DOCUMENTS)
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    (folder / "nanoset.yaml").write_text(SETTINGS)
    return folder / "nanoset.yaml"


@pytest.fixture
def dagster_home(
    tmp_path: Path, postgres_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """DAGSTER_HOME with the settings of deploy/machine, in which all runs may start workers."""
    folder = tmp_path / "home"
    folder.mkdir()
    settings = (DEPLOY / "machine" / "dagster.yaml").read_text()
    assert settings.count("default_limit: 2\n") == 1
    settings = settings.replace("default_limit: 2\n", f"default_limit: {N_RUNS}\n")
    (folder / "dagster.yaml").write_text(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


# The platform: code server, webserver and daemon


def code_server_command(port: int) -> list[str]:
    """Return the command of the image that starts the code server, with another port."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    command_lines = re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)
    command: list[str] = json.loads(command_lines[-1])
    assert command[0] == "dagster"
    command[command.index("4000")] = str(port)
    return [sys.executable, "-m", *command]


def write_workspace(folder: Path, port: int) -> Path:
    """Write the workspace.yaml of deploy/machine, with another address of the code server."""
    text = (DEPLOY / "machine" / "workspace.yaml").read_text()
    assert "host: code, port: 4000" in text
    text = text.replace("host: code, port: 4000", f"host: 127.0.0.1, port: {port}")
    (folder / "workspace.yaml").write_text(text)
    return folder / "workspace.yaml"


def is_listening(port: int) -> bool:
    """Return whether a server listens at a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def webserver(dagster_home: Path, config_file: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a webserver, with code server and daemon as the image runs them."""
    code_port, web_port = free_ports(2)
    workspace = str(write_workspace(dagster_home, code_port))
    code_server = code_server_command(code_port)
    webserver = [sys.executable, "-m", "dagster_webserver", "--host", "127.0.0.1"]
    webserver += ["--port", str(web_port), "--workspace", workspace]
    daemon = [sys.executable, "-m", "dagster._daemon", "run", "--workspace", workspace]
    environment = {
        "NANOSET_CONFIG": str(config_file),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
    }
    log = tmp_path / "platform.log"

    with ExitStack() as stack:

        def start(command: list[str]) -> None:
            """Run a program until the end of the test."""
            program = running(command, log, folder=dagster_home, environment=environment)
            stack.enter_context(program)

        # If the code server did not answer, the others would wait a while before they ask again.
        start(code_server)
        until(lambda: is_listening(code_port), START_SECONDS, log.read_text)
        start(webserver)
        start(daemon)
        address = f"http://127.0.0.1:{web_port}"
        until(lambda: has_loaded(address), START_SECONDS, log.read_text)
        yield address


# What a complete history has


def check_history(
    instance: dg.DagsterInstance, corpora: Sequence[str], assets: Sequence[str]
) -> None:
    """Check that a history has one run of each corpus, with all events.

    Args:
        instance: The history.
        corpora: The corpora that were built.
        assets: The assets that were materialised of each.
    """
    runs = instance.get_runs()
    assert Counter(run.tags["dagster/partition"] for run in runs) == Counter(corpora)
    for run in runs:
        assert run.status == dg.DagsterRunStatus.SUCCESS
        check_events(instance, run, n_assets=len(assets))

    run_ids = {run.run_id for run in runs}
    for asset in assets:
        key = dg.AssetKey(asset)
        records = instance.fetch_materializations(key, limit=1000).records
        assert instance.get_materialized_partitions(key) == set(corpora)
        assert Counter(record.partition_key for record in records) == Counter(corpora)
        assert {record.run_id for record in records} == run_ids


def check_events(instance: dg.DagsterInstance, run: dg.DagsterRun, n_assets: int) -> None:
    """Check that the log of a run has the events of all its assets and checks."""
    counts: Counter[dg.DagsterEventType] = Counter()
    for record in instance.all_logs(run.run_id):
        if record.dagster_event:
            counts[record.dagster_event.event_type] += 1

    # Steps are those of assets, and those of checks.
    n_steps = counts[dg.DagsterEventType.STEP_START]
    assert n_steps >= n_assets
    assert counts[dg.DagsterEventType.STEP_SUCCESS] == n_steps
    assert counts[dg.DagsterEventType.ASSET_MATERIALIZATION] == n_assets
    assert counts[dg.DagsterEventType.ASSET_CHECK_EVALUATION] == n_steps - n_assets
    assert counts[dg.DagsterEventType.RUN_START] == 1
    assert counts[dg.DagsterEventType.RUN_SUCCESS] == 1


# Runs from the queue


def wait_for_runs(instance: dg.DagsterInstance) -> int:
    """Wait until all runs have ended, and return how many were active at the same time."""
    most_active = 0
    deadline = time.monotonic() + RUN_SECONDS
    runs = instance.get_runs()
    while not all(run.is_finished for run in runs):
        n_active = sum(run.status in ACTIVE_STATUSES for run in runs)
        most_active = max(most_active, n_active)
        assert time.monotonic() < deadline, [(run.run_id, run.status) for run in runs]
        time.sleep(0.2)
        runs = instance.get_runs()
    return most_active


def test_queued_runs_leave_a_complete_history(webserver, config_file, dagster_home, tmp_path):
    corpora = CORPORA[:N_RUNS]
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
        instance.add_dynamic_partitions(Names().corpora_name, CORPORA)

        # Launch the runs in the UI, and wait until the daemon has carried them out.
        for corpus in corpora:
            answer = query(webserver, LAUNCH_RUN % corpus)["launchRun"]
            assert answer["__typename"] == "LaunchRunSuccess", answer
        most_active = wait_for_runs(instance)

        # They ran at the same time; all partitions, events and logs are stored.
        assert most_active > 1
        assert len(instance.get_dynamic_partitions(Names().corpora_name)) == N_REGISTERED
        check_history(instance, corpora, CORPUS_ASSETS)
        for run in instance.get_runs():
            log_folder = Path(os.environ["NANOSET_LOG_FOLDER"]) / run.run_id
            assert list(log_folder.rglob("*.err"))

    # The datasets are complete.
    project = Project.open(config_file)
    for corpus in corpora:
        assert project.outputs.current("datasets", corpus).facts["documents"] == N_DOCUMENTS

    # A build finds nothing to do.
    output = tmp_path / "output"
    build = start_forked("build", "--config", config_file, environment=os.environ, output=output)
    build.join()
    assert "nothing was made" in output.read_text()


# Several builds at the same time


def write_share(folder: Path, number: int) -> Path:
    """Write a project with a share of the corpora, and return its settings.

    All projects have the same folder of outputs.

    Args:
        folder: Contains the projects.
        number: The number of the project, from 0.
    """
    raw_folder = folder / f"raw-{number}"
    for corpus in CORPORA[number:N_BUILT:N_BUILDS]:
        write_corpus(raw_folder, corpus, 3)
    config_file = folder / f"nanoset-{number}.yaml"
    config_file.write_text(SETTINGS.replace("raw: raw\n", f"raw: {raw_folder.name}\n"))
    return config_file


def test_builds_at_the_same_time_share_one_history(dagster_home, tmp_path, tokenizer_file):
    shutil.copyfile(tokenizer_file, tmp_path / "tokenizer.json")
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        instance.add_dynamic_partitions(Names().corpora_name, CORPORA[N_BUILT:])

    output = tmp_path / "output"
    builds = []
    for number in range(N_BUILDS):
        arguments = ["build", "--config", write_share(tmp_path, number), "--select", "raw_jsonl"]
        builds.append(start_forked(*arguments, environment=os.environ, output=output))
    for build in builds:
        build.join()

    assert [build.exitcode for build in builds] == [0] * N_BUILDS, output.read_text()
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert sorted(instance.get_dynamic_partitions(Names().corpora_name)) == CORPORA
        check_history(instance, CORPORA[:N_BUILT], ["raw_jsonl"])


# Runs in Kubernetes


@pytest.fixture
def pod_instance(postgres_environment, tmp_path) -> Iterator[dg.DagsterInstance]:
    """The instance in the pod of a run, with the settings of deploy/kubernetes."""
    pytest.importorskip("dagster_k8s", reason="needs dagster-k8s: the extra deploy")
    home = tmp_path / "pod"
    home.mkdir()
    shutil.copyfile(DEPLOY / "kubernetes" / "dagster.yaml", home / "dagster.yaml")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def test_a_run_in_kubernetes_needs_no_access_to_the_cluster(pod_instance, config_file):
    pod_instance.add_dynamic_partitions(Names().corpora_name, [corpus_name(0)])
    job = build_definitions(load_config(config_file)).resolve_job_def("corpus")

    result = job.execute_in_process(instance=pod_instance, partition_key=corpus_name(0))

    assert result.success
    check_history(pod_instance, [corpus_name(0)], CORPUS_ASSETS)


def test_launching_a_run_in_kubernetes_needs_access_to_the_cluster(pod_instance):
    # Only the daemon and the webserver launch runs.
    from kubernetes.config import ConfigException

    with pytest.raises(ConfigException, match="Service host"):
        _ = pod_instance.run_launcher
