"""Machines that take turns at one root build what one machine would, and write nothing twice."""

from __future__ import annotations

import pytest

from campaigns.runner import run_campaign
from helpers.buckets import CLOUDS, Cloud

TRIALS = {"S3": 142, "Google": 101, "Azure": 84}
"""Kind of bucket → a trial in which a build is killed, text is appended, and another machine builds."""


@pytest.mark.slow
@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=CLOUDS)
def test_three_machines_take_turns_in_a_bucket(tmp_path, cloud: Cloud):
    reason = cloud.why_missing()
    if reason is not None:
        pytest.skip(reason)
    options = ["--select", cloud.name, "--turns", "3"]
    options += ["--first", str(TRIALS[cloud.name]), "--only", "1"]

    rows, _report = run_campaign(tmp_path, "turns", *options)

    total = rows[-1]
    assert total["turns"] == 3
    assert total["builds"] > 0
    assert total["bad"] == 0
