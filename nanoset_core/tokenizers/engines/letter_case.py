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
    the characters show where. With l for a small letter, U for a capital (upper case), O for a
    symbol, S for a space, x for a letter of a contraction (SUFFIX), and L for any letter:

        text                     i P h o n e ' s _ T V !
        given classes            l U l l l l O l S U U O
        contraction marked       l U l l l l x x S U U O
        cuts                       ^             ^          (before the P, and after the 's)
        classes afterwards       L L L L L L L L S L L O

    The rest of splitting does not look at case: it needs only the last line. Combining marks, such
    as the dots of an "ü" that is written in two characters, have a class of their own at first.
    They become letters or symbols, as the characters before them decide.

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

    # Make all letters one class. The classes are numbers, and the largest are SUFFIX (14), UPPER
    # (15) and LOWER (16). No byte has the class MARK (17) any more.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Make combining marks symbols if they belong to a row of symbols, and letters otherwise.

    Combining marks, such as accents, are characters that are drawn over the one before them. A
    tokenizer cuts text into pieces. A piece with letters may begin with one symbol, but not with
    two, nor with a space and a symbol. Whether a mark counts as a letter depends on that. With m
    for a mark:

        "am"     one piece; m counts as a letter, as it follows one
        "!m"     one piece, with ! as its first symbol; so m counts as a letter
        "!!m"    a piece with letters cannot begin with !!, so m counts as a symbol
        " !m"    a piece with letters cannot begin with a space and !, so m counts as a symbol

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. MARK is replaced
            by LETTER or OTHER (symbol), in place.
    """
    is_mark = byte_classes == MARK
    marks = find_runs(is_mark)  # each run has one mark or several
    if not len(marks):
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER  # "am": a letter, unless one of the next steps changes it

    # Only marks right after a symbol can be symbols: leaves "!m", "!!m" and " !m".
    marks = marks.where(is_symbol[marks.starts - 1])
    if not len(marks):
        return

    # They are symbols if the row of symbols and marks that they are in has, before them, a symbol
    # that follows a space or a symbol: the second ! of "!!m", and the ! of " !m".
    inner_symbols = _inner_symbols(data, is_symbol)  # the positions of such symbols
    run_starts = find_runs(is_mark | is_symbol).starts_at(marks.starts)  # where the rows start
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
    """Keep contractions such as 's in the word before them, and return where they end.

    Some tokenizers keep "it's" together, but a word may have only one contraction. If several
    follow each other, as in "he'd've's", the first is the end of the word "he'd". The second begins
    a new word, whose contraction is the third: "'ve's". So of the contractions in a row, those with
    even numbers end a word, here called suffixes:

        text              h e ' d ' v e ' s
        contraction           0   1     2
        suffix                x x       x x         (0 and 2; they get the class SUFFIX)
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

    # In "he'd've's", the contractions 'd 've 's have the numbers 0 1 2 in their row.
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
    """Return where a tokenizer cuts words before capital letters: "iPhone" becomes "i", "Phone".

    A piece is a first part of capitals, and then a second part of small letters; either may be
    missing. Letters without case, such as 中, may be in both parts. In words, the cuts are:

        aB      →  a | B      between a small letter and a capital: always
        a中B    →  a中 | B    after a small letter, 中 is in the second part: B begins a piece
        中Bc    →  中Bc       no cut: 中 and B are the first part, and c is the second
        中B     →  中 | B     B is at the end of the word (see below)

    The last line results from the regular expressions. GPT-4o's, for example, is first
    `[UPPER LETTER]*[LOWER LETTER]+`, with LETTER for letters without case. It must end with a
    LOWER or a LETTER, so in "中B" it can only match 中. It is preferred to a second expression that
    would match both, `[UPPER LETTER]+[LOWER LETTER]*`.

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. The first and the
            last byte are separators.

    Returns:
        int64, shape (n_cuts,): in no particular order.
    """
    is_upper = byte_classes == UPPER
    is_lower = byte_classes == LOWER
    is_caseless = byte_classes == LETTER

    # aB: always a cut. The byte i of the slice [1:] is the byte i + 1 of the text.
    after_lower = np.flatnonzero(is_lower[:-1] & is_upper[1:]) + 1

    # 中B: a cut in two cases only, "a中B", and "中B" at the end of a word. So find all capitals
    # after a letter without case, and ask these two questions about each.
    after_caseless = np.flatnonzero(is_caseless[:-1] & is_upper[1:]) + 1
    if not len(after_caseless):
        return after_lower
    is_cut = _follow_lower_and_caseless(after_caseless, is_lower, is_caseless)
    is_cut |= _are_last_in_word(after_caseless, is_upper, is_lower | is_caseless)
    return np.concatenate([after_lower, after_caseless[is_cut]])


def _follow_lower_and_caseless(capitals: Ints, is_lower: Bools, is_caseless: Bools) -> Bools:
    """Find the capitals before which there is a small letter, and then only letters without case.

    Some tokenizers cut words before such capitals: "a中B" becomes "a中", "B". Each given capital is
    right after a letter without case. For the text "a中中B 中C":

        capital                                         B       C
        the row of letters without case before it       中中    中
        the character before this row                   a       the space
        result                                          True    False

    Args:
        capitals: int64, shape (n_capitals,): where the capitals are. Right before each is a letter
            without case.
        is_lower: bool, shape (n_bytes,): whether a byte of the text belongs to a small letter.
        is_caseless: bool, shape (n_bytes,): whether a byte belongs to a letter without case.

    Returns:
        bool, shape (n_capitals,).
    """
    # Find where the row of letters without case before each capital starts: for B, the first 中.
    caseless_runs = find_runs(is_caseless)  # all such rows
    bytes_before_capitals = capitals - 1  # each is in a row
    row_starts = caseless_runs.starts_at(bytes_before_capitals)  # (n_capitals,)

    # Right before the row is the last byte of another character: for B, the "a".
    follow: Bools = is_lower[row_starts - 1]
    return follow


def _are_last_in_word(capitals: Ints, is_upper: Bools, is_other_letter: Bools) -> Bools:
    """Return which capitals are at the end of a word, or have only other capitals after them there.

    With 中 as a letter without case:

        text                                    中B!     中BD!    中Bc    B中
        the capital                             B        B        B       B
        the first byte after all capitals       !        !        c       中
        result                                  True     True     False   False

    Args:
        capitals: int64, shape (n_capitals,): the first byte of each.
        is_upper: bool, shape (n_bytes,): whether a byte belongs to a capital.
        is_other_letter: bool, shape (n_bytes,): whether a byte belongs to a letter that is no
            capital: a small one, or one without case.

    Returns:
        bool, shape (n_capitals,).
    """
    # Capitals right after each other are one run. Is the byte after this run one of a letter?
    bytes_after_capitals = find_runs(is_upper).stops_at(capitals)  # (n_capitals,)
    are_last: Bools = ~is_other_letter[bytes_after_capitals]
    return are_last
