"""Read a byte-level BPE in GPT-2's two files: vocab.json and merges.txt.

vocab.json is an object of token → id. Each line of merges.txt is a pair of tokens to merge, the
first pair at the top. Both write bytes as characters (`byte_characters`), so that Ġ is a space:

    {"!": 0, …, "Ġt": 256, "Ġth": 257}

    #version: 0.2
    Ġ t
    Ġt h
"""

from __future__ import annotations

from typing import Any

import orjson

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.source import TokenizerFile
from nanoset_core.tokenizers.files.tokenizer_json import (
    ConvertedTokenizer,
    added_token,
    bpe_model,
    build_tokenizer_json,
    byte_level,
    missing_bytes,
)
from nanoset_core.untrusted import shortened

_END_OF_TEXT = "<|endoftext|>"


def read_vocab_json(source: TokenizerFile) -> ConvertedTokenizer:
    """Read a vocab.json and its merges.txt, and convert them to a tokenizer.json.

    This is the format in which GPT-2 was published: one file with the ids of tokens, {"!": 0, …},
    and one with the pairs of tokens that are merged, "Ġ t" and so on.

    Args:
        source: The vocab.json, with the path of the merges.txt.

    Raises:
        MissingError: There is no merges.txt.
        FormatError: A file is damaged, or the two do not belong together.
    """
    vocabulary = _read_vocabulary(source)
    merges = _read_merges(source, vocabulary)

    # The files do not say which tokens are special. GPT-2 has one, which ends documents.
    special_tokens = {}
    end_of_document = None
    if _END_OF_TEXT in vocabulary:
        special_tokens[_END_OF_TEXT] = vocabulary[_END_OF_TEXT]
        end_of_document = _END_OF_TEXT

    added_tokens = [added_token(name, token_id) for name, token_id in special_tokens.items()]
    return ConvertedTokenizer(
        json=build_tokenizer_json(
            added_tokens=added_tokens,
            pre_tokenizer=byte_level(use_regex=True),  # splits text by GPT-2's expression
            decoder=byte_level(use_regex=True),
            model=bpe_model(vocabulary, merges),
        ),
        meaning={},  # no settings: the two files decide all tokens
        vocab_size=len(vocabulary),
        max_id=max(vocabulary.values()),
        special_tokens=special_tokens,
        eod=end_of_document,
    )


def _read_vocabulary(source: TokenizerFile) -> dict[str, int]:
    """Read a vocab.json, which maps the tokens of a byte-level BPE to their ids.

    Args:
        source: The file.

    Returns:
        Token → id: `{"!": 0, "Ġt": 256}`.

    Raises:
        FormatError: The file is damaged, or is no vocab.json of a byte-level BPE.
    """
    content = read_regular(source.path)
    try:
        vocabulary: dict[str, int] = orjson.loads(content)
        _check_vocabulary(vocabulary)
    except ValueError as error:
        raise FormatError(
            "the vocabulary cannot be read",
            where=source,
            found=shortened(str(error), 200),
            expected='a vocab.json of a byte-level BPE: {"!": 0, …}, each id once, '
            "and a token for each byte",
            remedy="fetch or write the file again, or use a tokenizer.json",
        ) from error
    return vocabulary


def _check_vocabulary(vocabulary: Any) -> None:
    """Check that a parsed vocab.json maps tokens to ids, and has a token for each byte.

    Args:
        vocabulary: The parsed value, which may be of any type.

    Raises:
        ValueError: The value is something else, two tokens have one id, or a byte has no token.
    """
    if not isinstance(vocabulary, dict):
        raise ValueError("not an object of tokens and ids")
    invalid = {token: value for token, value in vocabulary.items() if not _is_id(value)}
    if invalid:
        raise ValueError(f"not ids: {invalid}")
    if len(set(vocabulary.values())) != len(vocabulary):
        raise ValueError("two tokens have one id")
    missing = missing_bytes(vocabulary)
    if missing:
        raise ValueError(f"the vocabulary lacks a byte, 0x{missing[0]:02X}")


def _is_id(value: Any) -> bool:
    # Not isinstance: JSON's booleans are integers in Python.
    return type(value) is int and value >= 0


def _read_merges(source: TokenizerFile, vocabulary: dict[str, int]) -> list[list[str]]:
    """Read a merges.txt: the pairs of tokens that a tokenizer merges, in their order.

        #version: 0.2
        Ġ t
        h e

    Args:
        source: The vocab.json, which knows the path of its merges.txt.
        vocabulary: Token → id.

    Returns:
        [["Ġ", "t"], ["h", "e"]] for these lines.

    Raises:
        MissingError: The merges.txt does not exist.
        FormatError: A line is not a pair of tokens that make a third one.
    """
    file = source.merges_file
    if not file.is_file():
        raise MissingError(
            "a vocab.json needs a file with merges, which does not exist",
            where=file,
            expected=f"the merges.txt that belongs to {source}",
            remedy="copy it to this folder, or name it: "
            "`merges:` next to `path:` in nanoset.yaml, or --merge-file",
        )

    # Each line is two tokens with a space between, except a first line with the version.
    merges = []
    lines = read_regular(file).decode(errors="replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        if line.startswith("#version"):
            continue
        pair = line.removesuffix("\r").split(" ")
        if not _is_merge(pair, vocabulary):
            raise FormatError(
                "a line of the merges is no pair of tokens that make a third",
                where=f"{file}:{number}",
                found=repr(line[:80]),
                expected=f"two tokens of {source} with a space between",
                remedy="use the merges that were written together with this vocabulary, "
                "or fetch both again",
            )
        merges.append(pair)
    return merges


def _is_merge(tokens: list[str], vocabulary: dict[str, int]) -> bool:
    """Return whether a line has two tokens of the vocabulary that make a third: "Ġ", "t" and "Ġt".

    Args:
        tokens: The parts of the line between spaces.
        vocabulary: Token → id.
    """
    merged_token = "".join(tokens)
    are_known = all(token in vocabulary for token in [*tokens, merged_token])
    return len(tokens) == 2 and are_known
