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
_SHARE = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
"""One number of a split's text."""
_SPACES = " \t\r\n"
"""What may be around a number: not every white space of Unicode, which Megatron-LM's command line would not drop."""


def normalize(weights: Sequence[float]) -> list[float]:
    """Divide weights by their numpy sum (Megatron-LM `datasets/utils.py`, `normalize`)."""
    values = np.array(weights, dtype=np.float64)
    shares: list[float] = (values / np.sum(values)).tolist()
    return shares


def parse_split(split: str, *, exactly_three: bool = False, compensated: bool = False) -> tuple[float, float, float]:
    """Parse the shares of train, valid and test, normalised, from text such as "969,30,1".

    Megatron-LM itself reads every run of digits and dots as a number (`parse_and_normalize_split`), so that it takes
    "0.99999,1e-05" for 14, 14 and 71 %. Only texts that mean the same to a person and to the trainer are accepted.

    Args:
        split: the text: decimal numbers, as `split_numbers` reads them. Missing ones are 0.
        exactly_three: the text must be three numbers between "," or "/" (NeMo `get_train_valid_test_split_`).
        compensated: they are divided by `compensated_sum` (NeMo on Python 3.12 and newer).

    Raises:
        ConfigError: there are no three shares, one is not a plain number, or all are 0.
    """
    numbers = split_numbers(split, exactly_three=exactly_three)
    numbers += [0.0] * (len(SPLITS) - len(numbers))
    if compensated:
        total = compensated_sum(numbers)
        shares = [number / total for number in numbers]
    else:
        shares = normalize(numbers)
    train, valid, test = shares
    return train, valid, test


def without_share(split: str, name: SplitName, *, exactly_three: bool = False) -> str:
    """Return the three shares with that of valid or test added to the one before it; arguments as `parse_split`."""
    numbers = split_numbers(split, exactly_three=exactly_three)
    numbers += [0.0] * (len(SPLITS) - len(numbers))
    removed = SPLITS.index(name)

    # The nearest split before it that has a share; train, if none has.
    receiver = removed - 1
    while receiver > 0 and not numbers[receiver]:
        receiver -= 1
    numbers[receiver] += numbers[removed]
    numbers[removed] = 0.0
    return ",".join(np.format_float_positional(number, trim="-") for number in numbers)


def split_numbers(split: str, *, exactly_three: bool = False) -> list[float]:
    """Return the numbers of a split's text as they are written: one to three, or exactly three.

    A number is ASCII digits with at most one decimal point. Between two numbers is one "," "/" or ";", with or without
    spaces around it. Signs, exponents, underscores, other digits and empty parts are refused: Python's `float` accepts
    them, but Megatron-LM would read other numbers.

    Raises:
        ConfigError: the text is anything else, or the numbers add up to 0 or to infinity.
    """
    separators = ",/;"
    if exactly_three:
        separators = "," if "," in split else "/"
    parts = [part.strip(_SPACES) for part in re.split(f"[{separators}]", split)]

    for part in parts:
        if not _SHARE.fullmatch(part):
            raise _bad_split(split, f"{part!r} is not a number")
    is_complete = len(parts) == len(SPLITS)
    if len(parts) > len(SPLITS) or (exactly_three and not is_complete):
        raise _bad_split(split, f"{len(parts)} numbers")

    numbers = [float(part) for part in parts]
    total = sum(numbers)
    if total == 0:
        raise _bad_split(split, "all shares are 0")
    if not math.isfinite(total):
        raise _bad_split(split, "the numbers are too large to be added up")
    return numbers


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


def _bad_split(split: str, reason: str) -> ConfigError:
    return ConfigError(
        "the split is not three shares",
        where="split",
        found=f"{split!r}: {reason}",
        expected='shares of train, valid and test as decimal numbers, not all 0, such as "969,30,1"',
        remedy="write three numbers with commas between them, without signs and exponents: 0.00001, not 1e-05",
    )
