"""The codec of frozen dataclasses, whose fields are the keys of a mapping.

With the fields `size: int` and `pieces: str | None = None`, the mapping {"size": 7} becomes a
dataclass with `size=7, pieces=None`, and {"sise": 7} is refused: "did you mean 'size'?". Manifests
have up to 10^6 entries, each of which is a small dataclass. So the loops of `DataclassCodec.decode`
and `DataclassCodec.encode` get what they need of each field in one step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from nanoset_core.errors import closest_name
from nanoset_core.records import stored_fields
from nanoset_core.records.mismatches import (
    Mismatch,
    MismatchError,
    missing_key,
    unknown_key,
    wrong_value,
)
from nanoset_core.records.scalar_codecs import plain_types_of
from nanoset_core.records.settings import default_of, field_help, is_required, key_of, own_fields
from nanoset_core.records.value_codec import ValueCodec


class _Field(NamedTuple):
    """A field of a dataclass that is a key, with all that is needed to read and write it."""

    field: dataclasses.Field[Any]
    hint: Any
    """Its declared type."""
    name: str
    key: str
    codec: ValueCodec
    plain_types: frozenset[type]
    """Types of plain values that the codec returns as they are, both ways."""
    default: Any
    is_required: bool
    omit_default: bool
    """Whether the key is left out of JSON if the field has its default."""
    only_with: str | None
    """Name of the field without which the key is left out of JSON."""

    @property
    def is_conditional(self) -> bool:
        """Whether the key is left out of some records."""
        return self.omit_default or self.only_with is not None

    def is_stored(self, record: object) -> bool:
        """Return whether the key is written for a record.

        Args:
            record: An object of the dataclass that has this field.
        """
        if self.omit_default and getattr(record, self.name) == self.default:
            return False
        return self.only_with is None or getattr(record, self.only_with) is not None


# What the loops of `decode` and `encode` need of a field. These are plain tuples, because Python
# unpacks a NamedTuple more slowly, which would take 10 % of the time to write a manifest.

_FieldDecoder = tuple[str, frozenset[type], Callable[[Any], Any]]
"""Name of the field, types of plain values that stay as they are, and what decodes other values."""
_FieldEncoder = tuple[_Field, str, str, Callable[[Any], Any], bool]
"""The field, its name, its key, what encodes its value, and whether the key may be left out."""


class DataclassCodec(ValueCodec):
    """A mapping whose keys are the fields of a dataclass ↔ the dataclass.

    Fields that are marked as `NOT_A_KEY` are left out. Unknown keys are an error, unless the class
    has a true attribute `ignores_unknown_keys`.
    """

    def __init__(self, dataclass: Any, codec_of: Callable[[Any], ValueCodec]) -> None:
        """Declare the dataclass.

        Args:
            dataclass: The class.
            codec_of: Returns the codec of the declared type of a field.
        """
        self._class = dataclass
        self._codec_of = codec_of
        self._ignores_unknown_keys: bool = getattr(dataclass, "ignores_unknown_keys", False)

    # Fields are looked up when they are first needed, since the type of a field may contain the
    # class again, as a group of a mixture contains groups.

    @cached_property
    def _field_by_key(self) -> Mapping[str, _Field]:
        """Key → its field."""
        fields = [self._field(field, hint) for field, hint in own_fields(self._class)]
        return {field.key: field for field in fields}

    @cached_property
    def _decoder_by_key(self) -> Mapping[str, _FieldDecoder]:
        """Key → how its value becomes that of a field."""
        return {
            key: (field.name, field.plain_types, field.codec.decode)
            for key, field in self._field_by_key.items()
        }

    @cached_property
    def _encoders(self) -> Sequence[_FieldEncoder]:
        """How the value of each field becomes that of a key, in the order of the fields."""
        return [
            (field, field.name, field.key, field.codec.encode, field.is_conditional)
            for field in self._field_by_key.values()
        ]

    def _field(self, field: dataclasses.Field[Any], hint: Any) -> _Field:
        """Collect what is needed to read and write one field of a dataclass as a key of a file.

        Usually, the key has the name and the type of the field. Its metadata may say something
        else: `size: int = field(metadata=stored("bytes"))` is stored as {"bytes": 80}.

        Args:
            field: The field.
            hint: Its declared type, such as `int`.
        """
        metadata = field.metadata
        key = metadata.get(stored_fields.JSON_KEY) or key_of(field)  # such as "bytes"
        stored_hint = metadata.get(stored_fields.HINT) or hint  # the type of the stored value
        codec = self._codec_of(stored_hint)  # converts and checks values of this type
        return _Field(
            field=field,
            hint=hint,
            name=field.name,
            key=key,
            codec=codec,
            plain_types=plain_types_of(codec),  # values of these types need no conversion
            default=default_of(field),
            is_required=is_required(field),
            # Two reasons to leave out the key: the field has its default; or the field with the
            # name `only_with` is None.
            omit_default=metadata.get(stored_fields.OMIT_DEFAULT, False),
            only_with=metadata.get(stored_fields.ONLY_WITH),
        )

    def fits(self, value: Any) -> bool:
        return isinstance(value, dict)

    def decode(self, value: Any) -> Any:
        """Return a mapping as the dataclass, with each value converted to the type of its field.

        Args:
            value: A plain value, which should be a mapping with the keys of the dataclass.

        Raises:
            MismatchError: The value is not a mapping, or some of its keys are unknown, missing, or
                have values of a wrong type. The error lists all of these.
        """
        if not isinstance(value, dict):
            raise wrong_value(self._class, value)

        # Convert the value of each key to an argument of the class. This loop decides how fast
        # manifests are read: values that need no conversion take a short cut.
        decoder_by_key = self._decoder_by_key
        arguments: dict[str, Any] = {}
        mismatches: list[Mismatch] = []
        for key, item in value.items():
            if key in decoder_by_key:
                name, plain_types, decode = decoder_by_key[key]
                if type(item) in plain_types:
                    arguments[name] = item
                else:
                    try:
                        arguments[name] = decode(item)
                    except MismatchError as error:
                        mismatches += self._mismatches_of(key, item, error)
            elif not self._ignores_unknown_keys:
                mismatches.append(unknown_key(str(key), decoder_by_key))

        if mismatches:
            raise MismatchError([*mismatches, *self._missing_keys(value)])

        # Look for missing keys only if the class raises an error, which is faster.
        try:
            return self._class(**arguments)
        except TypeError as error:
            missing_keys = self._missing_keys(value)
            if not missing_keys:  # the TypeError has another cause
                raise
            raise MismatchError(missing_keys) from error

    def _mismatches_of(self, key: str, item: object, error: MismatchError) -> list[Mismatch]:
        """Return what is wrong with the value of a key in a file.

        Args:
            key: The key, such as "files".
            item: Its value as it was read.
            error: The mistakes in this value, such as one at `[0].bytes`.

        Returns:
            The mistakes, with the key in front: `.files[0].bytes`.
        """
        field = self._field_by_key[key]
        # A required key without a value (null) is described like a missing key.
        if item is None and field.is_required:
            return [self._missing(field, is_null=True)]
        return error.below(f".{key}")

    def _missing_keys(self, value: Mapping[Any, Any]) -> list[Mismatch]:
        """Return a mistake for each key that a file must have, but does not.

        If a user has written `sed: 7` instead of `seed: 7`, `sed` is reported as unknown already,
        with the question whether `seed` was meant. So `seed` is not reported as missing, too.

        Args:
            value: The mapping that was read.
        """
        misspelt_keys: set[str] = set()
        if not self._ignores_unknown_keys:  # otherwise unknown keys are not reported at all
            misspelt_keys = self._misspelt_keys(value)
        missing: list[Mismatch] = []
        for key, field in self._field_by_key.items():
            if field.is_required and key not in value and key not in misspelt_keys:
                missing.append(self._missing(field, is_null=False))
        return missing

    def _misspelt_keys(self, value: Mapping[Any, Any]) -> set[str]:
        """Return the keys of a dataclass that a user has probably misspelt.

        Suppose that the key `seed` is required, and the user wrote `sed: 7`. Strictly, `sed` is not
        known, and `seed` is missing. One message about it is enough, so the caller does not report
        that the keys in the result are missing. Here this is {"seed"}.

        Args:
            value: The mapping that the user wrote, such as {"sed": 7}.
        """
        misspelt_keys = set()
        for key in value:
            if key not in self._field_by_key:
                closest_key = closest_name(str(key), self._field_by_key)  # "seed" for "sed"
                if closest_key is not None:
                    misspelt_keys.add(closest_key)
        return misspelt_keys

    def _missing(self, field: _Field, *, is_null: bool) -> Mismatch:
        """Return the mistake of a required key that is missing in a file, or has no value.

        For the field `raw: str`, whose docstring is "The folder of raw text.", it says:

            a key is missing
              expected: The folder of raw text (text)
              remedy: add it: "raw: …"

        Args:
            field: The field that the key would set.
            is_null: Whether the file has the key, but no value after it, as in `raw:`.
        """
        example = field.field.metadata.get("example", "…")  # what the remedy suggests as a value
        return missing_key(
            field.key,
            field.hint,  # its type
            explanation=field_help(self._class, field.name),
            example=example,
            is_null=is_null,
        )

    def encode(self, value: Any) -> dict[str, Any]:
        """Convert an object of the dataclass to values that JSON can express.

        For example, `File(size=80, checksum=None)` becomes {"bytes": 80}, if the metadata of the
        fields say that `size` is stored as "bytes", and that `checksum` is left out if it has its
        default.

        Args:
            value: The object.

        Returns:
            Key → value of each field that is stored.
        """
        result: dict[str, Any] = {}
        # This is called for up to a million small objects per file. For speed, what is needed of
        # each field is in a plain tuple.
        for field, name, key, encode_field, may_be_left_out in self._encoders:
            if may_be_left_out and not field.is_stored(value):
                continue
            result[key] = encode_field(getattr(value, name))
        return result
