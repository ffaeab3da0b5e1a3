"""Lists of ids in files, which name documents to include, exclude or erase.

A list is a text file with one id on each line, or a Parquet or Arrow table with a column `id`. For
example, this text lists two ids:

    # requested on 3 May
    doc-17
    doc-1042
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from nanoset_core.errors import InputError
from nanoset_core.statistics.hashing import hash_texts
from nanoset_core.storage.location import Location
from nanoset_core.text.files.content_kinds import HEAD_BYTES, describe_content
from nanoset_core.text.files.endings import is_table
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.columns import column_at, locate
from nanoset_core.text.tables.ids import ids_of
from nanoset_core.text.tables.rows import read_table

ID_COLUMN = "id"
COMMENT = "# "
"""Lines that start with this are comments. They and empty lines list no id."""
_MAX_NAMES_SHOWN = 20


class Ids:
    """A set of ids that remembers which of them documents have.

    So a list with ids of no document can be reported. Each id takes 9 bytes of memory in addition
    to its text.
    """

    def __init__(self, texts: Any) -> None:
        """Build the set.

        Args:
            texts: An Arrow array of strings without nulls; an id may occur several times.
        """
        self.texts = texts.unique()
        """The ids, each of them once: an Arrow array of strings."""
        self._hashes = np.sort(hash_texts(self.texts))  # (n_ids,)
        self._is_seen = np.zeros(len(self._hashes), np.bool_)  # (n_ids,)

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._hashes)

    @property
    def missing(self) -> int:
        """Number of ids that no call of `mark_seen` has named so far."""
        return len(self) - int(self._is_seen.sum())

    @property
    def first_missing(self) -> str | None:
        """The first id that no call of `mark_seen` has named so far; None if all were named."""
        positions = np.searchsorted(self._hashes, hash_texts(self.texts))  # (n_ids,)
        missing_indexes = np.flatnonzero(~self._is_seen[positions])
        if len(missing_indexes) == 0:
            return None
        identity: str = self.texts[int(missing_indexes[0])].as_py()
        return identity

    def mark_seen(self, ids: Any) -> None:
        """Remember that documents have some ids of the set; `missing` counts the others.

        Args:
            ids: An Arrow array of strings, all of them in the set.
        """
        positions = np.searchsorted(self._hashes, hash_texts(ids))
        self._is_seen[positions] = True


def read_ids(folder: Location, names: Iterable[str]) -> Ids:
    """Read files that list ids of documents, such as those to be left out of the training data.

    Args:
        folder: Contains the files.
        names: Paths of the files below it: text files with one id on each line, or tables that end
            in .parquet or .arrow.

    Returns:
        A set with the ids of all files. When documents are compared with it later, it notes which
        ids were found.

    Raises:
        InputError: A line is not UTF-8, or a table cannot be read, has no column of ids, or has ids
            that are not text.
    """
    return Ids(listed_ids(folder, names))


def listed_ids(folder: Location, names: Iterable[str]) -> Any:
    """Return the ids that files list, such as ids of documents to be left out.

        takedown.txt        one id on each line
        takedown.parquet    the ids in the column `id`, or in the only column

    Args:
        folder: Contains the files.
        names: Paths of the files below it.

    Returns:
        An Arrow array of strings, without nulls.

    Raises:
        InputError: A line is not UTF-8, or a table cannot be read, has no such column, or has ids
            that are not text.
    """
    import pyarrow as pa

    parts = [pa.array([], pa.large_string())]
    for name in names:
        if is_table(name):
            parts += _ids_in_table(folder / name)
        else:
            parts.append(_ids_in_lines(folder / name))
    return pa.chunked_array(parts).combine_chunks()


def _ids_in_lines(path: Location) -> Any:
    """Return the ids in a text file with one id on each line.

    Empty lines and comments are left out. For example, this file has two ids:

        # requested on 3 May
        doc-17
        doc-1042

    Args:
        path: The file.

    Returns:
        An Arrow array of strings.

    Raises:
        InputError: A line is not UTF-8.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow splits millions of lines without making a Python string of each.
    text = _text_of(path).replace("\r\n", "\n")
    lines = pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten()

    is_empty = pc.equal(lines, "")
    is_comment = pc.starts_with(lines, COMMENT)
    return lines.filter(pc.invert(pc.or_(is_empty, is_comment)))


def can_be_listed(ids: Any) -> Any:
    """Return which ids a text file can list, so that exactly these ids are read from it.

    A file cannot list some ids, which would be read as other ids, or be ignored:

        empty ids
        those that begin like a comment
        those with a line end: \\n, or \\r at the end of the id, since \\r\\n is a line end, too
        those that begin with a byte order mark, which is no part of the text of a file

    Args:
        ids: An Arrow array of strings without nulls.

    Returns:
        An Arrow array of booleans.
    """
    import pyarrow.compute as pc

    is_empty = pc.equal(ids, "")
    is_comment = pc.starts_with(ids, COMMENT)
    has_line_end = pc.or_(pc.match_substring(ids, "\n"), pc.ends_with(ids, "\r"))
    has_byte_order_mark = pc.starts_with(ids, "\ufeff")

    is_misread = pc.or_(pc.or_(is_empty, is_comment), pc.or_(has_line_end, has_byte_order_mark))
    return pc.invert(is_misread)


def _text_of(path: Location) -> str:
    """Read a text file in UTF-8. If it is something else, say which line is wrong.

    Args:
        path: The file, which may begin with a byte order mark.

    Raises:
        InputError: A line is not UTF-8.
    """
    with path.open("rb") as file:
        data = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8_error(path, data, wrong_byte=error.start) from None


def _not_utf8_error(path: Location, data: bytes, wrong_byte: int) -> InputError:
    """Return the error for a file that is not text in UTF-8: which line is wrong, and what it is.

    Args:
        path: The file.
        data: Its bytes.
        wrong_byte: Position of the first byte that is not UTF-8.
    """
    line = data.count(b"\n", 0, wrong_byte) + 1
    found = f"byte {data[wrong_byte]:#04x}"
    file_kind = describe_content(data[:HEAD_BYTES])  # None if there is no good guess
    if file_kind:
        found += f"; the file is {file_kind}"
    return InputError(
        "a line is not text",
        where=f"{path}:{line}",
        found=found,
        expected="one id on each line, in UTF-8",
        remedy="write the file in UTF-8, or as a table that ends in .parquet or .arrow",
    )


_EXPECTED_TABLE = f"a column {ID_COLUMN!r}, or a single column, with an id in each row"


def _ids_in_table(path: Location) -> list[Any]:
    """Return the ids in a Parquet or Arrow file, from its column `id` or from its only column.

    The file may be large, so it is read in parts of about a MiB.

    Args:
        path: Path of the file, which may be in a bucket.

    Returns:
        An Arrow array of strings for each part.

    Raises:
        InputError: The file is damaged, has no column of ids, or has ids that are not text.
    """

    def columns_to_read(schema: Any) -> list[str]:
        """Return the names of the columns of the file that are read: only that of the ids."""
        names = _id_column(schema, path)  # ("meta", "id") for a column inside another one
        return [".".join(names)]

    def ids_in_part(rows: Any, first_row: int) -> Any:
        """Return the ids in some rows of the file."""
        column = column_at(rows, _id_column(rows.schema, path))
        return _ids_in_rows(column, first_row, path)

    try:
        return list(read_table(path, columns_to_read, ids_in_part))
    except FaultError as fault:
        raise InputError(
            "a list of ids cannot be read",
            where=path,
            found=fault.detail,
            expected=_EXPECTED_TABLE,
            remedy="write the file again",
        ) from fault


def _id_column(schema: Any, path: Location) -> tuple[str, ...]:
    """Return which column of a table has the ids: `id`, or the only one.

        columns id, reason        ("id",)
        column doc_id             ("doc_id",)
        columns doc_id, reason    an error

    Args:
        schema: The pyarrow.Schema of the table.
        path: The table, for messages.

    Returns:
        Name of the column; several names if it is inside another column.

    Raises:
        InputError: The table has no such column.
    """
    names = schema.names
    if ID_COLUMN in names:
        return locate(schema, ID_COLUMN)
    if len(names) == 1:
        return locate(schema, names[0])
    shown_names = ", ".join(repr(name) for name in names[:_MAX_NAMES_SHOWN])
    raise InputError(
        "a list of ids lacks a column of ids",
        where=path,
        found=f"columns {shown_names}" if names else "no columns",
        expected=_EXPECTED_TABLE,
        remedy=f"rename the column of the ids to {ID_COLUMN!r}",
    )


def _ids_in_rows(column: Any, first_row: int, path: Location) -> Any:
    """Return the ids in some rows of a table as texts, without rows that have no id.

    For example, the integers 17, null and 1042 give "17" and "1042".

    Args:
        column: The ids, an Arrow array of any type.
        first_row: Number of the first row, for messages.
        path: The file of the table, for messages.

    Returns:
        An Arrow array of strings.

    Raises:
        InputError: A row has an id that cannot be written as text, such as a list.
    """
    import pyarrow as pa

    # Convert integers and the like to text. What cannot be converted is left out, and counted.
    ids = ids_of(column)
    if ids.n_dropped > 0:
        last_row = first_row + len(column) - 1
        raise InputError(
            "a list of ids has ids that are no text",
            where=path,
            found=f"{ids.n_dropped:,} in rows {first_row:,} to {last_row:,}",
            expected=_EXPECTED_TABLE,
            remedy="write them as text",
        )
    return pa.array(ids.texts, pa.large_string()).drop_null()
