"""Refuse token ids that a tokenizer does not have, as datasets of other tools may hold them.

A trainer looks an id up in its embedding: outside of it, a GPU fails with an error that names nothing, or reads other
memory. Ids are compared as they pass through a command, a chunk at a time, so that nothing is read for it alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens

_CHUNK_TOKENS = 1 << 19


def first_foreign(tokens: NDArray[np.integer], greatest: int) -> int | None:
    """Return the position of the first id that is negative or above `greatest`, or None.

    Args:
        tokens: any shape; the position is that within its elements in order.
        greatest: the greatest id of the vocabulary.
    """
    if not tokens.size:
        return None
    limits = np.iinfo(tokens.dtype)
    is_foreign = bool(limits.max > greatest) and int(tokens.max()) > greatest
    is_foreign = is_foreign or (bool(limits.min < 0) and int(tokens.min()) < 0)
    if not is_foreign:
        return None
    return int(np.argmax((tokens < 0) | (tokens > greatest)))


def foreign_id(
    dataset: MMapIndexedDataset, stream: Stream | None, position: int, token: int, greatest: int
) -> InputError:
    """Return the error for an id that is not in the vocabulary.

    Args:
        dataset: its sequences and documents.
        stream: the order of its tokens if they are not stored in order.
        position: of the token within the dataset's tokens, in the order of its documents.
        token: the id.
        greatest: the greatest id of the vocabulary.
    """
    document, offset = _place(dataset, stream, position)
    return InputError(
        "a token is not in the vocabulary",
        where=f"{dataset.prefix}, document {document:,}, token {offset:,}",
        found=f"id {token}",
        expected=f"0 to {greatest}",
        remedy="name the tokenizer that made the tokens, or make the dataset again",
    )


def check_all_ids(dataset: MMapIndexedDataset, stream: Stream | None, greatest: int) -> None:
    """Read all tokens of a dataset, and raise InputError if one is not in the vocabulary; memory: a chunk."""
    limits = np.iinfo(dataset.dtype)
    if limits.min >= 0 and limits.max <= greatest:
        return
    total = int(dataset.sequence_lengths.sum(dtype=np.int64))
    size = dataset.dtype.itemsize
    for first in range(0, total, _CHUNK_TOKENS):
        stop = min(first + _CHUNK_TOKENS, total)
        if stream is None:
            tokens = dataset.tokens_for(np.array([first * size]), np.array([stop * size]))[first:stop]
        else:
            _, tokens = next(stream_tokens(dataset, stream, first, stop, _CHUNK_TOKENS))
        position = first_foreign(tokens, greatest)
        if position is not None:
            raise foreign_id(dataset, stream, first + position, int(tokens[position]), greatest)


def _place(dataset: MMapIndexedDataset, stream: Stream | None, position: int) -> tuple[int, int]:
    """Return (document, position within it) of a token; documents without tokens are counted, too."""
    # `document_spans` leaves out documents without tokens: find the sequence, and then its document.
    begins = 0
    for starts, lengths in document_spans(dataset, stream):
        if position < int(starts[-1] + lengths[-1]):
            begins = int(starts[np.searchsorted(starts, position, side="right") - 1])
            break
    ends = np.cumsum(dataset.sequence_lengths, dtype=np.int64)  # (sequences,) end of each in the stream
    sequence = int(np.searchsorted(ends, position, side="right"))
    document = int(np.searchsorted(dataset.document_indices, sequence, side="right")) - 1
    return document, position - begins
