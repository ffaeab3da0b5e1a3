"""What is looked at in a tokenizer.json before the `tokenizers` library loads it."""

from __future__ import annotations

import re

import orjson

from nanoset_core.errors import FormatError
from nanoset_core.tokenization.files.source import TokenizerFile

_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_WITHIN = re.compile(rb"[\x80-\xbf]")  # what no character begins with


def check_merges(content: bytes, source: TokenizerFile) -> None:
    """Refuse merges over which the library ends the process, as 0.23 does.

    It cuts as many bytes from the second part of each merge as the prefix of continuing subwords has, whatever they
    are; where that is within a character, the result is no text.

    Raises:
        FormatError: there is such a merge.
    """
    if _PREFIX.search(content) is None:
        return
    try:
        model = orjson.loads(content)["model"]
        prefix, merges = model["continuing_subword_prefix"], model["merges"]
        seconds = [merge.split(" ", 1)[1] if isinstance(merge, str) else merge[1] for merge in merges]
        size = len(prefix.encode())
        cut = next((token for token in seconds if _WITHIN.match(token.encode()[size:])), None)
    except (ValueError, LookupError, TypeError, AttributeError):
        return  # the library says what is wrong
    if cut is not None:
        raise FormatError(
            "a merge does not fit the prefix of continuing subwords",
            where=source,
            found=f"a merge with {cut!r}, and model.continuing_subword_prefix {prefix!r}",
            expected=f"merges whose second token begins with {prefix!r}",
            remedy="set model.continuing_subword_prefix to null in the file, or to what its tokens begin with",
        )
