"""Check that files of tokens that are joined have the ids of one tokenizer.

The token files themselves do not say which tokenizer made them, but the receipts next to them do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanoset_core.errors import FormatError
from nanoset_core.outputs.receipts import StoredReceipt, read_receipt
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import requests_at_once
from nanoset_core.storage.store import in_parallel

TOKENIZER = "tokenizer"
"""Key of a receipt: fingerprint of the tokenizer. It is one of the options, or a key of its own."""
_SHOWN_DIGITS = 12
"""Number of digits of a fingerprint that messages show."""


def common_tokenizer(receipts: Sequence[Location]) -> str | None:
    """Return the tokenizer of files that are to be joined, and check that it is the same for all.

    Ids of different tokenizers mean different tokens, so the joined file would be nonsense. Files
    without a receipt, or whose receipt names no tokenizer, are not checked.

    Args:
        receipts: Where the receipt of each file or pair is, if it has one, such as
            `out/web_text_document.manifest.json`.

    Returns:
        The fingerprint of the tokenizer, or None if no receipt names one.

    Raises:
        FormatError: Two receipts name different tokenizers.
    """
    tokenizers = in_parallel(_recorded_tokenizer, receipts, requests_at_once(receipts))
    first_receipt: Location | None = None
    first_tokenizer: str | None = None
    for receipt, tokenizer in zip(receipts, tokenizers, strict=True):
        if tokenizer is None:
            continue
        if first_tokenizer is None:
            first_receipt = receipt
            first_tokenizer = tokenizer
        elif tokenizer != first_tokenizer:
            raise FormatError(
                "tokens of different tokenizers cannot be joined",
                where=receipt,
                found=f"tokenizer {tokenizer[:_SHOWN_DIGITS]}",
                expected=f"{first_tokenizer[:_SHOWN_DIGITS]}, as in {first_receipt}",
                remedy="tokenize both with the same tokenizer; "
                "or, if each id means the same token in both, delete this receipt",
            )
    return first_tokenizer


def _recorded_tokenizer(path: Location) -> str | None:
    """Return the fingerprint of the tokenizer that made some files, as their receipt says.

    A receipt is a small file that commands of nanoset write next to their outputs. It lists the
    output's files with their sizes, and says what they were made from.

    Args:
        path: Where the receipt is, if it exists, such as `out/web_text_document.manifest.json`.

    Returns:
        The fingerprint; or None if there is no receipt, if it names no tokenizer, or if another
        program has replaced the files since.
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
    return tokenizer


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
