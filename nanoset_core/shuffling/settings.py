"""The settings of a shuffle plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nanoset_core.config.webdataset import DEFAULT_SHARD_SIZE, DEFAULT_SHUFFLE_SEED, MemberKind, ShufflePreset
from nanoset_core.errors import ConfigError

Tail = Literal["drop", "pad", "carry", "pad_always"]
"""What becomes of the tokens after a stream's last full row; `pad_always` is the preset tokshuf's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides a plan beside the sources; `nanoset.yaml` and the command check most values."""

    sequence_length: int
    """Tokens in a context, the BOS included: 2049 for a model that trains on 2048."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a shard; the last one may hold fewer."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Of the global order and of the choice of contexts, 64 bits."""
    member: MemberKind = "json.gz"
    """Form of a context in a tar."""
    tail: Tail = "drop"
    """What becomes of the tokens after a stream's last full row.

    `drop`; `pad`; `carry` (the row goes on with the next source's first tokens, so that only the very last one is
    dropped); `pad_always` (pad, and a stream without a rest gets a row of padding alone, as in tokshuf-rust).
    """
    pad_id: int | None = None
    """The pad token, with the tails that pad and only with them."""
    bos_id: int | None = None
    """Token in front of every context, as the first of its `sequence_length`; None = none."""
    eod: int | None = None
    """The token that ends documents, recorded for readers; nothing is added to the streams."""
    vocab_size: int | None = None
    """Where given, `pad_id`, `bos_id` and `eod` must lie below it."""
    streams: Mapping[str, Sequence[int]] | None = None
    """Source → tokens of each stream that it consists of, such as its files, to cut them on their own."""
    frequencies: Mapping[str, float] | None = None
    """Source → how often each of its contexts occurs: 1 where absent, 0.5 half of them, 2 each twice."""
    weights: Mapping[str, float] | None = None
    """Source → share of the contexts, instead of frequencies; sources without a weight are left out."""
    contexts: int | None = None
    """With weights, how many contexts in all; None = as many as repeat no source."""
    even: bool = False
    """Equal shards of at most `samples_per_shard`: fewer contexts than there are shards are left out."""
    preset: ShufflePreset = "default"
    """Whose set of contexts this is, recorded for readers."""

    def __post_init__(self) -> None:
        if self.row_tokens < 1:
            raise ConfigError(
                "a context has no room for a token beside its BOS",
                where="sequence_length",
                found=self.sequence_length,
                expected="at least 2",
                remedy="give a greater number",
            )

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        return self.sequence_length - (self.bos_id is not None)
