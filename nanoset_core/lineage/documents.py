"""From a document of a merged dataset to the file and line that it came from, and back.

A merged dataset is its corpus's shards one after the other, and each shard's documents.parquet has one row a document.
Which shard holds a document follows from the counts in the shards' manifests; of its table only the row group that
holds the row is read.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nanoset_core.errors import FormatError, MissingError, SampleIndexError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline.tokenization import SHARDS, STAGE
from nanoset_core.storage.mirror import bring, bring_manifests
from nanoset_core.tokenization.shards import DOCUMENTS

_DATASET_OPTIONS = ("tokenization", "preset")
_COLUMNS = ["file", "line", "byte_offset", "id", "tokens"]


@dataclass(frozen=True, slots=True)
class DocumentOrigin:
    """Where one document came from."""

    corpus: str
    document: int
    """its number in the merged dataset, from 0"""
    file: str
    """relative to the corpus's folder"""
    line: int
    """1-based; in a Parquet or Arrow file the row"""
    byte_offset: int
    """of the line in the decompressed file; -1 for a row of a table"""
    id: str | None
    """the document's own id, where it has one"""
    tokens: int
    """special ones included"""
    shard: str
    """digest of the shard that holds it"""


class Lineage:
    """The documents of one merged dataset, by number, by id and by line."""

    def __init__(self, outputs: OutputRoot, dataset: Manifest) -> None:
        """outputs: the project's output root. dataset: manifest of a merged dataset there.

        MissingError where the shards that it was merged from are gone.
        """
        self.corpus, self.dataset = dataset.name, dataset
        self.tokenized = _tokenized(outputs, dataset)
        self.shards: tuple[str, ...] = tuple(self.tokenized.facts["shards"])
        """digests, in document order"""
        self._folder = outputs.folder / SHARDS / dataset.name
        self._begins = [0]  # of the shards looked at so far, and the end of the last of them

    def folder(self, shard: int) -> Path:
        """Where a shard lies."""
        return self._folder / self.shards[shard]

    def place(self, document: int) -> tuple[int, int]:
        """(shard, row of its table) of a document; SampleIndexError where there is none of that number."""
        if document >= 0:
            while self._begins[-1] <= document and len(self._begins) <= len(self.shards):
                self._begins.append(self._begins[-1] + self._documents(len(self._begins) - 1))
            if document < self._begins[-1]:
                # The last shard that begins at or before it: shards without documents begin where the next one does.
                shard = bisect_right(self._begins, document) - 1
                return shard, document - self._begins[shard]
        raise SampleIndexError(
            "no such document",
            where=self.dataset.folder,
            found=document,
            expected=f"0 to {self.dataset.facts['documents'] - 1}",
        )

    def first_document(self, shard: int) -> int:
        """Number of a shard's first document."""
        while len(self._begins) <= shard:
            self._begins.append(self._begins[-1] + self._documents(len(self._begins) - 1))
        return self._begins[shard]

    def origins(self, documents: Sequence[int]) -> list[DocumentOrigin]:
        """Where documents came from, in the order asked for; each row group is read once.

        MissingError and FormatError for tables that are not there, or cannot be read.
        """
        rows: dict[int, list[tuple[int, int]]] = {}
        for place, document in enumerate(documents):
            shard, row = self.place(int(document))
            rows.setdefault(shard, []).append((row, place))
        found: list[DocumentOrigin | None] = [None] * len(documents)
        for shard, wanted in rows.items():
            table = DocumentRows(self.folder(shard) / DOCUMENTS, self._documents(shard))
            for (_, place), values in zip(wanted, table.read([row for row, _ in wanted]), strict=True):
                found[place] = self._origin(shard, int(documents[place]), values)
        return [origin for origin in found if origin is not None]

    def find_id(self, identity: str) -> Iterator[DocumentOrigin]:
        """Documents with this id of their own; reads the ids of all shards that may hold it."""
        yield from self._search(range(len(self.shards)), {"id": identity})

    def find_line(self, file: str, line: int, shards: Sequence[int] | None = None) -> Iterator[DocumentOrigin]:
        """The document of one line or row; `shards` are those that may hold it, where that is known."""
        yield from self._search(range(len(self.shards)) if shards is None else shards, {"file": file, "line": line})

    def _search(self, shards: Sequence[int], wanted: Mapping[str, object]) -> Iterator[DocumentOrigin]:
        for shard in shards:
            table = DocumentRows(self.folder(shard) / DOCUMENTS, self._documents(shard))
            for row, values in table.search(wanted):
                yield self._origin(shard, self.first_document(shard) + row, values)

    def _origin(self, shard: int, document: int, values: Mapping[str, Any]) -> DocumentOrigin:
        return DocumentOrigin(self.corpus, document, shard=self.shards[shard], **values)

    def _documents(self, shard: int) -> int:
        if shard + 1 < len(self._begins):
            return self._begins[shard + 1] - self._begins[shard]
        path = self.folder(shard) / MANIFEST
        bring(path)
        try:
            return int(orjson.loads(path.read_bytes())["facts"]["documents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MissingError(
                "a shard that the dataset was merged from is not there any more",
                where=path,
                found=repr(error),
                remedy="run `nanoset build`: it makes the shard again",
            ) from error


class DocumentRows:
    """Rows of one shard's documents.parquet."""

    def __init__(self, path: Path, documents: int) -> None:
        """path: the table. documents: how many rows it must have."""
        import pyarrow.parquet as pq

        bring(path)
        self.path = path
        self._file = self._reading(lambda: pq.ParquetFile(path))
        metadata = self._file.metadata
        self._ends: list[int] = []
        for group in range(metadata.num_row_groups):
            self._ends.append(metadata.row_group(group).num_rows + (self._ends[-1] if self._ends else 0))
        if metadata.num_rows != documents or self._file.schema_arrow.names != _COLUMNS:
            raise _not_table(path, f"{metadata.num_rows:,} rows, columns {', '.join(self._file.schema_arrow.names)}")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The values of some rows, in the order asked for."""
        groups = {bisect_right(self._ends, row) for row in rows}
        values: dict[int, dict[str, Any]] = {}
        for group in sorted(groups):
            table, begin = self._group(group, _COLUMNS), self._begin(group)
            for row in rows:
                if begin <= row < self._ends[group]:
                    values[row] = table.slice(row - begin, 1).to_pylist()[0]
        return [values[row] for row in rows]

    def lengths(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, tokens of each document int32[rows]) of every row group."""
        import pyarrow as pa

        for group in range(len(self._ends)):
            column = self._group(group, ["tokens"]).column("tokens")
            if column.null_count or not pa.types.is_integer(column.type):
                raise _not_table(self.path, f"tokens as {column.type}, {column.null_count:,} of them null")
            yield self._begin(group), column.to_numpy(zero_copy_only=False)

    def tokens(self) -> int:
        """Tokens of all documents."""
        return sum(int(lengths.sum(dtype=np.int64)) for _, lengths in self.lengths())

    def search(self, wanted: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row, values) of every row that has these values; row groups that cannot hold them are not read."""
        import pyarrow.compute as pc

        for group in range(len(self._ends)):
            if not self._reading(functools.partial(self._may_hold, group, wanted)):
                continue
            table = self._group(group, list(wanted))
            hits = None
            for name, value in wanted.items():
                same = pc.equal(table.column(name).cast(_type_of(value)), value)
                hits = same if hits is None else pc.and_(hits, same)
            numbers = pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist()
            begin = self._begin(group)
            for number, values in zip(numbers, self.read([begin + number for number in numbers]), strict=True):
                yield begin + number, values

    def _begin(self, group: int) -> int:
        return self._ends[group - 1] if group else 0

    def _may_hold(self, group: int, wanted: Mapping[str, object]) -> bool:
        # pyarrow aborts the process where a column's metadata is damaged, unless reading the column has said so before.
        next(self._file.iter_batches(1, row_groups=[group], columns=_COLUMNS), None)
        metadata = self._file.metadata.row_group(group)
        for name, value in wanted.items():
            facts = metadata.column(_COLUMNS.index(name)).statistics
            if facts is not None and facts.has_min_max and not facts.min <= value <= facts.max:
                return False
        return True

    def _group(self, group: int, columns: list[str]) -> Any:
        def read() -> Any:
            table = self._file.read_row_group(group, columns=columns)
            table.validate(full=True)
            return table

        return self._reading(read)

    def _reading(self, read: Callable[[], Any]) -> Any:
        import pyarrow as pa

        try:
            return read()
        except FileNotFoundError as error:
            raise MissingError(
                "a shard's table of documents is not there",
                where=self.path,
                remedy="run `nanoset build`: it makes the shard again",
            ) from error
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise _not_table(self.path, str(error)[:500]) from error


def _type_of(value: object) -> Any:
    import pyarrow as pa

    return pa.string() if isinstance(value, str) else pa.int64()


def _not_table(path: Path, found: str) -> FormatError:
    return FormatError(
        "this is not the table of the shard's documents",
        where=path,
        found=found,
        expected=f"a Parquet file with a row for each document and the columns {', '.join(_COLUMNS)}",
        remedy="delete the shard's folder and run `nanoset build`: it makes the shard again",
    )


def _tokenized(outputs: OutputRoot, dataset: Manifest) -> Manifest:
    """The set of shards that a dataset was merged from; how they were cut does not matter."""
    place = outputs.folder / STAGE / dataset.name
    current = outputs.current(STAGE, dataset.name)
    if current is not None and _made(current, dataset):
        return current
    bring_manifests(place, MANIFEST)
    for folder in sorted(path.parent for path in place.glob(f"*/{MANIFEST}")):
        found = read_manifest(folder)
        if found is not None and _made(found, dataset):
            return found
    raise MissingError(
        "the shards that the dataset was merged from are not there any more",
        where=place,
        expected=f"those of the inventory {dataset.recipe['parents']['inventory']}",
        remedy="run `nanoset build`: it makes them again",
    )


def _made(tokenized: Manifest, dataset: Manifest) -> bool:
    options = {key: value for key, value in dataset.recipe["options"].items() if key not in _DATASET_OPTIONS}
    return (
        tokenized.recipe["parents"] == dataset.recipe["parents"]
        and tokenized.recipe["version"] == dataset.recipe["options"]["tokenization"]
        and {key: tokenized.recipe["options"].get(key) for key in options} == options
    )
