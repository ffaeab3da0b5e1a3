"""A seeded share of the campaign: damaged files of every format, in processes with little memory."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter

import pytest
from faults.mutations import mutate, mutate_json
from faults.runner import Trial, each, give, in_fork, run_campaign, run_kinds, seeded


def test_every_format_withstands_damage(tmp_path):
    total = run_campaign(tmp_path, "formats", "--trials", "25")
    assert total["trials"] > 1000
    assert total["bad"] == 0


def test_no_damage_is_silent(tmp_path):
    total = run_campaign(tmp_path, "damage", "--trials", "9")
    assert total["refused"] + total["warned"] > 15
    assert total["bad"] == 0


def test_trials_are_seeded_counted_and_repeated(capsys):
    assert seeded("kind", 1).random() == seeded("kind", 1).random() != seeded("kind", 2).random()
    ended = [Trial(Counter(refused=1)), Trial(wrong=["lost"])]
    options = argparse.Namespace(select=["a fault*"], first=0, only=None)
    bad = run_kinds(
        "damage",
        [each(("a fault", "a build"), 2, lambda _rng, number: ended[number])],
        ("fault", "build"),
        ("refused",),
        options,
    )
    shown = capsys.readouterr()
    assert bad == 1
    assert shown.out.splitlines()[-1] == "| all |  | 2 | 1 | 1 |"
    assert "python -m faults damage --select 'a fault, a build' --first 1 --only 1" in shown.err


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
    def work():
        give("begun")
        time.sleep(600) if still_seconds < 1 else [0 for _ in iter(int, 1)]

    given, ending = in_fork(work, extra_bytes=1 << 30, seconds=seconds, still_seconds=still_seconds)
    assert (given, ending.end) == (["begun"], "hung")


def test_a_crash_is_told():
    given, ending = in_fork(lambda: [give(1), 1 / 0], extra_bytes=1 << 30, seconds=60)
    assert (given, ending.end) == ([1], "crashed")
    assert "ZeroDivisionError" in ending.said
