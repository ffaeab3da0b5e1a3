"""The `numpy` engine: byte-pair encoding as array operations, with the ids of the library.

Text goes through these steps, several megabytes at a time:

1. **Units.** Each document is normalised if the tokenizer does so, and long ones are cut into
   units, pieces that can be encoded on their own (`units`). The few units that the engine's rules
   do not cover go to the reference, the tokenizer's own library.
2. **Words.** The units are cut into words: into pre-tokens of a split pattern (`splits`) or, if the
   tokenizer has no pattern, between characters that no merge joins (`characters`).
3. **Lookup.** Nearly all words were met before, and a hash table has their tokens
   (`pretoken_cache`).
4. **Merging.** All unknown words are encoded together (`merges`), and remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from unicodedata import is_normalized

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenizers.cache import CacheEntry, installed_version
from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, FlatLists, Ids, Ints
from nanoset_core.tokenizers.engines.characters import CharacterMerger, PairSplitter
from nanoset_core.tokenizers.engines.classes import SEPARATOR_BYTE, SPACE_BYTE
from nanoset_core.tokenizers.engines.engine import Encoded, encode_utf8, slices
from nanoset_core.tokenizers.engines.merges import ByteMerger, Merger, PairRanks
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.pretoken_cache import (
    PADDING,
    Batch,
    EncodeLongWords,
    PretokenCache,
)
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import Rules
from nanoset_core.tokenizers.engines.splits import PatternSplitter
from nanoset_core.tokenizers.engines.units import UNIT_BYTES, FallbackText, cut, partition_units

BATCH_BYTES = 4 << 20
"""Text whose unknown words are encoded together."""
_FEW_WORDS_PER_BYTE = 0.75
"""Unknown words, divided by the bytes of the longest, below which the reference is faster.

Merging takes as many rounds for one word as for many.
"""
_SEPARATOR = bytes([SEPARATOR_BYTE])


class Unit(NamedTuple):
    """A piece of a document that can be encoded on its own."""

    text: bytes
    """UTF-8, not empty."""
    document: int
    """Number of the document."""
    is_fallback: bool
    """Whether the piece has to be encoded by the reference."""


class SplitTexts(NamedTuple):
    """Texts that were cut into words."""

    data: Bytes
    """uint8, shape (n_bytes,): all texts, with a separator before and after each, and padding."""
    starts: Ints
    """int64, shape (n_words,): first byte of each word."""
    lengths: Ints
    """int64, shape (n_words,): bytes of each word."""
    first_words: Ints
    """int64, shape (n_texts,): index of each text's first word."""


class NumpyEngine:
    """Encodes text by numpy, with rules that were read from a `tokenizer.json`.

    The little text that the rules do not cover is encoded by the reference, the tokenizer's own
    library. Several threads may call the engine: one works at a time, and the others wait.
    """

    name = "numpy"
    package = "nanoset-platform"
    helper = ""

    def __init__(
        self, rules: Rules, reference: ReferenceEngine, *, words: CacheEntry | None = None
    ) -> None:
        """Prepare to encode text by numpy, as a tokenizer does.

        Args:
            rules: How the tokenizer encodes text: its vocabulary, its merges and so on.
            reference: The tokenizer's own library, for text that numpy cannot encode. All token ids
                are the same as the library's.
            words: Where the tokens of words are saved for later processes; nowhere if None.
        """
        self.reason = (
            f"{rules.described} recognised, same tokens as the tokenizers library on test texts"
        )
        self.version = installed_version(self.package)
        self.reference = reference
        self._rules = rules
        self._lock = threading.Lock()

        # Recognizes text that is left to the reference.
        added_tokens = [token.encode() for token in rules.added_tokens]
        self._fallback_text = FallbackText(added_tokens, rules.forbidden_bytes, rules.context_spans)

        # The splitter cuts text into words, and the merger turns each word into tokens. The
        # reference encodes words that are too long for the merger.
        self._splitter = _make_splitter(rules)
        self._merger = _make_merger(rules)
        self._encode_by_reference: EncodeLongWords = reference.encode_words
        if isinstance(rules.split, SpaceSigns):
            self._encode_by_reference = reference.encode_pieces

        # Words recur, so their tokens are remembered.
        self._pretokens = PretokenCache(
            self._encode_words,
            self._encode_by_reference,
            self._seed,
            words or CacheEntry("words", "", None),
        )

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Turn documents into token ids, nearly all of their text by array operations.

        Long documents are cut into pieces that can be encoded on their own, called units. Many
        units, of several documents, are encoded at once, and their numbers of tokens are added up:

            document    unit              tokens
            0           "Once upon …"     5
            0           "… a time."       4       →    document 0 has 9 tokens
            1           "Hello"           2       →    document 1 has 2 tokens

        Args:
            texts: The documents.

        Returns:
            Their token ids, concatenated, and the number of tokens of each document.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
            EncodingError: The tokenizers library, which encodes some rare text, fails on it.
        """
        with self._lock:  # one thread at a time, since they share the cache of words
            document_lengths = np.zeros(len(texts), np.int64)  # in tokens
            ids_by_batch = [np.empty(0, np.int32)]  # the first entry is for no documents at all
            for units in self._batches(texts):
                ids, unit_lengths = self._encode_units(units)
                ids_by_batch.append(ids)

                # Units of 5, 4 and 2 tokens from the documents 0, 0 and 1 add 9 to the length of
                # document 0, and 2 to that of document 1.
                document_of_unit = np.array([unit.document for unit in units], np.int64)
                np.add.at(document_lengths, document_of_unit, unit_lengths)
            return Encoded(np.concatenate(ids_by_batch), document_lengths.astype(np.int32))

    def splits_as(self, reference: ReferenceEngine, texts: Sequence[str]) -> bool:
        """Return whether this engine cuts texts into the same words as Hugging Face's library.

        A tokenizer first cuts text into words, such as "né" and " a", and then each word into
        tokens. If the words differ, the tokens may, too. Tokenizers that write spaces as ▁ do not
        cut text, so that there is nothing to compare.

        Args:
            reference: The library.
            texts: The texts to compare.
        """
        if isinstance(self._rules.split, SpaceSigns):
            return True
        # Some rare text is never split here, but passed on to the library.
        context_spans = self._rules.context_spans
        split_texts = [text for text in texts if not context_spans.occurs_in(text.encode())]

        starts_by_text = self.pretoken_starts(split_texts)
        return all(
            starts == _starts_of_words(reference, text)
            for text, starts in zip(split_texts, starts_by_text, strict=True)
        )

    def pretoken_starts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return at which characters of each text its words start, into which a tokenizer cuts it.

        "né a" has the words "né" and " a", which start at the characters 0 and 2. Tokens that are
        found before a text is cut, such as those of several spaces, are left out of account.

        Args:
            texts: The texts. All of them are cut at once, which is faster than one after another.

        Returns:
            Numbers of characters, ascending, for each text.
        """
        encoded = [text.encode() for text in texts]
        buffer = _SEPARATOR.join([b"", *encoded, b""])  # UTF-8: FF n C3 A9 _ a FF b FF
        data = np.frombuffer(buffer, np.uint8)
        is_start = self._starts_without_added_tokens(data)  # (n_bytes + 1,)

        # Take the first byte of each character, which is any that is not 10xxxxxx:
        # FF n C3 _ a FF b FF.
        is_first_byte = (data & 0xC0) != 0x80
        is_start_of_character = is_start[:-1][is_first_byte]  # (n_characters,)
        is_separator = data[is_first_byte] == SEPARATOR_BYTE  # (n_characters,)
        return _starts_by_text(is_start_of_character, is_separator)

    def _starts_without_added_tokens(self, data: Bytes) -> Bools:
        """Return at which bytes of a text words start: bool, shape (n_bytes + 1,)."""
        if isinstance(self._splitter, PatternSplitter):
            return self._splitter.starts_without_added_tokens(data)
        return self._splitter.starts(data)

    def _batches(self, texts: Sequence[str]) -> Iterator[list[Unit]]:
        """Divide documents into pieces that can be encoded on their own (units), many at a time.

        New words of all these units are encoded together, which is faster.

        Args:
            texts: The documents.

        Yields:
            Lists of units with about BATCH_BYTES (4 MiB) of text, in order.
        """
        batch: list[Unit] = []
        size = 0
        for unit in self._units(texts):
            batch.append(unit)
            size += len(unit.text)
            if size >= BATCH_BYTES:
                yield batch
                batch = []
                size = 0
        if batch:
            yield batch

    def _units(self, texts: Sequence[str]) -> Iterator[Unit]:
        """Divide documents into pieces that can be encoded on their own, called units.

        Some rare text, such as "<|endoftext|>", cannot be encoded by array operations. Units with
        it are marked: they are left to Hugging Face's library.

        Args:
            texts: The documents.

        Yields:
            The units of all documents, in order, such as (b"Hello", 0, False) for text of document
            0 that is not for the library.

        Raises:
            InputError: A text is not valid Unicode (a lone surrogate).
        """
        for start, stop in slices(texts, UNIT_BYTES):  # some documents at a time
            group = texts[start:stop]
            encoded = encode_utf8(group, first_number=start)
            has_fallback = self._have_fallback_text(encoded)
            for index, text in enumerate(group):
                pieces = self._partition(text, encoded[index], has_fallback[index])
                for piece, is_fallback in pieces:
                    if piece:
                        yield Unit(piece, start + index, is_fallback)

    def _have_fallback_text(self, encoded: list[bytes]) -> list[bool]:
        """Return which documents contain text that only the library can encode.

        Args:
            encoded: The documents in UTF-8.
        """
        # Nearly always, none does. One search through all of them is faster than a search in each.
        # The separator is in no text, so nothing is found across two documents.
        if not self._fallback_text.occurs_in(_SEPARATOR.join(encoded)):
            return [False] * len(encoded)
        return [self._fallback_text.occurs_in(document) for document in encoded]

    def _partition(
        self, text: str, data: bytes, has_fallback: bool
    ) -> Iterator[tuple[bytes, bool]]:
        """Divide a document into pieces for our fast tokenizer, and for Hugging Face's library.

        The library encodes what the fast one cannot: mostly special tokens, and the text around
        them.

            "Hello"                       "Hello": fast
            "a…<|endoftext|>…b"           "a…": fast, "…<|endoftext|>…": library, "…b": fast

        The whole document is one piece for the library in two cases: if it has special tokens, and
        converting it to a Unicode normal form changes it, so that these may be elsewhere; or if the
        tokenizer encodes all text differently when there are special tokens in it.

        Args:
            text: The document.
            data: The document in UTF-8.
            has_fallback: Whether the document contains text that only the library can encode.

        Yields:
            (piece in UTF-8, whether it is for the library). The library gets text as it is. Pieces
            for the fast tokenizer are normalised, and have a space for each ▁, if the tokenizer
            does that.
        """
        if self._changes_by_normalisation(text):
            normal_data = self._normalised(data)
            is_for_reference = has_fallback or self._fallback_text.occurs_in(normal_data)
            if is_for_reference:
                yield data, True
            else:
                yield from self._cut_for_this_engine(normal_data)
        elif not has_fallback:  # nearly always
            yield from self._cut_for_this_engine(data)
        elif self._rules.leaves_documents:
            yield data, True
        else:
            yield from self._cut_around_fallback(data)

    def _cut_around_fallback(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Divide a document so that the library encodes only special tokens and what is near them.

        Args:
            data: The document in UTF-8.

        Yields:
            (piece in UTF-8, whether it is for the library).
        """
        for piece, is_fallback in partition_units(data, self._fallback_text):
            prepared = piece if is_fallback else self._prepared(piece)
            yield prepared, is_fallback

    def _cut_for_this_engine(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Cut a long document into pieces, none of which needs Hugging Face's library.

        Args:
            data: The document in UTF-8, in the Unicode normal form if the tokenizer has one.

        Yields:
            (piece in UTF-8, False): False says that it is not for the library.
        """
        for piece in cut(self._prepared(data), UNIT_BYTES):
            yield piece, False

    def _changes_by_normalisation(self, text: str) -> bool:
        """Return whether the tokenizer normalises text and this text is not normal already."""
        form = self._rules.form
        return form is not None and not text.isascii() and not is_normalized(form, text)

    def _normalised(self, data: bytes) -> bytes:
        """Return the normal form of a UTF-8 text."""
        # By units, because characters do not compose across cuts: the library takes some 40 bytes
        # of memory for each byte of a text.
        pieces = []
        for piece in cut(data, UNIT_BYTES):
            pieces.append(self.reference.normalise(piece.decode()).encode())
        return b"".join(pieces)

    def _prepared(self, text: bytes) -> bytes:
        """Return a text with a space for each ▁, if the tokenizer writes spaces as ▁."""
        split = self._rules.split
        return split.prepared(text) if isinstance(split, SpaceSigns) else text

    def _encode_units(self, units: list[Unit]) -> FlatLists:
        """Encode pieces of documents, each by our fast tokenizer or by Hugging Face's library.

            piece           "Hello"    "<|endoftext|>"    "a time"
            encoded by      fast       library            fast
            tokens          [5, 6]     [0]                [7]

        Args:
            units: The pieces. Their `is_fallback` says which ones are for the library.

        Returns:
            (ids of all pieces, concatenated; number of tokens of each piece).
        """
        encoded = self._encode_texts([unit.text for unit in units if not unit.is_fallback])
        fallback_texts = [unit.text.decode() for unit in units if unit.is_fallback]
        if not fallback_texts:
            return encoded

        # Put the tokens of both back into the order of the units.
        is_fallback = np.array([unit.is_fallback for unit in units])
        fallback = self.reference.encode(fallback_texts)
        return interleave(is_fallback, if_true=fallback, if_false=encoded)

    def _encode_texts(self, texts: list[bytes]) -> FlatLists:
        """Encode texts by cutting them into words, whose tokens are mostly known already.

        The tokens of a text are those of its words, one after another:

            text                       "the cat"         "tokenizers"
            words                      "the"  " cat"     "tokenizers"
            tokens of each word        1      1          3
            tokens of each text        2                 3

        Args:
            texts: The texts in UTF-8, none of them empty. They are normalised, and contain nothing
                that only the tokenizers library can encode, such as special tokens.

        Returns:
            (ids of all texts, concatenated; number of tokens of each text).
        """
        # Cut the texts into words, and look these up in the cache, some texts at a time.
        batch = Batch()  # collects the words of all texts
        first_words = []  # the number of each text's first word: 0 2
        for start, stop in slices(texts, UNIT_BYTES):
            first_words.append(self._look_up(texts[start:stop], batch))

        # Get the tokens of all words. The number of tokens of a text is the sum for its words:
        # reduceat adds up 1 1 3 from each first word to the next one, 1 + 1 and 3.
        ids, word_lengths = self._pretokens.tokens(batch)
        if not texts:
            return ids, word_lengths
        text_lengths = np.add.reduceat(word_lengths, np.concatenate(first_words))
        return ids, text_lengths

    def _look_up(self, texts: list[bytes], batch: Batch) -> Ints:
        """Cut texts into words, and look these up in the cache of words.

        The words are added to a batch, with their tokens if these are known. The batch numbers all
        of its words. If it has 100 words, and the texts have 3 and 5 words, the first words of
        these texts have the numbers 100 and 103.

        Args:
            texts: The texts in UTF-8, none of them empty.
            batch: Words that are encoded together. Earlier texts may have added some.

        Returns:
            int64, shape (n_texts,): the number of each text's first word in the batch.
        """
        n_words_before = batch.size
        split = self._split(texts)
        self._pretokens.look_up(split.data, split.starts, split.lengths, batch)
        return split.first_words + n_words_before

    def _split(self, texts: list[bytes]) -> SplitTexts:
        """Cut texts into words, all texts at once in one buffer.

        The texts "a b" and "cd", with `|` for separators and `_` for a space:

            buffer         | a _ b | c d |
            position       0 1 2 3 4 5 6 7
            words            a _ b   c d         (three words: "a", " b", "cd")
            starts           1 2     5
            stops            2 4     7

        Args:
            texts: The texts, in UTF-8; none is empty.
        """
        # After the last separator are zeros, for the functions that read some bytes of each word.
        buffer = _SEPARATOR.join([b"", *texts, bytes(PADDING)])
        data = np.frombuffer(buffer, np.uint8)
        separators = _positions_of_separators(texts)  # (n_texts + 1,) 0 4 7
        starts = self._starts_of_words(data[:-PADDING], separators)  # (n_words,) 1 2 5

        # The first word of a text is the first one that starts after the separator before the text:
        # the words 0 and 2. The text stops at the next separator.
        first_words = np.searchsorted(starts, separators[:-1])  # (n_texts,)
        stops = _stops_of_words(starts, first_words, text_stops=separators[1:])
        return SplitTexts(data, starts, stops - starts, first_words)

    def _starts_of_words(self, data: Bytes, separators: Ints) -> Ints:
        """Return the positions in a buffer of texts at which words start.

        The splitter takes each separator for a word, too, and the end of the buffer for a start.
        These are left out.

        Args:
            data: uint8, shape (n_bytes,): texts with a separator before and after each.
            separators: int64, shape (n_texts + 1,): the positions of the separators.

        Returns:
            int64, shape (n_words,), ascending.
        """
        is_start = self._splitter.starts(data)  # (n_bytes + 1,)
        is_start[separators] = False
        is_start[-1] = False
        return np.flatnonzero(is_start)

    def _encode_words(self, words: Bytes) -> FlatLists:
        """Return the tokens of words that the cache does not know.

        Merging in numpy takes about as long for one word as for many, and longer for longer words.
        So a few words are encoded by Hugging Face's library.

        Args:
            words: uint8, shape (n_words, width): the bytes of each word in a row, then zeros.

        Returns:
            (ids of all words, concatenated; number of tokens of each word).
        """
        n_words, width = words.shape
        are_few = n_words < _FEW_WORDS_PER_BYTE * width
        if are_few:
            return self._encode_by_reference([word.tobytes().rstrip(b"\0") for word in words])
        return self._merger.merge_words(words)

    def _seed(self, pretokens: PretokenCache) -> None:
        """Fill an empty cache with words that texts probably contain."""
        self._seed_repeated_characters(pretokens)
        self._seed_vocabulary(pretokens)

    def _seed_repeated_characters(self, pretokens: PretokenCache) -> None:
        """Add words such as four spaces, for which the vocabulary has one token, to an empty cache.

        The cache maps words to their tokens. A word that it does not have is encoded by merging the
        tokens of its bytes. That would not find these tokens: they are not made by merges, but were
        added to the vocabulary. So the cache gets them now, and never forgets them. For example,
        `runs` of the rules has tokens of 2 and of 3 spaces:

            {" ": {2: 50276, 3: 50275}}

        Args:
            pretokens: The cache. It reads words from a buffer, which must have PADDING further
                bytes after the last word.
        """
        for character, id_by_length in self._rules.runs.items():
            lengths = np.array(sorted(id_by_length), np.int64)  # 2 3
            ids = np.array([id_by_length[length] for length in lengths.tolist()], np.int32)

            # A buffer of spaces. Each word is its first bytes: all start at 0.
            buffer = np.full(max(id_by_length) + PADDING, ord(character), np.uint8)
            starts = np.zeros_like(lengths)
            pretokens.learn_tokens(buffer, starts, lengths, ids)

    def _seed_vocabulary(self, pretokens: PretokenCache) -> None:
        """Fill a new cache, which maps words to their tokens, with the vocabulary.

        Most words of a text are in the vocabulary. If the cache knows their tokens, few words have
        to be encoded by merging letters, which is slow. What are the tokens of a word that is in
        the vocabulary, such as " the"? Tokenizers differ:

            whole_words        it is one token, by definition: the cache gets this token
            not whole_words    merges decide, and may make " t" and "he" of it: the words of the
                               vocabulary are encoded like any others

        Args:
            pretokens: The cache.
        """
        vocabulary = self._rules.vocabulary
        lengths = vocabulary.lengths
        starts = np.cumsum(lengths) - lengths
        # All entries in order, and then bytes that the cache may read after the last one.
        buffer = np.append(vocabulary.data, np.zeros(PADDING, np.uint8))

        if self._rules.whole_words:
            pretokens.learn_tokens(buffer, starts, lengths, vocabulary.ids)
        else:
            pretokens.learn(buffer, starts, lengths, self._merger.merge_words)


def _make_splitter(rules: Rules) -> PairSplitter | PatternSplitter:
    """Return an object that cuts text into words, each of which can be encoded on its own.

    There are two kinds of tokenizers, and `rules.split` says which it is:

        PatternSplitter    The tokenizer itself cuts text by a regular expression: "it's ok" into
                           "it", "'s" and " ok".
        PairSplitter       The tokenizer does not cut text, and writes spaces as ▁ ("▁the"). Here,
                           text is cut between any two characters that no token contains as
                           neighbours. If no token has an "x" before a "q", "xq" is cut.

    Args:
        rules: The tokenizer's rules.
    """
    # Tokens of several spaces, for example, are found while text is cut: {32: 3} says that the
    # longest token of the byte 32, a space, has three of them.
    longest_runs = rules.longest_runs
    if isinstance(rules.split, SpaceSigns):
        return PairSplitter(rules.vocabulary, rules.split, longest_runs)
    most_spaces = longest_runs.get(SPACE_BYTE, 0)
    return PatternSplitter(rules.split, rules.classes, most_spaces)


def _make_merger(rules: Rules) -> Merger:
    """Return what merges the bytes or characters of words to tokens.

    Tokenizers such as GPT-2's start with bytes. Those that write spaces as ▁ start with characters.

    Args:
        rules: The tokenizer's rules.
    """
    vocabulary = rules.vocabulary
    left, right, merged = vocabulary.merges.T  # the tokens of each merge, and the one it makes
    ranks = PairRanks(left, right, merged)
    writes_spaces_as_signs = isinstance(rules.split, SpaceSigns)
    if writes_spaces_as_signs:
        return CharacterMerger(vocabulary, ranks)
    return ByteMerger(vocabulary.byte_tokens, ranks)


def _starts_of_words(reference: ReferenceEngine, text: str) -> list[int]:
    """Return at which characters of a text the words start into which the tokenizer cuts it.

    Args:
        reference: The tokenizer in Hugging Face's library, which returns each word with its range:
            ("né", (0, 2)) and (" a", (2, 4)).
        text: The text, such as "né a".

    Returns:
        Such as [0, 2].
    """
    return [start for _word, (start, _stop) in reference.split(text)]


def _starts_by_text(is_start: Bools, is_separator: Bools) -> list[list[int]]:
    """Return at which characters of each text words start, given texts between separators.

    For the texts "né a" and "b", with | for separators:

        characters      |  n  é  _  a  |  b  |
        is_start        T  T  F  T  F  T  T  T
        result          [0, 2]            [0]

    Args:
        is_start: bool, shape (n_characters,): whether a word starts at a character.
        is_separator: bool, shape (n_characters,).
    """
    starts_by_text: list[list[int]] = []
    for before, after in pairwise(np.flatnonzero(is_separator).tolist()):
        is_start_in_text = is_start[before + 1 : after]
        starts_by_text.append(np.flatnonzero(is_start_in_text).tolist())
    return starts_by_text


def _positions_of_separators(texts: list[bytes]) -> Ints:
    """Return where separators are if there is one before each text, and one after the last text.

    Args:
        texts: The texts, such as "a b" and "cd".

    Returns:
        int64, shape (n_texts + 1,): 0 4 7.
    """
    text_bytes = np.array([len(text) for text in texts], np.int64)  # (n_texts,) 3 2
    return np.append(0, np.cumsum(text_bytes + 1))


def _stops_of_words(starts: Ints, first_words: Ints, text_stops: Ints) -> Ints:
    """Return where words stop: where the next word starts, or where their text stops.

    For two texts, "a b" at the bytes 1 to 4, and "cd" at 5 to 7:

        word      "a"    " b"    "cd"
        starts    1      2       5
        stops     2      4       7

    Args:
        starts: int64, shape (n_words,): first byte of each word of all texts.
        first_words: int64, shape (n_texts,): index of each text's first word, here [0, 2].
        text_stops: int64, shape (n_texts,): the byte after each text, here [4, 7].

    Returns:
        int64, shape (n_words,).
    """
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    last_words = np.append(first_words[1:], len(starts)) - 1  # (n_texts,)
    stops[last_words] = text_stops
    return stops


def interleave(mask: Bools, if_true: FlatLists, if_false: FlatLists) -> Encoded:
    """Put the tokens of documents back into order, after two tokenizers have encoded some each.

        documents          0        1        2
        mask               T        F        T
        if_true            [1 2]             [3]
        if_false                    [7 8]
        result             [1 2]    [7 8]    [3]

    Args:
        mask: bool, shape (n_documents,): which documents are among `if_true`.
        if_true: Their tokens, concatenated, and the number of tokens of each.
        if_false: The same for the other documents.
    """
    true_ids, true_lengths = if_true
    false_ids, false_lengths = if_false
    lengths = _merged(mask, true_lengths, false_lengths)  # 2 2 1
    is_from_true = np.repeat(mask, lengths)  # (n_tokens,) T T F F T
    ids = _merged(is_from_true, true_ids, false_ids)  # 1 2 7 8 3
    return Encoded(ids, lengths)


def _merged(mask: Bools, if_true: NDArray[Any], if_false: NDArray[Any]) -> Ids:
    """Return the values of two arrays in the order of a mask: int32, shape of `mask`."""
    values = np.empty(len(mask), np.int32)
    values[mask] = if_true
    values[~mask] = if_false
    return values
