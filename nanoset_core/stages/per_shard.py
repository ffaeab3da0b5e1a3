"""What is known of each document of a dataset by its tokens: an output for each shard, that another output names.

After an append the new shards alone are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.document_table import DocumentRows, LineNumbers
from nanoset_core.stages.shards.shards import DOCUMENTS


class Sharded(NamedTuple):
    """A dataset, and where the documents of each shard lie in it."""

    dataset: Manifest
    tokenized: Manifest
    """The set of its shards."""
    firsts: NDArray[np.int64]
    """Number of the first document of each shard, and behind the last one their count, int64."""

    @staticmethod
    def of(project: Project, dataset: Manifest) -> Sharded:
        """Look the shards of a corpus's dataset up; raises as `shards_of` and `each_shard`."""
        tokenized = shards_of(project.outputs, dataset)
        counts = tokenization.each_shard(
            project, dataset.name, tokenized.facts[tokenization.SHARDS], lambda shard: int(shard.facts["documents"])
        )
        return Sharded(dataset, tokenized, np.cumsum([0, *counts]))

    @property
    def shards(self) -> Sequence[str]:
        """Digests of the shards, in order."""
        shards: Sequence[str] = self.tokenized.facts[tokenization.SHARDS]
        return shards

    def places(self, project: Project, documents: Sequence[int]) -> list[dict[str, Any]]:
        """Return number, file, line and id of some documents, ascending."""
        numbers, found = LineNumbers.of(self.tokenized.facts), list[dict[str, Any]]()
        at = np.searchsorted(self.firsts, documents, side="right") - 1
        for shard, members in groupby(range(len(documents)), at.tolist().__getitem__):
            own = [documents[number] - int(self.firsts[shard]) for number in members]
            [one] = tokenization.some_shards(project, self.tokenized.name, self.shards[shard : shard + 1])
            rows = DocumentRows(one.path(DOCUMENTS), one.facts["documents"]).read(own)
            for row, origin in zip(own, rows, strict=True):
                line = numbers.in_file(origin["file"], origin["byte_offset"], origin["line"])
                place = {"document": int(self.firsts[shard]) + row, "file": origin["file"], "line": line}
                found.append({**place, "id": origin["id"]})
        return found


PLACE = (("document", "int64"), ("file", "string"), ("line", "int64"), ("id", "string"))
"""Columns of `Sharded.places`, and their types."""


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[tuple[str, str]]) -> None:
    """Write rows as Parquet; columns: name and type of each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(columns))), path, compression="zstd")


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to look at the documents of one shard."""

    root: OutputRoot
    recipe: Recipe
    """Of what is made."""
    dataset: Manifest
    """That holds its documents."""
    first: int
    """Number of its first document there."""
    count: int


def made_by_shard(
    project: Project,
    sharded: Sharded,
    recipes: Sequence[Recipe],
    work: Callable[[ShardTask], object],
    label: tuple[str, str],
) -> list[str]:
    """Make what a recipe for each shard says, where it is not there; return the digests.

    work: makes one, in a worker process.
    label: the asset and the subject, for progress.
    """
    outputs, digests, firsts = project.outputs, [one.digest for one in recipes], sharded.firsts.tolist()

    def is_there(outputs: OutputRoot, place: Path) -> bool:
        return not project.rebuild and outputs.find_at(place) is not None

    there = outputs.each_version(is_there, recipes[0].stage, recipes[0].name, digests) if recipes else []
    missing = [number for number, found in enumerate(there) if not found]
    counts = np.diff(sharded.firsts).tolist()
    tasks = (ShardTask(outputs, recipes[k], sharded.dataset, firsts[k], counts[k]) for k in missing)
    done = firsts[-1] - sum(counts[number] for number in missing)
    for place, _ in run_tasks(work, tasks, project.config.workers, project.executor):
        done += counts[missing[place]]
        project.listener(Progress(*label, done, firsts[-1], "documents"))
    return digests
