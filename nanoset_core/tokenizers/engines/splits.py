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
    """Find the spaces that become tokens of several spaces, and return where two of them meet.

    Some vocabularies have tokens of 2, 3, 4 and more spaces, but none of a single one. Tokenizers
    look for them before they split text, the longest first. If the longest has 4 spaces, a run of 9
    spaces becomes two tokens of 4 spaces, and an ordinary space:

        spaces               _ _ _ _ _ _ _ _ _
        class afterwards     R R R R R R R R S      (R is RUN, for these tokens; S is SPACE)
        result                       ^       ^      (4 and 8, where the next token or space starts)

    Args:
        is_space: bool, shape (n_bytes,): whether a byte is a space.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. Changed in place.
        max_spaces: Spaces in the longest token; there are tokens of all lengths from 2.

    Returns:
        int64, shape (n_cuts,): where to cut runs of more than `max_spaces` spaces.
    """
    is_in_run = _have_equal_neighbour(is_space)  # two spaces or more
    byte_classes[is_in_run] = RUN

    # Runs that are longer than the longest token are cut: in the example, 9 is more than 4.
    runs = find_runs(is_in_run)
    long_runs = runs.where(runs.lengths > max_spaces)

    # 9 spaces are 4 + 4 + 1. There is no token of a single space, so the last one is ordinary
    # white space.
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
    """Join newlines with the white space or symbols before them, as many tokenizers do.

    So far, a piece starts wherever the class of the characters changes. Two kinds of pieces are
    longer than that. With `n` for a newline, `_` for a space, and `|` where a piece starts:

                                                 so far         afterwards
        white space up to its last newline       a|_|n|_|n|b    a|_n_n|b
        symbols and the newlines after them      a|!|n|_|n|b    a|!n|_n|b

    Newlines that belong to a symbol are not joined with white space after them.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character. The first and the
            last byte are separators.
        join_symbols: Whether newlines are joined with symbols before them. The tokenizers differ.
    """
    # First, join newlines with what is right before them: a|_|n|_|n|b becomes a|_n|_n|b.
    newlines = find_runs(byte_classes == NEWLINE)
    class_before = byte_classes[newlines.starts - 1]  # (n_runs,)
    follows_space = class_before == SPACE
    follows_symbol = (class_before == OTHER) & join_symbols
    is_start[newlines.starts[follows_space | follows_symbol]] = False

    # Then join the second _ with the newline before it: a|_n_n|b. It is a gap between two runs of
    # newlines. Gap i is after run i, and before run i + 1.
    gaps = Runs(newlines.stops[:-1], newlines.starts[1:])  # (n_runs - 1,)
    ends_with_space = follows_space[1:]
    follows_newlines_of_symbols = follows_symbol[:-1]  # these newlines end a piece
    gaps = gaps.where(ends_with_space & ~follows_newlines_of_symbols)

    # A gap may contain words. It has only white space if it starts with white space, and the class
    # of characters changes for the first time where the gap ends.
    gaps = gaps.where(byte_classes[gaps.starts] == SPACE)
    if len(gaps):
        is_only_space = _next_changes(byte_classes, gaps.starts) == gaps.stops
        is_start[gaps.starts[is_only_space]] = False


def _next_changes(byte_classes: Bytes, positions: Ints) -> Ints:
    """For each of some bytes of a text, return where the next character of another class starts.

    For the text "a__b", with two spaces:

        byte        0  1  2  3
        class       L  S  S  L      (L letter, S white space; it changes at the bytes 1 and 3)
        result      1  3  3         (for the bytes 0, 1 and 2)

    Args:
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        positions: int64, shape (n,): the bytes. The class changes at least once after each.

    Returns:
        int64, shape (n,).
    """
    changes = np.flatnonzero(byte_classes[1:] != byte_classes[:-1]) + 1  # all changes: 1 3
    # The index of the next change is how many changes are at the byte or before it: 0 1 1.
    n_changes_so_far = np.searchsorted(changes, positions, side="right")
    return changes[n_changes_so_far]


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
    is_joined = is_last_space & _can_be_joined(data, byte_classes, any_space=any_space)
    is_start[1:-1] &= ~is_joined


def _move_starts_to_first_bytes(
    is_start: Bools, data: Bytes, is_last_space: Bools, wide_spaces: Ints
) -> None:
    """Correct where pieces start that begin with white space of several bytes, to its first byte.

    Text is cut at bytes, and before each word a piece was started at the last byte of white space.
    For a plain space, which is one byte, that is right. But the no-break space is one character of
    two bytes, C2 A0, and the piece must start with C2:

        bytes                a   20  C2  A0  b      (20: a plain space)
        starts so far        x   x       x   x
        starts afterwards    x   x   x       x

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts.
        is_last_space: bool, shape (n_bytes - 1,): whether a byte is the last one of white space
            before a word; a piece was started there.
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
    """Return where white space would be joined with the next character, if it is the last before
    it.

    Tokenizers have one of two rules (yes: they are one piece, as in " word"):

                                        a letter    a number    a symbol
        any_space False: a space        yes         yes         yes
                         a tab          no          no          no
        any_space True:  a space        yes         no          yes
                         a tab          yes         no          no

    All other white space, such as a no-break space, is treated like a tab.

    Args:
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character, such as LETTER;
            OTHER is the class of symbols.
        any_space: Which of the two rules the tokenizer has.

    Returns:
        bool, shape (n_bytes - 1,), for byte i and the character that starts at byte i + 1. The
        caller uses only the values for which byte i is white space, and the others mean nothing.
    """
    is_plain_space: Bools = data[:-1] == SPACE_BYTE
    if not any_space:
        return is_plain_space
    # A letter is joined with any white space, a symbol with a plain space, a number with nothing.
    is_before_symbol = byte_classes[1:] == OTHER
    is_before_letter = byte_classes[1:] == LETTER
    is_joined: Bools = is_before_letter | (is_before_symbol & is_plain_space)
    return is_joined


def _join_symbols_with_letters(
    is_start: Bools, data: Bytes, byte_classes: Bytes, pattern: SplitPattern
) -> None:
    """Join letters with the character before them, as in "(word", if the tokenizer does.

    So far, a piece starts where the class of characters changes: "a(word" is cut into "a", "(",
    "word". GPT-2 keeps that, but Llama 3 makes it "a", "(word". Two settings say what is joined:

        leader                 the class of characters that are joined with letters after them; a
                               class is a number, such as OTHER for symbols; None: no such class
        joins_ascii_symbols    whether symbols of ASCII are joined with letters of ASCII after them

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        pattern: How the tokenizer splits, with these settings.
    """
    if pattern.leader is not None:
        _join_leaders(is_start, data, byte_classes, leader=pattern.leader, letter=LETTER)

    # DeepSeek's tokenizer first cuts out runs of Chinese and Japanese characters, and then splits
    # these by the same rules as the rest. Here, they have classes of their own, so do the same step
    # with these: IDEOGRAPH stands for LETTER, and IDEOGRAPH_BARE for BARE, the class of its
    # leaders. (No other tokenizer has the leader BARE.)
    if pattern.leader == BARE:
        _join_leaders(is_start, data, byte_classes, leader=IDEOGRAPH_BARE, letter=IDEOGRAPH)

    if pattern.joins_ascii_symbols:
        _join_ascii_symbols(is_start, data, byte_classes)


def _join_leaders(
    is_start: Bools, data: Bytes, byte_classes: Bytes, leader: int, letter: int
) -> None:
    r"""Join words with one character before them, as in "(word", if it is of a given class.

    Tokenizers do so if their regular expression is like `[^\r\n\p{L}\p{N}]?\p{L}+` (Llama 3): one
    character that is optional, here called the leader, and then letters. Leaders are often symbols.
    A symbol that already belongs to a piece is not joined:

        text        so far          afterwards
        a(word      a | ( | word    a | (word
        ((word      (( | word       no change: the second symbol belongs to the first one
         (word       ( | word       no change: the symbol belongs to the space before it

    Leaders of any other class are always joined: if ~ is one, "~~word" becomes "~", "~word".

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts. The first and the last byte are separators.
        byte_classes: uint8, shape (n_bytes,): the class of each byte's character.
        leader: Class of the leaders; OTHER is the class of symbols.
        letter: Class of the letters.
    """
    # Where a leader is followed by a letter: compare the class of each byte with that of the next
    # one. A leader may have several bytes: « has the bytes C2 AB, so "«word" has a letter after AB,
    # and the leader starts at C2.
    is_leader_before_letter = (byte_classes[:-1] == leader) & (byte_classes[1:] == letter)
    last_bytes = np.flatnonzero(is_leader_before_letter)  # (n_leaders,)
    leaders = character_starts(data, last_bytes)
    letters = last_bytes + 1

    # Leave out symbols that belong to what is before them, as in "((word" and " (word".
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

    DeepSeek's tokenizer cuts text by ``[!"#$%&'()*+,…][A-Za-z]+`` among others. As that has only
    ASCII letters, the piece ends before a letter such as ï. With `|` where a piece starts:

        so far          a|(|word       a|(|naïve
        afterwards      a|(word        a|(na|ïve

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

    # "(naïve": no piece starts at the n, if one starts at the symbol. (In "((naïve", none starts at
    # the second symbol.) The slices are for each byte i and the byte i + 1 after it.
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
    """Make each contraction, such as 's or 'll, a piece, unless its apostrophe is in another piece.

    So far, a piece starts where the class of characters changes: an apostrophe is a symbol, and "s"
    a letter. A space and a symbol after it are one piece. With `|` where a piece starts:

        text            it's ok          it 's ok
        so far          it|'|s| ok       it| '|s| ok
        afterwards      it|'s| ok        it| '|s| ok      (no change: the space starts the piece)

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a piece starts at a byte. Changed in place.
        data: uint8, shape (n_bytes,): UTF-8 texts between separators.
        any_case: Whether capital letters make contractions, too, as in "IT'S".
    """
    apostrophes = find_apostrophes(data)
    apostrophes = apostrophes[is_start[apostrophes]]  # those that start a piece
    if not len(apostrophes):
        return

    # The two bytes after an apostrophe decide, such as "ll", or "s" and a space. They are looked up
    # in two tables of all possible pairs: one is True if the first byte makes a contraction ('s),
    # and the other if both bytes together do ('ll).
    tables = ANY_CASE if any_case else EXACT
    next_bytes = byte_pairs_after(data, apostrophes)  # (n_apostrophes,) each pair as one number
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
