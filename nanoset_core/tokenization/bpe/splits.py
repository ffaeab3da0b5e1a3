"""Pre-tokens: where each piece of a split pattern begins, seen from the bytes.

GPT-2 and GPT-NeoX (Hugging Face's ByteLevel pre-tokenizer, `pre_tokenizers/byte_level.rs`; GPT-2's `encoder.py`):
`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.
A piece begins where the class changes, and where the last white space before a word begins; but a plain space goes with
the word, and contractions end early.

Llama-3 (the Split pre-tokenizer in its `tokenizer.json`; tiktoken's cl100k_base), the union, in this order, of
`(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `[^\\r\\n\\p{L}\\p{N}]?\\p{L}+`, `\\p{N}{1,3}`, ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*`,
`\\s*[\\r\\n]+`, `\\s+(?!\\S)` and `\\s+`.
A piece begins as in GPT-2; but letters take along white space or a lone symbol before them, symbols a plain space
before and newlines after them, and white space ends with its last newline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.classes import LETTER, NEWLINE, NUMBER, OTHER, RUN, SPACE, ByteClasses

BLANK = 0x20


def gpt2_starts(data: NDArray[np.uint8], classes: ByteClasses, longest_run: int = 0) -> NDArray[np.bool_]:
    """Where pieces begin: bool, shape (bytes + 1,), the last one True.

    Args:
        data: uint8, shape (bytes,): texts between 0xFF bytes, the first and last byte among them.
        classes: of these bytes; its codes are changed where added tokens of spaces are.
        longest_run: spaces in the longest added token of spaces (GPT-NeoX: 24), 0 for none.
    """
    codes = classes.codes
    blank = data == BLANK
    cuts = mark_space_runs(blank, codes, longest_run) if longest_run else None
    starts = np.empty(len(data) + 1, bool)
    starts[0] = starts[-1] = True
    np.not_equal(codes[1:], codes[:-1], out=starts[1:-1])
    before_word = last_space_before_word(codes)
    begin_last_space(starts, before_word, classes.wide_spaces, data)
    before_word &= blank[:-1]
    starts[1:-1] &= ~before_word  # a plain space takes the word along
    end_contractions(starts, data, any_case=False)
    if cuts is not None:
        starts[cuts] = True
    return starts


def last_space_before_word(codes: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """bool, shape (bytes - 1,): True at the last byte of white space that a word class follows."""
    mask: NDArray[np.bool_] = codes[:-1] == SPACE
    mask &= codes[1:] < SPACE
    return mask


def begin_last_space(
    starts: NDArray[np.bool_], before_word: NDArray[np.bool_], wide: NDArray[np.int64], data: NDArray[np.uint8]
) -> None:
    """A piece begins at the last white space before a word; at its first byte where it has several."""
    starts[:-2] |= before_word
    if not len(wide):
        return
    last = wide + 1 + (data[wide] >= 0xE0)
    followed = before_word[last]
    starts[last[followed]] = False
    starts[wide[followed]] = True


def mark_space_runs(blank: NDArray[np.bool_], codes: NDArray[np.uint8], longest: int) -> NDArray[np.int64]:
    """Give added tokens of 2 to `longest` spaces the class RUN, and return where they abut: int64, shape (cuts,).

    The library matches the longest token first, so a run of spaces is cut every `longest` spaces, and one space that is
    left over at its end is ordinary white space.
    """
    joined = np.zeros(len(blank) + 1, bool)  # joined[i]: bytes i - 1 and i are both spaces
    np.logical_and(blank[1:], blank[:-1], out=joined[1:-1])
    inside = joined[1:] | joined[:-1]
    codes[inside] = RUN
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1  # the buffer's first and last byte are no spaces
    begins, ends = edges[::2], edges[1::2]
    lengths = ends - begins
    long = np.flatnonzero(lengths > longest)
    begins, ends, lengths = begins[long], ends[long], lengths[long]
    codes[ends[lengths % longest == 1] - 1] = SPACE
    counts = (lengths - 1) // longest
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    cuts: NDArray[np.int64] = np.repeat(begins, counts) + longest * (offsets + 1)
    return cuts


def llama3_starts(data: NDArray[np.uint8], classes: ByteClasses, digits: int = 3) -> NDArray[np.bool_]:
    """Where pieces begin: bool, shape (bytes + 1,), the last one True.

    Args:
        data: uint8, shape (bytes,): texts between 0xFF bytes, the first and last byte among them.
        classes: of these bytes.
        digits: numbers are cut every so many digits (Llama-3: 3; Qwen2: 1).
    """
    codes = classes.codes
    starts = np.empty(len(data) + 1, bool)
    starts[0] = starts[-1] = True
    np.not_equal(codes[1:], codes[:-1], out=starts[1:-1])
    _join_newlines(starts, codes)
    before_word = last_space_before_word(codes)
    begin_last_space(starts, before_word, classes.wide_spaces, data)
    _join_spaces(starts, before_word, data, codes)
    _join_lone_symbols(starts, data, codes)
    end_contractions(starts, data, any_case=True)
    _cut_numbers(starts, data, codes, digits)
    return starts


def _join_newlines(starts: NDArray[np.bool_], codes: NDArray[np.uint8]) -> None:
    """White space up to its last newline is one piece; newlines right after symbols belong to those."""
    begins, ends = _runs(codes, NEWLINE)
    before = codes[begins - 1]
    absorbed = before == OTHER
    starts[begins[absorbed | (before == SPACE)]] = False
    # Spaces between two runs of newlines: no piece begins there, unless the first run went with symbols.
    first = np.flatnonzero((codes[ends[:-1]] == SPACE) & (before[1:] == SPACE) & ~absorbed[:-1])
    if not len(first):
        return
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    after_spaces = changes[np.searchsorted(changes, ends[first]) + 1]
    starts[ends[first[after_spaces == begins[first + 1]]]] = False


def _join_spaces(
    starts: NDArray[np.bool_], before_word: NDArray[np.bool_], data: NDArray[np.uint8], codes: NDArray[np.uint8]
) -> None:
    """Letters take along any white space before them, symbols a plain space; `before_word` is used up."""
    joined = codes[1:] == OTHER
    joined &= data[:-1] == BLANK
    joined |= codes[1:] == LETTER
    joined &= before_word
    starts[1:-1] &= ~joined


def _join_lone_symbols(starts: NDArray[np.bool_], data: NDArray[np.uint8], codes: NDArray[np.uint8]) -> None:
    """Letters take along a symbol before them, if it stands alone and no plain space has it."""
    last = np.flatnonzero((codes[:-1] == OTHER) & (codes[1:] == LETTER))
    first = last.copy()
    wide = np.flatnonzero(data[last] >= 0x80)
    for _ in range(3):
        wide = wide[data[first[wide]] & 0xC0 == 0x80]
        first[wide] -= 1
    alone = (codes[first - 1] != OTHER) & (data[first - 1] != BLANK)
    starts[last[alone] + 1] = False


def _cut_numbers(starts: NDArray[np.bool_], data: NDArray[np.uint8], codes: NDArray[np.uint8], digits: int) -> None:
    """Cut numbers every so many digits."""
    begins, ends = _runs(codes, NUMBER)
    long = np.flatnonzero(ends - begins > digits)
    if not len(long):
        return
    begins, lengths = begins[long], (ends - begins)[long]
    offsets = np.cumsum(lengths) - lengths  # of each number in `positions`
    positions = np.arange(lengths.sum()) + np.repeat(begins - offsets, lengths)
    is_digit = data[positions] & 0xC0 != 0x80  # the first byte of one
    digit = np.cumsum(is_digit)
    digit -= np.repeat(digit[offsets], lengths)  # 0 for the first of its number
    starts[positions[is_digit & (digit % digits == 0)]] = True


def _runs(codes: NDArray[np.uint8], value: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(begin, end excl) of runs of a class, each int64, shape (runs,); the first and last byte are of none."""
    mask = codes == value
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return edges[::2], edges[1::2]


_APOSTROPHE = 0x27


def _table(strings: list[bytes]) -> NDArray[np.bool_]:
    """Which pairs of bytes after an apostrophe make a contraction, bool, shape (65536,); one letter goes with any."""
    table = np.zeros((256, 256), bool)
    for string in strings:
        table[string[0], string[1] if len(string) == 2 else slice(None)] = True
    return table.ravel()


def _cases(text: bytes) -> list[bytes]:
    first = [text[:1].lower(), text[:1].upper()]
    return [a + b for a in first for b in {text[1:].lower(), text[1:].upper()}]


_LONG_S = "ſ".encode()
_ONE, _TWO = [b"s", b"t", b"m", b"d"], [b"re", b"ve", b"ll"]
_EXACT = (_table(_ONE), _table(_TWO))
# Ignoring case, the long s is an s too; it takes two bytes.
_ANY_CASE = (
    _table([case for one in _ONE for case in _cases(one)]),
    _table([case for two in _TWO for case in _cases(two)] + [_LONG_S]),
)


def end_contractions(starts: NDArray[np.bool_], data: NDArray[np.uint8], *, any_case: bool) -> None:
    """Make each contraction a piece: `starts`, bool, shape (bytes + 1,), is changed.

    An apostrophe begins one only where a piece begins (so that no space or symbol goes before it in its piece).
    `data` is uint8, shape (bytes,), and ends in 0xFF.
    """
    quotes = np.flatnonzero(data == _APOSTROPHE)
    quotes = quotes[starts[quotes]]
    if not len(quotes):
        return
    second = data[np.minimum(quotes + 2, len(data) - 1)]
    pairs = data[quotes + 1].astype(np.uint16) << 8 | second
    for table, width in zip(_ANY_CASE if any_case else _EXACT, (2, 3), strict=True):
        apostrophes = quotes[table[pairs]]
        starts[apostrophes + 1] = False
        starts[apostrophes + width] = True
