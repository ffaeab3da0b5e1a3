"""Text that two libraries, which know different versions of Unicode, are sure to understand alike; and the other text.

What a version has assigned never changes its normal form later, and an earlier version leaves alone what it does not
know. So text is the same in all of them where it holds only characters that are assigned and, under a normal form,
normal by themselves, no marks that sort, and no second halves of compositions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
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
_LINE_END = 0x0A
_ASCII_BUT_LINE_ENDS = bytes({*range(0x80)} - {_LINE_END})
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
            prepared = self._prepared(texts)
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        here = [text for text in prepared if text is not None]
        if len(here) == len(texts):
            return self._fast.encode(here)
        left = np.fromiter((text is None for text in prepared), bool, len(texts))
        there = self._reference.encode([text for text, kept in zip(texts, prepared, strict=True) if kept is None])
        encoded = self._fast.encode(here)
        ids, lengths = interleave(left, (there.ids, there.lengths), (encoded.ids, encoded.lengths))
        return Encoded(ids, lengths.astype(np.int32))

    def _prepared(self, texts: Sequence[str]) -> list[str | None]:
        """Each text as the engine is to see it; None where it is for the reference."""
        prepared: list[str | None] = list(texts)
        for number, (kind, lines) in self._doubtful(texts).items():
            prepared[number] = self._normal(texts[number], lines) if kind == _CHANGING else None
        if self._tokens:
            for number, text in enumerate(texts):
                if any(token in text for token in self._tokens):
                    prepared[number] = None
        return prepared

    def _doubtful(self, texts: Sequence[str]) -> dict[int, tuple[int, list[int]]]:
        """Number of each text that is not inert → its kind, and the lines of it that are not."""
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        others = "\n".join([texts[number] for number in numbers]).encode().translate(None, _ASCII_BUT_LINE_ENDS)
        points = np.frombuffer(others.decode().encode("utf-32-le"), "<u4")
        kinds = self._kinds.take(points)
        found = np.flatnonzero(kinds)
        if not len(found):
            return {}
        ends = np.cumsum([texts[number].count("\n") + 1 for number in numbers])
        lines = np.cumsum(points == _LINE_END)[found]
        owners = np.searchsorted(ends, lines, side="right")
        lines -= np.append(0, ends)[owners]
        doubtful: dict[int, tuple[int, list[int]]] = {}
        for place in np.unique(owners).tolist():
            of_text = slice(*np.searchsorted(owners, [place, place + 1]))
            kind = int(kinds[found[of_text]].max())
            doubtful[numbers[place]] = kind, np.unique(lines[of_text]).tolist()
        return doubtful

    def _normal(self, text: str, doubtful: list[int]) -> str | None:
        """A text in its normal form; None where an added token is looked for before that, or it is doubtful then.

        Other lines are normal, and nothing composes with a line end. doubtful: numbers of lines.
        """
        lines = text.split("\n")
        for number in doubtful:
            lines[number] = self._normal_line(lines[number])
        normal = "\n".join(lines)
        if normal == text:
            return text
        if any(self._raw_tokens.search(one.encode()) for one in (text, normal)):
            return None
        if self._tokens and any(token in normal for token in self._tokens):
            return None
        points = np.frombuffer("".join(lines[number] for number in doubtful).encode("utf-32-le"), "<u4")
        return None if len(points) and self._kinds[points].max() == _LEFT else normal

    def _normal_line(self, line: str) -> str:
        normalising = self._normalising
        if normalising is None or (normalising.trusts_python and is_normalized(normalising.form, line)):
            return line
        return normalising.normalise(line)


@cache
def doubtful_points(form: Form | None) -> tuple[int, ...]:
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
    return tuple(np.flatnonzero(np.diff(doubtful, prepend=False, append=False)).tolist())


def holds_any(points: Sequence[int], text: str) -> bool:
    """Whether a text holds one of the code points; these as `doubtful_points` gives them."""
    return bool(_members(points)[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")].any())


def _members(bounds: Sequence[int]) -> NDArray[np.bool_]:
    """bool, shape (0x110000,): which code points are in the runs that begin and end, in turn, at the bounds."""
    steps = np.zeros(CODE_POINTS + 1, np.int8)
    steps[list(bounds[::2])] = 1
    steps[list(bounds[1::2])] = -1
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)
