"""Search the documents of a dataset for texts of evaluations.

Documents are stored as tokens. They are read in chunks of some 260,000 tokens, which become words,
and the words are looked up in an index of the evaluation texts. A document that has, for example,
87 % of the letters of a question is reported as a match.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.blocks import divide_into_blocks
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import read_tokens, token_starts
from nanoset_core.stages.contamination.ngrams import NgramIndex
from nanoset_core.stages.contamination.words import WordVocabulary

CHUNK_TOKENS = 1 << 18
"""Tokens that are searched together."""
OVERLAP_TOKENS = 1 << 15
"""Tokens that two neighbouring chunks of a long document share, so that a text that is shorter than
this is found even if it extends over the border of two chunks.
"""
MAX_MATCHES_PER_DOCUMENT = 16
"""Texts that are reported for one document: those with the greatest shares."""
_EXCERPT_WORDS = 32
"""Words of a passage that are quoted."""


class Match(NamedTuple):
    """A document that contains an evaluation text, or much of it."""

    document: int
    """Number of the document."""
    text: int
    """Number of the evaluation text."""
    share: float
    """Share of the text's letters that the document contains, 0 to 1."""
    words: str
    """The first words of the passage."""


class _Chunk(NamedTuple):
    """Documents, or a part of a long one, that are searched together.

    Tokens are counted over the whole dataset.
    """

    first_document: int
    """Number of the first document in the dataset."""
    document_bounds: NDArray[np.int64]
    """First token of each document, and the end of the last one; shape (n_documents + 1,)."""
    start_token: int
    """The first token that is searched."""
    stop_token: int
    """The token after the last one that is searched."""

    def bounds_in_chunk(self) -> NDArray[np.int64]:
        """Return where each document starts, counted from the first token that is searched.

        For example, if the tokens from 100 to 249 are searched:

            document      tokens 80 to 119    tokens 120 to 299
            its start     0 (cut off)         20                    and at the end 150

        Returns:
            [0, 20, 150] in the example; int64, shape (n_documents + 1,).
        """
        return np.clip(self.document_bounds, self.start_token, self.stop_token) - self.start_token


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that is needed to search documents for evaluation texts."""

    vocabulary: WordVocabulary
    """Divides the tokens of documents into words."""
    index: NgramIndex
    """Finds evaluation texts in words."""

    def save(self, folder: Path) -> None:
        """Write all arrays to a folder, from which `load` reads them.

        Args:
            folder: An existing folder.
        """
        self.vocabulary.save(folder)
        self.index.save(folder)

    @staticmethod
    def load(folder: Path) -> Evaluation:
        """Map the arrays that `save` wrote to a folder into memory.

        Args:
            folder: The folder.
        """
        return Evaluation(WordVocabulary.load(folder), NgramIndex.load(folder))

    def search(
        self, dataset: MMapIndexedDataset, first: int, count: int, threshold: float
    ) -> Iterator[Match]:
        """Search some consecutive documents for evaluation texts, such as questions of a benchmark.

        For example, document 7 has 87 % of the letters of text 3: then a match has document=7,
        text=3, share=0.87, and the first words of the passage.

        The documents are searched in chunks of about the same number of tokens. A chunk is many
        short documents together, or a part of a long one. Parts of a document overlap, so both may
        have the same text. Of such matches only the best one counts.

        Args:
            dataset: The dataset with the documents, which are stored as tokens.
            first: Number of the first document to search, such as 1,000.
            count: How many documents to search.
            threshold: Share of a text's letters, 0 to 1, that a document must have.

        Yields:
            The matches, sorted by document. Those of a document are sorted by share, the greatest
            first, and limited to `MAX_MATCHES_PER_DOCUMENT` (16).
        """
        # Find the first token of each document, and the end of the last one. The dataset stores
        # documents as one or more sequences, so look up the first sequence of each document first.
        first_sequences = dataset.document_indices[first : first + count + 1]
        document_bounds = token_starts(dataset, first_sequences)  # (count + 1,)

        best_matches = _BestMatches()
        for chunk in _divide_into_chunks(document_bounds, first):
            for match in self._search_chunk(dataset, chunk, threshold):
                best_matches.add(match)
            # If the dataset is in a bucket, the tokens of the chunk were downloaded. Their disk
            # space may be needed for the next chunk.
            dataset.trim_downloads()
        yield from best_matches.best_of_each_document()

    def _search_chunk(
        self, dataset: MMapIndexedDataset, chunk: _Chunk, threshold: float
    ) -> Iterator[Match]:
        """Search some documents, or a part of a long one, for evaluation texts.

        Args:
            dataset: The dataset with the documents, which are stored as tokens.
            chunk: The tokens to search, and the documents to which they belong.
            threshold: Share of a text's letters, 0 to 1, that a document must have.

        Yields:
            The matches.
        """
        # Divide the tokens into words, document by document.
        tokens = read_tokens(dataset, chunk.start_token, chunk.stop_token)
        words = self.vocabulary.words(tokens, chunk.bounds_in_chunk())

        for match in self.index.search(words, threshold).each():
            # The passage is a range of words, such as 50 to 89. Quote the first 32 of them.
            stop_word = min(match.stop, match.start + _EXCERPT_WORDS)
            yield Match(
                document=chunk.first_document + match.document,  # the index counts from 0
                text=match.text,
                share=round(match.share, 4),
                words=self.vocabulary.text(words, match.start, stop_word),
            )


class _BestMatches:
    """The best match of each document and evaluation text.

    A long document is searched in several chunks, and may match a text in each of them.
    """

    def __init__(self) -> None:
        self._by_document: dict[int, dict[int, Match]] = {}  # document → text → match

    def add(self, match: Match) -> None:
        """Add a match, unless there is one of the same document and text that is as good.

        Args:
            match: The match. It replaces one of the same document and text with a smaller share.
        """
        match_by_text = self._by_document.setdefault(match.document, {})
        best = match_by_text.get(match.text)
        if best is None or best.share < match.share:
            match_by_text[match.text] = match

    def best_of_each_document(self) -> Iterator[Match]:
        """Yield the best few matches of each document, by document and share."""
        for _, match_by_text in sorted(self._by_document.items()):
            ordered = sorted(match_by_text.values(), key=lambda match: (-match.share, match.text))
            yield from ordered[:MAX_MATCHES_PER_DOCUMENT]


def _divide_into_chunks(
    document_bounds: NDArray[np.int64], first_document: int
) -> Iterator[_Chunk]:
    """Divide documents into chunks of some 260,000 tokens, which are searched for texts one by one.

    Short documents are put together. A long document is divided into parts, which overlap, so that
    a text is found even if it extends over a border. For example, if a chunk had 10 tokens and the
    overlap were 2, a document of 20 tokens would be searched in

        tokens 0 to 9
                tokens 8 to 17
                        tokens 16 to 19

    Args:
        document_bounds: First token of each document, and the end of the last one; shape
            (n_documents + 1,).
        first_document: Number of the first of these documents in the dataset.
    """
    # A block is several documents of up to CHUNK_TOKENS tokens together, or one longer document.
    for block in divide_into_blocks(document_bounds, CHUNK_TOKENS):
        number = first_document + block.start
        bounds = document_bounds[block.start : block.stop + 1]
        start_token = int(bounds[0])
        stop_token = int(bounds[-1])

        # Divide a long document. The next chunk starts a bit before the end of this one.
        while stop_token - start_token > CHUNK_TOKENS:
            yield _Chunk(number, bounds, start_token, start_token + CHUNK_TOKENS)
            start_token += CHUNK_TOKENS - OVERLAP_TOKENS

        # The rest of a long document, or a block of short ones.
        yield _Chunk(number, bounds, start_token, stop_token)
