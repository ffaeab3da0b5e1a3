"""What the live tests start is gone when they end, whatever it does with signals."""

from __future__ import annotations

import sys

import pytest
from live.processes import is_alive, looked_at, running, until

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:] == ["parent"]:
    child = subprocess.Popen([sys.executable, __file__], start_new_session=True)
    print(os.getpid(), child.pid, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
time.sleep(600)
"""


def start(tmp_path):
    program = tmp_path / "stubborn.py"
    program.write_text(STUBBORN)
    return running([sys.executable, str(program), "parent"], tmp_path / "log", patience=0.5)


def started(tmp_path):
    """The parent and its child, by numbers and times of start."""
    words = until(lambda: (tmp_path / "log").read_text().split(), 20, lambda: "nothing started")
    return [(int(number), looked_at(int(number))[2]) for number in words]


def test_a_grandchild_that_ignores_signals_is_ended_too(tmp_path):
    with start(tmp_path):
        found = started(tmp_path)
        assert all(map(is_alive, found))
    assert not any(map(is_alive, found))


def test_an_error_within_leaves_nothing_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), start(tmp_path):
        found = started(tmp_path)
        raise ZeroDivisionError
    assert not any(map(is_alive, found))
