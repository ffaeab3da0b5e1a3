"""Read and write everything that nanoset stores as JSON: manifests, plans, receipts, cursors.

A record is a frozen dataclass whose fields are the keys of a JSON object. It declares how its JSON
is written, which must never change, because digests are computed from the bytes:

    @dataclass(frozen=True, slots=True)
    class Note(Record):
        json_form: ClassVar = JsonForm("this is not a note", indent=1, ends_with_newline=True)

        corpus: str
        tokens: int = 0

    data = dump(Note("web", 7))  # b'{\\n "corpus": "web",\\n "tokens": 7\\n}\\n'
    note = load(Note, data, where=path)

`load` checks all types, and reports a damaged or foreign file as one kind of error. Which types
fields may have is described in `codecs.py`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn, TypeVar

from nanoset_core.errors import FormatError, NanosetError
from nanoset_core.records.codecs import codec_of
from nanoset_core.records.mismatches import MismatchError
from nanoset_core.untrusted import shortened


@dataclass(frozen=True)
class JsonForm:
    """How a kind of record is written as JSON, and what errors about it say."""

    problem: str
    """What is wrong with a file that is something else, such as "this is not a manifest"."""
    remedy: str | None = None
    """What a user can do about a file that is not such a record."""
    indent: int | None = None
    """Spaces that each level is indented by; None writes everything on one line."""
    sorts_keys: bool = False
    """Whether keys are sorted; otherwise they have the order of the fields."""
    is_compact: bool = False
    """Whether there are no spaces after commas and colons."""
    is_ascii: bool = True
    """Whether characters outside of ASCII are escaped."""
    ends_with_newline: bool = False

    @cached_property
    def _encoder(self) -> json.JSONEncoder:
        """The encoder with these options. Making one takes as long as writing a small record."""
        return json.JSONEncoder(
            indent=self.indent,
            sort_keys=self.sorts_keys,
            separators=(",", ":") if self.is_compact else None,
            ensure_ascii=self.is_ascii,
            allow_nan=False,
        )

    def write(self, value: object) -> bytes:
        """Convert a value to JSON, in the form that this object describes.

        A form says, for example, whether keys are sorted and lines are indented. The value {"b": 1,
        "a": 2}:

            default                              {"b": 1, "a": 2}
            sorts_keys=True, is_compact=True     {"a":2,"b":1}

        Args:
            value: Mappings, lists, texts, numbers, booleans and None.

        Raises:
            ValueError: A number is infinite or NaN, which JSON cannot express.
            TypeError: JSON cannot express a value.
        """
        text = self._encoder.encode(value)
        if self.ends_with_newline:
            text += "\n"
        return text.encode()


CANONICAL = JsonForm("this is not canonical JSON", sorts_keys=True, is_compact=True)
"""JSON of which equal values have the same bytes."""


class Record:
    """Base of the dataclasses that are the content of a whole file."""

    __slots__ = ()
    json_form: ClassVar[JsonForm]
    ignores_unknown_keys: ClassVar[bool] = False
    """Whether keys that the class does not declare, such as those of newer versions, are ignored.
    Otherwise they are an error.
    """

    def check(self, value: dict[str, Any]) -> None:
        """Check what types cannot express, after the record was read.

        Args:
            value: The parsed JSON that the record was made from.

        Raises:
            ValueError: Something is wrong. The message says what was found.
        """


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON, and which `dump` never writes.

    Args:
        name: How the number is written in the file.

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once, since making one takes as long as reading a small record."""
RecordType = TypeVar("RecordType", bound=Record)
Kind = TypeVar("Kind")


def load(kind: type[RecordType], data: bytes, where: object) -> RecordType:
    """Read a record, which is an object of a dataclass that is stored as JSON.

    Args:
        kind: Class of the record. Its annotations say which keys the JSON has, and of which types.
        data: Content of the file, such as b'{"bytes": 80}'.
        where: The file, for messages.

    Returns:
        The record. Its types were checked, and its own rules, such as a checksum (`Record.check`).

    Raises:
        FormatError: The file is damaged, or is something else. The error says which key is wrong,
            what was found and what was expected.
    """
    try:
        # Encodings and stray surrogates are accepted as by `json.loads`.
        text = data.decode(json.detect_encoding(data), errors="surrogatepass")
        value = _DECODER.decode(text)
        record: RecordType = codec_of(kind).decode(value)
        record.check(value)  # the rules of this class, such as a checksum
    except (ValueError, RecursionError) as error:
        raise _not_a_record(kind.json_form, where, error) from error
    return record


def dump(record: Record) -> bytes:
    """Return the content of a record's file; equal records have equal bytes.

    Args:
        record: The record. Its class declares the form of the JSON.

    Raises:
        ValueError: A number is infinite or NaN, which JSON cannot express.
        TypeError: A field of the type `Any` has a value that JSON cannot express.
    """
    return record.json_form.write(to_plain(record))


def to_plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary of values that JSON can express, as `dump` writes it.

    Args:
        record: A `Record`, or another dataclass that is a part of one.
    """
    plain: dict[str, Any] = codec_of(type(record)).encode(record)
    return plain


def from_plain(kind: type[Kind], value: object) -> Kind:
    """Convert a dictionary that was read from JSON to a dataclass, and check its types.

    It is the reverse of `to_plain`, which converts a dataclass to a dictionary:

        File(path="a.bin", size=80)    to_plain →      {"path": "a.bin", "size": 80}
                                       ← from_plain

    Args:
        kind: The dataclass, such as `File`.
        value: The dictionary. Since anybody may have written the JSON, it may be wrong.

    Returns:
        An object of the dataclass.

    Raises:
        ValueError: A key is unknown or missing, or a value has a wrong type.
    """
    record: Kind = codec_of(kind).decode(value)
    return record


def canonical_json(value: object) -> bytes:
    r"""Convert a value to JSON such that equal values always give the same bytes.

    Two programs may write the same value as different JSON, with other spaces or another order of
    keys. Then hashes of the JSON differ, too. Here the keys are sorted, there are no spaces, and
    all characters other than ASCII are escaped:

        {"b": [2], "a": "é"}    →    {"a":"\u00e9","b":[2]}

    Args:
        value: Mappings, lists, texts, numbers, booleans and None.

    Raises:
        ValueError: A number is infinite or NaN, which JSON cannot express.
        TypeError: JSON cannot express a value.
    """
    return CANONICAL.write(value)


def as_parsed(value: Any) -> Any:
    """Return a value as it would be after it was written as JSON and read again.

    JSON has no tuples, and its keys are texts: {1: (2, 3)} becomes {"1": [2, 3]}. So the value can
    be compared with one that was read from a file, or gets the same digest.

    Args:
        value: A value that JSON can express.

    Raises:
        ValueError: A number is infinite or NaN, which JSON cannot express.
        TypeError: JSON cannot express a value.
    """
    return _DECODER.decode(json.dumps(value, allow_nan=False))


def _not_a_record(form: JsonForm, where: object, error: Exception) -> FormatError:
    """Return the error for a JSON file that could not be read as a record of some class.

    Args:
        form: What the file should be, and what to do if it is not.
        where: The file.
        error: What was raised when the file was read.
    """
    found, expected = _found_and_expected(error)
    return FormatError(
        form.problem,
        where=where,
        found=found,
        expected=expected,
        remedy=form.remedy,
    )


def _found_and_expected(error: Exception) -> tuple[str | None, str | None]:
    """Return what was found in a JSON file, and what was expected instead, if that is known.

    There are three cases:

        MismatchError       a key is missing, or its value has a wrong type: the first mistake
        NanosetError        the types are right, but a rule is broken, such as a checksum
        another error       the file is not JSON

    Args:
        error: What was raised when the file was read.
    """
    if isinstance(error, MismatchError):
        mismatch = error.mismatches[0]
        return str(mismatch), mismatch.expected
    if isinstance(error, NanosetError):
        return error.what, error.expected
    return shortened(repr(error)), None


def finite_or_text(number: float | None) -> float | str | None:
    """Return a number as JSON can write it: infinities and NaN as texts, such as `inf`.

    Args:
        number: The number, or None, which stays None.
    """
    if number is None or math.isfinite(number):
        return number
    return str(number)
