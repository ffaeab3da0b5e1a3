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
from campaigns.runner import Trial, each, forked, give, in_fork, run_kinds, seeded
from campaigns.tokenizer_mutations import mutated, mutations
from campaigns.tokenizers import strings


@pytest.fixture
def totals(tmp_path, run_campaign):
    """A function that runs a campaign that must find nothing bad, and returns its last row."""

    def run(*arguments):
        rows, _report = run_campaign(tmp_path, *arguments)
        return rows[-1]

    return run


# A few trials of each campaign


@pytest.mark.slow
def test_every_format_withstands_damage(totals):
    total = totals("formats", "--trials", "12")

    assert total["trials"] > 500
    assert total["bad"] == 0


@pytest.mark.slow
def test_damaged_inputs_are_refused_or_warned_about(totals):
    total = totals("damage", "--trials", "5")

    assert total["refused"] + total["warned"] > 9
    assert total["bad"] == 0


def test_no_changed_setting_of_a_tokenizer_gives_wrong_tokens(totals):
    total = totals("tokenizers", "--select", "llama?,*", "--trials", "15", "--strings", "100")

    assert total["numpy"] >= 2, "the numpy engine must still understand some changed files"
    assert total["bad"] == 0


@pytest.fixture(scope="module")
def hostile_outcome(tmp_path_factory, run_campaign):
    """Run the campaign once for all cases; return bad trials by case, and what was printed."""
    folder = tmp_path_factory.mktemp("hostile")
    rows, report = run_campaign(folder, "hostile", code=None)
    bad_by_case = {row["file"]: row["bad"] for row in rows}
    return bad_by_case, report


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hostile_files_do_no_harm(hostile_outcome, case):
    bad_by_case, report = hostile_outcome

    assert bad_by_case[case] == 0, report


# The runner


def test_the_random_numbers_of_a_trial_are_the_same_in_each_run():
    assert seeded("kind", 1).random() == seeded("kind", 1).random()


def test_the_random_numbers_of_a_trial_depend_on_its_kind_and_number():
    number = seeded("kind", 1).random()

    assert seeded("kind", 2).random() != number
    assert seeded("another kind", 1).random() != number


def test_a_bad_trial_is_counted_and_the_command_that_repeats_it_is_printed(capsys):
    # The first of two trials ends as it should, and the second one does not.
    trials = [Trial(Counter(refused=1)), Trial(wrong=["lost"])]
    kind = each(("a fault", "a build"), 2, lambda _rng, number: trials[number])
    options = argparse.Namespace(select=["a fault*"], first=0, only=None)

    n_bad = run_kinds("damage", [kind], ("fault", "build"), ("refused",), options)

    shown = capsys.readouterr()
    assert n_bad == 1
    assert shown.out.splitlines()[-1] == "| all |  | 2 | 1 | 1 |"
    assert "python -m campaigns damage --select 'a fault, a build' --first 1 --only 1" in shown.err


def give_and_sleep():
    """Return a value, and then wait without using the processor."""
    give("started")
    time.sleep(600)


def give_and_compute():
    """Return a value, and then use the processor without end."""
    give("started")
    while True:
        pass


@pytest.mark.parametrize(
    ("work", "limits"),
    [
        pytest.param(give_and_sleep, {"seconds": 600, "clock_seconds": 0.3}, id="idle"),
        pytest.param(give_and_compute, {"seconds": 1}, id="busy"),
    ],
)
def test_a_trial_that_does_not_end_is_ended(work, limits):
    values, outcome = in_fork(work, extra_bytes=1 << 30, **limits)

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


def run_or_die(number):
    """Run a trial; the one with number 2 kills its process."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Trial(Counter(done=1))


@pytest.mark.parametrize(
    ("may_die", "is_bad"),
    [
        pytest.param(False, [False, False, True, False, False], id="death is bad"),
        pytest.param(True, [False, False, False, False, False], id="death is allowed"),
    ],
)
def test_a_trial_that_kills_its_process_does_not_affect_the_others(may_die, is_bad):
    kind = forked(("dying",), 5, run_or_die, batch=3, dies=may_die, extra_bytes=1 << 30, seconds=60)

    trials = list(kind.run(range(5)))

    assert [trial.counts["done"] for trial in trials] == [1, 1, 0, 1, 1]
    assert [bool(trial.wrong) for trial in trials] == is_bad


# Damage to files

DATA = bytes(range(256)) * 4


def damaged_copies():
    """Return 200 damaged copies of the data."""
    return [mutate(DATA, random.Random(seed)) for seed in range(200)]


def test_the_same_random_numbers_give_the_same_damage():
    assert damaged_copies() == damaged_copies()


def test_damage_changes_shortens_and_lengthens_files():
    copies = damaged_copies()

    shorter_copies = [copy for copy in copies if len(copy) < len(DATA)]
    longer_copies = [copy for copy in copies if len(copy) > len(DATA)]
    assert len(set(copies)) > 150
    assert len(shorter_copies) > 20
    assert len(longer_copies) > 20


def test_damage_to_json_leaves_json():
    data = b'{"a": [1, {"b": "c"}], "d": null}'

    copies = {mutate_json(data, random.Random(seed)) for seed in range(100)}

    assert len(copies) > 60
    for copy in copies:
        json.loads(copy)


# Changes of tokenizer files


@pytest.fixture
def small_tokenizer(tokenizer_file):
    """The parsed file of a tokenizer with few tokens, since each of them is changed."""
    tokenizer = json.loads(tokenizer_file.read_bytes())
    model = tokenizer["model"]
    model["merges"] = model["merges"][:20]
    model["vocab"] = dict(islice(model["vocab"].items(), 40))
    return tokenizer


def changed_fields(before, after):
    """Return the keys of an object whose values differ in another one, or that it lacks."""
    after = after or {}
    return {key for key, value in before.items() if after.get(key) != value}


def test_every_field_of_a_tokenizer_file_is_changed(small_tokenizer):
    model = small_tokenizer["model"]
    token = small_tokenizer["added_tokens"][0]
    changed = set()
    changed_of_model = set()
    changed_of_token = set()

    for mutation in mutations(small_tokenizer):
        content = mutated(small_tokenizer, mutation)
        if not content:
            continue
        tokenizer = json.loads(content)
        first_token = next(iter(tokenizer.get("added_tokens") or []), None)
        changed |= changed_fields(small_tokenizer, tokenizer)
        changed_of_model |= changed_fields(model, tokenizer.get("model"))
        changed_of_token |= changed_fields(token, first_token)

    assert changed == small_tokenizer.keys()
    assert changed_of_model == model.keys()
    assert changed_of_token == token.keys()


# Strings that tokenizers are compared on


def test_strings_are_the_same_in_each_run():
    texts = list(islice(strings(1, ["<mask>"]), 300))
    texts_again = list(islice(strings(1, ["<mask>"]), 300))

    assert texts_again == texts


def test_strings_are_different_and_some_contain_special_tokens():
    texts = list(islice(strings(1, ["<mask>"]), 300))

    assert len(set(texts)) == 300
    assert any("<mask>" in text for text in texts)
    assert max(len(text) for text in texts) > 200
