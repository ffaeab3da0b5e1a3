"""A line's JSON → its text and id, or the reason why it is no document."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

DETAIL_CHARACTERS = 300
MOST_ID_CHARACTERS = 4096
"""Longer ids are not kept: 65,536 of them are held at once on their way into a table."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Which keys of a line's object, or columns of a table, are read; see find for dotted ones."""

    text: str
    """Key of the text."""
    id: str
    """Key of the document's own id."""
    required: tuple[str, ...] = ()
    """Keys of further texts that a document must have."""
    kept: tuple[str, ...] = ()
    """Keys of further values that are kept, null where a document has none."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Keys that must all be there, with strings; the text's first."""
        return (self.text, *self.required)


class NotADocumentError(Exception):
    """A line that is no document. It is kept as a reject."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail[:DETAIL_CHARACTERS]


def _object(value: Any, level: str) -> dict[str, Any]:
    if type(value) is list and len(value) > 1 and all(type(item) is dict for item in value):
        # One array of all documents would be one rejected line of no account.
        raise NotADocumentError(
            "array_of_objects", f"a JSON array of {len(value):,} objects, not one object a line"
        )
    if type(value) is not dict:
        raise NotADocumentError(
            "not_an_object", f"{f'{level!r} is ' if level else ''}a JSON {_json_type(value)}"
        )
    return value


def find(
    value: Any, key: str, fields: Callable[[Any, str], dict[str, Any]] = _object
) -> tuple[Any, tuple[str, ...]]:
    """Return the value at a key of nested JSON objects, or of the fields of a table's schema, and
    the names to it.

    A key that is there as it is written wins: "a.b" is {"a.b": 1} before {"a": {"b": 1}}. Otherwise
    what stands before its first dot names an object, in which the rest is looked for in the same
    way. `fields` gives the mapping of names in a value at a dotted name, or raises not_an_object
    where it has none.

    Raises:
        NotADocumentError: missing_key or not_an_object, if there is no such value.
    """
    names: tuple[str, ...] = ()
    while key not in (inside := fields(value, ".".join(names))):
        outer, dot, key = key.partition(".")
        if not dot or outer not in inside:
            of = f" in {'.'.join(names)!r}" if names else ""
            raise NotADocumentError("missing_key", f"no {outer!r} among {sorted(inside)[:10]}{of}")
        value, names = inside[outer], (*names, outer)
    return inside[key], (*names, key)


def parse_lines(
    lines: list[bytes], fields: Fields
) -> tuple[list[str], list[str | None], list[list[Any]]] | None:
    """Parse lines that are all plain documents → (texts, ids, values of each key that is kept).

    None when one of them needs a closer look.
    """
    try:
        values = list(map(orjson.loads, lines))
        columns = [
            [find(value, key)[0] for value in values]
            if "." in key
            else [value[key] for value in values]
            for key in fields.texts
        ]
        get = value_at if "." in fields.id else dict.get
        ids = [get(value, fields.id) for value in values]
    except (orjson.JSONDecodeError, KeyError, TypeError, NotADocumentError):
        return None
    if not all(type(text) is str for column in columns for text in column):
        return None
    own = [
        identity if _is_plain(identity) else id_text(identity, line, fields.id)
        for identity, line in zip(ids, lines, strict=True)
    ]
    return columns[0], own, [[value_at(value, key) for value in values] for key in fields.kept]


def value_at(value: Any, key: str) -> Any:
    """Return the value that `find` finds; None where there is none."""
    try:
        return find(value, key)[0]
    except NotADocumentError:
        return None


def has_long_id(line: bytes, key: str) -> bool:
    """Return whether a document that came without an id has one in its line, which was too long to
    be kept.

    Few lines are parsed again for this: most texts without an id are short, or do not hold the name
    of its key.
    """
    last_name = key.rpartition(".")[2]
    if len(line) <= MOST_ID_CHARACTERS or f'{last_name}"'.encode() not in line:
        return False
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = _parse_as_python(line)
    return value_at(value, key) is not None


def parse_line(line: bytes, fields: Fields) -> tuple[str, str | None, list[Any]]:
    """Parse one line → (text, id, values that are kept); NotADocumentError with the reason where it
    is none.

    What Python's json takes is taken: NaN, huge numbers, an object's key given twice (the last one
    counts), and a byte order mark before the object.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = _parse_as_python(line)
    texts = [_text_at(value, key) for key in fields.texts]
    kept = [value_at(value, key) for key in fields.kept]
    return texts[0], id_text(value_at(value, fields.id), line, fields.id), kept


def _text_at(value: Any, key: str) -> str:
    text = find(value, key)[0]
    if type(text) is not str:
        raise NotADocumentError("text_not_a_string", f"{key!r} is a JSON {_json_type(text)}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"\\u{ord(text[error.start]):04x} without its other half, at character {error.start} of the text"
        raise NotADocumentError("lone_surrogate", found) from error
    return text


def _parse_as_python(line: bytes) -> Any:
    """Parse as Python's json does; give the reason when it refuses too."""
    if not line.strip():
        raise NotADocumentError("blank_line", "nothing but white space")
    line = line.removeprefix(BOM_UTF8)
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line: {error.reason}"
        raise NotADocumentError("invalid_utf8", found) from error
    except (ValueError, RecursionError) as error:
        raise NotADocumentError("invalid_json", str(error)) from error


def _is_plain(identity: Any) -> bool:
    """Return whether an id is kept as it is, as nearly all are."""
    return identity is None or (
        type(identity) is str and identity.isascii() and len(identity) <= MOST_ID_CHARACTERS
    )


def id_text(identity: Any, line: bytes = b"", key: str = "") -> str | None:
    """Return an id as text: strings as they are, anything else as JSON; None for what is too long.

    With `line` and `key` a number is read again as Python does, which keeps the digits of large
    ones.
    """
    if identity is None:
        return None
    try:
        identity = value_at(json.loads(line), key) if line and type(identity) is float else identity
        text = (
            identity.encode("utf-8", "backslashreplace").decode()
            if type(identity) is str
            else json.dumps(identity)
        )
    except (ValueError, RecursionError):
        return None
    return text if len(text) <= MOST_ID_CHARACTERS else None


def _json_type(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
