"""Engines: ways to turn text into token ids, all with identical results."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.engines.base import Encoded, Engine
from nanoset_core.tokenization.engines.canary import canary_texts, same_pieces, same_tokens
from nanoset_core.tokenization.engines.checked import CheckedEngine
from nanoset_core.tokenization.engines.knowledge import Knowledge, cache_folder, find_out, keep, recall
from nanoset_core.tokenization.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenization.engines.recognition import NotRecognisedError, Recognition, recognise
from nanoset_core.tokenization.engines.reference import ReferenceEngine

__all__ = ["KINDS", "Encoded", "Engine", "Recognition", "make_engine", "recognise"]

KINDS = ("auto", "numpy", "tokenizers")
"""Values of the `engine` setting."""

logger = logging.getLogger(__name__)


def make_engine(
    tokenizer_json: str | os.PathLike[str], kind: str = "auto", *, cache: str | os.PathLike[str] | None = None
) -> Engine:
    """The engine for a `tokenizer.json`.

    "auto" takes the numpy engine where it understands the tokenizer exactly and gives the reference's tokens for canary
    texts, else the `tokenizers` library; the choice is in `.name` and the reason in `.reason`. `cache`: folder in which
    what was found out about tokenizers is kept for the next start, by default in the user's cache folder.
    Raises ConfigError for an unknown kind, or for "numpy" with a tokenizer that it does not understand; MissingError
    and FormatError for the file.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = ReferenceEngine(tokenizer_json)
    if kind == "tokenizers":
        return reference
    folder = cache_folder() if cache is None else Path(cache)
    try:
        engine: Engine = _numpy_engine(tokenizer_json, reference, folder)
    except NotRecognisedError as error:
        if kind == "numpy":
            raise ConfigError(
                "the numpy engine does not understand this tokenizer",
                where=tokenizer_json,
                found=error,
                expected="byte-level BPE with the split pattern of GPT-2, GPT-NeoX, Llama-3 or Qwen2",
                remedy="set engine: auto or engine: tokenizers",
            ) from error
        reference.reason = f"not for the numpy engine: {error}"
        engine = reference
    logger.info("%s: %s engine: %s", tokenizer_json, engine.name, engine.reason)
    return engine


def _numpy_engine(tokenizer_json: str | os.PathLike[str], reference: ReferenceEngine, folder: Path | None) -> Engine:
    """The numpy engine, or the reference where canary texts show a difference. Raises NotRecognisedError."""
    recalled = recall(tokenizer_json, folder)
    engine = _passing(recalled, reference) if recalled else None
    if engine:
        return engine
    known = find_out(tokenizer_json, reference)
    engine = _passing(known, reference)
    if engine:
        keep(known, tokenizer_json, folder)
        return engine
    reference.reason = "the numpy engine gave other tokens than the reference for the canary texts"
    logger.warning("%s: %s; the reference is used instead", tokenizer_json, reference.reason)
    return reference


def _passing(known: Knowledge, reference: ReferenceEngine) -> Engine | None:
    """The numpy engine if it gives the reference's pre-tokens and tokens for canary texts."""
    engine = NumpyEngine(known.rules, known.classes, reference)
    texts = canary_texts(known.rules, known.classes)
    if not (same_pieces(engine, reference, texts) and same_tokens(engine, reference, texts)):
        return None
    reason = f"{known.rules.split.pattern} split pattern recognised, canary passed"
    return CheckedEngine(engine, reference, reason=reason)
