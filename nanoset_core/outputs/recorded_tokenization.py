"""How files of tokens were tokenized, as the receipts next to them say.

Commands that join such files ask this: the token files themselves do not say which tokenizer made
them, nor whether their documents end with an end-of-document token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import FormatError
from nanoset_core.outputs.receipts import (
    PAIR_RECEIPT_ENDING,
    StoredReceipt,
    hidden_receipt_name,
    read_receipt,
)
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import requests_at_once
from nanoset_core.storage.requests import in_parallel

TOKENIZER = "tokenizer"
"""Key of a receipt: fingerprint of the tokenizer. It is one of the options, or a key of its own."""
_SHOWN_DIGITS = 12
"""Number of digits of a fingerprint that messages show."""


@dataclass(frozen=True, slots=True)
class RecordedTokenization:
    """How a file, or a pair of files, was tokenized."""

    receipt: Location
    """The receipt that says so, such as `out/web_text_document.manifest.json`."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    framing: str | None
    """Ids of the tokens before and after each document, such as "before [], after [0]"; None if the
    receipt does not say. Files that were joined from others have None.
    """


def pair_receipt_names(pair_name: str) -> tuple[str, str]:
    """Return the names that the receipt of a .bin/.idx pair may have, in the folder of the pair.

    Args:
        pair_name: Name of the pair without its endings and its folder, such as `web`.

    Returns:
        The name of the receipt of `nanoset tokenize`, and that of the receipt of `nanoset merge`.
    """
    return f"{pair_name}{PAIR_RECEIPT_ENDING}", hidden_receipt_name(pair_name)


def recorded_tokenizations(receipts: Sequence[Location]) -> list[RecordedTokenization]:
    """Read how files were tokenized, as far as their receipts say.

    A receipt is a small file that commands of nanoset write next to their outputs. It lists the
    output's files with their sizes, and says what they were made from.

    Args:
        receipts: Where the receipt of each file or pair would be. None of them has to exist.

    Returns:
        In the same order. Left out are files without a receipt, files whose receipt names no
        tokenizer, and files that another program has replaced since.
    """
    tokenizations = in_parallel(_recorded_tokenization, receipts, requests_at_once(receipts))
    return [tokenization for tokenization in tokenizations if tokenization is not None]


def common_tokenizer(tokenizations: Sequence[RecordedTokenization]) -> str | None:
    """Return the tokenizer of files that are to be joined, and check that it is the same for all.

    Ids of different tokenizers mean different tokens, so the joined file would be nonsense, and so
    would training data that mixes them.

    Args:
        tokenizations: How the files were tokenized, as far as that is recorded.

    Returns:
        The fingerprint of the tokenizer, or None if nothing is recorded.

    Raises:
        FormatError: Two receipts name different tokenizers.
    """
    if not tokenizations:
        return None
    first = tokenizations[0]
    for other in tokenizations[1:]:
        if other.tokenizer != first.tokenizer:
            raise FormatError(
                "tokens of different tokenizers cannot be joined",
                where=other.receipt,
                found=f"tokenizer {other.tokenizer[:_SHOWN_DIGITS]}",
                expected=f"{first.tokenizer[:_SHOWN_DIGITS]}, as in {first.receipt}",
                remedy="tokenize both with the same tokenizer; "
                "or, if each id means the same token in both, delete this receipt",
            )
    return first.tokenizer


def check_same_tokenizer(prefixes: Sequence[Location]) -> None:
    """Check that .bin/.idx pairs have the same tokenizer, as far as the receipts next to them say.

    Args:
        prefixes: Paths of the pairs, without .bin and .idx. Missing ones are not reported.

    Raises:
        FormatError: Two receipts name different tokenizers.
    """
    if len(prefixes) < 2:
        return  # in a bucket, this saves requests
    receipts: list[Location] = []
    for prefix in prefixes:
        for name in pair_receipt_names(prefix.name):
            receipts.append(prefix.parent / name)
    common_tokenizer(recorded_tokenizations(receipts))


def framing_notices(tokenizations: Sequence[RecordedTokenization]) -> list[str]:
    """Return a notice if files that are to be joined have different tokens around their documents.

    For example, one was tokenized with `--append-eod`, and one without. The joined file can be
    read, but some of its documents would run into the next one.

    Args:
        tokenizations: How the files were tokenized, as far as that is recorded.

    Returns:
        One notice about the first two files that differ, or none.
    """
    framed = [tokenization for tokenization in tokenizations if tokenization.framing is not None]
    for other in framed[1:]:
        first = framed[0]
        if other.framing != first.framing:
            return [
                "documents have different special tokens around them: "
                f"{first.framing} ({first.receipt}), but {other.framing} ({other.receipt}); "
                "tokenize all files with the same options, such as --append-eod"
            ]
    return []


def _recorded_tokenization(path: Location) -> RecordedTokenization | None:
    """Return how some files were tokenized.

    Args:
        path: Where their receipt is, if it exists.

    Returns:
        None if there is no receipt, if it names no tokenizer, or if another program has replaced
        the files since.
    """
    receipt = read_receipt(path)
    if receipt is None:
        return None
    tokenizer = _tokenizer_in(receipt.content)
    if tokenizer is None:
        return None

    # Compare the sizes last: in a bucket, this takes a request for each file.
    if not _have_recorded_sizes(receipt, path.parent):
        return None
    return RecordedTokenization(path, tokenizer, _framing_in(receipt.content))


def _tokenizer_in(content: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of the tokenizer that a receipt names, or None.

    Where it is depends on the command that wrote the receipt:

        tokenized text      {"options": {"tokenizer": "9a3f…", …}, …}
        joined files        {"tokenizer": "9a3f…", …}, the tokenizer of all of them

    Args:
        content: The content of the receipt. Somebody may have edited it.
    """
    tokenizer = content.get(TOKENIZER)
    options = content.get("options")
    if tokenizer is None and isinstance(options, dict):
        tokenizer = options.get(TOKENIZER)
    if not isinstance(tokenizer, str):
        return None
    return tokenizer


def _framing_in(content: Mapping[str, Any]) -> str | None:
    """Return the tokens around each document that a receipt names, such as "before [], after [0]".

    Args:
        content: The content of the receipt: for tokenized text, `{"options": {"framing": {"before":
            [], "after": [0], …}, …}, …}`. Somebody may have edited it.
    """
    options = content.get("options")
    if not isinstance(options, dict):
        return None
    framing = options.get("framing")
    if not isinstance(framing, dict):
        return None
    return f"before {framing.get('before')}, after {framing.get('after')}"


def _have_recorded_sizes(receipt: StoredReceipt, folder: Location) -> bool:
    """Return whether files still have the sizes in their receipt.

    If they do not, another program has replaced them, and the receipt says nothing about them. A
    file may be missing: a list of rejected lines is often not copied along with the tokens.

    Args:
        receipt: The receipt.
        folder: The folder of the receipt and the files.

    Returns:
        False also if the receipt lists no files, or a file without a size.
    """
    if receipt.files is None:
        return False
    store = store_of(folder)
    for name, entry in receipt.files.items():
        stored = store.stat(name)
        if stored is not None and stored.size != entry["bytes"]:
            return False
    return True
