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
from nanoset_core.tokenization.bpe.gate import GatedEngine, check_canaries, make_gate
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
from nanoset_core.tokenization.bpe.rules import Rules, compile_tokenizer
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
    installed = [name for name in _MAKERS if name != GigatokenEngine.name or gigatoken.is_installed()]
    for name in installed if kind == "auto" else [kind]:
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
        content: Mapping[str, Any] = orjson.loads(define(self.file).json())
        return content


def _numpy_engine(source: _Source) -> NumpyEngine:
    """Return the numpy engine, proven now or by an earlier process."""
    words, kept = source.kept("words"), source.kept("numpy")
    if (NumpyEngine.name, numpy_engine.version()) in source.without:
        words.drop("the engine gave wrong tokens")
        raise WrongTokensError("the numpy engine gave wrong tokens for a document")
    if (found := kept.load()) is not None:
        return NumpyEngine(Rules.from_arrays(found), source.reference, words=words)
    content = source.content()
    rules = compile_tokenizer(content, source.reference)
    engine, texts = NumpyEngine(rules, source.reference), all_canaries(content)
    if not engine.splits_as(source.reference, texts) or differing(engine, source.reference, texts):
        raise WrongTokensError("the numpy engine gave other tokens for some canary texts")
    kept.save(rules.to_arrays())
    return NumpyEngine(rules, source.reference, words=words)  # without the words of the canary texts


def _gigatoken_engine(source: _Source) -> GatedEngine:
    """Return the gigatoken engine, proven now or by an earlier process."""
    if (GigatokenEngine.name, gigatoken.version()) in source.without:
        raise WrongTokensError("the gigatoken engine gave wrong tokens for a document")
    kept = source.kept("gigatoken", gigatoken.version())
    found = kept.load()
    if found is not None and "refusal" in found:
        raise WrongTokensError(from_array(found["refusal"]))
    gate = make_gate(source.content()) if found is None else found
    engine = GigatokenEngine(source.file)
    if found is None:
        try:
            check_canaries(engine, gate, source.reference, source.content())
        except WrongTokensError as error:
            refusal = f"the gigatoken engine does not give the reference's tokens for the canary texts: {error}"
            kept.save({"refusal": to_array(refusal)})
            raise WrongTokensError(refusal) from error
        kept.save(gate)
    return GatedEngine(engine, gate, source.reference, partial(_numpy_engine, source))


_MAKERS: Mapping[str, Callable[[_Source], Engine]] = {"gigatoken": _gigatoken_engine, "numpy": _numpy_engine}
"""By name, the fastest first."""
