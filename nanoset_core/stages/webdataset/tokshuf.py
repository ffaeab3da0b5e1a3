"""The special tokens of tokshuf-rust (commit b1d3e85), for the preset `tokshuf`.

tokshuf-rust does not ask the tokenizer for special tokens. It ends documents with id 0, and pads
with the id `vocabulary size + 2`, for two tokenizers whose vocabulary size it knows:

| tokenizer | vocabulary size | id 0 is | pad id |
| --- | --- | --- | --- |
| EleutherAI/gpt-neox-20b | 50254 | `<|endoftext|>` | 50256, the token of 22 spaces |
| meta-llama/Meta-Llama-3-8B | 128256 | `!` | 128258, which the embedding does not have |

It cuts the tokens of each file into contexts, and pads the last one. If the last context of a file
is full, or the file is empty, a context of nothing but padding follows. The preset produces exactly
these contexts. Their order and their division into tars are those of this project.
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
    """A tokenizer that tokshuf-rust knows."""

    id_by_token: Mapping[str, int]
    """Some tokens with their ids, by which the vocabulary is recognised."""
    vocab_size: int
    """The vocabulary size that tokshuf-rust assumes."""


_KNOWN_TOKENIZERS = (
    _KnownTokenizer({"<|endoftext|>": 0, "<|padding|>": 1, " " * 24: 50254}, 50254),
    _KnownTokenizer({"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001}, 128256),
)


@dataclass(frozen=True, slots=True)
class TokshufTokens:
    """The special tokens of tokshuf-rust for a tokenizer."""

    eot: str
    """Text of the token with id 0, which ends documents."""
    pad_id: int
    """Id that contexts are padded with; it may be outside the vocabulary."""


def tokshuf_tokens(tokenizer_file: TokenizerPath) -> TokshufTokens:
    """Return the special tokens that the program tokshuf-rust would use with a tokenizer.

    Our tar files can be made the same as those of tokshuf-rust. It knows only two tokenizers, those
    of GPT-NeoX and Llama-3, which are recognised by a few of their tokens and ids.

    Args:
        tokenizer_file: Path of the tokenizer.

    Raises:
        ConfigError: tokshuf-rust does not know the tokenizer.
    """
    from nanoset_core.tokenizers.engines.tokenizers_library import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_file)
    # It ends documents with the token of id 0, whatever this token is.
    end_text = tokenizer.id_to_token(TOKSHUF_EOT)
    if end_text is not None:
        for known in _KNOWN_TOKENIZERS:
            ids = {token: tokenizer.token_to_id(token) for token in known.id_by_token}
            if ids == known.id_by_token:
                # It pads with this id, whether there is such a token or not.
                return TokshufTokens(end_text, pad_id=known.vocab_size + 2)
    raise ConfigError(
        "tokshuf-rust does not know this tokenizer",
        where=tokenizer_file,
        expected="GPT-NeoX-20B's or Llama-3's",
        remedy="use the default preset, which takes the end and pad tokens from the tokenizer",
    )


def greatest_in_tars(tokenizer_file: TokenizerPath) -> int:
    """Return the greatest token id that is permitted in tar files of training samples.

    A greater id means that the tar is damaged. Usually this is the greatest id of the vocabulary.
    But the tars may be from the program tokshuf-rust, which may pad with a greater id: Llama-3's
    vocabulary ends with 128255, and it pads with 128258.

    Args:
        tokenizer_file: Path of the tokenizer that made the tokens.
    """
    greatest_id = tokenizer_facts(tokenizer_file).max_id
    try:
        pad_id = tokshuf_tokens(tokenizer_file).pad_id
    except ConfigError:
        return greatest_id  # tokshuf-rust does not know the tokenizer, and has made no such tars
    return max(greatest_id, pad_id)
