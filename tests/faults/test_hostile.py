"""Bombs, traps and lies in files: each is refused, or read without harm, within 400 MiB and a minute."""

from __future__ import annotations

import pytest
from faults.hostile import CASES
from faults.runner import run_campaign


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    rows, said = run_campaign(tmp_path_factory.mktemp("hostile"), "hostile", code=None)
    return {row["file"]: row["bad"] for row in rows}, said


@pytest.mark.parametrize("name", CASES)
def test_it_does_no_harm(outcomes, name):
    bad, said = outcomes
    assert bad[name] == 0, said
