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
from nanoset_core.stages.contamination.array_files import load_array, save_arrays
from nanoset_core.stages.contamination.words import DocumentWords, running_sums
from nanoset_core.statistics.hashing import U64

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
    """Return the hash of every run of `size` consecutive words of a text, an n-gram.

    For example, of "how tired are their donkeys" and a size of 3, these are the hashes of

        how tired are
        tired are their
        are their donkeys

    The hash of the words w[0], …, w[size - 1] is the polynomial

        w[0] * FACTOR**(size - 1) + … + w[size - 2] * FACTOR + w[size - 1]    modulo 2**64

    Args:
        words: Hash of each word, shape (n_words,).
        size: Number of words in a run.

    Returns:
        Hash of the words from k to k + size - 1 for each k, shape (n_words - size + 1,); empty if
        there are fewer words.
    """
    if len(words) < size:
        return np.empty(0, np.uint64)
    if size == 1:
        return words

    # Join two halves: a run of 4 words consists of two runs of 2 words. So runs of 64 words take 6
    # steps instead of 63.
    half_size = size // 2
    half_hashes = hash_ngrams(words, half_size)
    hashes = _join_runs(half_hashes, half_size, half_hashes, half_size)
    if size % 2 == 1:  # a run of 5 words consists of two runs of 2 words, and one word more
        hashes = _join_runs(hashes, size - 1, words, 1)
    return hashes


def _join_runs(
    first_hashes: NDArray[np.uint64],
    first_size: int,
    second_hashes: NDArray[np.uint64],
    second_size: int,
) -> NDArray[np.uint64]:
    """Join each run of words with the run that follows it, and return the hash of both together.

    For example, join runs of 2 words with runs of 1 word. The text has the words w x y z:

        first runs     wx   xy   yz
        second runs    w    x    y    z
        result         wxy  xyz                     wx and y, xy and z; nothing follows yz

    The hash is a polynomial, so it follows from the hashes of the two runs:

        hash("wxy") = hash("wx") * FACTOR**1 + hash("y")        1 is the size of the second run

    Args:
        first_hashes: Hash of the first run from each word on, shape (n_first,).
        first_size: Words of each first run.
        second_hashes: Hash of the second run from each word on, shape (n_second,).
        second_size: Words of each second run.

    Returns:
        Hash of both runs together from each word on, shape (n_second - first_size,).
    """
    second_hashes = second_hashes[first_size:]  # of y and z, which follow wx and xy
    first_hashes = first_hashes[: len(second_hashes)]  # of wx and xy
    factor = U64(pow(_FACTOR, second_size, 1 << 64))  # FACTOR**second_size modulo 2**64
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

    All arrays have the shape (n_known,).
    """

    documents: NDArray[np.int64]
    """Document of each n-gram."""
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
            pairs: Indices of the pairs, in the order in which they are returned, such as [2, 0] for
                the third and the first one; shape (n_selected,).
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
        """Make a filter that says quickly of nearly every other hash that it is not among these.

        The filter is a bitmap, in which each hash sets one bit: that whose number is given by the
        leading bits of the hash. For example, with three leading bits there are 8 bits:

            hash 101…  sets bit 5
            hash 010…  sets bit 2          bitmap: 0 0 1 0 0 1 0 0

        A hash 110… is not among these two, since bit 6 is not set. A hash 101… may be among them.
        The bitmap has at least 16 bits for each hash, so of other hashes at most one in 16 passes.

        Args:
            hashes: The hashes, uint64, shape (n_hashes,).
        """
        min_bits = _FILTER_BITS_PER_NGRAM * len(hashes)
        n_leading_bits = max(min_bits.bit_length(), _MIN_LEADING_BITS)
        shift = U64(64 - n_leading_bits)  # a hash has 64 bits
        positions = (hashes >> shift).astype(np.int64)  # (n_hashes,) the leading bits
        return _HashFilter(_bitmap_of(positions, n_bits=2**n_leading_bits), shift)

    def candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which hashes pass the filter: those that may be among the hashes it was made from.

        The filter is a bitmap. Each hash that it was made from has set the bit whose number is
        given by the leading bits of the hash. So a hash whose bit is not set is certainly not among
        these.

        Args:
            hashes: The hashes to look up, uint64, shape (n_hashes,).

        Returns:
            Indices of all hashes that are in the filter, and of few others; int64, ascending.
        """
        positions = (hashes >> self.shift).astype(np.int64)  # (n_hashes,) such as 13
        # Position 13 is bit 5 of byte 1, since a byte has 8 bits. This runs for every n-gram of all
        # documents, so it divides with bit operations: x >> 3 is x // 8, and x & 7 is x % 8.
        bytes_of_bitmap = self.bitmap[positions >> 3]
        bits_of_byte = (positions & 7).astype(np.uint8)
        is_set = (bytes_of_bitmap >> bits_of_byte) & 1  # (n_hashes,) 0 or 1
        return np.flatnonzero(is_set.view(np.bool_))


def _bitmap_of(positions: NDArray[np.int64], n_bits: int) -> NDArray[np.uint8]:
    """Return a bitmap in which the bits at some positions are set, and all others are not.

    A byte has 8 bits, the lowest first. So position 13 is bit 5 of byte 1:

        positions [0, 13], 16 bits     →     [0b00000001, 0b00100000]

    Args:
        positions: Shape (n,), in any order, perhaps repeated; below `n_bits`.
        n_bits: Size of the bitmap, a multiple of 8.

    Returns:
        Shape (n_bits / 8,).
    """
    bitmap = np.zeros(n_bits // 8, np.uint8)
    byte_numbers = positions // 8
    bits_of_byte = (positions % 8).astype(np.uint8)
    # Unlike |=, this sets all bits of a byte that occurs several times.
    np.bitwise_or.at(bitmap, byte_numbers, np.uint8(1) << bits_of_byte)
    return bitmap


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
        """Index the n-grams of evaluation texts, to find copies of the texts in documents.

        An n-gram is a run of `size` consecutive words. The index says in which texts it occurs, and
        where. For example, with a size of 3:

            n-gram             in text   at word
            how tired are      0         0          text 0 is "how tired are their donkeys"
            tired are their    0         1
            …

        Args:
            words: Hash of each word of all texts, concatenated; shape (n_words,).
            letter_counts: Bytes of each word, shape (n_words,).
            words_per_text: Number of words of each text, shape (n_texts,).
            size: Words of an n-gram.

        Returns:
            The index. n-grams that occur very often prove nothing, and are left out.
        """
        text_numbers = np.arange(len(words_per_text), dtype=np.int32)
        text_of_word = np.repeat(text_numbers, words_per_text)  # (n_words,) such as [0, 0, 1, …]
        occurrences = _ngrams_of_texts(words, text_of_word, size)

        # Later, a passage is compared with a text by how many of the text's letters it has. Words
        # that are in no n-gram of the index can never be found, so their letters do not count.
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
        """Write the index, which takes long to compute, to files that `load` reads.

        There is one file for each array, such as grams.npy.

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
        """Map the files that `save` wrote into memory, so that only what is used is read.

        The files have other names than the arrays: those of earlier versions, which must not
        change.

        Args:
            folder: The folder with the files.
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
        """Find the passages of documents that are copies of an evaluation text, or of a part of it.

        A passage and a text are compared by runs of some words that both have (n-grams). For
        example, with runs of three words, these have "how tired are" and "tired are their" in
        common:

            text        how tired are their seven donkeys     28 letters
            document    ask how tired are their nine donkeys

        The passage "how tired are their" has 16 of the 28 letters, which is a share of 57 %. It
        matches the text if that reaches the threshold.

        Args:
            words: The words of the documents.
            threshold: Share of a text's letters, 0 to 1, that a passage must have in common with
                it.

        Returns:
            The passages, with the text that each one matches.
        """
        # Find runs of words that a document and a text have in common. Pair each place where such a
        # run is in a document with each place where it is in a text.
        known_ngrams = self._known_ngrams(words)
        pairs = self._pairs(known_ngrams)

        # Pairs of one text that are near one another in a document form a *group*: a passage that
        # may be a copy of the text. A group that covers enough of its text is a match.
        groups = self._groups(pairs)
        shares = self._shares(pairs, groups, threshold)  # (n_groups,) such as 16 / 28
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
        """Find the n-grams of documents (runs of some words) that are also in evaluation texts.

        For example, with runs of three words, the document "ask how tired are their nine donkeys"
        has two n-grams that are in the index of evaluation texts:

            first word       1                  2
            n-gram           how tired are      tired are their
            number in index  0                  1

        Nearly all n-grams are in no evaluation text. A filter finds this out quickly for most of
        them, and only the others are looked up.

        Args:
            words: The words of all documents, concatenated.
        """
        if not len(self.hashes):
            nothing = np.empty(0, np.int64)
            return _KnownNgrams(nothing, nothing, nothing)

        ngram_hashes = hash_ngrams(words.hashes, self.words_per_ngram)  # one starts at each word
        first_words = self._filter.candidates(ngram_hashes)  # such as [1, 2, 4]
        numbers = self._numbers_of(ngram_hashes[first_words])  # [0, 1, -1], and -1 is not found
        is_known = numbers >= 0
        known_ngrams = _KnownNgrams(
            documents=words.documents(first_words[is_known]),
            first_words=first_words[is_known],
            ngrams=numbers[is_known],
        )
        return self._within_documents(known_ngrams, words)

    def _within_documents(self, ngrams: _KnownNgrams, words: DocumentWords) -> _KnownNgrams:
        """Leave out n-grams that start in one document, and end in the next one.

        Args:
            ngrams: The n-grams, which are runs of some words.
            words: The words of all documents, concatenated.
        """
        last_words = ngrams.first_words + self.words_per_ngram - 1
        is_in_one = ngrams.documents == words.documents(last_words)
        return _KnownNgrams(*[column[is_in_one] for column in ngrams])

    def _numbers_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Look up n-grams by their hash. Return their numbers in the index, or -1.

        The numbers are those of the sorted hashes of the index. For example, if it has the hashes
        [3, 5, 9], then the hashes 9 and 4 have the numbers 2 and -1:

            hash                             9    4
            where it belongs in the index    2    1
            hash of the index there          9    5    (another one, so 4 is not in the index)

        Args:
            hashes: uint64, shape (n_hashes,). The index must not be empty.

        Returns:
            int64, shape (n_hashes,).
        """
        # Searching in ascending order is faster, since it reads the index from start to end.
        order = np.argsort(hashes)
        positions = np.searchsorted(self.hashes, hashes[order])
        last_number = len(self.hashes) - 1  # greater hashes than all of the index belong after it
        numbers = np.empty(len(hashes), np.int64)
        numbers[order] = np.minimum(positions, last_number)
        return np.where(self.hashes[numbers] == hashes, numbers, -1)

    def _pairs(self, known_ngrams: _KnownNgrams) -> _Pairs:
        """Pair each n-gram of a document with all places where it occurs in evaluation texts.

        For example, the n-gram "how tired are" is at word 20 of document 4, and it occurs in the
        texts 0 and 3. That gives two pairs:

            document    word in the document    text    word in the texts
                   4                      20       0                    7
                   4                      20       3                   51

        Args:
            known_ngrams: The n-grams of documents (runs of some words) that are in this index.

        Returns:
            The pairs, sorted by document, text and word of the document.
        """
        # The index lists the occurrences of n-gram 0, then those of n-gram 1, and so on. Suppose
        # that the documents have the n-grams 2 and 0, which occur twice and three times.
        starts = self._starts[known_ngrams.ngrams]  # (n_known,) [5, 0]
        n_occurrences = self.stops[known_ngrams.ngrams] - starts  # (n_known,) [2, 3]
        occurrences = positions_in(starts, n_occurrences)  # (n_pairs,) [5, 6, 0, 1, 2]
        pairs = _Pairs(
            documents=np.repeat(known_ngrams.documents, n_occurrences),
            texts=self.texts[occurrences].astype(np.int64),
            document_words=np.repeat(known_ngrams.first_words, n_occurrences),
            text_words=self.first_words[occurrences].astype(np.int64),
        )
        return pairs.sorted()

    def _groups(self, pairs: _Pairs) -> _Groups:
        """Divide pairs into groups: passages of documents that may be copies of a text.

        Each pair is a run of words that a document and an evaluation text have in common. Pairs
        belong to one group if they have the same document and the same text, and are near one
        another. For example, if the text has 10 words, these four form two groups:

            pair                     0     1     2     3
            word in the document     50    52    57    900
            group                    0     0     0     1

        Args:
            pairs: The pairs, sorted by document, text and word in the document.
        """
        is_first = self._begins_passage(pairs)  # (n_pairs,) [True, False, False, True]
        first_pairs = np.flatnonzero(is_first)  # (n_groups,) [0, 3]

        # A group extends up to the next group, and the last one up to the end.
        stop_pairs = np.append(first_pairs[1:], len(is_first))  # (n_groups,) [3, 4]
        return _Groups(
            first_pairs=first_pairs,
            last_pairs=stop_pairs - 1,  # [2, 3]
            group_of_pair=np.cumsum(is_first) - 1,  # [0, 0, 0, 1]
        )

    def _begins_passage(self, pairs: _Pairs) -> NDArray[np.bool_]:
        """For each n-gram of a document, return whether it begins a new passage.

        Here only n-grams (runs of some words) count that the document has in common with an
        evaluation text. They belong to one passage if they are near one another: at most as many
        words apart as the text has. For a text of 10 words:

            word in the document     50     52     57     900
            begins a passage         True   False  False  True      (900 is 843 words after 57)

        Args:
            pairs: The n-grams, sorted by document, text and word in the document.

        Returns:
            bool, shape (n_pairs,).
        """
        # Compare each n-gram, from the second on, with the one before it: (n_pairs - 1,)
        is_new_document = pairs.documents[1:] != pairs.documents[:-1]
        is_new_text = pairs.texts[1:] != pairs.texts[:-1]

        distances = np.diff(pairs.document_words)
        words_per_text = np.diff(self.text_starts)  # (n_texts,)
        is_far = distances > words_per_text[pairs.texts[1:]]

        begins_passage = np.ones(len(pairs.texts), np.bool_)  # the first n-gram begins one
        begins_passage[1:] = is_new_document | is_new_text | is_far
        return begins_passage

    def _shares(self, pairs: _Pairs, groups: _Groups, threshold: float) -> NDArray[np.float64]:
        """For each passage of a document, return its share of an evaluation text, from 0 to 1.

        A passage and its text have some n-grams (runs of words) in common. If these have 48 of the
        text's 60 letters, the share is 48 / 60 = 0.8.

        Args:
            pairs: The n-grams of all passages, each with its place in the text.
            groups: Which n-grams belong to which passage, also called a group.
            threshold: The share that a match needs, such as 0.5.

        Returns:
            float64, shape (n_groups,); 0 for passages that have fewer letters than a match needs.
        """
        # How many letters does a match need? Of a text of 60 letters, 30 would be a share of 0.5.
        # But so few may be in common by chance: MIN_LETTERS (32) are always needed.
        texts = pairs.texts[groups.first_pairs]  # (n_groups,) all n-grams of a group have one text
        text_letters = self.letters_per_text[texts]  # (n_groups,) 60
        needed_letters = np.maximum(threshold * text_letters, MIN_LETTERS)  # 32

        common_letters = self._common_letters(
            pairs.text_words, groups.group_of_pair, needed_letters
        )  # 48
        shares: NDArray[np.float64] = common_letters / np.maximum(text_letters, 1)  # not by 0
        return shares

    def _common_letters(
        self,
        text_words: NDArray[np.int64],
        groups: NDArray[np.int64],
        needed_letters: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Count the letters that groups of n-grams have, if these are as many as are needed.

        n-grams are runs of some words. Most groups have far too few letters, and an exact count
        takes long. So a quick count that may be too high shows which ones have to be counted:

            group                  0     1     2
            letters, at most       11    70    45
            letters, exactly             48    20
            needed                 32    32    32
            result                 0     48    0

        Args:
            text_words: First word of each n-gram in the evaluation texts; shape (n_ngrams,).
            groups: Group of each n-gram; shape (n_ngrams,).
            needed_letters: How many letters each group needs; shape (n_groups,).

        Returns:
            float64, shape (n_groups,); 0 for groups with fewer letters.
        """
        n_groups = len(needed_letters)
        most_letters = self._letters_with_repetitions(text_words, groups, n_groups)
        may_have_enough = most_letters >= needed_letters  # (n_groups,) [False, True, True]

        # Count the letters of these groups exactly.
        is_counted = may_have_enough[groups]  # (n_ngrams,)
        letters = self._covered_letters(text_words[is_counted], groups[is_counted], n_groups)
        return np.where(letters >= needed_letters, letters, 0.0)

    def _letters_with_repetitions(
        self, text_words: NDArray[np.int64], groups: NDArray[np.int64], n_groups: int
    ) -> NDArray[Any]:
        """Add up the letters of the n-grams of each group, without regard to overlaps.

        n-grams are runs of some words. For example, "how tired are" has 11 letters, and "tired are
        their" has 13, so the sum is 24. But if they overlap in the text "how tired are their", they
        cover only 16 letters: `_covered_letters` counts exactly, and is slower.

        Args:
            text_words: First word of each n-gram in the evaluation texts; shape (n_ngrams,).
            groups: Group of each n-gram; shape (n_ngrams,).
            n_groups: Number of groups.

        Returns:
            Shape (n_groups,).
        """
        stops = text_words + self.words_per_ngram
        letters = self._letters_between(text_words, stops)  # (n_ngrams,)
        return np.bincount(groups, weights=letters, minlength=n_groups)

    def _covered_letters(
        self, text_words: NDArray[np.int64], groups: NDArray[np.int64], n_groups: int
    ) -> NDArray[Any]:
        """Return how many letters of an evaluation text each group of n-grams has.

        n-grams are runs of some words. Where they overlap, letters count once. For example:

            words of the text       5    6      7    8
                                    how  tired  are  their
            n-gram at word 5        how  tired  are
            n-gram at word 6             tired  are  their
            count of the first      how                         up to where the next one starts
            count of the second          tired  are  their      together 16 letters

        Args:
            text_words: First word of each n-gram in the evaluation texts; shape (n_ngrams,).
            groups: Group of each n-gram; shape (n_ngrams,).
            n_groups: Number of groups.

        Returns:
            Shape (n_groups,).
        """
        # Sort each group by the place in the text, so that n-grams that overlap are neighbours.
        order = np.lexsort((text_words, groups))
        groups = groups[order]
        starts = text_words[order]  # (n_ngrams,) [5, 6] in the example
        stops = starts + self.words_per_ngram  # [8, 9]

        # If an n-gram overlaps the next one of its group, count it only up to where that starts.
        is_same_group = groups[1:] == groups[:-1]  # (n_ngrams - 1,) [True]
        overlaps_next = is_same_group & (starts[1:] < stops[:-1])
        stops[:-1] = np.where(overlaps_next, starts[1:], stops[:-1])  # [8, 9] becomes [6, 9]

        letters = self._letters_between(starts, stops)  # (n_ngrams,) of how, and of the others
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
    """Return the n-grams of texts (runs of `size` consecutive words), and where they occur.

    For example, if text 0 has the words w and x, text 1 has the words y and z, and the size is 2,
    then these are wx and yz. xy is no n-gram, since it starts in one text and ends in the other.

    Args:
        words: Hash of each word of all texts, shape (n_words,).
        text_of_word: Number of the text of each word, shape (n_words,).
        size: Words of an n-gram.

    Returns:
        The n-grams, without those that occur very often, such as "which of the following".
    """
    # The words of all texts are numbered in sequence. Hash the n-gram that starts at each word.
    hashes = hash_ngrams(words, size)  # (n_words - size + 1,) of wx, xy, yz

    # Leave out those that start in one text and end in another.
    text_of_first_word = text_of_word[: len(hashes)]  # of w, x, y: [0, 0, 1]
    text_of_last_word = text_of_word[size - 1 :]  # of x, y, z: [0, 1, 1]
    is_in_one_text = text_of_first_word == text_of_last_word  # [True, False, True]
    return _rare_occurrences(hashes, first_words=np.flatnonzero(is_in_one_text))


def _rare_occurrences(
    hashes: NDArray[np.uint64], first_words: NDArray[np.int64]
) -> _NgramOccurrences:
    """Return where n-grams (runs of some words) occur, without those that occur very often.

    Those are phrases such as "which of the following", which prove nothing. For example, a limit of
    two occurrences would leave out hash 9 here:

        n-gram starts at word    0  1  2  3  4
        its hash                 9  4  9  4  9          result: hash 4, at the words 1 and 3

    Args:
        hashes: Hash of the n-gram that starts at each word; shape (n_words,).
        first_words: The words at which n-grams start; shape (n_occurrences,).
    """
    # Sort by hash, so that the occurrences of an n-gram are neighbours.
    order = np.argsort(hashes[first_words], kind="stable")
    first_words = first_words[order]  # [1, 3, 0, 2, 4], with the hashes 4 4 9 9 9

    # Count the occurrences of each n-gram.
    unique_hashes, counts = np.unique(hashes[first_words], return_counts=True)  # [4, 9], [2, 3]
    is_rare = counts <= MAX_OCCURRENCES  # (n_ngrams,) [True, False]

    # Repeat this for each occurrence: twice, and three times.
    is_rare_occurrence = np.repeat(is_rare, counts)  # [True, True, False, False, False]
    return _NgramOccurrences(
        hashes=unique_hashes[is_rare],
        counts=counts[is_rare],
        first_words=first_words[is_rare_occurrence],
    )


def _is_covered(first_words: NDArray[np.int64], size: int, n_words: int) -> NDArray[np.bool_]:
    """For each word, return whether it belongs to one of some n-grams, which are runs of words.

    For example, n-grams of two words start at the words 0 and 3:

        word        0     1     2      3     4
        covered     True  True  False  True  True

    Args:
        first_words: First word of each n-gram, shape (n_ngrams,).
        size: Words of an n-gram.
        n_words: Number of all words.

    Returns:
        bool, shape (n_words,).
    """
    # At each word, count the n-grams that start there, and those that have stopped before it.
    n_starting = np.bincount(first_words, minlength=n_words + 1)  # [1, 0, 0, 1, 0, 0]
    n_stopping = np.bincount(first_words + size, minlength=n_words + 1)  # [0, 0, 1, 0, 0, 1]

    # Add up the differences: how many n-grams have started and not stopped.
    n_covering = np.cumsum(n_starting - n_stopping)[:n_words]  # [1, 1, 0, 1, 1]
    return n_covering > 0
