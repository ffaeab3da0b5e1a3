"""Engines: ways to turn text into token ids, all with identical results."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from nanoset_core.errors import ConfigError
from nanoset_core.tokenization.bpe import gigatoken, numpy_engine
from nanoset_core.tokenization.bpe.compiled import CompiledTokenizer, compile_tokenizer, form_trusts_python
from nanoset_core.tokenization.bpe.gate import Gate, GatedEngine, form_outside, proven_gate, static_gate
from nanoset_core.tokenization.bpe.gigatoken import GigatokenEngine
from nanoset_core.tokenization.bpe.numpy_engine import NumpyEngine
from nanoset_core.tokenization.bpe.proof import all_canaries, differing
from nanoset_core.tokenization.bpe.reference import (
    Encoded,
    Engine,
    NotRecognisedError,
    ReferenceEngine,
    WrongTokensError,
    reference_engine,
)
from nanoset_core.tokenization.files import TokenizerFile, as_source, define
from nanoset_core.tokenization.knowledge import Knowledge, cache_folder, from_array, to_array

__all__ = [
    "KINDS",
    "Encoded",
    "Engine",
    "EngineName",
    "ReferenceEngine",
    "make_engine",
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
    """Return the engine for a tokenizer.

    Args:
        tokenizer_json: Its file.
        kind: `auto` takes the first of `gigatoken` (where it is installed) and `numpy` that gives the reference's
            tokens for canary texts, else the `tokenizers` library; the choice is in `.name` and the reason in
            `.reason`. One of these names takes that engine, under the same conditions.
        cache: Folder in which proofs are kept for the next start; by default in the user's cache folder.
        without: (name, version) of engines that are not trusted with this tokenizer.

    Raises:
        ConfigError: An unknown kind; a tokenizer that the engine asked for does not understand; or `gigatoken` where it
            is not installed.
        MissingError, FormatError: See load_tokenizer.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = reference_engine(tokenizer_json)
    if kind == "tokenizers":
        return reference
    source = _Source(as_source(tokenizer_json), reference, cache_folder() if cache is None else Path(cache), without)
    reasons = []
    for name in _installed() if kind == "auto" else [kind]:
        try:
            engine = _MAKERS[name](source)
        except WrongTokensError as error:
            reasons.append(str(error))
            logger.warning("%s: %s; another one is used instead", tokenizer_json, error)
        except NotRecognisedError as error:
            if kind != "auto":
                raise ConfigError(
                    f"the {kind} engine cannot be checked with this tokenizer",
                    where=tokenizer_json,
                    found=error,
                    expected="a BPE of one of the kinds that docs/performance.md names",
                    remedy="set engine: auto or engine: tokenizers",
                ) from error
            reasons.append(f"not for the {name} engine: {error}")
        else:
            logger.info("%s: %s engine: %s", tokenizer_json, engine.name, engine.reason)
            return engine
    reference.reason = "; ".join(reasons)
    logger.info("%s: %s engine: %s", tokenizer_json, reference.name, reference.reason)
    return reference


@dataclass(frozen=True, slots=True)
class _Source:
    """What engines are made from."""

    file: TokenizerFile
    reference: ReferenceEngine
    folder: Path | None
    without: Collection[tuple[str, str]]

    def kept(self, kind: str, version: str = "") -> Knowledge:
        """Return the cache entry of what is known of the tokenizer."""
        return Knowledge(kind, f"{define(self.file).identity} {version}", self.folder)

    def content(self) -> Mapping[str, Any]:
        """Return the parsed tokenizer.json."""
        try:
            content = orjson.loads(define(self.file).json())
        except orjson.JSONDecodeError as error:
            raise NotRecognisedError(f"not JSON: {error}") from error
        if not isinstance(content, dict):
            raise NotRecognisedError("not built like a tokenizer.json")
        return content


def _numpy_engine(source: _Source) -> NumpyEngine:
    """Return the numpy engine, proven now or by an earlier process."""
    words, kept = source.kept("words"), source.kept("numpy")
    if (NumpyEngine.name, numpy_engine.version()) in source.without:
        words.drop("the engine gave wrong tokens")
        raise WrongTokensError("the numpy engine gave wrong tokens for a document")
    if (found := kept.load()) is not None:
        return NumpyEngine(CompiledTokenizer.from_arrays(found), source.reference, words=words)
    compiled = compile_tokenizer(source.file, source.reference, source.folder)
    engine, texts = NumpyEngine(compiled, source.reference), all_canaries(source.content())
    if not engine.splits_as(source.reference, texts) or differing(engine, source.reference, texts):
        raise WrongTokensError("the numpy engine gave other tokens for some canary texts")
    kept.save(compiled.to_arrays())
    return NumpyEngine(compiled, source.reference, words=words)  # without the words of the canary texts


def _gigatoken_engine(source: _Source) -> GatedEngine:
    """Return the gigatoken engine, proven now or by an earlier process."""
    if (GigatokenEngine.name, gigatoken.version()) in source.without:
        raise WrongTokensError("the gigatoken engine gave wrong tokens for a document")
    kept = source.kept("gigatoken", gigatoken.version())
    if (found := kept.load()) is None:
        engine, gate = _proven_gigatoken(source, kept)
    elif "refusal" in found:
        raise WrongTokensError(from_array(found["refusal"]))
    else:
        gate = Gate.from_arrays(found)
        engine = GigatokenEngine(source.file, normalises=gate.form is None)
    return GatedEngine(engine, gate, source.reference, partial(_numpy_engine, source))


def _proven_gigatoken(source: _Source, kept: Knowledge) -> tuple[GigatokenEngine, Gate]:
    content = source.content()
    gate = static_gate(content, partial(form_trusts_python, folder=source.folder))
    engine = GigatokenEngine(source.file, normalises=form_outside(content) is None)
    try:
        gate = proven_gate(engine, gate, source.reference, content)
    except WrongTokensError as error:
        refusal = f"the gigatoken engine does not give the reference's tokens for the canary texts: {error}"
        kept.save({"refusal": to_array(refusal)})
        raise WrongTokensError(refusal) from error
    kept.save(gate.to_arrays())
    return engine, gate


def _installed() -> list[str]:
    """Return the names of engines that `auto` tries, the fastest first."""
    return [name for name in _MAKERS if name != GigatokenEngine.name or gigatoken.is_installed()]


_MAKERS: Mapping[str, Callable[[_Source], Engine]] = {"gigatoken": _gigatoken_engine, "numpy": _numpy_engine}
