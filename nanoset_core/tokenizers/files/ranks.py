"""Convert a vocabulary of ranks to a tokenizer.json; check split patterns.

In a vocabulary of ranks, each token is a sequence of bytes with a rank. tiktoken's library encodes
a piece of text that is a token as this token. Any other piece starts as single bytes, and the two
neighbours that together have the least rank are merged, again and again, until no two neighbours
are a token. For the ranks

    0 "a"   1 "b"   2 "c"   3 "bc"   4 "ab"   5 "abc"

the piece "abcc" is merged to a bc c (rank 3 is the least), then to abc c.

A tokenizer.json does the same with a list of merges: every pair of tokens that makes another token,
in the order of the ranks of what they make. Here these are (b, c), (a, b), (a, bc) and (ab, c). Its
setting `ignore_merges` makes pieces that are tokens skip the merging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.split_patterns import BOUNDED_POSSESSIVE, NamedPattern
from nanoset_core.tokenizers.files.tokenizer_json import (
    NEVER_IN_TEXT,
    ConvertedTokenizer,
    added_token,
    bpe_model,
    build_tokenizer_json,
    byte_characters,
    byte_level,
    pairs_that_make,
)
from nanoset_core.untrusted import shortened

RANKS_REMEDY = (
    "fetch or write the file again; "
    "or lower --vocab-size if the file has fewer tokens; or use a tokenizer.json"
)
"""What to do if a file of ranks is damaged."""

_CHARACTER_BY_BYTE = str.maketrans(dict(enumerate(byte_characters())))
_END_TOKENS = ("<|endoftext|>", "<|end_of_text|>")
"""Names of special tokens that end documents, the preferred one first."""


@dataclass(frozen=True, slots=True)
class RankedVocabulary:
    """Tokens with ranks, and everything else that is needed to encode text with them."""

    ids: Mapping[bytes, int]
    """Bytes of each token → id; tokens with smaller ids are merged first."""
    pattern: NamedPattern
    """By which text is split into pieces."""
    special_tokens: Mapping[str, int]
    """Name → id."""
    vocab_size: int
    eod: str | None = None
    """The end-of-document token, if the trainer's class defines it."""
    has_special_tokens_in_text: bool = True
    """Whether the name of a special token in a text is encoded as this token."""
    notice: str = ""
    """What the user should know about the file."""


def convert_ranks(ranked: RankedVocabulary, source: TokenizerFile) -> ConvertedTokenizer:
    """Convert a vocabulary of ranks to a tokenizer.json, Hugging Face's format.

    The library tiktoken has no list of merges. Each token has a rank, and of all pairs of tokens in
    a word it merges the one that makes the token with the smallest rank. So every pair that makes a
    token is a merge, in the order of these ranks:

        ranks     "a" 0,  "b" 1,  "ab" 2,  "aab" 3
        merges    a b,  a ab

    Args:
        ranked: The vocabulary.
        source: The file that it was read from, for errors.

    Raises:
        FormatError: A special token has the text of an ordinary one.
    """
    vocabulary = _ids_by_text(ranked.ids)
    # A merge must neither make nor use a special token: list the merges before these are added.
    merges = _list_merges(vocabulary)
    _add_special_tokens(vocabulary, ranked, source)
    return ConvertedTokenizer(
        json=_tokenizer_json(vocabulary, merges, ranked),
        meaning=_settings_that_decide_tokens(ranked),
        vocab_size=ranked.vocab_size,
        max_id=max(vocabulary.values()),
        special_tokens=dict(ranked.special_tokens),
        eod=_end_of_document(ranked),
        notice=ranked.notice,
    )


def _ids_by_text(ids: Mapping[bytes, int]) -> dict[str, int]:
    """Return the ids of tokens by their texts in a tokenizer.json, which has texts, not bytes.

    In this format, each of the 256 bytes is written as one character: a space as Ġ, for example.

    Args:
        ids: Bytes of each token → id: `{b" a": 257}`.

    Returns:
        Text of each token → id: `{"Ġa": 257}`.
    """
    ids_by_text = {}
    for token, token_id in ids.items():
        # latin-1 makes a character of each byte, which is then replaced by that of the format.
        text = token.decode("latin-1").translate(_CHARACTER_BY_BYTE)
        ids_by_text[text] = token_id
    return ids_by_text


def _end_of_document(ranked: RankedVocabulary) -> str | None:
    """Return the token that ends documents: that of the format, or else one with a common name."""
    if ranked.eod is not None:
        return ranked.eod
    return next((name for name in _END_TOKENS if name in ranked.special_tokens), None)


def _settings_that_decide_tokens(ranked: RankedVocabulary) -> dict[str, Any]:
    """Return the settings that decide the tokens, in addition to the bytes of the file."""
    tokens_by_id = sorted(ranked.special_tokens.items(), key=lambda item: item[1])
    return {
        "regex": ranked.pattern.regex,
        "form": ranked.pattern.form,
        "special_tokens": tokens_by_id,
        "vocab_size": ranked.vocab_size,
    }


def _list_merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of tokens that makes a third one, sorted by the rank of the third."""
    merges = []
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        merges += pairs_that_make(token, vocabulary)
    return merges


def _add_special_tokens(
    vocabulary: dict[str, int], ranked: RankedVocabulary, source: TokenizerFile
) -> None:
    """Add the special tokens, such as "<|endoftext|>", to a vocabulary of tiktoken's kind.

    Args:
        vocabulary: Token → id. The special tokens are added here.
        ranked: The vocabulary as it was read, with its special tokens.
        source: The file that it was read from, for errors.

    Raises:
        FormatError: A special token has the text of an ordinary one.
    """
    for name, token_id in ranked.special_tokens.items():
        # In some formats, "<|endoftext|>" in a text is not this token, but ordinary text. So the
        # token gets another name, with a prefix that no text produces.
        if not ranked.has_special_tokens_in_text:
            vocabulary[NEVER_IN_TEXT + name] = token_id
            continue
        if name in vocabulary:
            raise FormatError(
                "a special token has the text of an ordinary one",
                where=source,
                found=repr(name),
                expected="special tokens that are not among the ordinary tokens",
                remedy="name another special token (tokenizer.special_tokens)",
            )
        vocabulary[name] = token_id


def _tokenizer_json(
    vocabulary: Mapping[str, int], merges: list[tuple[str, str]], ranked: RankedVocabulary
) -> bytes:
    """Return a tokenizer.json (Hugging Face's format) that encodes text as tiktoken does.

    It has a component for each step:

        added_tokens     finds special tokens such as "<|endoftext|>" in the text
        normalizer       converts text to a Unicode normal form, if the vocabulary is made for one
        pre_tokenizer    splits the text by a regular expression: "the cat" → "the", " cat"
        model            merges the bytes of each word to tokens; a word that is in the vocabulary
                         is one token without merging (`ignore_merges`), as in tiktoken
        decoder          turns tokens back into text

    Args:
        vocabulary: Token → id, with the special tokens.
        merges: Pairs of tokens, in the order in which they are merged.
        ranked: The vocabulary as it was read, with its regular expression and special tokens.
    """
    return build_tokenizer_json(
        added_tokens=_added_tokens(ranked),
        normalizer=_normalizer(ranked.pattern.form),
        pre_tokenizer=_pre_tokenizer(ranked.pattern.regex),
        # `use_regex` does nothing in a decoder. It is true because published files have it so.
        decoder=byte_level(use_regex=True),
        model=bpe_model(vocabulary, merges, ignore_merges=True),
    )


def _normalizer(unicode_form: str | None) -> dict[str, Any] | None:
    """Return the part of a tokenizer.json that converts text to a Unicode normal form.

    Args:
        unicode_form: The form, such as "NFC" for Qwen's vocabularies, or None for most others.
    """
    if unicode_form is None:
        return None
    return {"type": unicode_form}


def _added_tokens(ranked: RankedVocabulary) -> list[dict[str, Any]]:
    """Return the special tokens that are found in a text, as a tokenizer.json lists them.

    Args:
        ranked: The vocabulary, with its special tokens.

    Returns:
        Such as [{"id": 100257, "content": "<|endoftext|>", "normalized": False, …}]; none if
        special tokens in a text are treated as other text.
    """
    if not ranked.has_special_tokens_in_text:
        return []
    # Some vocabularies, such as Qwen's, are for text in a Unicode normal form. Then special tokens
    # are looked for in the converted text.
    is_normalized = ranked.pattern.form is not None
    return [
        added_token(name, token_id, normalized=is_normalized)
        for name, token_id in ranked.special_tokens.items()
    ]


def _pre_tokenizer(regex: str) -> dict[str, Any]:
    """Return the part of a tokenizer.json that splits text into words by a regular expression.

    It has two steps, for "the cat" and GPT-2's expression:

        Split        "the", " cat"
        ByteLevel    "the", "Ġcat"      writes each byte as one character, a space as Ġ

    ByteLevel could also split text by itself, which `use_regex` switches off.

    Args:
        regex: The regular expression, whose matches are the words.
    """
    split = {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, byte_level(use_regex=False)]}


def check_regex(regex: str, source: TokenizerFile) -> None:
    """Check that Hugging Face's library reads a regular expression as tiktoken's library does.

    The expression says how text is split. It is written for tiktoken, and used by the other
    library.

    Args:
        regex: The expression.
        source: The tokenizer's file, for errors.

    Raises:
        ConfigError: Hugging Face's library cannot read it, or reads it differently.
    """
    _check_repetitions(regex, source)
    _check_compiles(regex, source)


def _check_repetitions(regex: str, source: TokenizerFile) -> None:
    """Refuse a split pattern with a repetition such as `a{1,3}+`, which has two meanings.

    The pattern, a regular expression, says how text is cut into words. For tiktoken's library, this
    is one repetition, which never gives back a character that it has matched. For Hugging Face's,
    the + repeats `a{1,3}`: it also matches "aaaa".

    Args:
        regex: The split pattern.
        source: The tokenizer's file, for the error.

    Raises:
        ConfigError: There is such a repetition.
    """
    match = BOUNDED_POSSESSIVE.search(regex)
    if match is not None:
        raise ConfigError(
            "tiktoken and the tokenizers library read this split pattern differently",
            where=source,
            found=f"{match.group()!r}, at character {match.start()} of {regex!r}",
            expected="a possessive repetition written as an atomic group, such as (?>\\p{N}{1,3})",
            remedy="write it as an atomic group; "
            "or omit its + if what follows cannot match the same characters",
        )


def _check_compiles(regex: str, source: TokenizerFile) -> None:
    """Check that a regular expression, by which text is split, has no error of syntax.

    Args:
        regex: The expression.
        source: The tokenizer's file, for the error.

    Raises:
        ConfigError: Hugging Face's tokenizers library cannot read it.
    """
    from tokenizers import Regex

    try:
        Regex(regex)
    except Exception as error:
        raise ConfigError(
            "the split pattern is not a regular expression",
            where=source,
            found=f"{regex!r}: {error}",
            expected="a regular expression as tiktoken uses it, or the name of one",
            remedy="correct the pattern",
        ) from error


def number_special_tokens(names: Sequence[str], count: int) -> dict[str, int]:
    """Return the ids of special tokens: the first ids are theirs, also those without a name.

    Some formats reserve ids for special tokens that have no name yet. They get one. For ["<s>"] and
    3 ids:

        {"<s>": 0, "<SPECIAL_1>": 1, "<SPECIAL_2>": 2}

    Args:
        names: Names of the first special tokens, at most `count`.
        count: Number of ids for special tokens, from 0 on.
    """
    fillers = [f"<SPECIAL_{token_id}>" for token_id in range(len(names), count)]
    return {name: token_id for token_id, name in enumerate([*names, *fillers])}


def read_json(source: TokenizerFile) -> Any:
    """Read and parse a JSON file.

    Args:
        source: The file, which contains ranks.

    Returns:
        The value that the JSON stands for, which may be of any type.

    Raises:
        FormatError: The file is not JSON, for example because it was cut off.
    """
    content = read_regular(source.path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise FormatError(
            "the tokenizer cannot be read as JSON",
            where=source,
            found=shortened(str(error), 200),
            expected=f"JSON to the end of the file ({len(content):,} bytes)",
            remedy=RANKS_REMEDY,
        ) from error
