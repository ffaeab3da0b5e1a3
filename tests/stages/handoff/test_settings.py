"""`trainer` of a nanoset: the identifiers and arguments of Megatron-LM's tokenizers, as these gave
them themselves.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from helpers.locations import GOLDEN_FILES
from helpers.sample_project import write_project
from nanoset_core.cli.commands.map import command
from nanoset_core.errors import ConfigError
from nanoset_core.project.settings import load_config
from nanoset_core.stages.handoff.data_args import config_from_arguments
from nanoset_core.stages.handoff.settings import TrainerSpec

ROWS = json.loads((GOLDEN_FILES / "megatron/tokenizer_identifiers.json").read_bytes())
"""(Version, words of the command line, unique_identifiers; null where that version has no such
option).
"""
NUMBERS = {"vocab_size", "vocab_extra_ids", "tiktoken_num_special_tokens", "null_tokenizer_eod_id"}
NO_SPACES = "no_tokenizer_sentencepiece_ignore_extra_whitespaces"


def spec_of(version: str, words: list[str]) -> TrainerSpec:
    """The settings that a command line says."""
    found: dict[str, Any] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            values = found[word[2:].replace("-", "_")] = []
        else:
            values.append(word)
    settings = {name: values[0] if values else True for name, values in found.items()}
    settings |= {name: int(settings[name]) for name in NUMBERS & settings.keys()}
    if settings.pop(NO_SPACES, False):
        settings["tokenizer_sentencepiece_ignore_extra_whitespaces"] = False
    for name in ("tiktoken_special_tokens", "tokenizer_special_tokens"):
        if settings.pop(name, None):
            settings["special_tokens"] = tuple(found[name])
    return TrainerSpec(version, **settings)


def identifiers_of_map(spec: TrainerSpec) -> dict[str, Any]:
    """Those that `nanoset map --trainer` hashes."""
    given = {one.name: getattr(spec, one.name) for one in fields(spec)}
    given = {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }
    options = command.make_context("map", []).params
    options |= {"data_path": ["/x"], "seq_length": 8, "trainer": json.dumps(given)}
    options["preset"] = "megatron-0.10" if spec.minor <= 10 else "megatron"
    return config_from_arguments(options).tokenizer_identifiers


def has_other_name(version: str, words: list[str]) -> bool:
    """Whether special tokens are given by the name that another version has for the option."""
    is_old = version != "main" and int(version.split(".")[1]) <= 15
    return ("--tokenizer-special-tokens" if is_old else "--tiktoken-special-tokens") in words


@pytest.mark.parametrize("version", dict.fromkeys(row[0] for row in ROWS))
def test_identifiers_and_arguments_are_those_of_the_tokenizers(version):
    rows = [(words, expected) for of, words, expected in ROWS if of == version]
    assert {expected is None for _, expected in rows} == {True, False}
    for words, expected in rows:
        if expected is None:
            if not has_other_name(version, words):
                with pytest.raises(ConfigError):
                    spec_of(version, words).identifiers()
            continue
        spec = spec_of(version, words)
        assert json.dumps(spec.identifiers()) == json.dumps(expected), words
        assert json.dumps(identifiers_of_map(spec)) == json.dumps(expected), words
        assert spec_of(version, " ".join(spec.arguments()).split()) == spec


@pytest.mark.parametrize(
    ("trainer", "where", "found"),
    [
        ({"megatron_core": "1.0"}, "trainer.megatron_core", "1.0"),
        ({"megatron_core": "0.8.0"}, "trainer.megatron_core", "0.8.0"),
        ({"megatron_core": "core_v0.16.1"}, None, None),
        ({"megatron_core": "0.16.1rc0"}, None, None),
        ({"tokenizer_model": None}, "trainer.tokenizer_model", "nothing"),
        (
            {"tokenizer_type": "TikTokenizer", "megatron_core": "0.12.0"},
            "trainer.tiktoken_pattern",
            "nothing",
        ),
        ({"tokenizer_type": "BertWordPiece"}, "trainer.tokenizer_type", "BertWordPiece"),
        ({"use_gigatoken": True}, "trainer.use_gigatoken", "megatron_core 0.16.1"),
        ({"tokenizer_model": "/my models/x"}, "trainer.tokenizer_model", "/my models/x"),
        ({"megatron_core": "0.10.0"}, "preset", "megatron_core 0.10.0"),
        ({"tokenizer": "/x"}, "trainer.tokenizer", "tokenizer"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, tokenizer_file, trainer, where, found):
    base = {
        "megatron_core": "0.16.1",
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "/models/x",
    }
    values = {name: value for name, value in (base | trainer).items() if value is not None}
    config = write_project(
        tmp_path / "p", tokenizer_file, {"seed: 7": f"seed: 7\n    trainer: {json.dumps(values)}"}
    )
    if where is None:
        assert (
            load_config(config).nanosets["pretrain"].tokenizer_identifiers["tokenizer_path"]
            == "/models/x"
        )
        return
    with pytest.raises(ConfigError, match=f"nanosets.pretrain.{where}") as caught:
        load_config(config)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("inter_document_masking: true", "no such option"),
        ("preset: nemo", "do not hold its tokenizer"),
        ("preset: nanotron", "do not hold its tokenizer"),
        ("preset: megatron-0.10", "another version of megatron-core"),
        ("tokenizer_identifiers: {class: x}", "both give the tokenizer's identifiers"),
    ],
)
def test_what_does_not_go_with_it(tmp_path, tokenizer_file, more, what):
    trainer = 'trainer: {megatron_core: "0.16.1", tokenizer_type: NullTokenizer, vocab_size: 9}'
    config = write_project(
        tmp_path / "p", tokenizer_file, {"seed: 7": f"seed: 7\n    {trainer}\n    {more}"}
    )
    with pytest.raises(ConfigError, match=what):
        load_config(config)


def test_every_setting_is_in_the_golden_rows():
    said = {
        word[2:].replace("-", "_")
        for _, words, _ in ROWS
        for word in words
        if word.startswith("--")
    }
    named = {one.name for one in fields(TrainerSpec)} - {"megatron_core", "special_tokens"}
    ignored = "tokenizer_sentencepiece_ignore_extra_whitespaces"
    assert named - {ignored} <= said
    assert NO_SPACES in said
