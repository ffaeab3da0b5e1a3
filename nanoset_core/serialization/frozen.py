"""A dictionary that stays as it was made: what a frozen dataclass needs to be frozen all the way down."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FrozenDict(dict[Key, Value]):
    """A dict whose changing methods raise TypeError.

    A dict and not a `types.MappingProxyType`, which json, pickle, copy and `dataclasses.asdict` refuse.
    """

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this dictionary cannot be changed: build a new one, such as {**old, key: value}")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __copy__(self) -> FrozenDict[Key, Value]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict[Key, Value]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def freeze(value: Any) -> Any:
    """A plain value (of JSON or YAML) with every dictionary in it frozen and every list a tuple."""
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value
