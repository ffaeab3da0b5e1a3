"""Find evaluation texts in documents by the n-grams of words that both have.

An n-gram is a run of n consecutive words. The index stores the hash of every n-gram of the
evaluation texts, and where it occurs in them. Documents are searched in four steps, here with n = 3
and the evaluation text "how tired are their seven donkeys":

1. Hash all n-grams of the document, and look each one up. In "ask how tired are their nine donkeys"
   two are known: "how tired are" and "tired are their".
2. Pair each of them with all its occurrences in evaluation texts.
3. Form groups: n-grams of one text that are near one another in the document. A group is a passage
   that may be a copy of the text.
4. Compute which share of the text's letters the n-grams of a group cover, counting overlaps once.
   Here it is "how tired are their", 16 of 28 letters: 57 %. A passage matches if this share reaches
   the threshold, and if the letters are so many that chance is ruled out (`MIN_LETTERS`).

Nearly all n-grams of documents are unknown, so most of the time goes into step 1. A bitmap, which
fits into a processor's cache, rules most of them out before the sorted hashes are searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import U64
from nanoset_core.stages.contamination.array_files import load_array, save_arrays
from nanoset_core.stages.contamination.words import DocumentWords

MAX_OCCURRENCES = 64
"""An n-gram that occurs more often in evaluation texts is a phrase that proves nothing, such as
"which of the following is"; it is ignored.
"""
MIN_LETTERS = 32
"""Fewer letters and digits in common may be chance. Shorter texts cannot be found."""
_FACTOR = 0xA24BAED4963EE407
"""The factor of the polynomial in `hash_ngrams`: an odd number whose bits look random."""
_FILTER_BITS_PER_NGRAM = 16
"""Bits of the bitmap for each n-gram, so that at most one of 16 unknown hashes passes."""


def hash_ngrams(words: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Return the hash of every run of `size` consecutive words.

    The hash of the words w[0], …, w[size - 1] is the polynomial

        w[0] * FACTOR**(size - 1) + … + w[size - 2] * FACTOR + w[size - 1]    modulo 2**64

    Hashes of short runs are combined into those of longer ones: a run of a words followed by one of
    b words has the hash `hash_a * FACTOR**b + hash_b`. So runs of 1, 2, 4, 8, … words are built by
    doubling, and those that the binary digits of `size` name are appended: for 5 = 1 + 4, a run of
    one word and a run of four.

    Args:
        words: Hash of each word, shape (n_words,).
        size: Words of an n-gram.

    Returns:
        Shape (n_words - size + 1,), or empty if there are fewer words. Entry k is the hash of the
        words from k to k + size - 1.
    """
    if len(words) < size:
        return np.empty(0, np.uint64)

    hashes = np.zeros(len(words), np.uint64)  # of the first `n_hashed` words of each n-gram
    n_hashed = 0
    run_hashes = words  # entry k: hash of the `run_length` words from k on
    run_length = 1
    while True:
        factor = U64(pow(_FACTOR, run_length, 1 << 64))
        if size & run_length:
            n_hashes = len(words) - n_hashed - run_length + 1
            hashes = hashes[:n_hashes] * factor + run_hashes[n_hashed:]
            n_hashed += run_length
        if n_hashed == size:
            return hashes
        run_hashes = run_hashes[:-run_length] * factor + run_hashes[run_length:]
        run_length *= 2


class TextMatches(NamedTuple):
    """Passages of documents that match evaluation texts.

    Sorted by document; the matches of a document are sorted by their share, the greatest first.
    """

    documents: NDArray[np.int64]
    """Document of each match; shape (n_matches,)."""
    texts: NDArray[np.int64]
    """Number of the evaluation text; shape (n_matches,)."""
    shares: NDArray[np.float64]
    """Share of the text's letters in n-grams of the passage, 0 to 1; shape (n_matches,)."""
    starts: NDArray[np.int64]
    """First word of the passage, counted over all documents; shape (n_matches,)."""
    stops: NDArray[np.int64]
    """Word after the last one of the passage; shape (n_matches,)."""


class _Hits(NamedTuple):
    """n-grams of documents that are in the index."""

    words: NDArray[np.int64]
    """First word of each n-gram, counted over all documents; shape (n_hits,)."""
    ngrams: NDArray[np.int64]
    """Number of the n-gram in the index; shape (n_hits,)."""


class _Pairs(NamedTuple):
    """Known n-grams of documents, each paired with one occurrence in an evaluation text.

    All arrays have the shape (n_pairs,).
    """

    documents: NDArray[np.int64]
    texts: NDArray[np.int64]
    document_words: NDArray[np.int64]
    """First word of the n-gram in the documents."""
    text_words: NDArray[np.int64]
    """First word of the n-gram in the evaluation texts."""

    def select(self, pairs: NDArray[np.int64]) -> _Pairs:
        """Return some of the pairs, in the order of the indices."""
        return _Pairs(
            self.documents[pairs],
            self.texts[pairs],
            self.document_words[pairs],
            self.text_words[pairs],
        )


class _Groups(NamedTuple):
    """Groups of consecutive pairs: passages of documents that may be copies of a text."""

    first_pairs: NDArray[np.int64]
    """Index of each group's first pair; shape (n_groups,)."""
    last_pairs: NDArray[np.int64]
    """Index of each group's last pair; shape (n_groups,)."""
    group_of_pair: NDArray[np.int64]
    """Group of each pair, ascending; shape (n_pairs,)."""


class _HashFilter(NamedTuple):
    """A bitmap with a bit for each value of the leading bits of a hash."""

    bitmap: NDArray[np.uint8]
    """Eight bits in each byte, the lowest first."""
    shift: np.uint64
    """How far hashes are shifted to the right, so that their leading bits are left."""

    @staticmethod
    def of(hashes: NDArray[np.uint64]) -> _HashFilter:
        """Return a filter that lets all these hashes pass, and at most one of 16 other hashes.

        Args:
            hashes: The hashes, shape (n_hashes,).
        """
        # The bitmap has 2**n_bits bits, at least 16 for each hash. So at most one bit of 16 is set.
        n_bits = max(16, (_FILTER_BITS_PER_NGRAM * len(hashes)).bit_length())
        bitmap = np.zeros((1 << n_bits) // 8, np.uint8)
        shift = U64(64 - n_bits)

        # The leading n_bits of a hash are the position of its bit: byte position // 8, and in this
        # byte the bit position % 8.
        positions = hashes >> shift  # (n_hashes,)
        byte_positions = (positions >> U64(3)).astype(np.int64)
        bits_in_byte = np.uint8(1) << (positions & U64(7)).astype(np.uint8)
        np.bitwise_or.at(bitmap, byte_positions, bits_in_byte)
        return _HashFilter(bitmap, shift)

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the indices of the hashes that may be among those of the filter."""
        positions = (hashes >> self.shift).astype(np.int64)
        bits = self.bitmap[positions >> 3] >> (positions & 7).astype(np.uint8)
        return np.flatnonzero((bits & 1).view(np.bool_))


@dataclass(frozen=True)
class NgramIndex:
    """The n-grams of evaluation texts, and where they occur.

    The words of all texts are numbered in sequence.
    """

    hashes: NDArray[np.uint64]
    """Hash of each n-gram, ascending, without duplicates; shape (n_ngrams,)."""
    stops: NDArray[np.int64]
    """End of each n-gram's occurrences in the next two arrays; shape (n_ngrams,)."""
    first_words: NDArray[np.int32]
    """Number of each occurrence's first word; shape (n_occurrences,)."""
    texts: NDArray[np.int32]
    """Text of each occurrence; shape (n_occurrences,)."""
    text_starts: NDArray[np.int64]
    """Number of each text's first word, and at the end n_words; shape (n_texts + 1,)."""
    letters_before: NDArray[np.int64]
    """Letters before each word, and at the end all letters; shape (n_words + 1,).

    Only the letters of words that are in an indexed n-gram count.
    """
    size: int
    """Words of an n-gram."""

    @staticmethod
    def of(
        words: NDArray[np.uint64],
        letter_counts: NDArray[np.int64],
        words_per_text: NDArray[np.int64],
        size: int,
    ) -> NgramIndex:
        """Index the n-grams of texts.

        Args:
            words: Hash of each word of all texts, shape (n_words,).
            letter_counts: Bytes of each word, shape (n_words,).
            words_per_text: Number of words of each text, shape (n_texts,).
            size: Words of an n-gram.
        """
        text_numbers = np.arange(len(words_per_text), dtype=np.int32)
        text_of_word = np.repeat(text_numbers, words_per_text)  # (n_words,)
        hashes = hash_ngrams(words, size)  # (n_words - size + 1,)

        # Keep the n-grams whose first and last word belong to the same text.
        is_in_one_text = text_of_word[: len(hashes)] == text_of_word[size - 1 :]
        first_words = np.flatnonzero(is_in_one_text)  # (n_occurrences,)

        # Sort by hash, so that the occurrences of an n-gram are neighbours.
        first_words = first_words[np.argsort(hashes[first_words], kind="stable")]
        unique_hashes, n_occurrences = np.unique(hashes[first_words], return_counts=True)

        # An n-gram that occurs very often proves nothing: leave it out.
        is_rare = n_occurrences <= MAX_OCCURRENCES
        first_words = first_words[np.repeat(is_rare, n_occurrences)]
        unique_hashes = unique_hashes[is_rare]
        stops = np.cumsum(n_occurrences[is_rare])  # (n_ngrams,)

        # Letters of words outside all n-grams cannot be found, and do not count.
        is_indexed = _is_covered(first_words, size, len(words))
        indexed_letters = np.where(is_indexed, letter_counts, 0)
        return NgramIndex(
            hashes=unique_hashes,
            stops=stops,
            first_words=first_words.astype(np.int32),
            texts=text_of_word[first_words],
            text_starts=np.concatenate([[0], np.cumsum(words_per_text)]),
            letters_before=np.concatenate([[0], np.cumsum(indexed_letters)]),
            size=size,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays to a folder."""
        # The names of the files differ from those of the fields, and must not change: outputs of
        # earlier versions are loaded by these names.
        arrays: dict[str, NDArray[Any]] = {
            "grams": self.hashes,
            "gram_ends": self.stops,
            "places": self.first_words,
            "texts": self.texts,
            "text_begins": self.text_starts,
            "letters": self.letters_before,
            "size": np.array([self.size]),
        }
        save_arrays(folder, arrays)

    @staticmethod
    def load(folder: Path) -> NgramIndex:
        """Map the arrays that `save` wrote to a folder."""
        return NgramIndex(
            hashes=load_array(folder, "grams"),
            stops=load_array(folder, "gram_ends"),
            first_words=load_array(folder, "places"),
            texts=load_array(folder, "texts"),
            text_starts=load_array(folder, "text_begins"),
            letters_before=load_array(folder, "letters"),
            size=int(load_array(folder, "size")[0]),
        )

    @cached_property
    def letters_per_text(self) -> NDArray[np.int64]:
        """Letters of each text that can be found; int64, shape (n_texts,)."""
        letters: NDArray[np.int64] = np.diff(self.letters_before[self.text_starts])
        return letters

    @cached_property
    def _filter(self) -> _HashFilter:
        """A filter that lets all indexed n-grams pass."""
        return _HashFilter.of(self.hashes)

    def search(self, words: DocumentWords, threshold: float) -> TextMatches:
        """Return the passages of documents that match an evaluation text.

        Args:
            words: The words of the documents.
            threshold: Share of a text's letters, 0 to 1, that a passage must have in common with
                it.
        """
        # Pair known n-grams of documents with their occurrences in texts. Pairs of one text that
        # are near one another in a document form a group: a passage that may be a copy of the text.
        pairs = self._pairs(words, self._hits(words))
        groups = self._groups(pairs)
        texts = pairs.texts[groups.first_pairs]  # (n_groups,)
        shares = self._shares(pairs.text_words, groups.group_of_pair, texts, threshold)

        # A match is a group that covers enough of its text.
        matching_groups = np.flatnonzero(shares >= threshold)  # (n_matches,)
        first_pairs = groups.first_pairs[matching_groups]
        last_pairs = groups.last_pairs[matching_groups]
        shares = shares[matching_groups]

        # Sort by document, then by share from the greatest on, then by text.
        order = np.lexsort((pairs.texts[first_pairs], -shares, pairs.documents[first_pairs]))
        first_pairs = first_pairs[order]
        last_pairs = last_pairs[order]
        return TextMatches(
            documents=pairs.documents[first_pairs],
            texts=pairs.texts[first_pairs],
            shares=shares[order],
            starts=pairs.document_words[first_pairs],
            stops=pairs.document_words[last_pairs] + self.size,
        )

    def _hits(self, words: DocumentWords) -> _Hits:
        """Return the n-grams of documents that also occur in an evaluation text.

        Args:
            words: The words of the documents.
        """
        if not len(self.hashes):
            return _Hits(np.empty(0, np.int64), np.empty(0, np.int64))

        # A bitmap rules most n-grams out, which is faster than searching for each of them.
        hashes = hash_ngrams(words.hashes, self.size)
        candidates = self._filter.candidates(hashes)  # (n_candidates,) first word of each
        hashes = hashes[candidates]

        # Search in ascending order, which is faster, since it reads the index from start to end.
        # A hash that is greater than all in the index is compared with the last one below.
        order = np.argsort(hashes)
        positions = np.searchsorted(self.hashes, hashes[order])
        ngrams = np.empty(len(candidates), np.int64)  # (n_candidates,) index of the n-gram
        ngrams[order] = np.minimum(positions, len(self.hashes) - 1)

        # The filter lets some hashes pass that are not in the index.
        is_known = self.hashes[ngrams] == hashes
        candidates = candidates[is_known]
        ngrams = ngrams[is_known]

        # Leave out n-grams that start in one document and end in another.
        last_words = candidates + self.size - 1
        is_in_one_document = words.documents(candidates) == words.documents(last_words)
        return _Hits(candidates[is_in_one_document], ngrams[is_in_one_document])

    def _pairs(self, words: DocumentWords, hits: _Hits) -> _Pairs:
        """Pair known n-grams of documents with all their occurrences in evaluation texts.

        Args:
            words: The words of the documents.
            hits: The n-grams of documents that are in the index.

        Returns:
            The pairs, sorted by document, text and word.
        """
        # The occurrences of an n-gram in texts are consecutive entries of `texts` and
        # `first_words`: from the end of the occurrences of the n-gram before it to its own end.
        starts = np.where(hits.ngrams > 0, self.stops[hits.ngrams - 1], 0)  # (n_hits,)
        n_occurrences = self.stops[hits.ngrams] - starts  # (n_hits,)
        occurrences = positions_in(starts, n_occurrences)  # (n_pairs,)

        pairs = _Pairs(
            documents=np.repeat(words.documents(hits.words), n_occurrences),
            texts=self.texts[occurrences].astype(np.int64),
            document_words=np.repeat(hits.words, n_occurrences),
            text_words=self.first_words[occurrences].astype(np.int64),
        )
        order = np.lexsort((pairs.document_words, pairs.texts, pairs.documents))
        return pairs.select(order)

    def _groups(self, pairs: _Pairs) -> _Groups:
        """Divide pairs into groups: passages of documents that may be copies of a text.

        A new group starts where the document or the text changes, and after a gap of more words
        than the text has: what is further away is not the same copy of the text.

        Args:
            pairs: n-grams of documents, each with an occurrence in a text; sorted by document, text
                and word.
        """
        words_per_text = np.diff(self.text_starts)
        gaps = np.diff(pairs.document_words)  # (n_pairs - 1,)
        has_other_document = pairs.documents[1:] != pairs.documents[:-1]
        has_other_text = pairs.texts[1:] != pairs.texts[:-1]
        is_far = gaps > words_per_text[pairs.texts[1:]]

        is_first = np.ones(len(pairs.texts), np.bool_)  # (n_pairs,)
        is_first[1:] = has_other_document | has_other_text | is_far
        first_pairs = np.flatnonzero(is_first)
        stop_pairs = np.append(first_pairs[1:], len(pairs.texts))  # (n_groups,)
        return _Groups(
            first_pairs=first_pairs,
            last_pairs=stop_pairs - 1,
            group_of_pair=np.cumsum(is_first) - 1,
        )

    def _shares(
        self,
        text_words: NDArray[np.int64],
        groups: NDArray[np.int64],
        texts: NDArray[np.int64],
        threshold: float,
    ) -> NDArray[np.float64]:
        """Return which share of its text's letters each group of n-grams covers.

        Args:
            text_words: First word of each n-gram in the evaluation texts; shape (n_pairs,).
            groups: Group of each n-gram, ascending; shape (n_pairs,).
            texts: Evaluation text of each group; shape (n_groups,).
            threshold: The share that is needed.

        Returns:
            float64, shape (n_groups,); 0 for groups that cover less than is needed.
        """
        letters = self.letters_per_text[texts]  # (n_groups,)
        needed = np.maximum(threshold * letters, MIN_LETTERS)  # (n_groups,)

        # Rule most groups out by an upper bound: all letters of their n-grams, overlaps included.
        ngram_letters = self._letters_between(text_words, text_words + self.size)
        upper_bounds = np.bincount(groups, ngram_letters, minlength=len(texts))
        may_match = upper_bounds >= needed  # (n_groups,)
        remaining_pairs = np.flatnonzero(may_match[groups])
        text_words = text_words[remaining_pairs]
        groups = groups[remaining_pairs]

        # Sort each group by the place in the text, so that n-grams that overlap are neighbours.
        order = np.lexsort((text_words, groups))
        text_words = text_words[order]
        groups = groups[order]

        # Let each n-gram end where the next one of its group starts, to count overlaps once.
        stops = text_words + self.size  # (n_remaining_pairs,)
        has_next_in_group = groups[1:] == groups[:-1]
        stops_before_next = np.minimum(stops[:-1], text_words[1:])
        stops[:-1] = np.where(has_next_in_group, stops_before_next, stops[:-1])

        # Add up the letters of each group.
        new_letters = self._letters_between(text_words, stops)
        covered_letters = np.bincount(groups, new_letters, minlength=len(texts))  # (n_groups,)
        shares = covered_letters / np.maximum(letters, 1)  # a text without letters gets 0
        return np.where(covered_letters >= needed, shares, 0.0)

    def _letters_between(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of letters in ranges [start, stop) of words of the evaluation texts."""
        return self.letters_before[stops] - self.letters_before[starts]


def _is_covered(first_words: NDArray[np.int64], size: int, n_words: int) -> NDArray[np.bool_]:
    """Return whether each word is in one of some n-grams; bool, shape (n_words,).

    Args:
        first_words: First word of each n-gram, shape (n_ngrams,).
        size: Words of an n-gram.
        n_words: Number of all words.
    """
    # Count the n-grams that have started and not stopped at each word.
    started = np.bincount(first_words, minlength=n_words + 1)
    stopped = np.bincount(first_words + size, minlength=n_words + 1)
    n_covering = np.cumsum(started - stopped)[:n_words]
    return n_covering > 0
