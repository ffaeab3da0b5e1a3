"""The settings of one webdataset, as nanoset.yaml holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class WebdatasetSpec:
    """One set of shuffled tar shards."""

    corpora: tuple[str, ...] | Mapping[str, float]
    """member corpora: a list (each in full), or each with its number under `mix`"""
    sequence_length: int = 2049
    """tokens in a context; trainers that predict the next token want one more than their sequence length"""
    samples_per_shard: int = 8192
    """contexts in a tar"""
    seed: int = 1234
    """of the global order, and of the choice of contexts where a corpus is taken in part"""
    member: Literal["json.gz", "npy"] = "json.gz"
    """form of a context in the tar: json.gz for OpenLM, npy for speed"""
    preset: Literal["default", "tokshuf"] = "default"
    """tokshuf: tokshuf-rust's set of contexts; each file is cut on its own and padded"""
    tail: Literal["drop", "pad", "carry"] = "drop"
    """what becomes of the tokens after a corpus's last full context; carry: the next corpus's first ones follow"""
    bos: bool = False
    """begin every context with the BOS token, which takes the place of one token"""
    mix: Literal["frequencies", "weights"] = "frequencies"
    """what the numbers in `corpora` are: how often each context occurs (DCLM's sampling frequencies), or shares"""
    contexts: int | None = None
    """with weights: contexts in all; absent = as many as repeat no corpus"""
    even: bool = False
    """equal shards of at most samples_per_shard contexts; fewer contexts than there are shards are left out"""
    groups: int = 4
    """into how many partitions the shards are dealt; does not change them"""
    engine: Literal["auto", "mmap", "tiled", "buckets"] = "auto"
    """how the shards are written; does not change them"""
    memory_mib: int = 1024
    """memory for writing shards; does not change them"""

    @property
    def names(self) -> tuple[str, ...]:
        """Its member corpora, in the order given."""
        return tuple(self.corpora)

    @property
    def numbers(self) -> dict[str, float] | None:
        """Corpus → its frequency or weight, where they are given."""
        return dict(self.corpora) if isinstance(self.corpora, Mapping) else None
