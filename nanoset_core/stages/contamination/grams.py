"""n-grams of the words of evaluation texts, and the documents in which enough of one text lies
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import U64
from nanoset_core.stages.contamination.words import Found
from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints, Words

MOST_TEXTS = 64
"""An n-gram of more evaluation texts than these is a phrase of all of them, and counts for none."""
LEAST_LETTERS = 32
"""Bytes of letters and digits that are no chance: of a match, and of a text that is looked for."""
_FACTOR = 0xA24BAED4963EE407
_BITS_PER_GRAM = 16


def grams_of(words: Words, size: int) -> Words:
    """Return the hash of the words [k, k + size) for each k, uint64, out of those of half as many
    words, and so on.
    """
    count = len(words) - size + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    summed, have, power, width = np.zeros(len(words), np.uint64), 0, words, 1
    while True:
        factor = U64(pow(_FACTOR, width, 1 << 64))
        if size & width:
            summed = summed[: len(words) - have - width + 1] * factor + power[have:]
            have += width
        if have == size:
            return summed
        power = power[:-width] * factor + power[width:]
        width *= 2


class Matches(NamedTuple):
    """Places of documents where an evaluation text lies, by document, the most of a text first."""

    documents: Ints
    texts: Ints
    """Number of the evaluation text."""
    shares: NDArray[np.float64]
    """Of the text's letters, that lie in n-grams found there."""
    begins: Ints
    """First word of the place, among all words."""
    ends: Ints
    """Its end."""


@dataclass(frozen=True)
class EvaluationGrams:
    """The n-grams of evaluation texts."""

    grams: Words
    """Hashes, ascending, each once, shape (n-grams,)."""
    gram_ends: Ints
    """Where the places of each n-gram end, shape (n-grams,)."""
    places: NDArray[np.int32]
    """Words, among those of all texts, at which each n-gram begins, shape (places,)."""
    texts: NDArray[np.int32]
    """Text of each place, shape (places,)."""
    text_begins: Ints
    """First word of each text, with the end of the last one, shape (texts + 1,)."""
    letters: Ints
    """Letters before each word, of words that are in an n-gram, shape (words + 1,)."""
    size: Ints
    """Words of an n-gram, shape (1,)."""

    @staticmethod
    def of(words: Words, letters: Ints, lengths: Ints, size: int) -> EvaluationGrams:
        """Take the n-grams of texts: hashes and letters of all their words, and the number of words
        of each text.
        """
        texts = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        hashes = grams_of(words, size)
        starts = np.flatnonzero(texts[: len(hashes)] == texts[size - 1 :])
        places = starts[np.argsort(hashes[starts], kind="stable")]
        hashes = hashes[places]
        firsts = np.flatnonzero(
            np.concatenate([[True] * (len(hashes) > 0), hashes[1:] != hashes[:-1]])
        )
        counts = np.diff(firsts, append=len(hashes))
        telling = counts <= MOST_TEXTS
        places, grams, ends = (
            places[np.repeat(telling, counts)],
            hashes[firsts[telling]],
            np.cumsum(counts[telling]),
        )
        opened = np.bincount(places, minlength=len(words) + size) - np.bincount(
            places + size, minlength=len(words) + size
        )
        counted = np.where(np.cumsum(opened)[: len(words)] > 0, letters, 0)
        begins, before = (np.concatenate([[0], np.cumsum(one)]) for one in (lengths, counted))
        return EvaluationGrams(
            grams, ends, places.astype(np.int32), texts[places], begins, before, np.array([size])
        )

    @cached_property
    def totals(self) -> Ints:
        """Letters of each text that can be found, shape (texts,)."""
        return np.diff(self.letters[self.text_begins])

    @cached_property
    def _filter(self) -> tuple[Bytes, np.uint64]:
        """A bit for each of the first bits of hashes; and how far hashes are shifted for that."""
        bits = max(16, (_BITS_PER_GRAM * len(self.grams)).bit_length())
        seen, shift = np.zeros(1 << (bits - 3), np.uint8), U64(64 - bits)
        at = self.grams >> shift
        np.bitwise_or.at(
            seen,
            (at >> U64(3)).astype(np.int64),
            U64(1).astype(np.uint8) << (at & U64(7)).astype(np.uint8),
        )
        return seen, shift

    def hits(self, found: Found) -> tuple[Ints, Ints]:
        """Return (word at which an n-gram of a document begins, number of the n-gram) of all that
        texts have.
        """
        size, (seen, shift) = int(self.size[0]), self._filter
        hashes = grams_of(found.hashes, size)
        at = (hashes >> shift).astype(np.int64)
        maybe = np.flatnonzero(((seen[at >> 3] >> (at & 7).astype(np.uint8)) & 1).view(np.bool_))
        order = np.argsort(hashes[maybe])  # so that neighbours are looked up one after the other
        wanted, places = hashes[maybe[order]], np.empty(len(maybe), np.int64)
        places[order] = np.minimum(np.searchsorted(self.grams, wanted), max(len(self.grams) - 1, 0))
        is_hit: Bools = (
            self.grams[places] == hashes[maybe]
            if len(self.grams)
            else np.zeros(len(maybe), np.bool_)
        )
        maybe, places = maybe[is_hit], places[is_hit]
        inside = found.documents(maybe) == found.documents(maybe + size - 1)
        return maybe[inside], places[inside]

    def search(self, found: Found, threshold: float) -> Matches:
        """Return where at least this share of a text's letters lies in n-grams that are near one
        another.

        They are near where no more words are between the beginnings of one and the next than the
        text has.
        """
        at, grams = self.hits(found)
        begins = np.where(grams > 0, self.gram_ends[grams - 1], 0)
        counts = self.gram_ends[grams] - begins
        postings = positions_in(begins, counts)
        documents, at = np.repeat(found.documents(at), counts), np.repeat(at, counts)
        texts, places = (
            self.texts[postings].astype(np.int64),
            self.places[postings].astype(np.int64),
        )
        order = np.lexsort((at, texts, documents))
        at, texts, documents, places = at[order], texts[order], documents[order], places[order]
        words = (self.text_begins[texts + 1] - self.text_begins[texts])[1:]
        opens = np.ones(len(at), np.bool_)
        opens[1:] = (
            (texts[1:] != texts[:-1]) | (documents[1:] != documents[:-1]) | (np.diff(at) > words)
        )
        firsts = np.flatnonzero(opens)
        lasts = np.append(firsts[1:], len(at)) - 1
        shares = self._shares(places, np.cumsum(opens) - 1, texts[firsts], threshold)
        won = np.flatnonzero(shares >= threshold)
        firsts, lasts, shares = firsts[won], lasts[won], shares[won]
        order = np.lexsort((texts[firsts], -shares, documents[firsts]))
        firsts, lasts = firsts[order], lasts[order]
        return Matches(
            documents[firsts],
            texts[firsts],
            shares[order],
            at[firsts],
            at[lasts] + int(self.size[0]),
        )

    def _shares(
        self, places: Ints, groups: Ints, texts: Ints, threshold: float
    ) -> NDArray[np.float64]:
        """Return the share of its text that each group of n-grams covers; 0 where that is surely
        not enough.
        """
        size, totals = int(self.size[0]), self.totals[texts]
        needed = np.maximum(threshold * totals, LEAST_LETTERS)
        most = np.bincount(groups, self.letters[places + size] - self.letters[places], len(texts))
        kept = (most >= needed)[groups]
        order = np.lexsort((places[kept], groups[kept]))
        groups, places = groups[kept][order], places[kept][order]
        ends = places + size
        same = groups[1:] == groups[:-1]
        ends[:-1][same] = np.minimum(ends[:-1], places[1:])[same]
        covered = np.bincount(groups, self.letters[ends] - self.letters[places], len(texts))
        return np.where(covered >= needed, covered / np.maximum(totals, 1), 0.0)
