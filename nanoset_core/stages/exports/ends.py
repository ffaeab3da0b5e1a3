"""Check that every document ends in the end token by which a reader finds documents.

OLMo-core and datatrove (`return_positions`) read one stream of tokens, in which a document goes
from one end token to the next. If some end tokens are missing, they read several documents as one,
without a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, document_spans, read_tokens
from nanoset_core.stages.exports.base import DatasetTraits, ExportFormat
from nanoset_core.storage.requests import SMALL_REQUESTS_AT_ONCE, in_parallel

_SAMPLE_TOKENS = 1 << 14
"""Number of tokens at the start of a dataset in which the supposed end token is counted.

They are enough for hundreds of full stops, if the token is one.
"""
_MAX_READS = 4096
"""About this many documents of a dataset in a bucket are checked, since each takes a request."""
_EXPECTED = "the end token after each document, by which it finds where documents end"
"""What readers need, for messages."""
_REMEDY = "tokenize again with --append-eod (in nanoset.yaml: tokenization.append_eod: true)"


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The last tokens of documents."""

    counts: Counter[int] = field(default_factory=Counter)
    """Token → number of documents that end in it."""
    first_document: dict[int, int] = field(default_factory=dict)
    """Token → number of the first such document."""

    def add(self, documents: NDArray[np.int64], tokens: NDArray[np.integer]) -> None:
        """Count the last tokens of further documents.

            document       10    11    12
            last token      0     0    13      0 is counted twice, and 13 once, first in document 12

        Args:
            documents: Numbers of the documents, ascending, shape (n_documents,).
            tokens: Last token of each, shape (n_documents,).
        """
        unique_tokens, first_indices, token_counts = np.unique(
            tokens, return_index=True, return_counts=True
        )
        for index, token in enumerate(unique_tokens.tolist()):
            self.counts[token] += int(token_counts[index])
            self.first_document.setdefault(token, int(documents[first_indices[index]]))

    @property
    def most_common(self) -> int:
        """The token that most documents end in."""
        return self.counts.most_common(1)[0][0]

    @property
    def n_others(self) -> int:
        """Number of documents that end in another token."""
        return self.counts.total() - self.counts[self.most_common]

    @property
    def first_other_document(self) -> int:
        """Number of the first document that ends in another token than most; there must be one."""
        end = self.most_common
        return min(first for token, first in self.first_document.items() if token != end)


def last_tokens(dataset: MMapIndexedDataset, stream: Stream | None) -> LastTokens:
    """Count with which tokens the documents of a dataset end.

    Some trainers find the end of a document by a token such as "</s>". If 998 of 1,000 documents
    end with token 0 and the others with token 13, the counts are `{0: 998, 13: 2}`: these two
    documents would be joined with the next ones.

    Args:
        dataset: The dataset. Documents without tokens are not counted.
        stream: Where its tokens are in its file, the .bin; None if they are in order there.
    """
    step = _document_step(dataset)
    last = LastTokens()
    n_earlier_documents = 0
    for starts, lengths in document_spans(dataset, stream):  # of a chunk of documents, (n_chunk,)
        documents = n_earlier_documents + np.arange(len(lengths))  # their numbers
        n_earlier_documents += len(lengths)

        is_selected = documents % step == 0
        last_positions = (starts + lengths - 1)[is_selected]  # of the last tokens
        last.add(documents[is_selected], _tokens_at(dataset, stream, last_positions))
    return last


def _document_step(dataset: MMapIndexedDataset) -> int:
    """Return a number n, so that looking at every n-th document of a dataset is fast enough.

    On a disk, it is 1. In a bucket, each look takes a request, so some 4,096 documents are enough.

    Args:
        dataset: The dataset.
    """
    if dataset.is_here:
        return 1
    return max(1, len(dataset.document_indices) // _MAX_READS)


def check_end_tokens(
    export_format: ExportFormat,
    traits: DatasetTraits,
    dataset: MMapIndexedDataset,
    stream: Stream | None,
    end_ids: Collection[int] = (),
) -> None:
    """Check that every document ends in the token that ends documents.

    If 998 of 1,000 documents end in token 0, that must be the end token, and the other two lack it.
    A reader would join them with the documents that follow.

    Args:
        export_format: The format, whose reader needs the end tokens.
        traits: Properties of the dataset, for messages.
        dataset: The dataset, with its .bin and .idx opened.
        stream: Order of its tokens, if they are not in order in the .bin.
        end_ids: Special tokens of the tokenizer, one of which must be the end token. Empty if they
            are not known.

    Raises:
        ConfigError: A document does not end in the end token, or there is no such token.
    """
    last = last_tokens(dataset, stream)
    end = last.most_common
    if end_ids and end not in end_ids:
        found = f"most documents end with token {end}, which is no special token of the tokenizer"
        raise export_format.refused(traits, found, _EXPECTED, _REMEDY)
    if last.n_others:
        found = (
            f"{last.n_others:,} of {last.counts.total():,} documents do not end with token {end}, "
            f"the first of them {last.first_other_document:,}"
        )
        raise export_format.refused(traits, found, _EXPECTED, _REMEDY)

    # All documents may also end in a full stop, for example. If no special tokens are known, check
    # that the token is rarer inside documents than at their ends. From a bucket, the tokens would
    # have to be downloaded for that.
    if not end_ids and dataset.is_here:
        sample = _occurrences_in_sample(dataset, stream, end)
        if sample.n_inside_documents > sample.n_documents:
            raise _common_token_error(export_format, traits, end, sample)


def _common_token_error(
    export_format: ExportFormat,
    traits: DatasetTraits,
    token: int,
    sample: _Occurrences,
) -> ConfigError:
    """Return the error for a token that ends all documents, but is common inside them, too.

    Then it is probably no end token, but a full stop, for example. A reader that looks for end
    tokens would split documents at it.

    Args:
        export_format: The format, whose reader needs the end tokens.
        traits: Properties of the dataset.
        token: The token.
        sample: How often it occurs in the first documents.
    """
    found = (
        f"token {token} ends all documents, and occurs {sample.n_inside_documents:,} times within "
        f"the first {sample.n_documents:,} of them"
    )
    remedy = f"{_REMEDY}; if {token} is the end token, name the tokenizer with --tokenizer"
    return export_format.refused(traits, found, _EXPECTED, remedy)


def _tokens_at(
    dataset: MMapIndexedDataset, stream: Stream | None, positions: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Return the tokens at some positions of a dataset, such as the last ones of documents.

    For the tokens 5 9 0 7 0 and the positions [2, 4], the result is [0, 0].

    Args:
        dataset: The dataset, with its .bin and .idx opened.
        stream: Where its tokens are in the .bin; None if they are in order there.
        positions: Numbers of the tokens in the order of the dataset, shape (n_positions,).

    Returns:
        Shape (n_positions,).
    """
    positions_in_bin = positions
    if stream is not None:
        # `ranges` says where ranges of tokens are in the .bin. Here, each has one token.
        lengths = np.ones_like(positions)
        positions_in_bin, _ = stream.ranges(positions, lengths)
    if dataset.is_here:
        return _tokens_here(dataset, positions_in_bin)
    return _tokens_in_bucket(dataset, positions_in_bin)


def _tokens_here(dataset: MMapIndexedDataset, positions: NDArray[np.int64]) -> NDArray[np.integer]:
    """Return single tokens of a .bin on this machine, at these positions, shape (n_positions,)."""
    start_bytes = positions * dataset.dtype.itemsize
    all_tokens = dataset.tokens_for(start_bytes, start_bytes + dataset.dtype.itemsize)
    return np.array(all_tokens[positions])


def _tokens_in_bucket(
    dataset: MMapIndexedDataset, positions: NDArray[np.int64]
) -> NDArray[np.integer]:
    """Read single tokens of a file in a bucket, without downloading the rest.

    For tokens of 2 bytes and the positions [10, 500], the bytes 20 to 22 and 1,000 to 1,002 are
    read, each by a small request. `MMapIndexedDataset.tokens_for` would download a block of 256 KiB
    for each.

    Args:
        dataset: The dataset with the file of tokens (.bin).
        positions: Numbers of the tokens in the file, shape (n_positions,).

    Returns:
        The tokens, shape (n_positions,).
    """
    access, path = dataset.place
    object_name = access.name(path)
    token_bytes = dataset.dtype.itemsize

    def read_token(position: int) -> bytes:
        """Return the bytes of one token."""
        start_byte = position * token_bytes
        return access.store.read_range(object_name, start_byte, start_byte + token_bytes)

    parts = in_parallel(read_token, positions.tolist(), SMALL_REQUESTS_AT_ONCE)
    return np.frombuffer(b"".join(parts), dataset.dtype)


class _Occurrences(NamedTuple):
    """How often a token occurs in the first tokens of a dataset."""

    n_inside_documents: int
    """Number of occurrences that are not the end of a document."""
    n_documents: int
    """Number of documents that end among these tokens."""


def _occurrences_in_sample(
    dataset: MMapIndexedDataset, stream: Stream | None, token: int
) -> _Occurrences:
    """Count how often a token that ends all documents also occurs inside the first ones.

    A full stop also occurs inside documents, and an end-of-document token does not:

        documents               5 9 . 7 .      8 .
        "." at their ends       2
        "." inside              1

    Args:
        dataset: The dataset, on this machine.
        stream: The order of its tokens in its file, the .bin; None if the file has them in order.
        token: The token that all documents end in.
    """
    n_tokens = int(dataset.sequence_lengths.sum(dtype=np.int64))
    stop = min(n_tokens, _SAMPLE_TOKENS)
    sample = read_tokens(dataset, 0, stop, stream)
    n_occurrences = int(np.count_nonzero(sample == token))

    # Each document that ends in the sample ends in the token. The other occurrences are inside
    # documents: 3 - 2 in the example.
    n_documents = _count_documents_up_to(dataset, stream, stop)
    return _Occurrences(n_inside_documents=n_occurrences - n_documents, n_documents=n_documents)


def _count_documents_up_to(dataset: MMapIndexedDataset, stream: Stream | None, stop: int) -> int:
    """Count the documents that end within the first tokens of a dataset.

    Documents of 5 and 2 tokens end at the tokens 5 and 7: one of them within the first 6.

    Args:
        dataset: The dataset.
        stream: The order of its tokens in its file, the .bin; None if the file has them in order.
        stop: Number of the first tokens.
    """
    n_documents = 0
    for starts, lengths in document_spans(dataset, stream):  # some documents at a time
        ends = starts + lengths  # (n,) ascending
        n_documents += int(np.count_nonzero(ends <= stop))
        if ends[-1] > stop:
            break  # all further documents end later
    return n_documents
