"""Tokenizers from every kind of file give the tokens of the kind's own library.

tests/tokenizers/test_faulty_files.py specifies what happens with files that cannot be used.
"""

from __future__ import annotations

import base64
import json
import sys
import unicodedata
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.golden_tokenizers import FILES, N_RANKS, copy_golden_file, golden_file
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.engines import make_engine, patterns
from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer
from nanoset_core.tokenizers.files import TokenizerFile, define, tokenizer_path
from nanoset_core.tokenizers.files.split_patterns import PATTERNS
from nanoset_core.tokenizers.files.tokenizer_json import NEVER_IN_UTF_8, byte_characters
from nanoset_core.tokenizers.tokenizer import special_tokens, token_id, tokenizer_facts

TEXTS = json.loads((FILES / "texts.json").read_bytes())
EXPECTED_TOKENS = json.loads((FILES / "expected.json").read_bytes())
"""Name of a tokenizer → tokens of each of the texts, as the kind's own library gave them."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_end|>")


def ranks_file(pattern):
    """Return the tokenizer of tiktoken's ranks, with a split pattern and two special tokens."""
    return golden_file("ranks.tiktoken", pattern=pattern, special_tokens=SPECIAL_TOKENS)


def megatron_file(pattern):
    """Return the tokenizer of Megatron's ranks, with a split pattern and twenty special tokens."""
    return golden_file(
        "megatron.json", pattern=pattern, num_special_tokens=20, vocab_size=N_RANKS + 10
    )


def legacy_model(name):
    """Return a SentencePiece model as Megatron's legacy tokenizer reads it."""
    return golden_file(name, special_tokens=("<s>", "<mask>", "<unk>"), legacy=True)


TOKENIZERS = {
    "vocab.json": golden_file("vocab.json"),
    "ranks.tiktoken gpt2": ranks_file("gpt2"),
    "ranks.tiktoken cl100k": ranks_file("cl100k"),
    "ranks.tiktoken qwen2": ranks_file("qwen2"),
    "ranks.tiktoken o200k": ranks_file("o200k"),
    "megatron.json v1": megatron_file("v1"),
    "megatron.json v2": megatron_file("v2"),
    "tekken.json": FILES / "tekken.json",
    "bpe.model": FILES / "bpe.model",
    "unigram.model": FILES / "unigram.model",
    "bpe.model legacy": legacy_model("bpe.model"),
    "unigram.model legacy": legacy_model("unigram.model"),
}
REVERSIBLE_TOKENIZERS = [
    "vocab.json",
    "ranks.tiktoken gpt2",
    "ranks.tiktoken cl100k",
    "ranks.tiktoken o200k",
    "tekken.json",
]
"""Tokenizers that do not change text before they encode it."""


# Tokens


def skip_without_library(name):
    """Skip the test if the tokenizer is a SentencePiece model, and the library is missing."""
    if ".model" in name:
        pytest.importorskip("sentencepiece")


def tokens_of_texts(engine):
    """Return the tokens of each of the texts."""
    return [ids.tolist() for ids in engine.encode(TEXTS).lists()]


@pytest.mark.parametrize("name", EXPECTED_TOKENS)
def test_the_reference_gives_the_tokens_of_the_kinds_own_library(name):
    skip_without_library(name)
    engine = make_engine(TOKENIZERS[name], "tokenizers")

    assert tokens_of_texts(engine) == EXPECTED_TOKENS[name]


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize(
    "name", ["vocab.json", "ranks.tiktoken cl100k", "tekken.json", "bpe.model"]
)
def test_the_numpy_engine_gives_the_tokens_of_the_kinds_own_library(name, tmp_path):
    skip_without_library(name)
    engine = make_engine(TOKENIZERS[name], "numpy", cache=tmp_path)

    assert engine.name == "numpy"
    assert tokens_of_texts(engine) == EXPECTED_TOKENS[name]


def test_unigram_models_are_encoded_by_the_sentencepiece_package(tmp_path):
    pytest.importorskip("sentencepiece")

    engine = make_engine(FILES / "unigram.model", cache=tmp_path)

    assert engine.name == "sentencepiece"
    assert "not for the numpy engine" in engine.reason


@pytest.mark.parametrize("name", REVERSIBLE_TOKENIZERS)
def test_decoding_gives_the_text_again(name):
    tokenizer = load_tokenizer(TOKENIZERS[name])

    texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in EXPECTED_TOKENS[name]]

    assert texts == TEXTS


def test_a_vocabulary_needs_no_tokens_for_bytes_that_utf_8_never_has(tmp_path):
    never_used = [byte_characters()[byte] for byte in NEVER_IN_UTF_8]
    vocabulary = json.loads((FILES / "vocab.json").read_bytes())
    smaller_vocabulary = {
        token: number for token, number in vocabulary.items() if token not in never_used
    }
    assert len(smaller_vocabulary) == len(vocabulary) - 13
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps(smaller_vocabulary))
    whole_engine = make_engine(TOKENIZERS["vocab.json"], "tokenizers")

    engine = make_engine(TokenizerFile(path, merges=FILES / "merges.txt"), "tokenizers")

    assert engine.encode(TEXTS).ids.tolist() == whole_engine.encode(TEXTS).ids.tolist()


# Comparison with tiktoken


@cache
def tiktoken_encoding(pattern):
    """Return tiktoken's encoding of the golden ranks, with a named pattern."""
    import tiktoken

    ranks = {}
    for line in (FILES / "ranks.tiktoken").read_bytes().splitlines():
        word, rank = line.split()
        ranks[base64.b64decode(word)] = int(rank)
    special_ids = {token: N_RANKS + index for index, token in enumerate(SPECIAL_TOKENS)}
    return tiktoken.Encoding(
        pattern,
        pat_str=PATTERNS[pattern].regex,
        mergeable_ranks=ranks,
        special_tokens=special_ids,
    )


@cache
def reference_of_ranks(pattern):
    """Return the reference of the golden ranks, with a named pattern."""
    return make_engine(ranks_file(pattern), "tokenizers")


CHARACTERS = st.characters(exclude_categories=["Cs"]) | st.sampled_from("aeh 'sT\n\t1½中é\u0301ſ/!")


@given(texts=st.lists(st.text(CHARACTERS), max_size=8))
def test_random_texts_have_the_tokens_of_tiktoken(texts):
    pytest.importorskip("tiktoken")
    for pattern in ("gpt2", "o200k", "llama3"):
        expected = []
        for text in texts:
            expected += tiktoken_encoding(pattern).encode(text, allowed_special="all")

        encoded = reference_of_ranks(pattern).encode(texts)

        assert encoded.ids.tolist() == expected


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
def test_a_special_token_that_the_normal_form_takes_apart_is_not_found(engine, tmp_path):
    """Qwen's own code normalises text before it searches for special tokens."""
    pytest.importorskip("tiktoken")
    text = "a <|endoftext|>\u0338 b <|endoftext|>"  # the first ends with ≯ in its normal form
    normal_text = unicodedata.normalize("NFC", text)
    expected = tiktoken_encoding("qwen2").encode(normal_text, allowed_special="all")
    end_of_text = N_RANKS
    assert expected.count(end_of_text) == 1

    encoded = make_engine(TOKENIZERS["ranks.tiktoken qwen2"], engine, cache=tmp_path).encode([text])

    assert encoded.ids.tolist() == expected


# Facts


@pytest.mark.parametrize(
    ("name", "vocab_size", "max_id", "end_token_text", "end_token_id"),
    [
        pytest.param("vocab.json", N_RANKS + 1, N_RANKS, "<|endoftext|>", N_RANKS, id="vocab.json"),
        pytest.param(
            "ranks.tiktoken cl100k", N_RANKS + 2, N_RANKS + 1, "<|endoftext|>", N_RANKS, id="ranks"
        ),
        pytest.param("megatron.json v2", N_RANKS + 10, N_RANKS + 9, "</s>", 2, id="megatron.json"),
        pytest.param("tekken.json", N_RANKS + 10, N_RANKS + 9, "</s>", 2, id="tekken.json"),
        pytest.param("bpe.model", 560, 559, "</s>", 2, id="bpe.model"),
        # The model has no piece <mask>, and the legacy tokenizer adds <unk> although it has that.
        pytest.param("bpe.model legacy", 562, 561, "</s>", 2, id="bpe.model legacy"),
    ],
)
def test_facts_are_those_of_the_trainers_class(
    name, vocab_size, max_id, end_token_text, end_token_id
):
    tokenizer = TOKENIZERS[name]

    facts = tokenizer_facts(tokenizer)

    assert facts.vocab_size == vocab_size
    assert facts.max_id == max_id
    assert end_token(tokenizer, None) == end_token_text
    assert token_id(tokenizer, end_token_text, "eod") == end_token_id
    assert end_token_text in special_tokens(tokenizer)


def test_the_pattern_of_published_ranks_defines_their_special_tokens(tmp_path):
    # As many ranks as Llama 3 has: all bytes, and words of three bytes.
    words = [bytes([byte]) for byte in range(256)]
    words += [number.to_bytes(3, "big") for number in range(128_000 - 256)]
    lines = [b"%b %d\n" % (base64.b64encode(word), rank) for rank, word in enumerate(words)]
    path = tmp_path / "tokenizer.model"  # the name of Llama 3's file
    path.write_bytes(b"".join(lines))

    llama3 = TokenizerFile(path, pattern="llama3")

    assert tokenizer_facts(llama3).vocab_size == 128_256
    assert token_id(llama3, "<|eot_id|>", "eod") == 128_009
    assert end_token(llama3, None) == "<|end_of_text|>"


def test_named_patterns_are_those_that_the_numpy_engine_supports():
    supported_regexes = {pattern.regex[0] for pattern in patterns.SPLIT_PATTERNS.values()}

    unsupported = [
        name for name, pattern in PATTERNS.items() if pattern.regex not in supported_regexes
    ]

    assert unsupported == ["v1"]


def test_facts_of_a_sentencepiece_model_do_not_need_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)

    assert tokenizer_facts(FILES / "bpe.model").vocab_size == 560


def test_an_engine_for_a_sentencepiece_model_needs_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)

    with pytest.raises(ConfigError, match="package is not installed") as caught:
        make_engine(FILES / "bpe.model", cache=tmp_path)

    assert "nanoset-platform[sentencepiece]" in caught.value.remedy


# Fingerprints


def fingerprint_of(tokenizer):
    """Return the fingerprint of a tokenizer."""
    return define(tokenizer).fingerprint


def test_patterns_with_the_same_regular_expression_have_the_same_fingerprint():
    named = golden_file("ranks.tiktoken", pattern="llama3")
    other_name = golden_file("ranks.tiktoken", pattern="cl100k")
    spelled_out = golden_file("ranks.tiktoken", pattern=PATTERNS["cl100k"].regex)

    assert fingerprint_of(other_name) == fingerprint_of(named)
    assert fingerprint_of(spelled_out) == fingerprint_of(named)


def test_a_fingerprint_does_not_depend_on_the_name_of_the_file(tmp_path):
    copy = copy_golden_file("ranks.tiktoken", tmp_path, "other.name")

    fingerprint = fingerprint_of(TokenizerFile(copy, pattern="llama3"))

    assert fingerprint == fingerprint_of(golden_file("ranks.tiktoken", pattern="llama3"))


def test_a_fingerprint_depends_on_all_that_decides_tokens():
    tokenizers = [
        golden_file("ranks.tiktoken", pattern="llama3"),
        golden_file("ranks.tiktoken", pattern="gpt2"),
        golden_file("ranks.tiktoken", pattern="cl100k", special_tokens=SPECIAL_TOKENS),
        FILES / "tekken.json",
    ]

    fingerprints = {fingerprint_of(tokenizer) for tokenizer in tokenizers}

    assert len(fingerprints) == len(tokenizers)


def test_a_fingerprint_depends_on_the_legacy_setting():
    legacy_fingerprint = fingerprint_of(golden_file("bpe.model", legacy=True))

    assert legacy_fingerprint != fingerprint_of(FILES / "bpe.model")


def test_a_fingerprint_depends_on_the_number_of_special_tokens():
    with_twenty = golden_file("megatron.json", num_special_tokens=20, vocab_size=N_RANKS + 20)
    with_thirty = golden_file("megatron.json", num_special_tokens=30, vocab_size=N_RANKS + 30)

    assert fingerprint_of(with_twenty) != fingerprint_of(with_thirty)


# Folders


def test_a_folder_stands_for_the_first_known_file_in_it(tmp_path):
    for name in ("vocab.json", "merges.txt", "tekken.json"):
        copy_golden_file(name, tmp_path)

    assert tokenizer_path(tmp_path).name == "tekken.json"


def test_a_folder_with_a_vocabulary_and_merges_stands_for_their_tokenizer(tmp_path):
    for name in ("vocab.json", "merges.txt"):
        copy_golden_file(name, tmp_path)

    path = tokenizer_path(tmp_path)

    assert path.name == "vocab.json"
    assert fingerprint_of(path) == fingerprint_of(FILES / "vocab.json")


def test_the_error_for_a_folder_without_a_known_file_lists_its_files(tmp_path):
    for name in ("a.tiktoken", "b.tiktoken", "tokenizer.model.v1", "gpt2-vocab.json", "notes.txt"):
        (tmp_path / name).touch()

    with pytest.raises(MissingError) as caught:
        tokenizer_path(tmp_path)

    assert caught.value.found == (
        f"{tmp_path} is a folder with a.tiktoken, b.tiktoken, gpt2-vocab.json, tokenizer.model.v1"
    )
    assert "tekken.json" in caught.value.expected
    assert "name the file" in caught.value.remedy
