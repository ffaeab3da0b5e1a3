"""Special tokens that only files next to a tokenizer.json name, against transformers'
AutoTokenizer.

The expected ids are those that AutoTokenizer of transformers 4.57.1 and 5.24.0 gave, for each
folder that both load.
"""

import hashlib
import json
import shutil

import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files import define, tokenizer_files
from nanoset_core.tokenizers.tokenizer import special_ids, token_id, tokenizer_facts

GOLDEN = GOLDEN_FILES / "tokenization"
FILES = GOLDEN / "files"
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
FLAGS = {
    "lstrip": False,
    "normalized": False,
    "rstrip": False,
    "single_word": False,
    "special": True,
}


def token(content, **flags):
    return {"content": content, **FLAGS, **flags}


def typed(content, **flags):
    return {"__type": "AddedToken", **token(content, **flags)}


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokenizer of 396 tokens; 0 and 1, <|endoftext|> and <|padding|>, are its
    added ones.
    """
    shutil.copyfile(GOLDEN / "tokenizer.json", tmp_path / "tokenizer.json")
    return tmp_path


def write(folder, config=None, special_tokens_map=None, added_tokens=None):
    contents = {
        "tokenizer_config.json": config,
        "special_tokens_map.json": special_tokens_map,
        "added_tokens.json": added_tokens,
    }
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder / "tokenizer.json"


def change(folder, **changes):
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | changes))


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---------------------------------------------------------------------------------------- the ids
# of AutoTokenizer

NAMED = {
    "additional_special_tokens": (
        {**CLASS, "additional_special_tokens": ["<x>", "<y>"]},
        {"<x>": 396, "<y>": 397},
    ),
    "extra_special_tokens by purpose": (
        {**CLASS, "extra_special_tokens": {"image_token": "<x>", "audio_token": "<y>"}},
        {"<x>": 396, "<y>": 397},
    ),
    "tokens with a purpose, in transformers' order": (
        {
            **CLASS,
            "additional_special_tokens": ["<x>"],
            "pad_token": "<p>",
            "unk_token": "<u>",
            "mask_token": "<mask>",
            "cls_token": "<s>",
        },
        {"<u>": 396, "<p>": 397, "<s>": 398, "<mask>": 399, "<x>": 400},
    ),
    "a token with its type": ({**CLASS, "pad_token": typed("<p>", lstrip=True)}, {"<p>": 396}),
    "a token for two purposes": (
        {**CLASS, "additional_special_tokens": ["<x>", "<x>"], "pad_token": "<x>"},
        {"<x>": 396},
    ),
    "added_tokens_decoder": (
        {
            **CLASS,
            "added_tokens_decoder": {"396": token("<x>"), "397": token("<y>", special=False)},
        },
        {"<x>": 396, "<y>": 397},
    ),
    "added_tokens_decoder with a gap": (
        {**CLASS, "added_tokens_decoder": {"500": token("<x>"), "400": token("<y>")}},
        {"<y>": 396, "<x>": 397},
    ),
    "added_tokens_decoder with the id of another token": (
        {**CLASS, "added_tokens_decoder": {"5": token("<x>")}},
        {"<x>": 396},
    ),
    "added_tokens_decoder and a purpose": (
        {
            **CLASS,
            "added_tokens_decoder": {"396": token("<x>", special=False)},
            "eos_token": "<x>",
            "additional_special_tokens": ["<y>"],
        },
        {"<x>": 396, "<y>": 397},
    ),
    "the class of GPT-2": (
        {"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ["<x>"]},
        {"<x>": 396},
    ),
    "no class": ({"additional_special_tokens": ["<x>"]}, {"<x>": 396}),
    "an integer that 64 bits do not hold": (
        {**CLASS, "pad_token": "<p>", "model_max_length": 10**30},
        {"<p>": 396},
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_tokens_of_tokenizer_config_json_have_the_ids_of_autotokenizer(folder, case):
    config, ids = NAMED[case]
    file = write(folder, config)
    encoded = make_engine(file, "tokenizers").encode([f"a{name}b" for name in ids])
    assert [text.tolist()[1:-1] for text in encoded.lists()] == [[ident] for ident in ids.values()]
    assert define(file).notices == ()
    assert tokenizer_facts(file).vocab_size == 396 + len(ids)
    assert tokenizer_facts(file).max_id == 395 + len(ids)


def test_a_faster_engine_gives_the_same_ids(folder):
    file = write(
        folder,
        {**CLASS, "pad_token": typed("<p>", lstrip=True), "additional_special_tokens": ["<x>"]},
    )
    texts = ["a<x>b  <p>c", "<x><p>", "the <x"]
    expected, encoded = (
        make_engine(file, name, cache=folder).encode(texts) for name in ("tokenizers", "numpy")
    )
    assert encoded.ids.tolist() == expected.ids.tolist()


@pytest.mark.parametrize(
    ("added_tokens", "ids"),
    [
        ({"<x>": 396, "<y>": 397}, {"<x>": 396, "<y>": 397}),
        ({"<y>": 397, "<x>": 396}, {"<x>": 396, "<y>": 397}),
        ({"<y>": 500, "<x>": 450}, {"<x>": 396, "<y>": 397}),
    ],
)
def test_tokens_of_added_tokens_json_have_the_ids_of_autotokenizer(folder, added_tokens, ids):
    file = write(folder, CLASS, added_tokens=added_tokens)
    assert {name: token_id(file, name, "key") for name in ids} == ids
    encoded = make_engine(file, "tokenizers").encode(["a<x>b<y>"])
    assert encoded.ids.tolist() == [66, 396, 67, 397]


def test_tokens_of_special_tokens_map_json_have_the_ids_of_autotokenizer(folder):
    special_tokens_map = {
        "pad_token": "<p>",
        "mask_token": token("<mask>"),
        "additional_special_tokens": ["<x>"],
    }
    file = write(folder, CLASS, special_tokens_map)
    assert {name: special_ids(file)[name] for name in ("<p>", "<mask>", "<x>")} == {
        "<p>": 396,
        "<mask>": 397,
        "<x>": 398,
    }


def test_a_config_with_added_tokens_decoder_replaces_the_other_files(folder):
    config = {**CLASS, "added_tokens_decoder": {"396": token("<x>")}}
    file = write(folder, config, {"pad_token": "<p>"}, {"<y>": 397})
    assert tokenizer_facts(file).vocab_size == 397


def test_flags_of_a_token_are_taken_as_named(folder):
    file = write(folder, {**CLASS, "pad_token": typed("<p>", lstrip=True, rstrip=True)})
    encoded = make_engine(file, "tokenizers").encode(["a  <p>  b"])
    assert encoded.ids.tolist() == [66, 396, 67]


def test_a_folder_and_the_file_in_it_are_the_same_tokenizer(folder):
    file = write(folder, {**CLASS, "pad_token": "<p>"})
    assert define(folder) == define(file)


def test_the_command_writes_the_ids_of_autotokenizer(folder):
    write(folder, {**CLASS, "eos_token": "<|endoftext|>", "additional_special_tokens": ["<x>"]})
    (folder / "text.jsonl").write_text('{"text": "a<x>b"}\n')
    arguments = [
        "tokenize",
        "--input",
        folder / "text.jsonl",
        "--output-prefix",
        folder / "out",
        "--append-eod",
    ]
    arguments += ["--tokenizer", folder, "--workers", 1, "--engine", "tokenizers"]
    result = invoke_nanoset(arguments)
    assert result.exit_code == 0
    import numpy as np

    assert np.fromfile(folder / "out_text_document.bin", np.uint16).tolist() == [66, 396, 67, 0]


def test_an_end_token_that_only_the_config_names_ends_documents(folder):
    file = write(folder, {**CLASS, "eos_token": "</s>"})
    assert end_token(file, None) == "</s>"
    assert token_id(file, "</s>", "eod") == 396


# ---------------------------------------------------------------------------------------- what is
# only noticed

UNCERTAIN = {
    "a class that may have tokens of its own": {
        "tokenizer_class": "NewTokenizer",
        "pad_token": "<x>",
    },
    "a class with tokens that the file lacks": {
        "tokenizer_class": "LlamaTokenizerFast",
        "pad_token": "<x>",
    },
    "an object without its type": {**CLASS, "pad_token": token("<x>")},
    "a list of objects without their type": {**CLASS, "additional_special_tokens": [token("<x>")]},
    "a key that transformers 5 alone reads": {**CLASS, "image_token": "<x>"},
    "special tokens that are split": {**CLASS, "pad_token": "<x>", "split_special_tokens": True},
    "flags that transformers 4 alone replaces": {
        **CLASS,
        "pad_token": "<x>",
        "eos_token": typed("<|endoftext|>", rstrip=True),
    },
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_tokens_that_are_not_certain_are_named_by_a_notice_and_change_nothing(folder, case):
    file = write(folder, UNCERTAIN[case])
    definition = define(file)
    assert any("'<x>'" in notice and "lacks" in notice for notice in definition.notices)
    assert definition.fingerprint == digest(file)
    assert definition.json() == file.read_bytes()


def test_lists_in_two_files_are_not_certain(folder):
    file = write(
        folder,
        {**CLASS, "additional_special_tokens": ["<x>"]},
        {"additional_special_tokens": ["<y>"]},
    )
    (notice,) = define(file).notices
    assert "'<x>', '<y>'" in notice


def test_the_command_prints_the_notice(folder):
    write(folder, {"tokenizer_class": "NewTokenizer", "pad_token": "<x>"})
    (folder / "text.jsonl").write_text('{"text": "a<x>b"}\n')
    arguments = [
        "tokenize",
        "--input",
        folder / "text.jsonl",
        "--output-prefix",
        folder / "out",
        "--workers",
        1,
    ]
    result = invoke_nanoset([*arguments, "--tokenizer", folder])
    assert result.exit_code == 0
    assert "lacks '<x>', which tokenizer_config.json" in result.output


def test_a_config_that_cannot_be_read_is_noticed(folder):
    file = write(folder, CLASS)
    (folder / "tokenizer_config.json").write_text("{nonsense")
    (notice,) = define(file).notices
    assert "tokenizer_config.json" in notice
    assert "not read" in notice


@pytest.mark.parametrize("name", ["vocab.json", "bpe.model"])
def test_tokens_beside_other_kinds_of_tokenizers_are_named_by_a_notice(tmp_path, name):
    for file in (name, "merges.txt"):
        shutil.copyfile(FILES / file, tmp_path / file)
    without = define(tmp_path / name)
    write(tmp_path, {**CLASS, "pad_token": "<x>"})
    definition = define(tmp_path / name)
    assert "has no token '<x>', which tokenizer_config.json" in definition.notices[-1]
    assert definition.fingerprint == without.fingerprint


# ---------------------------------------------------------------------------------------- what
# stays current


def test_a_tokenizer_json_that_has_all_tokens_keeps_its_digest(folder):
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|padding|>"}
    decoder = {"0": token("<|endoftext|>"), "1": token("<|padding|>")}
    file = write(
        folder, {**CLASS, **named, "added_tokens_decoder": decoder}, named, {"<|padding|>": 1}
    )
    definition = define(file)
    assert definition.fingerprint == digest(file)
    assert definition.notices == ()


def test_a_token_of_the_vocabulary_that_is_not_added_is_named_by_a_notice(folder):
    change(folder, added_tokens=[])
    file = write(folder, {**CLASS, "eos_token": "<|endoftext|>"})
    definition = define(file)
    assert definition.fingerprint == digest(file)
    assert "'<|endoftext|>' in its vocabulary, but not as added tokens" in definition.notices[0]


def test_flags_that_differ_are_named_by_a_notice(folder):
    file = write(
        folder, {**CLASS, "added_tokens_decoder": {"0": token("<|endoftext|>", rstrip=True)}}
    )
    definition = define(file)
    assert definition.fingerprint == digest(file)
    assert "say different things about '<|endoftext|>'" in definition.notices[0]


def test_normalized_decides_nothing_without_a_normalizer(folder):
    change(folder, normalizer={"type": "Sequence", "normalizers": []})
    file = write(
        folder, {**CLASS, "added_tokens_decoder": {"0": token("<|endoftext|>", normalized=True)}}
    )
    assert define(file).notices == ()


def test_a_config_that_changes_gives_another_tokenizer(folder):
    file = write(folder, {**CLASS, "pad_token": "<p>"})
    before = define(file).fingerprint
    write(folder, {**CLASS, "pad_token": "<other>"})
    assert define(file).fingerprint != before
    write(folder, {**CLASS, "pad_token": "<p>", "clean_up_tokenization_spaces": False})
    assert define(file).fingerprint == before


def test_workers_of_a_cluster_receive_the_files_next_to_the_tokenizer(folder):
    file = write(folder, CLASS, {}, {})
    names = [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ]
    assert [path.name for path in tokenizer_files(file)] == names
