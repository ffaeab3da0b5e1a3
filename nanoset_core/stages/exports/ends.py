"""Check that every document ends with the end token by which a reader finds documents.

OLMo-core and datatrove (`return_positions`) read one stream of tokens, in which a document goes from one end token to
the next. If some of these tokens are missing, they take several documents for one, without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import ExitFormat, Tokens
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel

_SAMPLE_TOKENS = 1 << 14
"""Of the first tokens, so many are looked at: in text, a full stop occurs hundreds of times in them."""
_MOST_READS = 4096
"""Documents of a dataset in a bucket whose last token is read."""
_REMEDY = "tokenize again with --append-eod (in nanoset.yaml: tokenization.append_eod: true)"


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The tokens that documents end with."""

    counts: Counter[int]
    """Token → documents that end with it."""
    first_document: dict[int, int]
    """Token → the first such document, of those with tokens."""

    @property
    def most_common(self) -> int:
        """The token that most documents end with."""
        return self.counts.most_common(1)[0][0]


def last_tokens(dataset: MMapIndexedDataset, stream: Stream | None) -> LastTokens:
    """Read the last token of each document that has tokens; memory is bounded by a chunk.

    Of a dataset in a bucket, whose export does not pass through this machine, `_MOST_READS` documents are read, spread
    evenly: each is a request.
    """
    counts = Counter[int]()
    first_document: dict[int, int] = {}
    step = 1 if dataset.is_here else max(1, len(dataset.document_indices) // _MOST_READS)
    document = 0
    for begins, lengths in document_spans(dataset, stream):
        # Document numbers in this chunk, of those that are looked at: the first of all, and every `step`-th.
        chosen = np.arange(-document % step, len(lengths), step)
        last = _tokens_at(dataset, stream, (begins + lengths - 1)[chosen])
        tokens, positions, occurrences = np.unique(last, return_index=True, return_counts=True)
        for token, position, occurrence in zip(tokens.tolist(), positions.tolist(), occurrences.tolist(), strict=True):
            counts[token] += occurrence
            first_document.setdefault(token, document + int(chosen[position]))
        document += len(lengths)
    return LastTokens(counts, first_document)


def check_end_tokens(
    exit_format: ExitFormat,
    tokens: Tokens,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
    end_ids: Collection[int] = (),
) -> None:
    """Raise ConfigError if some document does not end with the token that ends documents.

    Args:
        exit_format: the format, whose reader the message names.
        tokens: what the format knows of the dataset.
        dataset: its sequences and documents.
        stream: the order of its tokens if they are not stored in order.
        end_ids: tokens that may end documents: the special tokens of the tokenizer. Without any, the token that most
            documents end with must be rare within documents, as an end token is and a full stop is not.
    """
    last = last_tokens(dataset, stream)
    end = last.most_common
    expected = "the end token behind each document, by which it finds where documents end"

    if end_ids and end not in end_ids:
        found = f"most documents end with token {end}, which is no special token of the tokenizer"
        raise exit_format.refused(tokens, found, expected, _REMEDY)

    total = last.counts.total()
    lacking = total - last.counts[end]
    if lacking:
        first_lacking = min(first for token, first in last.first_document.items() if token != end)
        found = f"{lacking:,} of {total:,} documents do not end with token {end}, the first of them {first_lacking:,}"
        raise exit_format.refused(tokens, found, expected, _REMEDY)

    if not end_ids and dataset.is_here:
        inside, documents = _occurrences(dataset, stream, end)
        if inside > documents:
            found = (
                f"token {end} ends all documents, and occurs {inside:,} times within the first {documents:,} of them"
            )
            remedy = f"{_REMEDY}; if {end} is the end token, name the tokenizer with --tokenizer"
            raise exit_format.refused(tokens, found, expected, remedy)


def _tokens_at(dataset: MMapIndexedDataset, stream: Stream | None, positions: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return single tokens of a dataset, by their positions in its stream; shape (positions,)."""
    if stream is not None:
        positions, _ = stream.ranges(positions, np.ones_like(positions))
    size = dataset.dtype.itemsize
    if dataset.is_here:
        return np.array(dataset.tokens_for(positions * size, (positions + 1) * size)[positions])

    # Single tokens, and not the blocks of 256 KiB in which samples of a bucket are read.
    access, path = dataset.place

    def read(position: int) -> bytes:
        return access.store.read_range(access.name(path), position * size, (position + 1) * size)

    return np.frombuffer(b"".join(in_parallel(read, positions.tolist(), CONNECTIONS)), dataset.dtype)


def _occurrences(dataset: MMapIndexedDataset, stream: Stream | None, token: int) -> tuple[int, int]:
    """Return how often a token occurs within the first documents, not at their ends, and how many these are."""
    stop = min(int(dataset.sequence_lengths.sum(dtype=np.int64)), _SAMPLE_TOKENS)
    if stream is None:
        size = dataset.dtype.itemsize
        found = dataset.tokens_for(np.array([0]), np.array([stop * size]))[:stop]
    else:
        _, found = next(stream_tokens(dataset, stream, 0, stop, stop))
    begins, lengths = next(document_spans(dataset, stream))
    documents = int(np.count_nonzero(begins + lengths <= stop))
    return int(np.count_nonzero(found == token)) - documents, documents
