"""Engines: ways to turn text into token ids, all with identical results."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import orjson

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.execution.progress import Progress, note, report_progress
from nanoset_core.tokenizers.cache import (
    CacheEntry,
    cache_folder,
    from_array,
    installed_version,
    to_array,
)
from nanoset_core.tokenizers.engines.gate import (
    GatedEngine,
    GigatokenEngine,
    is_installed,
    make_gate,
)
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.proof import all_canaries, differing
from nanoset_core.tokenizers.engines.reference import (
    Encoded,
    EncodingError,
    Engine,
    LibraryPanicError,
    NotRecognisedError,
    ReferenceEngine,
    WrongTokensError,
    panics_as_errors,
    reference_engine,
)
from nanoset_core.tokenizers.engines.rules import Rules, read_rules
from nanoset_core.tokenizers.files import Definition, define
from nanoset_core.untrusted import safe_logger

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

logger = safe_logger(__name__)


def make_engine(
    tokenizer_json: str | os.PathLike[str],
    kind: str = "auto",
    *,
    cache: str | os.PathLike[str] | None = None,
    without: Collection[str] = (),
) -> Engine:
    """Return the engine for a tokenizer.

    Args:
        tokenizer_json: Its file.
        kind: `auto` takes the first of `gigatoken` (where it is installed) and `numpy` that gives
            the reference's tokens for test texts, else the `tokenizers` library; the choice is in
            `.name` and the reason in `.reason`. One of these names takes that engine, under the
            same conditions.
        cache: Folder in which proofs are kept for the next start; by default in the user's cache
            folder.
        without: Name and version of engines that are not trusted with this tokenizer.

    Raises:
        ConfigError: An unknown kind; a tokenizer that the engine asked for does not understand; or
            `gigatoken` where it is not installed.
        MissingError, FormatError: See load_tokenizer.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = reference_engine(tokenizer_json)
    if kind == "tokenizers":
        return reference
    folder = cache_folder() if cache is None else Path(cache)
    source = _Source(define(tokenizer_json), reference, folder, without)
    reasons = []
    for name in [kind] if kind != "auto" else _MAKERS if is_installed() else ["numpy"]:
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

    definition: Definition
    reference: ReferenceEngine
    folder: Path | None
    without: Collection[str]

    def kept(self, kind: str, engine: str) -> CacheEntry:
        """Return the cache entry of what is known of the tokenizer; raise WrongTokensError for a
        distrusted engine.
        """
        kept = CacheEntry(kind, f"{self.definition.fingerprint} {engine}", self.folder)
        if engine in self.without:
            kept.drop("the engine gave wrong tokens")
            raise WrongTokensError(f"the {engine} engine gave wrong tokens for a document")
        return kept

    def numpy(self) -> NumpyEngine:
        """Return the numpy engine, proven now or by an earlier process."""
        name = f"numpy {installed_version(NumpyEngine.package)}"
        words, kept = self.kept("words", name), self.kept("numpy", name)
        if (found := kept.load()) is not None:
            return NumpyEngine(Rules.from_arrays(found), self.reference, words=words)
        report_progress(_proving("numpy"))
        content = orjson.loads(self.definition.json())
        rules, texts = read_rules(content), all_canaries(content)
        del content  # some 20 MB
        _prove(NumpyEngine(rules, self.reference), texts)
        kept.save(rules.to_arrays())
        # without the words of the test texts
        return NumpyEngine(rules, self.reference, words=words)

    def gigatoken(self) -> GatedEngine:
        """Return the gigatoken engine, proven now or by an earlier process."""
        kept = self.kept("gigatoken", f"gigatoken {installed_version(GigatokenEngine.package)}")
        gate = kept.load()
        if gate is not None and "refusal" in gate:
            raise WrongTokensError(from_array(gate["refusal"]))
        content = orjson.loads(self.definition.json()) if gate is None else {}
        known = make_gate(content) if gate is None else gate
        engine = GigatokenEngine(self.definition.source)
        if gate is None:
            report_progress(_proving("gigatoken"))
            try:
                with panics_as_errors():
                    wrong = differing(
                        GatedEngine(engine, known, self.reference),
                        self.reference,
                        all_canaries(content),
                    )
            except Exception as error:
                raise _refused(kept, f"it failed: {error!r}"[:500]) from error
            if wrong:
                raise _refused(kept, f"{len(wrong):,} of them differ")
            kept.save(known)
        return GatedEngine(engine, known, self.reference, self.numpy)


def _proving(engine: str) -> Progress:
    return note(f"proving the {engine} engine for this tokenizer (once)")


def _prove(engine: NumpyEngine, texts: Sequence[str]) -> None:
    try:
        with panics_as_errors():
            is_same = engine.splits_as(engine.reference, texts) and not differing(
                engine, engine.reference, texts
            )
    except (EncodingError, LibraryPanicError) as error:
        raise NotRecognisedError(
            f"the tokenizers library fails on a test text: {one_line(error)}"[:500]
        ) from error
    if not is_same:
        raise WrongTokensError(
            "the numpy engine gave other tokens than the tokenizers library for some test texts"
        )


def _refused(kept: CacheEntry, why: str) -> WrongTokensError:
    """Keep why the gigatoken engine is not used, and return that."""
    refusal = (
        f"the gigatoken engine gives other tokens than the tokenizers library for test texts: {why}"
    )
    kept.save({"refusal": to_array(refusal)})
    return WrongTokensError(refusal)


_MAKERS: Mapping[str, Callable[[_Source], Engine]] = {
    "gigatoken": _Source.gigatoken,
    "numpy": _Source.numpy,
}
"""By name, the fastest first."""
