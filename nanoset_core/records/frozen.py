"""Values that cannot be changed, for the fields of frozen dataclasses.

For example, `freeze({"a": [1, 2]})` is a `FrozenDict` with a tuple in it: its value of "a" is
(1, 2), and an assignment to its key "a" raises a TypeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FrozenDict(dict[Key, Value]):
    """A dictionary that cannot be changed: its methods that would change it raise TypeError.

    A frozen dataclass with such a field is frozen as a whole, and can be hashed if the values can.
    `types.MappingProxyType` does not serve, since json, pickle, copy and `dataclasses.asdict`
    refuse it.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this dictionary cannot be changed: build a new one, such as {**old, key: value}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def freeze(value: Any) -> Any:
    """Return a plain value with each dictionary in it frozen, and each list as a tuple.

    Args:
        value: Plain values, as JSON and YAML have them. They are copied, and not changed.
    """
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def set_while_made(record: object, values: Mapping[str, Any]) -> None:
    """Set fields of a frozen dataclass in its `__post_init__`, before anybody else has the object.

    So a constructor can take values of several types, such as paths and text, and store one type.

    Args:
        record: The object that is being made.
        values: Name of a field → its value.
    """
    for name, value in values.items():
        object.__setattr__(record, name, value)
