"""Files of tiktoken's ranks: lines of a token in base64 and its rank, which say nothing of how text is split."""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.ranks import check_regex, ranks_content
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import MEGATRON, PATTERNS, NamedPattern


def read_ranks(source: TokenizerFile) -> Content:
    """Read lines of a token in base64 and its rank, for which a pattern must be named.

    Raises:
        FormatError: the file is damaged, or its ranks have holes.
        ConfigError: the pattern is not named, or is none.
    """
    words = _read_lines(source)
    pattern = _pattern(source)
    special = _special_tokens(source, pattern, words)
    _check_ranks(words, special, source)
    size = max(*words.values(), *special.values()) + 1
    return ranks_content(source, words, pattern, special, vocab_size=size, notice=_notice(source, pattern, words))


def _notice(source: TokenizerFile, pattern: NamedPattern, words: Mapping[bytes, int]) -> str:
    """Return what the number of ranks tells: a file that was cut at the end of a line looks whole."""
    if pattern.ranks == len(words):
        return ""
    found = f"holds {len(words):,} ranks without a hole"
    if pattern.ranks is None:
        return f"{found}; whether these are all, such a file does not say"
    found += f", and the vocabulary that was published with the pattern {source.pattern} has {pattern.ranks:,}"
    return f"{found}: {'the file is cut, or ' if len(words) < pattern.ranks else ''}it is a vocabulary of its own"


def _pattern(source: TokenizerFile) -> NamedPattern:
    names = ", ".join(name for name in PATTERNS if name not in MEGATRON)
    if source.pattern is None:
        raise ConfigError(
            "tiktoken's ranks do not say how text is split before merging",
            where=source,
            found="no pattern",
            expected=f"one of {names}, or a regular expression",
            remedy="name the tokenizer's pattern: `pattern:` beside `path:` in nanoset.yaml, or --tiktoken-pattern",
        )
    if source.pattern not in MEGATRON and (found := PATTERNS.get(source.pattern)) is not None:
        return found
    if re.fullmatch(r"[\w .-]*", source.pattern):
        raise ConfigError(
            "no such split pattern",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {source.pattern!r}",
            expected=f"one of {names}, or a regular expression",
            remedy="correct the name",
        )
    check_regex(source.pattern, source)
    return NamedPattern(source.pattern)


def _special_tokens(source: TokenizerFile, pattern: NamedPattern, words: Mapping[bytes, int]) -> dict[str, int]:
    """Return those that are named, behind the ranks; else those that are published with these ranks."""
    if source.special_tokens is None:
        return dict(pattern.special_tokens) if pattern.ranks == len(words) else {}
    if len(set(source.special_tokens)) != len(source.special_tokens) or not all(source.special_tokens):
        raise ConfigError(
            "a special token is named twice, or is empty",
            where=source,
            found=" ".join(source.special_tokens[:12]),
            expected="different names",
            remedy="name each once (tokenizer.special_tokens, --tokenizer-special-tokens)",
        )
    first = max(words.values()) + 1
    return {name: first + number for number, name in enumerate(source.special_tokens)}


def _read_lines(source: TokenizerFile) -> dict[bytes, int]:
    """Read the ranks: token → rank."""
    words: dict[bytes, int] = {}
    for number, line in enumerate(read_regular(source.path).split(b"\n"), start=1):
        parts, where = line.split(), f"{source}:{number}"
        if not parts:
            continue
        if len(parts) != 2 or not parts[1].isdigit():
            raise _error(where, "a line is no token and its rank", repr(line[:80].decode(errors="replace")))
        try:
            word = a2b_base64(parts[0], strict_mode=True)
        except ValueError as cause:
            raise _error(where, "a token is not base64", f"{parts[0][:80]!r}: {cause}") from cause
        if not word or word in words:
            raise _error(where, "a token is empty, or there twice", repr(word))
        words[word] = int(parts[1])
    lacking = [byte for byte in range(256) if bytes([byte]) not in words]
    if lacking:
        found = f"none for {len(lacking):,} of 256 bytes, the first 0x{lacking[0]:02X}; {len(words):,} tokens"
        raise _error(source, "a byte has no rank", found)
    return words


def _check_ranks(words: Mapping[bytes, int], special: Mapping[str, int], source: TokenizerFile) -> None:
    ranks, last = set(words.values()), max(words.values())
    if len(ranks) != len(words):
        raise _error(source, "two tokens have one rank", f"{len(words):,} tokens, {len(ranks):,} ranks")
    hole = next((rank for rank in range(last) if rank not in ranks and rank not in special.values()), None)
    if hole is not None:
        raise _error(source, "the ranks have a hole", f"no token of rank {hole:,}; the last is {last:,}")
    clash = next((name for name, ident in special.items() if ident in ranks), None)
    if clash is not None:
        raise _error(source, "a special token has the id of an ordinary one", f"{clash!r}: {special[clash]:,}")


def _error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=found,
        expected="lines of a token in base64, a space and its rank; each rank once, from 0 on, one for each byte",
        remedy="fetch or write the file again, or name a tokenizer.json",
    )
