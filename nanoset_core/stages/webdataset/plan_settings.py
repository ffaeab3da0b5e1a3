"""The settings of a plan: nanoset.yaml (`settings.py`) and `nanoset shuffle`
(`standalone/options.py`) lead to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.formats.tars.members import MemberKind
from nanoset_core.stages.webdataset.settings import (
    DEFAULT_SHARD_SIZE,
    DEFAULT_SHUFFLE_SEED,
    ShufflePreset,
)
from nanoset_core.stages.webdataset.tokshuf import TOKSHUF_EOT, tokshuf_tokens
from nanoset_core.tokenizers.files import TokenizerPath

MAX_SAMPLES = 10**8 - 1
"""Most contexts in a shard: a member's name counts them by eight digits."""
_SHARED = ("samples_per_shard", "seed", "member", "tail", "even", "preset")
"""Settings with the same name in nanoset.yaml, in `nanoset shuffle` and in a plan."""
PlanTail = Literal["drop", "pad", "carry", "pad_always"]
"""What happens to the tokens after a stream's last full row.

- `drop`: They are left out.
- `pad`: They get a row of their own, filled with padding.
- `carry`: They begin a row that continues with the next source's first tokens, so that only the last row is dropped.
- `pad_always`: As `pad`, and a stream that leaves no rest gets a row of padding alone, as in tokshuf-rust.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides a plan except the sources; `nanoset.yaml` and the command check most
    values.
    """

    sequence_length: int
    """Tokens in a context, the BOS included: 2049 for a model that trains on 2048."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a shard; the last one may hold fewer."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Of the global order and of the choice of contexts, 64 bits."""
    member: MemberKind = "json.gz"
    """Form of a context in a tar."""
    tail: PlanTail = "drop"
    """What happens to the tokens after a stream's last full row."""
    pad_id: int | None = None
    """The pad token, with the tails that pad and only with them."""
    bos_id: int | None = None
    """Token in front of every context, as the first of its `sequence_length`, or None."""
    eod: int | None = None
    """The token that ends documents, recorded for readers; nothing is added to the streams."""
    vocab_size: int | None = None
    """If given, `pad_id`, `bos_id` and `eod` must be below it."""
    streams: Mapping[str, Sequence[int]] | None = None
    """Source → tokens of each stream that it consists of, such as its files, to cut them on their
    own.
    """
    frequencies: Mapping[str, float] | None = None
    """Source → how often each of its contexts occurs: 0.5 half of them, 2 each twice; 1 for sources
    not named.
    """
    weights: Mapping[str, float] | None = None
    """Source → share of the contexts, instead of frequencies; sources without a weight are left
    out.
    """
    contexts: int | None = None
    """With weights, how many contexts in all. None: as many as repeat no source."""
    even: bool = False
    """Equal shards of at most `samples_per_shard`: fewer contexts than there are shards are left
    out.
    """
    preset: ShufflePreset = "default"
    """Whose set of contexts this is, recorded for readers."""

    def __post_init__(self) -> None:
        if self.row_tokens < 1:
            raise ConfigError(
                "a context has no room for a token after its BOS",
                where="sequence_length",
                found=self.sequence_length,
                expected="at least 2",
            )
        if not 1 <= self.samples_per_shard <= MAX_SAMPLES:
            raise ConfigError(
                "a member's name counts the contexts of a shard by eight digits",
                where="samples_per_shard",
                found=self.samples_per_shard,
                expected=f"1 to {MAX_SAMPLES:,}",
            )

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        if self.bos_id is None:
            return self.sequence_length
        return self.sequence_length - 1

    def of_tokshuf(self, tokenizer_file: TokenizerPath) -> PlanSettings:
        """Return these settings with the tail and the tokens of the preset tokshuf.

        Raises:
            ConfigError: tokshuf-rust does not know the tokenizer.
        """
        pad_id = tokshuf_tokens(tokenizer_file).pad_id
        return replace(self, tail="pad_always", pad_id=pad_id, eod=TOKSHUF_EOT, vocab_size=None)


def shared_settings(settings: object) -> dict[str, Any]:
    """Return the settings that have one name in a webdataset of nanoset.yaml, in `nanoset shuffle`
    and in a plan.
    """
    return {name: getattr(settings, name) for name in _SHARED}
