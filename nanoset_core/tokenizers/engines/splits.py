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
    LETTER,
    NEWLINE,
    OTHER,
    RUN,
    SPACE,
    SPACE_BYTE,
    ByteClassifier,
)
from nanoset_core.tokenizers.engines.contractions import ANY_CASE, EXACT, find_contractions
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

    def starts(self, data: Bytes) -> Bools:
        """Return at which bytes of a text its words start, each of which is encoded on its own.

        Args:
            data: uint8, shape (n_bytes,): UTF-8 texts, with a byte 0xFF before and after each,
                which is in no UTF-8.

        Returns:
            bool, shape (n_bytes + 1,): whether a word, or a byte 0xFF, starts at each byte; True
            after the last one. For "it's ok", which is cut into "it", "'s" and " ok":

                data      FF  i  t  '  s  _  o  k  FF      (_ is a space)
                result    T   T  F  T  F  T  F  F  T   T
        """
        return self._starts(data, self._longest_run)

    def starts_without_added_tokens(self, data: Bytes) -> Bools:
        """Return the same as `starts` if the vocabulary had no tokens of several spaces."""
        return self._starts(data, longest_run=0)

    def _starts(self, data: Bytes, longest_run: int) -> Bools:
        # `byte_classes` is what each byte belongs to, such as a letter. `wide_spaces` is where
        # white space of several bytes is, such as the no-break space.
        byte_classes, wide_spaces = self._classifier.classify(data.tobytes())
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
    # long runs of spaces, and before capitals as in "iPhone". Such characters get other classes
    # here, which all later steps see. The cuts themselves are made at the end.
    inner_cuts = []
    if longest_run:
        is_space = data == SPACE_BYTE
        inner_cuts.append(_mark_space_tokens(is_space, byte_classes, longest_run))
    if pattern.cuts_at_capitals:
        inner_cuts.append(resolve_case(data, byte_classes, pattern))

    # Now cut the text step by step. Each step changes `is_start` in place, and relies on the steps
    # before it. The comments show the example after a step, with | between pieces.

    # it|'|s|  |ok: a piece starts at the edges of the text, and where the class changes.
    is_start = np.ones(len(data) + 1, bool)
    np.not_equal(byte_classes[1:], byte_classes[:-1], out=is_start[1:-1])

    # Newlines belong to the white space or symbols before them. (The example has none.)
    if pattern.has_newline_class:
        _join_newlines(is_start, byte_classes, join_symbols=pattern.newlines_end_symbols)

    # it|'|s| | ok: the last space belongs to the word after it.
    _join_last_spaces(is_start, data, byte_classes, wide_spaces, any_space=pattern.joins_any_space)

    # it|'s| | ok: most tokenizers let a word start with the symbol or other character before it.
    if pattern.joins_symbols:
        _join_symbols(is_start, data, byte_classes)
    for first_class, letter_class in pattern.joined_classes:
        _join_first_characters(is_start, data, byte_classes, first_class, letter_class)
    if pattern.joins_ascii_symbols:
        _join_ascii_symbols(is_start, data, byte_classes)

    # it|'s| | ok: a contraction is a piece, also for tokenizers that do not join symbols.
    if pattern.contractions in ("exact", "any case"):
        _cut_contractions(is_start, data, any_case=pattern.contractions == "any case")

    # Long numbers are cut: 12345 becomes 123|45 if pieces have at most 3 digits.
    if pattern.max_digits:
        is_number = byte_classes == pattern.number_class
        _cut_numbers(is_start, data, is_number, pattern.max_digits)

    # Cut within runs of one class, as was found at the beginning.
    for cuts in inner_cuts:
        is_start[cuts] = True
    return is_start


def _mark_space_tokens(is_space: Bools, byte_classes: Bytes, max_spaces: int) -> Ints:
    """Give spaces that become tokens of several spaces a class, and return where to cut them.

    Some vocabularies have tokens of 2, 3, 4 and more spaces. Tokenizers look for these before they
    split text, the longest first. If the longest has 4 spaces, 9 spaces become two tokens of 4
    spaces. The last space remains, since there is no token of a single space:

        position                  0 1 2 3 4 5 6 7 8
        text                      _ _ _ _ _ _ _ _ _
        class                     R R R R R R R R S      (R is RUN, and S is SPACE, as before)
        positions to cut at               ^       ^      (4 and 8)

    Args:
        is_space: bool, shape (n_bytes,): whether a byte is a space.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        max_spaces: Spaces in the longest token; there are tokens of all lengths from 2.

    Returns:
        int64, shape (n_cuts,): the positions.
    """
    is_in_run = _have_equal_neighbour(is_space)  # spaces next to another space
    byte_classes[is_in_run] = RUN
    runs = find_runs(is_in_run)  # here [0, 9)

    # If one space remains, the last of the run, it is ordinary white space: 9 = 4 + 4 + 1.
    leaves_single_space = runs.lengths % max_spaces == 1
    single_spaces = runs.stops[leaves_single_space] - 1  # 8
    byte_classes[single_spaces] = SPACE

    # Cut runs every 4 spaces from their start.
    return cut_positions(runs.starts, runs.stops, max_length=max_spaces)


def _have_equal_neighbour(mask: Bools) -> Bools:
    """Return where a value is True and so is the one before or after it: F T T F T → F T T F F."""
    is_pair = mask[:-1] & mask[1:]
    has_neighbour = np.zeros_like(mask)
    has_neighbour[:-1] = is_pair
    has_neighbour[1:] |= is_pair
    return has_neighbour


def _join_newlines(is_start: Bools, byte_classes: Bytes, *, join_symbols: bool) -> None:
    """Join newlines with the white space or symbols before them, as many tokenizers do.

    So far, a piece starts wherever the class of the characters changes. In these two texts, n is a
    newline, _ is a space, and | is where a piece starts:

        so far                          a | _ | n | _ | n | b      a | ! | n | _ | n | b
        newlines after symbols          no change                  a | !   n | _ | n | b
        spaces between two newlines     a | _ | n   _ | n | b      no change
        newlines after spaces           a | _   n   _   n | b      a | !   n | _   n | b

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character; OTHER is the
            class of symbols. The first and the last byte are separators.
        join_symbols: Whether newlines are joined with symbols before them. The tokenizers differ.
    """
    newlines = find_runs(byte_classes == NEWLINE)  # each run is one newline or several
    class_before = byte_classes[newlines.starts - 1]  # (n_runs,)
    if join_symbols:
        is_after_symbol = class_before == OTHER
        is_start[newlines.starts[is_after_symbol]] = False

    is_after_space = class_before == SPACE
    if is_after_space.any():
        _join_spaces_between_newlines(is_start, byte_classes, newlines)
        is_start[newlines.starts[is_after_space]] = False


def _join_spaces_between_newlines(is_start: Bools, byte_classes: Bytes, newlines: Runs) -> None:
    r"""Join white space between two newlines, as in "\n \n", with the newline before it.

    If that newline belongs to a symbol, as in "!\n \n", the white space is not joined.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. At a newline, none
            starts if it belongs to a symbol. Changed in place.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        newlines: All newlines; each run is one newline or several.
    """
    # White space with a newline on both sides.
    spaces = find_runs(byte_classes == SPACE)
    spaces = spaces.where(byte_classes[spaces.starts - 1] == NEWLINE)
    spaces = spaces.where(byte_classes[spaces.stops] == NEWLINE)

    # Leave out that after "!\n": no piece starts at this newline.
    newlines_before = newlines.starts_at(spaces.starts - 1)
    spaces = spaces.where(is_start[newlines_before])
    is_start[spaces.starts] = False


def _join_last_spaces(
    is_start: Bools,
    data: Bytes,
    byte_classes: Bytes,
    wide_spaces: Ints,
    *,
    any_space: bool,
) -> None:
    """Separate the last space before a word from other white space, and join it with the word.

    Many vocabularies have tokens such as " the", a word with the space before it. So tokenizers cut
    text in such a way that one space stays with the word. So far, a piece starts wherever the class
    of the characters changes. With `_` for a space, `t` for a tab, `a` and `b` for words:

        so far                               a|___|b      a|_t|b
        first step: separate the last one    a|__|_|b     a|_|t|b
        second step: join it with b          a|__|_b      a|_|t|b      (a tab is not joined)
        the same with `any_space`            a|__|_b      a|_|tb       (a tab is joined, too)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character, such as SPACE.
        wide_spaces: int64, shape (n_wide_spaces,): where white space starts that is longer than one
            byte, such as the no-break space (bytes C2 A0).
        any_space: Whether letters are joined with white space of any kind, and not only with a
            plain space.
    """
    # The slices [:-1] and [1:] compare each byte i with byte i + 1, both of shape (n_bytes - 1,):
    # is the first one white space, and the second one in a word, a number or a symbol? (Classes
    # are numbers, and those of these three are below SPACE.)
    is_white_space = byte_classes[:-1] == SPACE
    is_word_next = byte_classes[1:] < SPACE
    is_last_space = is_white_space & is_word_next

    # First step: a piece starts at byte i. (`is_start` has two values more than `is_last_space`.)
    is_start[:-2] |= is_last_space
    if len(wide_spaces):
        _move_starts_to_first_bytes(is_start, data, is_last_space, wide_spaces)

    # Second step: no piece starts at byte i + 1, which is item i of the slice `is_start[1:-1]`.
    if any_space:
        is_joined = _joined_spaces_of_any_kind(is_last_space, data, byte_classes)
    else:
        is_plain_space = data[:-1] == SPACE_BYTE
        is_joined = is_last_space & is_plain_space
    is_start[1:-1] &= ~is_joined


def _move_starts_to_first_bytes(
    is_start: Bools, data: Bytes, is_last_space: Bools, wide_spaces: Ints
) -> None:
    """Move the start of pieces that begin within a white-space character to its first byte.

    Before each word, a piece was started at the last byte of white space. For a plain space, which
    is one byte, that is right. But the no-break space has two bytes, C2 A0:

        position             0   1   2   3   4
        bytes                a   20  C2  A0  b      (20: a plain space)
        is_last_space                    T          (the last byte of white space before b)
        starts so far        x   x       x   x
        starts afterwards    x   x   x       x      (the piece starts with C2 now)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts.
        is_last_space: bool, shape (n_bytes - 1,): whether a byte is the last one of white space
            before a word; a piece was started there. (The last byte of all, which has no value, is
            a separator.)
        wide_spaces: int64, shape (n_wide_spaces,): first bytes of white-space characters of two or
            three bytes: 2.
    """
    # A character has three bytes if its first byte is 0xE0 or more.
    n_bytes = np.where(data[wide_spaces] >= 0xE0, 3, 2)
    last_bytes = wide_spaces + n_bytes - 1  # (n_wide_spaces,) 3

    is_before_word = is_last_space[last_bytes]  # (n_wide_spaces,) T
    is_start[last_bytes[is_before_word]] = False
    is_start[wide_spaces[is_before_word]] = True


def _joined_spaces_of_any_kind(is_last_space: Bools, data: Bytes, byte_classes: Bytes) -> Bools:
    r"""Return which white space is joined with the character after it, as in the piece " word".

    This is the rule of the tokenizers that join words with white space of any kind:

        after the white space    it is joined              for example
        a letter                 always                    " word" and "\tword"
        a symbol                 if it is a plain space    " !", but not "\t!"
        a number                 never                     not " 12"

    Args:
        is_last_space: bool, shape (n_bytes - 1,): whether a byte is the last one of white space
            before a letter, symbol or number.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: LETTER, OTHER for
            symbols, and so on.

    Returns:
        bool, shape (n_bytes - 1,): whether this byte and the next one are in one piece.
    """
    next_class = byte_classes[1:]
    is_plain_space = data[:-1] == SPACE_BYTE
    is_joined: Bools = is_plain_space & (next_class == OTHER)
    is_joined |= next_class == LETTER
    is_joined &= is_last_space
    return is_joined


def _join_symbols(is_start: Bools, data: Bytes, byte_classes: Bytes) -> None:
    """Let words start with a single symbol before them: "(word" becomes one piece.

    Most tokenizers, such as Llama 3's, do this. A symbol that already belongs to a piece with the
    symbol or space before it is not joined. With | where a piece starts:

        so far          afterwards
        a | ( | word    a | (word
        (( | word       (( | word      no change: no piece starts at the second symbol
         ( | word        ( | word      no change: the piece starts at the space

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: LETTER, or OTHER
            for symbols, and so on.
    """
    letters = _first_letters_after(byte_classes, OTHER, LETTER)  # the "w" of "(word"
    symbols = character_starts(data, letters - 1)  # "«" has two bytes: take the first one
    starts_piece = is_start[symbols]
    is_start[letters[starts_piece]] = False


def _join_first_characters(
    is_start: Bools, data: Bytes, byte_classes: Bytes, first_class: int, letter_class: int
) -> None:
    """Let words start with a character before them that is neither a letter nor a symbol.

    DeepSeek's tokenizer does this, for example with control characters. In this text, ~ is such a
    character, and | is where a piece starts:

        so far          a | ~~ | word
        afterwards      a | ~ | ~word       (only the last one is joined with the letters)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        first_class: The class of the characters that words may start with.
        letter_class: The class of the letters.
    """
    letters = _first_letters_after(byte_classes, first_class, letter_class)
    first_characters = character_starts(data, letters - 1)
    is_start[first_characters] = True
    is_start[letters] = False


def _first_letters_after(byte_classes: Bytes, class_before: int, letter_class: int) -> Ints:
    """Return the positions of letters right after a character of another class: 2 for "a(word".

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        class_before: The class of the character before the letter, such as OTHER for symbols.
        letter_class: The class of the letters.

    Returns:
        int64, shape (n_letters,), ascending: the first byte of each letter.
    """
    # Compare each byte with the next one. The letter is the next one, hence + 1.
    is_before_letter = (byte_classes[:-1] == class_before) & (byte_classes[1:] == letter_class)
    letters: Ints = np.flatnonzero(is_before_letter) + 1
    return letters


def _join_ascii_symbols(is_start: Bools, data: Bytes, byte_classes: Bytes) -> None:
    """Join ASCII letters with the ASCII symbol before them: "(word" becomes one piece.

    DeepSeek's tokenizer looks for a symbol and letters by an expression such as `[!"#][A-Za-z]+`.
    Both are ASCII, so the piece ends before another letter, such as ï. With | where a piece starts:

        so far          a|(|word       a|(|naïve        ((|word
        afterwards      a|(word        a|(na|ïve        ((|word     (the second "(" starts no piece)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators (bytes 0xFF).
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character: LETTER, or OTHER
            for symbols, and so on.
    """
    is_ascii = data < 0x80
    words = find_runs(is_ascii & (byte_classes == LETTER))
    symbols = words.starts - 1  # the byte before each word
    is_ascii_symbol = is_ascii[symbols] & (byte_classes[symbols] == OTHER)
    words_after_symbols = words.where(is_ascii_symbol & is_start[symbols])  # "word" of "(word"

    is_start[words_after_symbols.starts] = False
    # Another piece starts at a letter that is not ASCII: at the ï of "(naïve".
    is_before_other_letter = byte_classes[words_after_symbols.stops] == LETTER
    is_start[words_after_symbols.stops[is_before_other_letter]] = True


def _cut_contractions(is_start: Bools, data: Bytes, *, any_case: bool) -> None:
    """Make each contraction, such as 's or 'll, a piece, if a piece starts at its apostrophe.

    So far, a piece starts where the class of characters changes: an apostrophe is a symbol, and "s"
    a letter. But a symbol after a space is in one piece with it, as in "it 's". Such a piece starts
    at the space, so that this apostrophe begins no contraction. With | where a piece starts:

        so far          it|'|s| ok       I|'|llama        it| '|s| ok
        afterwards      it|'s| ok        I|'ll|ama        it| '|s| ok     (no change)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        any_case: Whether capital letters make contractions, too, as in "IT'S".
    """
    tables = ANY_CASE if any_case else EXACT  # the letters that make a contraction
    contractions = find_contractions(data, tables)  # the ranges of 's and 'll
    contractions = contractions.where(is_start[contractions.starts])

    # A piece starts at the apostrophe. None starts after the apostrophe any more, but one starts
    # after the contraction.
    is_start[contractions.starts + 1] = False
    is_start[contractions.stops] = True


def _cut_numbers(is_start: Bools, data: Bytes, is_number: Bools, max_digits: int) -> None:
    """Cut numbers every `max_digits` digits, from the left: "12345" into "123", "45".

    Digits are counted, and not bytes: "١٢٣٤" has 4 digits and 8 bytes.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        is_number: bool, shape (n_bytes,): whether a byte belongs to a digit.
        max_digits: Largest number of digits in a piece, such as 3.
    """
    numbers = find_runs(is_number)
    numbers = numbers.where(numbers.lengths > max_digits)  # others are too short to be cut
    if not len(numbers):
        return

    byte_positions = numbers.positions()  # (n_number_bytes,) all bytes of these numbers
    is_first_byte = data[byte_positions] & 0xC0 != 0x80  # the others have the form 10xxxxxx

    # A piece starts at the digits 0, 3, 6 and so on of a number.
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
