"""Splitting on bytes against the library itself."""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from nanoset_core.tokenizers.engines.classes import (
    DIGITS,
    ByteClassifier,
    probe_classes,
)
from nanoset_core.tokenizers.engines.patterns import GPT2, KIMI, SPLIT_PATTERNS, SplitPattern
from nanoset_core.tokenizers.engines.splits import piece_starts


def vectorised(
    pattern: SplitPattern, classes, texts: list[str], longest_run: int = 0
) -> list[list[str]]:
    """Pieces of each text; texts are not empty."""
    data = b"\xff".join([b"", *(text.encode() for text in texts), b""])
    found = piece_starts(
        np.frombuffer(data, np.uint8), *ByteClassifier(classes).classify(data), pattern, longest_run
    )
    edges = np.flatnonzero(found).tolist()
    pieces: list[list[str]] = []
    for begin, end in pairwise(edges):
        if data[begin:end] == b"\xff":
            pieces.append([])
        else:
            pieces[-1].append(data[begin:end].decode())
    return pieces[:-1]


def is_native(text: str, pattern: SplitPattern) -> bool:
    """Whether a text is not empty and not left to the reference."""
    return bool(text) and not pattern.context_spans.occurs_in(text.encode())


def test_fast_and_library_agree(known, kinds, hard_texts):
    @settings(max_examples=300, deadline=None)
    @given(st.lists(hard_texts, min_size=1, max_size=4))
    def check(texts):
        for kind in kinds:
            note(kind)
            knowledge, reference = known[kind]
            pattern = knowledge.split
            native = [text for text in texts if is_native(text, pattern)]
            found = [
                [text[low:high] for _, (low, high) in reference.split(text)] for text in native
            ]
            assert not native or vectorised(pattern, knowledge.classes, native) == found

    check()


@pytest.mark.parametrize(
    "regexes", SPLIT_PATTERNS, ids=lambda regexes: SPLIT_PATTERNS[regexes].name
)
def test_every_arrangement_of_classes(regexes):
    """Three characters of any class or, if there are many, four; with apostrophes, slashes and
    contractions.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Digits, Sequence, Split

    pattern = SPLIT_PATTERNS[regexes]
    library = Sequence(
        [Digits(True) if regex == DIGITS else Split(Regex(regex), "isolated") for regex in regexes]
    )
    characters = "aA中 \u0301!1\n'/s\t" + ("〇⼀" if pattern is KIMI else "")
    arrangements = product(characters, repeat=4 if len(pattern.classes) > 5 else 3)
    whole = "a,".join(filter(partial(is_native, pattern=pattern), map("".join, arrangements)))
    expected = [text for text, _ in library.pre_tokenize_str(whole)]
    assert vectorised(pattern, probe_classes(pattern.classes, pattern.rest), [whole]) == [expected]


@pytest.mark.parametrize(
    ("spaces", "runs"),
    [(1, []), (2, [2]), (24, [24]), (25, [24]), (26, [24, 2]), (48, [24, 24]), (49, [24, 24])],
)
def test_runs_of_spaces_are_cut_and_one_left_over_goes_with_the_word(known, spaces, runs):
    found = vectorised(GPT2, known["neox"][0].classes, ["a" + " " * spaces + "b"], longest_run=24)
    left = " " if spaces % 24 == 1 else ""
    assert found == [["a", *(" " * size for size in runs), left + "b"]]
