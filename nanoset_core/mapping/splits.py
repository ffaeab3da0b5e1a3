"""Cut the sequences of a dataset into train, valid and test, and count the samples in their tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from nanoset_core.errors import ConfigError

SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")
Rows = tuple[int, int]
"""Sequences of a split, (begin, end excl)."""
Bookends = tuple[float, float]
"""Share of a split, (begin, end excl), each from 0 to 1."""


def normalize(weights: Sequence[float]) -> list[float]:
    """Divide weights by their numpy sum (Megatron-LM `datasets/utils.py`, `normalize`)."""
    values = np.array(weights, dtype=np.float64)
    shares: list[float] = (values / np.sum(values)).tolist()
    return shares


def parse_split(split: str, *, exactly_three: bool = False, compensated: bool = False) -> tuple[float, float, float]:
    """Parse the shares of train, valid and test, normalised, from text such as "969,30,1".

    Args:
        split: the text. By default every run of digits and dots is a number and missing ones are 0 (Megatron-LM
            `parse_and_normalize_split`: so "949/50/1" works and "1e-3" is two numbers).
        exactly_three: the text must be three numbers between "," or "/" (NeMo `get_train_valid_test_split_`).
        compensated: they are divided by `compensated_sum` (NeMo on Python 3.12 and newer).

    Raises:
        ConfigError: there are no three shares, or one is negative, or all are 0.
    """
    numbers = _numbers(split, exactly_three=exactly_three)
    total = compensated_sum(numbers) if compensated else 0.0
    train, valid, test = [number / total for number in numbers] if compensated else normalize(numbers)
    return train, valid, test


def without_share(split: str, name: SplitName, *, exactly_three: bool = False) -> str:
    """Return the three shares with that of valid or test added to the one before it; arguments as `parse_split`."""
    numbers, place = _numbers(split, exactly_three=exactly_three), SPLITS.index(name)
    before = next(other for other in range(place - 1, -1, -1) if other == 0 or numbers[other])
    numbers[before], numbers[place] = numbers[before] + numbers[place], 0.0
    return ",".join(np.format_float_positional(number, trim="-") for number in numbers)


def _numbers(split: str, *, exactly_three: bool) -> list[float]:
    try:
        if exactly_three:
            numbers = [float(part) for part in split.split("," if "," in split else "/")]
        else:
            numbers = [float(part) for part in re.findall(r"[.0-9]+", split)]
    except ValueError as error:
        raise _bad_split(split) from error
    valid_count = len(numbers) == 3 if exactly_three else 1 <= len(numbers) <= 3
    if not valid_count or any(number < 0 for number in numbers) or not 0 < sum(numbers) < float("inf"):
        raise _bad_split(split)
    return numbers + [0.0] * (3 - len(numbers))


def sample_count(tokens: int, sequence_length: int, add_extra_token: int, *, drop_last_partial: bool = True) -> int:
    """Return how many samples a number of tokens gives; 0 for too few.

    Megatron-LM counts the short one in 32-bit floats, which miscounts above 2**24 tokens; this is exact. Samples have
    `add_extra_token` (1 or 0) tokens more, the next one's first; the last may be short without `drop_last_partial`.
    """
    usable = max(tokens - add_extra_token, 0)
    return usable // sequence_length if drop_last_partial else -(-usable // sequence_length)


def plain_sum(values: Iterable[float]) -> float:
    """Add values up one by one, as `sum` does in Python before 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def compensated_sum(values: Sequence[float]) -> float:
    """Add values up as `sum` does in Python 3.12 and newer: Neumaier's sum, its error added at the end."""
    total = error = 0.0
    for value in values:
        step = total + value
        error += (total - step) + value if abs(total) >= abs(value) else (value - step) + total
        total = step
    return total + error if error and math.isfinite(error) else total


def split_bookends(vector: Sequence[float]) -> list[Bookends | None]:
    """Return the share borders of each split, None where its share is 0.

    Left-to-right float sums from the *integer* 0, which is how it prints in descriptions (Megatron-LM
    `convert_split_vector_to_split_matrix`).
    """
    edges: list[float] = [0]
    for share in vector:
        edges.append(edges[-1] + share)
    return [None if end <= begin else (begin, end) for begin, end in pairwise(edges)]


def rows_by_bookends(bookends: Bookends, sequences: int) -> Rows:
    """Return one split's sequences: borders rounded half to even (Megatron-LM `_build_megatron_dataset_splits`)."""
    begin, end = bookends
    return round(begin * float(sequences)), round(end * float(sequences))


def rows_by_cuts(vector: Sequence[float], sequences: int) -> list[Rows]:
    """Return the sequences of the splits: rounded sizes, added up, then shifted so that the last cut is the end.

    NeMo `get_train_valid_test_split_`, nanotron `get_split_indices`, Megatron-LM before core 0.5. On very few sequences
    a cut can land before an earlier one.
    """
    cuts = [0]
    for share in vector:
        cuts.append(cuts[-1] + round(share * float(sequences)))
    surplus = cuts[-1] - sequences
    cuts[1:] = [cut - surplus for cut in cuts[1:]]
    return list(pairwise(cuts))


def _bad_split(split: str) -> ConfigError:
    expected = 'shares of train, valid and test, not negative, not all 0, such as "969,30,1"'
    what, remedy = "the split is not three shares", "write three numbers with commas between them"
    return ConfigError(what, where="split", found=repr(split), expected=expected, remedy=remedy)
