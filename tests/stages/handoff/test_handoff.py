"""The files that start a trainer name the data, the length of the run, and what does not agree."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from helpers.handoffs import (
    TRAINER_WEIGHTS,
    handoff_notes,
    handoff_of,
    handoff_texts,
    megatron_arguments,
    nanoset_config,
)
from nanoset_core import NanosetConfig
from nanoset_core.errors import ConfigError
from nanoset_core.stages.mappings.settings import PhaseSpec, ScheduleSpec

SCHEDULE = ScheduleSpec(iterations=50, global_batch_size=8, eval_interval=20, eval_iters=2)
"""A schedule that requests the samples that `nanoset_config` has."""
CONFIG = nanoset_config()
PER_SPLIT_CONFIG = nanoset_config(is_per_split=True)


def phases(*transitions: int) -> tuple[PhaseSpec, ...]:
    """Return phases that end at some iterations, and a last one."""
    return (*(PhaseSpec("books", until) for until in transitions), PhaseSpec("books"))


def has_option(arguments: list[str], option: str) -> bool:
    """Return whether an option of the command line is given."""
    return any(argument.split(" ")[0] == option for argument in arguments)


def notes_with(notes: list[str], text: str) -> list[str]:
    """Return the notes that contain a text."""
    return [note for note in notes if text in note]


# Megatron-LM: the data


def test_megatron_gets_a_line_for_each_dataset_of_the_blend():
    files = handoff_texts(handoff_of(CONFIG))

    assert files["data_args.txt"] == "0.7 /lustre/web\n0.30000000000000004 /lustre/code\n"


def test_megatron_gets_the_counts_of_each_dataset():
    files = handoff_texts(handoff_of(CONFIG))

    assert json.loads(files["sequences_per_dataset.json"]) == {
        "/lustre/web": [10, 11],
        "/lustre/code": [11, 12],
    }


# (type of the tokens, size of the vocabulary). Without reading the .idx, Megatron-LM expects tokens
# of two bytes if there are up to 65,536.
RIGHT_TYPES = [("uint16", 65_499), ("int32", 65_537)]
WRONG_TYPES = [("int32", 65_500), ("int32", 65_536)]


@pytest.mark.parametrize(("dtype", "vocab_size"), RIGHT_TYPES)
def test_megatron_gets_counts_if_it_derives_the_right_type_of_the_tokens(dtype, vocab_size):
    handoff = handoff_of(CONFIG, dtype=dtype, vocab_size=vocab_size)

    assert "sequences_per_dataset.json" in handoff_texts(handoff)
    assert has_option(megatron_arguments(handoff), "--per-dataset-sequences-path")
    assert notes_with(handoff_notes(handoff), "another type") == []


@pytest.mark.parametrize(("dtype", "vocab_size"), WRONG_TYPES)
def test_megatron_gets_no_counts_if_it_would_misread_the_tokens(dtype, vocab_size):
    handoff = handoff_of(CONFIG, dtype=dtype, vocab_size=vocab_size)

    assert "sequences_per_dataset.json" not in handoff_texts(handoff)
    assert not has_option(megatron_arguments(handoff), "--per-dataset-sequences-path")
    assert notes_with(handoff_notes(handoff), "another type") != []


def test_megatron_gets_data_of_each_split_in_one_file():
    files = handoff_texts(handoff_of(PER_SPLIT_CONFIG))

    assert json.loads(files["per_split_data_args.json"]) == {
        "train": ["0.7", "/lustre/web", "0.30000000000000004", "/lustre/code"],
        "valid": ["/lustre/code"],
        "test": None,
    }


def test_the_arguments_name_the_file_with_the_data_of_each_split():
    arguments = megatron_arguments(handoff_of(PER_SPLIT_CONFIG))

    assert "--per-split-data-args-path /lustre/h/per_split_data_args.json" in arguments
    assert "--dataloader-fast-cache-load" in arguments
    assert "--train-samples 400" in arguments
    assert not has_option(arguments, "--split")


# Megatron-LM: the length of the run


def test_the_arguments_have_the_data_and_the_schedule():
    arguments = megatron_arguments(handoff_of(CONFIG, settings={"schedule": SCHEDULE}))

    assert arguments == [
        "--data-args-path /lustre/h/data_args.txt",
        "--split 90,5,5",
        "--seq-length 1024",
        "--seed 7",
        "--data-cache-path /lustre/cache",
        "--per-dataset-sequences-path /lustre/h/sequences_per_dataset.json",
        "--train-iters 50",
        "--global-batch-size 8",
        "--eval-interval 20",
        "--eval-iters 2",
    ]


def test_a_schedule_that_agrees_with_the_samples_needs_no_note():
    (note,) = handoff_notes(handoff_of(CONFIG, settings={"schedule": SCHEDULE}))

    assert note.startswith("--dataloader-fast-cache-load is left out")


def test_a_run_in_phases_requests_samples_and_names_the_transitions():
    settings = {"schedule": SCHEDULE, "phases": phases(10, 30), "span": (10, 30)}

    arguments = megatron_arguments(handoff_of(CONFIG, settings=settings))

    assert "--train-samples 400" in arguments
    assert "--phase-transition-iterations 10,30" in arguments
    assert not has_option(arguments, "--train-iters")


def test_without_a_schedule_a_note_says_which_evaluations_request_the_built_samples():
    notes = handoff_notes(handoff_of(CONFIG))

    prefix = "The cache of valid is for 48 samples: (train_iters"
    assert any(note.startswith(prefix) for note in notes)


def test_a_nanoset_of_one_epoch_has_a_note_that_megatron_cannot_request_it():
    config = NanosetConfig("/here/web", sequence_length=8, trainer_paths=CONFIG.trainer_paths)
    handoff = replace(handoff_of(CONFIG), config=config)

    notes = handoff_notes(handoff)

    assert any(note.startswith("train was built for one epoch") for note in notes)


# A limit on epochs leaves 203 samples of the 400 that the schedule requests: enough for 25 iterations
SHORT_CONFIG = replace(CONFIG, train_split_samples=203)
SHORT_HANDOFF = handoff_of(SHORT_CONFIG, settings={"schedule": SCHEDULE})


def test_a_shortened_run_requests_the_samples_that_were_built():
    arguments = megatron_arguments(SHORT_HANDOFF)

    assert "--train-samples 203" in arguments
    assert not has_option(arguments, "--train-iters")


def test_a_shortened_run_has_notes_on_its_iterations_and_on_validation():
    notes = handoff_notes(SHORT_HANDOFF)

    assert "25 iterations" in notes[0]
    # (25 // 20 + 1) * 2 * 8 samples; the 50 iterations of the schedule have 48
    assert "cache of valid is for 48 samples, but the run requests 32" in notes[1]
    assert notes_with(notes, "cache of test") == []
    assert notes_with(notes, "cache of train") == []


@pytest.mark.parametrize(
    ("config", "loads_fast"),
    [
        pytest.param(PER_SPLIT_CONFIG, True, id="whole run"),
        pytest.param(replace(PER_SPLIT_CONFIG, train_split_samples=203), False, id="shortened"),
    ],
)
def test_a_shortened_run_does_not_load_fast_since_an_index_would_be_missing(config, loads_fast):
    arguments = megatron_arguments(handoff_of(config, settings={"schedule": SCHEDULE}))

    assert has_option(arguments, "--dataloader-fast-cache-load") == loads_fast


def test_a_schedule_that_was_changed_to_the_shortened_run_needs_no_note():
    schedule = replace(SCHEDULE, iterations=25)
    config = replace(CONFIG, train_split_samples=200, valid_split_samples=32)
    handoff = handoff_of(config, settings={"schedule": schedule})

    (note,) = handoff_notes(handoff)

    assert note.startswith("--dataloader-fast-cache-load is left out")
    assert "--train-iters 25" in megatron_arguments(handoff)


def second_phase_of(n_built_samples: int) -> Any:
    """Return the second phase of a run, which reads 20 iterations of 8 samples."""
    config = replace(CONFIG, train_split_samples=n_built_samples)
    settings = {"schedule": SCHEDULE, "phases": phases(30), "span": (30, 50)}
    return handoff_of(config, settings=settings)


def test_a_phase_with_too_few_samples_has_a_note():
    handoff = second_phase_of(100)

    text = "cache of train is for 100 samples, but the run requests 160"
    assert notes_with(handoff_notes(handoff), text) != []
    # The run is not shortened: its iterations decide where phases begin.
    assert "--train-samples 400" in megatron_arguments(handoff)


def test_a_phase_with_all_samples_needs_no_note_on_them():
    notes = handoff_notes(second_phase_of(160))

    assert notes_with(notes, "cache of") == []


# NeMo


def nemo_model(config: NanosetConfig) -> dict[str, Any]:
    """Return the section `model` that NeMo gets."""
    model: dict[str, Any] = yaml.safe_load(handoff_texts(handoff_of(config))["data.yaml"])["model"]
    return model


def test_nemo_gets_a_section_of_its_model():
    model = nemo_model(nanoset_config("nemo"))

    assert model["data"]["data_prefix"] == [
        0.7,
        "/lustre/web",
        0.30000000000000004,
        "/lustre/code",
    ]
    assert model["data"]["index_mapping_dir"] == "/lustre/cache"
    assert model["data"]["splits_string"] == "90,5,5"
    assert model["seed"] == 7
    assert model["encoder_seq_length"] == 1024


def test_nemo_gets_data_of_each_split():
    data = nemo_model(nanoset_config("nemo", is_per_split=True))["data"]

    assert data["data_prefix"]["validation"] == ["/lustre/code"]
    assert "splits_string" not in data


@pytest.mark.parametrize(("span", "is_warned"), [((0, 30), False), ((30, 50), True)])
def test_a_later_phase_of_nemo_has_a_note_on_the_checkpoint_before(span, is_warned):
    settings = {"schedule": SCHEDULE, "phases": phases(30), "span": span}

    notes = handoff_notes(handoff_of(nanoset_config("nemo"), settings=settings))

    assert any("Do not resume the checkpoint" in note for note in notes) == is_warned


# nanotron


def nanotron_settings(config: NanosetConfig) -> Any:
    """Return the content of the YAML that nanotron gets, with a schedule."""
    files = handoff_texts(handoff_of(config, settings={"schedule": SCHEDULE}))
    return yaml.safe_load(files["data.yaml"])


def test_nanotron_gets_sections_of_its_yaml():
    assert nanotron_settings(nanoset_config("nanotron")) == {
        "data": {
            "dataset": {
                "data_path": TRAINER_WEIGHTS,
                "split": "90,5,5",
                "path_to_cache": "/lustre/cache",
            },
            "seed": 7,
        },
        "tokens": {"sequence_length": 1024, "train_steps": 50},
    }


def test_nanotron_gets_the_steps_of_a_shortened_run():
    config = replace(nanoset_config("nanotron"), train_split_samples=203)

    assert nanotron_settings(config)["tokens"]["train_steps"] == 25


# Paths that cannot be arguments


def test_a_path_with_a_space_is_refused():
    with pytest.raises(ConfigError, match="spaces"):
        handoff_texts(handoff_of(CONFIG, cache="/my data/cache"))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/data/\x1b[2J", id="escape sequence"),
        pytest.param("/data/a\u202eb", id="right-to-left override"),
        pytest.param("/data/a\u200bb", id="zero-width space"),
    ],
)
def test_a_path_with_invisible_characters_is_refused(path):
    with pytest.raises(ConfigError, match="cannot be seen"):
        handoff_texts(handoff_of(CONFIG, folder=path))
