"""The interface of codecs, each of which converts the values of one type from and to plain ones.

Plain values are those of JSON and YAML: mappings, lists, text, numbers, booleans and None.
`codecs.py` says which types have codecs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

MAX_MISMATCHES = 1000
"""A codec stops at this many mistakes in a list or mapping, which is then probably something else.
"""


class ValueCodec(ABC):
    """Converts values of one declared type."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Return whether a plain value has the form of the type, such as that of a list.

        The choices of a `Literal`, and what is in a list or a mapping, are not looked at. In a
        union, the first type that fits a value decodes it.

        Args:
            value: A plain value: a mapping, a list, text, a number, a boolean or None.
        """

    @abstractmethod
    def decode(self, value: Any) -> Any:
        """Return a plain value as the type: for `tuple[int, ...]`, the list [1, 2] as (1, 2).

        Args:
            value: A plain value: a mapping, a list, text, a number, a boolean or None.

        Raises:
            MismatchError: The value does not have the type.
        """

    def encode(self, value: Any) -> Any:
        """Return a value of the type as one that `json.dumps` writes.

        Args:
            value: A value that `decode` could have returned.
        """
        return value
