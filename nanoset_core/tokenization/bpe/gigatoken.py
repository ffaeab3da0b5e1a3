"""The `gigatoken` engine: a compiled tokenizer, an optional extra (`fast`), held to the reference's tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.canaries import added_tokens, all_canaries, texts_with
from nanoset_core.tokenization.bpe.checks import differing
from nanoset_core.tokenization.bpe.inert import Form, InertTextEngine, Normalising, doubtful_points, holds_any
from nanoset_core.tokenization.bpe.proofs import Proof, trusts_python_with
from nanoset_core.tokenization.bpe.reference import SURROGATE, Encoded, Engine, ReferenceEngine, is_panic, not_unicode
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError
from nanoset_core.tokenization.files.definition import define, installed_version

_MOST_LEFT_TOKENS = 64
_MOST_LEARNT, _WEIGHED_EVERY = 192 << 20, 16 << 20
"""Bytes by which a process may grow before the library is loaded again; characters after which that is looked at."""


class GigatokenEngine:
    """Encodes with the `gigatoken` library, on the calling thread.

    Raises:
        ConfigError: the library is not installed.
        NotRecognisedError: it cannot load the tokenizer.
    """

    name = "gigatoken"
    helper = ""

    def __init__(self, tokenizer_json: str | os.PathLike[str], *, normalises: bool = True) -> None:
        """`normalises`: whether the library does what the tokenizer's normalizer says, or is given text that was."""
        self.reason = "asked for"
        self.version = version()
        self._source = tokenizer_json
        self._normalises = normalises
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
            definition = define(self._source)
            if not self._normalises:
                content = orjson.loads(definition.json()) | {"normalizer": None}
                tokenizer = gigatoken.Tokenizer.from_json(orjson.dumps(content))
            elif definition.content is None:
                tokenizer = gigatoken.Tokenizer(os.fspath(self._source))
            else:
                tokenizer = gigatoken.Tokenizer.from_json(definition.content.json)
            # One text at a time, with what it learnt from those before; lists of texts want awkward, and in the
            # library's SentencePiece tokenizers begin with nothing each time.
            self._encode = tokenizer.backend.encode
        except BaseException as error:
            if not (isinstance(error, Exception) or is_panic(error)):
                raise
            raise NotRecognisedError(f"the library cannot load it: {error}") from error
        self._resident, self._unweighed = resident_bytes(), 0

    def _forget(self) -> None:
        """Begin anew where words have taken much memory: some versions of the library keep all they ever saw."""
        self._unweighed = 0
        if resident_bytes() - self._resident > _MOST_LEARNT:
            del self._encode
            self._load()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode documents.

        Raises:
            InputError: a text is not valid Unicode (a lone surrogate).
        """
        try:
            lists = list(map(self._encode, texts))
        except TypeError as error:
            if any(map(SURROGATE.search, texts)):
                raise not_unicode(texts) from error
            raise
        if not lists:
            return Encoded(np.empty(0, np.int32), np.empty(0, np.int32))
        self._unweighed += sum(map(len, texts))
        if self._unweighed > _WEIGHED_EVERY:
            self._forget()
        lengths = np.fromiter(map(len, lists), np.int32, len(lists))
        return Encoded(np.concatenate(lists).view(np.int32), lengths)


def resident_bytes() -> int:
    """Memory that this process takes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def is_installed() -> bool:
    """Whether the library is there."""
    return "gigatoken" in sys.modules or find_spec("gigatoken") is not None


def version() -> str:
    """Of the library that is installed."""
    return installed_version("gigatoken")


def prove(engine: Engine, reference: ReferenceEngine, tokenizer: Mapping[str, Any], folder: Path | None) -> Proof:
    """Compare canary texts, and find out which text has to be left to the reference.

    Args:
        engine: the library with the tokenizer; without its normalizer where `form_apart` names a form.
        reference: what it is held to.
        tokenizer: the parsed `tokenizer.json`.
        folder: where is kept what holds for every tokenizer.
    """
    try:
        form, tokens = normal_form(tokenizer), ambiguous_tokens(tokenizer)
    except NotRecognisedError as error:
        return Proof(refusal=str(error))
    if apart := form_apart(tokenizer):
        raw = (token["content"] for token in tokenizer.get("added_tokens") or [] if not token.get("normalized", True))
        proof = Proof(
            left_points=doubtful_points(None),
            form=apart,
            changing_points=doubtful_points(apart),
            raw_tokens=tuple(filter(None, raw)),
            trusts_python=trusts_python_with(apart, folder),
        )
    else:
        proof = Proof(left_points=doubtful_points(form))
    try:
        found = _wrong_tokens(with_proof(engine, reference, reference, proof, tokens), reference, tokenizer)
        proof = replace(proof, left_tokens=tuple(sorted({*tokens, *found})))
        if len(proof.left_tokens) > _MOST_LEFT_TOKENS:
            return Proof(refusal=f"it gets {len(proof.left_tokens):,} added tokens wrong", is_wrong=True)
        whole = with_proof(engine, reference, reference, proof)
        wrong = differing(whole, reference, all_canaries(tokenizer))
    except BaseException as error:
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        return Proof(refusal=f"it failed with a canary text: {error!r}"[:500], is_wrong=True)
    if wrong:
        return Proof(refusal=f"it gave other tokens for {len(wrong):,} canary texts", is_wrong=True)
    return proof


def with_proof(
    engine: Engine, reference: ReferenceEngine, rest: Engine, proof: Proof, tokens: Sequence[str] | None = None
) -> InertTextEngine:
    """An engine that is given only such text as it was proven with.

    Args:
        engine: the library with the tokenizer.
        reference: what it is held to, which normalises text for it.
        rest: encodes other text.
        proof: what was found.
        tokens: in place of those that it says are left.
    """
    normalising = None
    if proof.form:
        normalising = Normalising(
            proof.form, proof.changing_points, reference.normalise, proof.trusts_python, proof.raw_tokens
        )
    return InertTextEngine(
        engine, rest, proof.left_points, proof.left_tokens if tokens is None else tokens, normalising
    )


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


def form_apart(tokenizer: Mapping[str, Any]) -> Form | None:
    """The form to which the reference can bring text before the library sees it.

    None where the normalizer does nothing or more than that, or added tokens that are looked for in normalised text may
    change under it.
    """
    normalizer = tokenizer.get("normalizer") or {}
    members = normalizer.get("normalizers") if normalizer.get("type") == "Sequence" else [normalizer]
    forms = [member.get("type") for member in members or []]
    if len(forms) != 1 or forms[0] not in get_args(Form):
        return None
    form: Form = forms[0]  # type: ignore[assignment]
    normalized = [token for token in tokenizer.get("added_tokens") or [] if token.get("normalized", True)]
    points = doubtful_points(form)
    return None if any(holds_any(points, token["content"]) for token in normalized) else form


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
    share characters of a text, the order decides; one of each such pair is enough to tell that text by. A token that
    takes along the white space beside it may share that with those that begin or end with some.

    Raises:
        NotRecognisedError: both of a pair are white space, which is everywhere.
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
    """Whether two strings can share characters of a text."""
    sizes = range(1, min(len(first), len(other)))
    return first in other or other in first or any(first[-n:] == other[:n] or other[-n:] == first[:n] for n in sizes)
