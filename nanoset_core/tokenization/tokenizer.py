"""The facts of a tokenizer that reach the data: its fingerprint, vocabulary size and special ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.indexed.layout import optimal_dtype
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.tokenization.bpe.reference import shared_tokenizer


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the rest of the platform needs to know of a tokenizer."""

    file: Path
    """The tokenizer.json."""
    fingerprint: str
    """sha256 of the file."""
    vocab_size: int
    """Tokens, added ones included: Megatron's vocab_size."""
    max_id: int
    """The greatest id of any token."""

    @property
    def dtype(self) -> np.dtype:
        """The .bin's dtype, by Megatron's rule over vocab_size."""
        return optimal_dtype(self.vocab_size)


def tokenizer_facts(file: Path) -> TokenizerFacts:
    """Read the facts of a tokenizer.json.

    Raises:
        MissingError, FormatError: see load_tokenizer.
        ConfigError: its ids do not fit the dtype that its vocabulary size asks for.
    """
    return _facts(file, stamp(file))


def stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written anew: part of the key of whatever is remembered of it."""
    if not file.is_file():
        return None
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


@lru_cache(maxsize=16)
def _facts(file: Path, _stamp: object) -> TokenizerFacts:
    vocabulary = shared_tokenizer(file).get_vocab(with_added_tokens=True)
    facts = TokenizerFacts(file, sha256_file(file), len(vocabulary), max(vocabulary.values(), default=0))
    if facts.max_id > np.iinfo(facts.dtype).max:
        raise ConfigError(
            "the tokenizer's ids do not fit the dtype that trainers infer from its vocabulary size",
            where=file,
            found=f"{facts.vocab_size:,} tokens with ids up to {facts.max_id:,}",
            expected=f"ids up to {np.iinfo(facts.dtype).max:,} ({facts.dtype})",
            remedy="give the tokens ids without gaps",
        )
    return facts


def token_id(file: Path, token: str, key: str) -> int:
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
            remedy=f"name another token, or add this one to {file}",
        )
    return identity


def special_tokens(file: Path) -> tuple[str, ...]:
    """The texts of a tokenizer's special tokens.

    Raises:
        MissingError, FormatError: see load_tokenizer.
    """
    return _find_token(file, stamp(file), "")[1]


@lru_cache(maxsize=64)
def _find_token(file: Path, _stamp: object, token: str) -> tuple[int | None, tuple[str, ...]]:
    """The token's id, if there is one, and the texts of all special tokens."""
    tokenizer = shared_tokenizer(file)
    added = tokenizer.get_added_tokens_decoder().values()
    return tokenizer.token_to_id(token), tuple(token.content for token in added if token.special)
