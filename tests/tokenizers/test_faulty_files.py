"""Files and settings from which no tokenizer can be made are errors that say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.golden_tokenizers import FILES, N_RANKS, copy_golden_file, golden_file
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files import TokenizerFile, define
from nanoset_core.tokenizers.files.split_patterns import PATTERNS, NamedPattern
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 493443\n"
"""What Git LFS leaves in the place of a file that was not downloaded."""


# Damaged content


class Damage(NamedTuple):
    """A file whose content was changed so that it cannot be read."""

    name: str
    """Name of the golden file."""
    change: Callable[[bytes], bytes]
    """Content → the damaged content."""
    message: str
    """A part of the error's message."""
    line: str = ""
    """The place in the file that the error names, such as ":301"."""


def cut_by(n_bytes: int) -> Callable[[bytes], bytes]:
    """Return a change that cuts bytes off the end."""
    return lambda content: content[:-n_bytes]


def replaced_by(new_content: bytes) -> Callable[[bytes], bytes]:
    """Return a change that replaces everything."""
    return lambda content: new_content


def with_line_before(index: int, line: bytes) -> Callable[[bytes], bytes]:
    """Return a change that inserts a line."""

    def insert(content: bytes) -> bytes:
        lines = content.split(b"\n")
        lines.insert(index, line)
        return b"\n".join(lines)

    return insert


def with_line(index: int, line: bytes) -> Callable[[bytes], bytes]:
    """Return a change that replaces a line."""

    def replace(content: bytes) -> bytes:
        lines = content.split(b"\n")
        lines[index] = line
        return b"\n".join(lines)

    return replace


def without_line(index: int) -> Callable[[bytes], bytes]:
    """Return a change that removes a line."""

    def remove(content: bytes) -> bytes:
        lines = content.split(b"\n")
        del lines[index]
        return b"\n".join(lines)

    return remove


def with_repeated_line(index: int) -> Callable[[bytes], bytes]:
    """Return a change that repeats a line."""

    def repeat(content: bytes) -> bytes:
        lines = content.split(b"\n")
        lines.insert(index, lines[index])
        return b"\n".join(lines)

    return repeat


def in_json(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    """Return a change of the value that is stored as JSON."""

    def change_json(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return change_json


def with_config(**settings: Any) -> Callable[[bytes], bytes]:
    """Return a change of settings in the config of a tekken.json."""
    return in_json(lambda value: value["config"].update(settings))


def cut_in_half(content: bytes) -> bytes:
    """Return the first half."""
    return content[: len(content) // 2]


def with_foreign_field(content: bytes) -> bytes:
    """Return a SentencePiece model after a field that is no piece."""
    return b"\n\x05hello" + content


NO_RANK = "no token and its rank"
NO_TEKKEN = "no tekken.json"
DAMAGES = {
    "ranks: Git LFS pointer": Damage("ranks.tiktoken", replaced_by(LFS_POINTER), "Git LFS"),
    "ranks: cut": Damage("ranks.tiktoken", cut_by(5), NO_RANK, f":{N_RANKS}"),
    "ranks: no base64": Damage("ranks.tiktoken", with_line(300, b"!!! 300"), NO_RANK, ":301"),
    "ranks: rank missing": Damage("ranks.tiktoken", without_line(300), "gap"),
    "ranks: byte missing": Damage("ranks.tiktoken", without_line(9), "byte has no rank"),
    "ranks: token twice": Damage("ranks.tiktoken", with_repeated_line(299), "no token and", ":301"),
    "megatron.json: cut": Damage("megatron.json", cut_by(300), "read as JSON"),
    "megatron.json: entry missing": Damage(
        "megatron.json", in_json(lambda value: value.pop(300)), "entry 300"
    ),
    "megatron.json: last entry missing": Damage(
        "megatron.json", in_json(lambda value: value.pop()), "fewer tokens"
    ),
    "megatron.json: rank missing": Damage(
        "megatron.json", in_json(lambda value: value[0].pop("rank")), "entry 0"
    ),
    "tekken.json: no vocabulary": Damage(
        "tekken.json", in_json(lambda value: value.pop("vocab")), NO_TEKKEN
    ),
    "tekken.json: vocabulary is null": Damage(
        "tekken.json", in_json(lambda value: value.update(vocab=None)), NO_TEKKEN
    ),
    "tekken.json: unknown version": Damage("tekken.json", with_config(version="v11"), NO_TEKKEN),
    "tekken.json: pattern is a number": Damage("tekken.json", with_config(pattern=7), NO_TEKKEN),
    "tekken.json: size is no integer": Damage(
        "tekken.json", with_config(default_vocab_size=1e9), NO_TEKKEN
    ),
    "tekken.json: size is too large": Damage(
        "tekken.json", with_config(default_vocab_size=N_RANKS + 31), "fewer tokens"
    ),
    "vocab.json: cut": Damage("vocab.json", cut_by(9), "cannot be read"),
    "vocab.json: id twice": Damage(
        "vocab.json", in_json(lambda value: value.update(a=5)), "cannot be read"
    ),
    "vocab.json: byte missing": Damage(
        "vocab.json", in_json(lambda value: value.pop("a")), "cannot be read"
    ),
    "merges.txt: one word": Damage("merges.txt", with_line_before(5, b"one"), "no pair", ":6"),
    "merges.txt: unknown tokens": Damage(
        "merges.txt", with_line_before(5, b"qq zz"), "no pair", ":6"
    ),
    "SentencePiece: Git LFS pointer": Damage("bpe.model", replaced_by(LFS_POINTER), "Git LFS"),
    "SentencePiece: cut": Damage("bpe.model", cut_in_half, "cut or damaged"),
    "SentencePiece: foreign field": Damage(
        "bpe.model", with_foreign_field, "no SentencePiece model"
    ),
    "SentencePiece: zeros": Damage("bpe.model", replaced_by(bytes(64)), "cut or damaged"),
}
SETTINGS = {
    "ranks.tiktoken": {"pattern": "cl100k"},
    "megatron.json": {"vocab_size": N_RANKS + 1000},
}
"""Settings that these files need."""


def write_damaged(damage: Damage, folder: Path) -> Path:
    """Write a damaged file, and the file that belongs to it; return its path."""
    companions = {"merges.txt": "vocab.json", "vocab.json": "merges.txt"}
    if damage.name in companions:
        copy_golden_file(companions[damage.name], folder)
    path = folder / damage.name
    path.write_bytes(damage.change((FILES / damage.name).read_bytes()))
    return path


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_content_is_an_error_that_names_the_place(tmp_path, damage):
    damaged_file = write_damaged(damage, tmp_path)
    main_file = damaged_file
    if damage.name == "merges.txt":
        main_file = tmp_path / "vocab.json"
    tokenizer = TokenizerFile(main_file, **SETTINGS.get(damage.name, {}))

    with pytest.raises(FormatError, match=damage.message) as caught:
        define(tokenizer)

    assert caught.value.where.startswith(str(damaged_file))
    assert damage.line in caught.value.where.removeprefix(str(damaged_file))
    assert caught.value.found
    assert caught.value.expected
    assert caught.value.remedy


def test_a_model_that_the_sentencepiece_package_cannot_load_is_an_error(tmp_path):
    pytest.importorskip("sentencepiece")
    path = tmp_path / "one.model"
    one_piece = b"\n\x03" + b"\n\x01a"  # and none for unknown text
    settings = b"\x12\x02\x18\x02" + b"\x1a\x02\x18\x01"  # a BPE model, with a dummy prefix
    path.write_bytes(one_piece + settings)
    assert define(path).converted.vocab_size == 1

    with pytest.raises(FormatError, match="sentencepiece package can load") as caught:
        make_engine(path, cache=tmp_path)

    assert caught.value.where == str(path)


@pytest.mark.parametrize("entry", [[["x"], 0.0], [{"a": 1}, 0.0], [None, 0.0], ["x"], 7])
def test_an_entry_of_a_unigram_vocabulary_that_is_no_token_and_score_is_an_error(tmp_path, entry):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], entry]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    # The tokens of this file are looked up in the vocabulary.
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')

    with pytest.raises(FormatError, match="line 1 column") as caught:
        tokenizer_facts(path)

    assert str(caught.value.where) == str(path)


@pytest.mark.parametrize(("ids", "tokens"), [([], ["<s>"]), ([0], []), ([0, 0], ["<s>"])])
def test_a_template_with_another_number_of_ids_than_of_tokens_is_an_error(tmp_path, ids, tokens):
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": tokens}},
    }
    model = {"type": "WordLevel", "unk_token": "<s>", "vocab": {"<s>": 0, "a": 1}}
    content = {"version": "1.0", "added_tokens": [], "post_processor": template, "model": model}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))

    with pytest.raises(FormatError, match="not as many ids as names"):
        tokenizer_facts(path)


def test_a_vocabulary_without_its_merges_is_an_error_that_names_the_option(tmp_path):
    path = copy_golden_file("vocab.json", tmp_path, "gpt2-vocab.json")

    with pytest.raises(MissingError, match=r"merges:.*--merge-file") as caught:
        define(path)

    assert caught.value.where == str(tmp_path / "merges.txt")


def test_a_vocabulary_of_any_name_can_be_used_with_merges_elsewhere(tmp_path):
    path = copy_golden_file("vocab.json", tmp_path, "gpt2-vocab.json")

    definition = define(TokenizerFile(path, merges=FILES / "merges.txt"))

    assert definition.kind == "vocab.json"


# Settings


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        pytest.param("ranks.tiktoken", {}, "how text is split", id="no pattern"),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "cl200k"},
            "no such split pattern",
            id="a misspelled pattern",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "llama-3.1"},
            "no such split pattern",
            id="an unknown pattern",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "v2"},
            "no such split pattern",
            id="a pattern of other files",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "(a"},
            "not a regular expression",
            id="no regular expression",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": r"\p{N}{1,3}+|."},
            "differently",
            id="an expression with two meanings",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "gpt2", "special_tokens": ("a", "a")},
            "named twice",
            id="a special token twice",
        ),
        pytest.param(
            "ranks.tiktoken",
            {"pattern": "gpt2", "legacy": True},
            "does not apply to a file of tiktoken ranks",
            id="legacy ranks",
        ),
        pytest.param(
            "megatron.json",
            {"pattern": "gpt2"},
            "TikTokenizer takes",
            id="a pattern that Megatron does not know",
        ),
        pytest.param(
            "megatron.json",
            {"special_tokens": ("<unk>",)},
            "TikTokenizer refuses",
            id="special tokens that Megatron refuses",
        ),
        pytest.param(
            "bpe.model",
            {"special_tokens": ("<mask>",)},
            "holds its special tokens itself",
            id="special tokens of a model",
        ),
        pytest.param(
            "bpe.model",
            {"pattern": "gpt2"},
            "does not apply to a SentencePiece model",
            id="a pattern of a model",
        ),
        pytest.param(
            "vocab.json",
            {"vocab_size": 9},
            "does not apply to a vocab.json",
            id="the size of a vocabulary",
        ),
    ],
)
def test_settings_that_do_not_fit_the_file_are_an_error(name, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        define(golden_file(name, **settings))

    assert caught.value.where == str(FILES / name)
    assert caught.value.remedy


def test_a_special_token_with_the_text_of_an_ordinary_token_is_an_error():
    tokenizer = golden_file("ranks.tiktoken", pattern="gpt2", special_tokens=("he",))

    with pytest.raises(FormatError, match="text of an ordinary one"):
        define(tokenizer)


# Special tokens that nobody named


def test_without_an_end_token_the_error_names_the_option_for_special_tokens():
    ranks = golden_file("ranks.tiktoken", pattern="gpt2")

    with pytest.raises(ConfigError) as caught:
        end_token(ranks, None)

    assert "--tokenizer-special-tokens" in caught.value.remedy


def test_for_an_unknown_token_of_ranks_the_error_names_the_option_for_special_tokens():
    ranks = golden_file("ranks.tiktoken", pattern="gpt2")

    with pytest.raises(ConfigError) as caught:
        token_id(ranks, "<|endoftext|>", "--eod")

    assert "--tokenizer-special-tokens" in caught.value.remedy


def test_for_an_unknown_token_of_a_file_with_special_tokens_the_error_names_no_option():
    with pytest.raises(ConfigError) as caught:
        token_id(FILES / "tekken.json", "<|endoftext|>", "--eod")

    assert "--tokenizer-special-tokens" not in caught.value.remedy


# Files of ranks that may have been cut


@pytest.fixture
def patterns_with_sizes(monkeypatch):
    """Add two names of GPT-2's pattern, as if its vocabulary had about as many ranks as the file."""
    regex = PATTERNS["gpt2"].regex
    monkeypatch.setitem(PATTERNS, "one rank less", NamedPattern(regex, None, N_RANKS - 1))
    monkeypatch.setitem(PATTERNS, "as many ranks", NamedPattern(regex, None, N_RANKS))


@pytest.mark.usefixtures("patterns_with_sizes")
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("o200k", "holds 420 ranks .* o200k has 199,998: the file is cut, or"),
        ("gpt2", "holds 420 ranks .* gpt2 has 50,256: the file is cut, or"),
        ("tekken", "holds 420 ranks .* does not say"),
        (r"\p{L}+|.", "holds 420 ranks .* does not say"),
        ("one rank less", "holds 420 ranks .* one rank less has 419: it is"),
    ],
    ids=["cut", "cut at another place", "unknown size", "unknown pattern", "too many"],
)
def test_a_notice_says_that_a_file_may_not_have_all_ranks_of_its_pattern(pattern, message):
    (notice,) = define(golden_file("ranks.tiktoken", pattern=pattern)).notices

    assert re.search(message, notice)
    assert notice.startswith(str(FILES / "ranks.tiktoken"))


@pytest.mark.usefixtures("patterns_with_sizes")
def test_there_is_no_notice_for_a_file_with_all_ranks_of_its_pattern():
    assert define(golden_file("ranks.tiktoken", pattern="as many ranks")).notices == ()
