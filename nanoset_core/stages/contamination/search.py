"""What is looked for, out of the texts of evaluations, and looking for it in the documents of a
dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import token_starts
from nanoset_core.sampling.hashing import STEP, mix
from nanoset_core.stages.contamination.grams import LEAST_LETTERS, EvaluationGrams
from nanoset_core.stages.contamination.words import WordVocabulary
from nanoset_core.tokenizers.engines.arrays import Ints, Words
from nanoset_core.tokenizers.engines.reference import EncodingError, Engine

CHUNK_TOKENS = 1 << 18
OVERLAP_TOKENS = 1 << 15
"""That parts of a document have in common which is longer than a chunk."""
MOST_OF_A_DOCUMENT = 16
"""Texts that are named of one document, those with the greatest shares."""
_SHOWN_WORDS = 32
_BATCH = 1 << 10


@dataclass(slots=True)
class TextSource:
    """Texts of evaluations, each once, as words."""

    engine: Engine
    vocabulary: WordVocabulary
    places: list[tuple[int, int]] = field(default_factory=list)
    """(number of its file, line) of each text."""
    copies: int = 0
    """Texts that are the same as one before, but for what is no letter or digit."""
    _seen: set[int] = field(default_factory=set)
    _parts: list[tuple[Words, Ints, Ints]] = field(default_factory=list)

    def add(self, file: int, texts: Iterable[tuple[int, str]], path: object) -> None:
        """Take the texts of a file.

        Args:
            file: The file's number.
            texts: (line, text) of each.
            path: The file's path, for errors.

        Raises:
            EncodingError: The tokenizer fails on a text.
        """
        batch: list[tuple[int, str]] = []
        for text in texts:
            batch.append(text)
            if len(batch) == _BATCH:
                self._take(file, batch, path)
                batch = []
        self._take(file, batch, path)

    def _take(self, file: int, texts: Sequence[tuple[int, str]], path: object) -> None:
        try:
            encoded = self.engine.encode([text for _, text in texts])
        except EncodingError as error:
            line, _ = texts[error.document]
            raise error.at(f"{path}:{line}") from error
        ends = np.cumsum(encoded.lengths, dtype=np.int64)
        found = self.vocabulary.words(encoded.ids, np.concatenate([[0], ends]))
        counts, letters = found.counts, self.vocabulary.letters(found)
        begins = np.cumsum(counts) - counts
        numbers = (np.arange(counts.sum()) - np.repeat(begins, counts)).astype(np.uint64)
        sums = np.concatenate(
            [np.zeros(1, np.uint64), np.cumsum(mix(found.hashes + numbers * STEP))]
        )
        new = np.zeros(len(texts), np.bool_)
        for number, key in enumerate((sums[begins + counts] - sums[begins]).tolist()):
            new[number] = key not in self._seen
            self._seen.add(key)
        kept = np.repeat(new, counts)
        self._parts.append((found.hashes[kept], letters[kept], counts[new]))
        self.places += [(file, texts[number][0]) for number in np.flatnonzero(new).tolist()]
        self.copies += len(texts) - int(new.sum())

    def grams(self, size: int) -> EvaluationGrams:
        """Return the n-grams of all texts."""
        hashes, letters, counts = map(np.concatenate, zip(*self._parts, strict=True))
        return EvaluationGrams.of(hashes, letters, counts, size)


def facts_of(source: TextSource, grams: EvaluationGrams) -> dict[str, int]:
    """Return counts: texts, those that are there twice, n-grams, and texts that are too short to be
    looked for.
    """
    short = int((grams.totals < LEAST_LETTERS).sum())
    return {
        "texts": len(source.places),
        "copies": source.copies,
        "ngrams": len(grams.grams),
        "too_short": short,
    }


class Match(NamedTuple):
    """A document that holds a text of an evaluation, or much of it."""

    document: int
    text: int
    """Number of the text."""
    share: float
    """Of the text's letters."""
    words: str
    """The first words of the place."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is looked for."""

    vocabulary: WordVocabulary
    grams: EvaluationGrams

    def save(self, folder: Path) -> None:
        """Write all arrays to a folder."""
        for one in (self.vocabulary, self.grams):
            for own in fields(one):
                np.save(folder / f"{own.name}.npy", getattr(one, own.name))

    @staticmethod
    def load(folder: Path) -> Evaluation:
        """Map the arrays that `save` wrote."""

        def mapped(kind: type[Any]) -> Any:
            return kind(
                *(
                    np.load(folder / f"{own.name}.npy", "r", allow_pickle=False)
                    for own in fields(kind)
                )
            )

        return Evaluation(mapped(WordVocabulary), mapped(EvaluationGrams))

    def search(
        self, dataset: MMapIndexedDataset, first: int, count: int, threshold: float
    ) -> Iterator[Match]:
        """Yield the matches of some documents of a dataset, by document; the first of them is
        `first`.
        """
        begins = token_starts(dataset, dataset.document_indices[first : first + count + 1])
        found: dict[int, dict[int, Match]] = {}
        chunks = list(_chunks(begins))
        for some in dataset.spans(len(chunks), 1):
            for low, high, begin, end in chunks[some]:
                for match in self._in_chunk(dataset, begins, (low, high, begin, end), threshold):
                    known = found.setdefault(match.document, {})
                    if match.text not in known or known[match.text].share < match.share:
                        known[match.text] = match
        for document, matches in sorted(found.items()):
            best = sorted(matches.values(), key=lambda one: (-one.share, one.text))[
                :MOST_OF_A_DOCUMENT
            ]
            yield from (match._replace(document=first + document) for match in best)

    def _in_chunk(
        self,
        dataset: MMapIndexedDataset,
        begins: Ints,
        chunk: tuple[int, int, int, int],
        threshold: float,
    ) -> Iterator[Match]:
        low, high, begin, end = chunk
        span = np.array([[begin], [end]]) * dataset.dtype.itemsize
        tokens = dataset.tokens_for(*span)[begin:end]
        words = self.vocabulary.words(tokens, np.clip(begins[low : high + 1], begin, end) - begin)
        for document, text, share, at, stop in zip(
            *map(np.ndarray.tolist, self.grams.search(words, threshold)), strict=True
        ):
            shown = self.vocabulary.text(words, at, min(stop, at + _SHOWN_WORDS))
            yield Match(low + document, text, round(share, 4), shown)


def _chunks(begins: Ints) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first document, end of documents, first token, end of tokens) of chunks; of long
    documents their parts.
    """
    low = 0
    while low < len(begins) - 1:
        high = int(np.searchsorted(begins, begins[low] + CHUNK_TOKENS, side="right")) - 1
        high = min(max(high, low + 1), len(begins) - 1)
        begin, end = int(begins[low]), int(begins[high])
        while end - begin > CHUNK_TOKENS:
            yield low, high, begin, begin + CHUNK_TOKENS
            begin += CHUNK_TOKENS - OVERLAP_TOKENS
        yield low, high, begin, end
        low = high
