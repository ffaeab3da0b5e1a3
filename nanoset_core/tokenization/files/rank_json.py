"""Ranks in JSON: Megatron-LM's tiktoken JSON, as its TikTokenizer takes it, and Mistral's tekken.json."""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.ranks import check_regex, ranks_content
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import MEGATRON, PATTERNS, NamedPattern

_MEGATRON_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_SPECIAL, _MEGATRON_VOCABULARY = 1000, 1 << 17
_TEKKEN_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Of a tekken.json that names none, which files up to its version 7 need not."""
_LAST_VERSION_WITHOUT_NAMES = 7
_MEGATRON_FORM = (
    'Megatron-LM\'s [{"rank": 0, "token_bytes": "AA==", "token_str": …}, …], ranks in order, from 0 on, the bytes 0 to '
    "255 first"
)
_TEKKEN_FORM = (
    "a tekken.json: config (pattern, default_vocab_size, default_num_special_tokens, version), vocab with ranks from 0 "
    "on in order, and special_tokens"
)


def read_megatron(source: TokenizerFile) -> Content:
    """Read Megatron-LM's tiktoken JSON: the first ids are kept for special tokens, ranks come behind them.

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
    words = _words(source, _read_json(source), count, size, _MEGATRON_FORM)
    return ranks_content(source, words, PATTERNS[name], _filled_up(names, count), vocab_size=size, eod="</s>")


def read_tekken(source: TokenizerFile) -> Content:
    """Read Mistral's tekken.json: as Megatron-LM's, with pattern and special tokens, which no text gives.

    Raises:
        FormatError: the file is damaged.
    """
    value = _read_json(source)
    config = value.get("config") if isinstance(value, dict) else None
    if not isinstance(config, dict) or not isinstance(value.get("vocab"), list):
        raise _error(source, "this is no tekken.json", "no config, or no list vocab", _TEKKEN_FORM)
    pattern, size, count = (config.get(key) for key in ("pattern", "default_vocab_size", "default_num_special_tokens"))
    if not isinstance(pattern, str) or type(size) is not int or type(count) is not int or not 0 <= count < size:
        raise _error(source, "the config of this tekken.json is none", config, _TEKKEN_FORM)
    names = _tekken_names(value, config, source)
    if len(names) > count or len(set(names)) != len(names):
        raise _error(source, "its special tokens do not fit", f"{len(names):,} for {count:,} ids", _TEKKEN_FORM)
    words = _words(source, value["vocab"], count, size, _TEKKEN_FORM)
    check_regex(pattern, source)
    special = _filled_up(names, count)
    return ranks_content(source, words, NamedPattern(pattern), special, vocab_size=size, eod="</s>", from_text=False)


def _tekken_names(value: dict[str, Any], config: dict[str, Any], source: TokenizerFile) -> Sequence[str]:
    entries = value.get("special_tokens")
    if entries is None:
        version = re.fullmatch(r"v(\d+)m?\d*", str(config.get("version")))
        if version is None or int(version[1]) > _LAST_VERSION_WITHOUT_NAMES:
            found = f"version {config.get('version')!r}"
            raise _error(source, "it names no special tokens", found, _TEKKEN_FORM)
        return _TEKKEN_TOKENS
    names: list[str] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        name = entry.get("token_str") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or entry.get("rank") != number:
            raise _error(source, "a special token has no name, or another rank than its place", entry, _TEKKEN_FORM)
        names.append(name)
    return names


def _read_json(source: TokenizerFile) -> Any:
    content = read_regular(source.path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as cause:
        expected = f"JSON to its end ({len(content):,} bytes are there)"
        raise _error(source, "the tokenizer cannot be read as JSON", cause, expected) from cause


def _words(source: TokenizerFile, value: object, special: int, size: int, form: str) -> dict[bytes, int]:
    """Read the tokens that make a vocabulary of `size` ids behind the special ones, in order of rank: token → id."""
    words: dict[bytes, int] = {}
    entries = value if isinstance(value, list) else [value]
    for number, entry in enumerate(entries):
        try:
            word = a2b_base64(entry["token_bytes"], strict_mode=True)
            if entry["rank"] != number or not word or (number < 256 and word != bytes([number])):
                raise ValueError("another token, or another rank, than there should be")
        except (TypeError, KeyError, ValueError) as cause:
            found = f"{str(entry)[:120]} ({cause})"
            raise _error(source, f"entry {number:,} is no token and its rank", found, form) from cause
        if number < size - special:
            words[word] = special + number
    count = size - special
    if len(entries) < count:
        found = f"{len(entries):,} of {count:,}"
        raise _error(source, "there are fewer tokens than the vocabulary asks for", found, form)
    if len(words) != count or count < 256:
        raise _error(source, "a token is there twice, or a byte has none", f"{len(words):,} different tokens", form)
    return words


def _filled_up(names: Sequence[str], count: int) -> dict[str, int]:
    """Number names from id 0 on, then made-up ones."""
    all_names = [*names, *(f"<SPECIAL_{ident}>" for ident in range(len(names), count))]
    return {name: ident for ident, name in enumerate(all_names)}


def _error(source: TokenizerFile, what: str, found: object, expected: str) -> FormatError:
    remedy = "fetch or write the file again, or lower --vocab-size where it holds fewer tokens than that"
    return FormatError(what, where=source, found=str(found)[:200], expected=expected, remedy=remedy)
