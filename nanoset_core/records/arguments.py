"""Check arguments of the classes and functions that users call in Python.

Python accepts anything as an argument. Without these checks, a text such as "0" in place of a
number would have no effect, or fail later with a message that does not name the argument.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from nanoset_core.errors import ConfigError, one_of

_MAX_TOKEN = 2**31 - 1
"""Largest id of a token that is accepted: that of int32, the largest type of token ids in use."""


def plain_integer(value: object) -> int | None:
    """Convert a whole number of any type, such as `np.int64(3)`, to a plain integer.

    Args:
        value: What the user has given.

    Returns:
        None for everything else, also for True, 3.0 and "3".
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # numpy raises it only here, for arrays with several numbers or with floats
        return None


def whole_number(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Convert an argument to a plain integer, or refuse it.

    For example, `np.int64(2048)` becomes 2048. True, 2048.0 and "2048" are refused.

    Args:
        name: Name of the argument, for the message.
        value: What the user has given.
        minimum: Smallest value that is allowed.
        maximum: Largest value that is allowed; None for any.

    Raises:
        ConfigError: The value is not an integer, or out of range.
    """
    number = plain_integer(value)
    if number is not None and number >= minimum and (maximum is None or number <= maximum):
        return number
    expected = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
    raise ConfigError(
        "not a whole number in range", where=name, found=repr(value), expected=expected
    )


def boolean(name: str, value: Any, *, accepts_numbers: bool = False) -> bool:
    """Convert an argument that is on or off to a plain boolean, or refuse it.

    Python takes any text for true, also "no" and "false".

    Args:
        name: Name of the argument, for the message.
        value: What the user has given.
        accepts_numbers: Whether 0 and 1 are off and on. Trainers may take an argument from a
            command line or a file, as a number.

    Raises:
        ConfigError: The value is not a boolean.
    """
    is_boolean = isinstance(value, bool | np.bool_)
    is_number = accepts_numbers and plain_integer(value) in (0, 1)
    if not is_boolean and not is_number:
        raise ConfigError(
            "this argument is on or off", where=name, found=repr(value), expected="True or False"
        )
    return bool(value)


def choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Check that an argument is one of several texts.

    Args:
        name: Name of the argument, for the message.
        value: What the user has given.
        choices: The texts that are allowed.

    Raises:
        ConfigError: It is something else.
    """
    if value in choices:
        return
    raise ConfigError(
        "not one of the possible values",
        where=name,
        found=repr(value),
        expected=one_of(map(repr, choices), "nothing"),
    )


def token_id(name: str, value: Any, dtype: DTypeLike | None = None) -> int:
    """Convert an argument that is the id of a token to a plain integer, or refuse it.

    A value that no token can have would never be found in samples, without any error.

    Args:
        name: Name of the argument, for the message.
        value: What the user has given.
        dtype: Type of the tokens among which the id is looked up, if it is known.

    Raises:
        ConfigError: The value is not an integer, or tokens cannot have it.
    """
    maximum = _MAX_TOKEN
    reason = ""
    if dtype is not None and np.dtype(dtype).kind in "iu":
        maximum = int(np.iinfo(dtype).max)
        reason = f", since the tokens are {np.dtype(dtype).name}"

    number = plain_integer(value)
    if number is None or not 0 <= number <= maximum:
        raise ConfigError(
            "not the id of a token",
            where=name,
            found=repr(value),
            expected=f"a whole number from 0 to {maximum}{reason}",
            remedy="give the number that the tokenizer has given to the token",
        )
    return number
