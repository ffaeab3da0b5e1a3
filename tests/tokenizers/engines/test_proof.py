"""Canaries, the texts on which engines are compared, reveal a wrong engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pytest

from helpers.small_tokenizers import CHARACTER_KINDS
from nanoset_core.tokenizers.engines import Encoded
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.proof import all_canaries, differing
from nanoset_core.tokenizers.engines.reference import ReferenceEngine

COMPARED_KINDS = ["gpt2", *CHARACTER_KINDS]
"""A kind with a split pattern, and all kinds without one."""


class NewerLibrary:
    """Encodes like the reference, but knows a newer version of Unicode, which changes texts."""

    def __init__(self, reference: ReferenceEngine, text_before: str, text_after: str) -> None:
        self._reference = reference
        self._text_before = text_before
        self._text_after = text_after

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts after the change."""
        changed_texts = [text.replace(self._text_before, self._text_after) for text in texts]
        return self._reference.encode(changed_texts)


@pytest.fixture
def canaries(tokenizer_files, kind):
    """The canaries for a tokenizer of each kind."""
    return all_canaries(json.loads(tokenizer_files[kind].read_bytes()))


def texts_with(part: str, canaries: Sequence[str]) -> list[str]:
    """Return the canaries that contain a text."""
    return [text for text in canaries if part in text]


# What the canaries contain


def test_the_canaries_have_characters_of_every_class(known_tokenizers, kind, canaries):
    """Whether the engine finds the right class is tested by `make_engine` on the canaries."""
    classes = known_tokenizers[kind].rules.classes
    points = sorted({ord(character) for character in "".join(canaries)})

    classes_of_canaries = np.unique(classes[points]).tolist()

    assert classes_of_canaries == np.unique(classes).tolist()


@pytest.mark.parametrize("kind", COMPARED_KINDS)
def test_the_canaries_have_longer_runs_than_the_added_tokens(known_tokenizers, kind, canaries):
    """Longer runs are cut into several added tokens, which an engine may do wrongly."""
    ids_by_length = known_tokenizers[kind].rules.runs.values()
    longest = max(map(max, ids_by_length), default=0)
    longer_run = "\t" * (longest + 1)

    texts_with_longer_run = [text for text in canaries if longer_run in text]

    assert texts_with_longer_run


FAULTS = {
    "one class of characters": lambda text: "½" in text,
    "a pair of classes": lambda text: "中'" in text,
    "one combining mark": lambda text: "\u0345" in text,
    "a character of a late version of Unicode": lambda text: "\U00016d6b" in text,
    "a character that is not assigned, where marks are sorted": lambda text: "\u0345\u0378" in text,
    "a plane": lambda text: max(text, default="") > "\U000f0000",
    "long words": lambda text: "a" * 300 in text,
    "a contraction": lambda text: text == "I'll",
    "an added token within a word": lambda text: "x<|endoftext|>y" in text,
    "an added token at the end": lambda text: text.endswith(("é<|endoftext|>", "中<|endoftext|>")),
}
"""What engines may get wrong → whether it is in a text."""


@pytest.mark.parametrize("kind", ["gpt2"])
@pytest.mark.parametrize("is_affected", FAULTS.values(), ids=FAULTS)
def test_the_canaries_contain_what_engines_may_get_wrong(canaries, is_affected):
    affected_canaries = [text for text in canaries if is_affected(text)]

    assert affected_canaries


# What the canaries reveal


# `make_engine` compares Gemma's kind in tests of its own.
@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "llama2", "metaspace", "metaspace_split"])
def test_the_numpy_engine_gives_the_right_tokens_for_the_canaries(engine, reference, canaries):
    assert differing(engine, reference, canaries) == []


@pytest.mark.parametrize("kind", ["gpt2", "digits", "o200k", "deepseek"])
def test_the_canaries_reveal_a_wrong_class_of_one_character(known_tokenizers, kind, canaries):
    rules, reference = known_tokenizers[kind]

    for point in (0x41, 0x31, 0x2028, 0xAA, 0x1FFFF):
        classes = rules.classes.copy()
        classes[point] = classes[point] % 3 + 1  # another class
        wrong_engine = NumpyEngine(dataclasses.replace(rules, classes=classes), reference)
        # Other texts are split as before.
        affected_canaries = texts_with(chr(point), canaries)
        assert not wrong_engine.splits_as(reference, affected_canaries), hex(point)


@pytest.mark.parametrize("kind", COMPARED_KINDS)
def test_the_canaries_reveal_two_merges_with_the_wrong_token(known_tokenizers, kind, canaries):
    rules, reference = known_tokenizers[kind]
    merges = rules.vocabulary.merges.copy()  # (n_merges, 3): left, right and merged token
    merges[[3, 200], 2] = merges[[200, 3], 2]
    wrong_vocabulary = dataclasses.replace(rules.vocabulary, merges=merges)
    wrong_engine = NumpyEngine(dataclasses.replace(rules, vocabulary=wrong_vocabulary), reference)

    # The words of the vocabulary are the last canaries: they are likely to reveal it.
    last_canaries = canaries[-500:]
    assert differing(wrong_engine, reference, last_canaries)


@pytest.mark.parametrize("kind", ["qwen2"])
@pytest.mark.parametrize(
    ("text_before", "text_after"),
    [
        pytest.param("\u0378", "x", id="a character is assigned"),
        pytest.param("\u0345\u0c50", "\u0c50\u0345", id="a mark is assigned, and sorted"),
    ],
)
def test_the_canaries_reveal_a_library_of_a_newer_unicode(
    engine, reference, canaries, text_before, text_after
):
    newer_library = NewerLibrary(reference, text_before, text_after)

    # The library changes no other texts.
    assert differing(engine, newer_library, texts_with(text_before, canaries))
