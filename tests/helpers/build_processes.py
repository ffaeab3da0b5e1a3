"""Builds in processes of their own, several of which can run at the same time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

COMMAND = [sys.executable, "-m", "nanoset_core.cli", "build", "--config"]
SUMMARY = re.compile(r"^Made (\d+) of (\d+) outputs", re.MULTILINE)
"""The line in which a build says how many outputs it made, if it made any."""


class BuildResult(NamedTuple):
    """What a build said when it had ended."""

    n_made: int
    """How many outputs it made."""
    n_outputs: int
    """How many outputs the project has; 0 if the build made none."""
    notices: str
    """What it wrote to standard error."""


def start_build(config: Path) -> subprocess.Popen[str]:
    """Start `nanoset build` on a project."""
    return subprocess.Popen(
        [*COMMAND, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish_build(process: subprocess.Popen[str]) -> BuildResult:
    """Wait until a build has succeeded."""
    stdout, stderr = process.communicate(timeout=900)
    assert process.returncode == 0, stderr
    summary = SUMMARY.search(stdout)
    if summary is None:
        return BuildResult(0, 0, stderr)
    return BuildResult(int(summary[1]), int(summary[2]), stderr)
