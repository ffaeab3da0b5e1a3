"""Words of documents, out of their tokens: lower case, letters and digits alone, however a
tokenizer cut them.

Each entry of a vocabulary is one or several *pieces*: letters and digits, which continue the word
before them or begin one. A word's hash is that of its bytes, so it is the same in one token or in
several, and with or without a space, a capital or a comma beside it. So no text is read again, and
of a word there is a token or two to look at, not its bytes.

The hash of bytes b0, b1, … is the sum of TABLE[bk] * FACTOR**(k % 256), modulo 2**64.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.hashing import STEP, mix
from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints, Words
from nanoset_core.tokenizers.engines.reference import load_tokenizer
from nanoset_core.tokenizers.files import TokenizerPath, define
from nanoset_core.tokenizers.files.parts import types_within
from nanoset_core.tokenizers.files.source import token_bytes

_FACTOR = 0xD6E8FEB86659FD93
_POWERS = np.array([pow(_FACTOR, k, 1 << 64) for k in range(256)], np.uint64)
_TABLE = mix(np.arange(1, 257, dtype=np.uint64) * STEP)
_SPACED = "▁"
_UNSPACED = (
    (0x0E00, 0x0F00),
    (0x1000, 0x10A0),
    (0x1780, 0x1800),
    (0x3040, 0x3100),
    (0x3400, 0xA000),
    (0xF900, 0xFB00),
)
"""Scripts without spaces between words, whose letters count as words: Thai, Lao, Burmese, Khmer,
Japanese, Chinese.
"""
_LEADS = b"\xe3\xe4\xe5\xe6\xe7\xe8\xe9"
"""First bytes of such letters, where a token holds a part of one."""


def pieces_in(data: bytes) -> list[tuple[bool, bytes]]:
    """Return (whether it begins a word, its letters and digits) of each piece of a token's bytes.

    A piece without any is an end of words. Bytes that are no whole character count as letters.
    """
    pieces = [[False, ""]]
    for character in data.decode("utf-8", "surrogateescape"):
        point = ord(character)
        is_part = 0xDC80 <= point < 0xDD00
        if not (is_part or unicodedata.category(character)[0] in "LMN"):
            begins, kept = True, ""
        else:
            lone = point >= 0x20000 or any(low <= point < high for low, high in _UNSPACED)
            is_lone = point - 0xDC00 in _LEADS if is_part else lone and character.isalnum()
            begins, kept = is_lone, character if is_part else character.casefold()
        if begins and pieces[-1][1]:
            pieces.append([True, kept])
        else:
            pieces[-1] = [bool(pieces[-1][0]) or begins, f"{pieces[-1][1]}{kept}"]
    return [(bool(begins), str(kept).encode("utf-8", "surrogateescape")) for begins, kept in pieces]


class Found(NamedTuple):
    """Words of some documents."""

    hashes: Words
    """Of each word, shape (words,)."""
    pieces: Ints
    """Place of each word's first piece among the pieces, shape (words,)."""
    ids: Ints
    """All pieces: numbers in the vocabulary."""
    begins: Ints
    """Where the pieces of each document begin, with the end of the last one, shape (documents +
    1,).
    """

    def documents(self, words: Ints) -> Ints:
        """Return the number of the document of each of some words."""
        return np.searchsorted(self.begins, self.pieces[words], side="right") - 1

    @property
    def counts(self) -> Ints:
        """Words of each document, shape (documents,)."""
        return np.diff(np.searchsorted(self.pieces, self.begins))


@dataclass(frozen=True, slots=True)
class WordVocabulary:
    """The pieces of every token id: entry i is the first piece of id i, the others come behind all
    first ones.
    """

    begins: Bools
    """Whether the piece begins a word, shape (pieces,)."""
    hashes: Words
    """Of its bytes, not mixed, shape (pieces,)."""
    lengths: Bytes
    """The last eight bits of how many bytes it has, shape (pieces,)."""
    ends: Ints
    """End of its bytes in `data`, shape (pieces,)."""
    data: Bytes
    """Bytes of all pieces."""
    others: Ints
    """(number of its first other piece, how many there are) of each id, shape (ids, 2)."""
    is_split: Bools
    """Whether there are any, shape (ids,)."""

    @staticmethod
    def of(entries: Sequence[bytes]) -> WordVocabulary:
        """Make the vocabulary of tokens' bytes, by id."""
        first, rest, others = (
            list[tuple[bool, bytes]](),
            list[tuple[bool, bytes]](),
            list[tuple[int, int]](),
        )
        for entry in entries:
            head, *more = pieces_in(entry)
            others.append((len(entries) + len(rest), len(more)))
            first.append(head)
            rest += more
        pieces = first + rest
        lengths = np.array([len(kept) for _, kept in pieces], np.int64)
        data = np.frombuffer(b"".join(kept for _, kept in pieces), np.uint8)
        places = positions_in(np.zeros_like(lengths), lengths) % len(_POWERS)
        sums = np.concatenate(
            [np.zeros(1, np.uint64), np.cumsum(_TABLE[data] * _POWERS[places], dtype=np.uint64)]
        )
        ends = np.cumsum(lengths)
        begins = np.array([begins for begins, _ in pieces], np.bool_)
        hashes = sums[ends] - sums[ends - lengths]
        table = np.array(others, np.int64).reshape(-1, 2)
        return WordVocabulary(
            begins, hashes, lengths.astype(np.uint8), ends, data, table, table[:, 1] > 0
        )

    @staticmethod
    def of_tokenizer(file: TokenizerPath) -> WordVocabulary:
        """Make the vocabulary of a tokenizer; special tokens are ends of words."""
        return WordVocabulary.of(_entries(file))

    def words(self, tokens: NDArray[Any], begins: Ints) -> Found:
        """Return the words of documents.

        Args:
            tokens: of all documents, back to back.
            begins: where each begins, ascending, with the end of the last one, shape (documents +
                1,).
        """
        ids = tokens.astype(np.int64)
        if len(several := np.flatnonzero(self.is_split[ids])):
            firsts, more = self.others[ids[several]].T
            ids = np.insert(ids, np.repeat(several + 1, more), positions_in(firsts, more))
            begins = (
                begins + np.concatenate([[0], np.cumsum(more)])[np.searchsorted(several, begins)]
            )
        starts, lengths, hashes = self.begins[ids], self.lengths[ids], self.hashes[ids]
        starts[begins[:-1][begins[:-1] < len(ids)]] = True
        firsts = np.append(np.flatnonzero(starts), len(ids))
        # Bytes before each piece: the last eight bits tell its place in a word, and which words
        # have none.
        before = np.zeros(len(ids) + 1, np.uint8)
        np.cumsum(lengths, dtype=np.uint8, out=before[1:])
        hashes *= _POWERS.take(before[:-1] - np.repeat(before[firsts[:-1]], np.diff(firsts)))
        sums = np.zeros(len(ids) + 1, np.uint64)
        np.cumsum(hashes, out=sums[1:])
        words = np.flatnonzero(before[firsts[1:]] != before[firsts[:-1]])
        pieces = firsts[words]
        return Found(sums[firsts[words + 1]] - sums[pieces], pieces, ids, begins)

    def letters(self, found: Found) -> Ints:
        """Return the bytes of each word, int64, shape (words,)."""
        ends = np.concatenate([[0], np.cumsum(np.diff(self.ends, prepend=0)[found.ids])])
        lengths: Ints = np.diff(ends[np.append(found.pieces, len(found.ids))])
        return lengths

    def text(self, found: Found, begin: int, end: int) -> str:
        """Return the words [begin, end) as text."""
        stop = found.pieces[end] if end < len(found.pieces) else len(found.ids)
        parts = [
            (b" " if self.begins[one] else b"")
            + self.data[self.ends[one - 1] if one else 0 : self.ends[one]].tobytes()
            for one in found.ids[found.pieces[begin] : stop].tolist()
        ]
        return " ".join(b"".join(parts).decode(errors="replace").split())


def _entries(file: TokenizerPath) -> list[bytes]:
    """Return the bytes of every id of a tokenizer; none for special tokens and for ids that are no
    tokens.
    """
    tokenizer = load_tokenizer(file)
    parts = orjson.loads(define(file).json())
    model = parts["model"]
    kinds = types_within(parts.get("pre_tokenizer")) | types_within(parts.get("decoder"))
    prefix = model.get("continuing_subword_prefix") if model.get("type") == "WordPiece" else None
    added = tokenizer.get_added_tokens_decoder()
    entries = dict[int, bytes]()
    for entry, ident in tokenizer.get_vocab(with_added_tokens=True).items():
        if ident in added:
            entries[ident] = b" " if added[ident].special else added[ident].content.encode()
        elif "ByteLevel" in kinds:
            own = token_bytes(entry)
            entries[ident] = entry.encode() if own is None else own
        elif prefix is not None:
            entries[ident] = (
                entry.removeprefix(prefix) if entry.startswith(prefix) else f" {entry}"
            ).encode()
        elif len(entry) == 6 and entry.startswith("<0x"):
            entries[ident] = bytes.fromhex(entry[3:5])
        else:
            entries[ident] = entry.replace(_SPACED, " ").encode()
    return [entries.get(ident, b" ") for ident in range(max(entries) + 1)]
