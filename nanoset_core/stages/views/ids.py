"""Lists of documents' own ids in files: which rows of a table they name, and which of them name no
row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.columns import column_at, locate
from nanoset_core.text.content_kinds import HEAD_BYTES, describe_content
from nanoset_core.text.endings import is_table
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.table_ids import ids_of
from nanoset_core.text.tables import read_table

ID_COLUMN = "id"
COMMENT = "# "
"""A line that begins so, and an empty one, holds no id."""


class Ids:
    """A set of ids, each once, with a note of those that were found."""

    def __init__(self, texts: Any) -> None:
        """Take an Arrow array of strings without nulls; 24 bytes and the text are held of each."""
        import pyarrow as pa

        texts = texts.unique()
        hashes = hash_texts(texts)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._texts = hashes[order], texts.take(pa.array(order))
        self._found = np.zeros(len(order), np.bool_)

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._hashes)

    @property
    def missing(self) -> int:
        """How many of them were in no table that `mask` was given."""
        return len(self) - int(self._found.sum())

    def mask(self, ids: Any, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which rows have one of these ids, bool; of an Arrow array of strings, and the
        hashes of these.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.zeros(len(ids), np.bool_)
        if not len(self):
            return found
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
        rows = np.flatnonzero(self._hashes[places] == hashes)
        # A hash alone proves nothing: the texts are compared, too.
        same = pc.equal(ids.take(pa.array(rows)), self._texts.take(pa.array(places[rows])))
        rows = rows[pc.fill_null(same, False).to_numpy(zero_copy_only=False)]
        found[rows] = True
        self._found[places[rows]] = True
        return found


def read_ids(folder: RawFolder, names: Iterable[str]) -> Ids:
    """Read files of ids, as `listed_ids`."""
    return Ids(listed_ids(folder, names))


def listed_ids(folder: RawFolder, names: Iterable[str]) -> Any:
    """Return the ids that files list.

    A Parquet or Arrow file, by its ending, lists the ids in its column `id`, or in its only column;
    any other file has one id a line, in UTF-8.

    Args:
        folder: holds the files.
        names: paths of the files below it.

    Returns:
        An Arrow array of strings, without nulls.

    Raises:
        InputError: a line is not UTF-8, or a table cannot be read, has no such column, or has ids
            that are no text.
    """
    import pyarrow as pa

    parts = [pa.array([], pa.large_string())]
    for name in names:
        parts += _ids_of_table(folder / name) if is_table(name) else [_ids_of_lines(folder / name)]
    return pa.chunked_array(parts).combine_chunks()


def _ids_of_lines(path: RawFolder) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    with path.open("rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        kind = describe_content(data[:HEAD_BYTES])
        raise InputError(
            "a line is not text",
            where=f"{path}:{line}",
            found=f"byte {data[error.start]:#04x}" + (f"; the file is {kind}" if kind else ""),
            expected="one id a line, in UTF-8",
            remedy="write the file in UTF-8, or as a table that ends in .parquet or .arrow",
        ) from None
    lines = pc.split_pattern(
        pa.array([text.replace("\r\n", "\n")], pa.large_string()), "\n"
    ).flatten()
    is_id = pc.and_(pc.not_equal(lines, ""), pc.invert(pc.starts_with(lines, COMMENT)))
    return lines.filter(is_id)


def _ids_of_table(path: RawFolder) -> list[Any]:
    """Return the ids of a table, an Arrow array for each slice that was read."""
    import pyarrow as pa

    expected = f"a column {ID_COLUMN!r}, or one column alone, with an id in each row"
    id_names: tuple[str, ...] = ()

    def choose(schema: Any) -> list[str]:
        nonlocal id_names
        names = schema.names
        if ID_COLUMN not in names and len(names) != 1:
            raise InputError(
                "a list of ids lacks a column of ids",
                where=path,
                found=f"columns {', '.join(map(repr, names[:20]))}" if names else "no columns",
                expected=expected,
                remedy=f"rename the column of the ids to {ID_COLUMN!r}",
            )
        id_names = locate(schema, ID_COLUMN if ID_COLUMN in names else names[0])
        return [".".join(id_names)]

    def convert(rows: Any, first_row: int) -> Any:
        ids = ids_of(column_at(rows, id_names))
        if ids.n_unkept:
            raise InputError(
                "a list of ids has ids that are no text",
                where=path,
                found=f"{ids.n_unkept:,} in rows {first_row:,} to {first_row + rows.num_rows - 1:,}",
                expected=expected,
                remedy="write them as text",
            )
        return pa.array(ids.texts, pa.large_string()).drop_null()

    try:
        return list(read_table(path, choose, convert))
    except FaultError as fault:
        raise InputError(
            "a list of ids cannot be read",
            where=path,
            found=fault.detail,
            expected=expected,
            remedy="write the file again",
        ) from fault
