"""Text is split on its bytes into the pre-tokens of the tokenizers library."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from helpers.hard_texts import hard_texts
from helpers.small_tokenizers import BYTE_KINDS
from nanoset_core.tokenizers.engines.classes import DIGITS, ByteClassifier
from nanoset_core.tokenizers.engines.patterns import GPT2, KIMI, SPLIT_PATTERNS
from nanoset_core.tokenizers.engines.splits import piece_starts

SEPARATOR = b"\xff"
LONGEST_RUN = 24
"""Spaces of the longest added token of GPT-NeoX."""


def split_texts(texts, pattern, classifier, longest_run=0):
    """Return the pieces of each text, split on its bytes; no text may be empty.

    Args:
        texts: The texts.
        pattern: How to split.
        classifier: Knows the class of every code point.
        longest_run: Spaces in the longest added token of spaces; 0 if there is none.
    """
    utf8_texts = [text.encode() for text in texts]
    data = SEPARATOR.join([b"", *utf8_texts, b""])
    byte_classes, wide_spaces = classifier.classify(data)
    is_start = piece_starts(
        np.frombuffer(data, np.uint8), byte_classes, wide_spaces, pattern, longest_run
    )

    # A separator is a piece of its own. One is before each text, and one after the last text.
    pieces_by_text = []
    for start, stop in pairwise(np.flatnonzero(is_start).tolist()):
        piece = data[start:stop]
        if piece == SEPARATOR:
            pieces_by_text.append([])
        else:
            pieces_by_text[-1].append(piece.decode())
    return pieces_by_text[:-1]


def split_by_library(reference, text):
    """Return the pieces of a text, split by the tokenizers library."""
    return [text[start:stop] for _, (start, stop) in reference.split(text)]


def is_split_on_bytes(text, pattern):
    """Return whether a text is not empty, and not left to the reference."""
    return text != "" and not pattern.context_spans.occurs_in(text.encode())


@pytest.fixture(scope="module")
def classifiers(known_tokenizers):
    """Kind → the classifier of the tokenizer of that kind."""
    return {kind: ByteClassifier(known_tokenizers[kind].rules.classes) for kind in BYTE_KINDS}


@settings(max_examples=150)
@given(texts=st.lists(hard_texts(), min_size=1, max_size=4))
def test_random_texts_have_the_pieces_of_the_library(known_tokenizers, classifiers, texts):
    for kind, classifier in classifiers.items():
        note(kind)
        rules, reference = known_tokenizers[kind]
        split_on_bytes = [text for text in texts if is_split_on_bytes(text, rules.split)]
        expected = [split_by_library(reference, text) for text in split_on_bytes]

        if split_on_bytes:
            assert split_texts(split_on_bytes, rules.split, classifier) == expected


@pytest.fixture(params=SPLIT_PATTERNS, ids=lambda regexes: SPLIT_PATTERNS[regexes].name)
def regexes(request):
    """The regular expressions of each known pattern."""
    return request.param


def library_split_by(regexes):
    """Return the pre-tokenizer of the library that splits by several regular expressions."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Digits, Sequence, Split

    members = []
    for regex in regexes:
        if regex == DIGITS:
            members.append(Digits(individual_digits=True))
        else:
            members.append(Split(Regex(regex), "isolated"))
    return Sequence(members)


def arrangements_of_classes(pattern):
    """Return all texts of three characters of any class, or of four if there are many classes.

    Among the characters are those of contractions, and the slash, which patterns may join with
    newlines.
    """
    characters = "aA中 \u0301!1\n'/s\t"
    if pattern is KIMI:
        characters += "〇⼀"  # a Han numeral and a Han radical
    length = 4 if len(pattern.classes) > 5 else 3
    return ["".join(characters) for characters in product(characters, repeat=length)]


def test_any_arrangement_of_classes_has_the_pieces_of_the_library(probe_classes_once, regexes):
    pattern = SPLIT_PATTERNS[regexes]
    classifier = ByteClassifier(probe_classes_once(pattern.classes, pattern.rest))
    arrangements = arrangements_of_classes(pattern)
    split_on_bytes = [text for text in arrangements if is_split_on_bytes(text, pattern)]
    text = "a,".join(split_on_bytes)
    expected = [piece for piece, _ in library_split_by(regexes).pre_tokenize_str(text)]

    assert split_texts([text], pattern, classifier) == [expected]


@pytest.mark.parametrize(
    ("n_spaces", "pieces_between"),
    [
        pytest.param(2, [2], id="2"),
        pytest.param(24, [24], id="24"),
        pytest.param(26, [24, 2], id="26"),
        pytest.param(48, [24, 24], id="48"),
    ],
)
def test_runs_of_spaces_are_cut_into_added_tokens(classifiers, n_spaces, pieces_between):
    spaces = [" " * size for size in pieces_between]

    pieces = split_texts(["a" + " " * n_spaces + "b"], GPT2, classifiers["neox"], LONGEST_RUN)

    assert pieces == [["a", *spaces, "b"]]


@pytest.mark.parametrize(
    ("n_spaces", "pieces_between"),
    [
        pytest.param(1, [], id="1"),
        pytest.param(25, [24], id="25"),
        pytest.param(49, [24, 24], id="49"),
    ],
)
def test_a_space_that_remains_of_a_run_is_joined_with_the_word_after_it(
    classifiers, n_spaces, pieces_between
):
    spaces = [" " * size for size in pieces_between]

    pieces = split_texts(["a" + " " * n_spaces + "b"], GPT2, classifiers["neox"], LONGEST_RUN)

    assert pieces == [["a", *spaces, " b"]]
