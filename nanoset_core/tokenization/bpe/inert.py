"""Text that two libraries, which know different versions of Unicode, are sure to understand alike; and the other text.

What a version has assigned never changes its normal form later, and an earlier version leaves alone what it does not
know. So text is the same in all of them where it holds only characters that are assigned and, under a normal form,
normal by themselves, no marks that sort, and no second halves of compositions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from unicodedata import category, combining, decomposition, is_normalized

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.classes import CODE_POINTS
from nanoset_core.tokenization.bpe.numpy_engine import interleave
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, not_unicode
from nanoset_core.tokenization.bpe.units import any_of

Form = Literal["NFC", "NFKC"]
"""Normal forms in which text that no version of Unicode treats differently can be told from other text."""
_ASCII = bytes(range(0x80))
_SURVEYED = 0x40000  # beyond are private use, tags and nothing
_JAMO = slice(0x1100, 0x1200)  # parts of syllables compose by a rule of their own
_INERT, _CHANGING, _LEFT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Normalising:
    """How text is brought to a normal form, before an engine sees it that knows none."""

    form: Form
    """Which one."""
    points: Sequence[int]
    """Where runs of code points begin and end, in turn, that it may change."""
    normalise: Callable[[str], str]
    """The reference's."""
    trusts_python: bool = False
    """Whether the reference leaves alone what Python calls normal."""
    tokens: Sequence[str] = ()
    """Added tokens that are looked for before text is normalised."""


class InertTextEngine:
    """Encodes with one engine, but text that the two may understand differently with the reference.

    Where the engine knows no normal form, text that the form may change is normalised for it by the reference.
    """

    def __init__(
        self,
        fast: Engine,
        reference: Engine,
        points: Sequence[int] | None = None,
        tokens: Sequence[str] = (),
        normalising: Normalising | None = None,
    ) -> None:
        """points: as `doubtful_points` gives them; default: those of NFC. tokens: text with one is doubtful too."""
        self._fast = fast
        self._reference = reference
        self._tokens = tuple(tokens)
        self._normalising = normalising
        self._kinds = np.zeros(CODE_POINTS, np.int8)
        if normalising:
            self._kinds[_members(normalising.points)] = _CHANGING
            self._raw_tokens = re.compile(any_of([token.encode() for token in normalising.tokens]))
        self._kinds[_members(doubtful_points("NFC") if points is None else points)] = _LEFT
        self.name, self.version, self.reason = fast.name, fast.version, fast.reason

    @property
    def helper(self) -> str:
        """Name and version of what encodes doubtful text, where that is not the reference itself."""
        return self._reference.helper

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        try:
            prepared = list(map(self._prepared, texts))
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        here = [text for text in prepared if text is not None]
        if len(here) == len(texts):
            return self._fast.encode(here)
        left = np.fromiter((text is None for text in prepared), bool, len(texts))
        there = self._reference.encode([text for text, normal in zip(texts, prepared, strict=True) if normal is None])
        encoded = self._fast.encode(here)
        ids, lengths = interleave(left, (there.ids, there.lengths), (encoded.ids, encoded.lengths))
        return Encoded(ids, lengths.astype(np.int32))

    def _prepared(self, text: str) -> str | None:
        """A text as the engine is to see it; None where it is for the reference."""
        kind = self._kind(text)
        if kind == _CHANGING:
            return self._normal(text)
        return text if kind == _INERT else None

    def _kind(self, text: str) -> int:
        if any(token in text for token in self._tokens):
            return _LEFT
        if text.isascii():
            return _INERT
        others = text.encode().translate(None, _ASCII).decode().encode("utf-32-le")
        return int(self._kinds.take(np.frombuffer(others, "<u4")).max())

    def _normal(self, text: str) -> str | None:
        """A text in its normal form; None where an added token is looked for before that, or it is doubtful then.

        Line by line, most of which the form cannot change: nothing composes with a line end.
        """
        normal = "\n".join(map(self._normal_line, text.split("\n")))
        if any(self._raw_tokens.search(one.encode()) for one in {text, normal}) or self._kind(normal) == _LEFT:
            return None
        return normal

    def _normal_line(self, line: str) -> str:
        normalising = self._normalising
        if normalising is None or self._kind(line) == _INERT:
            return line
        if normalising.trusts_python and is_normalized(normalising.form, line):
            return line
        return normalising.normalise(line)


def doubtful_points(form: Form | None) -> list[int]:
    """Where runs of code points begin and end, in turn, that versions of Unicode may treat differently.

    That is those which are not assigned, and those which a normal form may change.
    """
    doubtful = np.ones(CODE_POINTS, bool)
    seconds = []
    for point in range(_SURVEYED):
        character = chr(point)
        parts = decomposition(character) if form else ""
        if parts and not parts.startswith("<"):
            seconds += [int(part, 16) for part in parts.split()[1:]]
        doubtful[point] = category(character) in ("Cn", "Cs") or (
            form is not None and (combining(character) != 0 or not is_normalized(form, character))
        )
    if form:
        doubtful[seconds] = True
        doubtful[_JAMO] = True
    bounds: list[int] = np.flatnonzero(np.diff(doubtful, prepend=False, append=False)).tolist()
    return bounds


def holds_any(points: Sequence[int], text: str) -> bool:
    """Whether a text holds one of the code points; these as `doubtful_points` gives them."""
    return bool(_members(points)[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")].any())


def _members(bounds: Sequence[int]) -> NDArray[np.bool_]:
    """bool, shape (0x110000,): which code points are in the runs that begin and end, in turn, at the bounds."""
    steps = np.zeros(CODE_POINTS + 1, np.int8)
    steps[list(bounds[::2])] = 1
    steps[list(bounds[1::2])] = -1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
