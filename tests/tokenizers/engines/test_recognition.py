"""A tokenizer is recognised exactly, or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nanoset_core.tokenizers.engines import patterns
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.rules import read_rules
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters, token_bytes

NFC = {"type": "NFC"}
PATTERNS = {
    "llama3": patterns.LLAMA3,
    "cl100k": patterns.LLAMA3,
    "qwen2": patterns.QWEN2,
    "digits": patterns.GPT2_DIGITS,
    "qwen35": patterns.QWEN35,
    "o200k": patterns.O200K,
    "tekken": patterns.TEKKEN,
    "deepseek": patterns.DEEPSEEK,
    "kimi": patterns.KIMI,
    "seed": patterns.SEED,
}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def of(*members) -> dict:
    """Pre-tokenizers in a row."""
    return {"type": "Sequence", "pretokenizers": list(members)}


@pytest.fixture
def parsed(tokenizer_files, kind):
    return json.loads(tokenizer_files[kind].read_bytes())


@pytest.fixture
def gpt2(tokenizer_files):
    return json.loads(tokenizer_files["gpt2"].read_bytes())


def changed(tokenizer: dict, path: str, value) -> dict:
    *parents, last = path.split(".")
    holder = tokenizer
    for parent in parents:
        holder = holder[int(parent)] if isinstance(holder, list) else holder[parent]
    holder[int(last) if isinstance(holder, list) else last] = value
    return tokenizer


def test_every_kind_is_recognised(parsed, kind):
    rules = read_rules(parsed)
    assert rules.split is PATTERNS.get(kind, patterns.GPT2)
    assert rules.described == f"{rules.split.name} split pattern"
    assert rules.form == {"neox": "NFC", "qwen2": "NFC", "qwen35": "NFC", "digits": "NFKC"}.get(
        kind
    )
    assert rules.whole_words == (kind in ("llama3", "o200k"))
    assert "<|endoftext|>" in rules.added_tokens
    assert sorted(rules.runs.get(" ", {})) == (list(range(2, 25)) if kind == "neox" else [])
    assert (len(rules.forbidden_bytes) > 1) == (kind == "no_alphabet")
    assert rules.forbidden_bytes[0] == 0


def test_vocabulary_is_that_of_the_file(parsed):
    rules = read_rules(parsed)
    characters = byte_characters()
    words = rules.vocabulary
    ends = np.cumsum(words.lengths).tolist()
    data = words.data.tobytes()
    found = {
        "".join(characters[byte] for byte in data[end - length : end]): token
        for end, length, token in zip(ends, words.lengths.tolist(), words.ids.tolist(), strict=True)
    }
    expected = parsed["model"]["vocab"].items()
    assert found == {
        word: token
        for word, token in expected
        if characters[0] not in word and set(word) <= set(characters)
    }
    vocabulary = parsed["model"]["vocab"]
    for (left, right), row in zip(parsed["model"]["merges"], words.merges.tolist(), strict=True):
        assert row == [vocabulary[left], vocabulary[right], vocabulary[left + right]]
    assert words.byte_tokens.tolist() == [vocabulary.get(character, -1) for character in characters]


def test_merges_as_strings(gpt2):
    expected = read_rules(gpt2).vocabulary.merges
    gpt2["model"]["merges"] = [" ".join(pair) for pair in gpt2["model"]["merges"]]
    np.testing.assert_array_equal(read_rules(gpt2).vocabulary.merges, expected)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("truncation", {"max_length": 5}),
        ("padding", {"strategy": "BatchLongest"}),
        ("decoder", {"type": "Whatever"}),
        ("normalizer", {"type": "Sequence", "normalizers": [NFC]}),
        ("normalizer", {"type": "Sequence", "normalizers": []}),
        ("pre_tokenizer.trim_offsets", False),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}),
        ("pre_tokenizer", of(BYTE_LEVEL)),
        (
            "post_processor",
            {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]},
        ),
        ("post_processor", {"type": "Sequence", "processors": [BYTE_LEVEL]}),
        ("model.continuing_subword_prefix", ""),
        ("model.end_of_word_suffix", ""),
        ("model.dropout", 0.0),
        ("model.fuse_unk", True),
        ("added_tokens.0.special", False),
        ("added_tokens.0.normalized", True),
        ("added_tokens.0.single_word", True),
        ("added_tokens.0.rstrip", True),
        ("added_tokens.0.content", "two words"),
    ],
)
def test_settings_that_change_no_token(gpt2, path, value):
    assert read_rules(changed(gpt2, path, value)).split.name == "gpt2"


@pytest.mark.parametrize(
    ("kind", "path", "value", "reason"),
    [
        ("gpt2", "version", "2.0", "version"),
        ("gpt2", "surprise", 1, "surprise"),
        ("gpt2", "normalizer", {"type": "NFKD"}, "NFKD"),
        (
            "gpt2",
            "normalizer",
            {"type": "Sequence", "normalizers": [NFC, {"type": "Lowercase"}]},
            "Lowercase",
        ),
        ("gpt2", "normalizer", {"type": "NFC", "more": 1}, "more"),
        ("gpt2", "pre_tokenizer", None, None),
        ("gpt2", "pre_tokenizer.add_prefix_space", True, "add_prefix_space"),
        ("gpt2", "pre_tokenizer.use_regex", False, "split pattern"),
        ("gpt2", "pre_tokenizer.use_regex", 1, "use_regex"),
        ("gpt2", "pre_tokenizer.surprise", 1, "surprise"),
        ("gpt2", "pre_tokenizer", {"type": "Whitespace"}, "Whitespace"),
        ("gpt2", "pre_tokenizer", of({"type": "Digits"}, BYTE_LEVEL), "individual_digits"),
        ("gpt2", "pre_tokenizer", of(BYTE_LEVEL, BYTE_LEVEL), "ByteLevel"),
        ("gpt2", "pre_tokenizer", of(BYTE_LEVEL, {"type": "Digits"}), "ByteLevel"),
        ("gpt2", "pre_tokenizer", of(), "pre-tokenizer"),
        ("gpt2", "model.type", "Unigram", "Unigram"),
        ("gpt2", "model.dropout", 0.1, "dropout"),
        ("gpt2", "model.unk_token", "<unk>", "unk_token"),
        ("gpt2", "model.continuing_subword_prefix", "##", "continuing_subword_prefix"),
        ("gpt2", "model.end_of_word_suffix", "</w>", "end_of_word_suffix"),
        ("gpt2", "model.byte_fallback", True, "byte_fallback"),
        ("gpt2", "model.surprise", 1, "surprise"),
        ("gpt2", "model.vocab", {}, "tokens"),
        ("gpt2", "model.merges", [["a", "nowhere"]], "nowhere"),
        ("gpt2", "model.merges", [["a", "b"], ["a", "b"]], "twice"),
        ("gpt2", "added_tokens.0.lstrip", 1, "lstrip"),
        ("gpt2", "added_tokens.0.rstrip", 1, "rstrip"),
        ("gpt2", "added_tokens.0.surprise", True, "surprise"),
        ("gpt2", "added_tokens.0.content", "\n", "white space"),
        ("gpt2", "added_tokens.0.content", "e\u0301", "added token"),
        ("gpt2", "added_tokens.0.content", "", "added token"),
        ("gpt2", "added_tokens.0.content", "   ", "spaces"),
        ("llama3", "pre_tokenizer.pretokenizers.0.behavior", "Removed", "behavior"),
        ("llama3", "pre_tokenizer.pretokenizers.0.invert", True, "invert"),
        ("llama3", "pre_tokenizer.pretokenizers.0.behavior", "MergedWithNext", "behavior"),
        ("llama3", "pre_tokenizer.pretokenizers.0.pattern", {"String": " "}, "String"),
        ("llama3", "pre_tokenizer.pretokenizers.0.pattern", {"Regex": r"\w+"}, "w"),
        ("llama3", "pre_tokenizer.pretokenizers.1.add_prefix_space", True, "add_prefix_space"),
        ("llama3", "pre_tokenizer.pretokenizers.1.use_regex", True, "split pattern"),
        ("gpt2", "added_tokens.0", {"id": 0, "content": "  ", "rstrip": True}, "white space"),
        ("neox", "normalizer", {"type": "NFKC"}, "NFKC"),
        ("digits", "added_tokens.0", {"id": 0, "content": "<｜user｜>"}, "user"),
        ("gemma", "normalizer.content", "_", None),
        ("gemma", "normalizer.pattern", {"Regex": " "}, None),
        (
            "gemma",
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}]},
            None,
        ),
        ("gemma", "normalizer", {"type": "NFKC"}, None),
        ("gemma", "normalizer.more", 1, None),
        ("gemma", "pre_tokenizer.behavior", "Removed", None),
        ("gemma", "pre_tokenizer", METASPACE, None),
        ("gemma", "model.byte_fallback", False, None),
        ("gemma", "model.ignore_merges", True, None),
        ("gemma", "model.dropout", 0.1, None),
        ("gemma", "model.surprise", 1, None),
        ("gemma", "added_tokens.0.content", " ", None),
        ("gemma", "added_tokens.0.content", "\n\n\n\n\n\n", None),
    ],
)
def test_settings_that_are_not_understood(parsed, path, value, reason):
    if path == "model.merges" and value[0] == ["a", "b"]:
        parsed["model"]["vocab"]["ab"] = 1000
    with pytest.raises(NotRecognisedError, match=reason):
        read_rules(changed(parsed, path, value))


def test_what_is_between_matches_must_not_be_dropped(tokenizer_files):
    deepseek = json.loads(tokenizer_files["deepseek"].read_bytes())
    deepseek["pre_tokenizer"]["pretokenizers"][2] |= {"behavior": "Removed", "invert": True}
    with pytest.raises(NotRecognisedError, match="drops"):
        read_rules(deepseek)


def test_space_runs_with_a_gap_or_of_two_kinds(tokenizer_files):
    neox = json.loads(tokenizer_files["neox"].read_bytes())
    runs = [token for token in neox["added_tokens"] if not token["content"].strip()]
    runs[5]["normalized"] = False
    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)
    neox["added_tokens"].remove(runs[5])
    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)


def test_two_tokens_with_one_id(gpt2):
    gpt2["model"]["vocab"]["new"] = gpt2["model"]["vocab"]["a"]
    with pytest.raises(NotRecognisedError, match="one id"):
        read_rules(gpt2)


@pytest.mark.parametrize("content", [[], None, {"version": "1.0"}, {"version": "1.0", "model": []}])
def test_what_is_no_tokenizer(content):
    with pytest.raises(NotRecognisedError):
        read_rules(content)


@pytest.mark.parametrize(
    ("entry", "data"),
    [("Ġa", b" a"), ("<|a b|>", None), ("", b""), ("é", b"\xe9"), ("日", None), ("Ń", b"\xad")],
)
def test_bytes_of_an_entry(entry, data):
    assert token_bytes(entry) == data
