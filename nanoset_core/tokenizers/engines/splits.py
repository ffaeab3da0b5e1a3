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

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import (
    Bools,
    Bytes,
    Ints,
    character_starts,
    cut_positions,
    find_runs,
    indices_at_or_before,
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
        """Prepare the tables.

        Args:
            pattern: How to split.
            classes: The class of every code point, uint8, shape (0x110000,).
            longest_run: Spaces in the longest added token of spaces (GPT-NeoX: 24); 0 if there is
                none.
        """
        self._pattern = pattern
        self._classifier = ByteClassifier(classes)
        self._longest_run = longest_run

    def starts(self, data: Bytes, *, has_added_tokens: bool = True) -> Bools:
        """Return a mask of the bytes at which pre-tokens start.

        Args:
            data: uint8, shape (n_bytes,): UTF-8 texts, each between two 0xFF bytes. The array
                starts and ends with 0xFF.
            has_added_tokens: Whether to look for added tokens of several spaces first, as encoding
                does, or only to split.

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
    """Return at which bytes of a text pieces start.

    Args:
        data: uint8, shape (n_bytes,): texts between 0xFF bytes, the first and last byte among them.
        byte_classes: uint8, shape (n_bytes,): class of each byte, from `ByteClassifier.classify`.
            Changed in place.
        wide_spaces: int64, shape (n_wide_spaces,): first bytes of white space of several bytes,
            from the same method.
        pattern: How to split.
        longest_run: Spaces in the longest added token of spaces (GPT-NeoX: 24); 0 if there is none.

    Returns:
        bool, shape (n_bytes + 1,); the last value is True.
    """
    # Added tokens and capital letters first: both change the classes of some bytes.
    extra_starts = []
    if longest_run:
        extra_starts.append(_mark_space_runs(data == SPACE_BYTE, byte_classes, longest_run))
    if pattern.cased:
        extra_starts.append(resolve_case(data, byte_classes, pattern))

    # A piece starts wherever the class changes.
    is_start = np.empty(len(data) + 1, bool)
    is_start[0] = True
    is_start[-1] = True
    np.not_equal(byte_classes[1:], byte_classes[:-1], out=is_start[1:-1])

    # White space, symbols and words are joined with what is next to them.
    if pattern.newlines:
        _join_newlines(is_start, byte_classes, join_symbols=pattern.newline_tail)
    _join_last_spaces(is_start, data, byte_classes, wide_spaces, any_space=pattern.white_leads)
    _join_symbols_with_letters(is_start, data, byte_classes, pattern)

    # Contractions and long numbers are cut.
    if pattern.contractions in ("exact", "any case"):
        _cut_contractions(is_start, data, any_case=pattern.contractions == "any case")
    if pattern.digits:
        is_number = byte_classes == pattern.number_class
        _cut_numbers(is_start, data, is_number, pattern.digits)

    for positions in extra_starts:
        is_start[positions] = True
    return is_start


def _mark_space_runs(is_blank: Bools, byte_classes: Bytes, max_spaces: int) -> Ints:
    """Give the added tokens of several spaces the class RUN, and return where to cut them apart.

    The library looks for added tokens before it splits, the longest first. With tokens of 2 to 4
    spaces, a run of 9 spaces becomes two tokens of 4 spaces, and an ordinary space. The cut that is
    returned is between the two tokens: the change of class does not show it.

    Args:
        is_blank: bool, shape (n_bytes,): whether a byte is a space.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        max_spaces: Spaces in the longest token; there are tokens of all lengths from 2.

    Returns:
        int64, shape (n_cuts,): where a token follows another one.
    """
    # Mark runs of two or more spaces: first all spaces that another space follows, which are all of
    # a run but its last, and then the last.
    is_followed_by_blank = is_blank[:-1] & is_blank[1:]  # (n_bytes - 1,)
    starts, last_spaces = find_runs(is_followed_by_blank)  # (n_runs,)
    byte_classes[:-1][is_followed_by_blank] = RUN
    byte_classes[last_spaces] = RUN

    # Runs that are longer than the longest token.
    stops = last_spaces + 1
    lengths = stops - starts
    is_long = lengths > max_spaces
    starts = starts[is_long]
    stops = stops[is_long]
    lengths = lengths[is_long]

    # A single space that remains at the end of such a run is no token, but ordinary white space.
    leaves_single_space = lengths % max_spaces == 1
    single_spaces = stops[leaves_single_space] - 1
    byte_classes[single_spaces] = SPACE
    return cut_positions(starts, stops, max_spaces)


def _join_newlines(is_start: Bools, byte_classes: Bytes, *, join_symbols: bool) -> None:
    """Make white space up to its last newline one piece.

    The patterns have `\\s*[\\r\\n]+` for that. By `[^\\s\\p{L}\\p{N}]+[\\r\\n]*`, newlines right
    after symbols belong to these instead. With `_` for a space, `n` for a newline, and `|` where a
    piece starts:

        before           a|_|n|_|n|b|!|n|_|n|b
        first step       a|_ n|_ n|b|! n|_ n|b     newlines are joined with what is before them
        second step      a|_ n _ n|b|! n|_ n|b     a run of newlines, with spaces after it, too

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. The first and the
            last byte are separators.
        join_symbols: Whether newlines are joined with symbols before them.
    """
    # First step: join newlines with the white space, or the symbols, before them.
    starts, stops = find_runs(byte_classes == NEWLINE)  # (n_runs,)
    class_before = byte_classes[starts - 1]
    follows_space = class_before == SPACE
    is_joined_with_symbols = (class_before == OTHER) & join_symbols
    is_start[starts[is_joined_with_symbols | follows_space]] = False

    # Second step: find runs of newlines (indices into `starts`) with a space after them, if the
    # next run follows a space, too. After a run that was joined with symbols, a new piece starts.
    is_before_space = byte_classes[stops[:-1]] == SPACE  # (n_runs - 1,)
    candidates = np.flatnonzero(is_before_space & follows_space[1:] & ~is_joined_with_symbols[:-1])
    if not len(candidates):
        return

    # The class changes where the spaces start, and again where they stop. If the next run of
    # newlines starts there, nothing but spaces is between the two runs: join them.
    changes = np.flatnonzero(byte_classes[1:] != byte_classes[:-1]) + 1
    space_starts = stops[candidates]
    space_stops = changes[indices_at_or_before(changes, space_starts) + 1]
    reaches_next_run = space_stops == starts[candidates + 1]
    is_start[space_starts[reaches_next_run]] = False


def _join_last_spaces(
    is_start: Bools,
    data: Bytes,
    byte_classes: Bytes,
    wide_spaces: Ints,
    *,
    any_space: bool,
) -> None:
    """Start a piece at the last white space before a word, and join the two if the pattern does.

    The patterns have `\\s+(?!\\S)`: it matches several characters of white space except the last
    one, which is left for the word. With `_` for a space and `t` for a tab, "a___b" is cut into
    "a", "__", "_b". A tab is only joined if `any_space` is set: otherwise "a_tb" is cut into "a",
    "_", "t", "b".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        wide_spaces: int64, shape (n_wide_spaces,): first bytes of white space of several bytes.
        any_space: Whether letters are joined with any white space, and symbols only with a plain
            space. Otherwise, everything is joined with a plain space only.
    """
    # True for white space before a word: the classes of words are those below SPACE.
    is_last_space = byte_classes[:-1] == SPACE  # (n_bytes - 1,)
    is_last_space &= byte_classes[1:] < SPACE
    is_start[:-2] |= is_last_space

    # A piece was started at the last byte of the white space. If that character has several bytes,
    # start the piece at its first byte instead. It has two bytes, or three if its first byte is
    # 0xE0 or more: there is no white space of four bytes.
    if len(wide_spaces):
        has_three_bytes = data[wide_spaces] >= 0xE0
        last_bytes = wide_spaces + 1 + has_three_bytes
        is_before_word = is_last_space[last_bytes]
        is_start[last_bytes[is_before_word]] = False
        is_start[wide_spaces[is_before_word]] = True

    # No piece starts between the white space and the word if these are joined. The arrays are
    # changed in place, because this takes a large part of the time of splitting.
    if any_space:
        can_join = byte_classes[1:] == OTHER
        can_join &= data[:-1] == SPACE_BYTE
        can_join |= byte_classes[1:] == LETTER
        is_last_space &= can_join
    else:
        is_last_space &= data[:-1] == SPACE_BYTE
    is_start[1:-1] &= ~is_last_space


def _join_symbols_with_letters(
    is_start: Bools, data: Bytes, byte_classes: Bytes, pattern: SplitPattern
) -> None:
    """Join letters with the character before them, such as "(" in "(word", if the pattern does.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        pattern: Its field `leader` is the class of the characters that are joined with letters
            after them, or None. Its field `ascii_leader` says whether ASCII symbols are joined with
            ASCII letters.
    """
    if pattern.leader is not None:
        _join_leaders(is_start, data, byte_classes, pattern.leader, LETTER)

    # In the one pattern with the leader BARE, ideographs and kana have classes of their own: their
    # letters are IDEOGRAPH, and their characters of the kind BARE are IDEOGRAPH_BARE.
    if pattern.leader == BARE:
        _join_leaders(is_start, data, byte_classes, IDEOGRAPH_BARE, IDEOGRAPH)

    if pattern.ascii_leader:
        _join_ascii_symbols(is_start, data, byte_classes)


def _join_leaders(
    is_start: Bools, data: Bytes, byte_classes: Bytes, leader: int, letter: int
) -> None:
    """Join letters with one character of another class before them, their leader.

    If the leaders are symbols, "a(word" is cut into "a", "(word". In "((word" and " (word", the "("
    before the letters belongs to a run of symbols, which a space may begin. So nothing is joined:
    "((", "word".

    With any other class of leaders, the last one of several is joined. If that class is written
    as ~, "~~word" is cut into "~", "~word".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        leader: Class of the leaders; OTHER is that of symbols.
        letter: Class of the letters.
    """
    # The first and last byte of each leader: a character may have several bytes.
    is_last_byte = (byte_classes[:-1] == leader) & (byte_classes[1:] == letter)
    last_bytes = np.flatnonzero(is_last_byte)  # (n_leaders,)
    first_bytes = character_starts(data, last_bytes)

    if leader == OTHER:
        # Leave out symbols in a run of symbols, which a space may begin. All others are at the
        # start of a piece already, because the class changes there.
        before = first_bytes - 1
        is_in_run = (byte_classes[before] == OTHER) | (data[before] == SPACE_BYTE)
        last_bytes = last_bytes[~is_in_run]
    else:
        # The last of several leaders starts a piece: the others remain before it.
        is_start[first_bytes] = True

    # The piece starts at the leader, and so no longer at the letter after it.
    is_start[last_bytes + 1] = False


def _join_ascii_symbols(is_start: Bools, data: Bytes, byte_classes: Bytes) -> None:
    """Join ASCII letters with the ASCII symbol before them, as DeepSeek's pattern does.

    The pattern has ``[!"#$%&'()*+,…][A-Za-z]+``. It only matches ASCII letters, so that the piece
    ends where other letters begin: "(naïve" is cut into "(na", "ïve". Without the symbol, another
    expression matches the word, and "naïve" is one piece.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols.
    """
    is_letter = byte_classes == LETTER
    is_ascii = data < 0x80

    # Join: the letters after a symbol no longer start a piece, as the symbol does.
    symbols = np.flatnonzero((byte_classes[:-1] == OTHER) & is_letter[1:])
    can_join = is_ascii[symbols] & is_ascii[symbols + 1] & is_start[symbols]
    joined_letters = symbols[can_join] + 1  # first letter after each joined symbol
    is_start[joined_letters] = False

    # Cut: find the first other letter after ASCII letters, such as the ï of "naïve".
    is_ascii_letter = is_letter & is_ascii
    is_other_letter = is_letter & ~is_ascii
    other_letters = np.flatnonzero(is_ascii_letter[:-1] & is_other_letter[1:]) + 1
    if not len(other_letters) or not len(joined_letters):
        return

    # A piece starts there if the ASCII letters before it were joined with a symbol.
    ascii_starts, _ = find_runs(is_ascii_letter)
    start_of_ascii = ascii_starts[indices_at_or_before(ascii_starts, other_letters - 1)]
    follows_joined = np.isin(start_of_ascii, joined_letters)
    is_start[other_letters[follows_joined]] = True


def _cut_contractions(is_start: Bools, data: Bytes, *, any_case: bool) -> None:
    """Make each contraction, such as 's or 'll, a piece if its apostrophe starts a piece.

    "it's" is cut into "it", "'s". The apostrophe does not start a piece if a space or a symbol
    before it is joined with it, as in "it 's".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        any_case: Whether capital letters make contractions, too.
    """
    apostrophes = find_apostrophes(data)
    apostrophes = apostrophes[is_start[apostrophes]]
    if not len(apostrophes):
        return

    # Both tables are indexed by the two bytes after an apostrophe.
    tables = ANY_CASE if any_case else EXACT
    next_bytes = byte_pairs_after(data, apostrophes)

    # One letter, such as 's: no piece starts at the "s", and one starts after it.
    with_one_letter = apostrophes[tables.one_byte[next_bytes]]
    is_start[with_one_letter + 1] = False
    is_start[with_one_letter + 2] = True

    # Two letters, such as 'll: no piece starts at the first "l", and one starts after the second.
    with_two_letters = apostrophes[tables.two_bytes[next_bytes]]
    is_start[with_two_letters + 1] = False
    is_start[with_two_letters + 3] = True


def _cut_numbers(is_start: Bools, data: Bytes, is_number: Bools, max_digits: int) -> None:
    """Cut numbers every `max_digits` digits, from the left: "12345" into "123", "45".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        is_number: bool, shape (n_bytes,): whether a byte belongs to a digit.
        max_digits: Digits, not bytes: "١٢٣٤" has 4 digits and 8 bytes.
    """
    # Numbers with more bytes than that. All others have few enough digits, too.
    starts, stops = find_runs(is_number)
    is_long = stops - starts > max_digits
    starts = starts[is_long]
    lengths = stops[is_long] - starts  # (n_numbers,) in bytes
    if not len(starts):
        return

    # Number the digits of each number from 0. For "1234" and "567" with max_digits = 3:
    #     all_digits           1 2 3 4   5 6 7     digits so far in all numbers
    #     first_digits         1 1 1 1   5 5 5     the same at the first digit of the number
    #     digit_in_number      0 1 2 3   0 1 2
    #     is_cut               T     T   T
    positions = positions_in(starts, lengths)  # (n_number_bytes,) all bytes of the numbers
    is_first_byte = data[positions] & 0xC0 != 0x80  # further bytes have the form 10xxxxxx
    all_digits = np.cumsum(is_first_byte)
    first_indices = np.cumsum(lengths) - lengths  # (n_numbers,) index into `positions`
    first_digits = np.repeat(all_digits[first_indices], lengths)
    digit_in_number = all_digits - first_digits

    is_cut = is_first_byte & (digit_in_number % max_digits == 0)
    is_start[positions[is_cut]] = True
