"""Engines that give wrong tokens for some texts, and records of distrust."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import open_project
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards import one_shard as shards
from nanoset_core.tokenizers import distrust, engines
from nanoset_core.tokenizers.distrust import Distrust
from nanoset_core.tokenizers.encoders import encoder_of
from nanoset_core.tokenizers.engines import Encoded, Engine

WRONG_TOKEN = 5


class EngineWithWrongTokens:
    """An engine that gives WRONG_TOKEN for all tokens of some texts."""

    def __init__(self, engine: Engine, is_wrong: Callable[[str], bool]) -> None:
        """Wrap an engine.

        Args:
            engine: Gives the right tokens.
            is_wrong: Text → whether its tokens are wrong.
        """
        self.engine = engine
        self.is_wrong = is_wrong
        self.reference = engine.reference
        self.name = engine.name
        self.version = engine.version
        self.reason = engine.reason
        self.helper = engine.helper

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, some of them wrongly."""
        encoded = self.engine.encode(texts)
        is_text_wrong = np.array([self.is_wrong(text) for text in texts], bool)
        is_token_wrong = np.repeat(is_text_wrong, encoded.lengths)
        ids = np.where(is_token_wrong, WRONG_TOKEN, encoded.ids)
        return Encoded(ids.astype(np.int32), encoded.lengths)


class EngineWithMissingTokens(EngineWithWrongTokens):
    """An engine that leaves out the last token of some texts."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, some of them wrongly."""
        ids = [np.empty(0, np.int32)]
        lengths = []
        for text in texts:
            tokens = self.engine.encode([text]).ids
            if self.is_wrong(text):
                tokens = tokens[:-1]
            ids.append(tokens)
            lengths.append(len(tokens))
        return Encoded(np.concatenate(ids), np.array(lengths, np.int32))


SpoilEngine = Callable[..., None]
"""Spoils the numpy engine: (is_wrong, wrapper=EngineWithWrongTokens)."""


def engine_spoiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpoilEngine]:
    """Yield a function that lets the numpy engine give wrong tokens for some texts.

    A fixture yields from this generator.
    """

    def spoil(
        is_wrong: Callable[[str], bool],
        wrapper: type[EngineWithWrongTokens] = EngineWithWrongTokens,
    ) -> None:
        """Spoil the numpy engine.

        Args:
            is_wrong: Text → whether its tokens are wrong.
            wrapper: Says in which way they are wrong.
        """

        def make_engine(file: Path, name: str = "auto", **options: Any) -> Any:
            engine = engines.make_engine(file, name, **options)
            if engine.name == "tokenizers":
                return engine
            return wrapper(engine, is_wrong)

        monkeypatch.setattr(shards, "make_engine", make_engine)
        shards._loaded_engine.cache_clear()

    yield spoil
    shards._loaded_engine.cache_clear()


def shards_of_numpy(outputs: OutputRoot) -> list[Manifest]:
    """Return the shards of the corpus `web` that the numpy engine encoded."""
    numpy_shards = []
    for shard in outputs.versions("shards", "web"):
        encoder = encoder_of(shard)
        if encoder is not None and encoder.engine == "numpy":
            numpy_shards.append(shard)
    return numpy_shards


def distrust_numpy(config: Path) -> None:
    """Record that the engine which made the shards of a project is wrong, although it is right."""
    outputs = open_project(config).outputs
    shard = shards_of_numpy(outputs)[0]
    encoder = encoder_of(shard)
    assert encoder is not None
    record = Distrust(
        engine=encoder.engine,
        version=encoder.version,
        tokenizer=str(shard.recipe["options"]["tokenizer"]),
        where="web: a.jsonl:7",
        what="so",
    )
    distrust.NOTEBOOK.add(outputs, record)
