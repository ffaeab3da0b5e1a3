"""Lists of documents' own ids, as files of text: which rows of a table they name, and which of them name none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.storage.location import RawFolder
from nanoset_core.views.hashing import hash_texts

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
        """Return which rows have one of these ids, bool; of an Arrow array of strings, and the hashes of these."""
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
    """Return the ids in files, one a line, in UTF-8, as an Arrow array; InputError for a line that is not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [pa.array([], pa.large_string())]
    for name in names:
        with (folder / name).open("rb") as file:
            data = file.read()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            found, expected = f"byte {data[error.start]:#04x}", "one id a line, in UTF-8"
            remedy = "write the file in UTF-8"
            where = f"{folder / name}:{line}"
            raise InputError("a line is not text", where=where, found=found, expected=expected, remedy=remedy) from None
        lines = pc.split_pattern(pa.array([text.replace("\r\n", "\n")], pa.large_string()), "\n").flatten()
        kept = pc.and_(pc.not_equal(lines, ""), pc.invert(pc.starts_with(lines, COMMENT)))
        parts.append(lines.filter(kept))
    return pa.chunked_array(parts).combine_chunks()
