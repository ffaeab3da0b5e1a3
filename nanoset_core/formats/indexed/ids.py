"""Refuse token ids that a tokenizer does not have; datasets of other tools may contain such ids.

A trainer looks each id up in its embedding. For an id beyond the embedding, a GPU fails with an
error that names nothing, or reads other memory. Ids are compared as they pass through a command, a
chunk at a time, so that nothing is read for this check alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import CHUNK_TOKENS, Stream, read_tokens


def first_foreign(tokens: NDArray[np.integer], greatest: int) -> int | None:
    """Find the first token that a tokenizer with ids from 0 to `greatest` cannot have made.

    For example, with a greatest id of 31,999, it is at position 2 in [5, 17, 32000, -1].

    Args:
        tokens: Ids, of any shape.
        greatest: The greatest id of the vocabulary.

    Returns:
        Position in the flattened array, or None if all ids are allowed.
    """
    if not tokens.size:
        return None
    # Nearly always all ids are allowed. Then the least and the greatest id are enough, and not even
    # these are computed if the type cannot express a wrong one.
    limits = np.iinfo(tokens.dtype)
    has_too_great = bool(limits.max > greatest) and int(tokens.max()) > greatest
    has_negative = bool(limits.min < 0) and int(tokens.min()) < 0
    if not has_too_great and not has_negative:
        return None
    return int(np.argmax((tokens < 0) | (tokens > greatest)))


def foreign_id(dataset: MMapIndexedDataset, position: int, token: int, greatest: int) -> InputError:
    """Return the error for an id that is not in the vocabulary.

    Args:
        dataset: The dataset.
        position: Position of the token in the concatenation of the dataset's sequences.
        token: The id.
        greatest: The greatest id of the vocabulary.
    """
    document, offset = _document_and_offset(dataset, position)
    return InputError(
        "a token is not in the vocabulary",
        where=f"{dataset.prefix}, document {document:,}, token {offset:,}",
        found=f"id {token}",
        expected=f"0 to {greatest}",
        remedy="name the tokenizer that made the tokens, or make the dataset again",
    )


def check_all_ids(dataset: MMapIndexedDataset, stream: Stream | None, greatest: int) -> None:
    """Check that a dataset has no tokens beyond a vocabulary, by reading all of them.

    For example, datasets of other tools may have been made with a larger vocabulary than the
    tokenizer that the user names: then a token 32,000 is an error if the greatest id is 31,999.

    Args:
        dataset: The dataset.
        stream: Where the .bin stores the tokens of each sequence; None if the sequences are stored
            back to back.
        greatest: The greatest id of the vocabulary.

    Raises:
        InputError: A token is not in the vocabulary.
    """
    # Nothing has to be read if the type of the tokens cannot express a wrong id.
    limits = np.iinfo(dataset.dtype)
    if limits.min >= 0 and limits.max <= greatest:
        return
    n_tokens = int(dataset.sequence_lengths.sum(dtype=np.int64))
    for start in range(0, n_tokens, CHUNK_TOKENS):
        stop = min(start + CHUNK_TOKENS, n_tokens)
        tokens = read_tokens(dataset, start, stop, stream)
        index = first_foreign(tokens, greatest)  # within the chunk
        if index is not None:
            token = int(tokens[index])
            raise foreign_id(dataset, start + index, token, greatest)


def _document_and_offset(dataset: MMapIndexedDataset, position: int) -> tuple[int, int]:
    """Return which document contains a token, and which of the document's tokens it is.

    For example, document 0 has 2 tokens, and document 1 has 7 (in two sequences, of 3 and 4). The
    token at position 6 of all tokens is token 4 of document 1.

    Args:
        dataset: The dataset.
        position: Position of the token in the concatenation of all sequences.

    Returns:
        (number of the document, position in the document).
    """
    document_starts = _document_starts(dataset)
    # If several documents start at the same token, all but the last of them are empty.
    document = int(np.searchsorted(document_starts, position, side="right")) - 1
    return document, position - int(document_starts[document])


def _document_starts(dataset: MMapIndexedDataset) -> NDArray[np.int64]:
    """Return the position of the first token of each document, and of the end of the last one.

    For three sequences of 2, 3 and 4 tokens, the first of which is a document, and the other two
    another one, that is [0, 2, 9].

    Returns:
        Positions in the concatenation of all sequences, shape (n_documents + 1,).
    """
    sequence_stops = np.cumsum(dataset.sequence_lengths, dtype=np.int64)
    sequence_starts = np.concatenate([[0], sequence_stops])  # (n_sequences + 1,)
    return sequence_starts[dataset.document_indices]
