"""The rules of a tokenizer are read exactly, or the tokenizer is not recognised at all."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from nanoset_core.tokenizers.engines import patterns
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.rules import read_rules
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters, token_bytes

SPLIT_BY_KIND = {
    "gpt2": patterns.GPT2,
    "neox": patterns.GPT2,
    "no_alphabet": patterns.GPT2,
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
FORM_BY_KIND = {"neox": "NFC", "qwen2": "NFC", "qwen35": "NFC", "digits": "NFKC"}
"""The normal form of the kinds that have one."""

NFC = {"type": "NFC"}
LOWERCASE = {"type": "Lowercase"}
DIGITS = {"type": "Digits"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
BYTE_LEVEL_WITHOUT_REGEX_SETTING = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
}


def normalizers(*members: dict[str, Any]) -> dict[str, Any]:
    """Return a sequence of normalizers."""
    return {"type": "Sequence", "normalizers": list(members)}


def pre_tokenizers(*members: dict[str, Any]) -> dict[str, Any]:
    """Return a sequence of pre-tokenizers."""
    return {"type": "Sequence", "pretokenizers": list(members)}


def change_setting(tokenizer: dict[str, Any], path: str, value: Any) -> None:
    """Change a setting of a parsed `tokenizer.json`.

    Args:
        tokenizer: The parsed file.
        path: Where the setting is, such as "added_tokens.0.lstrip".
        value: The new value.
    """
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    holder: Any = tokenizer
    for parent in parents:
        holder = holder[parent]
    holder[last] = value


@pytest.fixture
def gpt2(tokenizer_files):
    """The parsed `tokenizer.json` of a tokenizer like GPT-2's."""
    return json.loads(tokenizer_files["gpt2"].read_bytes())


# What is read


@pytest.fixture
def rules(known_tokenizers, kind):
    """What was read from a tokenizer of each kind."""
    return known_tokenizers[kind].rules


def test_the_split_pattern_is_recognised(rules, kind):
    assert rules.split is SPLIT_BY_KIND[kind]
    assert rules.described == f"{SPLIT_BY_KIND[kind].name} split pattern"


def test_the_normal_form_is_recognised(rules, kind):
    assert rules.form == FORM_BY_KIND.get(kind)


def test_words_of_the_vocabulary_are_tokens_if_the_model_says_so(rules, kind):
    assert rules.whole_words == (kind in ("llama3", "o200k"))


def test_added_tokens_are_read(rules):
    assert "<|endoftext|>" in rules.added_tokens


def test_added_tokens_of_spaces_are_read_by_their_length(rules, kind):
    lengths_by_kind = {"neox": list(range(2, 25))}

    lengths = sorted(rules.runs.get(" ", {}))

    assert lengths == lengths_by_kind.get(kind, [])


def test_zero_and_bytes_without_a_token_are_forbidden(rules, kind):
    assert rules.forbidden_bytes[0] == 0
    assert (len(rules.forbidden_bytes) > 1) == (kind == "no_alphabet")


@pytest.fixture
def model(tokenizer_files, kind):
    """The model of the parsed `tokenizer.json` of each kind."""
    return json.loads(tokenizer_files[kind].read_bytes())["model"]


def test_the_words_are_those_of_the_file(rules, model):
    characters = byte_characters()
    # Words with a zero byte, and added tokens, are left out.
    expected = {}
    for word, token in model["vocab"].items():
        if characters[0] not in word and set(word) <= set(characters):
            expected[word] = token

    vocabulary = rules.vocabulary
    data = vocabulary.data.tobytes()
    words = {}
    stop = 0
    for length, token in zip(vocabulary.lengths.tolist(), vocabulary.ids.tolist(), strict=True):
        start = stop
        stop += length
        word = "".join(characters[byte] for byte in data[start:stop])
        words[word] = token

    assert words == expected


def test_the_merges_are_those_of_the_file(rules, model):
    ids = model["vocab"]
    expected = [[ids[left], ids[right], ids[left + right]] for left, right in model["merges"]]

    assert rules.vocabulary.merges.tolist() == expected


def test_the_tokens_of_bytes_are_those_of_the_file(rules, model):
    expected = [model["vocab"].get(character, -1) for character in byte_characters()]

    assert rules.vocabulary.byte_tokens.tolist() == expected


def test_merges_may_be_written_as_strings(gpt2):
    expected = read_rules(gpt2).vocabulary.merges
    gpt2["model"]["merges"] = [" ".join(pair) for pair in gpt2["model"]["merges"]]

    merges = read_rules(gpt2).vocabulary.merges

    np.testing.assert_array_equal(merges, expected)


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        pytest.param("Ġa", b" a", id="a space and a letter"),
        pytest.param("<|a b|>", None, id="a character that stands for no byte"),
        pytest.param("", b"", id="empty"),
        pytest.param("é", b"\xe9", id="a part of a character"),
        pytest.param("日", None, id="an ideograph"),
        pytest.param("Ń", b"\xad", id="the last byte"),
    ],
)
def test_an_entry_of_the_vocabulary_stands_for_its_bytes(entry, data):
    assert token_bytes(entry) == data


# Settings that change no token

HARMLESS_SETTINGS = [
    ("truncation", {"max_length": 5}),
    ("padding", {"strategy": "BatchLongest"}),
    ("decoder", {"type": "Whatever"}),
    ("normalizer", normalizers(NFC)),
    ("normalizer", normalizers()),
    ("pre_tokenizer.trim_offsets", False),
    ("pre_tokenizer", BYTE_LEVEL_WITHOUT_REGEX_SETTING),
    ("pre_tokenizer", pre_tokenizers(BYTE_LEVEL)),
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
]


@pytest.mark.parametrize(
    ("path", "value"),
    HARMLESS_SETTINGS,
    ids=[f"{path}: {json.dumps(value)}" for path, value in HARMLESS_SETTINGS],
)
def test_settings_that_change_no_token_are_accepted(gpt2, path, value):
    change_setting(gpt2, path, value)

    assert read_rules(gpt2).split.name == "gpt2"


# Settings that are not known


class UnknownSetting(NamedTuple):
    """A setting that the numpy engine does not know."""

    kind: str
    """The kind of the tokenizer."""
    path: str
    """Where the setting is in its `tokenizer.json`."""
    value: Any
    """Its value."""
    reason: str | None = None
    """A part of the message; None if it does not matter."""

    @property
    def description(self) -> str:
        """The case in names of tests."""
        return f"{self.kind} {self.path}: {json.dumps(self.value, ensure_ascii=False)}"


FIRST_SPLIT = "pre_tokenizer.pretokenizers.0"
"""Where Llama 3's pre-tokenizer splits by a regular expression."""
LAST_SPLIT = "pre_tokenizer.pretokenizers.1"
"""Where its ByteLevel pre-tokenizer is."""
PREPEND_OTHER_SIGN = {"type": "Prepend", "prepend": "_"}
STRIPPING_SPACES = {"id": 0, "content": "  ", "rstrip": True}

UNKNOWN_SETTINGS = [
    # The file
    UnknownSetting("gpt2", "version", "2.0", "version"),
    UnknownSetting("gpt2", "surprise", 1, "surprise"),
    # Normalizers
    UnknownSetting("gpt2", "normalizer", {"type": "NFKD"}, "NFKD"),
    UnknownSetting("gpt2", "normalizer", normalizers(NFC, LOWERCASE), "Lowercase"),
    UnknownSetting("gpt2", "normalizer", {"type": "NFC", "more": 1}, "more"),
    UnknownSetting("neox", "normalizer", {"type": "NFKC"}, "NFKC"),
    # Pre-tokenizers
    UnknownSetting("gpt2", "pre_tokenizer", None),
    UnknownSetting("gpt2", "pre_tokenizer.add_prefix_space", True, "add_prefix_space"),
    UnknownSetting("gpt2", "pre_tokenizer.use_regex", False, "split pattern"),
    UnknownSetting("gpt2", "pre_tokenizer.use_regex", 1, "use_regex"),
    UnknownSetting("gpt2", "pre_tokenizer.surprise", 1, "surprise"),
    UnknownSetting("gpt2", "pre_tokenizer", {"type": "Whitespace"}, "Whitespace"),
    UnknownSetting(
        "gpt2", "pre_tokenizer", pre_tokenizers(DIGITS, BYTE_LEVEL), "individual_digits"
    ),
    UnknownSetting("gpt2", "pre_tokenizer", pre_tokenizers(BYTE_LEVEL, BYTE_LEVEL), "ByteLevel"),
    UnknownSetting("gpt2", "pre_tokenizer", pre_tokenizers(BYTE_LEVEL, DIGITS), "ByteLevel"),
    UnknownSetting("gpt2", "pre_tokenizer", pre_tokenizers(), "pre-tokenizer"),
    UnknownSetting("llama3", f"{FIRST_SPLIT}.behavior", "Removed", "behavior"),
    UnknownSetting("llama3", f"{FIRST_SPLIT}.invert", True, "invert"),
    UnknownSetting("llama3", f"{FIRST_SPLIT}.behavior", "MergedWithNext", "behavior"),
    UnknownSetting("llama3", f"{FIRST_SPLIT}.pattern", {"String": " "}, "String"),
    UnknownSetting("llama3", f"{FIRST_SPLIT}.pattern", {"Regex": r"\w+"}, "w"),
    UnknownSetting("llama3", f"{LAST_SPLIT}.add_prefix_space", True, "add_prefix_space"),
    UnknownSetting("llama3", f"{LAST_SPLIT}.use_regex", True, "split pattern"),
    # Models
    UnknownSetting("gpt2", "model.type", "Unigram", "Unigram"),
    UnknownSetting("gpt2", "model.dropout", 0.1, "dropout"),
    UnknownSetting("gpt2", "model.unk_token", "<unk>", "unk_token"),
    UnknownSetting("gpt2", "model.continuing_subword_prefix", "##", "continuing_subword_prefix"),
    UnknownSetting("gpt2", "model.end_of_word_suffix", "</w>", "end_of_word_suffix"),
    UnknownSetting("gpt2", "model.byte_fallback", True, "byte_fallback"),
    UnknownSetting("gpt2", "model.surprise", 1, "surprise"),
    UnknownSetting("gpt2", "model.vocab", {}, "tokens"),
    UnknownSetting("gpt2", "model.merges", [["a", "nowhere"]], "nowhere"),
    # Added tokens
    UnknownSetting("gpt2", "added_tokens.0.lstrip", 1, "lstrip"),
    UnknownSetting("gpt2", "added_tokens.0.rstrip", 1, "rstrip"),
    UnknownSetting("gpt2", "added_tokens.0.surprise", True, "surprise"),
    UnknownSetting("gpt2", "added_tokens.0.content", "\n", "white space"),
    UnknownSetting("gpt2", "added_tokens.0.content", "e\u0301", "added token"),
    UnknownSetting("gpt2", "added_tokens.0.content", "", "added token"),
    UnknownSetting("gpt2", "added_tokens.0.content", "   ", "spaces"),
    UnknownSetting("gpt2", "added_tokens.0", STRIPPING_SPACES, "white space"),
    UnknownSetting("digits", "added_tokens.0", {"id": 0, "content": "<｜user｜>"}, "user"),
    # Tokenizers whose merges join characters
    UnknownSetting("gemma", "normalizer.content", "_"),
    UnknownSetting("gemma", "normalizer.pattern", {"Regex": " "}),
    UnknownSetting("gemma", "normalizer", normalizers(PREPEND_OTHER_SIGN)),
    UnknownSetting("gemma", "normalizer", {"type": "NFKC"}),
    UnknownSetting("gemma", "normalizer.more", 1),
    UnknownSetting("gemma", "pre_tokenizer.behavior", "Removed"),
    UnknownSetting("gemma", "pre_tokenizer", METASPACE),
    UnknownSetting("gemma", "model.byte_fallback", False),
    UnknownSetting("gemma", "model.ignore_merges", True),
    UnknownSetting("gemma", "model.dropout", 0.1),
    UnknownSetting("gemma", "model.surprise", 1),
    UnknownSetting("gemma", "added_tokens.0.content", " "),
    UnknownSetting("gemma", "added_tokens.0.content", "\n\n\n\n\n\n"),
]


@pytest.mark.parametrize(
    "setting", UNKNOWN_SETTINGS, ids=[setting.description for setting in UNKNOWN_SETTINGS]
)
def test_settings_that_are_not_known_are_refused(tokenizer_files, setting):
    tokenizer = json.loads(tokenizer_files[setting.kind].read_bytes())
    change_setting(tokenizer, setting.path, setting.value)

    with pytest.raises(NotRecognisedError, match=setting.reason):
        read_rules(tokenizer)


def test_a_merge_that_occurs_twice_is_refused(gpt2):
    gpt2["model"]["vocab"]["ab"] = 1000
    gpt2["model"]["merges"] = [["a", "b"], ["a", "b"]]

    with pytest.raises(NotRecognisedError, match="twice"):
        read_rules(gpt2)


def test_two_tokens_with_one_id_are_refused(gpt2):
    gpt2["model"]["vocab"]["new"] = gpt2["model"]["vocab"]["a"]

    with pytest.raises(NotRecognisedError, match="one id"):
        read_rules(gpt2)


def test_a_split_that_drops_text_between_its_matches_is_refused(tokenizer_files):
    deepseek = json.loads(tokenizer_files["deepseek"].read_bytes())
    split = deepseek["pre_tokenizer"]["pretokenizers"][2]
    split["behavior"] = "Removed"
    split["invert"] = True

    with pytest.raises(NotRecognisedError, match="drops"):
        read_rules(deepseek)


@pytest.fixture
def neox(tokenizer_files):
    """The parsed `tokenizer.json` of a tokenizer like GPT-NeoX's."""
    return json.loads(tokenizer_files["neox"].read_bytes())


def tokens_of_spaces(tokenizer):
    """Return the added tokens of a parsed `tokenizer.json` that are spaces."""
    return [token for token in tokenizer["added_tokens"] if not token["content"].strip()]


def test_tokens_of_spaces_with_different_flags_are_refused(neox):
    tokens_of_spaces(neox)[5]["normalized"] = False

    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)


def test_tokens_of_spaces_without_one_of_the_lengths_are_refused(neox):
    missing_token = tokens_of_spaces(neox)[5]
    neox["added_tokens"].remove(missing_token)

    with pytest.raises(NotRecognisedError, match="spaces"):
        read_rules(neox)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param([], id="a list"),
        pytest.param(None, id="null"),
        pytest.param({"version": "1.0"}, id="no model"),
        pytest.param({"version": "1.0", "model": []}, id="a list as the model"),
    ],
)
def test_files_that_are_no_tokenizer_are_refused(content):
    with pytest.raises(NotRecognisedError):
        read_rules(content)
