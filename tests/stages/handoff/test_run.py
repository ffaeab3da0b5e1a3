"""run.yaml describes a run: mistakes are reported by line, and Megatron-LM's log completes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.stages.handoff.run import RUN, ResumeSpec, RunSpec, read_run, run_text
from nanoset_core.stages.handoff.train_log import complete_run_yaml

COMPLETE = """\
handoff: [data/nanosets/a/handoff/current, data/nanosets/b/handoff/current]
data_parallel_size: 8
micro_batch_size: 4
global_batch_size: 256
rampup_batch_size: [32, 32, 100000]
skipped_iterations: [[1000, 1010], 7]
resumes: [{iteration: 5000, data_parallel_size: 16}]
"""
HANDOFF = "/x/nanosets/a/handoff/1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a run.yaml."""
    return tmp_path / RUN


# Settings that are read


def test_all_settings_are_read(file):
    file.write_text(COMPLETE)

    run = read_run(file)

    assert run == RunSpec(
        handoff=("data/nanosets/a/handoff/current", "data/nanosets/b/handoff/current"),
        data_parallel_size=8,
        micro_batch_size=4,
        global_batch_size=256,
        rampup_batch_size=(32, 32, 100000),
        skipped_iterations=((1000, 1010), 7),
        resumes=(ResumeSpec(iteration=5000, data_parallel_size=16),),
    )


def test_skipped_steps_are_numbers_or_ranges_with_the_last_step(file):
    file.write_text(COMPLETE)
    run = read_run(file)

    steps = [step for step in (6, 7, 8, 999, 1000, 1010, 1011) if run.is_skipped(step)]

    assert steps == [7, 1000, 1010]


# Mistakes


class Mistake(NamedTuple):
    """A mistake in COMPLETE."""

    text: str
    """A part of COMPLETE."""
    replacement: str
    """What is written in its place."""
    message: str
    """The error, with the number of the line."""


RAMP_UP = "[32, 32, 100000]"
RAMP_UP_MESSAGE = "rampup_batch_size: Megatron-LM does not accept this ramp-up"
MISTAKES = {
    "unknown key": Mistake(
        "micro_batch_size: 4", "micro_batch: 4", r":3: micro_batch: this key is not known"
    ),
    "missing key": Mistake("data_parallel_size: 8\n", "", r"data_parallel_size: a key is missing"),
    "value out of range": Mistake(
        "data_parallel_size: 8",
        "data_parallel_size: 0",
        r":2: data_parallel_size: this value is out of range",
    ),
    "ramp-up to nothing": Mistake("global_batch_size: 256\n", "", f":4: {RAMP_UP_MESSAGE}"),
    "ramp-up in fractions": Mistake(RAMP_UP, "[32, 33, 100000]", f":5: {RAMP_UP_MESSAGE}"),
    "ramp-up without growth": Mistake(RAMP_UP, "[256, 32, 100000]", f":5: {RAMP_UP_MESSAGE}"),
    "ramp-up of two numbers": Mistake(RAMP_UP, "[32, 32]", f":5: {RAMP_UP_MESSAGE}"),
    "range that ends before its start": Mistake(
        "[1000, 1010]", "[1010, 1000]", r":6: skipped_iterations\[0\]: this is not a range of steps"
    ),
    "resumes in another order": Mistake(
        "{iteration: 5000,",
        "{iteration: 6}, {iteration: 5,",
        r":7: resumes: the iterations of resumes are not in ascending",
    ),
    "no batch size": Mistake(
        f"global_batch_size: 256\nrampup_batch_size: {RAMP_UP}\n",
        "",
        "the batch size is not given",
    ),
    "two schedules": Mistake(
        "resumes:",
        'step_batch_size_schedule: "0:8"\nresumes:',
        r":7: step_batch_size_schedule: two schedules",
    ),
    "no handoff": Mistake(
        "handoff: [data/nanosets/a/handoff/current, data/nanosets/b/handoff/current]",
        "handoff: []",
        r":1: handoff: no handoff is named",
    ),
    "empty file": Mistake(COMPLETE, "", r":1: handoff: a key is missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_reported_with_its_line(file, mistake):
    assert mistake.text in COMPLETE
    file.write_text(COMPLETE.replace(mistake.text, mistake.replacement))

    with pytest.raises(ConfigError, match=mistake.message):
        read_run(file)


def test_a_missing_file_is_reported(file):
    with pytest.raises(MissingError, match="the description of the run cannot be read"):
        read_run(file)


# The template in a handoff


def test_the_template_lacks_what_is_not_known_before_the_run(file):
    file.write_text(run_text(HANDOFF, 64))

    with pytest.raises(ConfigError, match="data_parallel_size: a key is missing"):
        read_run(file)


def test_the_template_is_complete_if_the_commented_lines_are_used(file):
    template = run_text(HANDOFF, 64)
    file.write_text(template.replace("#data", "data").replace("#micro", "micro"))

    assert read_run(file) == RunSpec(HANDOFF, 8, 4, 64)


# Megatron-LM's log


def log_of_start(iteration: int | None, **arguments: object) -> str:
    """Return what Megatron-LM prints as it is started.

    Args:
        iteration: That of the checkpoint from which the run is resumed, or None.
        arguments: Megatron-LM's arguments.
    """
    lines = ["------------------------ arguments ------------------------"]
    for name, value in arguments.items():
        dots = "." * (48 - len(name))
        lines.append(f"  {name} {dots} {value}")
    lines.append("-------------------- end of arguments ---------------------")
    if iteration is not None:
        lines.append(
            f"  successfully loaded checkpoint from /x [ t 1/1, p 1/1 ] at iteration {iteration}"
        )
    return "\n".join(lines) + "\n"


def log_of_steps(consumed_by_step: dict[int, int]) -> str:
    """Return what Megatron-LM prints as it trains.

    Args:
        consumed_by_step: Number of each step → samples consumed after it.
    """
    lines = []
    for step, consumed in consumed_by_step.items():
        lines.append(
            f" [2026-11-26 10:00:00.000000] iteration {step:8d}/{90:8d} "
            f"| consumed samples: {consumed:12d} | elapsed time per iteration (ms): 5.0 |\n"
        )
    return "".join(lines)


ARGUMENTS = {
    "data_parallel_size": 4,
    "micro_batch_size": 2,
    "global_batch_size": 24,
    "log_interval": 1,
}
ARGUMENTS_WITHOUT_RAMP_UP = ARGUMENTS | {
    "rampup_batch_size": None,
    "iterations_to_skip": [],
    "decrease_batch_size_if_needed": False,
}
ARGUMENTS_WITH_RAMP_UP = ARGUMENTS | {
    "rampup_batch_size": ["8", "8", "32"],
    "iterations_to_skip": [2],
    "dataloader_type": "single",
}


def write_template_and_log(file: Path, log: str) -> Path:
    """Write the template of a run.yaml and a log, and return the path of the log."""
    file.write_text(run_text(HANDOFF, None))
    log_file = file.parent / "train.log"
    log_file.write_text(f"loading\n{log}")
    return log_file


class LoggedRun(NamedTuple):
    """A log, and what it says of the run."""

    log: str
    settings: dict[str, Any]
    """Settings of the run in addition to ranks and batch sizes."""


RESUMED_LOG = (
    log_of_start(None, **ARGUMENTS)
    + log_of_steps({1: 24, 2: 48})
    # Resumed at step 2; but this step is trained again later, from an earlier checkpoint.
    + log_of_start(2, **ARGUMENTS | {"data_parallel_size": 2})
    + log_of_steps({3: 72})
    + log_of_start(1, **ARGUMENTS | {"data_parallel_size": 6})
    + log_of_steps({2: 48, 3: 72, 4: 96})
    + log_of_start(4, **ARGUMENTS | {"global_batch_size": 48})
    + log_of_steps({5: 144})
)
LOGGED_RUNS = {
    "constant batch size": LoggedRun(
        log_of_start(None, **ARGUMENTS_WITHOUT_RAMP_UP) + log_of_steps({1: 24, 2: 48}),
        settings={},
    ),
    # core 0.16.1 counts iterations_to_skip from 0: the log has no line for step 3.
    "ramp-up and skipped step": LoggedRun(
        log_of_start(None, **ARGUMENTS_WITH_RAMP_UP) + log_of_steps({1: 8, 2: 16, 4: 56}),
        settings={"rampup_batch_size": (8, 8, 32), "skipped_iterations": ((3, 3),)},
    ),
    "resumed": LoggedRun(
        RESUMED_LOG,
        settings={
            "resumes": (
                ResumeSpec(iteration=1, data_parallel_size=6),
                ResumeSpec(iteration=4, data_parallel_size=4, global_batch_size=48),
            )
        },
    ),
}


@pytest.mark.parametrize("run", LOGGED_RUNS.values(), ids=LOGGED_RUNS.keys())
def test_a_log_completes_the_template(file, run):
    log_file = write_template_and_log(file, run.log)

    text, differences = complete_run_yaml(file, log_file)

    file.write_text(text)
    assert read_run(file) == RunSpec(HANDOFF, 4, 2, 24, **run.settings)
    assert list(differences) == []


def test_steps_of_a_log_that_differ_from_the_settings_are_reported(file):
    # main counts iterations_to_skip from 1: the log has no line for step 2.
    log = log_of_start(None, **ARGUMENTS_WITH_RAMP_UP) + log_of_steps({1: 8, 3: 32, 4: 48})
    log_file = write_template_and_log(file, log)

    text, (difference,) = complete_run_yaml(file, log_file)

    file.write_text(text)
    assert read_run(file) == RunSpec(
        HANDOFF, 4, 2, 24, rampup_batch_size=(8, 8, 32), skipped_iterations=((2, 2),)
    )
    assert re.search(
        r"1 of 3 steps in the log differ, the first is step 4: by the log 48 .* by these settings 56",
        difference,
    )


def test_a_log_without_arguments_is_refused(file):
    log_file = write_template_and_log(file, log_of_steps({1: 24}))

    with pytest.raises(FormatError, match="the log has no arguments"):
        complete_run_yaml(file, log_file)


def test_a_missing_log_is_reported(file, tmp_path):
    file.write_text(COMPLETE)

    with pytest.raises(MissingError, match="the log cannot be read"):
        complete_run_yaml(file, tmp_path / "other.log")


def test_a_log_of_a_cyclic_loader_without_sharding_is_refused(file):
    arguments = ARGUMENTS | {"dataloader_type": "cyclic", "data_sharding": False}
    log_file = write_template_and_log(file, log_of_start(None, **arguments))

    with pytest.raises(ConfigError, match="the order of a cyclic loader with --no-data-sharding"):
        complete_run_yaml(file, log_file)
