"""A seeded share of the trials of damage: nothing is lost without a word."""

from __future__ import annotations

import pytest
from faults.damage import BENCHES, run


@pytest.mark.parametrize(("bench", "trials"), [("text", 12), ("outputs", 8)])
def test_no_damage_is_silent(bench, trials, tmp_path):
    counts, silent = run(BENCHES[bench](tmp_path), 0, trials)
    assert not silent
    assert sum(found["refused"] + found["warned"] for found in counts.values()) > 5
