"""Pre-tokens of Llama-3 text: where each piece of the split pattern begins.

The pattern, of the Split pre-tokenizer in Llama-3's `tokenizer.json` (tiktoken's cl100k_base), is the union of
`(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `[^\\r\\n\\p{L}\\p{N}]?\\p{L}+`, `\\p{N}{1,3}`, ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*`,
`\\s*[\\r\\n]+`, `\\s+(?!\\S)` and `\\s+`, in this order.
Seen from the bytes: a piece begins where the class changes, and where the last white space before a word begins; but
letters take along white space or a lone symbol before them, symbols a plain space before and newlines after them, and
white space ends with its last newline.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenization.bpe.byte_classes import ByteClasses
from nanoset_core.tokenization.bpe.classes import LETTER, NEWLINE, NUMBER, OTHER, SPACE
from nanoset_core.tokenization.bpe.contractions import end_contractions
from nanoset_core.tokenization.bpe.gpt2_split import BLANK, begin_last_space, last_space_before_word


def llama3_starts(data: np.ndarray, classes: ByteClasses, digits: int = 3) -> np.ndarray:
    """bool[n + 1]: True where a piece begins, and at n.

    `data`: uint8[n], texts between 0xFF bytes, the first and last byte among them. `digits`: numbers are cut every so
    many digits (Llama-3: 3; Qwen2: 1).
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


def _join_newlines(starts: np.ndarray, codes: np.ndarray) -> None:
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


def _join_spaces(starts: np.ndarray, before_word: np.ndarray, data: np.ndarray, codes: np.ndarray) -> None:
    """Letters take along any white space before them, symbols a plain space; `before_word` is used up."""
    joined = codes[1:] == OTHER
    joined &= data[:-1] == BLANK
    joined |= codes[1:] == LETTER
    joined &= before_word
    starts[1:-1] &= ~joined


def _join_lone_symbols(starts: np.ndarray, data: np.ndarray, codes: np.ndarray) -> None:
    """Letters take along a symbol before them, if it stands alone and no plain space has it."""
    last = np.flatnonzero((codes[:-1] == OTHER) & (codes[1:] == LETTER))
    first = last.copy()
    wide = np.flatnonzero(data[last] >= 0x80)
    for _ in range(3):
        wide = wide[data[first[wide]] & 0xC0 == 0x80]
        first[wide] -= 1
    alone = (codes[first - 1] != OTHER) & (data[first - 1] != BLANK)
    starts[last[alone] + 1] = False


def _cut_numbers(starts: np.ndarray, data: np.ndarray, codes: np.ndarray, digits: int) -> None:
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


def _runs(codes: np.ndarray, value: int) -> tuple[np.ndarray, np.ndarray]:
    """(begin int64[k], end excl int64[k]) of runs of a class; the first and last byte are of none."""
    mask = codes == value
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return edges[::2], edges[1::2]
