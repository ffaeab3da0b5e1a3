"""Parse JSON lines: find the text and the id of each document, or the reason why there is none.

Nearly all lines are documents that orjson can parse, so `parse_lines` parses many of them together.
If any of them is unusual, `parse_line` looks at each: it accepts everything that Python's json
accepts, and reports what is wrong with a line that is not a document.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from nanoset_core.text.files.endings import CsvValues
from nanoset_core.text.json_writing import json_text

DETAIL_CHARACTERS = 300
"""The most characters that are reported of what was found."""
MOST_ID_CHARACTERS = 4096
"""Longer ids are not kept, since a writer has 65,536 of them in memory at once."""
_MAX_KEYS_SHOWN = 10
_ENCODER = json.JSONEncoder()
_MIN_ROUNDED_INTEGER = 1 << 63
"""orjson may read integers of this size or more, also below zero, as floats with fewer digits."""
_EXACT_TYPES = frozenset({str, int, bool, type(None)})
"""Types of values that orjson has not rounded. A float may be a rounded integer, and lists and
objects may contain such floats.
"""


@dataclass(frozen=True, slots=True)
class Fields:
    """Which keys of a line, or columns of a table, are read; see `find` for dotted ones."""

    text: str
    """Key of the text."""
    id: str
    """Key of the document's own id."""
    required: tuple[str, ...] = ()
    """Keys of further texts that a document must have."""
    kept: tuple[str, ...] = ()
    """Keys of further values that are kept, null for a document without them."""
    csv_values: CsvValues = "text"
    """What kept values of CSV files are."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Keys of all texts that a document must have; the first one is that of its own text."""
        return (self.text, *self.required)


class ParsedLine(NamedTuple):
    """The text, id and kept values of a document."""

    text: str
    id: str | None
    kept: list[Any]
    """The value at each key that is kept."""


class ParsedLines(NamedTuple):
    """The texts, ids and kept values of several documents."""

    texts: list[str]
    ids: list[str | None]
    kept: list[list[Any]]
    """For each key that is kept, the values of all documents."""


class NotADocumentError(Exception):
    """A line or row is not a document. It becomes a Reject with this reason and detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail[:DETAIL_CHARACTERS]


def find(
    value: Any, key: str, fields_of: Callable[[Any, str], dict[str, Any]] | None = None
) -> tuple[Any, tuple[str, ...]]:
    """Find a key such as "meta.url" in nested JSON objects, or among the fields of a table's
    schema.

    A name in a file may itself contain dots, so the key as a whole takes precedence:

        value                          key      found
        {"a": {"b": 2}}                a.b      2, by the names ("a", "b")
        {"a.b": 1, "a": {"b": 2}}      a.b      1, by the name ("a.b",)

    Args:
        value: A JSON value, or a schema.
        key: The key to find.
        fields_of: Called with a value and its dotted name, returns its fields by name. It raises
            NotADocumentError if the value has no fields. By default values are those of JSON.

    Returns:
        (the value at the key, the names that lead to it).

    Raises:
        NotADocumentError: There is no such value; the reason is missing_key or not_an_object.
    """
    if fields_of is None:
        fields_of = _json_fields
    names: tuple[str, ...] = ()  # of the objects around `value`
    while True:
        fields = fields_of(value, ".".join(names))
        if key in fields:
            return fields[key], (*names, key)

        # Go into the object that the first part of the key names.
        outer, dot, inner = key.partition(".")
        if not dot or outer not in fields:
            detail = f"no {outer!r} among {sorted(fields)[:_MAX_KEYS_SHOWN]}"
            if names:
                detail += f" in {'.'.join(names)!r}"
            raise NotADocumentError("missing_key", detail)
        value = fields[outer]
        names = (*names, outer)
        key = inner


def _json_fields(value: Any, name: str) -> dict[str, Any]:
    """Return the members of a JSON object, such as {"url": "a.org"}.

        {"url": "a.org"}                  these members
        "a.org"                           an error: 'meta' is a JSON string
        [{"text": "a"}, {"text": "b"}]    an error: perhaps all documents of a file are in one array

    Args:
        value: A JSON value.
        name: Dotted name of the value, for messages; empty for the value of a whole line.

    Raises:
        NotADocumentError: The value is not an object.
    """
    if type(value) is dict:
        return value
    if type(value) is list and len(value) > 1 and all(type(item) is dict for item in value):
        # Perhaps all documents are in one array, which is more than one rejected line.
        raise NotADocumentError(
            "array_of_objects", f"a JSON array of {len(value):,} objects, not one object a line"
        )
    detail = f"a JSON {_json_type(value)}"
    if name:
        detail = f"{name!r} is {detail}"
    raise NotADocumentError("not_an_object", detail)


def value_at(value: Any, key: str) -> Any:
    """Return the value at a key of nested JSON objects, or None if there is none.

    Users name the values that they want to keep with each document, such as its URL. With the value
    `{"meta": {"url": "a.org", "date": null}}`:

        key           result
        meta.url      "a.org"
        meta.date     None
        meta.title    None: most values are optional, so this is no error

    Args:
        value: A value that was parsed from JSON.
        key: The key. Dots separate the keys of nested objects.
    """
    try:
        return find(value, key)[0]
    except NotADocumentError:
        return None


def parse_lines(lines: list[bytes], fields: Fields) -> ParsedLines | None:
    """Parse many lines at once, which only works if all are ordinary documents.

    An ordinary document is an object that orjson can parse, with a string at the key of each text.
    Nearly all lines are, so this saves much time. With the text at "text", the id at "id":

        {"text": "Hello", "id": "a7"}    ordinary
        {"text": "Hello"}                ordinary, without an id
        {"text": 5}                      not ordinary, so the result is None
        {"text": "Hel                    not ordinary, so the result is None

    Args:
        lines: The lines, without their line ends.
        fields: The keys of the texts, ids and kept values.

    Returns:
        The documents; or None if at least one line is not an ordinary document, so that each line
        has to be parsed by `parse_line`.
    """
    try:
        objects = [orjson.loads(line) for line in lines]
    except orjson.JSONDecodeError:
        return None

    # Look up the texts and ids. A document may need texts at several keys, such as "question" and
    # "answer". An exception means that a line is no object, or lacks one of the texts.
    try:
        texts_by_key = {key: _required_values(objects, key) for key in fields.texts}
        identities = _optional_values(objects, fields.id)
    except (KeyError, TypeError, NotADocumentError):
        return None
    for texts in texts_by_key.values():
        types_of_texts = set(map(type, texts))
        if types_of_texts - {str}:  # for example, {int}: a text is a number
            return None

    # Only the texts at one key are returned. Ids and kept values may be missing: they are None.
    return ParsedLines(
        texts=texts_by_key[fields.text],
        ids=_ids_as_text(identities, lines, fields.id),
        kept=[_kept_values(objects, lines, key) for key in fields.kept],
    )


def _ids_as_text(identities: list[Any], lines: list[bytes], key: str) -> list[str | None]:
    """Return the ids of several documents as text: ["a7", 7, None] becomes ["a7", "7", None].

    Args:
        identities: The value at the key in each line, as orjson reads it.
        lines: The lines.
        key: Key of the ids.
    """
    # Nearly all ids are strings of ASCII, which are kept unchanged.
    if all(map(_is_usual_id, identities)):
        return identities
    return [id_text(identity, line, key) for identity, line in zip(identities, lines, strict=True)]


def _kept_values(objects: list[Any], lines: list[bytes], key: str) -> list[Any]:
    """Return the value at a key of each object, or None if it has none, with all digits.

    Args:
        objects: The lines, as orjson reads them. It rounds very large integers.
        lines: The same lines, as text, which has all of their digits.
        key: The key.
    """
    values = [value_at(value, key) for value in objects]
    types_of_values = set(map(type, values))
    if types_of_values <= _EXACT_TYPES:
        return values  # no value was rounded
    return [_restore_digits(value, line, key) for value, line in zip(values, lines, strict=True)]


def _required_values(objects: list[Any], key: str) -> list[Any]:
    """Return the value at a key of each object: for the key "text", ["Hello", "World"].

    Args:
        objects: The values of some lines of JSON.
        key: The key, such as "text", or "meta.text" with the names of nested objects.

    Raises:
        KeyError, TypeError, NotADocumentError: An object lacks the key, or is no object at all.
    """
    if "." in key:
        return [find(value, key)[0] for value in objects]
    return [value[key] for value in objects]  # much faster than `find`


def _optional_values(objects: list[Any], key: str) -> list[Any]:
    """Return the value at a key of each object, or None if an object lacks the key: ["x7", None].

    Args:
        objects: The values of some lines of JSON.
        key: The key, such as "id", or "meta.id" with the names of nested objects.

    Raises:
        TypeError: A value is not an object, and the key has no dots.
    """
    if "." in key:
        return [value_at(value, key) for value in objects]
    # Much faster than `value_at`. Called in this way, `get` raises a TypeError if a value is not a
    # dict.
    return [dict.get(value, key) for value in objects]


def parse_line(line: bytes, fields: Fields) -> ParsedLine:
    """Read a document from one line of JSON, or raise the reason why the line is none.

    Usual lines are parsed many at once. This slower function is called for each line of a group in
    which something is unusual. With "text" and "id" as the keys of the text and the id:

        {"id": 7, "text": "Hello"}    text "Hello", id "7"
        {"text": "Hello"}             text "Hello", no id
        {"id": 7}                     NotADocumentError: missing_key
        {"text": "Hel                 NotADocumentError: invalid_json

    Everything that Python's json accepts is accepted: NaN, huge numbers, an object that has a key
    twice (the last one counts). A byte order mark before the object is skipped.

    Args:
        line: The line, without its line end.
        fields: The keys of the text, of the id, of other texts that a document must have, and of
            the values to keep with it.

    Raises:
        NotADocumentError: The line is not a document.
    """
    value = _parse(line)
    text = _text_at(value, fields.text)
    for key in fields.required:
        _text_at(value, key)  # raises NotADocumentError if there is none

    # The id and the values may be very large integers, which orjson reads as floats with fewer
    # digits. The line has all of their digits, so pass it on, too.
    identity = id_text(value_at(value, fields.id), line=line, key=fields.id)
    kept_values = [_restore_digits(value_at(value, key), line, key) for key in fields.kept]
    return ParsedLine(text, identity, kept_values)


def has_long_id(line: bytes, key: str) -> bool:
    """Return whether the id in a line was dropped because it is too long, to count such documents.

    This is only called for documents without an id. Few of their lines are parsed again: most are
    too short to have a long id, or do not contain the name of its key.

    Args:
        line: The line of the document, without its line end.
        key: Key of the id, such as `meta.id`.

    Returns:
        True if the line has more than 4,096 bytes, and a value at the key.
    """
    last_name = key.rpartition(".")[2]
    if len(line) <= MOST_ID_CHARACTERS or f'{last_name}"'.encode() not in line:
        return False
    return value_at(_parse(line), key) is not None


def _text_at(value: Any, key: str) -> str:
    """Return the text at a key of a line of JSON, such as "Hello" of {"text": "Hello"}.

    Args:
        value: The value of the line.
        key: The key, which may have dots; see `find`.

    Raises:
        NotADocumentError: The value has no text there, or one with half of a character: JSON can
            express that, but UTF-8 cannot.
    """
    text, _ = find(value, key)
    if type(text) is not str:
        raise NotADocumentError("text_not_a_string", f"{key!r} is a JSON {_json_type(text)}")
    # JSON can represent half of a surrogate pair, as \ud800, but UTF-8 cannot.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(text[error.start]):04x}"
        raise NotADocumentError(
            "lone_surrogate",
            f"{surrogate} without its other half, at character {error.start} of the text",
        ) from error
    return text


def _parse(line: bytes) -> Any:
    """Parse a line of JSON, or raise the reason why it is none.

    orjson is several times faster than Python's json, but stricter:

        {"score": 0.5}    parsed by orjson
        {"score": NaN}    parsed by Python's json, since orjson refuses it
        {"score": 0.      NotADocumentError: both refuse it

    Args:
        line: The line, without its line end.

    Raises:
        NotADocumentError: The line is not JSON, even for Python's json. The reason is blank_line,
            invalid_utf8 or invalid_json.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass

    if not line.strip():
        raise NotADocumentError("blank_line", "nothing but white space")

    # Try again: orjson refuses a byte order mark, NaN, and half of a surrogate pair, which Python's
    # json accepts.
    line = line.removeprefix(BOM_UTF8)
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise NotADocumentError(
            "invalid_utf8",
            f"byte 0x{byte:02x} at byte {error.start} of the line: {error.reason}",
        ) from error
    except (ValueError, RecursionError) as error:
        raise NotADocumentError("invalid_json", str(error)) from error


def _is_usual_id(identity: Any) -> bool:
    """Return whether an id is kept unchanged, as nearly all are."""
    if identity is None:
        return True
    return type(identity) is str and identity.isascii() and len(identity) <= MOST_ID_CHARACTERS


def id_text(identity: Any, line: bytes = b"", key: str = "") -> str | None:
    """Return the id of a document as text, by which users name the document.

        "doc-7"                         doc-7
        7                               7
        12345678901234567890123         12345678901234567890123, with all its digits
        null, or a very long text       None: the document has no id

    Args:
        identity: A JSON value, or None for no id.
        line: The line that contains the id; empty if the id is from a table.
        key: Key of the id in the line.

    Returns:
        The text; None if there is no id, or if it is longer than 4,096 characters or cannot be
        written as text.
    """
    if line:
        identity = _restore_digits(identity, line, key)
    if identity is None:
        return None
    try:
        if type(identity) is str:
            # Half of a surrogate pair, which UTF-8 cannot represent, becomes \udNNN.
            text = identity.encode("utf-8", "backslashreplace").decode()
        else:
            text = json_text(identity, _ENCODER)
    except ValueError:  # for example, an integer with thousands of digits
        return None
    return text if len(text) <= MOST_ID_CHARACTERS else None


def _restore_digits(value: Any, line: bytes, key: str) -> Any:
    """Return a value that orjson has read from a line, but with large integers unrounded.

    orjson reads integers of more than 64 bits as floats, so that two ids could become the same
    number. Python's json reads all of their digits, but is much slower. So this reads the line
    again with Python's json if the value may have been rounded:

        in the line                value, as orjson reads it    result
        12345678901234567890123    1.2345678901234568e+22       12345678901234567890123
        1e22                       1e22                         1e22: it is a float in the line, too
        12345678901234567890       12345678901234567890         the same: it has 64 bits

    Args:
        value: The value at the key, as orjson reads it. It may be a list or an object.
        line: The line.
        key: The key.

    Returns:
        The value. If Python's json cannot read the line, since values are nested too deeply: None
        for a number; a list or an object is returned with rounded numbers.
    """
    # The first two comparisons are for speed: most values are texts or small numbers.
    value_type = type(value)
    if value_type in _EXACT_TYPES:
        return value
    if value_type is float and abs(value) < _MIN_ROUNDED_INTEGER:
        return value
    if not _has_large_float(value):
        return value
    try:
        return value_at(json.loads(line), key)
    except RecursionError:
        # Lists or objects are nested in more than about 1,000 levels, somewhere in the line.
        if value_type is float:
            return None  # a rounded id could be equal to that of another document
        return value


def _has_large_float(value: Any) -> bool:
    """Return whether a value is or contains a float that may have been a large integer.

    Args:
        value: A JSON value, as orjson reads it.
    """
    pending = [value]  # without recursion, since values may be nested deeply
    while pending:
        item = pending.pop()
        item_type = type(item)
        if item_type is float:
            if abs(item) >= _MIN_ROUNDED_INTEGER:
                return True
        elif item_type is list:
            pending.extend(item)
        elif item_type is dict:
            pending.extend(item.values())
    return False


def _json_type(value: Any) -> str:
    """Return what JSON calls the type of a value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
