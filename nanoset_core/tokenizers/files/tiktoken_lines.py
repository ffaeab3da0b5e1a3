"""Read tiktoken's own format: lines of a token in base64 and its rank.

    IQ== 0
    Ig== 1
    Iw== 2

The file has neither the pattern by which text is split nor special tokens: both are settings.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Collection, Mapping
from typing import NamedTuple

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.ranks import (
    RANKS_REMEDY,
    RankedVocabulary,
    check_regex,
    convert_ranks,
)
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.split_patterns import MEGATRON, PATTERNS, NamedPattern
from nanoset_core.tokenizers.files.tokenizer_json import ConvertedTokenizer
from nanoset_core.untrusted import shortened

_FORMAT = (
    "lines of a token in base64, a space and its rank; "
    "each rank once, from 0 on, and a token for each byte"
)
_NAME_LIKE = re.compile(r"[\w .-]*")
"""A setting that looks like the name of a pattern, and is probably a misspelt one."""


def read_tiktoken_lines(source: TokenizerFile) -> ConvertedTokenizer:
    """Read a file of the library tiktoken, and convert it to a tokenizer.json.

    The file has a line for each token, with its bytes in base64 and its rank, which is also its id.
    How text is split into words is a setting, and so are special tokens.

    Args:
        source: The file, with the settings.

    Raises:
        FormatError: The file is damaged, or its ranks have gaps.
        ConfigError: The setting `pattern` is missing or wrong, or special tokens are repeated.
    """
    ranks = _read_ranks(source)
    pattern = _configured_pattern(source)
    special_tokens = _special_tokens(source, ranks, pattern)
    _check_ids(source, ranks, special_tokens)

    ranked = RankedVocabulary(
        ids=ranks,
        pattern=pattern,
        special_tokens=special_tokens,
        vocab_size=max([*ranks.values(), *special_tokens.values()]) + 1,
        notice=_count_notice(source, pattern, len(ranks)),
    )
    return convert_ranks(ranked, source)


class _RankedToken(NamedTuple):
    token: bytes
    rank: int


def _read_ranks(source: TokenizerFile) -> dict[bytes, int]:
    """Read the tokens of a file in the format of the library tiktoken, and their ranks.

    Each line has a token in base64 and its rank, by which tokens are merged, and which is its id:

        IQ== 0        {b"!": 0, …}

    Args:
        source: The file.

    Returns:
        Bytes of each token → rank.

    Raises:
        FormatError: A line cannot be read, a token is repeated, or a byte has no token.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_regular(source.path).split(b"\n"), start=1):
        if not line.strip():
            continue  # the end of the file
        try:
            token, rank = _parse_line(line)
            if token in ranks:
                raise ValueError("the token is repeated")
        except ValueError as error:
            raise _line_error(source, number, line, error) from error
        ranks[token] = rank
    _check_bytes_have_ranks(ranks, source)
    return ranks


def _line_error(source: TokenizerFile, number: int, line: bytes, error: ValueError) -> FormatError:
    """Return the error that a line of a file, numbered from 1, cannot be read."""
    return FormatError(
        "a line is no token and its rank",
        where=f"{source}:{number}",
        found=shortened(f"{line[:80].decode(errors='replace')!r}: {error}", 200),
        expected=_FORMAT,
        remedy=RANKS_REMEDY,
    )


def _check_bytes_have_ranks(ranks: Mapping[bytes, int], source: TokenizerFile) -> None:
    """Check that each of the 256 bytes is a token, without which some text could not be encoded.

    The file was probably cut off, if one is missing.

    Args:
        ranks: Bytes of each token → rank, such as {b"!": 0}. A rank is also the token's id.
        source: The file, for the error.

    Raises:
        FormatError: A byte is not a token.
    """
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise FormatError(
            "a byte has no rank",
            where=source,
            found=f"no rank for {len(missing):,} of 256 bytes, the first 0x{missing[0]:02X}; "
            f"{len(ranks):,} tokens",
            expected=_FORMAT,
            remedy=RANKS_REMEDY,
        )


def _parse_line(line: bytes) -> _RankedToken:
    """Parse a line such as `IQ== 0`: a token in base64, and its rank.

    Args:
        line: The line, without its line end.

    Raises:
        ValueError: The line is malformed.
    """
    fields = line.split()
    if len(fields) != 2:
        raise ValueError("not two fields")
    token = a2b_base64(fields[0], strict_mode=True)
    if not token:
        raise ValueError("the token is empty")
    if not fields[1].isdigit():
        raise ValueError("the rank is not a number")
    return _RankedToken(token, int(fields[1]))


def _configured_pattern(source: TokenizerFile) -> NamedPattern:
    r"""Return the regular expression that splits text, which is a setting of the user.

    A file of the library tiktoken does not contain it. In nanoset.yaml:

        pattern: cl100k                the name of a published one
        pattern: ' ?\w+|\s+'           an expression
        pattern: cl100                 refused: looks like a name, and is none

    Args:
        source: The file, and the user's settings.

    Raises:
        ConfigError: There is no pattern, or one that is neither a known name nor a regular
            expression.
    """
    # Megatron-LM's patterns apply to its own format only.
    names = [name for name in PATTERNS if name not in MEGATRON]
    pattern = source.pattern
    if pattern in names:
        return PATTERNS[pattern]

    expected = f"one of {', '.join(names)}, or a regular expression"
    remedy = (
        "name the tokenizer's pattern: "
        "`pattern:` next to `path:` in nanoset.yaml, or --tiktoken-pattern"
    )
    if pattern is None:
        raise ConfigError(
            "tiktoken's ranks do not say how text is split before merging",
            where=source,
            found="no pattern",
            expected=expected,
            remedy=remedy,
        )
    if _NAME_LIKE.fullmatch(pattern):
        raise ConfigError(
            "no such split pattern",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {pattern!r}",
            expected=expected,
            remedy=remedy,
        )
    check_regex(pattern, source)
    return NamedPattern(pattern)


def _special_tokens(
    source: TokenizerFile, ranks: Mapping[bytes, int], pattern: NamedPattern
) -> dict[str, int]:
    """Return the special tokens of a tokenizer, which a file of tiktoken does not contain.

    The user may name them, such as ["<s>"]: then they get the ids after those of the file. If the
    user does not, and the file is a published vocabulary, its special tokens are known, such as
    {"<|endoftext|>": 100257}. A file with the same number of tokens as the published one, and the
    same pattern, counts as that.

    Args:
        source: The tokenizer's file, with the user's settings.
        ranks: Token → rank, which is also its id.
        pattern: The regular expression that splits text, and what is known of the vocabulary with
            which it was published.

    Returns:
        Name of each special token → id.

    Raises:
        ConfigError: The user named a special token twice, or an empty one.
    """
    names = source.special_tokens
    if names is None:
        # The number of tokens shows if this is the published vocabulary, such as cl100k_base. Its
        # special tokens are known.
        is_published_vocabulary = len(ranks) == pattern.ranks
        return dict(pattern.special_tokens) if is_published_vocabulary else {}

    is_unique = len(set(names)) == len(names)
    if not is_unique or "" in names:
        first_names = names[:12]  # a vocabulary may have hundreds
        raise ConfigError(
            "a special token is named twice, or is empty",
            where=source,
            found=" ".join(first_names),
            remedy="name each once (tokenizer.special_tokens, --tokenizer-special-tokens)",
        )

    # Number them after the other tokens.
    first_id = max(ranks.values()) + 1
    return {name: token_id for token_id, name in enumerate(names, start=first_id)}


def _check_ids(
    source: TokenizerFile, ranks: Mapping[bytes, int], special_tokens: Mapping[str, int]
) -> None:
    """Check that each id of a tokenizer belongs to one token.

    The file, in the format of the library tiktoken, gives each token a rank, which is also its id.
    With the special tokens, there must be no gap up to the largest rank:

        "a" 0, "b" 1, "ab" 2               right
        "a" 0, "b" 1, "ab" 3               no token has the id 2, unless a special token has it
        "a" 0, "b" 1, "ab" 1               two tokens have the id 1

    Args:
        source: The tokenizer's file, for the error.
        ranks: Token → rank.
        special_tokens: Name → id.

    Raises:
        FormatError: Two tokens have the same id, or an id below the largest rank belongs to no
            token.
    """
    # The ids of all tokens, each once: if there are fewer of them than tokens, an id is repeated.
    unique_ranks = set(ranks.values())
    unique_ids = unique_ranks.union(special_tokens.values())
    n_tokens = len(ranks) + len(special_tokens)
    has_repeated_id = len(unique_ids) < n_tokens

    last_rank = max(unique_ranks)
    first_missing_id = _first_missing(unique_ids, last_rank)
    if first_missing_id is None and not has_repeated_id:
        return

    # Show the counts, from which it can be seen what is wrong.
    counts = (
        f"{len(ranks):,} tokens with {len(unique_ranks):,} ranks; "
        f"with the special tokens {n_tokens:,} tokens and {len(unique_ids):,} ids"
    )
    if first_missing_id is not None:
        counts += f"; no token with id {first_missing_id:,}; the last rank is {last_rank:,}"
    raise FormatError(
        "two tokens have the same id, or the ids have a gap",
        where=source,
        found=counts,
        expected=_FORMAT,
        remedy=RANKS_REMEDY,
    )


def _first_missing(ids: Collection[int], stop: int) -> int | None:
    """Return the smallest number from 0 to `stop` - 1 that is no id; None if all of them are."""
    missing_ids = (token_id for token_id in range(stop) if token_id not in ids)
    return next(missing_ids, None)


def _count_notice(source: TokenizerFile, pattern: NamedPattern, n_ranks: int) -> str:
    """Return a notice if a tokenizer's file may have fewer tokens than it should.

    A file of the library tiktoken has a line for each token, so that nobody sees if its end is
    missing. But the user also names the regular expression that splits text, and most of these were
    published with a vocabulary of known size. For the pattern cl100k, which has 100,256 tokens:

        100,256 tokens          no notice
        90,000 tokens           "the file is cut, or it is a vocabulary of its own"
        120,000 tokens          "it is a vocabulary of its own"

    Args:
        source: The tokenizer's file.
        pattern: The regular expression, with the size of its vocabulary if it is known.
        n_ranks: Number of tokens in the file.

    Returns:
        The notice, or an empty text.
    """
    expected_ranks = pattern.ranks
    if n_ranks == expected_ranks:
        return ""
    if expected_ranks is None:
        return f"holds {n_ranks:,} ranks without a gap; the file does not say whether these are all"

    # The file may also be another vocabulary, which the user splits by the same pattern.
    explanation = "it is a vocabulary of its own"
    if n_ranks < expected_ranks:
        explanation = "the file is cut, or it is a vocabulary of its own"
    return (
        f"holds {n_ranks:,} ranks without a gap, and the vocabulary that was published with the "
        f"pattern {source.pattern} has {expected_ranks:,}: {explanation}"
    )
