"""An index from the hash of an id to the first row that has the id, in files.

A table with these ids (hashes of 4 bits here, of 64 in fact)

    row   id    hash
    0     b     1001
    1     a     0011
    2     null
    3     b     1001
    4     c     0011     the id c happens to have the hash of a

has the index

    hashes        0011  0011  1001     ascending
    rows             1     4     0     the first row with each id
    is_repeated      0     0     1     1 if other rows have the id, too

It is built in files, since a table may have more rows than the memory holds: rows are divided by
the first bits of their hashes into parts of about a million rows, and each part is sorted alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.stages.scratch_arrays import create_array, map_array
from nanoset_core.statistics.hashing import U64

CHUNK_ROWS = 1 << 16
"""Rows that are processed together."""
_PART_BITS = 20
"""A part has about 2 ** 20 rows."""
_HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class IdIndex:
    """The index, mapped into memory; each array has the shape (n_ids,)."""

    hashes: NDArray[np.uint64]
    """Hash of each id, ascending."""
    rows: NDArray[np.int64]
    """First row that has the id."""
    is_repeated: NDArray[np.uint8]
    """1 if other rows have the id, too."""
    is_matched: NDArray[np.uint8]
    """1 if the id was looked up, in any process that has opened the index."""

    @staticmethod
    def open(folder: Path, n_ids: int) -> IdIndex:
        """Open the files of an index without reading them: they are mapped into memory.

        The files were made with an entry for each row of a table. But several rows may have the
        same id, and the index has one entry for each different id. So the last entries are unused:

            ids of the rows       b    a    b    c
            entries               a    b    c    (unused)

        Args:
            folder: The folder of the files.
            n_ids: Number of different ids, here 3.
        """
        return IdIndex(
            hashes=map_array(folder / "hashes", np.uint64)[:n_ids],
            rows=map_array(folder / "rows", np.int64)[:n_ids],
            is_repeated=map_array(folder / "is_repeated", np.uint8)[:n_ids],
            # This file was made last, without unused entries. It says which ids were looked up.
            is_matched=map_array(folder / "is_matched", np.uint8),
        )


def build_index(
    folder: Path, ids: Any, is_valid: NDArray[np.uint8], id_hashes: NDArray[np.uint64]
) -> int:
    """Write an index by which the first row of a table with an id is found quickly.

    A table of attributes has a row for each document, such as its score. To look up rows by id, the
    ids are hashed to numbers, and these are sorted:

        row         0    1    2    3
        id          b    a    b    c
        hash        17   80   17   40

        index       hashes 17, 40, 80, with the rows 0, 3, 1      (row 2 repeats the id of row 0)

    Args:
        folder: Receives the files of the index.
        ids: Id of each row, an Arrow array of strings, shape (n_rows,).
        is_valid: 1 if the row has an id, shape (n_rows,).
        id_hashes: Hash of the id of each row, shape (n_rows,).

    Returns:
        The number of distinct ids, such as 3.
    """
    # Memory may not hold all rows. So divide them by the first bits of their hashes into parts.
    part_bits = _n_part_bits(n_rows=len(id_hashes))
    rows_per_part = _count_parts(is_valid, id_hashes, part_bits)  # (n_parts,)
    bounds = np.concatenate([[0], np.cumsum(rows_per_part)])  # (n_parts + 1,) first row of each

    # Create the files of the index, with room for an entry for each row. Each is mapped into memory
    # as an array: what is written to the array is written to the file.
    n_rows_with_id = int(bounds[-1])
    hashes = create_array(folder / "hashes", np.uint64, n_rows_with_id)
    rows = create_array(folder / "rows", np.int64, n_rows_with_id)
    is_repeated = create_array(folder / "is_repeated", np.uint8, n_rows_with_id)

    # Sort the parts one by one, which sorts the whole index, since parts are in order of hashes.
    # This keeps one entry for each distinct id.
    _divide_into_parts(hashes, rows, bounds[:-1], is_valid, id_hashes, part_bits)
    n_ids = _sort_parts(hashes, rows, is_repeated, bounds, ids)

    # A lookup of an id sets its mark in this file.
    create_array(folder / "is_matched", np.uint8, n_ids)
    return n_ids


def _n_part_bits(n_rows: int) -> int:
    """Return by how many bits of a hash rows are divided into parts of about a million rows.

    Args:
        n_rows: Number of rows. 5 million rows are divided by 3 bits, into 8 parts.
    """
    return max(1, n_rows.bit_length() - _PART_BITS)


def _sort_parts(
    hashes: NDArray[np.uint64],
    rows: NDArray[np.int64],
    is_repeated: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    ids: Any,
) -> int:
    """Sort rows by the hashes of their ids, and keep only the first row with each id.

    The rows are in parts, such that all hashes of a part are below those of the next one. So each
    part can be sorted alone. Its rows that are kept are written after those of the part before:

        row          1  2  5 | 3  4      two parts
        its id       c  a  a | e  d
        kept rows    2  1  3  4          if the hashes of a, c, e and d are ascending

    Args:
        hashes: Hash of the id of each row, shape (n_rows_with_id,). Sorted in place.
        rows: Number of each row in the table, shape (n_rows_with_id,). Sorted in place.
        is_repeated: Receives 1 for each id that several rows have, shape (n_rows_with_id,).
        bounds: Where each part begins, and the last one ends: [0, 3, 5]; shape (n_parts + 1,).
        ids: Ids of all rows of the table, an Arrow array.

    Returns:
        The number of rows that are kept: how many entries of the arrays are used.
    """
    n_kept = 0  # of the parts so far
    for start, stop in pairwise(bounds.tolist()):
        part = _sort_part(hashes[start:stop], rows[start:stop], ids)

        # These entries are not needed any more: no part has more rows afterwards than before.
        entries = slice(n_kept, n_kept + len(part.rows))
        hashes[entries] = part.hashes
        rows[entries] = part.rows
        is_repeated[entries] = part.is_repeated
        n_kept = entries.stop
    return n_kept


def _count_parts(
    is_valid: NDArray[np.uint8], id_hashes: NDArray[np.uint64], part_bits: int
) -> NDArray[np.int64]:
    """Return how many rows with an id each part of the index has.

    The first bits of the hash of a row's id are the number of its part. With one bit, the hashes
    0…, 1… and 1… give [1, 2].

    Args:
        is_valid: 1 if the row has an id, shape (n_rows,).
        id_hashes: Hash of the id of each row, shape (n_rows,).
        part_bits: How many first bits of a hash are the number of its part.

    Returns:
        int64, shape (2 ** part_bits,).
    """
    n_parts = 1 << part_bits
    counts = np.zeros(n_parts, np.int64)
    for rows in _chunks_of_rows_with_id(is_valid):
        parts = _part_of(id_hashes[rows], part_bits)
        counts += np.bincount(parts, minlength=n_parts)
    return counts


def _divide_into_parts(
    hashes: NDArray[np.uint64],
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    is_valid: NDArray[np.uint8],
    id_hashes: NDArray[np.uint64],
    part_bits: int,
) -> None:
    """Divide the rows of a large table into parts, by the first bits of their hashes.

    So all hashes of a part are below those of the next one. With 1 bit, there are two parts:

        row of the table    0       1       2       3
        its hash            1001    0011    1110    1001
        rows by part        1 | 0  2  3

    Args:
        hashes: Receives the hashes, part by part; shape (n_rows_with_id,).
        rows: Receives the numbers of the rows, part by part; shape (n_rows_with_id,).
        starts: Where each part starts in these two: [0, 1]; shape (n_parts,).
        is_valid: 1 if the row has an id, shape (n_rows,). Others are left out.
        id_hashes: Hash of the id of each row, shape (n_rows,).
        part_bits: How many first bits of a hash are the number of its part.
    """
    next_positions = starts.copy()  # (n_parts,) where the next row of each part goes: [0, 1]
    for chunk_rows in _chunks_of_rows_with_id(is_valid):
        chunk_hashes = id_hashes[chunk_rows]
        parts = _part_of(chunk_hashes, part_bits)  # (n_chunk_rows,) [1, 0, 1, 1]
        by_part = np.argsort(parts, kind="stable")  # (n_chunk_rows,) [1, 0, 2, 3]
        rows_per_part = np.bincount(parts, minlength=len(starts))  # (n_parts,) [1, 3]

        # Append the rows of each part to those that it has from earlier chunks.
        positions = positions_in(next_positions, rows_per_part)  # (n_chunk_rows,) [0, 1, 2, 3]
        rows[positions] = chunk_rows[by_part]
        hashes[positions] = chunk_hashes[by_part]
        next_positions += rows_per_part


def _chunks_of_rows_with_id(is_valid: NDArray[np.uint8]) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of the rows that have an id, a chunk of the table at a time.

    The table may be larger than the memory.

    Args:
        is_valid: 1 if the row has an id, shape (n_rows,).
    """
    for start in range(0, len(is_valid), CHUNK_ROWS):
        yield start + np.flatnonzero(is_valid[start : start + CHUNK_ROWS])


def _part_of(hashes: NDArray[np.uint64], part_bits: int) -> NDArray[np.int64]:
    """Return the number of the part that each hash belongs to: its first bits.

    Args:
        hashes: Shape (n,).
        part_bits: How many bits. With 2 bits, a hash that starts with 10… belongs to part 2.
    """
    return (hashes >> U64(_HASH_BITS - part_bits)).astype(np.int64)


class _SortedPart(NamedTuple):
    """Distinct ids of a part, ascending by hash; each array has the shape (n_ids,)."""

    hashes: NDArray[np.uint64]
    """Hash of each id."""
    rows: NDArray[np.int64]
    """First row that has the id."""
    is_repeated: NDArray[np.bool_]
    """Whether other rows have the id, too."""


def _sort_part(hashes: NDArray[np.uint64], rows: NDArray[np.int64], ids: Any) -> _SortedPart:
    """Sort the rows of a part by the hashes of their ids, and keep the first row of each id.

    For example, four rows. The ids a and c happen to have the same hash:

        row     0    1    2    3
        id      b    a    b    c
        hash    9    3    9    3

    The rows 1, 3 and 0 are kept. The id of row 0, b, is repeated.

    Args:
        hashes: Hash of the id of each row of the part, shape (n_part_rows,).
        rows: Numbers of these rows, ascending, shape (n_part_rows,).
        ids: Ids of all rows of the table, an Arrow array.

    Returns:
        The rows that are kept, and whether other rows have the same id.
    """
    import pyarrow as pa

    # A stable sort, so that rows with equal hashes remain in ascending order.
    by_hash = np.argsort(hashes, kind="stable")
    hashes = hashes[by_hash]  # [3, 3, 9, 9]
    rows = rows[by_hash]  # [1, 3, 0, 2]

    # A row whose hash no other row has is the only one with its id. Here, there is none.
    has_shared_hash = _equals_neighbour(hashes)
    is_first = ~has_shared_hash  # whether a row is the first one with its id
    is_repeated = np.zeros(len(hashes), np.bool_)

    # Rows with a common hash have equal ids, or different ids that happen to have the same hash.
    # Read these ids (a, c, b, b), and find the first row of each.
    indices = np.flatnonzero(has_shared_hash)  # (n_shared,) indices in `rows`: [0, 1, 2, 3]
    if len(indices):
        # Of each different id, a, c and b: where it comes first among those that were read, 0, 1
        # and 2, and how often it comes, 1, 1 and 2.
        distinct_ids = _distinct(ids.take(pa.array(rows[indices])))
        indices_of_first = indices[distinct_ids.first_indices]  # (n_distinct,) [0, 1, 2]
        is_first[indices_of_first] = True
        is_repeated[indices_of_first] = distinct_ids.counts > 1  # only b, at index 2
    return _SortedPart(hashes[is_first], rows[is_first], is_repeated[is_first])


def _equals_neighbour(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which values equal the one before or after them; shape (n_values,)."""
    equals_next = values[:-1] == values[1:]  # (n_values - 1,)
    equals_neighbour = np.zeros(len(values), np.bool_)
    equals_neighbour[:-1] |= equals_next
    equals_neighbour[1:] |= equals_next
    return equals_neighbour


class _DistinctTexts(NamedTuple):
    """The distinct texts of an array; each array has one entry for each of them."""

    first_indices: NDArray[np.int64]
    """Index of its first occurrence."""
    counts: NDArray[np.int64]
    """How often it occurs."""


def _distinct(texts: Any) -> _DistinctTexts:
    """Return the distinct texts of an Arrow array without nulls.

    For example, ["b", "a", "b"] gives the first indices 0 and 1, and the counts 2 and 1.
    """
    codes = texts.dictionary_encode().indices.to_numpy()  # a number for each distinct text
    _, first_indices, counts = np.unique(codes, return_index=True, return_counts=True)
    return _DistinctTexts(first_indices, counts)
