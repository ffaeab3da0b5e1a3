"""Builds in processes of their own, several of which can run at the same time."""

from __future__ import annotations

import re
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from helpers.child_processes import start_forked, wait_until

SUMMARY = re.compile(r"^Made (\d+) of (\d+) outputs", re.MULTILINE)
"""The line in which a build says how many outputs it made, if it made any."""


class BuildResult(NamedTuple):
    """What a build said when it had ended."""

    n_made: int
    """How many outputs it made."""
    n_outputs: int
    """How many outputs the project has; 0 if the build made none."""
    printed: str
    """What it printed."""


class RunningBuild(NamedTuple):
    """A build that was started."""

    process: BaseProcess
    output: Path
    """The file of what it prints."""

    def wait_for_line(self, text: str) -> str:
        """Wait until the build has printed a line that contains a text, and return the line."""

        def find_line() -> str:
            lines = self.output.read_text().splitlines() if self.output.exists() else []
            return next((line for line in lines if text in line), "")

        wait_until(lambda: find_line() or not self.process.is_alive())
        line = find_line()
        assert line, self.output.read_text()
        return line


def start_build(config: Path, *options: str) -> RunningBuild:
    """Start `nanoset build` on a project, with further options."""
    n_builds = len(list(config.parent.glob(".output-*")))
    output = config.parent / f".output-{n_builds}"
    output.touch()
    process = start_forked("build", "--config", config, *options, output=output)
    return RunningBuild(process, output)


def finish_build(build: RunningBuild) -> BuildResult:
    """Wait until a build has succeeded."""
    build.process.join(timeout=900)
    printed = build.output.read_text()
    assert build.process.exitcode == 0, printed
    summary = SUMMARY.search(printed)
    if summary is None:
        return BuildResult(0, 0, printed)
    return BuildResult(int(summary[1]), int(summary[2]), printed)
