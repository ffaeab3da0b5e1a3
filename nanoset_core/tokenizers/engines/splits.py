"""Find where the pre-tokens of a split pattern start, by operations on all bytes of a text at once.

A split pattern is a regular expression that cuts text into *pieces* (pre-tokens), each of which is
encoded on its own. Matching it character by character is slow in Python. But all published patterns
cut text into runs of characters of one class, up to a few rules, so that array operations give the
same pieces:

1. A piece starts wherever the class of characters changes.
2. White space before a word is cut before its last character, which is joined with the word.
3. Other rules join pieces (a symbol before letters, newlines after symbols) or cut them
   (contractions, long numbers, capital letters). The fields of `SplitPattern` say which rules a
   pattern has.

For GPT-2's pattern and the text "I'll see  12 cats" (L LETTER, O OTHER, S SPACE, N NUMBER; `x`: a
piece starts at this byte):

    text                     I ' l l _ s e e _ _ 1 2 _ c a t s
    class                    L O L L S L L L S S N N S L L L L
    1. class changes         x x x . x x . . x . x . x x . . .
    2. last space            x x x . x . . . x x . . x . . . .
    3. contractions          x x . . x . . . x x . . x . . . .
    pieces                   I|'ll|_see|_|_12|_cats

All functions here work on the same arrays:

    data           uint8, shape (n_bytes,): UTF-8 texts between bytes 0xFF, which UTF-8 never uses;
                   the first and the last byte are such separators
    byte_classes   uint8, shape (n_bytes,): the class of the character that each byte belongs to
    is_start       bool, shape (n_bytes + 1,): whether a piece starts at a byte; True at the end

Functions without a result change `is_start` in place.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.tokenizers.engines.arrays import (
    Bools,
    Bytes,
    Ints,
    Runs,
    character_starts,
    cut_positions,
    find_runs,
)
from nanoset_core.tokenizers.engines.classes import (
    BARE,
    IDEOGRAPH,
    IDEOGRAPH_BARE,
    LETTER,
    NEWLINE,
    OTHER,
    RUN,
    SPACE,
    SPACE_BYTE,
    ByteClassifier,
)
from nanoset_core.tokenizers.engines.contractions import (
    ANY_CASE,
    EXACT,
    byte_pairs_after,
    find_apostrophes,
)
from nanoset_core.tokenizers.engines.letter_case import resolve_case
from nanoset_core.tokenizers.engines.patterns import SplitPattern


class PatternSplitter:
    """Cuts text into the pre-tokens of a split pattern."""

    def __init__(self, pattern: SplitPattern, classes: Bytes, longest_run: int) -> None:
        """Prepare to cut text into words as a tokenizer does.

        Args:
            pattern: How the tokenizer cuts: which characters belong together, and so on.
            classes: The class of every Unicode character, such as LETTER: uint8, shape (0x110000,).
            longest_run: Some vocabularies have tokens of 2, 3 and more spaces. This is the number
                of spaces in the longest (GPT-NeoX: 24), or 0 if there are none.
        """
        self._pattern = pattern
        self._classifier = ByteClassifier(classes)
        self._longest_run = longest_run

    def starts(self, data: Bytes, *, has_added_tokens: bool = True) -> Bools:
        """Return at which bytes of a text the words start that a tokenizer encodes on their own.

        For "it's ok", these are "it", "'s" and " ok", so the mask is True at the bytes 0, 2 and 4.

        Args:
            data: uint8, shape (n_bytes,): UTF-8 texts, each between two bytes 0xFF, which are in no
                UTF-8. The array starts and ends with 0xFF.
            has_added_tokens: Whether to look for tokens of several spaces first. Some vocabularies
                have them, and look for them before they split. False if only the splitting is of
                interest.

        Returns:
            bool, shape (n_bytes + 1,); the last value is True.
        """
        byte_classes, wide_spaces = self._classifier.classify(data.tobytes())
        longest_run = self._longest_run if has_added_tokens else 0  # 0: look for no such token
        return piece_starts(data, byte_classes, wide_spaces, self._pattern, longest_run)


def piece_starts(
    data: Bytes,
    byte_classes: Bytes,
    wide_spaces: Ints,
    pattern: SplitPattern,
    longest_run: int = 0,
) -> Bools:
    """Return at which bytes of a text its pieces start: "it's  ok" has "it", "'s", " ", " ok".

    Tokenizers cut text into such pieces by a regular expression, and then encode each piece. This
    function does the same without the expression, by operations on all bytes at once, which is
    faster. The basis is the class of each character:

        text                 i t ' s _ _ o k        (_ is a space)
        class                L L O L S S L L        (L letter, O symbol, S white space)
        class changes        x . x x x . x .        (x: a piece starts here)
        spaces joined        x . x x x x . .
        contractions         x . x . x x . .

    Args:
        data: uint8, shape (n_bytes,): texts between 0xFF bytes, the first and last byte among them.
        byte_classes: uint8, shape (n_bytes,): class of each byte's character. Changed in place.
        wide_spaces: int64, shape (n_wide_spaces,): where white space starts that is longer than one
            byte, such as the no-break space (C2 A0).
        pattern: The steps that the tokenizer's expression amounts to.
        longest_run: Some vocabularies have tokens of 2, 3, 4 and more spaces, which are looked up
            before the text is split. This is the number of spaces in the longest (GPT-NeoX: 24), or
            0 if there are none.

    Returns:
        bool, shape (n_bytes + 1,); the last value is True.
    """
    # Collect the cuts between characters of the same class, which the steps below do not find: in
    # long runs of spaces, and before capitals as in "iPhone".
    inner_cuts = []
    if longest_run:
        is_space = data == SPACE_BYTE
        inner_cuts.append(_mark_space_tokens(is_space, byte_classes, longest_run))
    if pattern.cuts_at_capitals:
        inner_cuts.append(resolve_case(data, byte_classes, pattern))

    # it|'|s|  |ok: a piece starts at the edges of the text, and where the class changes.
    is_start = np.ones(len(data) + 1, bool)
    np.not_equal(byte_classes[1:], byte_classes[:-1], out=is_start[1:-1])

    # it|'|s| | ok: some pieces belong together.
    if pattern.has_newline_class:
        _join_newlines(is_start, byte_classes, join_symbols=pattern.newlines_end_symbols)
    _join_last_spaces(is_start, data, byte_classes, wide_spaces, any_space=pattern.joins_any_space)
    _join_symbols_with_letters(is_start, data, byte_classes, pattern)

    # it|'s| | ok: contractions are pieces, and long numbers are cut.
    if pattern.contractions in ("exact", "any case"):
        _cut_contractions(is_start, data, any_case=pattern.contractions == "any case")
    if pattern.max_digits:
        is_number = byte_classes == pattern.number_class
        _cut_numbers(is_start, data, is_number, pattern.max_digits)

    for cuts in inner_cuts:
        is_start[cuts] = True
    return is_start


def _mark_space_tokens(is_space: Bools, byte_classes: Bytes, max_spaces: int) -> Ints:
    """Give the tokens of several spaces the class RUN, and return where two of them meet.

    Some vocabularies have tokens of 2, 3, 4 and more spaces. The tokenizer looks for them before it
    splits text, the longest first. With tokens of 2 to 4 spaces, a run of 9 spaces becomes two
    tokens of 4 spaces, and an ordinary space:

        spaces   _ _ _ _ _ _ _ _ _
        class    R R R R R R R R S      (R RUN, S SPACE)
        cuts             ^       ^

    Args:
        is_space: bool, shape (n_bytes,): whether a byte is a space.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        max_spaces: Spaces in the longest token; there are tokens of all lengths from 2.

    Returns:
        int64, shape (n_cuts,): where to cut runs of more than `max_spaces` spaces.
    """
    is_in_run = _have_equal_neighbour(is_space)  # two spaces or more
    byte_classes[is_in_run] = RUN

    # Runs that are longer than the longest token are cut.
    runs = find_runs(is_in_run)
    long_runs = runs.where(runs.lengths > max_spaces)

    # If the tokens cover all of a run but its last space, that one is ordinary white space: there
    # is no added token of a single space.
    leaves_single_space = long_runs.lengths % max_spaces == 1
    single_spaces = long_runs.stops[leaves_single_space] - 1
    byte_classes[single_spaces] = SPACE
    return cut_positions(long_runs.starts, long_runs.stops, max_spaces)


def _have_equal_neighbour(mask: Bools) -> Bools:
    """Return where a value is True and so is the one before or after it: F T T F T → F T T F F."""
    is_pair = mask[:-1] & mask[1:]
    has_neighbour = np.zeros_like(mask)
    has_neighbour[:-1] = is_pair
    has_neighbour[1:] |= is_pair
    return has_neighbour


def _join_newlines(is_start: Bools, byte_classes: Bytes, *, join_symbols: bool) -> None:
    r"""Make white space up to its last newline one piece.

    The expressions by which tokenizers cut text have `\s*[\r\n]+` for that. By
    `[^\s\p{L}\p{N}]+[\r\n]*`, newlines right after symbols belong to these instead. With `_` for a
    space, `n` for a newline, and `|` where a piece starts:

        so far           a|_|n|_|n|b|!|n|_|n|b
        first step       a|_ n|_ n|b|! n|_ n|b     newlines are joined with what is before them
        second step      a|_ n _ n|b|! n|_ n|b     a run of newlines, with spaces after it, too

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. The first and the
            last byte are separators.
        join_symbols: Whether newlines are joined with symbols before them.
    """
    # First step: no piece starts at newlines after white space or symbols.
    newlines = find_runs(byte_classes == NEWLINE)
    class_before = byte_classes[newlines.starts - 1]  # (n_runs,)
    follows_space = class_before == SPACE
    follows_symbol = (class_before == OTHER) & join_symbols
    is_start[newlines.starts[follows_space | follows_symbol]] = False

    # Second step: the text between two runs of newlines, here called a gap, is joined with the
    # newlines before it if it is only white space, unless these newlines belong to symbols.
    gaps = Runs(newlines.stops[:-1], newlines.starts[1:])  # (n_runs - 1,)
    ends_with_space = follows_space[1:]
    follows_newlines_of_symbols = follows_symbol[:-1]
    gaps = gaps.where(ends_with_space & ~follows_newlines_of_symbols)
    gaps = gaps.where(byte_classes[gaps.starts] == SPACE)  # they start with white space, too
    if len(gaps):
        is_only_space = _next_changes(byte_classes, gaps.starts) == gaps.stops
        is_start[gaps.starts[is_only_space]] = False


def _next_changes(byte_classes: Bytes, positions: Ints) -> Ints:
    r"""For each of some bytes, return where the next character of another class starts.

    In "a_\nb" with the classes L S N L, the change after byte 1 is at byte 2.

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        positions: int64, shape (n,): the bytes. The class changes at least once after each.

    Returns:
        int64, shape (n,).
    """
    changes = np.flatnonzero(byte_classes[1:] != byte_classes[:-1]) + 1
    return changes[np.searchsorted(changes, positions, side="right")]


def _join_last_spaces(
    is_start: Bools,
    data: Bytes,
    byte_classes: Bytes,
    wide_spaces: Ints,
    *,
    any_space: bool,
) -> None:
    r"""Cut off the last white space before a word, and join it with the word if the tokenizer does.

    Tokenizers cut text into pieces: words, numbers, symbols, white space. By the expression
    `\s+(?!\S)`, the last space before a word is not part of the other white space. With `_` for a
    space, `t` for a tab, and `|` where a piece starts:

        so far                a|___|b     a|_t|b
        cut off               a|__|_|b    a|_|t|b
        joined                a|__|_b     a|_|t|b     some tokenizers (`any_space`): a|_|tb

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character, such as SPACE.
        wide_spaces: int64, shape (n_wide_spaces,): where white space starts that is longer than one
            byte, such as the no-break space (bytes C2 A0).
        any_space: Whether letters are joined with white space of any kind, and not only with a
            plain space.
    """
    # (n_bytes - 1,) whether byte i is white space and byte i + 1 belongs to a word, a number or a
    # symbol: the classes of these are numbers below SPACE.
    is_white_space = byte_classes[:-1] == SPACE
    is_word_next = byte_classes[1:] < SPACE
    is_last_space = is_white_space & is_word_next

    # Cut it off: a piece starts at byte i.
    is_start[:-2] |= is_last_space
    if len(wide_spaces):
        _move_starts_to_first_bytes(is_start, data, is_last_space, wide_spaces)

    # Join it: no piece starts at byte i + 1. This item of `is_start` is the item i of the slice.
    is_joined = is_last_space & _can_be_joined(data, byte_classes, any_space=any_space)
    is_start[1:-1] &= ~is_joined


def _move_starts_to_first_bytes(
    is_start: Bools, data: Bytes, is_last_space: Bools, wide_spaces: Ints
) -> None:
    """Move the start of a piece from the last to the first byte of white space of several bytes.

    The step before has started a piece at the last byte of white space before a word. That is wrong
    for white space such as the no-break space, which has the bytes C2 A0:

        bytes        a   20  C2  A0  b      (20: a plain space)
        so far       x   x       x   x      (x: a piece starts here)
        afterwards   x   x   x       x

    Args:
        is_start: bool, shape (n_bytes + 1,). Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts.
        is_last_space: bool, shape (n_bytes - 1,): the bytes of white space right before a word,
            each of which starts a piece.
        wide_spaces: int64, shape (n_wide_spaces,): first bytes of white space of several bytes.
    """
    # White space of several bytes has three bytes if its first one is 0xE0 or more, and otherwise
    # two. The no-break space, C2 A0, has its last byte one after the first.
    n_bytes = np.where(data[wide_spaces] >= 0xE0, 3, 2)
    last_bytes = wide_spaces + n_bytes - 1  # (n_wide_spaces,)

    # The piece starts at C2, and not at A0.
    is_before_word = is_last_space[last_bytes]
    is_start[last_bytes[is_before_word]] = False
    is_start[wide_spaces[is_before_word]] = True


def _can_be_joined(data: Bytes, byte_classes: Bytes, *, any_space: bool) -> Bools:
    """Return between which two bytes white space would be joined with the character after it.

    Tokenizers differ in it. With `_` for a space, `t` for a tab, and `|` where a piece starts:

        any_space False      _b    _1     _!    t|b    t|!    a plain space joins any character
        any_space True       _b    _|1    _!    tb     t|!    numbers are joined with nothing

    The caller applies this only where byte i is white space.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER: symbols.
        any_space: Which of the two rules the tokenizer follows.

    Returns:
        bool, shape (n_bytes - 1,): whether white space at byte i would be joined with byte i + 1.
    """
    is_plain_space: Bools = data[:-1] == SPACE_BYTE
    if not any_space:
        return is_plain_space
    is_before_symbol = byte_classes[1:] == OTHER
    is_before_letter = byte_classes[1:] == LETTER
    is_joined: Bools = is_before_letter | (is_before_symbol & is_plain_space)
    return is_joined


def _join_symbols_with_letters(
    is_start: Bools, data: Bytes, byte_classes: Bytes, pattern: SplitPattern
) -> None:
    """Join letters with the symbol before them, as in "(word", if the tokenizer does.

    So far, a piece starts where the class of characters changes: "a(word" is cut into "a", "(",
    "word". GPT-2 keeps that, but Llama 3 makes it "a", "(word". What is joined depends on the
    tokenizer's pattern:

        leader None            nothing
        leader                 characters of this class, with letters after them
        joins_ascii_symbols    ASCII symbols, with ASCII letters after them

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        pattern: How the tokenizer splits.
    """
    if pattern.leader is not None:
        _join_leaders(is_start, data, byte_classes, leader=pattern.leader, letter=LETTER)

    # DeepSeek's pattern, the only one with the leader BARE, first cuts out runs of Chinese and
    # Japanese characters (class IDEOGRAPH and so on), and then splits these by the same rules as
    # the rest. So the step is repeated with their classes.
    if pattern.leader == BARE:
        _join_leaders(is_start, data, byte_classes, leader=IDEOGRAPH_BARE, letter=IDEOGRAPH)

    if pattern.joins_ascii_symbols:
        _join_ascii_symbols(is_start, data, byte_classes)


def _join_leaders(
    is_start: Bools, data: Bytes, byte_classes: Bytes, leader: int, letter: int
) -> None:
    r"""Join each word with one character of another class right before it, as in "(word".

    Llama 3's tokenizer cuts text by `[^\r\n\p{L}\p{N}]?\p{L}+`, for example. The character before
    the letters is called the leader here. If leaders are symbols:

        text        so far          afterwards
        a(word      a | ( | word    a | (word
        ((word      (( | word       no change: the second symbol belongs to the first one
        _(word      _( | word       no change: the symbol belongs to the space (_)

    Leaders of any other class, here ~, are always joined: "~~word" is cut into "~", "~word".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        leader: Class of the leaders; OTHER is that of symbols.
        letter: Class of the letters.
    """
    # Where a leader is followed by a letter. A leader may have several bytes: in "«word", with the
    # bytes C2 AB for «, the letter follows AB, and the leader starts at C2.
    is_leader_before_letter = (byte_classes[:-1] == leader) & (byte_classes[1:] == letter)
    last_bytes = np.flatnonzero(is_leader_before_letter)  # (n_leaders,)
    leaders = character_starts(data, last_bytes)
    letters = last_bytes + 1

    # Leave out symbols inside a piece of symbols, as in "((word" and " (word".
    if leader == OTHER:
        previous = leaders - 1  # the byte before each leader
        is_after_symbol = byte_classes[previous] == OTHER
        is_after_space = data[previous] == SPACE_BYTE
        is_alone = ~(is_after_symbol | is_after_space)
        leaders = leaders[is_alone]
        letters = letters[is_alone]

    # The piece starts at the leader instead of the letter.
    is_start[leaders] = True
    is_start[letters] = False


def _join_ascii_symbols(is_start: Bools, data: Bytes, byte_classes: Bytes) -> None:
    """Join ASCII letters with the ASCII symbol before them: "(word" becomes one piece.

    DeepSeek's tokenizer cuts text by ``[!"#$%&'()*+,…][A-Za-z]+`` among others. Such a piece ends
    before the first letter that is not ASCII. With `|` where a piece starts:

        so far          (|word      (|naïve
        afterwards      (word       (na|ïve

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: LETTER, or OTHER
            for symbols, and so on.
    """
    is_ascii = data < 0x80
    is_letter = byte_classes == LETTER
    is_ascii_letter = is_ascii & is_letter
    is_ascii_symbol = is_ascii & (byte_classes == OTHER)

    # "(naïve": no piece starts at the n, if one starts at the symbol.
    is_joined_symbol = is_ascii_symbol[:-1] & is_ascii_letter[1:] & is_start[:-2]  # (n_bytes - 1,)
    first_letters = np.flatnonzero(is_joined_symbol) + 1
    is_start[first_letters] = False
    if not len(first_letters):
        return

    # "(naïve": a piece starts at the ï, the first byte after the run "na", if it is a letter, too.
    ascii_runs = find_runs(is_ascii_letter)
    stops = ascii_runs.stops_at(first_letters)
    is_start[stops[is_letter[stops]]] = True


def _cut_contractions(is_start: Bools, data: Bytes, *, any_case: bool) -> None:
    """Make each contraction, such as 's or 'll, a piece if its apostrophe starts a piece.

    Until now, a piece starts where the class of characters changes. With `|` where a piece starts:

        so far          it|'|s        it| '|s      (here the apostrophe belongs to the space)
        afterwards      it|'s         it| '|s

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        any_case: Whether capital letters make contractions, too, as in "IT'S".
    """
    apostrophes = find_apostrophes(data)
    apostrophes = apostrophes[is_start[apostrophes]]
    if not len(apostrophes):
        return

    # The two bytes after an apostrophe decide, such as "ll", or "s" and a space. They are looked up
    # in tables: does the first one make a contraction, or do both together?
    tables = ANY_CASE if any_case else EXACT
    next_bytes = byte_pairs_after(data, apostrophes)  # (n_apostrophes,) indices into the tables
    is_short = tables.one_byte[next_bytes]  # 's
    is_long = tables.two_bytes[next_bytes]  # 'll
    _start_pieces_after(is_start, apostrophes[is_short], length=2)
    _start_pieces_after(is_start, apostrophes[is_long], length=3)


def _start_pieces_after(is_start: Bools, apostrophes: Ints, length: int) -> None:
    """Start a piece after each contraction, and none at the letter after its apostrophe.

    For the text "it's ok" and the apostrophe at byte 2, a piece has started at the "s" (byte 3).
    Now one starts after it (byte 4).

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        apostrophes: int64, shape (n_contractions,): where the contractions start.
        length: Bytes in each contraction, with its apostrophe: 2 for 's.
    """
    is_start[apostrophes + 1] = False
    is_start[apostrophes + length] = True


def _cut_numbers(is_start: Bools, data: Bytes, is_number: Bools, max_digits: int) -> None:
    """Cut numbers every `max_digits` digits, from the left: "12345" into "123", "45".

    Most tokenizers do so, since their vocabularies have no token for every long number. Digits are
    counted, and not bytes, since those of other scripts have several: "١٢٣٤" has 4 digits and 8
    bytes.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        is_number: bool, shape (n_bytes,): whether a byte belongs to a digit.
        max_digits: Largest number of digits in a piece, such as 3.
    """
    # A number of at most 3 bytes has at most 3 digits: only longer ones may have to be cut.
    numbers = find_runs(is_number)
    numbers = numbers.where(numbers.lengths > max_digits)
    if not len(numbers):
        return

    # All bytes of these numbers: for "x12345", the bytes 1 2 3 4 5 of the text. In UTF-8, the first
    # byte of a digit is the one that is not 10xxxxxx.
    byte_positions = numbers.positions()  # (n_number_bytes,)
    is_first_byte = data[byte_positions] & 0xC0 != 0x80

    # Number the digits of each number from 0. A piece starts at the digits 0, 3, 6 and so on.
    digit_index = _digit_indices(is_first_byte, numbers.lengths)  # (n_number_bytes,)
    is_cut = is_first_byte & (digit_index % max_digits == 0)
    is_start[byte_positions[is_cut]] = True


def _digit_indices(is_first_byte: Bools, lengths: Ints) -> Ints:
    """Return for each byte of some numbers which digit of its number it belongs to, from 0.

    For the numbers "123" and "٤٥", whose two digits have two bytes each:

        is_first_byte    T T T   T F T F
        lengths          3       4
        result           0 1 2   0 0 1 1

    Args:
        is_first_byte: bool, shape (n_bytes,): whether a byte is the first of a digit, for all
            numbers concatenated.
        lengths: int64, shape (n_numbers,): bytes in each number.

    Returns:
        int64, shape (n_bytes,).
    """
    # Count the digits through all numbers, and subtract the count at the start of each number.
    digits_so_far = np.cumsum(is_first_byte)  # 1 2 3   4 4 5 5
    starts = np.cumsum(lengths) - lengths  # (n_numbers,) index of each number's first byte: 0 3
    at_first_digit = np.repeat(digits_so_far[starts], lengths)  # 1 1 1   4 4 4 4
    indices: Ints = digits_so_far - at_first_digit
    return indices
