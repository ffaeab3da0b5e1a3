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
    byte_pairs_after,
    find_apostrophes,
)
from nanoset_core.tokenizers.engines.patterns import SplitPattern

_SLASH = 0x2F


def resolve_case(data: Bytes, byte_classes: Bytes, pattern: SplitPattern) -> Ints:
    """Find where words are cut before capital letters, and then give all letters the same class.

    Some tokenizers (GPT-4o's, for example) cut "iPhone's" into "i" and "Phone's". The classes of
    the characters show where, with l for a small letter, U for a capital, O for a symbol and L for
    any letter:

        text             i P h o n e ' s _ T V !
        classes before   l U l l l l O l S U U O
        cuts               ^             ^          (before the P, and after the contraction 's)
        classes after    L L L L L L L L S L L O

    The rest of splitting does not look at case, and needs no more than the classes after. Combining
    marks, such as the dots of an "ü" that is written in two characters, become letters in words,
    and symbols among symbols.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: How the tokenizer cuts text; a pattern that looks at capital letters.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    # These two steps only change classes.
    _resolve_marks(data, byte_classes)
    if pattern.slashes_end_symbols:  # the pattern ends a run of symbols with newlines and slashes
        _extend_newlines_by_slashes(data, byte_classes)

    cuts = []
    if pattern.contractions == "suffix":  # a contraction is part of the word before it
        cuts.append(_mark_suffixes(data, byte_classes))
    cuts.append(_cuts_before_capitals(byte_classes))

    # Make all letters one class. The classes from SUFFIX on are those of letters: SUFFIX itself
    # (the 's of "iPhone's"), UPPER and LOWER.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Make combining marks symbols if they belong to a row of symbols, and letters otherwise.

    Combining marks, such as accents, are drawn at the character before them. Some tokenizers cut
    text into words, which may begin with one symbol, and rows of symbols, which may begin with a
    space. Both may have marks. With m for a mark:

        "am"     a word
        "!m"     a word that begins with a symbol; the mark is its only letter
        "!!m"    symbols: a word begins with one symbol at most
        " !m"    symbols: the space belongs to them, and a word has no symbol after a space

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: MARK becomes
            LETTER or OTHER (symbol), in place.
    """
    is_mark = byte_classes == MARK
    marks = find_runs(is_mark)  # each run has one mark or several
    if not len(marks):
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER  # in most cases

    # Only marks right after a symbol can be symbols.
    marks = marks.where(is_symbol[marks.starts - 1])
    if not len(marks):
        return

    # They are symbols if one of the symbols before them, in the same run of symbols and marks,
    # cannot begin a word: "!!m" and " !m".
    inner_symbols = _inner_symbols(data, is_symbol)
    run_starts = find_runs(is_mark | is_symbol).starts_at(marks.starts)
    are_symbols = _have_position_between(inner_symbols, run_starts, marks.starts)
    byte_classes[marks.where(are_symbols).positions()] = OTHER


def _inner_symbols(data: Bytes, is_symbol: Bools) -> Ints:
    """Return the symbols right after a space or another symbol, with which no word can begin.

        text        !  _  ?  !
        position    0  1  2  3
        result            2  3

    (A tokenizer may take a symbol as the beginning of a word, as in "(word", but only a single
    one.)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        is_symbol: bool, shape (n_bytes,): whether a byte belongs to a symbol.

    Returns:
        int64, shape (n_symbols,): the first byte of each.
    """
    is_symbol_or_space = is_symbol | (data == SPACE_BYTE)
    is_first_byte = data & 0xC0 != 0x80  # the other bytes of a character have the form 10xxxxxx
    is_symbol_start = is_symbol & is_first_byte

    # (n_bytes - 1,) for each byte but the first, which is a separator
    is_inner = is_symbol_start[1:] & is_symbol_or_space[:-1]
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
    r"""Give slashes the class of newlines if they follow a symbol and newlines, as in "!\n//a".

    Some tokenizers make symbols, and newlines and slashes after them, one piece: their regular
    expression ends with `[\r\n/]*`. A later step joins symbols with what has the class of newlines
    right after them. So it also joins these slashes, if they have this class:

        text       ! \n / / a          a \n / / a
        before     O N  O O L          L N  O O L     (O symbol, N newline, L letter)
        after      O N  N N L          L N  O O L     (no symbol before the newline: no change)
        pieces     "!\n//", "a"        "a", "\n", "//", "a"

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols. Changed in place.
    """
    # Runs of newlines between a symbol and a slash: in "!\n//a", the run at 1.
    newlines = find_runs(byte_classes == NEWLINE)
    is_after_symbol = byte_classes[newlines.starts - 1] == OTHER
    is_before_slash = data[newlines.stops] == _SLASH
    first_slashes = newlines.stops[is_after_symbol & is_before_slash]  # in the example 2
    if not len(first_slashes):
        return

    # All slashes from the first one up to another character: the positions 2 and 3.
    slash_stops = find_runs(data == _SLASH).stops_at(first_slashes)
    slashes = Runs(first_slashes, slash_stops)
    byte_classes[slashes.positions()] = NEWLINE


def _mark_suffixes(data: Bytes, byte_classes: Bytes) -> Ints:
    """Make contractions the end of the word before them, and return where they end: it's|.

    Some tokenizers keep "it's" together, but let a word have only one contraction. So in a row of
    contractions, the first belongs to the word, the second starts a new word, the third belongs to
    that word, and so on:

        text                 h e ' d ' v e ' s
        contraction              0   1     2        (numbers in the row)
        new classes          . . x x . . . x x      (x SUFFIX: the even numbers)
        result: stops                ^         ^    ("he'd" and "'ve's" are the pieces)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.

    Returns:
        int64, shape (n_suffixes,): the position after each suffix, where a piece starts.
    """
    contractions = _contractions_after_letters(data, byte_classes)
    if not len(contractions):
        return np.empty(0, np.int64)

    # In "he'd've's", the contractions 'd 've 's have the numbers 0 1 2: the even ones are suffixes.
    is_suffix = _index_in_row(contractions) % 2 == 0
    suffixes = contractions.where(is_suffix)
    byte_classes[suffixes.positions()] = SUFFIX
    return suffixes.stops


def _contractions_after_letters(data: Bytes, byte_classes: Bytes) -> Runs:
    """Find the contractions right after a letter, such as the 's of "it's" or the 've of "we've".

    The contractions are 's 't 'm 'd 'll 've 're, in small letters or capitals. An apostrophe
    elsewhere, as in "'tis" or "it 's", is not looked at.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.

    Returns:
        The range of bytes of each contraction: for "it's", the range [2, 4).
    """
    # Apostrophes after a letter. The byte before the first byte of the text is never read, since
    # that is a separator, and no apostrophe.
    apostrophes = find_apostrophes(data)
    is_after_letter = np.isin(byte_classes[apostrophes - 1], (LOWER, UPPER, LETTER))
    apostrophes = apostrophes[is_after_letter]

    # The two bytes after an apostrophe decide whether it starts a contraction. The tables have an
    # entry for each two bytes, such as "s " or "ve".
    next_bytes = byte_pairs_after(data, apostrophes)  # (n_apostrophes,) indices into the tables
    is_short = ANY_CASE.one_byte[next_bytes]  # 's: the apostrophe and one byte
    is_long = ANY_CASE.two_bytes[next_bytes]  # 've: the apostrophe and two bytes
    lengths = np.where(is_short, 2, 3)  # counts if it is a contraction at all
    contractions = Runs(apostrophes, apostrophes + lengths)
    return contractions.where(is_short | is_long)


def _index_in_row(runs: Runs) -> Ints:
    """Number the runs of each row from 0. In a row, each run starts where the one before stops.

    For the runs [2, 4), [4, 7), [7, 9) and [12, 14), the numbers are 0 1 2 and 0.
    """
    indices = np.arange(len(runs))
    is_first_in_row = np.append(True, runs.starts[1:] != runs.stops[:-1])
    first_in_row = np.maximum.accumulate(np.where(is_first_in_row, indices, 0))
    return indices - first_in_row


def _cuts_before_capitals(byte_classes: Bytes) -> Ints:
    """Return where a tokenizer cuts words before capital letters.

    GPT-4o's, for example, matches a word by `[UPPER LETTER]*[LOWER LETTER]+` or, if that fails, by
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
        int64, shape (n_cuts,): in no particular order.
    """
    is_upper = byte_classes == UPPER
    is_lower = byte_classes == LOWER
    is_caseless = byte_classes == LETTER

    # aB: always a cut.
    after_lower = np.flatnonzero(is_lower[:-1] & is_upper[1:]) + 1

    # 中B: a cut in two cases only, "a中B", and "中B" at the end of a word.
    after_caseless = np.flatnonzero(is_caseless[:-1] & is_upper[1:]) + 1
    if not len(after_caseless):
        return after_lower
    is_cut = _follow_lower_and_caseless(after_caseless, is_lower, is_caseless)
    is_cut |= _are_last_in_word(after_caseless, is_upper, is_lower | is_caseless)
    return np.concatenate([after_lower, after_caseless[is_cut]])


def _follow_lower_and_caseless(capitals: Ints, is_lower: Bools, is_caseless: Bools) -> Bools:
    """For each capital, return whether letters without case precede it, and a small letter these.

    Some tokenizers cut words before such capitals. With w for a letter without case, such as 中:

        text                            a w w B _ w C
        the capitals                          B     C
        letters without case before       w w     w
        what is before these            a       _
        is this a small letter                yes   no

    Args:
        capitals: int64, shape (n_capitals,): where the capitals are. Right before each is a letter
            without case.
        is_lower: bool, shape (n_bytes,): whether a byte of the text belongs to a small letter.
        is_caseless: bool, shape (n_bytes,): whether a byte belongs to a letter without case.

    Returns:
        bool, shape (n_capitals,).
    """
    # In each row of letters without case (ww), find where it starts.
    caseless_runs = find_runs(is_caseless)
    bytes_before_capitals = capitals - 1  # each is in such a row
    row_starts = caseless_runs.starts_at(bytes_before_capitals)  # (n_capitals,)

    # Before that is the last byte of another character: "a" in the example.
    follow: Bools = is_lower[row_starts - 1]
    return follow


def _are_last_in_word(capitals: Ints, is_upper: Bools, is_other_letter: Bools) -> Bools:
    """Return which capitals are at the end of a word, alone or with other capitals after them.

    With w for a letter without case, such as 中:

        word          w B    w B D    w B c
        capital         B      B        B
        after it      end    D, end   c, a small letter
        result        T      T        F

    Args:
        capitals: int64, shape (n_capitals,): the first byte of each.
        is_upper: bool, shape (n_bytes,): whether a byte belongs to a capital.
        is_other_letter: bool, shape (n_bytes,): whether a byte belongs to any other letter.

    Returns:
        bool, shape (n_capitals,).
    """
    # The byte after each run of capitals: is it one of another letter, or does the word end there?
    bytes_after_capitals = find_runs(is_upper).stops_at(capitals)  # (n_capitals,)
    are_last: Bools = ~is_other_letter[bytes_after_capitals]
    return are_last
