"""Codecs of text, numbers, booleans, None, choices among texts, and of any value.

A codec checks a value that was read from JSON or YAML, and converts it to the type that a field
declares. For example, as a `float` in YAML, the text "10e9" becomes the number 10000000000.0, and
the text "ten" is an error.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping
from typing import Any, get_args

from nanoset_core.records.mismatches import range_mismatch, unwritable_text, wrong_value
from nanoset_core.records.settings import Range
from nanoset_core.records.value_codec import ValueCodec

PLAIN_TYPES: Mapping[Any, frozenset[type]] = {
    str: frozenset([str]),
    int: frozenset([int]),
    float: frozenset([float, int]),  # JSON does not distinguish 1 from 1.0
    bool: frozenset([bool]),
    types.NoneType: frozenset([types.NoneType]),
}
"""Declared type → types of the values of JSON that it allows."""
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that YAML can express by escapes, but that no path, name or UTF-8 file can contain."""
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
"""Numbers such as 10e9. YAML 1.1 takes them for text, since they lack a point or a sign."""


class AnyCodec(ValueCodec):
    """Any value of JSON, which stays as it is."""

    def fits(self, value: Any) -> bool:
        return True

    def decode(self, value: Any) -> Any:
        return value


class PlainCodec(ValueCodec):
    """Text, numbers, booleans and None, which stay as they are."""

    def __init__(self, hint: Any, allowed: frozenset[type]) -> None:
        """Allow values of some types.

        Args:
            hint: The declared type, such as `tuple[int, ...]`.
            allowed: Exact types of the values: a bool is not an int here.
        """
        self._hint = hint
        self.allowed = allowed

    def fits(self, value: Any) -> bool:
        return type(value) in self.allowed

    def decode(self, value: Any) -> Any:
        if type(value) not in self.allowed:
            raise wrong_value(self._hint, value)
        return value


def plain_types_of(codec: ValueCodec) -> frozenset[type]:
    """Return the types of values that a codec returns as they are; empty if there are none.

    Lists and mappings of such values need not be decoded item by item, which is much faster.

    Args:
        codec: The codec.
    """
    return codec.allowed if isinstance(codec, PlainCodec) else frozenset()


class SettingTextCodec(ValueCodec):
    """Text that a name, a path or a UTF-8 file can contain."""

    def fits(self, value: Any) -> bool:
        return type(value) is str

    def decode(self, value: Any) -> str:
        if type(value) is not str:
            raise wrong_value(str, value)
        if UNWRITABLE.search(value) is not None:
            raise unwritable_text(value)
        return value


class SettingNumberCodec(ValueCodec):
    """A number that may have a fraction, and may be written as 10e9."""

    def fits(self, value: Any) -> bool:
        number = self._number(value)
        # Infinity and NaN are not numbers that a setting can have. A bool is not an int here.
        return type(number) in (int, float) and abs(number) <= sys.float_info.max

    def decode(self, value: Any) -> float:
        if not self.fits(value):
            raise wrong_value(float, value)
        return float(self._number(value))

    @staticmethod
    def _number(value: Any) -> Any:
        """Return text such as "10e9", which YAML does not take for a number, as a number.

        Args:
            value: A plain value. If it is not such a text, it is returned unchanged.
        """
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            return float(value)
        return value


class RangeCodec(ValueCodec):
    """A number in a range."""

    def __init__(self, codec: ValueCodec, value_range: Range) -> None:
        """Limit numbers.

        Args:
            codec: Codec of all numbers of the type.
            value_range: The numbers that are allowed.
        """
        self._codec = codec
        self._range = value_range

    def fits(self, value: Any) -> bool:
        return self._codec.fits(value)

    def decode(self, value: Any) -> Any:
        number = self._codec.decode(value)
        if number not in self._range:
            raise range_mismatch(self._range, value, number)
        return number


class ChoiceCodec(ValueCodec):
    """One of a few texts."""

    def __init__(self, hint: Any) -> None:
        """Take the choices of a type.

        Args:
            hint: The type, such as `Literal["a", "b"]`.
        """
        self._hint = hint
        self._choices = get_args(hint)

    def fits(self, value: Any) -> bool:
        return type(value) is str

    def decode(self, value: Any) -> Any:
        if type(value) is not str or value not in self._choices:
            raise wrong_value(self._hint, value)
        return value
