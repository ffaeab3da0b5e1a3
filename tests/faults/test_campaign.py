"""A seeded share of the campaign: damaged files of every format, in processes with little memory."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import campaign
from faults.mutations import mutate, mutate_json

_TESTS = Path(__file__).parents[1]


def test_every_format_withstands_damage(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "faults.campaign", "--trials", "25"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1]
    assert total.startswith("| all |")
    assert int(total.split("|")[2].replace(",", "")) > 1000


def test_mutations_are_seeded_and_do_something():
    import random

    data = bytes(range(256)) * 4
    first = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert first == [mutate(data, random.Random(seed)) for seed in range(200)]
    assert len(set(first)) > 150
    assert sum(len(one) < len(data) for one in first) > 20
    assert sum(len(one) > len(data) for one in first) > 20
    value = b'{"a": [1, {"b": "c"}], "d": null}'
    assert len({mutate_json(value, random.Random(seed)) for seed in range(100)}) > 60


@pytest.mark.parametrize("what", [time.sleep, lambda seconds: [0 for _ in iter(int, seconds)]], ids=["still", "busy"])
def test_a_trial_that_does_not_end_is_ended(what, monkeypatch):
    monkeypatch.setattr(campaign, "SECONDS", 0.05)
    monkeypatch.setattr(campaign, "STILL_SECONDS", 0.1 if what is time.sleep else 600.0)
    child = os.fork()
    if child == 0:
        what(600)
        os._exit(0)
    assert campaign._wait(child, mmap.mmap(-1, 8)) == (signal.SIGKILL, True)
