"""The class of every code point and every byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.classes import (
    SEPARATOR,
    SPACE,
    ByteClassifier,
    are_in,
    probe_classes,
)
from nanoset_core.tokenizers.engines.patterns import SPLIT_PATTERNS


@pytest.mark.parametrize("pattern", SPLIT_PATTERNS.values(), ids=lambda pattern: pattern.name)
def test_classes_found_in_bulk_are_those_found_one_by_one(pattern):
    classes = probe_classes(pattern.classes, pattern.rest)
    edges = np.flatnonzero(np.diff(classes))[::41]
    for point in [*range(0x80), *edges.tolist(), *(edges + 1).tolist()]:
        if not 0xD800 <= point < 0xE000:
            found = [
                value
                for members, value in pattern.classes
                if are_in(members, np.array([point])).all()
            ]
            assert classes[point] == (found or [pattern.rest])[-1], hex(point)


def test_every_byte_has_the_class_of_its_character(known):
    classes_of = {kind: known[kind][0].classes for kind in ("llama3", "o200k", "deepseek")}
    classifiers = {kind: ByteClassifier(classes) for kind, classes in classes_of.items()}

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.text(max_size=12), max_size=5))
    def check(texts):
        data = b"\xff".join([b"", *(text.encode() for text in texts), b""])
        for kind, classes in classes_of.items():
            note(kind)
            expected, wide_spaces = [SEPARATOR], []
            for text in texts:
                for character in text:
                    value, size = int(classes[ord(character)]), len(character.encode())
                    if value == SPACE and size > 1:
                        wide_spaces.append(len(expected))
                    expected += [value] * size
                expected.append(SEPARATOR)
            found = classifiers[kind].classify(data)
            assert [places.tolist() for places in found] == [expected[: len(data)], wide_spaces]

    check()


def test_every_code_point_is_read_from_its_bytes(known):
    classes = known["gpt2"][0].classes
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    data = "".join(map(chr, points)).encode() + b"\xff"
    leads = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)[:-1]
    np.testing.assert_array_equal(ByteClassifier(classes).classify(data)[0][leads], classes[points])
