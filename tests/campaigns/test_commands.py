"""The contract of every command: the same faults, a trial of each; and no command is missing from
it.
"""

from __future__ import annotations

import os

import pytest

from campaigns.commands import BY_CHANCE, FAULTS
from campaigns.runner import run_campaign
from campaigns.uses import USES, commands

LEFT_TO_THE_CAMPAIGN = {
    "wrong input",
    "empty folder",
    "full output",
    "reader gone",
    "small files",
    "few files",
}
"""Faults of which the suite tries a few commands, since all share what meets them."""
SIGNALS = ("interrupted", "killed", "killed at steps", "two at once")
"""Of these the suite tries one on each command, and all where workers write."""
TRIED = [name for name, use in USES.items() if not use.needs_dagster]


def test_every_command_is_tried():
    assert sorted(commands()) == sorted({name.split(",")[0] for name in USES})


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """A row for each command and fault, and what is said of bad trials."""
    faults = [
        f"*, {fault}" for fault in (FAULTS | BY_CHANCE).keys() - LEFT_TO_THE_CAMPAIGN.union(SIGNALS)
    ]
    faults += [f"{name}, {SIGNALS[number % len(SIGNALS)]}" for number, name in enumerate(TRIED)]
    faults += [f"{name}, {signal}" for name in ("tokenize", "shuffle") for signal in SIGNALS]
    few = [
        f"{name}, {fault}" for name in ("gc", "merge", "verify") for fault in LEFT_TO_THE_CAMPAIGN
    ]
    words = ["commands", "--trials", "1", "--no-dagster", "--warm", "--select", *faults, *few]
    return run_campaign(tmp_path_factory.mktemp("commands"), *words, code=None)


@pytest.mark.parametrize("command", TRIED)
def test_nothing_of_another_is_lost_and_nothing_half_is_left(outcomes, command):
    rows, said = outcomes
    found = [row["bad"] for row in rows if row["command"] == command]
    assert len(found) >= 8, said
    assert set(found) <= {0, ""}, said
    assert "" not in found or os.geteuid() != 0, said
