"""Signals of a process and of those that it starts; whole commands are in
tests/cli/test_interruption.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nanoset_core.execution.interruption import (
    children_shielded,
    handlers_restored,
    interruptible,
    received_signal,
    signals_dropped,
)
from nanoset_core.execution.processes import run_tasks

SLEEP = ["sleep", "60"]


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def ignoring() -> Iterator[None]:
    """A process whose parent has set all of them to be ignored."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    yield
    for number, handler in kept.items():
        assert signal.signal(number, handler) == signal.SIG_IGN


def end(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(20)
    finally:
        process.kill()
        process.wait()


def test_helpers_of_a_process_that_ignores_sigterm_can_be_ended(ignoring: None) -> None:
    with interruptible():
        with children_shielded():
            helper = subprocess.Popen(SLEEP)
            signal.raise_signal(signal.SIGTERM)
        assert end(helper) == -signal.SIGTERM
        assert received_signal() is None, "it is ignored, whatever that takes"


def test_workers_that_a_thread_starts_can_be_ended(ignoring: None) -> None:
    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(lambda: list(run_tasks(signal.getsignal, [signal.SIGTERM] * 2, 2)))
    assert [handler for _, handler in work.result()] == [signal.SIG_DFL] * 2


def test_helpers_hear_no_ctrl_c() -> None:
    kept = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Dagster may have left another
    try:
        with children_shielded():
            helper = subprocess.Popen(SLEEP)
    finally:
        signal.signal(signal.SIGTERM, kept)
    helper.send_signal(signal.SIGINT)
    helper.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        helper.wait(0.3)
    assert end(helper) == -signal.SIGTERM


@pytest.fixture(params=ENDING)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal, of which Python's own handlers are in place."""
    kept = {one: signal.signal(one, signal.SIG_DFL) for one in ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield request.param
    for one, handler in kept.items():
        signal.signal(one, handler)


def test_what_ended_a_block_is_known_within_it(number: signal.Signals) -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert received_signal() == number
    assert received_signal() is None, "what comes next in this process was not interrupted"


def test_what_cleans_up_is_not_disturbed(number: signal.Signals) -> None:
    with interruptible():
        with signals_dropped():
            signal.raise_signal(number)
            signal.raise_signal(number)
        assert received_signal() == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


class Ended(BaseException):
    """As Dagster raises one in a run."""


def raise_ended(*args: object) -> None:
    raise Ended


@pytest.mark.parametrize("handler", [signal.default_int_handler, raise_ended])
def test_a_signal_within_a_callback_is_not_lost(
    number: signal.Signals, handler: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    class Referred:
        pass

    with interruptible(), handlers_restored():
        signal.signal(number, handler)
        referred = Referred()
        reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
        with pytest.raises((KeyboardInterrupt, Ended)):
            del referred  # Python would print the exception of the callback, and go on
            time.sleep(20)
        assert received_signal() == number
        assert reference() is None
    assert "ignored" not in capfd.readouterr().err


def test_ctrl_c_ends_a_build_over_slurm_as_any_other(tmp_path: Path) -> None:
    """Importing `dask_jobqueue` sets a handler that ends the process with 0."""
    program = """
import signal, sys
from pathlib import Path
from nanoset_core.execution.slurm import SlurmJobs

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
jobs = SlurmJobs(1, 1, "1GB", 3600, Path(sys.argv[1]))
jobs._cluster(Path(sys.argv[1])).close()
assert "dask_jobqueue" in sys.modules
signal.raise_signal(signal.SIGINT)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT, done.stderr
