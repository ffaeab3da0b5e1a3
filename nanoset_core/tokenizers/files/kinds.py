"""Recognise which kind of tokenizer a file is, by its first bytes and its name.

For example, a file that begins with `IQ== 0` has tiktoken's lines. The kind decides how the file is
read, and which settings of the user apply to it.
"""

from __future__ import annotations

import re
from typing import Literal

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.tokenizers.files.source import FLAGS, TokenizerFile, missing_tokenizer

Kind = Literal[
    "tokenizer.json", "vocab.json", "tiktoken", "tiktoken JSON", "tekken.json", "SentencePiece"
]

_SETTINGS: dict[Kind, tuple[str, ...]] = {
    "tokenizer.json": (),
    "vocab.json": ("merges",),
    "tiktoken": ("pattern", "special_tokens"),
    "tiktoken JSON": ("pattern", "special_tokens", "num_special_tokens", "vocab_size"),
    "tekken.json": (),
    "SentencePiece": ("special_tokens", "legacy"),
}
"""Settings that apply to each kind."""

_PHRASES: dict[Kind, str] = {
    "tokenizer.json": "a tokenizer.json",
    "vocab.json": "a vocab.json",
    "tiktoken": "a file of tiktoken ranks",
    "tiktoken JSON": "Megatron-LM's tiktoken JSON",
    "tekken.json": "a tekken.json",
    "SentencePiece": "a SentencePiece model",
}
"""What messages call a file of each kind."""

_HEAD_BYTES = 4096
"""Bytes at the start of a file by which it is recognised."""
_LFS_POINTER = b"version https://git-lfs"
_RANKS_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s*(\n|$)")
_TEKKEN_KEYS = (b'"num_vocab_tokens"', b'"token_bytes"', b'"is_control"')
_VOCABULARY = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d')
"""The start of an object of tokens and ids."""


def kind_of(source: TokenizerFile) -> Kind:
    """Return in which format a tokenizer's file is, and check that the user's settings apply to it.

    The formats are Hugging Face's tokenizer.json, SentencePiece, tiktoken and so on. Some need
    settings: a file of tiktoken, for example, does not say how text is split.

    Args:
        source: Path of the file, and the settings.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is a pointer of Git LFS, whose content is stored elsewhere.
        ConfigError: A setting does not apply to files of this kind.
    """
    if not source.is_file():
        raise missing_tokenizer(source.path)
    with open_regular(source.path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_LFS_POINTER):
        raise FormatError(
            "this is Git LFS's pointer to a file, not the file itself",
            where=source,
            found=repr(head[:60].decode(errors="replace")),
            expected="the content of the tokenizer's file",
            remedy="fetch it: `git lfs pull` in its repository, or `hf download`",
        )
    kind = _recognise(head, source.name)
    _check_settings(source, kind)
    return kind


def _recognise(head: bytes, name: str) -> Kind:
    """Return in which format a tokenizer's file is, by its first bytes and by its name.

    Each format starts in another way:

        [{"rank": 0, "token_bytes": "AA==", …    Megatron-LM's tiktoken JSON
        {"config": {"num_vocab_tokens": …        Mistral's tekken.json
        {"!": 0, "a": 1, …                       vocab.json, as GPT-2's
        {"version": "1.0", …                     tokenizer.json, Hugging Face's
        IQ== 0                                   tiktoken: a line for each token, in base64
        the byte 0x0A                            SentencePiece, a binary file

    Args:
        head: The first bytes of the file.
        name: The name of the file.

    Returns:
        The kind. A file that is not recognized counts as a tokenizer.json. Loading it as such
        reports what is wrong.
    """
    text = head.lstrip()
    # [{"rank": 0, "token_bytes": "AA==", …
    if text.startswith(b"[") and b'"token_bytes"' in head:
        return "tiktoken JSON"

    if text.startswith(b"{"):
        # {"config": {"num_vocab_tokens": 150000, …
        if any(key in head for key in _TEKKEN_KEYS):
            return "tekken.json"
        # {"!": 0, …
        is_empty_vocabulary = name == "vocab.json" and text[1:2] == b"}"
        if is_empty_vocabulary or _VOCABULARY.match(text):
            return "vocab.json"
        # {"version": "1.0", …
        return "tokenizer.json"

    # A line for each token, with its bytes in base64 and its rank: IQ== 0
    if _RANKS_LINE.match(head) or name.endswith(".tiktoken"):
        return "tiktoken"
    # A binary file that starts with the key of its field 1, which is the byte 0x0A.
    if head[:1] == b"\n" or name.endswith(".model"):
        return "SentencePiece"
    return "tokenizer.json"


def _check_settings(source: TokenizerFile, kind: Kind) -> None:
    """Check that all settings of a tokenizer apply to the format of its file.

    For example, the setting `pattern` is for files of tiktoken. If the file is a tokenizer.json,
    the message is

        this tokenizer setting does not apply to a tokenizer.json
        found       tokenizer.pattern (--tiktoken-pattern)
        expected    for a tokenizer.json: no such settings
        remedy      remove the setting, or use a file of tiktoken ranks or … as the tokenizer

    Args:
        source: The file with its settings.
        kind: The format of the file.

    Raises:
        ConfigError: A setting is one for other formats.
    """
    for key in source.settings:
        if key in _SETTINGS[kind]:  # the settings for this format
            continue
        # What messages call the formats for which it is a setting: "a file of tiktoken ranks".
        other_phrases = [_PHRASES[other] for other, keys in _SETTINGS.items() if key in keys]
        allowed = " or ".join(_SETTINGS[kind]) or "no such settings"
        raise ConfigError(
            f"this tokenizer setting does not apply to {_PHRASES[kind]}",
            where=source,
            found=f"tokenizer.{key} ({FLAGS[key]})",
            expected=f"for {_PHRASES[kind]}: {allowed}",
            remedy=f"remove the setting, or use {' or '.join(other_phrases)} as the tokenizer",
        )
