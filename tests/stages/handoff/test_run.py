"""run.yaml: what is wrong in it, by line; and what Megatron-LM's log makes of it."""

from __future__ import annotations

import re

import pytest

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.stages.handoff.run import RUN, ResumeSpec, RunSpec, read_run, run_text
from nanoset_core.stages.handoff.train_log import complete_run_yaml

WHOLE = """\
handoff: [data/nanosets/a/handoff/current, data/nanosets/b/handoff/current]
data_parallel_size: 8
micro_batch_size: 4
global_batch_size: 256
rampup_batch_size: [32, 32, 100000]
skipped_iterations: [[1000, 1010], 7]
resumes: [{iteration: 5000, data_parallel_size: 16}]
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / RUN


def test_a_whole_one(file):
    file.write_text(WHOLE)
    run = read_run(file)
    handoffs = ("data/nanosets/a/handoff/current", "data/nanosets/b/handoff/current")
    assert run == RunSpec(
        *(handoffs, 8, 4, 256, (32, 32, 100000)),
        skipped_iterations=((1000, 1010), 7),
        resumes=(ResumeSpec(5000, 16),),
    )
    assert [step for step in (6, 7, 8, 999, 1000, 1010, 1011) if run.is_skipped(step)] == [
        7,
        1000,
        1010,
    ]


@pytest.mark.parametrize(
    ("line", "changed", "text"),
    [
        ("micro_batch_size: 4", "micro_batch: 4", r":3: micro_batch: this key is not known"),
        ("data_parallel_size: 8\n", "", r"data_parallel_size: a key is missing"),
        (
            "data_parallel_size: 8",
            "data_parallel_size: 0",
            r":2: data_parallel_size: this value is out of range",
        ),
        (
            "global_batch_size: 256\n",
            "",
            r":4: rampup_batch_size: Megatron-LM does not accept this ramp-up",
        ),
        (
            "[32, 32, 100000]",
            "[32, 33, 100000]",
            r":5: rampup_batch_size: Megatron-LM does not accept this ramp-up",
        ),
        (
            "[32, 32, 100000]",
            "[256, 32, 100000]",
            r":5: rampup_batch_size: Megatron-LM does not accept this ramp-up",
        ),
        (
            "[32, 32, 100000]",
            "[32, 32]",
            r":5: rampup_batch_size: Megatron-LM does not accept this ramp-up",
        ),
        (
            "[1000, 1010]",
            "[1010, 1000]",
            r":6: skipped_iterations\[0\]: this is not a range of steps",
        ),
        (
            "{iteration: 5000,",
            "{iteration: 6}, {iteration: 5,",
            r":7: resumes: the iterations of resumes are not in ascending",
        ),
        (
            "global_batch_size: 256\nrampup_batch_size: [32, 32, 100000]\n",
            "",
            "the batch size is not given",
        ),
        (
            "resumes:",
            'step_batch_size_schedule: "0:8"\nresumes:',
            r":7: step_batch_size_schedule: two schedules",
        ),
        (WHOLE[: WHOLE.index("\n")], "handoff: []", r":1: handoff: no handoff is named"),
        (WHOLE, "", r":1: handoff: a key is missing"),
    ],
)
def test_mistakes_are_told_by_line(file, line, changed, text):
    file.write_text(WHOLE.replace(line, changed))
    with pytest.raises(ConfigError, match=text):
        read_run(file)


def test_what_a_handoff_begins_lacks_what_is_not_known_yet(file):
    with pytest.raises(MissingError, match="the description of the run cannot be read"):
        read_run(file)
    file.write_text(run_text("/x/nanosets/a/handoff/1", 64))
    with pytest.raises(ConfigError, match="data_parallel_size: a key is missing"):
        read_run(file)
    file.write_text(file.read_text().replace("#data", "data").replace("#micro", "micro"))
    assert read_run(file) == RunSpec("/x/nanosets/a/handoff/1", 8, 4, 64)


def start(iteration: int | None, **arguments: object) -> str:
    """What Megatron-LM prints at a start."""
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    block = ["------------------------ arguments ------------------------", *lines]
    block += ["-------------------- end of arguments ---------------------"]
    if iteration is not None:
        block.append(
            f"  successfully loaded checkpoint from /x [ t 1/1, p 1/1 ] at iteration {iteration}"
        )
    return "\n".join(block) + "\n"


def trained(*steps: tuple[int, int]) -> str:
    return "".join(
        f" [2026-11-26 10:00:00.000000] iteration {step:8d}/{90:8d} | consumed samples: "
        f"{consumed:12d} |"
        " elapsed time per iteration (ms): 5.0 |\n"
        for step, consumed in steps
    )


FIRST = {"data_parallel_size": 4, "micro_batch_size": 2, "global_batch_size": 24, "log_interval": 1}
RAMP = {
    "rampup_batch_size": ["8", "8", "32"],
    "iterations_to_skip": [2],
    "dataloader_type": "single",
}
ALONE = {
    "rampup_batch_size": None,
    "iterations_to_skip": [],
    "decrease_batch_size_if_needed": False,
}


@pytest.mark.parametrize(
    ("log", "expected", "difference"),
    [
        (start(None, **FIRST, **ALONE) + trained((1, 24), (2, 48)), {}, None),
        (
            # 3 has no line: core 0.16.1
            start(None, **FIRST, **RAMP) + trained((1, 8), (2, 16), (4, 56)),
            {"rampup_batch_size": (8, 8, 32), "skipped_iterations": ((3, 3),)},
            None,
        ),
        (
            start(None, **FIRST, **RAMP) + trained((1, 8), (3, 32), (4, 48)),  # main
            {"rampup_batch_size": (8, 8, 32), "skipped_iterations": ((2, 2),)},
            r"1 of 3 steps in the log differ, the first is step 4: by the log 48 .* by these "
            r"settings 56",
        ),
        (  # a resume that was trained again from an earlier checkpoint, and one after it
            start(None, **FIRST)
            + trained((1, 24), (2, 48))
            + start(2, **FIRST | {"data_parallel_size": 2})
            + trained((3, 72))
            + start(1, **FIRST | {"data_parallel_size": 6})
            + trained((2, 48), (3, 72), (4, 96))
            + start(4, **FIRST | {"global_batch_size": 48})
            + trained((5, 144)),
            {"resumes": (ResumeSpec(1, 6), ResumeSpec(4, 4, None, 48))},
            None,
        ),
    ],
)
def test_a_log_completes_it(file, tmp_path, log, expected, difference):
    file.write_text(run_text("/x/nanosets/a/handoff/1", None))
    (tmp_path / "train.log").write_text("loading\n" + log)
    text, differences = complete_run_yaml(file, tmp_path / "train.log")
    file.write_text(text)
    assert read_run(file) == RunSpec("/x/nanosets/a/handoff/1", 4, 2, 24, **expected)
    assert len(differences) == (difference is not None)
    assert all(re.search(difference, one) for one in differences)


def test_a_log_without_arguments_completes_nothing(file, tmp_path):
    file.write_text(WHOLE)
    (tmp_path / "train.log").write_text(trained((1, 24)))
    with pytest.raises(FormatError, match="the log has no arguments"):
        complete_run_yaml(file, tmp_path / "train.log")
    with pytest.raises(MissingError, match="the log cannot be read"):
        complete_run_yaml(file, tmp_path / "other.log")
    (tmp_path / "train.log").write_text(
        start(None, **FIRST, dataloader_type="cyclic", data_sharding=False)
    )
    with pytest.raises(ConfigError, match="the order of a cyclic loader with --no-data-sharding"):
        complete_run_yaml(file, tmp_path / "train.log")
