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
        classes before        l U l l l l O l S U U O     (l small, U capital, O symbol, S space)
        cuts                    ^             ^           (before the P, and after the 's)
        classes afterwards    L L L L L L L L S L L O     (L letter; the 's is a part of the word)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: How the tokenizer cuts text; a pattern that looks at capital letters.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    # Two preparations, which change classes: accents become letters or symbols, and the slashes of
    # "!\n//" belong to the newline if the tokenizer keeps them together.
    _resolve_marks(data, byte_classes)
    if pattern.slashes_end_symbols:
        _extend_newlines_by_slashes(data, byte_classes)

    cuts = []
    if pattern.contractions == "suffix":  # a contraction belongs to the word before it
        cuts.append(_mark_suffixes(data, byte_classes))
    cuts.append(_cuts_before_capitals(byte_classes))

    # The largest classes are SUFFIX (letters of contractions), UPPER and LOWER.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Decide for each combining mark, such as an accent, whether it counts as letter or symbol.

    A mark is drawn over the character before it. If that is a letter, it counts as a letter. If it
    is a symbol, that depends, since words may begin with a symbol, as in "(word", but not with two
    symbols, nor with a space and a symbol. With m for a mark:

        "am"  "!m"       letter: a word, and a word that begins with a symbol
        "!!m"  " !m"     symbol: no word can begin like this

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. MARK is replaced
            by LETTER or OTHER (symbol), in place.
    """
    # For the text "a!m_!m" with a space _, the marks are at 2 and 5.
    is_mark = byte_classes == MARK
    marks = find_runs(is_mark)  # one mark or several in a row
    if not len(marks):
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER

    # Only marks after a symbol may count as symbols: here both.
    marks = marks.where(is_symbol[marks.starts - 1])
    if not len(marks):
        return

    # They do if no word can begin with a symbol before them, in the same row of symbols and marks.
    # Here the rows start at 1 and 4, and only the ! at 4 is such a symbol: so the mark at 5 does.
    row_starts = find_runs(is_mark | is_symbol).starts_at(marks.starts)
    symbols_in_no_word = _inner_symbols(data, is_symbol)
    are_symbols = _have_position_between(symbols_in_no_word, row_starts, marks.starts)
    byte_classes[marks.where(are_symbols).positions()] = OTHER


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
    With the class of newlines, a later step joins these slashes with the symbol, too:

        position       1 2  3 4 5      1 2  3 4 5
        text           ! \n / / a      b \n / / a
        before         O N  O O L      L N  O O L     (O symbol, N newline, L letter)
        afterwards     O N  N N L      L N  O O L     (no symbol before the newline: no change)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols. Changed in place.
    """
    newlines = find_runs(byte_classes == NEWLINE)  # each run is one newline or several
    is_after_symbol = byte_classes[newlines.starts - 1] == OTHER
    is_before_slash = data[newlines.stops] == _SLASH
    first_slashes = newlines.stops[is_after_symbol & is_before_slash]  # 3
    if not len(first_slashes):
        return

    # Change all slashes that follow without a gap: those from 3 up to 5.
    stops = find_runs(data == _SLASH).stops_at(first_slashes)  # 5
    byte_classes[Runs(first_slashes, stops).positions()] = NEWLINE


def _mark_suffixes(data: Bytes, byte_classes: Bytes) -> Ints:
    """Make contractions such as 's a part of the word before them, and return where they end.

    A word may have only one contraction. If several follow each other, as in "he'd've's", the first
    is a part of the word "he'd". The second begins a new word, and the third is its contraction:
    "'ve's". So every other contraction of a row is a part of the word before it, a suffix:

        text              h e ' d ' v e ' s
        number in row         0   1     2
        suffix                x x       x x         (numbers 0 and 2: they get the class SUFFIX)
        result                    ^         ^       (where the suffixes end: 4 and 9)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.

    Returns:
        int64, shape (n_suffixes,): the position after each suffix, where a piece starts.
    """
    contractions = _contractions_after_letters(data, byte_classes)
    if not len(contractions):
        return np.empty(0, np.int64)

    is_suffix = _index_in_row(contractions) % 2 == 0
    suffixes = contractions.where(is_suffix)
    byte_classes[suffixes.positions()] = SUFFIX
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

    Letters without case, such as 中, may be before the capital. There are three kinds of cuts:

        aB → a | B          after a small letter
        a中B → a中 | B      after a small letter and letters without case
        中B → 中 | B        after a letter without case, if only capitals follow in the word

    (So 中Bc is not cut. Such tokenizers look for `[UPPER 中]*[LOWER 中]+`, with 中 for all letters
    without case. That matches 中Bc as a whole. But of 中B it matches only 中, as it cannot end with
    a capital.)

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character, where LETTER is a
            letter without case. The first and the last byte are separators.

    Returns:
        int64, shape (n_cuts,): in no particular order.
    """
    is_upper = byte_classes == UPPER
    is_lower = byte_classes == LOWER
    is_caseless = byte_classes == LETTER

    # aB: compare each byte with the next one. The cut is before the next one, hence + 1.
    after_lower = np.flatnonzero(is_lower[:-1] & is_upper[1:]) + 1

    # 中B: these capitals are cut only if one of the other two cases applies.
    after_caseless = np.flatnonzero(is_caseless[:-1] & is_upper[1:]) + 1
    if not len(after_caseless):
        return after_lower
    is_cut = _follow_lower_and_caseless(after_caseless, is_lower, is_caseless)
    is_cut |= _are_last_in_word(after_caseless, is_upper, is_lower | is_caseless)
    return np.concatenate([after_lower, after_caseless[is_cut]])


def _follow_lower_and_caseless(capitals: Ints, is_lower: Bools, is_caseless: Bools) -> Bools:
    """Return which capitals follow after a small letter and letters without case.

    For example, B does and D does not. Bytes are counted as one for each letter here:

        text          .  a  中  中  B  .  中  D
        position      0  1  2   3   4  5  6   7
        result                      True      False

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
    # Find where the letters without case before each capital begin, and look at the byte before.
    caseless_runs = find_runs(is_caseless)  # 2 to 4, and 6 to 7
    run_starts = caseless_runs.starts_at(capitals - 1)  # (n_capitals,) 2 and 6
    follow: Bools = is_lower[run_starts - 1]  # those of a and of the second dot
    return follow


def _are_last_in_word(capitals: Ints, is_upper: Bools, is_other_letter: Bools) -> Bools:
    """Return after which capitals the word ends, or goes on with nothing but capitals.

    For each B of these texts:

        B!      True
        BD!     True: only another capital follows
        Bc      False: a small letter follows
        BDc     False

    Args:
        capitals: int64, shape (n_capitals,): the positions of the capitals.
        is_upper: bool, shape (n_bytes,): whether a byte of the text belongs to a capital. The last
            byte of the text is a separator.
        is_other_letter: bool, shape (n_bytes,): whether a byte belongs to any other letter.

    Returns:
        bool, shape (n_capitals,).
    """
    # Go on from each capital to the byte after it and all capitals that follow: ! ! c c.
    bytes_after_capitals = find_runs(is_upper).stops_at(capitals)  # (n_capitals,)
    are_last: Bools = ~is_other_letter[bytes_after_capitals]
    return are_last
