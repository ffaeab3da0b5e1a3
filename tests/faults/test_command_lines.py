"""A share of the campaign over command lines; and no command is missing from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faults.command_lines.uses import USES, commands

_TESTS = Path(__file__).parents[1]


def test_every_command_is_tried():
    assert sorted(commands()) == sorted({name.split(",")[0] for name in USES})


def test_nothing_silent_and_no_traceback(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "faults.command_lines", "--no-dagster", "--trials", "1", "--share", "29"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1]
    assert total.startswith("| all |")
    assert int(total.split("|")[3]) > 5
