"""Outputs that exist once for each shard of a corpus: find those that exist, make the others, and
use all of them.

The manifest of another output lists them by digest. After an append, only those of new shards are
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.shard_sets import each_shard, some_shards

T = TypeVar("T")
Task = TypeVar("Task")
Made = TypeVar("Made")


def find_existing(
    project: Project, recipes: Sequence[Recipe], read: Callable[[Manifest], T]
) -> list[T | None]:
    """Return what is needed of each output that exists and is whole; None for each that has to be
    made.

    Args:
        project: The project; with `rebuild`, all have to be made.
        recipes: One for each shard, of one stage and name.
        read: Returns what is needed of an output.
    """
    if not recipes:
        return []

    def look(outputs: OutputRoot, folder: Path) -> T | None:
        manifest = None if project.rebuild else outputs.find_at(folder)
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
        task_of: Returns the task of a shard, by its number.
        work: Makes one output, in a worker process.
        on_made: Called with the number of a shard, and what `work` returned for it, as outputs are
            finished.
        executor: Runs the tasks; None for processes of this machine.
    """
    tasks = (task_of(number) for number in missing)
    for task_number, made in run_tasks(work, tasks, project.config.workers, executor):
        on_made(missing[task_number], made)


class Sharded(NamedTuple):
    """The dataset of a corpus, and which of its documents are in each shard."""

    dataset: Manifest
    tokenized: Manifest
    """The set of its shards."""
    firsts: NDArray[np.int64]
    """Number of the first document of each shard, and the number of documents, int64, shape
    (n_shards + 1,).
    """

    @staticmethod
    def of(project: Project, dataset: Manifest) -> Sharded:
        """Look the shards of a dataset up.

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
        """Return where some documents come from: their number, file, line and id.

        Args:
            project: The project.
            documents: Numbers of documents, ascending.
        """
        line_numbers = LineNumbers.of(self.tokenized.facts)
        # (n_documents,)
        shard_of_document = np.searchsorted(self.firsts, documents, side="right") - 1
        places = []
        for shard in np.unique(shard_of_document).tolist():
            first = int(self.firsts[shard])
            rows = [
                documents[number] - first
                for number in np.flatnonzero(shard_of_document == shard).tolist()
            ]
            [manifest] = some_shards(project, self.tokenized.name, self.shards[shard : shard + 1])
            table = DocumentRows(manifest.path(DOCUMENTS), manifest.facts["documents"])
            for row, origin in zip(rows, table.read(rows), strict=True):
                line = line_numbers.in_file(origin["file"], origin["byte_offset"], origin["line"])
                places.append(
                    {
                        "document": first + row,
                        "file": origin["file"],
                        "line": line,
                        "id": origin["id"],
                    }
                )
        return places


def _documents_of(shard: Manifest) -> int:
    """Return the number of documents of a shard."""
    return int(shard.facts["documents"])


PLACE = (("document", "int64"), ("file", "string"), ("line", "int64"), ("id", "string"))
"""Columns of `Sharded.places`, and their types."""


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[tuple[str, str]]
) -> None:
    """Write rows as a Parquet file.

    Args:
        path: Of the file.
        rows: Column → value of each row.
        columns: Name and type of each column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, pa.schema(list(columns)))
    pq.write_table(table, path, compression="zstd")


@dataclass(frozen=True, slots=True)
class DocumentsTask:
    """Everything that a worker needs to look at the documents of one shard in its dataset."""

    root: OutputRoot
    recipe: Recipe
    """Of the output that is made."""
    dataset: Manifest
    first: int
    """Number of the shard's first document in the dataset."""
    count: int
    """Documents of the shard."""


def make_per_shard(
    project: Project,
    sharded: Sharded,
    recipes: Sequence[Recipe],
    work: Callable[[DocumentsTask], object],
    label: tuple[str, str],
) -> list[str]:
    """Make an output for each shard of a dataset from the shard's documents, unless it exists;
    return all digests.

    Args:
        project: The project.
        sharded: The dataset and its shards.
        recipes: Recipe of the output of each shard.
        work: Makes one, in a worker process.
        label: The asset and the subject, for progress.
    """
    firsts = sharded.firsts.tolist()
    counts = np.diff(sharded.firsts).tolist()
    exists = find_existing(project, recipes, lambda manifest: True)
    missing = [number for number, is_there in enumerate(exists) if not is_there]
    n_documents = firsts[-1]
    n_done = n_documents - sum(counts[number] for number in missing)

    def task_of(number: int) -> DocumentsTask:
        return DocumentsTask(
            project.outputs, recipes[number], sharded.dataset, firsts[number], counts[number]
        )

    def report(number: int, made: object) -> None:
        nonlocal n_done
        n_done += counts[number]
        project.listener(Progress(*label, n_done, n_documents, "documents"))

    make_missing(project, missing, task_of, work, report, project.executor)
    return [recipe.digest for recipe in recipes]
