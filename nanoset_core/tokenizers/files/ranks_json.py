"""Read two JSON formats of ranks: Megatron-LM's tiktoken JSON, and Mistral's tekken.json.

Both list tokens in the order of their ranks:

    [{"rank": 0, "token_bytes": "AA==", "token_str": "\\u0000"}, …]

The first ids are reserved for special tokens, so that a token's id is its rank plus their number.
Ids that no special token is named for are filled up with `<SPECIAL_7>` and so on. Megatron-LM's
file is just this list; a tekken.json is an object that also has the pattern, the vocabulary size
and the special tokens.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.tokenizers.files.ranks import (
    RANKS_REMEDY,
    RankedVocabulary,
    check_regex,
    convert_ranks,
    number_special_tokens,
    read_json,
)
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.split_patterns import MEGATRON, PATTERNS, NamedPattern
from nanoset_core.tokenizers.files.tokenizer_json import ConvertedTokenizer
from nanoset_core.untrusted import shortened

# Defaults of Megatron-LM's TikTokenizer.
_MEGATRON_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_SPECIAL_COUNT = 1000
_MEGATRON_VOCAB_SIZE = 1 << 17
_MEGATRON_PATTERN = "v2"
_MEGATRON_FORMAT = (
    'Megatron-LM\'s [{"rank": 0, "token_bytes": "AA==", "token_str": …}, …], '
    "ranks in order, from 0 on, the bytes 0 to 255 first"
)

# Special tokens of a tekken.json that names none; up to version 7 it need not.
_TEKKEN_TOKENS = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
_LAST_VERSION_WITHOUT_NAMES = 7
_TEKKEN_FORMAT = (
    "a tekken.json: config (pattern, default_vocab_size, default_num_special_tokens, version), "
    "vocab with ranks from 0 on in order, and special_tokens"
)

_END_TOKEN = "</s>"
"""The token with which both Megatron-LM's class and Mistral's end documents."""


def read_megatron(source: TokenizerFile) -> ConvertedTokenizer:
    """Read Megatron-LM's tiktoken JSON, and convert it to a tokenizer.json, Hugging Face's format.

    The file lists the tokens in the order of their ranks, and nothing else. How text is split, and
    which special tokens there are, are settings. Those that the user did not make have
    Megatron-LM's defaults. With 1,000 ids for special tokens:

        ids 0 to 999        special tokens: "<unk>", "<s>", …, and then fillers "<SPECIAL_7>", …
        ids from 1000 on    the first tokens of the file; it may list more than are used

    Args:
        source: The file, with the settings.

    Raises:
        FormatError: The file is damaged, or has fewer ranks than the vocabulary needs.
        ConfigError: Megatron-LM does not accept the pattern or the special tokens.
    """
    pattern = _megatron_pattern(source)
    vocab_size = source.vocab_size or _MEGATRON_VOCAB_SIZE
    n_special = source.num_special_tokens
    if n_special is None:
        n_special = _MEGATRON_SPECIAL_COUNT
    special_names = source.special_tokens
    if special_names is None:
        special_names = _MEGATRON_TOKENS
    _check_megatron_tokens(source, special_names, n_special, vocab_size)

    # The first ids are reserved for special tokens, and some of these have names. The other ids
    # belong to the first tokens that the file lists. It may list more than are used.
    entry_list = _EntryList(
        entries=read_json(source),
        n_special=n_special,
        vocab_size=vocab_size,
        file_format=_MEGATRON_FORMAT,
    )
    ranked = RankedVocabulary(
        ids=entry_list.ids_of_tokens(source),
        pattern=pattern,
        special_tokens=number_special_tokens(special_names, n_special),
        vocab_size=vocab_size,
        eod=_END_TOKEN,
    )
    return convert_ranks(ranked, source)


def _megatron_pattern(source: TokenizerFile) -> NamedPattern:
    """Return how Megatron-LM splits text: by the pattern that the user names, or its default.

    A pattern is a regular expression. Megatron-LM has two, "v1" and "v2" (the default).

    Args:
        source: The tokenizer's file, and the user's settings.

    Raises:
        ConfigError: Megatron-LM does not know the pattern.
    """
    pattern_name = source.pattern or _MEGATRON_PATTERN
    if pattern_name not in MEGATRON:
        default = _MEGATRON_PATTERN
        raise ConfigError(
            "not a pattern that Megatron-LM's TikTokenizer takes",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {pattern_name!r}",
            expected=" or ".join(MEGATRON),
            remedy=f"set tokenizer.pattern to one of these; Megatron-LM's default is {default}",
        )
    return PATTERNS[pattern_name]


def _check_megatron_tokens(
    source: TokenizerFile, names: Sequence[str], n_special: int, vocab_size: int
) -> None:
    """Check that Megatron-LM accepts the special tokens that the user has set for a tokenizer.

    Megatron-LM reserves some ids for them, such as the first 1,000. Their names must differ, and
    include <unk>, <s>, </s>, <mask>, <pad>, <cls> and <sep>.

    Args:
        source: The tokenizer's file, for the error.
        names: Names of the special tokens.
        n_special: How many ids are reserved for special tokens.
        vocab_size: Size of the vocabulary, with the special tokens.

    Raises:
        ConfigError: A special token is repeated or missing, or there are not enough ids.
    """
    has_room = len(names) <= n_special < vocab_size
    is_unique = len(set(names)) == len(names)
    has_all = set(_MEGATRON_TOKENS) <= set(names)
    if has_room and is_unique and has_all:
        return
    raise ConfigError(
        "special tokens that Megatron-LM's TikTokenizer refuses",
        where=source,
        found=f"{len(names):,} names, {n_special:,} ids reserved for them, "
        f"{vocab_size:,} ids in all: {' '.join(names[:10])}",
        expected=f"different names, {' '.join(_MEGATRON_TOKENS)} among them, and an id for each",
        remedy="change the names (--tokenizer-special-tokens), "
        "or raise --tiktoken-num-special-tokens",
    )


@dataclass(frozen=True, slots=True)
class _Tekken:
    """The fields of a tekken.json that decide the tokens."""

    pattern: str
    vocab_size: int
    n_special: int
    """Ids that are reserved for special tokens."""
    names: Sequence[str]
    """Names of special tokens, in the order of their ids."""
    entries: list[Any]
    """Tokens with their ranks."""


def read_tekken(source: TokenizerFile) -> ConvertedTokenizer:
    """Read Mistral's tekken.json, and convert it to a tokenizer.json, Hugging Face's format.

    The file lists tokens in the order in which they are merged. The first ids are reserved for
    special tokens, such as 0 to 999; the token of rank 0 then has the id 1000.

    Args:
        source: The file.

    Raises:
        FormatError: The file is damaged.
        ConfigError: The split pattern in the file is not a regular expression that can be used.
    """
    value = read_json(source)
    try:
        tekken = _parse_tekken(value)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            "this is no tekken.json",
            where=source,
            found=shortened(repr(error), 200),
            expected=_TEKKEN_FORMAT,
            remedy=RANKS_REMEDY,
        ) from error

    # The first `n_special` ids are reserved for special tokens. Some of these have names, and the
    # others get one. All other ids belong to the first tokens that the file lists.
    entry_list = _EntryList(
        entries=tekken.entries,
        n_special=tekken.n_special,
        vocab_size=tekken.vocab_size,
        file_format=_TEKKEN_FORMAT,
    )
    id_by_token = entry_list.ids_of_tokens(source)
    special_tokens = number_special_tokens(tekken.names, tekken.n_special)

    check_regex(tekken.pattern, source)
    ranked = RankedVocabulary(
        ids=id_by_token,
        pattern=NamedPattern(tekken.pattern),
        special_tokens=special_tokens,
        vocab_size=tekken.vocab_size,
        eod=_END_TOKEN,
        # If the name of a special token occurs in a text, Mistral encodes it like other text.
        has_special_tokens_in_text=False,
    )
    return convert_ranks(ranked, source)


def _parse_tekken(value: Any) -> _Tekken:
    """Return the fields of a parsed tekken.json, Mistral's format, that decide the tokens.

        {"config": {"pattern": "…", "default_vocab_size": 131072, "default_num_special_tokens":
        1000},
         "vocab": [{"rank": 0, "token_bytes": "AA=="}, …], "special_tokens": […]}

    Args:
        value: The parsed file.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type.
        ValueError: The special tokens are repeated, or there are not enough ids for them.
    """
    config = value["config"]
    tekken = _Tekken(
        pattern=config["pattern"],
        vocab_size=config["default_vocab_size"],
        n_special=config["default_num_special_tokens"],
        names=_tekken_names(value, config),
        entries=value["vocab"],
    )
    _check_tekken(tekken)
    return tekken


def _check_tekken(tekken: _Tekken) -> None:
    """Check the types of a tekken.json's fields, and that there are enough ids for special tokens.

    For example, with 1,000 ids for special tokens, the file must not name 1,001.

    Args:
        tekken: The fields as they were read, whose values may be of any type.

    Raises:
        TypeError: A field has another type.
        ValueError: The special tokens are repeated, or there are not enough ids for them.
    """
    if not isinstance(tekken.entries, list) or not isinstance(tekken.pattern, str):
        raise TypeError("vocab is no list, or config.pattern is no text")
    vocab_size = tekken.vocab_size
    n_special = tekken.n_special
    if not isinstance(vocab_size, int) or not isinstance(n_special, int):
        raise TypeError("the vocabulary size, or the number of special tokens, is no integer")

    n_names = len(tekken.names)
    has_room = 0 <= n_special < vocab_size and n_names <= n_special
    has_repeated_name = len(set(tekken.names)) < n_names
    if not has_room or has_repeated_name:
        raise ValueError(f"{n_names:,} special tokens for {n_special:,} of {vocab_size:,} ids")


def _tekken_names(value: Mapping[str, Any], config: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the special tokens of a tekken.json, Mistral's format for tokenizers.

    The file lists them, in the order of their ids:

        "special_tokens": [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, …]

    Files of versions up to 7 ("v3", "v7m1") may have no such list: these all have the same special
    tokens.

    Args:
        value: The parsed file.
        config: The settings in the file, such as {"version": "v3", …}.

    Raises:
        ValueError: The file has no list, although it is of a later version; or an entry of the list
            has no name or another rank than its position.
    """
    entries = value.get("special_tokens")
    if entries is not None:
        return [_tekken_name(entry, position) for position, entry in enumerate(entries)]

    version = config.get("version")
    if not _may_lack_names(version):
        raise ValueError(f"it names no special tokens, in version {version!r}")
    return _TEKKEN_TOKENS


def _tekken_name(entry: Any, position: int) -> str:
    """Return the name of a special token of a tekken.json.

    Args:
        entry: Its entry in the file, such as {"rank": 1, "token_str": "<s>", "is_control": true}.
        position: Position of the entry in the list, which its rank must be.

    Raises:
        ValueError: The entry has no name or another rank.
    """
    name = entry["token_str"]
    if entry["rank"] != position or not isinstance(name, str) or not name:
        raise ValueError("a special token has no name, or its rank is not its position")
    return name


def _may_lack_names(version: Any) -> bool:
    """Return whether a tekken.json of a version need not name its special tokens.

    Args:
        version: The version, such as "v3" or "v7m1". Only its first number counts.
    """
    numbers = re.fullmatch(r"v(\d+)m?\d*", str(version))
    return numbers is not None and int(numbers[1]) <= _LAST_VERSION_WITHOUT_NAMES


@dataclass(frozen=True, slots=True)
class _EntryList:
    """The tokens of a file in the order of their ranks."""

    entries: list[Any]
    n_special: int
    """Ids that are reserved for special tokens, in front of the ranks."""
    vocab_size: int
    file_format: str
    """What the file should look like, for errors."""

    def ids_of_tokens(self, source: TokenizerFile) -> dict[bytes, int]:
        """Return the ids of a file's tokens, which it lists in the order of their ranks.

        The first ids are reserved for special tokens, which are not in the list. With 1,000 of
        these:

            rank    0       1       2       …
            id      1000    1001    1002    …   up to the size of the vocabulary

        Args:
            source: The file, for errors.

        Returns:
            Bytes of each token → id.

        Raises:
            FormatError: An entry is malformed, a token is repeated, or there are too few entries.
        """
        # A file may have more entries than the vocabulary. These are no tokens.
        n_tokens = self.vocab_size - self.n_special
        tokens = self._parse_entries(source)[:n_tokens]
        ids = {token: self.n_special + rank for rank, token in enumerate(tokens)}

        has_all_tokens = len(ids) == n_tokens  # a repeated token has only one id
        has_all_bytes = n_tokens >= 256  # the first 256 tokens are the single bytes
        if not has_all_tokens or not has_all_bytes:
            raise FormatError(
                "there are fewer tokens than the vocabulary needs, or one is repeated",
                where=source,
                found=f"{len(ids):,} different tokens of {n_tokens:,}",
                expected=self.file_format,
                remedy=RANKS_REMEDY,
            )
        return ids

    def _parse_entries(self, source: TokenizerFile) -> list[bytes]:
        """Return the bytes of the token of each entry.

        Args:
            source: The file, for the error.

        Raises:
            FormatError: An entry is malformed.
        """
        tokens: list[bytes] = []
        for rank, entry in enumerate(self.entries):
            try:
                tokens.append(_parse_entry(entry, rank))
            except (TypeError, KeyError, ValueError) as error:
                raise self._entry_error(source, rank, error) from error
        return tokens

    def _entry_error(self, source: TokenizerFile, rank: int, error: Exception) -> FormatError:
        """Return the error that the entry of a rank is malformed."""
        entry = shortened(str(self.entries[rank]), 120)
        return FormatError(
            f"entry {rank:,} is no token and its rank",
            where=source,
            found=shortened(f"{entry} ({error})", 200),
            expected=self.file_format,
            remedy=RANKS_REMEDY,
        )


def _parse_entry(entry: Any, rank: int) -> bytes:
    """Return the bytes of a token, by its entry in a file.

    The entry {"rank": 0, "token_bytes": "AA=="} is the byte 0, in base64. The first 256 entries
    must be the bytes 0 to 255, in their order.

    Args:
        entry: The entry.
        rank: Position of the entry in the file, which its rank must be.

    Raises:
        TypeError, KeyError, ValueError: The entry is malformed.
    """
    token = a2b_base64(entry["token_bytes"], strict_mode=True)
    is_valid_byte = rank >= 256 or token == bytes([rank])
    if entry["rank"] != rank or not token or not is_valid_byte:
        raise ValueError("the token or its rank is not the expected one")
    return token
