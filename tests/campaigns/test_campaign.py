"""The campaigns on files find nothing bad in a few trials, and their runner reports what is bad."""

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


def test_the_random_numbers_of_a_trial_depend_on_its_kind_and_number():
    first = seeded("kind", 1).random()
    assert first == seeded("kind", 1).random()
    assert first != seeded("kind", 2).random()
    assert first != seeded("another kind", 1).random()


def test_a_bad_trial_is_counted_and_the_command_that_repeats_it_is_printed(capsys):
    trials = [Trial(Counter(refused=1)), Trial(wrong=["lost"])]
    kind = each(("a fault", "a build"), 2, lambda _rng, number: trials[number])
    options = argparse.Namespace(select=["a fault*"], first=0, only=None)

    n_bad = run_kinds("damage", [kind], ("fault", "build"), ("refused",), options)

    shown = capsys.readouterr()
    assert n_bad == 1
    assert shown.out.splitlines()[-1] == "| all |  | 2 | 1 | 1 |"
    assert "python -m campaigns damage --select 'a fault, a build' --first 1 --only 1" in shown.err


def test_the_same_random_numbers_give_the_same_damage():
    data = bytes(range(256)) * 4
    first = [mutate(data, random.Random(seed)) for seed in range(200)]
    second = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert first == second


def test_damage_changes_shortens_and_lengthens_files():
    data = bytes(range(256)) * 4
    damaged = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert len(set(damaged)) > 150
    assert sum(len(file) < len(data) for file in damaged) > 20
    assert sum(len(file) > len(data) for file in damaged) > 20


def test_damage_to_json_leaves_json():
    data = b'{"a": [1, {"b": "c"}], "d": null}'
    damaged = {mutate_json(data, random.Random(seed)) for seed in range(100)}
    assert len(damaged) > 60
    for file in damaged:
        json.loads(file)


@pytest.mark.parametrize(
    ("work", "limits"),
    [
        (lambda: time.sleep(600), {"clock_seconds": 0.3}),
        (lambda: [0 for _ in iter(int, 1)], {"seconds": 1}),
    ],
    ids=["still", "busy"],
)
def test_a_trial_that_does_not_end_is_ended(work, limits):
    def give_and_work():
        give("started")
        work()

    values, outcome = in_fork(give_and_work, **{"extra_bytes": 1 << 30, "seconds": 600} | limits)

    assert values == ["started"]
    assert outcome.end == "hung"


def test_the_values_before_a_crash_and_its_traceback_are_returned():
    def give_and_crash():
        give(1)
        raise ZeroDivisionError

    values, outcome = in_fork(give_and_crash, extra_bytes=1 << 30, seconds=60)

    assert values == [1]
    assert outcome.end == "crashed"
    assert "ZeroDivisionError" in outcome.said


@pytest.mark.parametrize("dies", [False, True])
def test_a_fork_that_dies_takes_no_other_trial_with_it(dies):
    kind = forked(("dying",), 5, _dies_at_2, batch=3, dies=dies, extra_bytes=1 << 30, seconds=60)

    trials = list(kind.run(range(5)))

    assert [trial.counts["done"] for trial in trials] == [1, 1, 0, 1, 1]
    assert [bool(trial.wrong) for trial in trials] == [False, False, not dies, False, False]


def _dies_at_2(number):
    """Run a trial; that of number 2 kills its process."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Trial(Counter(done=1))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Run the campaign once for all cases; return bad trials by case, and what was printed."""
    folder = tmp_path_factory.mktemp("hostile")
    rows, report = run_campaign(folder, "hostile", code=None)
    return {row["file"]: row["bad"] for row in rows}, report


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_do_no_harm(hostile, name):
    bad_by_case, report = hostile
    assert bad_by_case[name] == 0, report


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
