"""The key `trainer` of a nanoset gives the same identifiers and arguments as Megatron-LM's tokenizers.

The golden file has the identifiers that each version of Megatron-LM gave itself.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.locations import GOLDEN_FILES
from helpers.sample_project import write_project
from nanoset_core import load_config
from nanoset_core.cli.commands.map import command
from nanoset_core.errors import ConfigError
from nanoset_core.stages.handoff.data_args import config_from_arguments
from nanoset_core.stages.handoff.settings import TrainerSpec
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.stage import Key


class GoldenRow(NamedTuple):
    """What a version of Megatron-LM made of a command line."""

    version: str
    words: list[str]
    """Words of the command line."""
    identifiers: dict[str, Any] | None
    """The tokenizer's unique_identifiers; None if the version does not have one of the options."""


GOLDEN_JSON = json.loads((GOLDEN_FILES / "megatron/tokenizer_identifiers.json").read_bytes())
GOLDEN_ROWS = [GoldenRow(*row) for row in GOLDEN_JSON]
VERSIONS = list(dict.fromkeys(row.version for row in GOLDEN_ROWS))
NUMBERS = {"vocab_size", "vocab_extra_ids", "tiktoken_num_special_tokens", "null_tokenizer_eod_id"}
"""Options whose values are numbers."""
EXTRA_WHITESPACES = "tokenizer_sentencepiece_ignore_extra_whitespaces"
"""The only option that is spelled with `no` on the command line."""
OLD_SPECIAL_TOKENS = "--tiktoken-special-tokens"
"""The option for special tokens up to core 0.15."""
NEW_SPECIAL_TOKENS = "--tokenizer-special-tokens"
"""The option for special tokens from core 0.16 on."""


def accepted_rows(version: str) -> list[GoldenRow]:
    """Return the command lines that a version of Megatron-LM accepts."""
    rows = [row for row in GOLDEN_ROWS if row.version == version and row.identifiers is not None]
    assert rows
    return rows


def refused_rows(version: str) -> list[GoldenRow]:
    """Return the command lines with an option that a version of Megatron-LM does not have."""
    rows = [row for row in GOLDEN_ROWS if row.version == version and row.identifiers is None]
    assert rows
    return rows


def option_name(flag: str) -> str:
    """Return the name of an option from its spelling on the command line."""
    return flag.removeprefix("--").replace("-", "_")


def spec_of(version: str, words: list[str]) -> TrainerSpec:
    """Return the settings of `trainer` that correspond to a command line."""
    values_by_option: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            values = []
            values_by_option[option_name(word)] = values
        else:
            values.append(word)

    settings: dict[str, Any] = {}
    for name, values in values_by_option.items():
        if name == f"no_{EXTRA_WHITESPACES}":
            settings[EXTRA_WHITESPACES] = False
        elif name in (option_name(OLD_SPECIAL_TOKENS), option_name(NEW_SPECIAL_TOKENS)):
            settings["special_tokens"] = tuple(values)
        elif name in NUMBERS:
            settings[name] = int(values[0])
        elif values:
            settings[name] = values[0]
        else:
            settings[name] = True
    return TrainerSpec(version, **settings)


def identifiers_of_map(spec: TrainerSpec) -> dict[str, Any]:
    """Return the identifiers that `nanoset map --trainer` writes into descriptions of indexes."""
    trainer = {}
    for setting in fields(spec):
        value = getattr(spec, setting.name)
        trainer[setting.name] = list(value) if isinstance(value, tuple) else value
    preset = "megatron"
    if spec.minor <= 10:
        preset = "megatron-0.10"

    options = command.make_context("map", []).params
    options["data_path"] = ["/x"]
    options["seq_length"] = 8
    options["trainer"] = json.dumps(trainer)
    options["preset"] = preset
    return config_from_arguments(options).tokenizer_identifiers


# The identifiers, whose order in JSON is part of the names of index files


@pytest.mark.parametrize("version", VERSIONS)
def test_identifiers_are_those_of_the_tokenizer(version):
    for row in accepted_rows(version):
        identifiers = spec_of(version, row.words).identifiers()

        assert json.dumps(identifiers) == json.dumps(row.identifiers), row.words


@pytest.mark.parametrize("version", VERSIONS)
def test_nanoset_map_writes_the_identifiers_of_the_tokenizer(version):
    for row in accepted_rows(version):
        identifiers = identifiers_of_map(spec_of(version, row.words))

        assert json.dumps(identifiers) == json.dumps(row.identifiers), row.words


@pytest.mark.parametrize("version", VERSIONS)
def test_the_arguments_of_a_tokenizer_give_its_settings_again(version):
    for row in accepted_rows(version):
        spec = spec_of(version, row.words)

        words = " ".join(spec.arguments()).split()

        assert spec_of(version, words) == spec


@pytest.mark.parametrize("version", VERSIONS)
def test_an_option_that_a_version_does_not_have_is_refused(version):
    # The setting `special_tokens` stands for the option of the version, whatever its name.
    is_old = version != "main" and int(version.split(".")[1]) <= 15
    unknown_flag = NEW_SPECIAL_TOKENS if is_old else OLD_SPECIAL_TOKENS
    rows = [row for row in refused_rows(version) if unknown_flag not in row.words]
    assert rows

    for row in rows:
        with pytest.raises(ConfigError):
            spec_of(version, row.words).identifiers()


def test_the_golden_rows_have_every_setting():
    flags = set()
    for row in GOLDEN_ROWS:
        flags |= {word for word in row.words if word.startswith("--")}
    options = {option_name(flag) for flag in flags}
    settings = {setting.name for setting in fields(TrainerSpec)}

    assert settings - {"megatron_core", "special_tokens", EXTRA_WHITESPACES} <= options
    assert f"no_{EXTRA_WHITESPACES}" in options


# nanoset.yaml

TRAINER = {
    "megatron_core": "0.16.1",
    "tokenizer_type": "HuggingFaceTokenizer",
    "tokenizer_model": "/models/x",
}


def write_trainer(
    folder: Path, tokenizer_file: Path, trainer: dict[str, Any], other_setting: str = ""
) -> Path:
    """Write a project whose nanoset has the key `trainer`, and return its nanoset.yaml.

    Args:
        folder: The folder of the project, which must not exist.
        tokenizer_file: File of the tokenizer.
        trainer: The settings of `trainer`.
        other_setting: A line of YAML that the nanoset has, too.
    """
    lines = ["seed: 7", f"trainer: {json.dumps(trainer)}", other_setting]
    return write_project(folder, tokenizer_file, {"seed: 7": "\n    ".join(lines)})


@pytest.mark.parametrize("version", ["core_v0.16.1", "0.16.1rc0"])
def test_a_version_may_be_spelled_as_a_tag_or_a_release_candidate(
    tmp_path, tokenizer_file, version
):
    trainer = TRAINER | {"megatron_core": version}

    config = load_config(write_trainer(tmp_path / "project", tokenizer_file, trainer))

    identifiers = config.nanosets["pretrain"].tokenizer_identifiers
    assert identifiers["tokenizer_path"] == "/models/x"


def test_a_version_that_is_newer_than_all_known_ones_is_a_warning_that_names_main():
    trainer = TrainerSpec(**TRAINER | {"megatron_core": "0.20.0"})

    warning = trainer.version_warning()

    assert warning is not None
    assert "0.20.0 is not known" in warning
    assert "`megatron_core: main`" in warning


@pytest.mark.parametrize("version", ["0.9.0", "0.16.1", "0.19.2", "main"])
def test_a_known_version_is_no_warning(version):
    trainer = TrainerSpec(**TRAINER | {"megatron_core": version})

    assert trainer.version_warning() is None


def test_a_nanoset_for_an_unknown_version_has_a_warning(tmp_path, tokenizer_file):
    trainer = TRAINER | {"megatron_core": "0.20.0"}
    config = load_config(write_trainer(tmp_path / "project", tokenizer_file, trainer))

    warnings = list(TRAINER_FILES.settings_warnings(config, Key("pretrain")))

    assert any("0.20.0 is not known" in warning for warning in warnings)


def test_a_version_1_is_refused_with_the_versions_that_are_known():
    trainer = TrainerSpec(**TRAINER | {"megatron_core": "1.0.0"})

    with pytest.raises(ConfigError, match=r"expected: 0.9 to 0.19, such as .* or main"):
        trainer.identifiers()


class InvalidTrainer(NamedTuple):
    """Settings of `trainer` that are refused."""

    trainer: dict[str, Any]
    where: str
    """The key that the message names."""
    found: str
    """What the message says of the value."""


INVALID_TRAINERS = {
    "no minor version": InvalidTrainer(
        TRAINER | {"megatron_core": "1.0"}, where="trainer.megatron_core", found="1.0"
    ),
    "too old": InvalidTrainer(
        TRAINER | {"megatron_core": "0.8.0"}, where="trainer.megatron_core", found="0.8.0"
    ),
    "too old for the preset": InvalidTrainer(
        TRAINER | {"megatron_core": "0.10.0"}, where="preset", found="megatron_core 0.10.0"
    ),
    "no model": InvalidTrainer(
        {"megatron_core": "0.16.1", "tokenizer_type": "HuggingFaceTokenizer"},
        where="trainer.tokenizer_model",
        found="nothing",
    ),
    "no pattern": InvalidTrainer(
        TRAINER | {"megatron_core": "0.12.0", "tokenizer_type": "TikTokenizer"},
        where="trainer.tiktoken_pattern",
        found="nothing",
    ),
    "unknown type": InvalidTrainer(
        TRAINER | {"tokenizer_type": "BertWordPiece"},
        where="trainer.tokenizer_type",
        found="BertWordPiece",
    ),
    "option of another version": InvalidTrainer(
        TRAINER | {"use_gigatoken": True},
        where="trainer.use_gigatoken",
        found="megatron_core 0.16.1",
    ),
    "path with a space": InvalidTrainer(
        TRAINER | {"tokenizer_model": "/my models/x"},
        where="trainer.tokenizer_model",
        found="/my models/x",
    ),
    "unknown key": InvalidTrainer(
        TRAINER | {"tokenizer": "/x"}, where="trainer.tokenizer", found="tokenizer"
    ),
}


@pytest.mark.parametrize("case", INVALID_TRAINERS.values(), ids=INVALID_TRAINERS.keys())
def test_an_invalid_setting_is_refused_with_its_key_and_value(tmp_path, tokenizer_file, case):
    config = write_trainer(tmp_path / "project", tokenizer_file, case.trainer)

    with pytest.raises(ConfigError, match=f"nanosets.pretrain.{case.where}") as caught:
        load_config(config)

    assert case.found in str(caught.value)


@pytest.mark.parametrize(
    ("other_setting", "message"),
    [
        ("inter_document_masking: true", "no such option"),
        ("preset: nemo", "do not hold its tokenizer"),
        ("preset: nanotron", "do not hold its tokenizer"),
        ("preset: megatron-0.10", "another version of megatron-core"),
        ("tokenizer_identifiers: {class: x}", "both give the tokenizer's identifiers"),
    ],
)
def test_a_setting_that_contradicts_the_trainer_is_refused(
    tmp_path, tokenizer_file, other_setting, message
):
    trainer = {"megatron_core": "0.16.1", "tokenizer_type": "NullTokenizer", "vocab_size": 9}
    config = write_trainer(tmp_path / "project", tokenizer_file, trainer, other_setting)

    with pytest.raises(ConfigError, match=message):
        load_config(config)
