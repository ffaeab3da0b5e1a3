"""GPT-2's vocab.json and merges.txt, as Megatron-LM's GPT2BPETokenizer takes them."""

from __future__ import annotations

import orjson

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenization.files.content import (
    Content,
    added_token,
    bpe,
    byte_characters,
    byte_level,
    tokenizer_json,
)
from nanoset_core.tokenization.files.source import TokenizerFile

END_OF_TEXT = "<|endoftext|>"
_VERSION = "#version"
_NEVER_IN_UTF_8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
"""GPT-NeoX's vocab.json has no tokens for them."""


def read_vocabulary(source: TokenizerFile) -> Content:
    """A byte-level BPE with GPT-2's split pattern.

    Raises:
        MissingError: there are no merges.
        FormatError: a file is damaged, or the two do not belong together.
    """
    vocabulary = _read_tokens(source)
    merges = _read_merges(source, vocabulary)
    end = vocabulary.get(END_OF_TEXT)
    special = {} if end is None else {END_OF_TEXT: end}
    return Content(
        json=tokenizer_json(
            added_tokens=[added_token(name, ident) for name, ident in special.items()],
            pre_tokenizer=byte_level(use_regex=True),
            decoder=byte_level(use_regex=True),
            model=bpe(vocabulary, merges),
        ),
        meaning={},
        vocab_size=len(vocabulary),
        max_id=max(vocabulary.values()),
        special_tokens=special,
        eod=END_OF_TEXT if special else None,
    )


def _read_tokens(source: TokenizerFile) -> dict[str, int]:
    """Token → id."""

    def error(what: str, found: object) -> FormatError:
        return FormatError(
            what,
            where=source,
            found=found,
            expected='a vocab.json of a byte-level BPE: {"!": 0, …}, each id once, a token for each byte',
            remedy="fetch or write the file again, or name a tokenizer.json",
        )

    try:
        value = orjson.loads(read_regular(source.path))
    except orjson.JSONDecodeError as cause:
        raise error("the vocabulary cannot be read as JSON", cause) from cause
    if not isinstance(value, dict):
        raise error("the vocabulary is no JSON object", type(value).__name__)
    for token, ident in value.items():
        if type(ident) is not int or ident < 0:
            raise error("an id in the vocabulary is no number from 0 on", f"{token!r}: {ident!r}")
    if len(set(value.values())) != len(value):
        first: dict[int, str] = {}
        twice = next(token for token, ident in value.items() if first.setdefault(ident, token) != token)
        raise error(
            "two tokens of the vocabulary have one id", f"{first[value[twice]]!r} and {twice!r}: {value[twice]}"
        )
    for byte, character in enumerate(byte_characters()):
        if character not in value and byte not in _NEVER_IN_UTF_8:
            raise error("the vocabulary lacks a byte", f"no token {character!r}, which stands for byte 0x{byte:02X}")
    return value


def _read_merges(source: TokenizerFile, vocabulary: dict[str, int]) -> list[list[str]]:
    file = source.merges_file
    if not file.is_file():
        raise MissingError(
            "no merges there, which a vocab.json needs",
            where=file,
            expected=f"the merges.txt that belongs to {source}",
            remedy="put it there, or name it: `merges:` beside `path:` in nanoset.yaml, or --merge-file",
        )

    def error(number: int, what: str, found: object) -> FormatError:
        return FormatError(
            what,
            where=f"{file}:{number}",
            found=found,
            expected=f"two tokens of {source} with a space between, which make a third",
            remedy="name the merges that were written together with this vocabulary, or fetch both again",
        )

    try:
        lines = read_regular(file).decode().split("\n")
    except UnicodeDecodeError as cause:
        number = read_regular(file)[: cause.start].count(b"\n") + 1
        raise error(number, "the merges are not UTF-8", f"byte 0x{cause.object[cause.start]:02X}") from cause
    merges = []
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if line.startswith(_VERSION) or (not line and number == len(lines)):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise error(number, "a line of the merges is no pair", repr(line[:80]))
        for token in (*parts, "".join(parts)):
            if token not in vocabulary:
                raise error(number, "a merge of what the vocabulary does not hold", f"{line!r}: no token {token!r}")
        merges.append(parts)
    return merges
