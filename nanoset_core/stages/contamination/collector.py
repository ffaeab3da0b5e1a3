"""Collect the texts of evaluation files as words, each text once.

Two lines of a file that hold the same question, such as "How tired is she?" and "how tired is she",
have the same words. The first one is collected, and the second one is counted as a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.contamination.ngrams import MIN_LETTERS, NgramIndex
from nanoset_core.stages.contamination.texts import EvaluationText
from nanoset_core.stages.contamination.words import DocumentWords, WordVocabulary, running_sums
from nanoset_core.statistics.hashing import STEP, mix
from nanoset_core.tokenizers.engines.engine import EncodingError, Engine

_BATCH_TEXTS = 1 << 10
"""Texts that are tokenized together."""


class TextOrigin(NamedTuple):
    """Where an evaluation text comes from."""

    file: int
    """Number of the file."""
    line: int
    """Number of the line or row, from 1."""


class _TextBatch(NamedTuple):
    """The words of some texts, without texts that were collected before."""

    hashes: NDArray[np.uint64]
    """Hash of each word, shape (n_words,)."""
    letter_counts: NDArray[np.int64]
    """Bytes of each word, shape (n_words,)."""
    words_per_text: NDArray[np.int64]
    """Number of words of each text, shape (n_texts,)."""


@dataclass(slots=True)
class TextCollector:
    """Collects the texts of evaluation files as words.

    Texts are tokenized with the corpora's tokenizer, so that their words are found in the same way
    as those of documents. Texts with the same words are collected once.
    """

    engine: Engine
    """Tokenizes the texts."""
    vocabulary: WordVocabulary
    """Divides tokens into words."""
    origins: list[TextOrigin] = field(default_factory=list)
    """Where each collected text comes from, by its number."""
    copies: int = 0
    """Texts that were left out, since an earlier one has the same words."""
    _known_text_hashes: set[int] = field(default_factory=set)
    """Hash of the words of each collected text."""
    _batches: list[_TextBatch] = field(default_factory=list)
    """The words of all collected texts, in batches."""

    def add(self, file: int, texts: Iterable[EvaluationText], path: object) -> None:
        """Collect the texts of an evaluation file, such as questions, to search documents for them.

        Some texts are tokenized at a time, which is faster than one by one.

        Args:
            file: Number of the file.
            texts: Its texts.
            path: Path of the file, for messages.

        Raises:
            EncodingError: The tokenizer fails on a text.
        """
        batch: list[EvaluationText] = []
        for text in texts:
            batch.append(text)
            if len(batch) == _BATCH_TEXTS:
                self._add_batch(file, batch, path)
                batch = []
        self._add_batch(file, batch, path)  # the rest, or no text at all

    def index(self, size: int) -> NgramIndex:
        """Return an index of all collected texts, by which parts of them are found in documents.

        It lists all n-grams of the texts: runs of `size` words, such as "how tired are".

        Args:
            size: Words of an n-gram.
        """
        return NgramIndex.of(
            words=np.concatenate([batch.hashes for batch in self._batches]),
            letter_counts=np.concatenate([batch.letter_counts for batch in self._batches]),
            words_per_text=np.concatenate([batch.words_per_text for batch in self._batches]),
            size=size,
        )

    def _add_batch(self, file: int, texts: Sequence[EvaluationText], path: object) -> None:
        """Collect some evaluation texts, but each of them once.

        For example, if lines 3 and 8 of a file have the same question, line 3 is collected, and
        line 8 is counted as a copy.

        Args:
            file: Number of the file.
            texts: The texts, so few that they can be tokenized together.
            path: Path of the file, for messages.

        Raises:
            EncodingError: The tokenizer fails on a text.
        """
        words = self._words(texts, path)
        is_new = self._remember_new_texts(words)  # (n_texts,) False for copies of earlier texts
        self._batches.append(self._select_texts(words, is_new))

        # Keep where the new texts come from, and count the others.
        new_texts = list(compress(texts, is_new))
        for text in new_texts:
            self.origins.append(TextOrigin(file, text.line))
        self.copies += len(texts) - len(new_texts)

    def _select_texts(self, words: DocumentWords, mask: NDArray[np.bool_]) -> _TextBatch:
        """Return the words of those texts that are to be collected.

        For example, of texts with 3 and 2 words, the mask [False, True] selects the last 2 words.

        Args:
            words: The words of all texts.
            mask: Which texts, shape (n_texts,).
        """
        is_selected = np.repeat(mask, words.counts)  # (n_words,)
        letter_counts = self.vocabulary.letter_counts(words)  # (n_words,)
        return _TextBatch(
            hashes=words.hashes[is_selected],
            letter_counts=letter_counts[is_selected],
            words_per_text=words.counts[mask],
        )

    def _remember_new_texts(self, words: DocumentWords) -> NDArray[np.bool_]:
        """For each text, return whether it is new, so that copies can be left out; remember it.

        A text is a copy if an earlier one has the same words in the same order, as "How tired is
        she?" and "how tired is she". To save memory, only a hash of the words is remembered.

        Args:
            words: The words of some texts.

        Returns:
            bool, shape (n_texts,).
        """
        is_new = []
        for text_hash in _text_hashes(words).tolist():  # one number for each text
            is_new.append(text_hash not in self._known_text_hashes)
            self._known_text_hashes.add(text_hash)
        return np.array(is_new, np.bool_)

    def _words(self, texts: Sequence[EvaluationText], path: object) -> DocumentWords:
        """Divide texts into words, in the same way as the documents in which they are searched.

        The documents are stored as tokens, and a vocabulary says which words the tokens are. So the
        texts become tokens first as well. Then equal text always leads to equal words.

        Args:
            texts: The texts.
            path: Path of their file, for messages.

        Raises:
            EncodingError: The tokenizer fails on a text; the message names the line of the text.
        """
        try:
            encoded = self.engine.encode([text.text for text in texts])
        except EncodingError as error:
            failed_text = texts[error.document]  # the error has the index of the text
            raise error.at(f"{path}:{failed_text.line}") from error

        # Texts of 5 and 3 tokens start at 0 and 5, and end at 8.
        token_starts = np.concatenate([[0], np.cumsum(encoded.lengths, dtype=np.int64)])
        return self.vocabulary.words(encoded.ids, token_starts)


def _text_hashes(words: DocumentWords) -> NDArray[np.uint64]:
    """Return a hash of the words of each text: uint64, shape (n_texts,).

    It depends on the order of the words: "a dog bit a man" and "a man bit a dog" have different
    hashes. Each word is hashed with its place in the text, and the hash of the text is the sum of
    these hashes, modulo 2**64.

    Args:
        words: The words of some texts. The values in the comments are for two texts, of three and
            of two words.
    """
    words_per_text = words.counts  # [3, 2]
    text_bounds = running_sums(words_per_text)  # (n_texts + 1,) [0, 3, 5]
    text_starts = np.repeat(text_bounds[:-1], words_per_text)  # (n_words,) [0, 0, 0, 3, 3]
    places = np.arange(len(words.hashes)) - text_starts  # (n_words,) [0, 1, 2, 0, 1]
    word_hashes = mix(words.hashes + places.astype(np.uint64) * STEP)  # these look random

    # Sum up from the first text on, and subtract what earlier texts have added.
    sums = running_sums(word_hashes)[text_bounds]  # over 0, 3 and 5 words
    hashes: NDArray[np.uint64] = np.diff(sums)  # over 3 and 2 words
    return hashes


def evaluation_facts(collector: TextCollector, index: NgramIndex) -> dict[str, int]:
    """Count the evaluation texts that were collected, to record and show this.

        texts         1319     different texts
        copies        2        texts that were left out, since an earlier one has the same words
        ngrams        48211    runs of some words by which the texts are found
        too_short     17       texts with fewer than MIN_LETTERS (32) letters, which cannot be found

    Args:
        collector: The collected texts.
        index: The index of their n-grams.
    """
    is_too_short = index.letters_per_text < MIN_LETTERS
    return {
        "texts": len(collector.origins),
        "copies": collector.copies,
        "ngrams": len(index.hashes),
        "too_short": int(is_too_short.sum()),
    }
