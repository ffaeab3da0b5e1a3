"""How runs of Dagster are submitted to Slurm, with a stand-in for the command sbatch.

tests/deploy/test_slurm.py executes such runs on a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableRepository

from helpers.dagster_history import quick_history  # noqa: F401 - of all instances
from nanoset_assets.slurm import JOB_TAG, OPTIONS_TAG
from nanoset_core.errors import ConfigError

MODULE = """
import dagster as dg

@dg.job
def nothing():
    pass
"""
"""A code location with a job."""
SBATCH = """\
#!/bin/sh
printf '%s\\n' "$@" > "{folder}/options"
cat > "{folder}/script"
for option in "$@"; do
    if [ "$option" = --partition=nowhere ]; then
        echo "invalid partition specified: nowhere" >&2
        exit 1
    fi
done
echo "4711;a-cluster"
"""
"""A program that takes any job, except for an unknown partition, and writes down what it is given."""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """A Dagster that submits runs to Slurm."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SBATCH.format(folder=tmp_path))
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)

    launcher = {
        "module": "nanoset_assets.slurm",
        "class": "SlurmRunLauncher",
        "config": {"log_folder": str(tmp_path / "logs"), "options": ["--mem=100M"]},
    }
    coordinator = {
        "module": "dagster._core.run_coordinator",
        "class": "DefaultRunCoordinator",
    }
    settings = {"run_launcher": launcher, "run_coordinator": coordinator}
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def create_run(instance: dg.DagsterInstance, folder: Path, options: str) -> str:
    """Create a run with options of Slurm for its job, and return its id."""
    (folder / "module.py").write_text(MODULE)
    code = ReconstructableRepository.for_file(str(folder / "module.py"), "nothing", str(folder))
    job = code.get_reconstructable_job("nothing")
    run = instance.create_run_for_job(
        job.get_definition(),
        tags={OPTIONS_TAG: options},
        job_code_origin=job.get_python_origin(),
    )
    return run.run_id


def test_a_run_is_submitted_with_its_options_last_and_has_the_id_of_its_job(instance, tmp_path):
    run_id = create_run(instance, tmp_path, "--mem=64G --time=12:00:00")

    instance.launch_run(run_id, workspace=None)

    options = (tmp_path / "options").read_text().splitlines()
    assert options[-3:] == ["--mem=100M", "--mem=64G", "--time=12:00:00"]
    assert "--no-requeue" in options
    assert f"{tmp_path}/logs/slurm-%j.log" in options
    script = (tmp_path / "script").read_text()
    assert "execute_run" in script
    assert run_id in script
    assert instance.get_run_by_id(run_id).tags[JOB_TAG] == "4711"


def test_a_run_that_slurm_refuses_has_failed_with_its_message(instance, tmp_path):
    run_id = create_run(instance, tmp_path, "--partition=nowhere")

    with pytest.raises(ConfigError, match="Slurm refuses the run") as caught:
        instance.launch_run(run_id, workspace=None)

    assert caught.value.found == "invalid partition specified: nowhere"
    assert instance.get_run_by_id(run_id).status == dg.DagsterRunStatus.FAILURE


def test_the_tag_for_options_of_slurm_is_stable():
    # Users write it into tags of runs.
    assert OPTIONS_TAG == "slurm/options"
