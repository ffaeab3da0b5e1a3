"""The `gigatoken` engine: a compiled tokenizer, an optional extra (`fast`), held to the reference's tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from unicodedata import category, combining, decomposition, is_normalized

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.classes import CODE_POINTS
from nanoset_core.tokenization.bpe.numpy_engine import interleave
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, not_unicode
from nanoset_core.tokenization.bpe.rules import Rules
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError

_SURVEYED = 0x40000  # beyond are private use, tags and nothing
_JAMO = slice(0x1100, 0x1200)  # parts of syllables compose by a rule of their own


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread; byte-level BPE only.

    Raises:
        ConfigError: the library is not installed.
        NotRecognisedError: it cannot load the tokenizer.
    """

    name = "gigatoken"

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.reason = "asked for"
        try:
            import gigatoken
        except ImportError as error:
            raise ConfigError(
                "the gigatoken engine is not installed",
                where="engine: gigatoken",
                found=str(error),
                remedy="pip install 'nanoset-platform[fast]', or set engine: auto",
            ) from error
        try:
            self._tokenizer = gigatoken.Tokenizer(os.fspath(tokenizer_json))
        except (RuntimeError, ValueError) as error:
            raise NotRecognisedError(f"the library cannot load it: {error}") from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        import awkward

        try:
            data = [text.encode() for text in texts]
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        if not data:
            return Encoded(np.empty(0, np.int32), np.empty(0, np.int32))
        # Our parallelism is processes.
        lists = self._tokenizer.encode_batch(data, parallel=False)
        lengths = awkward.to_numpy(awkward.num(lists, axis=1))
        ids = awkward.to_numpy(awkward.flatten(lists, axis=1))
        return Encoded(ids.astype(np.int32), lengths.astype(np.int32))


def check_supported(rules: Rules) -> None:
    """Refuse tokenizers for which the library is known to give other tokens, or was not compared on enough text.

    Raises:
        NotRecognisedError: it is one of those; the message says why.
    """
    if rules.form == "NFKC" or not rules.has_pattern:
        raise NotRecognisedError("not compared on enough text with NFKC, or without a split pattern")
    normalized = rules.normalized_tokens
    if rules.form and normalized:
        raise NotRecognisedError(f"added token {normalized[0].decode()!r} is looked for in {rules.form} text")
    raw = set(rules.added_tokens) - set(normalized)
    overlapping = ((first, other) for first in raw for other in normalized if _overlap(first, other))
    for first, other in overlapping:
        raise NotRecognisedError(f"added tokens {first.decode()!r} and {other.decode()!r} overlap")
    if rules.space_runs and any(b" " in token for token in rules.added_tokens):
        raise NotRecognisedError("added tokens of spaces, and others with spaces")


def _overlap(first: bytes, other: bytes) -> bool:
    """Whether two strings can share bytes of a text."""
    sizes = range(1, min(len(first), len(other)))
    return first in other or other in first or any(first[-n:] == other[:n] or other[-n:] == first[:n] for n in sizes)


class InertTextEngine:
    """Encodes text that NFC leaves alone with one engine, and all other text with the reference.

    Libraries know different versions of Unicode. But what a version has assigned never changes its normal form later,
    and an earlier version leaves alone what it does not know; so text is the same in all of them where it holds only
    characters that are assigned, normal by themselves, no marks that sort, and no second halves of compositions.
    """

    def __init__(self, fast: Engine, reference: Engine) -> None:
        self._fast = fast
        self._reference = reference
        self._changes = _points_that_nfc_may_change()
        self.reason = fast.reason

    @property
    def name(self) -> str:
        """Name of the fast engine."""
        return self._fast.name

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        try:
            may_change = np.fromiter(map(self._may_change, texts), bool, len(texts))
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        if not may_change.any():
            return self._fast.encode(texts)
        pairs = list(zip(texts, may_change.tolist(), strict=True))
        there = self._reference.encode([text for text, changes in pairs if changes])
        here = self._fast.encode([text for text, changes in pairs if not changes])
        ids, lengths = interleave(may_change, (there.ids, there.lengths), (here.ids, here.lengths))
        return Encoded(ids, lengths.astype(np.int32))

    def _may_change(self, text: str) -> bool:
        if text.isascii():
            return False
        return bool(self._changes.take(np.frombuffer(text.encode("utf-32-le"), "<u4")).any())


def _points_that_nfc_may_change() -> NDArray[np.bool_]:
    """bool, shape (0x110000,): False for characters that NFC leaves alone whatever is beside them."""
    changes = np.ones(CODE_POINTS, bool)
    seconds = []
    for point in range(_SURVEYED):
        character = chr(point)
        parts = decomposition(character)
        if parts and not parts.startswith("<"):
            seconds += [int(part, 16) for part in parts.split()[1:]]
        changes[point] = (
            category(character) in ("Cn", "Cs") or combining(character) != 0 or not is_normalized("NFC", character)
        )
    changes[seconds] = True
    changes[_JAMO] = True
    return changes
