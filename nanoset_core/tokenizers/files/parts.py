"""Parts of a parsed tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_tokens(tokenizer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the added tokens of a parsed tokenizer.json that have a text."""
    tokens = tokenizer.get("added_tokens")
    entries = tokens if isinstance(tokens, list) else []
    return [
        token
        for token in entries
        if isinstance(token, dict) and isinstance(token.get("content"), str)
    ]


def types_within(part: Any) -> set[str]:
    """Return the types of a part of a tokenizer.json and of all parts in it."""
    types = set()
    unread = [part]
    while unread:
        value = unread.pop()
        if isinstance(value, list):
            unread += value
        elif isinstance(value, dict):
            types.add(str(value.get("type")))
            unread += value.values()
    return types
