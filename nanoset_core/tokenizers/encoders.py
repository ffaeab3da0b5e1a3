"""Which engine encoded a shard: a fact in the shard's manifest.

A manifest describes an output, and its facts are counts and the like. The fact `encoder` of a shard
says, for example, that the numpy engine encoded it, and that 12 documents were compared with the
reference, the engine that runs the tokenizer's own library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.json_records import from_plain

ENCODER_FACT = "encoder"
"""Name of the fact in the manifest of a shard."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """What encoded a shard.

    It is a fact in the shard's manifest, and part of no recipe or digest: all engines give the same
    tokens.
    """

    ignores_unknown_keys: ClassVar[bool] = True

    engine: str
    """Name of the engine, such as numpy."""
    version: str
    """Version of the engine."""
    audited: int
    """Documents for which the reference gave the same tokens; 0 if the engine is the reference."""
    helper: str = ""
    """Name and version of another engine that may have encoded what this one does not support."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names and versions of the engines that may have encoded documents."""
        name = f"{self.engine} {self.version}"
        return (name, self.helper) if self.helper else (name,)


def encoder_of(shard: Manifest) -> Encoder | None:
    """Return which program (engine) turned the text of a shard into tokens.

    A shard is one file of a dataset. Its manifest, a small file next to it, says how it was made.

    Args:
        shard: Manifest of the shard.

    Returns:
        The engine, and how many documents were compared with the tokenizer's own library; None for
        a shard of an early version of nanoset, which does not say.

    Raises:
        ValueError: The manifest says something else of the engine than nanoset writes.
    """
    fact: Any = shard.facts.get(ENCODER_FACT)
    return None if fact is None else from_plain(Encoder, fact)


def encoders_of(shards: Iterable[Manifest]) -> tuple[Encoder, ...]:
    """Return which programs (engines) turned the text of a dataset's files into tokens, each once.

    A dataset consists of files, the shards. Some of their documents were compared with the
    tokenizer's own library. These are added up for each engine and version:

        shards       numpy 1.2, 500 documents compared;  numpy 1.2, 24;  gigatoken 0.8, 100
        encoders     numpy 1.2, 524;  gigatoken 0.8, 100

    Args:
        shards: Manifests of the shards. Shards of early versions of nanoset, which do not name
            their encoder, are left out.
    """
    n_audited: Counter[Encoder] = Counter()
    for shard in shards:
        encoder = encoder_of(shard)
        if encoder is not None:
            # Without its number of documents, the encoder of one shard equals that of another.
            engine_and_version = replace(encoder, audited=0)
            n_audited[engine_and_version] += encoder.audited
    return tuple(replace(encoder, audited=count) for encoder, count in n_audited.items())


def describe_encoders(encoders: Collection[Encoder]) -> str:
    """Describe which programs (engines) turned text into tokens, and how much of that was checked.

    For example, "tokenized by numpy 1.2; 1,024 documents compared with the tokenizers library".

    Args:
        encoders: The engines of all files of a dataset; see `encoders_of`.
    """
    names: list[str] = []
    for encoder in encoders:
        names += encoder.names
    engines = " and ".join(dict.fromkeys(names))
    n_audited = sum(encoder.audited for encoder in encoders)
    return f"tokenized by {engines}; {n_audited:,} documents compared with the tokenizers library"
