"""Divide the sequences of a dataset into train, valid and test, and count samples.

Trainers divide datasets by one of two rules, which round differently. For the shares 0.5, 0.3 and
0.2 of 17 sequences:

    bookends    round each border: 17 * 0.5 = 8.5 → 8, 17 * 0.8 = 13.6 → 14
                train 0 to 8, valid 8 to 14, test 14 to 17
    cuts        round each size: 8.5 → 8, 5.1 → 5, 3.4 → 3, which gives the cuts 8, 13, 16;
                shift all of them by 1, so that the last one is 17
                train 0 to 9, valid 9 to 14, test 14 to 17
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.rounding import ceil_division

SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")
"""The splits in the order in which their shares are written."""
Rows = tuple[int, int]
"""Sequences of a split: a half-open range (start, stop)."""
Bookends = tuple[float, float]
"""The data of a split as a half-open range (start, stop), where 0 to 1 is the whole dataset."""
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
"""A number in the text of a split."""
_SPACES = " \t\r\n"
"""White space that is allowed around a number. Megatron-LM's command line would not drop other
kinds of Unicode.
"""


def normalize(weights: Sequence[float]) -> list[float]:
    """Divide numbers by their sum: [8, 1, 1] → [0.8, 0.1, 0.1]. The sum is computed by numpy.

    This matters to the last digit, which must be the trainer's. Source: Megatron-LM
    `datasets/utils.py`, `normalize`.

    Args:
        weights: Numbers with a positive sum.
    """
    values = np.array(weights, dtype=np.float64)
    shares: list[float] = (values / np.sum(values)).tolist()
    return shares


def parse_split(
    split: str, *, exactly_three: bool = False, compensated: bool = False
) -> tuple[float, float, float]:
    """Return which shares of the data train, valid and test have, from a text of the user.

    For example, "969,30,1" means 0.969, 0.03 and 0.001, and "9,1" means 0.9, 0.1 and 0.

    Megatron-LM itself takes every run of digits and dots for a number, so that it reads
    "0.99999,1e-05" as 0.99999, 1 and 05, which are 14, 14 and 71 %. Here only texts are accepted
    that the trainer reads in the way that a person does.

    Args:
        split: One to three decimal numbers with commas between them.
        exactly_three: There must be three numbers, as NeMo demands.
        compensated: Add up the numbers with `compensated_sum`, as NeMo does on Python 3.12 and
            newer. It may change the last digit of the shares.

    Raises:
        ConfigError: There are more than three numbers, one is not a plain number, or all are 0.
    """
    numbers = _three_numbers(split, exactly_three)
    if compensated:
        total = compensated_sum(numbers)
        shares = [number / total for number in numbers]
    else:
        shares = normalize(numbers)
    train, valid, test = shares
    return train, valid, test


def without_share(split: str, name: SplitName, *, exactly_three: bool = False) -> str:
    """Give the share of valid or test to an earlier split, and return the new shares.

    This is needed if a split is too small for the trainer. The share goes to the nearest split
    before it that has one, or else to train:

        "969,30,1" without valid      "999,0,1"
        "969,30,1" without test       "969,31,0"
        "969,0,1" without test        "970,0,0"

    Args:
        split: Shares of train, valid and test.
        name: The split that gives its share away: valid or test.
        exactly_three: Whether all three shares must be written; otherwise missing ones are 0.
    """
    numbers = _three_numbers(split, exactly_three)
    giver = SPLITS.index(name)
    receiver = giver - 1
    while receiver > 0 and numbers[receiver] == 0:
        receiver -= 1
    numbers[receiver] += numbers[giver]
    numbers[giver] = 0.0
    return ",".join(np.format_float_positional(number, trim="-") for number in numbers)


def _three_numbers(split: str, exactly_three: bool) -> list[float]:
    """Return the numbers of a split's text, with 0 in place of those that are not written.

    For example, "9,1" gives 9, 1 and 0. The arguments are those of `parse_split`.
    """
    numbers = split_numbers(split, exactly_three=exactly_three)
    missing = len(SPLITS) - len(numbers)
    return numbers + [0.0] * missing


def split_numbers(split: str, *, exactly_three: bool = False) -> list[float]:
    """Return the numbers in a text that divides the data: "969,30,1" gives 969, 30 and 1.

        accepted    "969,30,1"    "9/1"    "0.9; 0.1"
        refused     "1e-05,1"     "+9,1"   "9,,1"

    Python's `float` would accept more forms of numbers, but Megatron-LM would read other numbers
    there.

    Args:
        split: One to three numbers, separated by ",", "/" or ";".
        exactly_three: There must be three numbers, all separated by "," or all by "/", as NeMo
            demands.

    Raises:
        ConfigError: The text is anything else, or the numbers add up to 0 or to infinity.
    """
    separators = ",/;"
    if exactly_three:
        # NeMo divides the text at commas, or if there are none, at slashes.
        separators = "," if "," in split else "/"
    parts = [part.strip(_SPACES) for part in re.split(f"[{separators}]", split)]
    _check_are_numbers(split, parts)

    has_too_few = exactly_three and len(parts) < len(SPLITS)
    if has_too_few or len(parts) > len(SPLITS):
        raise _bad_split(split, f"{len(parts)} numbers")
    numbers = [float(part) for part in parts]
    _check_total(split, sum(numbers))
    return numbers


def _check_are_numbers(split: str, parts: Sequence[str]) -> None:
    """Check that the parts of a text that divides the data are numbers, such as 969 and 0.5.

    Args:
        split: The whole text, for the error.
        parts: Its parts.

    Raises:
        ConfigError: One is not, or has a form that trainers may read in another way, such as 1e-05.
    """
    for part in parts:
        if not _NUMBER.fullmatch(part):
            raise _bad_split(split, f"{part!r} is not a number")


def _check_total(split: str, total: float) -> None:
    """Check that the numbers of a split can be divided by their sum.

    Raises:
        ConfigError: The sum is 0 or infinite.
    """
    if total == 0:
        raise _bad_split(split, "all shares are 0")
    if not math.isfinite(total):
        raise _bad_split(split, "the numbers are too large to be added up")


def sample_count(
    tokens: int, sequence_length: int, add_extra_token: int, *, drop_last_partial: bool = True
) -> int:
    """Return how many training samples can be cut from a number of tokens.

    Usually, a sample also has the first token of the next one, since a model learns to predict the
    next token. For samples of 10 tokens and such an extra one:

        tokens    samples
        21        2: tokens 0 to 10 and 10 to 20
        25        2, or 3 if a last, short sample counts: tokens 20 to 24
        5         0, or 1

    Megatron-LM counts in 32-bit floats if the last sample may be short, and so miscounts above
    2**24 tokens; this is exact.

    Args:
        tokens: Tokens of all documents together.
        sequence_length: Tokens of a sample, without the extra one.
        add_extra_token: 1 if there is an extra token; else 0.
        drop_last_partial: False counts a last sample that is short.
    """
    usable = max(tokens - add_extra_token, 0)  # the last sample needs an extra token, too
    if drop_last_partial:
        return usable // sequence_length
    return ceil_division(usable, sequence_length)


def plain_sum(values: Iterable[float]) -> float:
    """Add up floats one by one, with the same result in every version of Python.

    The built-in `sum` corrects rounding errors since Python 3.12. This function does not: ten times
    0.1 is 0.9999999999999999, and not 1.0.

    Args:
        values: The numbers; their order matters to the last digit.
    """
    total = 0.0
    for value in values:
        total += value
    return total


def compensated_sum(values: Sequence[float]) -> float:
    """Add up floats as the built-in `sum` does in Python 3.12 and newer: ten times 0.1 is 1.0.

    An addition rounds its result. Here the rounding errors are added up, too, and corrected at the
    end (Neumaier's sum). With three decimal digits, for 100 + 0.4 + 0.4:

        addition         rounded result    error
        100 + 0.4        100               0.4
        100 + 0.4        100               0.4
        result           100 + 0.8, which is rounded to 101

    Args:
        values: The numbers; their order may matter to the last digit.
    """
    total = 0.0
    error = 0.0
    for value in values:
        new_total = total + value
        # What the addition lost of the smaller number. This subtraction is exact.
        if abs(total) >= abs(value):
            error += (total - new_total) + value
        else:
            error += (value - new_total) + total
        total = new_total
    # If a sum is infinite, the error is not a number.
    if error and math.isfinite(error):
        return total + error
    return total


def split_bookends(vector: Sequence[float]) -> list[Bookends | None]:
    """Return which range of the data train, valid and test have.

    For example, the shares 0.9, 0.1 and 0 are the ranges (0, 0.9), (0.9, 1.0) and None: nothing.

    Source: Megatron-LM `convert_split_vector_to_split_matrix`. The trainer names its files by the
    hash of a text that contains these numbers. The first one is printed as 0 there, not as 0.0.

    Args:
        vector: Shares of train, valid and test, which add up to 1.
    """
    bookends: list[Bookends | None] = []
    start: float = 0  # not 0.0
    for share in vector:
        stop = start + share
        bookends.append((start, stop) if stop > start else None)
        start = stop
    return bookends


def rows_by_bookends(bookends: Bookends, sequences: int) -> Rows:
    """Return which documents a split of the data has, by rounding its borders.

    For example, the range from 0.5 to 0.8 of 17 documents is 8.5 to 13.6. Each is rounded to the
    nearest integer, 8 and 14 (halves to the even number), so the documents are 8 to 13.

    Source: Megatron-LM `_build_megatron_dataset_splits`.

    Args:
        bookends: The range of the split: (0.5, 0.8).
        sequences: Number of documents (or of sequences, if a document is stored as several ones):
            17.

    Returns:
        The first document, and the one after the last: (8, 14).
    """
    start, stop = bookends
    return round(start * float(sequences)), round(stop * float(sequences))


def rows_by_cuts(vector: Sequence[float], sequences: int) -> list[Rows]:
    """Return which documents train, valid and test have, by rounding how many each of them has.

    For 17 documents and the shares 0.5, 0.3 and 0.2:

        exact      8.5   5.1   3.4
        rounded    8     5     3        a half becomes the even number
        borders    0   8   13   16      one document is missing
        shifted    0   9   14   17      so train gets one more

    With very few documents, this can put a border before an earlier one, or below 0.

    Sources: NeMo `get_train_valid_test_split_`, nanotron `get_split_indices`, Megatron-LM before
    core 0.5.

    Args:
        vector: Shares of train, valid and test, which add up to 1.
        sequences: Number of documents (or of sequences, if a document is stored as several ones).

    Returns:
        For each of the three, its first document and the one after its last: (0, 9), (9, 14), ...
    """
    borders = [0]
    for share in vector:
        n_documents = round(share * float(sequences))
        borders.append(borders[-1] + n_documents)

    n_missing = sequences - borders[-1]  # 1; negative if the rounded numbers are too large
    shifted_borders = [0] + [border + n_missing for border in borders[1:]]
    return list(pairwise(shifted_borders))


def _bad_split(split: str, reason: str) -> ConfigError:
    """Return the error for a text that is not a split.

    Args:
        split: The text.
        reason: What is wrong with it, in a few words.
    """
    return ConfigError(
        "the split is not three shares",
        where="split",
        found=f"{split!r}: {reason}",
        expected="shares of train, valid and test as decimal numbers, not all 0, "
        'such as "969,30,1"',
        remedy="write three numbers with commas between them, without signs and exponents: "
        "0.00001, not 1e-05",
    )
