"""`nanoset build` shows its progress in a terminal of 80 columns, and in a log file."""

from __future__ import annotations

import io
import itertools
import os
import re
import sys
import unicodedata

import pytest

from helpers.build_processes import finish_build, start_build
from helpers.pseudo_terminal import COLUMNS, run_in_terminal
from helpers.sample_project import write_project
from nanoset_core.cli.progress import Bars

N_TIMES = 4
"""How many elapsed times the slow step waits for."""
SLOW_BUILD = """
import pathlib, sys, time
from helpers.dagster_history import quicken
quicken()
from nanoset_core.cli.entry import main
from nanoset_core.stages.dataset import merging

merge = merging.merge_inputs

def slow_merge(*arguments, **options):
    deadline = time.monotonic() + 120
    while not pathlib.Path(sys.argv[2]).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return merge(*arguments, **options)

merging.merge_inputs = slow_merge
main(["build", "--corpus", "web", "--config", sys.argv[1]])
"""
"""A build whose last step waits for a file, without reporting progress."""
STEPS = ("raw_jsonl [web]", "tokenized_shards [web]", "indexed_dataset [web]")
"""Labels of its steps, in order."""
TIMES = re.compile(r" \d+:\d\d:\d\d ETA (\d+:\d\d:\d\d|-:--:--)$")
"""How a line of progress ends: the elapsed time, and the estimated remaining time."""


@pytest.fixture(scope="module")
def screen(tmp_path_factory, tokenizer_file):
    """The screen of a terminal in which SLOW_BUILD ran."""
    folder = tmp_path_factory.mktemp("terminal")
    config = write_project(folder / "project", tokenizer_file)
    go_ahead = folder / "go ahead"
    command = [sys.executable, "-c", SLOW_BUILD, str(config), str(go_ahead)]

    def end_slow_step(screen) -> None:
        """Let the slow step end when it has been shown with several times."""
        if len(times_of_slow_step(screen)) >= N_TIMES:
            go_ahead.touch()

    return run_in_terminal(command, on_change=end_slow_step, PYTHONPATH=os.pathsep.join(sys.path))


def progress_lines(screen) -> list[str]:
    """Return all lines of progress that were on the screen, frame by frame."""
    lines = itertools.chain.from_iterable(screen.frames())
    return [line for line in lines if "ETA" in line]


def times_of_slow_step(screen) -> set[str]:
    """Return the different times with which the last step was shown."""
    times: set[str] = set()
    for line in progress_lines(screen):
        time = TIMES.search(line)
        if time and line.startswith("[3/3] indexed_dataset [web] "):
            times.add(time[0])
    return times


def test_a_build_in_a_terminal_succeeds(screen):
    assert screen.code == 0, screen.text


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_step_is_shown_with_its_number_among_all_steps(screen, number):
    lines = progress_lines(screen)
    start = f"[{number}/3] {STEPS[number - 1]}"

    assert any(line.startswith(start) for line in lines), lines


def test_a_line_of_progress_always_ends_with_the_time_and_the_eta(screen):
    lines = progress_lines(screen)

    assert lines
    assert all(TIMES.search(line) for line in lines)


def test_no_line_is_longer_than_the_terminal(screen):
    lines = itertools.chain.from_iterable(screen.frames())

    assert all(len(line) <= COLUMNS for line in lines)


def test_the_time_advances_while_a_step_reports_nothing(screen):
    assert len(times_of_slow_step(screen)) >= N_TIMES


def test_progress_is_drawn_at_least_once_a_second():
    assert Bars(io.StringIO()).live.refresh_per_second >= 1


def test_the_plan_is_the_first_line(screen):
    last_frame = screen.frames()[-1]

    assert re.fullmatch(r"plan: 3 steps, from [0-9.]+ kB of text in 1 corpus", last_frame[0])


def test_no_line_of_progress_remains_after_the_build(screen):
    last_frame = screen.frames()[-1]

    assert not any("ETA" in line for line in last_frame)


@pytest.fixture(scope="module")
def log(tmp_path_factory, tokenizer_file):
    """What a build printed whose output is not a terminal."""
    config = write_project(tmp_path_factory.mktemp("log") / "project", tokenizer_file)
    build = start_build(config, "--corpus", "web")
    return finish_build(build).printed


def test_a_log_has_no_control_characters(log):
    control_characters = {character for character in log if unicodedata.category(character) == "Cc"}
    assert control_characters == {"\n"}


def test_a_log_has_the_plan_and_each_step_with_the_time_of_day(log):
    assert re.search(r"^\d\d:\d\d:\d\d plan: 3 steps, ", log, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d \[1/3\] raw_jsonl, ", log, re.MULTILINE)
