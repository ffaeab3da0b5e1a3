"""The shards that the dataset of a corpus consists of, and which of its documents are in each.

A shard is made from a range of the raw text. For example, the documents 0 to 999 of a dataset are
those of its first shard, and the documents 1000 to 1749 those of the second. After text has been
appended to the corpus, outputs have to be made for new shards only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.progress import Amount
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.per_shard import SHARDS, PerShard, PerShardTask, make_per_shard
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import each_shard, some_shards


class Sharded(NamedTuple):
    """The dataset of a corpus, and which of its documents are in each shard.

    Stages use this to make an output for each shard, and to look up the file and line of documents.
    All shards are checked first, so that an output is never made from a damaged corpus.

    `Lineage` in `nanoset_core/lineage/documents.py` is for commands that answer questions about a
    few documents, such as `nanoset explain`. It opens only the shards of these documents.
    """

    dataset: Manifest
    """Manifest of the dataset."""
    tokenized: Manifest
    """Manifest of the set of its shards."""
    document_bounds: NDArray[np.int64]
    """Number of each shard's first document, and at the end n_documents; shape (n_shards + 1,)."""

    @staticmethod
    def of(project: Project, dataset: Manifest) -> Sharded:
        """Find the shards that a dataset was merged from, and count the documents of each.

        A corpus is tokenized in parts, the shards, which are then merged to one dataset. With
        shards of 3 and 2 documents, the documents of the dataset are numbered like this:

            shard 0: documents 0, 1, 2      shard 1: documents 3, 4      document_bounds: [0, 3, 5]

        Args:
            project: The project.
            dataset: Manifest of the dataset, which describes it.

        Raises:
            MissingError: The list of shards, or a shard, was deleted.
            FormatError: The list of shards cannot be read.
        """
        tokenized = shards_of(project.outputs, dataset)
        n_documents = each_shard(project, dataset.name, tokenized.facts[SHARDS], _documents_of)
        document_bounds = np.cumsum([0, *n_documents])  # counts 3 and 2 give the bounds 0 3 5
        return Sharded(dataset, tokenized, document_bounds)

    @property
    def shards(self) -> Sequence[str]:
        """Digests of the shards, in document order."""
        shards: Sequence[str] = self.tokenized.facts[SHARDS]
        return shards

    def places(self, project: Project, documents: Sequence[int]) -> list[dict[str, Any]]:
        """Look up from which file and line of the raw text documents were read.

        For example, document 1007 of a dataset comes from line 12 of `a.jsonl`. Each shard of the
        dataset has a table that says so for its own documents, so the documents are looked up shard
        by shard.

        Args:
            project: The project.
            documents: Numbers of documents in the dataset, ascending.

        Returns:
            For each document, such as
            `{"document": 1007, "file": "a.jsonl", "line": 12, "id": "doc-17"}`.
        """
        document_numbers = np.array(documents, np.int64)  # (n_documents,)
        shard_of_document = self._shards_with(document_numbers)  # (n_documents,)
        line_numbers = LineNumbers.of(self.tokenized.facts)
        places: list[dict[str, Any]] = []
        for shard in np.unique(shard_of_document).tolist():
            documents_of_shard = document_numbers[shard_of_document == shard]
            places += self._places_in_shard(project, shard, documents_of_shard, line_numbers)
        return places

    def _shards_with(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard that contains each document.

        Args:
            documents: Numbers of documents in the dataset, shape (n_documents,).
        """
        return np.searchsorted(self.document_bounds, documents, side="right") - 1

    def _places_in_shard(
        self, project: Project, shard: int, documents: NDArray[np.int64], line_numbers: LineNumbers
    ) -> Iterator[dict[str, Any]]:
        """Yield the file and line that documents of one shard were read from.

        The shard has a table with a row for each of its documents. If the shard starts with
        document 1000 of the dataset, document 1007 is in row 7:

            row    file       byte_offset    line    id
            7      a.jsonl    4096           3       doc-17

        Args:
            project: The project.
            shard: Number of the shard.
            documents: Numbers of its documents in the dataset, ascending, shape (n_documents,).
            line_numbers: Several processes may have read a large file in pieces, each of which
                counts its own lines. This converts such a number to the number in the file.
        """
        digest = self.shards[shard]
        [manifest] = some_shards(project, self.tokenized.name, [digest])
        table = DocumentRows(manifest.path(DOCUMENTS), manifest.facts["documents"])
        first_document = self.document_bounds[shard]  # 1000
        rows = table.read((documents - first_document).tolist())
        for document, row in zip(documents.tolist(), rows, strict=True):
            file = row["file"]
            yield {
                "document": document,
                "file": file,
                "line": line_numbers.in_file(file, row["byte_offset"], row["line"]),
                "id": row["id"],
            }


def _documents_of(shard: Manifest) -> int:
    """Return the number of documents of a shard."""
    return int(shard.facts["documents"])


PLACE = (("document", "int64"), ("file", "string"), ("line", "int64"), ("id", "string"))
"""Name and type of each column of `Sharded.places`."""


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[tuple[str, str]]
) -> None:
    """Write rows as a Parquet file.

    For example, the row `{"document": 11, "file": "a.jsonl"}` with the columns `("document",
    "int64")` and `("file", "string")`.

    Args:
        path: Path of the file.
        rows: The rows; each maps names of columns to values.
        columns: Name and type of each column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, pa.schema(list(columns)))
    pq.write_table(table, path, compression="zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsTask(PerShardTask):
    """Everything that a worker needs to make an output from the documents of one shard."""

    dataset: Manifest
    """Manifest of the dataset that contains the documents."""
    first: int
    """Number of the shard's first document in the dataset."""
    count: int
    """Number of documents of the shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputsOfDocuments(PerShard[int, None]):
    """Outputs that are made from the documents of each shard of a dataset."""

    project: Project
    """The project."""
    sharded: Sharded
    """The dataset and its shards."""
    recipes: Sequence[Recipe]
    """Recipe of the output of each shard."""
    new_task: Callable[..., DocumentsTask]
    """Returns the task of a shard, given the fields of `DocumentsTask` as keyword arguments."""

    def shards(self) -> Iterable[int]:
        """Return the numbers of the shards."""
        return range(len(self.recipes))

    def recipe(self, shard: int) -> Recipe:
        return self.recipes[shard]

    def task(self, shard: int, recipe: Recipe) -> DocumentsTask:
        return self.new_task(
            root=self.project.outputs,
            recipe=recipe,
            dataset=self.sharded.dataset,
            first=int(self.sharded.document_bounds[shard]),
            count=self._document_count(shard),
        )

    def result(self, manifest: Manifest) -> None:
        """Keep nothing of an output: its digest is known from its recipe.

        Args:
            manifest: Not used.
        """

    def amount(self, shard: int, result: None) -> Amount:
        return Amount(self._document_count(shard))

    def _document_count(self, shard: int) -> int:
        """Return the number of documents of a shard, by its number."""
        bounds = self.sharded.document_bounds
        return int(bounds[shard + 1] - bounds[shard])


def make_of_documents(
    project: Project,
    sharded: Sharded,
    recipes: Sequence[Recipe],
    new_task: Callable[..., DocumentsTask],
    *,
    activity: str,
    subject: str,
) -> list[str]:
    """Make an output for each shard of a dataset from the documents in it, such as their hashes.

    A dataset is divided into shards. Here it has two, of 3 and 2 documents:

        shard    documents of the dataset    what is made
        0        0, 1, 2                     hashes of these three
        1        3, 4                        hashes of these two

    Worker processes make the outputs. Those that exist already are kept.

    Args:
        project: The project.
        sharded: The dataset and its shards.
        recipes: For each shard, everything that decides the bytes of its output. The folder of the
            output is named by the digest of this.
        new_task: Creates the task of one shard, which is sent to a worker. It is called with the
            fields of `DocumentsTask`: the dataset, the first document and the number of documents.
        activity: What is being done, for the progress, such as "hash".
        subject: What it is done to, for the progress, such as the name of the corpus.

    Returns:
        The digest of each shard's output, by which it is found.
    """
    outputs = _OutputsOfDocuments(
        project=project, sharded=sharded, recipes=recipes, new_task=new_task
    )
    n_documents = int(sharded.document_bounds[-1])
    make_per_shard(
        outputs,
        project.outputs,
        project.progress.work(activity, subject, n_documents, "documents"),
        workers=project.config.workers,
        executor=project.executor,
    )
    return [recipe.digest for recipe in recipes]
