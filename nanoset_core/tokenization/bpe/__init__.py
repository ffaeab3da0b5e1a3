"""Engines: ways to turn text into token ids, all with identical results."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe import gigatoken, numpy_engine
from nanoset_core.tokenization.bpe.canaries import token_canaries
from nanoset_core.tokenization.bpe.checks import ProvenEngine, canary_texts, same_pieces, same_tokens
from nanoset_core.tokenization.bpe.gigatoken import GigatokenEngine, form_apart, prove, with_proof
from nanoset_core.tokenization.bpe.growing import GrowingEngine
from nanoset_core.tokenization.bpe.learned import LearnedWords
from nanoset_core.tokenization.bpe.numpy_engine import NumpyEngine
from nanoset_core.tokenization.bpe.probe_cache import (
    TokenizerProbe,
    fingerprint,
    load_cached,
    probe_tokenizer,
    save_cached,
)
from nanoset_core.tokenization.bpe.proofs import Proof, Proofs
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, ReferenceEngine
from nanoset_core.tokenization.bpe.rules import Recognition, describe, recognise
from nanoset_core.tokenization.bpe.sentencepiece import reference_engine
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError
from nanoset_core.tokenization.cache import cache_folder
from nanoset_core.tokenization.files import TokenizerFile, as_source, define

__all__ = [
    "KINDS",
    "Encoded",
    "Engine",
    "EngineName",
    "Recognition",
    "ReferenceEngine",
    "make_engine",
    "recognise",
    "reference_engine",
]

EngineName = Literal["auto", "numpy", "tokenizers", "gigatoken"]
"""Values of the `engine` setting."""
KINDS: tuple[EngineName, ...] = get_args(EngineName)

logger = logging.getLogger(__name__)


def make_engine(
    tokenizer_json: str | os.PathLike[str],
    kind: str = "auto",
    *,
    cache: str | os.PathLike[str] | None = None,
    without: Collection[tuple[str, str]] = (),
) -> Engine:
    """The engine for a `tokenizer.json`.

    Args:
        tokenizer_json: the file.
        kind: `auto` takes the first of `gigatoken` (where it is installed) and `numpy` that gives the reference's
            tokens for canary texts, else the `tokenizers` library; the choice is in `.name` and the reason in
            `.reason`. One of these names takes that engine, under the same conditions.
        cache: folder in which proofs of engines and probes of tokenizers are kept for the next start; by default in
            the user's cache folder.
        without: (name, version) of engines that are not trusted with this tokenizer.

    Raises:
        ConfigError: an unknown kind; a tokenizer that the engine asked for does not understand; or `gigatoken` where it
            is not installed.
        MissingError, FormatError: see load_tokenizer.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = reference_engine(tokenizer_json)
    if kind == "tokenizers":
        return reference
    folder = cache_folder() if cache is None else Path(cache)
    source = _Source(as_source(tokenizer_json), reference, folder, Proofs(tokenizer_json, folder), without)
    reasons = []
    for name in _FAST if kind == "auto" else (kind,):
        if kind == "auto" and name == GigatokenEngine.name and not gigatoken.is_installed():
            continue
        if (name, _VERSIONS[name]()) in without:
            reasons.append(f"the {name} engine gave wrong tokens for a document")
            if name == NumpyEngine.name and source.words:
                source.words.drop(reasons[-1])
            continue
        try:
            engine = _MAKERS[name](source)
        except WrongTokensError as error:
            reasons.append(str(error))
            logger.warning("%s: %s; another one is used instead", tokenizer_json, error)
        except NotRecognisedError as error:
            if kind != "auto":
                raise _not_for(tokenizer_json, kind, error) from error
            reasons.append(f"not for the {name} engine: {error}")
        else:
            logger.info("%s: %s engine: %s", tokenizer_json, engine.name, engine.reason)
            return engine
    reference.reason = "; ".join(reasons)
    logger.info("%s: %s engine: %s", tokenizer_json, reference.name, reference.reason)
    return reference


class WrongTokensError(Exception):
    """An engine gave other tokens than the reference for canary texts."""

    def __init__(self, name: str, found: str = "it gave other tokens for some canary texts") -> None:
        super().__init__(f"the {name} engine does not give the reference's tokens for the canary texts: {found}")


@dataclass(frozen=True, slots=True)
class _Source:
    """What engines are made from."""

    file: TokenizerFile
    reference: ReferenceEngine
    folder: Path | None
    proofs: Proofs
    without: Collection[tuple[str, str]]

    @property
    def words(self) -> LearnedWords | None:
        """What the numpy engine learns."""
        return LearnedWords(self.file, self.folder) if self.folder else None

    def content(self) -> Mapping[str, Any]:
        """The parsed file."""
        try:
            content = orjson.loads(define(self.file).json())
        except orjson.JSONDecodeError as error:
            raise NotRecognisedError(f"not JSON: {error}") from error
        if not isinstance(content, dict):
            raise NotRecognisedError("not built like a tokenizer.json")
        return content


def _not_for(tokenizer_json: str | os.PathLike[str], kind: str, error: NotRecognisedError) -> ConfigError:
    return ConfigError(
        f"the {kind} engine cannot be checked with this tokenizer",
        where=tokenizer_json,
        found=error,
        expected="a BPE of one of the kinds that docs/performance.md names",
        remedy="set engine: auto or engine: tokenizers",
    )


def _numpy_engine(source: _Source) -> Engine:
    """The numpy engine, once its pre-tokens and tokens for canary texts were those of the reference."""
    known = load_cached(source.file, source.folder)
    engine = _proven(known, source) if known else None
    if engine is None:
        known = probe_tokenizer(source.file, source.reference, source.folder)
        engine = _passing(known, source)
        if engine is None:
            raise WrongTokensError(NumpyEngine.name)
        save_cached(known, source.file, source.folder)
        _remember(source, engine)
    return engine


def _proven(known: TokenizerProbe, source: _Source) -> Engine | None:
    """The numpy engine with what an earlier start learnt, if that was compared already, or is right."""
    engine = NumpyEngine(known.rules, known.classes, source.reference, words=source.words)
    proof = source.proofs.recall(engine.name, engine.version)
    if proof is not None and proof.knowledge == fingerprint(source.file, source.folder):
        return ProvenEngine(engine, source.reference, reason=_reason(known))
    passing = _passing(known, source)
    if passing:
        _remember(source, passing)
    return passing


def _passing(known: TokenizerProbe, source: _Source) -> Engine | None:
    """The numpy engine if it gives the reference's pre-tokens and tokens for canary texts."""
    engine = NumpyEngine(known.rules, known.classes, source.reference, words=source.words)
    texts = canary_texts(known.rules, known.classes)
    if not same_pieces(engine, source.reference, texts):
        return None
    if not same_tokens(engine, source.reference, [*texts, *token_canaries(source.content())]):
        return None
    return ProvenEngine(engine, source.reference, reason=_reason(known))


def _reason(known: TokenizerProbe) -> str:
    return f"{describe(known.rules.split)} recognised, canary passed"


def _remember(source: _Source, engine: Engine) -> None:
    proof = Proof(knowledge=fingerprint(source.file, source.folder))
    source.proofs.remember(engine.name, engine.version, proof)


def _gigatoken_engine(source: _Source) -> Engine:
    """The gigatoken engine, where it is proven; text that it may get wrong is for the reference."""
    known = GigatokenEngine.name, gigatoken.version()
    proof = source.proofs.recall(*known)
    if proof is None:
        content = source.content()
        engine = GigatokenEngine(source.file, normalises=not form_apart(content))
        proof = prove(engine, source.reference, content, source.folder)
        source.proofs.remember(*known, proof)
    elif not proof.refusal:
        engine = GigatokenEngine(source.file, normalises=not proof.form)
    if proof.is_wrong:
        raise WrongTokensError(GigatokenEngine.name, proof.refusal)
    if proof.refusal:
        raise NotRecognisedError(proof.refusal)
    rest = GrowingEngine(source.reference, lambda: _rest_engine(source))
    inert = with_proof(engine, source.reference, rest, proof)
    return ProvenEngine(inert, source.reference, reason="canary passed")


def _rest_engine(source: _Source) -> Engine:
    """The numpy engine: it asks the reference about a few lines where text is not normal, not whole documents."""
    if (NumpyEngine.name, numpy_engine.version()) in source.without:
        raise NotRecognisedError("it gave wrong tokens for a document")
    try:
        return _numpy_engine(source)
    except WrongTokensError as error:
        raise NotRecognisedError(str(error)) from error


_MAKERS: Mapping[str, Callable[[_Source], Engine]] = {"gigatoken": _gigatoken_engine, "numpy": _numpy_engine}
_VERSIONS: Mapping[str, Callable[[], str]] = {"gigatoken": gigatoken.version, "numpy": numpy_engine.version}
_FAST = tuple(_MAKERS)
"""Engines that `auto` tries, the fastest first."""
