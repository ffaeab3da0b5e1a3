"""Byte-level BPE as ranks: .tiktoken, Megatron-LM's tiktoken JSON and tekken.json.

tiktoken's library takes a piece that has a rank as one token, and else merges, again and again, the first of the two
neighbours that together have the least rank. The same in merges: every pair of tokens that makes a token, in the order
of the ranks of what they make, and whole pieces first (`ignore_merges`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files.content import (
    NEVER_IN_TEXT,
    Content,
    added_token,
    bpe,
    byte_characters,
    byte_level,
    tokenizer_json,
)
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import BOUNDED_POSSESSIVE, MEGATRON, PATTERNS, NamedPattern

_WRITE_BYTES = str.maketrans(dict(enumerate(byte_characters())))

_MEGATRON_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_SPECIAL, _MEGATRON_VOCABULARY = 1000, 1 << 17
_OLD_TEKKEN_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Of a tekken.json that names none, which files up to its version 7 need not."""
_LAST_VERSION_WITHOUT_NAMES = 7


def read_tiktoken(source: TokenizerFile) -> Content:
    """Lines of a token in base64 and its rank, and a pattern that must be named.

    Raises:
        FormatError: the file is damaged, or its ranks have holes.
        ConfigError: the pattern is not named, or is none.
    """
    words = _checked_ranks(_read_lines(source), source, _tiktoken_error)
    pattern = _pattern(source)
    special = _tiktoken_special(source, pattern, words)
    _check_holes(words, special, source)
    return _content(source, words, pattern, special, vocab_size=max(*words.values(), *special.values()) + 1)


def read_megatron(source: TokenizerFile) -> Content:
    """Megatron-LM's TikTokenizer: the first ids are kept for special tokens, ranks come behind them.

    Raises:
        FormatError: the file is damaged, or holds fewer ranks than its vocabulary asks for.
        ConfigError: the pattern or the special tokens are none that Megatron-LM takes.
    """
    name = source.pattern or "v2"
    if name not in MEGATRON:
        raise ConfigError(
            "not a pattern that Megatron-LM's TikTokenizer takes",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {name!r}",
            expected=" or ".join(MEGATRON),
            remedy="name one of these; Megatron-LM's default is v2",
        )
    size = source.vocab_size or _MEGATRON_VOCABULARY
    count = _MEGATRON_SPECIAL if source.num_special_tokens is None else source.num_special_tokens
    names = _MEGATRON_TOKENS if source.special_tokens is None else source.special_tokens
    if not len(names) <= count < size or len(set(names)) != len(names) or not set(_MEGATRON_TOKENS) <= set(names):
        raise ConfigError(
            "special tokens that Megatron-LM's TikTokenizer refuses",
            where=source,
            found=f"{len(names):,} names, {count:,} ids kept for them, {size:,} ids in all: {' '.join(names[:10])}",
            expected=f"different names with {' '.join(_MEGATRON_TOKENS)} among them, and room for all",
            remedy="name them so (--tokenizer-special-tokens), or raise --tiktoken-num-special-tokens",
        )
    words = _cut(_read_entries(_read_json(source), source, _megatron_error), size - count, source, _megatron_error)
    special = _filled(names, count)
    return _content(source, _shifted(words, count), PATTERNS[name], special, vocab_size=size, eod="</s>")


def read_tekken(source: TokenizerFile) -> Content:
    """Mistral's tekken.json: as Megatron-LM's, with pattern and special tokens, which no text gives.

    Raises:
        FormatError: the file is damaged.
    """
    value = _read_json(source)
    config = value.get("config") if isinstance(value, dict) else None
    if not isinstance(config, dict) or not isinstance(value.get("vocab"), list):
        raise _tekken_error(source, "this is no tekken.json", "no config, or no list vocab")
    pattern, size, count = (config.get(key) for key in ("pattern", "default_vocab_size", "default_num_special_tokens"))
    if not isinstance(pattern, str) or type(size) is not int or type(count) is not int or not 0 <= count < size:
        raise _tekken_error(source, "the config of this tekken.json is none", config)
    names = _tekken_names(value, config, source)
    if len(names) > count or len(set(names)) != len(names):
        raise _tekken_error(source, "its special tokens do not fit", f"{len(names):,} names for {count:,} ids")
    words = _cut(_read_entries(value["vocab"], source, _tekken_error), size - count, source, _tekken_error)
    special = _filled(names, count)
    _check_regex(pattern, source)
    named = NamedPattern(pattern)
    return _content(source, _shifted(words, count), named, special, vocab_size=size, eod="</s>", from_text=False)


def _content(
    source: TokenizerFile,
    words: Mapping[bytes, int],
    pattern: NamedPattern,
    special: Mapping[str, int],
    *,
    vocab_size: int,
    eod: str | None = None,
    from_text: bool = True,
) -> Content:
    """A tokenizer of ranks; `from_text`: whether special tokens that stand in text become themselves."""
    vocabulary = {word.decode("latin-1").translate(_WRITE_BYTES): ident for word, ident in words.items()}
    merges = _merges(vocabulary)
    for name, ident in special.items():
        if from_text and name in vocabulary:
            raise FormatError(
                "a special token has the text of an ordinary one",
                where=source,
                found=repr(name),
                expected="special tokens that have no rank",
                remedy="name another special token (tokenizer.special_tokens)",
            )
        vocabulary[name if from_text else NEVER_IN_TEXT + name] = ident
    ends = ("<|endoftext|>", "<|end_of_text|>")
    split = {"type": "Split", "pattern": {"Regex": pattern.regex}, "behavior": "Isolated", "invert": False}
    return Content(
        json=tokenizer_json(
            added_tokens=[added_token(name, ident) for name, ident in special.items() if from_text],
            normalizer={"type": pattern.form} if pattern.form else None,
            pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level(use_regex=False)]},
            decoder=byte_level(use_regex=True),
            model=bpe(vocabulary, merges, ignore_merges=True),
        ),
        files=(source.path,),
        meaning={
            "regex": pattern.regex,
            "form": pattern.form,
            "special_tokens": sorted(special.items(), key=lambda item: item[1]),
            "vocab_size": vocab_size,
        },
        vocab_size=vocab_size,
        max_id=max(vocabulary.values()),
        special_tokens=dict(special),
        eod=eod or next((name for name in ends if name in special), None),
    )


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every two tokens that make a third, in order of its rank."""
    rank_of = vocabulary.get
    found = []
    for word, rank in vocabulary.items():
        for cut in range(1, len(word)):
            left = rank_of(word[:cut])
            if left is not None and (right := rank_of(word[cut:])) is not None:
                found.append((rank, left, right, word[:cut], word[cut:]))
    found.sort()
    return [pair[3:] for pair in found]


# ---------------------------------------------------------------------------------------------------- patterns


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
    _check_regex(source.pattern, source)
    return NamedPattern(source.pattern)


def _check_regex(regex: str, source: TokenizerFile) -> None:
    from tokenizers import Regex

    if (found := BOUNDED_POSSESSIVE.search(regex)) is not None:
        raise ConfigError(
            "the split pattern holds what the tokenizers library reads in another way than tiktoken's",
            where=source,
            found=f"{found.group()!r}, in character {found.start()} of {regex!r}",
            expected="a possessive repetition written as an atomic group, such as (?>\\p{N}{1,3})",
            remedy="write it so; or leave its + out, where what follows cannot match the same characters",
        )
    try:
        Regex(regex)
    except Exception as error:
        raise ConfigError(
            "the split pattern is no regular expression",
            where=source,
            found=f"{regex!r}: {error}",
            expected="a regular expression as tiktoken has, or the name of one",
            remedy="correct the pattern",
        ) from error


# ---------------------------------------------------------------------------------------------- special tokens


def _tiktoken_special(source: TokenizerFile, pattern: NamedPattern, words: Mapping[bytes, int]) -> dict[str, int]:
    """Those that are named, behind the ranks; else those that are published with these ranks."""
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


def _tekken_names(value: dict[str, Any], config: dict[str, Any], source: TokenizerFile) -> Sequence[str]:
    entries = value.get("special_tokens")
    if entries is None:
        version = re.fullmatch(r"v(\d+)m?\d*", str(config.get("version")))
        if version is None or int(version[1]) > _LAST_VERSION_WITHOUT_NAMES:
            raise _tekken_error(source, "it names no special tokens", f"version {config.get('version')!r}")
        return _OLD_TEKKEN_TOKENS
    names: list[str] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        name = entry.get("token_str") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or entry.get("rank") != number:
            raise _tekken_error(source, "a special token has no name, or another rank than its place", entry)
        names.append(name)
    return names


def _filled(names: Sequence[str], count: int) -> dict[str, int]:
    """Names from id 0 on, then made-up ones."""
    return {
        name: ident
        for ident, name in enumerate([*names, *(f"<SPECIAL_{ident}>" for ident in range(len(names), count))])
    }


# ------------------------------------------------------------------------------------------------------- ranks

_Error = Callable[[object, str, object], FormatError]


def _tiktoken_error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=found,
        expected="lines of a token in base64, a space and its rank; each rank once, from 0 on, one for each byte",
        remedy="fetch or write the file again, or name a tokenizer.json",
    )


def _megatron_error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=found,
        expected='Megatron-LM\'s [{"rank": 0, "token_bytes": "AA==", "token_str": …}, …], ranks in order, from 0 on, '
        "the bytes 0 to 255 first",
        remedy="fetch or write the file again, or lower --vocab-size where it holds fewer tokens than that",
    )


def _tekken_error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=str(found)[:200],
        expected="a tekken.json: config (pattern, default_vocab_size, default_num_special_tokens, version), vocab with "
        "ranks from 0 on in order, and special_tokens",
        remedy="fetch the file again",
    )


def _read_lines(source: TokenizerFile) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    for number, line in enumerate(read_regular(source.path).split(b"\n"), start=1):
        parts = line.split()
        if not parts:
            continue
        where = f"{source}:{number}"
        if len(parts) != 2 or not parts[1].isdigit():
            raise _tiktoken_error(where, "a line is no token and its rank", repr(line[:80].decode(errors="replace")))
        try:
            word = base64.b64decode(parts[0], validate=True)
        except ValueError as cause:
            raise _tiktoken_error(where, "a token is not base64", f"{parts[0][:80]!r}: {cause}") from cause
        if not word or word in words:
            raise _tiktoken_error(where, "a token is empty, or there twice", repr(word))
        words[word] = int(parts[1])
    return words


def _checked_ranks(words: dict[bytes, int], source: TokenizerFile, error: _Error) -> dict[bytes, int]:
    if len(set(words.values())) != len(words):
        raise error(source, "two tokens have one rank", f"{len(words):,} tokens, {len(set(words.values())):,} ranks")
    lacking = [byte for byte in range(256) if bytes([byte]) not in words]
    if lacking:
        found = f"none for {len(lacking):,} of 256 bytes, the first 0x{lacking[0]:02X}; {len(words):,} tokens"
        raise error(source, "a byte has no rank", found)
    return words


def _check_holes(words: Mapping[bytes, int], special: Mapping[str, int], source: TokenizerFile) -> None:
    ranks, last = set(words.values()), max(words.values())
    hole = next((rank for rank in range(last) if rank not in ranks and rank not in special.values()), None)
    if hole is not None:
        raise _tiktoken_error(source, "the ranks have a hole", f"no token of rank {hole:,}; the last is {last:,}")
    clash = next((name for name, ident in special.items() if ident in ranks), None)
    if clash is not None:
        raise _tiktoken_error(source, "a special token has the id of an ordinary one", f"{clash!r}: {special[clash]:,}")


def _read_json(source: TokenizerFile) -> Any:
    content = read_regular(source.path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as cause:
        raise FormatError(
            "the tokenizer cannot be read as JSON",
            where=source,
            found=cause,
            expected=f"JSON to its end ({len(content):,} bytes are there)",
            remedy="fetch the file again: it may be cut",
        ) from cause


def _read_entries(value: object, source: TokenizerFile, error: _Error) -> list[bytes]:
    """Tokens in order of rank."""
    words = []
    for number, entry in enumerate(value if isinstance(value, list) else [value]):
        try:
            word = base64.b64decode(entry["token_bytes"], validate=True)
            if entry["rank"] != number or not word or (number < 256 and word != bytes([number])):
                raise ValueError("another token, or another rank, than there should be")
        except (TypeError, KeyError, ValueError) as cause:
            raise error(
                source, f"entry {number:,} is no token and its rank", f"{str(entry)[:120]} ({cause})"
            ) from cause
        words.append(word)
    return words


def _cut(words: list[bytes], count: int, source: TokenizerFile, error: _Error) -> list[bytes]:
    if len(words) < count:
        raise error(source, "there are fewer tokens than the vocabulary asks for", f"{len(words):,} of {count:,}")
    words = words[:count]
    if len(set(words)) != len(words) or count < 256:
        raise error(source, "a token is there twice, or a byte has none", f"{len(set(words)):,} different tokens")
    return words


def _shifted(words: list[bytes], by: int) -> dict[bytes, int]:
    return {word: rank + by for rank, word in enumerate(words)}
