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
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from typing import Any, Protocol, get_args
from unicodedata import category, combining, decomposition, is_normalized, normalize, ucd_3_2_0

import numpy as np

from nanoset_core.tokenizers.cache import Arrays, from_array, to_array
from nanoset_core.tokenizers.engines.arrays import Bools, Ints
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
_ASCII = bytes(range(0x80))
_ASSIGNED_BELOW = 0x40000  # code points; beyond are private use, tags and nothing

logger = safe_logger(__name__)


class CompiledEngine(Protocol):
    """Encodes texts that pass the gate."""

    name: str
    version: str

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Turn documents into token ids, without adding special tokens.

        Args:
            texts: The documents in UTF-8. The gate has let them pass.

        Returns:
            The ids of all documents, in their order.
        """
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
        """Combine a fast tokenizer with one for the text that the fast one may encode wrongly.

        Args:
            fast: The fast one, in compiled code.
            gate: The arrays that `make_gate` returns: the characters and tokens with which text
                must not go to the fast one.
            reference: The tokenizer's own library, which encodes such text at first.
            make_fallback: Makes a faster one for such text. It is called once there was much of it.
                It may raise NotRecognisedError or WrongTokensError; then the library goes on to
                encode it.
        """
        self.name = fast.name
        self.version = fast.version
        self.reason = "same tokens as the tokenizers library on test texts"
        self.reference = reference
        self.helper = ""
        self._fast = fast
        self._make_fallback = make_fallback
        self._faster_fallback: Engine | None = None  # not made yet
        self._n_refused_characters = 0  # that the fast one must not encode
        self._is_doubtful = gate["doubtful"]  # bool, shape (0x110000,)
        tokens = [token.encode() for token in from_array(gate["tokens"])]
        self._added_tokens = AddedTokens(tokens)
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents, most of them with the fast, compiled tokenizer.

        It may be wrong for documents with a special token, or with a character that versions of
        Unicode treat differently. A slower one encodes these:

            documents    "the cat"  "a<|endoftext|>b"  "the dog"
            encoded by   fast       slow               fast

        Args:
            texts: The documents.

        Returns:
            Their tokens, in the order of the documents.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The slower tokenizer fails on a text.
        """
        # One thread at a time: `_fallback_for` counts how much text is refused.
        with self._lock:
            utf8_texts = encode_utf8(texts)
            is_refused = self._find_refused(texts, utf8_texts)  # (n_texts,)
            if not is_refused.any():
                return self._fast.encode(utf8_texts)

            passed_texts = list(compress(utf8_texts, ~is_refused))
            passed = self._fast.encode(passed_texts)
            refused_texts = list(compress(texts, is_refused))
            refused = self._fallback_for(refused_texts).encode(refused_texts)

            # Put the tokens of both back into the order of the documents.
            return interleave(is_refused, if_true=refused, if_false=passed)

    def begin(self) -> None:
        """Start a new output.

        Which engine helps with it then depends on the texts of this output alone, and not on
        earlier ones.
        """
        with self._lock:
            self._n_refused_characters = 0
            self.helper = ""

    def _fallback_for(self, texts: Sequence[str]) -> Engine:
        """Return the tokenizer for texts that the fast, compiled one must not encode.

        This is Hugging Face's library at first, which is slow. After 65,536 characters of such text
        (FALLBACK_CHARACTERS), it is a faster one. Making it takes time, which does not pay off
        earlier.

        Args:
            texts: The texts.
        """
        self._n_refused_characters += sum(map(len, texts))
        if self._n_refused_characters <= FALLBACK_CHARACTERS:
            return self.reference

        if self._faster_fallback is None:
            self._faster_fallback = self._make_faster_fallback()
        if self._faster_fallback is not self.reference:
            # For reports
            self.helper = f"{self._faster_fallback.name} {self._faster_fallback.version}"
        return self._faster_fallback

    def _make_faster_fallback(self) -> Engine:
        """Return a faster tokenizer than Hugging Face's library, or the library if there is none.

        It is for much text that the compiled tokenizer must not encode.
        """
        if self._make_fallback is None:
            return self.reference
        try:
            return self._make_fallback()
        except (NotRecognisedError, WrongTokensError) as error:
            # Our own engine does not understand the tokenizer.
            logger.info(
                "text that the %s engine must not encode goes to the tokenizers library: %s",
                self.name,
                error,
            )
            return self.reference

    def _find_refused(self, texts: Sequence[str], encoded: Sequence[bytes]) -> Bools:
        """Find the texts that the fast, compiled tokenizer must not encode.

        These are texts with a special token such as <|endoftext|>, or with a character that
        versions of Unicode treat differently.

        Args:
            texts: All texts of a batch.
            encoded: The UTF-8 of each text.

        Returns:
            bool, shape (n_texts,).
        """
        is_refused = np.zeros(len(texts), bool)
        is_refused[self._added_tokens.find(encoded)] = True

        # ASCII characters are never doubtful: search the other texts only.
        searched = [index for index, text in enumerate(texts) if not text.isascii()]
        if searched:
            matches = self._find_doubtful([encoded[index] for index in searched])
            refused = np.array(searched)[matches]  # indices into `texts`
            is_refused[refused] = True
        return is_refused

    def _find_doubtful(self, texts: list[bytes]) -> Ints:
        """Return which texts have a character that the fast tokenizer may encode wrongly.

        ASCII characters are never doubtful, so only the others are looked up.

        Args:
            texts: Texts in UTF-8.

        Returns:
            int64, shape (n_doubtful_characters,), ascending: for each such character, the index of
            its text. For "aé" and "Ω☃☃", if ☃ is such a character, 1 1.
        """
        other_characters = [text.translate(None, _ASCII).decode() for text in texts]
        joined = "".join(other_characters)  # éΩ☃☃
        code_points = np.frombuffer(joined.encode("utf-32-le"), "<u4")
        doubtful = np.flatnonzero(self._is_doubtful.take(code_points))  # the characters 2 and 3

        # The texts stop after 1 and 4 characters. The index of a character's text is the number of
        # texts that stop before it.
        text_stops = np.cumsum([len(characters) for characters in other_characters])
        return np.searchsorted(text_stops, doubtful, side="right")


def make_gate(tokenizer: Mapping[str, Any]) -> Arrays:
    """Return which characters and tokens a fast tokenizer, in compiled code, may encode wrongly.

    A text that contains one of them has to be encoded by a slower tokenizer. They are

    - characters that versions of Unicode treat differently, since the fast tokenizer may have
      another version;
    - special (added) tokens, such as <|endoftext|>.

    Args:
        tokenizer: A parsed `tokenizer.json`, Hugging Face's format for tokenizers.

    Returns:
        doubtful: bool, shape (0x110000,): whether each code point is one of the characters.
        tokens: JSON list of the tokens.

    Raises:
        NotRecognisedError: The tokenizer changes text first, by anything but one Unicode normal
            form.
    """
    form = _normal_form(tokenizer.get("normalizer"))

    # Leave out tokens of white space alone. Nearly all texts contain one, so that the fast
    # tokenizer would get hardly any text.
    tokens = {token for token in added_tokens(tokenizer) if not token.isspace()}

    # Tokens may also be found in text that was converted to the normal form before.
    if form is not None:
        tokens |= {normalize(form, token) for token in tokens}
    return {"doubtful": doubtful_points(form), "tokens": to_array(sorted(tokens))}


def _normal_form(normalizer: Any) -> Form | None:
    """Return the Unicode normal form to which a tokenizer converts text, such as NFC, or None.

    A `tokenizer.json` can change text in many ways. Only these are accepted here:

        null                                          no change: the result is None
        {"type": "NFC"}                               the result is "NFC"
        {"type": "Sequence", "normalizers": […]}      several steps: at most one normal form; the
                                                      others may only write spaces as ▁

    Args:
        normalizer: The entry of the `tokenizer.json`.

    Raises:
        NotRecognisedError: The normalizer does anything else. Fast tokenizers were not compared
            with Hugging Face's library on enough text of this kind.
    """
    if not normalizer:
        return None
    steps = [normalizer]
    if normalizer["type"] == "Sequence":
        steps = normalizer["normalizers"]

    types = {step["type"] for step in steps if not _writes_spaces(step)}
    if not types:
        return None
    form: Form = types.pop()
    if types or form not in get_args(Form):  # the names in the type `Form`: NFC, NFKC
        names = sorted({form, *types})
        raise NotRecognisedError(
            f"engines were not compared on enough text with the normalizer {' and '.join(names)}"
        )
    return form


def _writes_spaces(normalizer: Any) -> bool:
    """Return whether a normalizer does nothing but put ▁ before a text, or in place of spaces."""
    prepends_sign: bool = normalizer["type"] == "Prepend"
    replaces_spaces: bool = normalizer.get("pattern") == {"String": " "}
    return prepends_sign or replaces_spaces


def doubtful_points(form: Form | None) -> Bools:
    """Return which characters versions of Unicode may treat differently.

    A fast tokenizer may have an older or newer version of Unicode than Hugging Face's library, and
    then give other tokens for such a character. All versions that are in use know Unicode 3.2. So
    these are doubtful:

        code points without a character    a newer version may assign one
        later characters                   an older version leaves them alone; this matters only if
                                           a newer one changes them, in a text that is normalized

    Args:
        form: The normal form to which the tokenizer converts text, such as NFC, which writes "e"
            and an accent as "é"; None if it does not.

    Returns:
        bool, shape (0x110000,): for each code point.
    """
    composable_points: set[int] = set()
    if form is not None:
        composable_points = _composable_points()  # combine with others, as "e" and accents do
    is_doubtful = np.ones(CODE_POINTS, bool)  # there are no characters from _ASSIGNED_BELOW on
    for point in range(_ASSIGNED_BELOW):
        is_doubtful[point] = _is_doubtful(point, form, composable_points)
    return is_doubtful


def _is_doubtful(point: int, form: Form | None, composable_points: Collection[int]) -> bool:
    """Return whether versions of Unicode may treat a character differently.

    Args:
        point: The code point of the character.
        form: The normal form to which the tokenizer converts text, or None.
        composable_points: Code points that normalization may combine with another character.
    """
    character = chr(point)
    if category(character) in ("Cn", "Cs"):  # no character, or a surrogate, which no text has
        return True
    if form is None:
        return False
    # All versions normalize the characters of Unicode 3.2 in the same way. Older versions leave
    # later characters alone, which matters if newer ones do not.
    if not _is_late(point):
        return False
    return point in composable_points or _may_change_alone(character, form)


def _may_change_alone(character: str, form: Form) -> bool:
    """Return whether normalisation replaces a character, or may move it.

    It moves combining marks: it sorts those after a letter.
    """
    is_mark = combining(character) != 0
    return is_mark or not is_normalized(form, character)


def _composable_points() -> set[int]:
    """Return the code points that normalisation may combine with another character.

    It combines "e" and the mark ´ to "é", for example, whose decomposition is "0065 0301". One that
    starts with "<", such as "<compat> 0066 0069", works in the other direction only.
    """
    points: set[int] = set()
    for point in range(_ASSIGNED_BELOW):
        parts = decomposition(chr(point))
        if not parts.startswith("<"):
            points.update(int(part, 16) for part in parts.split())
    return points


def _is_late(point: int) -> bool:
    """Return whether a code point was assigned after Unicode 3.2."""
    return ucd_3_2_0.category(chr(point)) == "Cn"
