"""Check that every document ends in the end token by which a reader finds documents.

OLMo-core and datatrove (`return_positions`) read one stream of tokens, in which a document goes
from one end token to the next. If some end tokens are missing, they read several documents as one,
without a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, stream_tokens
from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel

_SAMPLE_TOKENS = 1 << 14
"""Tokens at the start of a dataset that are searched for end tokens: in text, they contain hundreds
of full stops.
"""
_MAX_READS = 4096
"""About as many documents of a dataset in a bucket are looked at, since each takes a request."""
_EXPECTED = "the end token behind each document, by which it finds where documents end"
_REMEDY = "tokenize again with --append-eod (in nanoset.yaml: tokenization.append_eod: true)"


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The tokens that documents end in."""

    counts: Counter[int]
    """Token → documents that end in it."""
    first_document: dict[int, int]
    """Token → number of the first such document."""

    @property
    def most_common(self) -> int:
        """The token that most documents end in."""
        return self.counts.most_common(1)[0][0]


def last_tokens(dataset: MMapIndexedDataset, stream: Stream | None) -> LastTokens:
    """Read the last token of each document that has tokens; memory is bounded by a chunk.

    Tokens of a bucket do not pass through this machine when they are exported. So of a dataset in a
    bucket, only about `_MAX_READS` documents are looked at, evenly spread.
    """
    counts: Counter[int] = Counter()
    first_document: dict[int, int] = {}
    step = 1
    if not dataset.is_here:
        step = max(1, len(dataset.document_indices) // _MAX_READS)

    n_before = 0  # documents in earlier chunks
    for starts, lengths in document_spans(dataset, stream):
        # Look at the documents 0, step, 2 * step … of the dataset.
        rows = np.arange(-n_before % step, len(lengths), step)
        last_positions = starts + lengths - 1
        last = _tokens_at(dataset, stream, last_positions[rows])
        tokens, positions, occurrences = np.unique(last, return_index=True, return_counts=True)
        for token, position, count in zip(
            tokens.tolist(), positions.tolist(), occurrences.tolist(), strict=True
        ):
            counts[token] += count
            first_document.setdefault(token, n_before + int(rows[position]))
        n_before += len(lengths)
    return LastTokens(counts, first_document)


def check_end_tokens(
    export_format: ExportFormat,
    traits: DatasetTraits,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
    end_ids: Collection[int] = (),
) -> None:
    """Check that every document ends in the token that ends documents.

    Args:
        export_format: The format, whose reader the message names.
        traits: What the format knows of the dataset.
        dataset: Its sequences and documents.
        stream: The order of its tokens if they are not stored in order.
        end_ids: Tokens that may end documents: the special tokens of the tokenizer. Without any,
            the token that most documents end in must be rare within documents, as an end token is
            and a full stop is not.

    Raises:
        ConfigError: Some document does not.
    """
    last = last_tokens(dataset, stream)
    end = last.most_common

    if end_ids and end not in end_ids:
        found = f"most documents end with token {end}, which is no special token of the tokenizer"
        raise export_format.refused(traits, found, _EXPECTED, _REMEDY)

    total = last.counts.total()
    n_lacking = total - last.counts[end]
    if n_lacking:
        first_lacking = min(first for token, first in last.first_document.items() if token != end)
        found = f"{n_lacking:,} of {total:,} documents do not end with token {end}, the first of them {first_lacking:,}"
        raise export_format.refused(traits, found, _EXPECTED, _REMEDY)

    if not end_ids and dataset.is_here:
        sample = _occurrences(dataset, stream, end)
        if sample.inside > sample.documents:
            found = (
                f"token {end} ends all documents, and occurs {sample.inside:,} times within the first "
                f"{sample.documents:,} of them"
            )
            remedy = f"{_REMEDY}; if {end} is the end token, name the tokenizer with --tokenizer"
            raise export_format.refused(traits, found, _EXPECTED, remedy)


def _tokens_at(
    dataset: MMapIndexedDataset, stream: Stream | None, positions: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Return single tokens of a dataset by their positions in its stream, shape (n_positions,)."""
    if stream is not None:
        positions, _ = stream.ranges(positions, np.ones_like(positions))
    size = dataset.dtype.itemsize
    if dataset.is_here:
        tokens = dataset.tokens_for(positions * size, (positions + 1) * size)
        return np.array(tokens[positions])

    # Single tokens, and not the blocks of 256 KiB in which samples of a bucket are read.
    access, path = dataset.place

    def read(position: int) -> bytes:
        return access.store.read_range(access.name(path), position * size, (position + 1) * size)

    return np.frombuffer(
        b"".join(in_parallel(read, positions.tolist(), CONNECTIONS)), dataset.dtype
    )


class _Occurrences(NamedTuple):
    """How often a token occurs in the first tokens of a dataset."""

    inside: int
    """Times within documents, not at their ends."""
    documents: int
    """Documents that end in these tokens."""


def _occurrences(dataset: MMapIndexedDataset, stream: Stream | None, token: int) -> _Occurrences:
    """Count a token in the first documents, all of which end in it."""
    stop = min(int(dataset.sequence_lengths.sum(dtype=np.int64)), _SAMPLE_TOKENS)
    if stream is None:
        size = dataset.dtype.itemsize
        tokens = dataset.tokens_for(np.array([0]), np.array([stop * size]))[:stop]
    else:
        _, tokens = next(stream_tokens(dataset, stream, 0, stop, stop))
    starts, lengths = next(document_spans(dataset, stream))
    documents = int(np.count_nonzero(starts + lengths <= stop))
    occurrences = int(np.count_nonzero(tokens == token))
    return _Occurrences(occurrences - documents, documents)
