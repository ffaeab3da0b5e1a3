"""Engines: ways to turn text into token ids, all with identical results."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal, get_args

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe.checks import CheckedEngine, canary_texts, same_pieces, same_tokens
from nanoset_core.tokenization.bpe.gigatoken import GigatokenEngine, InertTextEngine, check_supported
from nanoset_core.tokenization.bpe.numpy_engine import NumpyEngine
from nanoset_core.tokenization.bpe.probe_cache import (
    TokenizerProbe,
    cache_folder,
    load_cached,
    probe_tokenizer,
    save_cached,
)
from nanoset_core.tokenization.bpe.reference import Encoded, Engine, ReferenceEngine
from nanoset_core.tokenization.bpe.rules import Recognition, describe, recognise
from nanoset_core.tokenization.bpe.vocabulary import NotRecognisedError

__all__ = ["KINDS", "Encoded", "Engine", "EngineName", "Recognition", "make_engine", "recognise"]

EngineName = Literal["auto", "numpy", "tokenizers", "gigatoken"]
"""Values of the `engine` setting."""
KINDS: tuple[EngineName, ...] = get_args(EngineName)

logger = logging.getLogger(__name__)


def make_engine(
    tokenizer_json: str | os.PathLike[str], kind: str = "auto", *, cache: str | os.PathLike[str] | None = None
) -> Engine:
    """The engine for a `tokenizer.json`.

    Args:
        tokenizer_json: the file.
        kind: `auto` takes the numpy engine where it understands the tokenizer exactly and gives the reference's tokens
            for canary texts, else the `tokenizers` library; the choice is in `.name` and the reason in `.reason`.
            `gigatoken` is the library of that name, under the same conditions and checks.
        cache: folder in which probes of tokenizers are kept for the next start; by default in the user's cache folder.

    Raises:
        ConfigError: an unknown kind; a tokenizer that the checks of the engine asked for do not understand; or
            `gigatoken` where it is not installed.
        MissingError, FormatError: see load_tokenizer.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = ReferenceEngine(tokenizer_json)
    if kind == "tokenizers":
        return reference
    folder = cache_folder() if cache is None else Path(cache)
    try:
        if kind == "gigatoken":
            engine: Engine = _gigatoken_engine(tokenizer_json, reference, folder)
        else:
            engine = _numpy_engine(tokenizer_json, reference, folder)
    except NotRecognisedError as error:
        if kind != "auto":
            raise ConfigError(
                f"the {kind} engine cannot be checked with this tokenizer",
                where=tokenizer_json,
                found=error,
                expected="a BPE of one of the kinds that docs/performance.md names",
                remedy="set engine: auto or engine: tokenizers",
            ) from error
        reference.reason = f"not for the numpy engine: {error}"
        engine = reference
    logger.info("%s: %s engine: %s", tokenizer_json, engine.name, engine.reason)
    return engine


def _numpy_engine(tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, folder: Path | None) -> Engine:
    """The numpy engine, or the reference where canary texts show a difference."""
    recalled = load_cached(tokenizer_json, folder)
    engine = _passing(recalled, reference) if recalled else None
    if engine:
        return engine
    known = probe_tokenizer(tokenizer_json, reference)
    engine = _passing(known, reference)
    if engine:
        save_cached(known, tokenizer_json, folder)
        return engine
    return _fallback(tokenizer_json, reference, "numpy")


def _gigatoken_engine(
    tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, folder: Path | None
) -> Engine:
    """The gigatoken engine, or the reference where canary texts show a difference."""
    engine: Engine = GigatokenEngine(tokenizer_json)
    known = load_cached(tokenizer_json, folder)
    if known is None:
        known = probe_tokenizer(tokenizer_json, reference)
        save_cached(known, tokenizer_json, folder)
    check_supported(known.rules)
    if known.rules.form:
        engine = InertTextEngine(engine, reference)
    if same_tokens(engine, reference, canary_texts(known.rules, known.classes)):
        return CheckedEngine(engine, reference, reason="asked for, canary passed")
    return _fallback(tokenizer_json, reference, GigatokenEngine.name)


def _fallback(tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, name: str) -> Engine:
    reference.reason = f"the {name} engine gave other tokens than the reference for the canary texts"
    logger.warning("%s: %s; the reference is used instead", tokenizer_json, reference.reason)
    return reference


def _passing(known: TokenizerProbe, reference: ReferenceEngine) -> Engine | None:
    """The numpy engine if it gives the reference's pre-tokens and tokens for canary texts."""
    engine = NumpyEngine(known.rules, known.classes, reference)
    texts = canary_texts(known.rules, known.classes)
    if not (same_pieces(engine, reference, texts) and same_tokens(engine, reference, texts)):
        return None
    reason = f"{describe(known.rules.split)} recognised, canary passed"
    return CheckedEngine(engine, reference, reason=reason)
