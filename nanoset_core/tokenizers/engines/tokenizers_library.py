"""Calls of the `tokenizers` library, with its failures as errors of this project.

The library is written in Rust. On some input it panics, which raises an exception that is no
`Exception`; on other input it raises plain Exceptions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.tokenizers.engines.engine import EncodingError
from nanoset_core.tokenizers.files import TokenizerPath, define
from nanoset_core.tokenizers.rust_panics import panics_as_errors

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_SHOWN_TOKENS = 8


def load_tokenizer(tokenizer_json: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer into Hugging Face's library, so that it encodes all of a text.

    A file may ask for other settings: that long texts are truncated, that short ones are padded, or
    that texts are split at random. These are turned off.

    Args:
        tokenizer_json: The tokenizer's file of any kind, or the folder that contains it.

    Raises:
        MissingError: The file does not exist.
        FormatError: The file is no tokenizer that the library can load.
        ConfigError: A setting of the tokenizer is missing, or does not apply to its kind of file.
    """
    from tokenizers import Tokenizer

    # A panic of the library becomes an error; a backtrace on the terminal would hide it.
    if os.environ.get("RUST_BACKTRACE") != "full":
        os.environ["RUST_BACKTRACE"] = "0"

    definition = define(tokenizer_json)
    content = definition.json()
    try:
        if _SUBWORD_PREFIX.search(content) is not None:  # few tokenizers have one
            _check_merges(orjson.loads(content)["model"])
        with panics_as_errors():
            tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:
        raise FormatError(
            "not a tokenizer that the tokenizers library can load",
            where=definition.source,
            found=error,
            expected="a tokenizer.json as written by tokenizers or transformers' save_pretrained",
            remedy=(
                "name another file, write it again with tokenizer.save(...), "
                "or update the tokenizers package"
            ),
        ) from error

    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "alpha", None) is not None:
        tokenizer.model.alpha = None  # for unigram models, turns off random segmentation
    return tokenizer


def _check_merges(model: Mapping[str, Any]) -> None:
    """Check the merges of a tokenizer whose tokens have a prefix within words, as in BERT ("##s").

    With this prefix, the merge "a ##s" is right, and "a s" is wrong. For a wrong one, Hugging
    Face's library may abort the process when it loads the file.

    Args:
        model: The model of a parsed `tokenizer.json`, which has such a prefix.

    Raises:
        ValueError: The second token of a merge lacks the prefix.
    """
    prefix = model["continuing_subword_prefix"]
    for merge in model.get("merges") or ():  # a WordPiece model has none
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not parts[1].startswith(prefix):
            raise ValueError(
                f"merge {merge!r}, whose second token lacks "
                f"model.continuing_subword_prefix {prefix!r}"
            )


def encode_text(
    tokenizer: Tokenizer, text: str, file: TokenizerPath, *, add_special_tokens: bool = False
) -> Encoding:
    """Encode one text with the tokenizers library.

    Args:
        tokenizer: The tokenizer, as `load_tokenizer` returns it.
        text: The text.
        file: The tokenizer's file, for errors.
        add_special_tokens: Whether to add the special tokens of the tokenizer's template.

    Raises:
        EncodingError: The library fails on the text.
    """
    try:
        with panics_as_errors():
            return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except MemoryError:
        raise
    except Exception as error:
        raise encoding_error(file, error) from error


def encoding_error(
    file: TokenizerPath, error: Exception, *, where: object = None, library: str = "tokenizers"
) -> EncodingError:
    """Return the error for a text on which a tokenizer's library fails.

    Some tokenizers have regular expressions that fail on rare texts, for example.

    Args:
        file: The tokenizer's file.
        error: The exception of the library.
        where: Place of the text, such as a line of a file. By default, the tokenizer's file is
            named instead.
        library: Name of the library.
    """
    return EncodingError(
        f"the {library} library failed to encode a text",
        where=file if where is None else where,
        found=f"{_text_of(error)}, with the tokenizer {file}",
        expected="a tokenizer that gives tokens for any text",
        remedy=(
            "correct or replace the tokenizer, whose normalizer, split pattern or model fails on "
            "this text; or remove the text"
        ),
    )


def decode_tokens(tokenizer: Tokenizer, ids: Sequence[int], file: TokenizerPath) -> str:
    """Return the text of tokens, with special tokens such as "<|endoftext|>" spelled out.

    Args:
        tokenizer: The tokenizer, as `load_tokenizer` returns it.
        ids: Token ids.
        file: The tokenizer's file, for errors.

    Raises:
        FormatError: Hugging Face's library fails.
    """
    try:
        with panics_as_errors():
            return str(tokenizer.decode(ids, skip_special_tokens=False))
    except MemoryError:
        raise
    except Exception as error:
        first_ids = ", ".join(map(str, ids[:_SHOWN_TOKENS]))
        raise FormatError(
            "the tokenizers library failed to decode tokens",
            where=file,
            found=f"{_text_of(error)}, for {len(ids):,} tokens, starting with {first_ids}",
            expected="a tokenizer whose decoder turns any of its tokens into text",
            remedy="correct or replace the tokenizer's decoder",
        ) from error


def _text_of(error: Exception) -> str:
    return str(error) or repr(error)
