"""Make outputs that exist once for each shard of a corpus, such as the tables of its columns.

The manifest of another output lists them by digest. If text is appended to a corpus, only the
outputs of the new shards are made; the others are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Amount
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.shard_sets import each_shard, some_shards

T = TypeVar("T")
"""What is needed of an existing output."""
Task = TypeVar("Task")
"""Everything that a worker needs to make one output."""
Made = TypeVar("Made")
"""What a worker returns for an output that it made."""


def find_existing(
    project: Project, recipes: Sequence[Recipe], read: Callable[[Manifest], T]
) -> list[T | None]:
    """Find the outputs that exist and are whole, and read something from each of them.

    Args:
        project: The project. If it is set to `rebuild`, no output counts as existing.
        recipes: Recipe of the output of each shard, all of one stage and name.
        read: Returns what the caller needs, given the manifest of an output.

    Returns:
        What `read` returned for each shard, or None if its output has to be made.
    """
    if not recipes:
        return []

    def look(outputs: OutputRoot, folder: Path) -> T | None:
        if project.rebuild:
            return None
        manifest = outputs.find_at(folder)
        return None if manifest is None else read(manifest)

    digests = [recipe.digest for recipe in recipes]
    return project.outputs.each_version(look, recipes[0].stage, recipes[0].name, digests)


def make_missing(
    project: Project,
    missing: Sequence[int],
    task_of: Callable[[int], Task],
    work: Callable[[Task], Made],
    on_made: Callable[[int, Made], None],
    executor: Executor | None,
) -> None:
    """Make the outputs of some shards in worker processes.

    Args:
        project: The project.
        missing: Numbers of the shards.
        task_of: Returns the task of a shard, given its number.
        work: Makes one output in a worker process, given its task.
        on_made: Called when an output is finished, in any order, with the number of its shard and
            what `work` returned.
        executor: Runs the tasks; None for processes on this machine.
    """
    tasks = (task_of(number) for number in missing)
    for task_number, made in run_tasks(work, tasks, project.config.workers, executor):
        on_made(missing[task_number], made)


class Sharded(NamedTuple):
    """The dataset of a corpus, and which of its documents are in each shard."""

    dataset: Manifest
    """Manifest of the dataset."""
    tokenized: Manifest
    """Manifest of the set of its shards."""
    firsts: NDArray[np.int64]
    """Number of each shard's first document, and at the end n_documents; shape (n_shards + 1,)."""

    @staticmethod
    def of(project: Project, dataset: Manifest) -> Sharded:
        """Find the shards of a dataset, and count their documents.

        Raises:
            MissingError: The set of shards, or a shard, was deleted.
            FormatError: The current set cannot be read.
        """
        tokenized = shards_of(project.outputs, dataset)
        counts = each_shard(project, dataset.name, tokenized.facts[SHARDS], _documents_of)
        return Sharded(dataset, tokenized, np.cumsum([0, *counts]))

    @property
    def shards(self) -> Sequence[str]:
        """Digests of the shards, in document order."""
        shards: Sequence[str] = self.tokenized.facts[SHARDS]
        return shards

    def places(self, project: Project, documents: Sequence[int]) -> list[dict[str, Any]]:
        """Return where documents come from in the raw text.

        Args:
            project: The project.
            documents: Numbers of documents in the dataset, ascending.

        Returns:
            A row with the columns of `PLACE` for each document.
        """
        line_numbers = LineNumbers.of(self.tokenized.facts)
        numbers = np.array(documents, np.int64)  # (n_documents,)
        shard_of_document = np.searchsorted(self.firsts, numbers, side="right") - 1
        places: list[dict[str, Any]] = []
        for shard in np.unique(shard_of_document).tolist():
            first = int(self.firsts[shard])
            rows = (numbers[shard_of_document == shard] - first).tolist()

            # The table of a shard's documents has a row for each, which says where it was read.
            [manifest] = some_shards(project, self.tokenized.name, self.shards[shard : shard + 1])
            table = DocumentRows(manifest.path(DOCUMENTS), manifest.facts["documents"])
            for row, origin in zip(rows, table.read(rows), strict=True):
                file = origin["file"]
                line = line_numbers.in_file(file, origin["byte_offset"], origin["line"])
                place = {"document": first + row, "file": file, "line": line, "id": origin["id"]}
                places.append(place)
        return places


def _documents_of(shard: Manifest) -> int:
    """Return the number of documents of a shard."""
    return int(shard.facts["documents"])


PLACE = (("document", "int64"), ("file", "string"), ("line", "int64"), ("id", "string"))
"""Name and type of each column of `Sharded.places`."""


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[tuple[str, str]]
) -> None:
    """Write rows as a Parquet file.

    Args:
        path: Path of the file.
        rows: The rows; each maps names of columns to values.
        columns: Name and type of each column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, pa.schema(list(columns)))
    pq.write_table(table, path, compression="zstd")


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Everything that a worker needs to make an output from the documents of one shard."""

    root: OutputRoot
    """The output root."""
    recipe: Recipe
    """Recipe of the output."""
    dataset: Manifest
    """Manifest of the dataset that contains the documents."""
    first: int
    """Number of the shard's first document in the dataset."""
    count: int
    """Number of documents of the shard."""


def make_per_shard(
    project: Project,
    sharded: Sharded,
    recipes: Sequence[Recipe],
    work: Callable[[DocumentsTask], object],
    label: tuple[str, str],
) -> list[str]:
    """Make an output from the documents of each shard of a dataset, unless it exists.

    Args:
        project: The project.
        sharded: The dataset and its shards.
        recipes: Recipe of the output of each shard.
        work: Makes one output in a worker process.
        label: Name of the asset and of the subject, which are shown with the progress.

    Returns:
        The digest of each shard's output.
    """
    firsts = sharded.firsts.tolist()
    counts = np.diff(sharded.firsts).tolist()
    found = find_existing(project, recipes, lambda manifest: True)
    missing = [number for number, exists in enumerate(found) if not exists]
    n_missing = sum(counts[number] for number in missing)
    activity, subject = label
    progress = project.progress.work(activity, subject, firsts[-1], "documents")
    progress.add_existing(Amount(firsts[-1] - n_missing))

    def task_of(number: int) -> DocumentsTask:
        return DocumentsTask(
            project.outputs, recipes[number], sharded.dataset, firsts[number], counts[number]
        )

    def report(number: int, made: object) -> None:
        progress.advance(counts[number])

    make_missing(project, missing, task_of, work, report, project.executor)
    return [recipe.digest for recipe in recipes]
