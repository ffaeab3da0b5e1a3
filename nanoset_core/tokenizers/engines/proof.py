"""Canary texts, on which engines are compared with the reference before they are used.

An engine turns text into tokens. The reference is the `tokenizers` library, whose tokens are right
by definition. A canary is a text that a wrong engine is likely to get wrong: characters of every
class next to each other, long runs, contractions, combining marks, the tokenizer's own added tokens
and vocabulary. An engine is only used for a tokenizer if it gives the tokens of the reference for
all canaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, product
from typing import Any
from unicodedata import category, combining

import numpy as np

from nanoset_core.tokenizers.engines.engine import Engine
from nanoset_core.tokenizers.files.sentencepiece import SPACE_SIGN
from nanoset_core.tokenizers.files.tokenizer_json import token_bytes

_VOCABULARY_WORDS = 1 << 14  # about so many of a vocabulary
_WORDS_OF_A_TEXT = 200
_CHARACTERS_OF_A_TEXT = 500
_LONGEST_RUN = 70
_LONG_WORDS = (64, 65, 255, 256, 300, 3000)  # characters
_ASSIGNED = ((0, 0x34000), (0xE0000, 0xE0200))  # code points: what is beyond is private or nothing
_LONG_RUN_OF_ONE_CATEGORY = 1000  # code points
_PRIVATE_STEP = 0x1000
_KINDS = "aAé1٣½中あー가。'’ſ/-_ \n\r\t\xa0\u3000\u0301\u200d🎉▁<"
"""One of each kind that split patterns, normal forms and SentencePiece's spaces tell apart."""
_CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll", "RE", "vE", "S", "ſ", "rs", "l", "")


def added_tokens(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the texts of the added tokens of a tokenizer, such as `<|endoftext|>`.

    Args:
        tokenizer: A parsed `tokenizer.json`.

    Returns:
        The texts in the order of the file, without empty ones.
    """
    tokens = tokenizer.get("added_tokens") or []
    return [token["content"] for token in tokens if token.get("content")]


def all_canaries(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the texts on which a faster tokenizer is compared with Hugging Face's library.

    They are texts that are easy to get wrong, such as special tokens inside a word. The faster
    tokenizer is used only if both give the same tokens for all of them.

    Args:
        tokenizer: A parsed `tokenizer.json`, of any kind.
    """
    texts = list(_common_canaries())
    for token in added_tokens(tokenizer):
        texts.append(token)
        in_words = f"{token}x{token}y {token}{token}1{token}"
        next_to_white_space = f"\n{token}  é  {token}\t"
        incomplete = f"{token[1:]}x {token[:-1]}中{token}"  # and a complete one at the end
        texts.append(in_words + next_to_white_space + incomplete)
    texts += _vocabulary_texts(tokenizer)
    return texts


def differing(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Return the numbers of the texts for which two tokenizer engines give different tokens.

    An engine is an implementation that turns text into tokens. A fast one is compared with Hugging
    Face's library in this way before it is used.

    Args:
        engine: The engine that is checked.
        reference: The engine whose tokens are right.
        texts: The texts to encode with both.

    Returns:
        Such as [3, 17]; empty if all tokens are equal.
    """
    encoded = engine.encode(texts)
    expected = reference.encode(texts)
    has_same_lengths = np.array_equal(encoded.lengths, expected.lengths)
    if has_same_lengths and np.array_equal(encoded.ids, expected.ids):
        return []

    # Some differ: compare the texts one by one.
    differing_indices = []
    pairs = zip(encoded.lists(), expected.lists(), strict=True)
    for index, (ids, expected_ids) in enumerate(pairs):
        if not np.array_equal(ids, expected_ids):
            differing_indices.append(index)
    return differing_indices


@cache
def _common_canaries() -> tuple[str, ...]:
    """Return texts that a wrong tokenizer is likely to get wrong, the same for all vocabularies.

    This project has tokenizers that are faster than Hugging Face's `tokenizers` library. One of
    them is only used if it gives the same tokens as the library for all these texts, which are
    called canaries: they have unusual characters, long words, many spaces, contractions and so on.
    """
    categories = _categories()  # code point → Unicode category
    return (
        *_triples_of_kinds(),
        *_pairs_of_categories(categories),
        *_texts_of_all_characters(categories),
        *_texts_of_unassigned_points(categories),
        *_texts_of_marks(),
        # "é" and "ñ" in two characters, the sign for ångström, and marks in the wrong order.
        "e\u0301 \u212b n\u0303o \u0345\u0301a \u07f3\u07fd",
        *_texts_of_runs(),
        *_texts_of_long_words(),
        *_texts_of_contractions(),
        "",
        "\0",
        "a\0b",
        "\tx y",
    )


def _categories() -> dict[int, str]:
    """Return the Unicode category of every code point: {97: "Ll", …} for "a", a small letter.

    Large parts of Unicode that have no characters are left out.
    """
    categories = {}
    for start, stop in _ASSIGNED:
        for point in range(start, stop):
            name = category(chr(point))
            if name != "Cs":  # surrogates, which no text contains
                categories[point] = name
    # Text with zeros is always left to Hugging Face's library, so that there is nothing to compare.
    del categories[0]
    return categories


def _triples_of_kinds() -> Iterator[str]:
    """Yield texts in which any three kinds of characters follow each other, such as "a1 ".

    _KINDS has about 30 characters, one of each kind. There is a text for any two of them, with each
    of them as the third: for "a" and "1", the text "a1aa1A…".
    """
    for first, second in product(_KINDS, repeat=2):
        yield "".join(first + second + third for third in _KINDS)


def _pairs_of_categories(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield texts in which characters of any two Unicode categories follow each other.

    Two tokenizers are compared on these texts. Tokenizers cut text where the category of characters
    changes, for example between a letter and a symbol. So all combinations of categories are
    needed. Each category is represented by its first and its last character. With "a", "1" and "!",
    each text has one of them before each of the three:

        ! before each    !! !1 !a    written as "!!!1!a"
        1 before each    1! 11 1a    written as "1!111a"
        a before each    a! a1 aa    written as "a!a1aa"

    Args:
        categories: Code point → Unicode category, such as {97: "Ll"} for a small letter, in
            ascending order.
    """
    characters = _ends_of_categories(categories)
    for first in characters:
        yield "".join(first + second for second in characters)


def _ends_of_categories(categories: Mapping[int, str]) -> list[str]:
    """Return two characters of each Unicode category: its first and its last one.

    Characters with different numbers of bytes in UTF-8 count as different categories. So small
    letters (Ll) are represented by "a" and "z" for one byte, and so on. Tokenizers treat all
    characters of a category in the same way, so that these few are enough to compare two
    tokenizers.

    Args:
        categories: Code point → Unicode category, in ascending order.

    Returns:
        The characters, sorted.
    """
    first_by_group: dict[tuple[str, int], str] = {}
    last_by_group: dict[tuple[str, int], str] = {}
    for point, category_name in categories.items():
        character = chr(point)
        n_bytes = len(character.encode())
        group = (category_name, n_bytes)  # ("Ll", 1) for "a"
        first_by_group.setdefault(group, character)
        last_by_group[group] = character
    return sorted({*first_by_group.values(), *last_by_group.values()})


def _texts_of_all_characters(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield texts in which nearly every Unicode character follows a letter, and a space.

    Tokenizers cut text between characters of different kinds: "a!" into "a" and "!", but not "aé".
    So two tokenizers that give the same tokens for these texts agree about the kind of each
    character. For "é", "ê" and "ë":

        after a letter     "aéaêaë"
        after a space      " é ê ë"
        after a symbol     "!é!ê!ë"
        after 中           "中é中ê中ë"

    To compare all characters in all places would take too long. After a symbol or 中, only the ends
    of rows of similar characters are compared, as is explained at `_points_of_runs`. After a letter
    or a space, all characters are, except in rows of 1,000 or more, such as the ideographs.

    Args:
        categories: Code point → Unicode category, such as 233 ("é") → "Ll", small letter. In
            ascending order, for all parts of Unicode with assigned characters.
    """
    other_points = _points_without_category()
    ends_of_long_rows = _points_of_runs(categories, min_length=_LONG_RUN_OF_ONE_CATEGORY)
    ends_of_all_rows = _points_of_runs(categories, min_length=0)
    nearly_all_points = [*other_points, *ends_of_long_rows]
    few_points = [*other_points, *ends_of_all_rows]

    yield from _after_prefix("a", nearly_all_points)
    yield from _after_prefix(" ", nearly_all_points)
    yield from _after_prefix("!", few_points)
    yield from _after_prefix("中", few_points)


def _points_without_category() -> list[int]:
    """Return some code points of the parts of Unicode without characters, or with private ones.

    `_categories` leaves these parts out. One code point in 4,096 represents all.
    """
    return [
        *range(0x40000, 0xE0000, _PRIVATE_STEP),
        *range(0xF0000, 0x110000, _PRIVATE_STEP),
        0x10FFFF,  # the last one of Unicode
    ]


def _texts_of_unassigned_points(categories: Mapping[int, str]) -> Iterator[str]:
    """Yield texts of code points that have no character in Python's version of Unicode.

    A tokenizer may have a newer version, in which some of them are accents. Unicode's normal forms
    sort the accents of a letter, and put U+0345 last. So such a tokenizer changes the order of "a",
    U+0345 and an accent that others do not know.

    Args:
        categories: Code point → Unicode category, such as "Cn" without a character.
    """
    unassigned_points = [point for point, name in categories.items() if name == "Cn"]
    yield from _after_prefix("a\u0345", unassigned_points)


def _points_of_runs(categories: Mapping[int, str], min_length: int) -> Iterator[int]:
    """Yield code points, but of long rows of similar characters only four.

    The ideographs U+4E00 to U+9FFF are all letters of the category Lo. A tokenizer that treats the
    first two and the last two rightly most likely does so with all of them.

    Args:
        categories: Code point → Unicode category, in ascending order.
        min_length: Rows of at least this length are long.
    """
    for _, run in groupby(categories, key=categories.__getitem__):
        points = list(run)
        if len(points) >= min_length:
            yield from points[:2]
            yield from points[-2:]
        else:
            yield from points


def _after_prefix(prefix: str, points: Sequence[int]) -> Iterator[str]:
    """Yield texts of characters, each of which follows the same prefix."""
    for start in range(0, len(points), _CHARACTERS_OF_A_TEXT):
        text_points = points[start : start + _CHARACTERS_OF_A_TEXT]
        yield "".join(prefix + chr(point) for point in text_points)


def _texts_of_marks() -> Iterator[str]:
    """Yield texts in which a letter has two combining marks, such as a dot below it and an accent.

    Unicode's normal forms sort the marks of a letter by their combining class, a number, and so
    must tokenizers. So marks of any two classes occur in both orders. For the marks x and y:

        "exx exy"     "eyx eyy"
    """
    marks = _ends_of_combining_classes()
    for first in marks:
        yield " ".join(f"e{first}{second}" for second in marks)


def _ends_of_combining_classes() -> list[str]:
    """Return two combining marks of each combining class: its first and its last one in Unicode.

    Combining marks are characters that are drawn at the letter before them, such as accents. If a
    letter has several, Unicode's normal forms sort them by their class, a number: dots below the
    letter have 220, and come before accents above it, which have 230. Tokenizers that normalise
    text must do the same.
    """
    # All combining marks, sorted by class. They are between these code points, and other characters
    # have the class 0.
    characters = map(chr, range(0x300, 0x1F000))
    all_marks = sorted(filter(combining, characters), key=combining)

    marks: list[str] = []
    for _, group in groupby(all_marks, combining):
        marks_of_class = list(group)
        marks.append(marks_of_class[0])
        if len(marks_of_class) > 1:
            marks.append(marks_of_class[-1])
    return marks


def _texts_of_runs() -> Iterator[str]:
    """Yield runs of one character, of any length up to _LONGEST_RUN."""
    for character in " \n\t\r1=-a'Aé中\u0308":
        runs = [character * length for length in range(1, _LONGEST_RUN)]
        yield "x".join(runs)
        yield "".join(run + " \n" for run in runs)


def _texts_of_long_words() -> Iterator[str]:
    """Yield words around the lengths at which engines treat them differently."""
    for length in _LONG_WORDS:
        yield "a" * length
        yield "".join(chr(ord("a") + index * index % 26) for index in range(length))
        yield "".join(chr(0x4E00 + index * 7919 % 20_000) for index in range(length))


def _texts_of_contractions() -> Iterator[str]:
    """Yield contractions, and what resembles one, in different surroundings."""
    before = ("", " ", "I", "\n", "Ab1")
    after = ("", "x", " ", "X")
    for parts in product(before, "'’", _CONTRACTIONS, after):
        yield "".join(parts)


def _vocabulary_texts(tokenizer: Mapping[str, Any]) -> Iterator[str]:
    r"""Yield texts of words from all over a vocabulary, on which two tokenizers are compared.

    Together, the words need most of the merges by which tokens are made. There are two texts for
    200 words w0, w1, w2 and so on:

        w0\nw1\nw2 …       each is a word of the text
        w0w7w14 …          every seventh, joined to one long word

    Args:
        tokenizer: A parsed `tokenizer.json`, Hugging Face's format for tokenizers.
    """
    entries = _entries_of_vocabulary(tokenizer)
    step = max(1, len(entries) // _VOCABULARY_WORDS)  # evenly spread
    words = [_readable(entry) for entry in entries[::step]]  # " cat" for "Ġcat"
    for start in range(0, len(words), _WORDS_OF_A_TEXT):
        text_words = words[start : start + _WORDS_OF_A_TEXT]
        yield "\n".join(text_words)
        yield "".join(text_words[::7])


def _entries_of_vocabulary(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the tokens of a vocabulary as the file writes them: "Ġcat" for " cat".

    Args:
        tokenizer: A parsed `tokenizer.json`. A unigram model has [token, score] pairs, and any
            other one maps tokens to ids.
    """
    model = tokenizer.get("model") or {}
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return list(vocabulary)
    return [entry[0] for entry in vocabulary]


def _readable(entry: str) -> str:
    """Return the text for which an entry of a vocabulary stands: " cat" for "Ġcat" and for "▁cat".

    In the first notation, each byte is written as one character, and Ġ is a space. In the second,
    only spaces are written differently.
    """
    data = token_bytes(entry)
    if data is None:
        return entry.replace(SPACE_SIGN, " ")
    return data.decode(errors="ignore")
