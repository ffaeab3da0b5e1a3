"""Read the documents of Parquet, Arrow and CSV files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.text.document_batch import DocumentBatch, counter_of
from nanoset_core.text.files.endings import format_of
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.parsing import Fields, NotADocumentError
from nanoset_core.text.rejects import NO_OFFSET, Reject
from nanoset_core.text.tables.columns import (
    ColumnTexts,
    RowProblem,
    column_at,
    locate,
    texts_at,
    to_strings,
)
from nanoset_core.text.tables.csv_rows import read_csv
from nanoset_core.text.tables.ids import TableIds, count_not_utf8, ids_of
from nanoset_core.text.tables.json_values import NotJsonError
from nanoset_core.text.tables.rows import read_table
from nanoset_core.text.tables.values import from_json, narrowed

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number in JSON."""
_MAX_NUMBER_CHARACTERS = 400
"""A longer number stays a text: Python refuses to read very long ones."""
_BOOLEANS = {"true": True, "false": False}
ZEROS = "\0" * 8
"""Text with that many zero bytes in sequence is a sign of damage, which a table without checksums
does not reveal otherwise.
"""


def read_table_documents(
    stored: StoredPiece, fields: Fields, max_text_bytes: int
) -> Iterator[DocumentBatch]:
    """Read the documents of a Parquet or Arrow file: one from each row.

    The text of a document is in a column, such as `text`. Its id, and further values that are kept
    with the document, such as `url`, may be in others. All other columns are not read.

    Args:
        stored: The file.
        fields: Names of the columns of texts, ids and kept values.
        max_text_bytes: Rows with longer texts are rejected.

    Raises:
        FaultError: The file cannot be read to its end.
        SourceChangedError: The file has another size than when it was listed.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read, or a kept column has values that JSON cannot
            hold.
    """
    # `read_table` asks `choose` for the columns to read, and then passes rows to `documents`.
    reader = RowReader(stored.piece.path, fields, max_text_bytes)
    # The footer of a table is at its end, so a file of another size would be read wrongly.
    expected_bytes = stored.piece.size if stored.is_checked else None
    return read_table(
        stored.path, choose=reader.choose, convert=reader.documents, expected_bytes=expected_bytes
    )


def read_csv_documents(
    stored: StoredPiece, fields: Fields, max_text_bytes: int
) -> Iterator[DocumentBatch]:
    """Read the documents of a CSV or TSV file: one from each row.

    The first row names the columns. The text of a document is in one of them, such as `text`. A
    line that has too few or too many fields becomes a reject, which is counted and reported.

    Args:
        stored: The file.
        fields: Names of the columns of texts, ids and kept values.
        max_text_bytes: Rows with longer texts are rejected.

    Raises:
        FaultError: The file cannot be read to its end.
        SourceChangedError: The file has changed since it was listed.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
    """
    reader = RowReader(stored.piece.path, fields, max_text_bytes)
    for part in read_csv(stored, reader.choose):
        if part.problem is None:
            batch = reader.documents(part.rows, part.first_row)
        else:
            batch = reader.rejected(part.first_row, part.problem)
        # `documents` counts only the bytes of the texts, but all columns of the rows were read.
        batch.read_bytes = part.n_bytes
        yield batch


class RowReader:
    """Converts the rows of one Parquet, Arrow or CSV file to documents.

    A row is treated like the line that `import_parquet` writes for it: the document has the same
    text and id, and the row is rejected if that line would be. Rows with text that is not UTF-8 are
    rejected, too.

    `read_table` calls `choose` and then `documents`, and so does the reader of CSV files.
    """

    def __init__(self, path: str, fields: Fields, max_text_bytes: int) -> None:
        self._path = path
        self._fields = fields
        self._max_text_bytes = max_text_bytes
        # In a CSV file, all values are texts. The settings may say that these are JSON.
        self._has_json_values = format_of(path) == "csv" and fields.csv_values == "json"

        self._paths = _ColumnPaths()  # set by `choose`
        # `choose` also sets why no row of the file is a document, if it lacks a column of texts.
        self._no_documents: NotADocumentError | None = None

    def choose(self, schema: Any) -> list[str]:
        """Find the columns of texts, ids and kept values in a file, so that only these are read.

        This is called before the rows of the file are read. For example, the settings name the
        columns `text`, `meta.id` and `url`, and the file has this schema:

            text: string, meta: struct<id: string, lang: string>, score: double

        Then `text` and `meta.id` are read. There is no `url`, so all documents get none.

        Args:
            schema: Arrow schema of the file.

        Returns:
            Dotted name of each column to read, each once; [] if there is no `text`.

        Raises:
            FaultError: Several columns have one of the names.
        """
        try:
            text_paths = [locate(schema, key, is_text=True) for key in self._fields.texts]
        except NotADocumentError as error:
            # This is no fault of the file: `documents` rejects each row for this reason.
            self._no_documents = error
            return []
        self._paths = _ColumnPaths(
            texts=text_paths,
            id=_locate_optional(schema, self._fields.id),
            kept=[_locate_optional(schema, key) for key in self._fields.kept],
        )
        return self._paths.dotted_names()

    def documents(self, rows: Any, first_row: int) -> DocumentBatch:
        """Convert some rows to documents. A row without a text becomes a reject, which says why.

            row    text       becomes
            0      "Hello"    a document
            1      null       a reject: there is no text
            2      "World"    a document

        The settings may name several columns of texts. Then a document must have a text in each of
        them; its own text is that of the first one.

        Args:
            rows: A pyarrow.RecordBatch with the columns that `choose` returned.
            first_row: Number of its first row in the file, from 1.
        """
        if self._no_documents is not None:
            return self._all_rejected(rows.num_rows, first_row, self._no_documents)

        columns = [texts_at(rows, path, self._max_text_bytes) for path in self._paths.texts]
        problems = _problems_of_rows(columns)
        document_rows = [row for row in range(rows.num_rows) if row not in problems]
        texts = _texts_of_rows(columns[0], document_rows)
        batch = DocumentBatch(
            texts=texts,
            lines=[first_row + row for row in document_rows],
            offsets=[NO_OFFSET] * len(texts),
            rejects=self._rejects(problems, first_row),
            read_bytes=columns[0].n_bytes,
            texts_with_zeros=counter_of(self._path, _count_zeroed(texts)),
        )
        row_indices = np.array(document_rows, np.int64)  # (n_documents,)
        self._add_ids(batch, rows, row_indices)
        self._add_kept_values(batch, rows, row_indices)
        return batch

    def rejected(self, row: int, problem: RowProblem) -> DocumentBatch:
        """Return a row that has no values as a rejected row.

        Args:
            row: Number of the row in the file, from 1.
            problem: Why it has none, such as a line of a CSV file with too few fields.

        Returns:
            A batch with one reject, and without documents.
        """
        return DocumentBatch(rejects=self._rejects({0: problem}, first_row=row))

    def _rejects(self, problems: Mapping[int, RowProblem], first_row: int) -> list[Reject]:
        """Convert the problems of some rows to rejects, which are counted and listed for the user.

        For example, the row 2 of a batch, which begins with row 100 of the file, has no text. Its
        reject names row 102, and the reason.

        Args:
            problems: Index of a row in the batch → why it is no document.
            first_row: Number of the first row of the batch in the file, from 1.
        """
        rejects: list[Reject] = []
        for row, problem in sorted(problems.items()):
            reject = Reject(
                self._path,
                line=first_row + row,
                offset=NO_OFFSET,
                reason=problem.reason,
                detail=problem.detail,
                excerpt=problem.excerpt,
            )
            rejects.append(reject)
        return rejects

    def _all_rejected(self, n_rows: int, first_row: int, error: NotADocumentError) -> DocumentBatch:
        """Reject all rows of a batch for the same reason: the file has no column of texts.

        Args:
            n_rows: Rows of the batch.
            first_row: Number of the first row of the batch in the file, from 1.
            error: The reason.
        """
        batch = DocumentBatch()
        for row in range(first_row, first_row + n_rows):
            reject = Reject(
                self._path,
                line=row,
                offset=NO_OFFSET,
                reason=error.reason,
                detail=error.detail,
                excerpt="",
            )
            batch.rejects.append(reject)
        return batch

    def _add_ids(self, batch: DocumentBatch, rows: Any, row_indices: NDArray[np.int64]) -> None:
        r"""Add the ids of documents, such as "doc-17", to a batch of documents.

        Args:
            batch: The documents, to which the ids are added.
            rows: The rows of the file, a pyarrow.RecordBatch.
            row_indices: The row of each document in `rows`, shape (n_documents,).
        """
        if self._paths.id:
            column = column_at(rows, self._paths.id)
            ids = ids_of(column.take(row_indices))
        else:  # the file has no ids
            ids = TableIds([None] * len(row_indices))
        batch.ids = ids.texts

        # Users are warned of ids that were dropped, since they were too long, and of those in which
        # bytes that are no UTF-8 were replaced by `\xNN`. Both are counted by file.
        batch.dropped_ids = counter_of(self._path, ids.n_dropped)
        batch.escaped_ids = counter_of(self._path, ids.n_escaped)

    def _add_kept_values(
        self, batch: DocumentBatch, rows: Any, row_indices: NDArray[np.int64]
    ) -> None:
        """Add further values of the rows, such as a URL or a score, to a batch of documents.

        The settings say which columns are kept with the documents. They can later be used to choose
        documents, for example those with a high score. Values that are bytes, but not UTF-8, are
        kept as texts with escapes, and counted for a warning.

        Args:
            batch: The documents, to which the values are added.
            rows: The rows of the file, a pyarrow.RecordBatch.
            row_indices: The row of each document in `rows`, shape (n_documents,).

        Raises:
            InputError: A column has values that cannot be kept.
        """
        import pyarrow as pa

        kept_arrays: list[Any] = []  # one for each kept column, each of shape (n_documents,)
        for path in self._paths.kept:
            is_in_file = bool(path)
            if not is_in_file:
                kept_arrays.append(pa.nulls(len(row_indices)))
                continue
            # Convert the values of all rows, and then take those of documents: the type of the
            # result must not depend on which rows are documents.
            column = column_at(rows, path)
            values = self._as_kept_type(column, path)
            kept_arrays.append(values.take(row_indices))
            batch.escaped_values += count_not_utf8(column.take(row_indices))

        if kept_arrays:
            batch.kept_columns = [kept_arrays]

    def _as_kept_type(self, column: Any, path: tuple[str, ...]) -> Any:
        """Convert a column to the type with which its values are stored with the documents.

        Args:
            column: An Arrow array.
            path: Names that lead to the column, for messages.

        Returns:
            An Arrow array of booleans, int64, float64 or texts. Other values, such as lists, become
            texts in JSON.

        Raises:
            InputError: The column has values for which there is no text, not even in JSON.
        """
        # In a CSV file, all values are texts. By this setting, texts such as "0.7" become numbers.
        if self._has_json_values:
            return json_texts_as_values(column)
        try:
            return narrowed(column)
        except NotJsonError as error:
            raise InputError(
                f"the column {'.'.join(path)!r} cannot be kept",
                where=self._path,
                found=error,
                remedy="take it out of documents.columns",
            ) from error


@dataclass(frozen=True, slots=True)
class _ColumnPaths:
    """Where the columns of a document are in a file.

    A path has the names of the structs around a column, and then its own name: ("meta", "id"). The
    path of a column that the file does not have is empty.
    """

    texts: Sequence[tuple[str, ...]] = ()
    """The columns in which a document must have a text. The first has its own text."""
    id: tuple[str, ...] = ()
    kept: Sequence[tuple[str, ...]] = ()
    """Columns of further values, which are kept with the document."""

    def dotted_names(self) -> list[str]:
        """Return the names of all columns that the file has, such as "meta.id", each once."""
        paths = [*self.texts, self.id, *self.kept]
        names = [".".join(path) for path in paths if path]
        return list(dict.fromkeys(names))


def _locate_optional(schema: Any, key: str) -> tuple[str, ...]:
    """Return the names that lead to a column, or none if the file does not have it."""
    try:
        return locate(schema, key)
    except NotADocumentError:
        return ()


def json_texts_as_values(column: Any) -> Any:
    """Convert the texts of a CSV column that look like numbers, booleans or nulls to such.

    In a CSV file, everything is text. Texts that are numbers or booleans in JSON become such, and
    an empty text becomes null. All others stay texts, since they may mean something else: `01` may
    be a code. A column has one type, so if a text remains, all of its values are texts:

        column                    result
        "12", "0.5", ""           12, 0.5, null
        "12", "01", ""            "12", "01", null

    Args:
        column: An Arrow array of bytes, the values of some rows.

    Returns:
        An Arrow array of booleans, int64, float64 or strings.
    """
    values: list[Any] = []
    for text in to_strings(column, "backslashreplace"):
        values.append(_json_value(text or ""))
    return from_json(values)


def _json_value(text: str) -> float | bool | str | None:
    """Return the number, boolean or null that a text of a CSV file would be in JSON, or the text.

        "12.5"     12.5
        "True"     True
        ""         None
        "012"      "012": JSON has no such number, and the zero may mean something

    Args:
        text: A value of a CSV file.
    """
    if not text:
        return None
    if len(text) <= _MAX_NUMBER_CHARACTERS and _NUMBER.fullmatch(text):
        number: float = json.loads(text)
        return number
    return _BOOLEANS.get(text.lower(), text)


def _problems_of_rows(columns: list[ColumnTexts]) -> dict[int, RowProblem]:
    """Return why some rows of a table are not documents: they lack a text, for example.

    For example, {3: "null"} if only row 3 has no text, with more details in place of "null".

    Args:
        columns: The columns in which a document must have texts, each with its problems.

    Returns:
        Index of the row → the problem. If a row has problems in several columns, that of the first.
    """
    problems: dict[int, RowProblem] = {}
    for column in columns:
        for row, problem in column.problems.items():
            problems.setdefault(row, problem)
    return problems


def _texts_of_rows(column: ColumnTexts, rows: Sequence[int]) -> list[str]:
    """Return the texts of some rows of a column, for example of the rows 0 and 2.

    Args:
        column: The column.
        rows: Indices of the rows, each of which must have a text.
    """
    column_texts = cast(list[str], column.texts)  # None only where a row has no text
    return [column_texts[row] for row in rows]


def _count_zeroed(texts: list[str]) -> int:
    """Return how many texts contain eight zero bytes in sequence, a sign of a damaged file.

    Args:
        texts: The texts.
    """
    # Search all texts at once first, which is much faster, and nearly always enough.
    if ZEROS not in "\n".join(texts):
        return 0
    return sum(ZEROS in text for text in texts)
