"""Tokenizers whose merges join characters: where text is cut, and how characters are merged.

Text is cut between two characters that no merge joins, so that the pieces can be merged on their
own. The tokens are those of the reference.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.comparing_engines import assert_same_tokens
from helpers.plain_bpe import plain_bpe
from helpers.small_tokenizers import CHARACTER_KINDS
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.characters import CharacterMerger, PairSplitter
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.merges import PairRanks
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import read_rules

ALPHABET = "at éß中国\n🎉🎊"
"""Characters of every size in UTF-8. Some differ in their last byte only."""
WORD_BYTES = 40
"""Length to which words are padded: more than the longest word of the tests, in whole integers."""


@pytest.fixture
def gemma(known_tokenizers):
    """The rules and the reference of a tokenizer like Gemma's."""
    return known_tokenizers["gemma"]


def unproven_numpy_engine(path):
    """Return the numpy engine of a tokenizer, without comparing it with the reference first."""
    rules = read_rules(json.loads(path.read_bytes()))
    return NumpyEngine(rules, ReferenceEngine(path))


# Where text is cut


@pytest.mark.parametrize(
    ("prepend", "text", "prepared"),
    [
        pytest.param("never", "▁a b", " a b", id="never"),
        pytest.param("always", " a▁", "  a ", id="always"),
        pytest.param("unless there is one", "▁a", " a", id="unless there is one, with one"),
        pytest.param("unless there is one", "a", " a", id="unless there is one, without one"),
        pytest.param("always", "", "", id="empty document"),
    ],
)
def test_a_space_is_put_before_a_document_and_each_sign_becomes_a_space(prepend, text, prepared):
    space_signs = SpaceSigns(prepend)

    assert space_signs.prepared(text.encode()) == prepared.encode()


def test_text_is_cut_between_all_characters_that_no_merge_joins(gemma):
    text = "the quick fox's  (x)); Приветствую 日本語 Ж🎉 the"
    joined_points = gemma.rules.vocabulary.boundary_pairs.tolist()
    joined = {chr(left) + chr(right) for left, right in joined_points}
    expected = [0]
    for start in range(1, len(text)):
        if text[start - 1 : start + 1] not in joined:
            expected.append(start)

    (starts,) = gemma.make_numpy_engine().pretoken_starts([text])

    assert starts == expected
    assert len(starts) < len(text)


def test_runs_of_added_tokens_are_cut_at_the_length_of_the_longest_token(gemma):
    """The tokenizer has added tokens of up to four newlines, and of up to four tabs."""
    (starts,) = gemma.make_numpy_engine().pretoken_starts(["a\n\n\n\n\n\t\t"])

    assert starts == [0, 1, 5, 6]


def change_arrays(vocabulary, **pairs_by_field):
    """Return a vocabulary in which some arrays of pairs of numbers are replaced."""
    arrays = {}
    for name, pairs in pairs_by_field.items():
        arrays[name] = np.array(pairs, np.int32).reshape(-1, 2)
    return dataclasses.replace(vocabulary, **arrays)


def find_word_starts(text, joined, each_apart, longest_run):
    """Return whether a word starts at each character of a text.

    Args:
        text: The text.
        joined: Pairs of characters that a merge joins, as strings.
        each_apart: Whether a word starts at each space.
        longest_run: Newlines of the longest added token of newlines; 0 if there is none.
    """
    starts = []
    run = 0  # newlines before this character, in the same run
    for before, character in zip(" " + text, text, strict=False):
        is_start = not starts or before + character not in joined
        if each_apart and character == " ":
            is_start = True
        if longest_run and "\n" in (before, character):
            run = run + 1 if before == character else 0
            is_start = before != character or run % longest_run == 0
        starts.append(is_start)
    return starts


def find_start_bytes(texts, joined, each_apart, longest_run):
    """Return whether a word starts at each byte of texts with separators around them.

    The arguments are as for `find_word_starts`. A separator is a word of its own, and the end of
    the last word counts as another start.
    """
    start_bytes = []
    for text in texts:
        start_bytes.append(True)  # the separator
        starts = find_word_starts(text, joined, each_apart, longest_run)
        for character, is_start in zip(text, starts, strict=True):
            n_further_bytes = len(character.encode()) - 1
            start_bytes += [is_start] + [False] * n_further_bytes
    return [*start_bytes, True, True]  # the last separator, and the end


@given(
    joined=st.sets(st.text(ALPHABET, min_size=2, max_size=2)),
    texts=st.lists(st.text(ALPHABET), min_size=1, max_size=3),
    each_apart=st.booleans(),
    longest_run=st.integers(0, 3),
)
def test_words_start_where_no_merge_joins_two_characters(
    known_tokenizers, joined, texts, each_apart, longest_run
):
    pairs = sorted((ord(left), ord(right)) for left, right in joined)
    vocabulary = change_arrays(known_tokenizers["gemma"].rules.vocabulary, boundary_pairs=pairs)
    longest_runs = {}
    if longest_run > 0:
        longest_runs[ord("\n")] = longest_run
    splitter = PairSplitter(vocabulary, SpaceSigns("never", each_apart), longest_runs)
    utf8_texts = [text.encode() for text in texts]
    data = b"\xff".join([b"", *utf8_texts, b""])

    is_start = splitter.starts(np.frombuffer(data, np.uint8))

    assert is_start.tolist() == find_start_bytes(texts, joined, each_apart, longest_run)


# How characters are merged


def first_tokens_of(word, token_by_character, byte_tokens):
    """Return the tokens of a word before any merge: of its characters, or else of their bytes."""
    tokens = []
    for character in word:
        if character in token_by_character:
            tokens.append(token_by_character[character])
        else:
            tokens += byte_tokens[list(character.encode())].tolist()
    return tokens


@given(
    characters_with_token=st.sets(st.sampled_from(ALPHABET), min_size=1),
    words=st.lists(st.text(ALPHABET, min_size=1, max_size=8), min_size=1, max_size=6),
    data=st.data(),
)
def test_characters_are_merged_like_by_plain_bpe(
    known_tokenizers, characters_with_token, words, data
):
    # Random merges of these tokens, and of two that only merges create.
    token_by_character = {
        character: 10_000 + index for index, character in enumerate(characters_with_token)
    }
    token = st.sampled_from([*token_by_character.values(), 20_000, 20_001])
    pair = st.tuples(token, token)
    pairs = data.draw(st.lists(pair, unique=True, min_size=1, max_size=30))
    merged = [data.draw(token) for _ in pairs]
    vocabulary = change_arrays(
        known_tokenizers["gemma"].rules.vocabulary,
        characters=sorted(
            (ord(character), token) for character, token in token_by_character.items()
        ),
    )
    left, right = np.array(pairs).T
    merger = CharacterMerger(vocabulary, PairRanks(left, right, np.array(merged)))

    # What plain BPE makes of each word.
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    expected_ids = []
    expected_lengths = []
    for word in words:
        first_tokens = first_tokens_of(word, token_by_character, vocabulary.byte_tokens)
        tokens = plain_bpe(first_tokens, ranks, merged)
        expected_ids += tokens
        expected_lengths.append(len(tokens))

    padded_words = b"".join(word.encode().ljust(WORD_BYTES, b"\0") for word in words)
    ids, lengths = merger.merge_words(
        np.frombuffer(padded_words, np.uint8).reshape(len(words), WORD_BYTES)
    )

    assert lengths.tolist() == expected_lengths
    assert ids.tolist() == expected_ids


# The tokens of texts


@pytest.mark.parametrize("kind", CHARACTER_KINDS)
def test_any_four_characters_have_the_tokens_of_the_reference(engine, reference):
    texts = ["".join(characters) for characters in product("at ▁中é\n\t)🎉<", repeat=4)]

    assert_same_tokens(engine, reference, texts)


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.parametrize("kind", ["llama2", "metaspace", "metaspace_split"])
@pytest.mark.parametrize("character", ["\t", "\n"], ids=["tab", "newline"])
def test_text_after_an_added_newline_or_tab_starts_with_a_sign(
    write_tokenizer_with, tmp_path, kind, character
):
    path = write_tokenizer_with(kind, character)
    engine = make_engine(path, "numpy", cache=tmp_path)
    reference = make_engine(path, "tokenizers")
    texts_with_tabs = ["x\ty", "\tx", " x\t y", "\t", "\t\tx the", "the fox"]
    texts = [text.replace("\t", character) for text in texts_with_tabs]

    assert engine.name == "numpy"
    assert_same_tokens(engine, reference, texts)


@pytest.mark.parametrize("kind", ["llama2", "metaspace"])
def test_a_token_may_have_a_sign_after_another_character(write_changed_tokenizer, kind):
    """Text is cut before all other ▁.

    Gemma has such a token for the end of an HTML tag and the beginning of the next one.
    """

    def add_merges(tokenizer):
        model = tokenizer["model"]
        for left, right in ((")", "▁"), (")▁", "(")):
            model["vocab"].setdefault(left + right, max(model["vocab"].values()) + 50)
            model["merges"].insert(0, [left, right])

    engine = unproven_numpy_engine(write_changed_tokenizer(kind, add_merges))
    texts = ["(x) (y)  (z)", ") ( ) (", "a) ", ")▁(", ") the", ")  ("]

    assert engine.reference.tokenizer.token_to_id(")▁(") in engine.encode(texts).ids
    assert_same_tokens(engine, engine.reference, texts)


TEXTS_WITH_ADDED_TOKENS = [
    "the <|end|>  fox",
    " <|end|> <|end|>x",
    "other x\tthe",
    "é the é",
    "e\u0301<|end|>the  the\n",
    "▁the▁é",
    "the fox  the <|x the<|x y",
    # Much text before and after added tokens, so that only a part goes to the reference.
    "a, b " * 1000 + " <|end|> é the <|x" + " b, a\n" * 1000,
]


@pytest.mark.parametrize(
    "kind", ["llama2", "metaspace", "metaspace_split", "gemma", "gpt2", "qwen2"]
)
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
@pytest.mark.parametrize("content", ["<|end|>", "the", "é", "the<|x"])
def test_added_tokens_with_any_flag_are_found(write_tokenizer_with, kind, flag, content):
    engine = unproven_numpy_engine(write_tokenizer_with(kind, content, **{flag: True}))

    assert_same_tokens(engine, engine.reference, TEXTS_WITH_ADDED_TOKENS)


# Tokenizers that the numpy engine does not support


@pytest.fixture
def llama2_json(tokenizer_files):
    """The parsed `tokenizer.json` of a tokenizer like Llama 2's."""
    return json.loads(tokenizer_files["llama2"].read_bytes())


def test_a_tokenizer_without_a_token_for_some_byte_is_not_supported(llama2_json):
    del llama2_json["model"]["vocab"]["<0x7F>"]

    with pytest.raises(NotRecognisedError, match="single bytes"):
        read_rules(llama2_json)


def test_a_tokenizer_that_merges_bytes_is_not_supported(llama2_json):
    model = llama2_json["model"]
    model["vocab"]["<0x41><0x42>"] = len(model["vocab"]) + 10
    model["merges"].append(["<0x41>", "<0x42>"])

    with pytest.raises(NotRecognisedError, match="single bytes"):
        read_rules(llama2_json)


@pytest.mark.usefixtures("without_compiled_engine")
def test_a_tokenizer_with_a_token_across_a_cut_is_not_supported(llama2_json, tmp_path):
    """Long documents are cut between a letter and a space."""
    model = llama2_json["model"]
    model["vocab"]["e▁"] = len(model["vocab"]) + 10
    model["merges"].append(["e", "▁"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(llama2_json))

    engine = make_engine(path, cache=tmp_path)

    assert engine.name == "tokenizers"
    assert "across" in engine.reason


@pytest.mark.parametrize("content", ["a b", "▁the"])
def test_added_tokens_that_are_found_after_spaces_become_signs_are_not_supported(
    write_tokenizer_with, content
):
    path = write_tokenizer_with("llama2", content, normalized=True)

    with pytest.raises(NotRecognisedError, match="among ▁"):
        read_rules(json.loads(path.read_bytes()))


def test_added_tokens_with_other_ids_than_the_library_uses_are_not_supported(
    write_changed_tokenizer, tmp_path
):
    def renumber(tokenizer):
        (tabs,) = [token for token in tokenizer["added_tokens"] if token["content"] == "\t\t"]
        tabs["id"] = 3

    path = write_changed_tokenizer("gemma", renumber)

    engine = make_engine(path, cache=tmp_path)

    assert engine.name == "tokenizers"
    assert "test texts" in engine.reason
