"""Members of a JSON object, taken one by one so that none is overlooked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class NotRecognisedError(Exception):
    """A setting that the numpy engine does not know; the message says which."""


class Settings:
    """A JSON object of which every member must be understood."""

    def __init__(self, value: object, name: str) -> None:
        if not isinstance(value, Mapping):
            raise NotRecognisedError(f"{name} is {shown(value)}, not an object")
        self._left = dict(value)
        self._name = name

    def take(self, key: str, default: object = None) -> Any:
        """A member, for the caller to understand."""
        return self._left.pop(key, default)

    def expect(self, key: str, *allowed: object, default: object = None) -> None:
        """Refuse any other value of a member."""
        value = self.take(key, default)
        if not any(type(value) is type(option) and value == option for option in allowed):
            raise NotRecognisedError(f"{key} of {self._name} is {shown(value)}")

    def skip(self, *keys: str) -> None:
        """Members that may be anything."""
        for key in keys:
            self.take(key)

    def finish(self) -> None:
        """Refuse what has not been taken."""
        if self._left:
            raise NotRecognisedError(f"unknown setting {next(iter(self._left))!r} in {self._name}")


def shown(value: object) -> str:
    """A value for a message, not too long."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
