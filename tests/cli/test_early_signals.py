"""A signal that arrives before a command has begun its work ends it like any other signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nanoset_core.cli import entry, main
from nanoset_core.execution.interruption import handlers_restored, interruptible

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_during_the_start_is_reported_without_a_traceback(monkeypatch, capfd, number):
    @contextmanager
    def interruptible_with_early_signal() -> Iterator[None]:
        with interruptible():
            signal.raise_signal(number)
            yield

    monkeypatch.setattr(entry, "interruptible", interruptible_with_early_signal)

    with handlers_restored(), pytest.raises(SystemExit) as exit_request:
        # A suite that runs in the background ignores signals.
        signal.signal(number, signal.SIG_DFL)
        main(["--version"])

    assert exit_request.value.code == 128 + number
    stderr = capfd.readouterr().err
    assert "run the same command again to continue" in stderr
    assert "Traceback" not in stderr
