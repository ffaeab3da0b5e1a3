"""Match what tokshuf-rust (b1d3e85) does with a tokenizer: its end token is id 0, its pad token a vocabulary size + 2.

| tokenizer | vocabulary size it assumes | id 0 is | its pad id is |
| --- | --- | --- | --- |
| EleutherAI/gpt-neox-20b | 50254 | `<|endoftext|>` | 50256, the token of 22 spaces |
| meta-llama/Meta-Llama-3-8B | 128256 | `!` | 128258, two rows past the embedding |

It cuts the tokens of each file into contexts and pads the last; a file that leaves no rest, an empty one too, gets a
context of padding alone. The preset gives the same contexts, each as often; their order, and the shards, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nanoset_core.errors import ConfigError
from nanoset_core.shuffling.settings import PlanSettings
from nanoset_core.tokenization.files import TokenizerPath

EOT = 0
_KNOWN = (
    ({"<|endoftext|>": 0, "<|padding|>": 1, " " * 24: 50254}, 50254),
    ({"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}, 128256),
)


@dataclass(frozen=True, slots=True)
class TokshufTokens:
    """The special tokens of the preset."""

    eot: str
    """Text of the token 0, which ends every document."""
    pad_id: int
    """Fills the last context of each file; it can lie outside the vocabulary."""


def with_tokens(settings: PlanSettings, tokens: TokshufTokens) -> PlanSettings:
    """Return settings with the tail and the tokens of the preset."""
    return replace(settings, tail="pad_always", pad_id=tokens.pad_id, eod=EOT)


def tokshuf_tokens(tokenizer_file: TokenizerPath) -> TokshufTokens:
    """Return the special tokens that tokshuf-rust uses with a tokenizer.

    Raises:
        ConfigError: a tokenizer that it does not know; it knows two.
    """
    from nanoset_core.tokenization.bpe.reference import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_file)
    eot = tokenizer.id_to_token(EOT)
    for marks, vocabulary in _KNOWN:
        if eot is not None and all(tokenizer.token_to_id(token) == number for token, number in marks.items()):
            return TokshufTokens(eot, vocabulary + 2)
    what, expected = "tokshuf-rust does not know this tokenizer", "GPT-NeoX-20B's or Llama-3's"
    remedy = "use the default preset, which takes the end and pad tokens from the tokenizer"
    found = f"{tokenizer.get_vocab_size():,} tokens"
    raise ConfigError(what, where=tokenizer_file, found=found, expected=expected, remedy=remedy)
