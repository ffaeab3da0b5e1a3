"""Engines: ways to turn text into token ids, all with identical results.

The reference is the tokenizer's own library. Faster engines are compared with it on canary texts
(`proof`) before they are used with a tokenizer for the first time:

    gigatoken   a compiled library, if it is installed, behind a gate (`gigatoken`, `gate`)
    numpy       BPE as array operations, if its rules are recognised (`numpy_engine`, `rules`)
    tokenizers  the reference (`reference`)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import orjson

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.execution.progress import TaskNote, report_progress
from nanoset_core.tokenizers.cache import (
    CacheEntry,
    cache_folder,
    from_array,
    installed_version,
    to_array,
)
from nanoset_core.tokenizers.engines.engine import (
    Encoded,
    EncodingError,
    Engine,
    NotRecognisedError,
    WrongTokensError,
)
from nanoset_core.tokenizers.engines.gigatoken import GigatokenEngine, is_installed
from nanoset_core.tokenizers.engines.proof import all_canaries, differing
from nanoset_core.tokenizers.engines.reference import ReferenceEngine, reference_engine
from nanoset_core.tokenizers.files import Definition, define
from nanoset_core.tokenizers.rust_panics import LibraryPanicError, panics_as_errors
from nanoset_core.untrusted import safe_logger

if TYPE_CHECKING:
    from nanoset_core.tokenizers.engines.gate import GatedEngine
    from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
    from nanoset_core.tokenizers.engines.rules import Rules

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

_MAX_REASON = 500  # characters
_REFUSAL = "refusal"
"""Name of the array under which the reason is saved if an engine gave wrong tokens."""

logger = safe_logger(__name__)


def make_engine(
    tokenizer_json: str | os.PathLike[str],
    kind: str = "auto",
    *,
    cache: str | os.PathLike[str] | None = None,
    without: Collection[str] = (),
) -> Engine:
    """Return an engine for a tokenizer: an implementation that turns texts into token ids.

    There are faster implementations than Hugging Face's `tokenizers` library, which defines the
    right tokens. One of them is returned if it gives the same tokens as the library for all test
    texts.

    Args:
        tokenizer_json: The tokenizer's file.
        kind: The name of an engine, or `auto` for the fastest one that gives the right tokens.
        cache: Folder in which the results of comparisons are stored for the next start. None for a
            folder in the user's cache folder.
        without: Name and version of engines not to use, because they once gave wrong tokens for a
            document with this tokenizer, such as "numpy 0.9.0".

    Returns:
        The engine. Its `name` says which one was chosen, and its `reason` why.

    Raises:
        ConfigError: The kind is unknown, the engine of that name does not understand the tokenizer,
            or `gigatoken` is not installed.
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
    """
    if kind not in KINDS:
        raise ConfigError("unknown tokenization engine", found=kind, expected=" | ".join(KINDS))
    reference = reference_engine(tokenizer_json)
    if kind == "tokenizers":
        return reference

    folder = cache_folder() if cache is None else Path(cache)
    factory = _EngineFactory(define(tokenizer_json), reference, folder, without)
    engine = _first_right_engine(factory, kind, tokenizer_json)
    logger.info("%s: %s engine: %s", tokenizer_json, engine.name, engine.reason)
    return engine


def _first_right_engine(
    factory: _EngineFactory, kind: str, tokenizer_json: str | os.PathLike[str]
) -> Engine:
    """Return the fastest tokenizer engine that gives the right tokens, or else the slow reference.

    The engines are tried in order, the fastest first. For example, gigatoken gives other tokens for
    some texts, and is refused with a warning; so numpy is tried next.

    Args:
        factory: Makes the engines, and compares them with the reference.
        kind: The name of an engine, or `auto`.
        tokenizer_json: The tokenizer's file, for messages.

    Raises:
        ConfigError: The engine that was named does not understand the tokenizer.
    """
    reasons = []  # why engines that were tried are not used
    for name in _candidates(kind):
        try:
            return factory.make(name)
        except WrongTokensError as error:
            reasons.append(str(error))
            logger.warning("%s: %s; another one is used instead", tokenizer_json, error)
        except NotRecognisedError as error:
            if kind != "auto":
                raise _unsupported_engine(kind, tokenizer_json, error) from error
            reasons.append(f"not for the {name} engine: {error}")

    factory.reference.reason = "; ".join(reasons)
    return factory.reference


def _unsupported_engine(
    kind: str, tokenizer_json: str | os.PathLike[str], error: NotRecognisedError
) -> ConfigError:
    """Return the error for an engine that the user has named and that does not know the tokenizer.

    An engine is an implementation of tokenizers, such as "numpy". Not all know every kind.

    Args:
        kind: The name of the engine.
        tokenizer_json: The tokenizer's file.
        error: Says what the engine does not know, such as "byte_fallback of the model is 1".
    """
    return ConfigError(
        f"the {kind} engine does not support this tokenizer",
        where=tokenizer_json,
        found=error,
        expected="a BPE over bytes with a common split pattern, such as that of GPT-2, Llama-3 or "
        "Qwen, or over characters with byte fallback, such as that of Llama-2",
        remedy="set engine: auto or engine: tokenizers",
    )


def _candidates(kind: str) -> list[str]:
    """Return the names of the engines to try before the reference, the fastest first."""
    if kind != "auto":
        return [kind]
    if is_installed():
        return ["gigatoken", "numpy"]
    return ["numpy"]


@dataclass(frozen=True, slots=True)
class _EngineFactory:
    """Makes the engines of one tokenizer, after comparing them with the reference.

    It imports an engine when it makes it. Many commands need only the names of the engines, and
    importing all of them takes 20 ms.
    """

    definition: Definition
    """The tokenizer."""
    reference: ReferenceEngine
    """The engine whose ids the others have to give."""
    folder: Path | None
    """Where proofs are kept; nowhere if None."""
    distrusted_engines: Collection[str]
    """Name and version of engines not to use, because they once gave wrong tokens for a document
    with this tokenizer: "numpy 0.9.0".
    """

    def make(self, name: str) -> Engine:
        """Return a fast tokenizer engine that gives the same tokens as the tokenizer's own library.

        They were compared on test texts, now or by an earlier process.

        Args:
            name: "gigatoken" or "numpy".

        Raises:
            NotRecognisedError: The engine does not understand the tokenizer.
            WrongTokensError: The engine gives other tokens than the library.
            ConfigError: The engine is not installed.
        """
        if name == "gigatoken":
            return self.make_gigatoken()
        return self.make_numpy()

    def make_numpy(self) -> NumpyEngine:
        """Return this project's own tokenizer, after checking that it gives the right tokens.

        It is faster than Hugging Face's library.

        Raises:
            NotRecognisedError: It does not understand the tokenizer.json.
            WrongTokensError: It gives other tokens than the library; or it gave some for a document
                earlier, so that it is not used any more.
        """
        from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine

        name = f"numpy {installed_version(NumpyEngine.package)}"
        saved_words = self._cache_entry("words", name)  # the tokens of frequent words
        # If it is not to be trusted, neither are these.
        self._check_is_trusted(name, saved_words)
        rules = self._proven_rules(saved_rules=self._cache_entry("numpy", name))
        return NumpyEngine(rules, self.reference, words=saved_words)

    def _proven_rules(self, saved_rules: CacheEntry) -> Rules:
        """Return the rules by which this project's own tokenizer gives the right tokens.

        They are read from the tokenizer.json. Before their first use, the tokenizer is compared
        with Hugging Face's library on test texts. Then they are saved, so that later processes need
        not compare again.

        Args:
            saved_rules: The place in the cache on disk for the rules.

        Raises:
            NotRecognisedError: Our tokenizer does not understand the tokenizer.json.
            WrongTokensError: It gives other tokens than the library.
        """
        from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
        from nanoset_core.tokenizers.engines.rules import Rules, read_rules

        arrays = saved_rules.load()
        if arrays is not None:
            return Rules.from_arrays(arrays)

        content = orjson.loads(self.definition.json())
        rules = read_rules(content)
        _report_comparison("numpy")
        canaries = all_canaries(content)  # test texts that are easy to get wrong
        del content  # some 20 MB
        _prove_numpy(NumpyEngine(rules, self.reference), canaries)
        saved_rules.save(rules.to_arrays())
        return rules

    def make_gigatoken(self) -> GatedEngine:
        """Return the fast tokenizer gigatoken, if it gives the same tokens as the reference.

        The reference is Hugging Face's library. The two are compared on test texts, which takes
        seconds, so the result is saved for later processes. It is one of these:

            a reason                     gigatoken is refused for this tokenizer
            characters and tokens        gigatoken encodes these wrongly, and all others correctly

        Texts with such characters and tokens are encoded by the library, or by this project's own
        tokenizer.

        Raises:
            NotRecognisedError: Gigatoken does not understand the tokenizer.
            WrongTokensError: It gives other tokens than the library, or did so once.
            ConfigError: It is not installed.
        """
        from nanoset_core.tokenizers.engines.gate import GatedEngine

        name = f"gigatoken {installed_version(GigatokenEngine.package)}"
        saved_result = self._cache_entry("gigatoken", name)
        self._check_is_trusted(name, saved_result)

        result = saved_result.load()
        if result is None:
            return self._prove_gigatoken(saved_result)
        if _REFUSAL in result:
            raise WrongTokensError(from_array(result[_REFUSAL]))
        gigatoken = GigatokenEngine(self.definition.source)
        return GatedEngine(gigatoken, result, self.reference, self.make_numpy)

    def _prove_gigatoken(self, saved_result: CacheEntry) -> GatedEngine:
        """Return the tokenizer gigatoken, if it gives the same tokens as Hugging Face's library.

        Some characters and tokens are known to go wrong. The *gate* lists them, and texts with
        these are left to a slower tokenizer. All other test texts must have the same tokens.

        Args:
            saved_result: The place in the cache on disk for the gate, or for the reason of a
                failure.

        Raises:
            NotRecognisedError: Gigatoken does not understand the tokenizer.
            WrongTokensError: It fails, or gives other tokens than the library.
            ConfigError: It is not installed.
        """
        from nanoset_core.tokenizers.engines.gate import GatedEngine, make_gate

        content = orjson.loads(self.definition.json())
        gate = make_gate(content)
        gigatoken = GigatokenEngine(self.definition.source)
        # In the test, the slower tokenizer is the library, so that only gigatoken can be wrong. In
        # use, it is the one in numpy if there is much text for it, as that is faster.
        self._compare_gigatoken(GatedEngine(gigatoken, gate, self.reference), content, saved_result)
        saved_result.save(gate)
        return GatedEngine(gigatoken, gate, self.reference, self.make_numpy)

    def _compare_gigatoken(
        self, candidate: GatedEngine, tokenizer_json: Any, saved_result: CacheEntry
    ) -> None:
        """Check that gigatoken gives the same tokens as Hugging Face's library for test texts.

        Args:
            candidate: Gigatoken.
            tokenizer_json: The parsed tokenizer.json, from which the test texts are made.
            saved_result: The place in the cache on disk where the reason of a failure is saved.

        Raises:
            WrongTokensError: It fails, or gives other tokens.
        """
        _report_comparison("gigatoken")
        try:
            with panics_as_errors():
                canaries = all_canaries(tokenizer_json)
                wrong_texts = differing(candidate, self.reference, canaries)
        except Exception as error:
            reason = f"it failed: {error!r}"[:_MAX_REASON]
            raise _save_refusal(saved_result, reason) from error
        if wrong_texts:
            raise _save_refusal(saved_result, f"the tokens of {len(wrong_texts):,} texts differ")

    def _cache_entry(self, kind: str, engine: str) -> CacheEntry:
        """Return where data of an engine for this tokenizer are stored, in the cache on disk.

        Args:
            kind: What is stored, such as "words".
            engine: Name and version of the engine, such as "numpy 0.9.0".
        """
        return CacheEntry(kind, f"{self.definition.fingerprint} {engine}", self.folder)

    def _check_is_trusted(self, engine: str, saved: CacheEntry) -> None:
        """Refuse an engine that once gave wrong tokens for a document, and delete its saved data.

        Args:
            engine: Name and version of the engine, such as "numpy 0.9.0".
            saved: What the engine has saved for later processes, which may be wrong, too.

        Raises:
            WrongTokensError: It did give wrong tokens.
        """
        if engine in self.distrusted_engines:
            saved.drop("the engine gave wrong tokens")
            raise WrongTokensError(f"the {engine} engine gave wrong tokens for a document")


def _report_comparison(engine: str) -> None:
    """Tell the user that an engine is being compared, which takes some seconds."""
    report_progress(TaskNote(f"proving the {engine} engine for this tokenizer (once)"))


def _prove_numpy(engine: NumpyEngine, canaries: Sequence[str]) -> None:
    """Check that this project's tokenizer in numpy gives the same tokens as Hugging Face's library.

    It must also cut the texts into the same words, which are then encoded one by one.

    Args:
        engine: The tokenizer in numpy, which knows the library's as its `reference`.
        canaries: Test texts that are easy to get wrong.

    Raises:
        NotRecognisedError: The library fails on a test text.
        WrongTokensError: There are other words or other tokens.
    """
    try:
        with panics_as_errors():
            has_same_splits = engine.splits_as(engine.reference, canaries)
            is_proven = has_same_splits and not differing(engine, engine.reference, canaries)
    except (EncodingError, LibraryPanicError) as error:
        raise NotRecognisedError(
            f"the tokenizers library fails on a test text: {one_line(error)}"[:_MAX_REASON]
        ) from error
    if not is_proven:
        raise WrongTokensError(
            "the numpy engine gave other tokens than the tokenizers library for some test texts"
        )


def _save_refusal(saved_result: CacheEntry, reason: str) -> WrongTokensError:
    """Save why the fast tokenizer gigatoken is not used, and return that reason as an error.

    Later processes find the reason, and need not compare gigatoken with Hugging Face's library
    again.

    Args:
        saved_result: The place in the cache on disk where the reason is saved.
        reason: How gigatoken differs from the library, such as "the tokens of 3 texts differ".
    """
    refusal = (
        "the gigatoken engine gives other tokens than the tokenizers library for test texts: "
        f"{reason}"
    )
    saved_result.save({_REFUSAL: to_array(refusal)})
    return WrongTokensError(refusal)
