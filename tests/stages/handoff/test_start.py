"""START.md explains how to start a trainer, in commands that a shell runs as they are meant."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import yaml

from helpers.handoffs import handoff_of, handoff_texts, nanoset_config
from nanoset_core.stages.handoff.description import Handoff
from nanoset_core.stages.handoff.settings import TrainerSpec
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER
from nanoset_core.stages.mappings.settings import ScheduleSpec

CONFIG = nanoset_config()
SCHEDULE = ScheduleSpec(iterations=50, global_batch_size=8, eval_interval=20, eval_iters=2)
HOSTILE = "/data/$(touch${IFS}pwned);`id`/<|x|>'\""
"""A folder whose name a shell would run; without spaces, which are refused."""


def start_of(handoff: Handoff) -> str:
    """Return the text of START.md."""
    return handoff_texts(handoff)["START.md"]


def words_of_shell(line: str) -> list[str]:
    """Return the words of a command as bash splits and expands them."""
    script = f"printf '%s\\n' {line}"
    process = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True)
    return process.stdout.splitlines()


# The commands


def test_megatron_is_started_with_the_words_of_arguments_txt():
    assert "$(cat /lustre/h/arguments.txt)" in start_of(handoff_of(CONFIG))


@pytest.mark.parametrize(
    ("batch_size", "n_processes", "micro_batch"), [(64, 8, 4), (16, 8, 2), (6, 2, 1), (7, 1, 1)]
)
def test_the_processes_of_the_command_can_share_the_batch(batch_size, n_processes, micro_batch):
    schedule = replace(SCHEDULE, global_batch_size=batch_size)

    start = start_of(handoff_of(CONFIG, settings={"schedule": schedule}))

    assert f"--nproc-per-node {n_processes} pretrain_gpt.py" in start
    assert f"--micro-batch-size {micro_batch} " in start


def test_the_command_has_8_processes_if_the_batch_size_is_not_known():
    start = start_of(handoff_of(CONFIG))

    assert "--nproc-per-node 8 pretrain_gpt.py" in start
    assert "--micro-batch-size 4 " in start


def test_the_command_of_preflight_is_quoted_for_the_shell():
    tokenizer = (
        "--tokenizer-type TikTokenizer",
        "--tiktoken-special-tokens <|im_start|> $(id) a;b",
    )
    start = start_of(handoff_of(CONFIG, tokenizer=tokenizer, folder=HOSTILE))

    (command,) = [line for line in start.splitlines() if line.startswith("    python")]
    known_words, _, _ = command.strip().partition(" --train-iters")
    assert words_of_shell(known_words) == [
        "python",
        f"{HOSTILE}/preflight.py",
        "--tokenizer-type",
        "TikTokenizer",
        "--tiktoken-special-tokens",
        "<|im_start|>",
        "$(id)",
        "a;b",
    ]


def test_the_path_of_arguments_txt_is_quoted_for_the_shell():
    start = start_of(handoff_of(CONFIG, folder=HOSTILE))

    (line,) = [line for line in start.splitlines() if "$(cat" in line]
    assert f"$(cat {shlex.quote(f'{HOSTILE}/arguments.txt')})" in line


def test_patterns_of_the_shell_are_turned_off_if_an_argument_has_one():
    tokenizer = ("--tokenizer-type TikTokenizer", "--tiktoken-special-tokens [INST] *")

    start = start_of(handoff_of(CONFIG, tokenizer=tokenizer))

    assert "\n    set -f" in start


def test_patterns_of_the_shell_are_left_on_if_no_argument_has_one():
    assert "set -f" not in start_of(handoff_of(CONFIG))


# The trainer's tokenizer, if nanoset.yaml does not name it

TOKENIZER = (
    "--tokenizer-type GPTSentencePieceTokenizer",
    "--tokenizer-model /models/bpe.model",
    "--tokenizer-sentencepiece-legacy",
    "--tokenizer-special-tokens <s> <mask>",
)
"""Megatron-LM's arguments for a SentencePiece model."""


def section_to_add(start: str) -> Any:
    """Return the settings that START.md says to add to nanoset.yaml."""
    _, _, rest = start.partition("`nanoset build`:\n")
    section, _, _ = rest.partition("## Files")
    return yaml.safe_load(section)


def test_the_settings_to_add_give_the_arguments_of_the_known_tokenizer():
    start = start_of(handoff_of(CONFIG, tokenizer=TOKENIZER))

    settings = section_to_add(start)["nanosets"]["pretrain"]["trainer"]
    settings["special_tokens"] = tuple(settings["special_tokens"])
    spec = TrainerSpec(**settings)
    assert spec.special_tokens == ("<s>", "<mask>")
    assert sorted(spec.arguments()) == sorted(TOKENIZER)


def test_preflight_gets_the_arguments_of_the_known_tokenizer():
    start = start_of(handoff_of(CONFIG, tokenizer=TOKENIZER, settings={"schedule": SCHEDULE}))

    words = " ".join(TOKENIZER).split()
    assert f"preflight.py {shlex.join(words)}\n" in start


def test_an_unknown_tokenizer_is_a_warning_with_an_example():
    start = start_of(handoff_of(CONFIG))

    _, _, rest = start.partition(UNKNOWN_TOKENIZER)
    assert "HuggingFaceTokenizer" in rest


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            replace(CONFIG, tokenizer_identifiers={"class": "x"}), id="named in nanoset.yaml"
        ),
        pytest.param(nanoset_config("nemo"), id="nemo has no tokenizer in names of index files"),
    ],
)
def test_a_tokenizer_that_is_named_or_not_needed_is_no_warning(config):
    assert UNKNOWN_TOKENIZER not in start_of(handoff_of(config))


# What data.yaml contains, and what the user sets


@pytest.mark.parametrize("preset", ["nemo", "nanotron", "nanotron-000"])
def test_start_md_says_what_data_yaml_does_not_contain(preset):
    start = start_of(handoff_of(nanoset_config(preset)))

    assert "`data.yaml`: the trainer's settings of the data: datasets, weights, seed and" in start
    assert re.search(r"It does not contain the tokenizer[^.]*batch size", start)


# Views, which some readers cannot read


@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_readers_that_cannot_take_views_are_named_if_a_view_is_read(preset):
    start = start_of(handoff_of(nanoset_config(preset), views=["web-clean", "code-x2"]))

    assert "- web-clean, code-x2: only the .idx selects documents of a corpus" in start
    assert "(MaxText, readers of raw tokens)" in start


@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_readers_that_cannot_take_views_are_not_named_if_no_view_is_read(preset):
    assert "MaxText" not in start_of(handoff_of(nanoset_config(preset)))


# run.yaml


@pytest.mark.parametrize(
    "folder", [HOSTILE, "*x", "/a:b#", "/x:", "@a", "{a}", "/a#b", "'a'", "yes", "1"]
)
def test_run_yaml_names_the_handoff_whatever_characters_its_path_has(folder):
    files = handoff_texts(handoff_of(CONFIG, folder=folder))

    assert yaml.safe_load(files["run.yaml"])["handoff"] == folder
