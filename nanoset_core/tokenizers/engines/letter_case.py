"""Prepare the classes of characters for split patterns that cut words before capital letters.

Such patterns (GPT-4o, Mistral's Tekken, Kimi) have four classes of characters in words: UPPER,
LOWER, LETTER (letters without case, such as ideographs) and MARK (combining marks). `resolve_case`
turns them into the classes that all patterns have in common, LETTER and OTHER, so that the rest of
splitting need not know about case, and returns where words are cut:

    text           i P h o n e ' s _ n e w T V !
    class          l U l l l l O l S l l l U U O    (l LOWER, U UPPER, S SPACE, O OTHER)
    suffixes       l U l l l l x x S l l l U U O    (x SUFFIX: the contraction is part of the word)
    cuts             ^             ^       ^        (before P, after the suffix, before T)
    result         L L L L L L L L S L L L L L O

Positions are bytes of the text, whose first and last byte are separators of class SEPARATOR.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import (
    Bools,
    Bytes,
    Ints,
    find_runs,
    indices_at_or_before,
)
from nanoset_core.tokenizers.engines.classes import (
    LETTER,
    LOWER,
    MARK,
    NEWLINE,
    OTHER,
    SPACE_BYTE,
    SUFFIX,
    UPPER,
)
from nanoset_core.tokenizers.engines.contractions import (
    ANY_CASE,
    byte_pairs_after,
    find_apostrophes,
)
from nanoset_core.tokenizers.engines.patterns import SplitPattern

_SLASH = 0x2F


def resolve_case(data: Bytes, byte_classes: Bytes, pattern: SplitPattern) -> Ints:
    """Find where a pattern cuts words before capital letters, and simplify the classes of letters.

    "iPhone's" is cut before the "P", and ends after the "'s". Once this is known, the rest of
    splitting need not distinguish small letters and capitals. So all letters get the class LETTER.
    Combining marks (such as the dots of "ü", if they are a character of their own) get the class
    LETTER or OTHER, depending on whether they belong to a word or to symbols.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: A split pattern that looks at capital letters.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    _resolve_marks(data, byte_classes)
    if pattern.slash_tail:  # the pattern ends a run of symbols with newlines and slashes
        _extend_newlines_by_slashes(data, byte_classes)

    cuts = []
    if pattern.contractions == "suffix":  # a contraction is part of the word before it
        cuts.append(_mark_suffixes(data, byte_classes))
    cuts.append(_cuts_before_capitals(byte_classes))

    # From here on, all letters are alike. The classes from SUFFIX on are letters of some kind:
    # SUFFIX itself, UPPER and LOWER.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Make combining marks symbols if they belong to a run of symbols, and letters otherwise.

    The patterns match a word, which may begin with one symbol, or else a run of symbols, which may
    begin with a space. Both may contain marks. With m for a mark:

        "am"     a word
        "!m"     a word: the symbol before it, and the mark as its letter
        "!!m"    symbols: a word begins with one symbol at most
        " !m"    symbols: they begin with the space, which is not part of a word with a symbol

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
    """
    is_mark = byte_classes == MARK
    starts, stops = find_runs(is_mark)  # (n_runs,) runs of marks
    if not len(starts):
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER

    # Only marks right after a symbol can be symbols. No run starts at 0, which is a separator.
    is_after_symbol = is_symbol[starts - 1]
    starts = starts[is_after_symbol]
    stops = stops[is_after_symbol]
    if not len(starts):
        return
    belongs_to_symbols = _belong_to_symbols(data, is_mark, is_symbol, starts)
    starts = starts[belongs_to_symbols]
    stops = stops[belongs_to_symbols]
    byte_classes[positions_in(starts, stops - starts)] = OTHER


def _belong_to_symbols(data: Bytes, is_mark: Bools, is_symbol: Bools, starts: Ints) -> Bools:
    """Return which runs of combining marks belong to a run of symbols, and not to a word.

    A symbol right after another symbol or a space is not the beginning of a word: it is inside a
    run of symbols. Such a symbol is called *inner* here. The run of symbols then takes all symbols
    and marks that follow. With m for a mark:

        text             a ! m b ! ! m ! m
        inner symbol               ^
        marks                w       s   s      w: of a word, s: of symbols

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        is_mark: bool, shape (n_bytes,): whether a byte belongs to a mark.
        is_symbol: bool, shape (n_bytes,): whether a byte belongs to a symbol.
        starts: int64, shape (n_runs,): first bytes of runs of marks, each right after a symbol.

    Returns:
        bool, shape (n_runs,).
    """
    # Inner symbols: a symbol starts at the byte, and the byte before is a symbol or a space.
    is_symbol_or_space = is_symbol | (data == SPACE_BYTE)
    is_first_byte = data & 0xC0 != 0x80  # the other bytes of a character have the form 10xxxxxx
    is_inner = is_symbol_or_space[:-1] & is_symbol[1:] & is_first_byte[1:]
    inner_symbols = np.flatnonzero(is_inner) + 1
    inner_symbols = np.append(-1, inner_symbols)  # -1: there is always one before a mark

    # Symbols and marks that follow each other. A run of marks belongs to symbols if there is an
    # inner symbol before it in the same mixed run.
    mixed_starts, _ = find_runs(is_mark | is_symbol)
    start_of_mixed_run = mixed_starts[indices_at_or_before(mixed_starts, starts)]
    last_inner_symbol = inner_symbols[indices_at_or_before(inner_symbols, starts)]
    return last_inner_symbol >= start_of_mixed_run


def _extend_newlines_by_slashes(data: Bytes, byte_classes: Bytes) -> None:
    """Give slashes the class NEWLINE if they follow newlines that follow a symbol.

    The patterns let a run of symbols end with `[\\r\\n/]*`. In "!\\n//a", both slashes become
    NEWLINE, so that "!\\n//" is one piece later. In "a\\n//a" they remain symbols.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators, so
            that every run of newlines has a byte before and after it.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols. Changed in place.
    """
    # Runs of newlines after a symbol, with a slash after them.
    newline_starts, newline_stops = find_runs(byte_classes == NEWLINE)
    is_after_symbol = byte_classes[newline_starts - 1] == OTHER
    is_before_slash = data[newline_stops] == _SLASH
    first_slashes = newline_stops[is_after_symbol & is_before_slash]
    if not len(first_slashes):
        return

    # All slashes that follow each other from there.
    slash_starts, slash_stops = find_runs(data == _SLASH)
    stop_of_slashes = slash_stops[indices_at_or_before(slash_starts, first_slashes)]
    byte_classes[positions_in(first_slashes, stop_of_slashes - first_slashes)] = NEWLINE


def _mark_suffixes(data: Bytes, byte_classes: Bytes) -> Ints:
    """Give contractions at the end of words the class SUFFIX, and return where they end.

    Of several contractions in a row, the second starts a new word, the third is the suffix of that
    word, and so on: "he'd've's" is cut into "he'd", "'ve's".

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.

    Returns:
        int64, shape (n_suffixes,): the position after each suffix.
    """
    # Apostrophes right after a letter: small, capital, or without case.
    apostrophes = find_apostrophes(data)
    class_before = byte_classes[apostrophes - 1]
    is_after_letter = (
        (class_before == LOWER) | (class_before == UPPER) | (class_before == LETTER)
    )  # (n_apostrophes,)
    apostrophes = apostrophes[is_after_letter]

    # Those that start a contraction, such as 's or 've: the two bytes after them decide.
    next_bytes = byte_pairs_after(data, apostrophes)
    is_short = ANY_CASE.one_byte[next_bytes]  # such as 's: the apostrophe and one byte
    is_long = ANY_CASE.two_bytes[next_bytes]  # such as 've: the apostrophe and two bytes
    is_contraction = is_short | is_long
    stops: Ints = apostrophes + np.where(is_short, 2, 3)
    apostrophes = apostrophes[is_contraction]
    stops = stops[is_contraction]
    if not len(apostrophes):
        return np.empty(0, np.int64)

    # Every other contraction of a row is a suffix: the first, the third, and so on. For
    # "he'd've's I'm":
    #     index                       0 1 2 3     ('d 've 's 'm)
    #     index of the first in row   0 0 0 3
    #     is_suffix                   T F T T
    index = np.arange(len(apostrophes))
    is_first_in_row = np.append(True, apostrophes[1:] != stops[:-1])
    first_in_row = np.maximum.accumulate(np.where(is_first_in_row, index, 0))
    is_suffix: Bools = (index - first_in_row) % 2 == 0
    suffix_starts = apostrophes[is_suffix]
    suffix_stops = stops[is_suffix]
    byte_classes[positions_in(suffix_starts, suffix_stops - suffix_starts)] = SUFFIX
    return suffix_stops


def _cuts_before_capitals(byte_classes: Bytes) -> Ints:
    """Return where words are cut before capital letters.

    The patterns match a word by `[UPPER LETTER]*[LOWER LETTER]+` or, if that fails, by
    `[UPPER LETTER]+[LOWER LETTER]*`. LETTER is a letter without case, such as 中, which may be in
    both parts of a word:

        aB      →  a | B      a small letter and a capital are always separated
        a中B    →  a中 | B    after a small letter, 中 belongs to the second part of the word
        中Bc    →  中Bc       中 and B are the first part, and c is the second
        中B     →  中 | B     nothing could be the second part of "中B", so 中 alone is the word

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. The first and the
            last byte are separators.

    Returns:
        int64, shape (n_cuts,).
    """
    # Capitals after a small letter or after a letter without case. Only the latter are doubtful.
    is_upper = byte_classes == UPPER
    is_caseless = byte_classes == LETTER
    is_lower_or_caseless = is_caseless | (byte_classes == LOWER)
    capitals = np.flatnonzero(is_upper[1:] & is_lower_or_caseless[:-1]) + 1
    is_doubtful = is_caseless[capitals - 1]
    doubtful = capitals[is_doubtful]
    if not len(doubtful):
        return capitals

    # As in a中B: a small letter is before the letters without case.
    caseless_starts, _ = find_runs(is_caseless)
    start_of_caseless = caseless_starts[indices_at_or_before(caseless_starts, doubtful - 1)]
    has_lower_before = byte_classes[start_of_caseless - 1] == LOWER

    # As in 中B: after the capitals, no letter follows that could be the second part.
    upper_starts, upper_stops = find_runs(is_upper)
    stop_of_capitals = upper_stops[indices_at_or_before(upper_starts, doubtful)]
    is_end_of_word = ~is_lower_or_caseless[stop_of_capitals]

    is_cut: Bools = ~is_doubtful
    is_cut[is_doubtful] = has_lower_before | is_end_of_word
    cuts: Ints = capitals[is_cut]
    return cuts
