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
    """Divide a token into pieces of words, so that words can be found without decoding.

    Words consist of letters and digits, and a token may have parts of several words. Each of them
    is a piece, in lower case:

        b" The"      the, which begins a word
        b"Ab, cd"    ab, which may continue a word of the token before; cd, which begins a word
        b"ab,"       ab; and an empty piece, so that letters of the next token do not continue ab

    Args:
        token: The bytes. They may have only some bytes of a letter, which then count as a letter.

    Returns:
        The pieces in order, at least one.
    """
    # A token may have only some bytes of a letter. `surrogateescape` decodes each to a character.
    characters = token.decode("utf-8", "surrogateescape")

    # Put one separator in place of each character that is no letter, and split there. With "|" as
    # the separator, "Ab, cd" becomes "ab||cd", which has the runs "ab", "" and "cd".
    runs = "".join(map(_as_letter, characters)).split(_SEPARATOR)

    # The first run may continue a word, since no separator precedes it. The others begin words.
    # Leave out empty runs, except for the last one: it says that the token ends a word.
    pieces = []
    for index, letters in enumerate(runs):
        is_last = index == len(runs) - 1
        if letters or is_last:
            pieces.append(_piece(letters, begins_word=index > 0))
    return pieces


def _as_letter(character: str) -> str:
    """Return what stands for a character when a text is divided into words at separators.

    Letters are compared in lower case. With | for the separator:

        A or a               a
        a space, a comma     |
        a Chinese letter     |中     it is a word by itself, so a separator precedes it

    The separator is _SEPARATOR.
    """
    if not _is_letter(character):
        return _SEPARATOR
    letter = character
    if not _is_byte_of_letter(character):  # two tokens may share a letter: a byte has no lower case
        letter = character.casefold()
    if _is_word_by_itself(character):
        return _SEPARATOR + letter
    return letter


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
    r"""Return whether a letter counts as a word, as in scripts without spaces, such as Chinese.

    For example, 中国 are two words here, and "cat" is one word.

    Args:
        character: A letter, a digit, or a mark such as an accent. Or one byte of a letter, if a
            token has only some of its bytes: in the form to which Python's `surrogateescape`
            decodes a byte that is not UTF-8, such as "\udce4" for the byte E4.
    """
    # One byte of a letter: the Chinese 中 has the bytes E4 B8 AD, and E4 begins such letters.
    if _is_byte_of_letter(character):
        byte = character.encode("utf-8", "surrogateescape")
        return byte in _FIRST_BYTES_WITHOUT_SPACES

    # A mark is written on the letter before it.
    if not character.isalnum():
        return False

    # A letter or digit: look up its script by its number in Unicode.
    code_point = ord(character)
    if code_point >= _FIRST_SUPPLEMENTARY_IDEOGRAPH:  # rare Chinese characters
        return True
    return any(start <= code_point < stop for start, stop in _SCRIPTS_WITHOUT_SPACES)


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
        """Return in which document each of some words is, counted from 0, in the shape of `words`.

        Args:
            words: Numbers of words, counted over all documents. For example, if document 0 has 100
                words, the words 99 and 100 are in the documents 0 and 1.
        """
        return np.searchsorted(self.piece_starts, self.first_pieces[words], side="right") - 1

    def pieces_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the pieces of some consecutive words, to show the words as text.

        A word consists of one or more pieces, which are parts of tokens. For example, the words 0
        and 1 have three pieces:

            piece of the documents             0       1      2      3
            its letters                        play    ing    but    they
            is in word                         0       0      1      2
            its number in the vocabulary       411     8      37     52       result: [411, 8, 37]

        Args:
            start: Number of the first word, counted over all documents.
            stop: Number of the word after the last one, such as 2.

        Returns:
            Numbers of pieces in the vocabulary; int64, shape (n,).
        """
        start_piece = self.first_pieces[start]
        if stop < len(self.first_pieces):
            stop_piece = self.first_pieces[stop]  # where the next word begins
        else:
            stop_piece = len(self.piece_ids)  # up to the end of the last word
        return self.piece_ids[start_piece:stop_piece]

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
        """Divide each token of a tokenizer into pieces of words, to find words quickly.

        A piece is a run of letters and digits; other characters only divide a token into pieces.
        Here are three tokens. Their first pieces get the numbers of the tokens, 0 to 2. The pieces
        that are left are numbered after these, from 3 on:

            token         first piece    further pieces    how many    number of the first of these
            0  " The"     0  the                           0           (3, not used)
            1  "ab, cd"   1  ab          3  cd             1           3
            2  "ing"      2  ing                           0           (4, not used)

        Args:
            tokens: The bytes of each token, by number.

        Returns:
            The pieces of all tokens, as arrays, and a hash of the letters of each.
        """
        pieces_by_token = [split_into_pieces(token) for token in tokens]  # at least one each
        pieces = _in_order_of_numbers(pieces_by_token)  # the, ab, ing, cd

        # The last two columns of the table. The further pieces of a token are numbered after all
        # first pieces, and after the further pieces of earlier tokens.
        n_further_pieces = np.array([len(p) - 1 for p in pieces_by_token], np.int64)  # [0, 1, 0]
        n_further_before = running_sums(n_further_pieces)[:-1]  # of earlier tokens: [0, 0, 1]
        first_further_piece = len(tokens) + n_further_before  # [3, 3, 4]

        letters = _concatenate_letters(pieces)
        return WordVocabulary(
            begins_word=np.array([piece.begins_word for piece in pieces], np.bool_),
            hashes=_piece_hashes(letters),
            # A length of 256 becomes 0, and 257 becomes 1: `words` needs only these 8 bits.
            lengths=letters.lengths.astype(np.uint8),
            stops=letters.stops,
            data=letters.data,
            first_further_piece=first_further_piece,
            n_further_pieces=n_further_pieces,
            has_further_pieces=n_further_pieces > 0,
        )

    def save(self, folder: Path) -> None:
        """Write the vocabulary, which takes long to compute, to files that `load` reads.

        There is one file for each array, such as hashes.npy.

        Args:
            folder: An existing folder.
        """
        # Two arrays share a file: two columns, with a row for each token.
        further_pieces = np.stack([self.first_further_piece, self.n_further_pieces], axis=1)

        # The names of the files differ from those of the fields, and must not change: outputs of
        # earlier versions are loaded by these names.
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
        """Map the files that `save` wrote into memory, so that only what is used is read.

        Args:
            folder: The folder with the files, one for each array.
        """
        # Two arrays share this file: two columns, with a row for each token.
        further_pieces = load_array(folder, "others")  # (n_tokens, 2)

        # The names of the files differ from those of the fields, since they are those of earlier
        # versions, and must not change.
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
        """Find the words of documents that are stored as tokens, and compute a hash of each word.

        The tokens of the vocabulary have been divided into pieces, which are runs of letters. A
        word is a piece that begins a word, with all pieces that continue it:

            token            " play"   "ing"   ","   " but"
            piece            play      ing           but
            begins a word    yes       no      yes   yes
            word             playing                 but

        The piece of the comma has no letters. It only ends the word before it, and is left out.

        Args:
            tokens: The tokens of all documents, concatenated; integers, shape (n_tokens,).
            token_starts: Index of each document's first token, and at the end n_tokens; shape
                (n_documents + 1,).
        """
        pieces = self._pieces(tokens, token_starts)
        word_bounds = self._word_bounds(pieces)  # (n_words + 1,) [0, 2, 3, 4]

        # Count the bytes of each word: 7, 0 and 3. First count how many bytes precede each piece.
        # Then the length of a word is the difference between its start and that of the next word.
        piece_bytes = self.lengths[pieces.ids]  # [4, 3, 0, 3]
        bytes_before_piece = running_sums(piece_bytes)  # (n_pieces + 1,) uint8 [0, 4, 7, 7, 10]
        bytes_before_word = bytes_before_piece[word_bounds]  # [0, 7, 7, 10]
        bytes_per_word = np.diff(bytes_before_word)  # (n_words,) [7, 0, 3]

        # To save memory, bytes are counted modulo 256. So a word of 256 bytes seems to have none.
        # This does no harm: it is left out both of documents and of texts compared with them.
        has_letters = bytes_per_word != 0

        # The hash of a word is a sum over its pieces: sum up in the same way.
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
        """Return where the words start in a sequence of pieces, which are parts of words.

        A word is a piece that begins a word, and all pieces that continue it. For example:

            piece            0       1      2
            letters          play    ing    but
            begins a word    yes     no     yes      words start at 0 and 2, and the last ends at 3

        Args:
            pieces: The pieces of some documents.

        Returns:
            Index of each word's first piece, and at the end n_pieces; shape (n_words + 1,).
        """
        n_pieces = len(pieces.ids)
        is_start = self.begins_word[pieces.ids]  # (n_pieces,) [True, False, True]

        # The first piece of a document never continues a word of the document before it. If the
        # last documents are empty, they start after all pieces, and have no first piece.
        first_pieces = pieces.document_starts[:-1]
        first_pieces = first_pieces[first_pieces < n_pieces]
        is_start[first_pieces] = True
        return np.append(np.flatnonzero(is_start), n_pieces)  # [0, 2, 3]

    def _hash_terms(
        self,
        piece_ids: NDArray[np.int64],
        word_bounds: NDArray[np.int64],
        bytes_before_piece: NDArray[np.uint8],
    ) -> NDArray[np.uint64]:
        """Return what each piece of a word adds to the hash of the word: uint64, shape (n_pieces,).

        A word is put together from pieces of tokens: "playing" from "play" and "ing", for example.
        Its hash is the sum of what its pieces add. The hash of a piece alone is known. It is
        multiplied by FACTOR, a fixed number, once for each byte of the word that comes before the
        piece:

            word                          playing                         but
            piece                         play        ing                 but
            bytes of the word before it   0           4                   0
            adds (F is FACTOR)            hash(play)  hash(ing) * F**4    hash(but)

        Args:
            piece_ids: Number of each piece in the vocabulary, shape (n_pieces,). Here there are
                three: of "play", "ing" and "but".
            word_bounds: Index of each word's first piece, and at the end n_pieces: [0, 2, 3]; shape
                (n_words + 1,).
            bytes_before_piece: How many bytes of all words precede each piece, and at the end the
                number of all bytes: [0, 4, 7, 10]; shape (n_pieces + 1,). After 255, these numbers
                continue with 0, since they are stored in 8 bits.
        """
        # For each piece, get how many bytes precede its word: 0 for "play" and "ing", 7 for "but".
        pieces_per_word = np.diff(word_bounds)  # [2, 1]
        bytes_before_word = bytes_before_piece[word_bounds[:-1]]  # [0, 7]
        bytes_before_word_of_piece = np.repeat(bytes_before_word, pieces_per_word)  # [0, 0, 7]

        # The difference is how many bytes of the word precede the piece. It is right even if the
        # numbers have passed 255 in between: 2 - 254 is 4 in 8 bits.
        exponents = bytes_before_piece[:-1] - bytes_before_word_of_piece  # [0, 4, 0] uint8

        terms = self.hashes[piece_ids]  # (n_pieces,)
        terms *= _FACTOR_POWERS.take(exponents)  # entry 4 of this table is FACTOR**4
        return terms

    def _pieces(self, tokens: NDArray[Any], token_starts: NDArray[np.int64]) -> _DocumentPieces:
        """Replace each token of documents by the parts of words that it has, its pieces.

        Most tokens have one piece, which has the number of the token. A few have further pieces,
        with greater numbers: here token 7 has the pieces 7, 100 and 101. So the pieces are more
        than the tokens, and documents start at other indices:

            document           0    0                1
            index of token     0    1                2
            token              5    7                6
            its pieces         5    7  100  101      6
            index of piece     0    1    2    3      4

        Document 1 starts at token 2, and at piece 4.

        Args:
            tokens: The tokens of all documents, concatenated: [5, 7, 6]; shape (n_tokens,).
            token_starts: Index of each document's first token, and at the end n_tokens: [0, 2, 3];
                shape (n_documents + 1,).

        Returns:
            The pieces of all documents, concatenated, and the index of each document's first piece,
            with the number of pieces at the end: [0, 4, 5].
        """
        # The first piece of each token has the token's number.
        first_pieces = tokens.astype(np.int64)  # [5, 7, 6]

        # Find the few tokens that have further pieces.
        split_positions = np.flatnonzero(self.has_further_pieces[first_pieces])  # [1]
        if not len(split_positions):
            return _DocumentPieces(first_pieces, token_starts)
        split_tokens = first_pieces[split_positions]  # [7]

        # List their further pieces. Those of a token have consecutive numbers.
        n_further = self.n_further_pieces[split_tokens]  # [2]
        first_further = self.first_further_piece[split_tokens]  # [100]
        further_pieces = positions_in(first_further, n_further)  # [100, 101]

        # Insert them after the first pieces of these tokens. Token 1 has them in the example, so
        # insert both before index 2.
        insert_before = np.repeat(split_positions + 1, n_further)  # [2, 2]
        piece_ids = np.insert(first_pieces, insert_before, further_pieces)  # [5, 7, 100, 101, 6]

        # A document starts later by the number of pieces that were inserted before it. For each
        # start, count the tokens with further pieces before it, and then the pieces of these.
        n_split_before = np.searchsorted(split_positions, token_starts)  # [0, 1, 1]
        n_inserted = running_sums(n_further)  # by the first 0, 1, … of these tokens: [0, 2]
        n_inserted_before = n_inserted[n_split_before]  # [0, 2, 2]
        document_starts = token_starts + n_inserted_before  # [0, 4, 5]
        return _DocumentPieces(piece_ids, document_starts)

    def letter_counts(self, words: DocumentWords) -> NDArray[np.int64]:
        """Return how long each word is, in bytes.

        For example, "how, tired" has the words "how" and "tired", which have the lengths 3 and 5.
        It has three pieces: those of the two words, and between them that of the comma, without
        letters.

        Args:
            words: The words of some documents.

        Returns:
            Number of UTF-8 bytes of each word; int64, shape (n_words,).
        """
        # Get the length of each piece of the vocabulary, from where each one stops. (The field
        # `lengths` has them modulo 256, which is not enough here.)
        lengths = np.diff(self.stops, prepend=0)

        # Count the bytes before each piece of the documents, and before each word.
        bytes_before_piece = running_sums(lengths[words.piece_ids])  # (n_pieces + 1,) [0, 3, 3, 8]
        bounds = np.append(words.first_pieces, len(words.piece_ids))  # (n_words + 1,) [0, 2, 3]
        bytes_before_word = bytes_before_piece[bounds]  # [0, 3, 8]

        # The difference is the length of a word. The piece of the comma counts as well, but it has
        # no bytes.
        counts: NDArray[np.int64] = np.diff(bytes_before_word)  # [3, 5]
        return counts

    def text(self, words: DocumentWords, start: int, stop: int) -> str:
        """Return some words as text, separated by spaces, to show them to users.

        Args:
            words: The words of some documents.
            start: Index of the first word of the text.
            stop: Index of the word after the last one.

        Returns:
            Such as "how tired are their": in lower case, without commas.
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
    """Return the pieces of all tokens in the order in which they are numbered.

    Those come first that are the first ones of their token, and then all others. For example, the
    pieces [a, b] of token 0, [c] of token 1 and [d, e] of token 2 become [a, c, d, b, e].

    Args:
        pieces_by_token: The pieces of each token, at least one each.
    """
    pieces = [token_pieces[0] for token_pieces in pieces_by_token]
    for token_pieces in pieces_by_token:
        pieces += token_pieces[1:]
    return pieces


def running_sums(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return the sum of all values before each position, from the start to the end.

    For example, [3, 1, 2] gives [0, 3, 4, 6]: nothing, 3, 3 + 1 and 3 + 1 + 2.

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
    """Put the letters of all pieces into one array, with the position at which each piece ends.

    For example, "the" and "ing" become the bytes of "theing", with the ends 3 and 6.

    Args:
        pieces: The pieces, in the order of their numbers.
    """
    lengths = np.array([len(piece.letters) for piece in pieces], np.int64)
    data = np.frombuffer(b"".join(piece.letters for piece in pieces), np.uint8)
    return _PieceLetters(data, stops=np.cumsum(lengths), lengths=lengths)


def _piece_hashes(letters: _PieceLetters) -> NDArray[np.uint64]:
    """Return a hash of the letters of each piece of a word, to compare words quickly.

    Each byte has a number that looks random, its hash H. The hash of a piece is the sum of these,
    each multiplied by a power of FACTOR (here F) that depends on the place of the byte:

        hash("ab")     = H[a] * F**0 + H[b] * F**1
        hash("the")    = H[t] * F**0 + H[h] * F**1 + H[e] * F**2

    Integers of 64 bits cannot hold such sums, and drop all higher bits (modulo 2**64). That is
    fine, since equal pieces still have equal hashes. After F**255, the powers begin again with
    F**0.

    Args:
        letters: The bytes of all pieces, concatenated, and where each ends. The values in the
            comments are for two pieces, "the" and "ab".

    Returns:
        uint64, shape (n_pieces,); 0 for a piece without bytes.
    """
    # Number the bytes of each piece from 0.
    lengths = letters.lengths  # [3, 2]
    positions = positions_in(starts=np.zeros_like(lengths), lengths=lengths)  # [0, 1, 2, 0, 1]

    # Compute what each byte adds to the hash of its piece, such as H[h] * F**1.
    factors = _FACTOR_POWERS[positions % 256]  # F**0, F**1, F**2, F**0, F**1
    terms = _BYTE_HASHES[letters.data] * factors  # (n_bytes,) of t, h, e, a, b

    # Sum up the terms of each piece: all terms before its end, less all terms before its start.
    # For "ab", subtract the terms of t, h, e from those of t, h, e, a, b.
    sums = running_sums(terms)  # (n_bytes + 1,) entry 3 is the sum of the first 3 terms
    starts = letters.stops - lengths  # [3, 5] - [3, 2] is [0, 3]
    hashes: NDArray[np.uint64] = sums[letters.stops] - sums[starts]
    return hashes
