"""The scripts of deploy/slurm, without a cluster: tests/deploy/test_slurm.py runs them as jobs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_a_script_has_the_syntax_of_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_the_job_of_the_last_corpus_builds_it_and_deletes_its_own_history(tmp_path):
    corpora_file = tmp_path / "corpora.txt"
    corpora_file.write_text("web\ncode")  # without a newline at the end
    program = tmp_path / "nanoset"
    program.write_text('#!/bin/sh\nmkdir "$DAGSTER_HOME"\necho "$DAGSTER_HOME" "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": "17",
        "SLURM_ARRAY_TASK_ID": "2",
    }

    process = subprocess.run(
        ["bash", SCRIPTS / "corpora.sbatch", corpora_file],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    history = tmp_path / "nanoset-17"
    assert process.stdout == f"{history} build --corpus code\n"
    assert not history.exists()
