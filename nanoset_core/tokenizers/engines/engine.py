"""What an engine is: it turns texts into token ids. And what all engines need for it.

Every tokenizer has one *reference*, the engine that runs the tokenizer's own library. Its tokens
are right by definition. All other engines are faster ways to get the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from nanoset_core.errors import InputError
from nanoset_core.tokenizers.engines.arrays import Ids

BATCH_CHARACTERS = 1 << 18
"""Characters that the library is given at once: it takes some 50 bytes of memory for each."""


class Encoded(NamedTuple):
    """Token ids of a batch of documents, without added special tokens."""

    ids: Ids
    """int32, shape (n_tokens,): token ids of all documents, concatenated."""
    lengths: Ids
    """int32, shape (n_documents,): tokens of each document."""

    def lists(self) -> list[Ids]:
        """Return the token ids of each document.

        Returns:
            An int32 array for each document: the ids 5 6 7 with the lengths 2 1 give [5, 6] and
            [7].
        """
        stops = np.cumsum(self.lengths).tolist()
        # Slices are several times faster than `np.split`.
        return [self.ids[start:stop] for start, stop in pairwise([0, *stops])]


class Engine(Protocol):
    """Turns texts into token ids. Every engine gives the same ids for the same tokenizer."""

    name: str
    """One of KINDS, except `auto`."""
    version: str
    """Version of the code that encodes."""
    reason: str
    """Why this engine was chosen, for logs and metadata."""
    helper: str
    """Name and version of another engine that encodes texts which this one does not support, or an
    empty string. The reference, which every engine may use for that, is not named.
    """

    @property
    def reference(self) -> Engine | None:
        """The engine whose ids this one has to give; None if it is the reference itself."""
        ...

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Turn documents into token ids, without adding special tokens.

        Args:
            texts: The documents.

        Returns:
            The ids of all documents, in their order.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The tokenizer's library fails on a text.
        """
        ...


class NotRecognisedError(Exception):
    """An engine does not support the tokenizer; the message says why."""


class WrongTokensError(Exception):
    """An engine gave other tokens than the reference."""

    def __init__(self, what: str, document: int = 0) -> None:
        """Say what is wrong.

        Args:
            what: The message.
            document: Number of the document within the batch.
        """
        super().__init__(what)
        self.document = document


class EncodingError(InputError):
    """The tokenizer's library failed on a document.

    Some normalizers and split patterns do that.
    """

    document: int = 0
    """Number of the document within the batch."""


def encode_utf8(texts: Sequence[str], first_number: int = 0) -> list[bytes]:
    """Encode documents in UTF-8, or report which of them is not valid Unicode.

    Args:
        texts: Documents of a batch, which tokenizers encode together.
        first_number: Number of the first of them within the batch, for the error.

    Raises:
        InputError: A text has half of a character (a lone surrogate), which UTF-8 cannot represent.
    """
    encoded = []
    for number, text in enumerate(texts, first_number):
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise InputError(
                "a document is not valid Unicode",
                where=f"document {number}, character {error.start}",
                found=repr(text[error.start]),
                expected="characters that UTF-8 can represent",
                remedy="reject the line, or replace lone surrogates before tokenising",
            ) from error
    return encoded


def slices(
    texts: Sequence[str] | Sequence[bytes], limit: int = BATCH_CHARACTERS
) -> Iterator[tuple[int, int]]:
    """Divide documents into groups of successive ones that have about `limit` characters together.

    A group ends with the document that reaches the limit. For documents of 3, 4, 2 and 9
    characters, and a limit of 5, the groups are (0, 2), (2, 4): documents 0 and 1, and documents 2
    and 3.

    Args:
        texts: The documents, as text or in UTF-8.
        limit: Characters of a group, or bytes if the documents are bytes.

    Yields:
        (number of the first document, number after that of the last one).
    """
    start = 0
    size = 0
    for index, text in enumerate(texts):
        size += len(text)
        if size >= limit:
            yield start, index + 1
            start = index + 1
            size = 0
    if start < len(texts):
        yield start, len(texts)
