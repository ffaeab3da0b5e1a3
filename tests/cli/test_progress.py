"""The progress of commands: lines without a terminal, bars on one."""

from __future__ import annotations

import sys
import time

import pytest
from rich.cells import cell_len

from helpers.pseudo_terminal import run_in_terminal
from nanoset_core.cli import progress
from nanoset_core.cli.progress import bar_line, shown_progress


def wait_for(capfd: pytest.CaptureFixture[str], text: str) -> str:
    """Wait until a text is printed to standard error, and return all that was printed meanwhile."""
    deadline = time.monotonic() + 60
    printed = ""
    while text not in printed:
        assert time.monotonic() < deadline, printed
        printed += capfd.readouterr().err
    return printed


@pytest.fixture
def quick_lines(monkeypatch):
    """Lines of progress are printed every 50 ms."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.05)


@pytest.mark.usefixtures("quick_lines")
def test_without_a_terminal_a_line_says_how_long_a_step_has_run(capfd):
    with shown_progress() as shown:
        shown.say("tokenized_shards [web] …")

        wait_for(capfd, "tokenized_shards [web]: 0 s so far")


@pytest.mark.usefixtures("quick_lines")
def test_without_a_terminal_a_line_counts_what_is_done(capfd):
    with shown_progress() as shown:
        work = shown.work("tokenized_shards", "web", total=100_000_000)
        work.advance(25_000_000, documents=1_000, tokens=2_000_000)

        wait_for(capfd, "2,000,000 tokens")


@pytest.mark.usefixtures("quick_lines")
def test_without_a_terminal_a_note_is_printed_once(capfd):
    with shown_progress() as shown:
        shown.note("engine numpy: as it is")
        shown.note("engine numpy: as it is")
        # Work, so that something is printed after the notes.
        shown.work("tokenized_shards", "web", total=100).advance(25, tokens=50)

        printed = wait_for(capfd, "50 tokens")

    assert printed.count("engine numpy: as it is") == 1


@pytest.mark.usefixtures("quick_lines")
def test_without_a_terminal_each_line_begins_with_the_time_of_day(capfd):
    with shown_progress() as shown:
        shown.say("tokenized_shards [web] …")
        shown.work("tokenized_shards", "web", total=100).advance(25, tokens=50)
        shown.say("tokenized_shards [web]: made in 3.0 s")

        printed = wait_for(capfd, "made in 3.0 s")

    for line in printed.splitlines():
        time_of_day = line.split()[0]
        # This raises an error if it is no time.
        time.strptime(time_of_day, "%H:%M:%S")


def test_without_a_terminal_a_wait_is_printed_at_once(capfd):
    with shown_progress() as shown:
        wait = shown.wait("for workers", limit=600)

        assert wait.has_time_left()
        assert "waiting for workers: 0 s so far, up to 10 min" in capfd.readouterr().err


def test_without_a_terminal_the_end_of_a_wait_is_printed(capfd):
    with shown_progress() as shown:
        wait = shown.wait("for workers", limit=600)
        wait.has_time_left()
        capfd.readouterr()

        wait.end()

        assert "waiting for workers: found after 0 s" in capfd.readouterr().err


def test_lines_of_progress_show_no_password(capfd):
    with shown_progress() as shown:
        shown.note("cannot read https://me:s3cret@host/web.jsonl")

    printed = capfd.readouterr().err
    assert "@host/web.jsonl" in printed
    assert "s3cret" not in printed


@pytest.mark.usefixtures("quick_lines")
def test_without_a_terminal_a_wait_is_printed_in_place_of_the_work_that_it_delays(capfd):
    with shown_progress() as shown:
        shown.work("tokenized_shards", "web", total=100).advance(25)
        wait = shown.wait("for workers", limit=600)
        wait.has_time_left()
        capfd.readouterr()  # perhaps with a line on the work, from before the wait

        wait_for(capfd, "waiting for workers: 0 s so far, up to 10 min")
        printed = wait_for(capfd, "waiting for workers: 0 s so far, up to 10 min")

    assert "tokenized_shards" not in printed


SIDE_BY_SIDE = """
from nanoset_core.cli.progress import shown_progress
with shown_progress() as shown:
    shown.say("raw_jsonl [web] …")
    shown.note("EOD '</s>' (id 2)")
    for name in ("web", "code"):
        work = shown.work("tokenized_shards", name, total=4)
        work.advance(1, documents=7, tokens=123_456)
    shown.say("raw_jsonl [web]: made in 1.0 s")
"""
"""A program with two pieces of work at the same time."""
REDIRECTED = """
import os, sys, time
from nanoset_core.cli.progress import shown_progress
with shown_progress() as shown:
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    shown.work("tokenized_shards", "web", total=4).advance(1)
    time.sleep(0.6)
"""
"""A program that redirects standard output and standard error to the file that it is given."""


def test_on_a_terminal_there_is_a_bar_for_each_piece_of_work():
    screen = run_in_terminal([sys.executable, "-c", SIDE_BY_SIDE])

    assert screen.code == 0
    for text in (
        "raw_jsonl [web]",
        "EOD '</s>' (id 2)",
        "tokenized_shards web",
        "tokenized_shards code",
        "123,456 tokens",
    ):
        assert text in screen.text


def test_on_a_terminal_messages_are_shown_in_their_order():
    screen = run_in_terminal([sys.executable, "-c", SIDE_BY_SIDE])

    assert screen.text.index("raw_jsonl [web]") < screen.text.index("EOD")


@pytest.mark.parametrize("width", [200, 80, 79, 60, 40, 24, 10])
@pytest.mark.parametrize(
    "label", ["a", "[12/250] tokenized_shards " + "long" * 30, "[3/4] 漢字" * 12]
)
def test_a_line_of_progress_fits_the_terminal_and_its_times_are_never_cut(width, label):
    line = bar_line(width, label, 0.456, 3723, 45)

    assert cell_len(line) < width
    if width > 40:
        assert line.endswith(" 45% 1:02:03 ETA 0:00:45")
    elif width > 24:
        assert "1:02:03 ETA 0:00:45" in line


def test_a_line_with_enough_space_has_a_bar():
    line = bar_line(80, "[1/2] tokenized_shards web", 0.5, 1, 1)

    assert line.count("━") == 10


def test_a_line_with_little_space_has_no_bar_and_a_mark_where_its_label_is_cut():
    line = bar_line(50, "[1/2] tokenized_shards corpus-of-the-web", 0.5, 1, 1)

    assert line.startswith("[1/2] tokenized_shards …  50% 0:00:01 ETA")


def test_progress_is_drawn_while_descriptors_1_and_2_are_redirected(tmp_path):
    log = tmp_path / "log"

    screen = run_in_terminal([sys.executable, "-c", REDIRECTED, str(log)])

    assert screen.code == 0
    assert "tokenized_shards web" in screen.text
    assert "ETA" in screen.text
    assert log.read_bytes() == b""


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(term):
    screen = run_in_terminal([sys.executable, "-c", SIDE_BY_SIDE], TERM=term)

    assert "\x1b" not in screen.text
    assert "raw_jsonl [web]: made in 1.0 s" in screen.text
