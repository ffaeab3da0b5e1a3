"""Make a table of columns for each shard of a corpus, and the output that lists these tables.

A shard is made from a range of the corpus's text. Row k of its table belongs to its document k.
After an append, only the tables of new shards are made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Amount
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.columns.column_table import TABLE, ColumnTable
from nanoset_core.stages.per_shard import (
    SHARDS,
    MadePerShard,
    PerShard,
    PerShardTask,
    make_per_shard,
)
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.stage import size_bytes
from nanoset_core.text.tables.values import joined

ESCAPED = "escaped"
"""Fact of an output: how many values are bytes that are not UTF-8; left out if there are none."""
Fill = Callable[[ColumnTable, DocumentRows], Mapping[str, Any]]
"""Fills the table of a shard, given the table of its documents; returns further facts of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTask(PerShardTask):
    """Everything that a worker needs to make the table of one shard."""

    shard: Manifest
    """The tokens of the documents, and the table of these documents."""
    names: Sequence[str]
    """Names of the columns."""
    fill: Fill
    """Fills the table."""

    def write(self, folder: Path) -> Written:
        """Write a table with values of documents, such as their languages.

        It has a row for each document of a shard, which is a part of a corpus, in the same order:

            document    language    score
            0           en          0.7
            1           de          0.2

        Args:
            folder: The folder that gets the file.

        Returns:
            What is recorded of the table: its number of rows, and the type of each column.

        Raises:
            FormatError: The table would not have the rows of the shard's documents.
        """
        # The shard may have been found on another machine, where its folder has another path.
        shard = self.root.rebase(self.shard)
        documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        with ColumnTable(folder / TABLE, self.names) as table:
            further_facts = self.fill(table, documents)  # adds the rows, such as from the raw text
        return Written({"documents": table.rows, "columns": table.facts, **further_facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOfShards(PerShard[int, Mapping[str, Any]]):
    """The tables of an output, one for each shard of a corpus; of each, its facts are needed.

    A stage says in a class of its own how these tables are filled.
    """

    root: OutputRoot
    """The outputs of the project."""
    output_recipe: Recipe
    """Recipe of the output that lists the tables; these have its options and its version."""
    folder: str
    """Folder of the tables, below the root."""
    corpus_shards: Sequence[Manifest]
    """Shards of the corpus."""
    names: Sequence[str]
    """Names of the columns."""

    @abstractmethod
    def fill_of(self, shard: int) -> Fill:
        """Return the function that fills the table of a shard.

        Args:
            shard: Number of the shard.
        """

    def shards(self) -> Iterable[int]:
        """Return the numbers of the shards."""
        return range(len(self.corpus_shards))

    def recipe(self, shard: int) -> Recipe:
        output = self.output_recipe
        parents = {"shard": self.corpus_shards[shard].digest}
        return Recipe(self.folder, output.name, output.version, parents, output.options)

    def task(self, shard: int, recipe: Recipe) -> TableTask:
        return TableTask(
            root=self.root,
            recipe=recipe,
            shard=self.corpus_shards[shard],
            names=self.names,
            fill=self.fill_of(shard),
        )

    def result(self, manifest: Manifest) -> Mapping[str, Any]:
        """Return the facts of a table, and its size.

        Args:
            manifest: Manifest of the table.
        """
        return {**manifest.facts, "bytes": size_bytes(manifest)}

    def amount(self, shard: int, result: Mapping[str, Any]) -> Amount:
        return Amount(1)


def make_tables(
    project: Project, tables: TablesOfShards, activity: str, executor: Executor | None
) -> MadePerShard[Mapping[str, Any]]:
    """Make the tables of an output that do not exist yet, in parallel, and show the progress.

    Args:
        project: The project, to whose outputs the tables are added.
        tables: Which tables there are, and how to fill each of them.
        activity: Text that is shown with the progress, such as "columns".
        executor: A cluster that makes the tables; None for worker processes of this machine.

    Returns:
        What is recorded of each table, such as its number of rows, and which tables existed.
    """
    corpus = tables.output_recipe.name
    n_tables = len(tables.corpus_shards)
    progress = project.progress.work(activity, corpus, n_tables, unit="shards")
    return make_per_shard(
        tables, project.outputs, progress, workers=project.config.workers, executor=executor
    )


def record_tables(
    project: Project,
    tables: TablesOfShards,
    table_facts: Sequence[Mapping[str, Any]],
    further_facts: Mapping[str, Any] | None = None,
) -> Manifest:
    """Record which tables belong together, so that the columns of all documents can be read.

    The documents of a corpus are in several parts, and each part has a table of its own, in a
    folder that is named by a digest. The record, a manifest, has the sums over all tables:

        {"documents": 1200, "columns": […], "shards": ["0a1b…", "77cd…"]}

    Args:
        project: The project, to whose outputs the record is added.
        tables: Which tables there are.
        table_facts: What is recorded of each table, such as its number of rows.
        further_facts: Further entries of the record.

    Returns:
        The record.
    """
    facts = _total_facts(tables.names, table_facts)
    if further_facts is not None:
        facts |= further_facts
    facts[SHARDS] = [tables.recipe(shard).digest for shard in tables.shards()]
    return project.outputs.commit_record(tables.output_recipe, facts)


def _total_facts(
    names: Sequence[str], facts_by_shard: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Add up what was counted in several tables of documents.

        table       documents    escaped    columns
        0           1,000        3          [{"name": "language", "nulls": 5, …}]
        1           200                     [{"name": "language", "nulls": 1, …}]
        together    1,200        3          [{"name": "language", "nulls": 6, …}]

    Args:
        names: Names of the columns.
        facts_by_shard: What was counted in each table. A count may be missing if it is 0.

    Returns:
        `columns`, with the type and the counts of each column over all tables; and the sum of each
        other count.
    """
    columns = []
    for number, name in enumerate(names):
        column_by_shard = [facts["columns"][number] for facts in facts_by_shard]
        columns.append(_column_over_all_shards(name, column_by_shard))

    sums: Counter[str] = Counter()
    for facts in facts_by_shard:
        for name, count in facts.items():
            if isinstance(count, int):  # "columns" is a list
                sums[name] += count
    return {"columns": columns, **sums}


def _column_over_all_shards(
    name: str, column_by_shard: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Combine what is known of one column in several tables.

    A corpus (a collection of texts) has a table for each part of it. For the column "score":

        table       kind      nulls    left_out
        0           int       3        0
        1           double    1        2
        together    double    4        2

    Args:
        name: Name of the column.
        column_by_shard: Kind and counts of the column in each table, see `ColumnTable.facts`.
    """
    return {
        "name": name,
        "kind": joined(column["kind"] for column in column_by_shard),
        "nulls": sum(column["nulls"] for column in column_by_shard),
        "left_out": sum(column["left_out"] for column in column_by_shard),
    }
