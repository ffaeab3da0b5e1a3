"""Every command keeps its promises under faults: the suite tries each fault once.

The faults and the promises are those of `campaigns/commands.py`, which tries them more often.
"""

from __future__ import annotations

import os

import pytest

from campaigns.commands import BY_CHANCE, FAULTS
from campaigns.runner import run_campaign
from campaigns.uses import USES, commands

SHARED_FAULTS = {
    "wrong input",
    "empty folder",
    "full output",
    "reader gone",
    "small files",
    "few files",
}
"""Faults that all commands meet with the same code: the suite tries them on a few commands."""
COMMANDS_WITH_SHARED_FAULTS = ("gc", "merge", "verify")
SIGNALS = ("interrupted", "killed", "killed at steps", "two at once")
"""Faults that take long: the suite tries one of them on each command, in turn."""
COMMANDS_WITH_WORKERS = ("tokenize", "shuffle")
"""Commands whose worker processes write files: the suite tries all signals on them."""
TRIED_USES = [name for name, use in USES.items() if not use.needs_dagster]


def test_every_command_has_a_use():
    commands_with_uses = {name.split(",")[0] for name in USES}
    assert sorted(commands()) == sorted(commands_with_uses)


def selected_trials() -> list[str]:
    """Return the patterns of the trials that the suite runs."""
    other_faults = (FAULTS | BY_CHANCE).keys() - SHARED_FAULTS - set(SIGNALS)
    patterns = [f"*, {fault}" for fault in other_faults]
    for number, name in enumerate(TRIED_USES):
        patterns.append(f"{name}, {SIGNALS[number % len(SIGNALS)]}")
    for name in COMMANDS_WITH_WORKERS:
        patterns += [f"{name}, {signal}" for signal in SIGNALS]
    for name in COMMANDS_WITH_SHARED_FAULTS:
        patterns += [f"{name}, {fault}" for fault in SHARED_FAULTS]
    return patterns


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run the trials, and return the rows of their table and what was printed about bad trials."""
    folder = tmp_path_factory.mktemp("commands")
    options = ["--trials", "1", "--no-dagster", "--warm", "--select", *selected_trials()]
    return run_campaign(folder, "commands", *options, code=None)


@pytest.mark.parametrize("command", TRIED_USES)
def test_a_command_keeps_its_promises_under_every_fault(outcomes, command):
    rows, report = outcomes

    bad_counts = [row["bad"] for row in rows if row["command"] == command]

    assert len(bad_counts) >= 8, report
    # A cell is empty if this machine cannot do the fault, which never happens to root.
    assert set(bad_counts) <= {0, ""}, report
    if os.geteuid() == 0:
        assert "" not in bad_counts, report
