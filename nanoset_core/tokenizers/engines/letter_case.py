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

from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints, Runs, find_runs
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
    contraction_lengths,
    find_apostrophes,
)
from nanoset_core.tokenizers.engines.patterns import SplitPattern

_SLASH = 0x2F


def resolve_case(data: Bytes, byte_classes: Bytes, pattern: SplitPattern) -> Ints:
    """Return where words are cut before capital letters, and then make all letters one class.

    Some tokenizers, such as GPT-4o's, cut "iPhone's" into "i" and "Phone's". The classes of
    characters show where. Afterwards, it does not matter any more whether a letter is a capital, so
    all get the class LETTER:

        text                  i P h o n e ' s _ T V !
        classes before        l U l l l l O l S U U O     (l LOWER, U UPPER, O OTHER, S SPACE)
        cuts                    ^             ^           (before the P, and after the 's)
        classes afterwards    L L L L L L L L S L L O     (L LETTER; the 's is a part of the word)

    The helpers of this function change `byte_classes`, too, and the later ones use the changes.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: How the tokenizer cuts text; a pattern that looks at capital letters.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    # Accents get the class of letters, or of symbols if they follow a symbol as in "!!\u0301".
    _resolve_marks(data, byte_classes)
    # Some tokenizers keep "!\n//" together. Their slashes get the class of the newline.
    if pattern.slashes_end_symbols:
        _extend_newlines_by_slashes(data, byte_classes)

    # For some tokenizers, the contraction of "it's" is a part of the word, a suffix. It gets the
    # class SUFFIX, and the word ends after it.
    cuts_after_suffixes: Ints = np.empty(0, np.int64)
    if pattern.contractions == "suffix":
        cuts_after_suffixes = _mark_suffixes(data, byte_classes)

    cuts_before_capitals = _cuts_before_capitals(byte_classes)

    # Classes are numbers. The largest are SUFFIX, UPPER and LOWER: all are letters now.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate([cuts_after_suffixes, cuts_before_capitals])


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Decide for each combining mark, such as an accent, whether it counts as letter or symbol.

    A mark is drawn over the character before it. After a letter, it counts as a letter. After a
    symbol, that depends. A symbol, such as "(", may be the first character of a word, and then the
    mark is the word's first letter. But it is not if it follows a space or another symbol: the
    symbol is no part of a word, and the mark belongs to it. With m for a mark and _ for a space:

        text           a m    ! m    ! ! m    _ ! m    ( m ! ! m
        mark is a      L      L          S        S      L     S      (L letter, S symbol)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. MARK is replaced
            by LETTER or OTHER (symbol), in place.
    """
    # Here for a text between two separators: . a ! m _ ! m .
    #                               position:  0 1 2 3 4 5 6 7
    is_mark = byte_classes == MARK
    if not is_mark.any():
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER  # nearly all marks; those after symbols are corrected below

    # Find the marks right after a symbol: 3 and 6. (Several marks in a row are alike, so a run is
    # one mark or several.)
    mark_runs = find_runs(is_mark)
    runs = mark_runs.where(is_symbol[mark_runs.starts - 1])
    if not len(runs):
        return

    # Which symbols and marks are before these, without any other character in between? Those from
    # 2 on, and those from 5 on.
    symbols_and_marks = find_runs(is_mark | is_symbol)
    first_positions = symbols_and_marks.starts_at(runs.starts)  # (n_runs,) 2 5

    # If one of them is a symbol after a space or another symbol, the marks are symbols. Here, only
    # the symbol at 5 is, so that only the mark at 6 becomes a symbol.
    symbols_in_no_word = _inner_symbols(data, is_symbol)  # 5
    are_symbols = _have_position_between(symbols_in_no_word, first_positions, runs.starts)  # F T
    byte_classes[runs.where(are_symbols).positions()] = OTHER


def _inner_symbols(data: Bytes, is_symbol: Bools) -> Ints:
    """Return the positions of symbols that are right after a space or after another symbol.

        text        !  _  ?  !      (_ is a space)
        position    0  1  2  3
        result            2  3

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        is_symbol: bool, shape (n_bytes,): whether a byte belongs to a symbol.

    Returns:
        int64, shape (n_symbols,): the first byte of each.
    """
    is_first_byte = data & 0xC0 != 0x80  # the other bytes of a character have the form 10xxxxxx
    is_symbol_start = is_symbol & is_first_byte
    is_symbol_or_space = is_symbol | (data == SPACE_BYTE)

    # Compare each byte but the first, which is a separator, with the byte before it.
    is_inner = is_symbol_start[1:] & is_symbol_or_space[:-1]  # (n_bytes - 1,)
    inner_symbols: Ints = np.flatnonzero(is_inner) + 1
    return inner_symbols


def _have_position_between(positions: Ints, starts: Ints, stops: Ints) -> Bools:
    """Return which of some ranges [start, stop) contain at least one of some positions.

        positions    3
        ranges       [2, 6)    [8, 12)
        result       T         F

    Args:
        positions: int64, shape (n_positions,), ascending.
        starts: int64, shape (n_ranges,).
        stops: int64, shape (n_ranges,).

    Returns:
        bool, shape (n_ranges,).
    """
    # Count the positions before the start and before the stop of each range: if there are more
    # before the stop, some are between the two.
    counts_before_start = np.searchsorted(positions, starts)
    counts_before_stop = np.searchsorted(positions, stops)
    have_position: Bools = counts_before_stop > counts_before_start
    return have_position


def _extend_newlines_by_slashes(data: Bytes, byte_classes: Bytes) -> None:
    r"""Give slashes the class of newlines if they follow a symbol and newlines, as in "!\n//".

    Some tokenizers keep these together: their regular expression for symbols ends with `[\r\n/]*`.
    A later step joins newlines with the symbol before them. If slashes have the class of newlines,
    it joins them, too:

        position       1 2  3 4 5      1 2  3 4 5
        text           ! \n / / a      b \n / / a
        before         O N  O O L      L N  O O L     (O symbol, N newline, L letter)
        afterwards     O N  N N L      L N  O O L     (no symbol before the newline: no change)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols. Changed in place.
    """
    # Each run is one newline or several. Here it starts at 2, and stops at 3, where a slash is.
    newlines = find_runs(byte_classes == NEWLINE)
    is_after_symbol = byte_classes[newlines.starts - 1] == OTHER
    is_before_slash = data[newlines.stops] == _SLASH
    first_slashes = newlines.stops[is_after_symbol & is_before_slash]  # 3
    if not len(first_slashes):
        return

    # The slash may be the first of several. Change all from 3 up to 5.
    all_slashes = find_runs(data == _SLASH)
    stops = all_slashes.stops_at(first_slashes)  # 5: where the run of slashes at 3 stops
    changed_slashes = Runs(first_slashes, stops)
    byte_classes[changed_slashes.positions()] = NEWLINE


def _mark_suffixes(data: Bytes, byte_classes: Bytes) -> Ints:
    """Make contractions such as 's a part of the word before them, and return where they end.

    A word may have only one contraction. If several follow each other, as in "he'd've's", the first
    is a part of the word "he'd". The second begins a new word, and the third is its contraction:
    "'ve's". So each first, third, fifth and so on is a part of the word before it, a suffix:

        position          0 1 2 3 4 5 6 7 8 9
        text              h e ' d ' v e ' s _
        number                0   1     2           (of the contraction, from 0)
        suffix                x x       x x         (0 and 2: their bytes get the class SUFFIX)
        result                    ^         ^       (where the suffixes end: 4 and 9)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.

    Returns:
        int64, shape (n_suffixes,): the position after each suffix, where a piece starts.
    """
    contractions = _contractions_after_letters(data, byte_classes)  # [2, 4)  [4, 7)  [7, 9)
    if not len(contractions):
        return np.empty(0, np.int64)

    # Contractions without a letter between them are numbered from 0: 0 1 2.
    numbers = _index_in_row(contractions)
    suffixes = contractions.where(numbers % 2 == 0)  # [2, 4)  [7, 9)
    byte_classes[suffixes.positions()] = SUFFIX  # the bytes 2 3 7 8
    return suffixes.stops


def _contractions_after_letters(data: Bytes, byte_classes: Bytes) -> Runs:
    """Find the contractions right after a letter, such as the 's of "it's" or the 've of "we've".

    Those of "'tis" or "it 's" are not found: their apostrophe is not after a letter.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.

    Returns:
        The range of bytes of each contraction: for "it's", the range [2, 4).
    """
    apostrophes = find_apostrophes(data)
    is_after_letter = np.isin(byte_classes[apostrophes - 1], (LOWER, UPPER, LETTER))
    apostrophes = apostrophes[is_after_letter]

    lengths = contraction_lengths(data, apostrophes, ANY_CASE)  # 2 for 's, 0 for no contraction
    is_contraction = lengths > 0
    starts = apostrophes[is_contraction]
    return Runs(starts, starts + lengths[is_contraction])


def _index_in_row(runs: Runs) -> Ints:
    """Number the runs of each row from 0. In a row, each run starts where the one before stops.

    For the runs [2, 4), [4, 7), [7, 9) and [12, 14), the numbers are 0 1 2 and 0.
    """
    indices = np.arange(len(runs))
    is_first_in_row = np.append(True, runs.starts[1:] != runs.stops[:-1])
    first_in_row = np.maximum.accumulate(np.where(is_first_in_row, indices, 0))
    return indices - first_in_row


def _cuts_before_capitals(byte_classes: Bytes) -> Ints:
    """Return where a tokenizer cuts words before capital letters: "iPhone" becomes "i", "Phone".

    Such tokenizers look for words that match `[UPPER 中]*[LOWER 中]+`: first capitals, and then
    small letters. Letters without case, such as 中, count as both. Capitals that no small letter
    follows are a word of their own. So there are these cases:

        aB      a | B       no capital may follow the small letter a
        a中B    a中 | B     nor may one follow 中, which counts as a small letter here
        中B     中 | B      no small letter follows B, so the word ends before it
        中Bc    no cut      中B count as capitals, and c is the small letter

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character, where LETTER is a
            letter without case. The first and the last byte are separators.

    Returns:
        int64, shape (n_cuts,): in no particular order.
    """
    is_upper = byte_classes == UPPER
    is_lower = byte_classes == LOWER
    is_caseless = byte_classes == LETTER

    # aB: compare each byte with the next one. The capital is the next one, hence + 1.
    after_lower = np.flatnonzero(is_lower[:-1] & is_upper[1:]) + 1

    # 中B: capitals after a letter without case. Is it the second or the third line above?
    after_caseless = np.flatnonzero(is_caseless[:-1] & is_upper[1:]) + 1
    if not len(after_caseless):
        return after_lower
    has_small_before = _follow_lower_and_caseless(after_caseless, is_lower, is_caseless)
    is_other_letter = is_lower | is_caseless
    has_only_capitals_after = _only_capitals_follow(after_caseless, is_upper, is_other_letter)
    is_cut = has_small_before | has_only_capitals_after
    return np.concatenate([after_lower, after_caseless[is_cut]])


def _follow_lower_and_caseless(capitals: Ints, is_lower: Bools, is_caseless: Bools) -> Bools:
    """Return before which capitals there are a small letter and then letters without case.

    These capitals begin a new word, since the word before them has small letters already: the
    tokenizer cuts "a中中B" into "a中中" and "B". In this text, with a position for each letter:

        text          .  a  中  中  B  .  中  D
        position      0  1  2   3   4  5  6   7
        result                      True      False     (a dot is before 中D, no small letter)

    Args:
        capitals: int64, shape (n_capitals,): the positions of capitals that are right after a
            letter without case: 4, 7.
        is_lower: bool, shape (n_bytes,): whether a byte of the text belongs to a small letter. The
            first byte of the text belongs to no letter.
        is_caseless: bool, shape (n_bytes,): whether a byte belongs to a letter without case, such
            as 中.

    Returns:
        bool, shape (n_capitals,).
    """
    # Go back from each capital over the letters without case before it, 中中 or 中.
    caseless_runs = find_runs(is_caseless)  # [2, 4)  [6, 7)
    run_starts = caseless_runs.starts_at(capitals - 1)  # (n_capitals,) of the runs with 3 and 6
    bytes_before_runs = run_starts - 1  # 1 5: of a, and of the second dot
    follow: Bools = is_lower[bytes_before_runs]
    return follow


def _only_capitals_follow(capitals: Ints, is_upper: Bools, is_other_letter: Bools) -> Bools:
    """Return which capitals have no other letter than capitals after them in their word.

    For the B in each of these texts:

        text      what follows     result
        中B!      nothing          True
        中BD!     D, a capital     True
        中Bc      c                False
        中BDc     D and then c     False

    Args:
        capitals: int64, shape (n_capitals,): the positions of some capitals.
        is_upper: bool, shape (n_bytes,): whether a byte of the text belongs to a capital. The last
            byte of the text is a separator.
        is_other_letter: bool, shape (n_bytes,): whether a byte belongs to any other letter.

    Returns:
        bool, shape (n_capitals,).
    """
    # Each capital is in a run of capitals: B or BD. Look at the byte after the run: ! ! c c.
    capital_runs = find_runs(is_upper)
    run_stops = capital_runs.stops_at(capitals)  # (n_capitals,)
    only_capitals_follow: Bools = ~is_other_letter[run_stops]
    return only_capitals_follow
