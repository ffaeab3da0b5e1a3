"""The facts of a tokenizer that reach the data: its fingerprint, vocabulary size and special ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.indexed.layout import optimal_dtype
from nanoset_core.tokenization.bpe import answers
from nanoset_core.tokenization.bpe.reference import shared_tokenizer
from nanoset_core.tokenization.files import TokenizerPath, define, stamp


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the rest of the platform needs to know of a tokenizer."""

    file: TokenizerPath
    """Its file."""
    fingerprint: str
    """sha256 of the file, of other files than a tokenizer.json with the settings that reach the tokens."""
    vocab_size: int
    """Tokens, added ones included: the vocab_size of the trainer's class for such files."""
    max_id: int
    """The greatest id of any token."""
    template: tuple[str, ...] = ()
    """Special tokens that its own `encode` adds to a text."""

    @property
    def dtype(self) -> np.dtype:
        """The .bin's dtype, by Megatron's rule over vocab_size."""
        return optimal_dtype(self.vocab_size)


def tokenizer_facts(file: TokenizerPath) -> TokenizerFacts:
    """Read the facts of a tokenizer.

    Raises:
        MissingError, FormatError: see load_tokenizer.
        ConfigError: its ids do not fit the dtype that its vocabulary size asks for.
    """
    return _facts(file, stamp(file))


@lru_cache(maxsize=16)
def _facts(file: TokenizerPath, _stamp: object) -> TokenizerFacts:
    definition = define(file)
    if (content := definition.content) is None:
        size, greatest, template = answers.sizes(file)
    else:
        size, greatest, template = content.vocab_size, content.max_id, ()
    facts = TokenizerFacts(file, definition.fingerprint, size, greatest, template)
    if facts.max_id > np.iinfo(facts.dtype).max:
        raise ConfigError(
            "the tokenizer's ids do not fit the dtype that trainers infer from its vocabulary size",
            where=file,
            found=f"{facts.vocab_size:,} tokens with ids up to {facts.max_id:,}",
            expected=f"ids up to {np.iinfo(facts.dtype).max:,} ({facts.dtype})",
            remedy="give the tokens ids without gaps",
        )
    return facts


def token_id(file: TokenizerPath, token: str, key: str) -> int:
    """The id of a token by its text; `key` is where the configuration names it.

    Raises:
        MissingError, FormatError: see load_tokenizer.
        ConfigError: the tokenizer has no such token.
    """
    identity, special = _find_token(file, stamp(file), token)
    if identity is None:
        raise ConfigError(
            "the tokenizer has no such token",
            where=key,
            found=repr(token),
            expected=f"one of its special tokens: {', '.join(map(repr, special[:12])) or 'it has none'}",
            remedy="name another token" + (naming_special_tokens(file) or f", or add this one to {file}"),
        )
    return identity


def naming_special_tokens(file: TokenizerPath) -> str:
    """How a remedy goes on for files that leave their special tokens to the user; else nothing."""
    if define(file).kind != "tiktoken":
        return ""
    return (
        "; a file of tiktoken ranks has those that are named (tokenizer.special_tokens, --tokenizer-special-tokens), "
        "else those that are published with its pattern and as many ranks"
    )


def special_tokens(file: TokenizerPath) -> tuple[str, ...]:
    """The texts of a tokenizer's special tokens.

    Raises:
        MissingError, FormatError: see load_tokenizer.
    """
    return _find_token(file, stamp(file), "")[1]


@lru_cache(maxsize=64)
def _find_token(file: TokenizerPath, _stamp: object, token: str) -> tuple[int | None, tuple[str, ...]]:
    """The token's id, if there is one, and the texts of all special tokens."""
    special = define(file).special_tokens or answers.special_tokens(file)
    ident = special.get(token)
    if ident is None and token:
        ident = shared_tokenizer(file).token_to_id(token)
    return ident, tuple(special)
