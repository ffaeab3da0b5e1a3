"""The `gigatoken` engine: a compiled tokenizer, an optional extra (`fast`), held to the reference's tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Literal, get_args
from unicodedata import category, combining, decomposition, is_normalized

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.canaries import added_tokens, all_canaries, texts_with
from nanoset_core.tokenization.bpe.checks import differing
from nanoset_core.tokenization.bpe.classes import CODE_POINTS
from nanoset_core.tokenization.bpe.numpy_engine import interleave
from nanoset_core.tokenization.bpe.proofs import Proof
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, is_panic, not_unicode
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError
from nanoset_core.tokenization.files.definition import define, installed_version

Form = Literal["NFC", "NFKC"]
"""Normal forms in which text that no version of Unicode treats differently can be told from other text."""
_MOST_LEFT_TOKENS = 64
_ASCII = bytes(range(0x80))
_SURVEYED = 0x40000  # beyond are private use, tags and nothing
_JAMO = slice(0x1100, 0x1200)  # parts of syllables compose by a rule of their own


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread.

    Raises:
        ConfigError: the library is not installed.
        NotRecognisedError: it cannot load the tokenizer.
    """

    name = "gigatoken"
    helper = ""

    def __init__(self, tokenizer_json: str | os.PathLike[str]) -> None:
        self.reason = "asked for"
        self.version = version()
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
            definition = define(tokenizer_json)
            if definition.content is None:
                self._tokenizer = gigatoken.Tokenizer(os.fspath(tokenizer_json))
            else:
                self._tokenizer = gigatoken.Tokenizer.from_json(definition.content.json)
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            raise NotRecognisedError(f"the library cannot load it: {error}") from error
        with suppress(ImportError):  # the first text wants it; imported here, forked workers have it already
            import awkward  # noqa: F401

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


def is_installed() -> bool:
    """Whether the library is there."""
    return "gigatoken" in sys.modules or find_spec("gigatoken") is not None


def version() -> str:
    """Of the library that is installed."""
    return installed_version("gigatoken")


def prove(engine: GigatokenEngine, reference: Engine, tokenizer: Mapping[str, Any]) -> Proof:
    """Compare canary texts, and find out which text has to be left to the reference.

    Args:
        engine: the library with the tokenizer.
        reference: what it is held to.
        tokenizer: the parsed `tokenizer.json`.
    """
    try:
        form, tokens = normal_form(tokenizer), ambiguous_tokens(tokenizer)
    except NotRecognisedError as error:
        return Proof(refusal=str(error))
    points = doubtful_points(form)
    try:
        tokens = sorted(
            {*tokens, *_wrong_tokens(InertTextEngine(engine, reference, points, tokens), reference, tokenizer)}
        )
        if len(tokens) > _MOST_LEFT_TOKENS:
            return Proof(refusal=f"it gets {len(tokens):,} added tokens wrong", is_wrong=True)
        whole = InertTextEngine(engine, reference, points, tokens)
        wrong = differing(whole, reference, all_canaries(tokenizer))
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        return Proof(refusal=f"it failed with a canary text: {error!r}"[:500], is_wrong=True)
    if wrong:
        return Proof(refusal=f"it gave other tokens for {len(wrong):,} canary texts", is_wrong=True)
    return Proof(left_tokens=tuple(tokens), left_points=tuple(points))


def _wrong_tokens(engine: Engine, reference: Engine, tokenizer: Mapping[str, Any]) -> set[str]:
    """Added tokens beside which an engine gives other tokens than the reference."""
    owners = [(token, text) for token in added_tokens(tokenizer) for text in texts_with(token)]
    return {owners[number][0] for number in differing(engine, reference, [text for _, text in owners])}


def normal_form(tokenizer: Mapping[str, Any]) -> Form | None:
    """The form that a parsed `tokenizer.json` normalises text to, beside spaces that become other characters.

    Raises:
        NotRecognisedError: it normalises in a way in which the library was not compared on enough text.
    """
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


def ambiguous_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Added tokens that the library may look for in another order than the reference.

    The reference first looks for tokens in the text as it is, then for others in normalised text. Where two tokens
    share characters of a text, the order decides; one of each such pair is enough to tell that text by.

    Raises:
        NotRecognisedError: both of a pair are white space, which is everywhere.
    """
    tokens = [token for token in tokenizer.get("added_tokens") or [] if token["content"]]
    normalized = [token["content"] for token in tokens if token.get("normalized", True)]
    raw = [token["content"] for token in tokens if not token.get("normalized", True)]
    pairs = [(first, other) for first in raw for other in normalized if _overlap(first, other)]
    if any(set(token) == {" "} for token in raw + normalized):
        pairs += [(token, " ") for token in raw + normalized if " " in token and set(token) != {" "}]
    for first, other in pairs:
        if first.isspace() and other.isspace():
            raise NotRecognisedError(f"added tokens {first!r} and {other!r} overlap")
    return sorted({max(pair, key=lambda token: (not token.isspace(), len(token), token)) for pair in pairs})


def _overlap(first: str, other: str) -> bool:
    """Whether two strings can share characters of a text."""
    sizes = range(1, min(len(first), len(other)))
    return first in other or other in first or any(first[-n:] == other[:n] or other[-n:] == first[:n] for n in sizes)


class InertTextEngine:
    """Encodes with one engine, but text that the two may understand differently with the reference.

    Libraries know different versions of Unicode. But what a version has assigned never changes its normal form later,
    and an earlier version leaves alone what it does not know; so text is the same in all of them where it holds only
    characters that are assigned and, under a normal form, normal by themselves, no marks that sort, and no second
    halves of compositions.
    """

    def __init__(
        self, fast: Engine, reference: Engine, points: Sequence[int] | None = None, tokens: Sequence[str] = ()
    ) -> None:
        """points: as `doubtful_points` gives them; default: those of NFC. tokens: text with one is doubtful too."""
        self._fast = fast
        self._reference = reference
        self._tokens = tuple(tokens)
        steps = np.zeros(CODE_POINTS, np.int8)
        bounds = doubtful_points("NFC") if points is None else points
        steps[list(bounds[::2])] = 1
        steps[[end for end in bounds[1::2] if end < CODE_POINTS]] = -1
        self._doubtful = np.cumsum(steps, dtype=np.int8).astype(bool)
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
            if not self._is_doubtful("".join(texts)):
                return self._fast.encode(texts)
            doubtful = np.fromiter(map(self._is_doubtful, texts), bool, len(texts))
        except UnicodeEncodeError as error:
            raise not_unicode(texts) from error
        pairs = list(zip(texts, doubtful.tolist(), strict=True))
        there = self._reference.encode([text for text, is_doubtful in pairs if is_doubtful])
        here = self._fast.encode([text for text, is_doubtful in pairs if not is_doubtful])
        ids, lengths = interleave(doubtful, (there.ids, there.lengths), (here.ids, here.lengths))
        return Encoded(ids, lengths.astype(np.int32))

    def _is_doubtful(self, text: str) -> bool:
        if any(token in text for token in self._tokens):
            return True
        if text.isascii():
            return False
        others = text.encode().translate(None, _ASCII).decode().encode("utf-32-le")
        return bool(self._doubtful.take(np.frombuffer(others, "<u4")).any())


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
