"""A line's JSON → its text and id, or the reason why it is no document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

DETAIL_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Fields:
    """Which keys of a line's object are read."""

    text: str
    """key of the text"""
    id: str
    """key of the document's own id"""


class NotADocumentError(Exception):
    """A line that is no document; caught where lines are read, and kept as a reject."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail[:DETAIL_CHARACTERS]


def parse_lines(lines: list[bytes], fields: Fields) -> tuple[list[str], list[str | None]] | None:
    """Texts and ids of lines that are all plain documents; None when one of them wants a closer look."""
    try:
        values = list(map(orjson.loads, lines))
        texts = [value[fields.text] for value in values]
        ids = [value.get(fields.id) for value in values]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    if not all(type(text) is str for text in texts):
        return None
    return texts, [_id_text(identity, line, fields) for identity, line in zip(ids, lines, strict=True)]


def parse_line(line: bytes, fields: Fields) -> tuple[str, str | None]:
    """Text and id of one line.

    What Python's json takes is taken: NaN, huge numbers, an object's key given twice (the last one counts).

    Raises:
        NotADocumentError: with the reason: blank_line, invalid_utf8, invalid_json, not_an_object, missing_key,
            text_not_a_string or lone_surrogate.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = _second_opinion(line)
    if type(value) is not dict:
        raise NotADocumentError("not_an_object", f"a JSON {_json_type(value)}")
    text = value.get(fields.text)
    if type(text) is not str:
        if fields.text in value:
            raise NotADocumentError("text_not_a_string", f"{fields.text!r} is a JSON {_json_type(text)}")
        raise NotADocumentError("missing_key", f"no {fields.text!r} among {sorted(value)[:10]}")
    _refuse_surrogates(text)
    return text, _id_text(value.get(fields.id), line, fields)


def _second_opinion(line: bytes) -> Any:
    """Parse as Python's json does; give the reason when it refuses too."""
    if not line.strip():
        raise NotADocumentError("blank_line", "nothing but white space")
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line: {error.reason}"
        raise NotADocumentError("invalid_utf8", found) from error
    except (ValueError, RecursionError) as error:
        raise NotADocumentError("invalid_json", str(error)) from error


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"\\u{ord(text[error.start]):04x} without its other half, at character {error.start} of the text"
        raise NotADocumentError("lone_surrogate", found) from error


def _id_text(identity: Any, line: bytes, fields: Fields) -> str | None:
    """An id as text: strings as they are, anything else as JSON."""
    if identity is None:
        return None
    if type(identity) is str:
        return identity.encode("utf-8", "backslashreplace").decode()
    try:
        if type(identity) is float:  # perhaps a whole number of more than 64 bits: keep its digits
            identity = json.loads(line)[fields.id]
        return json.dumps(identity)
    except (ValueError, RecursionError):
        return None  # nothing that could name a document


def _json_type(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
