"""The `gigatoken` engine, a compiled tokenizer, and the gate before it: what it may get wrong goes
to another one.

Libraries that know different versions of Unicode agree on normalization-stable text. By Unicode's
policy the normal form of a string never changes once a version has assigned its characters. All
libraries know those of Unicode 3.2, of 2002, with its corrections of 2003 to 2005. An earlier
version leaves alone what it does not know, so later characters are stable too where they are
assigned and, under a normal form, normal by themselves, no marks that sort, and no part of a
composition.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import compress
from typing import Any, Protocol, get_args
from unicodedata import category, combining, decomposition, is_normalized, normalize, ucd_3_2_0

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.tokenizers.cache import Arrays, from_array, installed_version, to_array
from nanoset_core.tokenizers.engines.arrays import Bools
from nanoset_core.tokenizers.engines.classes import CODE_POINTS
from nanoset_core.tokenizers.engines.numpy_engine import interleave
from nanoset_core.tokenizers.engines.proof import added_tokens
from nanoset_core.tokenizers.engines.reference import (
    Encoded,
    Engine,
    NotRecognisedError,
    ReferenceEngine,
    WrongTokensError,
    not_unicode,
    panics_as_errors,
)
from nanoset_core.tokenizers.engines.units import AddedTokens, Form
from nanoset_core.tokenizers.files import define
from nanoset_core.untrusted import safe_logger

FALLBACK_CHARACTERS = 1 << 16
"""Text that the reference encodes in less time than it takes to make another fallback engine."""
_ASCII_BUT_ZERO = bytes(range(1, 0x80))
_ASSIGNED_BELOW = 0x40000  # beyond are private use, tags and nothing

logger = safe_logger(__name__)


class CompiledEngine(Protocol):
    """Encodes texts that pass the gate."""

    name: str
    version: str

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Encode documents in UTF-8."""
        ...


class GatedEngine:
    """Encodes with a compiled engine what passes the gate, and the rest with a fallback engine.

    The fallback is the reference until much text was left over, and then a faster engine. The
    engine may be called from several threads, one of which works at a time.
    """

    def __init__(
        self,
        fast: CompiledEngine,
        gate: Arrays,
        reference: ReferenceEngine,
        make_fallback: Callable[[], Engine] | None = None,
    ) -> None:
        """gate: From `make_gate`; make_fallback: Makes the faster engine, if it can (see
        `make_engine`).
        """
        self.name, self.version, self.reason = (
            fast.name,
            fast.version,
            "same tokens as the tokenizers library on test texts",
        )
        self.reference, self.helper = reference, ""
        self._fast = fast
        self._fallback: Engine = reference
        self._doubtful = gate["doubtful"]
        self._tokens = AddedTokens([token.encode() for token in from_array(gate["tokens"])])
        self._make_fallback, self._characters_left = make_fallback, FALLBACK_CHARACTERS
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; raises as `Engine.encode`."""
        with self._lock:
            try:
                data = [text.encode() for text in texts]
            except UnicodeEncodeError as error:
                raise not_unicode(texts) from error
            stopped = self._stopped(texts, data)
            if not stopped.any():
                return self._fast.encode(data)
            encoded = self._fast.encode(list(compress(data, ~stopped)))
            rest = list(compress(texts, stopped))
            return interleave(stopped, self._fallback_for(rest).encode(rest), encoded)

    def begin(self) -> None:
        """Let what helps with the next texts depend on them alone, and not on those before."""
        with self._lock:
            self._characters_left, self.helper = FALLBACK_CHARACTERS, ""

    def _fallback_for(self, texts: Sequence[str]) -> Engine:
        self._characters_left -= sum(map(len, texts))
        if self._characters_left >= 0:
            return self.reference
        if self._make_fallback is not None:
            make_fallback, self._make_fallback = self._make_fallback, None
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

    def _stopped(self, texts: Sequence[str], encoded: Sequence[bytes]) -> Bools:
        """Return which texts are for the fallback: bool, shape (texts,)."""
        stopped = np.zeros(len(texts), bool)
        stopped[self._tokens.find(encoded)] = True
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        others = b"\0".join([encoded[number] for number in numbers]).translate(
            None, _ASCII_BUT_ZERO
        )
        points = np.frombuffer(others.decode().encode("utf-32-le"), "<u4")
        if len(found := np.flatnonzero(self._doubtful.take(points))):
            ends = np.cumsum([texts[number].count("\0") + 1 for number in numbers])
            owners = np.searchsorted(ends, np.cumsum(points == 0)[found], side="right")
            stopped[np.array(numbers)[owners]] = True
        return stopped


def make_gate(tokenizer: Mapping[str, Any]) -> Arrays:
    """Return what of a parsed `tokenizer.json` decides which text a compiled engine is given.

    Raises:
        NotRecognisedError: It normalises in a way in which engines were not compared on enough
            text.

    Returns:
        doubtful: bool, shape (0x110000,): code points for the fallback; tokens: JSON: added tokens
            for it.
    """
    normalizer = tokenizer.get("normalizer") or {"type": "Sequence", "normalizers": []}
    members = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    kinds = {member["type"] for member in members if member.get("pattern") != {"String": " "}} - {
        "Prepend"
    }
    if len(kinds) > 1 or not kinds <= {*get_args(Form)}:
        raise NotRecognisedError(
            f"not compared on enough text with the normalizer {' and '.join(sorted(kinds))}"
        )
    form = next(iter(kinds), None)
    tokens = {token for token in added_tokens(tokenizer) if not token.isspace()}
    tokens |= {normalize(form, token) for token in tokens if form}
    return {"doubtful": doubtful_points(form), "tokens": to_array(sorted(tokens))}


def doubtful_points(form: Form | None) -> Bools:
    """Return which code points versions of Unicode may treat differently: bool, shape (0x110000,).

    Those are the ones that are not assigned and, of those later than Unicode 3.2, what a normal
    form may change.
    """
    doubtful = np.ones(CODE_POINTS, bool)
    parts: set[str] = set()
    for point in range(_ASSIGNED_BELOW):
        character = chr(point)
        doubtful[point] = category(character) in ("Cn", "Cs")
        if form is None or doubtful[point]:
            continue
        doubtful[point] = _is_late(character) and (
            combining(character) != 0 or not is_normalized(form, character)
        )
        found = decomposition(character)
        parts |= set(found.split()) if not found.startswith("<") else set()
    doubtful[[point for part in parts if _is_late(chr(point := int(part, 16)))]] = True
    return doubtful


def _is_late(character: str) -> bool:
    return ucd_3_2_0.category(character) == "Cn"


_MOST_GROWN_BYTES, _CHECKED_EVERY = 192 << 20, 16 << 20
"""Growth of the process after which the library is loaded again; characters after which that is
looked at.
"""


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread; only texts that pass a `Gate`.

    Raises:
        ConfigError: The library is not installed.
        NotRecognisedError: It cannot load the tokenizer.
    """

    name = package = "gigatoken"

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.version = installed_version(self.package)
        self._definition = define(tokenizer_json)
        self._load()

    def _load(self) -> None:
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
            with panics_as_errors():
                # One text at a time: given a list, SentencePiece tokenizers forget what they learnt
                # from earlier ones.
                self._encode = gigatoken.Tokenizer.from_json(self._definition.json()).backend.encode
        except Exception as error:
            raise NotRecognisedError(f"the library cannot load it: {error}") from error
        self._resident, self._unchecked = resident_bytes(), 0

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Encode documents in UTF-8."""
        lists = list(map(self._encode, texts))
        self._unchecked += sum(map(len, texts))
        if self._unchecked > _CHECKED_EVERY:
            self._unchecked = 0
            # Some versions of the library keep all words that they ever saw.
            if resident_bytes() - self._resident > _MOST_GROWN_BYTES:
                del self._encode
                self._load()
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        return Encoded(np.concatenate([np.empty(0, np.uint32), *lists]).view(np.int32), lengths)


def resident_bytes() -> int:
    """Return the memory that this process takes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def is_installed() -> bool:
    """Tell whether the library is there."""
    return "gigatoken" in sys.modules or find_spec("gigatoken") is not None
