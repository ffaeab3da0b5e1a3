"""A seeded share of the campaigns on files (damaged, hostile, tokenizers with another setting), and
their runner.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from collections import Counter
from itertools import islice

import pytest

from campaigns.hostile import CASES
from campaigns.mutations import mutate, mutate_json
from campaigns.runner import Trial, each, forked, give, in_fork, run_campaign, run_kinds, seeded
from campaigns.tokenizer_mutations import mutated, mutations
from campaigns.tokenizers import strings


def test_every_format_withstands_damage(tmp_path):
    total = run_campaign(tmp_path, "formats", "--trials", "12")[0][-1]
    assert total["trials"] > 500
    assert total["bad"] == 0


def test_no_damage_is_silent(tmp_path):
    total = run_campaign(tmp_path, "damage", "--trials", "5")[0][-1]
    assert total["refused"] + total["warned"] > 9
    assert total["bad"] == 0


def test_trials_are_seeded_counted_and_repeated(capsys):
    assert seeded("kind", 1).random() == seeded("kind", 1).random() != seeded("kind", 2).random()
    ended = [Trial(Counter(refused=1)), Trial(wrong=["lost"])]
    options = argparse.Namespace(select=["a fault*"], first=0, only=None)
    kind = each(("a fault", "a build"), 2, lambda _rng, number: ended[number])
    bad = run_kinds("damage", [kind], ("fault", "build"), ("refused",), options)
    shown = capsys.readouterr()
    assert bad == 1
    assert shown.out.splitlines()[-1] == "| all |  | 2 | 1 | 1 |"
    assert "python -m campaigns damage --select 'a fault, a build' --first 1 --only 1" in shown.err


def test_mutations_are_seeded_and_do_something():
    data = bytes(range(256)) * 4
    first = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert first == [mutate(data, random.Random(seed)) for seed in range(200)]
    assert len(set(first)) > 150
    assert sum(len(one) < len(data) for one in first) > 20
    assert sum(len(one) > len(data) for one in first) > 20
    value = b'{"a": [1, {"b": "c"}], "d": null}'
    assert len({mutate_json(value, random.Random(seed)) for seed in range(100)}) > 60


@pytest.mark.parametrize(
    ("work", "limits"),
    [
        (lambda: time.sleep(600), {"clock_seconds": 0.3}),
        (lambda: [0 for _ in iter(int, 1)], {"seconds": 1}),
    ],
    ids=["still", "busy"],
)
def test_a_trial_that_does_not_end_is_ended(work, limits):
    given, ending = in_fork(
        lambda: [give("begun"), work()], **{"extra_bytes": 1 << 30, "seconds": 600} | limits
    )
    assert (given, ending.end) == (["begun"], "hung")


def test_a_crash_is_told():
    given, ending = in_fork(lambda: [give(1), 1 / 0], extra_bytes=1 << 30, seconds=60)
    assert (given, ending.end) == ([1], "crashed")
    assert "ZeroDivisionError" in ending.said


@pytest.mark.parametrize("dies", [False, True])
def test_a_fork_that_dies_takes_no_other_trial_with_it(dies):
    kind = forked(("dying",), 5, _dies_at_2, batch=3, dies=dies, extra_bytes=1 << 30, seconds=60)
    trials = list(kind.run(range(5)))
    assert [trial.counts["done"] for trial in trials] == [1, 1, 0, 1, 1]
    assert [bool(trial.wrong) for trial in trials] == [False, False, not dies, False, False]


def _dies_at_2(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Trial(Counter(done=1))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    rows, said = run_campaign(tmp_path_factory.mktemp("hostile"), "hostile", code=None)
    return {row["file"]: row["bad"] for row in rows}, said


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_do_no_harm(hostile, name):
    bad, said = hostile
    assert bad[name] == 0, said


def test_no_changed_setting_gives_wrong_tokens(tmp_path):
    total = run_campaign(
        tmp_path, "tokenizers", "--select", "llama?,*", "--trials", "15", "--strings", "100"
    )[0][-1]
    assert total["numpy"] >= 2, "some changed files are still understood"
    assert total["bad"] == 0


def test_every_field_is_changed(tokenizer_file):
    parsed = json.loads(tokenizer_file.read_bytes())
    model, token = parsed["model"], parsed["added_tokens"][0]
    model |= {"merges": model["merges"][:20], "vocab": dict(islice(model["vocab"].items(), 40))}
    changed = set()
    for mutation in mutations(parsed):
        content = mutated(parsed, mutation)
        other = json.loads(content) if content else parsed
        changed |= _differing("", parsed, other)
        changed |= _differing("model.", model, other.get("model"))
        changed |= _differing("token.", token, (other.get("added_tokens") or [None])[0])
    assert changed == {
        *parsed,
        *(f"model.{key}" for key in model),
        *(f"token.{key}" for key in token),
    }


def _differing(prefix, here, there):
    return {prefix + key for key, value in here.items() if (there or {}).get(key) != value}


def test_strings_are_seeded_and_different():
    first = list(islice(strings(1, ["<mask>"]), 300))
    assert first == list(islice(strings(1, ["<mask>"]), 300))
    assert len(set(first)) == 300
    assert any("<mask>" in text for text in first)
    assert max(map(len, first)) > 200
