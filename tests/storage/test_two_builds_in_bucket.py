"""Two builds at once on two machines that share nothing but a bucket."""

from __future__ import annotations

import re
import subprocess
import sys

BUILD = [sys.executable, "-m", "nanoset_core.cli", "build", "--config"]


def test_each_output_is_made_on_one_machine_and_the_other_says_for_whom_it_waits(
    project_in_any_bucket,
):
    configs = [project_in_any_bucket("one"), project_in_any_bucket("two")]
    builds = [
        subprocess.Popen(
            [*BUILD, str(config)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for config in configs
    ]
    made = 0
    total = 0
    notices = ""
    for build in builds:
        out, err = build.communicate(timeout=900)
        assert build.returncode == 0, err
        notices += err
        if counted := re.search(r"^Made (\d+) of (\d+) outputs", out, re.MULTILINE):
            made += int(counted[1])
            total = int(counted[2])
    assert made == total > 0
    assert re.search(r"waits for process \d+ on \S+, since .*, which makes \w+", notices)
    assert "another build made it meanwhile" in notices
