"""Whether an engine splits and merges as the reference does: on canary texts, before it is used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.numpy_engine import NumpyEngine
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, ReferenceEngine
from nanoset_core.tokenization.bpe.rules import Rules

_LONGEST_RUN = 60
_SAMPLED_WORDS = 2000
_WORDS_OF_A_TEXT = 200
_CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll", "RE", "vE", "S", "ſ", "rs", "l")


def canary_texts(rules: Rules, classes: NDArray[np.uint8]) -> list[str]:
    """Every class beside every other, all edges between classes, runs, contractions, and what goes to the reference."""
    samples = _samples_of_classes(classes)
    texts = ["".join(first + "".join(rest) for rest in product(samples, repeat=2)) for first in samples]
    # Without the zero, which would leave all of a text to the reference.
    for beside in "a! 中":
        pairs = (beside + edge for edge in _edges_of_classes(classes) if edge != "\0")
        texts.append("".join(pair for pair in pairs if pair.encode() not in rules.tangles))
    texts += ["中".join(map(chr, range(0x2000, 0x3400)))]
    longest = max(
        [_LONGEST_RUN, *(2 * max(runs) + 2 for runs in (rules.space_runs, *rules.literal_runs.values()) if runs)]
    )
    texts += ["x".join(character * size for size in range(1, longest)) for character in " \n\t1=aé中"]
    texts += ["a" * size for size in (64, 65, 255, 256, 300)]
    texts += [
        before + "'" + letters + after
        for letters in _CONTRACTIONS
        for before in ("", " ", "I", "\n")
        for after in ("", "x", " ")
    ]
    texts += ["", "\tx y", "\0", "a\0b", "e\u0301 \u212b n\u0303o", "\u0345\u0301a"]
    texts += [f"x{token.decode()}y {token.decode()}" for token in rules.added_tokens[:20]]
    words = _words(rules)
    return texts + [
        " ".join(words[place : place + _WORDS_OF_A_TEXT]) for place in range(0, len(words), _WORDS_OF_A_TEXT)
    ]


def same_tokens(engine: Engine, reference: Engine, texts: Sequence[str]) -> bool:
    """Whether two engines give the same tokens for each text."""
    ours, theirs = engine.encode(texts), reference.encode(texts)
    return np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths)


def differing(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Numbers of the texts for which two engines give different tokens."""
    ours, theirs = engine.encode(texts), reference.encode(texts)
    if np.array_equal(ours.ids, theirs.ids) and np.array_equal(ours.lengths, theirs.lengths):
        return []
    pairs = zip(*(np.split(one.ids, np.cumsum(one.lengths)[:-1]) for one in (ours, theirs)), strict=True)
    return [number for number, (here, there) in enumerate(pairs) if not np.array_equal(here, there)]


def same_pieces(engine: NumpyEngine, reference: ReferenceEngine, texts: Sequence[str]) -> bool:
    """Whether the numpy engine cuts each text into pre-tokens as the library does, where it makes any."""
    if not engine.follows_pattern:
        return True
    return all(
        engine.piece_begins(text) == [begin for _, (begin, _) in reference.split(text)]
        for text in texts
        if text.encode() not in engine.tangles
    )


def _edges_of_classes(classes: NDArray[np.uint8]) -> list[str]:
    """First and last character of each run of code points of one class, surrogates left out."""
    begins = np.flatnonzero(np.diff(classes, prepend=255))
    points = np.unique(np.concatenate([begins, begins[1:] - 1]))
    return [chr(point) for point in points.tolist() if not 0xD800 <= point < 0xE000]


def _samples_of_classes(classes: NDArray[np.uint8]) -> list[str]:
    """For each class a character of each length in UTF-8, where there is one, the last of those."""
    bounds = (0x01, 0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x110000)
    samples = []
    for value, (low, high) in product(np.unique(classes).tolist(), pairwise(bounds)):
        found = np.flatnonzero(classes[low:high] == value)
        if len(found) and low != 0xD800:
            samples.append(chr(low + int(found[-1])))
    return [*samples, " ", "'"]


def _words(rules: Rules) -> list[str]:
    """Readable words from all over the vocabulary; none that holds an added token, which is for the reference."""
    vocabulary = rules.vocabulary
    ends = np.cumsum(vocabulary.lengths)
    data = vocabulary.data.tobytes()
    chosen = range(0, len(ends), max(1, len(ends) // _SAMPLED_WORDS))
    words = [data[ends[i] - vocabulary.lengths[i] : ends[i]].decode(errors="ignore") for i in chosen]
    together = "\n".join(words)
    present = [token for token in map(bytes.decode, rules.added_tokens) if token in together]
    return [word for word in words if not any(token in word for token in present)]


class ProvenEngine:
    """An engine that gave the reference's tokens for canary texts.

    May be called from several threads; one at a time gets on.
    """

    def __init__(self, fast: Engine, reference: Engine, *, reason: str) -> None:
        self._engine = fast
        self._lock = threading.Lock()
        self.reference = reference
        self.name, self.version, self.reason = fast.name, fast.version, reason

    @property
    def helper(self) -> str:
        """Name and version of an engine beside the reference that encodes what this one leaves aside; or nothing."""
        return self._engine.helper

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        with self._lock:
            return self._engine.encode(texts)
