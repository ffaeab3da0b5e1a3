"""The tokens that tokshuf-rust (b1d3e85) uses with a tokenizer, for the preset of its name.

Its end token is id 0, its pad token a vocabulary size + 2:

| tokenizer | vocabulary size it assumes | id 0 is | its pad id is |
| --- | --- | --- | --- |
| EleutherAI/gpt-neox-20b | 50254 | `<|endoftext|>` | 50256, the token of 22 spaces |
| meta-llama/Meta-Llama-3-8B | 128256 | `!` | 128258, two rows past the embedding |

It cuts the tokens of each file into contexts and pads the last; a file that leaves no rest, also an
empty one, gets a context of padding alone. The preset gives the same contexts, each as often; their
order, and the shards, are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanoset_core.errors import ConfigError
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

TOKSHUF_EOT = 0
"""Id of the token that ends documents."""


@dataclass(frozen=True, slots=True)
class _KnownTokenizer:
    """A tokenizer for which tokshuf-rust has a vocabulary size."""

    id_by_token: Mapping[str, int]
    """Tokens by which the vocabulary is recognised."""
    vocab_size: int
    """As tokshuf-rust assumes it."""


_KNOWN_TOKENIZERS = (
    _KnownTokenizer({"<|endoftext|>": 0, "<|padding|>": 1, " " * 24: 50254}, 50254),
    _KnownTokenizer({"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}, 128256),
)


@dataclass(frozen=True, slots=True)
class TokshufTokens:
    """The special tokens of tokshuf-rust."""

    eot: str
    """Text of the token with id 0, which ends documents."""
    pad_id: int
    """Id that fills contexts up; it may be outside the vocabulary."""


def tokshuf_tokens(tokenizer_file: TokenizerPath) -> TokshufTokens:
    """Return the tokens that tokshuf-rust uses with a tokenizer.

    Raises:
        ConfigError: It does not know the tokenizer; it knows two.
    """
    from nanoset_core.tokenizers.engines.library import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_file)
    eot = tokenizer.id_to_token(TOKSHUF_EOT)
    if eot is not None:
        for known in _KNOWN_TOKENIZERS:
            if all(tokenizer.token_to_id(token) == i for token, i in known.id_by_token.items()):
                return TokshufTokens(eot, known.vocab_size + 2)
    raise ConfigError(
        "tokshuf-rust does not know this tokenizer",
        where=tokenizer_file,
        expected="GPT-NeoX-20B's or Llama-3's",
        remedy="use the default preset, which takes the end and pad tokens from the tokenizer",
    )


def greatest_in_tars(tokenizer_file: TokenizerPath) -> int:
    """Return the greatest id that tars may hold: tokshuf-rust pads with one that Llama-3's
    vocabulary does not have.
    """
    greatest = tokenizer_facts(tokenizer_file).max_id
    try:
        return max(greatest, tokshuf_tokens(tokenizer_file).pad_id)
    except ConfigError:  # a tokenizer that tokshuf-rust does not know
        return greatest
