"""Settings and results of `preprocess`, which tokenizes files without a project."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.framing import SpecialTokens, WriterPreset
from nanoset_core.storage.location import Location
from nanoset_core.text.rejects import RejectOptions
from nanoset_core.tokenizers.audit import DEFAULT_SHARE
from nanoset_core.tokenizers.encoders import Encoder
from nanoset_core.tokenizers.engines import EngineName
from nanoset_core.tokenizers.files import TokenizerPath

REJECTS_ENDING = "_rejects.jsonl"
"""Ending of the file of rejected lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOptions(RejectOptions):
    """Settings of one call, named like the flags of other preprocessing tools."""

    tokenizer: TokenizerPath
    """Path of the tokenizer."""
    keys: tuple[str, ...] = ("text",)
    """JSON keys to tokenize; each gives a pair of .bin and .idx."""
    preset: WriterPreset = "megatron"
    """The tool whose output is matched."""
    eod: str | None = None
    """Token at the end of each document."""
    bos: str | None = None
    """Token at the start of each document."""
    special_tokens: SpecialTokens | None = None
    """Whether to add the special tokens that the tokenizer's `encode` adds; None adds them with the
    preset nanotron only.
    """
    partitions: int = 1
    """With P partitions, documents are written in the order 0, P, 2P, …, 1, P + 1, … as if they
    were dealt to P files which are then concatenated.
    """
    keep_sequential_samples: bool = False
    """Keep the order of the input in spite of partitions."""
    workers: int | None = None
    """Number of processes; None for one per processor."""
    engine: EngineName = "auto"
    """Engine that tokenizes; all give the same bytes."""
    audit: float = DEFAULT_SHARE
    """Share of the documents that the reference engine tokenizes as well, for comparison."""
    max_line_bytes: int = 1 << 30
    """A longer line is rejected."""
    count_by_file: bool = False
    """Whether to count the tokens of each input file."""


@dataclass(frozen=True, slots=True)
class Preprocessed:
    """A finished pair of .bin and .idx."""

    prefix: Location
    """Path of both files without their endings."""
    facts: ShardFacts
    """Counts of what was read and written."""
    rejects: Location | None
    """File of the rejected lines, or None if there are none."""
    lost: str = ""
    """Which files could not be read to their end, and how much of the input that is; empty if all
    could.
    """
    tokens_by_file: dict[str, int] | None = None
    """Path below the folder of the inputs → tokens, in document order; None without
    `count_by_file`.
    """
    made: bool = field(default=True, compare=False)
    """Whether this call made it; False if an earlier one did."""
    encoders: tuple[Encoder, ...] = field(default=(), compare=False)
    """The engines that tokenized it, and how many documents were compared; empty if an earlier call
    made it.
    """

    @property
    def n_rejected(self) -> int:
        """Number of rejected lines, and of files that could not be read to their end."""
        return self.facts.rejected + self.facts.faults
