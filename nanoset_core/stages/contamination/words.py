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
from nanoset_core.stages.contamination.array_files import load_array, save_arrays
from nanoset_core.statistics.hashing import STEP, mix

_FACTOR = 0xD6E8FEB86659FD93
"""An odd number whose bits look random."""
_FACTOR_POWERS = np.array([pow(_FACTOR, k, 1 << 64) for k in range(256)], np.uint64)
"""Powers of `_FACTOR`, modulo 2**64, by exponent; shape (256,). Exponents are taken modulo 256."""
_FACTOR_POWER_LIST: list[int] = _FACTOR_POWERS.tolist()
"""The same as Python's integers."""
_BYTE_HASHES: list[int] = mix(np.arange(1, 257, dtype=np.uint64) * STEP).tolist()
"""Hash of each value of a byte, a number that looks random; 256 of them."""

_SCRIPTS_WITHOUT_SPACES = (
    (0x0E00, 0x0F00),  # Thai, Lao
    (0x1000, 0x10A0),  # Burmese
    (0x1780, 0x1800),  # Khmer
    (0x3040, 0x3100),  # Hiragana, Katakana
    (0x3400, 0xA000),  # Chinese characters
    (0xF900, 0xFB00),  # Chinese characters for compatibility
    (0x20000, 0x110000),  # rare Chinese characters
)
"""Ranges [start, stop) of code points whose letters are words by themselves, since these scripts
put no spaces between words.
"""
_FIRST_BYTES_WITHOUT_SPACES = range(0xE3, 0xEA)
"""The first bytes, in UTF-8, of the letters of `_SCRIPTS_WITHOUT_SPACES` from U+3000 to U+9FFF.

So such a byte shows that a letter is a word by itself, even if a token has only this byte of it.
"""
_ESCAPED_BYTES = range(0xDC80, 0xDD00)
"""Code points to which `surrogateescape` decodes bytes that are not UTF-8: byte E4 to U+DCE4."""

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

    pieces: list[WordPiece] = []
    begins_word = False  # letters at the start may continue a word of the token before this one
    letters = ""  # of the current piece
    for character in characters:
        is_letter = _is_letter(character)
        ends_piece = not is_letter or _is_word_by_itself(character)  # "," or a Chinese letter
        if ends_piece:
            if letters:
                pieces.append(_word_piece(begins_word, letters))
            begins_word = True
            letters = ""
        if is_letter:
            letters += character.casefold()
    pieces.append(_word_piece(begins_word, letters))
    return pieces


def _word_piece(begins_word: bool, letters: str) -> WordPiece:
    """Return a piece of a word, whose letters may be single bytes that were decoded."""
    return WordPiece(begins_word, letters.encode("utf-8", "surrogateescape"))


def _is_letter(character: str) -> bool:
    """Return whether a character belongs to a word: a letter, a mark on a letter, or a digit.

    Args:
        character: A character, or a code point that stands for one byte of a letter.
    """
    is_byte_of_letter = ord(character) in _ESCAPED_BYTES
    return is_byte_of_letter or unicodedata.category(character)[0] in "LMN"


def _is_word_by_itself(character: str) -> bool:
    """Return whether a letter is a word by itself, as in scripts without spaces, such as Chinese.

    A token may also have only some bytes of a letter. 中 has the bytes E4, B8 and AD in UTF-8:

        a          False     "cat" is one word
        中         True      "中国" are two words
        byte E4    True      no letter of a script with spaces begins with this byte
        byte B8    False     belongs to the letter that another byte has begun

    Args:
        character: A letter, a digit, or a mark such as an accent. Or a code point from U+DC80 to
            U+DCFF: Python decodes the byte E4 alone to U+DCE4 (`surrogateescape`).
    """
    code_point = ord(character)
    is_byte_of_letter = code_point in _ESCAPED_BYTES
    if is_byte_of_letter:
        byte = code_point - 0xDC00
        return byte in _FIRST_BYTES_WITHOUT_SPACES

    # A mark belongs to the letter before it.
    is_mark = not character.isalnum()
    if is_mark:
        return False
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
    """Bytes of each piece, modulo 256 (a piece of 256 bytes has 0 here); shape (n_pieces,)."""
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

        A piece is a run of letters and digits. The first piece of a token gets the number of the
        token. Few tokens have further pieces: these are numbered after all first pieces.

            token         numbers of its pieces
            0  " The"     0  the
            1  "ab, cd"   1  ab,  3  cd
            2  "ing"      2  ing

        Args:
            tokens: The bytes of each token, by number.
        """
        pieces_by_token = [split_into_pieces(token) for token in tokens]  # at least one each
        n_pieces = [len(token_pieces) for token_pieces in pieces_by_token]
        n_further_pieces = np.array(n_pieces, np.int64) - 1  # (n_tokens,) [0, 1, 0]
        n_before = np.cumsum(n_further_pieces) - n_further_pieces  # [0, 0, 1]

        pieces = _in_order_of_numbers(pieces_by_token)  # the, ab, ing, cd
        letters = [piece.letters for piece in pieces]
        lengths = np.array([len(piece_letters) for piece_letters in letters], np.int64)
        return WordVocabulary(
            begins_word=np.array([piece.begins_word for piece in pieces], np.bool_),
            hashes=np.array([_hash(piece_letters) for piece_letters in letters], np.uint64),
            lengths=lengths.astype(np.uint8),
            stops=np.cumsum(lengths),
            data=np.frombuffer(b"".join(letters), np.uint8),
            first_further_piece=len(tokens) + n_before,  # [3, 3, 4]
            n_further_pieces=n_further_pieces,
            has_further_pieces=n_further_pieces > 0,
        )

    def save(self, folder: Path) -> None:
        """Write the vocabulary to files, since it takes long to compute. `load` reads them.

        The vocabulary says into which pieces of words each token is divided, such as the token "ab,
        cd" into `ab` and `cd`. There is one file for each array, such as hashes.npy.

        Args:
            folder: An existing folder.
        """
        # The keys are the names of the files. Some differ from the names of the fields: earlier
        # versions have to read the files, too.
        arrays = {
            # Of each piece, such as `ab`:
            "begins": self.begins_word,
            "hashes": self.hashes,
            "lengths": self.lengths,
            "ends": self.stops,  # where its letters end in `data`
            "data": self.data,
            # Of each token, such as "ab, cd": its pieces after the first one, here `cd`.
            "others": np.stack([self.first_further_piece, self.n_further_pieces], axis=1),
            "is_split": self.has_further_pieces,
        }
        save_arrays(folder, arrays)

    @staticmethod
    def load(folder: Path) -> WordVocabulary:
        """Load a vocabulary from the files that `save` wrote, one for each array.

        The files are mapped into memory, so that only the parts that are used are read.

        Args:
            folder: The folder with the files.
        """
        # Two fields share the file others.npy: they are its columns.
        further_pieces = load_array(folder, "others")  # (n_tokens, 2)

        # Earlier versions had other names for some fields, and the files have kept these names.
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

        # The hash of a word is a sum over its pieces. That of "playing" is
        # hash("play") + hash("ing") * FACTOR**4, since 4 bytes of the word precede "ing".
        hash_terms = self.hashes[pieces.ids]  # (n_pieces,)
        hash_terms *= _FACTOR_POWERS.take(_offsets_in_words(bytes_before_piece, word_bounds))
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

        For example, "how, tired" has the words "how" and "tired", of 3 and 5 bytes. It has three
        pieces: "how", the comma, which is a piece without letters, and "tired".

        Args:
            words: The words of some documents.

        Returns:
            Number of UTF-8 bytes of each word; int64, shape (n_words,).
        """
        # Get the length of each piece. (`lengths` has them modulo 256, which is not enough here.)
        lengths_in_vocabulary = np.diff(self.stops, prepend=0)
        piece_lengths = lengths_in_vocabulary[words.piece_ids]  # (n_pieces,) [3, 0, 5]

        # Sum up from the first piece of each word to that of the next word: 3 + 0, and 5.
        counts: NDArray[np.int64] = np.add.reduceat(piece_lengths, words.first_pieces)  # [3, 5]
        return counts

    def text(self, words: DocumentWords, start: int, stop: int) -> str:
        """Return some words as text, to show them to users: "how tired are their".

        Words are in lower case, and separated by spaces. Other characters, such as commas, are left
        out.

        Args:
            words: The words of some documents.
            start: Index of the first word of the text.
            stop: Index of the word after the last one.
        """
        # Words consist of pieces: "tired" may be "ti" and "red". Join them, with a space before
        # each piece that begins a word.
        parts = []
        for piece in words.pieces_between(start, stop).tolist():
            if self.begins_word[piece]:
                parts.append(b" ")
            parts.append(self._letters_of(piece))
        text = b"".join(parts).decode(errors="replace")

        # A comma is a piece without letters, and leaves two spaces in a row.
        return " ".join(text.split())

    def _letters_of(self, piece: int) -> bytes:
        """Return the letters of a piece of the vocabulary, as UTF-8."""
        # The letters of all pieces are concatenated: those of a piece start where the one before it
        # stops.
        start = self.stops[piece - 1] if piece > 0 else 0
        return self.data[start : self.stops[piece]].tobytes()


def _in_order_of_numbers(pieces_by_token: Sequence[Sequence[WordPiece]]) -> list[WordPiece]:
    """Return the pieces of all tokens in the order of their numbers.

    The first piece of each token comes first, and then the further pieces of all tokens:

        pieces of the tokens    [[the], [ab, cd], [ing]]
        result                  [the, ab, ing, cd]

    Args:
        pieces_by_token: The pieces of each token, at least one each.
    """
    pieces = [token_pieces[0] for token_pieces in pieces_by_token]
    for token_pieces in pieces_by_token:
        pieces += token_pieces[1:]
    return pieces


def _hash(letters: bytes) -> int:
    """Return the hash of a piece of a word, a number of 64 bits, to compare words quickly.

    It is a sum over the bytes b[0], b[1], … of the piece:

        BYTE_HASHES[b[0]] * FACTOR**0 + BYTE_HASHES[b[1]] * FACTOR**1 + …    modulo 2**64

    The exponents are taken modulo 256.

    Args:
        letters: The bytes of the piece. If there are none, the hash is 0.
    """
    total = 0
    for place, byte in enumerate(letters):
        total += _BYTE_HASHES[byte] * _FACTOR_POWER_LIST[place % 256]
    return total % 2**64


def _offsets_in_words(
    bytes_before_piece: NDArray[np.uint8], word_bounds: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """For each piece, return how many bytes of its word precede it.

    For example, the words "playing" and "but" consist of three pieces:

        piece                   play   ing   but
        bytes before it         0      4     7
        bytes before its word   0      0     7
        result                  0      4     0

    Args:
        bytes_before_piece: Bytes of all words before each piece, and at the end those of all
            pieces, [0, 4, 7, 10]; shape (n_pieces + 1,). After 255 they continue with 0.
        word_bounds: Index of each word's first piece, and at the end n_pieces, [0, 2, 3]; shape
            (n_words + 1,).

    Returns:
        Shape (n_pieces,); numbers above 255 are taken modulo 256 as well.
    """
    pieces_per_word = np.diff(word_bounds)  # [2, 1]
    bytes_before_word = bytes_before_piece[word_bounds[:-1]]  # [0, 7]
    bytes_before_word_of_piece = np.repeat(bytes_before_word, pieces_per_word)  # [0, 0, 7]

    # This is right even if the numbers have passed 255 in between: 2 - 254 is 4 in 8 bits.
    return bytes_before_piece[:-1] - bytes_before_word_of_piece


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
