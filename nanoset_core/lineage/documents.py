"""Find the file and line that a document came from, and the document of a line.

The dataset of a corpus consists of its shards, concatenated. Each shard has a table of its
documents, `documents.parquet`, with a row for each document. With shards of 3, 2 and 4 documents,
document 4 of the corpus is row 1 of shard 1.

The number of documents in each shard is in the manifest of the set of shards, or in the manifests
of the shards themselves. So a document's shard is known without opening a table, and of that
shard's table only the row group with the row is read.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple

import numpy as np
import orjson

from nanoset_core.errors import MissingError, SampleIndexError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import OutputRoot, open_root
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.datasets import Datasets
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import BY_SHARD
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.requests import in_parallel
from nanoset_core.tokenizers.files import TokenizerPath

_TABLES_AT_ONCE = 4
"""How many tables are in memory at once; each takes some ten megabytes."""
_SHARDS_AT_ONCE = 128
"""From how many shards in a bucket files are requested at once."""


@dataclass(frozen=True, slots=True)
class InspectionContext:
    """The outputs to search, and the settings of the project if they are known."""

    outputs: OutputRoot
    """The outputs, opened for reading small parts of their files."""
    config: ProjectConfig | None
    """The project's settings; if None, no raw text is read."""
    tokenizer_file: TokenizerPath | None
    """The tokenizer's file; if None, no tokens are decoded."""
    datasets: Datasets = field(compare=False, repr=False)
    """The datasets that were opened, so that each is opened once."""

    @staticmethod
    def of(project_or_root: Project | str | os.PathLike[str]) -> InspectionContext:
        """Open the outputs of a project, or those below an output root, to look into them.

        Args:
            project_or_root: A project; or the folder or URL of its outputs. Without the settings of
                a project, no raw text is read, and no tokens are decoded.
        """
        if isinstance(project_or_root, Project):
            config = project_or_root.config
            return InspectionContext.of_root(project_or_root.outputs, config, config.tokenizer_file)
        return InspectionContext.of_root(open_root(project_or_root))

    @staticmethod
    def of_root(
        root: OutputRoot,
        config: ProjectConfig | None = None,
        tokenizer_file: TokenizerPath | None = None,
    ) -> InspectionContext:
        """Prepare to look into the outputs below a root that is open already.

        Args:
            root: The root, which is the folder or bucket of a project's outputs.
            config: The project's settings; None to read no raw text.
            tokenizer_file: The tokenizer's file; None to decode no tokens.
        """
        # Only a few places of large files will be read. With `is_sampled`, small blocks of them are
        # fetched from a bucket, instead of large ones.
        outputs = replace(root, access=replace(root.access, is_sampled=True))
        datasets = Datasets(outputs, is_sampled=True)
        return InspectionContext(outputs, config, tokenizer_file, datasets)


@dataclass(frozen=True, slots=True)
class DocumentOrigin:
    """Where one document came from."""

    corpus: str
    """Name of its corpus."""
    document: int
    """Number in the corpus, from 0: its row in the tables of documents, columns and attributes."""
    file: str
    """Path of its file, relative to the corpus's folder."""
    line: int
    """Number of its line, or of its row in a table, from 1."""
    byte_offset: int
    """First byte of the line in the decompressed file; -1 for a row of a table."""
    id: str | None
    """The document's own id, if it has one."""
    tokens: int
    """How many tokens it has, special ones included."""
    shard: str
    """Digest of the shard that contains it."""
    view: str | None = None
    """The view through which it was read; None if it was read from the corpus itself."""
    view_document: int | None = None
    """Number in this view, from 0. A view that repeats a document numbers each copy."""

    @property
    def dataset_document(self) -> int:
        """Number in the view if the document was read through one, else in the corpus."""
        return self.document if self.view_document is None else self.view_document


class ShardRow(NamedTuple):
    """The row that describes a document in the table of a shard."""

    shard: int
    """Position of the shard in `Lineage.shards`."""
    row: int
    """Row of the shard's table of documents, from 0."""


class Lineage:
    """Finds the documents of a dataset by number, by id and by line.

    A corpus contains all documents, and a view selects some of them; both number their documents
    from 0. Packs, in which documents are joined to samples of one length, have no numbers of their
    own: their documents have the numbers of the dataset that was packed.

    This is for commands that answer questions about a few documents, such as `nanoset explain`. It
    needs no project, only the outputs, and opens only the shards that it needs, so that others may
    be damaged. Stages use `Sharded` in `nanoset_core/stages/sharded.py`, which checks all shards.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Look up the shards of a dataset: the parts in which its corpus was tokenized.

        Args:
            dataset: The dataset of a corpus; or a view or packs, which are made from one.

        Raises:
            MissingError: Its shards, or a dataset that it was made from, were deleted.
        """
        self.dataset = dataset.corpus.manifest
        """Manifest of the corpus's dataset, even if `dataset` is a derived dataset."""
        self.corpus = self.dataset.name
        """Name of the corpus."""
        self._unpacked = dataset.unpacked  # the corpus or view, if the dataset is packs

        # Only the shards of the corpus have tables that say where each document came from.
        outputs = dataset.outputs
        self.access = outputs.access
        """Reads files of the outputs, from a disk or a bucket."""
        self.tokenized = shards_of(outputs, self.dataset)
        """Manifest of the set of shards."""
        self.shards: tuple[str, ...] = tuple(self.tokenized.facts[SHARDS])
        """Digests of the shards, in the order of the documents."""
        self.numbers = LineNumbers.of(self.tokenized.facts)
        """Converts line numbers that count from the beginning of a piece of a large file."""
        self._folder = outputs.folder / SHARDS_FOLDER / self.corpus
        document_counts = self.tokenized.facts.get(BY_SHARD, ())  # of each shard; () if not stored
        self._first_documents: list[int] = list(accumulate(document_counts, initial=0))
        """Number of the first document of each shard, and then the number of all documents: 0, 40,
        70 for shards of 40 and 30 documents. If counts are not stored, it is [0] at first, and
        grows when shards are opened.
        """

    def folder(self, shard: int) -> Path:
        """Return the folder of a shard.

        Args:
            shard: Number of the shard in `shards`.
        """
        return self._folder / self.shards[shard]

    def place(self, document: int) -> ShardRow:
        """Return in which shard a document is, and in which row of the shard's table.

        A corpus is tokenized in parts, the shards. Each has a table that says where its documents
        came from. For example, with shards of 3, 2 and 4 documents:

            document    0  1  2    3  4    5  6  7  8
            shard       0  0  0    1  1    2  2  2  2
            row         0  1  2    0  1    0  1  2  3

        Args:
            document: Number in the corpus.

        Raises:
            SampleIndexError: The corpus has no such document.
        """
        self._read_counts_until(document)
        first_documents = self._first_documents  # of each shard, and the end: [0, 3, 5, 9]
        if not 0 <= document < first_documents[-1]:
            raise self._no_such_document(document, self.dataset)

        # The last shard that does not begin after the document. (An empty shard begins where the
        # next one does, so it is never the last of them.)
        shard = bisect_right(first_documents, document) - 1
        return ShardRow(shard, row=document - first_documents[shard])

    def _read_counts_until(self, document: int) -> None:
        """Find out how many documents the first shards have, until a document is in one of them.

        Nothing is read if this is known already. If there is no such document, it is known for all
        shards afterwards.

        Args:
            document: Number in the corpus.
        """
        while self._first_documents[-1] <= document and self._n_known_shards < len(self.shards):
            self._read_more_counts()

    @staticmethod
    def _no_such_document(document: int, dataset: Manifest) -> SampleIndexError:
        """Return the error for a number that is not that of a document of a dataset.

        Args:
            document: The number.
            dataset: Manifest of the dataset, which has the number of its documents.
        """
        return SampleIndexError(
            "no such document",
            where=dataset.url(),
            found=document,
            expected=f"0 to {dataset.facts['documents'] - 1}",
        )

    def table(self, shard: int) -> DocumentRows:
        """Open the table of a shard's documents, which is downloaded first if it is in a bucket.

        Args:
            shard: Number of the shard in `shards`.

        Raises:
            MissingError: The table, or the shard's manifest, is missing.
        """
        path = self.access.fetch(self.folder(shard) / DOCUMENTS)
        return DocumentRows(path, self._document_count(shard))

    def tables(self, shards: Sequence[int]) -> Iterator[tuple[int, DocumentRows]]:
        """Yield shards with their tables of documents.

        Args:
            shards: Numbers of the shards in `shards`.
        """
        for group in self._groups(shards):
            tables = self.access.each(self.table, group)
            yield from zip(group, tables, strict=True)

    def first_document(self, shard: int) -> int:
        """Return the number of a shard's first document in the corpus.

        With shards (parts of the corpus) of 3, 2 and 4 documents, these are 0, 3 and 5. To know it,
        the numbers of documents of all earlier shards may have to be read.

        Args:
            shard: Number of the shard in `shards`. For the number after the last one, the number of
                documents in the corpus is returned.
        """
        while self._n_known_shards < shard:
            self._read_more_counts()
        return self._first_documents[shard]

    @property
    def _n_known_shards(self) -> int:
        """How many shards, from the first on, have a count of documents that is known."""
        return len(self._first_documents) - 1  # the last entry is the end of these shards

    def _read_more_counts(self) -> None:
        """Find out how many documents the next shard has, or in a bucket the next shards."""
        unknown_shards = range(self._n_known_shards, len(self.shards))
        next_group = next(self._groups(unknown_shards))
        for count in self.access.each(self._document_count, next_group):
            stop = self._first_documents[-1] + count
            self._first_documents.append(stop)

    def _groups(self, shards: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield shards in groups, whose files are downloaded at the same time.

        The dataset of a corpus consists of parts, the shards. In a bucket, each request takes a
        while, so many are sent at once: 300 shards are yielded in groups of 128, 128 and 44. On a
        disk, nothing would be gained, and with little room for downloads, each shard is alone.

        Args:
            shards: Numbers of shards.
        """
        size = 1
        if self.access.takes_requests and not self.access.is_space_limited:
            size = _SHARDS_AT_ONCE
        for start in range(0, len(shards), size):
            yield shards[start : start + size]

    def origins(self, documents: Sequence[int]) -> list[DocumentOrigin]:
        """Return where documents of a dataset came from: the file and line of each.

        If the dataset is a view, a selection of the documents of a corpus, it has numbers of its
        own:

            document of the view    document of the corpus    file and line
            0                       4                         a.jsonl:5
            1                       9                         b.jsonl:2

        Args:
            documents: Numbers of documents in the dataset. If it is packed (filled into sequences
                of one length), numbers in the dataset that was packed.

        Returns:
            The origins, in the order of the request.

        Raises:
            SampleIndexError: The dataset has no such document.
        """
        dataset = self._unpacked
        if dataset.is_whole_corpus:
            return self._corpus_origins(documents)  # checks the numbers

        self._check_numbers_in_view(documents)
        corpus_numbers = dataset.corpus_documents(np.array(documents, np.int64)).tolist()
        origins = self._corpus_origins(corpus_numbers)
        return [
            replace(origin, view=dataset.name, view_document=document)
            for origin, document in zip(origins, documents, strict=True)
        ]

    def _check_numbers_in_view(self, documents: Sequence[int]) -> None:
        """Check that documents exist in the view that the dataset is.

        Args:
            documents: Numbers in the view.

        Raises:
            SampleIndexError: The view has no such document.
        """
        view = self._unpacked
        n_documents = len(view.layout.document_indices) - 1
        for document in documents:
            if not 0 <= document < n_documents:
                raise self._no_such_document(document, view.manifest)

    def _corpus_origins(self, documents: Sequence[int]) -> list[DocumentOrigin]:
        """Return where documents of a corpus came from: the file and line of each.

        Args:
            documents: Numbers in the corpus.

        Returns:
            One origin for each requested document, in the order of the request, also if a document
            is requested twice.

        Raises:
            SampleIndexError: The corpus has no such document.
        """
        rows_by_shard = self._rows_by_shard(documents)
        origins_by_shard = self._read_tables(rows_by_shard)
        all_origins = chain.from_iterable(origins_by_shard)
        origin_by_document = {origin.document: origin for origin in all_origins}
        return [origin_by_document[document] for document in documents]

    def _read_tables(
        self, rows_by_shard: Mapping[int, Mapping[int, int]]
    ) -> Iterable[list[DocumentOrigin]]:
        """Read where documents of several shards came from, from several tables at the same time.

        A table takes some ten megabytes of memory, so only four (_TABLES_AT_ONCE) are read at the
        same time. From a bucket, more can be downloaded meanwhile.

        Args:
            rows_by_shard: Shard → number of a document in the corpus → its row in the table of the
                shard.

        Returns:
            The origins of the documents of each shard, in the order of `rows_by_shard`.
        """
        reading = Semaphore(_TABLES_AT_ONCE)

        def read(shard: int) -> list[DocumentOrigin]:
            """Return where the documents that are requested from one shard came from."""
            return self._origins_in_shard(shard, rows_by_shard[shard], reading)

        is_in_bucket = self.access.takes_requests
        if is_in_bucket:
            return self.access.each_copy(read, rows_by_shard)
        return in_parallel(read, rows_by_shard, _TABLES_AT_ONCE)

    def _origins_in_shard(
        self, shard: int, row_by_document: Mapping[int, int], reading: Semaphore
    ) -> list[DocumentOrigin]:
        """Return where some documents of a shard came from, by reading rows of the shard's table.

        A shard is a part of a corpus. Its table has a row for each of its documents, with the file
        and line: `a.jsonl`, 5.

        Args:
            shard: Number of the shard in `shards`.
            row_by_document: Number of each document in the corpus → its row in this table.
            reading: Limits how many tables are read at the same time, to bound memory.
        """
        table = self.table(shard)  # downloads the table, if it is in a bucket
        with reading:
            rows = table.read(list(row_by_document.values()))
        return [
            self._origin_of_row(shard, document, row)
            for document, row in zip(row_by_document, rows, strict=True)
        ]

    def _rows_by_shard(self, documents: Sequence[int]) -> dict[int, dict[int, int]]:
        """Find out in which shard each document is, and in which row of the shard's table.

        A corpus is divided into shards. For example, shard 0 has the documents 0, 1 and 2, and
        shard 1 has 3 and 4. Then the documents 4, 0 and 3 give:

            shard 1    document 4 is in row 1, document 3 in row 0
            shard 0    document 0 is in row 0

        Args:
            documents: Numbers in the corpus, in any order.

        Returns:
            Shard → document → row: here {1: {4: 1, 3: 0}, 0: {0: 0}}.

        Raises:
            SampleIndexError: The corpus has no such document.
        """
        rows_by_shard: dict[int, dict[int, int]] = {}
        for document in map(int, documents):
            place = self.place(document)
            row_by_document = rows_by_shard.setdefault(place.shard, {})
            row_by_document[document] = place.row
        return rows_by_shard

    def find_number(self, number: int) -> Iterator[DocumentOrigin]:
        """Yield the document with a number in the corpus, once for each copy in the dataset.

        The dataset may be a view, which has none, one or several copies of it.

        Args:
            number: The number. If the corpus has no such document, nothing is yielded.
        """
        if 0 <= number < self.dataset.facts["documents"]:
            yield from self._copies(self._corpus_origins([number])[0])

    def find_id(self, identity: str) -> Iterator[DocumentOrigin]:
        """Yield the documents with an id, once for each copy in the dataset.

        This takes longer than the other searches, since the ids of all shards are read.

        Args:
            identity: The id, a field of the raw text.
        """
        yield from self._search(range(len(self.shards)), {"id": identity})

    def find_line(self, file: str, line: int, shards: Sequence[int]) -> Iterator[DocumentOrigin]:
        """Yield the document that was read from a certain line of a file, or from a row of a table.

        The line may have no document, or, if the dataset repeats documents, several copies of it.

        Args:
            file: Path of the file, relative to the corpus's folder.
            line: Number of the line or row, from 1.
            shards: The shards (parts of the corpus) that may have the document.
        """
        number_in_table = self._line_in_table(file, line)
        for origin in self._search(shards, {"file": file, "line": number_in_table}):
            # If lines are counted in pieces of the file, each piece has a line with this number.
            if origin.line == line:
                yield origin

    def _line_in_table(self, file: str, line: int) -> int:
        """Return the number that the tables of shards have for a line of a file.

        Usually, it is the same. But some large files were cut into pieces without counting their
        lines first. Their lines are numbered in the piece: if the first piece has 5 lines, line 7
        is line 2 of the second piece.

        Args:
            file: Path of the file, relative to the corpus's folder.
            line: Number of the line in the file, from 1.
        """
        line_in_piece = self.numbers.in_piece(file, line)  # None for the usual files
        return line if line_in_piece is None else line_in_piece.line

    def _search(
        self, shards: Sequence[int], values: Mapping[str, str | int]
    ) -> Iterator[DocumentOrigin]:
        """Find documents by a value such as their id, in the tables of the documents.

        Args:
            shards: The shards (parts of the corpus) to search. Each has a table with a row for each
                document, with its file, line and id.
            values: Column → value, such as {"id": "doc-17"}.

        Yields:
            The documents. If the dataset is a selection of the corpus, it may have a document
            several times, or not at all.
        """
        for shard, table in self.tables(shards):
            for row, row_values in table.search(values):
                number_in_corpus = self.first_document(shard) + row
                corpus_origin = self._origin_of_row(shard, number_in_corpus, row_values)
                yield from self._copies(corpus_origin)

    def _copies(self, origin: DocumentOrigin) -> Iterator[DocumentOrigin]:
        """Yield a document of the corpus once for each copy of it in the dataset.

        The dataset may be a view, a selection of the corpus's documents, which has the document not
        at all, or several times: document 40 of the corpus may be the documents 3 and 9 of the
        view.

        Args:
            origin: The document: its number in the corpus, its file and line.
        """
        view = self._unpacked
        if view.is_whole_corpus:
            yield origin
            return
        for number in view.copies_of(origin.document).tolist():
            yield replace(origin, view=view.name, view_document=number)

    def _origin_of_row(
        self, shard: int, document: int, values: Mapping[str, Any]
    ) -> DocumentOrigin:
        """Return where a document came from, from its row in the table of its shard.

        Args:
            shard: Number of the shard, a part of the corpus, in `shards`.
            document: Number in the corpus.
            values: Column → value in its row of the shard's table.
        """
        file = values["file"]
        byte_offset = values["byte_offset"]
        # Large files were cut into pieces, and the table may count lines within a piece. If the
        # first piece has 5 lines, line 2 of the second one is line 7 of the file.
        line_in_file = self.numbers.in_file(file, byte_offset, values["line"])
        return DocumentOrigin(
            corpus=self.corpus,
            document=document,
            file=file,
            line=line_in_file,
            byte_offset=byte_offset,
            id=values["id"],
            tokens=values["tokens"],
            shard=self.shards[shard],
        )

    def _document_count(self, shard: int) -> int:
        """Return how many documents a shard, a part of the corpus, has.

        It is in the manifest of the shard, a JSON file that describes it: {"facts": {"documents":
        1000, …}, …}.

        Args:
            shard: Number of the shard in `shards`.

        Raises:
            MissingError: The manifest is missing or damaged.
        """
        if shard < self._n_known_shards:
            return self._first_documents[shard + 1] - self._first_documents[shard]

        # Take this one number from the JSON of the manifest. `Manifest.load` would also check all
        # other entries, which takes too long for the thousands of shards of a corpus.
        path = self.access.fetch(self.folder(shard) / MANIFEST)
        try:
            return int(orjson.loads(read_regular(path))["facts"]["documents"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MissingError(
                "the manifest of a shard of the dataset is missing or damaged",
                where=self.access.url(path),
                found=repr(error),
                remedy="run `nanoset build`: it rebuilds the shard",
            ) from error
