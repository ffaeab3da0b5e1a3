"""BPE over characters: text cut between characters that no merge joins, and the reference's tokens
for all of it.
"""

from __future__ import annotations

import dataclasses
import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.plain_bpe import plain_bpe
from helpers.pretoken_words import assert_same
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.characters import CharacterMerger, PairSplitter
from nanoset_core.tokenizers.engines.engine import NotRecognisedError
from nanoset_core.tokenizers.engines.merges import PairRanks
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import read_rules

KINDS = ("llama2", "gemma", "metaspace", "metaspace_split")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def pair(known, kind):
    return NumpyEngine(*known[kind]), known[kind][1]


def test_every_arrangement(pair):
    assert_same(
        *pair, ["".join(letters) for letters in product("at ▁中é\n\t)\U0001f389<", repeat=4)]
    )


@pytest.mark.parametrize(
    ("prepend", "text", "prepared"),
    [
        ("never", "▁a b", " a b"),
        ("always", " a▁", "  a "),
        ("unless there is one", "▁a", " a"),
        ("unless there is one", "a", " a"),
        ("always", "", ""),
    ],
)
def test_the_beginning_of_a_document(prepend, text, prepared):
    assert SpaceSigns(prepend).prepared(text.encode()) == prepared.encode()


def test_text_is_cut_where_nothing_merges_and_only_there(known):
    knowledge, reference = known["gemma"]
    joined = {
        (chr(left), chr(right)) for left, right in knowledge.vocabulary.boundary_pairs.tolist()
    }
    text = "the quick fox's  (x)); Приветствую 日本語 Ж🎉 the"
    expected = [
        place for place in range(len(text)) if tuple(text[place - 1 : place + 1]) not in joined
    ]
    assert NumpyEngine(knowledge, reference).pretoken_starts(text) == expected
    assert len(expected) < len(text)


def test_runs_of_added_tokens_are_cut_every_so_many(known):
    assert NumpyEngine(*known["gemma"]).pretoken_starts("a\n\n\n\n\n\t\t") == [0, 1, 5, 6]


ALPHABET = "at éß中国\n🎉🎊"
"""Characters of every size in UTF-8. Some differ in their last byte only."""


def vocabulary_with(vocabulary, **fields):
    """A vocabulary with some other arrays of pairs of numbers."""
    arrays = {name: np.array(rows, np.int32).reshape(-1, 2) for name, rows in fields.items()}
    return dataclasses.replace(vocabulary, **arrays)


def plain_starts(text, joined, each_apart, longest_run):
    """Whether a word starts at each character; newlines are added tokens of up to `longest_run`."""
    starts = []
    run = 0  # newlines before this one
    for before, character in zip(" " + text, text, strict=False):
        is_start = not starts or before + character not in joined
        if each_apart and character == " ":
            is_start = True
        if longest_run and "\n" in (before, character):
            run = run + 1 if before == character else 0
            is_start = before != character or run % longest_run == 0
        starts.append(is_start)
    return starts


@settings(max_examples=200, deadline=None)
@given(
    joined=st.sets(st.text(ALPHABET, min_size=2, max_size=2)),
    texts=st.lists(st.text(ALPHABET), min_size=1, max_size=3),
    each_apart=st.booleans(),
    longest_run=st.integers(0, 3),
)
def test_words_start_where_no_merge_joins_two_characters(
    known, joined, texts, each_apart, longest_run
):
    expected = []  # whether a word starts at each byte
    for text in texts:
        expected.append(True)  # the separator
        starts = plain_starts(text, joined, each_apart, longest_run)
        for character, is_start in zip(text, starts, strict=True):
            expected += [is_start] + [False] * (len(character.encode()) - 1)
    pairs = sorted((ord(left), ord(right)) for left, right in joined)
    vocabulary = vocabulary_with(known["gemma"][0].vocabulary, boundary_pairs=pairs)
    longest_runs = {ord("\n"): longest_run} if longest_run else {}
    splitter = PairSplitter(vocabulary, SpaceSigns("never", each_apart), longest_runs)
    data = b"\xff".join([b"", *(text.encode() for text in texts), b""])

    is_start = splitter.starts(np.frombuffer(data, np.uint8))

    assert is_start.tolist() == [*expected, True, True]  # the last separator, and the end


@settings(max_examples=100, deadline=None)
@given(
    with_token=st.sets(st.sampled_from(ALPHABET), min_size=1),
    words=st.lists(st.text(ALPHABET, min_size=1, max_size=8), min_size=1, max_size=6),
    data=st.data(),
)
def test_characters_are_merged_as_by_plain_bpe(known, with_token, words, data):
    byte_tokens = known["gemma"][0].vocabulary.byte_tokens
    characters = {ord(character): 10_000 + index for index, character in enumerate(with_token)}
    token = st.sampled_from([*characters.values(), 20_000, 20_001])
    pairs = data.draw(st.lists(st.tuples(token, token), unique=True, min_size=1, max_size=30))
    merged = [data.draw(token) for _ in pairs]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    expected = []
    for word in words:
        first_tokens = []
        for character in word:
            if ord(character) in characters:
                first_tokens.append(characters[ord(character)])
            else:
                first_tokens += byte_tokens[list(character.encode())].tolist()
        expected.append(plain_bpe(first_tokens, ranks, merged))
    vocabulary = vocabulary_with(
        known["gemma"][0].vocabulary, characters=sorted(characters.items())
    )
    left, right = np.array(pairs).T
    merger = CharacterMerger(vocabulary, PairRanks(left, right, np.array(merged)))
    padded = b"".join(word.encode().ljust(40, b"\0") for word in words)

    ids, lengths = merger.merge_words(np.frombuffer(padded, np.uint8).reshape(-1, 40))

    assert lengths.tolist() == [len(tokens) for tokens in expected]
    assert ids.tolist() == [number for tokens in expected for number in tokens]


@pytest.mark.parametrize("change", ["no byte", "a byte merges"])
def test_bytes_without_a_token_or_that_merge(tokenizer_files, change):
    parsed = json.loads(tokenizer_files["llama2"].read_bytes())
    model = parsed["model"]
    if change == "no byte":
        del model["vocab"]["<0x7F>"]
    else:
        model["vocab"]["<0x41><0x42>"] = len(model["vocab"]) + 10
        model["merges"].append(["<0x41>", "<0x42>"])
    with pytest.raises(NotRecognisedError, match="single bytes"):
        read_rules(parsed)


@pytest.mark.usefixtures("without_compiled")
def test_a_token_across_a_cut_is_not_for_this_engine(tokenizer_files, tmp_path):
    parsed = json.loads(tokenizer_files["llama2"].read_bytes())
    model = parsed["model"]
    model["vocab"]["e▁"] = len(model["vocab"]) + 10
    model["merges"].append(["e", "▁"])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(parsed))
    engine = make_engine(path, cache=tmp_path)
    assert engine.name == "tokenizers"
    assert "across" in engine.reason


@pytest.mark.parametrize("kind", ["llama2", "metaspace", "metaspace_split"])
@pytest.mark.parametrize("character", "\t\n")
def test_a_space_sign_goes_before_what_follows_an_added_newline_or_tab(
    changed_tokenizer, tmp_path, kind, character
):
    path = changed_tokenizer(kind, content=character)
    engine = make_engine(path, "numpy", cache=tmp_path)
    reference = make_engine(path, "tokenizers")
    texts = ["x\ty", "\tx", " x\t y", "\t", "\t\tx the", "the fox"]
    assert engine.name == "numpy"
    assert_same(engine, reference, [text.replace("\t", character) for text in texts])


@pytest.mark.parametrize("kind", ["llama2", "metaspace"])
def test_a_token_with_a_space_sign_behind_another_character(changed_tokenizer, kind):
    """Text falls apart before all other ▁: as with Gemma's token for the end of one tag and the
    begin of another.
    """

    def join(parsed):
        model = parsed["model"]
        for left, right in ((")", "▁"), (")▁", "(")):
            model["vocab"].setdefault(left + right, max(model["vocab"].values()) + 50)
            model["merges"].insert(0, [left, right])

    path = changed_tokenizer(kind, join)
    reference = ReferenceEngine(path)
    known = read_rules(json.loads(path.read_bytes()))
    engine = NumpyEngine(known, reference)
    texts = ["(x) (y)  (z)", ") ( ) (", "a) ", ")▁(", ") the", ")  ("]
    assert reference.tokenizer.token_to_id(")▁(") in engine.encode(texts).ids
    assert_same(engine, reference, texts)


@pytest.mark.parametrize(
    "kind", ["llama2", "metaspace", "metaspace_split", "gemma", "gpt2", "qwen2"]
)
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
@pytest.mark.parametrize("content", ["<|end|>", "the", "é", "the<|x"])
def test_added_tokens_of_any_flags(changed_tokenizer, kind, flag, content):
    path = changed_tokenizer(kind, content=content, **{flag: True})
    reference = ReferenceEngine(path)
    known = read_rules(json.loads(path.read_bytes()))
    texts = [
        "the <|end|>  fox",
        " <|end|> <|end|>x",
        "other x\tthe",
        "é the é",
        "e\u0301<|end|>the  the\n",
        "▁the▁é",
    ]
    texts += ["the fox  the <|x the<|x y", "a, b " * 1000 + " <|end|> é the <|x" + " b, a\n" * 1000]
    assert_same(NumpyEngine(known, reference), reference, texts)


@pytest.mark.parametrize("content", ["a b", "▁the"])
def test_added_tokens_that_are_looked_for_among_space_signs(changed_tokenizer, content):
    path = changed_tokenizer("llama2", content=content, normalized=True)
    with pytest.raises(NotRecognisedError, match="among ▁"):
        read_rules(json.loads(path.read_bytes()))


def test_ids_that_the_library_does_not_give_to_added_tokens(changed_tokenizer, tmp_path):
    def renumber(parsed):
        next(token for token in parsed["added_tokens"] if token["content"] == "\t\t")["id"] = 3

    path = changed_tokenizer("gemma", renumber)
    engine = make_engine(path, cache=tmp_path)
    assert engine.name == "tokenizers"
    assert "test texts" in engine.reason
