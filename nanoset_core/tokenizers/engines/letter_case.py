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
from nanoset_core.tokenizers.engines.arrays import Bools, Bytes, Ints, find_runs
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
    """Find where a pattern that looks at capital letters cuts words, and simplify the classes.

    Afterwards, all letters have the class LETTER, and marks have LETTER or OTHER, as other patterns
    treat them.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        pattern: A split pattern with `cased`.

    Returns:
        int64, shape (n_cuts,): where pieces start inside words, and right after contractions.
    """
    _resolve_marks(data, byte_classes)
    if pattern.slash_tail:
        _extend_newlines_by_slashes(data, byte_classes)

    cuts = []
    if pattern.contractions == "suffix":
        cuts.append(_mark_suffixes(data, byte_classes))
    cuts.append(_cuts_before_capitals(byte_classes))

    # The cuts are known, so all letters are alike from here on. SUFFIX is the least of the classes
    # that are letters of some kind.
    byte_classes[byte_classes >= SUFFIX] = LETTER
    return np.concatenate(cuts)


def _resolve_marks(data: Bytes, byte_classes: Bytes) -> None:
    """Make combining marks symbols if they follow several symbols, and letters otherwise.

    The patterns first try a word, which may begin with one symbol and contain marks, and then a run
    of symbols, which may begin with a space and contain marks, too. So in "!" + mark, the mark is
    the letter of a word. In "!!" + mark and " !" + mark, the word fails at the second character,
    and the run of symbols takes the mark.

    Args:
        data: uint8, shape (n_bytes,).
        byte_classes: uint8, shape (n_bytes,). Changed in place.
    """
    is_mark = byte_classes == MARK
    starts, stops = find_runs(is_mark)  # (n_runs,) runs of marks
    if not len(starts):
        return
    is_symbol = byte_classes == OTHER
    byte_classes[is_mark] = LETTER

    # Only marks right after a symbol can be symbols.
    is_after_symbol = is_symbol[starts - 1]
    starts = starts[is_after_symbol]
    stops = stops[is_after_symbol]
    if not len(starts):
        return
    is_taken = _are_taken_by_symbols(data, is_mark, is_symbol, starts)
    lengths = stops - starts
    byte_classes[positions_in(starts[is_taken], lengths[is_taken])] = OTHER


def _are_taken_by_symbols(data: Bytes, is_mark: Bools, is_symbol: Bools, starts: Ints) -> Bools:
    """Return which runs of marks belong to a run of symbols, and not to a word.

    A mixed run consists of symbols and marks. A symbol in it that follows another symbol or a space
    is a taker: from there on, all of the mixed run is a run of symbols. With m for a mark:

        text      a!mb!!m!m
        taker          T
        taken       n   y y      n: no, y: yes

    Args:
        data: uint8, shape (n_bytes,).
        is_mark: bool, shape (n_bytes,): whether a byte belongs to a mark.
        is_symbol: bool, shape (n_bytes,): whether a byte belongs to a symbol.
        starts: int64, shape (n_runs,): first bytes of runs of marks, each right after a symbol.

    Returns:
        bool, shape (n_runs,).
    """
    takes_marks = is_symbol[:-1] | (data[:-1] == SPACE_BYTE)
    takes_marks &= is_symbol[1:]
    takes_marks &= data[1:] & 0xC0 != 0x80  # not inside a character of several bytes
    takers = np.append(-1, np.flatnonzero(takes_marks) + 1)  # -1: there is always one before

    # A run of marks is taken if the last taker before it is in the same mixed run.
    mixed_starts, mixed_stops = find_runs(is_mark | is_symbol)
    start_of_mixed_run = mixed_starts[np.searchsorted(mixed_stops, starts, side="right")]
    last_taker = takers[np.searchsorted(takers, starts) - 1]
    return last_taker >= start_of_mixed_run


def _extend_newlines_by_slashes(data: Bytes, byte_classes: Bytes) -> None:
    """Give slashes the class NEWLINE if they follow newlines that follow a symbol.

    The patterns let a run of symbols end with `[\\r\\n/]*`.

    Args:
        data: uint8, shape (n_bytes,).
        byte_classes: uint8, shape (n_bytes,). Changed in place.
    """
    # Runs of newlines after a symbol, with a slash after them.
    starts, stops = find_runs(byte_classes == NEWLINE)
    has_slash = (byte_classes[starts - 1] == OTHER) & (data[stops] == _SLASH)
    first_slashes = stops[has_slash]
    if not len(first_slashes):
        return

    # All slashes that follow each other there.
    run_starts, run_stops = find_runs(data == _SLASH)
    slash_stops = run_stops[np.searchsorted(run_starts, first_slashes)]
    byte_classes[positions_in(first_slashes, slash_stops - first_slashes)] = NEWLINE


def _mark_suffixes(data: Bytes, byte_classes: Bytes) -> Ints:
    """Give contractions at the end of words the class SUFFIX, and return where they end.

    Of several contractions in a row, the second starts a new word, the third is the suffix of that
    word, and so on: "he'd've's" is cut into "he'd", "'ve's".

    Args:
        data: uint8, shape (n_bytes,).
        byte_classes: uint8, shape (n_bytes,). Changed in place.

    Returns:
        int64, shape (n_suffixes,): the position after each suffix.
    """
    # Apostrophes right after a letter, of any class.
    apostrophes = find_apostrophes(data)
    class_before = byte_classes[apostrophes - 1]
    apostrophes = apostrophes[(class_before >= UPPER) | (class_before == LETTER)]

    # Those that a contraction follows.
    pairs = byte_pairs_after(data, apostrophes)
    is_one_byte = ANY_CASE.one_byte[pairs]
    is_contraction = is_one_byte | ANY_CASE.two_bytes[pairs]
    stops: Ints = apostrophes + np.where(is_one_byte, 2, 3)
    apostrophes = apostrophes[is_contraction]
    stops = stops[is_contraction]
    if not len(apostrophes):
        return np.empty(0, np.int64)

    # Every other contraction of a row is a suffix: the first, the third, and so on.
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

    The patterns match `[UPPER LETTER]* [LOWER LETTER]+`, or else `[UPPER LETTER]+ [LOWER LETTER]*`.
    So a word is cut between a small letter and a capital. Letters without case match on both sides:
    between such a letter and a capital, a word is cut if a small letter precedes that run of
    letters without case, or if nothing of the word follows the capitals.

    Args:
        byte_classes: uint8, shape (n_bytes,).

    Returns:
        int64, shape (n_cuts,).
    """
    is_upper = byte_classes == UPPER
    is_caseless = byte_classes == LETTER
    is_cut = is_upper[1:] & (is_caseless[:-1] | (byte_classes[:-1] == LOWER))
    cuts: Ints = np.flatnonzero(is_cut) + 1
    is_doubtful = is_caseless[cuts - 1]
    doubtful = cuts[is_doubtful]
    if not len(doubtful):
        return cuts

    # The class before the letters without case, and the class after the capitals.
    caseless_starts, caseless_stops = find_runs(is_caseless)
    start_of_caseless = caseless_starts[np.searchsorted(caseless_stops, doubtful)]
    follows_small_letter = byte_classes[start_of_caseless - 1] == LOWER
    upper_starts, upper_stops = find_runs(is_upper)
    stop_of_capitals = upper_stops[np.searchsorted(upper_starts, doubtful)]
    class_after = byte_classes[stop_of_capitals]
    ends_word = (class_after != LETTER) & (class_after != LOWER)

    is_kept: Bools = ~is_doubtful
    is_kept[is_doubtful] = follows_small_letter | ends_word
    kept_cuts: Ints = cuts[is_kept]
    return kept_cuts
