"""Get the words of tokenized documents, in whatever way the words are divided into tokens.

A word consists of letters and digits, and is compared in lower case.

Documents are stored as tokens. To compare words without decoding every document, each token of the
vocabulary is divided once into *pieces*. A piece is a run of letters and digits, and it either
begins a word or continues the word before it:

    token       pieces                                      (┃ = begins a word)
    " The"      ┃the
    "ab, cd."   ab  ┃cd  ┃                                  the last piece, without letters, ends cd
    "ing"       ing

The tokens " play" and "ing" have the pieces ┃play and ing, which are the word "playing". The tokens
" playing" and "PLAYING," lead to the same word.

The hash of a word depends only on its bytes, so it is the same in one token or in several. For the
bytes b[0], b[1], … it is

    BYTE_HASHES[b[0]] * FACTOR**0 + BYTE_HASHES[b[1]] * FACTOR**1 + …    modulo 2**64

with exponents modulo 256. The hash of each piece is computed once with the same formula, so that
its first byte has the exponent 0. If k bytes of a word precede the piece, the bytes of the piece
have exponents that are greater by k, and what they add to the hash of the word is the hash of the
piece, multiplied by FACTOR**k. So the hash of a word is a sum over its pieces; that of "playing" is

    hash("play") + hash("ing") * FACTOR**4
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import STEP, mix
from nanoset_core.stages.contamination.array_files import load_array, save_arrays

_FACTOR = 0xD6E8FEB86659FD93
"""An odd number whose bits look random."""
_FACTOR_POWERS = np.array([pow(_FACTOR, k, 1 << 64) for k in range(256)], np.uint64)
"""Powers of `_FACTOR`, modulo 2**64, by exponent; shape (256,). Exponents are taken modulo 256."""
_BYTE_HASHES = mix(np.arange(1, 257, dtype=np.uint64) * STEP)
"""Hash of each value of a byte, a number that looks random; shape (256,)."""

_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x1000, 0x10A0),  # Burmese
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # Hiragana, Katakana
    (0x3400, 0xA000),  # Chinese characters
    (0xF900, 0xFB00),  # Chinese characters for compatibility
)
"""Ranges [start, stop) of code points whose letters are words by themselves, since these scripts
put no spaces between words.
"""
_FIRST_SUPPLEMENTARY_IDEOGRAPH = 0x20000
"""Chinese characters outside the first 65,536 code points start here."""
_FIRST_BYTES_WITHOUT_SPACES = b"\xe3\xe4\xe5\xe6\xe7\xe8\xe9"
"""First UTF-8 bytes of the letters of `_SCRIPTS_WITHOUT_SPACES` from U+3000 on. They show that a
letter is a word by itself, even if a token holds only the first bytes of it.
"""
_ESCAPED_BYTES = range(0xDC80, 0xDD00)
"""Code points to which Python's `surrogateescape` decodes bytes that are not UTF-8."""


_SEPARATOR = "\0"  # in place of characters that separate words; it is no letter itself
_Number = TypeVar("_Number", bound=np.generic)


class WordPiece(NamedTuple):
    """A part of a word in one token."""

    begins_word: bool
    """Whether a word begins here; otherwise the piece continues the word before it."""
    letters: bytes
    """Letters and digits in lower case, UTF-8; empty for what only separates words."""


def split_into_pieces(token: bytes) -> list[WordPiece]:
    """Divide the bytes of a token into pieces of words; there is always at least one.

    A piece is a run of letters and digits in lower case:

        b" The"      the, which begins a word
        b"ab, cd"    ab, which may continue the word of the token before; cd, which begins a word
        b"ab,"       ab; and an empty piece, so that letters of the next token do not continue ab

    Args:
        token: The bytes. They may hold only some bytes of a letter, which then count as a letter.

    Returns:
        The pieces in order.
    """
    # Put one separator in place of each character that is no letter, and split there. With "|" as
    # the separator, "ab, cd" becomes "ab||cd", which has the runs "ab", "" and "cd".
    # Bytes that are not UTF-8, such as a part of a letter, become one character each.
    characters = token.decode("utf-8", "surrogateescape")
    runs = "".join(map(_as_letter, characters)).split(_SEPARATOR)

    # A run begins a word if a separator precedes it. Leave out empty runs, except for the last one:
    # it says that the token ends the word.
    pieces = []
    for index, letters in enumerate(runs):
        is_last = index == len(runs) - 1
        if letters or is_last:
            pieces.append(_piece(letters, begins_word=index > 0))
    return pieces


def _as_letter(character: str) -> str:
    """Return a letter or digit in lower case, and _SEPARATOR for any other character.

    A letter that is a word by itself, such as a Chinese character, separates words, too: it follows
    a separator.
    """
    if not _is_letter(character):
        return _SEPARATOR
    letter = character if _is_byte_of_letter(character) else character.casefold()
    return _SEPARATOR + letter if _is_word_by_itself(character) else letter


def _piece(letters: str, *, begins_word: bool) -> WordPiece:
    """Return a piece with its letters as UTF-8 bytes.

    Args:
        letters: The letters. Bytes that are only a part of a letter become these bytes again.
        begins_word: Whether the piece begins a word.
    """
    return WordPiece(begins_word, letters.encode("utf-8", "surrogateescape"))


def _is_byte_of_letter(character: str) -> bool:
    """Return whether a character stands for one byte of a letter that two tokens share."""
    return ord(character) in _ESCAPED_BYTES


def _is_letter(character: str) -> bool:
    """Return whether a character belongs to a word: a letter, a mark on a letter, or a digit."""
    return _is_byte_of_letter(character) or unicodedata.category(character)[0] in "LMN"


def _is_word_by_itself(character: str) -> bool:
    """Return whether a letter counts as a word, as in scripts without spaces, such as Chinese.

    Args:
        character: A letter, a digit, or a mark on the letter before it; or one byte of a letter
            that is divided between tokens, in the form that `_is_byte_of_letter` recognises.
    """
    if _is_byte_of_letter(character):
        return _begins_letter_without_spaces(character)
    if not character.isalnum():
        return False  # a mark
    code_point = ord(character)
    if code_point >= _FIRST_SUPPLEMENTARY_IDEOGRAPH:
        return True
    return any(start <= code_point < stop for start, stop in _SCRIPTS_WITHOUT_SPACES)


def _begins_letter_without_spaces(escaped_byte: str) -> bool:
    """Return whether a byte is the first one of a letter of a script without spaces.

    For example, the Chinese 中 has the bytes E4 B8 AD. The byte E4 begins such a letter.

    Args:
        escaped_byte: The byte, as the character to which `surrogateescape` decodes it.
    """
    byte = escaped_byte.encode("utf-8", "surrogateescape")
    return byte in _FIRST_BYTES_WITHOUT_SPACES


class DocumentWords(NamedTuple):
    """The words of some documents, in order."""

    hashes: NDArray[np.uint64]
    """Hash of each word; shape (n_words,)."""
    first_pieces: NDArray[np.int64]
    """Index of each word's first piece in `piece_ids`; shape (n_words,)."""
    piece_ids: NDArray[np.int64]
    """All pieces of the documents, by their number in the vocabulary; shape (n_pieces,)."""
    piece_starts: NDArray[np.int64]
    """Index of each document's first piece, and at the end n_pieces; shape (n_documents + 1,)."""

    def documents(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document of each of some words, counted from 0, in the shape of `words`.

        Args:
            words: Numbers of words, counted over all documents.
        """
        return np.searchsorted(self.piece_starts, self.first_pieces[words], side="right") - 1

    def pieces_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the pieces of the words from `start` up to `stop`.

        Args:
            start: Number of the first word, counted over all documents.
            stop: Number of the word after the last one.

        Returns:
            Numbers of pieces in the vocabulary; int64, shape (n,).
        """
        stop_piece = len(self.piece_ids)
        if stop < len(self.first_pieces):
            stop_piece = self.first_pieces[stop]
        return self.piece_ids[self.first_pieces[start] : stop_piece]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of words of each document; int64, shape (n_documents,)."""
        return np.diff(np.searchsorted(self.first_pieces, self.piece_starts))


class _DocumentPieces(NamedTuple):
    """The pieces of words that documents consist of."""

    ids: NDArray[np.int64]
    """Number of each piece in the vocabulary, document by document; shape (n_pieces,)."""
    document_starts: NDArray[np.int64]
    """Index of each document's first piece, and at the end n_pieces; shape (n_documents + 1,)."""


@dataclass(frozen=True, slots=True)
class WordVocabulary:
    """The pieces of every token of a vocabulary.

    The pieces are numbered: piece i is the first one of token i. If a token has several pieces, the
    others are its *further* pieces, and their numbers are above those of all first pieces.
    """

    begins_word: NDArray[np.bool_]
    """Whether each piece begins a word; shape (n_pieces,)."""
    hashes: NDArray[np.uint64]
    """Hash of each piece, with exponent 0 for its first byte; shape (n_pieces,)."""
    lengths: NDArray[np.uint8]
    """Bytes of each piece, modulo 256; shape (n_pieces,)."""
    stops: NDArray[np.int64]
    """End of each piece's bytes in `data`; shape (n_pieces,)."""
    data: NDArray[np.uint8]
    """The bytes of all pieces, concatenated."""
    first_further_piece: NDArray[np.int64]
    """Number of each token's first further piece, if it has one; shape (n_tokens,)."""
    n_further_pieces: NDArray[np.int64]
    """How many further pieces each token has; shape (n_tokens,)."""
    has_further_pieces: NDArray[np.bool_]
    """Whether each token has more than one piece; shape (n_tokens,)."""

    @staticmethod
    def of(tokens: Sequence[bytes]) -> WordVocabulary:
        """Divide the tokens of a vocabulary into pieces of words, and hash the pieces.

        A piece is a run of letters and digits; other characters only divide a token into pieces.
        Most tokens have one piece. Its number is that of the token. Further pieces are numbered
        after those of all tokens:

            token         first piece    further pieces
            0  " The"     0  the
            1  "ab, cd"   1  ab          3  cd
            2  "ing"      2  ing

        Args:
            tokens: The bytes of each token, by id.

        Returns:
            The pieces of all tokens, as arrays.
        """
        pieces_by_token = [split_into_pieces(token) for token in tokens]  # at least one each
        pieces = _in_order_of_numbers(pieces_by_token)  # the, ab, ing, cd in the example

        # How many further pieces each token has, and the number of the first of them. In the
        # example, [0, 1, 0] and [3, 3, 4]; the latter is used only for tokens that have some.
        n_further_pieces = np.array([len(p) - 1 for p in pieces_by_token], np.int64)
        first_further_piece = len(tokens) + running_sums(n_further_pieces)[:-1]

        letters = _concatenate_letters(pieces)
        return WordVocabulary(
            begins_word=np.array([piece.begins_word for piece in pieces], np.bool_),
            hashes=_piece_hashes(letters),
            lengths=letters.lengths.astype(np.uint8),  # modulo 256; see `words`
            stops=letters.stops,
            data=letters.data,
            first_further_piece=first_further_piece,
            n_further_pieces=n_further_pieces,
            has_further_pieces=n_further_pieces > 0,
        )

    def save(self, folder: Path) -> None:
        """Write the arrays to a folder, from which `load` reads them.

        Args:
            folder: An existing folder.
        """
        # The names of the files differ from those of the fields, and must not change: outputs of
        # earlier versions are loaded by these names.
        further_pieces = np.stack([self.first_further_piece, self.n_further_pieces], axis=1)
        arrays = {
            "begins": self.begins_word,
            "hashes": self.hashes,
            "lengths": self.lengths,
            "ends": self.stops,
            "data": self.data,
            "others": further_pieces,  # (n_tokens, 2)
            "is_split": self.has_further_pieces,
        }
        save_arrays(folder, arrays)

    @staticmethod
    def load(folder: Path) -> WordVocabulary:
        """Map the arrays that `save` wrote to a folder into memory.

        Args:
            folder: The folder.
        """
        # (n_tokens, 2) for each token, its first further piece and the number of these
        further_pieces = load_array(folder, "others")
        return WordVocabulary(
            begins_word=load_array(folder, "begins"),
            hashes=load_array(folder, "hashes"),
            lengths=load_array(folder, "lengths"),
            stops=load_array(folder, "ends"),
            data=load_array(folder, "data"),
            first_further_piece=further_pieces[:, 0],
            n_further_pieces=further_pieces[:, 1],
            has_further_pieces=load_array(folder, "is_split"),
        )

    def words(self, tokens: NDArray[Any], token_starts: NDArray[np.int64]) -> DocumentWords:
        """Return the words of tokenized documents, with the hash of each word.

        A token consists of pieces, which are letters that belong together. A word is a piece that
        begins a word, and all pieces that continue it:

            token            " play"   "ing"   ","   " but"
            piece            play      ing           but
            begins a word    yes       no      yes   yes
            word             playing                 but

        Words without letters, such as that of the comma, are left out.

        Args:
            tokens: The tokens of all documents, concatenated; integers, shape (n_tokens,).
            token_starts: Index of each document's first token, and at the end n_tokens; shape
                (n_documents + 1,).
        """
        pieces = self._pieces(tokens, token_starts)
        word_bounds = self._word_bounds(pieces)  # (n_words + 1,)

        # Count the bytes of each word. The pieces above have 4, 3, 0 and 3 bytes, so 0, 4, 7 and 7
        # bytes precede them, and there are 10 in all. The words start at the pieces 0, 2 and 3, so
        # their lengths are the differences between 0, 7, 7 and 10, which are 7, 0 and 3.
        bytes_before_piece = running_sums(self.lengths[pieces.ids])  # (n_pieces + 1,) uint8
        bytes_per_word = np.diff(bytes_before_piece[word_bounds])  # (n_words,)
        # To save memory, counts are modulo 256. So a word of 256 bytes seems to have no letters.
        # It is left out both of documents and of evaluation texts.
        has_letters = bytes_per_word != 0

        # Sum up what each word's pieces add to its hash in the same way.
        hash_terms = self._hash_terms(pieces.ids, word_bounds, bytes_before_piece)
        hashes = np.diff(running_sums(hash_terms)[word_bounds])  # (n_words,)
        first_pieces = word_bounds[:-1]
        return DocumentWords(
            hashes=hashes[has_letters],
            first_pieces=first_pieces[has_letters],
            piece_ids=pieces.ids,
            piece_starts=pieces.document_starts,
        )

    def _word_bounds(self, pieces: _DocumentPieces) -> NDArray[np.int64]:
        """Group pieces into words: a piece that begins a word, and all pieces that continue it.

        For example, the pieces play, ing, but, of which play and but begin a word, have the bounds
        0 2 3.

        Args:
            pieces: The pieces of some documents.

        Returns:
            Index of each word's first piece, and at the end n_pieces; shape (n_words + 1,).
        """
        n_pieces = len(pieces.ids)
        begins_word = self.begins_word[pieces.ids]  # (n_pieces,)

        # The first piece of a document never continues a word of the document before it. Empty
        # documents at the end have no first piece: their start is n_pieces.
        first_pieces = pieces.document_starts[:-1]
        begins_word[first_pieces[first_pieces < n_pieces]] = True
        return np.append(np.flatnonzero(begins_word), n_pieces)

    def _hash_terms(
        self,
        piece_ids: NDArray[np.int64],
        word_bounds: NDArray[np.int64],
        bytes_before_piece: NDArray[np.uint8],
    ) -> NDArray[np.uint64]:
        """Return what each piece adds to the hash of its word: uint64, shape (n_pieces,).

        If the piece comes after k bytes of the word, that is the hash of the piece multiplied by
        FACTOR**k. So "playing" has the hash hash("play") + hash("ing") * FACTOR**4.

        Args:
            piece_ids: Number of each piece of the documents, shape (n_pieces,).
            word_bounds: Index of each word's first piece, and at the end n_pieces; shape
                (n_words + 1,).
            bytes_before_piece: Bytes of the documents before each piece, and at the end all bytes,
                modulo 256; shape (n_pieces + 1,).
        """
        # For the pieces "play", "ing" and "but", the bounds of words are [0, 2, 3], and there are
        # [0, 4, 7] bytes before each piece. Subtract the bytes before its word, [0, 0, 7], to get
        # [0, 4, 0]. Differences of numbers modulo 256 are right modulo 256.
        pieces_per_word = np.diff(word_bounds)  # [2, 1]
        bytes_before_word = np.repeat(bytes_before_piece[word_bounds[:-1]], pieces_per_word)
        exponents = bytes_before_piece[:-1] - bytes_before_word  # (n_pieces,) uint8

        terms = self.hashes[piece_ids]  # (n_pieces,)
        terms *= _FACTOR_POWERS.take(exponents)  # entry k of this table is FACTOR**k
        return terms

    def _pieces(self, tokens: NDArray[Any], token_starts: NDArray[np.int64]) -> _DocumentPieces:
        """Replace the tokens of documents by the pieces of words that they consist of.

        The first piece of a token has the number of the token. For example, if token 7 has the
        further pieces 100 and 101, the documents [5, 7] and [6] become [5, 7, 100, 101] and [6].

        Args:
            tokens: The tokens of all documents, concatenated; integers, shape (n_tokens,).
            token_starts: Index of each document's first token, and at the end n_tokens; shape
                (n_documents + 1,).
        """
        # The values in these comments are those of the example, whose tokens are [5, 7, 6].
        first_pieces = tokens.astype(np.int64)

        # Find the few tokens that have further pieces.
        split_positions = np.flatnonzero(self.has_further_pieces[first_pieces])  # [1]
        if not len(split_positions):
            return _DocumentPieces(first_pieces, token_starts)
        split_tokens = first_pieces[split_positions]  # [7]

        # Insert their further pieces, which have consecutive numbers, after the first ones.
        n_further = self.n_further_pieces[split_tokens]  # [2]
        further_pieces = positions_in(self.first_further_piece[split_tokens], n_further)
        insert_before = np.repeat(split_positions + 1, n_further)  # [2, 2]
        piece_ids = np.insert(first_pieces, insert_before, further_pieces)  # [5, 7, 100, 101, 6]

        # A document starts later by the number of pieces that were inserted before it.
        n_split_before = np.searchsorted(split_positions, token_starts)  # [0, 1, 1]
        n_inserted_before = running_sums(n_further)[n_split_before]  # [0, 2, 2]
        document_starts = token_starts + n_inserted_before  # [0, 2, 3] → [0, 4, 5]
        return _DocumentPieces(piece_ids, document_starts)

    def letter_counts(self, words: DocumentWords) -> NDArray[np.int64]:
        """Return how long each word is.

        For example, "how tired" has the counts 3 and 5.

        Args:
            words: The words of some documents.

        Returns:
            Number of UTF-8 bytes of each word; int64, shape (n_words,).
        """
        # The field `lengths` counts modulo 256. Compute the full lengths from the ends.
        lengths = np.diff(self.stops, prepend=0)  # (n_pieces of the vocabulary,)

        # Count from the first piece of a word up to that of the next word. There may be pieces that
        # belong to neither, such as that of a comma, but these have no letters.
        bytes_before_piece = running_sums(lengths[words.piece_ids])
        bounds = np.append(words.first_pieces, len(words.piece_ids))  # (n_words + 1,)
        counts: NDArray[np.int64] = np.diff(bytes_before_piece[bounds])
        return counts

    def text(self, words: DocumentWords, start: int, stop: int) -> str:
        """Return words as text, separated by spaces.

        Args:
            words: The words of some documents.
            start: Index of the first word of the text.
            stop: Index of the word after the last one.
        """
        parts = []
        for piece in words.pieces_between(start, stop).tolist():
            if self.begins_word[piece]:
                parts.append(b" ")
            parts.append(self._letters_of(piece))
        text = b"".join(parts).decode(errors="replace")

        # Pieces without letters, such as that of ",", leave several spaces in a row.
        return " ".join(text.split())

    def _letters_of(self, piece: int) -> bytes:
        """Return the letters of a piece of the vocabulary, as UTF-8."""
        # The letters of all pieces are concatenated: those of a piece start where the one before it
        # stops.
        start = self.stops[piece - 1] if piece > 0 else 0
        return self.data[start : self.stops[piece]].tobytes()


def _in_order_of_numbers(pieces_by_token: Sequence[Sequence[WordPiece]]) -> list[WordPiece]:
    """Return the first pieces of all tokens, and after them their further pieces.

    For example, [[a, b], [c], [d, e, f]] becomes [a, c, d, b, e, f].

    Args:
        pieces_by_token: The pieces of each token, at least one each.
    """
    pieces = [token_pieces[0] for token_pieces in pieces_by_token]
    for token_pieces in pieces_by_token:
        pieces += token_pieces[1:]
    return pieces


def running_sums(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return the sum of all values before each one, and at the end the sum of all.

    For example, [3, 1, 2] gives [0, 3, 4, 6].

    Args:
        values: Shape (n_values,).

    Returns:
        Shape (n_values + 1,), of the same type: sums that are too large for it wrap around.
    """
    sums = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, dtype=values.dtype, out=sums[1:])
    return sums


class _PieceLetters(NamedTuple):
    """The letters of all pieces of a vocabulary."""

    data: NDArray[np.uint8]
    """The UTF-8 bytes of all pieces, concatenated; shape (n_bytes,)."""
    stops: NDArray[np.int64]
    """Index in `data` of the byte after each piece; shape (n_pieces,)."""
    lengths: NDArray[np.int64]
    """Number of bytes of each piece; shape (n_pieces,)."""


def _concatenate_letters(pieces: Sequence[WordPiece]) -> _PieceLetters:
    """Return the letters of pieces as arrays: "the" and "ing" become "theing", with ends 3 and 6.

    Args:
        pieces: The pieces, in the order of their numbers.
    """
    lengths = np.array([len(piece.letters) for piece in pieces], np.int64)
    data = np.frombuffer(b"".join(piece.letters for piece in pieces), np.uint8)
    return _PieceLetters(data, stops=np.cumsum(lengths), lengths=lengths)


def _piece_hashes(letters: _PieceLetters) -> NDArray[np.uint64]:
    """Return the hash of the letters of each piece, a polynomial in its bytes.

    The hash of a piece with the bytes b[0], b[1], … is, modulo 2**64 and with exponents modulo 256,

        BYTE_HASHES[b[0]] * FACTOR**0 + BYTE_HASHES[b[1]] * FACTOR**1 + …

    Args:
        letters: The bytes of all pieces.

    Returns:
        uint64, shape (n_pieces,); 0 for a piece without bytes.
    """
    # Number the bytes of each piece from 0: 0 1 2 0 1 for pieces of 3 and 2 bytes.
    lengths = letters.lengths
    positions = positions_in(starts=np.zeros_like(lengths), lengths=lengths)  # (n_bytes,)

    # What each byte adds to the hash of its piece; the products wrap around, as intended.
    factors = _FACTOR_POWERS[positions % 256]  # entry k of this table is FACTOR**k
    terms = _BYTE_HASHES[letters.data] * factors

    # Sum over the bytes of each piece: sums[k] is the sum of the terms before byte k.
    sums = running_sums(terms)  # (n_bytes + 1,)
    hashes: NDArray[np.uint64] = sums[letters.stops] - sums[letters.stops - lengths]
    return hashes
