"""What is made of a tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

NEVER_IN_TEXT = "\u2060"
"""Marks the names of tokens that no text may give: byte-level models never write bytes as this character."""


@dataclass(frozen=True, slots=True)
class Content:
    """A tokenizer from other files than a tokenizer.json."""

    json: bytes
    """The same as a tokenizer.json."""
    meaning: Mapping[str, Any]
    """What else decides the tokens, as plain values."""
    vocab_size: int
    """What the trainer's class says."""
    max_id: int
    """The greatest id of any token."""
    special_tokens: Mapping[str, int]
    """Name → id."""
    eod: str | None
    """Ends documents, where files of this kind settle it."""
    notice: str = ""
    """What the user should know and the file cannot say."""


def byte_characters() -> list[str]:
    """Return 256 characters: byte b is written as the b-th of them (`bytes_to_unicode` in GPT-2's `encoder.py`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}


def token_bytes(entry: str) -> bytes | None:
    """Return the bytes that an entry of a byte-level vocabulary stands for; None where it holds other characters."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, entry))
    except KeyError:
        return None


def tokenizer_json(**parts: Any) -> bytes:
    """Return a tokenizer.json of these parts; what is not given is null."""
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return orjson.dumps({"version": "1.0", **empty, "added_tokens": [], **parts})


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the pre-tokenizer, or decoder, that writes bytes as characters."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def bpe(vocabulary: Mapping[str, int], merges: list[Any], **options: Any) -> dict[str, Any]:
    """Return a BPE model."""
    unused = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    defaults = {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **unused, **defaults, **options, "vocab": vocabulary, "merges": merges}


def added_token(name: str, ident: int, *, special: bool = True, normalized: bool = False) -> dict[str, Any]:
    """Return a token that is looked for in text before anything else; `normalized`: but for the text's normal form."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"id": ident, "content": name, **flags, "normalized": normalized, "special": special}
