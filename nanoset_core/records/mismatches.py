"""Describe values that do not have the type that a dataclass declares for their key.

Codecs (`value_codec.py`) raise the errors of this module. What reads a file of settings turns them
into the messages of a `ConfigError`, and what reads a stored record into those of a `FormatError`.
For example, `seed: "7"` gives a mismatch that says that the value '7' (str) was found, that a whole
number was expected, and that the quotes should be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from nanoset_core.errors import closest_name
from nanoset_core.records.settings import Range, alternatives, bare, describe
from nanoset_core.untrusted import shortened
from nanoset_core.wording import format_number

QUOTES_REMEDY = "put it in quotes: "
"""Beginning of the remedy for a number, date or the like that should be text; the text follows."""
NO_VALUE = "no value"
"""What was found if a key has no value, or `null`."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One value of a file that does not have the declared type, or one key that should not be."""

    what: str
    """What is wrong, such as "this value has the wrong type"."""
    found: str | None = None
    """The value, if there is one."""
    expected: str | None = None
    """Description of the declared type."""
    remedy: str | None = None
    """What a user who wrote the value can do."""
    path_from_root: str = ""
    """Keys and indices that lead to the value, each with its separator: `.members[0].rows`."""

    @property
    def path(self) -> str:
        """Path of the key, such as `members[0].rows`; "" for the whole file."""
        return self.path_from_root.removeprefix(".")

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.what}: {self.path}"
        place = f" as {self.path}" if self.path else ""
        return f"{self.found}{place}"


class MismatchError(ValueError):
    """A value, or some of the values in it, do not have the declared type."""

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        """State what is wrong.

        Args:
            mismatches: At least one mistake. Their paths begin at the value that was decoded.
        """
        super().__init__(mismatches)
        self.mismatches = mismatches

    def __str__(self) -> str:
        first = self.mismatches[0]
        if first.found is None:  # a key is missing, or is not known
            return f"{first} (expected: {first.expected})"
        return f"{first} instead of {first.expected}"

    def below(self, part: str) -> list[Mismatch]:
        """Return the mistakes with a longer path: with the key or index that leads to the value.

        For example, the value of `en` is {of: 3}, with a mistake at `.of`. `below(".en")` returns
        it with the path `.en.of`.

        Args:
            part: What is added in front: `.key` or `[index]`.
        """
        return [
            replace(mismatch, path_from_root=part + mismatch.path_from_root)
            for mismatch in self.mismatches
        ]


def wrong_value(hint: Any, value: object, *, expected: str | None = None) -> MismatchError:
    """Return the error for a value in a file that does not have the type that the program expects.

    For `seed: abc`, the message says: this value has the wrong type; found 'abc' (str), expected a
    whole number.

    Args:
        hint: The expected type, such as `int` or `Literal["a", "b"]`.
        value: The value as it was read; None if the key has no value.
        expected: Description of the type; by default, as `describe` returns it.
    """
    message = "this value has the wrong type"
    if get_origin(hint) is Literal:
        message = "this value is not known"
    found = NO_VALUE
    if value is not None:
        found = f"{shortened(repr(value))} ({type(value).__name__})"
    mismatch = Mismatch(
        message,
        found=found,
        expected=expected or describe(hint),
        remedy=_remedy(hint, value),
    )
    return MismatchError([mismatch])


def range_mismatch(value_range: Range, value: object, number: float) -> MismatchError:
    """Return the error for a number in a file of settings that is too small or too large.

    With the allowed range 1 to 10:

        0       found 0, expected 1 to 10: set it to 1 or more
        10e9    found 10e9, expected 1 to 10: set it to 10 or less

    Args:
        value_range: The allowed numbers, including both bounds.
        value: The number as the user wrote it, such as the text "10e9".
        number: The same as a number.
    """
    if value_range.high is None or number < value_range.low:
        advice = f"set it to {format_number(value_range.low)} or more"
    else:
        advice = f"set it to {format_number(value_range.high)} or less"
    mismatch = Mismatch(
        "this value is out of range",
        found=str(value),
        expected=str(value_range),
        remedy=advice,
    )
    return MismatchError([mismatch])


def unknown_key(key: str, known: Iterable[str]) -> Mismatch:
    """Return the mistake of a key in a file of settings that does not exist.

    Often it is a misspelling. For the key `sed`, if `seed` and `of` are known:

        this key is not known
          expected: one of seed, of
          remedy: did you mean 'seed'?

    If no known key is similar, the remedy is to remove it.

    Args:
        key: The key that the user wrote.
        known: The keys that exist.
    """
    names = list(known)
    meant = closest_name(key, names)
    return Mismatch(
        "this key is not known",
        expected=f"one of {', '.join(names)}",
        remedy=f"did you mean {meant!r}?" if meant else "remove it",
        path_from_root=f".{key}",
    )


def key_of_wrong_type(key: object) -> Mismatch:
    """Return the mistake of a key that YAML has read as a number or a date, and not as text.

    For example, a user names a corpus by a year. In `2024: {…}`, YAML reads the key as a number:

        this key has the wrong type
          found: 2024 (int)
          expected: text
          remedy: put it in quotes: "2024"

    Args:
        key: The key, as YAML has read it.
    """
    return Mismatch(
        "this key has the wrong type",
        found=f"{shortened(repr(key))} ({type(key).__name__})",
        expected="text",
        remedy=f'{QUOTES_REMEDY}"{key}"',
        path_from_root=f".{key}",
    )


def unwritable_key(key: str) -> Mismatch:
    """Return the mistake of a key with a character that no name and no file can contain.

    Args:
        key: The key, with NUL or half of a surrogate pair, which YAML can write as an escape.
    """
    return Mismatch(
        "this key holds a character that no name can hold",
        found=ascii(key),
        remedy="remove the escape",
    )


def unwritable_text(text: str) -> MismatchError:
    r"""Return the error for text in a file of settings with a character that no file can contain.

    YAML can write any character as an escape. Two of them make trouble later, for example if the
    text becomes the name of a file: "\0", which ends a name, and "\ud800", which is half of a
    character and cannot be written as UTF-8.

    Args:
        text: The text.
    """
    mismatch = Mismatch(
        "this text holds a character that no name and no file can hold",
        found=ascii(shortened(text)),
        expected="text without NUL and halves of surrogates",
        remedy="remove the escape",
    )
    return MismatchError([mismatch])


def missing_key(key: str, hint: Any, *, explanation: str, example: str, is_null: bool) -> Mismatch:
    """Return the mistake of a required key that is missing in a file of settings, or has no value.

    For the key `of`, which is text and has the explanation "The corpus that is filtered.":

        a key is missing                                   this key has no value
          expected: The corpus that is filtered (text)       (the same)
          remedy: add it: "of: web"                          write "of: web"

    Args:
        key: The key.
        hint: Its declared type, such as `str`.
        explanation: What the key is for, or "".
        example: A value for the message, such as "web".
        is_null: Whether the file has the key, but no value after it, as in `of:`.
    """
    expected = describe(hint)
    if explanation:
        expected = f"{explanation.rstrip('.')} ({expected})"
    line = f'"{key}: {example}"'
    if is_null:
        return Mismatch(
            "this key has no value",
            found=NO_VALUE,
            expected=expected,
            remedy=f"write {line}",
            path_from_root=f".{key}",
        )
    return Mismatch(
        "a key is missing",
        expected=expected,
        remedy=f"add it: {line}",
        path_from_root=f".{key}",
    )


def _remedy(hint: Any, value: object) -> str:
    """Return what a user should do about a value of a wrong type in a YAML file.

    For example, 'put it in quotes: "12"' if a text was expected.

    Args:
        hint: The expected type, which may be a union such as `int | str`.
        value: The value, as YAML has read it.
    """
    if value is None:
        return "give it a value, or remove the key"
    if isinstance(value, str):
        return _remedy_for_text(hint, value)

    types = [bare(member) for member in alternatives(hint)]  # without rules, such as a range
    if str in types:
        remedy = _remedy_for_missing_quotes(value)
        if remedy is not None:
            return remedy
    if get_origin(hint) is Literal:  # one of some values
        return _remedy_for_choice(hint, value)
    if int in types and isinstance(value, float) and value.is_integer():
        return f"write it without a fraction: {value:.0f}"  # 8 instead of 8.0
    return f"write {describe(hint)}"


def _remedy_for_missing_quotes(value: object) -> str | None:
    """Return how to correct a value in a YAML file that should have been text.

        in the file    YAML reads      the user meant
        12             the number 12   the text "12": put it in quotes
        - web: 2       {"web": 2}      an item of a mapping, not of a list: remove the dash

    Args:
        value: The value as YAML has read it, such as the number 12.

    Returns:
        Such as 'put it in quotes: "12"'; None if nothing suggests what the user meant.
    """
    if isinstance(value, Mapping) and len(value) == 1:
        [(name, inner)] = value.items()
        mapping = f"{{{name}: {shortened(str(inner))}, …}}"
        return f"write the keys without the dashes of a list, as one mapping: {mapping}"
    if not isinstance(value, Mapping | list):
        return f'{QUOTES_REMEDY}"{shortened(str(value))}"'
    return None


def _remedy_for_text(hint: Any, text: str) -> str:
    """Return how to correct a setting that is text, but should be something else.

    Args:
        hint: The expected type, such as `int`, or a union of several types.
        text: The text that the user wrote.

    Returns:
        Such as "write a whole number, without quotes" for "7".
    """
    types = [bare(member) for member in alternatives(hint)]
    if int in types or float in types:
        return (
            f"write {describe(hint)}, without quotes "
            "(YAML takes 1e-3 for text, and 1.0e-3 for a number)"
        )
    is_list_allowed = any(get_origin(kind) is tuple for kind in types)
    if is_list_allowed:
        return f"put it in brackets: [{shortened(text)}]"
    if get_origin(hint) is Literal:  # one of some texts
        return _remedy_for_choice(hint, text)  # such as "did you mean 'valid'?"
    return f"write {describe(hint)}"  # such as "write true or false"


def _remedy_for_choice(hint: Any, value: object) -> str:
    """Return what to do about a value that is none of the choices of a Literal.

    Args:
        hint: The declared type, such as `Literal["train", "valid"]`.
        value: The value: for `trian`, the remedy is "did you mean 'train'?".
    """
    meant = closest_name(str(value), map(str, get_args(hint)))
    if meant is None:
        return "choose one of these"
    return f"did you mean {meant!r}?"
