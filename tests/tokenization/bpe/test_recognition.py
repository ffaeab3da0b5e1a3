"""A tokenizer is recognised exactly, or not at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nanoset_core.tokenization.bpe import patterns
from nanoset_core.tokenization.bpe.reference import NotRecognisedError
from nanoset_core.tokenization.bpe.rules import read_rules, recognise
from nanoset_core.tokenization.bpe.vocabulary import byte_characters, decode_tokens

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
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.fixture
def parsed(tokenizer_files, kind):
    return json.loads(tokenizer_files[kind].read_bytes())


@pytest.fixture
def gpt2(tokenizer_files):
    return json.loads(tokenizer_files["gpt2"].read_bytes())


@pytest.fixture
def llama3(tokenizer_files):
    return json.loads(tokenizer_files["llama3"].read_bytes())


def changed(tokenizer: dict, path: str, value) -> dict:
    *parents, last = path.split(".")
    holder = tokenizer
    for parent in parents:
        holder = holder[int(parent)] if isinstance(holder, list) else holder[parent]
    holder[int(last) if isinstance(holder, list) else last] = value
    return tokenizer


def test_every_kind_is_recognised(tokenizer_files, kind):
    rules = recognise(tokenizer_files[kind])
    assert rules.split is PATTERNS.get(kind, patterns.GPT2)
    assert rules.described == f"{rules.split.name} split pattern"
    assert rules.form == {"neox": "NFC", "qwen2": "NFC", "qwen35": "NFC", "digits": "NFKC"}.get(kind)
    assert rules.whole_words == (kind in ("llama3", "o200k"))
    assert b"<|endoftext|>" in rules.added_tokens
    assert sorted(rules.space_runs) == (list(range(2, 25)) if kind == "neox" else [])
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
        word: token for word, token in expected if characters[0] not in word and set(word) <= set(characters)
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
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}),
        ("post_processor", {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}),
        ("post_processor", {"type": "Sequence", "processors": [BYTE_LEVEL]}),
        ("model.continuing_subword_prefix", ""),
        ("model.end_of_word_suffix", ""),
        ("model.dropout", 0.0),
        ("model.fuse_unk", True),
        ("added_tokens.0.special", False),
        ("added_tokens.0.normalized", True),
    ],
)
def test_settings_that_change_no_token(gpt2, path, value):
    assert read_rules(changed(gpt2, path, value)).split.name == "gpt2"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("version", "2.0", "version"),
        ("surprise", 1, "surprise"),
        ("normalizer", {"type": "NFKD"}, "NFKD"),
        ("normalizer", {"type": "Sequence", "normalizers": [NFC, {"type": "Lowercase"}]}, "Lowercase"),
        ("normalizer", {"type": "NFC", "more": 1}, "more"),
        ("pre_tokenizer", None, "pre-tokenizer"),
        ("pre_tokenizer.add_prefix_space", True, "add_prefix_space"),
        ("pre_tokenizer.use_regex", False, "split pattern"),
        ("pre_tokenizer.use_regex", 1, "use_regex"),
        ("pre_tokenizer.surprise", 1, "surprise"),
        ("pre_tokenizer", {"type": "Whitespace"}, "Whitespace"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}, "individual_digits"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]}, "ByteLevel"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, {"type": "Digits"}]}, "ByteLevel"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}, "pre-tokenizer"),
        ("post_processor", {"type": "TemplateProcessing", "single": []}, "template"),
        ("post_processor", {"type": "Strange"}, "Strange"),
        ("model.type", "Unigram", "Unigram"),
        ("model.dropout", 0.1, "dropout"),
        ("model.unk_token", "<unk>", "unk_token"),
        ("model.continuing_subword_prefix", "##", "continuing_subword_prefix"),
        ("model.end_of_word_suffix", "</w>", "end_of_word_suffix"),
        ("model.byte_fallback", True, "byte_fallback"),
        ("model.surprise", 1, "surprise"),
        ("model.vocab", {}, "tokens"),
        ("model.vocab", [], "vocabulary"),
        ("model.merges", [["a", "nowhere"]], "nowhere"),
        ("model.merges", [["a", "b"], ["a", "b"]], "twice"),
        ("model.merges", [["a", "b", "c"]], "pair"),
        ("model.merges", ["a b c"], "pair"),
        ("model.merges", [["a", 1]], "pair"),
        ("added_tokens.0.lstrip", 1, "lstrip"),
        ("added_tokens.0.rstrip", 1, "rstrip"),
        ("added_tokens.0.single_word", True, "single_word"),
        ("added_tokens.0.surprise", True, "surprise"),
        ("added_tokens.0.content", "two words", "white space"),
        ("added_tokens.0.content", "\n", "white space"),
        ("added_tokens.0.content", "e\u0301", "added token"),
        ("added_tokens.0.content", "", "added token"),
        ("added_tokens.0.content", "   ", "spaces"),
    ],
)
def test_settings_that_are_not_understood(gpt2, path, value, reason):
    if path == "model.merges" and value[0] == ["a", "b"]:
        gpt2["model"]["vocab"]["ab"] = 1000
    with pytest.raises(NotRecognisedError, match=reason):
        read_rules(changed(gpt2, path, value))


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("pre_tokenizer.pretokenizers.0.behavior", "Removed", "behavior"),
        ("pre_tokenizer.pretokenizers.0.invert", True, "invert"),
        ("pre_tokenizer.pretokenizers.0.behavior", "MergedWithNext", "behavior"),
        ("pre_tokenizer.pretokenizers.0.pattern", {"String": " "}, "String"),
        ("pre_tokenizer.pretokenizers.0.pattern", {"Regex": r"\w+"}, "w"),
        ("pre_tokenizer.pretokenizers.1.add_prefix_space", True, "add_prefix_space"),
        ("pre_tokenizer.pretokenizers.1.use_regex", True, "split pattern"),
    ],
)
def test_split_settings_that_are_not_understood(llama3, path, value, reason):
    with pytest.raises(NotRecognisedError, match=reason):
        read_rules(changed(llama3, path, value))


def test_what_is_between_matches_must_not_be_dropped(tokenizer_files):
    deepseek = json.loads(tokenizer_files["deepseek"].read_bytes())
    deepseek["pre_tokenizer"]["pretokenizers"][2] |= {"behavior": "Removed", "invert": True}
    with pytest.raises(NotRecognisedError, match="drops"):
        read_rules(deepseek)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content": "<maské>", "lstrip": True}, "lstrip"),
        ({"content": "<mask", "rstrip": True}, "rstrip"),
        ({"content": "  ", "rstrip": True}, "rstrip"),
    ],
)
def test_stripping_tokens_that_may_lie_across_a_cut(gpt2, change, reason):
    gpt2["added_tokens"][0] |= change
    with pytest.raises(NotRecognisedError, match=reason):
        read_rules(gpt2)


def test_space_runs_with_a_gap_or_of_two_kinds(tokenizer_files):
    neox = json.loads(tokenizer_files["neox"].read_bytes())
    runs = [token for token in neox["added_tokens"] if not token["content"].strip()]
    runs[5]["normalized"] = False
    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)
    neox["added_tokens"].remove(runs[5])
    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)


def test_space_runs_where_other_characters_become_spaces(tokenizer_files):
    neox = json.loads(tokenizer_files["neox"].read_bytes())
    neox["normalizer"] = {"type": "NFKC"}
    with pytest.raises(NotRecognisedError, match="NFKC"):
        read_rules(neox)


def test_an_added_token_that_is_not_in_the_normal_form_of_the_text(tokenizer_files):
    digits = json.loads(tokenizer_files["digits"].read_bytes())
    digits["added_tokens"][0] |= {"content": "<｜user｜>", "normalized": True}
    with pytest.raises(NotRecognisedError, match="user"):
        read_rules(digits)


def test_two_tokens_with_one_id(gpt2):
    gpt2["model"]["vocab"]["new"] = gpt2["model"]["vocab"]["a"]
    with pytest.raises(NotRecognisedError, match="one id"):
        read_rules(gpt2)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null", b'{"version": "1.0"}'])
def test_files_that_are_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(NotRecognisedError):
        recognise(path)


def test_tokens_outside_the_alphabet_are_unreadable():
    data, lengths, readable = decode_tokens(["Ġa", "<|a b|>", "", "é", "日", "Ń"])
    assert readable.tolist() == [True, False, True, True, False, True]
    assert lengths.tolist() == [2, 7, 0, 1, 1, 1]
    assert (data[:2].tobytes(), data[9], data[11]) == (b" a", 0xE9, 0xAD)
