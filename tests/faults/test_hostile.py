"""Bombs, traps and lies in files: each is refused, or read without harm, within 400 MiB and a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from faults.hostile import CASES
from faults.runner import TESTS


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, "-m", "faults.hostile"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: told for name, told, *_ in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", CASES)
def test_it_does_no_harm(outcomes, name):
    assert outcomes[name] == "as expected"
