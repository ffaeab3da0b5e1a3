"""Settings of packs: documents laid whole into samples of one length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from nanoset_core.records.settings import Range
from nanoset_core.sampling.packing.plan import Long, Tail

DEFAULT_PACK_SEED = 1234
PackSeed = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, slots=True)
class PackingSpec:
    """How the documents of a nanoset or webdataset are laid whole into its samples."""

    kind: Literal["best_fit"] = "best_fit"
    """Best-fit-decreasing: each document, from the longest on, goes where it leaves the least room."""
    long: Long = "fragment"
    """Documents longer than a sample are cut into pieces of its length and a rest, or keep only their first tokens."""
    tail: Tail = "pad"
    """What stays empty at the end of a sample is padded; or samples with room are written in a row, and cut."""
    seed: PackSeed = DEFAULT_PACK_SEED
    """Of the order of packs, and so of which documents of equal length meet which others."""


@dataclass(frozen=True, slots=True)
class PacksSpec:
    """The documents of a corpus or view, laid whole into packs of one length; stands wherever a corpus stands."""

    of: str = field(metadata={"example": "web"})
    """The corpus or view."""
    length: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": 2048})
    """Tokens of a pack: the sequence length of the nanosets that read it, or the context's of webdatasets."""
    long: Long = "fragment"
    """Documents longer than a pack are cut into pieces of its length and a rest, or keep only their first tokens."""
    tail: Tail = "pad"
    """What stays empty at the end of a pack is padded; or packs with room are written in a row, and cut."""
    seed: PackSeed = DEFAULT_PACK_SEED
    """Of the order of packs, and so of which documents of equal length meet which others."""
