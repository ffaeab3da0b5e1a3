"""A share of the campaign over command lines; and no command is missing from it."""

from __future__ import annotations

from faults.command_lines.uses import USES, commands
from faults.runner import run_campaign


def test_every_command_is_tried():
    assert sorted(commands()) == sorted({name.split(",")[0] for name in USES})


def test_nothing_silent_and_no_traceback(tmp_path):
    total = run_campaign("command_lines", tmp_path, "--no-dagster", "--trials", "1", "--share", "29")[-1]
    assert total[0] == "all"
    assert int(total[2]) > 5
