"""Special tokens that only files next to a tokenizer name have the ids that AutoTokenizer gives.

The expected ids are those that AutoTokenizer of transformers 4.57.1 and 5.24.0 gave, for each
folder that both load. Tokens that these treat differently are only noticed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.golden_tokenizers import GOLDEN_JSON, NO_FLAGS, copy_golden_file
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files import define, tokenizer_files
from nanoset_core.tokenizers.tokenizer import special_ids, token_id, tokenizer_facts

FAST_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}
"""The content of a tokenizer_config.json with a class that has no tokens of its own."""
N_TOKENS = 396
"""Tokens of the golden tokenizer, and so the id of the first token that is added."""
LETTER_A = 66
"""The token of "a"."""
LETTER_B = 67


def token(content, **flags):
    """Return a special token with flags, as files list them."""
    return {**NO_FLAGS, "special": True, "content": content, **flags}


def typed_token(content, **flags):
    """Return a special token with its type, as transformers writes it for a purpose."""
    return {"__type": "AddedToken", **token(content, **flags)}


@pytest.fixture
def folder(tmp_path):
    """A folder with the golden tokenizer, whose added tokens are <|endoftext|> and <|padding|>."""
    shutil.copyfile(GOLDEN_JSON, tmp_path / "tokenizer.json")
    return tmp_path


def write_files(folder, config=None, special_tokens_map=None, added_tokens=None):
    """Write files next to a tokenizer.json, and return the path of the tokenizer.

    Args:
        folder: The folder.
        config: Content of tokenizer_config.json; None for no such file.
        special_tokens_map: Content of special_tokens_map.json; None for no such file.
        added_tokens: Content of added_tokens.json; None for no such file.
    """
    contents = {
        "tokenizer_config.json": config,
        "special_tokens_map.json": special_tokens_map,
        "added_tokens.json": added_tokens,
    }
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder / "tokenizer.json"


def change_tokenizer(folder, **settings):
    """Change settings in the tokenizer.json of a folder."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, **settings}))


def sha256_of(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tokenize(folder, *options):
    """Run `nanoset tokenize` on one text with the tokenizer of a folder; return the result."""
    input_path = folder / "text.jsonl"
    input_path.write_text('{"text": "a<x>b"}\n')
    arguments = ["tokenize", "--input", input_path, "--output-prefix", folder / "out"]
    arguments += ["--workers", 1, "--tokenizer", folder, *options]
    return invoke_nanoset(arguments)


# The ids of AutoTokenizer


class ConfigTokens(NamedTuple):
    """Tokens that a tokenizer_config.json names."""

    config: dict[str, Any]
    """The content of the file."""
    expected_ids: dict[str, int]
    """Token → the id that AutoTokenizer gives it."""


NAMED_TOKENS = {
    "additional_special_tokens": ConfigTokens(
        {**FAST_TOKENIZER, "additional_special_tokens": ["<x>", "<y>"]},
        {"<x>": 396, "<y>": 397},
    ),
    "extra_special_tokens by purpose": ConfigTokens(
        {**FAST_TOKENIZER, "extra_special_tokens": {"image_token": "<x>", "audio_token": "<y>"}},
        {"<x>": 396, "<y>": 397},
    ),
    "tokens with a purpose, in transformers' order": ConfigTokens(
        {
            **FAST_TOKENIZER,
            "additional_special_tokens": ["<x>"],
            "pad_token": "<p>",
            "unk_token": "<u>",
            "mask_token": "<mask>",
            "cls_token": "<s>",
        },
        {"<u>": 396, "<p>": 397, "<s>": 398, "<mask>": 399, "<x>": 400},
    ),
    "a token with its type": ConfigTokens(
        {**FAST_TOKENIZER, "pad_token": typed_token("<p>", lstrip=True)},
        {"<p>": 396},
    ),
    "a token for two purposes": ConfigTokens(
        {**FAST_TOKENIZER, "additional_special_tokens": ["<x>", "<x>"], "pad_token": "<x>"},
        {"<x>": 396},
    ),
    "added_tokens_decoder": ConfigTokens(
        {
            **FAST_TOKENIZER,
            "added_tokens_decoder": {"396": token("<x>"), "397": token("<y>", special=False)},
        },
        {"<x>": 396, "<y>": 397},
    ),
    "added_tokens_decoder and a purpose": ConfigTokens(
        {
            **FAST_TOKENIZER,
            "added_tokens_decoder": {"396": token("<x>", special=False)},
            "eos_token": "<x>",
            "additional_special_tokens": ["<y>"],
        },
        {"<x>": 396, "<y>": 397},
    ),
    "the class of GPT-2": ConfigTokens(
        {"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ["<x>"]},
        {"<x>": 396},
    ),
    "no class": ConfigTokens({"additional_special_tokens": ["<x>"]}, {"<x>": 396}),
    "an integer that 64 bits do not hold": ConfigTokens(
        {**FAST_TOKENIZER, "pad_token": "<p>", "model_max_length": 10**30},
        {"<p>": 396},
    ),
}
TOKENS_WITH_OTHER_IDS = {
    "added_tokens_decoder with a gap": ConfigTokens(
        {**FAST_TOKENIZER, "added_tokens_decoder": {"500": token("<x>"), "400": token("<y>")}},
        {"<y>": 396, "<x>": 397},
    ),
    "added_tokens_decoder with the id of another token": ConfigTokens(
        {**FAST_TOKENIZER, "added_tokens_decoder": {"5": token("<x>")}},
        {"<x>": 396},
    ),
}
"""Tokens with another id in the file, which AutoTokenizer ignores."""
ALL_NAMED_TOKENS = {**NAMED_TOKENS, **TOKENS_WITH_OTHER_IDS}


@pytest.mark.parametrize(
    ("config", "expected_ids"), ALL_NAMED_TOKENS.values(), ids=list(ALL_NAMED_TOKENS)
)
def test_tokens_of_tokenizer_config_json_have_the_ids_of_autotokenizer(
    folder, config, expected_ids
):
    path = write_files(folder, config)

    # Each token between two letters is one token.
    texts = [f"a{content}b" for content in expected_ids]
    encoded = make_engine(path, "tokenizers").encode(texts)
    ids_between_letters = [ids.tolist()[1:-1] for ids in encoded.lists()]
    assert ids_between_letters == [[number] for number in expected_ids.values()]

    # Facts count the tokens.
    facts = tokenizer_facts(path)
    assert facts.vocab_size == N_TOKENS + len(expected_ids)
    assert facts.max_id == N_TOKENS + len(expected_ids) - 1


@pytest.mark.parametrize("config", [tokens.config for tokens in NAMED_TOKENS.values()])
def test_there_is_nothing_to_notice_about_tokens_that_are_added(folder, config):
    path = write_files(folder, config)

    assert define(path).notices == ()


@pytest.mark.parametrize(
    ("added_tokens", "expected_ids"),
    [
        pytest.param({"<x>": 396, "<y>": 397}, {"<x>": 396, "<y>": 397}, id="in order"),
        pytest.param({"<y>": 397, "<x>": 396}, {"<x>": 396, "<y>": 397}, id="in another order"),
        pytest.param({"<y>": 500, "<x>": 450}, {"<x>": 396, "<y>": 397}, id="after a gap"),
    ],
)
def test_tokens_of_added_tokens_json_have_the_ids_of_autotokenizer(
    folder, added_tokens, expected_ids
):
    path = write_files(folder, FAST_TOKENIZER, added_tokens=added_tokens)

    encoded = make_engine(path, "tokenizers").encode(["a<x>b<y>"])

    ids = {content: token_id(path, content, "key") for content in expected_ids}
    assert ids == expected_ids
    assert encoded.ids.tolist() == [LETTER_A, 396, LETTER_B, 397]


def test_tokens_of_special_tokens_map_json_have_the_ids_of_autotokenizer(folder):
    special_tokens_map = {
        "pad_token": "<p>",
        "mask_token": token("<mask>"),
        "additional_special_tokens": ["<x>"],
    }

    ids = special_ids(write_files(folder, FAST_TOKENIZER, special_tokens_map))

    assert ids["<p>"] == 396
    assert ids["<mask>"] == 397
    assert ids["<x>"] == 398


def test_a_config_with_added_tokens_decoder_replaces_the_other_files(folder):
    config = {**FAST_TOKENIZER, "added_tokens_decoder": {"396": token("<x>")}}

    path = write_files(folder, config, {"pad_token": "<p>"}, {"<y>": 397})

    assert tokenizer_facts(path).vocab_size == N_TOKENS + 1


@pytest.mark.parametrize("key", ["²", "1" * 5000, "-1", ""])
def test_entries_whose_key_is_no_id_are_ignored(folder, key):
    decoder = {"396": token("<x>"), key: token("<y>")}

    path = write_files(folder, {**FAST_TOKENIZER, "added_tokens_decoder": decoder})

    assert tokenizer_facts(path).vocab_size == N_TOKENS + 1


def test_a_token_has_the_flags_with_which_it_is_named(folder):
    pad_token = typed_token("<p>", lstrip=True, rstrip=True)
    path = write_files(folder, {**FAST_TOKENIZER, "pad_token": pad_token})

    encoded = make_engine(path, "tokenizers").encode(["a  <p>  b"])

    assert encoded.ids.tolist() == [LETTER_A, 396, LETTER_B]


@pytest.mark.usefixtures("few_canaries")
def test_the_numpy_engine_gives_the_same_ids(folder):
    config = {
        **FAST_TOKENIZER,
        "pad_token": typed_token("<p>", lstrip=True),
        "additional_special_tokens": ["<x>"],
    }
    path = write_files(folder, config)
    texts = ["a<x>b  <p>c", "<x><p>", "the <x"]
    expected = make_engine(path, "tokenizers", cache=folder).encode(texts)

    encoded = make_engine(path, "numpy", cache=folder).encode(texts)

    assert encoded.ids.tolist() == expected.ids.tolist()


def test_a_folder_and_the_file_in_it_are_the_same_tokenizer(folder):
    path = write_files(folder, {**FAST_TOKENIZER, "pad_token": "<p>"})

    assert define(folder) == define(path)


def test_the_command_writes_the_ids_of_autotokenizer(folder):
    config = {
        **FAST_TOKENIZER,
        "eos_token": "<|endoftext|>",
        "additional_special_tokens": ["<x>"],
    }
    write_files(folder, config)

    result = tokenize(folder, "--append-eod", "--engine", "tokenizers")

    assert result.exit_code == 0
    tokens = np.fromfile(folder / "out_text_document.bin", np.uint16)
    assert tokens.tolist() == [LETTER_A, 396, LETTER_B, 0]


def test_an_end_token_that_only_the_config_names_ends_documents(folder):
    path = write_files(folder, {**FAST_TOKENIZER, "eos_token": "</s>"})

    assert end_token(path, None) == "</s>"
    assert token_id(path, "</s>", "eod") == 396


# Tokens that are only noticed

UNCERTAIN_CONFIGS = {
    "a class that may have tokens of its own": {
        "tokenizer_class": "NewTokenizer",
        "pad_token": "<x>",
    },
    "a class with tokens that the file lacks": {
        "tokenizer_class": "LlamaTokenizerFast",
        "pad_token": "<x>",
    },
    "an object without its type": {**FAST_TOKENIZER, "pad_token": token("<x>")},
    "a list of objects without their type": {
        **FAST_TOKENIZER,
        "additional_special_tokens": [token("<x>")],
    },
    "a key that transformers 5 alone reads": {**FAST_TOKENIZER, "image_token": "<x>"},
    "special tokens that are split": {
        **FAST_TOKENIZER,
        "pad_token": "<x>",
        "split_special_tokens": True,
    },
    "flags that transformers 4 alone replaces": {
        **FAST_TOKENIZER,
        "pad_token": "<x>",
        "eos_token": typed_token("<|endoftext|>", rstrip=True),
    },
}
"""Contents of tokenizer_config.json with a token for which the ids are not certain."""


@pytest.mark.parametrize("config", UNCERTAIN_CONFIGS.values(), ids=UNCERTAIN_CONFIGS)
def test_tokens_with_uncertain_ids_are_noticed_and_change_nothing(folder, config):
    path = write_files(folder, config)

    definition = define(path)

    notices = [notice for notice in definition.notices if "'<x>'" in notice and "lacks" in notice]
    assert notices
    assert definition.fingerprint == sha256_of(path)
    assert definition.json() == path.read_bytes()


def test_tokens_in_lists_of_two_files_are_noticed(folder):
    path = write_files(
        folder,
        {**FAST_TOKENIZER, "additional_special_tokens": ["<x>"]},
        {"additional_special_tokens": ["<y>"]},
    )

    (notice,) = define(path).notices

    assert "'<x>', '<y>'" in notice


def test_the_command_prints_the_notice(folder):
    write_files(folder, {"tokenizer_class": "NewTokenizer", "pad_token": "<x>"})

    result = tokenize(folder, "--engine", "tokenizers")

    assert result.exit_code == 0
    assert "lacks '<x>', which tokenizer_config.json" in result.output


@pytest.mark.parametrize(
    ("config", "added_tokens", "difference"),
    [
        pytest.param(
            {"added_tokens_decoder": {"500": token("<x>"), "400": token("<y>")}},
            None,
            "'<x>' has 397 instead of 500, '<y>' has 396 instead of 400. ",
            id="tokens that are added",
        ),
        pytest.param(
            {"added_tokens_decoder": {"500": token("<|endoftext|>")}},
            None,
            "'<|endoftext|>' has 0 instead of 500. ",
            id="an added token of the tokenizer.json",
        ),
        pytest.param({}, {"a": 500}, "'a' has 66 instead of 500. ", id="a token of the vocabulary"),
    ],
)
def test_ids_of_another_tokenizer_are_noticed(folder, config, added_tokens, difference):
    path = write_files(folder, {**FAST_TOKENIZER, **config}, added_tokens=added_tokens)

    notices = " ".join(define(path).notices)

    assert "gives other ids to tokens than " in notices
    assert difference in notices


def test_a_config_that_cannot_be_read_is_noticed(folder):
    path = write_files(folder, FAST_TOKENIZER)
    (folder / "tokenizer_config.json").write_text("{nonsense")

    (notice,) = define(path).notices

    assert "tokenizer_config.json" in notice
    assert "not read" in notice


@pytest.mark.parametrize("name", ["vocab.json", "bpe.model"])
def test_tokens_next_to_other_kinds_of_files_are_noticed_and_change_nothing(tmp_path, name):
    path = copy_golden_file(name, tmp_path)
    copy_golden_file("merges.txt", tmp_path)
    fingerprint_without_config = define(path).fingerprint

    write_files(tmp_path, {**FAST_TOKENIZER, "pad_token": "<x>"})
    definition = define(path)

    assert "has no token '<x>', which tokenizer_config.json" in definition.notices[-1]
    assert definition.fingerprint == fingerprint_without_config


def test_a_token_that_is_in_the_vocabulary_but_not_added_is_noticed(folder):
    change_tokenizer(folder, added_tokens=[])
    path = write_files(folder, {**FAST_TOKENIZER, "eos_token": "<|endoftext|>"})

    definition = define(path)

    assert definition.fingerprint == sha256_of(path)
    assert "'<|endoftext|>' in its vocabulary, but not as added tokens" in definition.notices[0]


def test_flags_that_differ_are_noticed(folder):
    decoder = {"0": token("<|endoftext|>", rstrip=True)}
    path = write_files(folder, {**FAST_TOKENIZER, "added_tokens_decoder": decoder})

    definition = define(path)

    assert definition.fingerprint == sha256_of(path)
    assert "say different things about '<|endoftext|>'" in definition.notices[0]


def test_the_flag_normalized_does_not_matter_without_a_normalizer(folder):
    change_tokenizer(folder, normalizer={"type": "Sequence", "normalizers": []})
    decoder = {"0": token("<|endoftext|>", normalized=True)}
    path = write_files(folder, {**FAST_TOKENIZER, "added_tokens_decoder": decoder})

    assert define(path).notices == ()


# Fingerprints


def test_a_tokenizer_json_that_has_all_tokens_keeps_its_digest(folder):
    purposes = {"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"}
    decoder = {"0": token("<|endoftext|>"), "1": token("<|padding|>")}
    path = write_files(
        folder,
        config={**FAST_TOKENIZER, **purposes, "added_tokens_decoder": decoder},
        special_tokens_map=purposes,
        added_tokens={"<|padding|>": 1},
    )

    definition = define(path)

    assert definition.fingerprint == sha256_of(path)
    assert definition.notices == ()


def test_other_named_tokens_give_another_fingerprint(folder):
    path = write_files(folder, {**FAST_TOKENIZER, "pad_token": "<p>"})
    fingerprint_before = define(path).fingerprint

    write_files(folder, {**FAST_TOKENIZER, "pad_token": "<other>"})

    assert define(path).fingerprint != fingerprint_before


def test_settings_that_change_no_token_give_the_same_fingerprint(folder):
    config = {**FAST_TOKENIZER, "pad_token": "<p>"}
    path = write_files(folder, config)
    fingerprint_before = define(path).fingerprint

    write_files(folder, {**config, "clean_up_tokenization_spaces": False})

    assert define(path).fingerprint == fingerprint_before


def test_the_files_of_a_tokenizer_include_those_next_to_it(folder):
    """Workers of a cluster receive all of them."""
    path = write_files(folder, FAST_TOKENIZER, {}, {})

    assert [file.name for file in tokenizer_files(path)] == [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ]
