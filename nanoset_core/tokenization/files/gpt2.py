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
_NEVER_IN_UTF_8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
"""GPT-NeoX's vocab.json has no tokens for them."""


def read_vocabulary(source: TokenizerFile) -> Content:
    """Read a byte-level BPE with GPT-2's split pattern.

    Raises:
        MissingError: there are no merges.
        FormatError: a file is damaged, or the two do not belong together.
    """
    vocabulary = _read_tokens(source)
    merges = _read_merges(source, vocabulary)
    special = {name: ident for name, ident in vocabulary.items() if name == END_OF_TEXT}
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
    """Read the vocabulary: token → id."""
    cause: Exception | None = None
    value: dict[str, int] = {}
    try:
        value = orjson.loads(read_regular(source.path))
        what, found = _fault(value)
    except orjson.JSONDecodeError as error:
        cause, what, found = error, "the vocabulary cannot be read as JSON", str(error)
    if what:
        raise FormatError(
            what,
            where=source,
            found=found,
            expected='a vocab.json of a byte-level BPE: {"!": 0, …}, each id once, a token for each byte',
            remedy="fetch or write the file again, or name a tokenizer.json",
        ) from cause
    return value


def _fault(vocabulary: dict[str, int]) -> tuple[str, str]:
    """Return what is wrong with a vocabulary, and what was found; or nothing."""
    tokens: dict[int, str] = {}
    for token, ident in vocabulary.items():
        if type(ident) is not int or ident < 0:
            return "an id in the vocabulary is no number from 0 on", f"{token!r}: {ident!r}"
        if tokens.setdefault(ident, token) != token:
            return "two tokens of the vocabulary have one id", f"{tokens[ident]!r} and {token!r}: {ident}"
    for byte, character in enumerate(byte_characters()):
        if character not in vocabulary and byte not in _NEVER_IN_UTF_8:
            return "the vocabulary lacks a byte", f"no token {character!r}, which stands for byte 0x{byte:02X}"
    return "", ""


def _read_merges(source: TokenizerFile, vocabulary: dict[str, int]) -> list[list[str]]:
    file = source.merges_file
    if not file.is_file():
        raise MissingError(
            "no merges there, which a vocab.json needs",
            where=file,
            expected=f"the merges.txt that belongs to {source}",
            remedy="put it there, or name it: `merges:` beside `path:` in nanoset.yaml, or --merge-file",
        )
    merges = []
    lines = read_regular(file).decode(errors="replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if line.startswith("#version"):
            continue
        parts = line.removesuffix("\r").split(" ")
        missing = [token for token in (*parts, "".join(parts)) if token not in vocabulary]
        if len(parts) != 2 or missing:
            is_pair = len(parts) == 2 and all(parts)
            raise FormatError(
                "a merge of what the vocabulary does not hold" if is_pair else "a line of the merges is no pair",
                where=f"{file}:{number}",
                found=f"{line[:80]!r}: no token {missing[0]!r}" if is_pair else repr(line[:80]),
                expected=f"two tokens of {source} with a space between, which make a third",
                remedy="name the merges that were written together with this vocabulary, or fetch both again",
            )
        merges.append(parts)
    return merges
