"""Every code point and every byte gets the class that the tokenizers library sees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.classes import (
    SEPARATOR,
    SPACE,
    ByteClassifier,
    are_in,
)
from nanoset_core.tokenizers.engines.patterns import SPLIT_PATTERNS

SEPARATOR_BYTE = b"\xff"


def is_surrogate(point):
    """Return whether a code point is no character."""
    return 0xD800 <= point < 0xE000


def class_of_point(pattern, point):
    """Return the class of one code point, for which the library is asked rule by rule."""
    point_class = pattern.rest
    for members, class_of_members in pattern.classes:
        if are_in(members, np.array([point])).all():
            point_class = class_of_members  # the last rule that applies counts
    return point_class


PATTERN_BY_RULES = {(pattern.classes, pattern.rest): pattern for pattern in SPLIT_PATTERNS.values()}
"""A pattern for each way to assign classes; several patterns may have the same."""


@pytest.mark.parametrize(
    "pattern", PATTERN_BY_RULES.values(), ids=lambda pattern: f"like {pattern.name}"
)
def test_code_points_have_the_same_class_when_probed_together_and_one_by_one(
    probe_classes_once, pattern
):
    classes = probe_classes_once(pattern.classes, pattern.rest)
    # ASCII, and both sides of some borders between classes.
    last_points = np.flatnonzero(np.diff(classes))[::97]
    points = [*range(0x80), *last_points.tolist(), *(last_points + 1).tolist()]

    for point in points:
        if not is_surrogate(point):
            assert classes[point] == class_of_point(pattern, point), hex(point)


class ClassesOfBytes(NamedTuple):
    """What `ByteClassifier.classify` returns, as lists."""

    byte_classes: list[int]
    """The class of each byte."""
    wide_spaces: list[int]
    """First bytes of white space of several bytes."""


def classify_slowly(texts, classes):
    """Classify the bytes of texts with a separator before and after each, character by character."""
    byte_classes = [SEPARATOR]
    wide_spaces = []
    for text in texts:
        for character in text:
            character_class = int(classes[ord(character)])
            size = len(character.encode())
            if character_class == SPACE and size > 1:
                wide_spaces.append(len(byte_classes))
            byte_classes += [character_class] * size
        byte_classes.append(SEPARATOR)
    return ClassesOfBytes(byte_classes, wide_spaces)


@pytest.fixture(scope="module")
def classes_by_kind(known_tokenizers):
    """Kind → the class of every code point, for some patterns with many classes."""
    return {kind: known_tokenizers[kind].rules.classes for kind in ("llama3", "o200k", "deepseek")}


@pytest.fixture(scope="module")
def classifier_by_kind(classes_by_kind):
    """Kind → the classifier for these patterns."""
    return {kind: ByteClassifier(classes) for kind, classes in classes_by_kind.items()}


@given(texts=st.lists(st.text(max_size=12), max_size=5))
def test_every_byte_has_the_class_of_its_character(classes_by_kind, classifier_by_kind, texts):
    utf8_texts = [text.encode() for text in texts]
    data = SEPARATOR_BYTE.join([b"", *utf8_texts, b""])

    for kind, classifier in classifier_by_kind.items():
        note(kind)
        byte_classes, wide_spaces = classifier.classify(data)

        expected = classify_slowly(texts, classes_by_kind[kind])
        assert byte_classes.tolist() == expected.byte_classes
        assert wide_spaces.tolist() == expected.wide_spaces


def test_every_code_point_is_read_from_its_bytes(known_tokenizers):
    classes = known_tokenizers["gpt2"].rules.classes
    points = [point for point in range(0x110000) if not is_surrogate(point)]
    data = "".join(map(chr, points)).encode()
    # The upper two bits are 10 in all bytes of a character but the first.
    is_first_byte = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80

    byte_classes, _ = ByteClassifier(classes).classify(data + SEPARATOR_BYTE)

    np.testing.assert_array_equal(byte_classes[:-1][is_first_byte], classes[points])
