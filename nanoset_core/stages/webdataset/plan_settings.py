"""The settings of a plan.

They are made from nanoset.yaml (`settings.py`), or from the options of `nanoset shuffle`
(`standalone/options.py`).
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
"""Greatest number of contexts in a shard, since the names of members have eight digits."""
_SHARED = ("samples_per_shard", "seed", "member", "tail", "even", "preset")
"""Settings with the same name in nanoset.yaml, in `nanoset shuffle` and in a plan."""
PlanTail = Literal["drop", "pad", "carry", "pad_always"]
"""What happens to the tokens after a stream's last full row.

- `drop`: They are left out.
- `pad`: They get a separate row, which is filled with padding.
- `carry`: They begin a row that continues with the first tokens of the next source. Only tokens at
  the end of the last source are left out.
- `pad_always`: As `pad`, and a stream whose rows are all full gets a row of nothing but padding, as
  in tokshuf-rust.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Everything that decides a plan except the sources.

    Most values were checked when nanoset.yaml or the command line was read.
    """

    sequence_length: int
    """Tokens in a context, including the BOS: 2049 for a model that trains on 2048."""
    samples_per_shard: int = DEFAULT_SHARD_SIZE
    """Contexts in a shard; the last shard may have fewer."""
    seed: int = DEFAULT_SHUFFLE_SEED
    """Seed of the global order and of the choice of contexts, of 64 bits."""
    member: MemberKind = "json.gz"
    """Format of a context in a tar."""
    tail: PlanTail = "drop"
    """What happens to the tokens after a stream's last full row."""
    pad_id: int | None = None
    """Id of the pad token, if the tail pads; otherwise None."""
    bos_id: int | None = None
    """Id of the first token of every context. None: contexts begin with a token of their source."""
    eod: int | None = None
    """Id of the token that ends documents, recorded for readers. It is not added to the tokens."""
    vocab_size: int | None = None
    """Size of the vocabulary; `pad_id`, `bos_id` and `eod` must be below it. None: not checked."""
    streams: Mapping[str, Sequence[int]] | None = None
    """Source → tokens of each of its streams, such as its files, which are cut separately."""
    frequencies: Mapping[str, float] | None = None
    """Source → how often each of its contexts occurs; 1 for sources that are not named.

    With 0.5, half of them occur; with 2, each one occurs twice.
    """
    weights: Mapping[str, float] | None = None
    """Source → its share of the contexts, instead of frequencies; others are left out."""
    contexts: int | None = None
    """With weights, the number of contexts. None: as many as repeat no source."""
    even: bool = False
    """Whether all shards have the same number of contexts, at most `samples_per_shard`.

    The contexts that remain are left out; they are fewer than there are shards.
    """
    preset: ShufflePreset = "default"
    """Name of the preset, recorded for readers."""

    def __post_init__(self) -> None:
        """Check the number of tokens in a context, and of contexts in a shard.

        Raises:
            ConfigError: One of them is out of range.
        """
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
        """Tokens of a context that are from a stream: all except the BOS."""
        if self.bos_id is None:
            return self.sequence_length
        return self.sequence_length - 1

    def of_tokshuf(self, tokenizer_file: TokenizerPath) -> PlanSettings:
        """Return a copy of these settings with which tars are the same as those of tokshuf-rust.

        tokshuf-rust is another program that writes shuffled tar files.

        Args:
            tokenizer_file: The tokenizer that made the tokens.

        Raises:
            ConfigError: tokshuf-rust does not know the tokenizer.
        """
        pad_id = tokshuf_tokens(tokenizer_file).pad_id
        return replace(
            self,
            tail="pad_always",  # the last training sample of every file is padded
            pad_id=pad_id,
            eod=TOKSHUF_EOT,  # the token that ends documents
            vocab_size=None,  # so that `pad_id` is not checked: it may be outside the vocabulary
        )


def shared_settings(settings: object) -> dict[str, Any]:
    """Return the settings of a shuffle that have the same name in all places where it can be set.

    A shuffle is set up in nanoset.yaml, or by the options of a command. Both are converted to the
    settings of a plan, and these are copied without change:

        {"samples_per_shard": 8192, "seed": 42, "member": "npy", ...}

    Args:
        settings: A `WebdatasetSpec`, `ShuffleOptions` or `PlanSettings`.
    """
    return {name: getattr(settings, name) for name in _SHARED}
