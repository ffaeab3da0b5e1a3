"""The class of every code point and every byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenization.bpe.classes import (
    LETTER,
    NEWLINE,
    NUMBER,
    OTHER,
    SEPARATOR,
    SPACE,
    ByteClassifier,
    probe_each,
)


def test_classes_of_some_characters(known, kind):
    classes = known[kind][0].classes
    for text, value in (
        ("aZéЖ世가ſ", LETTER),
        ("09½²١", NUMBER),
        ("!'_\u0301🎉\x00\x7f", OTHER),
        (" \t\u3000\u00a0\u2028", SPACE),
    ):
        assert {int(classes[ord(character)]) for character in text} == {value}
    newline = NEWLINE if known[kind][0].rules.split.pattern == "llama3" else SPACE
    assert classes[[10, 13]].tolist() == [newline, newline]


def test_classes_found_in_bulk_are_those_found_one_by_one(known, kind):
    """All ASCII, both sides of every change of class, and every 61st code point."""
    knowledge, reference = known[kind]
    edges = np.flatnonzero(np.diff(knowledge.classes))
    points = {*range(0x80), *edges.tolist(), *(edges + 1).tolist(), *range(0x80, 0x110000, 61)} - {10, 13}
    points = sorted(point for point in points if not 0xD800 <= point < 0xE000)
    assert probe_each(reference.split, points) == {point: int(knowledge.classes[point]) for point in points}


def test_every_byte_has_the_class_of_its_character(known):
    classes = known["llama3"][0].classes
    classifier = ByteClassifier(classes)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.text(max_size=12), max_size=5))
    def check(texts):
        data = b"\xff".join([b"", *(text.encode() for text in texts), b""])
        expected, wide_spaces = [SEPARATOR], []
        for text in texts:
            for character in text:
                value, size = int(classes[ord(character)]), len(character.encode())
                if value == SPACE and size > 1:
                    wide_spaces.append(len(expected))
                expected += [value] * size
            expected.append(SEPARATOR)
        found = classifier.classify(data)
        assert found.codes.tolist() == expected[: len(data)]
        assert found.wide_spaces.tolist() == wide_spaces

    check()


def test_every_code_point_is_read_from_its_bytes(known):
    classes = known["gpt2"][0].classes
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    data = "".join(map(chr, points)).encode() + b"\xff"
    leads = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)[:-1]
    np.testing.assert_array_equal(ByteClassifier(classes).classify(data).codes[leads], classes[points])
