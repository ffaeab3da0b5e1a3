"""Read the texts of evaluation files: the values of some keys of each line or row.

With the keys `question` and `choices`, the text of the line

    {"question": "2 + 2?", "choices": [3, 4], "id": 7}

is "2 + 2?", "3" and "4", joined by line feeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from nanoset_core.errors import FormatError, InputError
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.files.endings import is_table
from nanoset_core.text.inventory.pieces import unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import read_lines
from nanoset_core.text.parsing import value_at
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.record_batches import all_columns
from nanoset_core.text.tables.rows import read_table

_MAX_LINE_BYTES = 64 << 20
"""Of a longer line, only the beginning is read, which is an error since it is no valid JSON."""


class EvaluationText(NamedTuple):
    """A text of an evaluation file."""

    line: int
    """Number of the line or row in its file, from 1."""
    text: str
    """The values of all keys, joined by line feeds."""


class _Row(NamedTuple):
    """A line of a JSON Lines file, or a row of a table."""

    number: int
    """From 1; blank lines are counted, too."""
    value: Any
    """The line, parsed; or the row as column → value."""


def read_texts(folder: Location, file: FileStat, keys: Sequence[str]) -> Iterator[EvaluationText]:
    r"""Read the text of each line of an evaluation file, such as the questions of a benchmark.

    The file has JSON lines, or is a table. For example, with the keys `question` and `choices`,
    the text of this line is "2 + 2?\n3\n4":

        {"question": "2 + 2?", "choices": [3, 4], "id": 7}

    Lines without any text are skipped.

    Args:
        folder: The folder of the file.
        file: The file, below the folder.
        keys: Keys of the texts; a dot leads into an object, such as "question.stem".

    Raises:
        FormatError: A line is not JSON, or the file is damaged.
        InputError: No line has any of the keys.
    """
    path = folder / file.path
    has_text = False
    last_line = 0  # the last line that was read without an error
    try:
        for row in _rows(folder, file):
            last_line = row.number
            strings = _strings_at(row.value, keys)
            if strings:
                has_text = True
                yield EvaluationText(row.number, "\n".join(strings))
    except (FaultError, orjson.JSONDecodeError) as error:
        raise _unreadable_error(f"{path}, after line {last_line}", error) from error

    if not has_text:
        raise InputError(
            "no text in a file of evaluations",
            where=path,
            expected=f"texts at {', '.join(keys)}",
            remedy="correct text_keys, or name other files",
        )


def _unreadable_error(where: str, error: FaultError | orjson.JSONDecodeError) -> FormatError:
    """Return the error for a file that cannot be read."""
    return FormatError(
        "a file of evaluations cannot be read",
        where=where,
        found=error.detail if isinstance(error, FaultError) else error,
        remedy="repair the file, or name other files",
    )


def _strings_at(value: Any, keys: Sequence[str]) -> list[str]:
    """Return the strings at all keys of a line, in the order of the keys.

    Args:
        value: The line, parsed.
        keys: Keys of its texts; a dot leads into an object, such as "question.stem".
    """
    strings: list[str] = []
    for key in keys:
        strings.extend(_strings(value_at(value, key)))
    return strings


def _rows(folder: Location, file: FileStat) -> Iterator[_Row]:
    """Yield the rows of a table, or the lines of a file of JSON lines."""
    if is_table(file.path):
        return _rows_of_table(folder, file)
    return _rows_of_lines(folder, file)


def _rows_of_lines(folder: Location, file: FileStat) -> Iterator[_Row]:
    """Yield the values of a JSON Lines file; blank lines are skipped."""
    whole_file = StoredPiece(folder, unchecked_piece(file.path, file.size))
    for block in read_lines(whole_file, _MAX_LINE_BYTES):
        for number, line in enumerate(block.lines, block.first_number):
            if line.strip():
                yield _Row(number, orjson.loads(line))


def _rows_of_table(folder: Location, file: FileStat) -> Iterator[_Row]:
    """Read a Parquet or Arrow file, and yield its rows with their numbers, from 1.

    For example, the first row of a table with two columns is `_Row(1, {"question": "2 + 2?",
    "answer": 4})`.

    Args:
        folder: The folder of the file.
        file: The file, below the folder.
    """

    def numbered_rows(table: Any, first_number: int) -> list[_Row]:
        """Return the rows of an Arrow table, which is a part of the file, with their numbers."""
        rows = table.to_pylist()
        return [_Row(number, value) for number, value in enumerate(rows, first_number)]

    # This reads the file in parts of about 1 MiB, and yields what `convert` returns for each part.
    for rows in read_table(folder / file.path, choose=all_columns, convert=numbered_rows):
        yield from rows


def _strings(value: Any) -> Iterator[str]:
    """Yield all texts in a value of a JSON file, at any depth, and its numbers as texts.

    For example, `["a", {"b": "c", "d": 7}]` gives "a", "c" and "7". Names in objects are left out.

    Args:
        value: The value, as Python objects.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _strings(member)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
    elif isinstance(value, int | float):
        yield str(value)
