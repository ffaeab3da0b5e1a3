"""A seeded share of the campaign: damaged files of every format, in processes with little memory."""

from __future__ import annotations

import random
import time

import pytest
from faults.mutations import mutate, mutate_json
from faults.runner import Limits, in_fork, run_campaign


def test_every_format_withstands_damage(tmp_path):
    total = run_campaign("campaign", tmp_path, "--trials", "25")[-1]
    assert total[0] == "all"
    assert int(total[1].replace(",", "")) > 1000


def test_mutations_are_seeded_and_do_something():
    data = bytes(range(256)) * 4
    first = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert first == [mutate(data, random.Random(seed)) for seed in range(200)]
    assert len(set(first)) > 150
    assert sum(len(one) < len(data) for one in first) > 20
    assert sum(len(one) > len(data) for one in first) > 20
    value = b'{"a": [1, {"b": "c"}], "d": null}'
    assert len({mutate_json(value, random.Random(seed)) for seed in range(100)}) > 60


@pytest.mark.parametrize(("seconds", "still_seconds"), [(600, 0.1), (0.05, 600)], ids=["still", "busy"])
def test_a_trial_that_does_not_end_is_ended(seconds, still_seconds):
    def work(say):
        say("begun")
        time.sleep(600) if still_seconds < 1 else [0 for _ in iter(int, 1)]

    assert in_fork(work, Limits(1 << 30, seconds, still_seconds)) == (["begun"], "hung")


def test_a_crash_is_told():
    assert in_fork(lambda say: [say(1), 1 / 0], Limits(1 << 30, 60)) == ([1], "crashed: status 256")
