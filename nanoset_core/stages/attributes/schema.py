"""The columns of attribute tables: which ones are read, and of which type each is in all files.

For example, the first file has an integer column `id` and a floating-point column `quality`. Then
each other file must have both, with the same types. In a file without any value, a column may also
have the null type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.storage.location import Location
from nanoset_core.text.tables.columns import plain_array


class _ColumnType(NamedTuple):
    """The type of a column in all files."""

    file: str
    """The first file that has this type, for messages."""
    kind: str | None
    """See `_kind_of`; None while no file has a value in the column."""


@dataclass(slots=True)
class AttributeSchema:
    """The columns that files of attributes must have in common. The first file decides them."""

    id: str
    """Column of the documents' ids."""
    columns: Sequence[str] | None
    """Columns that are read; None for all except the id."""
    reserved: Collection[str]
    """Names that documents have already, so that no column may have them."""
    setting: str
    """The key of nanoset.yaml that names the files, for messages."""
    _types: dict[str, _ColumnType] = field(default_factory=dict)
    """Type of each column, of the id as well, as known from the files that were checked."""

    @property
    def is_known(self) -> bool:
        """Whether a file has been checked."""
        return bool(self._types)

    @property
    def names(self) -> list[str]:
        """Columns that are read, without the id; known after the first check."""
        return [name for name in self._types if name != self.id]

    def check(self, path: Location, schema: Any) -> None:
        """Check that a file has the same columns as the files before it, with the same types.

            a.parquet    id, score                  the first file: it decides the columns
            b.parquet    id                         an error: no score
            c.parquet    id, score, language        an error, unless only `columns: [score]` is read
            d.parquet    id, score as text          an error: another type

        Args:
            path: Path of the file.
            schema: The pyarrow.Schema of the file.

        Raises:
            ConfigError: A column is missing, or has a name that documents have already.
            FormatError: The columns, or their types, are not those of the first file.
            InputError: The type of the ids cannot be compared with ids of documents.
        """
        occurrences = Counter(schema.names)  # how many columns have each name
        kind_by_name = {column.name: _kind_of(column.type) for column in schema}
        names_to_read = list(kind_by_name) if self.columns is None else self.columns
        names_of_first_file = list(self._types)  # empty if this is the first file

        # Names that the file must have, each once: `id` and `score` for b.parquet.
        for name in dict.fromkeys([self.id, *names_to_read, *names_of_first_file]):
            self._check_occurs_once(path, name, occurrences)
            kind = kind_by_name[name]  # such as "double"
            if name == self.id:
                self._check_type_of_ids(path, kind)
            else:
                self._check_name(path, name)
            if names_of_first_file and name not in names_of_first_file:
                raise self._new_column(path, name)  # such as `language` in c.parquet
            self._compare_or_add_type(path, name, kind)

    def _check_occurs_once(self, path: Location, name: str, occurrences: Counter[str]) -> None:
        """Check that a file has exactly one column of a name.

        The columns "id, score, score" have two of the name "score", which Parquet allows.

        Args:
            path: Path of the file, for messages.
            name: The name.
            occurrences: Name → how many columns of the file have it.

        Raises:
            ConfigError: It has no such column.
            FormatError: It has several.
        """
        if occurrences[name] == 0:
            raise self._missing_column(path, name, list(occurrences))
        if occurrences[name] > 1:
            raise self._difference(path, found=f"two columns {name!r}", expected="each once")

    def _new_column(self, path: Location, name: str) -> FormatError:
        """Return the error for a column that the files before this one do not have.

            found: a column 'language'
            expected: the columns of scores/a.parquet: id, score

        Args:
            path: Path of the file.
            name: Name of the column.
        """
        # The columns that are known so far, all from the first file.
        known_columns = ", ".join(self._types)
        first_file = next(iter(self._types.values())).file
        return self._difference(
            path,
            found=f"a column {name!r}",
            expected=f"the columns of {first_file}: {known_columns}",
        )

    def _check_type_of_ids(self, path: Location, kind: str | None) -> None:
        """Check that the ids in a table are texts or whole numbers.

        The table has attributes of documents, such as scores. Its rows are found by the ids of
        documents, which are texts. A whole number such as 17 can be compared as the text "17". But
        a number such as 0.1 can be written in several ways.

        Args:
            path: Path of the file, for messages.
            kind: Kind of the ids, such as "int64", or None if the column has no value.

        Raises:
            InputError: They are of another kind.
        """
        if kind not in (None, "int64", "uint64", "string"):
            raise InputError(
                "ids are texts or whole numbers",
                where=path,
                found=f"{self.id!r} of {kind}",
                remedy=f"correct {self.setting}.id, or write the ids as text",
            )

    def _check_name(self, path: Location, name: str) -> None:
        """Check that a column of a table does not have a name that means something else already.

        The table has attributes of documents, such as scores. These are stored next to what is
        known of each document anyway, such as its `file` and its number of `tokens`. A second
        "tokens" would be ambiguous.

        Args:
            path: Path of the file, for messages.
            name: Name of the column, which is not that of the ids.

        Raises:
            ConfigError: Documents have a column of this name already, or the name is empty.
        """
        if not name or name in self.reserved:
            raise ConfigError(
                "documents have a column of this name already",
                where=path,
                found=repr(name),
                remedy=f"rename it in the files, or list the columns to read in "
                f"{self.setting}.columns",
            )

    def _compare_or_add_type(self, path: Location, name: str, kind: str | None) -> None:
        """Compare the type of a column with that in earlier files, or remember it if it is new.

        A column without any value fits all types:

            a.parquet    score without values      any type
            b.parquet    score: double             from now on, it must be double
            c.parquet    score: string             an error

        Args:
            path: Path of the file.
            name: Name of the column.
            kind: Kind of its values, such as "double"; None if it has none.

        Raises:
            FormatError: The column has another type than in an earlier file.
        """
        # A column without values fits any type, so its type is that of the first file with a value.
        earlier = self._types.get(name)
        if earlier is None or (earlier.kind is None and kind is not None):
            self._types[name] = _ColumnType(str(path), kind)
        elif kind is not None and kind != earlier.kind:
            raise self._difference(
                path, found=f"{name!r} of {kind}", expected=f"{earlier.kind}, as in {earlier.file}"
            )

    def _missing_column(self, path: Location, name: str, names: Collection[str]) -> ConfigError:
        """Return the error for a file without a column that it should have.

            a table of attributes lacks a column
            found: id, quality
            expected: a column 'score'

        Args:
            path: Path of the file.
            name: Name of the missing column.
            names: Columns that the file has.
        """
        key = "id" if name == self.id else "columns"
        return ConfigError(
            "a table of attributes lacks a column",
            where=path,
            found=", ".join(names) or "no columns",
            expected=f"a column {name!r}",
            remedy=f"correct {self.setting}.{key}, or the file",
        )

    def _difference(self, path: Location, *, found: str, expected: str) -> FormatError:
        """Return the error for a file of a table that has other columns than the files before.

        Several files may have the attributes of documents, such as scores. They are joined to one
        table:

            scores/a.parquet    score: double
            scores/b.parquet    score: string      an error

        Args:
            path: Path of the file.
            found: What it has, such as "'score' of string".
            expected: What it should have, such as "double, as in scores/a.parquet".
        """
        return FormatError(
            "tables of attributes differ",
            where=path,
            found=found,
            expected=expected,
            remedy="write all files with the same columns, or list the columns to read in "
            f"{self.setting}.columns",
        )


def _kind_of(arrow_type: Any) -> str | None:
    """Return how values of a column are stored, by the type that they have in a Parquet file.

    Few types are kept, so that tables of several files can be joined:

        unsigned integers of 64 bits     uint64
        other integers, durations        int64
        floating-point numbers           double
        booleans                         bool
        texts, dates, lists and so on    string

    Args:
        arrow_type: The pyarrow.DataType of the column.

    Returns:
        One of these names; None for the null type, which has no values.
    """
    import pyarrow as pa
    from pyarrow import types

    value_type = plain_array(pa.nulls(0, arrow_type)).type
    if types.is_null(value_type):
        return None
    if types.is_uint64(value_type):
        return "uint64"
    if types.is_integer(value_type) or types.is_duration(value_type):
        return "int64"
    if types.is_floating(value_type):
        return "double"
    if types.is_boolean(value_type):
        return "bool"
    return "string"
