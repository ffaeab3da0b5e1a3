"""Signals that a process and those that it starts receive.

tests/cli/test_interruption.py specifies what whole commands do.
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
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command."""


def terminate(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM to a process, and return its exit code."""
    process.terminate()
    try:
        return process.wait(20)
    finally:
        process.kill()
        process.wait()


# Signals that the parent of this process has set to be ignored


@pytest.fixture
def ignored_signals() -> Iterator[None]:
    """Ignore all signals, as in a process that was started in the background."""
    earlier_handlers = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    yield
    for number, handler in earlier_handlers.items():
        assert signal.signal(number, handler) == signal.SIG_IGN, "it is no longer ignored"


def test_a_child_of_a_process_that_ignores_sigterm_can_be_terminated(ignored_signals: None) -> None:
    with interruptible():
        with children_shielded():
            child = subprocess.Popen(SLEEP)
            signal.raise_signal(signal.SIGTERM)

        assert terminate(child) == -signal.SIGTERM
        assert received_signal() is None, "this process ignores the signal"


def test_workers_that_a_thread_starts_can_be_terminated(ignored_signals: None) -> None:
    def handlers_in_workers() -> list[object]:
        results = run_tasks(signal.getsignal, [signal.SIGTERM, signal.SIGTERM], 2)
        return [handler for _number, handler in results]

    with ThreadPoolExecutor(1) as thread:
        handlers = thread.submit(handlers_in_workers).result()

    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]


# Children


def test_a_shielded_child_ignores_ctrl_c_and_hang_ups() -> None:
    # Dagster may have installed a handler of its own.
    earlier_handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with children_shielded():
            child = subprocess.Popen(SLEEP)
    finally:
        signal.signal(signal.SIGTERM, earlier_handler)

    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGHUP)

    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    assert terminate(child) == -signal.SIGTERM


# Signals of this process


@pytest.fixture(params=SIGNALS)
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal; Python's own handlers of all of them are in place."""
    earlier_handlers = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield request.param
    for number, handler in earlier_handlers.items():
        signal.signal(number, handler)


def test_the_signal_that_interrupted_a_block_is_known_within_it(number: signal.Signals) -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert received_signal() == number

    assert received_signal() is None, "what follows in this process was not interrupted"


def test_a_block_that_cleans_up_is_not_interrupted(number: signal.Signals) -> None:
    with interruptible():
        with signals_dropped():
            signal.raise_signal(number)
            signal.raise_signal(number)

        assert received_signal() == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


class RunTerminated(BaseException):
    """Stands for the exception that a handler of Dagster raises in a run."""


def raise_as_dagster(*args: object) -> None:
    """Handle a signal as Dagster does."""
    raise RunTerminated


@pytest.mark.parametrize("handler", [signal.default_int_handler, raise_as_dagster])
def test_a_signal_within_a_callback_is_not_lost(
    number: signal.Signals, handler: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Python prints an exception that is raised in a callback, and continues."""

    class Referent:
        """An object with a weak reference, whose callback runs when the object is deleted."""

    with interruptible(), handlers_restored():
        signal.signal(number, handler)
        referent = Referent()
        reference = weakref.ref(referent, lambda _: signal.raise_signal(number))

        with pytest.raises((KeyboardInterrupt, RunTerminated)):
            del referent
            time.sleep(20)

        assert received_signal() == number
        assert reference() is None
    assert "ignored" not in capfd.readouterr().err


# Slurm

START_SLURM_CLUSTER = """
import signal, sys
from pathlib import Path
from nanoset_core.execution.slurm import SlurmJobs

# It is ignored if the tests run in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
jobs = SlurmJobs(1, 1, "1GB", 3600, folder)
jobs._cluster(folder).close()
assert "dask_jobqueue" in sys.modules
signal.raise_signal(signal.SIGINT)
"""


def test_ctrl_c_ends_a_build_on_slurm_like_any_other(tmp_path: Path) -> None:
    """An import of `dask_jobqueue` sets a handler that ends the process with exit code 0."""
    process = subprocess.run(
        [sys.executable, "-c", START_SLURM_CLUSTER, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == -signal.SIGINT, process.stderr
