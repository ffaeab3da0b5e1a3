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
"""Seed that is used if nanoset.yaml does not set one."""
PackSeed = Annotated[int, Range(0, 2**63 - 1)]
"""A seed of the order of the samples."""


@dataclass(frozen=True, slots=True)
class PackingSpec:
    """How documents are packed into samples, so that samples contain whole documents."""

    kind: Literal["best_fit"] = "best_fit"
    """The method: best-fit decreasing.

    Documents are placed from the longest to the shortest, each where it leaves least room.
    """
    long: LongDocuments = "fragment"
    """What is done with documents that are longer than a sample.

    They are cut into pieces of a sample's length and a remainder, or truncated.
    """
    tail: Tail = "pad"
    """What is done with room at the end of samples.

    It is filled with padding, or the samples with room are concatenated and cut again.
    """
    seed: PackSeed = DEFAULT_SEED
    """Seed of the order of the samples, and so of which documents of equal length share a sample.
    """
