"""Find where the pre-tokens of a split pattern begin, by operations on all bytes of a text at once.

A pre-token begins where the class of characters changes, and at the last white space before a word.
The fields of a `SplitPattern` say what joins two such pieces (a space, a symbol or newlines go with
a word) and what cuts one (contractions, long numbers, capital letters). Functions that are passed
`starts`, bool, shape (bytes + 1,), change it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import (
    Bools,
    Bytes,
    Ints,
    character_begins,
    cuts_in,
    runs_of,
)
from nanoset_core.tokenizers.engines.classes import (
    BARE,
    DIGIT,
    IDEOGRAPH,
    IDEOGRAPH_BARE,
    LETTER,
    LOWER,
    MARK,
    NEWLINE,
    NUMBER,
    OTHER,
    RUN,
    SPACE,
    SUFFIX,
    UPPER,
)
from nanoset_core.tokenizers.engines.patterns import SplitPattern

BLANK = 0x20
_APOSTROPHE, _SLASH = 0x27, 0x2F


def piece_starts(
    data: Bytes,
    codes: Bytes,
    wide_spaces: Ints,
    pattern: SplitPattern,
    longest_run: int = 0,
) -> Bools:
    """Return where pieces begin: bool, shape (bytes + 1,), the last one True.

    Args:
        data: uint8, shape (bytes,): texts between 0xFF bytes, the first and last byte among them.
        codes: As `ByteClassifier.classify` gives them for these bytes; they are changed.
        wide_spaces: As it gives them.
        pattern: How to split.
        longest_run: Spaces in the longest added token of spaces (GPT-NeoX: 24), 0 for none.
    """
    cuts = _mark_space_runs(data == BLANK, codes, longest_run) if longest_run else None
    capitals = _settle_case(data, codes, pattern) if pattern.cased else None
    starts = np.empty(len(data) + 1, bool)
    starts[0] = starts[-1] = True
    np.not_equal(codes[1:], codes[:-1], out=starts[1:-1])
    if pattern.newlines:
        _join_newlines(starts, codes, tail=pattern.newline_tail)
    _place_last_spaces(starts, data, codes, wide_spaces, white_leads=pattern.white_leads)
    if pattern.leader is not None:
        _join_leaders(starts, data, codes, pattern.leader, LETTER)
    if pattern.leader == BARE:
        _join_leaders(starts, data, codes, IDEOGRAPH_BARE, IDEOGRAPH)
    if pattern.ascii_leader:
        _join_ascii_symbols(starts, data, codes)
    if pattern.contractions in ("exact", "any case"):
        _end_contractions(starts, data, any_case=pattern.contractions == "any case")
    if pattern.digits:
        apart = any(value == DIGIT for _, value in pattern.classes)
        _cut_numbers(starts, data, codes == (DIGIT if apart else NUMBER), pattern.digits)
    for places in (cuts, capitals):
        if places is not None:
            starts[places] = True
    return starts


def _place_last_spaces(
    starts: Bools,
    data: Bytes,
    codes: Bytes,
    wide_spaces: Ints,
    *,
    white_leads: bool,
) -> None:
    """Begin a piece at the last white space before a word, which is joined with the word where the
    pattern says so.
    """
    last = codes[:-1] == SPACE
    last &= codes[1:] < SPACE
    starts[:-2] |= last
    if len(wide_spaces):
        ends = wide_spaces + 1 + (data[wide_spaces] >= 0xE0)
        followed = last[ends]
        starts[ends[followed]] = False
        starts[wide_spaces[followed]] = True
    if white_leads:
        joined = codes[1:] == OTHER
        joined &= data[:-1] == BLANK
        joined |= codes[1:] == LETTER
        last &= joined
    else:
        last &= data[:-1] == BLANK
    starts[1:-1] &= ~last


def _mark_space_runs(blank: Bools, codes: Bytes, longest: int) -> Ints:
    """Give added tokens of 2 to `longest` spaces the class RUN, and return where they abut: int64,
    shape (cuts,).

    The library matches the longest token first, so a run of spaces is cut every `longest` spaces,
    and one space that is left over at its end is ordinary white space.
    """
    followed = blank[1:] & blank[:-1]  # spaces that another one follows
    begins, ends = runs_of(followed)
    ends = ends + 1
    codes[:-1][followed] = RUN
    codes[ends - 1] = RUN
    lengths = ends - begins
    long = np.flatnonzero(lengths > longest)
    begins, ends, lengths = begins[long], ends[long], lengths[long]
    codes[ends[lengths % longest == 1] - 1] = SPACE
    return cuts_in(begins, ends, longest)


def _join_newlines(starts: Bools, codes: Bytes, *, tail: bool) -> None:
    """Make white space up to its last newline one piece; newlines right after symbols belong to
    those, if `tail`.
    """
    begins, ends = runs_of(codes == NEWLINE)
    before = codes[begins - 1]
    absorbed = (before == OTHER) & tail
    starts[begins[absorbed | (before == SPACE)]] = False
    # Spaces between two runs of newlines: no piece begins there, unless the first run went with
    # symbols.
    first = np.flatnonzero((codes[ends[:-1]] == SPACE) & (before[1:] == SPACE) & ~absorbed[:-1])
    if not len(first):
        return
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    after_spaces = changes[np.searchsorted(changes, ends[first]) + 1]
    starts[ends[first[after_spaces == begins[first + 1]]]] = False


def _join_leaders(starts: Bools, data: Bytes, codes: Bytes, leader: int, letter: int) -> None:
    """Join letters with a character of class `leader` before them; a symbol only if no symbol or
    space precedes it.
    """
    last = np.flatnonzero((codes[:-1] == leader) & (codes[1:] == letter))
    first = character_begins(data, last)
    if leader == OTHER:
        last = last[(codes[first - 1] != leader) & (data[first - 1] != BLANK)]
    else:
        starts[first] = True
    starts[last + 1] = False


def _join_ascii_symbols(starts: Bools, data: Bytes, codes: Bytes) -> None:
    """Join ASCII letters with an ASCII symbol that begins a piece, and begin a piece at other
    letters behind those.
    """
    last = np.flatnonzero((codes[:-1] == OTHER) & (codes[1:] == LETTER))
    last = last[(data[last] < 0x80) & (data[last + 1] < 0x80) & starts[last]]
    starts[last + 1] = False
    ascii_letter = (codes == LETTER) & (data < 0x80)
    ends = np.flatnonzero(ascii_letter[:-1] & (codes[1:] == LETTER) & (data[1:] >= 0x80)) + 1
    if not len(ends) or not len(last):
        return
    begins, every_end = runs_of(ascii_letter)
    begin = begins[np.searchsorted(every_end, ends)]
    starts[ends[np.isin(begin, last + 1)]] = True


def _cut_numbers(starts: Bools, data: Bytes, numbers: Bools, digits: int) -> None:
    """Cut numbers every so many digits."""
    begins, ends = runs_of(numbers)
    long = np.flatnonzero(ends - begins > digits)
    if not len(long):
        return
    begins, ends = begins[long], ends[long]
    lengths = ends - begins
    positions = positions_in(begins, lengths)
    is_digit = data[positions] & 0xC0 != 0x80  # the first byte of one
    digit = np.cumsum(is_digit)
    # 0 for the first of its number
    digit -= np.repeat(digit[np.cumsum(lengths) - lengths], lengths)
    starts[positions[is_digit & (digit % digits == 0)]] = True


def _settle_case(data: Bytes, codes: Bytes, pattern: SplitPattern) -> Ints:
    """Turn the classes of patterns that cut by case into the common ones.

    Returns:
        int64, shape (cuts,): where pieces begin inside words and right after contractions.
    """
    _settle_marks(data, codes)
    if pattern.slash_tail:
        _lengthen_tails(data, codes)
    cuts = [_mark_suffixes(data, codes)] if pattern.contractions == "suffix" else []
    cuts.append(_capitals(codes))
    codes[codes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _settle_marks(data: Bytes, codes: Bytes) -> None:
    """Make marks symbols after two symbols, or after a plain space and a symbol, and all others
    letters.
    """
    mark = codes == MARK
    begins, ends = runs_of(mark)
    if not len(begins):
        return
    after_symbol = codes[begins - 1] == OTHER
    begins, ends = begins[after_symbol], ends[after_symbol]
    symbol = codes == OTHER
    codes[mark] = LETTER
    if not len(begins):
        return
    mixed_begins, mixed_ends = runs_of(mark | symbol)
    triggers = symbol[:-1] | (data[:-1] == BLANK)
    triggers &= symbol[1:]
    triggers &= data[1:] & 0xC0 != 0x80
    places = np.append(-1, np.flatnonzero(triggers) + 1)
    latest = places[np.searchsorted(places, begins) - 1]
    swallowed = latest >= mixed_begins[np.searchsorted(mixed_ends, begins, side="right")]
    codes[positions_in(begins[swallowed], (ends - begins)[swallowed])] = OTHER


def _lengthen_tails(data: Bytes, codes: Bytes) -> None:
    """Give slashes the class NEWLINE where they follow newlines that follow a symbol."""
    begins, ends = runs_of(codes == NEWLINE)
    tails = ends[(codes[begins - 1] == OTHER) & (data[ends] == _SLASH)]
    if len(tails):
        slashes, after_slashes = runs_of(data == _SLASH)
        codes[positions_in(tails, after_slashes[np.searchsorted(slashes, tails)] - tails)] = NEWLINE


def _mark_suffixes(data: Bytes, codes: Bytes) -> Ints:
    """Give contractions at the end of words the class SUFFIX, and return where they end: int64,
    shape (suffixes,).

    Of contractions in a row, the second is a word of its own, and the third that word's
    contraction, and so on.
    """
    quotes: Ints = np.flatnonzero(data == _APOSTROPHE)
    before = codes[quotes - 1]
    quotes = quotes[(before >= UPPER) | (before == LETTER)]
    one, two = (table[_following_pairs(data, quotes)] for table in _ANY_CASE)
    found = one | two
    ends: Ints = (quotes + np.where(one, 2, 3))[found]
    quotes = quotes[found]
    if not len(quotes):
        return quotes
    index = np.arange(len(quotes))
    first = np.append(True, quotes[1:] != ends[:-1])  # of those in a row
    taken: Bools = (index - np.maximum.accumulate(np.where(first, index, 0))) % 2 == 0
    ends = ends[taken]
    codes[positions_in(quotes[taken], ends - quotes[taken])] = SUFFIX
    return ends


def _capitals(codes: Bytes) -> Ints:
    """Return where words are cut before capital letters: int64, shape (cuts,).

    A word is cut between a small letter and a capital. Behind a letter without case it is cut
    before a capital if a small letter precedes that letter, or if the word ends with these
    capitals.
    """
    upper = codes == UPPER
    either = codes == LETTER
    cuts: Ints = np.flatnonzero(upper[1:] & (either[:-1] | (codes[:-1] == LOWER))) + 1
    is_doubtful = codes[cuts - 1] == LETTER
    doubtful = cuts[is_doubtful]
    if not len(doubtful):
        return cuts
    begins, ends = runs_of(either)
    after_small = codes[begins[np.searchsorted(ends, doubtful)] - 1] == LOWER
    begins, ends = runs_of(upper)
    following = codes[ends[np.searchsorted(begins, doubtful)]]
    last_of_word = (following != LETTER) & (following != LOWER)
    kept: Bools = ~is_doubtful
    kept[is_doubtful] = after_small | last_of_word
    chosen: Ints = cuts[kept]
    return chosen


def _table(strings: list[bytes]) -> Bools:
    """Return which pairs of bytes after an apostrophe make a contraction: bool, shape (65536,)."""
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


def _end_contractions(starts: Bools, data: Bytes, *, any_case: bool) -> None:
    """Make each contraction a piece, where its apostrophe begins one (no space or symbol goes with
    it).
    """
    quotes = np.flatnonzero(data == _APOSTROPHE)
    quotes = quotes[starts[quotes]]
    if not len(quotes):
        return
    pairs = _following_pairs(data, quotes)
    for table, width in zip(_ANY_CASE if any_case else _EXACT, (2, 3), strict=True):
        apostrophes = quotes[table[pairs]]
        starts[apostrophes + 1] = False
        starts[apostrophes + width] = True


def _following_pairs(data: Bytes, quotes: Ints) -> NDArray[np.uint16]:
    """Return the two bytes after each apostrophe: uint16, shape (quotes,)."""
    second = data[np.minimum(quotes + 2, len(data) - 1)]
    pairs = data[quotes + 1].astype(np.uint16)
    pairs <<= 8
    pairs |= second
    return pairs
