"""The settings of a shuffle plan, and those that match what tokshuf-rust (b1d3e85) does with a tokenizer.

Its end token is id 0, its pad token a vocabulary size + 2:

| tokenizer | vocabulary size it assumes | id 0 is | its pad id is |
| --- | --- | --- | --- |
| EleutherAI/gpt-neox-20b | 50254 | `<|endoftext|>` | 50256, the token of 22 spaces |
| meta-llama/Meta-Llama-3-8B | 128256 | `!` | 128258, two rows past the embedding |

It cuts the tokens of each file into contexts and pads the last; a file that leaves no rest, an empty one too, gets a
context of padding alone. The preset gives the same contexts, each as often; their order, and the shards, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.formats.tars.members import MemberKind
from nanoset_core.stages.webdataset.settings import DEFAULT_SHARD_SIZE, DEFAULT_SHUFFLE_SEED, ShufflePreset
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

MOST_SAMPLES = 10**8 - 1
TOKSHUF_EOT = 0
_TOKSHUF_KNOWN = (
    ({"<|endoftext|>": 0, "<|padding|>": 1, " " * 24: 50254}, 50254),
    ({"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}, 128256),
)
_SHARED = ("samples_per_shard", "seed", "member", "tail", "even", "preset")
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
            what, found = "a context has no room for a token beside its BOS", self.sequence_length
            raise ConfigError(what, where="sequence_length", found=found, expected="at least 2")
        if not 1 <= self.samples_per_shard <= MOST_SAMPLES:
            what, found = "a member's name counts the contexts of a shard by eight digits", self.samples_per_shard
            raise ConfigError(what, where="samples_per_shard", found=found, expected=f"1 to {MOST_SAMPLES:,}")

    @property
    def row_tokens(self) -> int:
        """Tokens of a stream in a context: all but the BOS."""
        return self.sequence_length - (self.bos_id is not None)

    def of_tokshuf(self, tokenizer_file: TokenizerPath) -> PlanSettings:
        """Return these settings with the tail and the tokens of the preset tokshuf; raises as `tokshuf_tokens`."""
        pad_id = tokshuf_tokens(tokenizer_file)[1]
        return replace(self, tail="pad_always", pad_id=pad_id, eod=TOKSHUF_EOT, vocab_size=None)


def shared_settings(given: object) -> dict[str, Any]:
    """Return the settings of a plan that a webdataset of nanoset.yaml, and a call of `nanoset shuffle`, have too."""
    return {name: getattr(given, name) for name in _SHARED}


def greatest_in_tars(tokenizer_file: TokenizerPath) -> int:
    """Return the greatest id that tars may hold: tokshuf-rust pads with one that Llama-3's vocabulary does not have."""
    greatest = tokenizer_facts(tokenizer_file).max_id
    try:
        return max(greatest, tokshuf_tokens(tokenizer_file)[1])
    except ConfigError:  # a tokenizer that tokshuf-rust does not know
        return greatest


def tokshuf_tokens(tokenizer_file: TokenizerPath) -> tuple[str, int]:
    """Return the text of token 0, which ends documents in tokshuf-rust, and its pad id, perhaps outside the vocabulary.

    Raises:
        ConfigError: a tokenizer that it does not know; it knows two.
    """
    from nanoset_core.tokenizers.engines.reference import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_file)
    eot = tokenizer.id_to_token(TOKSHUF_EOT)
    for marks, vocabulary in _TOKSHUF_KNOWN:
        if eot is not None and all(tokenizer.token_to_id(token) == number for token, number in marks.items()):
            return eot, vocabulary + 2
    what, expected = "tokshuf-rust does not know this tokenizer", "GPT-NeoX-20B's or Llama-3's"
    remedy = "use the default preset, which takes the end and pad tokens from the tokenizer"
    raise ConfigError(what, where=tokenizer_file, expected=expected, remedy=remedy)
