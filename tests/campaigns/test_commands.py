"""Every command keeps its promises under faults: the suite tries each fault once.

The faults and the promises are those of `campaigns/commands.py`, which tries them more often.
"""

from __future__ import annotations

import os
from itertools import cycle

import pytest

from campaigns.commands import BY_CHANCE, FAULTS
from campaigns.uses import USES, commands

OWN_FAULTS = ("twice", "into its input", "another made it", "other settings")
"""Faults about which each command has code or declarations of its own: the suite tries all of them."""
SHARED_FAULTS = (
    "wrong input",
    "empty folder",
    "full output",
    "reader gone",
    "small files",
    "few files",
    "no right to write",
    "no right to read",
    "no place for it",
    "full disk",
)
"""Faults that all commands meet with the same code: the suite tries them on a few commands."""
COMMANDS_WITH_SHARED_FAULTS = ("explain", "gc", "merge")
SIGNALS = ("interrupted", "killed", "killed at steps", "two at once")
"""Faults that take long: the suite tries one of them on each command that writes, in turn."""
SIGNALS_TO_WORKERS = {"tokenize": SIGNALS, "shuffle, by workers": ("interrupted",)}
"""Use of a command whose worker processes write files → the signals that the suite tries on it.

The workers of `tokenize` are forks, those of `shuffle` are new programs.
"""
READING_COMMANDS = ("columns", "diff", "explain", "inspect", "pbin describe", "status", "verify")
"""Commands that write nothing, so that a signal leaves nothing incomplete.

Signals to such a command are tested in tests/cli/test_interruption.py.
"""
TRIED_USES = [
    name
    for name, use in USES.items()
    if not use.needs_dagster and not name.endswith(", by workers")
]
"""Uses that the suite tries with many faults; those by workers take long."""


def test_every_command_has_a_use():
    commands_with_uses = {name.split(",")[0] for name in USES}
    assert sorted(commands()) == sorted(commands_with_uses)


def test_every_fault_is_tried():
    tried_faults = {*OWN_FAULTS, *SHARED_FAULTS, *SIGNALS}
    assert tried_faults == (FAULTS | BY_CHANCE).keys()


def reads_only(name: str) -> bool:
    """Return whether a use is one of a command that writes nothing."""
    return name.split(",")[0] in READING_COMMANDS


def access_faults_of(name: str) -> list[str]:
    """Return the faults that depend on how a command opens its files: the suite tries one of them.

    Those of its input and its output are left out if it has none.
    """
    use = USES[name]
    faults = ["no right to write"]
    if use.input is not None:
        faults.append("no right to read")
    if use.output is not None:
        faults += ["no place for it", "full disk"]
    return faults


def selected_trials() -> list[str]:
    """Return the names of the trials that the suite runs."""
    patterns: list[str] = []
    next_signal = cycle(SIGNALS)
    for number, name in enumerate(TRIED_USES):
        access_faults = access_faults_of(name)
        faults = {*OWN_FAULTS, access_faults[number % len(access_faults)]}
        if name in COMMANDS_WITH_SHARED_FAULTS:
            faults.update(SHARED_FAULTS)
        if name not in SIGNALS_TO_WORKERS and not reads_only(name):
            faults.add(next(next_signal))
        patterns += [f"{name}, {fault}" for fault in faults]
    for name, signals in SIGNALS_TO_WORKERS.items():
        patterns += [f"{name}, {signal}" for signal in signals]
    return patterns


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, run_campaign):
    """Run the trials, and return the rows of their table and what was printed about bad trials."""
    folder = tmp_path_factory.mktemp("commands")
    options = ["--trials", "1", "--no-dagster", "--warm", "--select", *selected_trials()]
    return run_campaign(folder, "commands", *options, code=None)


@pytest.mark.slow
@pytest.mark.parametrize("command", dict.fromkeys([*TRIED_USES, *SIGNALS_TO_WORKERS]))
def test_a_command_keeps_its_promises_under_every_fault(outcomes, command):
    rows, report = outcomes
    bad_counts = [row["bad"] for row in rows if row["command"] == command]

    assert bad_counts, report
    # A cell is empty if this machine cannot do the fault, which never happens to root.
    assert set(bad_counts) <= {0, ""}, report
    if os.geteuid() == 0:
        assert "" not in bad_counts, report
