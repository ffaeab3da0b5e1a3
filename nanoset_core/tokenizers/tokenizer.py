"""The facts of a tokenizer that reach the data: its fingerprint, vocabulary size and special
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.layout import optimal_dtype
from nanoset_core.tokenizers.engines.reference import encode_text, shared_tokenizer
from nanoset_core.tokenizers.files import TokenizerPath, define, stat_signature
from nanoset_core.tokenizers.knowledge import Knowledge, cache_folder, from_array, to_array

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the rest of the platform needs to know of a tokenizer."""

    file: TokenizerPath
    """Its file."""
    fingerprint: str
    """sha256 of the file, of other files than a tokenizer.json with the settings that reach the
    tokens.
    """
    vocab_size: int
    """Tokens, added ones included: the vocab_size of the trainer's class for such files."""
    max_id: int
    """The greatest id of any token."""
    template: tuple[str, ...] = ()
    """Special tokens that its own `encode` adds to a text."""

    @property
    def dtype(self) -> np.dtype:
        """Return the .bin's dtype, by Megatron's rule over vocab_size."""
        return optimal_dtype(self.vocab_size)


def tokenizer_facts(file: TokenizerPath) -> TokenizerFacts:
    """Read the facts of a tokenizer.

    Raises:
        MissingError, FormatError: See load_tokenizer.
        ConfigError: Its ids do not fit the dtype that its vocabulary size asks for.
    """
    definition = define(file)
    if (content := definition.converted) is None:
        answers = _answers(file, stat_signature(file))
        size, greatest, template = answers["size"], answers["max_id"], tuple(answers["template"])
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
    """Return the id of a token by its text; `key` is where the configuration names it.

    Raises:
        MissingError, FormatError: See load_tokenizer.
        ConfigError: The tokenizer has no such token.
    """
    special = special_ids(file)
    found = special.get(token)
    if found is None:
        found = _plain_id(file, stat_signature(file), token)
    if found is None:
        raise ConfigError(
            "the tokenizer has no such token",
            where=key,
            found=repr(token),
            expected=f"one of its special tokens: {', '.join(map(repr, [*special][:12])) or 'it has none'}",
            remedy="name another token"
            + (naming_special_tokens(file) or f", or add this one to {file}"),
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
    return tuple(special_ids(file))


def special_ids(file: TokenizerPath) -> Mapping[str, int]:
    """Return name → id of a tokenizer's special tokens; raises as `tokenizer_facts`."""
    return define(file).special_tokens or dict(
        _answers(file, stat_signature(file))["special_tokens"]
    )


def added_tokens(file: TokenizerPath) -> tuple[Ids, Ids]:
    """Return the ids that a tokenizer's own `encode` puts in front of and behind the tokens of a
    text.

    Raises:
        ConfigError: They depend on the text.
    """
    frame = _answers(file, stat_signature(file))["frame"]
    if frame is None:
        raise ConfigError(
            "the tokenizer's special tokens depend on the text",
            where=file,
            found="its post-processor does more than put tokens in front and behind",
            remedy="add none: special_tokens: none, or --special-tokens none",
        )
    return tuple(frame[0]), tuple(frame[1])


@lru_cache(maxsize=64)
def _plain_id(file: TokenizerPath, _stamp: object, token: str) -> int | None:
    return shared_tokenizer(file).token_to_id(token)


@lru_cache(maxsize=16)
def _answers(file: TokenizerPath, _stamp: object) -> dict[str, Any]:
    """Return what the library says of a tokenizer, in JSON's types; loading a large vocabulary
    takes it seconds.
    """
    kept = Knowledge("tokenizer", define(file).fingerprint, cache_folder())
    found = kept.load()
    if found is None:
        found = {"answers": to_array(_ask(shared_tokenizer(file), file))}
        kept.save(found)
    answers: dict[str, Any] = from_array(found["answers"])
    return answers


def _ask(tokenizer: Tokenizer, file: TokenizerPath) -> dict[str, Any]:
    """Ask the library about a tokenizer; EncodingError if it fails on the simplest text."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = [
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special
    ]
    ids = [(name, tokenizer.token_to_id(name)) for name in added]
    example = encode_text(tokenizer, "a", file, add_special_tokens=True)
    frames = []
    for text in ("a", "one two", "3 4 5"):
        plain = encode_text(tokenizer, text, file).ids
        whole = encode_text(tokenizer, text, file, add_special_tokens=True).ids
        at = next(
            (n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain),
            -1,
        )
        frames.append((whole[:at], whole[at + len(plain) :]) if at >= 0 else None)
    return {
        "size": len(vocabulary),
        "max_id": max(vocabulary.values(), default=0),
        "template": list(compress(example.tokens, example.special_tokens_mask)),
        "special_tokens": [(name, ident) for name, ident in ids if ident is not None],
        "frame": frames[0] if all(frame == frames[0] for frame in frames) else None,
    }
