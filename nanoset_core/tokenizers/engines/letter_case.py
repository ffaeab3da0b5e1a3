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
from nanoset_core.tokenizers.engines.contractions import ANY_CASE, find_contractions
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

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: How the tokenizer cuts text; a pattern that looks at capital letters.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    # Accents get the class of letters, or of symbols if they follow a symbol as in "!!\u0301".
    _resolve_marks(data, byte_classes)

    # Some tokenizers keep "!\n//" together. These slashes get the class of the newline, so that
    # they are joined with the symbol as newlines are.
    if pattern.slashes_end_symbols:
        slashes = _slashes_after_symbols_and_newlines(data, byte_classes)
        byte_classes[slashes.positions()] = NEWLINE

    # For some tokenizers, the contraction of "it's" is a part of the word, a suffix. It gets the
    # class SUFFIX, and the word ends after it.
    cuts_after_suffixes: Ints = np.empty(0, np.int64)
    if pattern.contractions == "suffix":
        suffixes = _find_suffixes(data, byte_classes)
        byte_classes[suffixes.positions()] = SUFFIX
        cuts_after_suffixes = suffixes.stops

    cuts_before_capitals = _cuts_before_capitals(byte_classes)

    # Classes are numbers. The largest are SUFFIX, UPPER and LOWER: all are letters now.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate([cuts_after_suffixes, cuts_before_capitals])


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    r"""Decide for each combining mark, such as an accent, whether it counts as letter or symbol.

    A mark is drawn over the character before it, and counts as the same: as a letter in "a\u0301",
    and as a symbol in "!!\u0301". But a word may start with one symbol, as in "(word": the mark of
    "(\u0301" counts as the first letter of a word.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. MARK is replaced
            by LETTER, or by OTHER for symbols, in place.
    """
    is_mark = byte_classes == MARK
    if not is_mark.any():
        return
    is_symbol = byte_classes == OTHER
    symbol_marks = _marks_of_symbols(data, is_mark, is_symbol)
    byte_classes[is_mark] = LETTER  # nearly all of them
    byte_classes[symbol_marks.positions()] = OTHER


def _marks_of_symbols(data: Bytes, is_mark: Bools, is_symbol: Bools) -> Runs:
    """Find the combining marks that belong to a symbol which cannot be the start of a word.

    Tokenizers let a word start with one symbol, as in "(word", but not if a space or another symbol
    is before that symbol. A mark after such a symbol belongs to the symbol, and so do all further
    symbols and marks up to the next other character. With m for a mark and _ for a space:

        position              0 1 2    3 4 5 6 7 8
        text               .  a ! m    _ ! m ( m b  .
        is in the result          no       yes yes

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        is_mark: bool, shape (n_bytes,): whether a byte belongs to a combining mark.
        is_symbol: bool, shape (n_bytes,): whether a byte belongs to a symbol.

    Returns:
        Ranges of one mark or several: here [5, 6) and [7, 8).
    """
    marks = find_runs(is_mark)
    marks_after_symbols = marks.where(is_symbol[marks.starts - 1])  # at 2, 5 and 7
    if not len(marks_after_symbols):
        return marks_after_symbols

    # Each is in a run of symbols and marks: [1, 3) or [4, 8). Is a symbol that starts no word in
    # this run before it? Here, that is the symbol at 4.
    symbols_and_marks = find_runs(is_mark | is_symbol)
    run_starts = symbols_and_marks.starts_at(marks_after_symbols.starts)  # (n_marks,) 1 4 4
    is_of_symbol = _have_position_between(
        _inner_symbols(data, is_symbol),  # 4 6
        starts=run_starts,
        stops=marks_after_symbols.starts,
    )  # (n_marks,) F T T
    return marks_after_symbols.where(is_of_symbol)


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


def _slashes_after_symbols_and_newlines(data: Bytes, byte_classes: Bytes) -> Runs:
    r"""Find the slashes after a symbol and newlines, as in "!\n//".

    Some tokenizers keep these together: their regular expression for symbols ends with `[\r\n/]*`.

        text         ! \n / / a      b \n / / a
        position     1 2  3 4 5      6 7  8 9
        result            [3, 5)     none, since no symbol is before the newline

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols.

    Returns:
        The ranges of one slash or several.
    """
    # Slashes after a newline: [3, 5) and [8, 10).
    slashes = find_runs(data == _SLASH)
    slashes = slashes.where(byte_classes[slashes.starts - 1] == NEWLINE)
    if not len(slashes):
        return slashes

    # The newline may be the last of several: look at what is before the first one.
    newlines = find_runs(byte_classes == NEWLINE)
    newline_starts = newlines.starts_at(slashes.starts - 1)  # 2 7
    is_after_symbol = byte_classes[newline_starts - 1] == OTHER  # T F
    return slashes.where(is_after_symbol)


def _find_suffixes(data: Bytes, byte_classes: Bytes) -> Runs:
    """Find the contractions that are a part of the word before them: the 's of "it's".

    A word may have only one contraction. If several follow each other, as in "he'd've's", the first
    is a part of the word "he'd". The second begins a new word, and the third is its contraction:
    "'ve's". So each first, third, fifth and so on is a suffix, a part of the word before it:

        position          0 1 2 3 4 5 6 7 8 9
        text              h e ' d ' v e ' s _
        number                0   1     2           (of the contraction, from 0)
        suffixes              [2, 4)    [7, 9)

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.

    Returns:
        The range of bytes of each suffix.
    """
    # Only contractions right after a letter: not those of "'tis" or "it 's".
    contractions = find_contractions(data, ANY_CASE)  # [2, 4)  [4, 7)  [7, 9)
    class_before = byte_classes[contractions.starts - 1]
    contractions = contractions.where(np.isin(class_before, (LOWER, UPPER, LETTER)))
    if not len(contractions):
        return contractions

    # Contractions without a letter between them are numbered from 0: 0 1 2.
    numbers = _index_in_row(contractions)
    return contractions.where(numbers % 2 == 0)


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
        int64, shape (n_cuts,), ascending.
    """
    capitals = find_runs(byte_classes == UPPER)  # one capital or several in a row
    class_before = byte_classes[capitals.starts - 1]  # (n_runs,)
    is_cut = class_before == LOWER  # aB
    is_after_caseless = class_before == LETTER  # 中B
    if is_after_caseless.any():
        after_caseless = capitals.where(is_after_caseless)
        is_cut[is_after_caseless] = _are_cut_after_caseless(after_caseless, byte_classes)
    cuts: Ints = capitals.starts[is_cut]
    return cuts


def _are_cut_after_caseless(capitals: Runs, byte_classes: Bytes) -> Bools:
    """Return which capitals after a letter without case, such as 中, begin a new word.

        a中B    yes
        中B     yes    no other letter follows the capitals
        中Bc    no

    Args:
        capitals: One capital or several in a row.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.

    Returns:
        bool, shape (n_runs,).
    """
    is_after_small = _follow_small_and_caseless(capitals.starts, byte_classes)
    class_after = byte_classes[capitals.stops]
    is_before_letter = np.isin(class_after, (LOWER, LETTER))
    are_cut: Bools = is_after_small | ~is_before_letter
    return are_cut


def _follow_small_and_caseless(capitals: Ints, byte_classes: Bytes) -> Bools:
    """Return which capitals follow a small letter and then letters without case, as in "a中中B".

        text          .  a  中  中  B  .  中  D
        position      0  1  2   3   4  5  6   7        (of letters, not of bytes)
        result                      T         F        (a dot is before 中D, and no small letter)

    Args:
        capitals: int64, shape (n_capitals,): the positions of capitals that are right after a
            letter without case: 4 7.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: LOWER for small
            letters, and LETTER for those without case. The first byte is a separator.

    Returns:
        bool, shape (n_capitals,).
    """
    # Go back from each capital over the letters without case before it, 中中 or 中.
    caseless = find_runs(byte_classes == LETTER)  # [2, 4)  [6, 7)
    caseless_starts = caseless.starts_at(capitals - 1)  # (n_capitals,) 2 6
    follow_small: Bools = byte_classes[caseless_starts - 1] == LOWER  # the class of a, and of a dot
    return follow_small
