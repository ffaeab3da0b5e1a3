"""Engines that give wrong tokens for some texts, and records that name them."""

from __future__ import annotations

import numpy as np

from nanoset_core.project.project import Project
from nanoset_core.stages.shards import make as shards
from nanoset_core.tokenizers import distrust
from nanoset_core.tokenizers import engines as bpe
from nanoset_core.tokenizers.encoders import encoder_of
from nanoset_core.tokenizers.engines.engine import Encoded


class Sabotaged:
    """An engine that is wrong about some texts."""

    def __init__(self, engine, is_wrong) -> None:
        self.engine, self.is_wrong, self.reference = engine, is_wrong, engine.reference
        self.name, self.version, self.reason = engine.name, engine.version, engine.reason
        self.helper = engine.helper

    def encode(self, texts):
        encoded = self.engine.encode(texts)
        wrong = np.repeat(np.array([self.is_wrong(text) for text in texts], bool), encoded.lengths)
        return Encoded(np.where(wrong, 5, encoded.ids).astype(np.int32), encoded.lengths)


class Shortened(Sabotaged):
    """An engine that leaves out the last token of some texts."""

    def encode(self, texts):
        lists = [self.engine.encode([text]).ids for text in texts]
        kept = [
            ids[: len(ids) - self.is_wrong(text)] for ids, text in zip(lists, texts, strict=True)
        ]
        return Encoded(
            np.concatenate([np.empty(0, np.int32), *kept]),
            np.array([len(ids) for ids in kept], np.int32),
        )


def sabotaged(monkeypatch):
    """Yield a function that spoils the numpy engine for texts for which `is_wrong` is True.

    A fixture yields from this generator.
    """

    def install(is_wrong, kind=Sabotaged):
        def make(file, name="auto", **options):
            engine = bpe.make_engine(file, name, **options)
            return engine if engine.name == "tokenizers" else kind(engine, is_wrong)

        monkeypatch.setattr(shards, "make_engine", make)
        shards._loaded_engine.cache_clear()

    yield install
    shards._loaded_engine.cache_clear()


def poison(config):
    """Record that the engine which made all shards is wrong, although it is right."""
    outputs = Project.open(config).outputs
    shard = next(
        one for one in outputs.versions("shards", "web") if encoder_of(one).engine == "numpy"
    )
    encoder = encoder_of(shard)
    tokenizer = shard.recipe["options"]["tokenizer"]
    distrust.NOTEBOOK.add(
        outputs,
        distrust.Distrust(encoder.engine, encoder.version, tokenizer, "web: a.jsonl:7", "so"),
    )
