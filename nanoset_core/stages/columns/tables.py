"""Make a table of columns for each shard of a corpus, and the output that lists these tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Amount
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.columns.column_table import TABLE, ColumnTable
from nanoset_core.stages.per_shard import find_existing, make_missing
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS
from nanoset_core.stages.stage import size_bytes
from nanoset_core.text.values import joined

SHARDS = "shards"
"""Fact of an output: digests of its tables, in the order of the corpus's shards."""
ESCAPED = "escaped"
"""Fact of an output: how many values are bytes that are not UTF-8; left out if there are none."""
Fill = Callable[[ColumnTable, DocumentRows], Mapping[str, Any]]
"""Fills the table of a shard, given the table of its documents; returns further facts of it."""


@dataclass(frozen=True, slots=True)
class TablesOfShards:
    """How the tables of an output are made, one for each shard of a corpus."""

    recipe: Recipe
    """Recipe of the output; the tables have its options and its version."""
    folder: str
    """Folder of the tables, below the root."""
    progress_name: str
    """What the work is called while it runs."""
    shards: Sequence[Manifest]
    """Shards of the corpus."""
    names: Sequence[str]
    """Names of the columns."""
    fill_of: Callable[[int], Fill]
    """Returns how the table of a shard is filled, by the number of the shard."""

    def table_recipes(self) -> list[Recipe]:
        """Return the recipe of the table of each shard."""
        recipes = []
        for shard in self.shards:
            parents = {"shard": shard.digest}
            recipes.append(
                Recipe(
                    self.folder,
                    self.recipe.name,
                    self.recipe.version,
                    parents,
                    self.recipe.options,
                )
            )
        return recipes


@dataclass(frozen=True, slots=True)
class MadeTables:
    """The tables of all shards of a corpus."""

    digests: Sequence[str]
    facts: Sequence[Mapping[str, Any]]
    existing: Sequence[int]
    """Numbers of the shards whose tables existed before."""


@dataclass(frozen=True, slots=True)
class TableTask:
    """Everything that a worker needs to make the table of one shard."""

    root: OutputRoot
    recipe: Recipe
    shard: Manifest
    """The tokens of the documents, and the table of these documents."""
    names: Sequence[str]
    """Names of the columns."""
    fill: Fill


def make_table(task: TableTask) -> Manifest:
    """Make and store the table of one shard, or return it if it exists already.

    Raises:
        FormatError: The table would not have the rows of the shard's documents.
    """
    with task.root.in_task() as root:
        shard = root.rebase(task.shard)

        def write(folder: Path) -> Written:
            documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
            with ColumnTable(folder / TABLE, task.names) as table:
                further_facts = task.fill(table, documents)
            facts = {"documents": table.rows, "columns": table.facts, **further_facts}
            return Written(facts)

        return root.commit(task.recipe, write)


def make_tables(project: Project, tables: TablesOfShards, executor: Executor | None) -> MadeTables:
    """Make the tables that do not exist yet; return all of them.

    Args:
        project: The project.
        tables: How the tables are made.
        executor: Runs the tasks; None for processes of this machine.
    """
    recipes = tables.table_recipes()
    facts_by_shard = find_existing(project, recipes, _facts_of)
    existing = [number for number, facts in enumerate(facts_by_shard) if facts is not None]
    missing = [number for number, facts in enumerate(facts_by_shard) if facts is None]
    work = project.progress.work(
        tables.progress_name, tables.recipe.name, len(tables.shards), "shards"
    )
    work.add_existing(Amount(len(existing)))

    def task_of(number: int) -> TableTask:
        return TableTask(
            root=project.outputs,
            recipe=recipes[number],
            shard=tables.shards[number],
            names=tables.names,
            fill=tables.fill_of(number),
        )

    def note_table(number: int, table: Manifest) -> None:
        facts_by_shard[number] = _facts_of(table)
        work.advance(1)

    make_missing(project, missing, task_of, make_table, note_table, executor)
    return MadeTables(
        digests=[recipe.digest for recipe in recipes],
        facts=[facts for facts in facts_by_shard if facts is not None],
        existing=existing,
    )


def publish(
    project: Project,
    tables: TablesOfShards,
    made: MadeTables,
    further_facts: Mapping[str, Any] | None = None,
) -> Manifest:
    """Store the output that lists the tables of a corpus's shards, and make it current.

    Args:
        project: The project.
        tables: How the tables were made.
        made: All tables.
        further_facts: Facts of the output in addition to those of its tables; they take precedence.
    """

    def write(folder: Path) -> Written:
        facts = {
            **_total_facts(tables.names, made.facts),
            **(further_facts or {}),
            SHARDS: list(made.digests),
        }
        return Written(facts)

    return project.outputs.make_current(project.outputs.commit(tables.recipe, write))


def _facts_of(table: Manifest) -> Mapping[str, Any]:
    """Return the facts of a table, and its size."""
    return {**table.facts, "bytes": size_bytes(table)}


def _total_facts(
    names: Sequence[str], facts_by_shard: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the facts of all tables together: the kind of all values of each column, and sums.

    Args:
        names: Names of the columns.
        facts_by_shard: Facts of the table of each shard.
    """
    columns = []
    for number, name in enumerate(names):
        parts = [facts["columns"][number] for facts in facts_by_shard]
        columns.append(
            {
                "name": name,
                "kind": joined(part["kind"] for part in parts),
                "nulls": sum(part["nulls"] for part in parts),
                "left_out": sum(part["left_out"] for part in parts),
            }
        )

    # A rare count, such as `escaped`, is a fact only of the tables in which it is not 0.
    sums: Counter[str] = Counter()
    for facts in facts_by_shard:
        sums.update({name: value for name, value in facts.items() if isinstance(value, int)})
    return {"columns": columns, **sums}
