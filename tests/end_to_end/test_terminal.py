"""A whole `nanoset build` as somebody sees it in a terminal of 80 columns, and as a log file shows
it.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import unicodedata

import pytest

from helpers.pseudo_terminal import COLUMNS, run_in_terminal

SECONDS = 2.0
"""Within which a terminal shows something new."""
SLOW_BUILD = """
import sys, time
from nanoset_core.cli.entry import main
from nanoset_core.stages.dataset import make as dataset_make

merge = dataset_make.merge_inputs

def slow_merge(*arguments, **options):
    time.sleep(5)
    return merge(*arguments, **options)

dataset_make.merge_inputs = slow_merge
main(["build", "--corpus", "web", "--config", sys.argv[1]])
"""
TIMES = re.compile(r" \d+:\d\d:\d\d ETA (\d+:\d\d:\d\d|-:--:--)$")


@pytest.fixture(scope="module")
def screen(tmp_path_factory, tokenizer_file):
    """What a build shows one of whose steps takes five seconds without a report."""
    from helpers.sample_project import write_project

    config = write_project(tmp_path_factory.mktemp("terminal") / "project", tokenizer_file)
    return run_in_terminal([sys.executable, "-c", SLOW_BUILD, str(config)])


def test_something_new_is_shown_every_two_seconds(screen):
    assert screen.code == 0, screen.text
    first_seconds = screen.chunks[0][0]
    shown = [second - first_seconds for second, text in screen.chunks if text]
    gaps = [after - before for before, after in itertools.pairwise(shown)]
    assert max(gaps) < SECONDS


def test_each_step_is_shown_with_its_number_among_all_of_them(screen):
    bars = bars_of(screen)
    for number, step in enumerate(
        ("raw_jsonl [web]", "tokenized_shards [web]", "indexed_dataset [web]"), 1
    ):
        assert any(bar.startswith(f"[{number}/3] {step}") for bar in bars), bars


def test_time_and_eta_are_never_cut(screen):
    bars = bars_of(screen)
    assert bars
    assert all(TIMES.search(bar) for bar in bars)
    assert all(len(line) <= COLUMNS for frame in screen.frames() for line in frame)


def test_the_time_advances_while_a_step_reports_nothing(screen):
    seconds = {
        TIMES.search(bar)[0]
        for bar in bars_of(screen)
        if bar.startswith("[3/3] indexed_dataset [web] ")
    }
    assert len(seconds) >= 4


def test_a_plan_comes_first_and_nothing_of_the_bars_stays(screen):
    last = screen.frames()[-1]
    assert re.fullmatch(r"plan: 3 steps, from [0-9.]+ kB of text in 1 corpus", last[0])
    assert not any("ETA" in line for line in last)


def test_without_a_terminal_there_are_lines_without_control_characters(tmp_path, tokenizer_file):
    from helpers.sample_project import write_project

    config = write_project(tmp_path / "project", tokenizer_file)
    command = [sys.executable, "-c", SLOW_BUILD.replace("sleep(5)", "sleep(0)"), str(config)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    text = result.stdout + result.stderr
    assert {character for character in text if unicodedata.category(character) == "Cc"} == {"\n"}
    assert re.search(r"^\d\d:\d\d:\d\d plan: 3 steps, ", result.stderr, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d \[1/3\] raw_jsonl, ", result.stderr, re.MULTILINE)


def bars_of(screen) -> list[str]:
    """All lines of progress that were on the screen."""
    return [line for frame in screen.frames() for line in frame if "ETA" in line]
