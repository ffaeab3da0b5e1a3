"""Progress: one object counts work, estimates its speed, and takes the reports of tasks."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.progress import RecordingDisplay
from nanoset_core.execution.progress import (
    SILENT,
    Amount,
    PartReport,
    Progress,
    TaskNote,
    progress_reported_to,
    report_progress,
)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        """Begin at an arbitrary time."""
        self.seconds = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which progress is measured."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.seconds)
    return clock


def test_a_description_has_share_speed_counts_and_remaining_time(clock):
    work = SILENT.work("tokenized_shards", "web", total=100_000_000)
    work.report()
    clock.seconds += 5
    work.advance(25_000_000, documents=1_000, tokens=2_000_000)

    assert work.description == (
        "tokenized_shards web: 25%, 5.0 MB/s, 1,000 documents, 2,000,000 tokens, 15 s left"
    )


def test_what_earlier_builds_made_does_not_count_for_the_speed(clock):
    work = SILENT.work("tokenized_shards", "web", total=100_000_000)
    work.add_existing(Amount(20_000_000))
    work.report()
    clock.seconds += 5
    work.advance(5_000_000)

    assert work.description == "tokenized_shards web: 25%, 1.0 MB/s, 1 min left"


@pytest.mark.parametrize(
    ("total", "done", "expected"),
    [
        pytest.param(200_000_000, 50, None, id="a document of a large text"),
        pytest.param(1_000_000_000, 1_000_000, 4995, id="a MB"),
        pytest.param(10_000, 90, None, id="less than a percent"),
        pytest.param(10_000, 100, 495, id="a percent"),
    ],
)
def test_the_remaining_time_is_only_estimated_after_a_percent_or_a_megabyte(
    clock, total, done, expected
):
    work = SILENT.work("tokenize", "text", total=total)
    work.report()
    clock.seconds += 5
    work.advance(done)

    assert work.seconds_left == expected


def test_units_other_than_bytes_are_counted(clock):
    work = SILENT.work("tars", "mix", total=3, unit="tars")
    work.report()
    clock.seconds += 5
    work.advance(1)

    assert work.description == "tars mix: 33%, 1 of 3 tars, 10 s left"


@pytest.mark.parametrize("total", [10, 0])
def test_finished_work_has_no_remaining_time(total):
    work = SILENT.work("merge", "a", total)

    work.advance(total)

    assert work.description == "merge a: 100%, 0.0 MB/s"


def test_running_work_is_part_of_the_state_until_it_is_finished():
    display = RecordingDisplay()
    work = display.progress.work("merge", "a", total=2)
    assert display.progress.state().works == []

    work.advance(1)
    assert display.progress.state().works == [work]

    work.advance(1)
    assert display.progress.state().works == []


def test_a_step_takes_the_place_of_the_work_before():
    display = RecordingDisplay()
    display.progress.work("merge", "a", total=2).advance(1)

    display.progress.step("datasets [web]", 3, 25)

    assert display.steps == ["[3/25] datasets [web]"]
    assert display.progress.state().works == []


def test_a_note_is_shown_once():
    display = RecordingDisplay()

    for _ in range(2):
        display.progress.note("engine numpy")

    assert display.notes == ["engine numpy"]


def test_reports_on_a_part_are_replaced_by_the_next_and_by_the_finished_part():
    display = RecordingDisplay()
    work = display.progress.work("tokenize", "text", total=10)

    with progress_reported_to(work.receive):
        report_progress(PartReport("first", Amount(2)))
        report_progress(PartReport("second", Amount(3)))
        report_progress(PartReport("first", Amount(4)))
    work.advance_part("first", Amount(5))

    assert [work.done for work in display.works] == [2, 5, 7, 8]


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let Python switch between threads far more often than usual."""
    usual_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_interval)


@pytest.mark.usefixtures("frequent_switches")
def test_reports_of_several_threads_are_all_counted():
    n_reports = 1000
    work = Progress(RecordingDisplay()).work("merge", "web", total=10 * n_reports)

    def advance() -> None:
        for _ in range(n_reports):
            work.advance(1)

    def report_parts() -> None:
        for number in range(n_reports):
            work.receive(PartReport(f"part {number}", Amount(units=1)))
            work.advance_part(f"part {number}", Amount(units=2))

    with ThreadPoolExecutor(5) as pool:
        threads = [pool.submit(advance) for _ in range(4)]
        threads.append(pool.submit(report_parts))
    for thread in threads:
        thread.result()

    assert work.done.units == 4 * n_reports + 2 * n_reports


def test_a_message_of_a_task_is_shown_as_a_note():
    display = RecordingDisplay()
    work = display.progress.work("tokenize", "text", total=10)

    with progress_reported_to(work.receive):
        report_progress(TaskNote("engine numpy"))

    assert display.notes == ["engine numpy"]
    assert display.works == []


def test_a_wait_ends_at_its_limit(clock):
    display = RecordingDisplay()
    wait = display.progress.wait("for workers", limit=2.5)
    assert wait.has_time_left()

    clock.seconds += 2
    assert wait.has_time_left()

    clock.seconds += 1
    assert not wait.has_time_left()

    # The display counts whole seconds.
    assert [work.done for work in display.works] == [0, 2, 3]
    assert {work.total for work in display.works} == {3}


def test_a_wait_says_whether_it_was_in_vain(clock):
    display = RecordingDisplay()
    wait = display.progress.wait("for workers", limit=2.5)

    wait.has_time_left()
    clock.seconds += 2
    wait.end()
    assert wait.description == "waiting for workers: found after 2 s"

    wait.has_time_left()
    clock.seconds += 3
    wait.has_time_left()
    assert wait.description == "waiting for workers: given up after 3 s"


def test_a_wait_counts_the_time_since_its_start(clock):
    display = RecordingDisplay()
    wait = display.progress.wait("for workers", limit=2.5)
    wait.start()

    clock.seconds += 3
    assert not wait.has_time_left()

    assert display.works == []


def test_a_copy_in_another_process_is_silent():
    display = RecordingDisplay()

    assert pickle.loads(pickle.dumps(display.progress)) is SILENT
    assert pickle.loads(pickle.dumps(Progress())) is SILENT
