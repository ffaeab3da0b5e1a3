"""The gate in front of a compiled engine: text that it may get wrong goes to another engine.

Two libraries that know different versions of Unicode are sure to agree on normalization-stable text. What a version has
assigned never changes its normal form later, and an earlier version leaves alone what it does not know. So a text is
stable where it holds only characters that are assigned and, under a normal form, normal by themselves, no marks that
sort, and no second halves of compositions.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args
from unicodedata import category, combining, decomposition, is_normalized

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.classes import CODE_POINTS, from_runs, to_runs
from nanoset_core.tokenization.bpe.numpy_engine import interleave
from nanoset_core.tokenization.bpe.proof import added_tokens, all_canaries, differing, texts_with
from nanoset_core.tokenization.bpe.reference import (
    Encoded,
    Engine,
    NotRecognisedError,
    ReferenceEngine,
    WrongTokensError,
    not_unicode,
    panics_as_errors,
)
from nanoset_core.tokenization.bpe.units import Form, any_of
from nanoset_core.tokenization.knowledge import Arrays, from_array, to_array

FALLBACK_CHARACTERS = 1 << 18
"""Text that the reference encodes in less time than it takes to make another fallback engine."""
_MOST_LEFT_TOKENS = 64
_LINE_END = 0x0A
_ASCII_BUT_LINE_ENDS = bytes({*range(0x80)} - {_LINE_END})
_ASSIGNED_BELOW = 0x40000  # beyond are private use, tags and nothing
_JAMO = slice(0x1100, 0x1200)  # parts of syllables compose by a rule of their own
_STABLE, _CHANGING, _UNSTABLE = 0, 1, 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gate:
    """Which text a compiled engine may be given."""

    kinds: NDArray[np.uint8]
    """uint8, shape (0x110000,): _STABLE, _CHANGING (to be normalised first) or _UNSTABLE for each code point."""
    tokens: tuple[str, ...] = ()
    """Added tokens: text that holds one goes to the fallback engine."""
    form: Form | None = None
    """The normal form to which text is brought for the engine; None: the engine itself does that."""
    raw_tokens: tuple[str, ...] = ()
    """Added tokens that are looked for before text is normalised."""
    trusts_python: bool = False
    """Whether the form leaves alone what Python calls normal."""

    def to_arrays(self) -> Arrays:
        """Return all fields as arrays."""
        begins, values = to_runs(self.kinds)
        fields = {"tokens": self.tokens, "form": self.form, "raw": self.raw_tokens, "trusts_python": self.trusts_python}
        return {"begins": begins, "values": values, "gate": to_array(fields)}

    @staticmethod
    def from_arrays(arrays: Arrays) -> Gate:
        """Return the gate that `to_arrays` was asked of."""
        fields = from_array(arrays["gate"])
        kinds = from_runs(arrays["begins"], arrays["values"])
        return Gate(kinds, tuple(fields["tokens"]), fields["form"], tuple(fields["raw"]), fields["trusts_python"])


class GatedEngine:
    """Encodes with a compiled engine what passes the gate, and the rest with a fallback engine.

    The fallback is the reference until much text was left over, and then a faster engine. The engine may be called from
    several threads, one of which works at a time.
    """

    def __init__(
        self,
        fast: Engine,
        gate: Gate,
        reference: ReferenceEngine,
        make_fallback: Callable[[], Engine] | None = None,
        *,
        reason: str = "canary passed",
    ) -> None:
        """make_fallback: Makes the faster engine, or raises NotRecognisedError or WrongTokensError."""
        self.name, self.version, self.reason = fast.name, fast.version, reason
        self.reference, self.helper = reference, ""
        self._fast, self._gate = fast, gate
        self._fallback: Engine = reference
        self._make_fallback, self._characters_left = make_fallback, FALLBACK_CHARACTERS
        self._raw_tokens = re.compile(any_of([token.encode() for token in gate.raw_tokens]))
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents; raises as `Engine.encode`."""
        with self._lock:
            try:
                prepared = self._prepared(texts)
            except UnicodeEncodeError as error:
                raise not_unicode(texts) from error
            encoded = self._fast.encode([text for text in prepared if text is not None])
            if None not in prepared:
                return encoded
            left = np.fromiter((text is None for text in prepared), bool, len(texts))
            rest = [text for text, passes in zip(texts, prepared, strict=True) if passes is None]
            others = self._fallback_for(rest).encode(rest)
            ids, lengths = interleave(left, (others.ids, others.lengths), (encoded.ids, encoded.lengths))
            return Encoded(ids, lengths.astype(np.int32))

    def _fallback_for(self, texts: Sequence[str]) -> Engine:
        self._characters_left -= sum(map(len, texts))
        if self._characters_left < 0 and self._make_fallback is not None:
            make_fallback, self._make_fallback = self._make_fallback, None
            try:
                self._fallback = make_fallback()
                self.helper = f"{self._fallback.name} {self._fallback.version}"
            except (NotRecognisedError, WrongTokensError) as error:
                logger.info("text that the %s engine is not given goes to the reference: %s", self.name, error)
        return self._fallback

    def _prepared(self, texts: Sequence[str]) -> list[str | None]:
        """Return each text as the compiled engine is given it; None where it is for the fallback."""
        prepared: list[str | None] = list(texts)
        for number, (kind, lines) in self._doubtful(texts).items():
            prepared[number] = self._normal(texts[number], lines) if kind == _CHANGING else None
        if self._gate.tokens:
            for number, text in enumerate(texts):
                if self._holds_token(text):
                    prepared[number] = None
        return prepared

    def _holds_token(self, text: str) -> bool:
        return any(token in text for token in self._gate.tokens)

    def _doubtful(self, texts: Sequence[str]) -> dict[int, tuple[int, list[int]]]:
        """Return number → (kind, numbers of the lines that are not stable) of each text that is not stable."""
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        others = "\n".join([texts[number] for number in numbers]).encode().translate(None, _ASCII_BUT_LINE_ENDS)
        points = np.frombuffer(others.decode().encode("utf-32-le"), "<u4")
        kinds = self._gate.kinds.take(points)
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
        """Return a text in its normal form; None where an added token is looked for before, or it is unstable then.

        Lines that are not among the numbers in `doubtful` are normal, and nothing composes with a line end.
        """
        lines = text.split("\n")
        form = self._gate.form if self._gate.trusts_python else None
        for number in doubtful:
            if not (form and is_normalized(form, lines[number])):
                lines[number] = self.reference.normalise(lines[number])
        normal = "\n".join(lines)
        if normal == text:
            return text
        if any(self._raw_tokens.search(one.encode()) for one in (text, normal)) or self._holds_token(normal):
            return None
        points = np.frombuffer("".join(lines[number] for number in doubtful).encode("utf-32-le"), "<u4")
        return None if len(points) and self._gate.kinds[points].max() == _UNSTABLE else normal


def static_gate(tokenizer: Mapping[str, Any], trusts_python: Callable[[Form], bool]) -> Gate:
    """Return the gate that follows from a parsed `tokenizer.json`.

    Raises:
        NotRecognisedError: It normalises in a way in which engines were not compared on enough text, or has added
            tokens of white space that overlap.
    """
    form, tokens = _normal_form(tokenizer), tuple(_ambiguous_tokens(tokenizer))
    outside = form_outside(tokenizer)
    if outside is None:
        return Gate(np.where(doubtful_points(form), _UNSTABLE, _STABLE).astype(np.uint8), tokens)
    kinds = np.where(doubtful_points(outside), _CHANGING, _STABLE)
    kinds[doubtful_points(None)] = _UNSTABLE
    raw = [token["content"] for token in tokenizer.get("added_tokens") or [] if not token.get("normalized", True)]
    return Gate(kinds.astype(np.uint8), tokens, outside, tuple(filter(None, raw)), trusts_python(outside))


def proven_gate(fast: Engine, gate: Gate, reference: ReferenceEngine, tokenizer: Mapping[str, Any]) -> Gate:
    """Compare canary texts, and return the gate that also keeps out added tokens that the engine gets wrong.

    Raises:
        WrongTokensError: It gets other canary texts wrong too, or fails.
    """
    owners = [(token, text) for token in added_tokens(tokenizer) for text in texts_with(token)]
    try:
        with panics_as_errors():
            found = differing(GatedEngine(fast, gate, reference), reference, [text for _, text in owners])
            tokens = tuple(sorted({*gate.tokens, *(owners[number][0] for number in found)}))
            gate = replace(gate, tokens=tokens)
            wrong = differing(GatedEngine(fast, gate, reference), reference, all_canaries(tokenizer))
    except Exception as error:
        raise WrongTokensError(f"it failed with a canary text: {error!r}"[:500]) from error
    if len(tokens) > _MOST_LEFT_TOKENS:
        raise WrongTokensError(f"it gets {len(tokens):,} added tokens wrong")
    if wrong:
        raise WrongTokensError(f"it gave other tokens for {len(wrong):,} canary texts")
    return gate


def form_outside(tokenizer: Mapping[str, Any]) -> Form | None:
    """Return the form to which the reference can bring text before a compiled engine sees it.

    None where the normalizer does nothing or more than that, or where added tokens that are looked for in normalised
    text may change under it.
    """
    normalizer = tokenizer.get("normalizer") or {}
    members = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    forms = [member.get("type") for member in members or []]
    if len(forms) != 1 or forms[0] not in get_args(Form):
        return None
    form: Form = forms[0]  # type: ignore[assignment]
    tokens = [token["content"] for token in tokenizer.get("added_tokens") or [] if token.get("normalized", True)]
    points = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    return None if doubtful_points(form)[points].any() else form


def _normal_form(tokenizer: Mapping[str, Any]) -> Form | None:
    """Return the form to which text is normalised, beside spaces that become other characters."""
    forms = set(_forms(tokenizer.get("normalizer")))
    if len(forms) > 1:
        raise NotRecognisedError(f"the normalizers {' and '.join(sorted(forms))}")
    return forms.pop() if forms else None


def _forms(normalizer: Any) -> Iterator[Form]:
    kind: Any = None if normalizer is None else normalizer.get("type")
    if kind == "Sequence":
        for member in normalizer["normalizers"]:
            yield from _forms(member)
    elif kind in get_args(Form):
        yield kind
    elif kind not in (None, "Prepend") and not (kind == "Replace" and normalizer["pattern"] == {"String": " "}):
        raise NotRecognisedError(f"not compared on enough text with the normalizer {kind}")


def _ambiguous_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return added tokens that an engine may look for in another order than the reference.

    The reference first looks for tokens in the text as it is, then for others in normalised text. Where two tokens
    share characters of a text, the order decides; one of each such pair is enough to tell that text by. A token that
    takes along the white space beside it may share that with those that begin or end with some.
    """
    tokens = [token for token in tokenizer.get("added_tokens") or [] if token["content"]]
    normalized = [token["content"] for token in tokens if token.get("normalized", True)]
    raw = [token["content"] for token in tokens if not token.get("normalized", True)]
    pairs = [(first, other) for first in raw for other in normalized if _overlap(first, other)]
    if any(set(token) == {" "} for token in raw + normalized):
        pairs += [(token, " ") for token in raw + normalized if " " in token and set(token) != {" "}]
    stripping = [token["content"] for token in tokens if token.get("lstrip") or token.get("rstrip")]
    spaced = [token for token in raw + normalized if token[0].isspace() or token[-1].isspace()]
    pairs += [(token, other) for token in stripping for other in spaced if token != other]
    for first, other in pairs:
        if first.isspace() and other.isspace():
            raise NotRecognisedError(f"added tokens {first!r} and {other!r} overlap")
    return sorted({max(pair, key=lambda token: (not token.isspace(), len(token), token)) for pair in pairs})


def _overlap(first: str, other: str) -> bool:
    """Tell whether two strings can share characters of a text."""
    sizes = range(1, min(len(first), len(other)))
    return first in other or other in first or any(first[-n:] == other[:n] or other[-n:] == first[:n] for n in sizes)


@cache
def doubtful_points(form: Form | None) -> NDArray[np.bool_]:
    """Return which code points versions of Unicode may treat differently: bool, shape (0x110000,).

    Those are the ones that are not assigned, and those that a normal form may change.
    """
    doubtful = np.ones(CODE_POINTS, bool)
    seconds = []
    for point in range(_ASSIGNED_BELOW):
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
    return doubtful
