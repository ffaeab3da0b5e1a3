"""Two builds run at once on two machines that share nothing but a bucket."""

from __future__ import annotations

import re

from helpers.build_processes import finish_build, start_build


def test_each_output_is_made_on_one_machine_and_the_other_says_for_which_it_waits(
    project_in_any_bucket,
):
    configs = [project_in_any_bucket("one"), project_in_any_bucket("two")]

    builds = [start_build(config) for config in configs]
    first, second = [finish_build(build) for build in builds]

    n_outputs = max(first.n_outputs, second.n_outputs)
    assert n_outputs > 0
    assert first.n_made + second.n_made == n_outputs
    printed = first.printed + second.printed
    assert re.search(r"waits for process \d+ on \S+, since .*, which works on \w+", printed)
    assert "another build made it meanwhile" in printed
