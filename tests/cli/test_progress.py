"""How long work is watched: as lines without a terminal, as bars on one, and in one line of a run's log."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from nanoset_core.cli import terminal
from nanoset_core.cli.terminal import Watch, progress_bars
from nanoset_core.execution.progress import Progress, note

MADE = Progress("tokenized_shards", "web", 25_000_000, 100_000_000, documents=1_000, tokens=2_000_000)


@pytest.fixture
def clock(monkeypatch):
    """Time as a list of one number, in seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("first", "later", "line"),
    [
        (0, MADE, "tokenized_shards web: 25%, 5.0 MB/s, 1,000 documents, 2,000,000 tokens, 15 s left"),
        (20_000_000, MADE, "tokenized_shards web: 25%, 1.0 MB/s, 1,000 documents, 2,000,000 tokens, 1 min left"),
        (0, Progress("merge", "a", 10, 10), "merge a: 100%, 0.0 MB/s"),
        (0, Progress("tars", "mix", 1, 3, unit="shards"), "tars mix: 33%, 1 of 3 shards, 10 s left"),
        (0, Progress("merge", "empty", 0, 0), "merge empty: 100%, 0.0 MB/s"),
    ],
    ids=["begun", "gone on", "done", "counted", "nothing"],
)
def test_progress_is_described_in_one_line_from_what_was_done_since_it_was_first_heard_of(clock, first, later, line):
    watch = Watch()
    watch.describe(Progress(later.stage, later.name, first, later.total))
    clock[0] += 5
    assert watch.describe(later) == line


def test_without_a_terminal_there_are_lines_with_the_time_of_day_and_notes_once(capfd, monkeypatch):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.05)
    with progress_bars() as (listen, say):
        say("tokenized_shards [web] …")
        wait_for(capfd, "tokenized_shards [web]: 0 s so far")
        listen(MADE)
        for _ in range(2):
            listen(note("engine numpy: as it is"))
        assert wait_for(capfd, "2,000,000 tokens").count("engine numpy: as it is") == 1
        say("tokenized_shards [web]: made in 3.0 s")
        for line in wait_for(capfd, "made in 3.0 s").splitlines():
            time.strptime(line.split()[0], "%H:%M:%S")


def wait_for(capfd, text: str) -> str:
    """What is printed until it holds the text."""
    until, found = time.monotonic() + 60, ""
    while text not in found:
        assert time.monotonic() < until, found
        found += capfd.readouterr().err
    return found


SIDE_BY_SIDE = """
from nanoset_core.cli.terminal import progress_bars
from nanoset_core.execution.progress import Progress, note
with progress_bars() as (listen, say):
    say("raw_jsonl [web] …")
    listen(note("EOD '</s>' (id 2)"))
    for name in ("web", "code"):
        listen(Progress("tokenized_shards", name, 1, 4, documents=7, tokens=123_456))
    say("raw_jsonl [web]: made in 1.0 s")
"""


def test_on_a_terminal_there_is_a_bar_for_each_piece_of_work():
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen([sys.executable, "-c", SIDE_BY_SIDE], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # it has ended
                break
    os.close(ours)
    assert process.returncode == 0
    for text in (
        "raw_jsonl [web]",
        "EOD '</s>' (id 2)",
        "tokenized_shards web",
        "tokenized_shards code",
        "123,456 tokens",
    ):
        assert text in shown.decode(), shown
    assert shown.index(b"raw_jsonl [web]") < shown.index(b"EOD")
