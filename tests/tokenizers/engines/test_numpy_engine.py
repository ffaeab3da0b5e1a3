"""The numpy engine gives the tokens of the reference for every text."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from helpers.comparing_engines import assert_same_tokens
from helpers.hard_texts import hard_texts
from helpers.small_tokenizers import BYTE_KINDS, CHARACTER_KINDS
from nanoset_core.errors import InputError
from nanoset_core.tokenizers.engines import make_engine, numpy_engine, units
from nanoset_core.tokenizers.engines.rules import read_rules


@pytest.fixture
def small_steps(monkeypatch):
    """Let everything happen to short texts that usually happens to long texts only."""
    monkeypatch.setattr(numpy_engine, "UNIT_BYTES", 60)
    monkeypatch.setattr(numpy_engine, "BATCH_BYTES", 300)
    monkeypatch.setattr(units, "_FALLBACK_BYTES", 12)
    monkeypatch.setattr(numpy_engine, "_FEW_WORDS_PER_BYTE", 0)


# Random texts


def assert_same_tokens_for_random_texts(known_tokenizers):
    """Check that the numpy engine gives the right tokens with each kind of tokenizer."""
    engines = {
        kind: known_tokenizers[kind].make_numpy_engine()
        for kind in {**BYTE_KINDS, **CHARACTER_KINDS}
    }

    # Texts are drawn once for all kinds: drawing them takes longer than encoding them.
    @given(st.lists(hard_texts(), max_size=5))
    def check(texts):
        for kind, engine in engines.items():
            note(kind)
            assert_same_tokens(engine, engine.reference, texts)

    check()


def test_random_texts_have_the_tokens_of_the_reference(known_tokenizers):
    assert_same_tokens_for_random_texts(known_tokenizers)


@pytest.mark.usefixtures("small_steps")
def test_random_texts_in_small_steps_have_the_tokens_of_the_reference(known_tokenizers):
    assert_same_tokens_for_random_texts(known_tokenizers)


# Long texts

WORDS_OF_EVERY_LENGTH = ["abcdefghij"[size % 10] * size for size in range(1, 600)]
RULERS = [sign * size for sign, size in product("=-*_#~.", range(1, 140, 3))]
LETTERS_WITH_MARKS = ["e" + chr(mark) for mark in range(0x300, 0x370)]
# Numbers that repeat late, but are the same in every run.
MIXED_LETTERS = [chr(ord("a") + number * number % 26) for number in range(3_000)]
MIXED_IDEOGRAPHS = [chr(0x4E00 + number * 7919 % 20_000) for number in range(25_000)]
# All planes of Unicode with many characters, without surrogates, and a part of a rare plane.
CODE_POINTS = [*range(1, 0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x30000, 16)]
FIRST_CHARACTERS = [chr(point) for point in range(1, 0x3000)]
LONG_TEXTS = {
    "one line": "lorem ipsum dolor sit amet " * 1_300,
    "one word": "x" * 33_000,
    "words of every length": " ".join(WORDS_OF_EVERY_LENGTH),
    "random letters": "".join(MIXED_LETTERS),
    "rulers": "\n".join(RULERS),
    "ideographs without a space": "".join(MIXED_IDEOGRAPHS),
    "spaces": " " * 25_000 + "x" + "▁" * 500,
    "newlines": "\n" * 3_000 + " \n" * 2_000 + "\t\r\n" * 2_000 + "\t" * 50 + "a\t\t\tb" * 9,
    "digits": "1234567890" * 1_500 + "١٢٣٤" * 500,
    "every code point": "".join(map(chr, CODE_POINTS)),
    "code points between letters": "a".join(FIRST_CHARACTERS),
    "code points between spaces": " ".join(FIRST_CHARACTERS),
    "marks": "".join(LETTERS_WITH_MARKS) * 20,
    "added tokens everywhere": "some text <|endoftext|> more <b> x\n" * 600,
    "zero bytes": "some text \0 more words\n" * 800,
}
LONG_TEXT_KINDS = [
    "neox",
    "no_alphabet",
    "qwen2",
    "digits",
    "o200k",
    "deepseek",
    "gemma",
    "metaspace_split",
]


@pytest.mark.parametrize("kind", LONG_TEXT_KINDS)
@pytest.mark.parametrize("text", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_long_texts_have_the_tokens_of_the_reference(engine, reference, text, monkeypatch):
    monkeypatch.setattr(numpy_engine, "UNIT_BYTES", 1 << 14)
    monkeypatch.setattr(units, "UNIT_BYTES", 1 << 14)

    assert_same_tokens(engine, reference, [text, "short", text[: len(text) // 2]])


# Short texts


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([], id="no texts"),
        pytest.param(["", ""], id="empty texts"),
        pytest.param(["", "a", "", "", "b", ""], id="empty texts between others"),
        pytest.param([" "], id="a space"),
        pytest.param(["\n"], id="a newline"),
        pytest.param([" \n\t "], id="white space"),
        pytest.param(["<|endoftext|>"], id="an added token"),
        pytest.param(["\0"], id="a zero byte"),
        pytest.param(["a"] * 1000, id="many texts"),
    ],
)
def test_empty_and_short_texts_have_the_tokens_of_the_reference(engine, reference, texts):
    assert_same_tokens(engine, reference, texts)


def test_a_document_has_the_same_tokens_alone_and_among_others(engine):
    # Each would form other pieces if it were joined with the next one.
    texts = [
        "it",
        "'s",
        " x",
        "  ",
        "y",
        "1",
        "2345",
        "\n",
        "\n",
        "!",
        "\n\n",
        "a ",
        " b",
        "<|end",
        "oftext|>",
    ]
    expected = [engine.encode([text]).ids.tolist() for text in texts]

    encoded = engine.encode(texts)

    assert [ids.tolist() for ids in encoded.lists()] == expected


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    "bad_text",
    [
        pytest.param("\ud800", id="alone"),
        pytest.param("ok \udfff", id="at the end"),
        pytest.param("a" * 100 + "\ud83d\ude00", id="a pair"),
    ],
)
def test_a_surrogate_is_an_error_that_names_the_document(engine, reference, bad_text):
    texts = ["x " * 40] * 40 + [bad_text, "good"]

    for each_engine in (engine, reference):
        with pytest.raises(InputError, match="document 40, character") as caught:
            each_engine.encode(texts)
        assert caught.value.expected


# Added tokens and normal forms


@pytest.mark.parametrize("kind", ["neox"])
@pytest.mark.parametrize(
    "token",
    [
        pytest.param("[MASK]", id="of the text as written"),
        pytest.param("[MAS\u212a]", id="of the text as written, but only in its normal form"),
        pytest.param("[KEEP]", id="of the normal form"),
        pytest.param("[\u212aEEP]", id="of the normal form, and nowhere else"),
        pytest.param("<|endoftext|>\u0338", id="of the text as written, and ≯ in its normal form"),
        pytest.param("[KEEP]\u0338", id="of the normal form, before a mark"),
    ],
)
def test_added_tokens_are_found_before_or_after_normalisation(engine, reference, token):
    assert_same_tokens(engine, reference, [f"a {token} b"])


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize(
    ("kind", "content", "flags", "text"),
    [
        pytest.param("digits", "国,", {}, "あ" * 700 + "国，" + "x" * 5, id="ideograph and comma"),
        pytest.param(
            "qwen2", "; x", {}, "é" * 1200 + "\u037e x" + "y" * 30, id="semicolon and letter"
        ),
        pytest.param(
            "qwen2",
            ";",
            {"rstrip": True},
            "é" * 1200 + "\u037e   x" + "y" * 30,
            id="semicolon and spaces",
        ),
    ],
)
def test_a_text_is_not_cut_inside_an_added_token_of_its_normal_form(
    write_tokenizer_with, tmp_path, kind, content, flags, text
):
    """The engine searches pieces of 2 KiB for added tokens. The token is at the end of a piece."""
    path = write_tokenizer_with(kind, content, normalized=True, **flags)
    engine = make_engine(path, "numpy", cache=tmp_path)
    reference = make_engine(path, "tokenizers")
    with_special_token = text + "<|endoftext|>"
    in_normal_form = text.replace("，", ",").replace("\u037e", ";")
    assert engine.name == "numpy"
    engine.encode(["the sample"])  # so that the cache of words is in use

    assert_same_tokens(engine, reference, [text, with_special_token, in_normal_form])


# Unusual vocabularies


@pytest.mark.usefixtures("few_canaries")
def test_a_vocabulary_with_parts_of_characters_has_the_tokens_of_the_reference(tmp_path):
    """The engine starts with the words of the vocabulary, some of which end inside a character."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=267, initial_alphabet=alphabet, show_progress=False)
    words = ["あいうえおかきくけこ"[:size] + "🎉🎊"[size % 2] for size in range(11)]
    tokenizer.train_from_iterator(words * 50, trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    vocabulary = read_rules(json.loads(path.read_bytes())).vocabulary
    assert max(vocabulary.lengths) > 8

    engine = make_engine(path, "numpy", cache=tmp_path)

    reference = make_engine(path, "tokenizers")
    assert_same_tokens(engine, reference, ["あいう🎉", "い え", "あいうえおかきく🎊け"])


@pytest.mark.usefixtures("few_canaries")
def test_a_vocabulary_of_bytes_without_merges_has_the_tokens_of_the_reference(
    write_changed_tokenizer, tmp_path
):
    def remove_merges(tokenizer):
        model = tokenizer["model"]
        model["merges"] = []
        model["vocab"] = {word: token for word, token in model["vocab"].items() if len(word) == 1}

    path = write_changed_tokenizer("gpt2", remove_merges)

    engine = make_engine(path, "numpy", cache=tmp_path)

    assert engine.name == "numpy"
    reference = make_engine(path, "tokenizers")
    assert_same_tokens(engine, reference, ["it's 12 bytes", "é世🎉"])
