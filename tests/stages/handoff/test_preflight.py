"""preflight.py, a script in a handoff, says on the training machine whether the trainer will find its
index files.

It is run as a script, with a stand-in for megatron-core.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from helpers.building import build_all
from helpers.locations import GOLDEN_FILES
from helpers.sample_project import CONFIG, write_project
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.handoff import stage as handoff_stage
from nanoset_core.stages.handoff.preflight import TRAINER_KEYS
from nanoset_core.stages.handoff.settings import TrainerSpec
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

# Exit codes of the script
FOUND = 0
REBUILT = 1
FAILED = 2

TRAINER = {
    "megatron_core": "0.19.0",
    "tokenizer_type": "HuggingFaceTokenizer",
    "tokenizer_model": "/models/hf",
}
TOKENIZER_WORDS = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/hf"
"""The options of the trainer's tokenizer, if the arguments of the handoff do not name it."""
SCHEDULE = {"iterations": 50, "global_batch_size": 8, "eval_interval": 25, "eval_iters": 1}
SETTINGS = yaml.safe_load(CONFIG)["nanosets"]["pretrain"]
"""Settings of the nanoset, as nanoset.yaml has them."""
SETTINGS |= {"trainer": TRAINER, "schedule": SCHEDULE, "samples": None, "trainer_path": None}

GOLDEN = json.loads((GOLDEN_FILES / "megatron/tokenizer_identifiers.json").read_bytes())
IDENTIFIERS = next(
    identifiers
    for version, words, identifiers in GOLDEN
    if version == "0.19.0" and words[3] == "/models/hf"
)
"""The identifiers that megatron-core 0.19.0 gives to the tokenizer of TRAINER."""
EOD_ID = 0
"""Id of the token at the end of documents, in the data and in the trainer's tokenizer."""
PAD_ID = 1
"""Id of the padding token, in data that has one."""
STAND_IN = f"""
class Tokenizer:
    unique_identifiers = {IDENTIFIERS!r}
    eod = {EOD_ID}
    pad = None

def build_tokenizer(args):
    if args.tokenizer_type != "HuggingFaceTokenizer":
        raise NotImplementedError(f"{{args.tokenizer_type}} tokenizer is not implemented.")
    Tokenizer.unique_identifiers["tokenizer_path"] = args.tokenizer_model
    return Tokenizer
"""
"""A module that stands in for megatron.core.tokenizers: it gives the identifiers of core 0.19.0."""


# Handoffs


def build_handoff(config: Path, **changes: Any) -> Path:
    """Build a nanoset, and return the folder of its handoff.

    Args:
        config: The nanoset.yaml, which is changed.
        changes: Settings of the nanoset that differ from SETTINGS; None if they are not given.
    """
    settings = yaml.safe_load(config.read_text())
    nanoset = SETTINGS | changes
    settings["nanosets"] = {
        "pretrain": {key: value for key, value in nanoset.items() if value is not None}
    }
    settings.pop("webdatasets", None)
    config.write_text(yaml.safe_dump(settings, sort_keys=False))

    project = build_all(config)
    name = next(iter(project.config.nanosets))  # that of the first phase, if there are phases
    manifest = project.outputs.current("nanosets", f"{name}/{handoff_stage.HANDOFF}")
    assert manifest is not None
    return manifest.folder


@pytest.fixture(scope="module")
def handoff(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of the handoff of a built nanoset; tests must not write to it."""
    folder = tmp_path_factory.mktemp("preflight") / "project"
    return build_handoff(write_project(folder, tokenizer_file))


def project_folder(handoff: Path) -> Path:
    """Return the folder of the project that a handoff is in."""
    return handoff.parents[4]


def copy_project(handoff: Path, folder: Path) -> Path:
    """Copy the project of a handoff into a folder, and return its nanoset.yaml.

    The corpora of the copy are tokenized already.
    """
    copy = folder / "project"
    shutil.copytree(project_folder(handoff), copy, symlinks=True)
    return copy / "nanoset.yaml"


@pytest.fixture
def rebuild(handoff: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that builds the nanoset with other settings in a copy of its project."""
    config = copy_project(handoff, tmp_path)

    def build(**changes: Any) -> Path:
        return build_handoff(config, **changes)

    return build


def status_warnings(handoff: Path) -> list[StatusRow]:
    """Return the rows of `nanoset status` with warnings, for the project of a handoff."""
    project = Project.open(project_folder(handoff) / "nanoset.yaml")
    return [row for row in project_status(project) if row.warnings]


# The script


class Answer(NamedTuple):
    """What the script answers."""

    code: int
    """Its exit code."""
    output: str
    """What it prints."""


def run_preflight(handoff: Path, core: Path | None, words: str = "") -> Answer:
    """Run the script of a handoff.

    Args:
        handoff: The folder of the handoff.
        core: Folder of megatron-core, or None if it is not installed.
        words: Options of the trainer, as they are written in a shell.
    """
    environment = os.environ | {"PYTHONPATH": str(core or "")}
    command = [sys.executable, "-S", str(handoff / "preflight.py"), *shlex.split(words)]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert not process.stderr
    return Answer(process.returncode, process.stdout)


def write_core(
    folder: Path, stand_in: str = STAND_IN, settings: str = "", transformers: str = ""
) -> Path:
    """Write stand-ins for megatron-core and transformers, and return their folder.

    Args:
        folder: Where they are written.
        stand_in: The module of megatron-core that builds the tokenizer.
        settings: The settings of its datasets, in Python: the body of a class.
        transformers: The module transformers.
    """
    text_by_module = {
        "megatron/core/tokenizers/utils/build_tokenizer.py": stand_in,
        "megatron/core/datasets/blended_megatron_dataset_config.py": (
            f"class BlendedMegatronDatasetConfig:\n    {settings or 'pass'}\n"
        ),
        "transformers.py": transformers,
    }
    for module, text in text_by_module.items():
        path = folder / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def preflight(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Answer]:
    """A function that runs the script of a handoff, with the stand-in for megatron-core."""
    core = write_core(tmp_path_factory.mktemp("core"))

    def run(handoff: Path, words: str = "") -> Answer:
        return run_preflight(handoff, core, words)

    return run


def settings_to_change(output: str) -> dict[str, Any]:
    """Return the settings that the script prints, and None for the settings that they replace."""
    _, _, lines = output.partition("change nanoset.yaml:\n")
    changes: dict[str, Any] = yaml.safe_load(lines)["nanosets"]["pretrain"]
    for line in lines.split("\n"):
        _, mark, comment = line.partition("# replaces ")
        if mark:
            replaced_key, _, _ = comment.partition(":")
            changes[replaced_key] = None
    return changes


# Options that lead to the index files


def test_the_options_of_the_handoff_lead_to_its_index_files(handoff, preflight):
    assert preflight(handoff).code == FOUND


def test_options_that_do_not_matter_or_do_not_differ_lead_to_the_index_files(handoff, preflight):
    assert preflight(handoff, "--seq-length 32 --micro-batch-size 1").code == FOUND


def test_data_of_each_split_lead_to_the_index_files(rebuild, preflight):
    blends = {"train": {"web": 0.75, "code": 0.25}, "valid": "books"}
    handoff = rebuild(blend=None, split=None, blend_per_split=blends)

    assert preflight(handoff).code == FOUND
    assert settings_to_change(preflight(handoff, "--seed 8").output)["seed"] == 8


# Options that lead to other index files

OTHER_OPTIONS = "--tokenizer-model /other --seq-length 16 --train-iters 40 --seed 9 --split 8,1,1"


def test_settings_to_change_are_printed_for_options_that_differ(handoff, preflight):
    answer = preflight(handoff, OTHER_OPTIONS)

    assert answer.code == REBUILT
    assert "indexes will be rebuilt" in answer.output
    assert settings_to_change(answer.output).keys() == {
        "sequence_length",
        "seed",
        "split",
        "schedule",
        "samples",
        "tokenizer_identifiers",
        "trainer",
    }


def test_after_the_settings_were_changed_the_options_lead_to_the_index_files(
    handoff, preflight, rebuild
):
    changes = settings_to_change(preflight(handoff, OTHER_OPTIONS).output)

    changed_handoff = rebuild(**changes)

    tokenizer = "--tokenizer-model /other --tokenizer-type HuggingFaceTokenizer"
    assert preflight(changed_handoff, tokenizer).code == FOUND
    # The identifiers took the place of `trainer`, which would have named the tokenizer.
    assert preflight(changed_handoff).code == FAILED


def test_training_samples_that_are_no_whole_iterations_are_suggested_as_samples(preflight, rebuild):
    evaluation = "--global-batch-size 8 --eval-interval 25 --eval-iters 1"
    handoff = rebuild(schedule=None, samples={"train": 300, "valid": 8, "test": 8})
    assert preflight(handoff, evaluation).code == REBUILT

    answer = preflight(handoff, f"{evaluation} --train-samples 301")

    changes = settings_to_change(answer.output)
    assert changes["samples"] == {"train": 301, "valid": 16, "test": 8}
    assert preflight(rebuild(**changes), evaluation).code == FOUND


def test_identifiers_of_another_version_are_suggested(preflight, rebuild):
    trainer = TRAINER | {"megatron_core": "0.10.0"}
    handoff = rebuild(preset="megatron-0.10", trainer=trainer)

    # The stand-in is that of a newer version.
    answer = preflight(handoff)

    assert "megatron_core: main" in answer.output
    changes = settings_to_change(answer.output)
    assert changes["tokenizer_identifiers"] == IDENTIFIERS
    changed_handoff = rebuild(preset="megatron-0.10", **changes)
    assert preflight(changed_handoff, TOKENIZER_WORDS).code == FOUND


def test_options_of_another_tokenizer_are_suggested_as_keys_of_trainer(handoff, preflight):
    answer = preflight(handoff, "--tokenizer-model /other --trust-remote-code")

    assert answer.output.endswith(
        "    # or set under trainer instead:\n"
        '    #   tokenizer_model: "/other"\n'
        "    #   trust_remote_code: true\n"
    )


def test_all_options_of_trainer_can_be_suggested():
    options = {field.name for field in dataclasses.fields(TrainerSpec)}

    assert {*TRAINER_KEYS} == options - {"megatron_core"}


# Tokens that the trainer has to recognize

TOKEN_IDS_LINE = f"TOKEN_IDS: dict[str, int] = {{'eod': {EOD_ID}}}"
"""The line of the script with the tokens, if the data has no padding."""


def with_token_ids(handoff: Path, folder: Path, token_ids: dict[str, int]) -> Path:
    """Return a copy of a handoff whose data has other special tokens."""
    copy = folder / "handoff"
    shutil.copytree(handoff, copy)
    script = copy / "preflight.py"
    text = script.read_text()
    assert TOKEN_IDS_LINE in text
    script.write_text(text.replace(TOKEN_IDS_LINE, f"TOKEN_IDS: dict[str, int] = {token_ids}"))
    return copy


def test_padding_that_the_trainer_does_not_recognize_is_reported(handoff, preflight, tmp_path):
    answer = preflight(with_token_ids(handoff, tmp_path, {"eod": EOD_ID, "pad": PAD_ID}))

    assert answer.code == REBUILT
    assert answer.output.startswith(
        f"In the data, samples are filled up with the padding token {PAD_ID}.\n"
        "But the tokenizer of this run names no such token, so Megatron-LM would not recognize it.\n"
    )
    assert "such as pad_token in tokenizer_config.json" in answer.output
    assert "will find all" in answer.output


def test_ends_of_documents_that_the_trainer_does_not_recognize_are_reported(
    handoff, preflight, tmp_path
):
    answer = preflight(with_token_ids(handoff, tmp_path, {"eod": 9}), "--eod-mask-loss")

    assert answer.code == REBUILT
    assert f"the tokenizer of this run names token {EOD_ID}" in answer.output


def test_ends_of_documents_do_not_matter_without_masks_that_look_for_them(
    handoff, preflight, tmp_path
):
    assert preflight(with_token_ids(handoff, tmp_path, {"eod": 9})).code == FOUND


def test_masks_of_the_nanoset_look_for_ends_of_documents(rebuild, preflight, tmp_path):
    handoff = rebuild(eod_mask_loss=True)

    assert preflight(handoff).code == FOUND
    assert preflight(with_token_ids(handoff, tmp_path, {"eod": 9})).code == REBUILT


# Padding with a token that the trainer's tokenizer also uses for another purpose

SETTING = "allow_ambiguous_pad_tokens = False"
"""The setting of datasets that versions have which ignore such a padding token."""


@pytest.fixture
def padded_handoff(handoff: Path, tmp_path: Path) -> Path:
    """The folder of a handoff whose data is padded."""
    return with_token_ids(handoff, tmp_path, {"pad": PAD_ID})


def core_with_tokens(folder: Path, tokens: str, *, settings: str = SETTING) -> Path:
    """Write a stand-in for megatron-core whose tokenizer has other tokens; return its folder.

    Args:
        folder: Where it is written.
        tokens: The attributes of the tokenizer, in Python.
        settings: The settings of its datasets, in Python.
    """
    stand_in = STAND_IN.replace("    pad = None\n", f"    {tokens}\n")
    return write_core(folder / "core", stand_in, settings)


def test_padding_with_a_token_of_its_own_is_recognized(padded_handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = {PAD_ID}")

    assert run_preflight(padded_handoff, core).code == FOUND


@pytest.mark.parametrize(
    "tokens",
    [
        f"pad = eos = {PAD_ID}",
        f"pad = eod = {PAD_ID}",
        f"pad = {PAD_ID}; special_tokens_dict = {{'pad_token': {PAD_ID}, 'unk_token': {PAD_ID}}}",
    ],
    ids=["eos", "eod", "dictionary"],
)
def test_padding_that_megatron_ignores_is_reported(padded_handoff, tmp_path, tokens):
    core = core_with_tokens(tmp_path, tokens.replace("; ", "\n    "))

    answer = run_preflight(padded_handoff, core)

    assert answer.code == REBUILT
    assert "uses it for another purpose, too" in answer.output
    assert "--allow-ambiguous-pad-tokens" in answer.output


def test_padding_of_a_token_that_also_has_another_purpose_may_be_allowed(padded_handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = eos = {PAD_ID}")

    assert run_preflight(padded_handoff, core, "--allow-ambiguous-pad-tokens").code == FOUND


def test_older_versions_of_megatron_recognize_padding_in_any_case(padded_handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = eos = {PAD_ID}", settings="")

    assert run_preflight(padded_handoff, core).code == FOUND


# Ends of documents that the trainer's tokenizer names as padding


def test_ends_of_documents_that_old_versions_take_for_padding_are_reported(handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = eos = {EOD_ID}", settings="")

    answer = run_preflight(handoff, core)

    assert answer.code == REBUILT
    assert f"documents end with token {EOD_ID}" in answer.output
    assert "leave all ends of documents out of the loss" in answer.output


def test_newer_versions_do_not_take_the_token_of_ends_for_padding(handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = eos = {EOD_ID}")

    assert run_preflight(handoff, core).code == FOUND


def test_newer_versions_take_it_for_padding_if_their_tokenizer_has_another_end(handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = {EOD_ID}\n    eos = eod = 9")

    answer = run_preflight(handoff, core)

    assert answer.code == REBUILT
    assert "leave all ends of documents out of the loss" in answer.output


def test_masked_ends_of_documents_may_be_allowed(handoff, tmp_path):
    core = core_with_tokens(tmp_path, f"pad = eos = {EOD_ID}")

    assert run_preflight(handoff, core, "--allow-ambiguous-pad-tokens").code == FOUND


# Options of evaluation


@pytest.fixture(scope="module")
def handoff_of_two_corpora(handoff: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the handoff of a nanoset of two corpora; tests must not write to it."""
    config = copy_project(handoff, tmp_path_factory.mktemp("two_corpora"))
    return build_handoff(config, blend=["web", "code"])


def test_the_batch_size_of_evaluation_may_be_given_if_it_does_not_differ(
    handoff_of_two_corpora, preflight
):
    assert preflight(handoff_of_two_corpora, "--eval-global-batch-size 8").code == FOUND


@pytest.mark.parametrize(
    ("words", "samples"),
    [
        ("--skip-train", {"train": 400, "valid": 8, "test": 8}),
        ("--full-validation", {"train": 400, "test": 8}),
        ("--start-eval-at-iter 25", {"train": 400, "valid": 16, "test": 8}),
        ("--eval-global-batch-size=16 --skip-train", {"train": 400, "valid": 16, "test": 16}),
    ],
)
def test_options_of_evaluation_request_other_samples(
    handoff_of_two_corpora, preflight, rebuild, words, samples
):
    answer = preflight(handoff_of_two_corpora, words)

    assert answer.code == REBUILT
    changes = settings_to_change(answer.output)
    assert changes == {"samples": samples, "schedule": None}
    changed_handoff = rebuild(blend=["web", "code"], **changes)
    run = f"--global-batch-size 8 --eval-interval 25 --eval-iters 1 {words}"
    assert preflight(changed_handoff, run).code == FOUND


# A project that names neither the trainer nor its schedule


@pytest.fixture(scope="module")
def incomplete_handoff(handoff: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the handoff of a nanoset without `trainer` and `schedule`."""
    config = copy_project(handoff, tmp_path_factory.mktemp("incomplete"))
    return build_handoff(config, trainer=None, schedule=None)


def test_the_status_warns_of_a_tokenizer_that_is_not_named(incomplete_handoff):
    (row,) = status_warnings(incomplete_handoff)

    assert row.label == "nanoset pretrain handoff"
    assert UNKNOWN_TOKENIZER in row.warnings[0]


def test_the_check_needs_the_batch_size_if_nanoset_yaml_does_not_have_it(
    incomplete_handoff, preflight
):
    answer = preflight(incomplete_handoff, TOKENIZER_WORDS)

    assert answer.code == FAILED
    assert "--global-batch-size" in answer.output


def test_identifiers_and_schedule_are_suggested_if_nanoset_yaml_does_not_have_them(
    incomplete_handoff, preflight, rebuild
):
    run = "--train-iters 50 --global-batch-size 8 --eval-iters 1"

    answer = preflight(incomplete_handoff, f"{TOKENIZER_WORDS} {run}")

    assert answer.code == REBUILT
    changes = settings_to_change(answer.output)
    assert changes["tokenizer_identifiers"] == IDENTIFIERS
    assert changes["schedule"] == SCHEDULE | {"eval_interval": 1000}  # Megatron-LM's default

    # With these settings, the trainer finds the files, and nothing is left to warn of.
    changed_handoff = rebuild(**{"trainer": None, **changes})
    assert preflight(changed_handoff, TOKENIZER_WORDS).code == FOUND
    assert status_warnings(changed_handoff) == []


# Shares with spaces, which Megatron-LM would hash


def test_shares_are_written_into_the_arguments_without_spaces(rebuild, preflight):
    handoff = rebuild(split="80, 15, 5")

    assert "--split 80,15,5\n" in (handoff / "arguments.txt").read_text()
    assert preflight(handoff).code == FOUND


def test_shares_with_spaces_are_an_error(handoff, preflight):
    answer = preflight(handoff, "--split '80, 15, 5'")

    assert answer.code == FAILED
    assert "leave its spaces out" in answer.output


# Phases


@pytest.fixture(scope="module")
def handoff_of_a_phase(handoff: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the handoff of the first of two phases."""
    config = copy_project(handoff, tmp_path_factory.mktemp("phases"))
    phases = [{"blend": {"web": 1, "code": 1}, "until": 30}, {"blend": "books"}]
    return build_handoff(config, phases=phases, blend=None)


def test_the_options_of_a_phase_lead_to_its_index_files(handoff_of_a_phase, preflight):
    assert preflight(handoff_of_a_phase).code == FOUND


@pytest.mark.parametrize(
    ("words", "comments"),
    [
        ("--train-samples 16", "    # --train-samples: change schedule, or phases"),
        (
            "--eval-iters 2 --full-validation",
            "    # --eval-iters: change schedule, or phases\n"
            "    # --full-validation: change schedule, or phases",
        ),
    ],
)
def test_options_on_the_length_of_a_phase_are_named_in_comments(
    handoff_of_a_phase, preflight, words, comments
):
    answer = preflight(handoff_of_a_phase, words)

    assert answer.code == REBUILT
    assert f"  pretrain:\n{comments}" in answer.output


# What the script cannot tell


@pytest.mark.parametrize(
    "words",
    [
        "--rampup-batch-size 2 2 100",
        "--step-batch-size-schedule 0:8",
        "--mid-level-dataset-surplus=0.1",
        "--multiple-validation-sets",
        "--mock-data",
        "--fim-data",
        "--sft",
        "--perform-rl-step",
        "--yaml-cfg x.yaml",
        "--use-checkpoint-args",
        "--phase-transition-iterations 9",
    ],
)
def test_options_whose_indexes_are_not_known_are_named(handoff, words):
    flag = words.replace("=", " ").split()[0]

    assert run_preflight(handoff, None, words) == Answer(
        REBUILT,
        f"This script cannot predict the indexes that Megatron-LM uses with {flag}.\n"
        "Run it without, to check everything else.\n",
    )


def test_the_check_fails_without_megatron_core(handoff):
    assert run_preflight(handoff, None).code == FAILED


def test_the_check_fails_with_the_error_of_megatron_core(handoff, preflight):
    answer = preflight(handoff, "--tokenizer-type TikTokenizer")

    assert answer.code == FAILED
    assert "TikTokenizer tokenizer is not implemented" in answer.output


FAILING_STAND_IN = """
def build_tokenizer(args):
    raise ValueError("Exception: expected str, bytes or os.PathLike object, not NoneType")
"""
"""A stand-in for megatron-core that cannot load the tokenizer."""
TRANSFORMERS = """
class AutoTokenizer:
    def from_pretrained(path, use_fast, trust_remote_code):
        if path == "/models/sentencepiece" and not use_fast:
            raise ImportError("requires the SentencePiece library")
        can_load = {"/models/hf": use_fast, "/models/empty": False}
        if not can_load.get(path, True):
            raise OSError(path)
"""
"""A stand-in for transformers. In /models/hf are only the files of the fast class."""


def test_the_check_names_the_files_that_the_slow_class_of_a_tokenizer_lacks(handoff, tmp_path):
    core = write_core(tmp_path, FAILING_STAND_IN, transformers=TRANSFORMERS)

    answer = run_preflight(handoff, core)

    assert answer.code == FAILED
    assert answer.output.startswith("The check failed: Exception: expected str, bytes or")
    assert "lacks files" in answer.output
    assert "set `tokenizer_hf_use_fast: true` under `trainer`" in answer.output
    assert "trainer's environment" not in answer.output


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("--tokenizer-model /models/empty", id="the fast class lacks files, too"),
        pytest.param("--tokenizer-model /models/full", id="no class lacks files"),
        pytest.param(
            "--tokenizer-model /models/sentencepiece", id="the slow class lacks a package"
        ),
        pytest.param("--tokenizer-hf-use-fast", id="the fast class failed"),
    ],
)
def test_files_of_the_slow_class_are_not_named_if_there_is_another_reason(handoff, tmp_path, words):
    core = write_core(tmp_path, FAILING_STAND_IN, transformers=TRANSFORMERS)

    answer = run_preflight(handoff, core, words)

    assert answer.code == FAILED
    assert "lacks files" not in answer.output
    assert "trainer's environment" in answer.output


def test_files_of_the_slow_class_are_not_named_if_megatron_lm_lacks_a_package(handoff, tmp_path):
    core = write_core(tmp_path, "import nothing_such\n", transformers=TRANSFORMERS)

    answer = run_preflight(handoff, core)

    assert answer.code == FAILED
    assert "No module named 'nothing_such'" in answer.output
    assert "lacks files" not in answer.output


def test_other_data_are_an_error(handoff, preflight):
    answer = preflight(handoff, "--data-path 1 /x")

    assert answer.code == FAILED
    assert "leave --data-path out" in answer.output


def test_the_check_fails_without_arguments_txt(handoff, preflight, tmp_path):
    copy = tmp_path / "handoff"
    shutil.copytree(handoff, copy)
    (copy / "arguments.txt").unlink()

    assert preflight(copy).code == FAILED


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "--eval-interval 0",
            "--eval-interval has to be 1 or more, since Megatron-LM divides by it, and is 0",
        ),
        ("--seq-length 4k", "argument --seq-length: invalid int value: '4k'"),
        ("--train-iters=1e5", "argument --train-iters: invalid int value: '1e5'"),
        ("--seed", "argument --seed: expected one argument"),
    ],
)
def test_values_that_megatron_would_refuse_are_an_error(handoff, preflight, words, reason):
    assert preflight(handoff, words) == Answer(
        FAILED,
        f"The check failed: {reason}\n"
        "Run it in the trainer's environment, with the trainer's options.\n",
    )


# Missing index files


def test_an_empty_cache_is_reported_with_the_missing_files(handoff, preflight, tmp_path):
    answer = preflight(handoff, f"--data-cache-path {tmp_path}")

    assert answer.code == REBUILT
    assert "index files are missing" in answer.output
    assert str(tmp_path) in answer.output


def test_a_single_missing_file_is_named(handoff, preflight, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(handoff.parents[1] / "cache", cache)
    (missing_file,) = cache.glob("*BlendedDataset-valid-dataset_index.npy")
    missing_file.unlink()

    answer = preflight(handoff, f"--data-cache-path {cache}")

    assert answer.code == REBUILT
    assert answer.output.startswith("1 of ")
    assert str(missing_file) in answer.output


# Megatron-LM


def test_the_real_megatron_core_finds_the_index_files(rebuild, tokenizer_file, tmp_path):
    megatron = pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    trainer = TRAINER | {
        "megatron_core": megatron.__version__,
        "tokenizer_model": str(model),
    }
    handoff = rebuild(trainer=trainer)

    process = subprocess.run(
        [sys.executable, str(handoff / "preflight.py")], capture_output=True, text=True, check=False
    )

    assert process.returncode == FOUND, process.stdout + process.stderr
