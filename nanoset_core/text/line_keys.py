"""Look at the first lines or rows of a corpus to see which keys hold the text and the id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from nanoset_core.errors import NanosetError
from nanoset_core.rounding import ceil_division
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.endings import format_of
from nanoset_core.text.inventory.pieces import unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import read_lines
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.csv_rows import read_csv
from nanoset_core.text.tables.record_batches import all_columns
from nanoset_core.text.tables.rows import read_table

_MAX_FILES = 3
_MAX_ROWS_PER_FILE = 100
_MAX_LINE_BYTES = 64 << 20
_MAX_DEPTH = 3
"""Objects within objects are looked into down to this level."""
_MIN_SHARE_WITH_TEXT = 0.9
"""A key is one of texts if more than this share of the lines have a string there."""
_MIN_SHARE_OF_NUMBERS = 0.9
"""A column of a CSV file is one of numbers if at least this share of its fields that are not empty
are numbers. In a column of texts, some may be numbers by chance.
"""
_FOREIGN_SEPARATORS = {
    "|": "The first row has `|`, which does not separate columns: use commas, or tabs in a .tsv.",
    "\t": "The first row has a tab, which separates columns only in .tsv files.",
}
"""Characters that separate columns in files of other programs → what to say about them."""
_ID_TYPES = ("int", "UUID")
"""Types of ids that are not strings."""

# Names of keys, from the likeliest on.
_TEXT_NAMES = (
    "text",
    "content",
    "raw_content",
    "contents",
    "body",
    "document",
    "article",
    "story",
    "markdown",
    "code",
    "passage",
)
_ID_NAMES = (
    "id",
    "_id",
    "doc_id",
    "docid",
    "document_id",
    "uuid",
    "uid",
    "guid",
    "warc_record_id",
    "blob_id",
    "hash",
    "url",
    "uri",
    "path",
)
_METADATA_NAMES = (
    "title",
    "date",
    "timestamp",
    "created",
    "added",
    "language",
    "lang",
    "source",
    "author",
    "license",
    "name",
    "domain",
    "subset",
    "split",
    "label",
    "category",
    "repo",
    "dump",
)
"""Keys that describe a text, and are not the text themselves."""


@dataclass(frozen=True, slots=True)
class PartialTexts:
    """The texts at a key that is missing, null or something else in many of the first lines."""

    n_texts: int
    """How many lines have a string."""
    n_lines: int
    """How many lines there are."""
    length: int
    """Average length of the strings over all lines, as in `LineKeys.texts`. It is at least 1."""

    def __str__(self) -> str:
        return f"a text in {self.n_texts} of {self.n_lines} lines"


@dataclass(frozen=True, slots=True)
class LineKeys:
    """The keys of a corpus's first lines. A dot in a key leads into an object."""

    texts: Mapping[str, int] = field(default_factory=dict)
    """Keys at which nearly all lines have a string → its average length in characters, rounded up
    and without white space around it.
    """
    others: Mapping[str, str] = field(default_factory=dict)
    """All other keys → type of the first value."""
    partial: Mapping[str, PartialTexts] = field(default_factory=dict)
    """Those of the other keys at which some lines have a string that is not empty."""

    @property
    def candidates(self) -> list[str]:
        """Keys that may hold the text, those at which nearly all lines have one first.

        Keys of texts that are empty in every line are only among them if there are no others.
        """
        filled = [key for key, length in self.texts.items() if length > 0]
        return [*filled, *self.partial] or list(self.texts)

    @property
    def text(self) -> str | None:
        """The key that holds the text of a document, or None if that is not certain.

        content, lang           "content": a usual name
        tale, lang              "tale": the only one that has no usual name for something else
        tale, poem              None: either of them may be meant

        A key at which many lines have no text, because it is null there, is chosen only if its name
        is usual and its texts are the longest. A key of labels is not preferred to it:

        text (partly), kind     "text" if it is longer than "kind" on average; otherwise None
        tale (partly), kind     None if "tale" is longer; otherwise "kind"
        """
        keys = [key for key in self.candidates if not _describes_a_text(key)]
        if not keys:
            return None
        longest = max(keys, key=self._length)
        preferred_keys = [key for key in keys if key not in self.partial or key == longest]
        usual_key = _likeliest_key(_TEXT_NAMES, preferred_keys)
        if usual_key is not None:
            return usual_key

        # Without a usual name, a key is only certain if no other key may be meant.
        is_only_one = len(preferred_keys) == 1
        may_be_partial = longest in self.partial or self._has_usual_partial_text()
        if is_only_one and not may_be_partial:
            return preferred_keys[0]
        return None

    def _has_usual_partial_text(self) -> bool:
        """Return whether a key with a usual name, such as "text", has texts only in some lines."""
        return any(_last_name(key) in _TEXT_NAMES for key in self.partial)

    @property
    def id(self) -> str | None:
        """The key that holds the ids of documents, or None if no key is named like one.

        For example, the lines {"id": 7, "url": "a.org", "text": "Once"}, … have these keys:

            self.texts     {"url": 5, "text": 80}    keys with texts, and their average lengths
            self.others    {"id": "int"}             all other keys, and the types of their values

        Then the result is "id". Both "id" and "url" are usual names of ids, but "id" is the
        likelier one. Ids are texts, integers or UUIDs. A key whose texts are all empty (length 0)
        has no ids.
        """
        keys = [key for key, length in self.texts.items() if length > 0]
        keys += [key for key, type_name in self.others.items() if type_name in _ID_TYPES]
        text_key = self.text
        # Keys at which many lines have no id come last.
        for possible_keys in (keys, list(self.partial)):
            for name in _ID_NAMES:
                key = _key_named(name, possible_keys)
                if key is not None and key != text_key:
                    return key
        return None

    def _length(self, key: str) -> int:
        """Return the average length of the texts at a key, in characters; other values count 0."""
        if key in self.partial:
            return self.partial[key].length
        return self.texts[key]

    def __str__(self) -> str:
        descriptions = []
        for key, length in self.texts.items():
            descriptions.append(key if length else f"{key} (empty in every line)")
        for key, type_name in self.others.items():
            descriptions.append(f"{key} ({self.partial.get(key, type_name)})")
        return ", ".join(descriptions)


def keys_of(folder: Location, contents: Contents) -> LineKeys:
    """Look at the first documents of a corpus, and find out which of their keys have texts.

    So the user need not say where the text of the documents is. For the lines

        {"id": 1, "content": "The cat sat.", "lang": "en"}
        {"id": 2, "content": "A dog barked.", "lang": "en"}

    the keys with texts are `content` (13 characters on average) and `lang` (2), and `id` has
    numbers.

    Args:
        folder: The folder of the corpus.
        contents: The files in the folder. Those that cannot be read are skipped: building the
            corpus reports them.
    """
    files_with_keys = [file for file in contents.ordered if format_of(file.path) != "txt"]
    rows: list[dict[str, Any]] = []
    for file in files_with_keys[:_MAX_FILES]:
        with suppress(NanosetError, FaultError):
            rows.extend(islice(_rows(folder, file), _MAX_ROWS_PER_FILE))

    values_by_key = _values_by_key(rows)
    if any(format_of(file.path) == "csv" for file in files_with_keys):
        # CSV files have only texts. A column of numbers is not one of texts.
        values_by_key = {name: _typed_column(fields) for name, fields in values_by_key.items()}
    return _keys_by_kind(values_by_key, len(rows))


def _values_by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values at each key of some documents, without nulls.

        {"id": 1, "meta": {"url": "a"}}
        {"id": 2}                          →  {"id": [1, 2], "meta.url": ["a"]}

    Args:
        rows: The documents.
    """
    values_by_key: dict[str, list[Any]] = {}
    for row in rows:
        for key, value in _flattened(row):
            values_by_key.setdefault(key, []).append(value)
    return values_by_key


def _keys_by_kind(values_by_key: Mapping[str, Sequence[Any]], n_rows: int) -> LineKeys:
    """Divide the keys of some documents into those with texts in nearly all of them, and others.

    Args:
        values_by_key: The values at each key, at least one. Texts may be bytes, as in some tables.
        n_rows: Number of documents.
    """
    length_by_text_key = {}
    type_by_other_key = {}
    partial_texts_by_key = {}
    for key, values in values_by_key.items():
        texts = [value for value in values if isinstance(value, str | bytes)]
        # Rounded up, so that only a key whose texts are all empty has the length 0.
        total_length = sum(len(text.strip()) for text in texts)
        average_length = ceil_division(total_length, n_rows)
        if len(texts) > _MIN_SHARE_WITH_TEXT * n_rows:
            length_by_text_key[key] = average_length
            continue
        type_by_other_key[key] = type(values[0]).__name__
        if average_length > 0:
            partial_texts_by_key[key] = PartialTexts(len(texts), n_rows, average_length)
    return LineKeys(length_by_text_key, type_by_other_key, partial_texts_by_key)


def doubt_of_header(text_key: str, keys: LineKeys) -> str:
    """Return why the first row of a CSV file may not be its header, or "" if it surely is.

    The first row names the columns. If a file has no header, its first document is lost without an
    error, because it is taken for the names of the columns. For example, if the first row is

        text,lang          it is a header, since the column of the text has a usual name
        17,The cat sat.    it may be a document, since it has a number
        id|text            it may be a header, but not one with the columns id and text
        The cat sat.       it may be a document, since no column has a usual name

    Args:
        text_key: The column that was taken for the text.
        keys: All columns.

    Returns:
        A sentence that says what to do.
    """
    if _last_name(text_key) in _TEXT_NAMES:
        return ""
    for column_name in [*keys.texts, *keys.others]:
        for separator, sentence in _FOREIGN_SEPARATORS.items():
            if separator in column_name:
                return sentence
        if not isinstance(_number_or_text(column_name), str):
            return f"The first row has the number {column_name}. If it is no header, add one."
    return "No column has a usual name. If the first row is no header, add one, or it is lost."


def _last_name(key: str) -> str:
    """Return the last part of a key in lower case: `text` of `data.Text`."""
    return key.rpartition(".")[2].lower()


def _describes_a_text(key: str) -> bool:
    """Return whether a key is named like an id or a property of a text: "url", "lang", "post_id".

    Args:
        key: The key, in which dots separate the names of nested objects.
    """
    name = _last_name(key)
    return name in _ID_NAMES or name in _METADATA_NAMES or name.endswith("_id")


def _likeliest_key(names: Iterable[str], keys: Sequence[str]) -> str | None:
    """Return the key that has the first of some names that any key has, or None.

        names    "text", "content", "body"
        keys     "body", "page.content"       the result is "page.content"

    Args:
        names: Last names of keys, from the likeliest on.
        keys: The keys, in which dots separate the names of nested objects.
    """
    for name in names:
        key = _key_named(name, keys)
        if key is not None:
            return key
    return None


def _key_named(name: str, keys: Iterable[str]) -> str | None:
    """Return the key with a given last name; one at the top precedes those within objects.

    For example, of "data.text" and "Text", the latter is the one for "text". None if there is no
    such key.

    Args:
        name: The last name in small letters, such as "text".
        keys: The keys, in which dots separate the names of nested objects.
    """
    for key in sorted(keys, key=lambda key: key.count(".")):
        if _last_name(key) == name:
            return key
    return None


def _rows(folder: Location, file: FileStat) -> Iterator[dict[str, Any]]:
    """Yield the first documents of a file as dictionaries, whatever the format of the file is.

    For example, a line {"id": 1, "content": "The cat sat."}, or a row of a table with these
    columns.

    Args:
        folder: The folder of the files.
        file: The file: JSON lines, CSV, Parquet or Arrow.

    Raises:
        FaultError: The file cannot be read to its end.
        NanosetError: The file cannot be opened or read.
    """
    file_format = format_of(file.path)
    if file_format == "lines":
        yield from _rows_of_lines(folder, file)
    elif file_format == "csv":
        yield from _rows_of_csv(folder, file)
    else:
        # The table arrives in slices of about 1 MiB. Converting a slice to Python values is slow,
        # so take no more rows of it than the caller needs at most.
        def first_rows(table_slice: Any, _first_number: int) -> Any:
            return table_slice.slice(0, _MAX_ROWS_PER_FILE)

        for rows in read_table(folder / file.path, choose=all_columns, convert=first_rows):
            yield from _rows_of_table(rows)


def _rows_of_lines(folder: Location, file: FileStat) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines. Lines that are something else are left out.

        {"id": 1}      yielded
        [1, 2]         left out: no object
        {"id": 2       left out: no JSON

    Args:
        folder: The folder of the files.
        file: The file.
    """
    # Lines that are not JSON, or other values than objects, are skipped.
    whole_file = StoredPiece(folder, unchecked_piece(file.path, file.size))
    for block in read_lines(whole_file, _MAX_LINE_BYTES):
        for line in block.lines:
            with suppress(orjson.JSONDecodeError):
                value = orjson.loads(line)
                if isinstance(value, dict):
                    yield value


def _rows_of_csv(folder: Location, file: FileStat) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file as dictionaries: {"content": "The cat sat.", "year": "1999"}.

    All values are texts. Rows that are not UTF-8, or have too many or too few fields, are left out.

    Args:
        folder: The folder of the files.
        file: The file.
    """
    whole_file = StoredPiece(folder, unchecked_piece(file.path, file.size))
    for part in read_csv(whole_file, all_columns):
        if part.problem is not None:  # a row with a wrong number of fields
            continue
        for row in part.rows.to_pylist():
            with suppress(UnicodeDecodeError):
                yield {name: value.decode() for name, value in row.items()}


def _typed_column(fields: Sequence[str]) -> list[int | float | str]:
    """Return the values of a column of CSV files, as numbers if it is a column of numbers.

        "1999", "2001", "", "n/a", …      1999, 2001, …, if at least 90 % are numbers
        "The cat sat.", "7", …            the same texts

    Args:
        fields: The fields of the column.

    Returns:
        The numbers, without fields that are empty or something else; or all texts.
    """
    filled_fields = [text for text in fields if text.strip()]
    values = [_number_or_text(text) for text in filled_fields]
    numbers = [value for value in values if not isinstance(value, str)]
    if numbers and len(numbers) >= _MIN_SHARE_OF_NUMBERS * len(filled_fields):
        return list(numbers)
    return list(fields)


def _number_or_text(text: str) -> int | float | str:
    """Return the number that a text is, or the text itself: 1999 for "1999", 0.5 for "0.5".

    Args:
        text: A value of a CSV file.
    """
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    return text


def _rows_of_table(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as dictionaries, such as {"content": "The cat sat.", "year": 1999}.

    A column with a value that Python cannot represent, such as a date after the year 9999, is left
    out.

    Args:
        batch: Some rows of the table, as a pyarrow.RecordBatch.
    """
    import pyarrow as pa

    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        with suppress(pa.ArrowException, ValueError, OverflowError):
            columns[name] = column.to_pylist()
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _flattened(
    row: Mapping[str, Any], prefix: str = "", depth: int = 1
) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a row, with the keys of nested objects joined by dots.

    For example, {"a": 1, "b": {"c": 2, "d": null}} gives ("a", 1) and ("b.c", 2).

    Args:
        row: The row, or an object in the row.
        prefix: How the keys begin: "b." for the object above; "" for the row.
        depth: 1 for a row, 2 for an object in the row, and so on. Below level 3, an object is a
            value.
    """
    for key, value in row.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from _flattened(value, f"{prefix}{key}.", depth + 1)
        elif value is not None:
            yield f"{prefix}{key}", value
