"""Codecs of lists and mappings, which decode each item by the codec of its type.

For example, `Mapping[str, tuple[int, ...]]` is decoded by a `MappingCodec`, and each of its values
by a `SequenceCodec`: {"web": [1, 2]} becomes {"web": (1, 2)}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.mismatches import (
    Mismatch,
    MismatchError,
    key_of_wrong_type,
    unknown_key,
    unwritable_key,
    wrong_value,
)
from nanoset_core.records.scalar_codecs import UNWRITABLE, AnyCodec, plain_types_of
from nanoset_core.records.settings import bare
from nanoset_core.records.value_codec import MAX_MISMATCHES, ValueCodec


class SequenceCodec(ValueCodec):
    """Converts lists of any length, whose items have one type, to tuples or lists."""

    def __init__(self, hint: Any, make: Callable[[list[Any]], Any], item: ValueCodec) -> None:
        """Declare the sequence.

        Args:
            hint: The declared type, such as `tuple[int, ...]`.
            make: Makes the sequence from its items: `tuple` or `list`.
            item: Codec of the items.
        """
        self._hint = hint
        self._make = make
        self._item = item
        self._plain_types = plain_types_of(item)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def decode(self, value: Any) -> Any:
        """Convert a list from a JSON or YAML file to a tuple or list, and check each item.

            declared type          value from a file         result
            tuple[int, ...]        [1, 2]                    (1, 2)
            tuple[File, ...]       [{"bytes": 80}]           (File(bytes=80),)
            tuple[int, ...]        [1, "a"]                  an error about the item [1]

        Most lists are numbers or texts, which need no conversion. Then the types of all items are
        checked at once, which is much faster.

        Args:
            value: What was read, which should be a list.

        Raises:
            MismatchError: The value is not a list, or some of its items have a wrong type.
        """
        if not isinstance(value, list):
            raise wrong_value(self._hint, value)
        # Items of these types stay as they are, so they need not be decoded one by one.
        if self._plain_types.issuperset(map(type, value)):
            return self._make(value)
        codecs = [self._item] * len(value)  # one for each item
        return self._make(_decode_items(codecs, value))

    def encode(self, value: Any) -> list[Any]:
        encode = self._item.encode
        return [encode(item) for item in value]


class RowCodec(ValueCodec):
    """Converts lists of fixed length to tuples or NamedTuples with a type for each item."""

    def __init__(self, make: Callable[[list[Any]], Any], items: Sequence[ValueCodec]) -> None:
        """Declare the row.

        Args:
            make: Makes the tuple or NamedTuple from its items.
            items: Codec of each item.
        """
        self._make = make
        self._items = items

    def fits(self, value: Any) -> bool:
        return isinstance(value, list)

    def decode(self, value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(self._items):
            raise wrong_value(list, value, expected=f"a list of {len(self._items)} values")
        return self._make(_decode_items(self._items, value))

    def encode(self, value: Any) -> list[Any]:
        pairs = zip(self._items, value, strict=True)
        return [codec.encode(item) for codec, item in pairs]


def _decode_items(codecs: Sequence[ValueCodec], values: Sequence[Any]) -> list[Any]:
    """Convert each item of a list from a file to its type, and report all items that are wrong.

    Args:
        codecs: For each item, the codec that converts and checks it, such as that of `int`.
        values: The items, as they were read from JSON or YAML.

    Returns:
        The converted items, in order.

    Raises:
        MismatchError: Some items are wrong. For [1, "x", 3, "y"] as integers, it has a mistake at
            [1] and one at [3].
    """
    items: list[Any] = []
    mismatches: list[Mismatch] = []
    for index, value in enumerate(values):
        try:
            items.append(codecs[index].decode(value))
        except MismatchError as error:
            mismatches += error.below(f"[{index}]")
            if len(mismatches) > MAX_MISMATCHES:
                break
    if mismatches:
        raise MismatchError(mismatches)
    return items


class _DecodedMapping(NamedTuple):
    """The decoded values of a mapping, or the mistakes in them."""

    values: dict[str, Any]
    """Key → decoded value. Some are missing if there are mistakes."""
    mismatches: list[Mismatch]
    """Values that do not have the declared type."""


class MappingCodec(ValueCodec):
    """Converts mappings with any keys, whose values have one type.

    A mapping whose values all stay as they are is not copied.
    """

    def __init__(self, hint: Any, item: ValueCodec) -> None:
        """Declare the mapping.

        Args:
            hint: The declared type, such as `tuple[int, ...]`.
            item: Codec of the values.
        """
        self._hint = hint
        self._item = item
        self._plain_types = plain_types_of(item)
        self._is_any = isinstance(item, AnyCodec)

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def decode(self, value: Any) -> Mapping[str, Any]:
        """Convert a mapping from a file: check each value, and convert it to the declared type.

            declared type           value from a file         result
            Mapping[str, int]       {"web": 2}                {"web": 2}, the same object
            Mapping[str, File]      {"a": {"bytes": 80}}      {"a": File(bytes=80)}
            Mapping[str, int]       {"web": "x"}              an error about the key `web`

        Args:
            value: What was read, which should be a mapping.

        Raises:
            MismatchError: The value is not a mapping, or some of its values have a wrong type.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._hint, value)
        # Values of these types stay as they are, so they need not be decoded one by one.
        if self._is_any or self._plain_types.issuperset(map(type, value.values())):
            return value
        decoded = self._decode_values(value)
        if decoded.mismatches:
            raise MismatchError(decoded.mismatches)
        return decoded.values

    def _decode_values(self, value: Mapping[str, Any]) -> _DecodedMapping:
        """Convert each value of a mapping from a file to its type, and collect what is wrong.

        Args:
            value: The mapping as it was read, such as {"web": 2, "books": "x"}.

        Returns:
            If the values are integers: {"web": 2}, and a mistake at `.books`. After some ten
            mistakes, the rest is not converted.
        """
        decode = self._item.decode
        decoded: dict[str, Any] = {}
        mismatches: list[Mismatch] = []
        for key, item in value.items():
            try:
                decoded[key] = decode(item)
            except MismatchError as error:
                mismatches += error.below(f".{key}")
                if len(mismatches) > MAX_MISMATCHES:
                    break
        return _DecodedMapping(decoded, mismatches)

    def encode(self, value: Any) -> dict[str, Any]:
        if self._is_any or self._plain_types:
            return dict(value)
        encode = self._item.encode
        return {key: encode(item) for key, item in value.items()}


class SettingMappingCodec(MappingCodec):
    """Converts mappings of settings, whose keys are text or choices, to frozen mappings."""

    def __init__(self, hint: Any, item: ValueCodec) -> None:
        """Declare the mapping.

        Args:
            hint: The declared type, such as `Mapping[Literal["a", "b"], int]`.
            item: Codec of the values.
        """
        super().__init__(hint, item)
        key_hint, _ = get_args(hint)
        self._choices = get_args(bare(key_hint))  # of a Literal; empty for other types

    def decode(self, value: Any) -> FrozenDict[str, Any]:
        """Convert a mapping that a user wrote in a YAML file, and check its keys and its values.

        All mistakes are reported together, so that the user can correct them at once. For a mapping
        of names to integers:

            {"web": 2, "books": 1}           the same as a mapping that cannot be changed
            {"web": 2, 2024: 3, "b": "x"}    two mistakes: 2024 is no text, and "x" is no integer

        Args:
            value: What was read, which should be a mapping.

        Raises:
            MismatchError: The value is not a mapping, or some of its keys or values are wrong.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._hint, value)

        key_mistakes: list[Mismatch] = []
        items_with_valid_keys: dict[str, Any] = {}
        for key, item in value.items():
            mistake = self._mistake_of_key(key)
            if mistake is None:
                items_with_valid_keys[key] = item
            else:
                key_mistakes.append(mistake)
        decoded = self._decode_values(items_with_valid_keys)

        mistakes = [*key_mistakes, *decoded.mismatches]
        if mistakes:
            raise MismatchError(mistakes)
        return FrozenDict(decoded.values)

    def _mistake_of_key(self, key: object) -> Mismatch | None:
        r"""Return what is wrong with a key that a user wrote in a YAML file, or None.

            web           None
            2024          YAML reads it as a number: put it in quotes
            "a\0"         it contains a character that no name and no file can contain
            wbe           not one of the known keys, if only some are allowed: did you mean 'web'?

        Args:
            key: The key, as it was read.
        """
        if type(key) is not str:
            return key_of_wrong_type(key)
        if UNWRITABLE.search(key) is not None:
            return unwritable_key(key)
        if self._choices and key not in self._choices:
            return unknown_key(key, self._choices)
        return None
