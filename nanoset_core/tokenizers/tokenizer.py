"""Facts of a tokenizer that affect the data: its fingerprint, size, special tokens and template.

They are the same for all kinds of files, and are cached, since loading a large tokenizer only to
read them takes seconds. For GPT-2: 50,257 tokens, `<|endoftext|>` with the id 50256 as the only
special token, and an empty template, since its `encode` adds no tokens to a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.formats.indexed.layout import optimal_dtype
from nanoset_core.tokenizers.cache import CacheEntry, cache_folder, from_array, to_array
from nanoset_core.tokenizers.engines.reference import shared_tokenizer
from nanoset_core.tokenizers.engines.tokenizers_library import encode_text
from nanoset_core.tokenizers.files import TokenizerPath, define, stat_signature

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = tuple[int, ...]

_FRAME_TEXTS = ("a", "one two", "3 4 5")
"""Texts that show whether a tokenizer adds the same tokens to every text."""
_N_SHOWN = 12
"""How many special tokens a message names."""


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the rest of the platform needs to know about a tokenizer."""

    file: TokenizerPath
    """Its file."""
    fingerprint: str
    """Identifies the tokenizer in recipes: see `Definition.fingerprint`."""
    vocab_size: int
    """Number of tokens, including added ones: vocab_size of the trainer's class for such files."""
    max_id: int
    """The greatest id of any token."""
    template: tuple[str, ...] = ()
    """Special tokens that its own `encode` adds to a text."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype of a .bin with its tokens, by Megatron's rule for its vocabulary size."""
        return optimal_dtype(self.vocab_size)


def tokenizer_facts(file: TokenizerPath) -> TokenizerFacts:
    """Return what datasets depend on: a tokenizer's fingerprint, number of tokens and largest id.

    The number of tokens decides whether ids are stored in two bytes or in four. What counts is the
    number that training programs see:

        a tokenizer.json           they load it with Hugging Face's library, which says it
        other formats (tiktoken)   they have classes for these, whose rules say it

    Args:
        file: The tokenizer's file.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
        ConfigError: The ids do not fit the dtype that trainers infer from the vocabulary size.
    """
    definition = define(file)
    converted = definition.converted
    if converted is None:
        # The file is a tokenizer.json. The trainer loads it with the tokenizers library, so what
        # the library says counts.
        library_facts = _library_facts(file, stat_signature(file))
        facts = TokenizerFacts(
            file=file,
            fingerprint=definition.fingerprint,
            vocab_size=library_facts.vocab_size,
            max_id=library_facts.max_id,
            template=tuple(library_facts.template),
        )
    else:
        # The file is of another kind, which the trainer loads with a class of its own: `converted`
        # has the numbers of that class. Such classes add no special tokens to a text.
        facts = TokenizerFacts(
            file=file,
            fingerprint=definition.fingerprint,
            vocab_size=converted.vocab_size,
            max_id=converted.max_id,
            template=(),
        )
    _check_ids_fit(facts)
    return facts


def _check_ids_fit(facts: TokenizerFacts) -> None:
    """Check that a tokenizer's ids fit into the integers in which datasets store them.

    Training programs infer from the number of tokens whether these have two bytes (uint16) or four.
    If a vocabulary has gaps, an id may be larger than that: 60,000 tokens fit uint16, but not the
    id 70,000.

    Args:
        facts: The tokenizer's size and largest id.

    Raises:
        ConfigError: They do not.
    """
    max_dtype_id = int(np.iinfo(facts.dtype).max)
    if facts.max_id > max_dtype_id:
        raise ConfigError(
            "the tokenizer's ids do not fit the dtype that trainers infer from its vocabulary size",
            where=facts.file,
            found=f"{facts.vocab_size:,} tokens with ids up to {facts.max_id:,}",
            expected=f"ids up to {max_dtype_id:,} ({facts.dtype})",
            remedy="use a tokenizer whose ids have no gaps: "
            "Megatron-LM itself cannot store these ids in a .bin either",
        )


def token_id(file: TokenizerPath, token: str, key: str) -> int:
    """Return the id of a token, given its text, such as 50256 for "<|endoftext|>".

    Args:
        file: The tokenizer's file.
        token: The token's text, which a setting or option of the user names.
        key: The setting or option, for errors: "--eod".

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
        ConfigError: The tokenizer has no such token.
    """
    # Most tokens that settings name are special. These are known without loading the tokenizer.
    special = special_ids(file)
    if token in special:
        return special[token]
    ordinary_id = _ordinary_id(file, stat_signature(file), token)
    if ordinary_id is not None:
        return ordinary_id

    listed = ", ".join(map(repr, [*special][:_N_SHOWN])) or "it has none"
    where_to_add = naming_special_tokens(file) or f", or add this one to {file}"
    raise ConfigError(
        "the tokenizer has no such token",
        where=key,
        found=repr(token),
        expected=f"one of its special tokens: {listed}",
        remedy=f"name another token{where_to_add}",
    )


def is_ordinary_token(file: TokenizerPath, token: str) -> bool:
    """Return whether a token is an ordinary one, to which parts of texts are encoded.

        token of the vocabulary                            result
        "<s>", special or another added token              False
        "1"                                                True
        "<|endoftext|>", not added, and without a merge    False: text is never encoded to it

    Args:
        file: The tokenizer's file.
        token: The token's text. If the tokenizer has no such token, the result is False.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
    """
    # Most are special, which is known without loading the tokenizer.
    if token in special_ids(file):
        return False
    tokenizer = shared_tokenizer(file)
    ident = tokenizer.token_to_id(token)
    if ident is None or ident in tokenizer.get_added_tokens_decoder():
        return False

    # The text of a token may differ from its name: that of "Ġthe" is " the".
    text = tokenizer.decode([ident])
    return ident in tokenizer.encode(text, add_special_tokens=False).ids


def naming_special_tokens(file: TokenizerPath) -> str:
    """Return a clause that is added to an error message about a special token, or an empty text.

    Tokenizers of the library tiktoken are files that contain no special tokens, so that the user
    has to name these in the settings. For such a file, the clause says how. Callers append it to
    their advice, so it starts with a semicolon:

        name another token; a file of tiktoken ranks contains no special tokens: name them with …

    Args:
        file: The file of the tokenizer, which may be of any kind.
    """
    if define(file).kind != "tiktoken":
        return ""
    return (
        "; a file of tiktoken ranks contains no special tokens: name them with "
        "tokenizer.special_tokens (--tokenizer-special-tokens), or those of the published "
        "tokenizer with the same pattern and number of ranks are used"
    )


def special_tokens(file: TokenizerPath) -> tuple[str, ...]:
    """Return the texts of a tokenizer's special tokens, such as `<|endoftext|>`.

    Args:
        file: The tokenizer's file, with settings or without.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
    """
    return tuple(special_ids(file))


def special_ids(file: TokenizerPath) -> Mapping[str, int]:
    """Return the ids of a tokenizer's special tokens.

    Args:
        file: The tokenizer's file, with settings or without.

    Returns:
        Text of each special token → its id, such as `{"<|endoftext|>": 50256}`.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer.
    """
    # Other formats list their special tokens. For a tokenizer.json, this is empty.
    special = define(file).special_tokens
    if special:
        return special
    library_facts = _library_facts(file, stat_signature(file))
    return dict(library_facts.special_tokens)


def added_tokens(file: TokenizerPath) -> tuple[Ids, Ids]:
    """Return the special tokens that a tokenizer's own `encode` adds to every text.

    For example, BERT's puts [CLS] (101) before a text, and [SEP] (102) after it: ((101,), (102,)).

    Args:
        file: The tokenizer's file.

    Returns:
        (ids before the tokens of the text, ids after them).

    Raises:
        ConfigError: The added tokens depend on the text.
    """
    library_facts = _library_facts(file, stat_signature(file))
    if library_facts.ids_around_text is None:
        raise ConfigError(
            "the tokenizer's special tokens depend on the text",
            where=file,
            found="its post-processor does more than put tokens before and after the text",
            remedy="add none: special_tokens: none, or --special-tokens none",
        )
    ids_before, ids_after = library_facts.ids_around_text
    return tuple(ids_before), tuple(ids_after)


@lru_cache(maxsize=64)
def _ordinary_id(file: TokenizerPath, _signature: object, token: str) -> int | None:
    """Return the id of any token of the vocabulary, or None if it has no such token."""
    return shared_tokenizer(file).token_to_id(token)


class _LibraryFacts(NamedTuple):
    """What only Hugging Face's tokenizers library knows about a tokenizer."""

    vocab_size: int
    max_id: int
    template: Sequence[str]
    """Names of the tokens that the tokenizer adds to a text, such as "[CLS]"."""
    special_tokens: Sequence[tuple[str, int]]
    """Name and id of each special token."""
    ids_around_text: tuple[Sequence[int], Sequence[int]] | None
    """Ids that the tokenizer adds before and after every text; None if they depend on the text."""


@lru_cache(maxsize=16)
def _library_facts(file: TokenizerPath, _signature: object) -> _LibraryFacts:
    """Return the facts about a tokenizer that only Hugging Face's tokenizers library knows.

    The library takes seconds to load a large vocabulary. So the facts are also kept on disk, in an
    entry for exactly this tokenizer.

    Args:
        file: The tokenizer's file.
        _signature: Sizes and times of the tokenizer's files. If they change, `lru_cache` does not
            return the earlier result.
    """
    cached = CacheEntry("tokenizer", define(file).fingerprint, cache_folder())
    arrays = cached.load()
    if arrays is None:
        facts = _ask_library(shared_tokenizer(file), file)
        arrays = {"answers": to_array(facts)}  # JSON as an array of bytes, as entries are arrays
        cached.save(arrays)
    stored_facts = from_array(arrays["answers"])
    return _LibraryFacts(
        vocab_size=stored_facts["size"],
        max_id=stored_facts["max_id"],
        template=stored_facts["template"],
        special_tokens=stored_facts["special_tokens"],
        ids_around_text=stored_facts["frame"],
    )


def _ask_library(tokenizer: Tokenizer, file: TokenizerPath) -> dict[str, Any]:
    """Collect the facts about a tokenizer that only Hugging Face's tokenizers library knows.

    Args:
        tokenizer: The tokenizer, loaded by the library.
        file: The tokenizer's file, for errors.

    Returns:
        The facts by name, in types that JSON has. For BERT:

            size              30522
            max_id            30521
            template          ["[CLS]", "[SEP]"]: names of the tokens that it adds to a text
            special_tokens    [["[PAD]", 0], …]
            frame             [[101], [102]]: ids that it adds before and after every text; None if
                              these depend on the text

    Raises:
        EncodingError: The library fails on the simplest text.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return {
        "size": len(vocabulary),
        "max_id": max(vocabulary.values(), default=0),
        "template": _names_around_text(tokenizer, file),
        "special_tokens": _special_tokens(tokenizer),
        "frame": _frame(tokenizer, file),
    }


def _special_tokens(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Return the name and id of each special token of a tokenizer."""
    special = []
    for token in tokenizer.get_added_tokens_decoder().values():
        special_id = tokenizer.token_to_id(token.content)
        if token.special and special_id is not None:
            special.append((token.content, special_id))
    return special


def _names_around_text(tokenizer: Tokenizer, file: TokenizerPath) -> list[str]:
    """Return the names of the special tokens that a tokenizer's own `encode` adds to a text.

    For BERT, "a" becomes [CLS] a [SEP], so these are [CLS] and [SEP].

    Args:
        tokenizer: The tokenizer, loaded by Hugging Face's library.
        file: Its file, for errors.

    Raises:
        EncodingError: The library fails on the simplest text.
        FormatError: The file has not as many names as ids for what it adds.
    """
    example = encode_text(tokenizer, "a", file, add_special_tokens=True)
    if len(example.tokens) != len(example.special_tokens_mask):  # the mask has an entry for each id
        raise FormatError(
            "a special token of the tokenizer's template has not as many ids as names",
            where=file,
            found='another number of "ids" than of "tokens" in post_processor.special_tokens',
            expected="an id for each token",
            remedy="correct this entry, or write the file again with tokenizer.save(...)",
        )
    names = []
    for name, is_special in zip(example.tokens, example.special_tokens_mask, strict=True):
        if is_special:
            names.append(name)
    return names


def _frame(tokenizer: Tokenizer, file: TokenizerPath) -> Any:
    """Return the ids that a tokenizer adds around every text, or None if they depend on the text.

    Raises:
        EncodingError: The library fails on the simplest text.
    """
    frames = [_ids_around_text(tokenizer, text, file) for text in _FRAME_TEXTS]
    is_constant = all(frame == frames[0] for frame in frames)
    return frames[0] if is_constant else None


def _ids_around_text(
    tokenizer: Tokenizer, text: str, file: TokenizerPath
) -> tuple[list[int], list[int]] | None:
    """Return the ids that a tokenizer's own `encode` adds before and after a text.

    For example, BERT's adds [CLS] (101) and [SEP] (102):

        the text alone             1037
        as `encode` returns it     101  1037  102      the result is [101], [102]

    Args:
        tokenizer: The tokenizer, loaded by Hugging Face's library.
        text: The text.
        file: The tokenizer's file, for errors.

    Returns:
        (ids before the tokens of the text, ids after them); None if it also changes the tokens of
        the text.
    """
    text_ids = encode_text(tokenizer, text, file).ids
    all_ids = encode_text(tokenizer, text, file, add_special_tokens=True).ids
    # Find the tokens of the text among all.
    for start in range(len(all_ids) - len(text_ids) + 1):
        stop = start + len(text_ids)
        if all_ids[start:stop] == text_ids:
            return all_ids[:start], all_ids[stop:]
    return None
