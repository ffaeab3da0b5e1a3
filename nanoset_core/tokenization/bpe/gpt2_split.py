"""Pre-tokens of GPT-2 and GPT-NeoX text: where each piece of the split pattern begins.

The pattern, of Hugging Face's ByteLevel pre-tokenizer (`pre_tokenizers/byte_level.rs`) and GPT-2's `encoder.py`:
`'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`.
Seen from the bytes: a piece begins where the class changes, and where the last white space before a word begins; but a
plain space goes with the word, and contractions end early.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenization.bpe.byte_classes import ByteClasses
from nanoset_core.tokenization.bpe.classes import RUN, SPACE
from nanoset_core.tokenization.bpe.contractions import end_contractions

BLANK = 0x20


def gpt2_starts(data: np.ndarray, classes: ByteClasses, longest_run: int = 0) -> np.ndarray:
    """bool[n + 1]: True where a piece begins, and at n.

    `data`: uint8[n], texts between 0xFF bytes, the first and last byte among them. `longest_run`: spaces in the longest
    added token of spaces (GPT-NeoX: 24), 0 for none. `classes.codes` is changed where such tokens are.
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


def last_space_before_word(codes: np.ndarray) -> np.ndarray:
    """bool[n - 1]: True at the last byte of white space that a word class follows."""
    mask = codes[:-1] == SPACE
    mask &= codes[1:] < SPACE
    return mask


def begin_last_space(starts: np.ndarray, before_word: np.ndarray, wide: np.ndarray, data: np.ndarray) -> None:
    """A piece begins at the last white space before a word; at its first byte where it has several."""
    starts[:-2] |= before_word
    if not len(wide):
        return
    last = wide + 1 + (data[wide] >= 0xE0)
    followed = before_word[last]
    starts[last[followed]] = False
    starts[wide[followed]] = True


def mark_space_runs(blank: np.ndarray, codes: np.ndarray, longest: int) -> np.ndarray:
    """Give added tokens of 2 to `longest` spaces the class RUN, and return int64[k], where they abut each other.

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
    return np.repeat(begins, counts) + longest * (offsets + 1)
