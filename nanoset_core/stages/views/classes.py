"""Classes of documents: documents of a row group that the filters of all views treat alike.

Hundreds of views may look at the same few columns. For columns `lang` (en, de) and `quality`
(0 to 4) there are only ten kinds of documents, so that it is enough to compute each condition for
one document of each kind. The number of a document's class is built up column by column, like the
digits of a number:

    lang      codes  0 1 0 0        2 values
    quality   codes  3 0 3 4        5 values
    class            3 5 3 4        lang * 5 + quality: 10 classes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.views.conditions import as_one_array

_MAX_SPARSE_CLASSES = 4096
"""If there are more classes than this, those without documents are left out."""
_MAX_CODES = 1024
"""Columns with more values than this do not divide documents into classes."""


@dataclass(frozen=True, slots=True)
class ColumnCodes:
    """Small numbers that stand for the values of a column: equal values have equal codes."""

    codes: NDArray[np.integer[Any]]
    """Shape (n_rows,), from 0 to count - 1; the last code may stand for null."""
    count: int
    """Number of codes; some of them may not occur."""
    meaning: object
    """Equal for two row groups if equal codes stand for equal values in both."""


def encode_column(column: Any) -> ColumnCodes | None:
    """Return codes for the values of a column of an Arrow table, which has at least one row.

    Returns:
        None if the column has too many values, or a type for which coding would be slow.
    """
    import pyarrow as pa

    array = as_one_array(column)
    if pa.types.is_dictionary(array.type):
        return _encode_dictionary(array)
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return _encode_integers(array)
    return None


def _encode_dictionary(array: Any) -> ColumnCodes | None:
    """Return codes for a dictionary array, or None if its dictionary has too many values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = array.dictionary
    if len(values) > _MAX_CODES:
        return None

    # Row groups have the same values in different orders: sort them, so that the codes agree.
    indices = array.indices
    order = pc.sort_indices(values).to_numpy()
    is_sorted = not (order[1:] < order[:-1]).any()
    if not is_sorted:
        rank_of_index = np.argsort(order)
        indices = pc.take(pa.array(rank_of_index), indices)
        values = values.take(pa.array(order))

    codes = _filled(indices, array.null_count)
    return _with_null_code(array, codes, len(values), lowest=0, values=values)


def _encode_integers(array: Any) -> ColumnCodes | None:
    """Return codes for integers or booleans, or None if their range is too large."""
    import pyarrow as pa

    numbers = _filled(array.cast(pa.int64()), array.null_count)
    lowest = min(0, int(numbers.min()))
    count = int(numbers.max()) - lowest + 1
    if count > _MAX_CODES:
        return None
    codes = numbers - lowest if lowest else numbers
    return _with_null_code(array, codes, count, lowest=lowest, values=count)


def _filled(numbers: Any, null_count: int) -> NDArray[np.integer[Any]]:
    """Return an Arrow array of integers as a numpy array, with 0 for null."""
    import pyarrow.compute as pc

    if null_count:
        numbers = pc.fill_null(numbers, 0)
    filled: NDArray[np.integer[Any]] = numbers.to_numpy()
    return filled


def _with_null_code(
    array: Any, codes: NDArray[np.integer[Any]], count: int, *, lowest: int, values: object
) -> ColumnCodes:
    """Return codes of a column, with one more code for null if the column has nulls.

    Args:
        array: The column, an Arrow array.
        codes: A code for each row; those of nulls are replaced, shape (n_rows,).
        count: Number of codes.
        lowest: The value with code 0.
        values: Equal for two columns if equal codes stand for equal values in both.
    """
    if array.null_count:
        is_null = array.is_null().to_numpy(zero_copy_only=False)
        codes = np.where(is_null, count, codes)
        count += 1
    return ColumnCodes(codes, count, meaning=(lowest, count, values))


class DocumentClasses:
    """The documents of one row group, divided into classes step by step."""

    def __init__(self, n_documents: int) -> None:
        """Put all documents into one class."""
        self.codes: NDArray[np.int64] = np.zeros(n_documents, np.int64)
        """Class of each document, shape (n_documents,)."""
        self.count = 1
        """Number of classes; some of them may have no document."""
        self.meaning: list[object] = []
        """Equal for two row groups if equal classes stand for equal values in both."""
        self._sizes: NDArray[np.int64] | None = None

    def divide(self, division: ColumnCodes) -> None:
        """Divide each class further, into documents with the same code.

        Args:
            division: A code for each document.
        """
        if self.count > 1:
            self.codes = self.codes * division.count + division.codes
        else:
            self.codes = division.codes.astype(np.int64, copy=False)
        self.count *= division.count
        self.meaning.append(division.meaning)
        self._sizes = None

        if self.count > _MAX_SPARSE_CLASSES:
            present_codes, self.codes = np.unique(self.codes, return_inverse=True)
            self.count = len(present_codes)
            # The numbers of the classes now depend on which ones this row group has.
            self.meaning.append(object())

    def divide_by_mask(self, mask: NDArray[np.bool_]) -> None:
        """Divide each class in two. Other row groups do not have the same classes afterwards."""
        self.divide(ColumnCodes(mask.view(np.uint8), 2, meaning=object()))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of documents of each class, shape (count,)."""
        if self._sizes is None:
            self._sizes = np.bincount(self.codes, minlength=self.count)
        return self._sizes

    def examples(self) -> NDArray[np.int64]:
        """Return one document of each class, shape (count,); 0 for a class without documents."""
        examples = np.zeros(self.count, np.int64)
        examples[self.codes] = np.arange(len(self.codes))
        return examples


def pack_codes(codes: NDArray[np.int64], n_classes: int) -> NDArray[np.uint8]:
    """Return the class of each document as bytes: in a bit, a byte or two bytes, as few as suffice.

    Args:
        codes: Class of each document, shape (n_documents,).
        n_classes: Number of classes.
    """
    if n_classes <= 2:
        return np.packbits(codes.astype(np.bool_))
    dtype = np.uint8 if n_classes <= 256 else np.uint16
    return codes.astype(dtype).view(np.uint8)


def unpack_codes(data: NDArray[np.uint8], n_documents: int, n_classes: int) -> NDArray[Any]:
    """Return the class of each document, shape (n_documents,), as `pack_codes` stored them.

    Args:
        data: Starts with the packed codes; more bytes may follow.
        n_documents: Number of documents.
        n_classes: Number of classes.
    """
    if n_classes <= 2:
        n_bytes = -(-n_documents // 8)  # a bit for each document, rounded up
        return np.unpackbits(data[:n_bytes], count=n_documents)
    if n_classes <= 256:
        return data[:n_documents]
    return data[: 2 * n_documents].view(np.uint16)
