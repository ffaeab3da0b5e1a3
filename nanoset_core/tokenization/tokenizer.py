"""The facts of a tokenizer that reach the data: its fingerprint, vocabulary size and special tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.indexed.layout import optimal_dtype
from nanoset_core.tokenization.bpe.reference import shared_tokenizer
from nanoset_core.tokenization.files import TokenizerPath, define, stat_signature
from nanoset_core.tokenization.knowledge import Knowledge, cache_folder, from_array, to_array

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = tuple[int, ...]


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
        MissingError, FormatError: See load_tokenizer.
        ConfigError: Its ids do not fit the dtype that its vocabulary size asks for.
    """
    return _facts(file, stat_signature(file))


@lru_cache(maxsize=16)
def _facts(file: TokenizerPath, _stamp: object) -> TokenizerFacts:
    definition = define(file)
    if (content := definition.content) is None:
        size, greatest, template = _asked(file, _sizes)
    else:
        size, greatest, template = content.vocab_size, content.max_id, ()
    facts = TokenizerFacts(file, definition.fingerprint, size, greatest, tuple(template))
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
    """Return the id of a token by its text; `key` is where the configuration names it.

    Raises:
        MissingError, FormatError: See load_tokenizer.
        ConfigError: The tokenizer has no such token.
    """
    found, special = _find_token(file, stat_signature(file), token)
    if found is None:
        raise ConfigError(
            "the tokenizer has no such token",
            where=key,
            found=repr(token),
            expected=f"one of its special tokens: {', '.join(map(repr, special[:12])) or 'it has none'}",
            remedy="name another token" + (naming_special_tokens(file) or f", or add this one to {file}"),
        )
    return found


def naming_special_tokens(file: TokenizerPath) -> str:
    """Return how a remedy goes on for files whose special tokens the user names; else nothing."""
    if define(file).kind != "tiktoken":
        return ""
    return (
        "; a file of tiktoken ranks has those that are named (tokenizer.special_tokens, --tokenizer-special-tokens), "
        "else those that are published with its pattern and as many ranks"
    )


def special_tokens(file: TokenizerPath) -> tuple[str, ...]:
    """Return the texts of a tokenizer's special tokens; raises as `tokenizer_facts`."""
    return _find_token(file, stat_signature(file), "")[1]


def frames(file: TokenizerPath) -> list[tuple[Ids, Ids] | None]:
    """Return what `encode` puts (in front of, behind) a text: all that occurs for several texts.

    None stands for something other than tokens in front and behind.
    """
    return [frame and (tuple(frame[0]), tuple(frame[1])) for frame in _asked(file, _frames)]


@lru_cache(maxsize=64)
def _find_token(file: TokenizerPath, _stamp: object, token: str) -> tuple[int | None, tuple[str, ...]]:
    """Return the token's id, if there is one, and the texts of all special tokens."""
    special = define(file).special_tokens or dict(_asked(file, _special_tokens))
    found = special.get(token)
    if found is None and token:
        found = shared_tokenizer(file).token_to_id(token)
    return found, tuple(special)


def _asked(file: TokenizerPath, ask: Callable[[Tokenizer], Any]) -> Any:
    """Return what the library says of a tokenizer, in JSON's types; loading a large vocabulary takes it seconds."""
    kept = Knowledge(f"tokenizer{ask.__name__}", define(file).identity, cache_folder())
    if (found := kept.load()) is not None:
        return from_array(found["answer"])
    answer = ask(shared_tokenizer(file))
    kept.save({"answer": to_array(answer)})
    return answer


def _sizes(tokenizer: Tokenizer) -> tuple[int, int, list[str]]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    whole = tokenizer.encode("a", add_special_tokens=True)
    template = compress(whole.tokens, whole.special_tokens_mask)
    return len(vocabulary), max(vocabulary.values(), default=0), list(template)


def _special_tokens(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return [(name, found) for name in names if (found := tokenizer.token_to_id(name)) is not None]


def _frames(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]] | None]:
    found: list[tuple[list[int], list[int]] | None] = []
    for text in ("a", "one two", "3 4 5"):
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        at = next((n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain), -1)
        frame = (whole[:at], whole[at + len(plain) :]) if at >= 0 else None
        if frame not in found:
            found.append(frame)
    return found
