"""The gate before a compiled engine: text that it may get wrong goes to another engine.

A compiled engine and the reference may have been built with different versions of Unicode. They
agree on all text whose normal form is the same in every version:

- By Unicode's policy, the normal form of a string never changes once a version has assigned its
  characters. All libraries know the characters of Unicode 3.2, of 2002, with its corrections of
  2003 to 2005.
- A version leaves alone what it does not know. So later characters are safe, too, if they are
  assigned and, with a normal form, are normal by themselves, are no combining marks, which normal
  forms sort, and are no part of a composition.

All other characters are *doubtful*, and texts with one of them do not pass the gate. Neither do
texts with an added token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Protocol, get_args
from unicodedata import category, combining, decomposition, is_normalized, normalize, ucd_3_2_0

import numpy as np

from nanoset_core.tokenizers.cache import Arrays, from_array, to_array
from nanoset_core.tokenizers.engines.arrays import Bools
from nanoset_core.tokenizers.engines.classes import CODE_POINTS
from nanoset_core.tokenizers.engines.engine import (
    Encoded,
    Engine,
    NotRecognisedError,
    WrongTokensError,
    encode_utf8,
)
from nanoset_core.tokenizers.engines.numpy_engine import interleave
from nanoset_core.tokenizers.engines.proof import added_tokens
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.units import AddedTokens, Form
from nanoset_core.untrusted import safe_logger

FALLBACK_CHARACTERS = 1 << 16
"""Text that the reference encodes in less time than it takes to make another fallback engine."""
_ASCII_EXCEPT_ZERO = bytes(range(1, 0x80))
_ASSIGNED_BELOW = 0x40000  # code points; beyond are private use, tags and nothing

logger = safe_logger(__name__)


class CompiledEngine(Protocol):
    """Encodes texts that pass the gate."""

    name: str
    version: str

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Encode documents in UTF-8."""
        ...


class GatedEngine:
    """Encodes texts that pass the gate with a compiled engine, and the others with a fallback.

    The fallback is the reference at first. Once it got much text, a faster engine replaces it.
    Several threads may call the engine: one works at a time, and the others wait.
    """

    def __init__(
        self,
        fast: CompiledEngine,
        gate: Arrays,
        reference: ReferenceEngine,
        make_fallback: Callable[[], Engine] | None = None,
    ) -> None:
        """Combine the engines.

        Args:
            fast: The compiled engine.
            gate: The arrays that `make_gate` returns.
            reference: The engine whose ids this one has to give. It is the first fallback.
            make_fallback: Makes a faster fallback, which is called once the reference got much
                text. It may raise NotRecognisedError or WrongTokensError; then the reference stays
                the fallback.
        """
        self.name = fast.name
        self.version = fast.version
        self.reason = "same tokens as the tokenizers library on test texts"
        self.reference = reference
        self.helper = ""
        self._fast = fast
        self._fallback: Engine = reference
        self._make_fallback = make_fallback
        self._characters_until_fallback = FALLBACK_CHARACTERS
        self._is_doubtful = gate["doubtful"]  # bool, shape (0x110000,)
        tokens = [token.encode() for token in from_array(gate["tokens"])]
        self._added_tokens = AddedTokens(tokens)
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; those that do not pass the gate are given to the fallback.

        Args:
            texts: The documents.

        Returns:
            Their tokens, in the order of the documents.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The fallback fails on a text.
        """
        # One thread at a time, since the fallback depends on how much text it got so far.
        with self._lock:
            utf8_texts = encode_utf8(texts)
            is_refused = self._find_refused(texts, utf8_texts)
            if not is_refused.any():
                return self._fast.encode(utf8_texts)

            passed = self._fast.encode(list(compress(utf8_texts, ~is_refused)))
            refused_texts = list(compress(texts, is_refused))
            fallback = self._fallback_for(refused_texts)
            return interleave(is_refused, fallback.encode(refused_texts), passed)

    def begin(self) -> None:
        """Start a new output.

        Which engine helps with it then depends on the texts of this output alone, and not on
        earlier ones.
        """
        with self._lock:
            self._characters_until_fallback = FALLBACK_CHARACTERS
            self.helper = ""

    def _fallback_for(self, texts: Sequence[str]) -> Engine:
        """Return the engine that encodes texts which did not pass the gate.

        This is the reference until it got FALLBACK_CHARACTERS. Making a faster engine takes time,
        so it only pays off for more text.

        Args:
            texts: The texts that did not pass.
        """
        self._characters_until_fallback -= sum(map(len, texts))
        if self._characters_until_fallback >= 0:
            return self.reference

        if self._make_fallback is not None:
            make_fallback = self._make_fallback
            self._make_fallback = None  # try this once only
            try:
                self._fallback = make_fallback()
            except (NotRecognisedError, WrongTokensError) as error:
                logger.info(
                    "text that the %s engine is not given goes to the reference: %s",
                    self.name,
                    error,
                )
        if self._fallback is not self.reference:
            self.helper = f"{self._fallback.name} {self._fallback.version}"
        return self._fallback

    def _find_refused(self, texts: Sequence[str], encoded: Sequence[bytes]) -> Bools:
        """Find the texts that do not pass the gate.

        A text does not pass if it contains an added token, or a doubtful character: one that
        versions of Unicode may treat differently. All texts are searched at once for doubtful
        characters. An example with the texts "aé", "b" and "Ω☃", of which ☃ is doubtful, and 0 for
        the character zero:

            characters       é 0 Ω ☃      those that are not ASCII; "b" has none
            zeros_before     0 1 1 1      ☃ is after one zero
            zeros_to_end     1 2          so it is in the second of these texts

        Args:
            texts: All texts of a batch.
            encoded: The UTF-8 of each text.

        Returns:
            bool, shape (n_texts,).
        """
        is_refused = np.zeros(len(texts), bool)
        is_refused[self._added_tokens.find(encoded)] = True

        # Join the texts with zeros between them, without their ASCII, and look all characters up.
        indices = [index for index, text in enumerate(texts) if not text.isascii()]
        joined = b"\0".join([encoded[index] for index in indices])
        characters = joined.translate(None, _ASCII_EXCEPT_ZERO).decode()
        points = np.frombuffer(characters.encode("utf-32-le"), "<u4")  # (n_points,)
        doubtful = np.flatnonzero(self._is_doubtful.take(points))
        if not len(doubtful):
            return is_refused

        # Each text has a zero after it, in addition to its own zeros. So the number of zeros before
        # a character says which text it is in.
        zeros_to_end = np.cumsum([texts[index].count("\0") + 1 for index in indices])
        zeros_before = np.cumsum(points == 0)[doubtful]
        owners = np.searchsorted(zeros_to_end, zeros_before, side="right")
        is_refused[np.array(indices)[owners]] = True
        return is_refused


def make_gate(tokenizer: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a gate, which decides which texts a compiled engine encodes.

    Args:
        tokenizer: A parsed `tokenizer.json`.

    Returns:
        doubtful: bool, shape (0x110000,): code points whose texts the fallback encodes.
        tokens: JSON list of the added tokens whose texts the fallback encodes.

    Raises:
        NotRecognisedError: The tokenizer normalises in a way in which engines were not compared on
            enough text.
    """
    form = _normal_form(tokenizer.get("normalizer"))
    # Text with added tokens of white space alone passes the gate: nearly all text has some.
    tokens = {token for token in added_tokens(tokenizer) if not token.isspace()}
    if form is not None:
        tokens |= {normalize(form, token) for token in tokens}
    return {"doubtful": doubtful_points(form), "tokens": to_array(sorted(tokens))}


def _normal_form(normalizer: Any) -> Form | None:
    """Return the Unicode normal form that a normalizer makes.

    Args:
        normalizer: The entry of a `tokenizer.json`: an object with a type, or null. It may also
            write spaces as ▁.

    Returns:
        The normal form, or None if the normalizer makes none.

    Raises:
        NotRecognisedError: The normalizer does anything else.
    """
    if not normalizer:
        return None
    members = [normalizer]
    if normalizer["type"] == "Sequence":
        members = normalizer["normalizers"]

    kinds = set()  # of the members that do not only write spaces
    for member in members:
        writes_spaces = member["type"] == "Prepend" or member.get("pattern") == {"String": " "}
        if not writes_spaces:
            kinds.add(member["type"])
    if len(kinds) > 1 or not kinds <= set(get_args(Form)):
        raise NotRecognisedError(
            f"not compared on enough text with the normalizer {' and '.join(sorted(kinds))}"
        )
    return next(iter(kinds), None)


def doubtful_points(form: Form | None) -> Bools:
    """Return which code points versions of Unicode may treat differently.

    A compiled engine and the reference may have been built with different versions. So texts with
    such code points are not left to the compiled engine. These are the unassigned code points. With
    a normal form, these are also characters later than Unicode 3.2 that the form may change.

    Args:
        form: The normal form that the tokenizer makes; None if it makes none.

    Returns:
        bool, shape (0x110000,).
    """
    is_doubtful = np.ones(CODE_POINTS, bool)
    parts_of_compositions: set[int] = set()
    for point in range(_ASSIGNED_BELOW):
        character = chr(point)
        is_unassigned = category(character) in ("Cn", "Cs")
        is_doubtful[point] = is_unassigned
        if form is None or is_unassigned:
            continue

        # A later character may be changed by the form, or be moved among other marks.
        if _is_late(point):
            is_mark = combining(character) != 0
            is_doubtful[point] = is_mark or not is_normalized(form, character)

        # Two characters may compose to this one, which would change text that contains them.
        mapping = decomposition(character)
        if not mapping.startswith("<"):  # such as <compat>: nothing composes to it
            parts_of_compositions.update(int(part, 16) for part in mapping.split())

    late_parts = [point for point in parts_of_compositions if _is_late(point)]
    is_doubtful[late_parts] = True
    return is_doubtful


def _is_late(point: int) -> bool:
    """Return whether a code point was assigned after Unicode 3.2."""
    return ucd_3_2_0.category(chr(point)) == "Cn"
