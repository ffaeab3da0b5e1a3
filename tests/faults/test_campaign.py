"""A seeded share of the campaign: damaged files of every format, in processes with little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faults.mutations import mutate, mutate_json

_TESTS = Path(__file__).parents[1]


def test_every_format_withstands_damage(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])}
    command = [sys.executable, "-m", "faults.campaign", "--trials", "60"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    total = done.stdout.splitlines()[-1]
    assert total.startswith("| all |")
    assert int(total.split("|")[2].replace(",", "")) > 2500


def test_mutations_are_seeded_and_do_something():
    import random

    data = bytes(range(256)) * 4
    first = [mutate(data, random.Random(seed)) for seed in range(200)]
    assert first == [mutate(data, random.Random(seed)) for seed in range(200)]
    assert len(set(first)) > 150
    assert sum(len(one) < len(data) for one in first) > 20
    assert sum(len(one) > len(data) for one in first) > 20
    value = b'{"a": [1, {"b": "c"}], "d": null}'
    assert len({mutate_json(value, random.Random(seed)) for seed in range(100)}) > 60
