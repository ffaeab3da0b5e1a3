"""Open what an inspection reads; find the file and line that a document came from, and the document of a line.

A merged dataset is its corpus's shards one after the other, and each shard's documents.parquet has one row a document.
Which shard holds a document follows from the counts in the manifest of their set, or where these are few in their own;
of its table only the row group that holds the row is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import orjson

from nanoset_core.errors import MissingError, SampleIndexError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import OutputRoot, open_root
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import packed_from
from nanoset_core.stages.inventory.make import INVENTORY_FILE
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.document_table import DocumentRows, LineNumbers
from nanoset_core.stages.shards.shards import DOCUMENTS
from nanoset_core.stages.shards.stage import BY_SHARD, SHARDS
from nanoset_core.stages.views.stage import chosen_from, is_view
from nanoset_core.stages.views.writing import documents_in, documents_that_are
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.store import in_parallel
from nanoset_core.text.pieces import Inventory
from nanoset_core.tokenizers.files import TokenizerPath

_TABLES_AT_ONCE = 4
"""Tables that are read at once, each of some ten megabytes."""
_AT_ONCE = 128
"""Shards that are looked into at once, where they are in a bucket."""


@dataclass(frozen=True, slots=True)
class InspectionContext:
    """A project's outputs, and its settings where they are known."""

    outputs: OutputRoot
    config: ProjectConfig | None
    """The project's settings; None = unknown, so that no raw text is read."""
    tokenizer_file: TokenizerPath | None
    """The tokenizer's file; None = unknown."""
    datasets: dict[Path, Manifest] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(project_or_root: Project | str | os.PathLike[str]) -> InspectionContext:
        """Open a project, or an output root alone: then no text is read or decoded."""
        if isinstance(project_or_root, Project):
            config = project_or_root.config
            return InspectionContext(_sampled(project_or_root.outputs), config, config.tokenizer_file)
        return InspectionContext(_sampled(open_root(project_or_root)), None, None)

    def dataset_at(self, prefix: str) -> Manifest:
        """Return the manifest of the merged dataset at a prefix; raise MissingError where there is none."""
        folder = Path(prefix).parent
        if folder not in self.datasets:
            if (manifest := self.outputs.manifest_at(folder)) is None:
                remedy = "run `nanoset build`: it makes the dataset again"
                raise MissingError("the dataset has no manifest", where=self.outputs.access.url(folder), remedy=remedy)
            self.datasets[folder] = manifest
        return self.datasets[folder]

    def inventory_of(self, dataset: Manifest) -> Inventory | None:
        """Return the inventory that a corpus's dataset was made from; None where it was removed."""
        folder = self.outputs.folder / INVENTORY.layout.folder / dataset.name / dataset.recipe["parents"]["inventory"]
        manifest = self.outputs.manifest_at(folder)
        return None if manifest is None else manifest.load(INVENTORY_FILE, Inventory.from_json)


def _sampled(outputs: OutputRoot) -> OutputRoot:
    return replace(outputs, access=replace(outputs.access, is_sampled=True))


@dataclass(frozen=True, slots=True)
class DocumentOrigin:
    """Where one document came from."""

    corpus: str
    document: int
    """Number in the corpus, from 0: its row in the tables of documents, columns and attributes."""
    file: str
    """Relative to the corpus's folder."""
    line: int
    """1-based; in a Parquet or Arrow file the row."""
    byte_offset: int
    """Of the line in the decompressed file; -1 for a row of a table."""
    id: str | None
    """The document's own id, where it has one."""
    tokens: int
    """Special ones included."""
    shard: str
    """Digest of the shard that holds it."""
    view: str | None = None
    """The view through which it was read; None if it was read from the corpus itself."""
    view_document: int | None = None
    """Number in this view, from 0. A view that repeats a document numbers each copy."""

    @property
    def dataset_document(self) -> int:
        """Number in the dataset that was read, or that packs were made of: the view's, or else the corpus's."""
        return self.document if self.view_document is None else self.view_document


class Lineage:
    """The documents of one merged dataset, a view of one, or packs, by number, by id and by line."""

    def __init__(self, outputs: OutputRoot, dataset: Manifest) -> None:
        """Open the documents of a dataset, or those that packs hold, by their numbers in what was packed.

        MissingError where its shards, or what a view was chosen from or packs were made of, are gone.
        """
        dataset = packed_from(outputs, dataset)
        self.dataset = chosen_from(outputs, dataset)
        """of the corpus"""
        self.corpus, self._view = self.dataset.name, dataset if is_view(dataset) else None
        self.tokenized = shards_of(outputs, self.dataset)
        self.shards: tuple[str, ...] = tuple(self.tokenized.facts["shards"])
        """digests, in document order"""
        self.numbers = LineNumbers.of(self.tokenized.facts)
        self._folder = outputs.folder / SHARDS / self.corpus
        self.access = outputs.access
        # of the shards whose documents are known so far, and the end of the last of them
        self._begins: list[int] = [*accumulate(self.tokenized.facts.get(BY_SHARD, ()), initial=0)]

    def folder(self, shard: int) -> Path:
        """Return the folder of a shard."""
        return self._folder / self.shards[shard]

    def place(self, document: int) -> tuple[int, int]:
        """Return (shard, row of its table) of a document; raise SampleIndexError where there is none."""
        if document >= 0:
            while self._begins[-1] <= document and len(self._begins) <= len(self.shards):
                self.first_document(len(self._begins))
            if document < self._begins[-1]:
                # The last shard that begins at or before it: shards without documents begin where the next one does.
                shard = bisect_right(self._begins, document) - 1
                return shard, document - self._begins[shard]
        raise self._no_such(document, self.dataset)

    @staticmethod
    def _no_such(document: int, dataset: Manifest) -> SampleIndexError:
        expected = f"0 to {dataset.facts['documents'] - 1}"
        return SampleIndexError("no such document", where=dataset.url(), found=document, expected=expected)

    def table(self, shard: int) -> DocumentRows:
        """Open the table of a shard's documents."""
        return DocumentRows(self.access.fetch(self.folder(shard) / DOCUMENTS), self._documents(shard))

    def tables(self, shards: Sequence[int]) -> Iterator[tuple[int, DocumentRows]]:
        """Yield some shards, each with its table."""
        for some in self._together(shards):
            yield from zip(some, self.access.each(self.table, some), strict=True)

    def first_document(self, shard: int) -> int:
        """Return the number of a shard's first document."""
        if len(self._begins) <= shard:
            for some in self._together(range(len(self._begins) - 1, len(self.shards))):
                counts = self.access.each(self._documents, some)
                self._begins += [*accumulate(counts, initial=self._begins[-1])][1:]
                if shard < len(self._begins):
                    break
        return self._begins[shard]

    def _together(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        # One by one where nothing waits for a bucket, or copies of several may not have room.
        step = _AT_ONCE if self.access.has_copies and self.access.capacity is None else 1
        return (shards[begin : begin + step] for begin in range(0, len(shards), step))

    def origins(self, documents: Sequence[int]) -> list[DocumentOrigin]:
        """Return where documents of the dataset came from, in the order of the request.

        Each row group is read once.

        Args:
            documents: numbers in the dataset: of a view, or of packs of a view, those in the view.

        Raises:
            SampleIndexError: the dataset has no such document.
        """
        view = self._view
        if view is None:
            return self._origins(documents)

        # A view's documents are looked up in the tables of its corpus.
        corpus_index = open_dataset(self.dataset, is_sampled=True)
        view_index = open_dataset(view, is_sampled=True)
        for document in documents:
            if not 0 <= document < len(view_index.document_indices) - 1:
                raise self._no_such(document, view)
        numbers = documents_in(corpus_index, view_index, np.array(documents, np.int64)).tolist()

        origins = self._origins(numbers)
        return [
            replace(origin, view=view.name, view_document=number)
            for origin, number in zip(origins, documents, strict=True)
        ]

    def _origins(self, documents: Sequence[int]) -> list[DocumentOrigin]:
        by_shard, reading = dict[int, dict[int, int]](), Semaphore(_TABLES_AT_ONCE)
        for document in map(int, documents):
            shard, row = self.place(document)
            by_shard.setdefault(shard, {})[document] = row

        def read(shard: int) -> list[DocumentOrigin]:
            rows, table = by_shard[shard], self.table(shard)
            with reading:
                values = table.read([*rows.values()])
            return [self._origin(shard, *one) for one in zip(rows, values, strict=True)]

        is_stored = self.access.has_copies
        each = self.access.each_copy(read, by_shard) if is_stored else in_parallel(read, by_shard, _TABLES_AT_ONCE)
        found = {origin.document: origin for own in each for origin in own}
        return [found[document] for document in documents]

    def find_number(self, number: int) -> Iterator[DocumentOrigin]:
        """Yield the document with a number in the corpus, as often as the dataset has it."""
        if 0 <= number < self.dataset.facts["documents"]:
            yield from self._as_held(self._origins([number])[0])

    def find_id(self, identity: str) -> Iterator[DocumentOrigin]:
        """Yield documents with this id of their own; reads the ids of all shards that may hold it."""
        yield from self._search(range(len(self.shards)), {"id": identity})

    def find_line(self, file: str, line: int, shards: Sequence[int] | None = None) -> Iterator[DocumentOrigin]:
        """Yield the document of one line or row; `shards` are those that may hold it, where that is known."""
        place = self.numbers.in_piece(file, line)
        wanted = {"file": file, "line": line if place is None else place[1]}
        found = self._search(range(len(self.shards)) if shards is None else shards, wanted)
        yield from (origin for origin in found if origin.line == line)

    def _search(self, shards: Sequence[int], wanted: Mapping[str, object]) -> Iterator[DocumentOrigin]:
        for shard, table in self.tables(shards):
            for row, values in table.search(wanted):
                yield from self._as_held(self._origin(shard, self.first_document(shard) + row, values))

    def _as_held(self, origin: DocumentOrigin) -> Iterator[DocumentOrigin]:
        """Yield a document of the corpus once, or as often as the view has it."""
        view = self._view
        if view is None:
            yield origin
            return
        corpus_index = open_dataset(self.dataset, is_sampled=True)
        view_index = open_dataset(view, is_sampled=True)
        for number in documents_that_are(corpus_index, view_index, origin.document).tolist():
            yield replace(origin, view=view.name, view_document=number)

    def _origin(self, shard: int, document: int, values: Mapping[str, Any]) -> DocumentOrigin:
        line = self.numbers.in_file(values["file"], values["byte_offset"], values["line"])
        return DocumentOrigin(self.corpus, document, shard=self.shards[shard], **{**values, "line": line})

    def _documents(self, shard: int) -> int:
        if shard + 1 < len(self._begins):
            return self._begins[shard + 1] - self._begins[shard]
        path = self.access.fetch(self.folder(shard) / MANIFEST)
        try:
            return int(orjson.loads(read_regular(path))["facts"]["documents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            what, remedy = "the manifest of a shard of the dataset is gone or damaged", "run `nanoset build`"
            raise MissingError(
                what, where=self.access.url(path), found=repr(error), remedy=f"{remedy}: it makes it again"
            ) from error
