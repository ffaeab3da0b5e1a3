"""The key `packing` of a nanoset or webdataset: fit whole documents into its samples.

If it is set, a packed dataset is made of each corpus that the nanoset or webdataset reads.
`resolve_packing` of its stage adds these datasets to the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from nanoset_core.records.settings import Range
from nanoset_core.sampling.packing.plan import LongDocuments, Tail

DEFAULT_SEED = 1234
PackSeed = Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, slots=True)
class PackingSpec:
    """How the documents of a nanoset or webdataset are packed into its samples, each document in
    one piece.
    """

    kind: Literal["best_fit"] = "best_fit"
    """Best-fit-decreasing: documents are placed from the longest to the shortest, each where it
    leaves least room.
    """
    long: LongDocuments = "fragment"
    """Documents longer than a sample: cut them into pieces of a sample's length and a remainder, or
    truncate them.
    """
    tail: Tail = "pad"
    """Room at the end of a sample: fill it with padding, or concatenate the samples with room and
    cut them again.
    """
    seed: PackSeed = DEFAULT_SEED
    """Seed of the order of packs, and so of which documents of equal length share a pack."""
