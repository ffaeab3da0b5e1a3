"""Mistral's tekken.json: tokens by rank with pattern and special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nanoset_core.errors import FormatError
from nanoset_core.tokenization.files.content import Content
from nanoset_core.tokenization.files.ranks import (
    check_regex,
    filled_up,
    first_ranks,
    ranks_content,
    read_entries,
    read_json,
    shifted,
)
from nanoset_core.tokenization.files.source import TokenizerFile
from nanoset_core.tokenization.files.split_patterns import NamedPattern

_OLD_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Of a tekken.json that names none, which files up to its version 7 need not."""
_LAST_VERSION_WITHOUT_NAMES = 7


def read_tekken(source: TokenizerFile) -> Content:
    """Mistral's tekken.json: as Megatron-LM's, with pattern and special tokens, which no text gives.

    Raises:
        FormatError: the file is damaged.
    """
    value = read_json(source)
    config = value.get("config") if isinstance(value, dict) else None
    if not isinstance(config, dict) or not isinstance(value.get("vocab"), list):
        raise _error(source, "this is no tekken.json", "no config, or no list vocab")
    pattern, size, count = (config.get(key) for key in ("pattern", "default_vocab_size", "default_num_special_tokens"))
    if not isinstance(pattern, str) or type(size) is not int or type(count) is not int or not 0 <= count < size:
        raise _error(source, "the config of this tekken.json is none", config)
    names = _special_names(value, config, source)
    if len(names) > count or len(set(names)) != len(names):
        raise _error(source, "its special tokens do not fit", f"{len(names):,} names for {count:,} ids")
    words = first_ranks(read_entries(value["vocab"], source, _error), size - count, source, _error)
    special = filled_up(names, count)
    check_regex(pattern, source)
    named = NamedPattern(pattern)
    return ranks_content(source, shifted(words, count), named, special, vocab_size=size, eod="</s>", from_text=False)


def _special_names(value: dict[str, Any], config: dict[str, Any], source: TokenizerFile) -> Sequence[str]:
    entries = value.get("special_tokens")
    if entries is None:
        version = re.fullmatch(r"v(\d+)m?\d*", str(config.get("version")))
        if version is None or int(version[1]) > _LAST_VERSION_WITHOUT_NAMES:
            raise _error(source, "it names no special tokens", f"version {config.get('version')!r}")
        return _OLD_TOKENS
    names: list[str] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        name = entry.get("token_str") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or entry.get("rank") != number:
            raise _error(source, "a special token has no name, or another rank than its place", entry)
        names.append(name)
    return names


def _error(where: object, what: str, found: object) -> FormatError:
    return FormatError(
        what,
        where=where,
        found=str(found)[:200],
        expected="a tekken.json: config (pattern, default_vocab_size, default_num_special_tokens, version), vocab with "
        "ranks from 0 on in order, and special_tokens",
        remedy="fetch the file again",
    )
