"""The section `packs` of nanoset.yaml.

For example, `packs: {short: {of: web, length: 2048}}` fills sequences of 2,048 tokens with the
documents of the corpus `web`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from nanoset_core.outputs.names import CorpusName
from nanoset_core.records.settings import Range
from nanoset_core.sampling.packing.plan import LongDocuments, Tail
from nanoset_core.stages.packing import DEFAULT_SEED, PackSeed


@dataclass(frozen=True, slots=True)
class PacksSpec:
    """A dataset of packs: sequences of one length, filled with whole documents of a corpus or view.

    It can be named wherever a corpus can.
    """

    of: CorpusName = field(metadata={"example": "web"})
    """The corpus or view whose documents are packed."""
    length: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": 2048})
    """Tokens of a pack: the sequence length of the nanosets that read it, or the context length of
    webdatasets.
    """
    long: LongDocuments = "fragment"
    """Documents longer than a pack: cut them into pieces of a pack's length and a remainder, or
    truncate them.
    """
    tail: Tail = "pad"
    """Room at the end of a pack: fill it with padding, or concatenate the packs with room and cut
    them again.
    """
    seed: PackSeed = DEFAULT_SEED
    """Seed of the order of packs, and so of which documents of equal length share a pack."""
