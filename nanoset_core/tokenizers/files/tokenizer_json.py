"""Read the parts of a parsed tokenizer.json, and build a tokenizer.json from other files.

Every engine takes a tokenizer.json, so all other kinds of files are converted to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nanoset_core.tokenizers.rust_panics import panics_as_errors

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NEVER_IN_TEXT = "\u2060"
"""A mark in the names of tokens that no text may produce.

Byte-level vocabularies write each byte as a character, and this one (WORD JOINER) stands for none.
"""

NEVER_IN_UTF_8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
"""Bytes that no text in UTF-8 contains, so that a vocabulary needs no tokens for them.

GPT-NeoX's vocabulary, for example, has none.
"""


@dataclass(frozen=True, slots=True)
class ConvertedTokenizer:
    """A tokenizer that was read from other files than a tokenizer.json."""

    json: bytes = field(repr=False)
    """The same tokenizer as a tokenizer.json."""
    meaning: Mapping[str, Any]
    """What decides the tokens apart from the files' bytes, as values of JSON's types."""
    vocab_size: int
    """The vocabulary size that the trainer's class for such files reports."""
    max_id: int
    """The greatest id of any token."""
    special_tokens: Mapping[str, int] = field(repr=False)
    """Name → id of each special token."""
    eod: str | None
    """The end-of-document token, or None if files of this kind do not define it."""
    notice: str = ""
    """What the user should know; continues a sentence that begins with the path of the file."""


# Reading


def parsed_added_tokens(tokenizer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the added tokens of a parsed tokenizer.json that have a text.

    Malformed entries are skipped: the tokenizers library, which loads the file later, reports them.

    Args:
        tokenizer: The parsed file.

    Returns:
        The entries as in the file, such as `{"id": 0, "content": "<s>", "special": true}`.
    """
    entries = tokenizer.get("added_tokens")
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if _has_text(entry)]


def _has_text(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("content"), str)


def ids_of_vocabulary(vocabulary: Any) -> dict[str, int]:
    """Return the id of each token of a parsed vocabulary.

        {"a": 0, "b": 1}             as it is
        [["a", 0.0], ["b", -1.5]]    the list of a unigram model: the same ids

    Malformed entries are skipped: the tokenizers library, which loads the file later, reports them.

    Args:
        vocabulary: The value of `model.vocab` in a tokenizer.json.

    Returns:
        A new mapping; empty if the value is no vocabulary.
    """
    if isinstance(vocabulary, dict):
        return {name: value for name, value in vocabulary.items() if isinstance(value, int)}
    id_by_name: dict[str, int] = {}
    if isinstance(vocabulary, list):
        for token_id, entry in enumerate(vocabulary):  # such as ["<unk>", 0.0]
            if isinstance(entry, list) and entry and isinstance(entry[0], str):
                id_by_name[entry[0]] = token_id
    return id_by_name


def component_types(component: Any) -> set[str]:
    """Return the types of a component of a tokenizer.json, with those of all components inside it.

    For {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}, these are
    Sequence, NFC and Strip.

    Args:
        component: A parsed normalizer, pre-tokenizer or decoder; or None, which has no types.
    """
    types = set()
    pending = [component]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            types.add(str(value.get("type")))
            pending += value.values()
    return types


def load_or_none(tokenizer: bytes | Mapping[str, Any]) -> Tokenizer | None:
    """Load a tokenizer.json into the tokenizers library; return None if that is not possible.

    Args:
        tokenizer: The bytes of the file, or its parsed content, which may lack some components.
    """
    from tokenizers import Tokenizer

    try:
        with panics_as_errors():
            content = tokenizer if isinstance(tokenizer, bytes) else orjson.dumps(tokenizer)
            return Tokenizer.from_buffer(content)
    except Exception:  # noqa: BLE001 - the library raises plain Exceptions
        return None


# Byte-level vocabularies


def byte_characters() -> list[str]:
    """Return the 256 characters by which many vocabularies write the bytes 0 to 255.

    Vocabularies are text files, but their tokens may be any bytes. So a printable byte is written
    as the character with its number, such as 0x61 as "a", and any other as the next unused
    character from U+0100 on: 0x00 as "Ā", and a space (0x20) as "Ġ". Source: GPT-2's `encoder.py`,
    `bytes_to_unicode`.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = []
    substitute = 0x100
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(substitute))
            substitute += 1
    return characters


_BYTE_BY_CHARACTER = {character: byte for byte, character in enumerate(byte_characters())}


def token_bytes(token: str) -> bytes | None:
    """Return the bytes that a token of a byte-level vocabulary stands for.

    Args:
        token: The token as the vocabulary writes it: `Ġa` stands for the bytes of " a".

    Returns:
        The bytes; None if the token contains a character that stands for no byte.
    """
    try:
        return bytes(map(_BYTE_BY_CHARACTER.__getitem__, token))
    except KeyError:
        return None


def missing_bytes(vocabulary: Mapping[str, Any]) -> list[int]:
    """Return the bytes of UTF-8 for which a vocabulary has no token.

    The vocabulary writes each byte as one character: a space as Ġ, for example.

    Args:
        vocabulary: Token → id or anything else. Only the tokens are looked at.

    Returns:
        The bytes from 0 to 255, ascending; empty if the vocabulary can encode any text.
    """
    needed = [byte for byte in range(256) if byte not in NEVER_IN_UTF_8]
    characters = byte_characters()
    return [byte for byte in needed if characters[byte] not in vocabulary]


# Building


def build_tokenizer_json(**components: Any) -> bytes:
    """Return the bytes of a tokenizer.json with some components; all others are null.

    Args:
        components: Name of each component → value that JSON can represent.
    """
    names = (
        "truncation",
        "padding",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
    )
    empty = dict.fromkeys(names)
    return orjson.dumps({"version": "1.0", **empty, "added_tokens": [], **components})


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the component ByteLevel of a tokenizer.json, for a pre-tokenizer or a decoder.

    A tokenizer.json cannot express tokens that are parts of characters. So a pre-tokenizer writes
    each byte of a text as one character: "é", which has two bytes, as "Ã©". A decoder reverses
    that.

    Args:
        use_regex: Whether the pre-tokenizer also splits text by GPT-2's pattern.
    """
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def bpe_model(vocabulary: Mapping[str, int], merges: list[Any], **options: Any) -> dict[str, Any]:
    """Return the component `model` of a tokenizer.json for a BPE.

    Args:
        vocabulary: Token → id.
        merges: Pairs of tokens, the one to merge first at the front.
        options: Settings of the model that differ from the library's defaults.
    """
    defaults: dict[str, Any] = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **defaults, **options, "vocab": vocabulary, "merges": merges}


def added_token(
    name: str, token_id: int, *, special: bool = True, normalized: bool = False
) -> dict[str, Any]:
    """Return an entry of `added_tokens`: a token that is cut out before the text is split.

    Args:
        name: The token's text.
        token_id: The token's id.
        special: Whether decoders may leave it out.
        normalized: Whether to search for it in the normalized text rather than in the text itself.
    """
    return {
        "id": token_id,
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": normalized,
        "special": special,
    }


def pairs_that_make(token: str, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return every pair of tokens that make a given token when concatenated, sorted by their ids.

    With the tokens a, c, ab and bc, "abc" can be made by the pairs (a, bc) and (ab, c).

    Args:
        token: The token to make.
        ids: Token → id of the tokens that may be merged.
    """
    pairs = []
    for cut in range(1, len(token)):
        left = token[:cut]
        if left not in ids:
            continue
        right = token[cut:]
        if right in ids:
            pairs.append((left, right))
    return sorted(pairs, key=lambda pair: (ids[pair[0]], ids[pair[1]]))
