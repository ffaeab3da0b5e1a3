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

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import U64
from nanoset_core.stages.contamination.array_files import load_array, save_arrays
from nanoset_core.stages.contamination.words import DocumentWords, running_sums

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
_MIN_LEADING_BITS = 16
"""A bitmap has at least 2**16 bits, however few n-grams there are."""


def hash_ngrams(words: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Return the hash of every run of `size` consecutive words.

    The hash of the words w[0], …, w[size - 1] is the polynomial

        w[0] * FACTOR**(size - 1) + … + w[size - 2] * FACTOR + w[size - 1]    modulo 2**64

    Args:
        words: Hash of each word, shape (n_words,).
        size: Words of an n-gram.

    Returns:
        Hash of the words from k to k + size - 1 for each k, shape (n_words - size + 1,); empty if
        there are fewer words.
    """
    if len(words) < size:
        return np.empty(0, np.uint64)
    if size == 1:
        return words

    # Join each run from two of half its length, and one word more if its length is odd: a run of 5
    # words from 2, 2 and 1. So runs of 64 words take 6 steps instead of 63.
    half_size = size // 2
    half_hashes = hash_ngrams(words, half_size)
    hashes = _joined_runs(half_hashes, half_size, half_hashes, half_size)
    if size % 2 == 1:
        hashes = _joined_runs(hashes, size - 1, words, 1)
    return hashes


def _joined_runs(
    first_hashes: NDArray[np.uint64],
    first_length: int,
    second_hashes: NDArray[np.uint64],
    second_length: int,
) -> NDArray[np.uint64]:
    """Return the hashes of runs of words that each consist of two shorter runs.

    For example, the run "how tired are" of 3 words from the runs "how tired" and "are". A run of a
    words followed by one of b words has the hash `hash_a * FACTOR**b + hash_b`.

    Args:
        first_hashes: Hash of the first run from each word on, shape (n_first,).
        first_length: Words of the first run, a.
        second_hashes: Hash of the second run from each word on, shape (n_second,).
        second_length: Words of the second run, b.

    Returns:
        Hash of both runs together from each word on, modulo 2**64, shape (n_second - a,).
    """
    # The second run starts a words after the first one. Of the words w x y z, runs of 2 words are
    # wx xy yz. They are followed by the words y and z, so drop the runs w and x, and yz.
    second_hashes = second_hashes[first_length:]
    first_hashes = first_hashes[: len(second_hashes)]
    factor = U64(pow(_FACTOR, second_length, 1 << 64))
    return first_hashes * factor + second_hashes


class TextMatch(NamedTuple):
    """A passage of a document that matches an evaluation text."""

    document: int
    """Number of the document."""
    text: int
    """Number of the evaluation text."""
    share: float
    """Share of the text's letters in n-grams of the passage, 0 to 1."""
    start: int
    """First word of the passage, counted over all documents."""
    stop: int
    """Word after the last one of the passage."""


class TextMatches(NamedTuple):
    """Passages of documents that match evaluation texts, with the fields of `TextMatch`.

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

    def each(self) -> Iterator[TextMatch]:
        """Yield the matches one by one."""
        columns = [column.tolist() for column in self]
        for values in zip(*columns, strict=True):
            yield TextMatch(*values)

    def sorted(self) -> TextMatches:
        """Return the matches by document, then by share from the greatest on, then by text."""
        order = np.lexsort((self.texts, -self.shares, self.documents))
        return TextMatches(
            documents=self.documents[order],
            texts=self.texts[order],
            shares=self.shares[order],
            starts=self.starts[order],
            stops=self.stops[order],
        )


class _KnownNgrams(NamedTuple):
    """The n-grams of documents that are also in evaluation texts.

    Both arrays have the shape (n_known,).
    """

    first_words: NDArray[np.int64]
    """First word of each n-gram, counted over all documents."""
    ngrams: NDArray[np.int64]
    """Number of the n-gram in the index."""


class _Pairs(NamedTuple):
    """Known n-grams of documents, each paired with one occurrence in an evaluation text.

    All arrays have the shape (n_pairs,).
    """

    documents: NDArray[np.int64]
    """Document of the n-gram."""
    texts: NDArray[np.int64]
    """Evaluation text of the occurrence."""
    document_words: NDArray[np.int64]
    """First word of the n-gram in the documents."""
    text_words: NDArray[np.int64]
    """First word of the n-gram in the evaluation texts."""

    def select(self, pairs: NDArray[np.int64]) -> _Pairs:
        """Return some of the pairs.

        Args:
            pairs: Indices of the pairs, in the order in which they are returned; shape
                (n_selected,).
        """
        return _Pairs(*[column[pairs] for column in self])

    def sorted(self) -> _Pairs:
        """Return the pairs by document, then by text, then by the word of the document."""
        return self.select(np.lexsort((self.document_words, self.texts, self.documents)))


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
        """Return a filter that lets all these hashes pass, and few others.

        It is a bitmap of at least 16 bits for each hash, in which a bit is set for each hash. So at
        most one in 16 bits is set, and at most that share of other hashes passes.

        For example, with three leading bits, the hash 101… sets bit 5 of a bitmap of 8 bits.

        Args:
            hashes: The hashes, uint64, shape (n_hashes,).
        """
        # The first n bits of a hash are its position in the bitmap, which has 2**n bits.
        min_bitmap_bits = _FILTER_BITS_PER_NGRAM * len(hashes)
        n = max(min_bitmap_bits.bit_length(), _MIN_LEADING_BITS)  # 2**n > min_bitmap_bits
        bitmap = np.zeros(2**n // 8, np.uint8)
        shift = U64(64 - n)
        positions = (hashes >> shift).astype(np.int64)  # (n_hashes,)

        # Set these bits. Position 13 is bit 5 of byte 1, since a byte has 8 positions.
        bytes_of_bitmap = positions // 8
        bits_of_byte = (positions % 8).astype(np.uint8)
        # Unlike |=, this sets all bits of a byte that occurs several times.
        np.bitwise_or.at(bitmap, bytes_of_bitmap, np.uint8(1) << bits_of_byte)
        return _HashFilter(bitmap, shift)

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the indices of the hashes that may be among those of the filter.

        Args:
            hashes: The hashes to look up, uint64, shape (n_hashes,).

        Returns:
            Indices of all hashes that are in the filter, and of few others; int64, ascending.
        """
        # The first bits of a hash are its position in the bitmap. This runs for every n-gram of all
        # documents, so it divides by 8 with bit operations: x >> 3 is x // 8, and x & 7 is x % 8.
        positions = (hashes >> self.shift).astype(np.int64)  # (n_hashes,)
        bytes_of_bitmap = self.bitmap[positions >> 3]
        bits = (bytes_of_bitmap >> (positions & 7).astype(np.uint8)) & 1  # (n_hashes,) 0 or 1
        return np.flatnonzero(bits.view(np.bool_))


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
    words_per_ngram: int
    """Number of words in an n-gram."""

    @staticmethod
    def of(
        words: NDArray[np.uint64],
        letter_counts: NDArray[np.int64],
        words_per_text: NDArray[np.int64],
        size: int,
    ) -> NgramIndex:
        """Index the n-grams of texts: runs of `size` consecutive words.

        For example, the 3-grams of "how tired are their donkeys" are "how tired are", "tired are
        their" and "are their donkeys".

        Args:
            words: Hash of each word of all texts, shape (n_words,).
            letter_counts: Bytes of each word, shape (n_words,).
            words_per_text: Number of words of each text, shape (n_texts,).
            size: Words of an n-gram.

        Returns:
            The index. Runs that occur very often are not in it.
        """
        text_numbers = np.arange(len(words_per_text), dtype=np.int32)
        text_of_word = np.repeat(text_numbers, words_per_text)  # (n_words,)
        occurrences = _ngrams_of_texts(words, text_of_word, size)

        # A text is found by the letters of its n-grams that are in a document. A word in none of
        # these n-grams can never be found, so its letters do not count.
        is_indexed = _is_covered(occurrences.first_words, size, len(words))
        indexed_letters = np.where(is_indexed, letter_counts, 0)
        return NgramIndex(
            hashes=occurrences.hashes,
            stops=np.cumsum(occurrences.counts),
            first_words=occurrences.first_words.astype(np.int32),
            texts=text_of_word[occurrences.first_words],
            text_starts=running_sums(words_per_text),
            letters_before=running_sums(indexed_letters),
            words_per_ngram=size,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays to a folder, from which `load` reads them.

        Args:
            folder: An existing folder.
        """
        # The names of the files differ from those of the fields, and must not change: outputs of
        # earlier versions are loaded by these names.
        arrays: dict[str, NDArray[Any]] = {
            "grams": self.hashes,
            "gram_ends": self.stops,
            "places": self.first_words,
            "texts": self.texts,
            "text_begins": self.text_starts,
            "letters": self.letters_before,
            "size": np.array([self.words_per_ngram]),
        }
        save_arrays(folder, arrays)

    @staticmethod
    def load(folder: Path) -> NgramIndex:
        """Map the arrays that `save` wrote to a folder into memory.

        Args:
            folder: The folder.
        """
        return NgramIndex(
            hashes=load_array(folder, "grams"),
            stops=load_array(folder, "gram_ends"),
            first_words=load_array(folder, "places"),
            texts=load_array(folder, "texts"),
            text_starts=load_array(folder, "text_begins"),
            letters_before=load_array(folder, "letters"),
            words_per_ngram=int(load_array(folder, "size")[0]),
        )

    @cached_property
    def letters_per_text(self) -> NDArray[np.int64]:
        """Letters of each text that can be found; int64, shape (n_texts,)."""
        letters: NDArray[np.int64] = np.diff(self.letters_before[self.text_starts])
        return letters

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Start of each n-gram's occurrences, whose end is in `stops`; shape (n_ngrams,)."""
        return np.concatenate([[0], self.stops[:-1]])

    @cached_property
    def _filter(self) -> _HashFilter:
        """A filter that lets all indexed n-grams pass."""
        return _HashFilter.of(self.hashes)

    def search(self, words: DocumentWords, threshold: float) -> TextMatches:
        """Return the passages of documents that match an evaluation text.

        For example, the passage "how tired are their" matches the text "how tired are their seven
        donkeys" by 57 %: it has 16 of its 28 letters.

        Args:
            words: The words of the documents.
            threshold: Share of a text's letters, 0 to 1, that a passage must have in common with
                it.
        """
        # Find runs of words that a document and a text have in common. Pair each place where such a
        # run is in a document with each place where it is in a text.
        known_ngrams = self._known_ngrams(words)
        pairs = self._pairs(words, known_ngrams)

        # Pairs of one text that are near one another in a document form a *group*: a passage that
        # may be a copy of the text. A group that covers enough of its text is a match.
        groups = self._groups(pairs)
        shares = self._shares(pairs, groups, threshold)  # (n_groups,)
        is_match = shares >= threshold

        # A passage extends from the first run of words of its group to the end of the last one.
        first_pairs = pairs.select(groups.first_pairs[is_match])  # (n_matches,)
        last_pairs = pairs.select(groups.last_pairs[is_match])
        matches = TextMatches(
            documents=first_pairs.documents,
            texts=first_pairs.texts,
            shares=shares[is_match],
            starts=first_pairs.document_words,
            stops=last_pairs.document_words + self.words_per_ngram,
        )
        return matches.sorted()

    def _known_ngrams(self, words: DocumentWords) -> _KnownNgrams:
        """Return the n-grams of documents that are also in evaluation texts.

        Args:
            words: The words of all documents, concatenated.
        """
        if not len(self.hashes):
            return _KnownNgrams(np.empty(0, np.int64), np.empty(0, np.int64))

        # Hash the n-gram that starts at each word. A fast filter rules most of them out.
        ngram_hashes = hash_ngrams(words.hashes, self.words_per_ngram)
        first_words = self._filter.candidates(ngram_hashes)  # (n_candidates,) numbers of words

        # Look the others up: each gets the number of the same n-gram in the index, or -1.
        numbers = self._numbers_of(ngram_hashes[first_words])  # (n_candidates,)
        is_known = numbers >= 0
        known = _KnownNgrams(first_words[is_known], numbers[is_known])

        # At the end of a document, an n-gram may have the first words of the next document.
        return self._within_documents(words, known)

    def _within_documents(self, words: DocumentWords, ngrams: _KnownNgrams) -> _KnownNgrams:
        """Leave out n-grams that start in one document and end in the next.

        Args:
            words: The words of all documents, concatenated.
            ngrams: Runs of these words.
        """
        last_words = ngrams.first_words + self.words_per_ngram - 1
        is_within = words.documents(ngrams.first_words) == words.documents(last_words)
        return _KnownNgrams(ngrams.first_words[is_within], ngrams.ngrams[is_within])

    def _numbers_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the number of the n-gram with each hash, or -1 if no evaluation text has it.

        For example, if the index has the hashes 3, 5 and 9, the hashes 9 and 4 have the numbers 2
        and -1.

        Args:
            hashes: uint64, shape (n_hashes,). The index must not be empty.

        Returns:
            int64, shape (n_hashes,).
        """
        # Searching in ascending order is faster, since it reads the index from start to end.
        order = np.argsort(hashes)
        positions = np.searchsorted(self.hashes, hashes[order])

        # For an unknown hash, the position is that of a greater one, or after the end.
        numbers = np.empty(len(hashes), np.int64)
        numbers[order] = np.minimum(positions, len(self.hashes) - 1)
        return np.where(self.hashes[numbers] == hashes, numbers, -1)

    def _pairs(self, words: DocumentWords, known_ngrams: _KnownNgrams) -> _Pairs:
        """Pair the known n-grams of documents with all their occurrences in evaluation texts.

        For example, an n-gram in the documents 4 and 9 and in the texts 0 and 3 gives the four
        pairs (4, 0), (4, 3), (9, 0) and (9, 3).

        Args:
            words: The words of the documents.
            known_ngrams: The n-grams of the documents that are in the index.

        Returns:
            The pairs, sorted by document, text and word of the document.
        """
        # The index lists the occurrences in texts of n-gram 0, then of n-gram 1, and so on. If the
        # known n-grams have the occurrences 5 and 6, and 0 to 2, take 5 6 0 1 2.
        starts = self._starts[known_ngrams.ngrams]  # (n_known,) such as [5, 0]
        n_occurrences = self.stops[known_ngrams.ngrams] - starts  # such as [2, 3]
        occurrences = positions_in(starts, n_occurrences)  # (n_pairs,)

        # Repeat each n-gram of a document for each of its occurrences in texts.
        documents = words.documents(known_ngrams.first_words)  # (n_known,)
        pairs = _Pairs(
            documents=np.repeat(documents, n_occurrences),
            texts=self.texts[occurrences].astype(np.int64),
            document_words=np.repeat(known_ngrams.first_words, n_occurrences),
            text_words=self.first_words[occurrences].astype(np.int64),
        )
        return pairs.sorted()

    def _groups(self, pairs: _Pairs) -> _Groups:
        """Divide pairs into groups: passages of documents that may be copies of a text.

        Pairs belong to one group if they are in one document, in one text, and near one another.
        For example, if text 3 has 10 words, its n-grams at the words 50, 52, 57 and 900 of a
        document form two groups: 50 to 57, and 900.

        Args:
            pairs: n-grams of documents, each with an occurrence in a text; sorted by document, text
                and word.
        """
        is_first = self._begins_group(pairs)  # (n_pairs,)
        first_pairs = np.flatnonzero(is_first)  # (n_groups,)

        # A group extends to the pair before the next group.
        stop_pairs = np.append(first_pairs[1:], len(is_first))  # (n_groups,)
        return _Groups(
            first_pairs=first_pairs,
            last_pairs=stop_pairs - 1,
            group_of_pair=np.cumsum(is_first) - 1,
        )

    def _begins_group(self, pairs: _Pairs) -> NDArray[np.bool_]:
        """Return which pairs begin a new passage of a document.

        A pair belongs to the passage of the pair before it if both are in one document and one
        text, and at most as many words apart as the text has.

        Args:
            pairs: n-grams of documents, each with an occurrence in a text; sorted by document, text
                and word.

        Returns:
            Shape (n_pairs,).
        """
        # Compare each pair, from the second on, with the pair before it: (n_pairs - 1,)
        is_new_document = pairs.documents[1:] != pairs.documents[:-1]
        is_new_text = pairs.texts[1:] != pairs.texts[:-1]
        words_per_text = np.diff(self.text_starts)  # (n_texts,)
        is_far = np.diff(pairs.document_words) > words_per_text[pairs.texts[1:]]

        begins_group = np.ones(len(pairs.texts), np.bool_)  # the first pair begins one
        begins_group[1:] = is_new_document | is_new_text | is_far
        return begins_group

    def _shares(self, pairs: _Pairs, groups: _Groups, threshold: float) -> NDArray[np.float64]:
        """Return which share of its text's letters each group of n-grams covers.

        A group is a passage of a document that may be a copy of an evaluation text.

        For example, a group that covers 16 of a text's 28 letters has the share 0.57.

        Args:
            pairs: n-grams of documents, each with an occurrence in a text.
            groups: Which pairs form a group.
            threshold: The share that is needed.

        Returns:
            float64, shape (n_groups,); 0 for groups that cover less than is needed.
        """
        texts = pairs.texts[groups.first_pairs]  # (n_groups,)
        letters = self.letters_per_text[texts]
        # Fewer letters than MIN_LETTERS may be in common by chance, if the text is short.
        needed = np.maximum(threshold * letters, MIN_LETTERS)

        # Counting covered letters takes long. Leave out the groups (most of them) that do not even
        # have enough letters if overlaps of n-grams count twice.
        may_match = self._letters_with_overlaps(pairs, groups) >= needed
        is_counted = may_match[groups.group_of_pair]  # (n_pairs,)
        covered_letters = self._covered_letters(
            pairs.text_words[is_counted], groups.group_of_pair[is_counted], n_groups=len(texts)
        )

        shares = covered_letters / np.maximum(letters, 1)  # avoids a division by 0
        return np.where(covered_letters >= needed, shares, 0.0)

    def _letters_with_overlaps(self, pairs: _Pairs, groups: _Groups) -> NDArray[Any]:
        """Return how many letters the n-grams of each group have, where overlaps count twice.

        For example, "how tired are" and "tired are their" have 11 + 13 letters. They cover only the
        16 letters of "how tired are their", so the sum is an upper bound.

        Args:
            pairs: n-grams of documents, each with an occurrence in a text.
            groups: Which pairs form a group.

        Returns:
            Numbers of letters, shape (n_groups,).
        """
        stops = pairs.text_words + self.words_per_ngram
        letters = self._letters_between(pairs.text_words, stops)  # (n_pairs,)

        # Sum up the letters of each group.
        n_groups = len(groups.first_pairs)
        return np.bincount(groups.group_of_pair, weights=letters, minlength=n_groups)

    def _covered_letters(
        self, text_words: NDArray[np.int64], groups: NDArray[np.int64], n_groups: int
    ) -> NDArray[Any]:
        """Return how many letters of the evaluation texts the n-grams of each group cover together.

        Letters in the overlap of two n-grams count once.

        For example, "how tired are" and "tired are their" cover the 16 letters of "how tired are
        their".

        Args:
            text_words: First word of each n-gram in the evaluation texts; shape (n_ngrams,).
            groups: Group of each n-gram; shape (n_ngrams,).
            n_groups: Number of groups.

        Returns:
            Shape (n_groups,).
        """
        # Sort each group by the place in the text, so that n-grams that overlap are neighbours.
        order = np.lexsort((text_words, groups))
        text_words = text_words[order]
        groups = groups[order]

        # Cut each n-gram off where the next one of its group starts. If n-grams of 3 words start at
        # the words 5 and 6, the first one counts only word 5, and the second one 6, 7 and 8.
        stops = text_words + self.words_per_ngram  # (n_ngrams,)
        overlaps_next = (groups[1:] == groups[:-1]) & (text_words[1:] < stops[:-1])
        cut_ngrams = np.flatnonzero(overlaps_next)
        stops[cut_ngrams] = text_words[cut_ngrams + 1]

        # Sum up the letters of each group.
        letters = self._letters_between(text_words, stops)
        return np.bincount(groups, letters, minlength=n_groups)

    def _letters_between(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the number of letters in ranges [start, stop) of words of the evaluation texts."""
        return self.letters_before[stops] - self.letters_before[starts]


class _NgramOccurrences(NamedTuple):
    """n-grams and where they occur, sorted by hash."""

    hashes: NDArray[np.uint64]
    """Hash of each n-gram, ascending, without duplicates; shape (n_ngrams,)."""
    counts: NDArray[np.int64]
    """How often each n-gram occurs; shape (n_ngrams,)."""
    first_words: NDArray[np.int64]
    """First word of each occurrence, by n-gram; shape (n_occurrences,)."""


def _ngrams_of_texts(
    words: NDArray[np.uint64], text_of_word: NDArray[np.int32], size: int
) -> _NgramOccurrences:
    """Return the n-grams of texts, and where they occur.

    An n-gram that begins in one text and ends in the next is none. Those that occur very often are
    left out.

    Args:
        words: Hash of each word of all texts, shape (n_words,).
        text_of_word: Number of the text of each word, shape (n_words,).
        size: Words of an n-gram.
    """
    hashes = hash_ngrams(words, size)  # (n_words - size + 1,)
    text_of_first_word = text_of_word[: len(hashes)]
    text_of_last_word = text_of_word[size - 1 :]
    is_in_one_text = text_of_first_word == text_of_last_word
    return _rare_occurrences(hashes, first_words=np.flatnonzero(is_in_one_text))


def _rare_occurrences(
    hashes: NDArray[np.uint64], first_words: NDArray[np.int64]
) -> _NgramOccurrences:
    """Return where n-grams occur, without those that occur so often that they prove nothing.

    For example, a limit of two occurrences would leave out hash 9 here:

        hashes         [9, 4, 9, 4, 9]   of the n-grams that start at the words 0 to 4
        first_words    [0, 1, 2, 3, 4]
        result         hashes [4], counts [2], first_words [1, 3]

    Args:
        hashes: Hash of the n-gram that starts at each word; shape (n_words,).
        first_words: The words at which n-grams start; shape (n_occurrences,).
    """
    # Sort by hash, so that the occurrences of an n-gram are neighbours: words 1 3 0 2 4 above.
    order = np.argsort(hashes[first_words], kind="stable")
    first_words = first_words[order]

    # Count the occurrences of each n-gram: 2 of hash 4, and 3 of hash 9.
    unique_hashes, counts = np.unique(hashes[first_words], return_counts=True)
    is_rare = counts <= MAX_OCCURRENCES  # (n_ngrams,)
    is_rare_occurrence = np.repeat(is_rare, counts)  # (n_occurrences,)
    return _NgramOccurrences(
        hashes=unique_hashes[is_rare],
        counts=counts[is_rare],
        first_words=first_words[is_rare_occurrence],
    )


def _is_covered(first_words: NDArray[np.int64], size: int, n_words: int) -> NDArray[np.bool_]:
    """Return whether each word is in one of some n-grams.

    For example, n-grams of two words that start at the words 0 and 3 cover the words 0, 1, 3 and 4.

    Args:
        first_words: First word of each n-gram, shape (n_ngrams,).
        size: Words of an n-gram.
        n_words: Number of all words.

    Returns:
        bool, shape (n_words,).
    """
    # Count the n-grams that have started and not stopped at each word.
    started = np.bincount(first_words, minlength=n_words + 1)
    stopped = np.bincount(first_words + size, minlength=n_words + 1)
    n_covering = np.cumsum(started - stopped)[:n_words]
    return n_covering > 0
