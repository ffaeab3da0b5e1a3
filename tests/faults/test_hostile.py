"""Bombs, traps and lies in files: each is refused, or read without harm, within 400 MiB and a minute."""

from __future__ import annotations

import json

import pytest
from faults.hostile import CASES
from faults.runner import run_module


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    lines = run_module("faults.hostile", tmp_path_factory.mktemp("hostile"))[0].splitlines()
    return {name: told for name, told, *_ in map(json.loads, lines)}


@pytest.mark.parametrize("name", CASES)
def test_it_does_no_harm(outcomes, name):
    assert outcomes[name] == "as expected"
