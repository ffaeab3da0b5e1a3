"""Signals of a process and of those that it starts; whole commands are in tests/cli/test_interruption.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoset_core.execution.interruption import handlers_kept, ignore_sigint, interruptible, received_signal

SLEEP = ["sleep", "60"]


@pytest.fixture
def ignoring() -> Iterator[None]:
    """A process whose parent has set both signals to be ignored."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
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
    with handlers_kept():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Dagster does in a run
        signal.raise_signal(signal.SIGTERM)
        with ignore_sigint():
            helper = subprocess.Popen(SLEEP)
        assert end(helper) == -signal.SIGTERM


def test_helpers_that_a_thread_starts_can_be_ended(ignoring: None) -> None:
    ended: list[int] = []

    def start() -> None:
        with ignore_sigint():
            helper = subprocess.Popen(SLEEP)
        ended.append(end(helper))

    with handlers_kept():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    assert ended == [-signal.SIGTERM]


def test_helpers_hear_no_ctrl_c() -> None:
    kept = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Dagster may have left another
    try:
        with ignore_sigint():
            helper = subprocess.Popen(SLEEP)
    finally:
        signal.signal(signal.SIGTERM, kept)
    helper.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        helper.wait(0.3)
    assert end(helper) == -signal.SIGTERM


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal, of which Python's own handlers are in place."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    kept = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    yield request.param
    for one, handler in kept.items():
        signal.signal(one, handler)


def test_what_ended_a_block_is_known_within_it(number: signal.Signals) -> None:
    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert received_signal() == number
    assert received_signal() is None, "what comes next in this process was not interrupted"


def test_a_signal_within_a_callback_is_not_lost(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    class Referred:
        pass

    with interruptible():
        referred = Referred()
        reference = weakref.ref(referred, lambda _: signal.raise_signal(number))
        with pytest.raises(KeyboardInterrupt):
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
from nanoset_core.execution.dask_connection import SlurmJobs

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
jobs = SlurmJobs(1, 1, "1GB", 3600, Path(sys.argv[1]))
jobs._cluster().close()
assert "dask_jobqueue" in sys.modules
signal.raise_signal(signal.SIGINT)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr
